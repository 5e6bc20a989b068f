"""The figures: one function each, plain data in, a plotly figure out. Times come in seconds and are drawn in milliseconds."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from headway.report.axes import blank, distribution_range, log_axis, mark, span, step_axis_end, thinned
from headway.report.theme import LIGHT, faint

BLOCK = 200
"""Rows of a running median."""

CONTENDERS: dict[str, tuple[str, str, str, str]] = {
    "controller": ("tuned controller", "tuned", "solid", "circle"),
    "best_static": ("best static", "static", "solid", "square"),
    "best_timeout": ("static + queue timeout", "timeout", "dash", "diamond"),
}
"""Name in the files: label, role of its colour, dash, marker."""


class Curve(NamedTuple):
    """One distribution.

    Args:
        contender: a key of CONTENDERS.
        share: ascending, shape (k,).
        value_s: quantile at each share; None where infinite (never served), shape (k,) [s].
        predicted: by the plant; else measured.
    """

    contender: str
    share: Sequence[float]
    value_s: Sequence[float | None]
    predicted: bool = False


def measured_against_predicted(
    predicted_s: np.ndarray, measured_s: np.ndarray, *, regime: str, band: tuple[float, float] | None = None
) -> go.Figure:
    """Measured against predicted step time on logarithmic axes, with the identity and the 90 % band.

    Args:
        predicted_s: by the plant, shape (k,) [s].
        measured_s: shape (k,) [s].
        regime: "decode" or "mixed".
        band: 5 % and 95 % quantile of log(measured / predicted); None draws none.

    Returns:
        The figure.
    """
    figure = blank(380)
    shown = thinned(np.log(measured_s / predicted_s))
    x, y = 1e3 * predicted_s[shown], 1e3 * measured_s[shown]
    low, high = span(np.concatenate([x, y]), 0.04)
    if band is not None:
        a, b = math.exp(band[0]), math.exp(band[1])
        box = {"x": [low, high, high, low], "y": [low * a, high * a, high * b, low * b]}
        figure.add_scatter(
            **box, fill="toself", fillcolor=faint(LIGHT["line"], 0.28), line={"width": 0}, name="90 % band", hoverinfo="skip", mode="lines"
        )
    figure.add_scatter(
        x=x.astype("f4"),
        y=y.astype("f4"),
        mode="markers",
        name=f"{regime} steps",
        marker={"size": 5, "color": LIGHT[regime], "opacity": 0.55, "symbol": "circle" if regime == "decode" else "diamond"},
        hovertemplate="predicted %{x:.2f} ms<br>measured %{y:.2f} ms<extra></extra>",
    )
    line = {"color": LIGHT["ink"], "width": 1}
    figure.add_scatter(x=[low, high], y=[low, high], mode="lines", name="measured = predicted", line=line, hoverinfo="skip")
    figure.update_xaxes(title_text=f"predicted {regime} step time, ms", **log_axis(low, high))
    figure.update_yaxes(title_text="measured, ms", **log_axis(low, high))
    return figure


def residuals_in_order(place: np.ndarray, residual: np.ndarray, mixed: np.ndarray) -> go.Figure:
    """Residuals over the order of the trace, with a running median: drift, warm-up and stalls show here.

    Args:
        place: number of each row in the trace, shape (k,).
        residual: log(measured / predicted), shape (k,).
        mixed: steps with prefill, shape (k,), bool.

    Returns:
        The figure.
    """
    figure = blank(320)
    for regime, symbol in (("decode", "circle"), ("mixed", "diamond")):
        mine = np.flatnonzero(mixed == (regime == "mixed"))
        mine = mine[thinned(residual[mine])]
        figure.add_scatter(
            x=place[mine].astype("i4"),
            y=(100 * np.expm1(residual[mine])).astype("f4"),
            mode="markers",
            name=f"{regime} steps",
            marker={
                "size": 4 if regime == "decode" else 6,
                "color": LIGHT[regime],
                "opacity": 0.5 if regime == "decode" else 0.8,
                "symbol": symbol,
            },
            hovertemplate="step %{x:,}<br>%{y:+.1f} %<extra></extra>",
        )
    blocks = [slice(i, i + BLOCK) for i in range(0, len(residual), BLOCK)]
    middle = [100 * math.expm1(float(np.median(residual[b]))) for b in blocks]
    at = [float(np.median(place[b])) for b in blocks]
    figure.add_scatter(
        x=at, y=middle, mode="lines", name=f"median of {BLOCK} steps", line={"color": LIGHT["ink"], "width": 2}, hoverinfo="skip"
    )
    figure.add_hline(y=0, line={"color": LIGHT["line"], "width": 1})
    figure.update_xaxes(title_text="step, in the order of the trace")
    figure.update_yaxes(title_text="longer than predicted, %")
    return figure


def residual_distribution(
    residual: np.ndarray, *, regime: str, margin: float | None, band: tuple[float, float] | None = None, bins: int = 60
) -> go.Figure:
    """How far steps stray from the plant, and the margin that this calls for.

    Args:
        residual: log(measured / predicted), shape (k,).
        regime: "decode" or "mixed".
        margin: 1 - exp(-q), q the quantile that epsilon names; None where it is not known.
        band: 5 % and 95 % quantile; None draws none.
        bins: of the histogram.

    Returns:
        The figure; the axis ends where `distribution_range` says.
    """
    figure = blank(300)
    percent = 100 * np.expm1(residual)
    low, high = distribution_range(residual, margin)
    counts, edges = np.histogram(percent, bins=bins, range=(low, high))
    bar = {"color": LIGHT[regime], "line": {"width": 0}}
    share, hover = 100 * counts / max(len(residual), 1), "%{x:+.1f} %: %{y:.2f} % of the steps<extra></extra>"
    figure.add_bar(x=(edges[:-1] + edges[1:]) / 2, y=share, marker=bar, width=edges[1] - edges[0], hovertemplate=hover)
    if band is not None:
        ends = [100 * math.expm1(b) for b in band]
        figure.add_vrect(x0=ends[0], x1=ends[1], fillcolor=faint(LIGHT["line"], 0.2), line_width=0, layer="below")
        middle = (max(ends[0], low) + min(ends[1], high)) / 2
        mark(figure, "90 % band", x=middle, y=1.0, xanchor="center", yanchor="bottom", colour=LIGHT["soft"])
    if margin is not None:
        at = 100 * (1 / (1 - margin) - 1)
        figure.add_vline(x=at, line={"color": LIGHT["ink"], "width": 2, "dash": "dash"})
        mark(figure, f"margin<br>{100 * margin:.1f} %", x=at, y=0.96, xanchor="left", yanchor="top", align="left")
    figure.update_xaxes(title_text=f"{regime}: longer than predicted, %", range=[low, high])
    figure.update_yaxes(title_text="steps, %", rangemode="tozero")
    figure.update_layout(showlegend=False, bargap=0, margin={"t": 34})
    return figure


def against_load(
    curve: Mapping[str, Any], *, measure: str, tuned_rps: float | None = None, hull_rps: float | None = None, epsilon: float | None = None
) -> go.Figure:
    """Attainment, or goodput, against load for each contender, settings as tuned for one load.

    Args:
        curve: {"rate_rps": [...], contender: {measure: [...]}}, as `headway.experiments.load.load_curve` returns it.
        measure: "attainment", "request_attainment" or "goodput_tps".
        tuned_rps: load to mark [requests/s]; None marks none.
        hull_rps: load from which on the plant is extrapolated [requests/s]; None marks none.
        epsilon: share that may be late: draws what was promised; None draws nothing.

    Returns:
        The figure.
    """
    figure = blank(360)
    scale, suffix = (1.0, "tokens/s") if measure.endswith("_tps") else (100.0, "%")
    rates = [float(r) for r in curve["rate_rps"]]
    for contender, (name, role, dash, symbol) in CONTENDERS.items():
        values = (curve.get(contender) or {}).get(measure)
        if values:
            figure.add_scatter(
                x=rates,
                y=[None if v is None else scale * v for v in values],
                mode="lines+markers",
                name=name,
                line={"color": LIGHT[role], "width": 2.5, "dash": dash},
                marker={"size": 8, "symbol": symbol},
                hovertemplate=f"{name}<br>%{{x:.1f}}/s: %{{y:,.1f}} {suffix}<extra></extra>",
            )
    for at, text in ((tuned_rps, "tuned here"), (hull_rps, "end of hull")):
        if at is not None:
            figure.add_vline(x=at, line={"color": LIGHT["soft"], "width": 1.5, "dash": "dot"})
            mark(figure, text, x=at, y=0.02, xanchor="left", yanchor="bottom", colour=LIGHT["soft"])
    if epsilon is not None and not measure.endswith("_tps"):
        figure.add_hline(y=100 * (1 - epsilon), line={"color": LIGHT["ink"], "width": 1, "dash": "dash"})
        text = f"promise {100 * (1 - epsilon):.4g} %"
        figure.add_annotation(
            text=text, x=1, xref="paper", y=100 * (1 - epsilon), xanchor="right", yanchor="bottom", showarrow=False, font={"size": 12}
        )
    titles = {"attainment": "attainment, % of owed tokens", "request_attainment": "clean requests, %", "goodput_tps": "goodput, tokens/s"}
    figure.update_xaxes(title_text="load, requests/s")
    figure.update_yaxes(title_text=titles[measure], rangemode="tozero" if measure.endswith("_tps") else "normal")
    return figure


def tail(curves: Sequence[Curve], *, name: str, targets_s: Mapping[str, float], most: float = 0.9995) -> go.Figure:
    """A distribution out to its far tail: the share that took longer than x, on logarithmic axes.

    Args:
        curves: measured and predicted.
        name: "TTFT" or "ITL".
        targets_s: by class [s].
        most: share at which the axis ends.

    Returns:
        The figure; predictions are dashed, targets vertical.
    """
    figure = blank(400)
    known: list[float] = [1e3 * t for t in targets_s.values()]
    for curve in curves:
        who, role, _, _ = CONTENDERS[curve.contender]
        rows = [(1e3 * v, 1 - s) for s, v in zip(curve.share, curve.value_s, strict=True) if v is not None and s <= most + 1e-9]
        known += [x for x, above in rows if above < 0.95]
        figure.add_scatter(
            x=[x for x, _ in rows],
            y=[above for _, above in rows],
            mode="lines",
            name=who,
            showlegend=not curve.predicted,
            legendgroup=who,
            line={"color": LIGHT[role], "width": 1.5 if curve.predicted else 2.5, "dash": "dash" if curve.predicted else "solid"},
            hovertemplate="%{y:.2%} took longer than %{x:,.1f} ms<extra>" + who + "</extra>",
        )
    if any(curve.predicted for curve in curves):
        figure.add_scatter(x=[None], y=[None], mode="lines", name="predicted", line={"color": LIGHT["soft"], "width": 1.5, "dash": "dash"})
    low, high = span(np.array(known or [1.0]), 0.03)
    for i, (cls, target_s) in enumerate(targets_s.items()):
        figure.add_vline(x=1e3 * target_s, line={"color": LIGHT["ink"], "width": 1.5, "dash": "dot"})
        text = "target" if len(targets_s) == 1 else f"target {html.escape(cls)}"
        right = math.log(1e3 * target_s / low) > 0.7 * math.log(high / low)
        mark(figure, text, x=math.log10(1e3 * target_s), y=0.99 - 0.07 * i, xanchor="right" if right else "left", yanchor="top")
    figure.update_xaxes(title_text=f"{name} at the client, ms", **log_axis(low, high))
    ticks = {1.0: "100 %", 0.5: "50 % (p50)", 0.1: "10 % (p90)", 0.01: "1 % (p99)", 0.001: "0.1 % (p99.9)"}
    axis = {"type": "log", "range": [math.log10(1 - most), 0.02], "tickvals": list(ticks), "ticktext": list(ticks.values())}
    figure.update_yaxes(title_text=f"share of {'requests' if name == 'TTFT' else 'gaps'} above", **axis)
    return figure


def closed_loop(
    timeline: Mapping[str, Sequence[float]],
    *,
    budget_s: float | None,
    setpoint_s: float | None,
    other: Mapping[str, Sequence[float]] | None = None,
    window: tuple[int, int] | None = None,
) -> go.Figure:
    """The loop at work: step time against setpoint and budget, the token budget it set, and the requests there were.

    Args:
        timeline: of the controller: end_s, step_time_s, token_budget, running, waiting, one entry per step.
        budget_s: longest step that keeps the ITL promise [s].
        setpoint_s: what the loop steers to [s].
        other: the same of the static setting on the same arrivals, drawn behind; None draws none.
        window: first and last step to open with; None opens with all.

    Returns:
        The figure; three panels over one clock with a range slider.
    """
    figure = blank(660)
    at, top = np.asarray(timeline["end_s"], float), step_axis_end(timeline, budget_s=budget_s, other=other)
    if other and other.get("end_s"):
        behind = {"size": 4, "color": LIGHT["static"], "opacity": 0.6, "symbol": "square"}
        look = {"mode": "markers", "marker": behind, "hovertemplate": "%{y:.1f} ms"}
        _add(figure, other["end_s"], other["step_time_s"], "step, best static", "x2", "y", scale=1e3, **look)
    look = {"line": {"color": LIGHT["tuned"], "width": 1.5}, "hovertemplate": "%{y:.1f} ms"}
    _add(figure, at, timeline["step_time_s"], "step, tuned controller", "x2", "y", scale=1e3, **look)
    for name, level_s, dash in (("setpoint", setpoint_s, "dash"), ("budget", budget_s, "solid")):
        if level_s is not None:
            look = {"line": {"color": LIGHT["ink"], "width": 1.5, "dash": dash}, "hoverinfo": "skip"}
            _add(figure, at[[0, -1]], [level_s] * 2, f"{name} {1e3 * level_s:.1f} ms", "x2", "y", scale=1e3, **look)
    for key, xaxis, yaxis, role in (
        ("token_budget", "x2", "y2", "tuned"),
        ("running", "x", "y3", "decode"),
        ("waiting", "x", "y3", "mixed"),
    ):
        name = key.replace("_", " ")
        look = {"line": {"color": LIGHT[role], "width": 1.5, "shape": "hv"}, "hovertemplate": "%{y:,.0f}", "showlegend": yaxis == "y3"}
        _add(figure, at, timeline.get(key) or [], name, xaxis, yaxis, **look)
    first, last = window or (0, len(at) - 1)
    slider = {"visible": True, "thickness": 0.09, "bgcolor": LIGHT["card"], "bordercolor": LIGHT["line"], "borderwidth": 1}
    figure.update_layout(
        xaxis={"title": {"text": "time, s"}, "range": [at[first], at[last]], "rangeslider": slider, "anchor": "y3"},
        xaxis2={"matches": "x", "anchor": "y", "showticklabels": False, "ticks": ""},
        yaxis={"title": {"text": "step, ms"}, "domain": [0.5, 1.0], "range": [0, top], "anchor": "x2"},
        yaxis2={"title": {"text": "token budget"}, "domain": [0.25, 0.45], "rangemode": "tozero", "anchor": "x2"},
        yaxis3={"title": {"text": "requests"}, "domain": [0.0, 0.2], "rangemode": "tozero", "anchor": "x"},
        hovermode="x",
    )
    return figure


def _add(
    figure: go.Figure, x: Any, y: Any, name: str, xaxis: str, yaxis: str, *, scale: float = 1.0, mode: str = "lines", **look: Any
) -> None:
    x, y = np.asarray(x, "f4"), (scale * np.asarray(y, float)).astype("f4")
    figure.add_scatter(x=x, y=y, name=name, xaxis=xaxis, yaxis=yaxis, mode=mode, **look)
