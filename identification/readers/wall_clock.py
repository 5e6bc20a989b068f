"""Durations put on the wall clock: where a table holds the periods of its steps, those are what users wait for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from headway.identification.diagnostics.clock import aligned, wall_time


class Timed(NamedTuple):
    """A table whose `step_time_s` is what is fitted.

    Args:
        frame: the rows in file order, shape (k, columns).
        aside: rows without a period, by reason, a key of `headway.identification.trace.READ_ASIDE` [rows].
        said: what there is to say, one sentence each.
        clock: what `step_time_s` was taken on, one of `headway.identification.trace.CLOCKS`.
    """

    frame: pl.DataFrame
    aside: dict[str, int]
    said: tuple[str, ...]
    clock: str


def on_the_wall(frame: pl.DataFrame) -> Timed:
    """Take the period from start to start as the duration where it is recorded, and keep the one without the host's gap.

    step_time(k) = start(k + 1) - start(k),  device_time(k) = what was recorded beside it

    A period may stand beside its own step or beside the one after it; it is moved to its own. Steps without a period (the
    last of a stream, or before an idle gap) are set aside, and an idle engine's rows stay as they are. Where too few
    periods are known to tell the gap, durations stay as they are too.

    Args:
        frame: the columns of `headway.identification.trace.COLUMNS` (`source` may be left out: one stream), with
            `step_time_s`, or `device_time_s`, or both, and perhaps `period_s`; [s], NaN, null or not above zero where
            unknown; shape (k, columns).

    Returns:
        The table, with `step_time_s` on the clock that is named.
    """
    own = "step_time_s" in frame.columns
    if "period_s" not in frame.columns or not (_known(frame["period_s"]) > 0).any():
        if own:
            return Timed(frame, {}, (), "wall")
        return Timed(frame.with_columns(step_time_s=pl.col("device_time_s").cast(pl.Float64)), {}, (), "device")
    both = own and "device_time_s" in frame.columns
    numbered = frame.with_row_index("row_")
    ordered = (
        numbered.sort("source", "step", maintain_order=True) if "source" in frame.columns else numbered.sort("step", maintain_order=True)
    )
    device_s, period_s = _device(ordered, own, both), _known(ordered["period_s"])
    follows = _follows(ordered)
    beside_s = aligned(device_s, period_s, np.cumsum(~follows))
    work = (device_s > 0) & ((ordered["decode_requests"] + ordered["prefill_tokens"]) > 0).to_numpy()
    busy = np.append(~(follows[1:] & ~work[1:]), True)[: len(work)]
    wall = wall_time(device_s[work], beside_s[work], busy[work])
    if wall.gap is None:
        if both:  # a duration that somebody took beside the device's: not the device's alone
            return Timed(frame, {}, ("period_s is known for too few steps to fit it: step_time_s is taken as it stands",), "wall")
        kept = frame if own else frame.with_columns(step_time_s=pl.col("device_time_s").cast(pl.Float64))
        return Timed(kept, {}, tuple(wall.said), "device")
    step_time_s, keep = device_s.copy(), np.ones(len(work), bool)
    step_time_s[work], keep[work] = wall.step_time_s, wall.known
    ordered = ordered.with_columns(
        step_time_s=pl.Series(step_time_s),
        device_time_s=pl.Series(device_s),
        period_s=pl.Series(beside_s).fill_nan(None),
    )
    left = int((~keep).sum())
    return Timed(ordered.filter(pl.Series(keep)).sort("row_").drop("row_"), {"incomplete": left} if left else {}, tuple(wall.said), "wall")


def _known(cells: pl.Series) -> np.ndarray:
    """Seconds, NaN where nothing is recorded."""
    return cells.cast(pl.Float64).fill_null(np.nan).to_numpy()


def _device(ordered: pl.DataFrame, own: bool, both: bool) -> np.ndarray:
    """The duration without the host's gap; where the device's is not recorded in a row, the one beside it."""
    if both:
        device_s = _known(ordered["device_time_s"])
        return np.where(device_s > 0, device_s, _known(ordered["step_time_s"]))
    return _known(ordered["step_time_s" if own else "device_time_s"]).copy()


def _follows(ordered: pl.DataFrame) -> np.ndarray:
    """Whether a row is the step after the row before it: elsewhere that row's period is nobody's."""
    step = ordered["step"].cast(pl.Float64).to_numpy()
    same = ordered["source"].rle_id().to_numpy() if "source" in ordered.columns else np.zeros(len(step), int)
    return np.concatenate([[False], (np.diff(step) == 1) & (np.diff(same) == 0)]) if len(step) else np.zeros(0, bool)
