"""The fluid of the scheduler: what it conserves, what it must do, and that its gradient is the gradient of what it computes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from headway.controllers.exact_gradient import Differences, exact_objective, simulator_values
from headway.controllers.feedforward import FeedforwardLaw
from headway.controllers.fluid.budget import Make, budget
from headway.controllers.fluid.gate import cosine, fluid_gate, noise_ceiling
from headway.controllers.fluid.noise import StepNoise, step_noise
from headway.controllers.fluid.state import Knobs
from headway.controllers.fluid.threshold import Offers, fill, root
from headway.controllers.fluid.value import FluidLoad, Forms, Grid, fluid_load, fluid_value, setting, setting_of, slots_for
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, draw
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.plant import Batch
from headway.models.regimes import AffinePlant, RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload

PLANT = AffinePlant((8e-3, 2e-5, 4e-8, 4e-5, 0.0, 0.0))
TARGETS = (Target(0.6, 0.025, name="chat"), Target(3.0, 0.025, name="doc"))
LIMITS = Limits(kv_tokens=384_000, max_seqs=128, max_tokens=4096, watermark=0.02)
NOISE = StepNoise(-0.0018, 0.06, 0.02, 2.5, 0.15)
NAMES = ("margin", "aging_rate", "chunk_tokens", "trim", "share", "boost")
START = jnp.asarray([0.2, 0.3, 9.0, 0.05, 0.5, 0.2])
GRID = Grid(slots=400, slot_s=0.1, width_s=0.3, rows=96, admission=False, dtype=jnp.float64)


def made(seed: int, requests: int = 150, rate_rps: float = 11.0) -> Workload:
    """Chats and documents, arrivals in bursts."""
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.gamma(0.5, 2.0 / rate_rps, requests))
    doc = rng.random(requests) < 0.2
    prompt = np.where(doc, rng.lognormal(8.0, 0.5, requests), rng.lognormal(6.0, 0.7, requests)).clip(16, 12_000)
    output = rng.lognormal(5.0, 0.7, requests).clip(4, 600)
    return Workload(arrival - arrival[0], prompt.astype(int), output.astype(int), doc.astype(np.int64))


def knobs(x, seen):
    return Knobs(x[0], x[1], 2.0 ** x[2], x[3], x[4], x[5])


def held(limits=LIMITS, targets=TARGETS, plant=PLANT):
    return setting(plant, (NOISE, NOISE), targets, limits)


@functools.cache
def compiled(grid: Grid = GRID, triage: str = "defer"):
    """One compilation for all pools and limits: they are numbers."""

    def run(x, load, pool_tokens=384_000.0, max_seqs=128.0):
        setting_ = held()._replace(pool_tokens=pool_tokens, max_seqs=max_seqs)
        return fluid_value(x, load, setting_, TARGETS, grid, forms=Forms("slack", triage), schedule=knobs)

    return jax.jit(run)


@functools.cache
def derivative():
    run = compiled()
    return jax.jit(lambda x, load: (run(x, load).gap_share, jax.jacfwd(lambda y: run(y, load).gap_share)(x)))


def load_of(seed: int, **options) -> FluidLoad:
    return fluid_load(made(seed, **options), jnp.float64)


def test_its_gradient_is_that_of_its_own_values():
    load, run = load_of(1), compiled()
    forward = np.asarray(derivative()(START, load)[1])
    step = np.array([2e-3, 2e-3, 2e-3, 2e-3, 2e-3, 2e-3])
    ends = [[float(run(START.at[i].add(s * step[i]), load).gap_share) for s in (1, -1)] for i in range(6)]
    slopes = np.array([(a - b) / (2 * h) for (a, b), h in zip(ends, step, strict=True)])
    unit = np.array([0.05, 0.5, 0.5, 0.05, 0.1, 0.2])
    assert np.linalg.norm(slopes * unit) > 1e-3
    assert cosine(forward * unit, slopes * unit) > 0.98
    assert np.sign(forward[0]) == np.sign(slopes[0])


def test_reverse_and_forward_mode_agree_and_checkpointing_changes_nothing():
    load = load_of(2)
    remembered = compiled(GRID._replace(checkpoint=True))
    forward = derivative()(START, load)[1]
    backward = jax.jit(jax.grad(lambda x: remembered(x, load).gap_share))(START)
    np.testing.assert_allclose(backward, forward, rtol=1e-6, atol=1e-9)


def test_a_seed_more_in_a_batch_changes_no_other():
    loads = [load_of(seed) for seed in (3, 4)]
    both = jax.tree.map(lambda *x: jnp.stack(x), *loads)
    run = compiled()
    together = jax.jit(jax.vmap(lambda load: run(START, load).attainment))(both)
    apart = [float(run(START, load).attainment) for load in loads]
    np.testing.assert_allclose(together, apart, rtol=1e-6)


def test_a_schedule_of_many_parameters_and_a_plant_can_stand_above_it():
    load = load_of(5)
    table = jnp.tile(START[:, None], (1, 4))

    def schedule(x, seen):
        weight = jnp.maximum(1.0 - jnp.abs(jnp.clip(jnp.log2(1.0 + seen.queued_tokens / 500.0), 0.0, 3.0) - jnp.arange(4.0)), 0.0)
        return knobs(x @ weight, seen)

    grid = GRID._replace(checkpoint=True, slots=200)

    def share(x, law):
        return fluid_value(x, load, held(plant=AffinePlant(law)), TARGETS, grid, forms=Forms("slack", "defer"), schedule=schedule).gap_share

    law = jnp.asarray(PLANT.law)
    by_table, by_law = jax.jit(jax.grad(share, argnums=(0, 1)))(table, law)
    flat = jax.jit(jax.grad(lambda x: share(jnp.tile(x[:, None], (1, 4)), law)))(START)
    np.testing.assert_allclose(by_table.sum(1), flat, rtol=1e-6, atol=1e-9)
    assert float(by_law[0]) < 0  # a slower step never helps
    assert float(by_law[3]) < 0


@pytest.mark.parametrize("admission", [False, True])
def test_mass_is_conserved_and_the_budget_is_never_exceeded(admission):
    load = load_of(6, rate_rps=14.0)
    result = compiled(GRID._replace(admission=admission))(START, load)
    progress, emitted = np.asarray(result.progress), np.asarray(result.emitted)
    assert (progress >= 0).all()
    assert (progress <= 1).all()
    assert (emitted >= -1e-9).all()
    assert (emitted <= np.asarray(load.output) + 1e-6).all()
    np.testing.assert_allclose(float(result.served), float((progress * np.asarray(load.prompt)).sum()), rtol=1e-3)
    assert float(result.excess) < 1e-6
    assert 0 <= float(result.good) <= float(load.output.sum()) <= float(result.owed)
    assert float(result.attainment) <= float(result.gap_share) <= 1


def test_one_request_alone_is_on_time_with_the_closed_form():
    load = FluidLoad(jnp.asarray([0.5]), jnp.asarray([300.0]), jnp.asarray([200.0]), jnp.asarray([0], jnp.int32))
    result = compiled()(START, load)
    # decode steps of one request, far below the target: late by noise alone
    step_s = float(PLANT.step_time_s(Batch(1, 400, 0, 0, 0)))
    expected = float(NOISE.on_time(step_s, 0.025, 0.05))
    assert float(result.gap_share) == pytest.approx(expected, abs=2e-3)
    late = compiled()(START.at[2].set(3.0), load._replace(prompt=jnp.asarray([3000.0])))  # chunks of 8: .6 s is too short
    assert float(late.gap_share) < 0.05


def test_more_load_and_a_slower_plant_never_help():
    run, rates = compiled(), (8.0, 11.0, 14.0, 20.0)
    shares = [float(np.mean([run(START, load_of(s, rate_rps=rate)).attainment for s in (7, 8)])) for rate in rates]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] - shares[-1] > 0.1


def test_a_cache_or_running_limit_that_binds_costs_and_one_that_does_not_changes_nothing():
    load, grid = load_of(9, rate_rps=11.0), GRID._replace(admission=True)
    free = float(compiled(grid)(START, load).attainment)
    wide = float(compiled(grid)(START, load, pool_tokens=3_840_000.0).attainment)
    tight = float(compiled(grid)(START, load, pool_tokens=24_000.0).attainment)
    few = float(compiled(grid)(START, load, max_seqs=8.0).attainment)
    assert wide == pytest.approx(free, abs=1e-9)
    assert tight < free - 0.05
    assert few < free - 0.05


def test_shedding_the_late_is_no_worse_than_serving_everybody_in_overload():
    load = load_of(10, rate_rps=22.0)
    shares = {triage: float(compiled(GRID, triage)(START, load).attainment) for triage in ("none", "defer", "reject")}
    assert shares["reject"] >= shares["none"] + 0.05
    assert shares["defer"] >= shares["none"] + 0.05


def test_a_threshold_serves_exactly_the_total_in_order():
    key = jnp.asarray([0.0, 1.0, 2.0, 3.0])
    zero = jnp.zeros(4)
    offers = Offers(key, jnp.full(4, 100.0), zero, None, None, zero, jnp.asarray(0.0), jnp.asarray(0.5), jnp.asarray(0.0), None)
    take, threshold = fill(offers, jnp.asarray(250.0), jnp.asarray(-50.0), 0.01, 10.0)
    np.testing.assert_allclose(take, [100.0, 100.0, 50.0, 0.0], atol=1e-6)
    assert float(threshold) == pytest.approx(2.0, abs=1e-3)


def test_the_derivative_of_a_threshold_is_that_of_the_root():
    def first(total):
        zero = jnp.zeros(3)
        key = jnp.asarray([0.0, 0.1, 0.2])
        offers = Offers(key, jnp.full(3, 10.0), zero, None, None, zero, total * 0, jnp.asarray(0.5), jnp.asarray(0.0), None)
        return fill(offers, total, jnp.asarray(0.0), 0.1, 10.0)[0][0]

    slope = jax.grad(first)(jnp.asarray(15.0))
    assert float(slope) == pytest.approx(float(first(jnp.asarray(15.01)) - first(jnp.asarray(14.99))) / 0.02, rel=1e-3)


def test_a_root_is_found_from_far_away_and_its_absence_is_an_end_of_the_range():
    assert float(root(lambda x: jax.nn.sigmoid((x - 7.0) / 0.1) - 0.5, jnp.asarray(-200.0), 0.1)) == pytest.approx(7.0, abs=1e-3)
    assert float(root(lambda x: jax.nn.sigmoid(x) - 2.0, jnp.asarray(0.0), 0.1)) > 90.0


def test_the_budget_meets_the_setpoint_on_a_plant_of_two_regimes():
    plant = RegimePlant((6e-3, 1e-5, 3e-8, 0.0, 0.0, 0.0), (9e-3, 2e-5, 4e-8, 3e-5, 1e-9, 1e-4))
    make = Make(jnp.asarray(200.0), jnp.asarray(256.0))
    found = float(budget(plant, jnp.asarray(20.0), jnp.asarray(2e4), make, jnp.asarray(0.02), jnp.asarray(4096.0)).tokens)
    requests = max(found / 256.0, 1.0)
    chunk = min(256.0, found)
    step_s = float(plant.step_time_s(Batch(20.0, 2e4, found, found * (200.0 + chunk / 2), requests)))
    assert step_s == pytest.approx(0.02, rel=1e-3)
    none = budget(plant, jnp.asarray(20.0), jnp.asarray(2e4), make, jnp.asarray(0.005), jnp.asarray(4096.0))
    assert float(none.tokens) == 0.0


def test_noise_in_closed_form_is_what_a_sample_shows():
    rng = np.random.default_rng(0)
    z = np.exp(0.06 * rng.standard_normal(400_000)) * np.where(rng.random(400_000) < 0.02, 1 + 0.15 * rng.pareto(2.5, 400_000), 1.0)
    noise = StepNoise(0.0, 0.06, 0.02, 2.5, 0.15)
    for step_s in (0.018, 0.022, 0.024, 0.026):  # core and spike are judged apart, which is off by less than the spikes' share
        assert float(noise.on_time(step_s, 0.025)) == pytest.approx(float(np.mean(step_s * z <= 0.025)), abs=noise.tail_share)
    owed = np.maximum(1.0, np.floor(0.04 * z / 0.025)).mean()
    assert float(noise.owed(0.04, 0.025)) == pytest.approx(float(owed), abs=2 * noise.tail_share)
    fitted = step_noise(np.log(z))
    assert float(fitted.sigma) == pytest.approx(0.06, rel=0.1)
    for step_s in (0.018, 0.022, 0.024):
        assert float(fitted.on_time(step_s, 0.025)) == pytest.approx(float(np.mean(step_s * z <= 0.025)), abs=2 * noise.tail_share)
    assert float(step_noise(np.zeros(0)).on_time(0.02, 0.025)) == pytest.approx(1.0)


def test_it_follows_the_exact_simulator_and_the_gate_passes_it_and_refuses_a_wrong_gradient():
    identified = IdentifiedPlant(PLANT, Noise.none(), Hull(1, 1, 1, 1), {}, {}, LIMITS, {})
    draws = [draw(Source(), identified, seed, 150) for seed in range(8)]
    unit = np.array([0.05, 0.5, 0.5])

    def candidate(x):
        law = FeedforwardLaw(PLANT, margin=float(x[0]))
        return Candidate(law, Policy(triage="defer", aging_rate=float(x[1]), chunk_tokens=float(2.0 ** x[2]), running_limit=128.0))

    low, high = np.array([0.0, 0.0, 5.0]), np.array([0.6, 3.0, 11.0])
    differences = Differences(simulator_values(identified, draws, TARGETS, LIMITS, candidate), unit, low, high)
    point = np.array([0.3, 1.0, 8.0])
    exact = differences.at(point)
    grid = GRID._replace(slots=slots_for([d.workload for d in draws], 0.1, 6.0))
    held_ = setting_of(identified, TARGETS, LIMITS)

    def attained(x, load):
        schedule = lambda x, seen: Knobs(x[0], x[1], 2.0 ** x[2], running_limit=128.0)  # noqa: E731
        return fluid_value(x, load, held_, TARGETS, grid, forms=Forms("slack", "defer"), schedule=schedule).attainment

    run = jax.jit(lambda x, load: jax.vmap(lambda v: jax.jvp(lambda y: attained(y, load), (x,), (v,)), out_axes=(None, 0))(jnp.eye(3)))
    found = [run(jnp.asarray(point), fluid_load(d.workload, jnp.float64)) for d in draws]
    values, slopes = (np.asarray([f[i] for f in found]) for i in (0, 1))
    verdict = fluid_gate(values, slopes, *exact, unit)
    assert verdict.passed, verdict
    wrong = fluid_gate(values, -slopes, *exact, unit)
    assert not wrong.passed
    assert "exact differences take over" in wrong.said
    assert "cosine" in wrong.said


class Source:
    """Workloads by seed."""

    def draw(self, seed: int, requests: int, *, heldout: bool = False) -> Workload:
        return made(seed + 100 * heldout, requests)


def test_the_gate_says_what_falls_short():
    rng = np.random.default_rng(1)
    exact, slopes = rng.random(16), rng.normal(1.0, 0.1, (16, 3))
    unit = np.ones(3)
    assert fluid_gate(exact + 0.01, slopes * 1.4, exact, slopes, unit).passed
    for values, given, word in (
        (exact + 0.2, slopes, "off by +0.200"),
        (rng.random(16), slopes, "over the seeds"),
        (exact, -slopes, "cosine -1.000"),
        (exact, slopes * np.nan, "cosine nan"),
        (exact * np.nan, slopes, "off by +nan"),
    ):
        verdict = fluid_gate(values, given, exact, slopes, unit)
        assert not verdict.passed
        assert word in verdict.said
    with pytest.raises(ValueError, match="at least 3 seeds"):
        fluid_gate(exact[:2], slopes[:2], exact[:2], slopes[:2], unit)
    assert noise_ceiling(slopes) > 0.99
    assert noise_ceiling(rng.normal(0.0, 1.0, (16, 3))) < 0.9


def test_the_exact_objective_composes_with_jax_and_differs_on_common_seeds():
    calls = []

    def values(points):
        calls.append(len(points))
        shifts = np.array([0.0, 0.5, -0.5])
        return -((points[:, None, :] - shifts[None, :, None]) ** 2).sum(2)

    differences = Differences(values, np.array([0.1, 0.2]), np.array([-1.0, -1.0]), np.array([1.0, 1.0]))
    objective = exact_objective(differences)
    x = jnp.asarray([0.3, -0.2])
    value, slope = jax.jit(jax.value_and_grad(lambda x: 3.0 * objective(jnp.sin(x))))(x)
    np.testing.assert_allclose(slope, 3.0 * -2.0 * jnp.sin(x) * jnp.cos(x), rtol=1e-9)
    assert float(value) == pytest.approx(3.0 * float(values(np.sin(np.asarray(x))[None]).mean()))
    assert calls[0] == 5  # the value and both ends of two differences, in one call
    at_bound = differences.at(np.array([1.0, 0.0]))[1]
    np.testing.assert_allclose(at_bound.mean(0)[0], -2.0 * 0.975, rtol=1e-9)  # one-sided within the bounds
