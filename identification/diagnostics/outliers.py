"""The rows that a fit does not use, by class: how many, how long, the worst of each, and what to do about them."""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.identification.rows import BOOKED, FIRST_SHAPE, GAP, IDLE, KEPT

THROTTLE = "throttle"
"""Class of the steps in a sustained run of slow ones. They are used: see `headway.identification.diagnostics.drift`."""
ADVICE: dict[str, str] = {
    FIRST_SHAPE: "compilation at the first step of a shape; set aside: warm the engine up before it takes load",
    GAP: "many times as long as steps like them (a stall, a pause, an idle gap); set aside: no margin holds them, look what ran",
    BOOKED: "two steps whose time was booked on one of them; both set aside",
    IDLE: "heartbeats of an idle engine; set aside: nothing to do",
    THROTTLE: "a sustained run of slow steps, kept in the fit: leave the run out with --where if it will not come back",
}
"""What is said of each class."""


def outliers(
    reason: np.ndarray,
    step_time_s: np.ndarray,
    step: np.ndarray,
    stream: np.ndarray,
    *,
    throttled: np.ndarray | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Sum up the rows of each class.

    Args:
        reason: from `headway.identification.rows.judge`, shape (k,), str.
        step_time_s: measured durations, shape (k,) [s].
        step: number of the step of each row, for people, shape (k,).
        stream: number of the source of each row, shape (k,).
        throttled: rows in a sustained run of slow steps, shape (k,), bool; None where drift was not looked at.

    Returns:
        ({class: {"steps", "total_s", "share_of_time", "worst": {"row", "step", "stream", "step_time_s"}}}, the most time
        first; what there is to say, one sentence for each class).
    """
    masks = {str(name): reason == name for name in np.unique(reason.astype(str)) if name != KEPT}
    if throttled is not None and throttled.any():
        masks[THROTTLE] = throttled & (reason == KEPT)
    total = float(step_time_s.sum())
    found = {name: _class(mask, step_time_s, step, stream, total) for name, mask in masks.items()}
    found = dict(sorted(found.items(), key=lambda item: -item[1]["total_s"]))
    return found, [_said(name, row, len(np.unique(stream)) > 1) for name, row in found.items()]


def _class(mask: np.ndarray, step_time_s: np.ndarray, step: np.ndarray, stream: np.ndarray, total: float) -> dict[str, Any]:
    rows = np.flatnonzero(mask)
    worst = int(rows[np.argmax(step_time_s[rows])])
    time = float(step_time_s[rows].sum())
    return {
        "steps": len(rows),
        "total_s": time,
        "share_of_time": time / total if total > 0 else 0.0,
        "worst": {"row": worst, "step": int(step[worst]), "stream": int(stream[worst]), "step_time_s": float(step_time_s[worst])},
    }


def _said(name: str, row: dict[str, Any], several: bool) -> str:
    worst = row["worst"]
    place = f"step {worst['step']:,}" + (f" of stream {worst['stream']}" if several else "")
    count = f"{row['steps']:,} step{'s' if row['steps'] != 1 else ''}"
    took = f" ({row['total_s']:.3g} s, {row['share_of_time']:.1%} of the time; worst {place}, {worst['step_time_s']:.3g} s)"
    return f"{name}: {count}{took if row['total_s'] > 0 else ''}: {ADVICE.get(name, 'set aside')}"
