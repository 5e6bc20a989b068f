"""Export: what would be written for each engine, with the certificate, or why it is refused."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import Any

from dash import html

from headway.engines import EXPORTERS
from headway.engines.certified import REFUSED, certificate_of
from headway.pipeline import export_stage
from headway.report.schedule_panels import carried_sentence
from headway.report.tables import gain_table
from headway.report.text import count
from headway.web.asked import Asked
from headway.web.cards import chosen_link, command_card, note
from headway.web.markup import components
from headway.web.picks import search_of
from headway.web.views import View, remembered

TITLE = "Export"
OVERRIDE = "against the certificate: writes it all the same, and says so in what is written"
MOST_SHOWN = 20_000
"""Characters of one file that the page shows; the command writes all of it."""


def page(asked: Asked) -> list[Any]:
    """The page.

    Args:
        asked: the run, and what the URL says.

    Returns:
        Components.
    """
    view, picks = asked.view, asked.picks
    if not view.has("tune"):
        return [note("This run has no controller yet; there is nothing to export.")]
    kinds = list(EXPORTERS)
    kind = picks["engine"] if picks.get("engine") in kinds else kinds[0]
    certificate = remembered(("certificate", *view.stamp("tune")), lambda: certificate_of(view.record()))
    refused = certificate["verdict"] == REFUSED
    files, warnings, why = remembered(("export", kind, *view.stamp("tune")), lambda: written(view, kind))
    verdict = html.P([html.Strong(certificate["verdict"]), f" {certificate['reason']}"], className="verdict")
    body: list[Any] = [
        html.Section(verdict, className="bad" if refused else "good"),
        html.Div(
            [
                html.Span("for", className="soft"),
                *(chosen_link(k, k == kind, f"/export{search_of({'run': view.name, 'engine': k})}") for k in kinds),
            ],
            className="choices",
        ),
    ]
    carried = carried_sentence(view.findings().controller)
    body += [note(carried)] if carried else []
    body += [html.P(text, className="missing") for text in warnings]
    if why and not (refused and certificate["reason"] in why):  # the verdict above has said it
        body.append(note(f"{REFUSED.capitalize()}: {why.removeprefix(f'{REFUSED}: ')}", "fault"))
    for name, text in files.items():
        shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}\n... {count(len(text) - MOST_SHOWN)} more characters"
        summary = html.Summary([html.Code(name), html.Span(f" {count(len(text))} characters", className="soft")])
        body.append(html.Details([summary, html.Pre(shown, tabIndex=0)], open=name == "README.md"))
    body.append(html.Section([html.H2("The controller"), *components(gain_table(view.findings().controller or {}))]))
    controller = shlex.quote(str(view.path / "controller.json"))
    command = f"headway export {controller} --engine {kind} --out export-{kind}"
    return [*body, command_card(command), *([command_card(f"{command} --uncertified", label=OVERRIDE)] if refused else [])]


def written(view: View, kind: str) -> tuple[dict[str, str], list[str], str]:
    """What an export would write.

    Args:
        view: the run.
        kind: a key of EXPORTERS.

    Returns:
        (text by file, warnings, why it is refused; empty if it is not).
    """
    with tempfile.TemporaryDirectory() as place:
        try:
            data = export_stage(view.record(), kind, Path(place) / "out")
        except (ValueError, RuntimeError) as refusal:
            return {}, [], str(refusal)
        folder = Path(data["folder"])
        order = sorted(data["files"], key=lambda name: (name != "README.md", name))
        texts = {name: (folder / name).read_text(encoding="utf-8", errors="replace") for name in order if (folder / name).is_file()}
        return texts, list(data["warnings"]), ""
