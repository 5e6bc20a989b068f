"""Intervals for what was measured over seeds: always paired, because candidates met the same seeds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import t as student

RESAMPLES = 4000
"""Bootstrap resamples: the ends of a 95 % interval settle to about 2 % of its width."""

STUDENTIZED = 8
"""From this many seeds on the bootstrap is studentized; with fewer a resample may hold one value only, and has no spread."""


LEAST_SPREAD = 0.4
"""Spread of a resample is taken to be at least this share of the sample's."""


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
    return _ratio_interval(np.ones_like(values), values, seed)


def gain_interval(baseline: np.ndarray, candidate: np.ndarray, seed: int = 0) -> Estimate:
    """Relative gain of the mean over the same seeds: mean(candidate) / mean(baseline) - 1, paired.

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
    ratio = _ratio_interval(a, b, seed)
    return Estimate(*(x - 1 for x in ratio))


def _ratio_interval(a: np.ndarray, b: np.ndarray, seed: int) -> Estimate:
    """mean(b) / mean(a) with a 95 % interval over the pairs.

    Gains over seeds are skewed: most windows a little better, one a great deal. A percentile interval of such a mean
    reaches too far down and not far enough up; studentized resamples learn the skew. Few seeds get the percentile
    interval, widened by Student's factor and by sqrt(n / (n - 1)).

    Source:
        Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 12.5 (bootstrap-t).
    """
    n = len(a)
    value = float(b.mean() / max(a.mean(), 1e-12))
    if n < 2:
        return Estimate(value, float("nan"), float("nan"))
    index = np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))
    x, y = a[index], b[index]
    ratios = y.mean(axis=1) / np.maximum(x.mean(axis=1), 1e-12)
    if n < STUDENTIZED:
        low, high = np.quantile(ratios, [0.025, 0.975])
        wider = float(student.ppf(0.975, n - 1) / 1.959964 * np.sqrt(n / (n - 1)))
        return Estimate(value, value - wider * (value - float(low)), value + wider * (float(high) - value))
    spread = float((b - value * a).std(ddof=1) / np.sqrt(n) / max(a.mean(), 1e-12))
    spreads = (y - ratios[:, None] * x).std(axis=1, ddof=1) / np.sqrt(n) / np.maximum(x.mean(axis=1), 1e-12)
    if spread <= 1e-12 * max(abs(value), 1e-12):
        return Estimate(value, value, value)
    # a resample that misses the one odd seed has next to no spread, and would send the interval to infinity
    studentized = (ratios - value) / np.maximum(spreads, LEAST_SPREAD * spread)
    low, high = np.quantile(studentized, [0.025, 0.975])
    return Estimate(value, value - float(high) * spread, value - float(low) * spread)
