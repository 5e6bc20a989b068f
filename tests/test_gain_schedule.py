"""Gain schedules: what a table says, that the engine follows it from step to step, and that a constant one changes nothing."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.controllers import FeedforwardLaw, PILaw, StaticLaw, TrackerLaw, UpDownLaw
from headway.controllers.controller import Controller
from headway.controllers.gain_schedule import NAMES, RANGES, GainSchedule, knots_of
from headway.controllers.policy import AGING, AGING_NEXT, CHUNK, HAS_STRIDES, RUNNING, SETPOINT_S, SHARES, STRIDES, Policy
from headway.controllers.pools import Pools
from headway.controllers.record import ControllerRecord
from headway.controllers.scheduled import at_rest, check_gains, pack_candidate, stack_schedules
from headway.controllers.simulator import Candidate, Draw, evaluate, simulate
from headway.controllers.twin.run import simulate_twin
from headway.models.goodput import Outcome
from headway.models.measures import ATTAINMENT, END_S, STEPS
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload
from tests.followed import blocks_of, load_of, steps_of
from tests.reference_schedule import Load, Schedule, read
from tests.small_problems import KNOTS, Problem, known, problem, problems
from tests.test_pools import assert_side_by_side
from tests.test_record import held
from tests.test_simulator import assert_same_requests, assert_same_steps, run

TARGETS = (Target(1.0, 0.025), Target(4.0, 0.05))
PLANT = RegimePlant((6e-3, 1e-4, 1e-6, 0.0, 0.0, 0.0), (7e-3, 1e-4, 1e-6, 4e-5, 1e-8, 5e-4))
LOADS = st.tuples(st.floats(0, 1e7), st.floats(0, 1), st.floats(0, 1))


def table(names: tuple[str, ...], shape: tuple[int, int, int], seed: int = 0) -> GainSchedule:
    rng = np.random.default_rng(seed)
    rows = [rng.uniform(RANGES[n.partition(".")[0]][0], min(RANGES[n.partition(".")[0]][1], 9.0), shape) for n in names]
    return GainSchedule(names, np.array(rows))


# the table


@given(st.sampled_from(KNOTS), LOADS)
def test_a_table_is_read_between_its_knots_and_held_beyond(shape: tuple[int, int, int], load: tuple[float, float, float]) -> None:
    gains = table(("margin", "chunk_tokens"), shape)
    places = [math.log2(1 + load[0] / 500), load[1] * (shape[1] - 1), load[2] * (shape[2] - 1)]
    wanted = [read(rows, places) for rows in gains.table.tolist()]
    np.testing.assert_allclose(gains.at(*load), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", KNOTS)
def test_at_a_knot_it_is_the_number_of_the_knot(shape: tuple[int, int, int]) -> None:
    gains = table(("aging_rate",), shape)
    loads = np.meshgrid(*knots_of(shape), indexing="ij")
    np.testing.assert_allclose(gains.at(*loads)[0], gains.table[0], rtol=1e-12)


def test_jax_reads_the_same_and_its_gradients_are_those_of_differences() -> None:
    gains = table(("margin", "share.1"), (4, 3, 2))
    queued, running, kv = jnp.array([0.0, 740.0, 2e4]), jnp.array([0.2, 0.6, 0.9]), jnp.array([0.1, 0.5, 0.8])
    np.testing.assert_allclose(gains.at(queued, running, kv), gains.at(*map(np.asarray, (queued, running, kv))), rtol=1e-12)

    def total(held: GainSchedule, load: Any) -> Any:
        return jnp.sum(held.at(*load) ** 2)

    moved = dataclasses.replace(gains, table=jnp.asarray(gains.table))
    of_table, of_load = jax.grad(total, (0, 1))(moved, (queued, running, kv))
    rng = np.random.default_rng(1)
    way, step = rng.normal(size=gains.table.shape), 1e-6
    ends = [total(dataclasses.replace(gains, table=jnp.asarray(gains.table + s * step * way)), (queued, running, kv)) for s in (1, -1)]
    assert jnp.sum(of_table.table * way) == pytest.approx(float(ends[0] - ends[1]) / (2 * step), rel=1e-6)
    ends = [total(moved, (queued, running + s * step, kv)) for s in (1, -1)]
    assert jnp.sum(of_load[1]) == pytest.approx(float(ends[0] - ends[1]) / (2 * step), rel=1e-6)


def test_a_constant_one_is_the_same_under_every_load_whatever_its_knots() -> None:
    for shape in KNOTS:
        gains = GainSchedule.constant(("margin", "chunk_tokens"), (0.3, 9.0), shape)
        gains.check()
        assert gains.shape == shape
        for load in ((0.0, 0.0, 0.0), (777.0, 0.31, 0.77), (1e9, 1.0, 1.0)):
            assert gains.at(*load).tolist() == [0.3, 9.0]


@pytest.mark.parametrize(
    ("names", "values", "says"),
    [
        ((), np.zeros((0, 1, 1, 1)), "must name at least one gain"),
        (("kp",), np.zeros((1, 1, 1, 1)), "no gain 'kp' can be scheduled"),
        (("share.16",), np.zeros((1, 1, 1, 1)), "no gain 'share.16'"),
        (("margin", "margin"), np.zeros((2, 1, 1, 1)), "'margin' 2 times"),
        (("margin",), np.zeros((1, 4)), r"must have the shape .*got \(1, 4\)"),
        (("margin",), np.zeros((2, 1, 1, 1)), "must have the shape"),
        (("margin",), np.zeros((1, 0, 1, 1)), "must have the shape"),
        (("margin",), np.zeros((1, 65, 1, 1)), "1 to 64 knots"),
        (("margin",), np.full((1, 1, 1, 1), 0.96), r"schedule of margin must be in \[0, 0.95\] 1, got 0.96"),
        (("margin",), np.full((1, 2, 1, 1), np.nan), "got nan"),
        (("chunk_tokens",), np.full((1, 1, 1, 1), 512.0), "log2 tokens, got 512"),
        (("aging_rate",), np.full((1, 1, 1, 1), -0.1), "aging_rate must be in"),
        (("share.3",), np.full((1, 1, 1, 1), np.inf), "share.3 must be in"),
    ],
)
def test_what_is_no_schedule_is_refused_in_one_line(names: tuple[str, ...], values: np.ndarray, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        GainSchedule(names, values).check()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("law", "policy", "names", "says"),
    [
        (StaticLaw(512.0), Policy(), ("margin",), "law 'static' has none"),
        (PILaw(), Policy(order="fcfs"), ("share.0", "share.1"), "needs order 'edf' or 'slack'"),
        (PILaw(), Policy(), ("share.2",), "share.2, and there are 2 classes"),
        (PILaw(), Policy(), ("share.0",), "lacks share.1"),
    ],
)
def test_what_law_policy_or_classes_cannot_follow_is_refused(law: Controller, policy: Policy, names: tuple[str, ...], says: str) -> None:
    gains = GainSchedule.constant(names, [0.5] * len(names))
    with pytest.raises(ValueError, match=says):
        check_gains(law, policy, gains, 2)
    with pytest.raises(ValueError, match=says):
        simulate(known(PLANT, Limits(1000)), Candidate(law, policy, gains), one_of_each(), TARGETS, Limits(1000))


def test_shares_that_are_all_nothing_at_a_knot_are_refused() -> None:
    gains = GainSchedule(("share.0",), np.array([1.0, 0.0]).reshape(1, 2, 1, 1))
    with pytest.raises(ValueError, match="must not all be 0 at a knot"):
        check_gains(PILaw(), Policy(class_shares=(1.0, 0.0)), gains, 2)
    check_gains(PILaw(), Policy(class_shares=(1.0, 0.1)), gains, 2)


def test_some_gains_are_left_out_of_a_schedule() -> None:
    gains = table(("margin", "share.0", "share.1"), (2, 1, 1))
    assert gains.without("share") == GainSchedule(("margin",), gains.table[:1])
    assert gains.without("margin", "share") is None


# the engine


def one_of_each(n: int = 40, rate_rps: float = 25.0) -> Draw:
    """More than the engine can do, of two classes in turn."""
    rng = np.random.default_rng(5)
    workload = Workload(np.cumsum(rng.exponential(1 / rate_rps, n)), rng.integers(50, 600, n), rng.integers(4, 60, n), np.arange(n) % 2)
    return Draw(workload, np.exp(rng.normal(0, 0.05, 64)), np.exp(rng.normal(0, 0.1, 64)))


def crowded(law: Controller, gains: GainSchedule | None, **policy: Any) -> Problem:
    limits = Limits(6000, 16, max_seqs=16, max_tokens=1024)
    candidate = Candidate(law, Policy(triage="defer", chunk_tokens=256.0, stride=0.6, class_shares=(3.0, 1.0), **policy), gains)
    return Problem(known(PLANT, limits), candidate, one_of_each(), TARGETS, limits)


LAWS = (UpDownLaw(), PILaw(slope_s_per_token=4e-5), FeedforwardLaw(PLANT), TrackerLaw(PLANT, start_mixed=0.2, margin=0.1), StaticLaw(512.0))


def constant_of(candidate: Candidate, shape: tuple[int, int, int]) -> GainSchedule:
    """The candidate's own gains, as a schedule."""
    law, policy, _ = candidate
    found = {"margin": law.margin} if "margin" in law.gains() else {}  # pyright: ignore[reportAttributeAccessIssue]
    found["aging_rate"] = policy.aging_rate
    if policy.chunk_tokens >= 1:
        found["chunk_tokens"] = math.log2(math.floor(policy.chunk_tokens))
    found |= {f"share.{c}": w for c, w in enumerate(policy.class_shares)}
    return GainSchedule.constant(tuple(found), list(found.values()), shape)


def assert_identical(a: Outcome, b: Outcome) -> None:
    for name, x, y in zip(Outcome._fields, a, b, strict=True):
        assert np.array_equal(np.asarray(x), np.asarray(y), equal_nan=True), name


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.law)
def test_a_constant_schedule_is_none_to_the_last_bit(law: Controller) -> None:
    for shape in KNOTS:
        plain = crowded(law, None, aging_rate=0.3)
        gains = constant_of(plain.candidate, shape)
        followed = plain._replace(candidate=plain.candidate._replace(gains=gains))
        assert_identical(simulate(*plain, record_steps=5000), simulate(*followed, record_steps=5000))
        # what stands in law and policy under a schedule is not looked at
        other = dataclasses.replace(plain.candidate.policy, aging_rate=2.0, chunk_tokens=31.0, class_shares=(1.0, 9.0))
        moved = dataclasses.replace(law, margin=0.6) if "margin" in law.gains() else law  # pyright: ignore[reportArgumentType]
        assert_identical(simulate(*plain), simulate(*plain._replace(candidate=Candidate(moved, other, gains))))


@settings(max_examples=150)
@given(problems(), st.sampled_from(KNOTS))
def test_and_on_any_problem(of: Problem, shape: tuple[int, int, int]) -> None:
    followed = of._replace(candidate=of.candidate._replace(gains=constant_of(of.candidate, shape)))
    assert_identical(run(of), run(followed))


@pytest.mark.parametrize("name", ["margin", "aging_rate", "chunk_tokens", "share.0"])
@pytest.mark.parametrize("axis", range(3))
def test_each_gain_changes_a_result_along_each_axis(name: str, axis: int) -> None:
    low, high = {"margin": (0.0, 0.8), "aging_rate": (0.0, 5.0), "chunk_tokens": (4.0, 9.0), "share.0": (0.01, 20.0)}[name]
    shape = [1, 1, 1]
    shape[axis] = 4
    rises = np.linspace(low, high, 4).reshape(1, *shape)
    law = PILaw(slope_s_per_token=4e-5)
    long = one_of_each(160)  # keys are made anew every 32 steps at most: an aging rate must have time to move
    under = lambda gains: simulate(*crowded(law, gains)._replace(drawn=long))  # noqa: E731
    still = [under(GainSchedule.constant((name,), [x])) for x in (low, high)]
    moving = under(GainSchedule((name,), rises))
    for one in still:
        assert not np.array_equal(moving.ttft_s, one.ttft_s, equal_nan=True)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.law)
def test_every_step_is_composed_under_the_gains_of_what_the_last_one_left(law: Controller) -> None:
    names = tuple(n for n in ("margin", "aging_rate", "chunk_tokens", "share.0", "share.1") if n != "margin" or "margin" in law.gains())
    gains = table(names, (4, 3, 3), 7)
    seen, used, of = set(), set(), crowded(law, gains)
    for s, p, composed in steps_of(of):
        load, e = load_of(s, blocks_of(p), p.policy[RUNNING]), s.books[0]
        if composed:
            used.add(float(p.policy[AGING]))
            continue
        assert e["queued"] == load.queued_tokens
        assert e["ready"] / p.policy[RUNNING] == load.running_share
        found = dict(zip(names, gains.at(*load), strict=True))
        assert p.policy[AGING_NEXT] == pytest.approx(found["aging_rate"], rel=1e-12)
        assert p.policy[CHUNK] == math.floor(2 ** found["chunk_tokens"] * (1 + 1e-9))
        assert p.policy[SHARES : SHARES + 2] == pytest.approx([found["share.0"], found["share.1"]], rel=1e-12)
        if "margin" in found:
            moved = dataclasses.replace(law, margin=float(found["margin"]))  # pyright: ignore[reportArgumentType]
            setpoint_s = (1 - moved.setpoint_margin) * 0.025
            assert p.policy[SETPOINT_S] == pytest.approx(setpoint_s, rel=1e-12)
            np.testing.assert_allclose(p.law, moved.pack(), rtol=1e-12)
            assert p.policy[STRIDES + 1] == max(1, math.floor(0.6 * 0.05 / setpoint_s + 1e-9))
            assert p.policy[HAS_STRIDES] == (p.policy[STRIDES + 1] > 1)
        seen.add(float(p.policy[AGING_NEXT]))
    assert len(seen) > 20
    assert 2 <= len(used) < len(seen)
    assert used <= seen


@pytest.mark.parametrize("clock_s", [4096.0, 2.0**20])
def test_an_aging_rate_that_follows_the_load_knows_no_time_of_day(clock_s: float) -> None:
    """Keys of different rates would be told apart by the clock: by days where an engine has run for a fortnight."""
    rises = GainSchedule(("aging_rate",), np.linspace(0.0, 5.0, 6).reshape(1, 6, 1, 1))
    of = crowded(PILaw(slope_s_per_token=4e-5), rises)._replace(drawn=one_of_each(160))
    w = of.drawn.workload
    later = of._replace(drawn=of.drawn._replace(workload=dataclasses.replace(w, arrival_s=w.arrival_s + clock_s)))
    at_once, at_last = simulate(*of), simulate(*later)
    np.testing.assert_allclose(at_last.ttft_s, at_once.ttft_s, atol=1e-6)
    still = simulate(*of._replace(candidate=of.candidate._replace(gains=GainSchedule.constant(("aging_rate",), [0.0]))))
    assert not np.allclose(still.ttft_s, at_once.ttft_s, equal_nan=True)


@settings(max_examples=120)
@given(problems(scheduled=True))
def test_what_is_queued_is_counted_without_a_rest(of: Problem) -> None:
    books = None
    for s, p, composed in steps_of(of):
        books = s.books[0]
        if not composed:
            assert books["queued"] == load_of(s, blocks_of(p), p.policy[RUNNING]).queued_tokens
    assert books is not None
    assert books["queued"] == 0


def test_the_problems_of_seeds_equal_the_plain_engine_with_each_gain_on_often_enough() -> None:
    counts = dict.fromkeys(("none", "margin", "aging_rate", "chunk_tokens", "share.0"), 0)
    for seed in range(200):
        of = problem(seed, admissions=("none",), scheduled=True)
        wanted, found = of.reference(), run(of)
        assert_same_requests(found, wanted)
        assert_same_steps(found, wanted)
        for name in of.candidate.gains.names if of.candidate.gains else ("none",):
            if name in counts:
                counts[name] += 1
    assert min(counts.values()) >= 20, counts


@settings(max_examples=60)
@given(problems(scheduled=True), st.sampled_from((Pools(2), Pools(1, 1, 1e-4, 0.003), Pools(2, 2, 1e-4, 0.003, "round_robin"))))
def test_replicas_follow_their_own_load(of: Problem, pools: Pools) -> None:
    assert_side_by_side(of, pools, cut_s=1.5)


def test_candidates_with_and_without_a_schedule_are_evaluated_side_by_side() -> None:
    law = PILaw(slope_s_per_token=4e-5)
    every = [crowded(law, g) for g in (None, table(("margin", "share.0"), (3, 2, 2)), table(("aging_rate",), (8, 1, 1)))]
    identified, _, drawn, targets, limits = every[0]
    draws = [drawn, drawn._replace(mixed=drawn.mixed[::-1].copy())]
    found = evaluate(identified, [of.candidate for of in every], draws, targets, limits)
    for q, of in enumerate(every):
        for m, d in enumerate(draws):
            out = simulate(*of._replace(drawn=d))
            assert found[q, m, STEPS] == out.steps
            assert found[q, m, END_S] == out.end_s
            assert found[q, m, ATTAINMENT] == pytest.approx(out.on_time.sum() / out.owed.sum())
    again = evaluate(identified, [of.candidate for of in every[::-1]], draws, targets, limits)
    assert np.array_equal(again[::-1], found, equal_nan=True)


def test_before_anybody_comes_the_gains_are_those_of_an_idle_engine() -> None:
    gains = table(("margin", "chunk_tokens", "share.0", "share.1"), (3, 2, 2), 3)
    law, policy = at_rest(PILaw(), Policy(), gains)
    first = gains.table[:, 0, 0, 0]
    assert (law.margin, policy.class_shares) == (first[0], (first[2], first[3]))  # pyright: ignore[reportAttributeAccessIssue]
    assert policy.chunk_tokens == math.floor(2 ** first[1])
    packed = pack_candidate(Candidate(PILaw(), Policy(), gains), TARGETS, Limits(1000), PLANT)
    rest = pack_candidate(Candidate(law, policy), TARGETS, Limits(1000), PLANT)
    assert np.array_equal(packed.policy, rest.policy)
    assert np.array_equal(packed.law, rest.law)
    assert len(rest.schedule) == 0
    assert stack_schedules([rest.schedule, packed.schedule]).shape == (2, len(packed.schedule))


def test_the_plain_engine_reads_gains_where_law_and_policy_have_none() -> None:
    """The second reader itself: a schedule of one gain leaves the others to law and policy."""
    candidate = Candidate(
        PILaw(margin=0.2), Policy(aging_rate=0.4, chunk_tokens=50.7, class_shares=(2.0, 1.0)), table(("share.1",), (2, 1, 1))
    )
    at = Schedule(candidate, 0.025).at(Load(500, 0.0, 0.0))
    assert at[:4] == (0.2, 0.8 * 0.025, 0.4, 50)
    assert at.weights == (2.0, candidate.gains.table[0, 1, 0, 0])  # pyright: ignore[reportOptionalMemberAccess]


def test_the_twin_refuses_what_it_does_not_follow() -> None:
    with pytest.raises(ValueError, match="the twin holds gains still, and margin follow the load"):
        simulate_twin(*crowded(PILaw(), GainSchedule.constant(("margin",), [0.1])))


# the record


def scheduled_record() -> ControllerRecord:
    gains = table(("margin", "chunk_tokens", "share.0", "share.1"), (4, 2, 3), 11)
    return dataclasses.replace(held(), candidate=held().candidate._replace(gains=gains))


def test_a_record_keeps_its_schedule_and_one_without_is_as_it_was() -> None:
    record = scheduled_record()
    data = json.loads(json.dumps(record.to_json()))
    back = ControllerRecord.from_json(data)
    assert back == record
    assert hash(back.candidate.gains) == hash(record.candidate.gains)
    assert not back.edited
    assert data["setpoint_s"] == pytest.approx((1 - float(record.candidate.gains.table[0, 0, 0, 0])) * 0.025)  # pyright: ignore[reportOptionalMemberAccess]
    assert "schedule" not in held().to_json()
    data["schedule"]["gains"]["margin"]["table"][0][0][0] = 0.5
    assert ControllerRecord.from_json(data).edited


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.pop("knots"), "lacks or misstates 'knots'"),
        (lambda s: s["gains"]["margin"].pop("table"), "lacks or misstates 'table'"),
        (lambda s: s["gains"]["margin"].update(unit="%"), "schedule of margin must be in '1', got '%'"),
        (lambda s: s["gains"]["margin"].update(table=[[[0.1]]]), "a value at each of its (4, 2, 3) knots"),
        (lambda s: s["gains"]["margin"]["table"][0].pop(), "no full array of numbers"),
        (lambda s: s["gains"]["margin"]["table"][0][0].__setitem__(0, "many"), "no full array of numbers"),
        (lambda s: s["gains"]["margin"]["table"][0][0].__setitem__(0, 2.0), "schedule of margin must be in [0, 0.95] 1, got 2"),
        (lambda s: s["gains"].update(kp=s["gains"]["margin"]), "no gain 'kp' can be scheduled"),
        (lambda s: s["knots"]["queued_tokens"].__setitem__(1, 400.0), "knots of queued_tokens must be [0.0, 500.0, 1500.0, 3500.0]"),
        (lambda s: s["gains"].update({"share.2": s["gains"]["share.1"]}), "share.2, and there are 2 classes"),
    ],
)
def test_a_schedule_that_is_damaged_is_refused_in_one_line(change: Any, says: str) -> None:
    data = json.loads(json.dumps(scheduled_record().to_json()))
    change(data["schedule"])
    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        ControllerRecord.from_json(data)
    assert "\n" not in str(refused.value)


def test_every_gain_has_a_name_and_a_range() -> None:
    assert {n.partition(".")[0] for n in NAMES} == set(RANGES)
    assert len(set(NAMES)) == len(NAMES)
