"""The end of a trace file that is still being written, and its figure."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from headway.report.axes import blank
from headway.report.text import count, percent, time
from headway.report.theme import LIGHT

TAIL_BYTES = 2 << 20
"""How much of the end of a file is read at each look [bytes]."""
HEAD_BYTES = 16 << 10
"""How much of the beginning of a file tells whether it holds steps [bytes]."""
TIMED = "step_time_s"
"""The column, or the key, without which a row is no step."""
MOST_STEPS = 2000
WINDOW = 200
"""Steps of the moving late rate."""
OTHERS = ("token_budget", "running", "waiting", "setpoint_s", "margin")


class Followed(NamedTuple):
    """The last steps of a trace.

    Args:
        step: number of each, shape (k,).
        step_time_s: [s].
        others: further columns by name, each of shape (k,), NaN where a row lacks it.
        mode: of the last row, empty where it has none.
        size_bytes: of the file [bytes].
        fault: why nothing could be read; empty if something was.
    """

    step: np.ndarray
    step_time_s: np.ndarray
    others: dict[str, np.ndarray]
    mode: str
    size_bytes: int
    fault: str = ""


def holds_steps(path: Path) -> bool:
    """Whether a file begins as a trace of steps does: its heading, or one of its first lines, has step_time_s.

    Args:
        path: of a JSON-lines or CSV file.

    Returns:
        True if so; False also of one that is empty or cannot be read.
    """
    try:
        with path.open("rb") as stream:
            lines = stream.read(HEAD_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return False
    if path.suffix == ".csv":
        return TIMED in next(csv.reader(lines[:1]), [])
    return any(_number(row.get(TIMED)) is not None for row in _json(lines))


def follow(path: Path) -> Followed:
    """Read the last steps of a trace, whole lines only: the last may be half written.

    Args:
        path: of a JSON-lines or CSV file.

    Returns:
        Followed; with a fault in words where no step could be read.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            head = stream.readline(1 << 16)
            begin = max(size - TAIL_BYTES, len(head))
            stream.seek(begin)
            text = stream.read(TAIL_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return _none(0, f"{path.name} cannot be read: {error.strerror or error}")
    lines = text.split("\n")[1 if begin > len(head) else 0 : -1]
    rows = _csv(head, lines) if path.suffix == ".csv" else _json([head.decode("utf-8", "replace"), *lines])
    rows = [row for row in rows if _number(row.get(TIMED)) is not None][-MOST_STEPS:]
    if not rows:
        return _none(size, f"{path.name} holds no row with {TIMED} yet")
    column = lambda name: np.array([v if (v := _number(row.get(name))) is not None else np.nan for row in rows])  # noqa: E731
    step = column("step")
    step = np.where(np.isfinite(step), step, np.arange(len(rows)))
    others = {name: values for name in OTHERS if np.isfinite(values := column(name)).any()}
    return Followed(step, column(TIMED), others, str(rows[-1].get("mode") or ""), size)


def _none(size: int, fault: str) -> Followed:
    return Followed(np.zeros(0), np.zeros(0), {}, "", size, fault)


def _json(lines: list[str]) -> list[dict[str, Any]]:
    rows = []
    for line in lines:
        try:
            value = json.loads(line) if line.strip() else None
        except ValueError:
            continue
        if isinstance(value, dict):
            rows.append(value)
    return rows


def _csv(head: bytes, lines: list[str]) -> list[dict[str, Any]]:
    names = next(csv.reader(io.StringIO(head.decode("utf-8", "replace"))), [])
    return [dict(zip(names, cells, strict=False)) for cells in csv.reader(lines) if len(cells) == len(names)]


def _number(value: Any) -> float | None:
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if np.isfinite(found) else None


def late_rate(found: Followed, budget_s: float) -> np.ndarray:
    """Share of the last WINDOW steps over the budget, at each step.

    Args:
        found: the steps.
        budget_s: longest step that keeps the promise [s].

    Returns:
        Shape (k,), in [0, 1].
    """
    late = np.concatenate([[0.0], np.cumsum(found.step_time_s > budget_s)])
    last = np.arange(1, len(late))
    first = np.maximum(last - WINDOW, 0)
    return (late[last] - late[first]) / (last - first)


def followed_figure(found: Followed, budget_s: float | None) -> go.Figure:
    """Step time against setpoint and budget; below, the late rate, or the token budget where no promise is known.

    Args:
        found: the steps.
        budget_s: longest step that keeps the promise; None where it is not known [s].

    Returns:
        The figure.
    """
    figure = blank(480)
    x = found.step
    own = {"color": LIGHT["tuned"], "width": 1.5}
    figure.add_scatter(
        x=x, y=1e3 * found.step_time_s, mode="lines", line=own, name="step", hovertemplate="step %{x}: %{y:.2f} ms<extra></extra>"
    )
    if "setpoint_s" in found.others:
        line = {"color": LIGHT["ink"], "width": 1.5, "dash": "dash"}
        figure.add_scatter(x=x, y=1e3 * found.others["setpoint_s"], mode="lines", line=line, name="setpoint")
    if budget_s is not None:
        ends = [x[0], x[-1]]
        line = {"color": LIGHT["ink"], "width": 1.5}
        figure.add_scatter(x=ends, y=[1e3 * budget_s] * 2, mode="lines", line=line, name=f"budget {1e3 * budget_s:.1f} ms")
        rate = {"color": LIGHT["static"], "width": 2}
        figure.add_scatter(
            x=x, y=100 * late_rate(found, budget_s), mode="lines", line=rate, yaxis="y2", name=f"late, of the last {WINDOW} steps"
        )
    elif "token_budget" in found.others:
        line = {"color": LIGHT["decode"], "width": 1.5, "shape": "hv"}
        figure.add_scatter(x=x, y=found.others["token_budget"], mode="lines", line=line, yaxis="y2", name="token budget")
    lower = "late steps, %" if budget_s is not None else "token budget"
    figure.update_layout(
        xaxis={"title": {"text": "step"}, "anchor": "y2"},
        yaxis={"title": {"text": "step, ms"}, "domain": [0.42, 1.0], "rangemode": "tozero"},
        yaxis2={"title": {"text": lower}, "domain": [0.0, 0.32], "rangemode": "tozero", "anchor": "x"},
        uirevision="live",
    )
    return figure


def followed_sentence(found: Followed, budget_s: float | None) -> str:
    """What the last steps show.

    Args:
        found: the steps.
        budget_s: longest step that keeps the promise; None where it is not known [s].

    Returns:
        Sentences.
    """
    text = f"The last {count(len(found.step))} steps, up to step {count(int(found.step[-1]))}"
    text += f", mode {found.mode}" if found.mode else ""
    text += f": median {time(float(np.median(found.step_time_s)))}, p99 {time(float(np.quantile(found.step_time_s, 0.99)))}."
    if budget_s is not None:
        recent = late_rate(found, budget_s)[-1]
        text += f" {percent(float(np.mean(found.step_time_s > budget_s)))} were over the budget of {time(budget_s)}; {percent(recent)} of the last {WINDOW}."
    if "margin" in found.others:
        text += f" The margin found is {percent(float(found.others['margin'][np.isfinite(found.others['margin'])][-1]))}."
    return text
