"""The sections of the report in order: each takes what was found and gives HTML, or says which command makes what it lacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headway.report.asked import TARGET_FILE
from headway.report.cautions import cautions
from headway.report.commands import beyond_options, commands_of, target_file
from headway.report.data import Findings, dig
from headway.report.goodput_panels import batch_panels, beside_parts, load_panels, tail_panels
from headway.report.headline import about, cards, verdict
from headway.report.identified import binding_table, coefficient_table, diagnostic_table, ladder_table
from headway.report.loop_panels import certificate_sentence, loop_panels
from headway.report.opened import Opened, opened
from headway.report.panels import (
    NO_TRACE,
    NOT_TUNED,
    NOT_VALIDATED,
    Lack,
    Panel,
    Shown,
    fit_panels,
    margin_panels,
    order_panels,
    trace_panels,
    validated_panels,
    worded,
)
from headway.report.recorded import set_aside
from headway.report.schedule_panels import of_constants, schedule_parts
from headway.report.scheduled import names_of
from headway.report.tables import aside_table, folded, gain_table, provenance_table, settings_table, side_table
from headway.report.tails import side_notes
from headway.report.text import escape, sentence

SEE_TRACE = '<p class="missing">Its figures need the trace: see <a href="#trace">section 1</a>.</p>'
"""What later sections say where the first has said that there is no trace, and what to do."""

NOTES = 6
"""Warnings that are shown behind the grave ones before the others are folded."""


def drawn(panel: Panel) -> str:
    """A figure with the sentence that says what to see.

    Args:
        panel: figure, name and sentence.

    Returns:
        HTML; the page's script draws it.
    """
    data = str(panel.figure.to_json()).replace("<", "\\u003c")
    height = panel.figure.layout.height
    plot = f'<div class="plot" style="height:{height}px"></div><script type="application/json">{data}</script>'
    return f'<figure id="figure-{panel.name}"><figcaption>{escape(panel.sentence)}</figcaption>{plot}</figure>'


def lacking(found: Findings, lack: Lack) -> str:
    """What to say where there is nothing to draw.

    Args:
        found: the run.
        lack: what is not there, and which stage makes it.

    Returns:
        HTML with the stage's command.
    """
    lack = worded(lack, found)
    command = lack.command(commands_of(found))
    how = f" {lack.how}: <code>{escape(command)}</code>" if command else ""
    return f'<p class="missing">{escape(lack.said)}{how}</p>'


def panels(found: Findings, shown: Sequence[Shown | str]) -> str:
    """Figures one below the other, what is lacking among them, and what is HTML already.

    Args:
        found: the run.
        shown: panels, tables, paragraphs.

    Returns:
        HTML.
    """
    return "".join(one if isinstance(one, str) else drawn(one) if isinstance(one, Panel) else lacking(found, one) for one in shown)


def beside_each_other(found: Findings, shown: Sequence[Shown]) -> str:
    """Figures beside each other where there is room.

    Args:
        found: the run.
        shown: panels.

    Returns:
        HTML; empty without any.
    """
    return f'<div class="pair">{panels(found, shown)}</div>' if shown else ""


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


def trace_section(found: Findings) -> str:
    """What was recorded, and what was set aside and why.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    rows = found.recorded
    aside = aside_table(set_aside(rows)) if rows is not None else ""
    return panels(found, trace_panels(rows, found.hull)) + aside


def plant_section(found: Findings) -> str:
    """Measured against predicted step time, by regime; the structure, its coefficients, and where a step's time goes.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    sides = (ladder_table(found.plant) + binding_table(found.plant), coefficient_table(found.plant))
    tables = f'<div class="pair">{"".join(f"<div>{side}</div>" for side in sides if side)}</div>'
    shown = fit_panels(found)
    return (SEE_TRACE if NO_TRACE in shown else beside_each_other(found, shown)) + tables


def residual_section(found: Findings) -> str:
    """Residuals over the trace and as distributions, and what the diagnostics say of them.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    shown = order_panels(found)
    first = SEE_TRACE if NO_TRACE in shown else panels(found, shown)
    return first + beside_each_other(found, margin_panels(found)) + diagnostic_table(found.plant)


def load_section(found: Findings) -> str:
    """Attainment and goodput against load, and against the batch.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    about = "<p>Predicted on held-out seeds; each contender keeps the settings that were chosen for the tuned load.</p>"
    shown = load_panels(found)
    html = (about if any(isinstance(one, Panel) for one in shown) else "") + beside_each_other(found, shown)
    if found.controller is None:
        return html
    known = _opened(found)
    return html + (panels(found, batch_panels(known)) if isinstance(known, Opened) else lacking(found, known))


def _opened(found: Findings) -> Opened | Lack:
    try:
        return opened(found.plant, found.controller or {})
    except ValueError as error:
        return Lack(sentence(f"What has to be computed cannot be: {error}"), "tune")


def beside_section(found: Findings) -> str:
    """What one number hides: the bound, what parts bring, the knees, first tokens against gaps, the lead under plant error.

    Args:
        found: the run.

    Returns:
        HTML; what was not looked at is named with the command that does.
    """
    if found.controller is None:
        return lacking(found, NOT_TUNED)
    return panels(found, beside_parts(found))


def tail_section(found: Findings) -> str:
    """TTFT and ITL distributions, measured and predicted, against the target.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    return beside_each_other(found, tail_panels(found))


def margin_section(found: Findings) -> str:
    """The loop before it runs: the certificate, the answer to a step, the margins, and the loop on a simulated load.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    if found.controller is None:
        return lacking(found, NOT_TUNED)
    known = _opened(found)
    if isinstance(known, Lack):
        return lacking(found, known)
    said = " ".join(filter(None, (certificate_sentence(found.controller), of_constants(found.controller))))
    step, *others = loop_panels(known)
    pair, rest = ([step, others[0]], others[1:]) if isinstance(step, Panel) else ([step], others)
    return (f"<p>{escape(said)}</p>" if said else "") + beside_each_other(found, pair) + panels(found, rest)


def loop_section(found: Findings) -> str:
    """The closed loop over time.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    paired = "".join(f"<p>{escape(sentence(text))}</p>" for text in dig(found.validation, "drift", "said") or [] if isinstance(text, str))
    return panels(found, validated_panels(found)) + paired


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
        places |= {"best static": ("best_static",), "its prediction": ("predicted", "best_static")}
        engine = found.validation.get("engine")
        groups[f"validated on engine {engine}"] = {heading: dig(found.validation, *place) for heading, place in places.items()}
    names = {"tuned": "heldout", "best static": "best_static", "static + timeout": "best_timeout", "untuned": "untuned"}
    sides = {heading: dig(tuning, key) for heading, key in names.items() if dig(tuning, key, "figures")}
    if sides:
        groups["tuning, held-out seeds, predicted"] = {heading: side["figures"] for heading, side in sides.items()}
    html = lacking(found, NOT_VALIDATED if found.controller else NOT_TUNED) if found.validation is None else ""
    html += side_table(groups, "What became of the promise") + side_notes(groups) if groups else ""
    return html + (settings_table(sides, names_of(found.controller)) if sides else "")


def gain_section(found: Findings) -> str:
    """The controller's gains, those that follow the load as figures before the table of all.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    if found.controller is None:
        return lacking(found, NOT_TUNED)
    return panels(found, schedule_parts(found)) + gain_table(found.controller)


def source_section(found: Findings) -> str:
    """How to make all this again.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    made, more, file = commands_of(found), beyond_options(found.manifest), target_file(found)
    stages = [made[k] for k in ("fit", "tune", "validate", "report")]
    lines = [*([f"# {more}"] if more else []), made["run"], "", "# or stage by stage", *stages]
    if not found.manifest.get("request"):  # made stage by stage: a whole run has not all of their options
        lines = ["# stage by stage, as its files have it", *stages]
        lines = [*([f"# {TARGET_FILE}", *file, ""] if file else []), *lines]
    return f'<pre tabindex="0">{escape(chr(10).join(lines))}</pre>{provenance_table(found)}'


SECTIONS: dict[str, tuple[str, Callable[[Findings], str]]] = {
    key: (f"{number} {title}", body)
    for number, (key, title, body) in enumerate(
        (
            ("trace", "The trace", trace_section),
            ("plant", "The plant", plant_section),
            ("residuals", "Residuals and diagnostics", residual_section),
            ("margins", "The loop before it runs", margin_section),
            ("load", "Goodput against load and against the batch", load_section),
            ("beside", "Bound, parts, knees, trade-offs, plant error", beside_section),
            ("tails", "TTFT and ITL to the far tail", tail_section),
            ("loop", "The closed loop over time", loop_section),
            ("sides", "Figures side by side", side_section),
            ("gains", "The controller", gain_section),
            ("sources", "To reproduce", source_section),
        ),
        start=1,
    )
}
"""Sections after the headline and the warnings, by anchor: title, and what makes the body."""
