"""Planned excitation: the steady state against the exact simulator, optimality, steps for a margin, and the plan end to end."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw, simulate
from headway.controllers.static import StaticLaw
from headway.experiments.excite import record_design, setting_workload
from headway.identification.design.optimal import (
    correlation,
    efficiency,
    information,
    known_from_intervals,
    numbers_of,
    optimal,
    precision_of,
    sensitivity,
    standard_errors,
    tellable,
    unmoved,
)
from headway.identification.design.sample_size import steps_for_margin, tail_of, width_of
from headway.identification.design.settings import Mixture, Setting, grid, stay, steady_state
from headway.identification.structures.intervals import block_length, margin
from headway.identification.structures.robust import fit_law
from headway.models import PLANTS
from headway.models.engine import PlantEngine
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.plant import Batch
from headway.models.regimes import RegimePlant, terms
from headway.models.signals import Limits, Target
from tests.synthetic_steps import noise

TRUTH = RegimePlant((2e-3, 2e-4, 1.2e-7, 0.0, 0.0, 0.0), (3e-3, 2e-4, 1.2e-7, 3e-5, 1e-8, 1e-4))
LIMITS = Limits(kv_tokens=65536, max_seqs=64, max_len=4096, max_tokens=1024)
SMALL = Limits(kv_tokens=16384, max_seqs=16, max_len=2048, max_tokens=256)


def known(plant: RegimePlant = TRUTH, held: Noise | None = None, limits: Limits = LIMITS) -> IdentifiedPlant:
    """A plant as identification hands it on, without intervals."""
    return IdentifiedPlant(plant, held or Noise.none(), Hull(64, 65536, 1024, 4e6), {"decode": None, "mixed": None}, {}, limits, {})


@functools.cache
def candidates() -> tuple[list[Setting], np.ndarray]:
    """Every setting's information about the true plant, in steady state."""
    precision, names = precision_of(None), numbers_of(TRUTH)
    found = []
    for setting in grid(LIMITS):
        mixture = steady_state(setting, LIMITS)
        found.append(information(sensitivity(TRUTH, names, mixture.batch), mixture.share * precision.of(mixture.batch)))
    return grid(LIMITS), np.stack(found)


def summary(batch: Batch, share: np.ndarray) -> dict[str, float]:
    """Means of a mixture of steps."""
    mixed = np.asarray(batch.prefill_tokens) > 0
    means = {"mixed": float(share[mixed].sum())}
    for name in Batch._fields:
        column = np.asarray(getattr(batch, name))
        means[f"{name}, with prefill"] = float((share * column)[mixed].sum() / share[mixed].sum())
    if means["mixed"] < 0.98:
        for name in Batch._fields[:2]:
            means[f"{name}, decode"] = float((share * np.asarray(getattr(batch, name)))[~mixed].sum() / share[~mixed].sum())
    return means


def simulated(setting: Setting) -> Batch:
    """What the exact simulator composes under a setting, once it has settled: some thousands of requests of it."""
    rate = min(setting.running_limit / setting.output_tokens, setting.token_budget / setting.prompt_tokens)
    steps = min(max(int(4000 / rate), 1500), 12_000)
    settle = 6 * setting.output_tokens + 2 * setting.running_limit * setting.prompt_tokens // max(setting.token_budget // 2, 1)
    workload = setting_workload(setting, steps + settle, LIMITS, np.random.default_rng(5))
    rule = Policy(order="slack", triage="none", running_limit=float(setting.running_limit))
    drawn = Draw(workload, np.ones(1), np.ones(1))
    target = (Target(1e6, 1e3),)
    out = simulate(known(), Candidate(StaticLaw(float(setting.token_budget)), rule), drawn, target, LIMITS, record_steps=steps + settle)
    assert len(out.log) == steps + settle
    return Batch(*out.log[settle:, 2:7].T)


def fitted(batch: Batch, step_time_s: np.ndarray) -> list[float]:
    """The two laws of these steps, in the order of the plant's numbers."""
    mixed, columns = batch.prefill_tokens > 0, terms(batch)
    decode, prefill = fit_law(columns[~mixed, :3], step_time_s[~mixed]), fit_law(columns[mixed], step_time_s[mixed])
    return [*decode.coefficients.tolist(), *prefill.coefficients.tolist()]


SETTLED = [
    Setting(128, 1, 16, 8),
    Setting(1024, 64, 54, 8),
    Setting(128, 8, 54, 8),
    Setting(1024, 23, 181, 45),
    Setting(362, 64, 609, 8),  # the budget binds: every step has prefill
    Setting(45, 3, 181, 45),  # several chunks to a prompt
    Setting(362, 3, 609, 45),
    Setting(128, 23, 54, 45),
    Setting(1024, 8, 2048, 45),
]


@pytest.mark.parametrize("setting", SETTLED, ids=str)
def test_the_steady_state_is_the_exact_simulator_s(setting: Setting) -> None:
    batch = simulated(setting)
    exact = summary(batch, np.full(len(batch.decode_requests), 1 / len(batch.decode_requests)))
    said = summary(*steady_state(setting, LIMITS))
    for name, value in exact.items():
        assert said[name] == pytest.approx(value, rel=0.15, abs=0.1), name


def test_a_stay_holds_the_way_there() -> None:
    setting = Setting(128, 23, 609, 45)
    long, short = stay(setting, LIMITS, 100_000), stay(setting, LIMITS, 40)
    assert long.mixed == pytest.approx(steady_state(setting, LIMITS).mixed, abs=0.01)
    columns = record_design(PlantEngine(TRUTH, LIMITS, np.ones(1), np.ones(1)), [(setting, 40)])
    assert short.mixed == pytest.approx(float((columns["prefill_tokens"] > 0).mean()), abs=0.1)
    seen = float(short.share @ short.batch.decode_requests)
    assert seen == pytest.approx(float(columns["decode_requests"].mean()), rel=0.25)
    assert seen < 0.8 * float(long.share @ long.batch.decode_requests)


@given(st.integers(16, 4096), st.integers(1, 256), st.integers(1, 4096), st.integers(2, 300), st.sampled_from(["last_chunk", "next_step"]))
@settings(max_examples=40)
def test_every_mixture_keeps_the_engine_s_rules(budget: int, running: int, prompt: int, output: int, first: str) -> None:
    setting = Setting(budget, running, prompt, output)
    limits = Limits(10**7, max_seqs=256, max_tokens=4096, first_token=first)
    for mixture in (steady_state(setting, limits), stay(setting, limits, 50)):
        n, kv, p, pairs, r = mixture.batch
        assert mixture.share.sum() == pytest.approx(1)
        assert (mixture.share >= 0).all()
        assert (n + p <= budget + 1e-6).all()
        assert (n + r <= running + 1 + 1e-6).all()  # a chunk's second prompt takes a place that the first has yet to leave
        assert (np.stack([n, kv, pairs]) >= -1e-9).all()
        assert ((p > 0) == (r > 0)).all()
        assert (n + p > 0).all()


def test_the_grid_stays_within_the_limits_and_refuses_a_cache_that_holds_nothing() -> None:
    for limits in (LIMITS, SMALL, Limits(200_000), Limits(4096, max_len=512, max_seqs=8, max_tokens=64)):
        found = grid(limits)
        assert len(set(found)) == len(found) > 20
        for s in found:
            assert s.token_budget <= limits.max_tokens
            assert s.running_limit <= limits.max_seqs
            assert s.running_limit * (s.prompt_tokens + s.output_tokens) <= limits.kv_tokens
    with pytest.raises(ValueError, match="no setting fits"):
        grid(Limits(16, max_len=8))
    with pytest.raises(ValueError, match="output_tokens of a setting must be at least 2, got 1"):
        steady_state(Setting(16, 1, 16, 1), LIMITS)


@pytest.mark.parametrize("prior", [0.0, 0.3, 3.0])
def test_the_design_meets_the_equivalence_theorem(prior: float) -> None:
    _, held = candidates()
    rng = np.random.default_rng(1)
    before = prior * np.tensordot(rng.dirichlet(np.full(len(held), 0.02)), held, 1)
    found = optimal(held, before)
    m = held.shape[1]
    after = before + np.tensordot(found.weight, held, 1)
    wanted = np.einsum("ij,cji->c", np.linalg.inv(after), held)
    bound = m - float(np.trace(np.linalg.inv(after) @ before))
    assert found.weight.sum() == pytest.approx(1)
    assert (found.weight >= 0).all()
    assert wanted.max() <= bound + 1e-3
    assert wanted[found.weight > 1e-2] == pytest.approx(bound, abs=0.05)
    assert found.bound == pytest.approx(bound, abs=1e-6)
    if not prior:
        assert bound == pytest.approx(m)


@given(st.integers(0, 10_000))
@settings(max_examples=15)
def test_no_other_mixture_has_a_larger_determinant(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(12, 3, 4)) * np.exp(rng.normal(size=(12, 1, 1)))
    held = np.einsum("cki,ckj->cij", rows, rows)
    best = np.linalg.slogdet(np.tensordot(optimal(held).weight, held, 1))[1]
    for weight in rng.dirichlet(np.full(12, 0.5), size=200):
        assert np.linalg.slogdet(np.tensordot(weight, held, 1))[1] <= best + 2e-3


def test_a_line_is_measured_at_its_two_ends() -> None:
    x = np.linspace(0, 1, 11)
    held = np.stack([np.outer([1, v], [1, v]) for v in x])
    weight = optimal(held).weight
    assert weight[[0, -1]] == pytest.approx([0.5, 0.5], abs=0.01)
    assert efficiency(held.mean(axis=0), np.tensordot(weight, held, 1)) == pytest.approx(math.sqrt(0.1 / 0.25), abs=0.01)


def test_what_cannot_be_told_is_named_not_inverted() -> None:
    one = np.outer([1.0, 2.0, 0.0], [1.0, 2.0, 0.0])
    assert tellable(one).tolist() == [True, False, False]
    assert np.isinf(standard_errors(one)).all()
    assert standard_errors(np.diag([4.0, 0.0])).tolist() == [0.5, np.inf]
    with pytest.raises(ValueError, match="tells all numbers apart"):
        optimal(one[None])


def test_standard_errors_are_those_of_the_fit() -> None:
    """The error foretold for a design, against the scatter of 60 fits to steps drawn from it."""
    rng = np.random.default_rng(2)
    picked, names = candidates()[0][3::17], numbers_of(TRUTH)
    rows = [steady_state(s, LIMITS) for s in picked]
    mixture = Mixture(
        Batch(*(np.concatenate(c) for c in zip(*(m.batch for m in rows), strict=True))), np.concatenate([m.share for m in rows])
    )
    drawn = rng.choice(len(mixture.share), 3000, p=mixture.share / mixture.share.sum())
    batch = Batch(*(c[drawn] for c in mixture.batch))
    sd = 0.06
    precision = precision_of(Noise(rng.normal(size=5000) * sd, rng.normal(size=5000) * sd))
    assert not precision.said
    foretold = standard_errors(information(sensitivity(TRUTH, names, batch), precision.of(batch)))
    found = [fitted(batch, TRUTH.step_time_s(batch) * np.exp(rng.normal(size=3000) * sd)) for _ in range(60)]
    scatter = np.std(found, axis=0)
    assert scatter == pytest.approx(foretold, rel=0.35)


def test_precision_counts_correlation_and_says_what_it_assumes() -> None:
    white, red = noise(20_000, 0.05, seed=1), noise(20_000, 0.05, seed=1, correlation=0.8)
    assert correlation(red) == pytest.approx(0.8, abs=0.03)
    told = precision_of(Noise(white, red))
    assert told.decode == pytest.approx(1 / 0.05**2, rel=0.15)
    assert told.mixed / told.decode == pytest.approx((1 - 0.8) / (1 + 0.8), rel=0.2)
    bare = precision_of(Noise(white, white[:10]))
    assert bare.said == ("mixed: 10 residuals, fewer than 40; a log-sd of 0.1 and a correlation of 0.5 are assumed",)


@pytest.mark.parametrize("structure", sorted(PLANTS))
def test_sensitivity_is_the_derivative_of_every_structure(structure: str) -> None:
    values = dict.fromkeys(_blank(structure), 1e-4)
    plant = PLANTS[structure].from_coefficients({k: 2.0 if k.startswith(("shape", "roof")) else v for k, v in values.items()})
    mixture = steady_state(Setting(256, 8, 100, 20), LIMITS)
    names = numbers_of(plant)
    got = sensitivity(plant, names, mixture.batch)
    at = np.asarray(plant.step_time_s(mixture.batch))
    full = {name: c.value for name, c in plant.coefficients().items()}
    for j, name in enumerate(names):
        up, down = (np.asarray(plant.from_coefficients({**full, name: full[name] * f}).step_time_s(mixture.batch)) for f in (1.001, 0.999))
        assert got[:, j] == pytest.approx((up - down) / (0.002 * full[name]) / at, rel=1e-2, abs=1e-9 / full[name]), name
    assert not [name for name in names if name.startswith("shape") or name.endswith("power")]


def _blank(structure: str) -> dict[str, float]:
    """Zeros by name, found by asking for none."""
    with pytest.raises(ValueError, match="missing") as caught:
        PLANTS[structure].from_coefficients({})
    listed = str(caught.value).split("missing [")[1].split("]")[0]
    return dict.fromkeys(listed.replace("'", "").split(", "), 0.0)


def test_intervals_stand_for_a_trace_that_is_not_at_hand() -> None:
    about = {"excitation": {"mixed": {"terms": {"prefill_pairs": {"moved": False}}}}}
    plant = dataclasses.replace(
        known(), interval={"decode.floor": (1e-3, 3e-3), "mixed.per_prefill_pair": (0.0, 1e-8), "mixed.floor": (3e-3, 3e-3)}, about=about
    )
    assert unmoved(plant) == ["mixed.per_prefill_pair"]
    names = numbers_of(TRUTH)
    error = standard_errors(known_from_intervals(plant, names))
    assert error[names.index("decode.floor")] == pytest.approx(2e-3 / 3.919928)
    assert np.isinf(np.delete(error, names.index("decode.floor"))).all()


def bootstrap_width(residual: np.ndarray, epsilon: float, rng: np.random.Generator) -> float:
    """Width of the margin's 95 % interval by block bootstrap."""
    length = block_length(residual)
    starts = rng.integers(0, len(residual) - length + 1, (120, -(-len(residual) // length)))
    drawn = residual[(starts[:, :, None] + np.arange(length)).reshape(120, -1)[:, : len(residual)]]
    low, high = np.quantile([margin(row, epsilon) or np.nan for row in drawn], [0.025, 0.975])
    return float(high - low)


@pytest.mark.parametrize(
    ("epsilon", "width", "rho", "heavy"),
    [(0.01, 0.02, 0.0, False), (0.05, 0.01, 0.0, False), (0.05, 0.02, 0.6, False), (0.01, 0.03, 0.0, True), (0.02, 0.02, 0.5, False)],
)
def test_with_that_many_steps_the_interval_is_as_narrow_as_asked(epsilon: float, width: float, rho: float, heavy: bool) -> None:
    """Asked with 80 % assurance; the tail is measured on a pilot of 4,000 steps, so the answer itself scatters."""
    rng = np.random.default_rng([int(1000 * epsilon), int(100 * rho), heavy])

    def residuals(n: int) -> np.ndarray:
        drawn = rng.standard_t(4, n) * 0.05 / math.sqrt(2) if heavy else rng.normal(size=n) * 0.05
        for i in range(1, n if rho else 0):
            drawn[i] = rho * drawn[i - 1] + math.sqrt(1 - rho**2) * drawn[i]
        return drawn

    need = steps_for_margin(residuals(4000), width, epsilon)
    assert need.width < width
    widths = np.array([bootstrap_width(residuals(need.steps), epsilon, rng) for _ in range(25)])
    assert np.median(widths) == pytest.approx(need.width, rel=0.3)
    assert (widths <= width).mean() >= 0.6
    # not by asking for far too many: with a third of the steps the interval is too wide as a rule
    few = np.array([bootstrap_width(residuals(need.steps // 3), epsilon, rng) for _ in range(15)])
    assert (few <= width).mean() <= 0.5


@given(st.floats(0.005, 0.2), st.floats(0.004, 0.2), st.integers(0, 1000))
@settings(max_examples=30)
def test_wider_intervals_and_more_steps_go_the_right_way(epsilon: float, width: float, seed: int) -> None:
    residual = noise(3000, 0.05, seed)
    need = steps_for_margin(residual, width, epsilon)
    tail = tail_of(residual, epsilon)
    assert width_of(tail, need.steps, epsilon) <= width
    assert width_of(tail, 4 * need.steps, epsilon) < width
    narrower = steps_for_margin(residual, width / 2, epsilon)
    assert narrower.steps >= need.steps
    assert narrower.steps > need.steps or need.width < width / 2  # as many as an interval needs at all
    assert steps_for_margin(residual, width, epsilon, 0.95).steps >= need.steps
