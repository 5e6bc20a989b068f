"""The sections of the report in order: each takes what was found and gives HTML, or says which command makes what it lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from headway.report.cautions import cautions
from headway.report.commands import beyond_options, commands
from headway.report.data import REGIMES, Findings, dig, distribution_of, timeline_of
from headway.report.figures import (
    CONTENDERS,
    Curve,
    against_load,
    closed_loop,
    measured_against_predicted,
    residual_distribution,
    residuals_in_order,
    tail,
)
from headway.report.headline import about, cards, verdict
from headway.report.identified import binding_table, coefficient_table, diagnostic_table, ladder_table
from headway.report.sentences import (
    attainment_sentence,
    fit_sentence,
    goodput_sentence,
    itl_sentence,
    loop_sentence,
    margin_sentence,
    order_sentence,
    ttft_sentence,
)
from headway.report.tables import folded, gain_table, provenance_table, settings_table, side_table
from headway.report.tails import side_notes
from headway.report.text import count, escape
from headway.report.trade import error_table, fired_table, front_figure, knee_table, ladder_figure

WINDOW = 400
"""Steps that the closed loop opens with."""

NOTES = 6
"""Warnings that are shown behind the grave ones before the others are folded."""

FILES = {"trace": "trace.parquet", "tune": "controller.json", "validate": "validation.json"}


def shown(figure: go.Figure, sentence: str) -> str:
    """A figure with the sentence that says what to see.

    Args:
        figure: in the light palette.
        sentence: plain text.

    Returns:
        HTML; the page's script draws it.
    """
    data = str(figure.to_json()).replace("<", "\\u003c")
    plot = f'<div class="plot" style="height:{figure.layout.height}px"></div><script type="application/json">{data}</script>'
    return f"<figure><figcaption>{escape(sentence)}</figcaption>{plot}</figure>"


def lacking(found: Findings, stage: str, what: str = "") -> str:
    """What to say where a stage has not run.

    Args:
        found: the run.
        stage: a key of FILES.
        what: is missing, if not the stage's whole file.

    Returns:
        HTML with the command.
    """
    said = what or f"{FILES[stage]} is not there yet."
    return f'<p class="missing">{escape(said)} This makes it: <code>{escape(commands(found.run, found.manifest)[stage])}</code></p>'


def opening(found: Findings) -> str:
    """The verdict, the three numbers that matter, and what must not be overlooked.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    word, sentence, tone = verdict(found)
    boxes = "".join(
        f'<div class="card"><h3>{escape(c.title)}</h3><p class="value">{escape(c.value)}</p>'
        + "".join(f"<p>{escape(n)}</p>" for n in c.notes)
        + "</div>"
        for c in cards(found)
    )
    listed = cautions(found)
    shown = sum(grave for grave, _ in listed) + NOTES
    warned = _cautions(listed[:shown]) if listed else "<p>None.</p>"
    warned += folded(f"{len(listed) - shown} more", _cautions(listed[shown:])) if len(listed) > shown else ""
    served = f'<p class="about">{escape(about(found))}</p>' if about(found) else ""
    said = f'<p class="verdict"><strong>{escape(word)}</strong> {escape(sentence)}</p>'
    head = f'{served}<section id="headline" class="{tone}">{said}<div class="cards">{boxes}</div></section>'
    return f'{head}<section id="warnings"><h2>Warnings</h2>{warned}</section>'


def _cautions(listed: Sequence[tuple[bool, str]]) -> str:
    items = "".join(f'<li class="{"grave" if grave else "note"}">{escape(text)}</li>' for grave, text in listed)
    return f'<ul class="cautions">{items}</ul>'


def plant_section(found: Findings) -> str:
    """Measured against predicted step time, by regime; the structure, its coefficients, and where a step's time goes.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    sides = (ladder_table(found.plant) + binding_table(found.plant), coefficient_table(found.plant))
    tables = f'<div class="pair">{"".join(f"<div>{side}</div>" for side in sides if side)}</div>'
    steps = found.steps
    if steps is None:
        return lacking(found, "trace") + tables
    parts = []
    for regime in REGIMES:
        mine, band = steps.of(regime), found.band(regime)
        said = fit_sentence(steps, regime, band, dig(found.plant, "heldout", f"mape_{regime}"))
        if mine.any():
            figure = measured_against_predicted(steps.predicted_s[mine], steps.measured_s[mine], regime=regime, band=band)
            parts.append(shown(figure, said))
        else:
            parts.append(f"<p>{escape(said)}</p>")
    return f'<div class="pair">{"".join(parts)}</div>{tables}'


def residual_section(found: Findings) -> str:
    """Residuals over the trace and as distributions, and what the diagnostics say of them.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    steps, margins = found.steps, dig(found.plant, "margin") or {}
    if steps is None or len(steps.place) == 0:
        return lacking(found, "trace") + diagnostic_table(found.plant)
    whole = shown(residuals_in_order(steps.place, steps.residual, steps.mixed), order_sentence(steps))
    parts = []
    for regime in REGIMES:
        residual, margin = steps.residual[steps.of(regime)], margins.get(regime)
        ends = dig(found.plant, "margin_ci95", regime)
        said = margin_sentence(residual, regime, margin, dig(found.plant, "training", "epsilon"), ends)
        if len(residual):
            parts.append(shown(residual_distribution(residual, regime=regime, margin=margin, band=found.band(regime)), said))
        else:
            parts.append(f"<p>{escape(said)}</p>")
    return f'{whole}<div class="pair">{"".join(parts)}</div>{diagnostic_table(found.plant)}'


def load_section(found: Findings) -> str:
    """Attainment and goodput against load.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    if found.controller is None:
        return lacking(found, "tune")
    curve = dig(found.controller, "tuning", "load_curve")
    if not dig(curve, "rate_rps") or None in curve["rate_rps"]:
        return lacking(found, "tune", "The controller was tuned without a look at other loads.")
    epsilon = found.epsilon if found.epsilon is not None else 0.01
    marks = {"tuned_rps": found.tuned_rps, "hull_rps": dig(curve, "hull_rps")}
    first = against_load(curve, measure="attainment", epsilon=epsilon, **marks)
    second = against_load(curve, measure="goodput_tps", **marks)
    about = "Predicted on held-out seeds; each contender keeps the settings that were chosen for the tuned load."
    pair = shown(first, attainment_sentence(curve, epsilon)) + shown(second, goodput_sentence(curve, found.tuned_rps))
    return f'<p>{escape(about)}</p><div class="pair">{pair}</div>'


def beside_section(found: Findings) -> str:
    """What one number hides: the knees, first tokens against gaps, the lead under plant error, what never fired.

    Args:
        found: the run.

    Returns:
        HTML; what was not looked at is left out.
    """
    if found.controller is None:
        return lacking(found, "tune")
    knees, front, error, acted = (dig(found.controller, "tuning", key) for key in ("knees", "pareto", "plant_error", "fired"))
    parts = []
    if knees:
        parts.append(knee_table(knees, {name: look[0] for name, look in CONTENDERS.items()} | {"any_static": "any static, at each load"}))
    if front:
        parts.append(shown(front_figure(front), str(front.get("sentence"))))
    if error:
        parts.append(shown(ladder_figure(error), str(error.get("sentence"))) + error_table(error))
    if acted:
        parts.append(f"<p>{escape(_sentence(str(acted.get('sentence'))))}</p>{fired_table(acted)}")
    return "".join(parts) or lacking(found, "tune", "The controller was tuned without a look at what lies beside.")


def tail_section(found: Findings) -> str:
    """TTFT and ITL distributions, measured and predicted, against the target.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    data = found.validation
    if data is None:
        return lacking(found, "validate")
    parts = []
    for name, key in (("TTFT", "ttft_s"), ("ITL", "itl_s")):
        curves = _curves(data, key)
        targets = {str(t.get("name")): float(t[key]) for t in found.targets if t.get(key)}
        said = ttft_sentence(data, list(targets.values())) if name == "TTFT" else itl_sentence(data, max(targets.values(), default=None))
        parts.append(
            shown(tail(curves, name=name, targets_s=targets), said) if curves else lacking(found, "validate", f"No {name} was measured.")
        )
    return f'<div class="pair">{"".join(parts)}</div>'


def _curves(data: Mapping[str, Any], key: str) -> list[Curve]:
    found = []
    for contender in ("best_static", "controller"):
        for predicted, side in ((False, dig(data, contender)), (True, dig(data, "predicted", contender))):
            share, value = distribution_of(side, key)
            if share:
                found.append(Curve(contender, share, value, predicted))
    return found


def loop_section(found: Findings) -> str:
    """The closed loop over time.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    if found.validation is None:
        return lacking(found, "validate")
    timeline, other = (timeline_of(dig(found.validation, side)) for side in ("controller", "best_static"))
    if not timeline:
        return lacking(found, "validate", "The validation recorded no steps.")
    budget_s, setpoint_s = (dig(found.controller, k) for k in ("budget_s", "setpoint_s"))
    first, last, why = _window(timeline)
    paired = "".join(f"<p>{escape(_sentence(text))}</p>" for text in dig(found.validation, "drift", "said") or [] if isinstance(text, str))
    said = loop_sentence(timeline, other, budget_s, setpoint_s) + f" It opens with steps {count(first + 1)} to {count(last + 1)}, {why}."
    return shown(closed_loop(timeline, budget_s=budget_s, setpoint_s=setpoint_s, other=other, window=(first, last)), said) + paired


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _window(timeline: Mapping[str, Any]) -> tuple[int, int, str]:
    """The stretch to open with: the one in which the loop had most to do."""
    n = len(timeline["end_s"])
    bound = np.asarray(timeline.get("binding") or np.zeros(n), float) == 3
    if n <= WINDOW:
        return 0, n - 1, "all there are"
    if not bound.any():
        return 0, WINDOW - 1, "the first ones"
    total = np.concatenate([[0], np.cumsum(bound)])
    first = int(np.argmax(total[WINDOW:] - total[:-WINDOW]))
    return first, first + WINDOW - 1, "the stretch in which the token budget was the limit most often"


def side_section(found: Findings) -> str:
    """Both sides' figures: validated, and as tuning predicted them on held-out seeds.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    groups, tuning = {}, dig(found.controller, "tuning")
    if found.validation is not None:
        places = {"controller": ("controller",), "predicted": ("predicted", "controller")}
        places |= {"best static": ("best_static",), "predicted ": ("predicted", "best_static")}
        engine = found.validation.get("engine")
        groups[f"validated on engine {engine}"] = {heading: dig(found.validation, *place) for heading, place in places.items()}
    names = {"tuned": "heldout", "best static": "best_static", "static + timeout": "best_timeout", "untuned": "untuned"}
    sides = {heading: dig(tuning, key) for heading, key in names.items() if dig(tuning, key, "figures")}
    if sides:
        groups["tuning, held-out seeds, predicted"] = {heading: side["figures"] for heading, side in sides.items()}
    html = lacking(found, "validate" if found.controller else "tune") if found.validation is None else ""
    html += side_table(groups, "What became of the promise") + side_notes(groups) if groups else ""
    return html + (settings_table(sides) if sides else "")


def gain_section(found: Findings) -> str:
    """The controller's gains.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    return lacking(found, "tune") if found.controller is None else gain_table(found.controller)


def source_section(found: Findings) -> str:
    """How to make all this again.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    made, more = commands(found.run, found.manifest), beyond_options(found.manifest)
    lines = [
        *([f"# {more}"] if more else []),
        made["run"],
        "",
        "# or stage by stage",
        *(made[k] for k in ("fit", "tune", "validate", "report")),
    ]
    return f'<pre tabindex="0">{escape(chr(10).join(lines))}</pre>{provenance_table(found)}'


SECTIONS: dict[str, tuple[str, Callable[[Findings], str]]] = {
    "plant": ("1 The plant", plant_section),
    "residuals": ("2 Residuals and diagnostics", residual_section),
    "load": ("3 Attainment and goodput against load", load_section),
    "beside": ("4 Knees, trade-offs, plant error, parts", beside_section),
    "tails": ("5 TTFT and ITL to the far tail", tail_section),
    "loop": ("6 The closed loop over time", loop_section),
    "sides": ("7 Figures side by side", side_section),
    "gains": ("8 The controller", gain_section),
    "sources": ("9 To reproduce", source_section),
}
"""Sections after the headline and the warnings, by anchor: title, and what makes the body."""
