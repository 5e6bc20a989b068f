"""Margins against closed forms and against the simulated law itself; verdicts, notes and JSON."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.controllers.pi import PILaw
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate
from headway.controllers.static import StaticLaw
from headway.controllers.updown import UpDownLaw
from headway.experiments.analysis import LEAST_GAIN_MARGIN_DB, LEAST_PHASE_MARGIN_DEG, Analysis, analyse, bode, loop_margins, response
from headway.experiments.margins import closed_radius, gain_limit, instability, loop_transfer, operating_points
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
    return IdentifiedPlant(plant, Noise(np.zeros(1), np.zeros(1)), HULL, {}, {}, LIMITS, {})


def analysis_of(law, plant: RegimePlant = PLANT, **options) -> Analysis:
    return analyse(Candidate(law, Policy()), identified(plant), TARGETS, LIMITS, **options)


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


def test_bode_and_sensitivity_agree_with_the_transfer() -> None:
    numerator, denominator = loop_transfer(TUNED, SLOPE)
    curve = bode(numerator, denominator)
    z = np.exp(1j * curve.omega[100])
    value = (0.1 + 0.15 * z / (z - 1)) / z
    assert curve.magnitude_db[100] == pytest.approx(20 * math.log10(abs(value)))
    assert math.cos(math.radians(curve.phase_deg[100])) == pytest.approx(value.real / abs(value))
    assert curve.omega[-1] == pytest.approx(math.pi)
    # at half a cycle per step L(-1) = -(kp + ki / 2): the peak of 1 / |1 + L| of this loop
    assert loop_margins(numerator, denominator).sensitivity_peak == pytest.approx(1 / (1 - 0.175))


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
    assert not found.reasons
    assert found.worst is not None
    greatest = max(p.slope_s_per_token for p in found.points) / SLOPE
    assert found.worst.gain_margin_db == pytest.approx(20 * math.log10(2 / 0.35 / greatest))
    assert found.worst.phase_margin_deg > LEAST_PHASE_MARGIN_DEG
    assert found.bode is not None
    assert found.response is not None
    assert found.response.setpoint[-1] == pytest.approx(1.0, abs=1e-3)
    assert found.response.disturbance[-1] == pytest.approx(0.0, abs=1e-3)


def test_case_e13_ten_times_the_gain_is_declared_unstable() -> None:
    law = dataclasses.replace(TUNED, kp=1.0, ki=1.5)
    found = analysis_of(law)
    assert not found.certified
    assert found.worst is not None
    assert found.worst.gain_margin_db < 0
    assert found.worst.phase_margin_deg == found.worst.delay_margin_steps == 0.0
    assert found.response is None
    assert found.reasons[0].startswith("unstable at ")
    assert f"{found.worst.gain_margin_db:.1f} dB" in found.reasons[0]
    assert "unstable" in (instability(law, PLANT, HULL, LIMITS) or "")
    assert instability(TUNED, PLANT, HULL, LIMITS) is None


def test_a_thin_margin_is_refused_with_its_number() -> None:
    found = analysis_of(dataclasses.replace(TUNED, kp=0.3, ki=0.4))
    assert not found.certified
    assert found.worst is not None
    assert 0 < found.worst.gain_margin_db < LEAST_GAIN_MARGIN_DB
    assert f"gain margin {found.worst.gain_margin_db:.1f} dB at " in found.reasons[0]
    late = analysis_of(dataclasses.replace(TUNED, kp=0.0, ki=0.32), delay=3)
    assert not late.certified
    assert late.worst is not None
    assert late.worst.phase_margin_deg < LEAST_PHASE_MARGIN_DEG
    assert any(f"phase margin {late.worst.phase_margin_deg:.1f} degrees" in r for r in late.reasons)


def test_a_longer_delay_costs_margin() -> None:
    one, two = analysis_of(TUNED).worst, analysis_of(TUNED, delay=2).worst
    assert one is not None
    assert two is not None
    assert two.gain_margin_db < one.gain_margin_db
    assert two.phase_margin_deg < one.phase_margin_deg
    assert two.delay_margin_steps == pytest.approx(one.delay_margin_steps - 1)


def test_a_static_budget_has_nothing_to_certify() -> None:
    data = analysis_of(StaticLaw(2048.0)).to_json()
    assert data["certified"] is True
    assert data["reasons"] == ["no feedback: nothing to certify"]
    assert data["gain_margin_db"] is data["phase_margin_deg"] is data["delay_margin_steps"] is None
    assert analysis_of(dataclasses.replace(TUNED, kp=0.0, ki=0.0)).reasons == ("no feedback: nothing to certify",)


def test_an_infinite_margin_is_null_and_said() -> None:
    found = analysis_of(dataclasses.replace(TUNED, kp=0.2, ki=0.0))
    data = found.to_json()
    assert data["phase_margin_deg"] is None
    assert data["delay_margin_steps"] is None
    assert data["gain_margin_db"] == pytest.approx(20 * math.log10(5.0 / max(p.slope_s_per_token / SLOPE for p in found.points)))
    assert any("null" in note for note in data["notes"])
    assert any("ki is 0" in note for note in data["notes"])


def test_up_down_cycles_by_design_with_the_amplitude_in_numbers() -> None:
    """The sentence's figures are those of the simulated cycle."""
    law = UpDownLaw(margin=0.0)
    found = analysis_of(law)
    assert not found.certified
    assert found.worst is None
    assert "cycles by design" in found.reasons[0]
    assert "overshoots by up to 8 tokens" in found.reasons[0]
    point, budget = found.points[0], TARGETS[0].budget_s
    state, us, lates = np.asarray(law.init()), [], []
    for _ in range(2000):
        u = float(state[0])
        pairs, decodes = u * u / 2, 1e-4 * point.decode_requests
        y = PLANT.mixed[0] + decodes + SLOPE * u + 5e-10 * pairs + 5e-4
        state = np.asarray(law.update(state, Measurement(y, u, 1.0, 1.0, 1.0), budget)[0])
        us.append(u)
        lates.append(y > budget)
    tail = np.array(us[500:])
    stop = int(found.reasons[0].split(" at ")[1].split(" tokens")[0].replace(",", ""))
    assert stop < tail.max() <= stop + 8 + 1
    cut = int(found.reasons[0].split("cuts ")[1].split(" ")[0])
    drops = -np.diff(tail)[np.diff(tail) < 0]
    assert drops == pytest.approx(cut, abs=2)
    late = float(found.reasons[0].split("without a dead zone ")[1].split("%")[0])
    assert 100 * np.mean(lates[500:]) == pytest.approx(late, abs=0.5)


def test_up_down_with_a_wide_dead_zone_says_where_it_rests() -> None:
    assert "rests in its dead zone of 6.2 ms" in analysis_of(UpDownLaw()).reasons[0]
    slow = RegimePlant(PLANT.decode, (0.03, *PLANT.mixed[1:]))
    assert "no prefill fits into 25.0 ms" in analysis_of(UpDownLaw(), slow).reasons[0]


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
    found = analysis_of(TUNED, flat)
    assert found.worst is not None
    assert math.isinf(found.worst.gain_margin_db)
    assert found.to_json()["gain_margin_db"] is None


@settings(max_examples=30)
@given(st.floats(0.0, 2.0), st.floats(0.0, 2.0), st.floats(1e-7, 1e-3), st.integers(1, 4))
def test_any_gains_get_an_answer(kp: float, ki: float, slope: float, delay: int) -> None:
    found = analysis_of(PILaw(kp=kp, ki=ki, slope_s_per_token=slope), delay=delay)
    json.dumps(found.to_json(), allow_nan=False)
    assert found.worst is not None
    assert not math.isnan(sum(v for v in found.worst if math.isfinite(v)))
    if found.certified:
        assert found.worst.gain_margin_db >= LEAST_GAIN_MARGIN_DB


@pytest.mark.parametrize(
    ("targets", "delay", "words"), [((), 1, "targets must hold"), (TARGETS, 0, "delay must be at least 1 step, got 0")]
)
def test_what_cannot_be_analysed_is_refused(targets, delay: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        analyse(Candidate(TUNED, Policy()), identified(), targets, LIMITS, delay=delay)
