"""Figures of goodput beside the load curve: against the batch, and how far each contender is from the bound."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from headway.experiments.batches import BatchCurve
from headway.report.axes import blank, log_axis, mark
from headway.report.text import count, percent
from headway.report.theme import LIGHT

COLLAPSED = 0.9
"""Share of the best goodput below which a larger batch is said to have collapsed."""


def against_batch(curve: BatchCurve, controller_tps: float | None = None) -> go.Figure:
    """Throughput and goodput against the running limit: the rise, the knee, the collapse.

    Args:
        curve: one load under each running limit.
        controller_tps: goodput of the tuned controller on the same load; None draws none [tokens/s].

    Returns:
        The figure.
    """
    figure = blank(360)
    rows = (("throughput", curve.throughput_tps, "soft", "dot"), ("goodput, static", curve.goodput_tps, "static", "solid"))
    for name, values, role, dash in rows:
        figure.add_scatter(
            x=curve.running_limit,
            y=values,
            mode="lines+markers",
            name=name,
            line={"color": LIGHT[role], "width": 2.5, "dash": dash},
            marker={"size": 7, "symbol": "square"},
            hovertemplate=f"{name}<br>%{{x}} running: %{{y:,.0f}} tokens/s<extra></extra>",
        )
    if controller_tps is not None:
        ends = [int(curve.running_limit[0]), int(curve.running_limit[-1])]
        line = {"color": LIGHT["tuned"], "width": 2.5, "dash": "dash"}
        figure.add_scatter(x=ends, y=[controller_tps] * 2, mode="lines", name="goodput, tuned controller", line=line)
    best = int(curve.running_limit[curve.best])
    figure.add_vline(x=best, line={"color": LIGHT["soft"], "width": 1.5, "dash": "dot"})
    figure.update_xaxes(title_text="running limit, requests", **log_axis(1, max(float(curve.running_limit[-1]), 2.0)))
    figure.update_yaxes(title_text="tokens/s", rangemode="tozero")
    mark(figure, f"most at {best}", x=math.log10(max(best, 1)), y=0.02, xanchor="left", yanchor="bottom", colour=LIGHT["soft"])
    return figure


def batch_sentence(curve: BatchCurve, controller_tps: float | None = None) -> str:
    """What the curve over the batch shows.

    Args:
        curve: one load under each running limit.
        controller_tps: goodput of the tuned controller [tokens/s]; None leaves it out.

    Returns:
        Sentences.
    """
    i = curve.best
    text = f"With {count(curve.token_budget)} tokens a step, goodput is greatest at {count(int(curve.running_limit[i]))} running requests"
    text += f": {count(curve.goodput_tps[i])} tokens/s, {percent(curve.attainment[i])} of the owed tokens on time."
    last = curve.goodput_tps[-1] / max(curve.goodput_tps[i], 1e-9)
    if last < COLLAPSED:
        grown = curve.throughput_tps[-1] / max(curve.throughput_tps[i], 1e-9) - 1
        text += f" At {count(int(curve.running_limit[-1]))} it has fallen to {percent(last)} of that, while throughput changed by {100 * grown:+.1f} %."
    else:
        text += " A larger batch does not collapse at this load."
    if controller_tps is not None:
        text += f" The tuned controller makes {count(controller_tps)} tokens/s."
    return text


RUN_LOOKS = (("tuned", "solid", "circle"), ("decode", "dash", "diamond"))


def runs_against_load(runs: Mapping[str, Mapping[str, Sequence[float | None]]]) -> go.Figure:
    """Attainment against load of the tuned controllers of two runs.

    Args:
        runs: by name, `rate_rps` and `attainment` of the controller, of one length each.

    Returns:
        The figure.
    """
    figure = blank(340)
    for (name, curve), (role, dash, symbol) in zip(runs.items(), RUN_LOOKS, strict=False):
        figure.add_scatter(
            x=list(curve["rate_rps"]),
            y=[None if v is None else 100 * v for v in curve["attainment"]],
            mode="lines+markers",
            name=html.escape(name),
            line={"color": LIGHT[role], "width": 2.5, "dash": dash},
            marker={"size": 8, "symbol": symbol},
            hovertemplate="%{x:.1f}/s: %{y:.1f} %<extra></extra>",
        )
    figure.update_xaxes(title_text="load, requests/s")
    figure.update_yaxes(title_text="attainment, % of owed tokens")
    return figure


def bound_bars(attainment: Mapping[str, float], bound: float) -> go.Figure:
    """Attainment of each contender against what no policy can exceed.

    Args:
        attainment: by contender, in words, in [0, 1].
        bound: in [0, 1].

    Returns:
        The figure.
    """
    figure = blank(90 + 46 * len(attainment))
    names, roles = list(attainment)[::-1], {"tuned controller": "tuned", "best static": "static", "static + queue timeout": "timeout"}
    values = [100 * attainment[name] for name in names]
    figure.add_bar(
        x=values, y=names, orientation="h", marker={"color": [LIGHT[roles.get(n, "soft")] for n in names]},
        text=[f"{v:.1f} %" for v in values], textposition="auto", hovertemplate="%{y}: %{x:.2f} %<extra></extra>",
    )  # fmt: skip
    figure.add_vline(x=100 * bound, line={"color": LIGHT["ink"], "width": 2, "dash": "dash"})
    mark(figure, f"bound {100 * bound:.1f} %", x=100 * bound, y=1.0, xanchor="right", yanchor="bottom")
    low = max(0.0, min(*values, 100 * bound) - 10)
    figure.update_xaxes(title_text="attainment, % of owed tokens", range=[low, 101])
    figure.update_layout(showlegend=False, margin={"t": 30})
    return figure
