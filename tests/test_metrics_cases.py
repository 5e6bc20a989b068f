"""Figures that have misled people, as cases: each with the input that did it and the answer that does not."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.controllers import StaticLaw
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw, simulate
from headway.experiments.saturation import load_on
from headway.models.bottleneck import SUMS, batch_of, blind, resources, spent_s
from headway.models.fairness import fairness, jain
from headway.models.goodput import ABANDONED, CANCELLED, FINISHED, GAP_BINS, REJECTED, WAITING, Outcome, gap_bin, summarise
from headway.models.other_goodputs import DEFINITIONS, guidellm_tpot_s, hidden_by_means, other_goodputs, past_deadline, tpot_s
from headway.models.plant import Batch
from headway.models.regimes import AffinePlant, RegimePlant
from headway.models.signals import Limits, Target
from headway.models.stability import Load, flooded_rps, load_of, load_verdict, plant_interval, queue_verdict
from headway.models.workload import Workload, WorkloadSource
from tests.runs_by_hand import told
from tests.small_problems import known


def test_case_e24_bundled_tokens_have_no_gap_between_them() -> None:
    """Chunks of 1, 4 and 3 tokens at 0, 40 and 80 ms: the mean gap is 80 / 7, the longest 40; four tokens at once owe one each."""
    times_s = np.repeat([0.0, 0.04, 0.08], [1, 4, 3])
    assert float(tpot_s(0.0, 0.08, 8)) == pytest.approx(0.08 / 7)
    assert np.diff(times_s).max() == pytest.approx(0.04)
    assert past_deadline(times_s, 0.0, 0.0, 0.04) == 0
    assert past_deadline(times_s, 0.0, 0.0, 0.011) == 6, "due at 11, 22, 33, 44, 55, 66 and 77 ms: only the fifth is there in time"


@pytest.mark.parametrize(("stall_at", "late"), [(10, 88), (97, 1), (98, 0), (200, 0)])
def test_case_e25_a_deadline_per_token_forgives_a_late_stall(stall_at: int, late: int) -> None:
    gaps_s = np.full(256, 0.020)
    gaps_s[stall_at - 1] = 1.0
    ttft_s = 0.5
    times_s = ttft_s + np.concatenate([[0.0], np.cumsum(gaps_s)])
    assert past_deadline(times_s, 0.0, ttft_s, 0.030) == late
    assert float(tpot_s(ttft_s, times_s[-1], 257)) == pytest.approx(0.02383, abs=5e-6), "and the mean passes wherever the stall is"
    assert gaps_s.max() > 0.1, "the longest gap does not"


def test_case_e25_the_engine_counts_tokens_past_their_deadline_as_we_do() -> None:
    unit = RegimePlant((1e-3, 0.0, 0.0, 0.0, 0.0, 0.0), (1e-3, 0.0, 0.0, 0.0, 0.0, 0.0))
    workload = Workload(np.zeros(1), np.array([10]), np.array([257]), np.zeros(1, int))
    gaps_ms = np.full(257, 20.0)
    gaps_ms[10] = 1000.0  # the first step is the prompt's
    limits, target = Limits(100_000, 1), Target(0.5, 0.030)
    stock = Candidate(StaticLaw(8192.0), Policy(order="fcfs", triage="none"))
    run = simulate(known(unit, limits), stock, Draw(workload, gaps_ms, np.full(257, 500.0)), (target,), limits)
    assert run.token_late is not None
    assert run.token_late.tolist() == [88]
    found = summarise([run], (target,)).others
    assert found["per_token_deadline"] == pytest.approx(1 - 88 / 257)
    assert found["vllm_bench"] == 1.0


@pytest.mark.parametrize(("ttft_s", "vllm", "aiperf"), [(0.1, 1.0, 0.0), (0.3, 0.0, 0.0)])
def test_case_e25_one_token_has_no_tpot(ttft_s: float, vllm: float, aiperf: float) -> None:
    run = told([FINISHED], emitted=[1.0], output_tokens=[1.0], owed=[1.0], ttft_s=[ttft_s], on_time=[float(ttft_s < 0.2)])
    found = summarise([run], (Target(0.2, 0.05),))
    assert (found.others["vllm_bench"], found.others["aiperf"]) == (vllm, aiperf)
    assert (found.tpot_none, found.tpot_s["p50"]) == (1, None)
    assert found.attainment == float(ttft_s < 0.2)


def test_case_e26_tpot_formulas_differ_and_each_has_its_name() -> None:
    assert 1e3 * float(tpot_s(0.5, 1.5, 11)) == pytest.approx(100.0)
    assert 1e3 * float(guidellm_tpot_s(1.5, 11)) == pytest.approx(136.4, abs=0.05)
    run = told([FINISHED], emitted=[11.0], output_tokens=[11.0], ttft_s=[0.5], last_s=[1.5], owed=[11.0])
    found = other_goodputs([run], (Target(1.0, 0.120),), 2.0)
    assert (found["vllm_bench"], found["guidellm_tpot"]) == (1.0, 0.0)
    assert "(E2E - TTFT) / (n - 1)" in DEFINITIONS["vllm_bench"]
    assert "E2E / n" in DEFINITIONS["guidellm_tpot"]
    assert set(DEFINITIONS) == {name for name in found if not name.endswith("_rps")}


def test_case_e41_a_mean_that_hides_the_tail_is_warned_of() -> None:
    whole_ms, chunked_ms = [43.0] + [11.0] * 255, [11.0] * 248 + [15.0] * 8
    assert sum(whole_ms) == sum(chunked_ms) == 2848
    late = [past_deadline(0.2 + 1e-3 * np.concatenate([[0.0], np.cumsum(g)]), 0.0, 0.2, 0.011125) for g in (whole_ms, chunked_ms)]
    assert late == [255, 0], "the deadline per token tells them apart, at a target of just their mean"
    gaps = lambda rows: np.bincount([gap_bin(1e-3 * g) for g in rows], minlength=GAP_BINS)[None]  # noqa: E731
    runs = [
        told([FINISHED], emitted=[257.0], output_tokens=[257.0], ttft_s=[0.2], last_s=[0.2 + 2.848], gaps=gaps(g), **marks)
        for g, marks in (
            (whole_ms, {"owed": [258.0], "on_time": [240.0], "max_gap_s": [0.043]}),
            (chunked_ms, {"owed": [257.0], "on_time": [257.0], "max_gap_s": [0.015]}),
        )
    ]
    sides = [summarise([run], (Target(1.0, 0.02),)) for run in runs]
    assert sides[0].others["vllm_bench"] == sides[1].others["vllm_bench"] == 1.0, "a mean cannot"
    assert [bool(s.notes) for s in sides] == [True, False]
    assert "a mean hides stalls" in sides[0].notes[0]
    assert "do not tune on mean TPOT" in sides[0].notes[0]
    assert hidden_by_means({"vllm_bench": 0.9}, 0.9) == hidden_by_means({}, None) == ""


def test_goodput_of_others_counts_what_they_count() -> None:
    target = (Target(0.2, 0.05),)
    run = told(
        [FINISHED, FINISHED, REJECTED, CANCELLED, CANCELLED, ABANDONED, WAITING],
        emitted=[10, 10, 0, 4, 0, 2, 0],
        ttft_s=[0.1, 0.3, math.nan, 0.1, math.nan, 0.1, math.nan],
        owed=[10, 10, 10, 4, 0, 10, 0],
        token_late=[1, 10, 0, 0, 0, 1, 0],
        end_s=5.0,
    )
    found = other_goodputs([run], target, 5.0)
    # cancelled and waiting with nothing due are nobody's failure; vllm counts what finished
    assert found["vllm_bench"] == 1 / 5
    assert found["vllm_bench_rps"] == 1 / 5
    # 10 + 10 + 10 of the lost, 4 + 0 of who left in time, 10 of who left late, and of the last one those due by the cut
    due_last = math.floor((5.0 - 3.0 - 0.2) / 0.05) + 1
    assert found["per_token_deadline"] == pytest.approx((9 + 0 + 0 + 4 + 0 + 1) / (10 + 10 + 10 + 4 + 0 + 10 + min(due_last, 10)))
    assert other_goodputs([run._replace(token_late=None)], target, 5.0)["per_token_deadline"] is None
    assert found["gap_only"] is None


SLOW = RegimePlant((0.1, 0.0, 0.0, 0.0, 0.0, 0.0), (0.1, 0.0, 0.0, 0.0, 0.0, 0.0))
"""A step takes 100 ms and holds one request of one token, so capacity is 10/s."""
LIMITS = Limits(100_000, max_tokens=100)


@dataclasses.dataclass(frozen=True)
class Even(WorkloadSource):
    """Requests of 100 prompt tokens and one output token, evenly spaced."""

    rate_rps: float = 10.0

    def draw(self, seed: int, requests: int, *, heldout: bool = False) -> Workload:
        return Workload(np.arange(requests) / self.rate_rps, np.full(requests, 100), np.ones(requests, int), np.zeros(requests, int))


def carried(rate_rps: float, off: float = 0.0, triage: str = "none") -> tuple[Load | None, list[Outcome]]:
    """Load and runs of an engine of 10/s whose plant may be off by a share either way."""
    ends = {"mixed.floor": (0.1 * (1 - off), 0.1 * (1 + off))} if off else {}
    plant = dataclasses.replace(known(SLOW, LIMITS), interval=ends)
    candidate = Candidate(StaticLaw(100.0), Policy(order="fcfs", triage=triage))
    run = simulate(plant, candidate, Draw(Even(rate_rps).draw(0, 600), np.ones(4), np.ones(4)), (TARGET,), LIMITS)
    return load_on(plant, candidate, Even(rate_rps), (TARGET,), LIMITS, [run]), [run]


TARGET = Target(1.0, 0.2)


def test_case_e11_a_load_past_saturation_is_said_with_the_growth_of_its_queue() -> None:
    load, runs = carried(12.4)
    assert load is not None
    assert (load.verdict, load.share) == ("unstable", pytest.approx(1.24, abs=0.005))
    assert load.sentence().startswith("unstable, queue +2.4/s")
    found = summarise(runs, (TARGET,), load)
    assert set(found.ttft_s.values()) == {None}, "no point TTFT past saturation"
    assert set(found.ci95["ttft_s"].values()) == {None}
    assert found.refused["ttft_s.p50"] == "the queue grows as long as the run lasts"
    assert found.load_text == load.sentence()
    assert set(summarise(runs, (TARGET,)).ttft_s.values()) == {None}, "nor where nobody measured the capacity: the runs show it"


def test_case_e11_within_the_plants_interval_of_saturation_nobody_can_say() -> None:
    load, runs = carried(9.5, off=0.2)
    assert load is not None
    assert load.verdict == "uncertain"
    assert (load.low, load.high) == (pytest.approx(0.76, abs=0.01), pytest.approx(1.14, abs=0.01))
    assert "uncertain: its interval holds 1 (load 0.95 [0.76, 1.14]" in load.sentence()
    found = summarise(runs, (TARGET,), load)
    assert set(found.ttft_s.values()) == {None}
    low, high = found.ci95["ttft_s"]["p50"] or [None, None]
    assert low is not None
    assert high is not None
    assert low <= high
    sure, runs = carried(9.5)
    assert sure is not None
    assert sure.verdict == "stable", "the same load on a plant that is known"
    assert summarise(runs, (TARGET,), sure).ttft_s["p50"] == pytest.approx(0.1)


def test_who_sheds_is_unstable_and_still_has_a_ttft() -> None:
    """The queue does not grow, so the TTFT of those served does not depend on how long the run was; attainment says the rest."""
    load, runs = carried(12.4, triage="timeout")
    assert load is not None
    assert load.verdict == "unstable"
    assert (load_verdict(runs[0]), queue_verdict(runs)) == ("unstable", "stable")
    assert summarise(runs, (TARGET,), load).ttft_s["p50"] is not None


@dataclasses.dataclass(frozen=True)
class Mixed(WorkloadSource):
    """Prompts of 50 to 8,000 tokens, a few of them most of the work."""

    rate_rps: float = 10.0

    def draw(self, seed: int, requests: int, *, heldout: bool = False) -> Workload:
        rng = np.random.default_rng([seed, heldout])
        prompts = np.clip(rng.lognormal(6.0, 1.3, requests), 50, 8000).astype(int)
        arrival_s = np.cumsum(rng.exponential(1 / self.rate_rps, requests))
        return Workload(arrival_s, prompts, rng.integers(20, 120, requests), np.zeros(requests, int))


@pytest.mark.parametrize("policy", [{}, {"aging_rate": 0.1, "memory_price_s": 0.003}, {"order": "edf"}, {"class_shares": (1.0,)}])
def test_a_capacity_is_that_of_the_requests_that_arrive_whoever_goes_first(policy: dict) -> None:
    """By slack the long prompts of a crowd went first, and capacity was that of them, of the short ones, or of neither."""
    limits, target = Limits(200_000, max_seqs=64, max_tokens=2048), Target(1.0, 0.05)
    plant = known(RegimePlant((6e-3, 7e-5, 5e-9, 0.0, 0.0, 0.0), (6e-3, 1e-4, 5e-9, 1.4e-5, 3e-10, 2e-4)), limits)
    stock = Candidate(StaticLaw(1024.0), Policy(order="fcfs", triage="none", running_limit=64.0))
    own = Candidate(StaticLaw(1024.0), Policy(**{"order": "slack", "triage": "reject", "running_limit": 64.0} | policy))
    rate = 25.0
    runs = [simulate(plant, own, Draw(Mixed(rate).draw(s, 1000), np.ones(4), np.ones(4)), (target,), limits) for s in range(3)]
    of_own, of_stock = (load_on(plant, c, Mixed(rate), (target,), limits, runs) for c in (own, stock))
    assert of_own is not None
    assert of_stock is not None
    assert of_own.capacity_rps == pytest.approx(of_stock.capacity_rps, rel=0.02)
    assert of_own.high - of_own.low < 0.25 * of_own.share
    # the same engine without shedding, a quarter of an hour on either side of it: it keeps up, and it does not
    for share, verdict in ((0.9, "stable"), (1.15, "unstable")):
        long = Mixed(share * of_own.capacity_rps).draw(9, 20_000)
        alone = own._replace(policy=dataclasses.replace(own.policy, triage="none"))
        assert load_verdict(simulate(plant, alone, Draw(long, np.ones(4), np.ones(4)), (target,), limits)) == verdict


@pytest.mark.parametrize("flooded", [(9.0, 0.4), (9.5, 0.1), (9.6, 0.3), (20.0, 0.9)])
def test_what_runs_carried_is_below_capacity_whatever_a_flood_drew(monkeypatch: pytest.MonkeyPatch, flooded: tuple[float, float]) -> None:
    monkeypatch.setattr("headway.experiments.saturation.flooded_rps", lambda _: flooded)
    load, runs = carried(9.5)
    assert load is not None
    assert load.capacity_rps >= 9.5
    assert load.verdict == "stable"
    assert summarise(runs, (TARGET,), load).ttft_s["p50"] is not None
    assert carried(9.5, off=0.2)[0].verdict == ("uncertain" if flooded[0] < 11 else "stable"), "but another plant might not carry it"  # pyright: ignore[reportOptionalMemberAccess]


def test_runs_whose_queue_grew_are_not_undone_by_what_a_flood_drew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.experiments.saturation.flooded_rps", lambda _: (11.0, 0.4))
    assert carried(12.4)[0].verdict == "unstable"  # pyright: ignore[reportOptionalMemberAccess]
    assert carried(12.4, off=0.3)[0].verdict == "uncertain"  # pyright: ignore[reportOptionalMemberAccess]


def test_who_sheds_has_a_ttft_where_the_plants_interval_leaves_the_load_open() -> None:
    load, runs = carried(10.5, off=0.2, triage="timeout")
    assert load is not None
    assert (load.verdict, queue_verdict(runs)) == ("uncertain", "stable")
    assert summarise(runs, (TARGET,), load).ttft_s["p50"] is not None, "how many are shed is open, not how long the others wait"


@given(st.floats(0.1, 100), st.floats(0.1, 100), st.floats(0, 0.5), st.floats(0, 0.5))
def test_a_load_is_unstable_above_its_interval_and_uncertain_within(rate: float, capacity: float, slower: float, faster: float) -> None:
    load = load_of(rate, capacity, slower, faster)
    assert load.low <= load.share <= load.high
    assert (load.verdict == "unstable") == (load.low > 1)
    assert (load.verdict == "uncertain") == (load.low <= 1 <= load.high)
    assert load.verdict in load.sentence()
    with pytest.raises(ValueError, match="rates must be positive"):
        load_of(0.0, capacity)


def test_a_plants_interval_is_that_of_the_time_its_coefficients_make() -> None:
    plant = AffinePlant((0.01, 1e-4, 0.0, 0.0, 0.0, 0.0))
    fitted = dataclasses.replace(known(plant, LIMITS), interval={"all.floor": (0.009, 0.012), "all.per_decode_request": (5e-5, 1e-4)})
    names = set(plant.coefficients())
    assert set(fitted.interval) <= names, names
    batch = Batch(np.full(5, 100.0), *(np.zeros(5),) * 4)  # 10 ms of floor and 10 ms of decodes
    slower, faster = plant_interval(fitted, batch)
    assert slower == pytest.approx(0.002 / 0.020)
    assert faster == pytest.approx(math.hypot(0.001, 0.005) / 0.020)
    assert plant_interval(known(plant, LIMITS), batch) == (0.0, 0.0)


def test_too_few_requests_have_no_capacity() -> None:
    assert math.isnan(flooded_rps(told([FINISHED] * 63))[0])
    assert flooded_rps(told([FINISHED] * 101, ttft_s=np.full(101, 0.1))) == (pytest.approx(2.0), pytest.approx(0.0, abs=0.02))
    uneven = flooded_rps(told([FINISHED] * 801, arrival_s=np.cumsum(np.random.default_rng(0).exponential(0.5, 801))))
    assert 2.0 / (1 + uneven[1]) < uneven[0] < 2.0 * (1 + uneven[1])
    assert 0.02 < uneven[1] < 0.2


def test_case_e34_a_law_on_a_limit_that_never_bound_is_blind() -> None:
    """The cache was 16 % full while requests were dropped: the running limit bound, and the law moved something else."""
    limits = Limits(100_000, max_seqs=4, max_tokens=4096)
    plant = RegimePlant((0.02, 0.0, 0.0, 0.0, 0.0, 0.0), (0.02, 0.0, 0.0, 1e-6, 0.0, 0.0))
    n = 200
    workload = Workload(0.02 * np.arange(n), np.full(n, 100), np.full(n, 50), np.zeros(n, int))
    candidate = Candidate(StaticLaw(4096.0), Policy(order="edf", triage="reject", running_limit=4.0))
    target = Target(0.2, 0.05)
    run = simulate(known(plant, limits), candidate, Draw(workload, np.ones(4), np.ones(4)), (target,), limits, record_steps=2000)
    found = summarise([run], (target,))
    assert found.shed > 0.5
    assert found.binding["running"] > 0.5
    assert found.binding["budget"] < 0.01
    labels = run.log[:, 10].astype(int)
    assert np.bincount(labels, minlength=5).tolist() == run.binding.tolist(), "every step says what bound it"
    said = blind(found.binding, kept=found.attainment >= 1 - target.epsilon)
    assert said.startswith("blind: the law moves the token budget, which bound 0.0 % of the steps; the running limit bound")
    assert blind(found.binding, "running") == ""
    assert blind(found.binding, kept=True) == ""


def test_where_a_steps_time_goes_adds_up_to_it() -> None:
    plant = RegimePlant((0.004, 1e-4, 2e-8, 0.0, 0.0, 0.0), (0.005, 1e-4, 2e-8, 3e-5, 1e-9, 2e-4))
    rng = np.random.default_rng(3)
    decode, prefill = rng.integers(0, 64, 50).astype(float), np.where(rng.random(50) < 0.5, 0.0, rng.integers(1, 2000, 50)).astype(float)
    batch = Batch(decode, 1000 * decode, prefill, 500 * prefill, np.sign(prefill))
    parts = spent_s(plant, batch)
    assert sum(parts.values()) == pytest.approx(np.asarray(plant.step_time_s(batch)))
    assert all((part >= -1e-15).all() for part in parts.values())
    for k, prompt in enumerate(prefill > 0):
        own = plant.mixed if prompt else plant.decode  # a linear law: each part is its coefficient times its sum
        told_s = dict(
            zip(("floor", *Batch._fields), (own[0], *(c * float(x[k]) for c, x in zip(own[1:], batch, strict=True))), strict=True)
        )
        assert {name: float(part[k]) for name, part in parts.items()} == pytest.approx(told_s, abs=1e-9)
    found = resources(plant, batch)
    assert set(found["time"]) == {*SUMS, "floor"}
    assert sum(found["time"].values()) == pytest.approx(1.0)
    assert sum(found["steps"].values()) == pytest.approx(1.0)
    assert resources(plant, batch_of(np.zeros((0, 12)))) == {}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_jains_index_lies_between_one_for_all_and_one_of_n(shares: list[float]) -> None:
    index = jain(shares)
    assert index is not None
    assert 1 / len(shares) - 1e-9 <= index <= 1 + 1e-9
    assert jain([0.3] * len(shares)) == pytest.approx(1.0)
    assert jain([1.0] + [0.0] * (len(shares) - 1)) == pytest.approx(1 / len(shares))


def test_fairness_names_the_worst_class_and_leaves_out_who_was_owed_nothing() -> None:
    found = fairness({"chat": 0.9, "batch": 0.6, "idle": None}, np.array([1.0, 0.5, 0.0]), np.array([1.0, 1.0, 0.0]))
    assert (found["worst_class"], found["worst_attainment"]) == ("batch", 0.6)
    assert found["jain_classes"] == pytest.approx(1.5**2 / (2 * (0.81 + 0.36)))
    assert found["jain_requests"] == pytest.approx(1.5**2 / (2 * 1.25))
    assert fairness({}, np.zeros(0), np.zeros(0)) == {
        "worst_class": None,
        "worst_attainment": None,
        "jain_classes": None,
        "jain_requests": None,
    }
