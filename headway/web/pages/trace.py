"""Trace: what was recorded, what was set aside and why, which combinations of work there are."""

from __future__ import annotations

import shlex
from typing import Any

from dash import html

from headway.report.identified import diagnostic_table
from headway.report.panels import trace_panels
from headway.report.recorded import set_aside
from headway.report.tables import aside_table
from headway.web.asked import Asked
from headway.web.cards import command_card, note, shown_cards, side_by_side
from headway.web.markup import components

TITLE = "Trace"


def page(asked: Asked) -> list[Any]:
    """The page.

    Args:
        asked: the run, and what the URL says.

    Returns:
        Components.
    """
    view, dark = asked.view, asked.dark
    if not view.has("trace"):
        return [note("This run holds no trace: it was made from single files.")]
    found = view.recording()
    hull = view.identified().hull if view.has("fit") else None
    parts = shown_cards(view, trace_panels(found, hull), dark=dark)
    words = aside_table(set_aside(found))
    diagnosed = diagnostic_table(view.findings().plant) if view.has("fit") else ""
    file = shlex.quote(str(view.path / "trace.parquet"))
    return [
        *parts,
        side_by_side([html.Section([html.H2("Set aside"), *components(words)])]),
        html.Section([html.H2("What the diagnostics say"), *components(diagnosed)]) if diagnosed else "",
        command_card(f"headway fit {file} --out plant.json"),
    ]
