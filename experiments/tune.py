"""Tuning: margin, aging rate, chunk, gains and the rest, for goodput on the exact simulator, against the best static setting.

Sobol points first, then slopes followed from the best of them, the fluid's where they are worth it and the gate lets them
through, differences of a large step else; then exact selection, then a held-out value with its interval. Differentiating
through the scheduler step by step points the wrong way, and is not done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from headway.controllers.fluid.gate import GateVerdict
from headway.controllers.simulator import Candidate
from headway.experiments.baseline import TIMEOUTS, Static, best_static
from headway.experiments.beginnings import beginnings, taught
from headway.experiments.checkpoint import Ledger, Store, problem_key
from headway.experiments.choice import chosen, dead_notes
from headway.experiments.contest import NEAR, Side, hull_warnings, outgrown, rivals, stutters
from headway.experiments.judgement import contest, d_rate, gains, heldout_draws, requirements_json, robust_json
from headway.experiments.problem import OBJECTIVES, Effort, Problem
from headway.experiments.search import search
from headway.experiments.selection import ATTAINED, choose
from headway.experiments.sensitivity import NEVER_FIRED
from headway.experiments.space import Space, followed, places
from headway.experiments.statistics import Estimate
from headway.models.measures import ATTAINMENT, CLEAN

__all__ = ["NEAR", "OBJECTIVES", "Effort", "Problem", "Tuned", "choose", "d_rate", "rejudged", "tune"]

Progress = Callable[[str, float], None]


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The result of tuning.

    Args:
        tuned: the controller found, or the static setting where nothing better was found.
        static: best static setting, chosen on the training seeds.
        early: the same with a queue timeout, the best of several.
        hindsight: the static setting that does best on the held-out seeds themselves, which nobody can choose beforehand.
        default: the controller straight from the fit.
        gain: of the objective over the best static setting, paired, held-out.
        gain_early: over the static setting with a timeout.
        outcome: "better" or "no better".
        capacity_rps: where the objective is capacity: of the tuned, the static, the timeout setting; where there are classes, the
            rate of all together at which each class still keeps its promise under the tuned one [requests/s].
        warnings: sentences, among them what lies outside the trace's hull.
        tried: candidates compared on training seeds.
        problem: what was tuned for.
        effort: what was spent.
        heldout: how many held-out seeds were used, and why no more.
        slopes: where the slopes of each descent came from.
        gates: verdicts of the gate, where the fluid was asked.
        kept: requirements, and what became of them on the held-out seeds.
        robust: what is left on other plants that the trace allows; None where that was not asked for.
        resumed: answers taken over from a search that was interrupted.
        notes: those of the warnings that are about the search and what it found.
    """

    tuned: Side
    static: Side
    early: Side
    hindsight: Side
    default: Side
    gain: Estimate
    gain_early: Estimate
    outcome: str
    capacity_rps: dict[str, float] | None
    warnings: list[str]
    tried: int
    problem: Problem
    effort: Effort
    heldout: str = ""
    slopes: list[str] = dataclasses.field(default_factory=list)
    gates: list[GateVerdict] = dataclasses.field(default_factory=list)
    kept: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    robust: dict[str, Any] | None = None
    resumed: int = 0
    notes: list[str] = dataclasses.field(default_factory=list)


def tune(
    problem: Problem,
    effort: Effort = Effort(),  # noqa: B008  # an immutable dataclass
    *,
    free: tuple[str, ...] | None = None,
    policy: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    store: Store | None = None,
) -> Tuned:
    """Find the best controller for a plant, a workload and a target, and say by how much it beats the best static setting.

    Args:
        problem: what is tuned for.
        effort: how much is spent.
        free: names of the numbers that may move; None for all whose part is on, "all" among them for every one that can act.
            Margin and aging rate are always among them.
        policy: what the policy is to have otherwise than `default_candidate`, by field; a number that is free starts there.
        progress: called with a label and a fraction in [0, 1].
        store: where the answers of the simulator are kept until the end, for a search that is killed; None keeps none.

    Returns:
        Tuned; the same seed gives the same one, whether the search was interrupted or not.

    Raises:
        ValueError: an unknown objective, a requirement or robustness that cannot be, a free number that is unknown or cannot
            act, or a policy that cannot be.
    """
    problem.check()
    effort.check()
    say = progress or _silent
    train, asked = problem.draws(effort, heldout=False), dict(policy or {})
    base = problem.untuned(train, asked)
    space = Space(base, problem.limits, free, problem.targets)
    key = problem_key(problem, effort, free, sorted(asked.items())) if store is not None else ""
    ledger = Ledger(key, store)
    say("static settings", 0.0)
    statics = best_static(problem, train, (None,), ledger), best_static(problem, train, TIMEOUTS, ledger)
    starts = beginnings(base, tuple(s.setting for s in statics), asked)
    starts += taught(problem, base, float(statics[0].score[ATTAINED]), train[0], asked)
    say("Sobol points", 0.15)
    found = search(problem, space, train, effort, ledger, say, places(space, free, starts))
    say("choice", 0.8)
    taken = chosen(problem, found, statics, train, effort, ledger)
    say("held-out seeds", 0.9)
    settings = (statics[0].setting, statics[1].setting)
    result = _judge(problem, effort, (taken.candidate, taken.settings), taken.notes, settings, base)
    ledger.close()
    found = taken.found
    return dataclasses.replace(result, tried=found.tried, slopes=found.slopes, gates=found.gates, resumed=ledger.taken)


def rejudged(tuned: Tuned, candidate: Candidate, free: tuple[str, ...] | None = None) -> Tuned:
    """The result with a controller that was made of the one found in its place, such as one whose gains follow the load.

    All figures are of the new one, on the same held-out workloads. What follows the load is no setting, and no free number that
    could be dead.

    Args:
        tuned: the result.
        candidate: the new controller.
        free: names of the numbers that were free, as `tune` takes them.

    Returns:
        Tuned.
    """
    problem, effort, tables = tuned.problem, tuned.effort, followed(candidate, tuned.problem.targets)
    names = None if free is None else tuple(n for n in free if n not in tables)
    settings = {name: value for name, value in tuned.tuned.settings.items() if name not in tables}
    notes = [note for note in tuned.notes if not note.startswith(NEVER_FIRED)]
    dead = dead_notes(problem, Space(candidate, problem.limits, names, problem.targets), candidate, problem.draws(effort, heldout=False))
    notes += [note for note in dead if note not in notes]
    statics = Static(**tuned.static.settings), Static(**tuned.early.settings)
    result = _judge(problem, effort, (candidate, settings), notes, statics, tuned.default.candidate)
    return dataclasses.replace(result, tried=tuned.tried, slopes=tuned.slopes, gates=tuned.gates, resumed=tuned.resumed)


def _silent(_label: str, _fraction: float) -> None:
    """Nobody listens."""


def _judge(
    problem: Problem,
    effort: Effort,
    ours: tuple[Candidate, dict[str, Any]],
    notes: list[str],
    statics: tuple[Static, Static],
    base: Candidate,
) -> Tuned:
    """Everybody on the held-out workloads: the controller with its settings, the static settings, the untuned one."""
    candidate, (static, early) = ours[0], statics
    heldout = heldout_draws(problem, effort, candidate, static.candidate())
    made = contest(problem, heldout.draws, ours, static, early, base)
    gain, gain_early = gains(made.values)
    measure = CLEAN if problem.objective == "requests" else ATTAINMENT
    rivalry = rivals(made.sides, measure) if problem.objective != "capacity" else []
    kept = requirements_json(problem, made.sides[0], heldout.draws)
    broken = [f"not kept on the held-out seeds: {one['said']}" for one in kept if not one["kept"]]
    tuned, static_side, early_side, hindsight, default = made.sides
    return Tuned(
        tuned,
        static_side,
        early_side,
        hindsight,
        default,
        gain,
        gain_early,
        "better" if gain.low > 0 else "no better",
        made.capacity_rps,
        [
            *broken,
            *outgrown(made.outcomes, problem.targets),
            *stutters(tuned, default, problem.targets),
            *rivalry,
            *notes,
            *hull_warnings(problem.identified, made.outcomes),
        ],
        0,
        problem,
        effort,
        heldout.said,
        kept=kept,
        robust=robust_json(problem, candidate, static.candidate(), heldout.draws),
        notes=notes,
    )
