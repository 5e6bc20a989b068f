"""How long outputs last: the probability that a request still runs some steps from now, learned while serving.

Outputs are unknown until they end, and those that ended alone would be the short ones. So it is the product-limit
estimate, over the outputs that ended and the requests that run, per class:

    P(L >= edge_j) = prod_{i < j} (1 - ended_i / watched_i)

ended_i outputs ended in bin i, watched_i is how many were watched through it, a request that runs for the part of its
bin that it has behind it. A log-logistic prior weighs in as some requests. Whoever ended long ago counts less:
workloads drift.

Source:
    Kaplan and Meier, Nonparametric estimation from incomplete observations, 1958.
"""

from __future__ import annotations

import math

import numpy as np

from headway.models.compiled import compiled, compiled_inline
from headway.models.state import CENSORED, EXPOSED, OUTLOOK_BINS, OUTLOOK_CLASSES, RUNNING_IDS, SEEN

MEMORY = 0.9995
"""Weight that an output keeps whenever another of its class ends: some two thousand are remembered."""
FINE = 8
"""Bins to every doubling of the output length."""
LONGEST = 2.0 ** (OUTLOOK_BINS // FINE + 2) - 1.0
"""Longest output that the bins tell from longer ones [tokens]."""
WIDTHS = np.array([2.0 ** max(j // FINE - 1, 0) for j in range(OUTLOOK_BINS)])
EDGES = np.concatenate([[0.0], np.cumsum(WIDTHS)[:-1]])
"""Where each bin begins, and how wide it is [tokens]."""


@compiled_inline
def bin_of(tokens):
    """Bin that an output length falls into.

    Args:
        tokens: at least 0 [tokens].

    Returns:
        Index in [0, OUTLOOK_BINS - 1).

    Example:
        >>> bin_of(0.0), bin_of(15.0), bin_of(32.0), bin_of(35.0), bin_of(36.0), bin_of(1e9)
        (0, 15, 24, 24, 25, 142)
    """
    if tokens < 2 * FINE:
        return int(tokens)
    part, octave = math.frexp(min(tokens, LONGEST))
    return min((octave - 4) * FINE + int(part * 2 * FINE), OUTLOOK_BINS - 2)


@compiled_inline
def reached(alive, tokens):
    """Probability that an output is at least so long, linear within a bin.

    Args:
        alive: probability to reach the start of each bin, shape (OUTLOOK_BINS,).
        tokens: at least 0 [tokens].

    Returns:
        P(L >= tokens).
    """
    j = bin_of(tokens)
    into = min((tokens - EDGES[j]) / WIDTHS[j], 1.0)
    return alive[j] + into * (alive[j + 1] - alive[j])


@compiled_inline
def prior(tokens, median):
    """The same before anything was seen: log-logistic, half of the outputs longer than the median, as spread as chat traffic.

    Args:
        tokens: [tokens].
        median: [tokens].

    Returns:
        1 / (1 + ((tokens - 1) / median)^2).
    """
    ratio = max(tokens - 1.0, 0.0) / median
    return 1.0 / (1.0 + ratio * ratio)


@compiled_inline
def row_of(r):
    """Where the rows of a request's class begin, after those of the first.

    Args:
        r: its record.

    Returns:
        Rows.
    """
    return 2 * min(r.class_id, OUTLOOK_CLASSES - 1)


@compiled
def learn(r, e):
    """Take in that an output has ended.

    Args:
        r: record of its request.
        e: the books.
    """
    seen = e.outlook[SEEN + row_of(r)]
    for j in range(OUTLOOK_BINS):
        seen[j] *= MEMORY
    seen[bin_of(r.emitted)] += 1.0


@compiled
def survive(seen, alive, censored, exposed, median, weight):
    """Probability to reach each bin: the product over the bins before it of one less the share of those watched that ended.

    Args:
        seen: outputs that ended in each bin, shape (OUTLOOK_BINS,).
        alive: changed in place, shape (OUTLOOK_BINS,).
        censored: running requests that are in each bin, shape (OUTLOOK_BINS,).
        exposed: the part of the bin that they have behind them; changed in place to all that were watched, shape (OUTLOOK_BINS,).
        median: of the prior [tokens].
        weight: of the prior [requests].
    """
    beyond = 0.0
    for back in range(OUTLOOK_BINS):
        j = OUTLOOK_BINS - 1 - back
        exposed[j] += beyond + seen[j]
        beyond += seen[j] + censored[j]
    alive[0], before = 1.0, 1.0
    for j in range(OUTLOOK_BINS - 1):
        after = prior(EDGES[j + 1], median)
        ended = (weight * (before - after) + seen[j]) / (weight * before + exposed[j])
        alive[j + 1] = alive[j] * (1.0 - ended)
        before = after


@compiled
def count_lengths(req, e, ids, median, weight):
    """Survival of every class that runs or was seen, from what ended and from what runs.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        median: of the prior [tokens].
        weight: of the prior [requests].
    """
    o = e.outlook
    for row in range(SEEN, SEEN + 2 * OUTLOOK_CLASSES, 2):
        o[CENSORED, :] = 0.0
        o[EXPOSED, :] = 0.0
        for k in range(e.n_running):
            r = req[ids[RUNNING_IDS, k]]
            if SEEN + row_of(r) == row:
                j = bin_of(r.emitted + 1.0)
                o[CENSORED, j] += 1.0
                o[EXPOSED, j] += min((r.emitted + 1.0 - EDGES[j]) / WIDTHS[j], 1.0)
        survive(o[row], o[row + 1], o[CENSORED], o[EXPOSED], median, weight)
