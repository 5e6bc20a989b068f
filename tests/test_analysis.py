"""Margins against closed forms and against the simulated law itself; verdicts, notes and JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.controllers.feedforward import FeedforwardLaw
from headway.controllers.pi import PILaw
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate
from headway.controllers.static import StaticLaw
from headway.controllers.tracker import TrackerLaw
from headway.controllers.updown import UpDownLaw
from headway.experiments.analysis import Analysis, analyse, cross_check, curve, response
from headway.experiments.certificate import LEAST_GAIN_MARGIN_DB, LEAST_PHASE_MARGIN_DEG
from headway.experiments.loops import Loop, loop_transfer
from headway.experiments.margins import closed_radius, gain_limit, instability, loop_margins
from headway.experiments.points import operating_points
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Measurement, Target

SLOPE = 2e-5
PLANT = RegimePlant((0.006, 6e-5, 5e-9, 0.0, 0.0, 0.0), (0.007, 1e-4, 0.0, SLOPE, 5e-10, 5e-4))
HULL = Hull(decode_requests=32.0, decode_kv_tokens=200_000.0, prefill_tokens=8192.0, prefill_pairs=9e7)
LIMITS = Limits(kv_tokens=200_000)
TARGETS = (Target(ttft_s=1.0, itl_s=0.025),)
TUNED = PILaw(slope_s_per_token=SLOPE)


def identified(plant: RegimePlant = PLANT) -> IdentifiedPlant:
    return IdentifiedPlant(plant, Noise.none(), HULL, {}, {}, LIMITS, {})


def analysis_of(law, plant: RegimePlant = PLANT, delay: int = 1) -> Analysis:
    return analyse(Candidate(law, Policy()), identified(plant), TARGETS, LIMITS, delay=delay)


def simulated(law: PILaw, slope: float, steps: int, delay: int = 1, setpoint_step: float = 0.0, load_step: float = 0.0) -> np.ndarray:
    """The real law on y = y0 + slope u from equilibrium: departure of the step time from where it started, per step [s]."""
    budget, u0 = 0.025, law.initial_tokens
    setpoint = (1 - law.margin) * budget
    y0 = setpoint - slope * u0
    state, out = np.asarray(law.init()), []
    past = [setpoint] * delay
    for _ in range(steps):
        seen = Measurement(past[-delay], 1.0, 1.0, 1.0, 1.0)
        state = np.asarray(law.update(state, seen, budget + setpoint_step / (1 - law.margin))[0])
        past.append(y0 + load_step + slope * state[1])
        out.append(past[-1] - setpoint)
    return np.array(out)


@pytest.mark.parametrize(("delay", "limit"), [(1, 2.0), (2, 1.0), (3, 2 * math.sin(math.pi / 10))])
def test_an_integrator_with_delay_is_stable_below_its_closed_form(delay: int, limit: float) -> None:
    """K z^-d / (1 - z^-1) is stable iff K < 2 sin(pi / (2 (2 d - 1)))."""
    law = PILaw(kp=0.0, ki=1.0, slope_s_per_token=SLOPE)
    loop = loop_transfer(law, SLOPE, delay)
    assert gain_limit(*loop) == pytest.approx(limit, rel=1e-9)
    assert closed_radius(*loop, factor=0.99 * limit) < 1 < closed_radius(*loop, factor=1.01 * limit)


def test_the_gain_limit_that_control_misses() -> None:
    assert gain_limit(np.array([0.1]), np.array([1.0, -1.0])) == pytest.approx(20.0, rel=1e-9)
    assert loop_margins(np.array([0.1]), np.array([1.0, -1.0])).gain_margin_db == pytest.approx(20 * math.log10(20.0))


@given(st.floats(0.01, 1.0), st.floats(0.01, 0.6), st.floats(0.2, 5.0))
def test_the_gain_limit_of_pi_at_one_delay_is_jurys(kp: float, ki: float, ratio: float) -> None:
    """z^2 + (k (kp + ki) - 1) z - k kp has its roots inside iff k < 2 / (2 kp + ki)."""
    law = PILaw(kp=kp, ki=ki, slope_s_per_token=SLOPE)
    assert gain_limit(*loop_transfer(law, ratio * SLOPE)) == pytest.approx(2 / (2 * kp + ki) / ratio, rel=1e-8)


@given(st.floats(0.02, 1.5))
def test_phase_and_delay_margin_of_an_integrator(ki: float) -> None:
    """2 sin(w / 2) = K at the crossing, where the phase is -(90 + w / 2) degrees: d = 1 is part of the loop."""
    crossing = 2 * math.asin(ki / 2)
    phase = math.pi / 2 - crossing / 2
    got = loop_margins(*loop_transfer(PILaw(kp=0.0, ki=ki, slope_s_per_token=SLOPE), SLOPE))
    assert got.phase_margin_deg == pytest.approx(math.degrees(phase), abs=1e-3)
    assert got.delay_margin_steps == pytest.approx(phase / crossing, rel=1e-4)


@given(st.floats(0.0, 0.5), st.floats(0.02, 0.5), st.integers(1, 3))
def test_the_delay_margin_says_how_many_whole_steps_the_loop_bears(kp: float, ki: float, delay: int) -> None:
    law = PILaw(kp=kp, ki=ki, slope_s_per_token=SLOPE)
    margin = loop_margins(*loop_transfer(law, SLOPE, delay)).delay_margin_steps
    if abs(margin - round(margin)) < 1e-3:
        return  # on the edge
    radii = [closed_radius(*loop_transfer(law, SLOPE, delay + extra)) for extra in (math.floor(margin), math.floor(margin) + 1)]
    if margin > 0:
        assert radii[0] < 1 < radii[1]
    else:
        assert radii[0] >= 1


@pytest.mark.parametrize(("kp", "ki", "delay"), [(0.1, 0.15, 1), (0.0, 0.3, 1), (0.1, 0.15, 2), (0.6, 0.05, 1)])
def test_the_gain_at_which_the_simulated_law_loses_stability(kp: float, ki: float, delay: int) -> None:
    """Bisect on the plant's slope until a small disturbance of the real law neither grows nor decays."""
    law = PILaw(kp=kp, ki=ki, margin=0.2, slope_s_per_token=SLOPE, initial_tokens=4000.0)

    def grows(factor: float) -> bool:
        y = np.abs(simulated(law, factor * SLOPE, 320, delay, load_step=1e-6))
        return y.max() > 1e-4 or y[300:].max() > max(y[100:120].max(), 1e-12)

    low, high = 0.1, 40.0
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if grows(middle) else (middle, high)
    assert gain_limit(*loop_transfer(law, SLOPE, delay)) == pytest.approx(low, rel=0.02)


@pytest.mark.parametrize(("kp", "ki", "ratio", "delay"), [(0.1, 0.15, 1.0, 1), (0.1, 0.15, 2.0, 1), (0.0, 0.3, 1.0, 2), (0.3, 0.1, 0.7, 2)])
def test_the_responses_are_those_of_the_simulated_law(kp: float, ki: float, ratio: float, delay: int) -> None:
    law = PILaw(kp=kp, ki=ki, margin=0.2, slope_s_per_token=SLOPE, initial_tokens=2000.0)
    got = response(*loop_transfer(law, ratio * SLOPE, delay), delay)
    assert got is not None
    step = 1e-4
    n = len(got.steps)
    assert simulated(law, ratio * SLOPE, n, delay, setpoint_step=step) / step == pytest.approx(got.setpoint, abs=1e-8)
    assert simulated(law, ratio * SLOPE, n, delay, load_step=step) / step == pytest.approx(got.disturbance, abs=1e-8)


def test_the_curves_and_the_sensitivity_agree_with_the_transfer() -> None:
    loop = loop_transfer(TUNED, SLOPE)
    drawn = curve(loop)
    z = np.exp(1j * drawn.omega[100])
    value = (0.1 + 0.15 * z / (z - 1)) / z
    assert drawn.magnitude_db[100] == pytest.approx(20 * math.log10(abs(value)))
    assert math.cos(math.radians(drawn.phase_deg[100])) == pytest.approx(value.real / abs(value))
    assert drawn.real[100] + 1j * drawn.imaginary[100] == pytest.approx(value)
    assert drawn.sensitivity_db[100] == pytest.approx(-20 * math.log10(abs(1 + value)))
    assert drawn.omega[-1] == pytest.approx(math.pi)
    # at half a cycle per step L(-1) = -(kp + ki / 2): the peak of 1 / |1 + L| of this loop
    assert loop_margins(*loop).sensitivity_peak == pytest.approx(1 / (1 - 0.175))


def test_what_python_control_misses_is_said_and_not_believed() -> None:
    """Its gain margin of 0.1 / (z - 1) is infinite; the truth is 20, crossed at half a cycle per step."""
    import control

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it divides by zero at frequency 0
        theirs = control.margin(control.tf([0.1], [1, -1], 1))[0]
    assert math.isinf(theirs)
    loop = Loop(np.array([0.1]), np.array([1.0, -1.0]))
    assert list(cross_check(loop, loop_margins(*loop))) == [
        "python-control says inf dB of gain margin, the poles 26.0 dB: the poles are right"
    ]
    later = loop_transfer(TUNED, SLOPE, 2)
    assert not list(cross_check(later, loop_margins(*later)))


@given(st.floats(0.0, 0.6), st.floats(0.02, 0.8), st.integers(1, 3))
def test_the_other_margins_are_those_of_python_control(kp: float, ki: float, delay: int) -> None:
    import control

    loop = loop_transfer(PILaw(kp=kp, ki=ki, slope_s_per_token=SLOPE), SLOPE, delay)
    found = loop_margins(*loop)
    if found.gain_margin_db < 0.5:
        return
    transfer = control.tf(*loop, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it divides by zero at frequency 0
        _, phase, _, _ = control.margin(transfer)
        disk = control.disk_margins(transfer, np.linspace(0.001, math.pi, 4000))
    if math.isfinite(found.phase_margin_deg):
        assert found.phase_margin_deg == pytest.approx(float(phase), abs=1e-3)
    assert found.disk_margin_db == pytest.approx(float(disk[1]), abs=0.01)


def test_the_bandwidth_that_control_refuses() -> None:
    """K / (z - 1 + K) at K = 0.2 is 3 dB down where cos w = (1 + (1 - K)^2 - K^2 / 10^-0.3) / (2 (1 - K))."""
    found = loop_margins(np.array([0.2]), np.array([1.0, -1.0]))
    assert found.bandwidth_rad_per_step == pytest.approx(math.acos((1.64 - 0.04 / 10**-0.3) / 1.6), rel=1e-8)
    assert found.bandwidth_rad_per_step == pytest.approx(0.2236, abs=1e-4)
    assert found.response_steps == pytest.approx(2 / found.bandwidth_rad_per_step)


def test_the_points_span_the_slopes_of_the_hull() -> None:
    points = operating_points(PLANT, HULL, LIMITS, 8192.0)
    assert len(points) == 10
    small, large = points[0], points[1]
    assert (small.prefill_tokens, small.context_tokens) == (256.0, 0.0)
    assert small.slope_s_per_token == pytest.approx(SLOPE + 5e-10 * 256)
    assert large.prefill_tokens * (large.context_tokens + large.prefill_tokens / 2) == pytest.approx(HULL.prefill_pairs)
    assert large.slope_s_per_token == pytest.approx(SLOPE + 5e-10 * (large.context_tokens + 8192))
    assert {p.decode_requests for p in points} == {1.0, 16.0, 32.0}


def test_the_default_gains_are_certified() -> None:
    found = analysis_of(TUNED)
    assert found.certified
    assert found.worst is not None
    greatest = max(p.slope_s_per_token for p in found.points) / SLOPE
    assert found.worst.gain_margin_db == pytest.approx(20 * math.log10(2 / 0.35 / greatest))
    assert found.worst.phase_margin_deg > LEAST_PHASE_MARGIN_DEG
    assert found.curve is not None
    assert found.response is not None
    assert found.response.setpoint[-1] == pytest.approx(1.0, abs=1e-3)
    assert found.response.disturbance[-1] == pytest.approx(0.0, abs=1e-3)


def test_case_e13_ten_times_the_gain_is_declared_unstable() -> None:
    law = dataclasses.replace(TUNED, kp=1.0, ki=1.5)
    found = analysis_of(law)
    assert found.certificate.verdict == "refused"
    assert found.worst is not None
    assert found.worst.gain_margin_db < 0
    assert found.worst.phase_margin_deg == found.worst.delay_margin_steps == 0.0
    assert found.response is None
    assert found.certificate.reason.startswith("unstable: ")
    assert f"{found.worst.gain_margin_db:.1f} dB" in found.certificate.reason
    assert "unstable" in (instability(law, PLANT, HULL, LIMITS) or "")
    assert instability(TUNED, PLANT, HULL, LIMITS) is None


def test_a_thin_margin_is_refused_with_its_number() -> None:
    found = analysis_of(dataclasses.replace(TUNED, kp=0.3, ki=0.4))
    assert not found.certified
    assert found.worst is not None
    assert 0 < found.worst.gain_margin_db < LEAST_GAIN_MARGIN_DB
    assert f"gain margin {found.worst.gain_margin_db:.1f} dB at " in found.certificate.reason


def test_a_longer_delay_costs_margin() -> None:
    one, two = analysis_of(TUNED).worst, analysis_of(TUNED, delay=2).worst
    assert one is not None
    assert two is not None
    assert two.gain_margin_db < one.gain_margin_db
    assert two.phase_margin_deg < one.phase_margin_deg
    assert two.delay_margin_steps == pytest.approx(one.delay_margin_steps - 1)


def test_a_static_budget_has_nothing_to_certify() -> None:
    data = analysis_of(StaticLaw(2048.0)).to_json()
    assert (data["verdict"], data["certified"]) == ("measured", False)
    assert data["reasons"][0].startswith("no feedback: nothing to certify")
    assert data["gain_margin_db"] is data["phase_margin_deg"] is data["delay_margin_steps"] is None
    still = analysis_of(dataclasses.replace(TUNED, kp=0.0, ki=0.0)).certificate
    assert still.verdict == "measured"
    assert still.reason.startswith("no feedback: nothing to certify")


def test_an_infinite_margin_is_null_and_said() -> None:
    found = analysis_of(dataclasses.replace(TUNED, kp=0.2, ki=0.0))
    data = found.to_json()
    assert data["phase_margin_deg"] is None
    assert data["delay_margin_steps"] is None
    assert data["gain_margin_db"] == pytest.approx(20 * math.log10(5.0 / max(p.slope_s_per_token / SLOPE for p in found.points)))
    assert any("null" in note for note in data["notes"])
    assert any("ki is 0" in note for note in data["notes"])


def test_up_down_cycles_by_design_with_the_amplitude_in_numbers() -> None:
    found = analysis_of(UpDownLaw(margin=0.0))
    assert found.certificate.verdict == "measured"
    assert found.worst is None
    assert "cycles by design" in found.certificate.reason
    numbers = found.certificate.numbers
    assert f"{numbers['cycle_tokens']:.0f} tokens peak to peak" in found.certificate.reason
    assert numbers["overshoot_tokens"] == 8.0
    assert "rests in its dead zone" in analysis_of(UpDownLaw()).certificate.reason


@pytest.mark.parametrize("law", [FeedforwardLaw(PLANT, ki=0.2), TrackerLaw(PLANT, kb=0.2, eta=0.0)])
def test_laws_that_predict_pass_the_setpoint_on_at_once(law) -> None:
    found = analysis_of(law, delay=2)
    assert found.certified
    assert found.response is not None
    assert found.response.setpoint == pytest.approx(1.0)
    # a load step is taken out at the rate of the gain, from when it is seen on
    assert found.response.disturbance[:2] == pytest.approx(1.0)
    assert found.response.disturbance[2:] == pytest.approx(0.8 ** np.arange(1, 59), abs=1e-9)


def test_places_without_authority_are_named() -> None:
    crowded = RegimePlant((0.006, 6e-5, 1e-7, 0.0, 0.0, 0.0), (0.007, 1e-4, 1e-7, SLOPE, 5e-10, 5e-4))
    assert any("only admission helps" in note for note in analysis_of(TUNED, crowded).notes)
    cliff = RegimePlant((0.006, 6e-5, 5e-9, 0.0, 0.0, 0.0), (0.024, 1e-4, 0.0, SLOPE, 5e-10, 5e-4))
    assert any("switch prefill on and off" in note for note in analysis_of(TUNED, cliff).notes)
    light = RegimePlant((0.006, 0.0, 0.0, 0.0, 0.0, 0.0), (0.007, 0.0, 0.0, 1e-7, 0.0, 0.0))
    assert any("the limit rules there" in note for note in analysis_of(TUNED, light).notes)


def test_the_json_is_json() -> None:
    for law in (TUNED, StaticLaw(2048.0), UpDownLaw(), dataclasses.replace(TUNED, kp=1.0, ki=1.5)):
        data = json.loads(json.dumps(analysis_of(law).to_json(), allow_nan=False))
        assert {"operating_points", "gain_margin_db", "phase_margin_deg", "delay_margin_steps", "certified", "reasons"} <= set(data)
        for point in data["operating_points"]:
            assert {"decode_requests", "decode_kv_tokens", "prefill_tokens", "slope_s_per_token", "gain_margin_db"} <= set(point)


def test_a_plant_whose_budget_does_nothing_has_infinite_margins() -> None:
    flat = RegimePlant((0.006, 0.0, 0.0, 0.0, 0.0, 0.0), (0.007, 0.0, 0.0, 0.0, 0.0, 0.0))
    for law in (TUNED, FeedforwardLaw(flat), TrackerLaw(flat)):
        found = analysis_of(law, flat)
        assert found.worst is None
        assert found.to_json()["gain_margin_db"] is None
        assert found.certificate.verdict == "measured"


@settings(max_examples=25, deadline=None)
@given(st.floats(0.0, 2.0), st.floats(0.0, 2.0), st.floats(1e-7, 1e-3), st.integers(1, 4))
def test_any_gains_get_an_answer(kp: float, ki: float, slope: float, delay: int) -> None:
    found = analysis_of(PILaw(kp=kp, ki=ki, slope_s_per_token=slope), delay=delay)
    json.dumps(found.to_json(), allow_nan=False)
    if found.worst is not None:
        assert not math.isnan(sum(v for v in found.worst if math.isfinite(v)))
    if found.certified:
        assert found.worst is not None
        assert found.worst.gain_margin_db >= LEAST_GAIN_MARGIN_DB


@pytest.mark.parametrize(
    ("targets", "delay", "words"), [((), 1, "targets must hold"), (TARGETS, 0, "delay must be at least 1 step, got 0")]
)
def test_what_cannot_be_analysed_is_refused(targets, delay: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        analyse(Candidate(TUNED, Policy()), identified(), targets, LIMITS, delay=delay)
