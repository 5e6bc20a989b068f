"""Model-predictive admission: the compiled rule against a plain one and against its twin, what it promises, and the cache case."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.controllers import FeedforwardLaw, StaticLaw, TrackerLaw
from headway.controllers.admission import AGE, POINTS, admission_limit_s
from headway.controllers.laws import law_init
from headway.controllers.policy import RATE_TPS, Policy, pack_policy, pack_targets
from headway.controllers.queue import next_arrival_s
from headway.controllers.scheduler import plan
from headway.controllers.simulator import Candidate, evaluate, fresh_state, habits_of
from headway.controllers.survival import EDGES
from headway.models.goodput import FINISHED, Outcome, summarise
from headway.models.measures import STEPS
from headway.models.plant import Batch, Plant
from headway.models.regimes import RegimePlant
from headway.models.roofline import RooflinePlant
from headway.models.settlement import settle
from headway.models.signals import SIGNALS, Limits, Target
from headway.models.state import (
    ALIVE,
    ALL_STAY,
    EXPECTED,
    EXPECTED_KV,
    RUNNING_IDS,
    VARIANCE,
    State,
)
from headway.models.steptime import step_time
from tests.small_problems import Problem, known, problems
from tests.test_simulator import LONG_S, assert_same_requests, assert_same_steps, columns, plain, run

LINEAR = RegimePlant((6e-3, 1e-4, 1e-6, 0.0, 0.0, 0.0), (7e-3, 1e-4, 1e-6, 4e-5, 1e-8, 5e-4))
ROOF = RooflinePlant((1e-3, 0.0, 0.0, 0.0, 6e-3, 2e-6, 5e-5, 0.0, 4.0))
TARGET = Target(10.0, 0.025)


@st.composite
def held_back(draw) -> Problem:
    """Random runs with admission on in half of them, tight enough that it refuses somebody now and then."""
    problem = draw(problems())
    policy = dataclasses.replace(
        problem.candidate.policy,
        admission=draw(st.sampled_from(["none", "none", "myopic", "lookahead"])),
        lookahead_steps=draw(st.sampled_from([0.0, 20.0, 200.0])),
        lookahead_z=draw(st.sampled_from([0.0, 1.64])),
        prior_output_tokens=draw(st.sampled_from([1.0, 10.0, 100.0])),
        prior_requests=draw(st.sampled_from([0.1, 8.0])),
    )
    return problem._replace(candidate=problem.candidate._replace(policy=policy))


@settings(max_examples=400)
@given(held_back())
def test_the_compiled_simulator_equals_the_plain_one_with_admission(problem: Problem) -> None:
    wanted, found = problem.reference(), run(problem)
    assert found.end_s == pytest.approx(wanted.end_s, rel=1e-9)
    assert_same_requests(found, wanted)
    assert_same_steps(found, wanted)


@pytest.mark.parametrize("order", ["fcfs", "edf", "slack"])
@pytest.mark.parametrize("seed", range(3))
def test_they_agree_where_admission_holds_many_back(order: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    policy = Policy(order=order, triage="none", admission="lookahead", lookahead_steps=60.0, prior_output_tokens=20.0)
    prompt, output = rng.integers(20, 200, 60), rng.integers(1, 60, 60)
    limits = Limits(1600, 16, max_seqs=64, max_tokens=256)
    problem = plain(np.cumsum(rng.exponential(0.02, 60)), prompt, output, limits, policy, 256.0, TARGET, TARGET, plant=LINEAR)
    wanted, found = problem.reference(), run(problem)
    assert found.binding[4] > 20
    assert_same_requests(found, wanted)
    assert_same_steps(found, wanted)


@settings(max_examples=60)
@given(held_back())
def test_whoever_is_held_back_is_served_in_the_end(problem: Problem) -> None:
    found = run(problem)
    assert found.end_s < LONG_S
    assert (found.status >= FINISHED).all()
    assert found.binding.sum() == found.steps


def expected(s: State, policy: Policy) -> list[tuple[float, float, float, float]]:
    """Requests, cache tokens, their variance and their most at each point of the horizon, anew, as of when the outlook was made."""
    e = s.books[0]
    rows = s.req[s.ids[RUNNING_IDS, : e["n_running"]]]
    emitted = np.maximum(rows["emitted"] - (e["step"] - (e["outlook_until"] - AGE)), 0)
    found = []
    for h in np.arange(POINTS) * float(policy.lookahead_steps) / (POINTS - 1):
        alive = e["outlook"][ALIVE + 2 * rows["class_id"]]
        tail = lambda at, alive=alive: np.array([np.interp(x, EDGES, p) for x, p in zip(at, alive, strict=True)])  # noqa: E731
        stays = tail(emitted + 1 + h) / tail(emitted + 1)
        context = rows["prompt"] + emitted + h
        found.append((stays.sum(), (stays * context).sum(), (stays * (1 - stays) * context**2).sum(), context.sum()))
    return found


def stepwise(problem: Problem, look_at) -> None:
    """Run step by step; `look_at` sees the state whenever a step is composed, and which requests ran before it."""
    identified, (law, policy, _), drawn, targets, limits = problem
    packed, classes, plant = pack_policy(policy, law, targets, limits, identified.plant), pack_targets(targets), identified.plant.pack()
    w = drawn.workload
    s = fresh_state(w, len(targets), limits, packed[RATE_TPS])
    e, signals, habits = s.books[0], np.zeros(SIGNALS), habits_of(packed)
    law_init(law.pack(), s.law)
    while e["done"] < len(w):
        if e["n_running"] + e["n_waiting"] == 0:
            e["now_s"] = max(e["now_s"], next_arrival_s(s.req, e, s.keys))
        before = set(s.ids[RUNNING_IDS, : e["n_running"]])
        if not plan(s.req, s.books, s.ids, s.keys, s.units, s.unit_ids, s.law, packed, law.pack(), classes, signals):
            continue
        look_at(s, before)
        y = step_time(plant, e["n_decode"], e["kv_read"], e["prefill"], e["pairs"], e["chunks"])
        settle(s.req, s.books, s.ids, s.keys, s.units, s.unit_ids, s.gaps, y, classes, habits)


@pytest.mark.parametrize("plant", [LINEAR, ROOF])
@pytest.mark.parametrize("order", ["fcfs", "slack"])
def test_nobody_comes_in_beyond_what_is_expected_to_fit(plant: Plant, order: str) -> None:
    """After every step that let somebody in, the sums over all who run are what they should be, and within budget and cache."""
    rng = np.random.default_rng(5)
    policy = Policy(order=order, triage="none", admission="lookahead", lookahead_steps=300.0, prior_output_tokens=80.0)
    limits = Limits(8800, 16, max_seqs=64, max_tokens=512, watermark=0.02)
    problem = plain(
        np.cumsum(rng.exponential(0.03, 150)),
        rng.integers(50, 400, 150),
        rng.integers(20, 200, 150),
        limits,
        policy,
        400.0,
        TARGET,
    )
    problem = problem._replace(identified=known(plant, limits))
    checked = []

    def look_at(s: State, before: set) -> None:
        e = s.books[0]
        running = list(s.ids[RUNNING_IDS, : e["n_running"]])
        # where nobody was preempted, all who run were counted in at no token, or decode in every step since the outlook was made
        if len(running) < 2 or set(running) <= before or e["preempted"] > 0:
            return
        found = expected(s, policy)
        kept = e["outlook"][[EXPECTED, EXPECTED_KV, VARIANCE, ALL_STAY], :POINTS].T
        np.testing.assert_allclose(kept, found, rtol=1e-9, atol=1e-6)
        for n, kv, variance, most in found:
            cache = min(kv + 1.64 * np.sqrt(variance), most)
            assert (cache + 15 * n) / 16 <= limits.blocks - np.ceil(0.02 * limits.blocks)
            zero = np.zeros(1)
            assert float(plant.step_time_s(Batch(zero + n, zero + cache, zero, zero, zero))[0]) <= 0.025 * (1 + 1e-12)
        checked.append(len(running))

    stepwise(problem, look_at)
    assert len(checked) > 20


def test_the_limit_is_what_the_tracker_found_and_the_setpoint_of_other_laws() -> None:
    tracker = TrackerLaw(LINEAR, margin=0.1)
    packed = pack_policy(Policy(), tracker, (TARGET,), Limits(1000), LINEAR)
    assert admission_limit_s(tracker.pack(), np.array([0.03, 0.08, 0.2]), packed, 0.025) == pytest.approx(0.9 * 0.025 * np.exp(-0.11))
    static = pack_policy(Policy(), StaticLaw(512.0), (TARGET,), Limits(1000), LINEAR)
    assert admission_limit_s(StaticLaw(512.0).pack(), np.zeros(8), static, 0.025) == 0.025


@pytest.mark.parametrize("order", ["fcfs", "slack"])
def test_decodes_that_grow_late_are_foreseen(order: str) -> None:
    """Contexts of 500 tokens that all grow to 1,500 together: what fits now is late later. The lookahead has to learn the lengths first."""
    plant = RegimePlant((5e-3, 0.0, 4e-7, 0.0, 0.0, 0.0), (5e-3, 0.0, 4e-7, 2e-5, 0.0, 0.0))
    rng = np.random.default_rng(2)
    shape = np.cumsum(rng.exponential(0.05, 300)), np.full(300, 500), rng.integers(800, 1200, 300)
    late, held = {}, {}
    for admission in ("none", "myopic", "lookahead"):
        policy = Policy(order=order, triage="none", running_limit=80.0, admission=admission, prior_output_tokens=1000.0)
        problem = plain(*shape, Limits(1_000_000), policy, 512.0, Target(1e6, 0.03), plant=plant)
        found = run(problem._replace(candidate=Candidate(FeedforwardLaw(plant, margin=0.05, ki=0.0), policy)))
        late[admission], held[admission] = 1 - found.on_time.sum() / found.emitted.sum(), found.binding[4]
    assert held["none"] == 0
    assert held["lookahead"] > 100
    assert min(late["none"], late["myopic"]) > 0.5
    assert late["lookahead"] < 0.1


def test_a_longer_prompt_is_not_overtaken_for_ever() -> None:
    """One prompt needs half of the cache, short ones keep coming: it is served before those that came long after it."""
    arrival_s = np.concatenate([[0.0, 0.001], 0.01 + 0.02 * np.arange(200)])
    prompt = np.concatenate([[300, 900], np.full(200, 100)])
    policy = Policy(order="edf", triage="none", admission="lookahead", lookahead_steps=50.0, prior_output_tokens=20.0)
    found = run(plain(arrival_s, prompt, np.full(202, 20), Limits(1200, 1), policy, 1000.0, TARGET))
    assert found.binding[4] > 0
    assert arrival_s[1] + found.ttft_s[1] < 1.0


def e27(order: str, reservation: str, admission: str, budget: float) -> Outcome:
    """512 requests of 4,096 + 32 tokens at once, and a cache of 77,088 tokens: 18 contexts and no 19th."""
    plant = RegimePlant((0.01, 1e-4, 0.0, 0.0, 0.0, 0.0), (0.01, 1e-4, 0.0, 1e-5, 0.0, 0.0))
    policy = Policy(order=order, triage="none", running_limit=512.0, admission=admission)
    return run(
        plain(np.zeros(512), np.full(512, 4096), np.full(512, 32), Limits(77_088, reservation=reservation), policy, budget, plant=plant)
    )


@pytest.mark.parametrize("order", ["fcfs", "slack"])
@pytest.mark.parametrize("reservation", ["chunk", "full"])
@pytest.mark.parametrize("admission", ["myopic", "lookahead"])
@pytest.mark.parametrize("budget", [512.0, 8192.0])
def test_case_e27_kv_budget_ignored(order: str, reservation: str, admission: str, budget: float) -> None:
    found = e27(order, reservation, admission, budget)
    log = columns(found)
    assert (found.status == FINISHED).all()
    assert log["running"].max() <= 18
    assert found.preempted == 0
    assert log["decode_kv_tokens"].max() <= 77_088
    # throughput is that of the batch that fits: no faster than its prefill
    assert found.end_s > 512 * 4096 * (0.01 / budget + 1e-5)


def test_case_e27_without_admission_chunks_overfill_the_cache() -> None:
    """Where the most urgent prompt changes from step to step, each takes blocks for a chunk and none can end its prompt."""
    free, held = (e27("slack", "chunk", admission, 512.0) for admission in ("none", "lookahead"))
    assert columns(free)["running"].max() > 40
    assert free.preempted > 1000
    assert held.end_s < free.end_s / 3


def test_steps_held_back_are_counted_and_off_means_off() -> None:
    rng = np.random.default_rng(7)
    shape = np.cumsum(rng.exponential(0.02, 80)), rng.integers(50, 400, 80), rng.integers(20, 200, 80)

    def at(admission: str) -> Problem:
        policy = Policy(order="slack", triage="none", admission=admission)
        return plain(*shape, Limits(6000), policy, 400.0, TARGET, plant=LINEAR)

    off, on = run(at("none")), run(at("lookahead"))
    assert off.binding[4] == 0
    assert on.binding[4] > 0
    assert "deferred" not in summarise([off], (TARGET,)).binding
    assert summarise([on], (TARGET,)).binding["deferred"] == on.binding[4] / on.steps
    identified, candidate, drawn, targets, limits = at("lookahead")
    measures = evaluate(identified, [candidate, at("none").candidate, candidate], [drawn, drawn], targets, limits)
    assert (measures[[0, 2], :, STEPS] == on.steps).all()
    assert (measures[1, :, STEPS] == off.steps).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"admission": "never"}, "admission must be one of ('none', 'myopic', 'lookahead'), got 'never'"),
        ({"lookahead_steps": -1.0}, "lookahead_steps must be in [0, 100000], got -1"),
        ({"lookahead_z": float("nan")}, "lookahead_z must be in [0, 10], got nan"),
        ({"prior_output_tokens": 0.0}, "prior_output_tokens must be in [1, 1e+06], got 0"),
        ({"prior_requests": 0.0}, "prior_requests must be in [0.1, 1e+06], got 0"),
    ],
)
def test_a_value_out_of_range_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the whole message is compared
        Policy(**fields).check()
    assert str(refused.value) == message
