"""Quantiles that know how much they rest on: each with its interval, or refused where the sample cannot hold it.

The interval is that of order statistics: the number of values below the true quantile is binomial, whatever the values
are distributed like. It takes the values for independent. Those of a queue are not: a bad minute is bad for all who
wait in it. So values come in consecutive blocks, and where the blocks differ by more than chance would make them, the
sample counts as that many fewer. A quantile is refused where there are too few values; where there are enough, and they are
worth too few, it stands with an interval that is open above.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from headway.models.outcome import GAP_BINS, GAP_LOW_S, GAP_RATIO

QUANTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "p999": 0.999}
"""The quantiles that are shown, by name."""

CONFIDENCE = 0.95
"""Of every interval, and that the quantile lies within the sample at all."""

LEAST_BLOCKS = 8
"""Blocks below which nothing is said about how dependent values are, and they are taken as independent."""

BLOCKS = 20
"""Blocks that requests are cut into, all runs together, where each holds enough of them."""

LEAST_IN_BLOCK = 10
"""Values of a block, at least."""


class Quantile(NamedTuple):
    """One quantile of a sample.

    Args:
        value: that occurred; None where refused.
        low: lower end of the 95 % interval; None where refused.
        high: upper end; None where refused, and where it is open: dependent values, or a request that never got there.
        refused: why there is no value, in words; empty where there is one, or where there was nothing to take it of.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    refused: str = ""


@functools.cache
def needed(share: float) -> int:
    """Values that a quantile needs so that it lies within the sample with 95 %.

    least n with 1 - q^n - (1 - q)^n >= .95

    Args:
        share: q, in (0, 1).

    Returns:
        Number of independent values.

    Example:
        >>> [needed(q) for q in (0.5, 0.9, 0.99, 0.999)]
        [6, 29, 299, 2995]
    """
    n = 2
    while 1 - share**n - (1 - share) ** n < CONFIDENCE:
        n += 1
    return n


@functools.lru_cache(maxsize=256)
def order_ranks(n: int, share: float) -> tuple[int, int] | None:
    """Which values of a sorted sample hold the true quantile between them with 95 %.

    P(x_(l) > Q) = P(K < l) <= .025,  P(x_(u) < Q) = P(K >= u) <= .025,  K binomial(n, q)

    Where even the largest value lies below Q more often than that, the lower end takes what is left of the 5 %.

    Args:
        n: independent values.
        share: q, in (0, 1).

    Returns:
        (l, u), ranks from 1; None where the sample is too small.

    Source:
        David and Nagaraja, Order Statistics, 2003, section 7.1.

    Example:
        >>> order_ranks(1000, 0.99)
        (983, 997)
    """
    if n < needed(share):
        return None
    reach = math.ceil(12 * math.sqrt(n * share * (1 - share))) + 40
    centre = int(n * share)
    first, last = max(0, centre - reach), min(n, centre + reach)
    k = np.arange(first, last)
    ratio = np.concatenate([[0.0], np.cumsum(np.log((n - k) / (k + 1.0)) + math.log(share / (1 - share)))])
    mass = np.exp(ratio - ratio.max())
    mass /= mass.sum()
    below, above = np.cumsum(mass), np.cumsum(mass[::-1])[::-1]  # P(K <= first + i), P(K >= first + i)
    tail = (1 - CONFIDENCE) / 2
    upper = first + int(np.argmax(above <= tail)) if (above <= tail).any() else n
    spent = float(above[upper - first])
    left = tail if spent <= tail else 2 * tail - spent
    lower = first + int(np.searchsorted(below, left, side="right"))
    if lower < 1:
        return None
    return lower, min(upper, n)


def effective(below: np.ndarray, block: np.ndarray | None) -> int:
    """Independent values that a sample is worth at a quantile.

    d = B / (B - 1) sum_b (s_b - p n_b)^2 / (n p (1 - p)),  n / d where d is beyond the 95 % of what chance makes of it

    Args:
        below: whether each value is at most the quantile, shape (n,), bool; or, with counts per block, see `effective_counts`.
        block: number of each value's block, ascending from 0, shape (n,); None takes the values as independent.

    Returns:
        At most n.
    """
    if block is None or len(below) == 0:
        return len(below)
    return effective_counts(np.bincount(block, below), np.bincount(block))


def effective_counts(below: np.ndarray, sizes: np.ndarray) -> int:
    """As `effective`, from the counts of each block.

    Args:
        below: values at most the quantile, per block, shape (B,).
        sizes: values, per block, shape (B,).

    Returns:
        At most the number of values.
    """
    keep = sizes > 0
    below, sizes = np.asarray(below, float)[keep], np.asarray(sizes, float)[keep]
    n, blocks = float(sizes.sum()), len(sizes)
    share = float(below.sum()) / n if n else 0.0
    if blocks < LEAST_BLOCKS or not 0 < share < 1:
        return int(n)
    spread = blocks / (blocks - 1) * float(((below - share * sizes) ** 2).sum()) / (n * share * (1 - share))
    free = blocks - 1
    by_chance = (1 - 2 / (9 * free) + 1.645 * math.sqrt(2 / (9 * free))) ** 3  # Wilson and Hilferty, of chi^2 / free
    return int(n) if spread <= by_chance else max(1, int(n / spread))


def blocks_of(runs: list[int]) -> np.ndarray | None:
    """Consecutive blocks of values, none across two runs.

    Args:
        runs: values of each run, in order of arrival.

    Returns:
        Block of each value, from 0, shape (sum of runs,); None where there are too few for blocks.
    """
    wanted = max(1, math.ceil(BLOCKS / max(len(runs), 1)))
    found, number = [], 0
    for n in runs:
        parts = max(1, min(wanted, n // LEAST_IN_BLOCK))
        found.append(number + (np.arange(n) * parts) // max(n, 1))
        number += parts
    return np.concatenate(found).astype(int) if number >= LEAST_BLOCKS and found else None


def refusal(share: float, n: int, worth: int, of: str) -> str:
    """Why a quantile is not given.

    Args:
        share: q.
        n: values there are.
        worth: independent values that they are worth.
        of: what they are, such as "requests".

    Returns:
        A phrase, such as "needs 2,995 requests, has 400".
    """
    text = f"needs {needed(share):,} {of}, has {n:,}"
    return text if worth == n else f"{text}, worth {worth:,} independent ones"


def quantiles(values: np.ndarray, block: np.ndarray | None = None, of: str = "requests") -> dict[str, Quantile]:
    """The quantiles that are shown, each with its interval or its refusal.

    Args:
        values: shape (n,); infinities (requests that never got a token) sort last.
        block: of each value, see `effective`, shape (n,); None takes them as independent.
        of: what the values are of, for a refusal.

    Returns:
        By name; without value and reason where there is nothing.

    Example:
        >>> quantiles(np.arange(1.0, 1001.0))["p99"]
        Quantile(value=991.0, low=983.0, high=997.0, refused='')
        >>> quantiles(np.arange(1.0, 1001.0))["p999"].refused
        'needs 2,995 requests, has 1,000'
    """
    values = np.asarray(values, float)
    n = len(values)
    if n == 0:
        return dict.fromkeys(QUANTILES, Quantile())
    rows = np.sort(values)
    found = {}
    for name, share in QUANTILES.items():
        value = float(np.quantile(rows, share, method="higher"))
        worth = effective(values <= value, block)
        if n < needed(share):
            found[name] = Quantile(refused=refusal(share, n, n, of))
            continue
        lower, upper = interval_ranks(n, worth, share)
        low, high = finite(min(rows[lower - 1], value)), None if upper is None else finite(rows[upper - 1])
        known = finite(value)
        found[name] = Quantile(known, low, high, "" if known is not None else f"{np.isinf(rows).mean():.1%} of the {of} never got a token")
    return found


def gap_quantiles(gaps: np.ndarray, transport_s: np.ndarray, steps: int) -> dict[str, Quantile]:
    """Quantiles of the gaps from their histograms, upper edges of the bins, so never flattering.

    All who decode see the same step, so gaps are worth no more than the steps they came from; from 8 runs on, also no
    more than the differences between runs allow. Steps of one run are otherwise taken as independent.

    Args:
        gaps: counts per run, shape (runs, classes, GAP_BINS).
        transport_s: added to the gaps of each class, shape (classes,) [s].
        steps: engine steps that made them, all runs together.

    Returns:
        By name [s]; without value and reason where there was no gap.
    """
    edges = GAP_LOW_S * GAP_RATIO ** (np.arange(GAP_BINS) + 1.0)
    values = (edges + transport_s[:, None]).ravel()
    order = np.argsort(values, kind="stable")
    values, per_run = values[order], np.cumsum(gaps.reshape(len(gaps), -1)[:, order], axis=1)
    counts = per_run.sum(axis=0)
    n = int(counts[-1])
    if n == 0:
        return dict.fromkeys(QUANTILES, Quantile())
    found = {}
    for name, share in QUANTILES.items():
        place = int(np.searchsorted(counts, share * n))
        if min(n, steps) < needed(share):
            found[name] = Quantile(refused=refusal(share, n, min(n, steps), "gaps"))
            continue
        worth = max(1, min(effective_counts(per_run[:, place], per_run[:, -1]), steps))
        ends = interval_ranks(n, worth, share)
        low, high = (None if at is None else float(values[min(int(np.searchsorted(counts, at)), len(values) - 1)]) for at in ends)
        found[name] = Quantile(float(values[place]), None if low is None else min(low, float(values[place])), high)
    return found


def interval_ranks(n: int, worth: int, share: float) -> tuple[int, int | None]:
    """Ranks in the sample of the ends of an interval, from those among the independent values that it is worth.

    Where those are too few to hold the quantile, the lower end alone: q - 1.645 sqrt(q (1 - q) / worth), one-sided 95 %.

    Args:
        n: values there are.
        worth: independent values.
        share: q.

    Returns:
        (lower rounded down, upper rounded up), from 1; the upper one None where so few values cannot hold the quantile.
    """
    ranks = order_ranks(worth, share)
    if ranks is None:
        spread = 1.645 * math.sqrt(worth * share * (1 - share))
        return min(max(int((worth * share - spread) * n / worth), 1), n), None
    return max(ranks[0] * n // worth, 1), min(-(-ranks[1] * n // worth), n)


def finite(value: float) -> float | None:
    """A number, or None where it is infinite.

    Args:
        value: any.

    Returns:
        The value.
    """
    return float(value) if math.isfinite(value) else None
