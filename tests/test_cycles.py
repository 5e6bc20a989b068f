"""Limit cycles: what is predicted is what running the law finds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.controllers import BalancedLaw, PILaw, UpDownLaw
from headway.controllers.steploop import Disturbance, respond
from headway.experiments.cycles import across_jump, at_the_budget, balance, cycle_of, even_noise, found_cycle, sawtooth
from headway.experiments.loops import loop_transfer
from headway.experiments.margins import cycle_steps
from headway.experiments.points import Place
from headway.models.curved import CurvedPlant
from headway.models.regimes import RegimePlant

BUDGET_S = 0.025
PLANT = RegimePlant((0.006, 6e-5, 5e-9, 0.0, 0.0, 0.0), (0.007, 1e-4, 0.0, 2e-5, 5e-10, 5e-4))
PLACE = Place(16.0, 100_000.0)


def test_a_swing_counts_as_far_as_it_comes_back() -> None:
    calm = np.zeros(300, bool)
    drift = np.linspace(0.0, 90.0, 300).round()
    assert cycle_of(drift, calm).amplitude_tokens == 0
    assert cycle_of(drift, calm).peak_to_peak_tokens == 90
    saw = np.tile(np.arange(10.0), 30)
    found = cycle_of(saw + drift, calm)
    assert found.amplitude_tokens == pytest.approx(9, abs=1)
    assert cycle_of(saw, calm).period_steps == 10
    still = cycle_of(np.full(50, 7.0), ~np.zeros(50, bool))
    assert still == (0.0, 0.0, math.inf, 0.0, 1.0, 7.0)


@pytest.mark.parametrize(
    "law", [UpDownLaw(margin=0.0), UpDownLaw(margin=0.0, up_tokens=3.0, down=0.7), BalancedLaw(), BalancedLaw(gain=0.4)]
)
@pytest.mark.parametrize("delay", [1, 2, 3])
def test_the_sawtooth_of_a_law_that_steps_up_and_down(law: UpDownLaw | BalancedLaw, delay: int) -> None:
    """Overshoot, cut, period and late rate are counted from the gains; rounding to tokens is what is left."""
    edge = at_the_budget(PLANT, PLACE, BUDGET_S, 8192.0)
    predicted, found = sawtooth(law, edge, delay), found_cycle(law, PLANT, PLACE, BUDGET_S, delay)
    assert found.period_steps == pytest.approx(predicted.period_steps, rel=0.03)
    assert predicted.cut_tokens <= found.amplitude_tokens <= predicted.cut_tokens + predicted.overshoot_tokens + delay
    assert found.late_rate == pytest.approx(predicted.late_rate, rel=0.3)


def test_a_dead_zone_lets_it_rest() -> None:
    assert found_cycle(UpDownLaw(margin=0.25), PLANT, PLACE, BUDGET_S, 1).amplitude_tokens == 0


@pytest.mark.parametrize("law", [UpDownLaw(margin=0.0), UpDownLaw(margin=0.25), BalancedLaw(late_rate=0.02, gain=0.05)])
def test_where_noise_holds_it(law: UpDownLaw | BalancedLaw) -> None:
    """Rises and cuts cancel at the budget and the late rate that the drift function says."""
    noise = even_noise(3, 0.1, 40_000)
    tokens, late = balance(law, PLANT, PLACE, BUDGET_S, np.log(noise))
    found = found_cycle(law, PLANT, PLACE, BUDGET_S, 1, noise=noise)
    if isinstance(law, BalancedLaw):
        assert late == pytest.approx(law.late_rate, rel=0.05)
    assert found.late_rate == pytest.approx(late, rel=0.15, abs=0.002)
    assert found.mean_tokens == pytest.approx(tokens, rel=0.06)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.002, 0.05), st.floats(0.05, 0.95), st.floats(0.01, 0.03), st.integers(1, 6))
def test_feedback_alone_swings_across_a_jump(ki: float, share: float, jump_s: float, delay: int) -> None:
    """An integrator whose setpoint lies inside a jump: amplitude and period to within one rise and one fall."""
    flat, limit, slope = 0.010, 2000.0, 1e-9
    bent = (0.0, 0.0, 0.0, 0.0, 0.0, jump_s, 0.0, 0.0)
    plant = CurvedPlant((0.005,) + (0.0,) * 5, (flat, 0.0, 0.0, slope, 0.0, 0.0), (0.0,) * 8, bent, (0.0, 0.0, 0.0, 1e9, limit, 0.0, 1e9))
    setpoint, unit = flat + share * jump_s, 2e-5
    rise, fall = ki * share * jump_s / unit, ki * (1 - share) * jump_s / unit
    law = PILaw(margin=0.0, kp=0.0, ki=ki, slope_s_per_token=unit, initial_tokens=limit - 1, most_tokens=8000.0)
    steps = 6000
    load = Disturbance(np.ones(steps), np.zeros(steps), np.full(steps, 1e6), np.ones(steps))
    run = respond(law, plant, load, setpoint, delay=delay)
    found = cycle_of(run.asked_tokens[500:], run.step_time_s[500:] > setpoint)
    amplitude, period = across_jump(rise, fall, delay)
    assert abs(found.peak_to_peak_tokens - amplitude) <= rise + fall + 1 + 1e-3 * amplitude
    # between d and d + 1 steps beyond the jump on each side, as it goes in whole steps
    assert period * (delay - 1) / delay - 2 <= found.period_steps <= period * (delay + 1) / delay + 2


@pytest.mark.parametrize(("ki", "delay"), [(1.05, 2), (0.66, 3)])
def test_an_unstable_loop_swings_at_the_period_of_its_poles(ki: float, delay: int) -> None:
    law = PILaw(kp=0.0, ki=ki, slope_s_per_token=2e-5)
    plant = RegimePlant(PLANT.decode, (0.007, 1e-4, 0.0, 2e-5, 0.0, 0.0))
    predicted = cycle_steps(*loop_transfer(law, 2e-5, delay))
    assert predicted == pytest.approx(2 * (2 * delay - 1), rel=1e-6)
    found = found_cycle(law, plant, PLACE, BUDGET_S, delay)
    assert found.amplitude_tokens > 200
    assert found.period_steps == pytest.approx(predicted, rel=0.1)
