"""Intervals for what was measured over seeds: always paired, because candidates met the same seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.stats import norm as normal
from scipy.stats import t as student

RESAMPLES = 4000
"""Bootstrap resamples: the ends of a 95 % interval settle to about 2 % of its width."""

STUDENTIZED = 8
"""From this many seeds on the bootstrap is studentized; with fewer a resample may hold one value only, and has no spread."""

LEAST_SPREAD = 0.4
"""Spread of a resample is taken to be at least this share of the sample's."""

TAIL = 0.025
"""What the intervals leave out at each end."""


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

    def in_percent(self, unit: str = "points", digits: int = 1) -> str:
        """A share for people, a hundredth as one; what is rounded to zero has no minus.

        Args:
            unit: of a hundredth: "points" of a difference of shares, "%" of a relative change.
            digits: after the point.

        Returns:
            The text.

        Example:
            >>> Estimate(0.0123, -0.0001, 0.02).in_percent()
            '+1.2 points [0.0, +2.0]'
        """
        near = [round(100 * x, digits) for x in self]
        value, low, high = (f"{x:+.{digits}f}" if x else f"{0:.{digits}f}" for x in near)
        return f"{value} {unit} [{low}, {high}]"


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
        low, high = np.quantile(ratios, [TAIL, 1 - TAIL])
        wider = _widening(n)
        return Estimate(value, value - wider * (value - float(low)), value + wider * (float(high) - value))
    spread = float((b - value * a).std(ddof=1) / np.sqrt(n) / max(a.mean(), 1e-12))
    spreads = (y - ratios[:, None] * x).std(axis=1, ddof=1) / np.sqrt(n) / np.maximum(x.mean(axis=1), 1e-12)
    if spread <= 1e-12 * max(abs(value), 1e-12):
        return Estimate(value, value, value)
    # a resample that misses the one odd seed has next to no spread, and would send the interval to infinity
    studentized = (ratios - value) / np.maximum(spreads, LEAST_SPREAD * spread)
    low, high = np.quantile(studentized, [TAIL, 1 - TAIL])
    return Estimate(value, value - float(high) * spread, value - float(low) * spread)


def _widening(n: int) -> float:
    """What a percentile interval of few seeds is widened by: Student's factor, and sqrt(n / (n - 1))."""
    return float(student.ppf(1 - TAIL, n - 1) / normal.ppf(1 - TAIL) * np.sqrt(n / (n - 1)))


def resampled_interval(statistic: Callable[[np.ndarray], float], n: int, *, value: float, seed: int = 0, resamples: int = 1000) -> Estimate:
    """A figure of all seeds together that is no mean of theirs, such as where a pooled curve crosses a bar.

    Percentile interval over resamples of the seeds, widened about the value by Student's factor and by sqrt(n / (n - 1)).

    Args:
        statistic: of the indices of the seeds, shape (n,), with repeats; infinite where it lies outside what can be said.
        n: number of seeds.
        value: the figure of all seeds.
        seed: of the resampling.
        resamples: number of them.

    Returns:
        Estimate; an end is NaN where the resamples cannot say, and both for fewer than two seeds.

    Source:
        Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3 (percentile interval).

    Example:
        >>> x = np.arange(20.0)
        >>> found = resampled_interval(lambda rows: float(np.median(x[rows])), 20, value=9.5)
        >>> 2 < found.low < 9.5 < found.high < 17
        True
    """
    if n < 2:
        return Estimate(value, float("nan"), float("nan"))
    index = np.random.default_rng(seed).integers(0, n, (resamples, n))
    found = np.sort([statistic(rows) for rows in index])
    wider, out = _widening(n), int(TAIL * resamples)
    ends = (min(float(found[out]), value), max(float(found[-1 - out]), value))
    return Estimate(value, *(value + wider * (end - value) if np.isfinite(end) else float("nan") for end in ends))
