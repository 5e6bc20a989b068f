"""What every page is made of: a figure with its sentence, its command and its downloads; a note; a command to copy."""

from __future__ import annotations

import csv
import html as escapes
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from dash import dcc, html

from headway.report.commands import commands_of
from headway.report.panels import Panel, Shown, worded
from headway.report.text import held
from headway.report.theme import swaps
from headway.web.markup import components
from headway.web.views import View

GRAPH, CSV_BUTTON, PNG_BUTTON, CSV_FILE = "figure", "csv-button", "png-button", "csv-file"
"""Types of the identifiers that belong together: one name, one figure and its downloads."""

COMMAND_TEXT, COMMAND_COPY = "command-text", "command-copy"
"""Types of the identifiers of a command that changes with the page, and of the button that copies it."""


def in_palette(figure: go.Figure, dark: bool) -> go.Figure:
    """A figure in the palette that the reader prefers.

    Args:
        figure: in the light one.
        dark: whether the page is dark.

    Returns:
        The figure, or its dark twin: colours are swapped by exact code.
    """
    if not dark:
        return figure
    text = str(figure.to_json())
    for light, other in swaps().items():
        text = text.replace(light, other)
    return go.Figure(json.loads(text))


def figure_card(name: str, figure: go.Figure, sentence: str, *, dark: bool = False) -> html.Figure:
    """A figure, the sentence that says what to see, and its data to take away.

    Args:
        name: identifies it on the page and names its files.
        figure: in the light palette.
        sentence: plain text.
        dark: whether the page is dark.

    Returns:
        Component.
    """
    place = {"type": GRAPH, "name": name}
    graph = dcc.Graph(
        id=place,
        figure=in_palette(figure, dark),
        config={"displaylogo": False, "responsive": True, "toImageButtonOptions": {"filename": f"headway-{name}", "scale": 2}},
        style={"height": f"{figure.layout.height or 360}px"},
        className="plot",
    )
    buttons = html.Div(
        [
            html.Button("PNG", id={"type": PNG_BUTTON, "name": name}, className="small", title="save the figure as a picture"),
            html.Button("CSV", id={"type": CSV_BUTTON, "name": name}, className="small", title="save the figure's data as a table"),
            dcc.Download(id={"type": CSV_FILE, "name": name}),
        ],
        className="downloads",
    )
    caption = html.Figcaption(held(sentence), id={"type": "sentence", "name": name})
    return html.Figure([caption, labelled(html.Div(graph, role="group"), f"figure: {sentence}"), buttons])


def labelled(component: Any, text: str) -> Any:
    """A component with a name for readers that see none.

    Args:
        component: changed in place.
        text: the name.

    Returns:
        The component.
    """
    setattr(component, "aria-label", text)
    return component


def shown_card(view: View, one: Shown, *, dark: bool = False) -> Any:
    """A panel of the report on a page of the workbench.

    Args:
        view: the run.
        one: the panel, or what is lacking.
        dark: whether the page is dark.

    Returns:
        Component.
    """
    if isinstance(one, Panel):
        return figure_card(one.name, one.figure, one.sentence, dark=dark)
    one = worded(one, view.findings())
    command = one.command(commands_of(view.findings()))
    how = [f" {one.how}: ", html.Code(words_of(command))] if command else []
    return html.P([one.said, *how], className="missing", role="note")


def shown_cards(view: View, shown: Sequence[Shown | str], *, dark: bool = False) -> list[Any]:
    """Panels of the report on a page of the workbench.

    Args:
        view: the run.
        shown: panels, what is lacking among them, and the report's HTML.
        dark: whether the page is dark.

    Returns:
        Components.
    """
    parts = [components(one) if isinstance(one, str) else [shown_card(view, one, dark=dark)] for one in shown]
    return [part for row in parts for part in row]


def command_card(command: str, name: str | None = None, *, label: str = "the same at the command line") -> html.Div:
    """The command that does what the page shows.

    Args:
        command: a line for a shell.
        name: identifies it on a page where it changes; None where it does not.
        label: what it does, in words.

    Returns:
        Component with a button that copies it.
    """
    code, copied = html.Code(words_of(command)), dcc.Clipboard(content=command, title="copy the command", className="copy")
    if name is not None:
        for component, kind in ((code, COMMAND_TEXT), (copied, COMMAND_COPY)):
            setattr(component, "id", {"type": kind, "name": name})  # noqa: B010  # dash takes no None, and pyright sees no attribute
    return html.Div([html.Span(label, className="soft"), code, copied], className="command")


def words_of(command: str) -> list[Any]:
    """A command whose lines break between its words, not after the hyphens of an option.

    Args:
        command: a line for a shell.

    Returns:
        Components and spaces.
    """
    words = [html.Span(word, className="word") for word in command.split(" ")]
    return [part for word in words for part in (word, " ")][:-1]


def note(text: str, tone: str = "missing") -> html.P:
    """A sentence that stands out.

    Args:
        text: plain.
        tone: "missing" for what is not there, "fault" for what went wrong.

    Returns:
        Component.
    """
    return html.P(text, className=tone, role="alert" if tone == "fault" else "note")


def chosen_link(label: str, chosen: bool, address: str) -> dcc.Link:
    """One of several choices.

    Args:
        label: for people.
        chosen: whether it is the one shown.
        address: of the page with this choice.

    Returns:
        Component.
    """
    return dcc.Link(label, href=address, className="choice chosen" if chosen else "choice")


def side_by_side(parts: Sequence[Any]) -> html.Div:
    """Components beside each other where there is room.

    Args:
        parts: components.

    Returns:
        Component.
    """
    return html.Div(list(parts), className="pair")


def figure_table(figure: Mapping[str, Any]) -> str:
    """The data of a figure as CSV: one row a point, with the name of its curve.

    Args:
        figure: as the browser holds it.

    Returns:
        CSV with the columns curve, x, y and, where there is one, z. Where curves go by several y axes, each is named with its own.
    """
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    layout, traces = figure.get("layout") or {}, figure.get("data") or []
    several = len({trace.get("yaxis") or "y" for trace in traces}) > 1
    behind = (layout.get("meta") or {}).get("x") or "x"  # of places on an axis of its own scale, the numbers that they stand for
    write.writerow(["curve", _title(layout, "x") or "x", "value" if several else _title(layout, "y") or "y"])
    for number, trace in enumerate(traces):
        name = trace.get("name") or f"curve {number + 1}"
        x, y, z = (_plain(trace.get(axis)) for axis in (behind, "y", "z"))
        if several:
            name = ": ".join(filter(None, (name, _title(layout, trace.get("yaxis") or "y"))))
        if z.ndim == 2:
            rows = ([f"{name} = {z[i, k]}", x[k], y[i]] for i in range(z.shape[0]) for k in range(z.shape[1]))
        else:
            rows = ([name, a, b] for a, b in zip(x, y, strict=False) if a is not None and b is not None)
        write.writerows(rows)
    return out.getvalue()


def _title(layout: Mapping[str, Any], axis: str) -> str:
    """What stands at an axis, named as a curve names it: "x", "y", "y2"."""
    return escapes.unescape(((layout.get(f"{axis[0]}axis{axis[1:]}") or {}).get("title") or {}).get("text") or "")


def _plain(values: Any) -> np.ndarray:
    """A column of a figure: a list, or plotly's packed form of one."""
    if isinstance(values, Mapping) and "bdata" in values:
        import base64

        flat = np.frombuffer(base64.b64decode(values["bdata"]), dtype=values["dtype"])
        shape = [int(n) for n in str(values.get("shape") or len(flat)).split(",")]
        return flat.reshape(shape)
    return np.array([] if values is None else values, dtype=object)
