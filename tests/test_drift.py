"""Drift: a slowdown is seen soon, one that is not there seldom, and the plant follows it within its bounds."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.controllers.correction import (
    CLIPPED,
    CORRECTION_STATE,
    FACTORS,
    HIGH,
    LOW,
    OUTSIDE,
    PARTS,
    SKIPPED,
    TAUGHT,
    PlantCorrection,
    corrected,
    corrected_s,
    correction_step,
    parts_of,
)
from headway.controllers.drift import ALARM, DOWN, MOST, RAISED, UP, DriftMonitor, drift_step, shift
from headway.controllers.drift import SKIPPED as UNREAD
from headway.controllers.paired import pair
from headway.engines.runtime_drift import DRIFT_NUMBERS, DriftWatch
from headway.models.concurrency import ConcurrencyPlant
from headway.models.curved import CurvedPlant
from headway.models.identified import Hull
from headway.models.plant import Batch, Plant
from headway.models.regimes import AffinePlant, RegimePlant
from headway.models.roofline import RooflinePlant
from tests.synthetic_steps import TRUTH, composed, noise

SLOWER = 1.12
PLANTS: list[Plant] = [
    AffinePlant((6e-3, 7e-5, 5e-9, 1.5e-5, 5e-10, 5e-4)),
    TRUTH,
    CurvedPlant(
        (6e-3, 7e-5, 5e-9, 0.0, 0.0, 0.0),
        (6.5e-3, 1e-4, 6e-9, 1.5e-5, 5e-10, 5e-4),
        (0.0, 1e-8, 1e-6, 3e-3, 2e-6, 1e-3, 1e-5, 1e-8),
        (1e-8, 1e-8, 1e-6, 3e-3, 2e-6, 1e-3, 1e-5, 1e-8),
        (64.0, 4.0, 100.0, 40.0, 512.0, 8.0, 50_000.0),
    ),
    RooflinePlant((1e-3, 2e-3, 2e-5, 3e-4, 6e-3, 3e-8, 2e-5, 4e-10, 3.0)),
    ConcurrencyPlant((5e-3, 1e-4, 1e-3)),
]


def residuals(k: int, seed: int) -> np.ndarray:
    """White noise of 4 %, a slow part of 3 % that keeps .95 from step to step, and half a percent of long-tailed spikes."""
    rng = np.random.default_rng([seed, 7])
    spikes = np.log(np.where(rng.random(k) < 0.005, 1 + 0.3 * rng.pareto(2.0, k), 1.0))
    return rng.normal(size=k) * 0.04 + noise(k, 0.03, seed, 0.95) + spikes


def watch(residual: np.ndarray, monitor: DriftMonitor | None = None) -> tuple[np.ndarray, list[float]]:
    """Alarms, and the state at the end."""
    n = np.full(len(residual), 20.0)
    batch = Batch(n, 20_000.0 + 0 * n, 0 * n, 0 * n, 0 * n)
    found = pair(TRUTH, batch, np.asarray(TRUTH.step_time_s(batch)) * np.exp(residual), monitor=monitor)
    return found.alarm, found.drift


@pytest.mark.parametrize("seed", range(8))
def test_a_slowdown_of_12_percent_is_seen_within_100_steps_and_clears_by_itself(seed: int) -> None:
    residual = residuals(14_000, seed)
    residual[8000:11_000] += math.log(SLOWER)
    alarm, _ = watch(residual)
    assert 0 < 1 + np.argmax(alarm[8000:8100] > 0) <= 100
    assert (alarm[8000:8100] > 0).any()
    assert (alarm[8100:11_000] > 0).mean() > 0.9
    assert (alarm[11_000:11_200] <= 0).any()


def test_without_a_slowdown_there_is_less_than_one_alarm_in_24000_steps() -> None:
    raised = [watch(residuals(24_000, seed))[1][RAISED] for seed in range(8)]
    assert sum(raised) <= len(raised)


@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_other_noise_raises_no_more(correlation: float) -> None:
    assert sum(watch(noise(24_000, 0.05, seed, correlation))[1][RAISED] for seed in range(4)) <= 4


def test_a_quiet_engine_that_is_half_as_far_off_as_asked_for_raises_nothing() -> None:
    assert watch(noise(5000, 0.005, 1) + math.log(1.04))[1][RAISED] == 0
    assert watch(noise(5000, 0.005, 1) + math.log(1.10))[1][ALARM] == 1


def test_a_faster_engine_is_said_as_well() -> None:
    alarm, state = watch(residuals(3000, 1) - 0.12 * (np.arange(3000) >= 2000))
    assert alarm[-1] == -1
    text = DriftMonitor().sentence(state)
    assert text.startswith("steps take 1")
    assert "less than the plant says" in text
    assert "headway fit" in text


def test_the_alarm_says_what_to_do_and_how_large_it_is() -> None:
    residual = residuals(5000, 2)
    residual[4000:] += math.log(SLOWER)
    _, state = watch(residual)
    size, steps = shift(state)
    assert size == pytest.approx(SLOWER - 1, abs=0.02)
    assert 950 <= steps <= 1050
    text = DriftMonitor().sentence(state)
    for word in ("longer than the plant says", "throttle", "another tenant", "`headway fit`"):
        assert word in text
    assert DriftMonitor().sentence(DriftMonitor().init()) == ""
    assert shift(DriftMonitor().init()) == (0.0, 0)


readings = st.one_of(st.floats(1e-4, 1.0), st.sampled_from([math.nan, math.inf, -1.0, 0.0, 1e300, 1e-300]))


@settings(max_examples=50)
@given(st.lists(st.tuples(readings, readings), max_size=80))
def test_the_compiled_monitor_and_the_plain_one_agree_on_anything(rows: list[tuple[float, float]]) -> None:
    monitor = DriftMonitor()
    plain, compiled, shipped = monitor.init(), np.array(monitor.init()), DriftWatch()
    for predicted_s, step_time_s in rows:
        before = list(plain)
        after, alarm = monitor.update(plain, predicted_s, step_time_s)
        assert plain == before  # pure
        plain = after
        assert alarm == drift_step(np.array(monitor.pack()), compiled, predicted_s, step_time_s)
        np.testing.assert_allclose(compiled, plain, rtol=1e-12, atol=1e-15)
        assert shipped.update(predicted_s, step_time_s) == alarm
        same_as(shipped, plain, monitor)
        assert np.isfinite(plain).all()
        assert 0 <= plain[UP] <= MOST * monitor.limit
        assert 0 <= plain[DOWN] <= MOST * monitor.limit
    assert plain[UNREAD] == sum(not (0 < p < math.inf and 0 < y < math.inf) for p, y in rows)


def same_as(shipped: DriftWatch, state: list[float], monitor: DriftMonitor) -> None:
    mine = [shipped.slow, shipped.variance, *shipped.blocks[0], *shipped.blocks[1], shipped.up, shipped.down, shipped.alarm, shipped.up_sum]
    mine += [shipped.up_rows, shipped.down_sum, shipped.down_rows, shipped.rows, shipped.raised, shipped.skipped]
    np.testing.assert_allclose(mine, state, rtol=1e-12, atol=1e-15)
    assert shipped.size == pytest.approx(shift(state)[0], rel=1e-12)
    assert shipped.sentence() == monitor.sentence(state)


def test_what_ships_sees_what_the_compiled_monitor_sees() -> None:
    residual = residuals(24_000, 5)
    residual[8000:12_000] += math.log(SLOWER)
    residual[16_000:18_000] -= math.log(SLOWER)
    alarm, state = watch(residual)
    shipped = DriftWatch()
    assert dataclasses.asdict(DriftMonitor()) == DRIFT_NUMBERS
    n = np.full(len(residual), 20.0)
    predicted = np.asarray(TRUTH.step_time_s(Batch(n, 20_000.0 + 0 * n, 0 * n, 0 * n, 0 * n)))
    measured = predicted * np.exp(residual)
    assert [shipped.update(p, y) for p, y in zip(predicted.tolist(), measured.tolist(), strict=True)] == alarm.tolist()
    assert {-1, 1} <= set(alarm.tolist())
    same_as(shipped, state, DriftMonitor())


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.lists(st.floats(0.0, 0.1), min_size=PARTS, max_size=PARTS), st.booleans(), readings, st.booleans()), max_size=20)
)
def test_the_compiled_correction_and_the_plain_one_agree_and_keep_their_bounds(rows) -> None:
    correction = PlantCorrection()
    plain, compiled = correction.init(), np.array(correction.init())
    most = np.trace(covariance(plain))
    for parts_s, mixed, step_time_s, inside in rows:
        plain, said_s = correction.update(plain, parts_s, mixed, step_time_s, inside)
        again_s = correction_step(np.array(correction.pack()), compiled, np.array(parts_s), float(mixed), step_time_s, float(inside))
        assert again_s == pytest.approx(said_s, rel=1e-12)
        np.testing.assert_allclose(compiled, plain, rtol=1e-9, atol=1e-12)
        assert min(plain[:FACTORS]) >= LOW
        assert max(plain[:FACTORS]) <= HIGH
        assert np.trace(covariance(plain)) <= most * (1 + 1e-9)
    assert len(plain) == CORRECTION_STATE
    assert plain[TAUGHT] + plain[OUTSIDE] + plain[SKIPPED] == len(rows)


def covariance(state: list[float]) -> np.ndarray:
    return np.array(state[FACTORS : FACTORS + FACTORS**2]).reshape(FACTORS, FACTORS)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.structure)
def test_the_corrected_plant_says_what_the_correction_says(plant: Plant) -> None:
    rng = np.random.default_rng(3)
    state = np.array(PlantCorrection().init())
    batch = composed(60, 5)
    parts = np.zeros(PARTS)
    fitted, said, flags = [], [], []
    state[:FACTORS] = rng.uniform(LOW, HIGH, FACTORS)
    for k in range(60):
        flags.append(parts_of(plant.pack(), *[float(c[k]) for c in batch], parts_s=parts))
        fitted.append(parts.sum())
        said.append(corrected_s(state, parts, flags[-1]))
    np.testing.assert_allclose(fitted, plant.step_time_s(batch), rtol=1e-12)
    other = corrected(plant, state.tolist())
    np.testing.assert_allclose(said, other.step_time_s(batch), rtol=1e-12)
    for c in other.coefficients().values():
        assert c.value >= 0
    np.testing.assert_allclose(corrected(plant, PlantCorrection().init()).step_time_s(batch), plant.step_time_s(batch), rtol=1e-12)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.structure)
def test_a_slowdown_is_learned_within_100_steps(plant: Plant) -> None:
    batch = composed(4000, 2)
    factor = np.where(np.arange(4000) < 2000, 1.0, SLOWER)
    found = pair(plant, batch, np.asarray(plant.step_time_s(batch)) * factor * np.exp(noise(4000, 0.05, 4)), delay=2)
    errors = [np.abs(said / found.step_time_s - 1) for said in (found.fitted_s, found.corrected_s)]
    assert errors[1][2100:].mean() < 0.045  # the noise alone makes .04
    assert errors[0][2100:].mean() > 0.1
    assert errors[1][200:2000].mean() < 1.1 * errors[0][200:2000].mean()  # what it costs where there is nothing to learn


def test_one_term_that_changed_is_told_from_the_others() -> None:
    batch = composed(20_000, 6, mixed=0.5)
    truth = RegimePlant(TRUTH.decode, (*TRUTH.mixed[:3], 1.4 * TRUTH.mixed[3], *TRUTH.mixed[4:]))
    state = pair(TRUTH, batch, np.asarray(truth.step_time_s(batch)) * np.exp(noise(20_000, 0.03, 1))).correction
    learned = corrected(TRUTH, state).coefficients()
    assert learned["mixed.per_prefill_token"].value > 1.25 * TRUTH.mixed[3]
    assert learned["decode.floor"].value == pytest.approx(TRUTH.decode[0], rel=0.06)


def test_a_lull_of_10000_equal_steps_does_not_wind_the_covariance_up() -> None:
    k, lull = 11_000, 10_000
    n = np.where(np.arange(k) < lull, 8.0, composed(k, 9).decode_requests)
    batch = Batch(n, np.where(np.arange(k) < lull, 8000.0, 2500 * n), 0 * n, 0 * n, 0 * n)
    # of a plant whose cost per request is a third higher than fitted: in the lull nobody can tell
    truth = RegimePlant((TRUTH.decode[0], 1.33 * TRUTH.decode[1], *TRUTH.decode[2:]), TRUTH.mixed)
    found = pair(TRUTH, batch, np.asarray(truth.step_time_s(batch)) * np.exp(noise(k, 0.04, 3)))
    correction = PlantCorrection()
    assert np.linalg.eigvalsh(covariance(correction.init()) - covariance(found.correction)).min() > -1e-9
    after = slice(lull, lull + 20)
    exact = np.asarray(truth.step_time_s(batch))
    off = np.abs(found.corrected_s / exact - 1)
    assert off[after].max() < 0.15
    assert off[-500:].mean() < 0.03
    # what plain exponential forgetting does with the same steps
    wound = wound_up(batch, found.step_time_s, lull)
    assert wound > 1000 * np.trace(covariance(correction.init()))


def wound_up(batch: Batch, step_time_s: np.ndarray, rows: int) -> float:
    """Trace of the covariance of recursive least squares that divides it by .998 at every step."""
    p = covariance(PlantCorrection().init())[:3, :3]
    f = np.array([TRUTH.decode[0], TRUTH.decode[1] * batch.decode_requests[0], TRUTH.decode[2] * batch.decode_kv_tokens[0]])
    f /= f.sum()
    for _ in range(rows):
        gain = p @ f
        p = (p - np.outer(gain, gain) / (0.998 * 0.05**2 + f @ gain)) / 0.998
    return float(np.trace(p))


def test_a_step_outside_the_hull_does_not_teach() -> None:
    batch = composed(500, 1)
    hull = Hull(1.0, 1.0, 0.0, 0.0)
    found = pair(TRUTH, batch, 3 * np.asarray(TRUTH.step_time_s(batch)), hull=hull)
    assert not found.inside.any()
    np.testing.assert_array_equal(found.corrected_s, found.fitted_s)
    assert found.correction[OUTSIDE] == 499
    assert PlantCorrection().sentence(found.correction) == ""


def test_another_plant_stands_at_the_bounds_and_says_so() -> None:
    batch = composed(3000, 1)
    found = pair(TRUTH, batch, 5 * np.asarray(TRUTH.step_time_s(batch)))
    assert max(found.correction[:FACTORS]) == HIGH
    assert found.correction[CLIPPED] > 0
    assert "stands at its bound" in PlantCorrection().sentence(found.correction)
    slight = pair(TRUTH, batch, 1.1 * np.asarray(TRUTH.step_time_s(batch)))
    assert PlantCorrection().sentence(slight.correction).startswith("predictions are corrected online: the plant's terms count")


@pytest.mark.parametrize("delay", [1, 2])
def test_a_prediction_knows_nothing_of_steps_that_have_not_ended(delay: int) -> None:
    batch = composed(300, 8)
    time_s = np.asarray(TRUTH.step_time_s(batch)) * np.exp(noise(300, 0.05, 1))
    other = time_s.copy()
    other[150:] *= 1.7
    first, second = (pair(TRUTH, batch, y, delay=delay).corrected_s for y in (time_s, other))
    np.testing.assert_array_equal(first[: 150 + delay], second[: 150 + delay])
    assert (first[150 + delay :] != second[150 + delay :]).all()


def test_readings_that_are_none_teach_nothing() -> None:
    batch = composed(400, 8)
    time_s = np.asarray(TRUTH.step_time_s(batch)).copy()
    time_s[::3] = np.nan
    time_s[1::3] = 0.0
    found = pair(TRUTH, batch, time_s)
    assert found.correction[SKIPPED] + found.correction[TAUGHT] == 399
    assert found.correction[SKIPPED] == pytest.approx(2 * 399 / 3, abs=1)
    np.testing.assert_allclose(found.corrected_s, found.fitted_s, rtol=1e-9)
    assert found.alarms == []


def test_spells_of_an_alarm_are_listed() -> None:
    residual = noise(3000, 0.02, 1)
    residual[1000:1500] += math.log(SLOWER)
    n = np.full(3000, 20.0)
    batch = Batch(n, 1000 * n, 0 * n, 0 * n, 0 * n)
    spells = pair(TRUTH, batch, np.asarray(TRUTH.step_time_s(batch)) * np.exp(residual)).alarms
    assert [way for _, _, way in spells][:1] == [1]
    start, end, _ = spells[0]
    assert 1000 < start < 1100
    assert 1500 < end < 1600


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (DriftMonitor(memory=1.0), "memory of the drift monitor must be in"),
        (DriftMonitor(limit=0.0), "limit of the drift monitor must be in"),
        (PlantCorrection(keep=1.5), "keep of the correction must be in"),
        (PlantCorrection(mixed_noise=0.0), "mixed_noise of the correction must be in"),
    ],
)
def test_numbers_out_of_range_are_refused(wrong: DriftMonitor | PlantCorrection, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong.check()
    with pytest.raises(ValueError, match="delay must be at least 1"):
        pair(TRUTH, composed(3), np.ones(3), delay=0)
