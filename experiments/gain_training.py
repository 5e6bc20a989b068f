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
from headway.experiments.checkpoint import Ledger, Store, problem_key
from headway.experiments.descent import Course, Slopes, descend, exact_slopes
from headway.experiments.gain_forms import KINDS, Form, Gain, NetworkForm, check_kind, form_of, gains_of, schedule_of
from headway.experiments.gain_slopes import Admitted, ScheduleFluid, admit, fluid_slopes, random_slopes, unknown_to_fluid
from headway.experiments.judgement import d_rate, heldout_draws
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
        train: objective of constants and of the schedule, mean over the training draws; a capacity in requests/s.
        heldout: the same on the held-out draws.
        gain: of the schedule over the constants, held-out, paired; a difference of the objective.
        verdict: BETTER or NO_BETTER.
        slopes: where the slopes came from.
        admitted: what the gate said, where the fluid was asked.
        heldout_said: how many held-out draws, and why no more.
        tried: schedules that were scored exactly.
        workload: trained for.
        resumed: answers taken over from a training that was interrupted.
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
    resumed: int = 0

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
            "resumed": self.resumed,
        }


class _Best(NamedTuple):
    """The best of some candidates on the training draws."""

    candidate: Candidate
    score: np.ndarray


class _Training(NamedTuple):
    """What is trained for, on which draws, with how much effort, and what is known already."""

    problem: Problem
    effort: Effort
    draws: list[Draw]
    ledger: Ledger

    def gains(self, candidate: Candidate) -> tuple[Gain, ...]:
        """Those of a candidate that can follow the load."""
        return gains_of(candidate, self.problem.limits, self.problem.targets)

    def best(self, candidates: list[Candidate]) -> _Best:
        """The best of some."""
        scores = self.ledger.scores(self.problem, candidates, self.draws)
        k = int(ranked(scores, VALUE)[0])
        return _Best(candidates[k], scores[k])

    def value(self, best: _Best) -> float:
        """The objective; a capacity, which is scored as a factor on the load, as a rate [requests/s]."""
        return float(best.score[VALUE]) * (float(d_rate(self.draws).mean()) if self.problem.objective == "capacity" else 1.0)

    def nothing(self, constant: _Best, kind: str, said: str, gains: tuple[Gain, ...] = ()) -> Scheduled:
        """No schedule was better even in training: the constants stay."""
        heldout = self.problem.draws(self.effort, heldout=True)
        train, value = self.value(constant), float(_each(self.problem, constant.candidate, heldout).mean())
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
            self.workload,
        )

    @property
    def workload(self) -> str:
        """Trained for."""
        return self.draws[0].workload.source


def train_schedule(
    problem: Problem,
    candidate: Candidate,
    *,
    kind: str = "queued",
    effort: Effort = Effort(),  # noqa: B008  # an immutable dataclass
    progress: Progress | None = None,
    store: Store | None = None,
) -> Scheduled:
    """Make gains follow the load, and say by how much that beats constants.

    Args:
        problem: what is trained for.
        candidate: tuned, with constant gains.
        kind: one of KINDS: "queued" follows the queue alone, "load" all three measures of the load, "network" makes the same table of
            few numbers.
        effort: how much is spent; its `gradient` is "exact" to leave the fluid out.
        progress: called with a label and a fraction in [0, 1].
        store: where the answers of simulator and fluid are kept until the end, for a training that is killed; None keeps none.

    Returns:
        Scheduled; the same seed gives the same one, whether the training was interrupted or not.

    Raises:
        ValueError: an unknown kind, a problem that cannot be, or a candidate that has a schedule already.
    """
    check_kind(kind)
    problem.check()
    effort.check()
    if candidate.gains is not None:
        raise ValueError("the candidate has a gain schedule already; train from the constants that it was made of")
    ledger = Ledger(training_key(problem, effort, candidate, kind) if store is not None else "", store)
    training = _Training(problem, effort, problem.draws(effort, heldout=False), ledger)
    found = _train(training, candidate, kind, progress or (lambda _label, _part: None))
    ledger.close()
    return dataclasses.replace(found, resumed=ledger.taken)


def training_key(problem: Problem, effort: Effort, candidate: Candidate, kind: str) -> str:
    """A hash of everything that the course of a training depends on.

    Args:
        problem: what is trained for.
        effort: how much is spent.
        candidate: tuned, with constant gains.
        kind: of schedule.

    Returns:
        Hexadecimal digits.
    """
    return problem_key(problem, effort, "schedule", kind, candidate.law.law, candidate.law.pack().tolist(), candidate.policy)


def _train(training: _Training, candidate: Candidate, kind: str, say: Progress) -> Scheduled:
    """The constants, the schedule from the best of them, and both on held-out draws."""
    problem, effort = training.problem, training.effort
    gains = training.gains(candidate)
    if not gains:
        return training.nothing(training.best([candidate]), kind, "no gain of this candidate can follow the load")
    say("constants", 0.0)
    constant = _constants(training, candidate, gains)
    gains = training.gains(constant.candidate)
    form = form_of(kind, gains, effort.seed)
    say("the fluid's gate", 0.15)
    slopes, course, said, admitted = _slopes(training, constant.candidate, gains, form)
    best, tried = _trained(training, constant, gains, form, slopes, course, lambda part: say("schedule", 0.25 + 0.6 * part))
    if best is None:
        return dataclasses.replace(training.nothing(constant, kind, said, gains), admitted=admitted, tried=tried)
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
        (training.value(constant), training.value(best)),
        (float(theirs.mean()), float(ours.mean())),
        gain,
        BETTER if better else NO_BETTER,
        said,
        admitted,
        judged.said,
        tried,
        training.workload,
    )


def _constants(training: _Training, candidate: Candidate, gains: tuple[Gain, ...]) -> _Best:
    """The candidate, or better constants of the same gains: a schedule must not win by mere further tuning."""
    problem, effort, draws = training.problem, training.effort, training.draws
    levels = tuple(g.name for g in gains if not g.name.startswith("share."))
    shares = tuple(f"share.{t.name}" for t in problem.targets) if len(levels) < len(gains) else ()
    space = Space(candidate, problem.limits, (*levels, *shares), problem.targets)
    rng, box = np.random.default_rng(effort.seed), (space.low, space.high)
    course = CONSTANTS._replace(iterations=max(effort.iterations, 1))
    slopes = exact_slopes(problem, space, draws, training.ledger)
    points = list(descend(space.point(candidate), slopes, box, course, len(draws), rng))
    return training.best([candidate, *map(space.candidate, points)])


def _slopes(training: _Training, constant: Candidate, gains: tuple[Gain, ...], form: Form) -> tuple[Slopes, Course, str, Admitted | None]:
    """The fluid's slopes where it knows the problem and the gate lets it, else differences; how they are followed, and why."""
    problem, effort, draws, ledger = training
    exact = random_slopes(problem, form, lambda point: _with(constant, gains, form, point), draws, effort.seed, ledger)
    if effort.gradient == "exact":
        return exact, ROUGH, "exact differences in random directions, as asked", None
    unknown = unknown_to_fluid(problem, constant, gains, draws)
    if unknown:
        return exact, ROUGH, f"exact differences in random directions: the fluid does not know {', '.join(unknown)}", None
    fluid = ScheduleFluid(problem, constant, gains, draws, ledger)
    admitted = admit(problem, fluid, constant, draws, ledger)
    return (fluid_slopes(fluid, form), SMOOTH, admitted.said, admitted) if admitted.passed else (exact, ROUGH, admitted.said, admitted)


def _trained(
    training: _Training,
    constant: _Best,
    gains: tuple[Gain, ...],
    form: Form,
    slopes: Slopes,
    course: Course,
    tell: Callable[[float], None],
) -> tuple[_Best | None, int]:
    """The best schedule that was passed, where it beats the constants on the training draws; and how many were scored."""
    problem, effort, draws, ledger = training
    if isinstance(form, NetworkForm):
        course = course._replace(rate=NETWORK_RATE * course.rate)
    rng = np.random.default_rng(effort.seed)
    at = lambda point: _with(constant.candidate, gains, form, point)  # noqa: E731
    directions = form.directions(rng, LOOK)
    look = np.clip(np.concatenate([form.start + directions, form.start - directions]), *form.box)
    rough = ledger.scores(problem, [at(p) for p in look], draws[: max(2, len(draws) // 2)])
    points = [look[k] for k in ranked(rough, VALUE)[:LOOKED]]
    scores = ledger.scores(problem, [at(p) for p in points], draws)
    k = int(ranked(np.vstack([constant.score, scores]), VALUE)[0])
    start = points[k - 1] if k else form.start
    points += descend(start, slopes, form.box, course, len(draws), rng, tell)
    best = training.best([at(p) for p in points])
    order = ranked(np.stack([constant.score, best.score]), VALUE)
    ahead = int(order[0]) == 1 and best.score[VALUE] != constant.score[VALUE]
    return (best if ahead else None), len(look) + len(points) - LOOKED


def _with(constant: Candidate, gains: tuple[Gain, ...], form: Form, point: np.ndarray) -> Candidate:
    return constant._replace(gains=schedule_of(gains, form.table(np.asarray(point, float))))


def _each(problem: Problem, candidate: Candidate, draws: list[Draw]) -> np.ndarray:
    """The objective, one draw at a time."""
    if problem.objective == "capacity":
        return np.array([problem.scores([candidate], [d])[0, VALUE] for d in draws]) * d_rate(draws)
    measure = CLEAN if problem.objective == "requests" else ATTAINMENT
    return evaluate(problem.identified, [candidate], draws, problem.targets, problem.limits)[0, :, measure]
