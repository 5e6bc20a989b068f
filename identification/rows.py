"""Which rows of a trace are used, for a fit and for a score alike: by their neighbours, shapes and gaps, never by a plant.

A rule that looked at the fitted plant would set aside whatever the plant misses, and call the rest its accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.spatial import KDTree

from headway.identification.trace import READ_ASIDE, Trace

KEPT = ""
IDLE = "idle"
FIRST_SHAPE = "first_shape"
GAP = "gap"
BOOKED = "booked_on_neighbour"
REASONS: dict[str, str] = {
    IDLE: "no token, or a duration of zero: the heartbeat of an idle engine",
    FIRST_SHAPE: "among the first steps, or the first of its shape, and many times as long as steps like it: compilation",
    GAP: "many times as long as all steps like it: a stall or an idle gap inside the step",
    BOOKED: "one step took almost none, the one beside it both: the time was booked on the neighbour",
    **READ_ASIDE,
}
"""Reason a row is set aside: what it means."""

NEIGHBOURS = 64
"""Rows of the nearest shapes that a row is held against."""
FEWEST = 3
"""Comparable rows below which nothing is said of a row: it stays."""
STRETCH = 2.0
"""Most times the work, in any sum, over which a row is still held against another: s times the work, at most s times the time."""
MANY_TIMES = 3.0
"""Ratio to comparable rows from which on a row is too long (or, inverted, too short) to be a step like them."""
SPREADS = 8.0
"""The same in robust standard deviations of the logarithm: a noisy trace keeps its tail, whatever the ratio."""
TIME_SHARE = 0.001
"""How far apart in shape (in logarithms) the first and the last row of a stream count, for equal sums."""
CHUNK = 20_000
"""Rows that are held against their neighbours at once, to bound memory [rows]."""
FIRST_STEPS = 32
"""Steps of a stream that count as its first."""
LONGER = 1.5
PAIR = 1.2
"""Of a booked pair the long row took LONGER times its like, and both together what two such steps may take, within PAIR."""


def judge(trace: Trace) -> np.ndarray:
    """Say for each row whether it is used, and if not, why. Streams are judged apart.

    A step is held against the steps of nearest shape, and against the longest that its work could take if theirs took
    so long: to be many times longer than that needs another cause than work. A step that is many times shorter than
    its work could be is set aside only if the row beside it holds the missing time.

    Args:
        trace: all rows, before any is chosen, shape (k,).

    Returns:
        Reason of each row, a key of `REASONS` or "" if it is used, shape (k,), str.
    """
    reason = np.full(len(trace), KEPT, dtype=object)
    time, work = trace.step_time_s, np.stack(trace.batch(), axis=1)
    idle = (time <= 0) | (work[:, 0] + work[:, 2] <= 0)
    reason[idle] = IDLE
    stream = trace.stream
    for number in np.unique(stream):
        rows = np.flatnonzero((stream == number) & ~idle)
        if len(rows) > FEWEST:
            first = rows - np.flatnonzero(stream == number)[0] < FIRST_STEPS
            reason[rows] = _judge_stream(time[rows], work[rows], first)
    return reason


def used_rows(reason: np.ndarray, selected: np.ndarray, read_aside: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Count the rows, for people.

    Args:
        reason: from `judge`, shape (k,).
        selected: rows that were asked for, shape (k,), bool.
        read_aside: rows that the readers set aside, by reason [rows].

    Returns:
        {"read": rows asked for, "used": rows kept, "set_aside": {reason: rows}} [rows].
    """
    names, counts = np.unique(reason[selected].astype(str), return_counts=True)
    aside = {str(name): int(count) for name, count in zip(names, counts, strict=True) if name != KEPT}
    aside |= {name: int(count) for name, count in (read_aside or {}).items() if count}
    read = int(selected.sum()) + sum((read_aside or {}).values())
    return {"read": read, "used": read - sum(aside.values()), "set_aside": aside}


def select(trace: Trace, blocks: str, where: Mapping[str, object] | None) -> np.ndarray:
    """Rows that were asked for, set aside or not.

    Args:
        trace: all rows, shape (k,).
        blocks: "all", "even" or "odd", of the blocks cut before anything else.
        where: wanted value by column, or None.

    Returns:
        Mask of shape (k,), bool.

    Raises:
        ValueError: an unknown word, column or value.
    """
    return trace.in_blocks(blocks) & trace.matching(where)


def _judge_stream(time: np.ndarray, work: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The rules for the rows of one stream in order of step, shapes (k,), (k, 5), (k,)."""
    reason, log_time = np.full(len(time), KEPT, dtype=object), np.log(time)
    upper, lower = np.full(len(time), np.nan), np.full(len(time), np.nan)
    factor = np.full(len(time), np.inf)
    for mixed in (False, True):
        rows = np.flatnonzero((work[:, 2] > 0) == mixed)
        if len(rows) > FEWEST:
            upper[rows], lower[rows] = _references(log_time[rows], work[rows])
            factor[rows] = _factor(log_time[rows], work[rows])
    with np.errstate(invalid="ignore"):  # NaN: nothing comparable, and no comparison with it is true
        for i in np.flatnonzero(log_time < lower - factor).tolist():
            j = _booked_on(i, log_time, upper, lower)
            if j is not None:
                reason[[i, j]] = BOOKED
        long = (log_time > upper + factor) & (reason == KEPT)
    reason[long] = np.where(first[long] | _first_of_shape(work)[long], FIRST_SHAPE, GAP)
    return reason


def _shape(work: np.ndarray) -> np.ndarray:
    """Where a row lies among the others: logarithms of its sums, and a trace of its time, which tells equal shapes apart."""
    return np.column_stack([np.log1p(work), np.linspace(0.0, TIME_SHARE, len(work))])


def _references(log_time: np.ndarray, work: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log of the longest, and of the shortest, that a step could take by the rows of nearest shape; NaN where too few.

    Of two steps, if one has at most s >= 1 times the work of the other in every sum, it takes at most s times as long:
    so says every plant that is linear or flatter in its sums, whatever its coefficients. Medians over the neighbours.
    """
    shape = _shape(work)
    tree = KDTree(shape)
    found = np.full((2, len(work)), np.nan)
    for start in range(0, len(work), CHUNK):
        rows = np.arange(start, min(start + CHUNK, len(work)))
        nearest = np.asarray(tree.query(shape[rows], k=min(NEIGHBOURS + 1, len(work)))[1])
        ahead = (shape[rows, None, :] - shape[nearest])[:, :, :-1]
        for k, sign in enumerate((1.0, -1.0)):
            stretch = np.maximum((sign * ahead).max(axis=2), 0.0)
            comparable = (stretch <= np.log(STRETCH)) & (nearest != rows[:, None])
            values = np.sort(np.where(comparable, log_time[nearest] + sign * stretch, np.inf), axis=1)
            count = comparable.sum(axis=1)
            middle = values[np.arange(len(rows)), np.maximum(count - 1, 0) // 2]
            found[k, rows] = np.where(count >= FEWEST, middle, np.nan)
    return found[0], found[1]


def _factor(log_time: np.ndarray, work: np.ndarray) -> float:
    """Log ratio from which on a row is no step like the others: MANY_TIMES, or more where steps of one shape scatter more."""
    shape = _shape(work)
    nearest = np.asarray(KDTree(shape).query(shape, k=2)[1])
    other = np.where(nearest[:, 0] == np.arange(len(work)), nearest[:, 1], nearest[:, 0])
    spread = 1.4826 * float(np.median(np.abs(log_time - log_time[other]))) / np.sqrt(2.0)
    return max(float(np.log(MANY_TIMES)), SPREADS * spread)


def _booked_on(i: int, log_time: np.ndarray, upper: np.ndarray, lower: np.ndarray) -> int | None:
    """The row beside a row that is too short that holds the time missing in it, if there is one."""
    for j in (i - 1, i + 1):
        if 0 <= j < len(log_time) and log_time[j] > np.log(LONGER) + (upper[j] + lower[j]) / 2:
            both = np.exp(log_time[[i, j]]).sum()
            if np.exp(lower[[i, j]]).sum() / PAIR < both < np.exp(upper[[i, j]]).sum() * PAIR:
                return j
    return None


def _first_of_shape(work: np.ndarray) -> np.ndarray:
    """Whether a row is the first whose requests and prompt tokens round up to these powers of two: graphs are compiled so."""
    requests, tokens = work[:, 0] + work[:, 4], work[:, 0] + work[:, 2]
    bucket = np.ceil(np.log2(np.maximum(np.stack([requests, tokens, work[:, 4] + 1], axis=1), 1)))
    mask = np.zeros(len(work), bool)
    mask[np.unique(bucket, axis=0, return_index=True)[1]] = True
    return mask
