"""The figures of a run that a search compares: goodput as in `headway.models.goodput`, compiled, from the records of the run."""

from __future__ import annotations

import numpy as np

from headway.models.compiled import compiled, compiled_making
from headway.models.goodput import ABANDONED, CLEAN_SHARE, FINISHED, FUTURE, GAP_BINS, GAP_LOW_S, GAP_RATIO, REJECTED

(ATTAINMENT, CLEAN, GOODPUT_TPS, THROUGHPUT_TPS, SHED, ITL_P99_S, MAX_GAP_S, STEPS, ON_TIME, OWED, END_S, MEASURES) = range(12)
"""Places in the measures of `evaluate`."""


@compiled_making
def p99_gap(gaps, targets):
    """The gap at the client that 99 % of the gaps do not exceed.

    Args:
        gaps: histogram at the engine, shape (classes, GAP_BINS).
        targets: shape (classes, 4): TTFT at the engine, budget, ITL, transport [s].

    Returns:
        Upper edge of its bin [s]; NaN where there was no gap.
    """
    wanted = 0.99 * gaps.sum()
    if wanted == 0.0:
        return np.nan
    slowest = targets[:, 3].max()
    below = np.zeros(gaps.shape[0])
    reached = np.zeros(gaps.shape[0], np.int64)
    for b in range(GAP_BINS):
        edge = GAP_LOW_S * GAP_RATIO ** (b + 1.0) + slowest
        for c in range(gaps.shape[0]):
            while reached[c] < GAP_BINS and GAP_LOW_S * GAP_RATIO ** (reached[c] + 1.0) + targets[c, 3] <= edge * (1.0 + 1e-12):
                below[c] += gaps[c, reached[c]]
                reached[c] += 1
        if below.sum() >= wanted:
            return edge
    return np.nan


@compiled
def measure(req, books, gaps, targets, out):
    """The figures that a search compares, per run.

    Args:
        req: requests, books closed.
        books: the engine's.
        gaps: histogram, shape (classes, GAP_BINS).
        targets: shape (classes, 4): TTFT at the engine, budget, ITL, transport [s].
        out: shape (MEASURES,), changed in place.
    """
    on, owed, clean, shed, tokens, longest, arrived, decided = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(len(req)):
        r = req[i]
        on += r.on_time
        owed += r.owed
        tokens += r.emitted
        if r.max_gap_s > 0.0:
            longest = max(longest, r.max_gap_s + targets[r.class_id, 3])
        arrived += 1.0 if r.status != FUTURE else 0.0
        decided += 1.0 if r.owed > 0.0 or r.status == FINISHED or r.status >= REJECTED else 0.0
        if r.status >= REJECTED:
            shed += 1.0 if r.status != ABANDONED else 0.0
        elif r.met > 0.0 and r.on_time >= CLEAN_SHARE * r.owed - 1e-9:
            clean += 1.0
    end_s = books[0].settled_s
    span = max(end_s - req[0].arrival_s, 1e-9)
    out[ATTAINMENT], out[CLEAN], out[SHED] = on / max(owed, 1e-9), clean / max(decided, 1.0), shed / max(arrived, 1.0)
    out[GOODPUT_TPS], out[THROUGHPUT_TPS] = on / span, tokens / span
    out[ITL_P99_S] = p99_gap(gaps, targets)
    out[MAX_GAP_S], out[STEPS], out[ON_TIME], out[OWED], out[END_S] = longest, books[0].step, on, owed, end_s
