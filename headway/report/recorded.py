"""What a trace recorded, as its figures show it: a clock, durations by regime, work, and why rows were set aside."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, NamedTuple

import numpy as np

from headway.identification.rows import KEPT, judge
from headway.identification.trace import BLOCK_ROWS, Trace

MOST_JUDGED = 40_000
"""Rows that are judged and drawn; of a longer trace, whole blocks spread evenly over it."""

BUCKETS = 600
"""Stretches of a time line: what is in one is told by its quantiles."""

FEWEST = 25
"""Steps of a stretch, at least."""

QUANTILES = (0.5, 0.99)
CELLS = (8, 32)
"""Fewest and most cells along each side of the excitation map."""

STEPS_OF_CELL = 40
"""Steps that there are for each cell of the map: more cells than that, and a combination that was recorded well would look as if it were not."""


class Recorded(NamedTuple):
    """Rows of a trace in order, shapes (k,).

    Args:
        place: number of the row in the trace, from 0.
        clock_s: end of the step, from the first [s]: the sum of durations, idle gaps left out.
        step_s: duration [s].
        decode_requests: [requests].
        kv_tokens: that they read [tokens].
        prefill_tokens: [tokens].
        reason: why the row is set aside, "" where it is used.
        total: rows of the whole trace.
    """

    place: np.ndarray
    clock_s: np.ndarray
    step_s: np.ndarray
    decode_requests: np.ndarray
    kv_tokens: np.ndarray
    prefill_tokens: np.ndarray
    reason: np.ndarray
    total: int

    @property
    def kept(self) -> np.ndarray:
        """Rows that are used, shape (k,), bool."""
        return self.reason == KEPT

    @property
    def mixed(self) -> np.ndarray:
        """Rows with prompt tokens, shape (k,), bool."""
        return self.prefill_tokens > 0


class Stretches(NamedTuple):
    """A time line in stretches of equal numbers of steps, shapes (b,).

    Args:
        clock_s: middle of each [s].
        middle_s: median duration; NaN where the stretch holds no such step [s].
        high_s: 99 % quantile; NaN likewise [s].
        steps: in each.
    """

    clock_s: np.ndarray
    middle_s: np.ndarray
    high_s: np.ndarray
    steps: np.ndarray


def recorded(trace: Trace) -> Recorded:
    """Read off a trace what its figures need.

    Args:
        trace: all rows.

    Returns:
        Recorded; of a trace of more than MOST_JUDGED rows, blocks spread evenly over it.
    """
    n, rows = len(trace), spread(len(trace))
    some = dataclasses.replace(trace, frame=trace.frame[rows]) if len(rows) < n else trace
    batch, step_s = some.batch(), np.asarray(some.step_time_s, float)
    clock_s = np.cumsum(np.maximum(np.nan_to_num(np.asarray(trace.step_time_s, float)), 0.0))[rows]
    sums = (batch.decode_requests, batch.decode_kv_tokens, batch.prefill_tokens)
    decode, kv, prefill = (np.asarray(x, float) for x in sums)
    return Recorded(rows, clock_s, step_s, decode, kv, prefill, judge(some), n)


def spread(n: int) -> np.ndarray:
    """Rows of a trace that are judged and drawn.

    Args:
        n: rows of the trace.

    Returns:
        Their numbers: all, or whole blocks spread evenly, MOST_JUDGED rows.
    """
    if n <= MOST_JUDGED:
        return np.arange(n)
    starts = BLOCK_ROWS * np.linspace(0, n // BLOCK_ROWS - 1, MOST_JUDGED // BLOCK_ROWS).round().astype(int)
    return (starts[:, None] + np.arange(BLOCK_ROWS)).ravel()


def stretches(found: Recorded, regime: str, buckets: int = BUCKETS) -> Stretches:
    """The time line of one regime.

    Args:
        found: rows in order.
        regime: "decode" or "mixed".
        buckets: most stretches.

    Returns:
        Stretches.
    """
    mine = found.kept & (found.mixed == (regime == "mixed"))
    many = min(buckets, max(len(found.step_s) // FEWEST, 1))
    edges = np.unique(np.linspace(0, len(found.step_s), many + 1).round().astype(int))
    rows = []
    for first, last in itertools.pairwise(edges):
        inside = found.step_s[first:last][mine[first:last]]
        low, high = np.quantile(inside, QUANTILES) if len(inside) else (np.nan, np.nan)
        rows.append((float(found.clock_s[(first + last - 1) // 2]), low, high, len(inside)))
    return Stretches(*np.array(rows, float).reshape(-1, 4).T)


class ExcitationMap(NamedTuple):
    """How often each combination of work was recorded.

    Args:
        decode_edges: of the cells, shape (m + 1,) [requests].
        prefill_edges: shape (n + 1,) [tokens].
        steps: in each cell, shape (n, m).
    """

    decode_edges: np.ndarray
    prefill_edges: np.ndarray
    steps: np.ndarray


def excitation_map(found: Recorded) -> ExcitationMap:
    """Count the steps used by decoding requests and prompt tokens.

    Args:
        found: rows in order.

    Returns:
        Counts; steps without a prompt are the lowest row of cells, by themselves.
    """
    decode, prefill = found.decode_requests[found.kept], found.prefill_tokens[found.kept]
    most_decode, most_prefill = (float(np.max(x, initial=1.0)) for x in (decode, prefill))
    side = int(np.clip(np.sqrt(len(decode) / STEPS_OF_CELL), *CELLS))
    x = np.unique(np.round(np.linspace(0, most_decode + 1, min(side, int(most_decode) + 1) + 1)))
    y = np.concatenate([[0.0, 1.0], np.unique(np.round(np.linspace(1, most_prefill + 1, min(side, max(int(most_prefill), 1)) + 1)))[1:]])
    counts, _, _ = np.histogram2d(prefill, decode, bins=(y, x))
    return ExcitationMap(x, y, counts)


def set_aside(found: Recorded) -> dict[str, int]:
    """Rows set aside, by reason.

    Args:
        found: rows in order.

    Returns:
        Number by reason, the most frequent first [rows].
    """
    names, counts = np.unique(found.reason[~found.kept].astype(str), return_counts=True)
    order: Any = np.argsort(-counts, kind="stable")
    return {str(names[i]): int(counts[i]) for i in order}
