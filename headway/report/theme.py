"""Colours, type and the figure template. A colour has a role, not a place: the same contender has the same colour everywhere.

Hues are Okabe and Ito's where they are strong enough on white. No two roles that meet in one figure differ by hue alone: they also
differ in lightness, dash or marker. Figures are built in the light palette; `swaps` turns one into the other by exact code.

Source:
    Okabe and Ito, Color Universal Design, 2008.
"""

from __future__ import annotations

import functools

import plotly.graph_objects as go

LIGHT: dict[str, str] = {
    "paper": "#ffffff",
    "card": "#f4f6f8",
    "ink": "#1a1f26",
    "soft": "#56606b",
    "line": "#868f99",
    "grid": "#e4e8ec",
    "tuned": "#0072b2",
    "static": "#d55e00",
    "timeout": "#008460",
    "decode": "#7a4fa3",
    "mixed": "#a67000",
    "good": "#00694b",
    "bad": "#b3261e",
}
"""Colour of each role on white."""

DARK: dict[str, str] = {
    "paper": "#12161b",
    "card": "#1b2128",
    "ink": "#e7eaee",
    "soft": "#a3adb8",
    "line": "#6b7683",
    "grid": "#2a323b",
    "tuned": "#56b4e9",
    "static": "#f4924e",
    "timeout": "#33c9a0",
    "decode": "#bd9fe6",
    "mixed": "#e3b54a",
    "good": "#3fcf9f",
    "bad": "#ff8f86",
}
"""Colour of each role on a dark page."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Liberation Sans', Arial, sans-serif"
MONO = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def faint(colour: str, strength: float) -> str:
    """A colour with transparency, in the form that `swaps` still recognises.

    Args:
        colour: "#rrggbb".
        strength: 0 is invisible, 1 opaque.

    Returns:
        "#rrggbbaa".
    """
    return f"{colour}{round(255 * strength):02x}"


def swaps() -> dict[str, str]:
    """What to replace to turn a light figure dark.

    Returns:
        Dark colour by light colour.
    """
    return {LIGHT[role]: DARK[role] for role in LIGHT}


def variables() -> str:
    """The palettes as CSS variables, the dark one where the reader prefers it; paper is always light.

    Returns:
        CSS.
    """

    def block(palette: dict[str, str]) -> str:
        return ":root{" + "".join(f"--{role}:{colour};" for role, colour in palette.items()) + "}"

    fonts = f":root{{--font:{FONT};--mono:{MONO}}}"
    return f"{fonts}\n{block(LIGHT)}\n@media screen and (prefers-color-scheme: dark){{{block(DARK)}}}\n"


@functools.cache
def template() -> go.layout.Template:
    """The look of every figure: no box, thin grid, legend on top, labels that fit a phone.

    Returns:
        A plotly template in the light palette.
    """
    axis = {
        "gridcolor": LIGHT["grid"],
        "linecolor": LIGHT["line"],
        "tickcolor": LIGHT["line"],
        "zeroline": False,
        "showline": True,
        "ticks": "outside",
        "ticklen": 4,
        "automargin": True,
        "title": {"standoff": 8, "font": {"size": 13}},
        "tickfont": {"size": 12},
    }
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": 13, "color": LIGHT["ink"]},
            "paper_bgcolor": LIGHT["paper"],
            "plot_bgcolor": LIGHT["paper"],
            "colorway": [LIGHT[role] for role in ("tuned", "static", "timeout", "decode", "mixed")],
            "margin": {"l": 12, "r": 16, "t": 12, "b": 12},
            "xaxis": axis,
            "yaxis": axis,
            "legend": {
                "orientation": "h",
                "x": 0,
                "xanchor": "left",
                "y": 1.02,
                "yanchor": "bottom",
                "font": {"size": 12},
                "itemwidth": 40,
            },
            "hoverlabel": {"font": {"family": FONT, "size": 12}},
            "dragmode": "zoom",
        }
    )
