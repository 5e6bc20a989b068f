"""Loop: the sliders of the law, and what moves with them: the answer to a step, the margins, the closed loop itself."""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple

from dash import dcc, html

from headway.gains import following
from headway.report.loop_figures import unanswered
from headway.report.loop_panels import certificate_sentence, margin_panels_of, points_of, simulated_panel, weakest
from headway.report.panels import Panel, Shown, validated_panels
from headway.report.schedule_panels import TITLE as FOLLOWING
from headway.report.schedule_panels import of_constants, schedule_parts
from headway.web.asked import Asked
from headway.web.cards import command_card, labelled, note, shown_card, shown_cards, side_by_side
from headway.web.knobs import Knob, knobs_of, moved
from headway.web.picks import number_of
from headway.web.views import View

TITLE = "Loop"
DELAY = Knob(
    "delay", "delay", 1.0, 2.0, 1.0, "steps from a command to its measurement: 2 where the engine composes a step ahead", unit="steps"
)
"""The engine's part of the loop: no number of the controller, but the margins hang on it."""
COMMAND = "loop"
"""Names the command of the page: it changes with the sliders."""
_UNSLID = "Without a slider: {}. What follows the load in this controller is a table, no one number."


class Looked(NamedTuple):
    """What the sliders' position comes to.

    Args:
        panels: figures with their sentences, or what stands in the place of one, by name.
        margins: at the weakest operating point, by name, None where infinite; empty for a law without a linear loop.
        command: that shows the same margins.
        said: what could not be done; empty if all could.
    """

    panels: dict[str, Shown]
    margins: dict[str, Any]
    command: str
    said: str


def page(asked: Asked) -> list[Any]:
    """The page.

    Args:
        asked: the run, and what the URL says.

    Returns:
        Components.
    """
    view, picks, dark = asked.view, asked.picks, asked.dark
    if not view.has("tune"):
        return [note("This run has no controller yet; its sliders appear once it is tuned.")]
    knobs = knobs_of(view.record().candidate, view.record().limits)
    places = {k.name: min(max(number_of(picks, k.name, k.place), k.low), k.high) for k in knobs}
    knobs = [*knobs, DELAY]
    places[DELAY.name] = min(max(round(number_of(picks, DELAY.name, DELAY.place)), DELAY.low), DELAY.high)
    found, tables = look(view, places), following(view.record().candidate)
    sliders = [_slider(k, places[k.name]) for k in knobs]
    cards = {name: shown_card(view, one, dark=dark) for name, one in found.panels.items()}
    pair = side_by_side([cards[name] for name in ("step", "nyquist") if name in cards])
    controller = view.findings().controller
    certified, constants = certificate_sentence(controller), of_constants(controller)
    return [
        *([html.P(f"As tuned: {certified[:1].lower()}{certified[1:]}")] if certified else []),
        html.Div([labelled(html.Div(sliders, className="knobs", role="group"), "sliders"), html.Button("as tuned", id="as-tuned", className="small")]),
        *([note(f"{_UNSLID.format(', '.join(tables))} {constants}".strip())] if tables else []),
        html.P(found.said, id="loop-said", className="fault" if found.said else "hidden", role="status"),
        pair,
        *([cards["bode"]] if "bode" in cards else []),
        *([cards["none"]] if "none" in cards else []),
        cards["loop"],
        command_card(found.command, name=COMMAND),
        *_following(view, dark),
        *_validated(view, dark),
    ]  # fmt: skip


def _following(view: View, dark: bool) -> list[Any]:
    """Gains that follow the load, or what became of training them: tables have no sliders, so this stays as it is."""
    shown = schedule_parts(view.findings())
    return [html.Section([html.H2(FOLLOWING), *shown_cards(view, shown, dark=dark)])] if shown else []


def _validated(view: View, dark: bool) -> list[Any]:
    """The loop as it ran: it stays as it is while the sliders move."""
    if not view.has("validate"):
        return []
    shown = validated_panels(view.findings())
    return [html.Section([html.H2("As validated"), *(shown_card(view, one, dark=dark) for one in shown)])]


def _slider(knob: Knob, place: float) -> html.Div:
    place_id = {"type": "knob", "name": knob.name}
    slider = dcc.Slider(
        id=place_id, min=knob.low, max=knob.high, value=place, step=1 if knob is DELAY else (knob.high - knob.low) / 200, marks=None,
        updatemode="drag",
        tooltip={"always_visible": False}, allow_direct_input=False,
    )  # fmt: skip
    shown = html.Span(knob.shown(place), id={"type": "knob-value", "name": knob.name}, className="value")
    return html.Div([html.Div([html.Label(knob.label), shown], className="top"), slider, html.Small(knob.says)], className="knob")


def look(view: View, places: dict[str, float]) -> Looked:
    """Everything that moves with the sliders.

    Args:
        view: the run.
        places: of the sliders, by name; that of DELAY among them.

    Returns:
        Figures in the light palette with their sentences, margins, command, and what could not be done.
    """
    known, delay = view.opened(), int(places.get(DELAY.name, DELAY.place))
    record, identified = known.record, known.identified
    move = moved(record.candidate, knobs_of(record.candidate, record.limits), places)
    law = move.candidate.law
    found = weakest(law, identified, points_of(law, identified, record), delay)
    panels: dict[str, Shown] = {}
    for name, one in zip(("step", "nyquist", "bode") if found else ("none",), margin_panels_of(found, delay), strict=True):
        # a graph that has gone could not come back with the next move of a slider
        panels[name] = one if isinstance(one, Panel) or name == "none" else Panel(name, unanswered(), one.said)
    panels["loop"] = simulated_panel(known, move.candidate)
    files = (shlex.quote(str(view.path / name)) for name in ("controller.json", "plant.json"))
    keep = " --out moved.json" if move.options() else ""
    command = f"headway analyse {' '.join(files)} --delay {delay}{move.options()}{keep}"
    return Looked(panels, found.margins if found else {}, command, move.said)
