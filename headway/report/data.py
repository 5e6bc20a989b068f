"""What the report shows of a run folder: its files, and the trace held against the plant. Any stage may not have run yet."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headway.experiments.run import RunFolder
from headway.experiments.whole_files import read_json
from headway.identification.rows import KEPT, judge, used_rows
from headway.identification.structures.lag import Lag, neighbours_of
from headway.identification.trace import Trace
from headway.models.identified import Hull, IdentifiedPlant
from headway.report.recorded import Recorded, recorded, spread
from headway.report.run_trace import trace_of_run
from headway.report.text import number

REGIMES = ("decode", "mixed")

INSIDE = (0.05, 0.95)
"""Quantiles of the plant's residuals that bound its 90 % band."""

FEWEST = 20
"""Residuals below which a regime gets no band."""

WINDOW = 400
"""Steps that the closed loop opens with."""


def dig(value: Any, *keys: str) -> Any:
    """What stands under these keys, if all of them are there.

    Args:
        value: nested mappings.
        *keys: from the outside in.

    Returns:
        The value; None where a key is missing or what it should be in is no mapping.
    """
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def traces_of(plant: Any) -> list[str]:
    """The files that a plant was fitted to.

    Args:
        plant: content of plant.json; None where there is none.

    Returns:
        Paths as they were given; empty where the plant does not say.
    """
    return [str(source["file"]) for source in dig(plant, "sources") or [] if dig(source, "file")]


def timeline_of(side: Any) -> dict[str, list[float]]:
    """The recorded steps of one side.

    Args:
        side: of validation.json.

    Returns:
        Columns of one length by name, `end_s` and `step_time_s` among them; empty if nothing usable was recorded.
    """
    columns = dig(side, "timeline")
    if not isinstance(columns, Mapping) or not columns.get("end_s"):
        return {}
    n = len(columns["end_s"])
    whole = {k: v for k, v in columns.items() if isinstance(v, list) and len(v) == n and None not in v}
    return whole if {"end_s", "step_time_s"} <= whole.keys() else {}


def window_of(timeline: Mapping[str, Any]) -> tuple[int, int, str]:
    """The stretch of a closed loop to open with: the one in which the loop had most to do.

    Args:
        timeline: of `timeline_of`, not empty.

    Returns:
        (first step, last step, why these).
    """
    n = len(timeline["end_s"])
    bound = np.asarray(timeline.get("binding") or np.zeros(n), float) == 3
    if n <= WINDOW:
        return 0, n - 1, "all there are"
    if not bound.any():
        return 0, WINDOW - 1, "the first ones"
    total = np.concatenate([[0], np.cumsum(bound)])
    first = int(np.argmax(total[WINDOW:] - total[:-WINDOW]))
    return first, first + WINDOW - 1, "the stretch in which the token budget was the limit most often"


def distribution_of(side: Any, name: str) -> tuple[list[float], list[float | None]]:
    """One distribution of one side.

    Args:
        side: of validation.json.
        name: "ttft_s" or "itl_s".

    Returns:
        (shares, quantiles [s], None where never served); both empty if there is none.
    """
    shares, values = (dig(side, "distributions", key) or [] for key in ("share", name))
    known = [(s, v) for s, v in zip(shares, values, strict=False) if s is not None]
    return ([s for s, _ in known], [v for _, v in known]) if any(v is not None for _, v in known) else ([], [])


@dataclasses.dataclass(frozen=True)
class Steps:
    """The kept rows of the trace against the plant, in order.

    Args:
        place: number of each row in the trace, from 0, shape (k,).
        measured_s: durations, shape (k,) [s].
        predicted_s: by the plant, with what the record holds of neighbouring steps, shape (k,) [s].
        mixed: whether a step carried prefill, shape (k,), bool.
        rows: {"read", "used", "set_aside": {reason: n}} of the rows judged [rows].
        total: rows of the trace, judged or not.
    """

    place: np.ndarray
    measured_s: np.ndarray
    predicted_s: np.ndarray
    mixed: np.ndarray
    rows: dict[str, Any]
    total: int

    @property
    def residual(self) -> np.ndarray:
        """log(measured / predicted), shape (k,)."""
        return np.log(self.measured_s) - np.log(np.maximum(self.predicted_s, np.finfo(float).tiny))

    def of(self, regime: str) -> np.ndarray:
        """Which rows belong to a regime.

        Args:
            regime: "decode" or "mixed".

        Returns:
            Mask of shape (k,), bool.
        """
        return self.mixed == (regime == "mixed")


@dataclasses.dataclass(frozen=True)
class Findings:
    """All that the report knows.

    Args:
        run: the folder.
        plant: content of plant.json.
        controller: of controller.json; None if it is not there yet.
        validation: of validation.json; None if it is not there yet.
        manifest: of manifest.json; empty if there is none.
        steps: the trace against the plant; None if there is no trace.
        recorded: the trace as its own figures need it; None if there is no trace.
        refusal: why the controller may not be exported; None if nothing says so.
    """

    run: Path
    plant: dict[str, Any]
    controller: dict[str, Any] | None
    validation: dict[str, Any] | None
    manifest: dict[str, Any]
    steps: Steps | None
    recorded: Recorded | None = None
    refusal: str | None = None

    def band(self, regime: str) -> tuple[float, float] | None:
        """The plant's own 90 % band.

        Args:
            regime: "decode" or "mixed".

        Returns:
            5 % and 95 % quantile of log(measured / predicted); None where too few residuals are known.
        """
        stored = dig(self.plant, "residuals", regime) or []
        if len(stored) < FEWEST:
            return None
        low, high = np.quantile(np.asarray(stored, float), INSIDE)
        return float(low), float(high)

    @property
    def hull(self) -> Hull | None:
        """Operating points that the plant was fitted on; None where the file does not say."""
        known = {name: number(dig(self.plant, "hull", name)) for name in Hull.__annotations__}
        return None if None in known.values() else Hull(**known)  # pyright: ignore[reportArgumentType]  # none is None

    @property
    def targets(self) -> list[dict[str, Any]]:
        """The targets by class; empty before tuning."""
        return [t for t in dig(self.controller, "targets") or [] if isinstance(t, dict)]

    @property
    def epsilon(self) -> float | None:
        """Smallest share of owed tokens that a class allows to be late."""
        known = [t["epsilon"] for t in self.targets if t.get("epsilon") is not None]
        return min(known) if known else dig(self.plant, "training", "epsilon")

    @property
    def tuned_rps(self) -> float | None:
        """Load that the controller was tuned for [requests/s]: the load curve's point at factor 1, else the workload's rate."""
        from headway.experiments.load import FACTORS

        rates = dig(self.controller, "tuning", "load_curve", "rate_rps") or []
        if len(rates) == len(FACTORS):
            return rates[FACTORS.index(1.0)]
        return dig(self.controller, "workload", "rate_rps")


def collect(run: Path) -> Findings:
    """Read what a run folder holds.

    Args:
        run: the folder.

    Returns:
        Findings; a stage that has not run is None.

    Raises:
        ValueError: there is no plant, or a file that is there cannot be read; the message names it.
    """
    folder = RunFolder(run)
    if not folder.file("fit").exists():
        raise ValueError(
            f"{folder.file('fit')}: no such file, and a report needs a plant; `headway fit TRACE --out {folder.file('fit')}` makes one"
        )
    plant = _mapping(folder.file("fit"))
    try:
        identified = IdentifiedPlant.from_json(plant)
    except ValueError as error:
        raise ValueError(f"{folder.file('fit')}: {error}") from None
    controller, validation = (_mapping(folder.file(s)) if folder.file(s).exists() else None for s in ("tune", "validate"))
    asked = dig(identified.about, "training", "where")
    trace = trace_of_run(folder.file("trace"), asked) if folder.file("trace").exists() else None
    rows = recorded(trace) if trace is not None else None
    steps = steps_of(trace, identified, rows) if trace is not None else None
    refused = folder.file("export") / "refused.txt"
    refusal = refused.read_text(encoding="utf-8").strip() if refused.is_file() else None
    return Findings(run, plant, controller, validation, folder.manifest(), steps, rows, refusal)


def steps_of(trace: Trace, identified: IdentifiedPlant, judged: Recorded | None = None) -> Steps:
    """Hold a trace against a plant, on the rows that the row rules keep and that the fit was asked to take.

    Args:
        trace: measured steps.
        identified: the plant.
        judged: the same trace, its rows judged; None judges them here.

    Returns:
        Steps.
    """
    chosen = dig(identified.about, "training", "where")
    try:
        selected = trace.matching(chosen)
    except ValueError:  # the trace of the run folder holds the chosen rows only, or lacks the column to choose by
        selected = np.ones(len(trace), bool)
    part = spread(len(trace))
    some = dataclasses.replace(trace, frame=trace.frame[part]) if len(part) < len(trace) else trace
    reason = judge(some) if judged is None else judged.reason
    kept = np.flatnonzero((reason == KEPT) & selected[part])
    batch, predicted = some.batch(), np.asarray(identified.plant.step_time_s(some.batch()), float)
    predicted = predicted * Lag.from_json(identified.about.get("lag")).factor(predicted, neighbours_of(some))
    rows = used_rows(reason, selected[part], trace.aside)
    return Steps(part[kept], some.step_time_s[kept], predicted[kept], batch.prefill_tokens[kept] > 0, rows, len(trace))


def _mapping(path: Path) -> dict[str, Any]:
    data = read_json(path)
    if not isinstance(data, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(data).__name__}")
    return data
