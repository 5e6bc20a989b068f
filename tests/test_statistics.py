"""Intervals of figures that are no means over seeds: how often they hold the truth, and what they leave unsaid."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.experiments.statistics import resampled_interval


@pytest.mark.parametrize("n", [5, 20])
def test_a_resampled_interval_holds_the_truth_about_as_often_as_it_says(n: int) -> None:
    rng, repeats = np.random.default_rng(2), 200
    held = 0
    for k in range(repeats):
        x, y = rng.exponential(1.0, n), rng.exponential(1.0, n)
        ratio = lambda rows, x=x, y=y: float(x[rows].sum() / (x[rows].sum() + y[rows].sum()))  # noqa: E731
        found = resampled_interval(ratio, n, value=ratio(np.arange(n)), seed=k, resamples=400)
        held += found.low <= 0.5 <= found.high
    assert held / repeats >= 0.95 - 4 * math.sqrt(0.05 * 0.95 / repeats)


def test_an_end_that_the_resamples_cannot_see_is_not_given() -> None:
    x = np.arange(10.0)
    found = resampled_interval(lambda rows: float(x[rows].mean()) if x[rows].mean() < 5.5 else math.inf, 10, value=4.5)
    assert found.low < 4.5
    assert math.isnan(found.high)
    assert np.isnan(resampled_interval(lambda rows: 1.0, 1, value=1.0)[1:]).all()


@given(st.integers(2, 40), st.integers(0, 1000))
def test_the_value_lies_in_its_interval(n: int, seed: int) -> None:
    x = np.random.default_rng(seed).normal(size=n)
    found = resampled_interval(lambda rows: float(np.median(x[rows])), n, value=float(np.median(x)), resamples=50)
    assert found.low <= found.value <= found.high
