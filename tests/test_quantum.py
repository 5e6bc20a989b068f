"""The command in quanta, held under noise; and the fence that keeps laws which predict from a jump of the plant."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.controllers import FeedforwardLaw, PILaw, TrackerLaw
from headway.controllers.inverse import commanded_prefill, commanded_prefill_traced
from headway.controllers.quantum import NONE, held, held_traced
from headway.controllers.steploop import Disturbance, Response, respond
from headway.models.curved import CurvedPlant
from headway.models.plant import Plant
from headway.models.regimes import RegimePlant
from headway.models.signals import SIGNALS, Measurement

tokens = st.floats(0.0, 9000.0)


@given(tokens, st.one_of(st.just(NONE), st.integers(0, 9000).map(float)), st.floats(1.0, 600.0), st.floats(1.0, 9000.0))
def test_both_forms_hold_alike(u: float, last: float, quantum: float, most: float) -> None:
    u = min(u, most)
    got = held(u, last, quantum, most)
    assert got == float(held_traced(u, last, quantum, most))
    q = math.floor(quantum)
    assert got == math.floor(got)
    assert 0 <= got <= most
    if u >= q > 1:
        assert got % q == 0 or got == last, "a multiple, or a command taken over from elsewhere"
        assert got >= q, "work that is worth a quantum is never held at nothing"
        assert u - 1.5 * q <= got <= u + 0.5 * q
    else:
        assert got == math.floor(u)


@given(st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=50), st.floats(500.0, 5000.0), st.integers(2, 200))
def test_a_budget_that_moves_within_two_quanta_moves_the_command_by_one_at_most(moves: list[float], middle: float, q: int) -> None:
    last, seen = NONE, []
    for move in moves:
        last = held(middle + 0.999 * q * move, last, float(q), 1e4)
        seen.append(last)
    assert max(seen) - min(seen) <= 2 * q
    settled = [held(middle + 0.999 * q * move, last, float(q), 1e4) for move in moves]
    assert all(abs(c - last) <= q for c in settled)


def test_without_a_quantum_nothing_changes() -> None:
    for u in (0.0, 0.9, 17.3, 512.0):
        assert held(u, 400.0, 1.0, 1e4) == held(u, NONE, 1.0, 1e4) == math.floor(u)


PLANT = RegimePlant((0.006, 6e-5, 5e-9, 0.0, 0.0, 0.0), (0.007, 1e-4, 0.0, 2e-5, 5e-10, 5e-4))
BUDGET_S = 0.025


def steady(
    law, plant: Plant, *, steps: int, delay: int, width: float, seed: int = 0, n: float = 16.0, budget_s: float = BUDGET_S
) -> Response:
    """A constant load under noise spread evenly about one."""
    factor = 1 + np.random.default_rng(seed).uniform(-width, width, steps)
    return respond(law, plant, Disturbance(np.full(steps, n), np.full(steps, 1e5), np.full(steps, 1e6), factor), budget_s, delay=delay)


def staircase(stride: float = 8.0) -> CurvedPlant:
    """t(b) = 8 + 0.02 pad(b) ms, four times as much beyond 256 tokens."""
    bent = (0.0, 0.0, 0.0, 0.0, 2e-5, 3 * (8e-3 + 2e-5 * 256), 6e-5, 0.0)
    return CurvedPlant((8e-3,) + (0.0,) * 5, (8e-3,) + (0.0,) * 5, bent, bent, (0.0, 0.0, 0.0, 256.0, 256.0, stride, 1e9))


@pytest.mark.parametrize("kind", [FeedforwardLaw, TrackerLaw])
@pytest.mark.parametrize("quantum", [1.0, 16.0])
@pytest.mark.parametrize("budget_s", [0.0125, 0.016, 0.025, 0.05, 0.06, 0.1, 0.3])
def test_case_e30_never_settles_past_the_last_graph_nor_dithers_across_it(kind, quantum: float, budget_s: float) -> None:
    """Whatever the budget: less than the jump, inside it, or one that fits the slow side, where a token costs more."""
    plant = staircase()
    for width in (0.0, 0.1):
        run = steady(kind(plant, quantum_tokens=quantum), plant, steps=2500, delay=2, width=width, n=32.0, budget_s=budget_s)
        total = run.asked_tokens[300:] + 32
        assert total.max() <= 256
        if budget_s > 0.02:
            assert (total == 256).all(), "it settles on the last graph, and moves no more"


def test_case_e30_feedback_alone_dithers() -> None:
    run = steady(PILaw(slope_s_per_token=2e-5), staircase(), steps=2500, delay=2, width=0.0, n=32.0)
    past = run.asked_tokens[300:] + 32 > 256
    assert np.count_nonzero(past[1:] != past[:-1]) > 100


def jumping(jump_s: float) -> CurvedPlant:
    """A jump at 256 tokens that is worth it where the budget is large."""
    bent = (0.0, 0.0, 0.0, 0.0, 0.0, jump_s, 0.0, 0.0)
    return CurvedPlant((8e-3,) + (0.0,) * 5, (8e-3, 0.0, 0.0, 2e-5, 0.0, 0.0), (0.0,) * 8, bent, (0.0, 0.0, 0.0, 1e9, 256.0, 0.0, 1e9))


traced = jax.jit(commanded_prefill_traced)


def commanded(plant: Plant, seconds: float, was: float = 0.0, n: float = 32.0, last: float = NONE, quantum: float = 1.0) -> float:
    row = np.zeros(SIGNALS)
    row[0], row[1], row[2], row[4] = 0.02, was, n, n
    signals = Measurement._make(jnp.asarray(x) for x in row)
    compiled = commanded_prefill(plant.pack(), row, seconds, 8192.0, last, quantum)
    assert compiled == float(traced(plant, signals, seconds, 8192.0, last, quantum))
    return compiled


def test_a_jump_is_passed_where_it_pays_and_kept_with_less() -> None:
    plant = jumping(0.012)
    rate = 224 / (8e-3 + 2e-5 * 224)
    fits = lambda u: 8e-3 + 2e-5 * u + 0.012  # noqa: E731
    pays = next(u for u in range(300, 8000) if u / fits(u) >= 1.1 * rate)
    ties = next(u for u in range(300, 8000) if u / fits(u) >= rate)
    assert commanded(plant, fits(pays) + 1e-9) == pays
    assert commanded(plant, fits(pays - 2) + 1e-9) == 224
    assert commanded(plant, fits(pays - 2) + 1e-9, was=float(pays)) == pays - 2, "once past it, less will do"
    assert commanded(plant, fits(ties - 2) + 1e-9, was=float(pays)) == 224
    assert commanded(plant, 0.5, n=300.0) > 8000, "with decodes past the jump already there is no way back"


def test_what_is_held_does_not_cross_a_jump() -> None:
    plant = staircase()
    assert commanded(plant, 0.025, n=40.0, last=240.0, quantum=48.0) == 192, "216 fit; 240 is within half a quantum, and past the graphs"
    smooth = jumping(0.0)
    assert commanded(smooth, 8e-3 + 2e-5 * 216 + 1e-9, n=40.0, last=240.0, quantum=48.0) == 240


@given(
    st.floats(0.005, 0.2),
    st.integers(1, 300),
    st.integers(0, 600),
    st.floats(1.0, 128.0),
    st.one_of(st.just(NONE), st.integers(0, 1000).map(float)),
    st.sampled_from([staircase(), staircase(1.0), jumping(0.012), jumping(0.003), PLANT]),
)
def test_both_forms_command_alike(seconds: float, n: int, was: int, quantum: float, last: float, plant: Plant) -> None:
    # off the round durations that some step takes to the last bit, where the order of a sum decides
    commanded(plant, seconds * 1.000000123, was=float(was), n=float(n), last=last, quantum=quantum)


# --- A trim that learns from its prediction, not from its setpoint ---------------------------------------------------


def test_a_trim_does_not_wind_up_where_no_budget_helps() -> None:
    """500 steps in which decodes alone are late, then they halve: the budget is back at once."""
    law = FeedforwardLaw(PLANT, ki=0.1)
    n = np.where((np.arange(1100) >= 100) & (np.arange(1100) < 600), 400.0, 100.0)
    run = respond(law, PLANT, Disturbance(n, 500 * n, np.full(1100, 1e6), np.ones(1100)), BUDGET_S, delay=2)
    assert (run.step_time_s[150:600] > BUDGET_S).all()
    assert run.asked_tokens[600] == pytest.approx(run.asked_tokens[99], abs=1)
    assert abs(run.state[-1, 0]) < 1e-9


@pytest.mark.parametrize("factor", [0.85, 1.15])
@pytest.mark.parametrize("delay", [1, 2])
def test_a_trim_still_brings_the_step_to_its_setpoint(factor: float, delay: int) -> None:
    run = respond(
        FeedforwardLaw(PLANT),
        PLANT,
        Disturbance(np.full(400, 16.0), np.full(400, 1e5), np.full(400, 1e6), np.full(400, factor)),
        BUDGET_S,
        delay=delay,
    )
    assert run.step_time_s[200:] == pytest.approx((1 - FeedforwardLaw(PLANT).margin) * BUDGET_S, abs=2 * 2.5e-5)


LAWS = [
    PILaw(slope_s_per_token=2.5e-5),
    PILaw(slope_s_per_token=2.5e-5, kp=0.0, ki=0.05),
    FeedforwardLaw(PLANT),
    FeedforwardLaw(PLANT, ki=0.03),
    TrackerLaw(PLANT),
    TrackerLaw(PLANT, kb=0.03, eta=0.005),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.law}-{getattr(law, 'ki', getattr(law, 'kb', 0))}")
@pytest.mark.parametrize("delay", [1, 2])
def test_a_held_command_still_finds_its_level(law, delay: int) -> None:
    """With a quantum the mean budget lies within a quantum of the one without, and the setpoint is kept on average."""
    free = steady(law, PLANT, steps=2300, delay=delay, width=0.1)
    kept = steady(dataclasses.replace(law, quantum_tokens=64.0), PLANT, steps=2300, delay=delay, width=0.1)
    assert abs(kept.asked_tokens[300:].mean() - free.asked_tokens[300:].mean()) <= 64
    # from a start far off it gets there as it does without
    far = dataclasses.replace(law, quantum_tokens=64.0, **({"initial_tokens": 3000.0} if isinstance(law, PILaw) else {}))  # pyright: ignore[reportArgumentType]
    arrived = steady(far, PLANT, steps=600, delay=delay, width=0.0)
    there = steady(law, PLANT, steps=600, delay=delay, width=0.0)
    assert abs(arrived.asked_tokens[-1] - there.asked_tokens[-1]) <= 1.5 * 64
    if not isinstance(law, TrackerLaw):  # whose quantile goes on sinking while nothing is late
        assert np.ptp(arrived.asked_tokens[-100:]) == 0, "and rests"
