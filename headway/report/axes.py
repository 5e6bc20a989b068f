"""What figures share: an empty one, words at lines, where axes end and what stands on them, which points are left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from headway.report.theme import LIGHT, template

MOST_POINTS = 4000
"""Points of one regime above which a figure shows the FURTHEST from the line and every n-th of the others."""
FURTHEST = 500


def blank(height: int) -> go.Figure:
    """An empty figure in the house's look.

    Args:
        height: in pixels.

    Returns:
        The figure.
    """
    return go.Figure(layout={"template": template(), "height": height})


def mark(figure: go.Figure, text: str, *, x: float, y: float, xanchor: str, yanchor: str, **look: Any) -> None:
    """Put a word at a line.

    Args:
        figure: changed in place.
        text: plotly's own mark-up; escape what a person wrote.
        x: in the axis's own coordinates, logarithms on a logarithmic axis.
        y: as a share of the plot's height.
        xanchor: "left", "center" or "right" of x.
        yanchor: "top" or "bottom".
        **look: `colour`, and anything else that an annotation takes.
    """
    font = {"size": 12, "color": look.pop("colour", LIGHT["ink"])}
    place = {
        "x": x,
        "y": y,
        "yref": "paper",
        "xanchor": xanchor,
        "yanchor": yanchor,
        "xshift": {"left": 4, "center": 0, "right": -4}[xanchor],
    }
    figure.add_annotation(text=text, **place, showarrow=False, font=font, **look)


def span(values: np.ndarray, room: float) -> tuple[float, float]:
    """Ends of a logarithmic axis that holds these values, with some room.

    Args:
        values: positive, shape (k,).
        room: as a share of the axis.

    Returns:
        Low and high.
    """
    low, high = float(np.min(values)), float(np.max(values))
    wide = max((high / low) ** room, 1.02)
    return low / wide, high * wide


def log_axis(low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis with round numbers written out: 1, 2, 5, 10; decades alone over more than three of them.

    Args:
        low: end of the axis, positive.
        high: other end.

    Returns:
        What plotly's axis takes.
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1,) if high / low > 1e3 else (1, 2, 5) if high / low > 4 else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    values = [m * 10.0**d for d in decades for m in steps if low <= m * 10.0**d <= high]
    return {"type": "log", "range": [math.log10(low), math.log10(high)], "tickvals": values, "ticktext": [f"{v:,g}" for v in values]}


def distribution_range(residual: np.ndarray, margin: float | None) -> tuple[float, float]:
    """Ends of the axis of a residual distribution.

    Args:
        residual: log(measured / predicted), shape (k,).
        margin: that must lie inside; None if there is none.

    Returns:
        Low and high, in percent longer than predicted: the 0.2 % and 99.8 % quantile, or beyond the margin.
    """
    low, high = (100 * math.expm1(float(q)) for q in np.quantile(residual, [0.002, 0.998]))
    if margin is not None:
        at = 100 * (1 / (1 - margin) - 1)
        low = min(low, at)
        high = max(high, at + 0.25 * (at - low))  # room for its label
    room = max(0.03 * (high - low), 1e-6)
    return low - room, high + room


def step_axis_end(
    timeline: Mapping[str, Sequence[float]], *, budget_s: float | None, other: Mapping[str, Sequence[float]] | None = None
) -> float:
    """Where the axis of the closed loop's step time ends: above every step of the controller, and four budgets of the other side.

    Args:
        timeline: of the controller.
        budget_s: longest step that keeps the ITL promise [s].
        other: of the static setting; None if it is not drawn.

    Returns:
        The end, in milliseconds.
    """
    own = max(timeline["step_time_s"])
    theirs = max((other or {}).get("step_time_s") or [0.0])
    return 1.05e3 * max(own, budget_s or 0.0, min(theirs, 4 * (budget_s or theirs)))


def thinned(residual: np.ndarray, most: int = MOST_POINTS) -> np.ndarray:
    """Which points to draw when there are too many: never at the cost of those that the plant misses.

    Args:
        residual: log(measured / predicted), shape (k,).
        most: points to keep.

    Returns:
        Row numbers in order: all, or the FURTHEST from the line and every n-th of the others.
    """
    if len(residual) <= most:
        return np.arange(len(residual))
    order = np.argsort(-np.abs(residual), kind="stable")
    rest = np.sort(order[FURTHEST:])
    return np.sort(np.concatenate([order[:FURTHEST], rest[:: math.ceil(len(rest) / (most - FURTHEST))]]))
