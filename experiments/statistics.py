"""Intervals for what was measured over seeds: always paired, because candidates met the same seeds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

RESAMPLES = 4000
"""Bootstrap resamples: the ends of a 95 % interval settle to about 2 % of its width."""


class Estimate(NamedTuple):
    """A figure with its interval.

    Args:
        value: the figure.
        low: lower end of the 95 % interval.
        high: upper end.
    """

    value: float
    low: float
    high: float


def mean_interval(values: np.ndarray, seed: int = 0) -> Estimate:
    """Mean over seeds, with a bootstrap interval over them.

    Args:
        values: one per seed, shape (m,).
        seed: of the resampling.

    Returns:
        Estimate; the interval is NaN for fewer than two seeds.
    """
    values = np.asarray(values, float)
    if len(values) < 2:
        return Estimate(float(values.mean()), float("nan"), float("nan"))
    index = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    return _estimate(float(values.mean()), values[index].mean(axis=1), len(values))


def gain_interval(baseline: np.ndarray, candidate: np.ndarray, seed: int = 0) -> Estimate:
    """Relative gain of the mean over the same seeds: mean(candidate) / mean(baseline) - 1, paired bootstrap.

    Args:
        baseline: one value per seed, shape (m,).
        candidate: on the same seeds, shape (m,).
        seed: of the resampling.

    Returns:
        Estimate; the interval is NaN for fewer than two seeds.

    Raises:
        ValueError: unequal lengths.
    """
    a, b = np.asarray(baseline, float), np.asarray(candidate, float)
    if a.shape != b.shape:
        raise ValueError(f"paired values need the same seeds, got {a.shape} and {b.shape}")
    value = float(b.mean() / max(a.mean(), 1e-12) - 1)
    if len(a) < 2:
        return Estimate(value, float("nan"), float("nan"))
    index = np.random.default_rng(seed).integers(0, len(a), (RESAMPLES, len(a)))
    gains = b[index].mean(axis=1) / np.maximum(a[index].mean(axis=1), 1e-12) - 1
    return _estimate(value, gains, len(a))


def _estimate(value: float, resampled: np.ndarray, seeds: int) -> Estimate:
    """Percentile interval, widened for few seeds: a bootstrap of n values is too narrow by sqrt(n / (n - 1)) and by Student's factor."""
    low, high = np.quantile(resampled, [0.025, 0.975])
    wider = float(student.ppf(0.975, seeds - 1) / 1.959964 * np.sqrt(seeds / (seeds - 1)))
    return Estimate(value, value - wider * (value - float(low)), value + wider * (float(high) - value))
