"""Goodput against closed forms: what a stall owes, what was shed, what one token owes, and when a queue grows for good."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headway.controllers import StaticLaw
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw, evaluate, simulate
from headway.models.goodput import (
    ABANDONED,
    CANCELLED,
    EXPIRED,
    FAILED,
    FINISHED,
    FUTURE,
    GAP_BINS,
    GAP_LOW_S,
    GAP_RATIO,
    REJECTED,
    RUNNING,
    WAITING,
    Outcome,
    gap_bin,
    owed_at_cut,
    summarise,
    tokens_owed,
)
from headway.models.measures import ATTAINMENT, CLEAN, ITL_P99_S, MEASURES, SHED, measure
from headway.models.other_goodputs import tpot_s
from headway.models.quantiles import gap_quantiles, quantiles
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.stability import load_verdict
from headway.models.state import BOOKS, REQUEST
from headway.models.workload import Workload
from tests.reference import judge
from tests.small_problems import known

UNIT = RegimePlant((1e-3, 0.0, 0.0, 0.0, 0.0, 0.0), (1e-3, 0.0, 0.0, 0.0, 0.0, 0.0))
"""A step takes 1 ms times its noise factor, so that noise factors are durations in ms."""
LIMITS = Limits(100_000, 1)
STOCK = Candidate(StaticLaw(8192.0), Policy(order="fcfs", triage="none"))


def stream(gaps_ms: list[float], target: Target, ttft_ms: float = 5.0) -> Outcome:
    """One request whose first token takes `ttft_ms` and whose later ones come after these gaps."""
    workload = Workload(np.zeros(1), np.array([10]), np.array([1 + len(gaps_ms)]), np.zeros(1, int))
    decode = np.array([1.0, *gaps_ms])  # the first step is the prompt's
    return simulate(known(UNIT, LIMITS), STOCK, Draw(workload, decode, np.full(len(decode), ttft_ms)), (target,), LIMITS)


def outcome(status: list[int], **fields) -> Outcome:
    """A run told by hand."""
    n = len(status)
    arrays: dict[str, Any] = {k: np.asarray(v) for k, v in fields.items()}
    zeros, ones = np.zeros(n), np.ones(n)
    given: dict[str, Any] = {
        "class_id": np.zeros(n, int),
        "arrival_s": zeros,
        "prompt_tokens": ones,
        "output_tokens": ones,
        "emitted": zeros,
        "last_s": zeros,
    }
    given |= {"ttft_s": np.full(n, np.nan), "on_time": zeros, "owed": ones, "max_gap_s": zeros, "gaps": np.zeros((2, GAP_BINS), int)}
    own: dict[str, Any] = {
        "end_s": 10.0,
        "steps": 1,
        "preempted": 0,
        "binding": np.array([1, 0, 0, 0]),
        "largest": np.ones(4),
        "log": np.zeros((0, 12)),
    }
    told: dict[str, Any] = {"status": np.asarray(status), **given, **own, **arrays}
    return Outcome(**told)


def test_case_e1_dropped_requests_vanish() -> None:
    lost = [REJECTED] * 5000 + [EXPIRED] * 800 + [FAILED] * 70
    status = [FINISHED, FINISHED, *lost]
    got = np.array([1.0, 1.0] + [0.0] * len(lost))
    classes = np.array([0, 0] + [0, 1] * (len(lost) // 2))
    targets = (Target(1.0, 0.05, name="chat"), Target(1.0, 0.05, name="batch"))
    found = summarise([outcome(status, on_time=got, emitted=got, ttft_s=np.where(got > 0, 0.1, np.nan), class_id=classes)], targets)
    assert found.requests == 5872
    assert found.attainment == pytest.approx(2 / 5872)
    assert found.request_attainment == pytest.approx(2 / 5872)
    assert found.shed == pytest.approx(5870 / 5872)
    shown = {name: {key: figures[key] for key in ("attainment", "request_attainment", "shed")} for name, figures in found.classes.items()}
    assert shown["chat"] == pytest.approx({"attainment": 2 / 2937, "request_attainment": 2 / 2937, "shed": 2935 / 2937})
    assert shown["batch"] == {"attainment": 0.0, "request_attainment": 0.0, "shed": 1.0}
    assert found.classes["chat"]["ttft_p99_s"] is None, "of two requests there is no p99"
    assert found.classes["chat"]["refused"]["ttft_s.p99"] == "needs 299 requests, has 2"
    assert found.classes["batch"]["ttft_p99_s"] is None


def test_shed_requests_owe_every_token_that_they_asked_for() -> None:
    workload = Workload(np.zeros(3), np.array([10, 10, 10]), np.array([1, 7, 30]), np.zeros(3, int))
    policy = Policy(order="fcfs", triage="timeout", timeout=0.5, running_limit=1.0)
    drawn = Draw(workload, np.full(4, 600.0), np.full(4, 600.0))
    found = simulate(known(UNIT, LIMITS), Candidate(StaticLaw(10.0), policy), drawn, (Target(1.0, 0.05),), LIMITS)
    assert found.status.tolist() == [FINISHED, EXPIRED, EXPIRED]
    assert (found.on_time.tolist(), found.owed.tolist()) == ([1, 0, 0], [1, 7, 30])


def test_case_e25_mean_tpot_hides_a_stall() -> None:
    gaps_ms = [20.0] * 255
    gaps_ms.insert(10, 1000.0)
    target = Target(1.0, 0.03)
    found = summarise([run := stream(gaps_ms, target)] * 6, (target,))
    mean_s = (255 * 0.020 + 1.0) / 256
    assert found.tpot_s["p50"] == pytest.approx(mean_s)
    assert mean_s < 0.03, "the mean passes"
    assert found.others["vllm_bench"] == 1.0
    assert found.max_gap_s == pytest.approx(1.0), "the longest gap does not"
    # the stall owes floor(1000 / 30) = 33 tokens, none of them on time; the other 256 each owe themselves
    assert (run.on_time[0], run.owed[0]) == (256, 256 + 33)
    assert found.attainment == pytest.approx(256 / 289)
    assert found.request_attainment == 0.0


def test_case_e41_mean_itl_says_chunking_does_nothing() -> None:
    whole, chunked = [11.0] * 255 + [43.0], [11.0] * 248 + [15.0] * 8
    target = Target(1.0, 0.02)
    sides = [summarise([stream(gaps, target)] * 12, (target,)) for gaps in (whole, chunked)]
    assert sides[0].tpot_s["p50"] == pytest.approx(sides[1].tpot_s["p50"])
    assert [s.attainment for s in sides] == pytest.approx([256 / 258, 1.0])
    tails_s = [s.itl_s["p999"] or 0.0 for s in sides]
    assert tails_s == pytest.approx([0.043, 0.015], rel=0.01)
    assert [s.others["gap_only"] for s in sides] == pytest.approx([255 / 256, 1.0])
    assert [s.request_attainment for s in sides] == [1.0, 1.0], "one late token in 257 is clean: attainment and tail tell them apart"


@pytest.mark.parametrize(("ttft_ms", "met"), [(999.0, True), (1001.0, False)])
def test_one_token_is_judged_on_its_ttft_alone(ttft_ms: float, met: bool) -> None:
    target = Target(1.0, 0.02)
    found = summarise([stream([], target, ttft_ms)], (target,))
    assert (found.attainment, found.request_attainment) == (float(met), float(met))
    assert found.tpot_s == found.itl_s == {"p50": None, "p90": None, "p99": None, "p999": None}
    assert (found.tpot_none, found.refused.get("tpot_s.p50")) == (1, None), "there is none, so none is refused"
    assert np.isnan(tpot_s(0.5, 0.5, 1))
    assert found.max_gap_s is None


def test_a_late_first_token_makes_every_token_late() -> None:
    run = stream([10.0] * 9, Target(1.0, 0.02), ttft_ms=1500.0)
    assert (run.on_time[0], run.owed[0]) == (0, 10)


@pytest.mark.parametrize(("late", "clean"), [(1, 1.0), (2, 0.0)])
def test_a_clean_request_has_99_of_its_100_tokens_on_time(late: int, clean: float) -> None:
    target = Target(1.0, 0.02)
    assert summarise([stream([30.0] * late + [10.0] * (99 - late), target)], (target,)).request_attainment == clean


def test_the_way_to_the_client_is_part_of_both_promises() -> None:
    target = Target(ttft_s=0.1, itl_s=0.02, transport_s=0.005)
    run = stream([14.0, 16.0, 36.0], target, ttft_ms=94.0)
    assert (run.on_time[0], run.owed[0]) == (2, 5), "16 ms + 5 ms is late and owes one, 36 + 5 owes two"
    found = summarise([run], (target,))
    assert found.others["gap_only"] == pytest.approx(1 / 3)
    assert found.max_gap_s == pytest.approx(0.041)
    assert stream([14.0], target, ttft_ms=96.0).on_time[0] == 0


def test_a_gap_of_exactly_the_target_is_on_time() -> None:
    run = stream([25.0] * 400, Target(1.0, 0.025))
    assert (run.on_time[0], run.owed[0]) == (401, 401)


@given(st.floats(1e-4, 100), st.floats(1e-3, 1))
def test_a_gap_owes_what_could_have_come_in_it(gap_s: float, itl_s: float) -> None:
    owed = tokens_owed(gap_s, itl_s)
    assert owed == max(1, math.floor(gap_s / itl_s + 1e-9))
    assert tokens_owed(2 * gap_s, itl_s) >= owed


@given(st.lists(st.floats(1.0, 500.0), max_size=40), st.floats(1.0, 2000.0), st.floats(0.011, 0.05), st.sampled_from([0.0, 0.003]))
def test_a_stream_is_judged_as_its_definition_says(gaps_ms: list[float], ttft_ms: float, itl_s: float, transport_s: float) -> None:
    target = Target(1.0, itl_s, transport_s)
    run = stream(gaps_ms, target, ttft_ms)
    ratios = [(1e-3 * gap + transport_s) / itl_s for gap in gaps_ms]
    assume(not any(abs(x - round(x)) < 1e-6 for x in [*ratios, 1e-3 * ttft_ms + transport_s]))  # at an edge rounding decides
    times_s = 1e-3 * np.cumsum([ttft_ms, *gaps_ms])
    assert (run.on_time[0], run.owed[0]) == judge("finished", 0.0, times_s.tolist(), len(times_s), target, times_s[-1])


@pytest.mark.parametrize(
    ("status", "emitted", "cut_s", "owed"),
    [
        (FUTURE, 0, 100.0, 0),
        (FINISHED, 10, 100.0, 12),  # what its gaps owed
        (REJECTED, 0, 2.0, 50),
        (EXPIRED, 0, 2.0, 50),
        (FAILED, 0, 2.0, 50),
        (CANCELLED, 0, 2.0, 0),  # its client left before anything was due
        (CANCELLED, 10, 100.0, 12),  # what was due when it left
        (ABANDONED, 0, 100.0, 50),
        (ABANDONED, 10, 100.0, 50),
        (WAITING, 0, 1.9, 0),  # its first token is due at arrival + ttft = 2 s
        (WAITING, 0, 2.09, 1),
        (WAITING, 0, 2.25, 3),
        (WAITING, 0, 1000.0, 50),  # never more than it asked for
        (RUNNING, 10, 3.05, 12),  # its last token came at 3 s
        (RUNNING, 10, 3.25, 14),
        (RUNNING, 10, 1000.0, 12 + 40),
        (WAITING, 10, 3.25, 14),  # preempted in mid-stream
    ],
)
def test_a_request_unfinished_at_the_cut_owes_what_was_due(status: int, emitted: int, cut_s: float, owed: float) -> None:
    arrival_s, last_s, ttft_s, itl_s, output = 1.0, 3.0, 1.0, 0.1, 50.0
    so_far = 12.0 if emitted else 0.0
    assert owed_at_cut(status, float(emitted), output, arrival_s, last_s, so_far, cut_s, ttft_s, itl_s) == owed


@given(st.lists(st.floats(2e-5, 500), min_size=1, max_size=300), st.sampled_from([0.0, 0.004]), st.integers(1, 15))
def test_gap_quantiles_flatter_by_nothing_and_blacken_by_a_bin(gaps_s: list[float], transport_s: float, times: int) -> None:
    counts = np.zeros((1, 1, GAP_BINS), int)
    for g in gaps_s * times:
        counts[0, 0, gap_bin(g)] += 1
    n = times * len(gaps_s)
    found = gap_quantiles(counts, np.array([transport_s]), n)
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)):
        if (value := found[name].value) is None:
            assert 1 - q**n - (1 - q) ** n < 0.95
            assert f"has {n:,}" in found[name].refused
            continue
        true = sorted(gaps_s * times)[max(0, math.ceil(q * n - 1e-9) - 1)]
        assert true * (1 - 1e-9) <= value - transport_s <= true * GAP_RATIO * (1 + 1e-9)
        assert (found[name].low or 0.0) <= value <= (found[name].high or math.inf)


def test_gaps_of_many_requests_in_one_step_are_one_observation() -> None:
    counts = np.zeros((1, 1, GAP_BINS), int)
    counts[0, 0, gap_bin(0.02)], counts[0, 0, gap_bin(0.5)] = 63_000, 64  # 64 requests all the way, one stall
    assert gap_quantiles(counts, np.zeros(1), 100_000)["p99"].value is not None
    assert gap_quantiles(counts, np.zeros(1), 200)["p99"].refused == "needs 299 gaps, has 63,064, worth 200 independent ones"


def test_gaps_beyond_the_histogram_stay_at_its_ends() -> None:
    assert [gap_bin(g) for g in (0.0, GAP_LOW_S, 1e9)] == [0, 0, GAP_BINS - 1]


def test_quantiles_are_values_that_occurred_and_say_when_there_is_none() -> None:
    values = {name: one.value for name, one in quantiles(np.arange(1.0, 4001.0)).items()}
    assert values == {"p50": 2001.0, "p90": 3601.0, "p99": 3961.0, "p999": 3997.0}
    assert {one.value for one in quantiles(np.zeros(0)).values()} == {None}
    # requests that never got a token sort last
    some = quantiles(np.array([1.0] * 180 + [np.inf] * 20))
    assert (some["p50"].value, some["p90"].value) == (1.0, None)
    assert some["p90"].refused == "10.0% of the requests never got a token"


def count(status: list[int], **fields) -> np.ndarray:
    """What a search is told of a run."""
    req, books, out = np.zeros(len(status), REQUEST), np.zeros(1, BOOKS), np.zeros(MEASURES)
    req["status"], books["settled_s"] = status, 10.0
    for name, values in fields.items():
        req[name] = values
    measure(req, books, np.zeros((1, GAP_BINS), int), np.array([[1.0, 0.05, 0.05, 0.0]]), out)
    return out


@pytest.mark.parametrize(
    ("status", "emitted", "attained", "clean", "shed", "abandoned", "cancelled"),
    [
        # left before the first token was due: it owes nothing, and nobody knows what would have become of it
        ([FINISHED, CANCELLED], [10.0, 0.0], 1.0, 1.0, 0.0, 0.0, 0.5),
        ([FINISHED, CANCELLED], [10.0, 4.0], 1.0, 1.0, 0.0, 0.0, 0.5),
        ([FINISHED, ABANDONED], [10.0, 0.0], 0.5, 0.5, 0.0, 0.5, 0.0),
        ([FINISHED, EXPIRED], [10.0, 0.0], 0.5, 0.5, 0.5, 0.0, 0.0),
    ],
)
def test_who_left_in_time_is_no_failure_and_who_left_late_is_one(
    status: list[int], emitted: list[float], attained: float, clean: float, shed: float, abandoned: float, cancelled: float
) -> None:
    owed = [10.0, emitted[1] if status[1] == CANCELLED else 10.0]
    ttft = np.array([0.1, 0.1 if emitted[1] else np.nan])
    run = outcome(status, emitted=emitted, on_time=emitted, owed=owed, output_tokens=[10.0, 10.0], ttft_s=ttft, arrival_s=[0.0, 1.0])
    found = summarise([run], (Target(1.0, 0.05),))
    assert (found.attainment, found.request_attainment) == (attained, clean)
    assert (found.shed, found.abandoned, found.cancelled) == (shed, abandoned, cancelled)
    own = found.classes["default"]
    assert (own["shed"], own["abandoned"], own["cancelled"]) == (shed, abandoned, cancelled)
    told = count(status, emitted=emitted, on_time=emitted, owed=owed, met=np.array(emitted) > 0)
    assert (told[ATTAINMENT], told[CLEAN], told[SHED]) == (attained, clean, shed)


def test_each_class_has_its_own_goodput_tails_and_degraded_share() -> None:
    n = 400
    classes, degraded = np.arange(n) % 2, (np.arange(n) % 2 == 1) & (np.arange(n) % 8 == 1)
    ttft = np.where(classes == 0, 0.1, 0.3) + 1e-4 * np.arange(n)
    served = np.where(degraded, 0.0, 10.0)
    run = outcome(
        [FINISHED] * n,
        class_id=classes,
        arrival_s=0.1 * np.arange(n),
        last_s=0.1 * np.arange(n) + ttft + 0.9,
        ttft_s=ttft,
        emitted=np.full(n, 10.0),
        owed=np.full(n, 10.0),
        on_time=served,
        degraded=degraded,
        degraded_on_time=np.where(degraded, 9.0, 0.0),
        hit_tokens=np.full(n, 0.25),
        recomputed=70.0,
        swapped_blocks=3.0,
        end_s=40.0,
    )
    found = summarise([run], (Target(1.0, 0.15, name="chat"), Target(1.0, 0.15, name="batch")))
    chat, batch = found.classes["chat"], found.classes["batch"]
    assert (chat["goodput_tps"], batch["goodput_tps"]) == (2000 / 40, 1500 / 40)
    assert found.goodput_tps == chat["goodput_tps"] + batch["goodput_tps"]
    assert (chat["degraded"], chat["degraded_attainment"]) == (0.0, None)
    assert (batch["degraded"], batch["degraded_attainment"], batch["attainment"]) == (0.25, 0.9, 0.75)
    assert (found.degraded, found.degraded_attainment) == (0.125, 0.9)
    assert chat["tpot_s"]["p50"] == pytest.approx(0.1)
    assert batch["ttft_s"]["p50"] == pytest.approx(0.3 + 1e-4 * 201)
    low, high = batch["ttft_s_ci95"]["p50"]
    assert low < batch["ttft_s"]["p50"] < high
    assert batch["refused"]["ttft_s.p99"] == "needs 299 requests, has 200"
    assert (found.hit_share, found.recomputed_tokens, found.swapped_blocks) == (0.25, 70.0, 3.0)
    assert (found.fairness["worst_class"], found.fairness["worst_attainment"]) == ("batch", 0.75)


def test_several_runs_are_one_population() -> None:
    target = Target(1.0, 0.02)
    good, bad = stream([10.0] * 9, target), stream([30.0] * 29, target)
    both = summarise([good, bad], (target,))
    assert both.attainment == pytest.approx((10 + 1) / 40)
    assert both.request_attainment == 0.5
    assert both.goodput_tps == pytest.approx(11 / (0.095 + 0.875))
    assert both.throughput_tps == pytest.approx(40 / (0.095 + 0.875))


@pytest.mark.parametrize(("outputs", "wanted_s"), [(30, 0.015), (1, math.nan)])
def test_the_p99_gap_of_a_search_is_the_clients_too(outputs: int, wanted_s: float) -> None:
    workload = Workload(np.zeros(1), np.array([10]), np.array([outputs]), np.zeros(1, int))
    drawn = Draw(workload, np.full(8, 10.0), np.full(8, 10.0))
    found = evaluate(known(UNIT, LIMITS), [STOCK], [drawn], (Target(1.0, 0.05, transport_s=0.005),), LIMITS)[0, 0, ITL_P99_S]
    assert found == pytest.approx(wanted_s, rel=0.01, nan_ok=True)


def served_at_ten_per_second(rate_rps: float, triage: str = "none", seed: int | None = None) -> Outcome:
    """A step takes 100 ms and holds one request of one token, so capacity is 10/s."""
    n, slow = 600, RegimePlant((0.1, 0.0, 0.0, 0.0, 0.0, 0.0), (0.1, 0.0, 0.0, 0.0, 0.0, 0.0))
    gaps_s = np.full(n - 1, 1 / rate_rps) if seed is None else np.random.default_rng(seed).exponential(1 / rate_rps, n - 1)
    workload = Workload(np.concatenate([[0.0], np.cumsum(gaps_s)]), np.full(n, 100), np.ones(n, int), np.zeros(n, int))
    limits = Limits(100_000, max_tokens=100)
    candidate = Candidate(StaticLaw(100.0), Policy(order="fcfs", triage=triage))
    return simulate(known(slow, limits), candidate, Draw(workload, np.ones(4), np.ones(4)), (Target(1.0, 0.2),), limits)


def test_case_e11_saturation_cliff() -> None:
    run = served_at_ten_per_second(12.4)
    assert load_verdict(run) == "unstable"
    # the queue grows by 2.4 requests a second
    served_s = run.arrival_s + run.ttft_s
    waiting = [(run.arrival_s <= t).sum() - (served_s <= t).sum() for t in (10.0, 40.0)]
    assert (waiting[1] - waiting[0]) / 30 == pytest.approx(2.4, abs=0.1)
    assert summarise([run, run], (Target(1.0, 0.2),)).load == "unstable"


@pytest.mark.parametrize("triage", ["reject", "timeout"])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_nobody_passes_for_stable_by_shedding(triage: str, seed: int | None) -> None:
    run = served_at_ten_per_second(12.4, triage, seed)
    assert (run.status >= REJECTED).any()
    assert load_verdict(run) == "unstable"


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_a_load_well_below_capacity_is_stable(seed: int | None) -> None:
    assert load_verdict(served_at_ten_per_second(6.0, seed=seed)) == "stable"


def test_a_run_too_short_to_say_is_uncertain() -> None:
    short = outcome([FINISHED] * 63, arrival_s=np.arange(63.0), ttft_s=np.full(63, 0.1))
    at_once = outcome([FINISHED] * 100, ttft_s=np.full(100, 0.1))
    assert load_verdict(short) == load_verdict(at_once) == "uncertain"


def test_runs_that_do_not_agree_on_the_load_are_uncertain() -> None:
    target = (Target(1.0, 0.2),)
    calm, full = served_at_ten_per_second(6.0), served_at_ten_per_second(12.4)
    assert summarise([calm, full], target).load == "uncertain"
    assert summarise([calm, calm, full, full], target).load == "uncertain"
