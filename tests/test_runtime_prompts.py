"""Order, triage and rate of the runtime that ships against the scheduler's own, part by part; and the parts that it refuses."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.controllers.order import BEHIND_S, STREAM_S, carried_tokens, infeasible_from_s, key_of
from headway.controllers.pi import PILaw
from headway.controllers.policy import ORDERS, RATE_TPS, TRIAGES, Policy, pack_policy, pack_targets
from headway.controllers.queue import join, leave
from headway.controllers.renewal import RENEW, RENEW_AGING, RENEW_STEPS, renew, renewal_due
from headway.controllers.simulator import fresh_state
from headway.engines import runtime_prompts
from headway.engines.export import gains_json
from headway.engines.runtime import Runtime
from headway.models.goodput import EXPIRED, REJECTED
from headway.models.settlement import count_step
from headway.models.signals import Limits
from headway.models.state import State
from headway.models.workload import Workload
from tests.guarded_loops import PLANTS, TARGETS
from tests.guarded_loops import record as guarded

LIMITS = Limits(kv_tokens=200_000, max_seqs=64)
LAW, PLANT = PILaw(slope_s_per_token=2e-5), PLANTS["regimes"]
CERTIFICATE = {"verdict": "certified", "reason": ""}


def shipped(policy: Policy, limits: Limits = LIMITS) -> Runtime:
    """A runtime made from the gains file that would be written, read back."""
    return Runtime(json.loads(json.dumps(gains_json(guarded(LAW, PLANT, policy, limits=limits), CERTIFICATE))))


def idle(packed: np.ndarray, limits: Limits, rows: list[tuple] = [(0.0, 1, 0)]) -> State:  # noqa: B006  # never changed
    arrival, prompt, class_id = (np.array(column) for column in zip(*(row[:3] for row in rows), strict=True))
    s = fresh_state(Workload(arrival, prompt, np.full(len(rows), 9), class_id), 2, limits, packed[RATE_TPS])
    s.books["used_tps"] = packed[RATE_TPS]
    s.books["carried"] = carried_tokens(s.books[0], packed)
    return s


def renew_as_planned(s: State, packed: np.ndarray) -> None:
    """What the scheduler does with the rate before it composes a step."""
    e = s.books[0]
    if renewal_due(e, packed):
        renew(s.req, e, s.ids, s.keys, packed, pack_targets(TARGETS), s.units, s.unit_ids)


STEPS = st.lists(st.tuples(st.floats(0.001, 0.2), st.integers(0, 8192)), max_size=60)


@st.composite
def queues(draw):
    order = draw(st.sampled_from(ORDERS))
    keyed = order != "fcfs"
    policy = Policy(
        order=order,
        triage=draw(st.sampled_from(TRIAGES if keyed else ("none", "reject", "timeout"))),
        tolerance=draw(st.floats(-1, 2) | st.tuples(st.floats(-1, 2), st.floats(-1, 2))),
        estimate=draw(st.floats(0, 5) | st.tuples(st.floats(0, 5), st.floats(0, 5))),
        timeout=draw(st.floats(0, 2)),
        aging_rate=draw(st.floats(0, 3)),
        chunk_tokens=draw(st.sampled_from((0.0, 100.5, 512.0, 8192.0))),
        degrade=draw(st.floats(1, 5)),
        priority_s=draw(st.sampled_from(((), (2.5, 0.0), (0.0, 7.0)))) if keyed else (),
        memory_price_s=draw(st.sampled_from((0.0, 0.001, 0.02))) if keyed else 0.0,
        shed_cap=draw(st.sampled_from((1.0, 0.0, 0.4, 0.7))) if keyed else 1.0,
    )
    first_token = draw(st.sampled_from(("last_chunk", "next_step")))
    limits = dataclasses.replace(LIMITS, first_token=first_token, block_tokens=draw(st.sampled_from((1, 16, 48))))
    row = st.tuples(
        st.floats(0, 20), st.integers(1, 30_000), st.integers(0, 1), st.sampled_from(["new", "begun", "stream"]), st.floats(0, 0.99)
    )
    rows = draw(st.lists(row, min_size=1, max_size=8))
    return policy, limits, draw(STEPS), sorted(rows), draw(st.floats(20, 40))


@settings(max_examples=300)
@given(queues())
def test_order_triage_and_rate_equal_the_schedulers(drawn) -> None:
    policy, limits, steps, rows, now_s = drawn
    run, packed, classes = shipped(policy, limits), pack_policy(policy, LAW, TARGETS, limits, PLANT), pack_targets(TARGETS)
    s = idle(packed, limits, rows)
    e = s.books[0]
    for step_s, tokens in steps:
        e["prefill"] = tokens
        count_step(e, step_s)
        renew_as_planned(s, packed)
        run.observe(step_s, tokens)
    assert (run.rate_tps, run.used_tps) == (e["rate_tps"], e["used_tps"])
    e["now_s"], e["arrived"] = now_s, len(rows)
    prompt, state, share = np.array([r[1] for r in rows]), np.array([r[3] for r in rows]), np.array([r[4] for r in rows])
    begun = state != "new"
    s.req["emitted"], s.req["admitted_s"] = state == "stream", np.where(begun, s.req["arrival_s"], np.nan)
    s.req["computed"], s.req["hit"] = np.where(begun, np.floor(share * prompt), 0), np.where(begun, 0, np.floor(share * prompt))
    for i in range(len(rows)):
        join(i, s.req, e, s.ids, s.keys, packed, classes, s.units, s.unit_ids)
    e["arrivals"][:2] = np.bincount(s.req["class_id"], minlength=2)
    for k in s.req["class_id"]:
        run.count_arrival(k)
    for r in s.req:
        late_s = run.infeasible_from_s(r["goal"] - r["computed"] - r["hit"], r["arrival_s"], int(r["class_id"]))
        assert late_s == pytest.approx(infeasible_from_s(r, e, packed, classes), abs=1e-12)
    facts = answers(run, policy, s.req, now_s)
    leave(s.req, e, s.ids, s.keys, packed, classes)
    assert [away for away, _, _ in facts] == np.isin(s.req["status"], (REJECTED, EXPIRED)).tolist()
    assert run.sheds == e["shed"][:2].tolist()
    for r, (away, spared, degrades) in zip(s.req, facts, strict=True):
        assert (degrades, spared) == (r["degraded"] > 0, r["spared"] > 0)
        if not away and policy.order != "fcfs":
            key = key_of(r, e, packed, classes) + (BEHIND_S if r["behind"] else 0.0)
            assert asked_key(run, r, now_s, limits, degraded=degrades, spared=spared) == pytest.approx(key, rel=0, abs=1e-12)


def answers(run: Runtime, policy: Policy, req: np.ndarray, now_s: float) -> list[tuple[bool, bool, bool]]:
    """Shed, spared, degraded, as the runtime sees it: asked in the order in which the waits were over, and counted."""
    found: dict[int, tuple[bool, bool, bool]] = {}

    def over_s(i: int) -> float:
        r = req[i]
        if policy.triage == "timeout":
            return r["arrival_s"] + policy.timeout * TARGETS[r["class_id"]].first_token_s
        left = r["goal"] - r["computed"] - r["hit"]
        return run.infeasible_from_s(left, r["arrival_s"], int(r["class_id"]), degraded=policy.triage == "degrade")

    for i in sorted(range(len(req)), key=lambda i: (over_s(i), i)):
        r = req[i]
        row = (r["goal"] - r["computed"] - r["hit"], r["arrival_s"], now_s, int(r["class_id"]))
        begun = bool(r["admitted_s"] >= 0)
        found[i] = run.turn_away(*row, started=begun), run.spares(*row, started=begun), run.degrades(*row, started=begun)
        if found[i][0]:
            run.count_shed(row[3])
    return [found[i] for i in range(len(req))]


def asked_key(run: Runtime, r: Any, now_s: float, limits: Limits, *, degraded: bool, spared: bool) -> float:
    left, k = r["goal"] - r["computed"] - r["hit"], int(r["class_id"])
    blocks = math.ceil(r["goal"] / limits.block_tokens)
    given = {"degraded": degraded, "spared": spared, "blocks": blocks, "hit_tokens": r["hit"]}
    return run.key(left, r["arrival_s"], now_s, k, started=bool(r["emitted"] > 0), **given)


def test_what_the_engine_and_its_runtime_both_know_is_the_same() -> None:
    assert (runtime_prompts.ORDERS, runtime_prompts.TRIAGES) == (ORDERS, TRIAGES)
    assert (runtime_prompts.BEHIND_S, runtime_prompts.STREAM_S) == (BEHIND_S, STREAM_S)
    assert (runtime_prompts.RENEW, runtime_prompts.RENEW_STEPS, runtime_prompts.RENEW_AGING) == (RENEW, RENEW_STEPS, RENEW_AGING)
    plain = Policy()
    for name, off in runtime_prompts.ENGINES_OWN.items():
        assert getattr(plain, name) == (() if name == "class_shares" else off)


def test_one_that_runs_pays_no_price_of_memory() -> None:
    run = shipped(Policy(memory_price_s=0.02))
    assert run.key(900, 3.0, 9.0, blocks=57) == pytest.approx(run.key(900, 3.0, 9.0) + 57 * 0.02, abs=1e-12)
    assert run.key(900, 3.0, 9.0, blocks=57, hit_tokens=32) == pytest.approx(run.key(900, 3.0, 9.0) + 55 * 0.02, abs=1e-12)


@given(st.lists(st.tuples(st.floats(0.001, 0.2), st.integers(0, 8192)), max_size=200), st.floats(0, 1e9), st.integers(0, 300))
def test_keys_stand_still_until_estimates_are_renewed(steps: list, now_s: float, waiting: int) -> None:
    run, last = shipped(Policy(triage="none", aging_rate=0.7)), 0
    run.waiting_requests = waiting
    before, used = [run.key(n, 1.0, 2.0) for n in (10, 5000)], run.used_tps
    for k, (step_s, tokens) in enumerate(steps, 1):
        run.observe(step_s, tokens)
        renewed = abs(run.rate_tps - used) > 0.05 * used and k - last >= max(32, waiting)
        assert run.used_tps == (run.rate_tps if renewed else used)
        keys = [run.key(n, 1.0, now_s) for n in (10, 5000)]
        assert keys == before or renewed
        before, used, last = keys, run.used_tps, k if renewed else last


@pytest.mark.parametrize("waiting", [0, 50])
def test_a_rate_that_creeps_is_renewed_as_the_scheduler_renews_it_and_a_reset_forgets_it(waiting: int) -> None:
    policy = Policy()
    run, packed = shipped(policy), pack_policy(policy, LAW, TARGETS, LIMITS, PLANT)
    s = idle(packed, LIMITS)
    e = s.books[0]
    run.waiting_requests, first, seen = waiting, run.rate_tps, []
    for k in range(600):
        tokens = 1000 if k % 3 else 10  # the last is too little to say anything of the rate, and a step all the same
        e["prefill"] = tokens
        count_step(e, 4 * 1000 / first)
        due = renewal_due_with(e, packed, waiting)
        if due:
            e["used_tps"], e["renewed"] = e["rate_tps"], e["step"]
        run.observe(4 * 1000 / first, tokens)
        assert (run.rate_tps, run.used_tps) == (e["rate_tps"], e["used_tps"])
        seen.append(run.used_tps)
    assert run.rate_tps < 0.3 * first
    assert 5 < len(set(seen)) <= 1 + 600 // max(32, waiting)
    run.reset()
    assert run.used_tps == run.rate_tps == first


def renewal_due_with(e: Any, packed: np.ndarray, waiting: int) -> bool:
    """The scheduler's own answer, were so many in its queue."""
    kept, e["n_waiting"] = e["n_waiting"], waiting
    due = bool(renewal_due(e, packed))
    e["n_waiting"] = kept
    return due


@pytest.mark.parametrize("now_s", [10.0, 1.8e9], ids=["since boot", "wall clock"])
@pytest.mark.parametrize("order", ORDERS)
def test_a_stream_goes_first_and_the_degraded_last_on_any_clock(order: str, now_s: float) -> None:
    run = shipped(Policy(order=order, triage="none" if order == "fcfs" else "degrade", aging_rate=2.0))
    stream = run.key(9000, now_s, now_s, 1, started=True)
    waiting = [run.key(n, now_s - wait_s, now_s, k) for n in (1, 9000) for wait_s in (0.0, 8.0) for k in (0, 1)]
    assert stream < min(waiting)
    if order != "fcfs":
        assert run.key(1, now_s - 8.0, now_s, 0, degraded=True) > max(waiting)


def test_a_degraded_request_is_shed_for_its_own_target_only() -> None:
    run = shipped(Policy(triage="degrade", degrade=3.0))
    late_s, own_s = (run.infeasible_from_s(500, 2.0, 0, degraded=d) for d in (False, True))
    assert own_s - late_s == pytest.approx(2.0 * TARGETS[0].first_token_s)
    for now_s, degrades, away in ((late_s, False, False), (late_s + 1e-6, True, False), (own_s, True, False), (own_s + 1e-6, True, True)):
        assert run.degrades(500, 2.0, now_s) == degrades
        assert run.turn_away(500, 2.0, now_s) == away
        assert not run.degrades(500, 2.0, now_s, started=True)
        assert not run.turn_away(500, 2.0, now_s, started=True)
    assert run.slack_s(500, 2.0, 2.5, degraded=True) - run.slack_s(500, 2.0, 2.5) == pytest.approx(own_s - late_s)


OWN = (
    ({"phases": "prefill_first"}, "phases (prefill_first)", "tune with --policy phases=mixed"),
    ({"preemption": "swap"}, "preemption (swap)", "tune with --policy preemption=recompute"),
    ({"prefill_every": 4.0}, "prefill_every (4.0)", "tune with --policy prefill_every=0"),
    ({"decode_every": 3.0}, "decode_every (3.0)", "tune with --policy decode_every=0"),
    ({"stride": 0.5}, "stride (0.5)", "tune with --policy stride=0"),
    ({"class_shares": (2.0, 1.0)}, "class_shares ([2.0, 1.0])", "tune without class_shares"),
)


@pytest.mark.parametrize(("fields", "part", "way_out"), OWN, ids=lambda x: "".join(x) if isinstance(x, dict) else "")
def test_a_part_that_only_the_engine_can_carry_out_is_refused_by_name(fields: dict, part: str, way_out: str) -> None:
    held = guarded(LAW, PLANT, Policy(**fields))
    with pytest.raises(ValueError, match=re.escape(f"policy part {part} is for the engine's own scheduler")) as caught:
        gains_json(held, CERTIFICATE)
    assert str(caught.value).endswith(f"{way_out}, or export it as json")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=re.escape(part)):
        Runtime(held.to_json())


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("priority_s", [1.0], "priority_s must have one number per class, got 1 for 2 classes"),
        ("priority_s", [1.0, None], "priority_s must be a number"),
        ("tolerance", [0.1], "tolerance must have one number per class, got 1 for 2 classes"),
        ("shed_cap", 1.5, "shed_cap must be a number in [0, 1], got 1.5"),
        ("degrade", 0.5, "degrade must be a number in [1, inf], got 0.5"),
        ("memory_price_s", -1.0, "memory_price_s must be a number in [0, inf], got -1.0"),
    ],
)
def test_wrong_numbers_of_a_part_are_refused_in_one_line(name: str, value: Any, words: str) -> None:
    data = guarded(LAW, PLANT).to_json()
    data["policy"][name] = {"value": value}
    with pytest.raises(ValueError, match=re.escape(words)):
        Runtime(data)
