"""How many steps until the margin is known to a given width: from the tail of the residuals and from how alike neighbours are."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import digamma, polygamma
from scipy.stats import binom, norm

from headway.identification.design.optimal import ASSUMED_CORRELATION, ASSUMED_SD
from headway.identification.structures.intervals import block_length

ASSURANCE = 0.8
"""Chance that the interval comes out no wider than asked: its width is drawn too."""
FEWEST_TAIL = 20
"""Residuals beyond the threshold from which the tail is measured; with fewer in all than four times that it is assumed."""
CLUSTERED = 30
"""Residuals beyond a threshold that it takes to say how they cluster."""
MOST_STEPS = 10**9
"""Answer beyond which a width counts as out of reach [steps]."""


class Tail(NamedTuple):
    """The residuals near the quantile that the margin is made of.

    q(e) = q + scale log(epsilon / e) for shares e about epsilon: beyond the threshold they fall exponentially

    Args:
        quantile: that a share epsilon of steps exceeds, log(measured / predicted).
        scale: mean excess beyond the threshold, same unit; epsilon / scale is the density at the quantile.
        repeats: steps that count as one, at least 1: late steps come in clusters.
        measured: residuals that this is from; 0 where it is assumed.
    """

    quantile: float
    scale: float
    repeats: float
    measured: int


class Need(NamedTuple):
    """Steps that one regime needs.

    Args:
        steps: of the regime [steps].
        margin: expected, 1 - exp(-quantile).
        width: of its 95 % interval with these steps, expected.
        tail: it follows from.
    """

    steps: int
    margin: float
    width: float
    tail: Tail


def tail_of(residual: np.ndarray, epsilon: float) -> Tail:
    """Measure the tail, or assume a log-normal one where there is too little to measure.

    Args:
        residual: of one regime, in time order, shape (k,), log(measured / predicted).
        epsilon: share of steps beyond the quantile, in (0, 1).

    Returns:
        The tail.

    Raises:
        ValueError: epsilon out of range.
    """
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon must be in (0, 1), got {epsilon:g}; write 0.01 for 1 %")
    n = len(residual)
    if n < 4 * FEWEST_TAIL:
        repeats = (1 + ASSUMED_CORRELATION) / (1 - ASSUMED_CORRELATION)
        quantile, density = norm.isf(epsilon), norm.pdf(norm.isf(epsilon))
        return Tail(ASSUMED_SD * float(quantile), ASSUMED_SD * epsilon / float(density), repeats, 0)
    beyond = min(max(math.ceil(2 * epsilon * n), FEWEST_TAIL), n // 2)
    ordered = np.sort(residual)
    threshold = float(ordered[n - beyond - 1])
    scale = max(float((ordered[n - beyond :] - threshold).mean()), 1e-6)
    return Tail(threshold + scale * math.log(beyond / n / epsilon), scale, clustering(residual, epsilon), n)


def clustering(residual: np.ndarray, epsilon: float) -> float:
    """Steps that count as one when the share beyond a quantile is taken.

    Variance of the count in blocks of consecutive steps over what independent steps would have. Blocks are as long as
    the bootstrap's, the quantile low enough that some dozens of steps lie beyond it.

    Args:
        residual: in time order, shape (k,).
        epsilon: share of steps beyond the quantile, in (0, 1).

    Returns:
        At least 1.

    Source:
        Kuensch, The jackknife and the bootstrap for general stationary observations, 1989: the blocks' variance.
    """
    n, share = len(residual), min(max(epsilon, CLUSTERED / len(residual)), 0.5)
    late = residual > np.quantile(residual, 1 - share)
    length, share = block_length(residual), float(late.mean())
    if share <= 0 or length >= n:
        return 1.0
    sums = np.concatenate([[0], np.cumsum(late)])
    counts = sums[length:] - sums[:-length]
    return max(float(counts.var() / (length * share * (1 - share))), 1.0)


def width_of(tail: Tail, steps: float, epsilon: float, assurance: float = ASSURANCE) -> float:
    """Width that the margin's 95 % interval stays within.

    The interval lies between two order statistics, whose ranks are binomial; between them lie independent exponential
    spacings of mean scale / i, i counted from the top: their sum has mean scale (psi(b) - psi(a)) and the variance of a
    sum of trigammas.

    Args:
        tail: of the residuals.
        steps: of the regime [steps].
        epsilon: of the margin, in (0, 1).
        assurance: chance that the width comes out no larger; 0.5 for the expected width.

    Returns:
        Width of the margin; infinite where the steps are too few for an upper end.

    Source:
        Renyi, On the theory of order statistics, 1953.
    """
    effective = steps / tail.repeats
    low, high = (float(x) for x in binom.ppf([0.025, 0.975], math.floor(effective), epsilon))
    if low < 1:
        return math.inf
    # ranks from the top: the upper end of the interval has the fewer residuals beyond it
    mean = tail.scale * float(digamma(high + 1) - digamma(low))
    spread = tail.scale * math.sqrt(max(float(polygamma(1, low) - polygamma(1, high + 1)), 0.0))
    width = mean + float(norm.ppf(assurance)) * spread
    middle = tail.scale * math.log(epsilon * effective / math.sqrt(low * (high + 1)))
    return math.exp(-(tail.quantile + middle)) * 2 * math.sinh(width / 2)


def steps_for_margin(residual: np.ndarray, width: float, epsilon: float, assurance: float = ASSURANCE) -> Need:
    """Steps of a regime until its margin's 95 % interval is within a width.

    Args:
        residual: of the regime on an earlier trace, in time order, shape (k,); a few or none assumes a tail.
        width: asked for, in (0, 1): 0.02 is two points of margin.
        epsilon: share of steps over the budget that the margin allows, in (0, 1).
        assurance: chance that the interval comes out no wider, in [0.5, 1).

    Returns:
        The need.

    Raises:
        ValueError: a width, epsilon or assurance out of range, or a width that no recording would reach.
    """
    if not 0 < width < 1:
        raise ValueError(f"margin width must be in (0, 1), got {width:g}; write 0.02 for two points of margin")
    if not 0.5 <= assurance < 1:
        raise ValueError(f"assurance must be in [0.5, 1), got {assurance:g}")
    tail = tail_of(residual, epsilon)
    if width_of(tail, MOST_STEPS, epsilon, assurance) > width:
        raise ValueError(f"a margin within {width:g} needs more than {MOST_STEPS:,} steps; ask for a wider interval")
    low, high = 1.0, float(MOST_STEPS)
    while high / low > 1.005:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if width_of(tail, middle, epsilon, assurance) <= width else (middle, high)
    steps = math.ceil(high)
    while width_of(tail, steps, epsilon, assurance) > width:  # order statistics are whole: a few more may be a little wider
        steps = math.ceil(1.005 * steps)
    return Need(steps, 1 - math.exp(-tail.quantile), width_of(tail, steps, epsilon, 0.5), tail)
