"""The laws and plants that ship against the compiled ones: the same to the last bit, found in fewer looks, and cheap."""

from __future__ import annotations

import math
import timeit

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.controllers.inverse import largest_prefill as halved
from headway.controllers.laws import STATE_SIZE, law_init, law_step
from headway.engines.runtime import READINGS, Runtime
from headway.engines.runtime_gains import number
from headway.engines.runtime_plants import largest_prefill, read_plant
from headway.models.signals import Measurement
from headway.models.steptime import step_time
from tests.guarded_loops import BUDGET_S, LIMITS, OPEN, PAIRS, PLANTS, gains, laws
from tests.guarded_loops import readings as steps_of


def commanded(n: int, seed: int) -> np.ndarray:
    """Random steps for a law that does not predict: early, late, idle, bound or not, each with prefill; shape (n, 5)."""
    rng = np.random.default_rng(seed)
    ready = np.where(rng.random(n) < 0.05, 0, rng.integers(1, 65, n))
    rows = np.stack([rng.gamma(8.0, 0.0025, n), rng.integers(1, 4096, n), np.roll(ready, 1), rng.random(n) < 0.7, ready], axis=1)
    rows[0, :4] = np.nan, 0, 0, 0
    return rows.astype(float)


@pytest.mark.parametrize(("law_name", "plant_name"), PAIRS)
def test_it_equals_the_compiled_law_over_20_000_steps(law_name: str, plant_name: str) -> None:
    plant = PLANTS[plant_name]
    law = laws(plant)[law_name]
    run, packed, state = Runtime.from_json(gains(law, plant, OPEN)), law.pack(), np.zeros(STATE_SIZE)
    law_init(packed, state)
    assert run.budget_s == BUDGET_S
    assert run.setpoint_s == pytest.approx((1 - law.setpoint_margin) * BUDGET_S, rel=1e-12)
    worst = 0.0
    # where a law that does not predict has no authority the guard freezes it, so its steps here all carry prefill
    rows = steps_of(plant_name, 20_000, 1) if law.predicts else np.pad(commanded(20_000, 1), ((0, 0), (0, 5)))
    for row in rows:
        expected = min(math.floor(law_step(packed, state, row, BUDGET_S)), LIMITS.max_tokens)
        assert run.update(*row.tolist()) == expected
        worst = max(worst, float(np.abs(np.array(run.state) - state[: len(run.state)]).max()))
    assert run.faults == 0
    assert worst <= 1e-12


@pytest.mark.parametrize("name", ["updown", "pi", "balanced", "pi in quanta"])
def test_it_equals_the_law_itself_over_20_000_steps(name: str) -> None:
    law, rows = laws(PLANTS["regimes"])[name], commanded(20_000, 1)
    run = Runtime.from_json(gains(law, guard=OPEN))

    def step(state, row):
        return law.update(state, Measurement(*row), run.budget_s)

    _, budgets = jax.lax.scan(step, law.init(), rows)
    mine = [run.update(*row) for row in rows]
    assert mine == np.minimum(np.floor(np.asarray(budgets)), LIMITS.max_tokens).astype(int).tolist()


@pytest.mark.parametrize("name", PLANTS)
@given(
    n=st.integers(1, 300),
    kv_each=st.floats(1, 5000),
    context=st.floats(0, 1e5),
    seconds=st.floats(1e-4, 1.0),
    start=st.floats(-1, 1e7),
    most=st.integers(1, 100_000),
)
def test_the_search_finds_what_halving_finds_wherever_it_begins(name: str, n, kv_each, context, seconds, start, most) -> None:
    plant = PLANTS[name]
    twin = read_plant(gains(laws(plant)["updown"], plant)["plant"], number)
    assert twin is not None
    numbers = (float(n), n * kv_each, context)
    looks = []

    def at(u: float) -> float:
        looks.append(u)
        return twin.along(*numbers)(u)

    found = largest_prefill(at, seconds, float(most), start, twin.slope_s_per_token)
    assert found == halved(plant.pack(), *numbers, seconds, float(most))
    assert all(1 <= u <= most for u in looks)
    assert len(looks) <= 45


def test_the_search_takes_few_looks_from_a_good_start() -> None:
    for name, plant in PLANTS.items():
        twin = read_plant(gains(laws(plant)["updown"], plant)["plant"], number)
        assert twin is not None
        counts, start = [], 100.0
        for k in range(400):
            at, looks = twin.along(32.0, 32_000.0 + 32 * k, float(k % 7 * 300)), []
            start = largest_prefill(lambda u, at=at, looks=looks: looks.append(u) or at(u), 0.023, 8192.0, start, twin.slope_s_per_token)
            counts.append(len(looks))
        assert np.mean(counts) <= 5, name


@pytest.mark.parametrize("name", PLANTS)
def test_a_plant_says_what_the_compiled_one_says_to_the_last_bit(name: str) -> None:
    twin, packed = read_plant(gains(laws(PLANTS[name])["updown"], PLANTS[name])["plant"], number), PLANTS[name].pack()
    assert twin is not None
    for row in steps_of(name, 4000, 3):
        sums = (row[2], row[5], row[1], row[6], row[7])
        assert twin.step_time(*sums) == step_time(packed, *sums)


def reference_s() -> float:
    """A plain Python loop of a thousand additions, for machines of any speed and load [s]."""

    def loop() -> float:
        total = 0.0
        for k in range(1000):
            total = total + k * 0.5
        return total

    return min(timeit.repeat(loop, number=20, repeat=15)) / 20


def test_an_update_costs_less_than_a_plain_loop_of_a_thousand_additions() -> None:
    """PI 3 us, the tracker on a curved plant 10 us on an idle core, where that loop takes 30 us: shares hold under load too."""
    rows = steps_of("curved", 600, 5)[1:].tolist()
    shares = {}
    for name in ("pi", "tracker"):
        run = Runtime(gains(laws(PLANTS["curved"])[name], PLANTS["curved"], OPEN))

        def replayed(run: Runtime = run) -> None:
            for row in rows:
                run.update(*row)

        shares[name] = min(timeit.repeat(replayed, number=1, repeat=15)) / len(rows) / reference_s()
        assert run.faults == 0
    assert shares["pi"] < 0.4, shares
    assert shares["tracker"] < 1.0, shares


def test_the_readings_are_the_measurement_in_order() -> None:
    assert Measurement._fields == READINGS
