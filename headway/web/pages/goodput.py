"""Goodput: against load, against batch, to the tail, per class; what can be had of both promises; how far from what no policy exceeds."""

from __future__ import annotations

from typing import Any

from dash import html

from headway.report.commands import commands_of
from headway.report.data import dig
from headway.report.goodput_panels import batch_panels, beside_parts, load_panels, tail_panels
from headway.report.panels import Shown
from headway.report.tables import side_table
from headway.web.asked import Asked
from headway.web.cards import command_card, note, shown_cards, side_by_side
from headway.web.markup import components
from headway.web.views import View, remembered

TITLE = "Goodput"
NAMES = {"heldout": "tuned controller", "best_static": "best static", "best_timeout": "static + queue timeout"}


def page(asked: Asked) -> list[Any]:
    """The page.

    Args:
        asked: the run, and what the URL says.

    Returns:
        Components.
    """
    view, dark = asked.view, asked.dark
    if not view.has("tune"):
        return [note("This run has no controller yet; goodput appears once it is tuned.")]
    found = view.findings()
    tuning = dig(found.controller, "tuning") or {}
    groups = {
        "tuning, held-out seeds, predicted": {name: tuning[key]["figures"] for key, name in NAMES.items() if dig(tuning, key, "figures")}
    }
    return [
        side_by_side(shown_cards(view, load_panels(found), dark=dark)),
        *shown_cards(view, _batch(view), dark=dark),
        html.Section([html.H2("Bound, parts, knees, trade-offs, plant error"), *shown_cards(view, beside_parts(found), dark=dark)]),
        html.Section([html.H2("First tokens and gaps to the far tail"), side_by_side(shown_cards(view, tail_panels(found), dark=dark))]),
        html.Section([html.H2("Per class and in all"), *components(side_table(groups, "What became of the promise"))]),
        command_card(commands_of(found)["tune"]),
    ]


def _batch(view: View) -> list[Shown]:
    return remembered(("batch", *view.stamp("fit", "tune")), lambda: batch_panels(view.opened()))
