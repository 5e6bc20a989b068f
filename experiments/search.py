"""The search: a first look over the whole box, then slopes followed from the best of it, then everything scored exactly."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import qmc

from headway.controllers.exact_gradient import Differences, simulator_values
from headway.controllers.fluid.gate import GateVerdict, fluid_gate
from headway.controllers.simulator import Candidate, Draw
from headway.experiments.checkpoint import Ledger, digest
from headway.experiments.constraints import Requirement
from headway.experiments.descent import FLUID, POLISH, Course, Slopes, descend, exact_slopes
from headway.experiments.problem import Effort, Problem
from headway.experiments.selection import VALUE, ranked
from headway.experiments.space import Place, Space
from headway.experiments.surrogate import Surrogate, asked_for, beyond

Progress = Callable[[str, float], None]

FEWEST_DRAWS = 3
"""Training draws that the gate needs."""


class Found(NamedTuple):
    """What a search found.

    Args:
        points: scored on all training draws, each in the units of its space; that of the untuned controller is the first.
        scores: as `Problem.scores`, shape (points, SCORES).
        slopes: where the slopes of each descent came from, one sentence each.
        gates: verdicts of the gate, where it was asked.
        tried: candidates compared, on some or all of the training draws, the ends of differences left out.
        spaces: that each point lies in.
    """

    points: list[np.ndarray]
    scores: np.ndarray
    slopes: list[str]
    gates: list[GateVerdict]
    tried: int
    spaces: list[Space]

    def candidates(self) -> list[Candidate]:
        """The points as law and policy.

        Returns:
            One candidate per point.
        """
        return [space.candidate(point) for space, point in zip(self.spaces, self.points, strict=True)]

    def joined(self, points: list[np.ndarray], scores: np.ndarray, space: Space) -> Found:
        """With what was passed on the way from one of the points.

        Args:
            points: in units of the space.
            scores: of them, shape (points, SCORES).
            space: that they lie in.

        Returns:
            Found.
        """
        return self._replace(
            points=self.points + points,
            scores=np.concatenate([self.scores, scores]),
            tried=self.tried + len(points),
            spaces=self.spaces + [space] * len(points),
        )


def search(
    problem: Problem, space: Space, draws: list[Draw], effort: Effort, ledger: Ledger, say: Progress, starts: Sequence[Place] = ()
) -> Found:
    """Look over the box, follow slopes from the best places, score what they pass.

    Args:
        problem: what is tuned for.
        space: the free numbers.
        draws: of the training.
        effort: how much is spent.
        ledger: what is known already.
        say: called with a label and a fraction.
        starts: places that are scored beside those of the look, each with the space that it lies in, see `places`.

    Returns:
        Found.
    """
    sobol = qmc.Sobol(len(space.free), rng=np.random.default_rng(effort.seed)).random(effort.sobol)
    sure = [Place(space, space.point(space.base)), *starts]
    looked = [*sure, *(Place(space, p) for p in space.low + sobol * (space.high - space.low))]
    rough = ledger.scores(problem, [p.candidate() for p in looked], draws[: max(2, len(draws) // 3)])
    few = [i for i in ranked(rough, VALUE).tolist() if i >= len(sure)][: max(8, 4 * effort.starts)]
    kept = [*sure, *(looked[i] for i in few)]
    scores = ledger.scores(problem, [p.candidate() for p in kept], draws)
    found = Found([p.point for p in kept], scores, [], [], len(looked), [p.space for p in kept])
    rng, descents = np.random.default_rng(effort.seed), {}
    for k, i in enumerate(ranked(scores, VALUE)[: effort.starts].tolist()):
        tell = lambda part, k=k: say("descending", 0.3 + 0.5 * (k + part) / effort.starts)  # noqa: E731
        own = kept[i].space
        if id(own) not in descents:
            descents[id(own)] = _Descents(problem, own, draws, effort, ledger, found)
        passed, theirs = descents[id(own)].run(kept[i].point, rng, tell)
        found = found.joined(passed, theirs, own)
    return found


def climb(
    problem: Problem, require: tuple[Requirement, ...], found: Found, start: int, draws: list[Draw], effort: Effort, ledger: Ledger
) -> Found:
    """Follow exact differences from one of the points, with more required than the problem does.

    Args:
        problem: what is tuned for, and what the points that are passed are scored by.
        require: what is asked beside it.
        found: so far.
        start: index of the point to begin from.
        draws: of the training.
        effort: how much is spent.
        ledger: what is known already.

    Returns:
        Found, with the points that were passed.
    """
    space, asking = found.spaces[start], dataclasses.replace(problem, require=(*problem.require, *require))
    slopes, box = exact_slopes(asking, space, draws, ledger), (space.low, space.high)
    points = list(descend(found.points[start], slopes, box, Course(effort.iterations), len(draws), np.random.default_rng(effort.seed)))
    return found.joined(points, ledger.scores(problem, [space.candidate(p) for p in points], draws), space)


class _Descents:
    """From one start after another, with the fluid's slopes where the gate lets them through."""

    def __init__(self, problem: Problem, space: Space, draws: list[Draw], effort: Effort, ledger: Ledger, found: Found) -> None:
        self.problem, self.space, self.draws, self.effort, self.ledger = problem, space, draws, effort, ledger
        self.exact = exact_slopes(problem, space, draws, ledger)
        self.said, self.gates = found.slopes, found.gates
        self.fluid: Surrogate | None = None
        self.refused = asked_for(effort, space)
        if not self.refused:
            unknown = beyond(problem, space, draws)
            if len(draws) < FEWEST_DRAWS:
                unknown.append(f"fewer than {FEWEST_DRAWS} training draws")
            if unknown:
                self.refused = f"exact differences: the fluid does not know {', '.join(unknown)}"
            else:
                self.fluid = Surrogate(problem, space, draws)

    def run(self, start: np.ndarray, rng: np.random.Generator, tell: Callable[[float], None]) -> tuple[list[np.ndarray], np.ndarray]:
        """One descent with the scores of what it passed."""
        if self.fluid is None or not self._passes(start):
            if self.fluid is None:
                self.said.append(self.refused)
            return self._scored(self._follow(start, self.exact, Course(self.effort.iterations), rng, tell))
        first, scores = self._scored(self._follow(start, self._smooth, FLUID, rng, lambda part: tell(0.7 * part)))
        best = first[int(ranked(scores, VALUE)[0])]
        then, more = self._scored(self._follow(best, self.exact, POLISH, rng, lambda part: tell(0.7 + 0.3 * part)))
        return first + then, np.concatenate([scores, more])

    def _follow(
        self, start: np.ndarray, slopes: Slopes, course: Course, rng: np.random.Generator, tell: Callable[[float], None]
    ) -> list[np.ndarray]:
        return list(descend(start, slopes, (self.space.low, self.space.high), course, len(self.draws), rng, tell))

    def _scored(self, points: list[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
        return points, self.ledger.scores(self.problem, [self.space.candidate(p) for p in points], self.draws)

    def _smooth(self, point: np.ndarray, part: np.ndarray) -> np.ndarray:
        return self._fluid(point, part)[:, 1:].mean(0)

    def _fluid(self, point: np.ndarray, part: np.ndarray) -> np.ndarray:
        """Values, then slopes, one row per draw."""
        assert self.fluid is not None
        fluid = self.fluid

        def work() -> np.ndarray:
            values, slopes = fluid.at(point, part)
            return np.column_stack([values, slopes])

        return self.ledger.answer(digest("fluid", point, part), work)

    def _passes(self, point: np.ndarray) -> bool:
        """Ask the gate at a start: the exact differences that it needs are a few runs more."""
        box = (self.space.low, self.space.high)
        units = np.ones(len(point))
        values = simulator_values(self.problem.identified, self.draws, self.problem.targets, self.problem.limits, self.space.candidate)
        differences = Differences(values, units, *box)

        def work() -> np.ndarray:
            found, slopes = differences.at(point)
            return np.column_stack([found, slopes])

        exact = self.ledger.answer(digest("gate", point), work)
        fluid = self._fluid(point, np.arange(len(self.draws)))
        verdict = fluid_gate(fluid[:, 0], fluid[:, 1:], exact[:, 0], exact[:, 1:], units)
        self.gates.append(verdict)
        self.said.append(verdict.said)
        return verdict.passed
