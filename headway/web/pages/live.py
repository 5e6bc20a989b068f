"""Live: a trace file that is still being written: step time against setpoint and budget, the margin found, the late rate."""

from __future__ import annotations

import shlex
from typing import Any

from dash import dcc, html

from headway.web.asked import Asked
from headway.web.cards import chosen_link, command_card, figure_card, note
from headway.web.followed import Followed, follow, followed_figure, followed_sentence, holds_steps
from headway.web.picks import search_of
from headway.web.root import Root
from headway.web.views import View

TITLE = "Live"
EVERY_MS = 1000
MOST_LOOKED_AT = 200
MOST_SHOWN = 12
SUFFIXES = (".jsonl", ".csv")


def page(asked: Asked) -> list[Any]:
    """The page.

    Args:
        asked: the run, and what the URL says.

    Returns:
        Components.
    """
    view, picks, dark, root = asked.view, asked.picks, asked.dark, asked.root
    files = followable(root, view.name)
    if not files:
        return [
            note(
                f"No trace is being written below {root.path.name}: a server's trace (.jsonl or .csv) put there appears here as it grows."
            ),
            command_card(f"headway record --engine vllm --model MODEL --out {shlex.quote(str(root.path / 'live'))}"),
        ]
    name = picks["file"] if picks.get("file") in files else files[0]
    links = [chosen_link(f, f == name, f"/live{search_of({'run': view.name, 'file': f})}") for f in files[:MOST_SHOWN]]
    return [
        html.Div([html.Span("trace", className="soft"), *links], className="choices"),
        dcc.Store(id="live-file", data=name),
        html.Div(body(root, view, name, dark), id="live-body"),
        dcc.Interval(id="live-tick", interval=EVERY_MS),
        command_card(f"headway fit {shlex.quote(str(root.path / name))} --out plant.json"),
    ]


def body(root: Root, view: View, name: str, dark: bool) -> list[Any]:
    """What is renewed as the file grows.

    Args:
        root: where the runs are.
        view: the run whose budget the steps are held against.
        name: of the file, one of `followable`.
        dark: whether the page is dark.

    Returns:
        Components.
    """
    if name not in followable(root):
        return [note("That trace has gone.", "fault")]
    budget_s = min(t.budget_s for t in view.record().targets) if view.has("tune") else None
    found: Followed = follow(root.path / name)
    if found.fault or not len(found.step_time_s):
        return [note(found.fault or "No step has been written yet.")]
    return [figure_card("live", followed_figure(found, budget_s), followed_sentence(found, budget_s), dark=dark)]


def followable(root: Root, run: str = "") -> list[str]:
    """Trace files below the root: those of the run first, and among them the one that changed last.

    Args:
        root: where the runs are.
        run: whose files come first, relative to the root; "" for none.

    Returns:
        Names relative to it, of files that hold steps; links that lead out of it are left out.
    """
    base = root.path.resolve()
    found: list[tuple[bool, float, str]] = []
    for pattern in ("*", "*/*", "*/*/*"):
        inside = [p for p in base.glob(pattern) if p.suffix in SUFFIXES and p.is_file() and p.resolve().is_relative_to(base)]
        names = [(path, str(path.relative_to(base))) for path in inside]
        found += [(bool(run) and name.startswith(f"{run}/"), path.stat().st_mtime, name) for path, name in names]
    some = [name for _, _, name in sorted(found, reverse=True)[:MOST_LOOKED_AT]]
    return [name for name in some if holds_steps(base / name)]
