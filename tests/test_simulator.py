"""The compiled simulator against a second one written in plain Python, and what must hold of every run whatever the setting."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings

from headway.controllers import StaticLaw
from headway.controllers.policy import Policy
from headway.controllers.simulator import LOG_COLUMNS, Candidate, Draw, draw, evaluate, simulate
from headway.models.goodput import ABANDONED, FAILED, FINISHED, FUTURE, GAP_BINS, REJECTED, Outcome, gap_bin, summarise
from headway.models.measures import ATTAINMENT, CLEAN, END_S, GOODPUT_TPS, ITL_P99_S, MAX_GAP_S, ON_TIME, OWED, SHED, STEPS, THROUGHPUT_TPS
from headway.models.noise import Noise
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Replay, Workload
from tests.reference import STATUS, Verdict
from tests.small_problems import Problem, known, problems

LONG_S = 1000.0
"""No run of these tests needs half as long; a run that would never end is cut here and fails."""

EVEN = RegimePlant((0.01, 0.0, 0.0, 0.0, 0.0, 0.0), (0.01, 0.0, 0.0, 0.0, 0.0, 0.0))
"""Every step takes 10 ms."""

BINDING = ("none", "kv", "running", "budget", "deferred")


def run(problem: Problem, cut_s: float = LONG_S) -> Outcome:
    return simulate(*problem, cut_s=cut_s, record_steps=100_000)


def columns(outcome: Outcome) -> dict[str, np.ndarray]:
    return dict(zip(LOG_COLUMNS, outcome.log.T, strict=True))


def plain(arrival_s, prompt, output, limits: Limits, policy: Policy, budget: float, *targets: Target, plant=EVEN) -> Problem:
    """A run without noise; with several targets the requests take them in turn."""
    n = len(arrival_s)
    targets = targets or (Target(1.0, 0.025),)
    workload = Workload(np.asarray(arrival_s, float), np.asarray(prompt), np.asarray(output), np.arange(n) % len(targets))
    return Problem(known(plant, limits), Candidate(StaticLaw(budget), policy), Draw(workload, np.ones(8), np.ones(8)), targets, limits)


def assert_same_requests(found: Outcome, wanted: Verdict) -> None:
    assert [STATUS[s] for s in found.status] == [r.status for r in wanted.requests]
    assert found.emitted.tolist() == [r.emitted for r in wanted.requests]
    assert found.on_time.tolist() == wanted.on_time
    assert found.owed.tolist() == wanted.owed
    assert found.spared is None or found.spared.tolist() == [r.spared for r in wanted.requests]
    times = [r.token_times_s for r in wanted.requests]
    ttft_s = [t[0] - r.arrival_s if t else math.nan for r, t in zip(wanted.requests, times, strict=True)]
    np.testing.assert_allclose(found.ttft_s, ttft_s, rtol=1e-9, atol=1e-12)
    longest_s = [max((b - a for a, b in pairwise(t)), default=0.0) for t in times]
    np.testing.assert_allclose(found.max_gap_s, longest_s, rtol=1e-9, atol=1e-12)


def assert_same_steps(found: Outcome, wanted: Verdict) -> None:
    assert (found.steps, found.preempted) == (len(wanted.steps), wanted.preempted)
    log = columns(found)
    for name in set(LOG_COLUMNS) - {"binding"}:
        np.testing.assert_allclose(log[name], [s[name] for s in wanted.steps], rtol=1e-9, err_msg=name)
    assert [BINDING[int(b)] for b in log["binding"]] == [s["binding"] for s in wanted.steps]
    assert found.binding.tolist() == [sum(s["binding"] == b for s in wanted.steps) for b in BINDING]


@settings(max_examples=800)
@given(problems(scheduled=True))
def test_the_compiled_simulator_equals_the_plain_one(problem: Problem) -> None:
    wanted = problem.reference()
    found = run(problem)
    assert found.end_s == pytest.approx(wanted.end_s, rel=1e-9)
    assert_same_requests(found, wanted)
    assert_same_steps(found, wanted)
    gaps = np.zeros(GAP_BINS, int)
    for r in wanted.requests:
        for before, after in pairwise(r.token_times_s):
            gaps[gap_bin(after - before)] += 1
    # a gap at the edge of a bin may fall to either side of it
    assert np.abs(np.cumsum(found.gaps.sum(axis=0) - gaps)).max() <= 0.02 * gaps.sum() + 1


@pytest.mark.parametrize("order", ["fcfs", "edf", "slack"])
@pytest.mark.parametrize("reservation", ["chunk", "full"])
@pytest.mark.parametrize("seed", range(3))
def test_they_agree_where_the_cache_is_short(order: str, reservation: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    limits = Limits(640, 16, max_seqs=12, max_tokens=128, reservation=reservation)
    policy = Policy(order=order, triage="none", running_limit=12.0)
    prompt, output = rng.integers(20, 200, 40), rng.integers(10, 60, 40)
    plant = RegimePlant((0.0093, 1.3e-4, 0.0, 0.0, 0.0, 0.0), (0.0107, 1.3e-4, 0.0, 3.1e-5, 0.0, 0.0))
    problem = plain(np.cumsum(rng.exponential(0.03, 40)), prompt, output, limits, policy, 128.0, plant=plant)
    wanted = problem.reference()
    assert wanted.preempted > 5
    assert_same_requests(run(problem), wanted)
    assert_same_steps(run(problem), wanted)


@settings(max_examples=60)
@given(problems(scheduled=True))
def test_a_cut_run_owes_what_was_due(problem: Problem) -> None:
    whole = problem.reference()
    cut_s = 0.6 * whole.end_s
    assume(whole.steps and whole.steps[0]["end_s"] < cut_s)
    wanted, found = problem.reference(cut_s), run(problem, cut_s)
    assert_same_requests(found, wanted)
    assert_same_steps(found, wanted)
    assert found.end_s == pytest.approx(wanted.end_s, rel=1e-9)
    assert (found.owed[found.status == FUTURE] == 0).all()


@pytest.mark.parametrize("triage", ["none", "defer", "reject", "timeout"])
def test_two_prompts_that_jam_the_cache_both_end(triage: str) -> None:
    # each fits alone; together they fill the pool half done, and the one that came last always has the least slack
    policy = Policy(order="slack", triage=triage, timeout=20.0)
    problem = plain([0.0, 0.015], [9, 8], [1, 4], Limits(12, 1, max_tokens=3, reservation="chunk"), policy, 3.0)
    wanted, found = problem.reference(), run(problem)
    assert wanted.jams > 0
    assert found.end_s < 1.0
    assert_same_requests(found, wanted)


def test_the_log_counts_only_those_who_wait() -> None:
    found = run(plain([0.0], [4], [3], Limits(100, 1), Policy(order="slack", triage="none"), 10.0))
    assert columns(found)["waiting"].tolist() == [0, 0, 0]


def test_who_came_during_the_last_step_of_a_cut_run_is_there() -> None:
    problem = plain([0.0, 0.001], [4, 4], [9, 9], Limits(100, 1), Policy(order="fcfs", triage="none"), 10.0, Target(0.004, 0.025))
    found = run(problem, cut_s=0.005)
    assert STATUS[found.status[1]] == "waiting"
    assert found.owed.tolist() == problem.reference(0.005).owed == [1, 1]


def test_a_cut_run_lasts_to_the_cut() -> None:
    policy = Policy(order="fcfs", triage="none")
    found = run(plain([0.0, 100.0], [4, 4], [5, 5], Limits(100, 1), policy, 10.0), cut_s=10.0)
    assert found.end_s == 10.0
    assert summarise([found], (Target(1.0, 0.025),)).goodput_tps == pytest.approx(0.5)


@settings(max_examples=120)
@given(problems())
def test_no_step_exceeds_a_limit_and_none_is_empty(problem: Problem) -> None:
    limits, policy, log = problem.limits, problem.candidate.policy, columns(run(problem, cut_s=20.0))
    tokens = log["decode_requests"] + log["prefill_tokens"]
    assert (tokens >= 1).all()
    if limits.scheduling == "sync":  # else who has ended rides along, whatever the budget is
        assert (tokens <= log["token_budget"]).all()
    assert (log["token_budget"] <= limits.max_tokens).all()
    assert (log["free_blocks"] >= 0).all()
    assert (log["free_blocks"] <= limits.blocks).all()
    assert (log["running"] <= min(policy.running_limit, limits.max_seqs)).all()
    if policy.chunk_tokens:  # stock order lifts the cap where one request is there alone
        alone = (policy.order == "fcfs") & (log["prefill_requests"] == 1)
        assert ((log["prefill_tokens"] <= policy.chunk_tokens * log["prefill_requests"]) | alone).all()


@settings(max_examples=80)
@given(problems())
def test_the_engine_stands_still_only_while_nobody_is_there(problem: Problem) -> None:
    found = run(problem, cut_s=20.0)
    log = columns(found)
    start_s = log["end_s"] - log["step_time_s"]
    for before_s, after_s, running in zip(log["end_s"][:-1], start_s[1:], log["running"][:-1], strict=True):
        if after_s > before_s * (1 + 1e-9):
            assert running == 0
            assert np.isclose(found.arrival_s, after_s, rtol=1e-9).any()
            served = (found.arrival_s <= before_s) & (found.status == FINISHED)
            assert (found.last_s[served] <= before_s).all()


@settings(max_examples=80)
@given(problems())
def test_every_token_is_computed_once_unless_somebody_is_preempted(problem: Problem) -> None:
    problem = problem.one_by_one(prefix_cache="off")
    patient = dataclasses.replace(problem.drawn.workload, patience_s=None, cancel_s=None)
    found = run(problem._replace(drawn=problem.drawn._replace(workload=patient)))
    assume(found.preempted == 0)
    log, done = columns(found), found.status == FINISHED
    assert set(found.status[~done]) <= {REJECTED, REJECTED + 1, FAILED}
    assert log["prefill_tokens"].sum() == found.prompt_tokens[done].sum()
    first = 0 if problem.limits.first_token == "next_step" else 1
    assert log["decode_requests"].sum() == (found.output_tokens[done] - first).sum()
    assert found.emitted.tolist() == np.where(done, found.output_tokens, 0).tolist()
    assert log["free_blocks"][-1:].tolist() == [problem.limits.blocks][: found.steps]


@settings(max_examples=80)
@given(problems())
def test_goodput_never_exceeds_throughput_and_finished_requests_owe_what_they_got(problem: Problem) -> None:
    found = run(problem, cut_s=20.0)
    figures = summarise([found], problem.targets)
    assert figures.goodput_tps <= figures.throughput_tps + 1e-9
    assert (found.on_time <= np.minimum(found.emitted, found.owed)).all()
    done = found.status == FINISHED
    assert (found.owed[done] >= found.emitted[done]).all()
    shed = (found.status >= REJECTED) & (found.status < ABANDONED)
    assert (found.owed[shed] == found.output_tokens[shed]).all()
    assert (found.owed[found.status == ABANDONED] >= found.output_tokens[found.status == ABANDONED]).all()


@settings(max_examples=30)
@given(problems())
def test_the_same_arguments_give_the_same_run(problem: Problem) -> None:
    for a, b in zip(run(problem, cut_s=20.0), run(problem, cut_s=20.0), strict=True):
        assert np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)


def test_another_seed_is_another_run() -> None:
    rng = np.random.default_rng(0)
    recorded = Workload(np.cumsum(rng.exponential(0.05, 60)), rng.integers(1, 300, 60), rng.integers(1, 40, 60), np.zeros(60, int))
    limits = Limits(8192)
    identified = known(EVEN, limits, Noise(rng.normal(0, 0.1, 400), rng.normal(0, 0.2, 400)))
    candidate = Candidate(StaticLaw(256.0), Policy())
    draws = [draw(Replay(recorded), identified, seed, 20, heldout=heldout) for seed in range(3) for heldout in (False, True)]
    ends_s = [simulate(identified, candidate, d, (Target(1.0, 0.05),), limits).end_s for d in draws]
    assert len(set(ends_s)) == len(ends_s)
    again = draw(Replay(recorded), identified, 2, 20, heldout=True)
    assert all(np.array_equal(a, b) for a, b in zip(again[1:], draws[-1][1:], strict=True))


@settings(max_examples=25)
@given(problems())
def test_many_runs_at_once_measure_what_each_alone_shows(problem: Problem) -> None:
    identified, candidate, drawn, targets, limits = problem
    other = Candidate(StaticLaw(64.0), Policy(order="fcfs", triage="none", running_limit=8.0))
    slower = Draw(drawn.workload, 1.3 * drawn.decode, 1.3 * drawn.mixed)
    draws, candidates, stretch = [drawn, slower], [candidate, other, candidate], np.array([1.0, 1.0, 1.5])
    measures, again = (evaluate(identified, candidates, draws, targets, limits, stretch=stretch, cut_s=20.0) for _ in range(2))
    assert np.array_equal(measures, again, equal_nan=True)
    for q, m in np.ndindex(3, 2):
        w, row = drawn.workload, measures[q, m]
        stretched = dataclasses.replace(w, arrival_s=w.arrival_s * stretch[q])
        alone = simulate(identified, candidates[q], draws[m]._replace(workload=stretched), targets, limits, cut_s=20.0)
        figures = summarise([alone], targets)
        wanted = {
            ATTAINMENT: figures.attainment if alone.owed.sum() else 0.0,
            CLEAN: 0.0 if math.isnan(figures.request_attainment) else figures.request_attainment,
            GOODPUT_TPS: figures.goodput_tps,
            THROUGHPUT_TPS: figures.throughput_tps,
            SHED: figures.shed,
            MAX_GAP_S: figures.max_gap_s or 0.0,
            STEPS: alone.steps,
            ON_TIME: alone.on_time.sum(),
            OWED: alone.owed.sum(),
            END_S: alone.end_s,
        }
        assert {k: row[k] for k in wanted} == pytest.approx(wanted, rel=1e-12)
        # where classes have transports of their own, the search's p99 is exact to a bin
        p99_s = figures.itl_s["p99"]
        if p99_s is not None:
            assert row[ITL_P99_S] == pytest.approx(p99_s, rel=0.0091)
        else:  # no gap, or too few for a p99: a search compares it all the same
            assert np.isnan(row[ITL_P99_S]) == (alone.gaps.sum() == 0)


@pytest.mark.parametrize("order", ["fcfs", "edf", "slack"])
@pytest.mark.parametrize("cap", [0.0, 1024.0])
def test_case_e22_cap_bounds_size_not_count(order: str, cap: float) -> None:
    # 8 prompts of 1024 at once, each within the cap: the step still holds no more than the budget
    policy = Policy(order=order, triage="none", chunk_tokens=cap)
    found = run(plain(np.zeros(8), np.full(8, 1024), np.full(8, 20), Limits(100_000), policy, 2048.0))
    log = columns(found)
    assert (log["decode_requests"] + log["prefill_tokens"]).max() == 2048
    assert log["prefill_requests"].max() >= 2
    assert (found.status == FINISHED).all()


@pytest.mark.parametrize("order", ["fcfs", "slack"])
@pytest.mark.parametrize("reservation", ["chunk", "full"])
def test_case_e27_kv_budget_ignored(order: str, reservation: str) -> None:
    n, limits = 512, Limits(77_088, reservation=reservation)
    plant = RegimePlant((0.01, 1e-4, 0.0, 0.0, 0.0, 0.0), (0.01, 1e-4, 0.0, 1e-5, 0.0, 0.0))
    policy = Policy(order=order, triage="none", running_limit=512.0)
    found = run(plain(np.zeros(n), np.full(n, 4096), np.full(n, 32), limits, policy, 8192.0, plant=plant))
    log = columns(found)
    assert (found.status == FINISHED).all()
    # 18 contexts of 4,096 fit the pool, a 19th does not; half a prompt may sit beside them where blocks go chunk by chunk
    assert log["decode_requests"].max() == 18
    assert reservation == "chunk" or log["running"].max() == 18
    # throughput is that of the batch that fits: prefill at 8192 tokens a step, 32 tokens each, and no faster than 18 at a time
    assert found.end_s > n * 4096 / 8192 * (0.01 + 0.08)
    assert log["decode_kv_tokens"].max() <= 77_088


def test_a_request_that_can_never_fit_fails_at_once_and_owes_all() -> None:
    policy = Policy(order="fcfs", triage="none")
    found = run(plain([0.0, 0.0, 0.0], [90, 101, 30], [5, 5, 80], Limits(100, 1, max_len=1000), policy, 512.0))
    assert [STATUS[s] for s in found.status] == ["finished", "failed", "failed"]
    assert (found.emitted.tolist(), found.owed.tolist()) == ([5, 0, 0], [5, 5, 80])
    assert columns(found)["prefill_tokens"].sum() == 90
