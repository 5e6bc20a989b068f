"""Training a gain schedule: from tuned constants to gains that follow the load, and whether that brings anything.

Constants and schedule get the same chance: the constants are polished first on the training draws, the schedule starts from the
best of them, and is kept only where it does better on those draws. Whether it is better is said by draws that neither has seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.experiments.checkpoint import Ledger
from headway.experiments.descent import Course, Slopes, descend, exact_slopes
from headway.experiments.gain_forms import KINDS, Form, Gain, NetworkForm, check_kind, form_of, gains_of, schedule_of
from headway.experiments.gain_slopes import Admitted, ScheduleFluid, admit, fluid_slopes, random_slopes, unknown_to_fluid
from headway.experiments.judgement import heldout_draws
from headway.experiments.problem import Effort, Problem
from headway.experiments.selection import VALUE, ranked
from headway.experiments.space import Space
from headway.experiments.statistics import Estimate, mean_interval
from headway.models.measures import ATTAINMENT, CLEAN

Progress = Callable[[str, float], None]

CONSTANTS = Course(10, 0.35, 0, 1)
"""Of the constants, along exact differences."""

SMOOTH = Course(40, 0.3, 0, 4, 0.2)
"""Of a schedule along the fluid's slopes; every fourth iterate and its average are scored exactly."""

ROUGH = Course(40, 0.3, 0, 4, 0.2)
"""Of a schedule along differences in random directions."""

LOOK, LOOKED = 32, 6
"""Random directions of the first look, each taken both ways, and how many of its points are scored on all training draws."""

NETWORK_RATE = 0.15
"""Factor on Adam's rate where weights of a network are trained: all of them move every gain."""

BETTER, NO_BETTER = "better than constants", "no better than constants"


@dataclasses.dataclass(frozen=True)
class Scheduled:
    """The result of training a gain schedule.

    Args:
        candidate: what to run: with the schedule where it is better on held-out draws, else with the constants.
        constant: the best constants.
        schedule: the best schedule of the training, as a candidate; None where none beat the constants even there.
        names: of the gains that follow the load.
        kind: one of KINDS.
        train: objective of constants and of the schedule, mean over the training draws.
        heldout: the same on the held-out draws.
        gain: of the schedule over the constants, held-out, paired; a difference of the objective.
        verdict: BETTER or NO_BETTER.
        slopes: where the slopes came from.
        admitted: what the gate said, where the fluid was asked.
        heldout_said: how many held-out draws, and why no more.
        tried: schedules that were scored exactly.
        workload: trained for.
    """

    candidate: Candidate
    constant: Candidate
    schedule: Candidate | None
    names: tuple[str, ...]
    kind: str
    train: tuple[float, float]
    heldout: tuple[float, float]
    gain: Estimate
    verdict: str
    slopes: str
    admitted: Admitted | None
    heldout_said: str
    tried: int
    workload: str

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            Names, shape, figures of constants and schedule, interval, verdict, workload.
        """
        return {
            "kind": self.kind,
            "names": list(self.names),
            "knots": list(KINDS[self.kind]),
            "train_constant": self.train[0],
            "train_schedule": self.train[1],
            "constant": self.heldout[0],
            "schedule": self.heldout[1],
            "gain": self.gain.value,
            "gain_ci95": [self.gain.low, self.gain.high],
            "verdict": self.verdict,
            "slopes": self.slopes,
            "gate": dataclasses.asdict(self.admitted.gate) if self.admitted else None,
            "heldout_said": self.heldout_said,
            "tried": self.tried,
            "workload": self.workload,
        }


class _Best(NamedTuple):
    """The best of some candidates on the training draws."""

    candidate: Candidate
    score: np.ndarray


def train_schedule(
    problem: Problem,
    candidate: Candidate,
    *,
    kind: str = "queued",
    effort: Effort = Effort(),  # noqa: B008  # an immutable dataclass
    progress: Progress | None = None,
) -> Scheduled:
    """Make gains follow the load, and say by how much that beats constants.

    Args:
        problem: what is trained for.
        candidate: tuned, with constant gains.
        kind: one of KINDS: "queued" follows the queue alone, "load" all three measures of the load, "network" makes the same table of
            few numbers.
        effort: how much is spent; its `gradient` is "exact" to leave the fluid out.
        progress: called with a label and a fraction in [0, 1].

    Returns:
        Scheduled; the same seed gives the same one.

    Raises:
        ValueError: an unknown kind, a problem that cannot be, or a candidate that has a schedule already.
    """
    check_kind(kind)
    problem.check()
    effort.check()
    if candidate.gains is not None:
        raise ValueError("the candidate has a gain schedule already; train from the constants that it was made of")
    say = progress or (lambda _label, _part: None)
    gains = gains_of(candidate, problem.limits, problem.targets)
    draws = problem.draws(effort, heldout=False)
    if not gains:
        return _nothing(problem, _best(problem, [candidate], draws), kind, draws, effort, "no gain of this candidate can follow the load")
    say("constants", 0.0)
    constant = _constants(problem, candidate, gains, draws, effort)
    gains = gains_of(constant.candidate, problem.limits, problem.targets)
    form = form_of(kind, gains, effort.seed)
    say("the fluid's gate", 0.15)
    slopes, course, said, admitted = _slopes(problem, constant.candidate, gains, form, draws, effort)
    tell = lambda part: say("schedule", 0.25 + 0.6 * part)  # noqa: E731
    best, tried = _trained(problem, constant, gains, form, slopes, course, draws, effort, tell)
    if best is None:
        found = _nothing(problem, constant, kind, draws, effort, said, gains)
        return dataclasses.replace(found, admitted=admitted, tried=tried)
    say("held-out seeds", 0.85)
    judged = heldout_draws(problem, effort, best.candidate, constant.candidate)
    ours, theirs = (_each(problem, c, judged.draws) for c in (best.candidate, constant.candidate))
    gain = mean_interval(ours - theirs)
    better = gain.low > 0
    return Scheduled(
        best.candidate if better else constant.candidate,
        constant.candidate,
        best.candidate,
        tuple(g.name for g in gains),
        kind,
        (float(constant.score[VALUE]), float(best.score[VALUE])),
        (float(theirs.mean()), float(ours.mean())),
        gain,
        BETTER if better else NO_BETTER,
        said,
        admitted,
        judged.said,
        tried,
        _workload(draws),
    )


def _constants(problem: Problem, candidate: Candidate, gains: tuple[Gain, ...], draws: list[Draw], effort: Effort) -> _Best:
    """The candidate, or better constants of the same gains: a schedule must not win by mere further tuning."""
    levels = tuple(g.name for g in gains if not g.name.startswith("share."))
    shares = tuple(f"share.{t.name}" for t in problem.targets) if len(levels) < len(gains) else ()
    space = Space(candidate, problem.limits, (*levels, *shares), problem.targets)
    rng, box = np.random.default_rng(effort.seed), (space.low, space.high)
    course = CONSTANTS._replace(iterations=max(effort.iterations, 1))
    slopes = exact_slopes(problem, space, draws, Ledger())
    points = list(descend(space.point(candidate), slopes, box, course, len(draws), rng))
    return _best(problem, [candidate, *map(space.candidate, points)], draws)


def _slopes(
    problem: Problem, constant: Candidate, gains: tuple[Gain, ...], form: Form, draws: list[Draw], effort: Effort
) -> tuple[Slopes, Course, str, Admitted | None]:
    """The fluid's slopes where it knows the problem and the gate lets it, else differences; how they are followed, and why."""
    exact = random_slopes(problem, form, lambda point: _with(constant, gains, form, point), draws, effort.seed)
    if effort.gradient == "exact":
        return exact, ROUGH, "exact differences in random directions, as asked", None
    unknown = unknown_to_fluid(problem, constant, gains, draws)
    if unknown:
        return exact, ROUGH, f"exact differences in random directions: the fluid does not know {', '.join(unknown)}", None
    fluid = ScheduleFluid(problem, constant, gains, draws)
    admitted = admit(problem, fluid, constant, draws)
    return (fluid_slopes(fluid, form), SMOOTH, admitted.said, admitted) if admitted.passed else (exact, ROUGH, admitted.said, admitted)


def _trained(
    problem: Problem,
    constant: _Best,
    gains: tuple[Gain, ...],
    form: Form,
    slopes: Slopes,
    course: Course,
    draws: list[Draw],
    effort: Effort,
    tell: Callable[[float], None],
) -> tuple[_Best | None, int]:
    """The best schedule that was passed, where it beats the constants on the training draws; and how many were scored."""
    if isinstance(form, NetworkForm):
        course = course._replace(rate=NETWORK_RATE * course.rate)
    rng = np.random.default_rng(effort.seed)
    at = lambda point: _with(constant.candidate, gains, form, point)  # noqa: E731
    directions = form.directions(rng, LOOK)
    look = np.clip(np.concatenate([form.start + directions, form.start - directions]), *form.box)
    rough = problem.scores([at(p) for p in look], draws[: max(2, len(draws) // 2)])
    points = [look[k] for k in ranked(rough, VALUE)[:LOOKED]]
    scores = problem.scores([at(p) for p in points], draws)
    k = int(ranked(np.vstack([constant.score, scores]), VALUE)[0])
    start = points[k - 1] if k else form.start
    points += descend(start, slopes, form.box, course, len(draws), rng, tell)
    best = _best(problem, [at(p) for p in points], draws)
    order = ranked(np.stack([constant.score, best.score]), VALUE)
    ahead = int(order[0]) == 1 and best.score[VALUE] != constant.score[VALUE]
    return (best if ahead else None), len(look) + len(points) - LOOKED


def _with(constant: Candidate, gains: tuple[Gain, ...], form: Form, point: np.ndarray) -> Candidate:
    return constant._replace(gains=schedule_of(gains, form.table(np.asarray(point, float))))


def _best(problem: Problem, candidates: list[Candidate], draws: list[Draw]) -> _Best:
    scores = problem.scores(candidates, draws)
    k = int(ranked(scores, VALUE)[0])
    return _Best(candidates[k], scores[k])


def _each(problem: Problem, candidate: Candidate, draws: list[Draw]) -> np.ndarray:
    """The objective, one draw at a time."""
    if problem.objective == "capacity":
        return np.array([problem.scores([candidate], [d])[0, VALUE] for d in draws])
    measure = CLEAN if problem.objective == "requests" else ATTAINMENT
    return evaluate(problem.identified, [candidate], draws, problem.targets, problem.limits)[0, :, measure]


def _nothing(
    problem: Problem, constant: _Best, kind: str, draws: list[Draw], effort: Effort, said: str, gains: tuple[Gain, ...] = ()
) -> Scheduled:
    """No schedule was better even in training: the constants stay."""
    heldout = problem.draws(effort, heldout=True)
    train, value = float(constant.score[VALUE]), float(_each(problem, constant.candidate, heldout).mean())
    return Scheduled(
        constant.candidate,
        constant.candidate,
        None,
        tuple(g.name for g in gains),
        kind,
        (train, train),
        (value, value),
        Estimate(0.0, 0.0, 0.0),
        NO_BETTER,
        said,
        None,
        f"{len(heldout)} held-out seeds, of the constants alone: no schedule was better on the training seeds",
        0,
        _workload(draws),
    )


def _workload(draws: list[Draw]) -> str:
    return draws[0].workload.source
