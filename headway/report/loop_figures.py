"""Figures of a law before it runs: its answer to a step, Bode's two curves and Nyquist's, with the margins marked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go

from headway.report.axes import blank, mark
from headway.report.text import digits, percent
from headway.report.theme import LIGHT

SETTLED = 0.05
"""Share of a change within which it counts as answered."""
LOWEST_DB = -60.0


def step_response(steps: np.ndarray, setpoint: np.ndarray, disturbance: np.ndarray) -> go.Figure:
    """How the closed loop answers a change of the setpoint and one of the load.

    Args:
        steps: engine steps since the change, shape (k,).
        setpoint: step time after the setpoint rose by one, shape (k,).
        disturbance: step time after the load made steps longer by one, shape (k,).

    Returns:
        The figure.
    """
    figure = blank(300)
    for name, values, role, dash in (
        ("setpoint raised by 1", setpoint, "tuned", "solid"),
        ("steps made longer by 1", disturbance, "static", "dash"),
    ):
        line = {"color": LIGHT[role], "width": 2.5, "dash": dash, "shape": "hv"}
        figure.add_scatter(x=steps, y=values, mode="lines", name=name, line=line, hovertemplate="step %{x}: %{y:.3f}<extra></extra>")
    line = {"color": LIGHT["line"], "width": 1, "dash": "dot"}
    figure.update_layout(
        shapes=[{"type": "line", "xref": "x domain", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line} for y in (0.0, 1.0)],
        xaxis={"title": {"text": "engine steps after the change"}},
        yaxis={"title": {"text": "step time, share of the change"}},
    )
    return figure


def unanswered() -> go.Figure:
    """What stands where an unstable loop has no answer to a step, so that the place of the answer is kept while gains move.

    Returns:
        A figure that says so.
    """
    figure = blank(300)
    figure.add_annotation(
        text="unstable: no answer", x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False, font={"color": LIGHT["bad"], "size": 18}
    )
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return figure


def bode(omega: np.ndarray, magnitude_db: np.ndarray, phase_deg: np.ndarray, margins: dict[str, Any]) -> go.Figure:
    """Bode's curves of the opened loop, with gain and phase margin.

    Args:
        omega: shape (k,) [rad/step].
        magnitude_db: shape (k,) [dB].
        phase_deg: shape (k,) [deg].
        margins: `gain_margin_db` and `phase_margin_deg`, None where there is none.

    Returns:
        The figure: magnitude above, phase below, over one axis of frequency.
    """
    figure = blank(400)
    period = 2 * math.pi / omega
    look = {"line": {"color": LIGHT["tuned"], "width": 2}, "showlegend": False, "mode": "lines"}
    figure.add_scatter(x=omega, y=magnitude_db, yaxis="y", xaxis="x2", customdata=period, hovertemplate="a cycle in %{customdata:.3g} steps: %{y:.1f} dB<extra></extra>", **look)  # fmt: skip  # noqa: E501
    figure.add_scatter(x=omega, y=phase_deg, yaxis="y2", xaxis="x", customdata=period, hovertemplate="a cycle in %{customdata:.3g} steps: %{y:.0f} deg<extra></extra>", **look)  # fmt: skip  # noqa: E501
    for y, yref, xref in ((0.0, "y", "x2"), (-180.0, "y2", "x")):
        ends = {"x0": omega[0], "x1": omega[-1], "y0": y, "y1": y}
        figure.add_shape(type="line", xref=xref, yref=yref, line={"color": LIGHT["line"], "width": 1, "dash": "dot"}, **ends)
    axis = {"type": "log", "range": [math.log10(omega[0]), math.log10(omega[-1])], "dtick": 1}
    least = max(float(np.min(magnitude_db)), LOWEST_DB)
    ends_deg = [min(float(np.min(phase_deg)), -180.0) - 8, max(float(np.max(phase_deg)), -90.0) + 8]
    figure.update_layout(
        xaxis={**axis, "title": {"text": "frequency, rad/step"}, "anchor": "y2"},
        xaxis2={**axis, "matches": "x", "anchor": "y", "showticklabels": False, "ticks": ""},
        yaxis={"title": {"text": "gain, dB"}, "domain": [0.55, 1.0], "anchor": "x2", "range": [least - 3, max(float(np.max(magnitude_db)), 3) + 3]},
        yaxis2={"title": {"text": "phase, deg"}, "domain": [0.0, 0.45], "anchor": "x", "range": ends_deg, "dtick": 45 if np.ptp(ends_deg) < 300 else 90},
    )  # fmt: skip
    said = "<br>".join(f"{name} {digits(margins.get(key), 3)} {unit}" for name, key, unit in (("gain margin", "gain_margin_db", "dB"), ("phase margin", "phase_margin_deg", "deg")) if margins.get(key) is not None)  # fmt: skip  # noqa: E501
    if said:
        figure.add_annotation(
            text=said, x=0.01, xref="paper", y=0.57, yref="paper", xanchor="left", yanchor="bottom", align="left", showarrow=False
        )
    return figure


def nyquist(real: np.ndarray, imaginary: np.ndarray) -> go.Figure:
    """Nyquist's curve near the point that it must not come round: how far from it is the robustness.

    Args:
        real: of the opened loop, shape (k,).
        imaginary: shape (k,).

    Returns:
        The figure; both axes on one scale.
    """
    figure = blank(400)
    near = np.hypot(real, imaginary) <= 6.0
    circle = np.linspace(0, 2 * math.pi, 181)
    line = {"color": LIGHT["line"], "width": 1, "dash": "dot"}
    figure.add_scatter(x=np.cos(circle), y=np.sin(circle), mode="lines", line=line, name="gain of one", hoverinfo="skip")
    for sign, name in ((1, "the loop"), (-1, "its mirror image")):
        look = {"color": LIGHT["tuned"], "width": 2.5 if sign > 0 else 1, "dash": "solid" if sign > 0 else "dash"}
        figure.add_scatter(
            x=real[near], y=sign * imaginary[near], mode="lines", line=look, name=name, hovertemplate="%{x:.2f}, %{y:.2f}<extra></extra>"
        )
    figure.add_scatter(
        x=[-1], y=[0], mode="markers", marker={"size": 11, "symbol": "x", "color": LIGHT["bad"]}, name="-1", hoverinfo="skip"
    )
    distance = np.hypot(real + 1, imaginary)
    at = int(np.argmin(distance))
    figure.add_scatter(
        x=[-1, real[at]], y=[0, imaginary[at]], mode="lines", line={"color": LIGHT["bad"], "width": 1.5}, name="nearest", hoverinfo="skip"
    )
    mark(figure, f"{distance[at]:.2f} from -1", x=-1, y=0.53, xanchor="right", yanchor="bottom", colour=LIGHT["soft"])
    figure.update_xaxes(title_text="real part", range=[-2.2, 1.6])
    figure.update_yaxes(title_text="imaginary part", range=[-2.0, 2.0], scaleanchor="x")
    return figure


def response_sentence(steps: np.ndarray, setpoint: np.ndarray, disturbance: np.ndarray) -> str:
    """What the answer to a step shows.

    Args:
        steps: shape (k,).
        setpoint: shape (k,).
        disturbance: shape (k,).

    Returns:
        Sentences.
    """
    settled = _settled(steps, setpoint - setpoint[-1])
    gone = _settled(steps, disturbance - disturbance[-1])
    over = max(float(np.max(setpoint)) - 1.0, 0.0)
    text = f"A change of the setpoint is answered to within {percent(SETTLED, 0)} {settled}"
    text += f", with an overshoot of {percent(over, 0)}." if over > 0.005 else ", without overshoot."
    left = float(disturbance[-1])
    return text + f" Steps that grow longer are back {gone}" + (f", but for {percent(left, 0)} that stay." if abs(left) > 0.02 else ".")


def _settled(steps: np.ndarray, error: np.ndarray) -> str:
    outside = np.flatnonzero(np.abs(error) > SETTLED)
    if len(outside) == 0:
        return "at once"
    after = int(steps[outside[-1]]) + 1
    return f"after {after} step{'s' if after > 1 else ''}" if outside[-1] < len(steps) - 1 else f"after more than {int(steps[-1])} steps"


def margin_text(margins: dict[str, Any]) -> str:
    """The margins of a loop in a sentence.

    Args:
        margins: by name, None where infinite.

    Returns:
        A sentence.
    """
    gain, phase, peak = (margins.get(name) for name in ("gain_margin_db", "phase_margin_deg", "sensitivity_peak"))
    worded = [
        f"gain margin {gain:.1f} dB (the plant may be {10 ** (gain / 20):.1f} times as steep)" if gain is not None else "no gain makes it unstable",
        f"phase margin {phase:.0f} degrees" if phase is not None else "",
        f"disturbances are raised {peak:.2f} times at most" if peak is not None else "",
    ]  # fmt: skip
    text = "; ".join(filter(None, worded))
    return f"{text[:1].upper()}{text[1:]}."
