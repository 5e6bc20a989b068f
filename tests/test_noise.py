"""The residual as a process: drawn factors are the plant's own, in pieces that keep their correlation, and others by seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.controllers.simulator import draw
from headway.models.noise import BLOCK, Noise
from headway.models.regimes import AffinePlant
from headway.models.signals import Limits
from headway.models.workload import Replay, Workload
from tests.small_problems import known


def ramp(n: int) -> np.ndarray:
    """Residuals whose value is their place."""
    return np.arange(n) / 1000


@given(st.integers(1, 900), st.integers(1, 900), st.integers(0, 2**32), st.integers(1, 500))
def test_factors_are_the_residuals_own_in_pieces_that_were_measured_together(a: int, b: int, seed: int, length: int) -> None:
    for residual, factors in zip((ramp(a), ramp(b)), Noise(ramp(a), ramp(b)).draw(seed, length), strict=True):
        assert factors.shape == (length,)
        place = np.rint(1000 * np.log(factors)).astype(int)
        assert set(place) <= set(range(len(residual)))
        np.testing.assert_allclose(np.exp(residual[place]), factors, rtol=1e-12)
        if len(residual) >= 10 * BLOCK:
            broken = np.flatnonzero((np.diff(place) != 1) & (np.diff(place) != 1 - len(residual))) + 1
            assert set(broken) <= set(range(0, length, BLOCK)), "a block ends only where the next begins"


@given(st.integers(0, 2**31), st.integers(0, 2**31))
def test_a_seed_gives_one_noise_and_another_seed_another(seed: int, other: int) -> None:
    noise = Noise(ramp(600), ramp(600))
    a, again, b = noise.draw(seed, 600), noise.draw(seed, 600), noise.draw(other, 600)
    assert all(np.array_equal(x, y) for x, y in zip(a, again, strict=True))
    assert not np.array_equal(a[0], a[1])
    assert seed == other or not np.array_equal(a[0], b[0])


def test_the_drawn_noise_has_the_size_and_the_memory_of_the_measured_one() -> None:
    rng = np.random.default_rng(0)
    residual = rng.normal(0, 0.05, 4000)
    for i in range(1, len(residual)):
        residual[i] = 0.8 * residual[i - 1] + 0.6 * residual[i]
    drawn = np.log(np.concatenate([Noise(residual, residual).draw(seed, 4000)[0] for seed in range(10)]))
    memory = lambda x, lag: np.corrcoef(x[:-lag], x[lag:])[0, 1]  # noqa: E731
    assert drawn.std() == pytest.approx(residual.std(), rel=0.05)
    for lag in (1, 5):  # a block of 50 loses lag / 50 of it
        assert memory(drawn, lag) == pytest.approx(memory(residual, lag) * (1 - lag / BLOCK), abs=0.04)


def test_no_noise_is_a_factor_of_one() -> None:
    assert [f.tolist() for f in Noise.none().draw(3, 4)] == [[1.0] * 4] * 2
    decode, mixed = Noise(ramp(100), np.zeros(0)).draw(0, 60)
    assert (mixed == 1).all()
    assert (decode != 1).any()


@pytest.mark.parametrize("size", [10, 50])
def test_seeds_differ_where_there_are_few_residuals(size: int) -> None:
    noise = Noise(ramp(size), ramp(size))
    assert len({tuple(noise.draw(seed, 200)[1]) for seed in range(20)}) > 10


def test_training_and_heldout_runs_of_one_seed_have_other_noise() -> None:
    n = 60
    source = Replay(Workload(np.arange(n) / 10, np.full(n, 10), np.full(n, 5), np.zeros(n, int)))
    identified = known(AffinePlant((1e-2, 0.0, 0.0, 1e-5, 0.0, 0.0)), Limits(10_000), Noise(ramp(5000), ramp(5000)))
    draws = {(seed, heldout): draw(source, identified, seed, 10, heldout=heldout) for seed in range(4) for heldout in (False, True)}
    assert len({d.decode.tobytes() for d in draws.values()}) == len({d.mixed.tobytes() for d in draws.values()}) == len(draws)
