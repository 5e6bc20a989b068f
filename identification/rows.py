"""Which rows of a trace are used, for a fit and for a score alike: by their neighbours, shapes and gaps, never by a plant.

A rule that looked at the fitted plant would set aside whatever the plant misses, and call the rest its accuracy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from headway.identification.neighbours import FEWEST, FEWEST_REFERENCES, MOST_REFERENCES, Neighbours
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

FIRST_STEPS = 32
"""Steps of a stream that count as its first."""
LONGER = 1.5
PAIR = 1.2
"""Of a booked pair the long row took LONGER times its like, and both together what two such steps may take, within PAIR."""


def judge(trace: Trace) -> np.ndarray:
    """Say for each row whether it is used, and if not, why. Streams are judged apart.

    A step is held against the steps of nearest shape, and against the longest that its work could take if theirs took
    so long: to be many times longer than that needs another cause than work. A step that is many times shorter than
    its work could be is set aside only if the row beside it holds the missing time. In a trace of more than
    `headway.identification.neighbours.MOST_REFERENCES` rows the steps held against are a part of it, spread evenly.

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
            most = max(MOST_REFERENCES * len(rows) // len(trace), FEWEST_REFERENCES) if len(trace) > MOST_REFERENCES else len(rows)
            reason[rows] = _judge_stream(time[rows], work[rows], first, most)
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
    counts = Counter(reason[selected].tolist())
    aside = {name: counts[name] for name in sorted(counts) if name != KEPT}
    aside |= {name: int(count) for name, count in (read_aside or {}).items() if count}
    read = int(selected.sum()) + sum((read_aside or {}).values())
    return {"read": read, "used": read - sum(aside.values()), "set_aside": aside}


def select(trace: Trace, blocks: str, where: Mapping[str, object] | None) -> np.ndarray:
    """Rows that were asked for, set aside or not.

    Args:
        trace: all rows, shape (k,).
        blocks: "all", "even" or "odd", of the blocks cut before anything else.
        where: wanted value, or range low:high, by column, or None.

    Returns:
        Mask of shape (k,), bool.

    Raises:
        ValueError: an unknown word, column or value.
    """
    return trace.in_blocks(blocks) & trace.matching(where)


def _judge_stream(time: np.ndarray, work: np.ndarray, first: np.ndarray, most: int) -> np.ndarray:
    """The rules for the rows of one stream in order of step, shapes (k,), (k, 5), (k,)."""
    k = len(time)
    reason, log_time = np.full(k, KEPT, dtype=object), np.log(time)
    upper, lower, factor = np.full(k, np.nan), np.full(k, np.nan), np.full(k, np.inf)
    look, regimes = np.zeros(k, bool), []
    for mixed in (False, True):
        rows = np.flatnonzero((work[:, 2] > 0) == mixed)
        if len(rows) > FEWEST:
            near = Neighbours(log_time[rows], work[rows], max(most * len(rows) // k, FEWEST_REFERENCES) if most < k else len(rows))
            regimes.append((rows, near))
            factor[rows], look[rows] = near.factor, near.suspects()
    _fill(upper, lower, regimes, look)
    with np.errstate(invalid="ignore"):  # NaN: nothing comparable, and no comparison with it is true
        short = np.flatnonzero(log_time < lower - factor)
        beside = np.zeros(k, bool)
        beside[np.clip([short - 1, short + 1], 0, k - 1)] = True
        _fill(upper, lower, regimes, beside & ~look)
        for i in short.tolist():
            j = _booked_on(i, log_time, upper, lower)
            if j is not None:
                reason[[i, j]] = BOOKED
        long = (log_time > upper + factor) & (reason == KEPT)
    if long.any():
        reason[long] = np.where(first[long] | _first_of_shape(work)[long], FIRST_SHAPE, GAP)
    return reason


def _fill(upper: np.ndarray, lower: np.ndarray, regimes: list[tuple[np.ndarray, Neighbours]], wanted: np.ndarray) -> None:
    """Put the bounds of the wanted rows of a stream into place."""
    for rows, near in regimes:
        own = np.flatnonzero(wanted[rows])
        if len(own):
            upper[rows[own]], lower[rows[own]] = near.bounds(own)


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
    bucket = np.ceil(np.log2(np.maximum(np.stack([requests, tokens, work[:, 4] + 1], axis=1), 1))).astype(np.int64)
    mask = np.zeros(len(work), bool)
    mask[np.unique(bucket @ np.array([1 << 14, 1 << 7, 1]), return_index=True)[1]] = True  # a power of two is below 128
    return mask
