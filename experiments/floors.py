"""Nobody is to lose by a controller: each class and each third of the prompts at least where the best static setting has it.

A search for attainment finds the cheapest tokens, and may take them from whoever is dear to serve. So of candidates that attain
as much as a static setting, one that keeps these floors goes before one that attains more without.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.controllers.simulator import Candidate, Draw
from headway.experiments.constraints import CLASS, TERCILE, TERCILES, Requirement, seen_of, violation
from headway.experiments.problem import Problem
from headway.experiments.selection import KEPT, MISSED, VALUE, ranked
from headway.models.measures import MEASURES

LOOKED_AT = 24
"""Candidates of a search that are held to the floors, those with the best objective: every one costs a run of each draw."""

SLIGHT = 0.001
"""Floors missed by no more than this in all are kept: a token in a thousand is no loss that training windows could tell."""

CUSHION = 0.1
"""Of what a floor falls short of everything, by which it is raised as long as anybody keeps it so: other windows are other ones."""

DEAR = 2.0
"""What a share missed counts, in shares of the objective, where no candidate keeps the floors."""


class Held(NamedTuple):
    """Candidates that were held to the floors.

    Args:
        keep: indices of those that keep them, the best objective first: raised by CUSHION if anybody does, else as they are.
        best: index of the one with the best objective for what it misses.
        missed: by how much that one misses them in all.
        worth: its objective less what that counts.
    """

    keep: list[int]
    best: int
    missed: float
    worth: float


def floors_of(problem: Problem, static: Candidate, draws: list[Draw]) -> tuple[Requirement, ...]:
    """What a static setting gives each class and each third of the prompts.

    Args:
        problem: what is tuned for.
        static: law and policy of the setting.
        draws: of the training.

    Returns:
        Requirements: the thirds, and the classes where there are several; without those of which nothing can be said. None where the
        objective is capacity, which is judged at other rates.
    """
    if problem.objective == "capacity":
        return ()
    asked = [Requirement(TERCILE, 0.0, name) for name in TERCILES]
    if len(problem.targets) > 1:
        asked += [Requirement(CLASS, 0.0, t.name) for t in problem.targets]
    found = seen_by(problem, tuple(asked), static, draws)
    return tuple(r._replace(bound=found[r]) for r in asked if not np.isnan(found[r]))


def seen_by(problem: Problem, asked: tuple[Requirement, ...], candidate: Candidate, draws: list[Draw]) -> dict[Requirement, float]:
    """What a candidate gives each class and each third of the prompts.

    Args:
        problem: what is tuned for.
        asked: requirements of classes and thirds.
        candidate: law and policy.
        draws: workloads and noise.

    Returns:
        Figure by requirement.
    """
    return seen_of(asked, candidate, draws, problem.plants(), problem.targets, problem.limits, np.zeros((0, MEASURES)))


def worth_a_look(scores: np.ndarray, least: float, first: int = 0) -> list[int]:
    """Candidates that are to be held to the floors.

    Args:
        scores: as `Problem.scores`, shape (candidates, SCORES).
        least: objective below which a candidate is not looked at: that of the best static settings.
        first: index from which on they are looked at.

    Returns:
        At most LOOKED_AT indices of those that keep what is required, the best objective first; the first of all, the untuned
        controller, is among them if it does.
    """
    fit = [int(i) for i in ranked(scores, VALUE) if i >= first and scores[i, MISSED] <= KEPT and scores[i, VALUE] >= least]
    return fit[:LOOKED_AT] if 0 not in fit[LOOKED_AT:] else [*fit[: LOOKED_AT - 1], 0]


def held_to(
    problem: Problem, floors: tuple[Requirement, ...], candidates: list[Candidate], scores: np.ndarray, draws: list[Draw], which: list[int]
) -> Held | None:
    """Hold some candidates of a search to the floors.

    Args:
        problem: what is tuned for.
        floors: as from `floors_of`.
        candidates: of the search.
        scores: of them, as `Problem.scores`, shape (candidates, SCORES).
        draws: of the training.
        which: indices of those that are looked at.

    Returns:
        Held; None where there is nobody to look at.
    """
    if not which:
        return None
    seen = [seen_by(problem, floors, candidates[i], draws) for i in which]
    missed = np.array([violation(floors, found) for found in seen])
    higher = [violation(raised(floors), {r: found[old] for r, old in zip(raised(floors), floors, strict=True)}) for found in seen]
    worth = scores[which, VALUE] - DEAR * missed
    best = int(np.argmax(worth))
    keep = [[i for i, m in zip(which, some, strict=True) if m <= SLIGHT] for some in (higher, missed)]
    return Held(keep[0] or keep[1], which[best], float(missed[best]), float(worth[best]))


def raised(floors: tuple[Requirement, ...]) -> tuple[Requirement, ...]:
    """Floors with a cushion.

    Args:
        floors: as from `floors_of`.

    Returns:
        The same, each nearer to 1 by CUSHION of what it falls short of it.
    """
    return tuple(r._replace(bound=r.bound + CUSHION * (1.0 - r.bound)) for r in floors)
