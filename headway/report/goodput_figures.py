"""Figures of goodput beside the load curve: against the batch, and how far each contender is from the bound."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from headway.experiments.batches import BatchCurve
from headway.report.axes import blank, log_axis, mark
from headway.report.text import count, number, percent, signed
from headway.report.theme import LIGHT, faint

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
    side = "right" if math.log(best) > 0.6 * math.log(max(float(curve.running_limit[-1]), 2.0)) else "left"
    mark(figure, f"most at {best}", x=math.log10(best), y=0.02, xanchor=side, yanchor="bottom", colour=LIGHT["soft"])
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
        text += f" At {count(int(curve.running_limit[-1]))} it has fallen to {percent(last)} of that, while throughput changed by {signed(100 * grown)} %."
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


BOUND_ROWS: tuple[tuple[str, str, str, float], ...] = (
    ("attained", "tuned controller", "tuned", 1.0),
    ("told_whom_to_shed", "told whom to shed", "timeout", 0.3),
    ("estimate", "estimate, not proved", "soft", 0.3),
)
"""What stands beside the bound: field, label, role of the colour, how strong."""


def bound_bars(bound: Mapping[str, Any]) -> go.Figure:
    """Attainment against what no policy can exceed, all on the same windows.

    Args:
        bound: as `headway.experiments.distance.Distance.to_json`.

    Returns:
        The figure; what is not the controller as it runs is pale.
    """
    known = [(100 * v, label, role, strong) for key, label, role, strong in BOUND_ROWS[::-1] if (v := number(bound.get(key))) is not None]
    most = 100 * float(bound["attainment"])
    figure = blank(110 + 46 * len(known))
    figure.add_bar(
        x=[value for value, *_ in known],
        y=[label for _, label, _, _ in known],
        orientation="h",
        marker={
            "color": [faint(LIGHT[role], strength) for _, _, role, strength in known],
            "line": {"color": [LIGHT[role] for _, _, role, _ in known], "width": 1.5},
        },
        text=[f"{value:.2f} %" for value, *_ in known],
        textposition="inside",
        insidetextanchor="end",
        insidetextfont={"color": [LIGHT["paper"] if strength == 1.0 else LIGHT["ink"] for _, _, _, strength in known]},
        hovertemplate="%{y}: %{x:.2f} %<extra></extra>",
    )
    figure.add_vline(x=most, line={"color": LIGHT["ink"], "width": 2, "dash": "dash"})
    mark(figure, f"bound {most:.2f} %", x=most, y=1.0, xanchor="right", yanchor="bottom")
    least = min([value for value, *_ in known] + [most])
    room = max(most - least, 1.0)
    figure.update_xaxes(title_text="attainment, %", range=[max(0.0, least - 2 * room), most + 0.1 * room])
    figure.update_layout(showlegend=False, margin={"t": 30})
    return figure
