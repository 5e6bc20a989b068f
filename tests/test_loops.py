"""Linear loops against closed forms, against each other, and against the laws themselves as they run."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.controllers import FeedforwardLaw, PILaw, TrackerLaw
from headway.controllers.steploop import Disturbance, respond
from headway.experiments.loops import circle_limit, integrator_limit, loop_transfer, predicted_transfer, quantile_gain
from headway.experiments.margins import circle_margin_db, closed_radius, cycle_steps, gain_limit, loop_margins, noise_gain
from headway.experiments.sliders import pi_gains, trim_gain, tuning_of_pi, tuning_of_trim
from headway.models.noise import Noise
from headway.models.regimes import RegimePlant

BUDGET_S, SLOPE = 0.025, 1e-7
"""A token so cheap that rounding to whole ones does not show."""


def integrator(gain: float, delay: int):
    return loop_transfer(PILaw(kp=0.0, ki=gain, slope_s_per_token=1.0), 1.0, delay)


@pytest.mark.parametrize("delay", [1, 2, 3, 5])
def test_limits_of_an_integrator(delay: int) -> None:
    """Closed forms, and the period of the first oscillation: 2 (2 d - 1) steps."""
    assert gain_limit(*integrator(1.0, delay)) == pytest.approx(integrator_limit(delay), rel=1e-9)
    assert 10 ** (circle_margin_db(integrator(1.0, delay), 0.0) / 20) == pytest.approx(circle_limit(delay), rel=1e-3)
    assert cycle_steps(*integrator(0.3, delay)) == pytest.approx(2 * (2 * delay - 1), rel=1e-6)


def growth(gain: float, pattern: tuple[int, ...], delay: int) -> float:
    """Of x[k+1] = x[k] - gain s[k] x[k-d+1] over one period of slopes s, per step."""
    whole = np.eye(delay)
    for share in pattern:
        step = np.eye(delay, k=-1)
        step[0, 0] += 1
        step[0, delay - 1] -= gain * share
        whole = step @ whole
    return float(np.abs(np.linalg.eigvals(whole)).max()) ** (1 / len(pattern))


def test_a_slope_that_moves_breaks_what_each_slope_alone_does_not() -> None:
    """At three steps of delay a gain of 0.6 is stable for every constant slope and diverges under a period of six."""
    pattern = (0, 0, 1, 1, 1, 1)
    assert circle_limit(3) < 0.6 < integrator_limit(3)
    assert growth(0.6, (1,), 3) < 1 < growth(0.6, pattern, 3)
    assert growth(0.66, pattern, 3) > growth(0.6, pattern, 3)


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_below_the_circle_bound_no_periodic_slope_diverges(delay: int) -> None:
    gain = 0.999 * circle_limit(delay)
    for length in range(1, 10):
        for pattern in itertools.product((0, 1), repeat=length):
            if any(pattern):
                assert growth(gain, pattern, delay) < 1, pattern


def test_a_narrower_sector_bears_more() -> None:
    loop = integrator(0.5, 2)
    margins = [circle_margin_db(loop, share) for share in (0.0, 0.3, 0.7, 1.0)]
    assert margins == sorted(margins)
    assert margins[-1] == pytest.approx(20 * math.log10(gain_limit(*loop)), abs=0.01), "a slope that never moves"
    # a loop that integrates twice bears no slope of zero, but a wide sector all the same
    twice = predicted_transfer(0.05, 0.005, 1.0, 1)
    assert circle_margin_db(twice, 0.0) < -20
    assert circle_margin_db(twice, 0.5) > 20


@pytest.mark.parametrize("gain", [0.1, 0.2, 0.5, 1.0, 1.5])
def test_what_feedback_does_to_white_noise(gain: float) -> None:
    """2 / (2 - K) at one step of delay; at two as it was simulated: 1.06, 1.14, 1.60 at 0.1, 0.2, 0.5."""
    assert noise_gain(integrator(gain, 1)) == pytest.approx(2 / (2 - gain), rel=1e-9)
    known = {0.1: 1.06, 0.2: 1.14, 0.5: 1.60}
    if gain in known:
        assert noise_gain(integrator(gain, 2)) == pytest.approx(known[gain], abs=0.005)


@settings(deadline=None)
@given(st.floats(0.02, 0.9), st.floats(0.0, 0.4), st.integers(1, 3), st.integers(0, 1000))
def test_the_noise_gain_is_that_of_the_recursion(ki: float, kp: float, delay: int, seed: int) -> None:
    loop = loop_transfer(PILaw(kp=kp, ki=ki, slope_s_per_token=1.0), 1.0, delay)
    if closed_radius(*loop) > 0.9:
        return
    impulse, u, integral = np.zeros(400), np.zeros(400), 0.0
    for k in range(400):  # y = noise + u, u_k from y_k-d
        seen = impulse[k - delay] if k >= delay else 0.0
        integral -= ki * seen
        u[k] = integral - kp * seen
        impulse[k] = (k == 0) + u[k]
    assert noise_gain(loop) == pytest.approx(float((impulse**2).sum()), rel=1e-6)


def test_the_loop_of_a_law_that_predicts() -> None:
    """One delay and a true plant: an integrator. Two: one that knows of the command under way. No delay counts at ratio 1."""
    one, plain = predicted_transfer(0.2, 0.0, 1.0, 1), integrator(0.2, 1)
    assert loop_margins(*one) == pytest.approx(loop_margins(*plain))
    for delay in (1, 2, 3):
        poles = np.sort(np.abs(np.roots(np.polyadd(*predicted_transfer(0.2, 0.0, 1.0, delay)))))
        assert poles[-1] == pytest.approx(0.8), "the observer's own pole, whatever the delay"
        assert gain_limit(*predicted_transfer(0.2, 0.0, 1.0, delay)) > gain_limit(*integrator(0.2, delay)) * 0.999
    both = predicted_transfer(0.05, 0.005, 1.0, 1)
    assert np.roots(both.denominator) == pytest.approx([1.0, 1.0, 0.0][: len(both.denominator) - 1], abs=1e-6), "it integrates twice"
    assert not np.any(predicted_transfer(0.0, 0.0, 1.0, 1).numerator)


@given(st.floats(0.005, 0.9), st.floats(0.0, 0.3), st.floats(0.3, 3.0), st.integers(1, 3))
def test_the_loop_of_the_tracker_is_its_recursion(kb: float, g: float, ratio: float, delay: int) -> None:
    """b and q in their linear range, step by step, have the poles of the closed transfer."""
    a = np.zeros((2 * delay, 2 * delay))  # of b_k-1, q_k-1, ..., b_k-d, q_k-d
    a[2:, :-2] = np.eye(2 * delay - 2)
    a[0, 0] += 1 - kb
    a[1, :2] += -g, 1 - g
    a[:2, -2:] -= (ratio - 1) * np.array([[kb, kb], [g, g]])  # v_k-d = (ratio - 1) F, F = -(b + q)
    radius = float(np.abs(np.linalg.eigvals(a)).max())
    found = closed_radius(*predicted_transfer(kb, g, ratio, delay))
    without = max(abs(np.linalg.eigvals(a[::2, ::2])))
    # a quantile that does not move is no part of the loop; one that hardly moves is, as far as its pole stands apart from the zero
    assert found == pytest.approx(radius, rel=1e-5) or (g < 1e-6 and found == pytest.approx(without, rel=1e-5))


def settled_swing(law, plant: RegimePlant, delay: int) -> float:
    """Peak to peak of the budget long after the start, without noise [tokens]."""
    steps = 900
    load = Disturbance(np.ones(steps), np.zeros(steps), np.full(steps, 1e6), np.ones(steps))
    run = respond(law, plant, load, BUDGET_S, delay=delay, most_tokens=1e6)
    return float(np.ptp(run.asked_tokens[-150:]))


def plain(floor_s: float, slope: float) -> RegimePlant:
    return RegimePlant((0.005, 0.0, 0.0, 0.0, 0.0, 0.0), (floor_s, 0.0, 0.0, slope, 0.0, 0.0))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["pi", "feedforward", "tracker"]), st.floats(0.02, 1.0), st.floats(0.0, 0.8), st.floats(0.4, 5.0), st.integers(1, 3))
def test_predicted_and_simulated_stability_agree(kind: str, ki: float, kp: float, ratio: float, delay: int) -> None:
    """The laws themselves, on a plant some times as steep as they take it for; not within 3 % of the edge."""
    setpoint, at = 0.8 * BUDGET_S, 20_000.0
    true = plain(setpoint - ratio * SLOPE * at, ratio * SLOPE)
    own = plain(setpoint - SLOPE * at, SLOPE)
    if kind == "pi":
        law = PILaw(margin=0.2, kp=kp, ki=ki, slope_s_per_token=SLOPE, initial_tokens=at + 300, most_tokens=2 * at)
        loop = loop_transfer(law, ratio * SLOPE, delay)
    elif kind == "feedforward":
        law, loop = FeedforwardLaw(own, margin=0.2, ki=ki, most_tokens=2 * at), predicted_transfer(ki, 0.0, ratio, delay)
        true = dataclasses.replace(true, mixed=(true.mixed[0] + 3e-5, *true.mixed[1:]))
    else:
        law = TrackerLaw(own, margin=0.2, kb=ki, eta=0.0, start_mixed=0.0, most_tokens=2 * at)
        loop = predicted_transfer(ki, 0.0, ratio, delay)
        true = dataclasses.replace(true, mixed=(true.mixed[0] + 3e-5, *true.mixed[1:]))
    radius = closed_radius(*loop)
    if 0.97 < radius < 1.03:
        return
    swing = settled_swing(law, true, delay)
    # commands are whole tokens: that alone keeps a loop of this radius going by up to 1 / (1 - radius), in either direction
    assert (swing <= max(8, 2 / (1 - radius))) if radius < 1 else (swing > 100), radius


def test_the_density_at_the_quantile() -> None:
    """Of a bell curve from its quantile, and from its rows."""
    law, spread = TrackerLaw(plain(0.006, 2e-5), eta=0.02, late_rate=0.01, start_mixed=2.3263479 * 0.06), 0.06
    exact = 0.02 * math.exp(-(2.3263479**2) / 2) / math.sqrt(2 * math.pi) / spread
    assert quantile_gain(law) == pytest.approx(exact, rel=1e-6)
    rows = np.random.default_rng(0).normal(0, spread, 200_000)
    assert quantile_gain(law, Noise(np.zeros(0), rows)) == pytest.approx(exact, rel=0.05)
    assert quantile_gain(law, Noise(np.zeros(0), rows[:20])) == pytest.approx(exact, rel=1e-6), "too few rows to say"


@given(st.floats(2.5, 60.0), st.floats(30.0, 80.0), st.integers(1, 3))
def test_sliders_give_gains_that_keep_what_they_promise(steps: float, phase: float, delay: int) -> None:
    if steps <= 2 * delay / (math.pi - math.radians(phase)):
        with pytest.raises(ValueError, match="it takes more than"):
            pi_gains(steps, phase, delay)
        return
    kp, ki = pi_gains(steps, phase, delay)
    assert kp >= 0
    assert ki > 0
    loop = loop_transfer(PILaw(kp=kp, ki=ki, slope_s_per_token=1.0), 1.0, delay)
    value = np.polyval(loop.numerator, np.exp(2j / steps)) / np.polyval(loop.denominator, np.exp(2j / steps))
    assert abs(value) == pytest.approx(1.0, rel=1e-9), "the loop crosses one where the slider says"
    assert math.degrees(np.angle(value)) % 360 - 180 >= phase - 1e-6
    found = tuning_of_pi(kp, ki, delay)
    assert found.share_of_limit == pytest.approx(10 ** (-found.gain_margin_db / 20))


def test_the_slider_of_a_trim() -> None:
    gain = trim_gain(20.0)
    assert (1 - gain) ** 20 == pytest.approx(math.exp(-1))
    assert tuning_of_trim(gain, 2).response_steps == pytest.approx(loop_margins(*predicted_transfer(gain, 0.0, 1.0, 2)).response_steps)
    assert tuning_of_trim(trim_gain(5.0)).gain_margin_db < tuning_of_trim(gain).gain_margin_db
    with pytest.raises(ValueError, match="must be above 0"):
        trim_gain(0.0)
    with pytest.raises(ValueError, match="phase_margin_deg must be in"):
        pi_gains(10.0, 95.0)
