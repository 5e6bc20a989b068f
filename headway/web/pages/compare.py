"""Compare: two runs side by side."""

from __future__ import annotations

from typing import Any

from dash import html

from headway.report.data import Findings, dig
from headway.report.goodput_figures import runs_against_load
from headway.report.headline import about, cards, verdict
from headway.report.tables import gain_table, side_table
from headway.report.tails import side_notes
from headway.web.asked import Asked
from headway.web.cards import chosen_link, command_card, figure_card, note, side_by_side
from headway.web.markup import components
from headway.web.picks import search_of
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
    links = [chosen_link(n, n == name, f"/compare{search_of({'run': view.name, 'other': n})}") for n in others]
    curves = {title: curve for title, found in both.items() if (curve := _curve(found))}
    loads = []
    if len(curves) == len(both):
        said = "Attainment of the two tuned controllers against load, each with its own plant, workload and target."
        loads = [figure_card("runs-load", runs_against_load(curves), said, dark=asked.dark)]
    return [
        html.Div([html.Span("beside", className="soft"), *links], className="choices"),
        side_by_side(heads),
        *loads,
        html.Section([html.H2("Figures side by side"), *(tables or [note("Neither run has been validated yet.")])]),
        html.Section([html.H2("Controllers"), side_by_side(gains)]) if gains else "",
        command_card("headway runs"),
    ]


def _curve(found: Findings) -> dict[str, Any]:
    rates = dig(found.controller, "tuning", "load_curve", "rate_rps")
    values = dig(found.controller, "tuning", "load_curve", "controller", "attainment")
    return {"rate_rps": rates, "attainment": values} if rates and values and None not in rates else {}


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
