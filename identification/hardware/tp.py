"""One law across tensor-parallel sizes: fitted to runs at some of them, it gives the plant at another."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headway.identification.hardware.division import ACTING, FEWEST, NAMES, Run, Terms, at_size, fit_regime
from headway.identification.limits import limits_of
from headway.identification.rows import KEPT, judge, used_rows
from headway.identification.structures.intervals import kept_residuals, margin
from headway.identification.trace import Trace
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.plant import Batch
from headway.models.regimes import RegimePlant, terms


@dataclasses.dataclass(frozen=True)
class TpLaw:
    """A law across tensor-parallel sizes; `fit_tp` makes one.

    Args:
        tps: sizes that it was fitted to, rising.
        decode: law of steps without prefill.
        mixed: law of steps with prefill.
        kv_heads: heads of the cache; beyond as many devices it is copied, not divided. None divides without end.
        template: a plant with what does not depend on the size: noise, hull, margins, limits.
        sentences: what there is to say.
    """

    tps: tuple[int, ...]
    decode: Terms
    mixed: Terms
    kv_heads: int | None
    template: IdentifiedPlant
    sentences: tuple[str, ...]

    def plant(self, tp: int) -> RegimePlant:
        """The plant at one size.

        Args:
            tp: tensor-parallel size, at least 1.

        Returns:
            The plant.

        Raises:
            ValueError: a size below 1.
        """
        return RegimePlant(*(tuple(at_size(law.alone, law.limit, tp, self.kv_heads).tolist()) for law in (self.decode, self.mixed)))

    def unscaled_work_s(self, batch: Batch, tp: int) -> float:
        """Time of a step that grows with its tokens but shrinks with no further device.

        Collectives, and what every device repeats.

        Args:
            batch: one step, scalars.
            tp: tensor-parallel size.

        Returns:
            Time [s]; 0 on one device.
        """
        law = self.mixed if float(batch.prefill_tokens) > 0 else self.decode
        work = np.array([0.0, float(batch.decode_requests), 0.0, float(batch.prefill_tokens), 0.0, 0.0])
        return float(work @ law.limit) * (1 - 1 / tp)

    def identified(self, tp: int) -> IdentifiedPlant:
        """The plant at one size with noise, intervals and warnings, ready for plant.json.

        Args:
            tp: tensor-parallel size, at least 1.

        Returns:
            The plant. Its intervals add the ends of both parts: they hold the scatter of the fit, not the error of the line.

        Raises:
            ValueError: a size below 1.
        """
        plant = self.plant(tp)
        interval = {}
        for regime, law in (("decode", self.decode), ("mixed", self.mixed)):
            ends = np.stack([at_size(law.alone_ci95[:, i], law.limit_ci95[:, i], tp, self.kv_heads) for i in (0, 1)], axis=1)
            for name, (low, high) in zip(NAMES[: ACTING[regime]], ends, strict=False):
                value = plant.coefficients()[f"{regime}.{name}"].value
                if np.isfinite(low) and high > 0:
                    interval[f"{regime}.{name}"] = (min(float(low), value), max(float(high), value))
        said = [_predicted(tp, self.tps), *self.sentences, *self.template.about["warnings"]]
        about = {**self.template.about, "warnings": said, "tp": self.to_json() | {"to": tp}}
        return dataclasses.replace(self.template, plant=plant, interval=interval, about=about)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            {"from": sizes, "decode" and "mixed": {"form", "errors", "terms": {name: {"alone", "limit"}}}}.
        """
        said: dict[str, Any] = {"from": list(self.tps)}
        for regime, law in (("decode", self.decode), ("mixed", self.mixed)):
            rows = {
                name: {"alone": float(a), "limit": float(b)}
                for name, a, b in zip(NAMES[: ACTING[regime]], law.alone, law.limit, strict=False)
            }
            said[regime] = {"form": law.form, "errors": dict(law.errors), "terms": rows}
        return said


def fit_tp(
    traces: Mapping[int, Trace],
    *,
    epsilon: float = 0.01,
    limits: Mapping[str, Any] | None = None,
    kv_heads: int | None = None,
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> TpLaw:
    """Fit one law to runs at several tensor-parallel sizes, everything else alike.

    The form is chosen in each regime by the error on steps that were not fitted to: with three sizes or more on the size
    left out, with two on the other blocks of 200 steps. The first of `FORMS` is kept unless another is clearly better.

    Args:
        traces: by tensor-parallel size, two or more.
        epsilon: share of steps over the budget that the margins allow, in (0, 1).
        limits: of the engine, by field of `Limits`; those found with the largest size's trace else.
        kv_heads: heads of the cache; None divides it without end.
        seed: of the bootstrap.
        progress: called with a label and the share done.

    Returns:
        The law.

    Raises:
        ValueError: fewer than two sizes, one below 1, epsilon out of range, or a run with fewer than 20 used steps in a regime.
    """
    tps = tuple(sorted(traces))
    if len(tps) < 2 or tps[0] < 1:
        raise ValueError(f"a law across tensor-parallel sizes needs runs at two sizes or more, each at least 1, got {list(tps)}")
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon must be in (0, 1), got {epsilon:g}; write 0.01 for 1 %")
    say = progress or _silent
    runs, reasons = [], {}
    for i, tp in enumerate(tps):
        say(f"judging rows of tp {tp}", 0.5 * i / len(tps))
        reasons[tp] = judge(traces[tp])
        runs.append(_run(tp, traces[tp], reasons[tp] == KEPT))
    say("fitting", 0.5)
    rng = np.random.default_rng([seed, 0x7F])
    laws = {name: fit_regime([run.regime(name) for run in runs], count, kv_heads, rng) for name, count in ACTING.items()}
    say("done", 1.0)
    template = _template(traces, reasons, runs, laws, kv_heads, epsilon, limits, seed)
    return TpLaw(tps, laws["decode"], laws["mixed"], kv_heads, template, tuple(_sentences(laws, tps)))


def _silent(_label: str, _share: float) -> None:
    """No one watches."""


def _run(tp: int, trace: Trace, kept: np.ndarray) -> Run:
    run = Run(tp, terms(trace.batch())[kept], trace.step_time_s[kept], trace.frame["block"].to_numpy()[kept])
    for name in ACTING:
        count = len(run.regime(name).step_time_s)
        if count < FEWEST:
            raise ValueError(
                f"the run at tp {tp} holds {count} used {name} steps, a law across sizes needs {FEWEST} in each run; record more"
            )
    return run


def _template(
    traces: Mapping[int, Trace],
    reasons: Mapping[int, np.ndarray],
    runs: list[Run],
    laws: Mapping[str, Terms],
    kv_heads: int | None,
    epsilon: float,
    limits: Mapping[str, Any] | None,
    seed: int,
) -> IdentifiedPlant:
    """What does not depend on the size: residuals of all runs, the operating points that all of them held, limits."""
    residual: dict[str, np.ndarray] = {}
    for name, law in laws.items():
        parts = [run.regime(name) for run in runs]
        residual[name] = np.concatenate(
            [np.log(part.step_time_s / (part.terms @ at_size(law.alone, law.limit, part.tp, kv_heads))) for part in parts]
        )
    fields = [field.name for field in dataclasses.fields(Hull)]
    tops = [[float(getattr(traces[run.tp].batch(), f)[reasons[run.tp] == KEPT].max()) for f in fields] for run in runs]
    engine, said = limits_of(traces[runs[-1].tp], limits)
    rows = [used_rows(reasons[tp], np.ones(len(trace), bool), trace.aside) for tp, trace in sorted(traces.items())]
    aside: dict[str, int] = {}
    for name, count in (item for row in rows for item in row["set_aside"].items()):
        aside[name] = aside.get(name, 0) + count
    about = {
        "rows": {"read": sum(r["read"] for r in rows), "used": sum(r["used"] for r in rows), "set_aside": aside},
        "heldout": None,
        "excitation": {},
        "warnings": [*said, *(f"tp {tp}: {text}" for tp, trace in sorted(traces.items()) for text in trace.warnings)],
        "sources": [source._asdict() for _, trace in sorted(traces.items()) for source in trace.sources],
        "training": {"blocks": "all", "where": {}, "epsilon": epsilon, "seed": seed},
    }
    margins = {name: margin(values, epsilon) for name, values in residual.items()}
    noise = Noise(kept_residuals(residual["decode"]), kept_residuals(residual["mixed"]))
    first = RegimePlant(*(tuple(laws[name].alone.tolist()) for name in ACTING))
    return IdentifiedPlant(first, noise, Hull(*np.min(tops, axis=0).tolist()), margins, {}, engine, about)


def _predicted(tp: int, tps: tuple[int, ...]) -> str:
    known = " and ".join(f"tp {t}" for t in tps)
    if tp in tps:
        return f"this plant is the law of {known} at tp {tp}, not a fit to the run at tp {tp} alone"
    beyond = "" if tps[0] < tp < tps[-1] else ", beyond the sizes measured"
    return (
        f"this plant is a prediction for tp {tp} from {known}{beyond}, not measured: its intervals, residuals and margin are of those runs and "
        "hold no error of the prediction; measure before it is relied on"
    )


def _sentences(laws: Mapping[str, Terms], tps: tuple[int, ...]) -> list[str]:
    said = []
    for regime, law in laws.items():
        kept = [
            f"{name} grows with their number" if b > a else f"{b / a:.0%} of {name} stays"
            for name, a, b, ends in zip(NAMES, law.alone, law.limit, law.limit_ci95, strict=True)
            if ends[0] > 0
        ]
        left = "what does not divide among devices (launch, collectives, repeated work): "
        said.append(f"{regime}: {left}{', '.join(kept) or 'nothing that the runs can tell'}")
        way = "the size left out" if len(tps) > 2 else "blocks left out of the same sizes, which says nothing of another size"
        if np.isfinite(law.errors[law.form]):
            said.append(f"{regime}: form '{law.form}', mean error {law.errors[law.form]:.1%} on {way}")
        else:
            said.append(f"{regime}: form '{law.form}', taken by argument: too few steps to validate it")
    if len(tps) == 2:
        said.append("two sizes fix a line in 1/TP and leave nothing to test it by; a run at a third size would")
    return said
