"""Whether a promise can be kept at all, and the smallest change of load, targets, replicas or layout with which the bound allows it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from headway.experiments.bound import attainable, relaxation_of, upper_bound
from headway.experiments.shedding import part_of
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload

HALVINGS = 6
"""Bisections of each change, on a factor of at most REACH."""
REACH = 8.0
"""Largest factor on load or target that is looked for."""
REPLICAS = (2, 3, 4, 6, 8)


class Verdict(NamedTuple):
    """What the bound says of a promise.

    Args:
        promise: share of the owed tokens that the strictest class is promised, in [0, 1].
        most: attainment that no policy can exceed, in [0, 1].
        changes: each by itself the smallest with which the bound no longer rules the promise out, in words such as "with 2 replicas".
        said: what the bound gives away, in sentences.
    """

    promise: float
    most: float
    changes: tuple[str, ...]
    said: tuple[str, ...]

    @property
    def ruled_out(self) -> bool:
        """Whether no policy can keep the promise."""
        return self.most < self.promise

    def sentences(self) -> tuple[str, ...]:
        """The verdict for the report.

        Returns:
            One sentence if the promise is not ruled out; else the verdict with the changes, and what the bound gives away.
        """
        asked = f"{100 * self.promise:g} %"
        if not self.ruled_out:
            return (f"{asked} is not ruled out: no policy can attain more than {100 * self.most:.1f} %",)
        verdict = f"no policy can attain {asked}: at most {100 * self.most:.1f} %"
        found = (
            f"; it is not ruled out {', or '.join(self.changes)}" if self.changes else f"; no single change by a factor of {REACH:g} helps"
        )
        return (verdict + found, *self.said)


def verdict_of(
    identified: IdentifiedPlant, workload: Workload, targets: tuple[Target, ...], limits: Limits, *, bin_s: float | None = None
) -> Verdict:
    """Whether the bound rules a promise out, and what would change that.

    The promise is that of the strictest class, 1 - epsilon of the owed tokens. Each change is the smallest that the bound does not
    rule out, the others left as they are, so that it is needed, whatever the policy; whether it is enough only a run can say.

    Args:
        identified: the plant with its residuals.
        workload: requests.
        targets: one per class.
        limits: of the engine.
        bin_s: as in `headway.experiments.bound.upper_bound` [s].

    Returns:
        Verdict; changes are looked for only where the promise is ruled out.
    """
    promise = 1 - min(t.epsilon for t in targets)
    bound = upper_bound(identified, workload, targets, limits, bin_s=bin_s)
    if bound.attainment >= promise:
        return Verdict(promise, bound.attainment, (), bound.said)

    def allowed(load: Workload, promised: tuple[Target, ...]) -> bool:
        return attainable(*relaxation_of(identified, load, promised, limits, bin_s=bin_s), promise)

    changes = [
        _slower(workload, lambda load: allowed(load, targets)),
        *(_longer(name, word, targets, lambda promised: allowed(workload, promised)) for name, word in WORDS.items()),
        _more(lambda parts: _parts_allowed(identified, workload, targets, limits, promise, parts, bin_s)),
    ]
    if disaggregated(identified, workload, targets, limits, promise, bin_s=bin_s):
        changes.append("with prefill and decode on an engine each")
    return Verdict(promise, bound.attainment, tuple(text for text in changes if text), bound.said)


def feasibility(
    identified: IdentifiedPlant, workload: Workload, targets: tuple[Target, ...], limits: Limits, *, bin_s: float | None = None
) -> tuple[str, ...]:
    """`verdict_of` in sentences for the report.

    Args:
        identified: the plant with its residuals.
        workload: requests.
        targets: one per class.
        limits: of the engine.
        bin_s: as in `headway.experiments.bound.upper_bound` [s].

    Returns:
        As `Verdict.sentences`.
    """
    return verdict_of(identified, workload, targets, limits, bin_s=bin_s).sentences()


WORDS = {"itl_s": "ITL", "ttft_s": "TTFT"}
"""Targets that may be relaxed, and what they are called."""
ARTICLES = {"ITL": "an", "TTFT": "a"}


def disaggregated(
    identified: IdentifiedPlant,
    workload: Workload,
    targets: tuple[Target, ...],
    limits: Limits,
    promise: float,
    *,
    bin_s: float | None = None,
) -> bool:
    """Whether the bound allows a promise where prompts have an engine of their own, and what they leave moves at no cost.

    Args:
        identified: the plant, of either engine.
        workload: requests.
        targets: one per class.
        limits: of either engine.
        promise: attainment wanted, in [0, 1].
        bin_s: as in `headway.experiments.bound.upper_bound` [s].

    Returns:
        False if no policy can attain it so.
    """
    return attainable(*relaxation_of(identified, workload, targets, limits, apart=True, bin_s=bin_s), promise)


def _slower(workload: Workload, allowed: Callable[[Workload], bool]) -> str:
    """The highest load that is not ruled out, its text empty if there is none."""
    rate = workload.rate_rps
    if not math.isfinite(rate):
        return ""
    factor = _least_factor(lambda f: allowed(workload.rescaled(rate / f)))
    return f"at {rate / factor:.3g} requests/s" if factor else ""


def _longer(name: str, word: str, targets: tuple[Target, ...], allowed: Callable[[tuple[Target, ...]], bool]) -> str:
    """The shortest target that is not ruled out, all classes' scaled alike."""
    scaled = lambda f: tuple(dataclasses.replace(t, **{name: f * getattr(t, name)}) for t in targets)  # noqa: E731
    factor = _least_factor(lambda f: allowed(scaled(f)))
    if not factor:
        return ""
    times = [_shown(getattr(t, name) * factor) + (f" ({t.name})" if len(targets) > 1 else "") for t in targets]
    return f"with {word} targets of {', '.join(times)}" if len(times) > 1 else f"with {ARTICLES[word]} {word} target of {times[0]}"


def _shown(time_s: float) -> str:
    return f"{time_s:.3g} s" if time_s >= 1 else f"{1e3 * time_s:.3g} ms"


def _more(allowed: Callable[[int], bool]) -> str:
    """The fewest replicas that are not ruled out."""
    for replicas in REPLICAS:
        if allowed(replicas):
            return f"with {replicas} replicas"
    return ""


def _parts_allowed(
    identified: IdentifiedPlant,
    workload: Workload,
    targets: tuple[Target, ...],
    limits: Limits,
    promise: float,
    replicas: int,
    bin_s: float | None,
) -> bool:
    """Whether one of several replicas could keep the promise on its share, requests dealt in turn; the first stands for all."""
    taken = np.arange(0, len(workload), replicas)
    if workload.after is not None and (workload.after >= 0).any():
        return False  # turns of a conversation cannot be dealt out one by one
    part = part_of(dataclasses.replace(workload, after=None, think_s=None), taken)
    return attainable(*relaxation_of(identified, part, targets, limits, bin_s=bin_s), promise)


def _least_factor(allowed: Callable[[float], bool]) -> float:
    """The least factor in (1, REACH] that is allowed, by bisection of its logarithm, rounded up; 0 if none is."""
    low, high = 0.0, math.log(REACH)
    if not allowed(REACH):
        return 0.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if allowed(math.exp(middle)) else (middle, high)
    return math.exp(high)
