"""What docs/engine.md promises, held against the plain engine of these tests; the compiled one is held to that."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headway.controllers import StaticLaw
from headway.controllers.policy import PHASES, Policy
from headway.models.signals import Limits, Target
from headway.models.workload import Prefix, Workload
from tests.reference import Reference, Request, Verdict
from tests.reference_cache import Cache
from tests.reference_composition import Composition
from tests.reference_order import Order
from tests.reference_requests import requests_of
from tests.reference_schedule import Gains
from tests.small_problems import Problem, problem, problems
from tests.test_simulator import LONG_S, assert_same_requests, assert_same_steps, plain, run


class Step(NamedTuple):
    """One step as it was composed: what each request was given, and who was there when it was."""

    takes: dict[Request, tuple[str, int]]
    decoding: list[Request]
    prompts: list[Request]
    ghosts: int
    ages: dict[Request, int]
    strides: bool


class Watched(Reference):
    """The plain engine, with its steps written down as they were composed."""

    def __init__(self, of: Problem) -> None:
        super().__init__(of.identified, of.candidate, of.drawn.workload, of.targets, of.limits)
        self.seen: list[Step] = []

    def compose(self) -> Composition:
        self.cache.check()
        k, running, waiting = len(self.steps), list(self.running), list(self.waiting)
        decoding, prompts = [r for r in running if r.decodes], [r for r in running if not r.decodes] + waiting
        ages = {r: k - r.stepped for r in decoding}
        step = super().compose()
        self.seen.append(Step(dict(step.takes), decoding, prompts, len(self.ghosts), ages, step.strides))
        return step


def watched(of: Problem, cut_s: float = LONG_S) -> tuple[Watched, Verdict]:
    engine = Watched(of)
    return engine, engine.run(of.drawn.decode, of.drawn.mixed, cut_s)


def with_policy(of: Problem, **fields) -> Problem:
    policy = dataclasses.replace(of.candidate.policy, **fields)
    policy.check()
    return of._replace(candidate=of.candidate._replace(policy=policy))


def roomy(of: Problem) -> Problem:
    """The same problem on an engine that has room for everybody, under a law that gives the same tokens in every step."""
    limits = dataclasses.replace(of.limits, kv_tokens=10**6, max_seqs=64, max_tokens=64, max_len=10**6)
    of = of._replace(candidate=of.candidate._replace(law=StaticLaw(64.0)), limits=limits)
    return with_policy(of, running_limit=64.0)


# what holds of every run


@settings(max_examples=150)
@given(problems())
def test_goodput_never_exceeds_throughput_and_who_is_lost_owes_all(of: Problem) -> None:
    verdict = of.reference(LONG_S)
    for r, on_time, owed in zip(verdict.requests, verdict.on_time, verdict.owed, strict=True):
        assert r.ended
        assert on_time <= min(r.emitted, owed)
        if r.status == "cancelled":
            assert owed == on_time == r.emitted
        if r.status in ("rejected", "expired", "failed", "abandoned"):
            assert owed >= r.output
        if r.status in ("rejected", "expired", "failed"):
            assert (r.emitted, r.computed) == (0, 0), "a token was spent on one that was shed"
        assert (r.status == "finished") == (r.emitted == r.output)


@settings(max_examples=150)
@given(problems())
def test_neither_budget_nor_cache_is_exceeded_and_the_cache_keeps_its_books(of: Problem) -> None:
    engine, verdict = watched(of)  # held + idle + empty = pool, and more, is asserted before every step
    for step, log in zip(engine.seen, verdict.steps, strict=True):
        given_tokens = sum(tokens for _, tokens in step.takes.values())
        assert given_tokens <= max(log["token_budget"] - step.ghosts, 1)
        assert log["token_budget"] <= of.limits.max_tokens
        assert 0 <= log["free_blocks"] <= of.limits.blocks
        assert log["running"] <= min(of.candidate.policy.running_limit, of.limits.max_seqs)
        alone = of.candidate.policy.order == "fcfs" and len(step.decoding) + len(step.prompts) == 1  # stock order lifts the cap then
        if of.candidate.policy.chunk_tokens and not alone:
            assert all(tokens <= of.candidate.policy.chunk_tokens for _, tokens in step.takes.values())
    engine.bury()
    assert engine.cache.free_blocks() == of.limits.blocks, "somebody took blocks along"


@settings(max_examples=150)
@given(problems())
def test_work_is_conserved(of: Problem) -> None:
    engine, verdict = watched(of)
    for step in engine.seen:
        assert step.takes or step.ghosts, "an empty step"
        assert step.takes or len(engine.requests) >= 1
    starts = [s["end_s"] - s["step_time_s"] for s in verdict.steps]
    for (before, now), start_s in zip(itertools.pairwise(verdict.steps), starts[1:], strict=True):
        if start_s > before["end_s"] * (1 + 1e-9):
            assert before["running"] == 0, "the engine stood still while somebody ran"
            assert now["decode_requests"] + now["prefill_tokens"] > 0


@settings(max_examples=100)
@given(problems())
def test_without_preemption_each_prompt_token_is_computed_once_or_found(of: Problem) -> None:
    engine, verdict = watched(of)
    assume(verdict.preempted == 0)
    done = [r for r in verdict.requests if r.status == "finished"]
    computed = dict.fromkeys(verdict.requests, 0)
    for step in engine.seen:
        for r, (kind, tokens) in step.takes.items():
            computed[r] += tokens if kind == "chunk" else 0
    assert all(1 <= computed[r] <= r.prompt for r in done)
    if not engine.cache.on:
        assert all(computed[r] == r.prompt for r in done)


def test_equal_prompts_are_computed_once_and_found_after() -> None:
    """Three prompts of 64 tokens alike: the second finds three of its four units, the third comes while the units are held."""
    prefix = Prefix(16, np.array([0, 4, 8, 12]), np.array([0, 1, 2, 3] * 3))
    workload = Workload(np.array([0.0, 1.0, 1.005]), np.full(3, 64), np.full(3, 5), np.zeros(3, int), prefix=prefix)
    of = plain([0.0] * 3, [64] * 3, [5] * 3, Limits(1024, 16), Policy(triage="none"), 512.0)
    of = of._replace(drawn=of.drawn._replace(workload=workload))
    wanted, found = of.reference(), run(of)
    assert [s["prefill_tokens"] for s in wanted.steps if s["prefill_tokens"]] == [64, 16, 16]
    assert_same_requests(found, wanted)
    assert_same_steps(found, wanted)
    off = of._replace(limits=dataclasses.replace(of.limits, prefix_cache="off"))
    assert [s["prefill_tokens"] for s in off.reference().steps if s["prefill_tokens"]] == [64, 64, 64]


def preempted_and_back(limits: Limits) -> Problem:
    """Two streams of which one must give way: the cache holds both prompts and hardly more."""
    return plain([0.0, 0.0], [40, 40], [30, 30], limits, Policy(order="fcfs", triage="none"), 64.0)


def test_who_was_preempted_finds_its_own_blocks_again_outputs_included() -> None:
    on = preempted_and_back(Limits(28 * 4, 4))
    off = on._replace(limits=dataclasses.replace(on.limits, prefix_cache="off"))
    wanted, without = on.reference(), off.reference()
    assert wanted.preempted == without.preempted == 1
    again, whole = (sum(s["prefill_tokens"] for s in v.steps) - 80 for v in (wanted, without))
    assert 0 < again < whole, "some of its blocks were evicted meanwhile, not all"
    for of, verdict in ((on, wanted), (off, without)):
        assert_same_requests(run(of), verdict)
        assert_same_steps(run(of), verdict)


def test_a_unit_is_found_in_the_step_that_computes_it() -> None:
    """Two prompts alike come at once: the second is admitted beside the first and finds all units but the one with its last token."""
    prefix = Prefix(16, np.array([0, 4, 8]), np.array([0, 1, 2, 3] * 2))
    workload = Workload(np.zeros(2), np.full(2, 64), np.full(2, 5), np.zeros(2, int), prefix=prefix)
    of = plain([0.0] * 2, [64] * 2, [5] * 2, Limits(1024, 16), Policy(order="fcfs", triage="none"), 512.0)
    of = of._replace(drawn=of.drawn._replace(workload=workload))
    wanted, found = of.reference(), run(of)
    assert wanted.steps[0]["prefill_tokens"] == 64 + 16
    assert_same_requests(found, wanted)
    assert_same_steps(found, wanted)


# what single parts promise


@settings(max_examples=150)
@given(problems(orders=("edf", "slack"), triages=("reject", "timeout", "degrade")), st.sampled_from([0.0, 0.1, 0.34, 0.5, 0.9]))
def test_triage_sheds_no_more_of_a_class_than_its_cap_and_whom_it_spares_for_good(of: Problem, cap: float) -> None:
    verdict = with_policy(of, shed_cap=cap).reference(LONG_S)
    for c in range(len(of.targets)):
        mine = [r for r in verdict.requests if r.kind == c]
        assert sum(r.status in ("rejected", "expired") for r in mine) <= cap * len(mine)
    assert all(r.status not in ("rejected", "expired") for r in verdict.requests if r.spared)
    free = with_policy(of, shed_cap=1.0).reference(LONG_S)
    assert not any(r.spared for r in free.requests)


def test_who_would_exceed_the_cap_is_served_behind_all_feasible_ones() -> None:
    """Five are hopeless from the start; of five that have come a cap of .4 lets triage shed the two that were hopeless first."""
    arrival_s, prompt, output = [0.0] * 6, [8, 8, 9, 8, 8, 8], [2] * 6
    policy = Policy(order="slack", triage="reject", shed_cap=0.4, estimate=40.0, running_limit=1.0)
    classes = [Target(0.5, 0.025)] * 5 + [Target(9.0, 0.025)]
    of = plain(arrival_s, prompt, output, Limits(1024, 1), policy, 64.0, *classes)
    of = of._replace(targets=(classes[0], classes[5]))
    of = of._replace(drawn=of.drawn._replace(workload=dataclasses.replace(of.drawn.workload, class_id=np.array([0] * 5 + [1]))))
    wanted, found = of.reference(), run(of)
    assert [r.status for r in wanted.requests] == ["rejected"] * 2 + ["finished"] * 4
    assert [r.spared for r in wanted.requests] == [False, False, True, True, True, False]
    first_s = [r.token_times_s[0] for r in wanted.requests[2:]]
    assert first_s[3] < min(first_s[:3]), "the feasible one first"
    assert_same_requests(found, wanted)
    assert found.spared is not None
    assert found.spared.sum() == 3


@settings(max_examples=100)
@given(problems(orders=("edf", "slack"), triages=("none",)), st.floats(0.05, 0.95))
def test_shares_bound_the_wait(of: Problem, share: float) -> None:
    """While a class has prompts pending it gets its share of the prompt tokens, less the credit of the others and one step.

    The credit of the others, from before it came, is at most two steps; what it lacks beyond puts it before them.
    """
    kinds = of.drawn.workload.class_id % 2
    of = of._replace(drawn=of.drawn._replace(workload=dataclasses.replace(of.drawn.workload, class_id=kinds)), targets=(of.targets * 2)[:2])
    of = with_policy(roomy(of), class_shares=(share, 1.0 - share), priority_s=(), chunk_tokens=0.0)
    engine, _ = watched(of)
    for c, weight in enumerate((share, 1.0 - share)):
        due = got = 0.0
        for step in engine.seen:
            if c not in {r.kind for r in step.prompts}:
                due = got = 0.0
                continue
            chunks = [(r.kind, n) for r, (kind, n) in step.takes.items() if kind == "chunk"]
            others = any(r.kind != c for r in step.prompts)
            due += sum(n for _, n in chunks) * (weight if others else 1.0)
            got += sum(n for kind, n in chunks if kind == c)
            assert got >= due - 3 * of.limits.max_tokens - 1e-6


@settings(max_examples=100)
@given(problems(orders=("edf", "slack")), st.integers(2, 6), st.integers(2, 6), st.sampled_from(PHASES))
def test_case_e21_both_starvations_are_bounded(of: Problem, k: int, k_decode: int, phases: str) -> None:
    """With room for all, a pending prompt progresses within K steps and every decode within K'."""
    of = with_policy(roomy(of), phases=phases, prefill_every=float(k), decode_every=float(k_decode), stride=0.0)
    engine, _ = watched(of)
    without = 0
    for step in engine.seen:
        progressed = any(kind == "chunk" for kind, _ in step.takes.values())
        without = 0 if progressed or not step.prompts else without + 1
        assert without < k
        if phases != "decode_first":
            assert all(age <= k_decode for r, age in step.ages.items())
            assert all(r in step.takes for r, age in step.ages.items() if age == k_decode)
        else:
            assert all(age <= 2 for age in step.ages.values()), "a prompt-only step in K at least 2 holds decodes up for one step"


@settings(max_examples=60)
@given(problems(orders=("edf", "slack")), st.sampled_from([0.4, 0.7, 1.0]))
def test_a_class_is_stepped_as_often_as_its_own_budget_asks(of: Problem, stride: float) -> None:
    of = with_policy(roomy(of), phases="mixed", stride=stride, prefill_every=0.0)
    engine, _ = watched(of)
    budget_s = [t.budget_s for t in of.targets]
    every = [max(1, math.floor(stride * b / ((1 - of.candidate.law.setpoint_margin) * min(budget_s)))) for b in budget_s]
    for step in engine.seen:
        for r, age in step.ages.items():
            assert not (step.strides and r in step.takes) or age >= every[r.kind], "stepped before it was due"
            assert age < every[r.kind] or r in step.takes, "due, and there was room"


@given(
    st.lists(st.tuples(st.floats(0, 50), st.integers(1, 5000), st.integers(0, 1)), min_size=2, max_size=20),
    st.floats(0, 3),
    st.floats(0, 100),
    st.floats(-5, 5),
)
def test_case_e17_the_order_is_that_of_a_key_without_a_clock(requests: list, aging: float, now_s: float, put_forward_s: float) -> None:
    """Slack less aging times the wait sorts as the static key does, at whatever time."""
    arrival_s, prompt, kind = (np.array(x) for x in zip(*sorted(requests), strict=True))
    policy = Policy(order="slack", triage="none", aging_rate=aging, estimate=0.7, priority_s=(put_forward_s, 0.0))
    limits = Limits(10**6, 1, max_tokens=512)
    rows = requests_of(Workload(arrival_s, prompt, np.ones(len(prompt), int), kind), (Target(1.0, 0.025), Target(9.0, 0.025)))
    order = Order(policy, limits, Cache(rows, limits, None), Gains(0.0, 0.025, aging, 10**9, ()), 8000.0)
    aged = [r.arrival_s + r.target.ttft_s - now_s - order.estimate_s(r) - aging * (now_s - r.arrival_s) - order.priority_s(r) for r in rows]
    np.testing.assert_allclose([order.key_s(r) - (1 + aging) * now_s for r in rows], aged, atol=1e-9)


def test_followers_arrive_after_their_predecessor_and_think_time_counts() -> None:
    workload = Workload(
        np.zeros(3), np.full(3, 4), np.full(3, 10), np.zeros(3, int), after=np.array([-1, 0, 1]), think_s=np.array([0.0, 0.5, 0.25])
    )
    of = plain([0.0] * 3, [4] * 3, [10] * 3, Limits(1024, 1), Policy(triage="none"), 64.0)
    of = of._replace(drawn=of.drawn._replace(workload=workload))
    wanted, found = of.reference(), run(of)
    first_s = [r.token_times_s[0] for r in wanted.requests]
    assert first_s == pytest.approx([0.01, 0.1 + 0.5 + 0.01, 0.7 + 0.25 + 0.01])
    assert_same_requests(found, wanted)


@pytest.mark.parametrize(("leaves_after_s", "status"), [(0.055, "cancelled"), (0.155, "abandoned")])
def test_who_left_unserved_is_abandoned_once_the_first_token_was_overdue(leaves_after_s: float, status: str) -> None:
    # one runs at a time, for a second; the first token is due after 100 ms
    patience_s = np.array([np.inf, leaves_after_s])
    workload = Workload(np.array([0.0, 0.1]), np.full(2, 4), np.full(2, 100), np.zeros(2, int), patience_s=patience_s)
    of = plain([0.0] * 2, [4] * 2, [100] * 2, Limits(1024, 1), Policy(triage="none", running_limit=1.0), 64.0, Target(0.1, 0.025))
    of = of._replace(drawn=of.drawn._replace(workload=workload))
    wanted, found = of.reference(), run(of)
    assert wanted.requests[1].status == status
    assert wanted.owed[1] == (0 if status == "cancelled" else 100)
    assert_same_requests(found, wanted)
    assert_same_steps(found, wanted)


def test_the_problem_of_a_seed_is_always_the_same_and_each_part_is_on_often_enough() -> None:
    drawn = [problem(seed) for seed in range(200)]
    assert all(np.array_equal(problem(s).drawn.workload.arrival_s, drawn[s].drawn.workload.arrival_s) for s in range(3))
    policies, workloads = [p.candidate.policy for p in drawn], [p.drawn.workload for p in drawn]
    counts = {
        "prefix": sum(w.prefix is not None and p.limits.prefix_cache == "on" for w, p in zip(workloads, drawn, strict=True)),
        "async": sum(p.limits.scheduling == "async" for p in drawn),
        "swap": sum(p.preemption == "swap" for p in policies),
        "phases": sum(p.phases != "mixed" for p in policies),
        "admission": sum(p.admission != "none" for p in policies),
        "triage": sum(p.triage != "none" for p in policies),
        "degrade": sum(p.triage == "degrade" for p in policies),
        "shares": sum(len(p.class_shares) > 0 for p in policies),
        "priority": sum(len(p.priority_s) > 0 for p in policies),
        "shed_cap": sum(p.shed_cap < 1 and p.triage in ("reject", "timeout", "degrade") for p in policies),
        "tolerance of a class": sum(np.ndim(p.tolerance) > 0 for p in policies),
        "estimate of a class": sum(np.ndim(p.estimate) > 0 for p in policies),
    }
    for name in ("patience_s", "cancel_s", "after"):
        counts[name] = sum(getattr(w, name) is not None for w in workloads)
    for name in ("prefill_every", "decode_every", "stride", "memory_price_s", "aging_rate", "chunk_tokens"):
        counts[name] = sum(getattr(p, name) > 0 for p in policies)
    assert min(counts.values()) >= 50, counts
