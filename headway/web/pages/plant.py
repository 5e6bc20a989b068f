"""Plant: measured against predicted, residuals, the ladder of structures, coefficients and what they mean."""

from __future__ import annotations

from typing import Any

from dash import html

from headway.report.commands import commands_of
from headway.report.identified import binding_table, coefficient_table, diagnostic_table, ladder_table
from headway.report.panels import fit_panels, margin_panels, order_panels
from headway.web.asked import Asked
from headway.web.cards import command_card, shown_cards, side_by_side
from headway.web.markup import components

TITLE = "Plant"


def page(asked: Asked) -> list[Any]:
    """The page.

    Args:
        asked: the run, and what the URL says.

    Returns:
        Components.
    """
    view, dark = asked.view, asked.dark
    found = view.findings()
    body: list[Any] = [html.P(f"Structure {found.plant.get('structure')}.", className="about")]
    body.append(side_by_side(shown_cards(view, fit_panels(found), dark=dark)))
    if found.steps is not None:
        body += shown_cards(view, order_panels(found), dark=dark)
        body.append(side_by_side(shown_cards(view, margin_panels(found), dark=dark)))
    sections = {
        "Ladder of structures": ladder_table(found.plant),
        "Coefficients": coefficient_table(found.plant),
        "What binds": binding_table(found.plant),
        "Diagnostics": diagnostic_table(found.plant),
    }
    body += [html.Section([html.H2(title), *components(text)]) for title, text in sections.items() if text]
    return [*body, command_card(commands_of(found)["fit"])]
