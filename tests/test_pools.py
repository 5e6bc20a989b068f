"""Pools: closed forms, what must hold of every topology, and every replica against the tests' own engine."""

from __future__ import annotations

import dataclasses
import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings

from headway.cli import main
from headway.controllers import StaticLaw
from headway.controllers.dispatch import send_caches, send_prompts, transfer_s_per_token
from headway.controllers.policy import Policy
from headway.controllers.pools import Pools, simulate_pools
from headway.controllers.simulator import Candidate, Draw, simulate
from headway.experiments.topologies import compare_topologies
from headway.experiments.tune import Effort, Problem
from headway.models.goodput import ABANDONED, FAILED, FINISHED, GAP_BINS, Outcome, gap_bin
from headway.models.identified import IdentifiedPlant
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Replay, Workload
from tests.reference import STATUS, Reference
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
    small = dataclasses.replace(WIDE, kv_tokens=26)
    found = run(asked([0.0, 0.0], [12, 12], [6, 6]), Pools(1, 1), budget=100.0, limits=small)
    assert found.status.tolist() == [FINISHED] * 2
    assert found.emitted.tolist() == [6, 6]
    assert found.preempted == 1
    assert found.recomputed == 12  # its prompt; the token that had come is computed along with it
    assert found.largest[2] == 24
    alone = run(asked([0.0, 0.0], [12, 12], [6, 6]), Pools(1, 1), budget=100.0, decode_limits=dataclasses.replace(small, kv_tokens=40))
    assert (alone.preempted, alone.recomputed) == (0, 0)
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


# what is refused


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        (Pools(0, 1), "prefill must be a whole number"),
        (Pools(1, -1), "decode must be a whole number"),
        (Pools(1.5, 1), "prefill must be a whole number"),  # pyright: ignore[reportArgumentType]
        (Pools(1, 1, -1e-6), "transfer_s_per_token must be a time that is not negative, got -1e-06"),
        (Pools(1, 1, 0.0, math.inf), "transfer_latency_s must be"),
        (Pools(1, 1, dispatch="random"), "dispatch must be one of round_robin, least_loaded, got 'random'"),
    ],
)
def test_what_is_no_topology_is_refused(pools: Pools, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        run(asked([0.0], [1], [1]), pools)


def test_requests_that_wait_for_others_are_refused() -> None:
    chained = asked([0.0, 0.0], [1, 1], [1, 1]).with_thinking(np.array([-1, 0]), 1.0)
    with pytest.raises(ValueError, match="1 of 2 requests wait for another's end"):
        run(chained, Pools(1, 1))


def test_a_transfer_needs_a_bandwidth() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        transfer_s_per_token(131072, 0.0)


# all splits side by side


def compared(rate_rps: float, itl_s: float, **between):
    rng = np.random.default_rng(11)
    n = 1500
    w = Workload(np.cumsum(rng.exponential(1 / rate_rps, n)), rng.integers(200, 1800, n), rng.geometric(1 / 60, n), np.zeros(n, np.int64))
    limits = Limits(60_000, 16, max_seqs=64, max_tokens=2048)
    plant = RegimePlant((0.008, 5e-5, 4e-8, 0.0, 0.0, 0.0), (0.009, 5e-5, 4e-8, 4e-5, 2e-9, 1e-4))
    identified: IdentifiedPlant = known(plant, limits)
    problem = Problem(identified, Replay(w), (Target(0.5, itl_s),), limits)
    return compare_topologies(problem, 3, effort=Effort(train_seeds=2, heldout_seeds=6, requests=300), **between)


def test_a_split_helps_where_no_policy_can() -> None:
    # a step with a prompt takes at least 9 ms, one without 8 ms: at 9.5 ms a gap no policy of mixed replicas may prefill much
    found = compared(20.0, 0.0095, transfer_s_per_token=1e-7)
    assert [c.pools.name for c in (found.mixed, *found.splits)] == ["3 mixed", "1+2", "2+1"]
    assert found.verdict == "split"
    difference = found.best.attainment - found.mixed.attainment
    assert found.best.gain.value == pytest.approx(difference.mean())
    assert f"with 3 replicas, {found.best.pools.name} attains" in found.sentence()
    assert "points [" in found.sentence()


def test_a_slow_link_makes_the_split_worse() -> None:
    found = compared(6.0, 0.05, transfer_s_per_token=2e-3)
    assert found.verdict == "mixed"
    assert found.sentence().endswith(("is attained by 3 mixed", "is attained by none of them"))
    assert found.to_json()["verdict"] == "mixed"


def test_one_engine_has_nothing_to_split() -> None:
    problem = Problem(known(EVEN, WIDE), Replay(asked(np.arange(9.0), np.ones(9, int), np.ones(9, int))), (Target(1.0, 0.025),), WIDE)
    with pytest.raises(ValueError, match="one engine has nothing to split"):
        compare_topologies(problem, 1)


def test_the_command_prints_all_topologies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plant = tmp_path / "plant.json"
    limits = Limits(60_000, 16, max_seqs=64, max_tokens=2048)
    plant.write_text(json.dumps({**known(EVEN, limits).to_json(), "margin": {"decode": 0.05, "mixed": 0.1}}))
    load = ["--workload", "poisson:rate=20/s,prompt=400,output=geometric(40)", "--target", "ttft=500ms,itl=15ms"]
    at = ["pools", str(plant), *load, "--replicas", "2", "--requests", "80", "--runs", "8"]
    assert main([*at, "--transfer", "10us/token", "--latency", "1ms"]) == 0
    said = capsys.readouterr().out
    for text in ("2 mixed", "1+1", "attainment", "ITL p99", "TTFT p99", "verdict    with 2 replicas, 1+1 attains"):
        assert text in said
    assert main([*at, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [c["name"] for c in (data["mixed"], *data["splits"])] == ["2 mixed", "1+1"]
    # a step with prompt tokens takes 20 ms, longer than the target: nobody who prefills beside decodes can keep it
    assert data["verdict"] == "split"
    assert main([*at, "--transfer", "40us"]) == 2
    assert "--transfer must be a time per token, got '40us'; write for example 40us/token" in capsys.readouterr().err
