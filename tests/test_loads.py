"""How many requests a run holds where nobody said: about two minutes of them, in a closed loop as the engine lets them come."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from headway.controllers.policy import Policy
from headway.controllers.simulator import NOISE_LENGTH, Candidate, Draw, simulate
from headway.controllers.static import StaticLaw
from headway.loads import REQUESTS, RUN_S, open_load, served_rate_rps
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits
from headway.models.workload import Workload
from tests.small_problems import known

EVEN = RegimePlant((0.02, 0.0, 0.0, 0.0, 0.0, 0.0), (0.02, 0.0, 0.0, 0.0, 0.0, 0.0))
"""Every step takes 20 ms."""

PLANT = known(EVEN, Limits(100_000, max_seqs=64))


def load(spec: str):
    return open_load(spec, "ttft=1s,itl=25ms,transport=1ms", rate_rps=None, rows=None, epsilon=None)


@pytest.mark.parametrize(
    ("clients", "think", "output", "rate_rps"),
    [
        (20, "", 100, 20 / 2.0),  # a prompt of one chunk and 99 steps
        (20, "think=3s,", 100, 20 / 5.0),
        (64, "think=exponential(2s),", 50, 64 / 3.0),
        (200, "", 200, 64 / 4.0),  # 64 run at once: the others wait, and the engine says how often one ends
    ],
)
def test_a_closed_loop_follows_the_response_time_law(clients: int, think: str, output: int, rate_rps: float) -> None:
    given = load(f"closed:clients={clients},{think}prompt=64,output={output}")
    found = given.requests(None, PLANT)
    # who came at the start came all at once; thinking times are drawn
    assert found / RUN_S == pytest.approx(min(max(rate_rps, REQUESTS[0] / RUN_S), REQUESTS[1] / RUN_S), rel=0.08, abs=clients / RUN_S)
    assert len(given.notes) == 1
    assert f"runs hold {found}" in given.notes[0]


def test_a_run_of_so_many_lasts_as_long_as_it_says() -> None:
    given = load("closed:clients=20,think=1s,prompt=64,output=100")
    n = given.requests(None, PLANT)
    stock = Candidate(StaticLaw(8192.0), Policy(order="fcfs", triage="none", running_limit=64.0))
    factors = PLANT.noise.draw(0, NOISE_LENGTH)
    out = simulate(PLANT, stock, Draw(given.source.draw(1, n, heldout=False), *factors), given.targets, PLANT.limits)
    assert RUN_S <= out.end_s <= RUN_S + 2 * 3.0


def test_an_engine_with_other_limits_is_sent_another_load() -> None:
    few = load("closed:clients=64,prompt=64,output=100").requests(None, PLANT, dataclasses.replace(PLANT.limits, max_seqs=8))
    assert few == pytest.approx(8 / 2.0 * RUN_S, rel=0.15)


def test_without_a_plant_a_closed_loop_says_what_was_assumed() -> None:
    given = load("closed:clients=64,prompt=64,output=100")
    assert given.requests(None) == REQUESTS[0]
    assert "as if every answer took no time" in given.notes[0]
    asked = load("closed:clients=64,prompt=64,output=100")
    assert asked.requests(77, PLANT) == 77
    assert asked.notes == []


def test_an_open_load_needs_no_plant() -> None:
    given = load("uniform:rate=8/s,prompt=64,output=100")
    assert given.requests(None, PLANT) == given.requests(None) == 960
    assert given.notes == []


def test_a_loop_that_ends_early_has_the_rate_of_its_arrivals() -> None:
    n = 30
    after = np.maximum(np.arange(n) - 1, -1)
    one = Workload(np.zeros(n), np.full(n, 8), np.full(n, 25), np.zeros(n, int), after=after, think_s=np.where(after < 0, 0.0, 0.5))
    rate = served_rate_rps(PLANT, one, load("uniform:rate=8/s,prompt=64,output=100").targets, PLANT.limits)
    assert rate == pytest.approx(1.0, rel=1e-6)  # half a second of steps, half of thinking
