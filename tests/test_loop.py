"""The closed loop on any engine: on a plant it is the exact simulator, and an engine sees steps that it could really execute."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings

from headway.controllers import PILaw, StaticLaw
from headway.controllers.loop import drive
from headway.controllers.policy import RUNNING, Policy
from headway.controllers.simulator import LOG_COLUMNS, Candidate, Draw, simulate
from headway.models.engine import Engine, PlantEngine, Step, batch_of
from headway.models.goodput import FINISHED, Outcome
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload
from tests.small_problems import Problem, known, problems

EXACT = RegimePlant((2.0**-7, 2.0**-13, 2.0**-20, 0.0, 0.0, 0.0), (2.0**-7, 2.0**-13, 2.0**-20, 2.0**-15, 2.0**-27, 2.0**-11))
"""Powers of two: sums of its terms are exact in any order."""


def driven(problem: Problem, **options) -> Outcome:
    identified, candidate, drawn, targets, limits = problem
    engine = PlantEngine(identified.plant, limits, drawn.decode, drawn.mixed)
    return drive(engine, candidate, drawn.workload, targets, identified.plant, **options)


def exact(problem: Problem) -> Problem:
    """The same with a plant, noise and arrivals whose sums have no rounding error."""
    w = problem.drawn.workload
    arrivals = dataclasses.replace(w, arrival_s=np.round(w.arrival_s * 2**12) / 2**12)
    decode, mixed = (np.round(z * 8) / 8 for z in problem.drawn[1:])
    return problem._replace(identified=known(EXACT, problem.limits), drawn=Draw(arrivals, decode, mixed))


@settings(max_examples=60)
@given(problems(scheduled=True))
def test_the_loop_on_a_plant_is_the_simulator_exactly(problem: Problem) -> None:
    problem = exact(problem.one_by_one())
    alone = simulate(*problem, cut_s=10.0, record_steps=300)
    for name, a, b in zip(Outcome._fields, alone, driven(problem, cut_s=10.0, record_steps=300), strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True), name


@settings(max_examples=40)
@given(problems(scheduled=True))
def test_and_to_rounding_on_any_other_plant(problem: Problem) -> None:
    problem = problem.one_by_one()
    alone, loop = simulate(*problem, cut_s=10.0), driven(problem, cut_s=10.0)
    for name in ("status", "emitted", "on_time", "owed", "steps", "preempted", "binding"):
        assert np.array_equal(np.asarray(getattr(alone, name)), np.asarray(getattr(loop, name))), name
    for name in ("ttft_s", "last_s", "max_gap_s", "end_s", "largest"):
        np.testing.assert_allclose(getattr(loop, name), getattr(alone, name), rtol=1e-11, err_msg=name)


class Ledger(Engine):
    """An engine that keeps a cache of its own and refuses a step that it could not execute."""

    name = "ledger"

    def __init__(self, workload: Workload, limits: Limits) -> None:
        self.workload, self.limits, self.resets = workload, limits, 0
        self.cached: dict[int, int] = {}
        self.came: list[int] = []

    def reset(self) -> None:
        self.resets += 1
        self.cached, self.came = {}, [0] * len(self.workload)

    def execute(self, step: Step) -> float:
        for i in step.released.tolist():
            self.cached.pop(i, None)  # one that was let in and gave way while the step was composed never got here
        assert len(step.request)
        assert len(set(step.request.tolist())) == len(step.request)
        for i, tokens, context, decode in zip(*(x.tolist() for x in step[:4]), strict=True):
            prompt = int(self.workload.prompt_tokens[i])
            assert context == self.cached.get(i, 0) - (decode and self.came[i] == 0), "what the step says is cached is cached"
            assert tokens >= 1
            assert not decode or tokens == 1
            known_tokens = prompt + self.came[i]
            self.cached[i] = context + tokens
            assert self.cached[i] <= known_tokens, "no token is computed before it is known"
            self.came[i] += self.cached[i] == known_tokens and (decode or self.limits.first_token == "last_chunk" or self.came[i] > 0)
        blocks = sum(-(-n // self.limits.block_tokens) for n in self.cached.values())
        assert blocks <= self.limits.blocks
        assert step.tokens.sum() <= self.limits.max_tokens
        return 0.004 + 1e-5 * float(step.tokens.sum())


@settings(max_examples=80)
@given(problems(scheduled=True))
def test_an_engine_gets_only_steps_that_it_can_execute(problem: Problem) -> None:
    identified, candidate, drawn, targets, limits = problem.one_by_one(prefix_cache="off")
    candidate = candidate._replace(policy=dataclasses.replace(candidate.policy, preemption="recompute"))
    engine = Ledger(drawn.workload, limits)
    found = drive(engine, candidate, drawn.workload, targets, identified.plant, cut_s=10.0)
    assert engine.resets == 1
    assert engine.came == found.emitted.tolist()
    done = found.status == FINISHED
    assert (found.emitted[done] == found.output_tokens[done]).all()


def one_class(n: int = 30) -> Problem:
    rng = np.random.default_rng(0)
    workload = Workload(np.cumsum(rng.exponential(0.02, n)), rng.integers(10, 200, n), rng.integers(2, 40, n), np.zeros(n, int))
    limits = Limits(20_000, max_tokens=512)
    candidate = Candidate(PILaw(slope_s_per_token=3e-5), Policy(chunk_tokens=512.0))
    return Problem(known(EXACT, limits), candidate, Draw(workload, np.ones(8), np.ones(8)), (Target(1.0, 0.025),), limits)


def test_a_command_may_change_law_and_policy_before_every_step_and_end_the_run() -> None:
    seen: list[float] = []

    def staircase(law: np.ndarray, policy: np.ndarray) -> bool:
        law[1] = 64.0 if len(seen) < 20 else 16.0
        policy[RUNNING] = 4.0
        seen.append(law[1])
        return len(seen) <= 40

    found = driven(one_class()._replace(candidate=Candidate(StaticLaw(512.0), Policy(order="fcfs", triage="none"))), command=staircase)
    log = dict(zip(LOG_COLUMNS, found.log.T, strict=True))
    assert found.steps == 40
    assert log["token_budget"].tolist() == [64.0] * 20 + [16.0] * 20
    assert log["running"].max() == 4
    assert (found.status != FINISHED).any()


def test_progress_is_told_after_every_step() -> None:
    told: list[tuple[float, int]] = []
    found = driven(one_class(), progress=lambda now_s, done: told.append((now_s, done)))
    assert len(told) == found.steps
    assert told == sorted(told)
    assert told[-1] == (found.end_s, 30)


def test_an_engine_that_plans_ahead_is_simulated_not_driven() -> None:
    problem = one_class()
    with pytest.raises(ValueError, match="scheduling must be 'sync'"):
        driven(problem._replace(limits=dataclasses.replace(problem.limits, scheduling="async")))


def test_no_more_steps_are_recorded_than_asked_for() -> None:
    assert driven(one_class(), record_steps=7).log.shape == (7, len(LOG_COLUMNS))
    assert driven(one_class(), record_steps=0).log.shape == (0, len(LOG_COLUMNS))
    assert simulate(*one_class(), record_steps=7).log.shape == (7, len(LOG_COLUMNS))


def test_a_second_run_on_the_same_engine_is_the_first_again() -> None:
    identified, candidate, drawn, targets, limits = one_class()
    engine = PlantEngine(identified.plant, limits, np.linspace(0.5, 1.5, 9), np.linspace(0.5, 1.5, 7))
    runs = [drive(engine, candidate, drawn.workload, targets, identified.plant) for _ in range(2)]
    assert runs[0].end_s == runs[1].end_s
    assert np.array_equal(runs[0].log, runs[1].log)


def test_the_sums_of_a_step_are_those_of_its_rows() -> None:
    step = Step(np.arange(4), np.array([1, 1, 30, 8]), np.array([100, 41, 0, 64]), np.array([True, True, False, False]), np.zeros(0, int))
    assert batch_of(step) == pytest.approx((2, 101 + 42, 38, 30 * 15 + 8 * (64 + 4), 2))
