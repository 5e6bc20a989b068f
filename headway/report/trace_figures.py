"""Figures of a recording: its time line by regime, and which combinations of work it holds."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from headway.report.axes import blank, log_axis, mark, span
from headway.report.recorded import ExcitationMap, Recorded, Stretches
from headway.report.text import count, percent
from headway.report.theme import LIGHT, faint

FEW = 10
"""Steps in a cell below which a combination is hardly known."""


def time_line(regimes: dict[str, Stretches], aside: Recorded | None = None) -> go.Figure:
    """Step time over the recording: the median and the 99 % quantile of each stretch, and the rows set aside.

    Args:
        regimes: stretches by "decode" and "mixed".
        aside: rows in order, to mark those set aside; None marks none.

    Returns:
        The figure.
    """
    figure = blank(340)
    known = [np.array([1e-3])]
    for regime, found in regimes.items():
        has = found.steps > 0
        if not has.any():
            continue
        x, low, high = found.clock_s[has], 1e3 * found.middle_s[has], 1e3 * found.high_s[has]
        known += [low[low > 0], high[high > 0]]
        figure.add_scatter(x=x, y=high, mode="lines", line={"width": 0}, showlegend=False, hoverinfo="skip")
        figure.add_scatter(
            x=x, y=low, mode="lines", line={"width": 0}, fill="tonexty", fillcolor=faint(LIGHT[regime], 0.25),
            name=f"{regime}: median to p99", hoverinfo="skip",
        )  # fmt: skip
        dash = "solid" if regime == "decode" else "dot"
        figure.add_scatter(
            x=x,
            y=low,
            mode="lines",
            name=f"{regime}: median",
            line={"color": LIGHT[regime], "width": 2, "dash": dash},
            hovertemplate=f"{regime}, %{{x:.1f}} s: %{{y:.2f}} ms<extra></extra>",
        )
    if aside is not None and (~aside.kept & (aside.step_s > 0)).any():
        rows = ~aside.kept & (aside.step_s > 0)
        known.append(1e3 * aside.step_s[rows])
        look = {"size": 7, "color": LIGHT["bad"], "symbol": "x"}
        text = [str(r).replace("_", " ") for r in aside.reason[rows]]
        figure.add_scatter(
            x=aside.clock_s[rows], y=1e3 * aside.step_s[rows], mode="markers", name="set aside", marker=look, text=text,
            hovertemplate="%{text}, %{y:.2f} ms<extra></extra>",
        )  # fmt: skip
    values = np.concatenate(known[1:]) if len(known) > 1 else known[0]
    figure.update_xaxes(title_text="time in steps, s")
    figure.update_yaxes(title_text="step time, ms", **log_axis(*span(values, 0.05)))
    return figure


def work_map(found: ExcitationMap, hull: tuple[float, float] | None = None) -> go.Figure:
    """How often each combination of decoding requests and prompt tokens was recorded.

    Args:
        found: the counts.
        hull: most decoding requests and most prompt tokens that the plant was fitted on; None draws none.

    Returns:
        The figure; empty cells were never recorded, and a prediction there is a guess between its neighbours.
    """
    figure = blank(380)
    x = (found.decode_edges[:-1] + found.decode_edges[1:] - 1) / 2
    y = (found.prefill_edges[:-1] + found.prefill_edges[1:] - 1) / 2
    shown = np.where(found.steps > 0, np.log10(np.maximum(found.steps, 1)), np.nan)
    top = max(float(np.nanmax(shown)) if np.isfinite(shown).any() else 1.0, 1.0)
    ticks = np.arange(int(np.ceil(top)) + 1)
    bar = {"title": {"text": "steps"}, "tickvals": ticks, "ticktext": [f"{10 ** int(t):,}" for t in ticks], "thickness": 12}
    figure.add_heatmap(
        x=x, y=y, z=shown, customdata=found.steps, colorscale=[[0, LIGHT["grid"]], [1, LIGHT["tuned"]]], zmin=0, zmax=top, colorbar=bar,
        xgap=1, ygap=1, hovertemplate="%{x:.0f} decoding, %{y:.0f} prompt tokens: %{customdata:,} steps<extra></extra>",
    )  # fmt: skip
    if hull is not None:
        below = [(c[1] - c[0]) / 2 if len(c) > 1 else 0.5 for c in (x, y)]  # half a cell: the box begins where the first cells do
        box = {"x0": x[0] - below[0], "y0": y[0] - below[1], "x1": hull[0] + 0.5, "y1": hull[1] + 0.5, "xref": "x", "yref": "y"}
        figure.add_shape(type="rect", line={"color": LIGHT["ink"], "width": 1.5, "dash": "dash"}, **box)
        mark(figure, "hull of the plant", x=x[0] - below[0], y=0.99, xanchor="left", yanchor="top", colour=LIGHT["soft"])
    figure.update_xaxes(title_text="decoding requests in the step")
    figure.update_yaxes(title_text="prompt tokens in the step")
    return figure


def time_line_sentence(found: Recorded, regimes: dict[str, Stretches]) -> str:
    """What the time line shows.

    Args:
        found: rows in order.
        regimes: stretches by regime.

    Returns:
        Sentences.
    """
    used, mixed = found.kept, found.kept & found.mixed
    text = f"{count(found.total)} steps over {found.clock_s[-1]:,.1f} s of work; {percent(mixed.sum() / max(used.sum(), 1))} carry prompt tokens."
    if len(found.step_s) < found.total:
        text += f" {count(len(found.step_s))} of them, in blocks spread evenly, were looked at."
    for regime, part in regimes.items():
        has = part.steps > 0
        if has.sum() > 1:
            low, high = np.nanmin(part.middle_s), np.nanmax(part.middle_s)
            text += f" The median {regime} step lies between {1e3 * low:.1f} and {1e3 * high:.1f} ms."
    gone = int((~used).sum())
    return text + (f" {count(gone)} row{'s are' if gone > 1 else ' is'} set aside." if gone else " No row is set aside.")


def work_sentence(found: ExcitationMap, hull: tuple[float, float] | None = None) -> str:
    """What the map of work shows: how much of the box was recorded.

    Args:
        found: the counts.
        hull: most decoding requests and most prompt tokens that the plant was fitted on; None leaves it out.

    Returns:
        Sentences.
    """
    filled, known = float((found.steps > 0).mean()), float((found.steps >= FEW).mean())
    prompts = float(found.steps[1:].sum() / max(found.steps.sum(), 1))
    text = f"{percent(filled, 0)} of the cells hold a step, {percent(known, 0)} at least {FEW}; {percent(prompts)} of the steps carry a prompt."
    if known < 0.25:
        text += " Most combinations were hardly recorded: let load, token budget and running limit vary while you record."
    text += " The lowest row is steps without a prompt."
    if hull is not None:
        text += f" The dashed hull ends at {count(hull[0])} decoding requests and {count(hull[1])} prompt tokens: beyond it the plant extrapolates."
    return text
