"""Compare: two runs side by side."""

from __future__ import annotations

from typing import Any

from dash import html

from headway.report.data import Findings, dig
from headway.report.headline import about, cards, verdict
from headway.report.tables import gain_table, side_table
from headway.report.tails import side_notes
from headway.web.asked import Asked
from headway.web.cards import command_card, note, side_by_side
from headway.web.markup import components
from headway.web.views import View

TITLE = "Compare"


def page(asked: Asked) -> list[Any]:
    """The page.

    Args:
        asked: the run, and what the URL says.

    Returns:
        Components.
    """
    view, picks, root = asked.view, asked.picks, asked.root
    others = [name for name in root.names() if name != view.name]
    if not others:
        return [note("There is no other run beside this one. Upload a trace, or make one: headway run --out NAME ...")]
    name = picks.get("other") or others[0]
    other = View(name, root.run(name))
    both = {view.name: view.findings(), name: other.findings()}
    heads = [_head(title, found) for title, found in both.items()]
    groups = {title: sides for title, found in both.items() if (sides := _sides(found))}
    tables = [*components(side_table(groups, "What became of the promise") + side_notes(groups))] if groups else []
    gains = [
        html.Div([html.H3(title), *components(gain_table(found.controller))])
        for title, found in both.items()
        if found.controller is not None
    ]
    return [
        side_by_side(heads),
        html.Section([html.H2("Figures side by side"), *(tables or [note("Neither run has been validated yet.")])]),
        html.Section([html.H2("Controllers"), side_by_side(gains)]) if gains else "",
        command_card("headway runs"),
    ]


def _head(title: str, found: Findings) -> html.Div:
    word, sentence, tone = verdict(found)
    boxes = [
        html.Div([html.H3(c.title), html.P(c.value, className="value"), *(html.P(n) for n in c.notes)], className="card")
        for c in cards(found)
    ]
    said = html.P([html.Strong(word), f" {sentence}"], className="verdict")
    return html.Div([html.H2(title), html.P(about(found), className="about"), said, html.Div(boxes, className="cards")], className=tone)


def _sides(found: Findings) -> dict[str, Any]:
    data = found.validation
    if data is None:
        return {}
    return {heading: dig(data, key) for heading, key in (("controller", "controller"), ("best static", "best_static")) if dig(data, key)}
