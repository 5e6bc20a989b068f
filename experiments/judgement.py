"""The judgement: what the candidate and its rivals make of held-out workloads, and how many of them it took to say so."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.experiments.baseline import Static, best, static_grid
from headway.experiments.capacity import capacity_factor, class_capacity_factors
from headway.experiments.constraints import kept_json, seen_of
from headway.experiments.contest import Side
from headway.experiments.outcomes import outcomes_of
from headway.experiments.problem import Effort, Problem
from headway.experiments.robust import Robust, drawn_how, pooled, worlds
from headway.experiments.statistics import Estimate, gain_interval
from headway.models.goodput import Outcome, summarise
from headway.models.measures import ATTAINMENT, CLEAN

BATCH = 10
"""Held-out seeds that are added at a time."""

AFRESH = 7919
"""Added to the seed of the plants that were tuned on: those of the judgement are others."""

ROBUST_SEEDS = 8
"""Held-out seeds that are run on each of them."""


class Heldout(NamedTuple):
    """Held-out workloads, as many as it took.

    Args:
        draws: workloads and noise.
        said: how many, and why no more.
    """

    draws: list[Draw]
    said: str


class Contest(NamedTuple):
    """All contenders on the held-out workloads.

    Args:
        sides: chosen, best static, static with timeout, static in hindsight, untuned.
        outcomes: of the chosen one's runs.
        values: of the objective per seed, of the first three sides.
        capacity_rps: by side, where the objective is capacity [requests/s].
    """

    sides: list[Side]
    outcomes: list[Outcome]
    values: list[np.ndarray]
    capacity_rps: dict[str, float] | None


def heldout_draws(problem: Problem, effort: Effort, chosen: Candidate, static: Candidate) -> Heldout:
    """Held-out workloads, more of them until the gain is known well enough.

    It stops at a width and not at a sign, so that a look more does not make a gain more likely to be claimed.

    Args:
        problem: what is tuned for.
        effort: how many at first, how many at most, how narrow.
        chosen: the candidate.
        static: what it is compared with.

    Returns:
        Heldout.

    Source:
        Chow and Robbins, On the asymptotic theory of fixed-width sequential confidence intervals, Annals of Mathematical
        Statistics 36(2), 1965.
    """
    draws = problem.draws(effort, heldout=True)
    if effort.heldout_most <= len(draws):
        return Heldout(draws, f"{len(draws)} held-out seeds, as asked")
    values = [_values(problem, c, draws) for c in (chosen, static)]
    while True:
        gain = gain_interval(values[1], values[0])
        half, wanted = (gain.high - gain.low) / 2, effort.tight * (1 + max(gain.value, 0.0))
        known = f"the gain's interval is {100 * half:.1f} % to either side"
        if half <= wanted:
            return Heldout(draws, f"{len(draws)} held-out seeds: {known}")
        if len(draws) >= effort.heldout_most:
            return Heldout(
                draws, f"{len(draws)} held-out seeds, the most that were allowed: {known}, wider than the {100 * wanted:.1f} % wanted"
            )
        more = problem.draws(effort, heldout=True, first=len(draws), count=min(BATCH, effort.heldout_most - len(draws)))
        values = [np.concatenate([v, _values(problem, c, more)]) for v, c in zip(values, (chosen, static), strict=True)]
        draws = draws + more


def contest(
    problem: Problem, draws: list[Draw], chosen: tuple[Candidate, dict[str, Any]], static: Static, early: Static, base: Candidate
) -> Contest:
    """Run everybody on the held-out workloads.

    Args:
        problem: what is tuned for.
        draws: held out.
        chosen: candidate, and what a person would set.
        static: best static setting.
        early: the same with a timeout.
        base: the controller straight from the fit.

    Returns:
        Contest.
    """
    grid = static_grid(problem.limits)
    seen = evaluate(problem.identified, [s.candidate() for s in grid], draws, problem.targets, problem.limits)
    hindsight = grid[best(grid, seen, _measure(problem))]
    contenders = [chosen, *((s.candidate(), s.to_json()) for s in (static, early, hindsight)), (base, {})]
    measures = evaluate(problem.identified, [c for c, _ in contenders], draws, problem.targets, problem.limits)
    sides, outcomes = [], []
    for (candidate, settings), rows in zip(contenders, measures, strict=True):
        runs = outcomes_of([(problem.identified, candidate, d) for d in draws], problem.targets, problem.limits)
        sides.append(Side(candidate, settings, rows, summarise(runs, problem.targets)))
        outcomes = outcomes or runs
    values, capacity_rps = [s.measures[:, _measure(problem)] for s in sides[:3]], None
    if problem.objective == "capacity":
        values, capacity_rps = _capacities(problem, sides, draws)
    return Contest(sides, outcomes, values, capacity_rps)


def requirements_json(problem: Problem, side: Side, draws: list[Draw]) -> list[dict[str, Any]]:
    """What is required, and what a contender makes of it on the held-out workloads.

    Args:
        problem: what is tuned for.
        side: the contender.
        draws: held out.

    Returns:
        One mapping per requirement, see `headway.experiments.constraints.kept_json`.
    """
    if not problem.require:
        return []
    plants = [problem.identified]
    found = seen_of(problem.require, side.candidate, draws, plants, problem.targets, problem.limits, side.measures)
    return kept_json(problem.require, found)


def robust_json(problem: Problem, chosen: Candidate, static: Candidate, draws: list[Draw]) -> dict[str, Any] | None:
    """What is left on plants that the trace allows as well, others than those that were tuned on.

    Args:
        problem: what is tuned for.
        chosen: the candidate.
        static: best static setting.
        draws: held out.

    Returns:
        {"kind", "tail", "plants", "drawn", "controller", "best_static"}, the last two of the objective's own measure, of attainment
        where it is capacity; None where the problem is not robust.
    """
    robust = problem.robust
    if robust is None:
        return None
    others = Robust(robust.kind, robust.tail, robust.plants, robust.seed + AFRESH)
    part = draws[:ROBUST_SEEDS]
    runs = [evaluate(p, [chosen, static], part, problem.targets, problem.limits) for p in worlds(problem.identified, others)]
    values = pooled(np.concatenate(runs, axis=1)[..., _measure(problem)], robust)
    about = {"kind": robust.kind, "tail": robust.tail if robust.kind == "cvar" else None, "plants": robust.plants}
    about["drawn"] = drawn_how(problem.identified)
    return {**about, "controller": float(values[0]), "best_static": float(values[1])}


def d_rate(draws: list[Draw]) -> np.ndarray:
    """Arrival rates of the draws.

    Args:
        draws: one per seed.

    Returns:
        Rates, shape (draws,) [requests/s].
    """
    return np.array([d.workload.rate_rps for d in draws])


def gains(values: list[np.ndarray]) -> tuple[Estimate, Estimate]:
    """Gains of the chosen candidate over the best static setting, and over that with a timeout.

    Args:
        values: of the objective per seed, of the three.

    Returns:
        Two paired estimates.
    """
    return gain_interval(values[1], values[0]), gain_interval(values[2], values[0])


def _measure(problem: Problem) -> int:
    return CLEAN if problem.objective == "requests" else ATTAINMENT


def _values(problem: Problem, candidate: Candidate, draws: list[Draw]) -> np.ndarray:
    """The objective, one seed at a time."""
    if problem.objective == "capacity":
        each = [capacity_factor(problem.identified, [candidate], [d], problem.targets, problem.limits)[0] for d in draws]
        return np.array(each) * d_rate(draws)
    return evaluate(problem.identified, [candidate], draws, problem.targets, problem.limits)[0, :, _measure(problem)]


def _capacities(problem: Problem, sides: list[Side], draws: list[Draw]) -> tuple[list[np.ndarray], dict[str, float]]:
    values = [_values(problem, s.candidate, draws) for s in sides[:3]]
    found = {name: float(v.mean()) for name, v in zip(("controller", "best_static", "best_timeout"), values, strict=True)}
    if len(problem.targets) > 1:
        apart = class_capacity_factors(problem.identified, sides[0].candidate, draws, problem.targets, problem.limits)
        rate_rps = float(d_rate(draws).mean())
        found |= {f"controller, {t.name}": float(f) * rate_rps for t, f in zip(problem.targets, apart, strict=True)}
    return values, found
