"""The figure of gains that follow the load: each against the queue, for a few states of the engine, beside the constant before."""

from __future__ import annotations

import html
import math
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from headway.controllers.gain_schedule import GainSchedule
from headway.report.axes import blank, log_axis, span
from headway.report.scheduled import Following, following, queued_at, short, shown_at
from headway.report.theme import LIGHT

RUNNING = ((0.0, "tuned", "circle"), (0.5, "timeout", "square"), (1.0, "decode", "diamond"))
"""Shares of the running limit that have a line: colour and marker; no two lines differ by hue alone."""
CACHE = ((0.0, "solid"), (1.0, "dash"))
"""Shares of the cache that have a line: its dash."""
ALONE = "follows the load"
"""Name of the line of a gain that follows nothing beside."""
BETWEEN = 6
"""Points from one knot to the next."""
ROW, HEAD, LEGEND_ROW = 175, 80, 22
"""Height of one gain, of what stands above and below all of them, and of a further line of the legend, in pixels."""
MOST_TICKS, LONGEST = 8, 14
"""Ticks of the queue's axis, and characters of a class's name."""


class Line(NamedTuple):
    """One state of the engine that has a line.

    Args:
        name: of the state, as the legend has it.
        says: the same in words.
        running: share of the running limit.
        cache: share of the cache.
        role: of its colour.
        symbol: at the knots.
        dash: of the line.
    """

    name: str
    says: str
    running: float
    cache: float
    role: str
    symbol: str
    dash: str


def axis_of(schedule: GainSchedule) -> int:
    """The axis that the gains are drawn along: the first that they follow.

    Args:
        schedule: in force.

    Returns:
        Place among queued tokens, running share and cache share; that of the queue where they follow nothing.
    """
    return next((k for k, knots in enumerate(schedule.shape) if knots > 1), 0)


def lines_of(schedule: GainSchedule) -> list[Line]:
    """The states of the engine that have a line: a few along each axis that the gains follow beside the one drawn along.

    Args:
        schedule: in force.

    Returns:
        Lines, at least one.
    """
    along, shape = axis_of(schedule), schedule.shape
    running = RUNNING if along < 1 and shape[1] > 1 else RUNNING[:1]
    cache = CACHE if along < 2 and shape[2] > 1 else CACHE[:1]
    lines = []
    for share, role, symbol in running:
        for used, dash in cache:
            states = [share] * (len(running) > 1) + [used] * (len(cache) > 1)
            named = [f"{100 * state:.0f} %" for state in states]
            says = [f"{state} of the {what}" for state, what in zip(named, _beside(schedule), strict=True)]
            lines.append(Line(", ".join(named) or ALONE, ", ".join(says) or ALONE, share, used, role, symbol, dash))
    return lines


def _beside(schedule: GainSchedule) -> list[str]:
    """What the gains follow beside the axis that they are drawn along."""
    along, shape = axis_of(schedule), schedule.shape
    return ["running limit"] * (along < 1 and shape[1] > 1) + ["cache"] * (along < 2 and shape[2] > 1)


def schedule_figure(controller: Any, schedule: GainSchedule) -> go.Figure:
    """Each gain that follows the load, one below the other, against the queue.

    Args:
        controller: content of controller.json.
        schedule: of it.

    Returns:
        The figure; markers stand at the knots, and the dotted line is the constant that a table replaced.
    """
    along, knots = axis_of(schedule), schedule.shape[axis_of(schedule)]
    last = max(knots - 1, 1)
    places = np.arange(BETWEEN * last + 1) / BETWEEN
    gains, lines = following(controller), lines_of(schedule)
    figure = blank(len(gains) * ROW + HEAD + LEGEND_ROW * (len(lines) // 2))
    values = [shown_at(controller, schedule, *_load(along, places, line, last)) for line in lines]
    for k, gain in enumerate(gains):
        axis = "y" if k == 0 else f"y{k + 1}"
        for line, found in zip(lines, values, strict=True):
            _add(figure, gain, line, along, places, found[k], axis)
        ends = [float(x) for found in values for x in (found[k].min(), found[k].max())]
        if gain.constant is not None:
            _add_constant(figure, gain, along, np.array([0.0, last]), axis)
            ends.append(gain.constant)
        figure.update_layout({f"yaxis{axis[1:]}": _y_axis(gain, k, len(gains), ends)})
    bottom = "y" if len(gains) == 1 else f"y{len(gains)}"
    figure.update_layout(xaxis={**_x_axis(along, knots), "anchor": bottom}, meta={"x": "customdata"} if along == 0 else None)
    if beside := _beside(schedule):
        words = ", ".join(f"of the {what}" for what in beside)
        figure.update_layout(legend={"title": {"text": f"{words}:", "side": "top", "font": {"size": 12}}})
    return figure


def _load(along: int, places: np.ndarray, line: Line, last: int) -> tuple[Any, Any, Any]:
    """The load at places of the axis drawn along, for one state of the engine."""
    load: list[Any] = [0.0, line.running, line.cache]
    load[along] = queued_at(places) if along == 0 else places / last
    return load[0], load[1], load[2]


def _at(along: int, places: np.ndarray) -> np.ndarray:
    """Where the places stand on the axis, a share in percent of the last."""
    return places if along == 0 else 100 * places / places[-1]


def _add(figure: go.Figure, gain: Following, line: Line, along: int, places: np.ndarray, values: np.ndarray, axis: str) -> None:
    name = html.escape(gain.label)
    seen = "%{customdata:,.0f} queued" if along == 0 else "%{x:.0f} %"
    figure.add_scatter(
        x=_at(along, places),
        y=values,
        yaxis=axis,
        customdata=queued_at(places) if along == 0 else None,
        mode="lines+markers",
        name=line.name,
        legendgroup=line.name,
        showlegend=axis == "y",
        line={"color": LIGHT[line.role], "width": 2, "dash": line.dash},
        marker={
            "size": np.where(np.arange(len(places)) % BETWEEN == 0, 7, 0),
            "symbol": line.symbol,
            "color": LIGHT[line.role],
            "opacity": 1,
            "line": {"width": 0},
        },
        hovertemplate=f"{name}, {line.says}<br>{seen}: %{{y:,.4~g}} {gain.unit}<extra></extra>",
    )


def _add_constant(figure: go.Figure, gain: Following, along: int, ends: np.ndarray, axis: str) -> None:
    drawn: Any = figure.data
    shown = all(trace.name != "constant before" for trace in drawn)
    figure.add_scatter(
        x=_at(along, ends),
        y=[gain.constant] * 2,
        yaxis=axis,
        customdata=queued_at(ends) if along == 0 else None,
        mode="lines",
        name="constant before",
        legendgroup="constant before",
        showlegend=shown,
        line={"color": LIGHT["ink"], "width": 1.5, "dash": "dot"},
        hovertemplate=f"{html.escape(gain.label)}, constant before: %{{y:,.4~g}} {gain.unit}<extra></extra>",
    )


def _y_axis(gain: Following, k: int, many: int, ends: list[float]) -> dict[str, Any]:
    """The axis of one gain: its place among the others, from zero or, for a chunk, logarithmic."""
    height = 1.0 / many
    room = 0.12 * height if many > 1 else 0.0
    top = 1.0 - k * height
    label = gain.label if len(gain.label) <= LONGEST else f"{gain.label[: LONGEST - 1]}…"
    place = {"title": {"text": f"{html.escape(label)}, {gain.unit}"}, "domain": [max(top - height + room, 0.0), top], "anchor": "x"}
    if gain.kind == "chunk_tokens":
        return place | log_axis(*span(np.maximum(ends, 1.0), 0.1))
    return place | {"rangemode": "tozero", "nticks": 5}


def _x_axis(along: int, knots: int) -> dict[str, Any]:
    if along:
        return {"title": {"text": ("", "requests that decode, % of the running limit", "KV cache in use, % of its blocks")[along]}}
    ticks = np.arange(0, max(knots, 2), math.ceil(max(knots, 2) / MOST_TICKS))
    words = [short(float(tokens)) for tokens in queued_at(ticks.astype(float))]
    return {"title": {"text": "queued prompt tokens"}, "tickvals": ticks, "ticktext": words, "range": [-0.15, max(knots - 1, 1) + 0.15]}
