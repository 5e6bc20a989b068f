"""What a candidate has to keep beside the objective: floors per class, ceilings on tails, fairness, a cap on shedding."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headway.controllers.simulator import Candidate, Draw
from headway.experiments.outcomes import outcomes_of
from headway.models.goodput import ABANDONED, CANCELLED, GAP_BINS, GAP_LOW_S, GAP_RATIO, REJECTED, Outcome, summarise
from headway.models.identified import IdentifiedPlant
from headway.models.measures import CLEAN, ON_TIME, OWED, SHED
from headway.models.signals import Limits, Target

FLOORS = {"attainment": "share of tokens on time", "clean": "share of clean requests", "fair": "share of tokens on time of the worst class"}
CEILINGS = {"shed": "share of requests shed", "ttft_p99": "p99 TTFT", "itl_p99": "p99 ITL"}
CLASS = "class"
"""`class.NAME` is the share of tokens on time of one class; a ceiling may end in `.NAME` as well."""

TERCILE, TERCILES = "tercile", ("short", "middle", "long")
"""`tercile.long` is the share of tokens on time of the third of the requests with the longest prompts."""

TIMES = ("ttft_p99", "itl_p99")
"""Names whose bound is a time."""

QUICK = ("attainment", "clean", "shed")
"""Known from the measures of a run, without its requests."""

SLOWEST = 10.0
"""Excess of a time over its ceiling, as a multiple of the ceiling, that counts at most: a p99 may be infinite."""


class Requirement(NamedTuple):
    """One thing that has to be kept.

    Args:
        name: of FLOORS or CEILINGS, `class` or `tercile`.
        bound: a share in [0, 1], or a time [s].
        of: class that it is asked of, or one of TERCILES; "" for all.
    """

    name: str
    bound: float
    of: str = ""

    @property
    def floor(self) -> bool:
        """Whether the bound is the least that is allowed, not the most."""
        return self.name in FLOORS or self.name in (CLASS, TERCILE)

    @property
    def side(self) -> str:
        """On which side of the bound a figure has to be: at "least" or at "most" so much."""
        return "least" if self.floor else "most"

    @property
    def label(self) -> str:
        """As it is written on the command line, without its bound."""
        return f"{self.name}.{self.of}" if self.of else self.name

    def check(self, targets: tuple[Target, ...]) -> None:
        """Refuse what cannot be asked.

        Args:
            targets: one per class.

        Raises:
            ValueError: an unknown name, a class that is not there, a bound that is no share or no time.
        """
        if self.name not in FLOORS and self.name not in CEILINGS and self.name not in (CLASS, TERCILE):
            raise ValueError(f"cannot require {self.label!r}; known: {', '.join([*FLOORS, *CEILINGS, 'class.NAME', 'tercile.long'])}")
        known = [t.name for t in targets]
        if self.name == TERCILE:
            if self.of not in TERCILES:
                raise ValueError(
                    f"cannot require {self.label!r}: a third of the prompts is {', '.join(f'{TERCILE}.{t}' for t in TERCILES)}"
                )
        elif self.of and (self.name in FLOORS or self.of not in known):
            raise ValueError(f"cannot require {self.label!r}: classes are {', '.join(known)}, and floors are asked of them by class.NAME")
        if self.name == CLASS and not self.of:
            raise ValueError(f"cannot require {CLASS!r} of no class; write {CLASS}.{known[0]}>=95%")
        if self.name in TIMES and not 0 < self.bound < float("inf"):
            raise ValueError(f"{self.label} must be bounded by a time above 0, got {self.bound:g} s")
        if self.name not in TIMES and not 0 <= self.bound <= 1:
            raise ValueError(f"{self.label} must be bounded by a share in [0, 1], got {self.bound:g}")

    def missed(self, found: float) -> float:
        """By how much a figure misses the bound.

        Args:
            found: the figure; NaN, where nothing can be said, keeps every bound; a time of requests that were all shed is infinite.

        Returns:
            0 if kept; of shares the difference, of times the excess over the ceiling as a share of it.
        """
        if np.isnan(found):
            return 0.0
        if self.floor:
            return max(0.0, self.bound - found)
        excess = max(0.0, found - self.bound)
        return min(excess / self.bound, SLOWEST) if self.name in TIMES else excess

    def words(self, found: float) -> str:
        """A figure beside its bound.

        Args:
            found: the figure.

        Returns:
            Such as "shed 3.1 %, at most 2.0 %".
        """
        if self.name in TIMES:
            shown = lambda x: f"{1e3 * x:.1f} ms" if x < 1 else f"{x:.2f} s"  # noqa: E731
            value, bound = shown(found) if np.isfinite(found) else "of nobody served", shown(self.bound)
        else:
            value, bound = (f"{100 * x:.1f} %" for x in (found, self.bound))
        return f"{self.label} {value}, at {self.side} {bound}"


def asked_again(kept: list[dict[str, Any]]) -> tuple[Requirement, ...]:
    """Requirements from what a tuning wrote of them.

    Args:
        kept: as from `kept_json`.

    Returns:
        The requirements.

    Raises:
        ValueError: what was written is no list of requirements.

    Example:
        >>> asked_again([{"name": "shed", "bound": 0.02}, {"name": "class.chat", "bound": 0.95}])[1].label
        'class.chat'
    """
    try:
        names = [row["name"].partition(".") for row in kept]
        return tuple(Requirement(name, float(row["bound"]), of) for (name, _, of), row in zip(names, kept, strict=True))
    except (TypeError, KeyError, ValueError, AttributeError):
        raise ValueError("controller.json: tuning.required is no list of requirements with a name and a bound; tune anew") from None


def found_in(require: tuple[Requirement, ...], outcomes: list[Outcome], targets: tuple[Target, ...]) -> dict[Requirement, float]:
    """What runs made of each requirement, all of them taken as one.

    Args:
        require: what is asked.
        outcomes: of the runs.
        targets: one per class.

    Returns:
        Figure by requirement; NaN where nothing can be said.
    """
    clean = summarise(outcomes, targets).request_attainment if any(r.name == "clean" for r in require) else float("nan")
    return {r: clean if r.name == "clean" else _of_outcomes(r, outcomes, targets) for r in require}


def seen_of(
    require: tuple[Requirement, ...],
    candidate: Candidate,
    draws: list[Draw],
    plants: list[IdentifiedPlant],
    targets: tuple[Target, ...],
    limits: Limits,
    measures: np.ndarray,
) -> dict[Requirement, float]:
    """What a candidate makes of each requirement, all runs taken as one.

    Args:
        require: what is asked.
        candidate: law and policy.
        draws: workloads and noise.
        plants: that it runs on.
        targets: one per class.
        limits: of the engine.
        measures: of its runs, as `evaluate` gives them, shape (runs, MEASURES). What they hold is not simulated again.

    Returns:
        Figure by requirement; NaN where nothing can be said, as of a class without requests.
    """
    outcomes: list[Outcome] = []
    if any(r.of or r.name not in QUICK for r in require):
        outcomes = outcomes_of([(plant, candidate, d) for plant in plants for d in draws], targets, limits)
    found = {}
    for r in require:
        quick = not r.of and r.name in QUICK
        found[r] = _of_measures(r.name, measures) if quick else _of_outcomes(r, outcomes, targets)
    return found


def violation(require: tuple[Requirement, ...], found: dict[Requirement, float]) -> float:
    """By how much all requirements are missed together.

    Args:
        require: what is asked.
        found: figure by requirement.

    Returns:
        Sum over the requirements, 0 if all are kept.
    """
    return float(sum(r.missed(found[r]) for r in require))


def kept_json(require: tuple[Requirement, ...], found: dict[Requirement, float]) -> list[dict[str, Any]]:
    """Requirements with what became of them, as plain JSON values.

    Args:
        require: what is asked.
        found: figure by requirement.

    Returns:
        One mapping each: name, at ("least" or "most"), bound, value, kept, said.
    """
    return [
        {
            "name": r.label,
            "at": r.side,
            "bound": r.bound,
            "value": found[r],
            "kept": r.missed(found[r]) == 0,
            "said": r.words(found[r]),
        }
        for r in require
    ]


def _of_measures(name: str, measures: np.ndarray) -> float:
    if name == "attainment":
        return float(measures[:, ON_TIME].sum() / max(measures[:, OWED].sum(), 1e-9))
    return float(measures[:, CLEAN if name == "clean" else SHED].mean())


def _of_outcomes(requirement: Requirement, outcomes: list[Outcome], targets: tuple[Target, ...]) -> float:
    """Of one class, or of all."""
    c = next((k for k, t in enumerate(targets) if t.name == requirement.of), None)
    if requirement.name == "fair":
        each = [_attained(outcomes, k) for k in range(len(targets))]
        return float(np.nanmin(each)) if not np.isnan(each).all() else float("nan")
    if requirement.name == "itl_p99":
        p99_s = _gap_p99_s(outcomes, targets, c)
        return _nobody(outcomes, c) if np.isnan(p99_s) else p99_s
    if requirement.name in (CLASS, "attainment"):
        return _attained(outcomes, c)
    if requirement.name == TERCILE:
        return float(attained_by_tercile(outcomes)[TERCILES.index(requirement.of)])
    status, class_id, owed, ttft_s = (np.concatenate([getattr(o, n) for o in outcomes]) for n in ("status", "class_id", "owed", "ttft_s"))
    mine = np.ones(len(status), bool) if c is None else class_id == c
    if requirement.name == "shed":
        lost = (status >= REJECTED) & (status != ABANDONED)
        return float(lost[mine].mean()) if mine.any() else float("nan")
    # of those who were served, as in `headway.models.goodput`; who left before anything was due says nothing
    served = mine & (status < REJECTED) & ~((status == CANCELLED) & (owed == 0))
    transport_s = np.array([t.transport_s for t in targets])[class_id]
    times_s = np.sort(np.nan_to_num(ttft_s + transport_s, nan=np.inf)[served])
    return float(times_s[int(np.ceil(0.99 * len(times_s))) - 1]) if len(times_s) else _nobody(outcomes, c)


def _nobody(outcomes: list[Outcome], c: int | None) -> float:
    """A time of which no request tells: infinite where some came and all were shed, for who sheds everybody keeps no promise; else NaN."""
    status, class_id = (np.concatenate([getattr(o, name) for o in outcomes]) for name in ("status", "class_id"))
    mine = status if c is None else status[class_id == c]
    lost = (mine >= REJECTED) & (mine != ABANDONED)
    return float("inf") if lost.any() and not (mine < REJECTED).any() else float("nan")


def attained_by_tercile(outcomes: list[Outcome]) -> np.ndarray:
    """Share of tokens on time of the third of the requests with the shortest prompts, the middle one and the longest.

    Args:
        outcomes: runs, taken as one.

    Returns:
        Shares, shape (3,); NaN where nothing was owed, as where all prompts are alike.
    """
    prompt_tokens, on_time, owed = (np.concatenate([getattr(o, n) for o in outcomes]) for n in ("prompt_tokens", "on_time", "owed"))
    which = np.searchsorted(np.quantile(prompt_tokens, [1 / 3, 2 / 3]), prompt_tokens)
    on, owing = (np.bincount(which, weights=x, minlength=3) for x in (on_time, owed))
    return np.where(owing > 0, on / np.maximum(owing, 1e-9), np.nan)


def _attained(outcomes: list[Outcome], c: int | None) -> float:
    on_time = sum(float(o.on_time[o.class_id == c].sum()) for o in outcomes)
    owed = sum(float(o.owed[o.class_id == c].sum()) for o in outcomes)
    return on_time / owed if owed > 0 else float("nan")


def _gap_p99_s(outcomes: list[Outcome], targets: tuple[Target, ...], c: int | None) -> float:
    """Upper edge of the bin, so never flattering."""
    edges_s = GAP_LOW_S * GAP_RATIO ** (np.arange(GAP_BINS) + 1.0)
    mine = range(len(targets)) if c is None else (c,)
    values_s = np.concatenate([edges_s + targets[k].transport_s for k in mine])
    counts = np.concatenate([np.sum([o.gaps[k] for o in outcomes], axis=0) for k in mine])
    order = np.argsort(values_s, kind="stable")
    total = np.cumsum(counts[order])
    return float(values_s[order][np.searchsorted(total, 0.99 * total[-1])]) if total[-1] > 0 else float("nan")
