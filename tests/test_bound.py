"""The bound is above everything: exhausted schedules of tiny problems, every policy on small ones, tuned ones on real plants."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.controllers.default import default_candidate
from headway.controllers.feedforward import FeedforwardLaw
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw, draw, evaluate
from headway.experiments.baseline import static_grid
from headway.experiments.bound import attainable, relaxation_of, upper_bound
from headway.experiments.certified import Program
from headway.experiments.envelope import EXTRA, FLOOR, PER_DECODE, PER_KV, PER_PREFILL, Envelope, envelope, lines_below
from headway.experiments.feasibility import disaggregated, feasibility
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.models.concurrency import ConcurrencyPlant
from headway.models.curved import CurvedPlant
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ATTAINMENT, CLEAN, GOODPUT_TPS
from headway.models.noise import Noise
from headway.models.plant import Batch, Plant
from headway.models.regimes import AffinePlant, RegimePlant
from headway.models.roofline import RooflinePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload
from headway.workloads import workload_source
from tests.exact_schedules import Tiny, best_attainment, tiny
from tests.small_problems import known, problem

TICK_S = 0.01
LIMITS = Limits(kv_tokens=40_000, max_seqs=64, max_tokens=2048, prefix_cache="off")
PLANT = RegimePlant((6e-3, 1e-4, 5e-8, 0.0, 0.0, 0.0), (7e-3, 1e-4, 5e-8, 4e-5, 1e-9, 2e-4))
PLANTS: dict[str, Plant] = {
    "affine": AffinePlant((6e-3, 1e-4, 1e-7, 3e-5, 1e-9, 1e-4)),
    "regimes": PLANT,
    "knee and cliff": CurvedPlant(
        (5e-3, 6e-5, 8e-8, 0.0, 0.0, 0.0),
        (6e-3, 1e-4, 1e-7, 1e-5, 1e-9, 2e-4),
        (0.0, 1e-7, 0.0, 2e-3, 0.0, 0.0, 0.0, 1e-7),
        (1e-7, 1e-7, 2e-5, 0.0, 0.0, 3e-3, 1e-6, 2e-7),
        (228.0, 4.0, 13.0, 0.0, 512.0, 0.0, 20_000.0),
    ),
    "padded": CurvedPlant(
        (5e-3, 6e-5, 8e-8, 0.0, 0.0, 0.0),
        (6e-3, 0.0, 1e-7, 0.0, 0.0, 0.0),
        (0.0, 0.0, 0.0, 0.0, 5e-5, 1e-3, 0.0, 0.0),
        (0.0, 0.0, 0.0, 0.0, 3e-5, 4e-3, 2e-5, 0.0),
        (0.0, 0.0, 0.0, 48.0, 256.0, 16.0, 0.0),
    ),
    "roofline": RooflinePlant((1e-3, 2e-3, 1e-5, 1e-4, 5e-3, 1e-7, 3e-5, 1e-9, 3.0)),
    "sharp roof": RooflinePlant((1e-3, 2e-3, 1e-5, 1e-4, 5e-3, 1e-7, 3e-5, 1e-9, 0.0)),
    "concurrency": ConcurrencyPlant((5e-3, 5e-5, 1e-3)),
}


def load(rate_rps: float, requests: int = 150, classes: int = 1, seed: int = 0) -> Workload:
    """Poisson arrivals, mean prompt 900 and mean output 60."""
    rng = np.random.default_rng(seed)
    arrival_s = np.concatenate([[0.0], np.cumsum(rng.exponential(1, requests - 1))]) / rate_rps
    prompt, output = rng.geometric(1 / 900, requests).clip(1, 6000), rng.geometric(1 / 60, requests).clip(1, 600)
    return Workload(arrival_s, prompt, output, rng.integers(0, classes, requests))


def of_tiny(t: Tiny) -> tuple[IdentifiedPlant, Workload, tuple[Target, ...], Limits, np.ndarray]:
    limits = Limits(kv_tokens=t.cache, block_tokens=1, max_seqs=t.running, max_tokens=t.budget, prefix_cache="off")
    plant = AffinePlant((t.floor * TICK_S, t.per_decode * TICK_S, t.per_read * TICK_S, t.per_token * TICK_S, 0.0, 0.0))
    workload = Workload(np.array(t.arrival) * TICK_S, np.array(t.prompt), np.array(t.output), np.zeros(len(t.arrival), np.int64))
    return known(plant, limits), workload, (Target(t.ttft * TICK_S, t.itl * TICK_S),), limits, np.array(t.factors, float)


def test_not_below_the_best_of_all_schedules_on_200_tiny_problems():
    """Exhausted: rejections, orders, chunks, pauses, idling, with the noise known; and the bound is no mere 1."""
    found = []
    for seed in range(200):
        t = tiny(seed)
        identified, workload, targets, limits, z = of_tiny(t)
        best = best_attainment(t)
        bound = upper_bound(identified, workload, targets, limits, factors=(z, z)).attainment
        assert bound >= best - 1e-9, (seed, best, bound, t)
        found.append((best, bound))
    best, bound = np.array(found).T
    assert (best < 0.999).mean() > 0.5, "problems that anybody solves would show nothing"
    assert (bound - best < 1e-3).mean() > 0.5
    assert (bound < 0.999).mean() > 0.5


def test_exhausted_search_agrees_with_a_schedule_by_hand():
    """Prompt of 2, output of 3, steps of 2 ticks and 1 a prompt token: first token at 4, then gaps of 2."""
    t = Tiny((0,), (2,), (3,), 4, 2, 2, 0, 1, 0, (1,), 9, 1, 4)
    assert best_attainment(t) == 1.0
    assert best_attainment(t._replace(ttft=3)) == 0.0
    assert best_attainment(t._replace(itl=1)) == pytest.approx(1 / 5)  # two late gaps owe two each


@pytest.mark.parametrize("part", range(4))
def test_not_below_any_policy_on_small_problems(part: int):
    """Every order, triage, phase, share, preemption, cache, client and noise of the engine; whole and cut."""
    for seed in range(part, 100, 4):
        p = problem(seed)
        for cut_s in (0.0, (0.3, 1.0, 3.0)[seed % 3]):
            measures = evaluate(p.identified, [p.candidate], [p.drawn], p.targets, p.limits, cut_s=cut_s)[0, 0]
            factors = (p.drawn.decode, p.drawn.mixed)
            bound = upper_bound(p.identified, p.drawn.workload, p.targets, p.limits, cut_s, factors=factors)
            for reached, most in (
                (measures[ATTAINMENT], bound.attainment),
                (measures[GOODPUT_TPS], bound.goodput_tps),
                (measures[CLEAN], bound.request_attainment),
            ):
                assert reached <= most + 1e-9 * max(1.0, most), (seed, cut_s, reached, most)


@pytest.mark.parametrize("rate_rps", [8.0, 20.0, 40.0])
def test_not_below_any_start_up_setting_on_an_overloaded_engine(rate_rps: float):
    """All statics, with and without a queue timeout, on steps with noise; well over capacity it says so."""
    rng = np.random.default_rng(1)
    noise = Noise(rng.normal(0, 0.02, 400), rng.normal(0, 0.04, 400))
    identified, workload, targets = known(PLANT, LIMITS, noise), load(rate_rps), (Target(1.0, 0.03),)
    drawn = Draw(workload, *noise.draw(3, 8192))
    candidates = [s.candidate() for timeout in (None, 0.8) for s in static_grid(LIMITS, timeout)]
    measures = evaluate(identified, candidates, [drawn], targets, LIMITS)[:, 0]
    known_noise = upper_bound(identified, workload, targets, LIMITS, factors=(drawn.decode, drawn.mixed))
    any_noise = upper_bound(identified, workload, targets, LIMITS)
    for bound in (known_noise, any_noise):
        assert measures[:, ATTAINMENT].max() <= bound.attainment + 1e-9
        assert measures[:, CLEAN].max() <= bound.request_attainment + 1e-9
        assert measures[:, GOODPUT_TPS].max() <= bound.goodput_tps * (1 + 1e-9)
    assert known_noise.attainment <= any_noise.attainment + 1e-3
    assert (known_noise.attainment < 0.97) == (rate_rps == 40.0)


def test_falls_with_load_and_rises_with_target_and_pool():
    identified = known(PLANT, LIMITS)
    at: Callable[..., float] = lambda rate=40.0, ttft=1.0, itl=0.03, limits=LIMITS: (  # noqa: E731
        upper_bound(identified, load(rate), (Target(ttft, itl),), limits, bin_s=0.25).attainment
    )
    slack = 5e-3  # bins fall differently, and a ratio is found to 2e-4
    loads = [at(rate) for rate in (20.0, 30.0, 40.0, 60.0)]
    assert all(a >= b - slack for a, b in pairwise(loads))
    assert loads[0] > loads[-1] + 0.1
    for name, values in (("ttft", (0.3, 1.0, 3.0)), ("itl", (0.012, 0.03, 0.06))):
        rising = [at(**{name: value}) for value in values]
        assert all(a <= b + slack for a, b in pairwise(rising)), (name, rising)
        assert rising[0] < rising[-1] - 0.01, (name, rising)
    pools = [at(25.0, limits=dataclasses.replace(LIMITS, kv_tokens=k)) for k in (7000, 15_000, 40_000)]
    assert all(a <= b + slack for a, b in pairwise(pools)), pools
    assert pools[0] < pools[-1] - 0.01, pools


def test_one_request_by_hand():
    """Prompt 1,000 at 40 us, 10 ms a step: first token at 50 ms; gaps of 10 ms."""
    plant = AffinePlant((0.01, 0.0, 0.0, 4e-5, 0.0, 0.0))
    one = Workload(np.zeros(1), np.array([1000]), np.array([11]), np.zeros(1, np.int64))
    at = lambda ttft, itl: upper_bound(known(plant, LIMITS), one, (Target(ttft, itl),), LIMITS)  # noqa: E731
    assert at(0.051, 0.01).attainment == 1.0
    assert at(0.049, 0.01).attainment == 0.0
    assert at(0.051, 0.01).goodput_tps == pytest.approx(11 / 0.15)
    assert at(0.051, 0.0049).attainment == pytest.approx(
        11 / 31
    )  # ten late gaps owe two tokens each: 1 of 21, which (1) of the theory turns into 11 of 31


def test_clients_who_may_leave_and_followers_are_given_away():
    workload = load(40.0)
    identified, targets = known(PLANT, LIMITS), (Target(1.0, 0.03),)
    plain = upper_bound(identified, workload, targets, LIMITS)
    half = np.where(np.arange(len(workload)) % 2 == 0, 0.5, np.inf)
    leaving = upper_bound(identified, workload.with_patience(half), targets, LIMITS)
    after = np.where(np.arange(len(workload)) % 3 == 1, np.arange(len(workload)) - 1, -1)
    turns = upper_bound(identified, workload.with_thinking(after, 0.1), targets, LIMITS)
    for bound, given_away in ((leaving, 75), (turns, 50)):
        assert bound.attainment >= plain.attainment - 1e-3
        assert any(text.startswith(f"{given_away} of 150 requests count as on time at no cost") for text in bound.said), bound.said
        assert np.isnan(bound.served).sum() >= given_away


@functools.cache
def _envelope_of(name: str) -> Envelope:
    return envelope(PLANTS[name], LIMITS)


@pytest.mark.parametrize("name", PLANTS)
@settings(max_examples=150)
@given(st.integers(0, 64), st.floats(1.0, 4000.0), st.lists(st.tuples(st.integers(1, 600), st.integers(0, 4000)), max_size=4))
def test_planes_lie_below_the_plant(name: str, decodes: int, context: float, chunks: list[tuple[int, int]]):
    """Any step that an engine with these limits can make, by the plane of a kind that it is of."""
    prefill = sum(x for x, _ in chunks)
    if decodes + prefill == 0 or decodes + prefill > LIMITS.max_tokens:
        return
    pairs = sum(x * (c + x / 2) for x, c in chunks)
    plant, below = PLANTS[name], _envelope_of(name)
    kv = decodes * context
    step_s = float(plant.step_time_s(Batch(float(decodes), kv, float(prefill), float(pairs), float(len(chunks)))))
    extra_s = below.per_pair_s * pairs + below.per_prompt_s * len(chunks)
    kinds = [k for k in below.kinds if k.mixed or prefill == 0]
    if any(not k.mixed for k in below.kinds) and prefill == 0:
        kinds = [k for k in kinds if not k.mixed]
    kind = next(k for k in kinds if decodes + prefill <= k.most_tokens and decodes <= k.most_decodes)
    assert (kind.planes >= 0).all()
    for p in kind.planes:
        least = p[FLOOR] + p[PER_DECODE] * decodes + p[PER_KV] * kv + p[PER_PREFILL] * prefill + p[EXTRA] * extra_s
        assert least <= step_s * (1 + 1e-9) + 1e-15


def test_lines_follow_a_law_that_bends_and_jumps():
    at = np.arange(1001.0)
    for law in (1 - np.exp(-at / 20), np.where(at > 500, 5.0, 0.0) + at / 500, np.maximum(at, 300.0) / 100):
        lines, first = lines_below(law, 1.0), 0
        for last, height, slope in lines:
            part = np.arange(first, int(last) + 1)
            assert slope >= 0
            assert (height + slope * part <= law[part] + 1e-12).all()
            first = int(last) + 1
        assert first == len(law)
        assert len(lines) <= 5


def test_certificate_holds_at_any_prices():
    """max x + y, x + 2 y <= 4, x <= 1: 2.5; and never below the point."""
    program = Program()
    x = program.variables(2, np.array([1.0, 9.0]))
    program.rows([(np.zeros(2, int), x, np.array([1.0, 2.0]))], 4.0, 1)
    found = program.largest(np.ones(2))
    assert found.value == pytest.approx(2.5)
    assert found.point @ np.ones(2) <= found.value + 1e-12


def test_promise_asked_of_one_program_is_the_bound():
    identified, targets = known(PLANT, LIMITS), (Target(1.0, 0.03),)
    demand, relaxed = relaxation_of(identified, load(40.0), targets, LIMITS)
    bound = upper_bound(identified, load(40.0), targets, LIMITS).attainment
    assert attainable(demand, relaxed, bound - 1e-3)
    assert not attainable(demand, relaxed, bound + 1e-3)


def test_an_infeasible_promise_is_named_with_the_changes_that_it_needs():
    """Each change is the smallest: just short of it, the promise is still ruled out."""
    identified, workload, target = known(PLANT, LIMITS), load(30.0, 120), Target(1.0, 0.012)
    verdict, *said = feasibility(identified, workload, (target,), LIMITS, bin_s=0.3)
    assert verdict.startswith("no policy can attain 99 %: at most ")
    assert said
    at = lambda load, promised: attainable(*relaxation_of(identified, load, (promised,), LIMITS, bin_s=0.3), 0.99)  # noqa: E731
    rate_rps = float(verdict.split(" requests/s")[0].split()[-1])
    itl_s, ttft_s = (float(verdict.split(f" {word} target of ")[1].split()[0]) for word in ("ITL", "TTFT"))
    itl_s *= 1e-3
    assert rate_rps < 30.0
    assert itl_s > 0.012
    assert ttft_s > 1.0
    assert at(workload.rescaled(0.98 * rate_rps), target)
    assert not at(workload.rescaled(1.06 * rate_rps), target)
    assert at(workload, Target(1.0, 1.02 * itl_s))
    assert not at(workload, Target(1.0, 0.94 * itl_s))
    assert at(workload, Target(1.02 * ttft_s, 0.012))
    assert not at(workload, Target(0.94 * ttft_s, 0.012))
    assert "with 2 replicas" in verdict
    assert "with prefill and decode on an engine each" in verdict


def test_a_promise_that_can_be_kept_is_not_called_infeasible():
    (verdict,) = feasibility(known(PLANT, LIMITS), load(4.0, 60), (Target(1.0, 0.03),), LIMITS)
    assert verdict.startswith("99 % is not ruled out")


def test_an_engine_each_for_prefill_and_decode_is_allowed_more():
    identified, targets = known(PLANT, LIMITS), (Target(1.0, 0.012),)
    workload = load(30.0, 120)
    bound = upper_bound(identified, workload, targets, LIMITS).attainment
    assert bound < 0.98
    assert disaggregated(identified, workload, targets, LIMITS, bound + 0.01)
    assert not disaggregated(identified, workload, (Target(0.05, 0.03),), LIMITS, 0.99)  # prompts of 60 ms alone


def test_tuned_and_default_candidates_stay_below_on_a_real_plant(shared_data):
    """Measured plant and arrivals, at 1.6 and 3 times the rate that the best start-up setting carries."""
    identified = fit(read_trace(shared_data / "steps" / "fpm_vllm0201_b300" / "qwen3-32b_tp4.fpm_detail.csv"))
    limits, targets = Limits(kv_tokens=200_000, max_tokens=8192), (Target(1.0, 0.025),)
    laws = [FeedforwardLaw(identified.plant, margin=m, ki=0.0, most_tokens=8192.0) for m in (0.05, 0.1, 0.15)]
    policies = [Policy(order=o, triage=t, tolerance=v) for o in ("edf", "slack") for t in ("reject", "defer") for v in (-0.1, 0.0)]
    tuned = [Candidate(law, policy) for law in laws for policy in policies]
    for rate_rps in (21.0, 40.0):
        source = workload_source(str(shared_data / "workloads" / "AzureLLMInferenceTrace_conv.csv"), rate_rps=rate_rps)
        drawn = draw(source, identified, 0, 300)
        candidates = [default_candidate(identified, targets, limits), *tuned, *(s.candidate() for s in static_grid(limits, 0.8))]
        measures = evaluate(identified, candidates, [drawn], targets, limits)[:, 0]
        bound = upper_bound(identified, drawn.workload, targets, limits, factors=(drawn.decode, drawn.mixed))
        assert measures[:, ATTAINMENT].max() <= bound.attainment + 1e-9
        assert measures[:, CLEAN].max() <= bound.request_attainment + 1e-9
        assert measures[:, GOODPUT_TPS].max() <= bound.goodput_tps
