"""Loop: the sliders of the law, and what moves with them: the answer to a step, the margins, the closed loop itself."""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple

import numpy as np
from dash import dcc, html

from headway.controllers.controller import Controller
from headway.controllers.pi import PILaw
from headway.controllers.simulator import LOG_COLUMNS, Candidate, simulate
from headway.experiments.analysis import Curve, Response, curve, response
from headway.experiments.case import Case, case_of
from headway.experiments.loops import gain_ratio, has_loop, loop_of
from headway.experiments.margins import loop_margins
from headway.report.figures import closed_loop
from headway.report.loop_figures import bode, margin_text, nyquist, response_sentence, step_response
from headway.report.sentences import loop_sentence
from headway.report.text import percent, time
from headway.web.asked import Asked
from headway.web.cards import command_card, figure_card, labelled, note, side_by_side
from headway.web.knobs import Knob, knobs_of, moved
from headway.web.picks import number_of
from headway.web.views import View, remembered

TITLE = "Loop"
STEPS = 600
"""Steps of the closed loop that are drawn: what a slider changes shows in them, and the page stays quick."""
DELAY = Knob(
    "delay", "delay", 1.0, 2.0, 1.0, "steps from a command to its measurement: 2 where the engine composes a step ahead", unit="steps"
)
"""The engine's part of the loop: no number of the controller, but the margins hang on it."""


class Looked(NamedTuple):
    """What the sliders' position comes to.

    Args:
        figures: by name.
        sentences: by name.
        said: what could not be done; empty if all could.
    """

    figures: dict[str, Any]
    sentences: dict[str, str]
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
    delay = int(places[DELAY.name])
    found = look(view, places)
    sliders = [_slider(k, places[k.name]) for k in knobs]
    cards = {name: figure_card(name, figure, found.sentences[name], dark=dark) for name, figure in found.figures.items()}
    return [
        html.Div([labelled(html.Div(sliders, className="knobs", role="group"), "sliders"), html.Button("as tuned", id="as-tuned", className="small")]),
        html.P(found.said, id="loop-said", className="fault" if found.said else "hidden", role="status"),
        side_by_side([cards[name] for name in ("step", "nyquist") if name in cards]),
        *([cards["bode"]] if "bode" in cards else []),
        cards["loop"],
        command_card(f"headway analyse {shlex.quote(str(view.path / 'controller.json'))} {shlex.quote(str(view.path / 'plant.json'))} --delay {delay}"),
    ]  # fmt: skip


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
        Figures in the light palette, their sentences, and what could not be done.
    """
    record, delay = view.record(), int(places.get(DELAY.name, DELAY.place))
    candidate, said = moved(record.candidate, knobs_of(record.candidate, record.limits), places)
    figures: dict[str, Any] = {}
    sentences: dict[str, str] = {}
    analysed = _weakest(view, candidate.law, delay)
    if analysed is not None:
        margins, curved, answer = analysed
        if answer is not None:
            figures["step"] = step_response(*answer)
            sentences["step"] = response_sentence(*answer)
        else:
            figures["step"] = step_response(np.zeros(1), np.zeros(1), np.zeros(1))
            sentences["step"] = "The loop is unstable here: it has no answer to draw."
        figures["nyquist"], figures["bode"] = (
            nyquist(curved.real, curved.imaginary),
            bode(curved.omega, curved.magnitude_db, curved.phase_deg, margins),
        )
        sentences["nyquist"] = margin_text(margins)
        sentences["bode"] = (
            "The opened loop at the operating point with the least gain margin; what is left at 0 dB and at -180 degrees is the margin."
        )
    figures["loop"], sentences["loop"] = _closed(view, candidate)
    return Looked(figures, sentences, said)


def _weakest(view: View, law: Controller, delay: int) -> tuple[dict[str, Any], Curve, Response | None] | None:
    """Margins, curves and answer where the loop has least gain margin."""
    if not has_loop(law):
        return None
    record, identified = view.record(), view.identified()
    budget_s = min(t.budget_s for t in record.targets)

    def gather() -> Case:
        law_as_tuned, spread = record.candidate.law, (identified.interval, identified.noise)
        return case_of(law_as_tuned, identified.plant, identified.hull, record.limits, budget_s, *spread)

    points = remembered(("points", *view.stamp("fit", "tune")), gather).points
    ratios = [gain_ratio(law, identified.plant, p) for p in points]
    loops = [loop for ratio in ratios if (loop := loop_of(law, ratio, delay, identified.noise)) is not None]
    if not any(np.any(loop.numerator) for loop in loops):
        return None
    margins = [loop_margins(*loop) for loop in loops]
    at = min(range(len(loops)), key=lambda k: margins[k].gain_margin_db)
    finite = {name: value if np.isfinite(value) else None for name, value in margins[at]._asdict().items()}
    direct = None if isinstance(law, PILaw) else ratios[at]
    return finite, curve(loops[at]), response(*loops[at], delay, direct=direct)


def _closed(view: View, candidate: Candidate) -> tuple[Any, str]:
    """The closed loop on a short held-out load."""
    record, identified = view.record(), view.identified()
    drawn = view.drawn()[0]
    out = simulate(identified, candidate, drawn, record.targets, record.limits, record_steps=STEPS)
    columns = dict(zip(LOG_COLUMNS, np.asarray(out.log).T, strict=True))
    timeline = {
        name: columns[name].tolist()
        for name in ("end_s", "step_time_s", "token_budget", "running", "waiting", "binding")
        if name in columns
    }
    budget_s = min(t.budget_s for t in record.targets)
    setpoint_s = (1 - candidate.law.setpoint_margin) * budget_s
    on, owed = out.on_time.sum(), out.owed.sum()
    late = float(np.mean(columns["step_time_s"] > budget_s))
    text = f"On a held-out load of {len(drawn.workload)} requests: {percent(on / max(owed, 1e-9))} of the owed tokens on time, "
    text += f"{percent(late)} of the steps shown over the budget of {time(budget_s)}. "
    return closed_loop(timeline, budget_s=budget_s, setpoint_s=setpoint_s), text + loop_sentence(timeline, {}, budget_s, setpoint_s)
