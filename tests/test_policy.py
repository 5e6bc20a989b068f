"""Who is served, in which order, and who is turned away: order, aging, triage and caps, each against what it says it does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.controllers import PILaw, StaticLaw
from headway.controllers.order import carried_tokens, infeasible_from_s, key_of
from headway.controllers.policy import (
    BLOCKS,
    BUDGET_S,
    CHUNK,
    MAX_TOKENS,
    NEXT_STEP,
    ORDERS,
    POLICY_SIZE,
    RATE_TPS,
    RESERVATION,
    RUNNING,
    SETPOINT_S,
    TRIAGES,
    Policy,
    pack_policy,
    pack_targets,
    prefill_rate_tps,
)
from headway.controllers.simulator import LOG_COLUMNS, Candidate, Draw, fresh_state, simulate
from headway.models.goodput import EXPIRED, FINISHED, REJECTED, Outcome
from headway.models.heap import drop_least, heapify
from headway.models.plant import Batch
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.state import FEASIBLE, ID_ROWS, State
from headway.models.workload import Workload
from tests.small_problems import known

EVEN = RegimePlant((0.01, 0.0, 0.0, 0.0, 0.0, 0.0), (0.01, 0.0, 0.0, 0.0, 0.0, 0.0))
PLANT = RegimePlant((6e-3, 7e-5, 5e-9, 0.0, 0.0, 0.0), (6.5e-3, 1e-4, 6e-9, 3e-5, 5e-10, 5e-4))
LIMITS = Limits(100_000, 1, max_tokens=512)
TARGET = Target(1.0, 0.025)


def serve(
    arrival_s, prompt, output, policy: Policy, *targets: Target, budget: float = 512.0, limits: Limits = LIMITS, plant: RegimePlant = EVEN
) -> Outcome:
    """Served in steps of 10 ms unless a plant is given, the requests taking the targets in turn."""
    n = len(arrival_s)
    targets = targets or (TARGET,)
    workload = Workload(np.asarray(arrival_s, float), np.asarray(prompt), np.asarray(output), np.arange(n) % len(targets))
    drawn = Draw(workload, np.ones(4), np.ones(4))
    return simulate(known(plant, limits), Candidate(StaticLaw(budget), policy), drawn, targets, limits, record_steps=10_000)


def column(outcome: Outcome, name: str) -> np.ndarray:
    return outcome.log[:, LOG_COLUMNS.index(name)]


def waiting_at(now_s: float, arrival_s, prompt, policy: Policy, *targets: Target) -> tuple[State, np.ndarray, np.ndarray]:
    """Requests that all wait, the policy packed, the targets packed."""
    n = len(arrival_s)
    packed = pack_policy(policy, StaticLaw(512.0), targets, LIMITS, PLANT)
    w = Workload(np.asarray(arrival_s, float), np.asarray(prompt), np.full(n, 9), np.arange(n) % len(targets))
    s = fresh_state(w, len(targets), LIMITS, packed[RATE_TPS])
    estimates_from_now(s, packed)
    s.books["now_s"] = now_s
    return s, packed, pack_targets(targets)


def estimates_from_now(s: State, packed: np.ndarray) -> None:
    s.books["used_tps"] = packed[RATE_TPS]
    s.books["carried"] = carried_tokens(s.books[0], packed)


def keys_at(now_s: float, arrival_s, prompt, policy: Policy, *targets: Target) -> list[float]:
    s, packed, classes = waiting_at(now_s, arrival_s, prompt, policy, *targets)
    return [key_of(s.req[i], s.books[0], packed, classes) for i in range(len(arrival_s))]


def at_three_slacks(order: str, triage: str) -> Outcome:
    """Three prompts at once with slacks of -0.5, 0.05 and 2 s, and room for one: a step is estimated at 40 times 25 ms."""
    policy = Policy(order=order, triage=triage, estimate=40.0, running_limit=1.0)
    targets = tuple(Target(slack_s + 1.0, 0.025, name=f"{slack_s:g}") for slack_s in (-0.5, 0.05, 2.0))
    return serve(np.zeros(3), np.full(3, 8), np.full(3, 2), policy, *targets)


def served(outcome: Outcome) -> list[int]:
    """Who got a first token, in that order."""
    return [int(i) for i in np.argsort(outcome.arrival_s + outcome.ttft_s) if not np.isnan(outcome.ttft_s[i])]


@pytest.mark.parametrize(
    ("triage", "order"),
    [("reject", [1, 2]), ("defer", [1, 2, 0]), ("none", [0, 1, 2])],  # "none" serves it in its turn: asked for by name
)
def test_case_e16_expired_deadline_becomes_most_urgent(triage: str, order: list[int]) -> None:
    found = at_three_slacks("slack", triage)
    assert served(found) == order
    assert (found.status[0] == REJECTED) == (triage == "reject")
    assert (found.status[1:] == FINISHED).all()


def test_a_deferred_request_goes_behind_all_feasible_ones_by_deadline_too() -> None:
    assert served(at_three_slacks("edf", "defer")) == [1, 2, 0]


def test_defer_under_stock_order_is_refused() -> None:
    with pytest.raises(ValueError, match="defer"):
        Policy(order="fcfs", triage="defer").check()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("timeout", [0.5, 1.0])
def test_case_e16b_expired_in_queue_costs_no_prefill(order: str, timeout: float) -> None:
    # the first holds the engine for 1.5 s; the second came 0.2 s later, the third so late that it does not wait too long
    policy = Policy(order=order, triage="timeout", timeout=timeout, running_limit=1.0)
    found = serve([0.0, 0.2, 1.49 - timeout / 2], [8, 300, 40], [150, 5, 5], policy)
    assert found.status.tolist() == [FINISHED, EXPIRED, FINISHED]
    assert column(found, "prefill_tokens").sum() == 8 + 40
    assert (found.emitted[1], found.owed[1], found.on_time[1]) == (0, 5, 0)


@pytest.mark.parametrize(("waits_s", "status"), [(0.79, FINISHED), (0.82, EXPIRED)])
def test_the_time_in_the_queue_counts_from_arrival(waits_s: float, status: int) -> None:
    policy = Policy(order="fcfs", triage="timeout", timeout=0.8, running_limit=1.0)
    assert serve([0.0, 1.0 - waits_s], [8, 8], [100, 5], policy).status[1] == status


@given(
    st.lists(st.tuples(st.floats(0, 50), st.integers(1, 5000)), min_size=2, max_size=30),
    st.floats(0, 3),
    st.floats(0, 100),
    st.sampled_from([0.0, 64.0]),
)
def test_case_e17_aging_that_cannot_reorder(requests: list, rate: float, later_s: float, chunk: float) -> None:
    # with one rate for all, the order is that of a key in which the clock does not occur
    policy = Policy(order="slack", triage="none", aging_rate=rate, chunk_tokens=chunk, estimate=0.7)
    targets = (Target(1.0, 0.025), Target(10.0, 0.025))
    arrival_s, prompt = [np.array(x, float) for x in zip(*sorted(requests), strict=True)]
    packed = pack_policy(policy, StaticLaw(512.0), targets, LIMITS, PLANT)
    carried = min(packed[RATE_TPS] * packed[SETPOINT_S], 512.0, chunk or np.inf)
    ttft_s = np.array([1.0, 10.0])[np.arange(len(prompt)) % 2]
    static = (1 + rate) * arrival_s + ttft_s - 0.7 * np.ceil(prompt / carried) * 0.025
    for now_s in (50.0, 50.0 + later_s):
        keys = np.array(keys_at(now_s, arrival_s, prompt, policy, *targets))
        np.testing.assert_allclose(keys, static, atol=1e-9)


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60))
def test_the_heap_sorts_keys_that_stand_still_and_breaks_ties_by_arrival(drawn: list[int]) -> None:
    n = len(drawn)
    keys, ids = np.zeros((ID_ROWS, n)), np.zeros((ID_ROWS, n), np.int64)
    keys[FEASIBLE], ids[FEASIBLE] = drawn, np.arange(n)
    heapify(keys, ids, FEASIBLE, 0, n)
    popped = []
    for size in range(n, 0, -1):
        assert sorted(keys[FEASIBLE, :size]) == sorted(drawn[i] for i in ids[FEASIBLE, :size])
        popped.append(int(ids[FEASIBLE, 0]))
        drop_least(keys, ids, FEASIBLE, 0, size)
    assert popped == sorted(range(n), key=lambda i: (drawn[i], i))


def test_aging_lets_a_long_wait_overtake_a_tight_deadline() -> None:
    # slack alone prefers the new tight one; each second of waiting is worth 3 s of slack
    targets = (Target(10.0, 0.025), Target(1.0, 0.025))
    patient, urgent = keys_at(4.0, [0.0, 3.9], [8, 8], Policy(order="slack", triage="none"), *targets)
    assert urgent < patient
    patient, urgent = keys_at(4.0, [0.0, 3.9], [8, 8], Policy(order="slack", triage="none", aging_rate=3.0), *targets)
    assert patient < urgent


def test_slack_is_what_is_left_if_served_from_now_on() -> None:
    target = Target(ttft_s=2.0, itl_s=0.03, transport_s=0.005)
    for chunk, estimate, habit, steps in ((100.0, 1.0, "last_chunk", 10), (100.0, 2.0, "next_step", 11), (1e6, 1.0, "last_chunk", 2)):
        limits = Limits(100_000, max_tokens=512, first_token=habit)
        policy = Policy(chunk_tokens=chunk, estimate=estimate)
        packed = pack_policy(policy, PILaw(margin=0.2), (target,), limits, EVEN)
        w = Workload(np.array([3.0]), np.array([1000]), np.array([1]), np.array([0]))
        s = fresh_state(w, 1, limits, packed[RATE_TPS])
        estimates_from_now(s, packed)
        without_slack_s = 3.0 + (2.0 - 0.005) - estimate * steps * 0.8 * 0.025
        assert infeasible_from_s(s.req[0], s.books[0], packed, pack_targets((target,))) == pytest.approx(without_slack_s, abs=1e-12)


@pytest.mark.parametrize("tolerance", [-0.3, 0.0, 0.3])
def test_triage_turns_away_below_the_tolerance_only(tolerance: float) -> None:
    policy = Policy(order="slack", triage="reject", tolerance=tolerance, estimate=10.0)
    status = lambda slack_s: serve([0.0], [8], [2], policy, Target(slack_s + 0.25, 0.025)).status[0]  # noqa: E731
    # slack / ttft = -tolerance at slack = -tolerance / (1 + tolerance) * 0.25
    edge_s = -tolerance / (1 + tolerance) * 0.25
    assert status(edge_s + 1e-6) == FINISHED
    assert status(edge_s - 1e-6) == REJECTED


def test_a_stream_that_was_broken_off_goes_first_and_is_never_shed() -> None:
    policy = Policy(order="slack", triage="reject")
    s, packed, classes = waiting_at(100.0, [0.0, 99.9, 50.0], [8, 8, 8], policy, TARGET)
    s.req["emitted"][2] = 4.0
    keys = [key_of(s.req[i], s.books[0], packed, classes) for i in range(3)]
    assert keys[2] < min(keys[:2])
    # in a cache so tight that streams are preempted, those that were promised an answer get all of it
    limits = Limits(400, 1, max_tokens=512)
    found = serve(np.arange(12) * 0.01, np.full(12, 30), np.full(12, 90), Policy(order="slack", triage="reject"), limits=limits)
    assert found.preempted > 0
    assert (found.emitted[found.emitted > 0] == 90).all()


@pytest.mark.parametrize(("order", "triage"), [("fcfs", "timeout"), ("slack", "reject")])
def test_work_once_begun_is_finished(order: str, triage: str) -> None:
    # the second has computed 6 of its 8 tokens when the first needs its blocks
    policy = Policy(order=order, triage=triage, timeout=0.3, estimate=0.5)
    found = serve([0.0, 0.005], [4, 8], [7, 2], policy, Target(0.06, 0.025), limits=Limits(12, 1, max_tokens=4, reservation="chunk"))
    assert found.preempted > 0
    assert column(found, "prefill_tokens").sum() > 4
    assert found.status.tolist() == [FINISHED, FINISHED]


def test_edf_serves_the_earliest_deadline_and_fcfs_the_earliest_arrival() -> None:
    targets = (Target(10.0, 0.025), Target(1.0, 0.025))
    arrival_s, served_by = [0.0, 0.001, 0.002, 0.003], {}
    for order in ("fcfs", "edf"):
        policy = Policy(order=order, triage="none", running_limit=1.0)
        served_by[order] = served(serve(arrival_s, np.full(4, 8), np.full(4, 3), policy, *targets))
    assert served_by == {"fcfs": [0, 1, 2, 3], "edf": [0, 1, 3, 2]}


@given(st.floats(1e-3, 0.2), st.integers(1, 8192))
def test_the_first_rate_is_that_of_the_largest_step_within_the_setpoint(setpoint_s: float, max_tokens: int) -> None:
    rate_tps = prefill_rate_tps(PLANT, setpoint_s, max_tokens)
    time_s = lambda p: float(PLANT.step_time_s(Batch(0, 0, p, p**2 / 2, 1)))  # noqa: E731
    if time_s(1) > setpoint_s:
        # even one token is too long: steps take what they take, and the best rate there is is assumed
        best = max(p / time_s(p) for p in range(1, max_tokens + 1))
        assert 0.98 * best <= rate_tps <= best * (1 + 1e-12)
        return
    tokens = rate_tps * setpoint_s
    fit = [p for p in range(1, max_tokens + 1) if time_s(p) <= setpoint_s] if max_tokens <= 64 else None
    assert 1 <= round(tokens) <= max_tokens
    assert time_s(round(tokens)) <= setpoint_s
    if fit is not None:
        assert tokens == pytest.approx(max(fit))
    elif tokens < max_tokens * 0.96:
        assert time_s(1.04 * tokens + 1) > setpoint_s


def test_a_plant_slower_than_the_setpoint_does_not_shed_everybody() -> None:
    """Steps of 30 ms against a target of 25: whoever has a second for the first token gets it."""
    plant = RegimePlant((0.03, 0.0, 0.0, 0.0, 0.0, 0.0), (0.03, 0.0, 0.0, 0.0, 0.0, 0.0))
    found = serve(np.arange(50) * 0.2, np.full(50, 100), np.ones(50), Policy(), Target(1.0, 0.025), limits=Limits(8192), plant=plant)
    assert (found.status == FINISHED).all()


def test_what_is_packed_is_cut_to_the_engines_limits() -> None:
    targets = (Target(1.0, 0.05, 0.002), Target(2.0, 0.03, 0.002))
    limits = Limits(1000, 16, max_seqs=24, max_tokens=300, reservation="full", first_token="next_step")
    packed = pack_policy(Policy(running_limit=100.9, chunk_tokens=50.7), PILaw(margin=0.25), targets, limits, PLANT)
    assert packed.shape == (POLICY_SIZE,)
    assert packed[[RUNNING, CHUNK, BLOCKS, MAX_TOKENS, RESERVATION, NEXT_STEP]].tolist() == [24, 50, 62, 300, 2, 1]
    assert packed[[BUDGET_S, SETPOINT_S]] == pytest.approx([0.028, 0.021])
    assert pack_targets(targets) == pytest.approx(np.array([[0.998, 0.048, 0.05, 0.002], [1.998, 0.028, 0.03, 0.002]]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"order": "lifo"}, "order must be one of ('fcfs', 'edf', 'slack'), got 'lifo'"),
        ({"triage": "drop"}, "triage must be one of ('none', 'defer', 'reject', 'timeout', 'degrade'), got 'drop'"),
        ({"tolerance": -2.0}, "tolerance must be in [-1, 10], got -2"),
        ({"estimate": float("nan")}, "estimate must be in [0, 100], got nan"),
        ({"tolerance": (0.0, -2.0)}, "tolerance must be in [-1, 10], got -2"),
        ({"timeout": (1.0, 2.0)}, "timeout must be one number for all classes, got (1.0, 2.0)"),
        ({"shed_cap": 1.5}, "shed_cap must be in [0, 1], got 1.5"),
        (
            {"order": "fcfs", "shed_cap": 0.2},
            "shed_cap 0.2 needs order 'edf' or 'slack', got 'fcfs'; stock order has no key to go by",
        ),
        ({"timeout": -1.0}, "timeout must be in [0, 100], got -1"),
        ({"aging_rate": 101.0}, "aging_rate must be in [0, 100], got 101"),
        ({"chunk_tokens": -1.0}, "chunk_tokens must be in [0, 1e+06], got -1"),
        ({"running_limit": 0.0}, "running_limit must be in [1, 1e+06], got 0"),
    ],
)
def test_a_value_out_of_range_is_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # the whole message is compared
        Policy(**fields).check()
    assert str(refused.value) == message


def test_each_class_may_have_a_tolerance_and_an_estimate_of_its_own() -> None:
    targets = (Target(1.0, 0.025, name="a"), Target(1.0, 0.025, name="b"))
    policy = Policy(tolerance=(0.1, -0.3), estimate=(1.0, 10.0))
    s, packed, classes = waiting_at(0.0, [0.0, 0.0], [8, 8], policy, *targets)
    late_s = [infeasible_from_s(s.req[i], s.books[0], packed, classes) for i in range(2)]
    assert late_s == pytest.approx([1.1 - 0.025, 0.7 - 10 * 0.025])
    assert keys_at(0.0, [0.0, 0.0], [8, 8], policy, *targets) == pytest.approx([1.0 - 0.025, 1.0 - 10 * 0.025])
    with pytest.raises(ValueError, match="tolerance must have one number per class, got 3 for 2 classes"):
        pack_policy(Policy(tolerance=(0.0, 0.0, 0.0)), StaticLaw(512.0), targets, LIMITS, PLANT)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("triage", TRIAGES)
def test_every_named_choice_is_accepted(order: str, triage: str) -> None:
    if order != "fcfs" or triage not in ("defer", "degrade"):
        Policy(order=order, triage=triage).check()
