"""The report: one HTML file that holds everything it needs, plotly.js included, and asks the network for nothing."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from plotly.offline import get_plotlyjs

from headway.experiments.run import STAGES
from headway.experiments.whole_files import write_whole
from headway.report.data import Findings, collect
from headway.report.sections import SECTIONS, opening
from headway.report.text import escape
from headway.report.theme import swaps, variables


def write_report(run: Path) -> Path:
    """Write report.html of a run folder, whole or not at all.

    Args:
        run: the folder; it holds at least a plant.

    Returns:
        Path of the report.

    Raises:
        ValueError: there is no plant, or a file of the run cannot be read; the message names it.
    """
    path = Path(run) / STAGES["report"]
    write_whole(path, page(collect(Path(run))))
    return path


def page(found: Findings) -> str:
    """The report as HTML. The same findings give the same bytes.

    Args:
        found: what a run folder holds.

    Returns:
        A document without a reference to anything outside it.
    """
    name = escape(found.run.resolve().name)
    contents = "".join(f'<li><a href="#{key}">{escape(title)}</a></li>' for key, (title, _) in SECTIONS.items())
    sections = [f'<section id="{key}"><h2>{escape(title)}</h2>{body(found)}</section>' for key, (title, body) in SECTIONS.items()]
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">',
            f"<title>Headway report: {name}</title>",
            f"<style>\n{variables()}{_asset('report.css')}</style>\n</head>\n<body>\n<main>",
            f'<header><p class="brand">Headway report</p><h1>{name}</h1></header>',
            opening(found),
            f'<nav aria-label="Contents"><ol>{contents}</ol></nav>',
            *sections,
            "<noscript><p>The figures are drawn by a script in this file, and scripts are switched off; texts and tables are complete.</p></noscript>",
            "</main>",
            f'<script id="swaps" type="application/json">{json.dumps(swaps())}</script>',
            f"<script>{get_plotlyjs()}</script>\n<script>\n{_asset('report.js')}</script>\n</body>\n</html>\n",
        ]
    )


def _asset(name: str) -> str:
    return (resources.files("headway.report") / "assets" / name).read_text(encoding="utf-8")
