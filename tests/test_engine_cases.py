"""Fault cases of simulators: the predictor's own run time, and the cost of a long queue."""

from __future__ import annotations

import time
from typing import final

import numpy as np
import pytest

from headway.controllers import PILaw, StaticLaw
from headway.controllers.loop import drive
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw, simulate
from headway.models.engine import Engine, PlantEngine, Step
from headway.models.outcome import FINISHED, Outcome
from headway.models.regimes import AffinePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload
from tests.small_problems import known

PLANT = AffinePlant((8e-3, 2e-5, 4e-8, 4e-5, 0.0, 0.0))
LIMITS = Limits(kv_tokens=64_000, max_seqs=32, max_tokens=2048)
TARGETS = (Target(0.6, 0.025),)
NOISE = np.exp(0.05 * np.random.default_rng(1).standard_normal(512))
SLOW_S = 0.05


@final
class Slow(Engine):
    """A plant whose prediction takes so long that it would show in any clock that is not the engine's."""

    name = "slow"

    def __init__(self, inner: Engine, slow_s: float) -> None:
        self.inner, self.limits, self.slow_s, self.steps = inner, inner.limits, slow_s, 0

    def reset(self) -> None:
        self.inner.reset()
        self.steps = 0

    def execute(self, step: Step) -> float:
        self.steps += 1
        time.sleep(self.slow_s)
        return self.inner.execute(step)


def _load(requests: int, rate_rps: float) -> Workload:
    rng = np.random.default_rng(0)
    arrival = np.cumsum(rng.exponential(1 / rate_rps, requests))
    return Workload(arrival - arrival[0], rng.integers(50, 900, requests), rng.integers(2, 9, requests), np.zeros(requests, np.int64))


def _same(one: Outcome, other: Outcome) -> bool:
    """None is a NaN here."""
    return all(np.array_equal(np.asarray(a, float), np.asarray(b, float), equal_nan=True) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("triage", ["none", "reject"])
def test_e29_the_time_that_a_prediction_takes_is_in_no_result(triage: str) -> None:
    """E29: the same run with 50 ms more behind every step, and on the compiled engine, which has no clock at all."""
    load = _load(8, 40.0)
    candidate = Candidate(PILaw(margin=0.2), Policy(order="slack", triage=triage, aging_rate=0.1, chunk_tokens=256.0))
    engine = Slow(PlantEngine(PLANT, LIMITS, NOISE, NOISE), 0.0)
    quick = drive(engine, candidate, load, TARGETS, PLANT)
    engine.slow_s = SLOW_S
    began = time.perf_counter()
    slow = drive(engine, candidate, load, TARGETS, PLANT)
    waited_s = time.perf_counter() - began
    assert engine.steps == slow.steps > 10
    assert waited_s >= SLOW_S * slow.steps > slow.end_s  # a leak of it would be larger than the whole run
    assert _same(quick, slow)
    exact = simulate(known(PLANT, LIMITS), candidate, Draw(load, NOISE, NOISE), TARGETS, LIMITS, record_steps=1000)
    assert exact.end_s == slow.end_s
    assert np.array_equal(exact.ttft_s, slow.ttft_s, equal_nan=True)


@pytest.mark.parametrize("order", ["fcfs", "edf", "slack"])
def test_e33_a_long_queue_makes_no_more_steps(order: str) -> None:
    """E33: with everybody there at once, the same requests take fewer and fuller steps, none of them empty, and all end."""
    policy = Policy(order=order, triage="none", running_limit=32.0)
    runs = {}
    for name, rate_rps in (("light", 10.0), ("all at once", 1e9)):
        load = _load(2_000, rate_rps)
        runs[name] = simulate(known(PLANT, LIMITS), Candidate(StaticLaw(512.0), policy), Draw(load, NOISE, NOISE), TARGETS, LIMITS)
    light, heavy = runs.values()
    assert (light.status == FINISHED).all()
    assert (heavy.status == FINISHED).all()
    assert light.emitted.sum() == heavy.emitted.sum() == light.output_tokens.sum()
    work = light.prompt_tokens.sum() + light.output_tokens.sum() - len(light.status)  # the last chunk brings the first token
    assert work / 512.0 <= heavy.steps <= min(1.1 * work / 512.0, light.steps)
    assert heavy.end_s < light.end_s


def test_e33_hopeless_ones_are_shed_before_they_cost_a_step() -> None:
    """E33: at twenty times what it carries the engine serves who can still be on time; the others cost no prompt token."""
    load = _load(3_000, 1_000.0)
    policy = Policy(order="slack", triage="reject", running_limit=32.0)
    out = simulate(known(PLANT, LIMITS), Candidate(StaticLaw(512.0), policy), Draw(load, NOISE, NOISE), TARGETS, LIMITS)
    served = out.status == FINISHED
    assert 0.01 < served.mean() < 0.5
    assert out.emitted[~served].sum() == 0.0
    assert out.end_s <= load.arrival_s[-1] + TARGETS[0].ttft_s + 1.0
