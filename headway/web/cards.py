"""What every page is made of: a figure with its sentence, its command and its downloads; a note; a command to copy."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from dash import dcc, html

from headway.report.theme import swaps

GRAPH, CSV_BUTTON, PNG_BUTTON, CSV_FILE = "figure", "csv-button", "png-button", "csv-file"
"""Types of the identifiers that belong together: one name, one figure and its downloads."""


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
    caption = html.Figcaption(sentence, id={"type": "sentence", "name": name})
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


def command_card(command: str) -> html.Div:
    """The command that does what the page shows.

    Args:
        command: a line for a shell.

    Returns:
        Component with a button that copies it.
    """
    copied = dcc.Clipboard(content=command, title="copy the command", className="copy")
    return html.Div([html.Span("the same at the command line", className="soft"), html.Code(command), copied], className="command")


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
        CSV with the columns curve, x, y and, where there is one, z.
    """
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    layout = figure.get("layout") or {}
    titles = [((layout.get(axis) or {}).get("title") or {}).get("text") or axis[0] for axis in ("xaxis", "yaxis")]
    write.writerow(["curve", *titles])
    for number, trace in enumerate(figure.get("data") or []):
        name = trace.get("name") or f"curve {number + 1}"
        x, y, z = (_plain(trace.get(axis)) for axis in "xyz")
        if z.ndim == 2:
            rows = ([f"{name} = {z[i, k]}", x[k], y[i]] for i in range(z.shape[0]) for k in range(z.shape[1]))
        else:
            rows = ([name, a, b] for a, b in zip(x, y, strict=False) if a is not None and b is not None)
        write.writerows(rows)
    return out.getvalue()


def _plain(values: Any) -> np.ndarray:
    """A column of a figure: a list, or plotly's packed form of one."""
    if isinstance(values, Mapping) and "bdata" in values:
        import base64

        flat = np.frombuffer(base64.b64decode(values["bdata"]), dtype=values["dtype"])
        shape = [int(n) for n in str(values.get("shape") or len(flat)).split(",")]
        return flat.reshape(shape)
    return np.array([] if values is None else values, dtype=object)
