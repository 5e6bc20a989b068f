"""How far a controller is from what nobody exceeds: the bound, which is proved, and beside it what could be had, which is not.

At most loads of interest the bound is 1.0000: it rules nothing out there, and the share of it is just the attainment. What is still
to be had is told by two figures that are no bounds: the estimate for a scheduler that knows the workload, and what the controller
itself comes to if it is told beforehand whom to shed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.experiments.bound import Bound, upper_bound
from headway.experiments.estimate import estimate
from headway.experiments.feasibility import Verdict, verdict_of
from headway.experiments.problem import Effort, Problem
from headway.experiments.scaleout import map_runs
from headway.experiments.shedding import clairvoyant_shedding
from headway.experiments.statistics import Estimate, gain_interval
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ATTAINMENT, CLEAN
from headway.models.signals import Limits, Target

SCHEMA = "headway/distance/1"

RESERVES = (1.0, 1.15)
"""Step times, as factors, with which it is chosen whom to shed; the first is the estimate that is shown."""

Progress = Callable[[str, float], None]


class Depth(NamedTuple):
    """How much of the held-out workloads is looked at.

    Args:
        windows: of as many held-out seeds.
        requests: the first so many of each.
        changes: of a promise that nobody can keep, look for the smallest changes with which the bound allows it.
    """

    windows: int
    requests: int
    changes: bool


SHORT, FULL = Depth(2, 300, False), Depth(6, 1000, True)
"""What is looked at unless more is asked for, and what then."""

HERE = 1000
"""Requests of all windows up to which it is quicker to look here than to start processes: 300 take 3 to 4 s of one core."""


class Distance(NamedTuple):
    """A controller beside the bound, on the same windows.

    Args:
        attained: its attainment, mean over the windows, in [0, 1].
        bound: attainment that no policy exceeds there, in [0, 1].
        share: attained / bound, paired over the windows.
        clean: (its share of clean requests, the most of any policy), in [0, 1].
        goodput_tps: that no policy exceeds [tokens/s].
        estimate: attainment of a scheduler that knows the workload, without proof, in [0, 1].
        shed: attainment that the controller reaches if it is told whom to shed, or the untuned one if that is more, in [0, 1].
        verdict: of the promise, on the window where the bound is lowest; None where the bound allows it there, or nobody asked.
        promise: 1 - epsilon of the strictest class.
        depth: what was looked at.
        said: what the bound gives away, in sentences, of the first window.
    """

    attained: float
    bound: float
    share: Estimate
    clean: tuple[float, float]
    goodput_tps: float
    estimate: float
    shed: float
    verdict: Verdict | None
    promise: float
    depth: Depth
    said: tuple[str, ...]

    @property
    def ruled_out(self) -> bool:
        """Whether no policy keeps the promise on these windows."""
        return self.bound < self.promise

    def sentence(self) -> str:
        """Where the controller stands.

        Returns:
            One sentence, which says what is proved and what is not.
        """
        at, rest = (
            f"{100 * self.share.value:.1f} % of the bound",
            f"{self.depth.windows} held-out windows of {self.depth.requests} requests",
        )
        return (
            f"the controller attains {100 * self.attained:.1f} % on {rest}: {at}, {100 * self.bound:.1f} %, which no policy exceeds (proved); "
            f"a scheduler that knows the load is estimated at {100 * self.estimate:.1f} % (not proved), and the controller, told whom "
            f"to shed, comes to {100 * self.shed:.1f} % (a run)"
        )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            Mapping by name; `attainment` is the bound, `attained` the controller's own on the same windows.
        """
        found = self.verdict
        return {
            "schema": SCHEMA,
            "attainment": self.bound,
            "attained": self.attained,
            "share": self.share.value,
            "share_ci95": [self.share.low, self.share.high],
            "request_attainment": self.clean[1],
            "request_attained": self.clean[0],
            "goodput_tps": self.goodput_tps,
            "estimate": self.estimate,
            "told_whom_to_shed": self.shed,
            "promise": self.promise,
            "ruled_out": self.ruled_out,
            "changes": None if found is None else list(found.changes),
            "verdict": None if found is None else found.sentences()[0],
            "windows": self.depth.windows,
            "requests": self.depth.requests,
            "said": list(self.said),
            "sentence": self.sentence(),
        }


def distance(
    problem: Problem,
    effort: Effort,
    controller: Candidate,
    untuned: Candidate,
    depth: Depth = SHORT,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Distance:
    """Bound, estimate and clairvoyant shedding on windows of the held-out workloads, beside what the controller attains on them.

    share = sum of attained / sum of bounds, over the windows

    Which windows are looked at follows from the effort and the depth alone, never from a clock.

    Args:
        problem: plant, workload, targets and limits.
        effort: seeds and requests; shorter workloads are looked at whole.
        controller: the tuned one.
        untuned: the one straight from the fit, the other that may be told whom to shed.
        depth: how much is looked at.
        workers: processes, where that is more than a few seconds' work; None for one per core.
        progress: called with a label and a fraction.

    Returns:
        Distance.
    """
    say = progress or (lambda _label, _fraction: None)
    draws = [_first(d, depth.requests) for d in problem.draws(effort, heldout=True, count=min(depth.windows, effort.heldout_seeds))]
    look = _Look(problem.identified, [controller, untuned], problem.targets, problem.limits)
    tell = lambda label, share: say(label, 0.9 * share)  # noqa: E731
    few = sum(len(d.workload) for d in draws) <= HERE
    found: list[_Seen] = map_runs(look, draws, workers=1 if few else workers, progress=tell, label="bound").results
    attained, bounds = (np.array(values) for values in zip(*((s.attained, s.bound.attainment) for s in found), strict=True))
    ratio = gain_interval(bounds, attained)
    promise = 1 - min(t.epsilon for t in problem.targets)
    verdict = None
    if depth.changes and bounds.mean() < promise:
        say("smallest change", 0.9)
        worst = draws[int(np.argmin(bounds))].workload
        verdict = verdict_of(problem.identified, worst, problem.targets, problem.limits)
    mean = lambda of: float(np.mean([of(s) for s in found]))  # noqa: E731
    return Distance(
        attained=float(attained.mean()),
        bound=float(bounds.mean()),
        share=Estimate(*(1 + x for x in ratio)),
        clean=(mean(lambda s: s.clean), mean(lambda s: s.bound.request_attainment)),
        goodput_tps=mean(lambda s: s.bound.goodput_tps),
        estimate=mean(lambda s: s.estimate),
        shed=mean(lambda s: s.shed),
        verdict=verdict,
        promise=promise,
        depth=Depth(len(draws), len(draws[0].workload), depth.changes),
        said=found[0].bound.said,
    )


class _Seen(NamedTuple):
    """One window."""

    attained: float
    clean: float
    bound: Bound
    estimate: float
    shed: float


class _Look(NamedTuple):
    """What is found of a window: sent to a worker once."""

    identified: IdentifiedPlant
    candidates: list[Candidate]
    targets: tuple[Target, ...]
    limits: Limits

    def __call__(self, drawn: Draw) -> _Seen:
        identified, candidates, targets, limits = self
        factors = (drawn.decode, drawn.mixed)
        bound = upper_bound(identified, drawn.workload, targets, limits, factors=factors)
        choices = [estimate(identified, drawn.workload, targets, limits, factors=factors, slower=r) for r in RESERVES]
        shed = clairvoyant_shedding(identified, candidates, drawn, targets, limits, slower=RESERVES, choices=choices)
        measures = evaluate(identified, candidates[:1], [drawn], targets, limits)[0, 0]
        return _Seen(float(measures[ATTAINMENT]), float(measures[CLEAN]), bound, choices[0].attainment, shed.attainment)


def _first(drawn: Draw, requests: int) -> Draw:
    """The first requests of a draw, under the same noise."""
    return drawn if len(drawn.workload) <= requests else drawn._replace(workload=drawn.workload.window(0, requests))
