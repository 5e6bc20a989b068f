"""Pools: closed forms, what must hold of every topology, and every replica against the tests' own engine."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headway.controllers import StaticLaw
from headway.controllers.dispatch import send_caches, send_prompts
from headway.controllers.policy import Policy
from headway.controllers.pools import Pools, simulate_pools
from headway.controllers.simulator import Candidate, Draw, simulate
from headway.experiments.topologies import compare_topologies
from headway.experiments.tune import Effort, Problem
from headway.models.goodput import ABANDONED, FAILED, FINISHED, FUTURE, GAP_BINS, Outcome, gap_bin
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Replay, Workload
from tests.reference import STATUS, Reference
from tests.reference_pools import Side
from tests.reference_requests import Request
from tests.small_problems import Problem as Small
from tests.small_problems import known, problems

EVEN = RegimePlant((0.01, 0.0, 0.0, 0.0, 0.0, 0.0), (0.02, 0.0, 0.0, 0.0, 0.0, 0.0))
"""A step takes 10 ms, one with prompt tokens 20 ms."""

WIDE = Limits(100_000, 1, max_tokens=1000)


def asked(arrival_s, prompt, output, **clients) -> Workload:
    return Workload(np.asarray(arrival_s, float), np.asarray(prompt), np.asarray(output), np.zeros(len(prompt), np.int64), **clients)


def run(w: Workload, pools: Pools, *, budget: float = 10.0, limits: Limits = WIDE, **decode) -> Outcome:
    drawn, candidate = Draw(w, np.ones(8), np.ones(8)), Candidate(StaticLaw(budget), Policy(triage="none"))
    return simulate_pools(known(EVEN, limits), candidate, drawn, (Target(1.0, 0.025),), limits, pools, **decode)


def test_one_request_in_closed_form() -> None:
    # 30 tokens in chunks of 10: three steps; then 30 ms on the link, 5 ms of latency, and three steps of decoding
    found = run(asked([0.0], [30], [4]), Pools(1, 1, 0.001, 0.005))
    assert found.ttft_s.tolist() == pytest.approx([0.06])
    assert found.max_gap_s.tolist() == pytest.approx([0.03 + 0.005 + 0.01])
    assert found.last_s.tolist() == pytest.approx([0.06 + 0.035 + 3 * 0.01])
    assert (found.steps, found.emitted.tolist(), found.status.tolist()) == (6, [4.0], [FINISHED])
    assert (found.on_time.tolist(), found.owed.tolist()) == ([3.0], [4.0])
    gaps = found.gaps.sum(axis=0)
    assert (gaps[gap_bin(0.045)], gaps[gap_bin(0.01)], gaps.sum()) == (1, 2, 3)


def test_caches_leave_one_after_the_other() -> None:
    # both prompts fit one step; the second cache waits for the first on their link
    found = run(asked([0.0, 0.0], [10, 10], [2, 2]), Pools(1, 2, 0.01), budget=20.0)
    assert found.ttft_s.tolist() == pytest.approx([0.02, 0.02])
    assert found.last_s.tolist() == pytest.approx([0.02 + 0.1 + 0.01, 0.02 + 0.2 + 0.01])
    apart = run(asked([0.0, 0.0], [10, 10], [2, 2]), Pools(2, 2, 0.01), budget=20.0)
    assert apart.last_s.tolist() == pytest.approx([0.13, 0.13])


def test_one_token_is_never_moved() -> None:
    found = run(asked([0.0, 0.0], [10, 10], [1, 1]), Pools(1, 1, 100.0))
    assert found.end_s == pytest.approx(0.04)
    assert found.gaps.sum() == 0
    assert found.status.tolist() == [FINISHED] * 2


def test_decodes_of_a_pool_never_wait_for_prompts() -> None:
    rng = np.random.default_rng(4)
    w = asked(np.cumsum(rng.exponential(0.02, 80)), rng.integers(1, 100, 80), rng.integers(2, 40, 80))
    apart, mixed = run(w, Pools(1, 1), budget=100.0), run(w, Pools(1), budget=100.0)
    # a cache that comes during a step waits for its end: only the first gap can be longer than a step of decodes
    gaps = apart.gaps.sum(axis=0)
    assert gaps[gap_bin(0.01)] >= w.output_tokens.sum() - 2 * len(w)
    assert np.flatnonzero(gaps).max() <= gap_bin(0.02)
    assert mixed.gaps.sum(axis=0)[gap_bin(0.01)] < 0.7 * gaps[gap_bin(0.01)]


def test_a_preempted_stream_is_recomputed_where_it_decodes() -> None:
    # 12 + 12 tokens fill the 26 blocks of the decode pool after one token each: the second gives way and is computed again
    small = dataclasses.replace(WIDE, kv_tokens=26, prefix_cache="off")
    found = run(asked([0.0, 0.0], [12, 12], [6, 6]), Pools(1, 1), budget=100.0, limits=small)
    assert found.status.tolist() == [FINISHED] * 2
    assert found.emitted.tolist() == [6, 6]
    assert found.preempted == 1
    assert found.recomputed == 12  # its prompt; the token that had come is computed along with it
    assert found.largest[2] == 24
    alone = run(asked([0.0, 0.0], [12, 12], [6, 6]), Pools(1, 1), budget=100.0, decode_limits=dataclasses.replace(small, kv_tokens=40))
    assert (alone.preempted, alone.recomputed) == (0, 0)
    # with a cache it finds its 13 computed blocks again, but for the four that the first has taken since
    cached = run(asked([0.0, 0.0], [12, 12], [6, 6]), Pools(1, 1), budget=100.0, limits=dataclasses.replace(small, prefix_cache="on"))
    assert (cached.preempted, cached.recomputed) == (1, 12 - 9)
    # its prompt and two tokens again, in one step of 20 ms, when the first has ended
    first, second = found.last_s
    assert second == pytest.approx(first + 0.02 + 3 * 0.01)


def test_who_never_fits_fails_at_the_door_and_owes_everything() -> None:
    short = dataclasses.replace(WIDE, kv_tokens=20)
    found = run(asked([0.0, 0.0, 0.0], [12, 12, 19], [6, 60, 1]), Pools(1, 1), limits=WIDE, decode_limits=short)
    assert found.status.tolist() == [FINISHED, FAILED, FINISHED]
    assert (found.emitted.tolist(), found.owed.tolist()[1]) == ([6, 0, 1], 60)


def test_a_client_that_left_during_the_transfer_gets_no_more() -> None:
    found = run(asked([0.0, 0.0], [10, 10], [5, 5], cancel_s=np.array([0.1, np.inf])), Pools(2, 2, 0.1))
    assert found.status.tolist() == [ABANDONED, FINISHED]
    assert found.emitted.tolist() == [1, 5]
    assert found.owed[0] == 5


def test_one_mixed_replica_is_the_engine_itself() -> None:
    rng = np.random.default_rng(0)
    w = asked(np.cumsum(rng.exponential(0.02, 60)), rng.integers(1, 90, 60), rng.integers(1, 30, 60))
    drawn = Draw(w, rng.uniform(0.9, 1.1, 64), rng.uniform(0.9, 1.1, 64))
    at = (known(EVEN, WIDE), Candidate(StaticLaw(50.0), Policy(triage="reject")), drawn, (Target(0.3, 0.025),), WIDE)
    one, pooled = simulate(*at), simulate_pools(*at, Pools(1))
    for name in Outcome._fields:
        np.testing.assert_array_equal(getattr(pooled, name), getattr(one, name), err_msg=name)


def test_a_second_plant_and_policy_for_the_decode_pool() -> None:
    slow = known(RegimePlant((0.03, 0.0, 0.0, 0.0, 0.0, 0.0), (0.05, 0.0, 0.0, 0.0, 0.0, 0.0)), WIDE)
    one = Candidate(StaticLaw(10.0), Policy(triage="none", running_limit=1.0))
    found = run(asked([0.0, 0.0], [5, 5], [3, 3]), Pools(1, 1), decode_identified=slow, decode_candidate=one)
    assert found.last_s.tolist() == pytest.approx([0.02 + 0.06, 0.02 + 0.12])


# every replica against the second engine of the tests


class Handed(Reference):
    """The tests' engine with requests whose prompt was computed elsewhere: they come with their cache, one token out."""

    comes_s: dict[int, float]

    def take_over(self, first: list[Request], comes_s: list[float]) -> None:
        self.clients_s = {r.number: r.arrival_s for r in self.requests}
        for r, before, at in zip(self.requests, first, comes_s, strict=True):
            r.computed, r.begun, r.degraded = r.prompt, True, before.degraded
            r.token_times_s, r.arrival_s = list(before.token_times_s), at

    def arrive(self, seen_s: float) -> None:
        super().arrive(seen_s)
        for r in self.requests:
            if r.status != "future":
                r.arrival_s = self.clients_s[r.number]


def part_of(w: Workload, rows: list[int], output: np.ndarray) -> Workload:
    clients = {name: of[rows] for name in ("patience_s", "cancel_s") if (of := getattr(w, name)) is not None}
    return Workload(w.arrival_s[rows], w.prompt_tokens[rows], output[rows], w.class_id[rows], **clients)


def two_engines(problem: Small, s_per_token: float, latency_s: float) -> tuple[list[Request], Reference, Reference | None]:
    """One prefill and one decode replica as docs/engine.md, section 6 has them, each the tests' own engine. Noise is all ones."""
    identified, candidate, drawn, targets, limits = problem
    w, ones = drawn.workload, np.ones(1)
    prefill = Reference(identified, candidate, part_of(w, list(range(len(w))), np.ones(len(w), int)), targets, limits)
    for r, output in zip(prefill.requests, w.output_tokens, strict=True):
        length = r.prompt + int(output)
        if length > limits.max_len or (output > 1 and prefill.cache.blocks_for(length) > limits.blocks):
            r.output = 10**9
    prefill.run(ones, ones)
    go_on = [r for r in prefill.requests if r.status == "finished" and w.output_tokens[r.number] > 1]
    if not go_on:
        return prefill.requests, prefill, None
    free_s, comes_s = 0.0, {}
    for r in sorted(go_on, key=lambda r: (r.token_times_s[0], r.number)):
        free_s = max(free_s, r.token_times_s[0]) + r.prompt * s_per_token
        comes_s[r.number] = free_s + latency_s
    rows = [r.number for r in go_on]
    mixed = Candidate(candidate.law, dataclasses.replace(candidate.policy, phases="mixed"))
    decode = Handed(identified, mixed, dataclasses.replace(part_of(w, rows, w.output_tokens), patience_s=None), targets, limits)
    decode.take_over(go_on, [comes_s[n] for n in rows])
    decode.run(ones, ones)
    ended = list(prefill.requests)
    for n, r in zip(rows, decode.requests, strict=True):
        ended[n] = r
    return ended, prefill, decode


@settings(max_examples=150)
@given(problems())
def test_two_pools_equal_two_plain_engines(problem: Small) -> None:
    w = dataclasses.replace(problem.drawn.workload, after=None, think_s=None, prefix=None)
    problem = problem._replace(drawn=Draw(w, np.ones(4), np.ones(4)))
    found = simulate_pools(*problem, Pools(1, 1, 3.1e-4, 0.0021))
    wanted, prefill, decode = two_engines(problem, 3.1e-4, 0.0021)
    assert [STATUS[s] for s in found.status] == [r.status for r in wanted]
    assert found.emitted.tolist() == [r.emitted for r in wanted]
    ttft_s = [r.token_times_s[0] - r.arrival_s if r.emitted else math.nan for r in wanted]
    np.testing.assert_allclose(found.ttft_s, ttft_s, rtol=1e-9, atol=1e-12)
    longest_s = [max((b - a for a, b in pairwise(r.token_times_s)), default=0.0) for r in wanted]
    np.testing.assert_allclose(found.max_gap_s, longest_s, rtol=1e-9, atol=1e-12)
    for r, output in zip(wanted, w.output_tokens, strict=True):
        r.output = int(output)
    judged = [r.verdict(math.inf) for r in wanted]
    assert found.on_time.tolist() == [on for on, _ in judged]
    assert found.owed.tolist() == [owed for _, owed in judged]
    engines = [e for e in (prefill, decode) if e is not None]
    assert found.steps == sum(len(e.steps) for e in engines)
    assert found.preempted == sum(e.preempted for e in engines)


@settings(max_examples=60)
@given(problems())
def test_every_request_is_served_once_and_the_same_seed_gives_the_same_run(problem: Small) -> None:
    identified, candidate, drawn, targets, limits = problem
    w = dataclasses.replace(drawn.workload, after=None, think_s=None)
    at = (identified, candidate, drawn._replace(workload=w), targets, limits)
    for dispatch in ("round_robin", "least_loaded"):
        for pools in (Pools(3, 0, dispatch=dispatch), Pools(1, 2, 1e-4, 1e-3, dispatch), Pools(2, 1, 0.0, 0.0, dispatch)):
            found, again = simulate_pools(*at, pools), simulate_pools(*at, pools)
            for name in Outcome._fields:
                np.testing.assert_array_equal(getattr(found, name), getattr(again, name), err_msg=name)
            done = found.status == FINISHED
            assert (found.status >= FINISHED).all()
            assert found.emitted[done].tolist() == w.output_tokens[done].tolist()
            assert (found.emitted <= w.output_tokens).all()
            assert found.gaps.sum() == np.maximum(found.emitted - 1, 0).sum()
            assert (found.on_time <= np.minimum(found.emitted, found.owed)).all()
            assert (found.owed[found.status > FINISHED + 1] >= w.output_tokens[found.status > FINISHED + 1]).all()
            assert found.gaps.shape == (len(targets), GAP_BINS)


@settings(max_examples=40)
@given(problems())
def test_a_slower_link_delays_and_never_touches_first_tokens(problem: Small) -> None:
    w = dataclasses.replace(problem.drawn.workload, after=None, think_s=None)
    problem = problem._replace(drawn=problem.drawn._replace(workload=w))
    fast, slow = (simulate_pools(*problem, Pools(1, 1, each, 0.0)) for each in (0.0, 0.01))
    np.testing.assert_array_equal(fast.ttft_s, slow.ttft_s)
    many = (fast.emitted > 1) & (slow.emitted > 1)
    assume(many.any())
    assert (slow.max_gap_s[many] >= 0.01 * w.prompt_tokens[many]).all()


# sessions, and runs of fixed length: all replicas side by side in time


def assert_side_by_side(problem: Small, pools: Pools, cut_s: float = 0.0) -> Outcome:
    found, fleet = simulate_pools(*problem, pools, cut_s=cut_s), Side(problem, pools)
    wanted = fleet.run(cut_s or math.inf)
    requests = [r for r, _ in wanted]
    assert [STATUS[s] for s in found.status] == [r.status for r in requests]
    assert found.emitted.tolist() == [r.emitted for r in requests]
    come = [r.status != "future" for r in requests]
    np.testing.assert_allclose(found.arrival_s[come], [r.arrival_s for r in requests if r.status != "future"], rtol=1e-9, atol=1e-12)
    ttft_s = [r.token_times_s[0] - r.arrival_s if r.emitted else math.nan for r in requests]
    np.testing.assert_allclose(found.ttft_s, ttft_s, rtol=1e-9, atol=1e-12)
    longest_s = [max((b - a for a, b in pairwise(r.token_times_s)), default=0.0) for r in requests]
    np.testing.assert_allclose(found.max_gap_s, longest_s, rtol=1e-9, atol=1e-12)
    judged = [r.verdict(engine.now_s) for r, engine in wanted]
    assert found.on_time.tolist() == [on for on, _ in judged]
    assert found.owed.tolist() == [owed for _, owed in judged]
    engines = [*fleet.prefill, *fleet.decode]
    assert found.steps == sum(len(e.steps) for e in engines)
    assert found.preempted == sum(e.preempted for e in engines)
    return found


SHAPES = (Pools(1), Pools(2), Pools(1, 1, 3e-4, 2e-3), Pools(2, 2, 1e-3, 0.0, "least_loaded"), Pools(3, 0, dispatch="least_loaded"))


def of_sessions(problem: Small, least_s: float = 0.0) -> Small:
    """Two of three requests a turn of a conversation."""
    n = len(problem.drawn.workload)
    after = np.where(np.arange(n) % 3 > 0, np.arange(n) - 1, -1)
    think_s = np.where(np.arange(n) % 2 > 0, 0.05, least_s)
    return problem._replace(drawn=problem.drawn._replace(workload=problem.drawn.workload.with_thinking(after, think_s)))


@settings(max_examples=150)
@given(problems(), st.sampled_from(SHAPES))
def test_sessions_on_replicas_equal_plain_engines_side_by_side(problem: Small, pools: Pools) -> None:
    found = assert_side_by_side(of_sessions(problem), pools)
    assert (found.status >= FINISHED).all()


@settings(max_examples=150)
@given(problems(), st.sampled_from(SHAPES), st.floats(0.05, 0.95), st.booleans())
def test_a_cut_run_of_replicas_equals_plain_engines_that_are_cut(problem: Small, pools: Pools, part: float, sessions: bool) -> None:
    problem = of_sessions(problem) if sessions else problem
    whole = simulate_pools(*problem, pools)
    found = assert_side_by_side(problem, pools, cut_s=max(part * whole.end_s, 1e-3))
    assert (found.owed[found.status == FUTURE] == 0).all()
    assert (found.on_time <= whole.on_time.max() + found.owed).all()


@settings(max_examples=100)
@given(problems(), st.booleans(), st.floats(0.1, 1.5))
def test_one_mixed_replica_is_the_engine_itself_with_sessions_and_cut(problem: Small, sessions: bool, part: float) -> None:
    # who follows one that failed at the door at the same instant comes last here, by number there
    problem = (
        of_sessions(problem, 1e-3)
        if sessions
        else problem._replace(drawn=problem.drawn._replace(workload=dataclasses.replace(problem.drawn.workload, after=None, think_s=None)))
    )
    cut_s = part * simulate(*problem).end_s if part < 1 else 0.0
    one, pooled = simulate(*problem, cut_s=cut_s), simulate_pools(*problem, Pools(1), cut_s=cut_s)
    for name in Outcome._fields:
        np.testing.assert_array_equal(getattr(pooled, name), getattr(one, name), err_msg=name)


@settings(max_examples=100)
@given(problems(), st.sampled_from(SHAPES))
def test_replicas_side_by_side_do_what_they_do_one_after_the_other(problem: Small, pools: Pools) -> None:
    """Without sessions a cut that comes late forces the one way, none the other."""
    w = dataclasses.replace(problem.drawn.workload, after=None, think_s=None)
    problem = problem._replace(drawn=problem.drawn._replace(workload=w))
    apart, together = simulate_pools(*problem, pools), simulate_pools(*problem, pools, cut_s=1e6)
    for name in Outcome._fields:
        np.testing.assert_array_equal(getattr(together, name), getattr(apart, name), err_msg=name)


def test_a_closed_loop_keeps_its_clients_on_two_replicas_busy() -> None:
    # four clients, two replicas that serve one at a time in 30 ms each (a prompt step and one decode step)
    n = 40
    after = np.maximum(np.arange(n) - 4, -1)
    w = asked(np.zeros(n), np.full(n, 5), np.full(n, 2)).with_thinking(after, 0.0)
    policy = Policy(triage="none", running_limit=1.0)
    at = (known(EVEN, WIDE), Candidate(StaticLaw(10.0), policy), Draw(w, np.ones(8), np.ones(8)), (Target(1.0, 0.025),), WIDE)
    found = simulate_pools(*at, Pools(2))
    assert found.end_s == pytest.approx(n / 2 * 0.03)
    cut = simulate_pools(*at, Pools(2), cut_s=0.3)
    assert cut.end_s == pytest.approx(0.3)
    assert (cut.status == FINISHED).sum() == 20
    assert (cut.status != FUTURE).sum() == 24


def test_a_request_whose_cache_is_on_its_way_at_the_cut_waits_and_owes_what_was_due() -> None:
    w = asked([0.0], [10], [9])
    drawn, candidate = Draw(w, np.ones(8), np.ones(8)), Candidate(StaticLaw(10.0), Policy(triage="none"))
    found = simulate_pools(known(EVEN, WIDE), candidate, drawn, (Target(1.0, 0.025),), WIDE, Pools(1, 1, 1.0), cut_s=0.1)
    assert [STATUS[s] for s in found.status] == ["waiting"]
    assert (found.emitted.tolist(), found.owed.tolist()) == ([1], [1 + math.floor((0.1 - 0.02) / 0.025)])


def test_topologies_are_compared_on_a_closed_loop() -> None:
    n = 240
    after = np.maximum(np.arange(n) - 8, -1)
    w = asked(np.zeros(n), np.full(n, 300), np.full(n, 12)).with_thinking(after, 0.01)
    problem = Problem(known(EVEN, WIDE), Replay(w), (Target(0.5, 0.02),), WIDE)
    found = compare_topologies(problem, 2, effort=Effort(train_seeds=2, heldout_seeds=6, requests=60))
    assert [c.pools.name for c in (found.mixed, *found.splits)] == ["2 mixed", "1+1"]
    assert 0.0 < found.mixed.attainment.mean() <= 1.0


# who is sent where


def test_round_robin_takes_turns() -> None:
    assert send_prompts("round_robin", 3, np.arange(5.0), np.ones(5), 1.0).tolist() == [0, 1, 2, 0, 1]
    assert send_caches("round_robin", 2, np.array([3.0, 1.0, 2.0]), np.ones(3), 1.0).tolist() == [0, 0, 1]


def test_the_least_loaded_goes_by_what_is_left() -> None:
    # 900 tokens are worked off at 100/s: after 1 s the second replica, with none left, takes both; after 20 s all is gone
    sent = send_prompts("least_loaded", 2, np.array([0.0, 1.0, 1.0, 20.0]), np.array([900, 100, 100, 50]), 100.0)
    assert sent.tolist() == [0, 1, 1, 1]
    # a cache is taken to stay 5 s: the first is gone when the last comes, and it is the replica that has been sent more
    sent = send_caches("least_loaded", 2, np.array([0.0, 1.0, 2.0, 5.5]), np.array([900, 100, 100, 50]), 5.0)
    assert sent.tolist() == [0, 1, 1, 0]


def test_the_least_loaded_balances_lengths_that_alternate() -> None:
    # every other prompt is long: turns would send all of them to one of two replicas
    w = asked(np.arange(60) * 0.05, np.tile([600, 10], 30), np.full(60, 3))
    turns, least = (run(w, Pools(2, 0, dispatch=d), budget=100.0) for d in ("round_robin", "least_loaded"))
    assert least.ttft_s.max() < 0.5 * turns.ttft_s.max()
