"""Trace: what was recorded, what was set aside and why, which combinations of work there are."""

from __future__ import annotations

import shlex
from typing import Any

from dash import html

from headway.identification.rows import REASONS
from headway.report.identified import diagnostic_table
from headway.report.recorded import excitation_map, set_aside, stretches
from headway.report.tables import table
from headway.report.text import count
from headway.report.trace_figures import time_line, time_line_sentence, work_map, work_sentence
from headway.web.asked import Asked
from headway.web.cards import command_card, figure_card, note, side_by_side
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
    regimes = {name: stretches(found, name) for name in ("decode", "mixed")}
    cells = excitation_map(found)
    hull = view.identified().hull if view.has("fit") else None
    box = (hull.decode_requests, hull.prefill_tokens) if hull else None
    parts = [
        figure_card("time-line", time_line(regimes, found), time_line_sentence(found, regimes), dark=dark),
        figure_card("work", work_map(cells, box), work_sentence(cells), dark=dark),
    ]
    aside = set_aside(found)
    rows = [(name.replace("_", " "), count(n), REASONS.get(name, "as the reader says")) for name, n in aside.items()]
    words = (
        table(("reason", "rows", "what it means"), rows, "Rows set aside, by reason", look="words")
        if rows
        else "<p>No row is set aside.</p>"
    )
    diagnosed = diagnostic_table(view.findings().plant) if view.has("fit") else ""
    file = shlex.quote(str(view.path / "trace.parquet"))
    return [
        *parts,
        side_by_side([html.Section([html.H2("Set aside"), *components(words)])]),
        html.Section([html.H2("What the diagnostics say"), *components(diagnosed)]) if diagnosed else "",
        command_card(f"headway fit {file} --out plant.json"),
    ]
