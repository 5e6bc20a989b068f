"""What clock do the durations tell? From start to start of steps, the device alone, the scheduler's own time, or two loops.

Targets are promised on the wall clock, and a user waits for the host's gap as well as for the device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headway.identification.diagnostics.correlation import settled, spread

FEWEST = 20
"""Steps with a period below which nothing is said [steps]."""
IDLE_TIMES = 3.0
"""A gap longer than the median by this many times the median period is idle time, not the host's."""
NOTICED = 0.02
"""Share of the period outside the step time from which on it is said: below it no target would notice."""
TINY = 0.1
"""Share even of the shortest tenth of the periods below which a duration is the scheduler's own time."""
SCHEDULER = 0.25
"""The same where it follows no input either."""
FOLLOWS = 0.3
"""Correlation of the duration with an input, or with the period, from which on it follows it."""
TWO_LOOPS = 1.5
"""Median of duration over period from which on a record spans two loops."""
OVERLAP = 1.05
"""The same from which on records overlap."""


class HostGap(NamedTuple):
    """What the host takes between steps.

    Args:
        steps: consecutive busy steps behind the figures [steps].
        median_s: of the gap, period less step time [s].
        low_s: its 5 % quantile [s].
        high_s: its 95 % quantile [s].
        share: median gap over median period.
        period_s: median period [s].
    """

    steps: int
    median_s: float
    low_s: float
    high_s: float
    share: float
    period_s: float

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            The fields by name.
        """
        return self._asdict()


class WallTime(NamedTuple):
    """Durations from start to start.

    Args:
        step_time_s: the period where one is known, NaN elsewhere, shape (k,) [s].
        known: where it is known, shape (k,), bool. The other rows hold no step time: set them aside, and count them.
        gap: what the host takes between steps; None where too few periods are known.
        said: what there is to say, one sentence each.
    """

    step_time_s: np.ndarray
    known: np.ndarray
    gap: HostGap | None
    said: list[str]


def periods(start_s: np.ndarray, stream: np.ndarray) -> np.ndarray:
    """Time from the start of each step to the start of the next one in its stream.

    Args:
        start_s: the clock at the start of each step, in time order within each stream, shape (k,) [s].
        stream: number of the source of each row, shape (k,).

    Returns:
        Shape (k,) [s]; NaN for the last step of a stream and where the clock goes back. An idle gap is in it.
    """
    found = np.full(len(start_s), np.nan)
    found[:-1] = np.where((stream[1:] == stream[:-1]) & (np.diff(start_s) > 0), np.diff(start_s), np.nan)
    return found


def host_gap(step_time_s: np.ndarray, period_s: np.ndarray, busy: np.ndarray) -> HostGap | None:
    """Quantiles of what lies between the end of a step and the start of the next one.

    gap(k) = period(k) - step time(k), over steps that a next one followed at once

    Args:
        step_time_s: durations, on the device or inside the engine, shape (k,) [s].
        period_s: from the start of the step to the start of the next one; zero, negative or NaN where unknown, shape (k,) [s].
        busy: whether the step and the one after it ran, shape (k,), bool.

    Returns:
        The gap; None for fewer than 20 such steps.
    """
    good = _consecutive(step_time_s, period_s, busy)
    if int(good.sum()) < FEWEST:
        return None
    gap = period_s[good] - step_time_s[good]
    low, middle, high = np.quantile(gap, [0.05, 0.5, 0.95])
    period = float(np.median(period_s[good]))
    return HostGap(int(good.sum()), float(middle), float(low), float(high), float(middle) / period, period)


def wall_time(step_time_s: np.ndarray, period_s: np.ndarray, busy: np.ndarray) -> WallTime:
    """The durations to fit where periods are recorded: from start to start, the host's gap inside.

    Call it in a reader that has a duration and a period; it puts `step_time_s` into the trace in place of its own,
    keeps its own as `device_time_s`, and says clock="wall".

    Args:
        step_time_s: durations on the device or inside the engine, shape (k,) [s].
        period_s: from the start of the step to the start of the next one; zero, negative or NaN where unknown, shape (k,) [s].
        busy: whether the step and the one after it ran, shape (k,), bool.

    Returns:
        The durations. Where fewer than 20 periods are known, none is: keep the durations as they are, on clock="device".
    """
    known = _consecutive(step_time_s, period_s, busy)
    gap = host_gap(step_time_s, period_s, busy)
    if gap is None:
        said = f"only {int(known.sum())} periods of consecutive steps are recorded, fewer than {FEWEST}: the step time leaves out the host's gap"
        return WallTime(np.full(len(step_time_s), np.nan), np.zeros(len(step_time_s), bool), None, [said])
    said = []
    if gap.share >= NOTICED:
        said.append(
            f"the host takes {1e3 * gap.median_s:.2f} ms ({1e3 * gap.low_s:.2f} to {1e3 * gap.high_s:.2f}) between steps, {gap.share:.1%} of the "
            f"period: steps are fitted from start to start ({1e3 * gap.period_s:.2f} ms at the median), as users wait for them"
        )
    left = int((~known).sum())
    if left:
        said.append(f"{left:,} steps have no period (the last of a stream, or before an idle gap) and are set aside")
    return WallTime(np.where(known, period_s, np.nan), known, gap, said)


def aligned(step_time_s: np.ndarray, period_s: np.ndarray, stream: np.ndarray) -> np.ndarray:
    """Periods moved to the step that they began with. Some recorders write beside a step the time since the one before.

    The move that leaves the gap, period less step time, clearly more even is taken; where both are as even, none.

    Args:
        step_time_s: durations, shape (k,) [s].
        period_s: as recorded; zero, negative or NaN where unknown, shape (k,) [s].
        stream: number of the source of each row, shape (k,).

    Returns:
        From the start of each step to the start of the next one, shape (k,) [s]; NaN where unknown.
    """
    as_is = np.where(period_s > 0, period_s, np.nan)
    moved = np.full(len(as_is), np.nan)
    moved[:-1] = np.where(stream[1:] == stream[:-1], as_is[1:], np.nan)
    scatter = []
    for period in (as_is, moved):
        gap = (period - step_time_s)[np.isfinite(period)]
        scatter.append(spread(gap) + float(np.mean(gap < 0)) * float(np.median(step_time_s)) if len(gap) >= FEWEST else np.inf)
    return moved if scatter[1] < 0.8 * scatter[0] else as_is


def device_only(clock: str, has_period: bool) -> list[str]:
    """What there is to say of a trace whose durations are the device's alone.

    Args:
        clock: of the trace, one of `headway.identification.trace.CLOCKS`.
        has_period: whether the trace holds the periods of its steps as well.

    Returns:
        One sentence, or none.
    """
    if clock != "device" or has_period:
        return []
    return [
        "the durations are the device's alone: the host's gap between steps is missing, so wall-clock targets judged by this plant are "
        "optimistic and no margin on the wall clock can be exported; record the period as well (period_s)"
    ]


def plausible_field(
    step_time_s: np.ndarray,
    start_s: np.ndarray,
    stream: np.ndarray,
    inputs: np.ndarray,
) -> tuple[dict[str, Any], list[str]]:
    """Tell from the starts of the steps whether a field is their duration at all.

    Args:
        step_time_s: the field, above zero, shape (k,) [s].
        start_s: the clock at the start of each step, in time order within each stream, shape (k,) [s].
        stream: number of the source of each row, shape (k,).
        inputs: what the scheduler put into the steps, shape (k, m), any columns.

    Returns:
        ({"verdict", "steps", "ratio", "least", "share", "follows_input", "follows_period"}
        or {"verdict": "unknown", "steps"};
        what there is to say, one sentence each). The verdict is "start_to_start", "without_host_gap", "scheduler_time",
        "two_loops" or "overlap"; ratio is the median of field over period, least the median field over the 10 %
        quantile of the periods (steps that followed one another at once), share the ratio of sums; the others are correlations.
    """
    period = periods(start_s, stream)
    known = np.isfinite(period) & (step_time_s > 0)
    if int(known.sum()) < FEWEST:
        return {"verdict": "unknown", "steps": int(known.sum())}, []
    usual = float(np.median(period[known]))
    known &= period < usual + IDLE_TIMES * max(usual, float(np.median(step_time_s[known])))
    field, period, rows = step_time_s[known], period[known], inputs[known]
    ratio = float(np.median(field / period))
    found = {
        "verdict": "start_to_start",
        "steps": int(known.sum()),
        "ratio": ratio,
        "least": float(np.median(field) / np.quantile(period, 0.1)),
        "share": float(field.sum() / period.sum()),
        "follows_input": max((_alike(field, column) for column in rows.T), default=0.0),
        "follows_period": _alike(field, period),
    }
    found["verdict"] = _verdict(found)
    return found, _field_said(found)


def _verdict(found: dict[str, Any]) -> str:
    if found["ratio"] >= TWO_LOOPS:
        return "two_loops"
    if found["ratio"] >= OVERLAP:
        return "overlap"
    if found["least"] < TINY or (found["least"] < SCHEDULER and max(found["follows_input"], found["follows_period"]) < FOLLOWS):
        return "scheduler_time"
    return "start_to_start" if found["ratio"] > 1 - NOTICED else "without_host_gap"


def _field_said(found: dict[str, Any]) -> list[str]:
    ratio = found["ratio"]
    return {
        "start_to_start": [],
        "scheduler_time": [
            f"the step time is {ratio:.1%} of the time between starts: it is the scheduler's or host's own time, not the step's; give the field "
            "that spans the step (done to done)"
        ],
        "two_loops": [
            f"the step time reads {ratio:.1f} times the time between starts: each record spans two loops (two batches in flight, as in "
            "iterLatencyMS under the overlap scheduler); give the time of one loop (hostStepTimeMS, done to done)"
        ],
        "overlap": [
            f"the step time reads {ratio:.2f} times the time between starts: records overlap, and some time counts twice; give durations from "
            "one step's end to the next one's end"
        ],
        "without_host_gap": [
            f"the step time covers {ratio:.0%} of the time between starts, the rest is the host's: wall-clock targets need that room"
        ],
    }[found["verdict"]]


def _alike(a: np.ndarray, b: np.ndarray) -> float:
    """Size of the correlation of two series, each cut at a few robust deviations; 0 where one stands still."""
    x, y = settled(a), settled(b)
    size = float(np.sqrt((x @ x) * (y @ y)))
    return abs(float(x @ y)) / size if size > 0 else 0.0


def _consecutive(step_time_s: np.ndarray, period_s: np.ndarray, busy: np.ndarray) -> np.ndarray:
    """Rows whose period is known, is no shorter than the step, and holds no idle time."""
    with np.errstate(invalid="ignore"):
        good = busy & np.isfinite(period_s) & (period_s > 0) & (step_time_s > 0)
    if not good.any():
        return good
    gap = np.where(good, period_s - step_time_s, np.nan)
    usual = float(np.nanmedian(gap))
    most = usual + IDLE_TIMES * float(np.nanmedian(np.where(good, period_s, np.nan)))
    return good & (np.nan_to_num(gap, nan=np.inf) <= most)
