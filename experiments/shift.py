"""Traffic that a controller was not tuned on: longer or shorter requests, other arrivals; against the static setting it falls back to.

Each variant of the workload is run at the load at which the static setting attains LEVEL there, so that the question is whether
the controller does harm where its fallback does well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.experiments.knee import ABOVE, BELOW, knee
from headway.experiments.statistics import Estimate, gain_interval, mean_interval
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ATTAINMENT
from headway.models.signals import Limits, Target
from headway.models.workload import Workload

SCHEMA = "headway/shift/1"

LEVEL = 0.95
"""Attainment of the static setting at the load that a variant is run at."""

HARM = 0.02
"""Share of the fallback's attainment below which the controller does harm there."""

LONGER, SOME = 8.0, 0.2
"""Factor on lengths, and the share of requests that are longer where two kinds are mixed."""

BURSTS = 4.0
"""Coefficient of variation of the gaps between arrivals."""

WAVE = 0.7
"""Amplitude of a rate that rises and falls once, as a share of its mean."""

ALIKE, SPREAD, PARTS = 2.0, 1.4, 8
"""Factor from which on a mean, or the variation of gaps or of the rate in so many parts of a run, is that of another traffic; and of the
variation of prompts."""

SEED = 7
"""Of what is drawn anew in a variant."""

Progress = Callable[[str, float], None]
Change = Callable[[Workload, np.random.Generator], Workload]


class Shifted(NamedTuple):
    """One variant, and what both contenders attain under it.

    Args:
        name: of the variant, a key of SHIFTS.
        words: what is other than in the workload that was tuned for.
        rate_rps: mean rate of the runs [requests/s].
        controller: held-out attainment.
        fallback: of the static setting.
        gain: of the controller over it, relative, paired over the draws.
        note: what should be known of the load; "" for nothing.
    """

    name: str
    words: str
    rate_rps: float
    controller: Estimate
    fallback: Estimate
    gain: Estimate
    note: str = ""

    @property
    def harmful(self) -> bool:
        """Whether the controller is more than HARM below its fallback."""
        return self.gain.value < -HARM


@dataclasses.dataclass(frozen=True)
class Shift:
    """What becomes of a controller under other traffic.

    Args:
        rows: one per variant.
        skipped: variants that this workload cannot have, with the reason.
    """

    rows: list[Shifted]
    skipped: list[str]

    @property
    def harmful(self) -> tuple[str, ...]:
        """Names of the variants under which the controller does harm."""
        return tuple(r.name for r in self.rows if r.harmful)

    def sentence(self) -> str:
        """Where it can be left alone, and where not.

        Returns:
            One sentence.
        """
        if not self.rows:
            return "no other traffic could be tried: " + "; ".join(self.skipped)
        bad = [r for r in self.rows if r.harmful]
        tried = f"of {len(self.rows)} kinds of traffic that it was not tuned on"
        if not bad:
            worst = min(self.rows, key=lambda r: r.gain.value)
            return f"{tried} none has it more than {HARM:.0%} below its static fallback; worst are {worst.words}, {_points(worst)}"
        named = "; ".join(f"{r.words}: {_points(r)}" for r in bad)
        return f"{tried} {len(bad)} have it below its static fallback: tune anew, or fall back, before it meets {named}"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            {"schema", "rows": [...], "harmful", "skipped", "sentence"}.
        """
        pair = lambda e: {"value": e.value, "ci95": [e.low, e.high]}  # noqa: E731
        rows = [r._asdict() | {name: pair(getattr(r, name)) for name in ("controller", "fallback", "gain")} for r in self.rows]
        return {
            "schema": SCHEMA,
            "rows": rows,
            "harmful": list(self.harmful),
            "skipped": self.skipped,
            "sentence": self.sentence(),
        }


def shift(
    identified: IdentifiedPlant,
    controller: Candidate,
    static: Candidate,
    draws: list[Draw],
    targets: tuple[Target, ...],
    limits: Limits,
    *,
    progress: Progress | None = None,
) -> Shift:
    """Run a controller and its fallback under each variant of the workload, at the load that the fallback carries there.

    Args:
        identified: the plant.
        controller: tuned for the workload of the draws.
        static: what it falls back to.
        draws: held-out workloads and noise.
        targets: one per class.
        limits: of the engine.
        progress: called with a label and a fraction.

    Returns:
        Shift.
    """
    longest = min(limits.max_len, limits.blocks * limits.block_tokens)
    rows, skipped = [], []
    for k, (name, (words, change)) in enumerate(SHIFTS.items()):
        if progress:
            progress("other traffic", k / len(SHIFTS))
        if name in OF_ARRIVALS and any(d.workload.after is not None for d in draws):
            skipped.append(f"{words}: requests that wait for another's end have no arrivals of their own")
            continue
        rng = np.random.default_rng(SEED)
        moved = [d._replace(workload=_fitting(change(d.workload, rng), longest)) for d in draws]
        rows.append(_row(name, words, identified, (controller, static), moved, targets, limits))
    return Shift(rows, skipped)


def alike(workload: Workload, tuned: Workload) -> tuple[str, ...]:
    """Which variants a workload is like, against the one that was tuned for.

    Args:
        workload: another one.
        tuned: that was tuned for.

    Returns:
        Names out of SHIFTS; none where it is much the same.
    """
    pairs = {name: [f(w) for w in (workload, tuned)] for name, f in _MARKS.items()}
    ratio = {name: a / max(b, 1e-12) for name, (a, b) in pairs.items()}
    longer = {f"longer {kind}": ratio[kind] >= ALIKE for kind in ("prompts", "outputs")}
    shorter = {f"shorter {kind}": ratio[kind] <= 1 / ALIKE for kind in ("prompts", "outputs")}
    spread = {"mixed prompts": ratio["spread"] >= SPREAD, "bursts": ratio["gaps"] >= ALIKE, "waves": ratio["rate"] >= ALIKE}
    there = longer | shorter | spread
    return tuple(name for name in SHIFTS if there[name])


def _varies(x: np.ndarray) -> float:
    """Coefficient of variation."""
    return float(np.std(x) / max(float(np.mean(x)), 1e-12))


_MARKS: dict[str, Callable[[Workload], float]] = {
    "prompts": lambda w: float(w.prompt_tokens.mean()),
    "outputs": lambda w: float(w.output_tokens.mean()),
    "spread": lambda w: _varies(w.prompt_tokens),
    "gaps": lambda w: _varies(np.diff(w.arrival_s)) if len(w) > 2 else 0.0,
    "rate": lambda w: _varies(np.histogram(w.arrival_s, bins=PARTS)[0]),
}


def _row(
    name: str,
    words: str,
    identified: IdentifiedPlant,
    contenders: tuple[Candidate, Candidate],
    moved: list[Draw],
    targets: tuple[Target, ...],
    limits: Limits,
) -> Shifted:
    """Both contenders on a variant, at the load that the fallback carries."""
    found = knee(identified, [contenders[1]], moved, targets, limits, share=LEVEL)
    own_rps = float(np.mean([d.workload.rate_rps for d in moved]))
    notes = {BELOW: f"even there the fallback attains less than {LEVEL:.0%}", ABOVE: f"the fallback would attain {LEVEL:.0%} of more"}
    stretch = np.full(2, own_rps / found.rate_rps.value)
    values = evaluate(identified, [*contenders], moved, targets, limits, stretch=stretch)[..., ATTAINMENT]
    return Shifted(
        name,
        words,
        found.rate_rps.value,
        mean_interval(values[0]),
        mean_interval(values[1]),
        gain_interval(values[1], values[0]),
        notes.get(found.outcome, ""),
    )


def _points(row: Shifted) -> str:
    return f"{100 * row.controller.value:.1f} against {100 * row.fallback.value:.1f} % of the tokens on time at {row.rate_rps:.3g} req/s"


def _fitting(workload: Workload, longest: int) -> Workload:
    """No request longer than the engine takes: outputs are cut to half of that, prompts to what is left."""
    output = np.minimum(workload.output_tokens, max(longest // 2, 1))
    return dataclasses.replace(
        workload, prompt_tokens=np.maximum(np.minimum(workload.prompt_tokens, longest - output), 1), output_tokens=output
    )


def _lengths(prompt: float, output: float) -> Change:
    """All lengths times a factor; arrivals as far apart as keeps the tokens per second, common beginnings left out."""

    def change(workload: Workload, _rng: np.random.Generator) -> Workload:
        scaled = lambda x, f: np.maximum(np.round(x * f), 1).astype(np.int64)  # noqa: E731
        return dataclasses.replace(
            workload,
            arrival_s=workload.arrival_s * max(prompt, output, 1.0),
            prompt_tokens=scaled(workload.prompt_tokens, prompt),
            output_tokens=scaled(workload.output_tokens, output),
            prefix=None,
        )

    return change


def _some_longer(workload: Workload, rng: np.random.Generator) -> Workload:
    """Some of the prompts longer, at random."""
    longer = np.where(rng.random(len(workload)) < SOME, LONGER, 1.0)
    prompt = np.round(workload.prompt_tokens * longer).astype(np.int64)
    return dataclasses.replace(workload, arrival_s=workload.arrival_s * (1 + SOME * (LONGER - 1)), prompt_tokens=prompt, prefix=None)


def _bursts(workload: Workload, rng: np.random.Generator) -> Workload:
    """Gaps drawn anew, of the same mean."""
    gaps = rng.gamma(1 / BURSTS**2, size=len(workload) - 1)
    span_s = float(workload.arrival_s[-1] - workload.arrival_s[0])
    passed = np.concatenate([[0.0], np.cumsum(gaps)])
    return dataclasses.replace(workload, arrival_s=passed * span_s / max(float(passed[-1]), 1e-12))


def _wave(workload: Workload, _rng: np.random.Generator) -> Workload:
    """The same arrivals on a clock under which the rate rises and falls once."""
    first_s, span_s = float(workload.arrival_s[0]), float(workload.arrival_s[-1] - workload.arrival_s[0])
    t = np.linspace(0.0, 1.0, 2001)
    done = t + WAVE * (1 - np.cos(2 * np.pi * t)) / (2 * np.pi)  # of the requests, up to t
    at = np.interp((workload.arrival_s - first_s) / max(span_s, 1e-12), done, t)
    return dataclasses.replace(workload, arrival_s=at * span_s)


SHIFTS: dict[str, tuple[str, Change]] = {
    "longer prompts": (f"prompts {LONGER:g} times as long", _lengths(LONGER, 1.0)),
    "shorter prompts": (f"prompts a quarter as long, outputs {4:g} times", _lengths(0.25, 4.0)),
    "longer outputs": (f"outputs {4:g} times as long", _lengths(1.0, 4.0)),
    "shorter outputs": ("outputs a quarter as long", _lengths(1.0, 0.25)),
    "mixed prompts": (f"one prompt in five {LONGER:g} times as long", _some_longer),
    "bursts": (f"arrivals in bursts, gaps with a coefficient of variation of {BURSTS:g}", _bursts),
    "waves": (f"a rate that swings by {WAVE:.0%} about its mean", _wave),
}
"""What is tried, with words for it."""

OF_ARRIVALS = ("bursts", "waves")
"""Variants that draw arrivals anew."""
