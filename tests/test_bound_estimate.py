"""The estimate, clairvoyant shedding, and the lesson that a policy can take from them."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.controllers.feedforward import FeedforwardLaw
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.experiments.bound import upper_bound
from headway.experiments.certified import Program
from headway.experiments.estimate import Estimate, estimate, lateness_lines
from headway.experiments.feasibility import feasibility
from headway.experiments.shedding import clairvoyant_shedding, lesson, part_of
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.models.measures import ATTAINMENT
from headway.models.plant import Batch
from headway.models.regimes import AffinePlant, RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload
from tests.small_problems import known
from tests.test_bound_adversaries import LIMITS, PLANT, TARGET, load, noise


def test_a_step_without_noise_is_late_by_whole_targets():
    """f(y) = floor(y / D) beyond D: its lower hull is (y - D) / D."""
    lines = lateness_lines(np.ones(3), 0.02, 0.02)
    below = lambda y: float(np.max(lines[:, 0] * y - lines[:, 1], initial=0.0))  # noqa: E731
    assert below(0.02) == pytest.approx(0.0, abs=0.01)
    for targets in (1.5, 2.0, 3.0):
        assert below(targets * 0.02) == pytest.approx(targets - 1, abs=0.02)


@settings(max_examples=100)
@given(st.integers(0, 1000), st.floats(0.1, 3.9), st.floats(0.0, 0.5))
def test_lines_lie_below_the_mean_lateness(seed: int, targets: float, transport: float):
    """E [y z > B] floor((y z + D - B) / D), for any noise and transport; noise makes steps late that would not be."""
    z = np.exp(np.random.default_rng(seed).normal(0, 0.1, 300))
    itl_s, y = 0.02, 0.02 * targets
    budget_s = itl_s * (1 - transport)
    times = y * z / z.mean()
    f = np.where(times > budget_s, np.floor((times + itl_s - budget_s) / itl_s), 0.0).mean()
    lines = lateness_lines(z, itl_s, budget_s)
    assert np.max(lines[:, 0] * y - lines[:, 1]) <= f + 0.05  # the law is looked at on a grid


def test_one_request_and_a_step_that_is_always_late():
    """Ten steps of 10 ms where 4 ms are promised: each owes two tokens, none is on time but the first."""
    plant = AffinePlant((0.01, 0.0, 0.0, 4e-5, 0.0, 0.0))
    one = Workload(np.zeros(1), np.array([1000]), np.array([11]), np.zeros(1, np.int64))
    at = lambda itl_s: estimate(known(plant, LIMITS), one, (Target(0.1, itl_s),), LIMITS).attainment  # noqa: E731
    assert at(0.0101) == pytest.approx(1.0)
    assert at(0.0049) <= 11 / 25


def test_steady_prompts_by_hand():
    """Steps of 10 ms and 40 ms a prompt, decodes for nothing: 20 of each 30 ms are left for prompts, 16.7 a second of 60.

    To make all streams late for more prompts does not pay: 25 L (2/3 + g/3) (1 - g) falls with the share g of time that is taken so.
    """
    n, plant = 600, AffinePlant((0.01, 1e-9, 0.0, 4e-5, 0.0, 0.0))
    w = Workload(np.arange(n) / 60.0, np.full(n, 1000), np.full(n, 35), np.zeros(n, np.int64))
    found = estimate(known(plant, LIMITS), w, (Target(1.0, 0.03),), LIMITS)
    steady = 2 / 3 * 25 / 60
    assert found.attainment >= steady
    assert found.attainment <= steady * 11 / 10 + 0.02  # 10 s of arrivals, one more in time; before the first streams prompts are alone
    assert upper_bound(known(plant, LIMITS), w, (Target(1.0, 0.03),), LIMITS).attainment >= found.attainment


def test_falls_with_load_and_reserve_and_stays_below_the_bound():
    identified, z = known(PLANT, LIMITS), noise(2)
    at = lambda rate, slower=1.0: (  # noqa: E731
        estimate(identified, load(rate, 100), (TARGET,), LIMITS, factors=z, slower=slower, bin_s=0.25).attainment
    )
    loads = [at(rate) for rate in (10.0, 60.0, 160.0)]
    assert loads[0] > 0.99
    assert all(a >= b - 5e-3 for a, b in pairwise(loads)), loads
    assert loads[-1] < 0.9
    reserves = [at(60.0, slower) for slower in (1.0, 1.4)]
    assert all(a > b for a, b in pairwise(reserves)), reserves
    bound = upper_bound(identified, load(160.0, 100), (TARGET,), LIMITS, factors=z, bin_s=0.25).attainment
    assert loads[-1] <= bound + 5e-3


def test_a_cache_that_holds_few_streams_serves_few():
    z, w, identified = (np.ones(8), np.ones(8)), load(25.0, 80), known(PLANT, LIMITS)
    pools = [
        estimate(identified, w, (TARGET,), dataclasses.replace(LIMITS, kv_tokens=k), factors=z, bin_s=0.25).attainment
        for k in (8000, 20_000, 200_000)
    ]
    assert pools[0] < pools[1] < pools[2] + 1e-9, pools


def test_rows_can_be_taken_back():
    program = Program()
    x = program.variables(2, 3.0)
    program.rows([(np.zeros(2, int), x, 1.0)], 4.0, 1)
    mark = program.mark()
    program.rows([(np.zeros(1, int), x[:1], 1.0), (np.zeros(1, int), x[1:], 1.0)], 1.0, 1)
    assert program.largest(np.ones(2)).value == pytest.approx(1.0)
    program.forget(mark)
    assert program.largest(np.ones(2)).value == pytest.approx(4.0)
    program.rows([(np.zeros(1, int), x[:1], 1.0)], 0.5, 1)
    assert program.largest(np.ones(2)).value == pytest.approx(3.5)


def _choice(served: np.ndarray) -> Estimate:
    return Estimate(0.9, served.astype(float), 20.0, ())


def test_lesson_finds_the_longest_prompt_to_keep():
    rng = np.random.default_rng(0)
    prompt = rng.integers(10, 2000, 200)
    w = Workload(np.arange(200) / 10.0, prompt, np.full(200, 50), np.zeros(200, np.int64))
    identified = known(PLANT, LIMITS)
    found = lesson(identified, w, (TARGET,), LIMITS, _choice(prompt <= 700))
    assert found.prompt_tokens[0] == prompt[prompt <= 700].max()
    assert found.agreement == 1.0
    # 27 ms less 9 ms for 20 streams: 18 ms at 4e-5 a token and the prompt's own 2e-4
    rate = found.estimates[0] * found.prompt_tokens[0] / (0.7 * TARGET.ttft_s)
    u = rate * 0.027
    step = PLANT.step_time_s(Batch(20.0, 20.0 * (prompt.mean() + 25), u, u * prompt.mean() / 2, u / prompt.mean()))
    assert float(step) == pytest.approx(0.027, rel=1e-3)
    everyone = lesson(identified, w, (TARGET,), LIMITS, _choice(prompt > 0))
    assert everyone.prompt_tokens == (np.inf,)
    assert everyone.estimates == (1.0,)
    assert {p.estimate for p in everyone.policies(Policy())} == {1.0}
    assert {p.triage for p in everyone.policies(Policy())} == {"reject", "defer"}


def test_lesson_is_per_class():
    prompt = np.tile([100, 3000], 50)
    kind = np.tile([0, 1], 50)
    w = Workload(np.arange(100) / 10.0, prompt, np.full(100, 50), kind)
    targets = (TARGET, Target(10.0, 0.03, name="documents"))
    found = lesson(known(PLANT, LIMITS), w, targets, LIMITS, _choice(np.where(kind == 0, True, np.arange(100) % 4 == 1)))
    assert found.prompt_tokens[0] == np.inf
    assert found.estimates[0] == 1.0
    (first, *_) = found.policies(Policy(order="edf"))
    assert first.triage == "reject"
    assert len(np.atleast_1d(first.estimate)) == 2


def test_lesson_helps_an_overloaded_engine():
    """Searched from the lesson, the same few laws attain more than triage on the plain estimate."""
    gains = []
    for seed in range(3):
        w, z = load(40.0, 250, seed), noise(seed)
        drawn, identified = Draw(w, *z), known(PLANT, LIMITS)
        laws = [FeedforwardLaw(PLANT, margin=m, most_tokens=4096.0) for m in (0.05, 0.15)]
        at = lambda policies, laws=laws, drawn=drawn, identified=identified: float(  # noqa: E731
            evaluate(identified, [Candidate(law, p) for law in laws for p in policies], [drawn], (TARGET,), LIMITS)[:, 0, ATTAINMENT].max()
        )
        choice = estimate(identified, w, (TARGET,), LIMITS, factors=z, slower=1.15)
        taught = lesson(identified, w, (TARGET,), LIMITS, choice).policies(Policy(order="slack"))
        gains.append(at(taught) - at([Policy(order="slack", triage="reject", tolerance=t) for t in (-0.2, 0.0)]))
    assert min(gains) > -0.01, gains
    assert np.mean(gains) > 0.02, gains


def test_part_of_a_workload_keeps_who_waits_for_whom():
    w = load(10.0, 6).with_thinking(np.array([-1, -1, 0, -1, 2, -1]), 0.5)
    part = part_of(w, np.array([0, 2, 4, 5]))
    part.check()
    assert part.after is not None
    assert part.after.tolist() == [-1, 0, 1, -1]
    drawn = Draw(w, np.ones(64), np.ones(64))
    law = FeedforwardLaw(PLANT, margin=0.1, most_tokens=4096.0)
    shed = clairvoyant_shedding(known(PLANT, LIMITS), [Candidate(law, Policy())], drawn, (TARGET,), LIMITS)
    assert shed.kept.all()


@pytest.mark.slow
@pytest.mark.parametrize(("file", "rate_rps"), [("qwen3-32b_tp4", 90.0), ("qwen3.6-35b-a3b_tp4", 600.0), ("8b", 60.0)])
def test_promises_that_real_plants_cannot_keep(shared_data, file: str, rate_rps: float):
    """Well past what prompts alone take: infeasible, with a slower rate, more replicas and longer targets among what it needs."""
    steps = shared_data / "steps"
    path = steps / "llmservingsim" / "RTXPRO6000_Llama-3.1-8B" / "tp1" / "attention.csv"
    trace = read_trace(path if file == "8b" else steps / "fpm_vllm0201_b300" / f"{file}.fpm_detail.csv")
    rng, n = np.random.default_rng(0), 300
    w = Workload(np.arange(n) / rate_rps, rng.integers(400, 3000, n), rng.integers(50, 400, n), np.zeros(n, np.int64))
    limits = Limits(kv_tokens=200_000, max_tokens=8192)
    verdict, *_ = feasibility(fit(trace), w, (Target(1.0, 0.025),), limits)
    assert verdict.startswith("no policy can attain 99 %")
    assert "replicas" in verdict
    assert "requests/s" in verdict


def test_regimes_with_cheap_decodes_gain_nothing_from_taking_turns():
    """Prompts in giant steps beside cheap decode-only ones: what the bound allows, the estimate charges to all who are alive."""
    plant = RegimePlant((4e-3, 2e-5, 0.0, 0.0, 0.0, 0.0), (15e-3, 2e-4, 0.0, 4e-5, 0.0, 0.0))
    w, identified, z = load(26.0, 300), known(plant, LIMITS), (np.ones(4), np.ones(4))
    found = estimate(identified, w, (TARGET,), LIMITS, factors=z)
    bound = upper_bound(identified, w, (TARGET,), LIMITS, factors=z)
    assert found.attainment < bound.attainment - 0.01
