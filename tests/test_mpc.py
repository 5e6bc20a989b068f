"""The prefill budget by a quadratic program, beside the explicit inverse: the horizon gains nothing, and its absence is told."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from headway.experiments.mpc import reach, sample_load, serve
from headway.models.plant import Batch, Plant
from headway.models.regimes import AffinePlant
from headway.models.roofline import RooflinePlant

PLANTS = [AffinePlant((8e-3, 2e-5, 2e-8, 4e-5, 0.0, 0.0)), RooflinePlant((1e-3, 0.0, 0.0, 0.0, 8e-3, 2e-8, 4e-5, 0.0, 4.0))]


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("move_weight", [0.0, 0.1])
def test_the_program_gains_nothing_on_the_explicit_inverse(plant: Plant, move_weight: float) -> None:
    pytest.importorskip("osqp", reason="the extra mpc is not installed")
    load = sample_load(1500)
    explicit = serve(plant, load, 0.025, margin=0.1)
    program = serve(plant, load, 0.025, margin=0.1, horizon=6, move_weight=move_weight)
    assert 0.001 < explicit.late < 0.05
    assert program.late == pytest.approx(explicit.late, abs=0.001)
    assert program.prefill_tps == pytest.approx(explicit.prefill_tps, rel=0.005)
    assert program.solve_s > 5 * explicit.solve_s
    if move_weight == 0.0:
        assert np.quantile(np.abs(program.budgets - explicit.budgets), 0.99) <= 1.0


@pytest.mark.parametrize("plant", PLANTS)
def test_what_a_step_may_take_ends_in_time(plant: Plant) -> None:
    explicit, linear = reach(plant.pack(), 50.0, 60_000.0, 0.0201, 8192.0)
    time_s = lambda u: float(plant.step_time_s(Batch(50.0, 60_000.0, u, u * u / 2, 1.0)))  # noqa: E731
    assert time_s(explicit) <= 0.0201 < time_s(explicit + 1)
    assert explicit <= linear <= explicit + 1
    assert reach(plant.pack(), 50.0, 60_000.0, 0.001, 8192.0) == (0.0, 0.0)


def test_the_explicit_inverse_spends_no_more_than_waits() -> None:
    load = sample_load(1000)
    found = serve(PLANTS[0], load, 0.025)
    assert (np.cumsum(found.budgets) <= np.cumsum(load.arriving_tokens)).all()
    assert found.late < 0.01


def test_a_missing_solver_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "osqp", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'headway\[mpc\]'"):
        serve(PLANTS[0], sample_load(10), 0.025, horizon=4)
