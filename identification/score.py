"""How well a plant predicts steps: errors on the rows that the row rules keep, each figure with what it may hide."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headway.identification.rows import IDLE, KEPT, judge, select, used_rows
from headway.identification.structures.intervals import FEWEST_FOR_INTERVAL, band, share_interval
from headway.identification.structures.lag import Lag, neighbours_of
from headway.identification.trace import Trace
from headway.models.identified import IdentifiedPlant
from headway.models.plant import Batch

WANTED = 0.9
"""Share of new steps that should lie between the 5 % and the 95 % quantile of the plant's own residuals."""
MOST_OF = 0.5
"""Share of the missing coverage that comes back once the median is taken out, from which on steps are shifted, not scattered."""
TOLD = 0.05
"""Shift from which on a step is said to be longer or shorter than predicted [%]."""

FAR = 3.0
"""Times what the plant says from which on typical steps are said to be of another engine, or in another unit."""
REACH = 1.05
"""Times the largest sum fitted on from which on a prediction is said to be an extrapolation."""


@dataclasses.dataclass(frozen=True)
class Score:
    """Errors of a plant on a trace. APE is |predicted - measured| / measured; shares are fractions; None is "cannot be said".

    Args:
        steps: kept steps that were scored [steps].
        steps_mixed: those of them with prefill [steps].
        mape: mean APE over kept steps.
        median_ape: median APE over kept steps.
        mape_decode: mean APE over decode-only steps.
        mape_mixed: mean APE over steps with prefill.
        p90_ape: 90 % quantile of the APE.
        max_ape: largest APE of kept steps.
        max_ape_all: largest APE of all steps that were not idle, set aside or not.
        coverage90: per regime {"value", "ci95"}: share of kept steps within the plant's stored 5 % to 95 % residuals.
        shift: per regime {"value", "direction", "spread90", "coverage90"}: median of measured / predicted - 1 over kept steps,
            its sign as "longer", "shorter" or "neither", half the width of the middle 90 % of log(measured / predicted), and the
            coverage once the median is taken out.
        rows: {"read", "used", "set_aside": {reason: n}} [rows].
        warnings: what there is to say, one sentence each.
    """

    steps: int
    steps_mixed: int
    mape: float | None
    median_ape: float | None
    mape_decode: float | None
    mape_mixed: float | None
    p90_ape: float | None
    max_ape: float | None
    max_ape_all: float | None
    coverage90: dict[str, dict[str, Any]]
    shift: dict[str, dict[str, Any]]
    rows: dict[str, Any]
    warnings: list[str]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            The fields by name.
        """
        return dataclasses.asdict(self)


def score(
    plant: IdentifiedPlant,
    trace: Trace,
    *,
    blocks: str = "all",
    where: Mapping[str, object] | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Score:
    """Compare a plant with measured steps. Rows are set aside by the same rules as for a fit.

    Args:
        plant: what `fit` returned.
        trace: measured steps, shape (k,).
        blocks: "all", "even" (on which a fit may have been trained) or "odd".
        where: wanted value, or range low:high, by column; None takes every row.
        progress: called with a label and the share done.

    Returns:
        The errors; the first warning says in words whether the rows were fitted to.

    Raises:
        ValueError: an unknown word, column or value.
    """
    selected = select(trace, blocks, where)
    if progress:
        progress("judging rows", 0.0)
    reason = judge(trace)
    if progress:
        progress("scoring", 0.9)
    result = score_rows(plant, trace, selected, reason)
    return dataclasses.replace(result, warnings=[*_trained_on(plant.about, trace, selected), *result.warnings])


def score_rows(plant: IdentifiedPlant, trace: Trace, selected: np.ndarray, reason: np.ndarray) -> Score:
    """As `score`, for rows that were chosen and judged already.

    Args:
        plant: the plant.
        trace: all rows, shape (k,).
        selected: rows asked for, shape (k,), bool.
        reason: from `judge`, shape (k,), str.

    Returns:
        The errors.
    """
    batch, kept, busy = trace.batch(), selected & (reason == KEPT), selected & (reason != IDLE)
    mixed = batch.prefill_tokens > 0
    measured = np.where(reason == IDLE, 1.0, trace.step_time_s)
    predicted = np.asarray(plant.plant.step_time_s(batch), float)
    lag = Lag.from_json(plant.about.get("lag"))
    if lag.any:  # what a row of such a recorder holds of its neighbours
        predicted = predicted * lag.factor(predicted, neighbours_of(trace))
    ape = np.abs(predicted - measured) / measured
    residual = np.log(measured) - np.log(np.maximum(predicted, np.finfo(float).tiny))
    group = np.unique(np.stack([trace.stream, trace.frame["block"].to_numpy()]), axis=1, return_inverse=True)[1]
    coverage, shift, warnings = {}, {}, []
    for name, stored, regime in (("decode", plant.noise.decode, ~mixed), ("mixed", plant.noise.mixed, mixed)):
        shift[name] = _shift(stored, residual[kept & regime])
        coverage[name], said = _coverage(name, stored, residual[kept & regime], group[kept & regime], shift[name])
        warnings += said
    warnings = _elsewhere(residual[kept]) + warnings
    hit = ape[kept]
    return Score(
        steps=int(kept.sum()),
        steps_mixed=int((kept & mixed).sum()),
        mape=_or_none(np.mean, hit),
        median_ape=_or_none(np.median, hit),
        mape_decode=_or_none(np.mean, ape[kept & ~mixed]),
        mape_mixed=_or_none(np.mean, ape[kept & mixed]),
        p90_ape=_or_none(lambda x: np.quantile(x, 0.9), hit),
        max_ape=_or_none(np.max, hit),
        max_ape_all=_or_none(np.max, ape[busy]),
        coverage90=coverage,
        shift=shift,
        rows=used_rows(reason, selected, trace.aside if selected.all() else None),
        warnings=warnings + _reach(plant, batch, kept) + _few(kept, mixed),
    )


def _or_none(statistic: Callable[[np.ndarray], Any], values: np.ndarray) -> float | None:
    return float(statistic(values)) if len(values) else None


def _shift(stored: np.ndarray, residual: np.ndarray) -> dict[str, Any]:
    """By how much the typical step is longer or shorter than predicted, and how far the steps scatter around that."""
    if len(residual) == 0:
        return {"value": None, "direction": None, "spread90": None, "coverage90": None}
    low, middle, high = (float(x) for x in np.quantile(residual, [(1 - WANTED) / 2, 0.5, (1 + WANTED) / 2]))
    share = None
    if len(stored) >= FEWEST_FOR_INTERVAL:
        ends, alike = band(stored, WANTED), residual - middle + float(np.median(stored))
        share = float(((alike >= ends[0]) & (alike <= ends[1])).mean())
    direction = "longer" if middle > 0 else "shorter" if middle < 0 else "neither"
    return {"value": float(np.expm1(middle)), "direction": direction, "spread90": (high - low) / 2, "coverage90": share}


def _shift_text(shift: Mapping[str, Any]) -> str:
    """Such as "41 % longer"; a shift of less than ten percent with a digit more."""
    size = 100 * abs(shift["value"])
    return f"{size:,.{0 if size >= 9.95 else 1}f} % {shift['direction']}" if size >= TOLD else "neither longer nor shorter"


def shift_sentence(score: Mapping[str, Any]) -> str:
    """By how much the steps of each regime took longer or shorter than the plant says.

    Args:
        score: as `Score.to_json`.

    Returns:
        One sentence; empty where no regime has steps enough to say it.
    """
    steps = {"decode": score["steps"] - score["steps_mixed"], "mixed": score["steps_mixed"]}
    told = [(name, _shift_text(score["shift"][name])) for name in steps if steps[name] >= FEWEST_FOR_INTERVAL]
    if not told:
        return ""
    (name, text), *others = told
    return f"{name} steps took {text} than the plant says{''.join(f', {more} steps {much}' for more, much in others)}, in the median"


def _coverage(
    regime: str, stored: np.ndarray, residual: np.ndarray, group: np.ndarray, shift: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Share of new residuals between the stored quantiles, with its interval over whole held-out blocks."""
    if len(stored) < FEWEST_FOR_INTERVAL or len(residual) == 0:
        return {"value": None, "ci95": None}, []
    low, high = band(stored, WANTED)
    inside = (residual >= low) & (residual <= high)
    share, ends = float(inside.mean()), share_interval(inside, residual, np.random.default_rng(0), group=group)
    said = []
    # the band is of as few or many steps as were stored, and wanders as much as the share does
    if ends and share + (ends[1] - share) * float(np.sqrt(1 + len(residual) / len(stored))) < WANTED:
        said.append(f"{share:.0%} ({ends[0]:.0%} to {ends[1]:.0%}) of the {regime} steps lie where 90 % should: {_missed(share, shift)}")
    return {"value": share, "ci95": ends}, said


def _missed(share: float, shift: Mapping[str, Any]) -> str:
    """Why steps lie outside the band: a shift is another engine or driver, scatter is noise or a missing term."""
    back = shift["coverage90"] - share > MOST_OF * (WANTED - share)
    if not back and abs(np.log1p(shift["value"])) <= shift["spread90"]:
        return "they scatter more than the plant says"
    more = "" if back else ": they scatter more as well"
    return f"they scatter around a time {_shift_text(shift)} than the plant says; with that median taken out {shift['coverage90']:.0%} lie there{more}"


def _reach(plant: IdentifiedPlant, batch: Batch, kept: np.ndarray) -> list[str]:
    """Say where the steps lie well outside the operating points that the plant was fitted on."""
    if not kept.any():
        return []
    hull, largest = plant.hull, {name: float(np.max(column[kept])) for name, column in batch._asdict().items()}
    inside = [name for name, value in largest.items() if value <= REACH * getattr(hull, name, np.inf)]
    return hull.outside(Batch(**{name: 0.0 if name in inside else value for name, value in largest.items()}))


def _elsewhere(residual: np.ndarray) -> list[str]:
    """Say where the steps are not of the plant's engine at all, or not in seconds."""
    middle = float(np.median(residual)) if len(residual) else 0.0
    if abs(middle) < np.log(FAR):
        return []
    return [
        f"the typical step took {np.exp(middle):.3g} times what the plant says: another engine, model or size, or step_time_s is not in seconds"
    ]


def _few(kept: np.ndarray, mixed: np.ndarray) -> list[str]:
    if not kept.any():
        return ["no step is left to score"]
    if int(kept.sum()) < FEWEST_FOR_INTERVAL:
        count = int(kept.sum())
        return [f"only {count} step{'s' * (count > 1)} to score: the error is hardly known"]
    count = int((kept & mixed).sum())
    return [f"only {count} steps with prefill: their error is hardly known"] if 0 < count < FEWEST_FOR_INTERVAL else []


def _trained_on(about: Mapping[str, Any], trace: Trace, selected: np.ndarray) -> list[str]:
    """An in-sample error is no accuracy: say so where a plant meets rows that it was fitted to."""
    training = about.get("training") or {}
    known = {source.get("sha256") for source in about.get("sources") or []}
    if not any(source.sha256 in known for source in trace.sources):
        return []
    try:
        # ranges of one column may overlap, and values of two columns hold no row together: only the rows themselves tell
        apart = not (selected & select(trace, training.get("blocks", "all"), training.get("where"))).any()
    except ValueError:  # of its rows, which were chosen by a value that this trace does not hold, there is none
        apart = set(training.get("where") or {}) <= set(trace.frame.columns)
    return [] if apart else ["the plant was fitted to steps of this trace: this is an in-sample error; score other blocks, or see heldout"]
