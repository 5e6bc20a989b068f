"""What is shown of a run, in the report and in the workbench alike: figures, each with the sentence that says what to see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import plotly.graph_objects as go

from headway.models.identified import Hull
from headway.report.data import REGIMES, Findings, dig, timeline_of, traces_of, window_of
from headway.report.figures import closed_loop, measured_against_predicted, residual_distribution, residuals_in_order
from headway.report.opened import Opened
from headway.report.recorded import Recorded, excitation_map, stretches
from headway.report.scheduled import SETPOINT, following, setpoint_of
from headway.report.sentences import fit_sentence, loop_sentence, margin_sentence, order_sentence
from headway.report.text import count, sentence
from headway.report.trace_figures import time_line, time_line_sentence, work_map, work_sentence


class Panel(NamedTuple):
    """A figure and what to see in it.

    Args:
        name: identifies it on a page and names its files.
        figure: in the light palette.
        sentence: plain text.
    """

    name: str
    figure: go.Figure
    sentence: str


class Lack(NamedTuple):
    """What cannot be shown, and how to get it. It stands in the figure's place: no figure is ever empty.

    Args:
        said: a sentence.
        stage: whose command makes it, a key of `headway.report.commands.commands`; empty where nothing is to be done.
        options: that this command needs beside those that it was given.
        how: what the command is said to do.
    """

    said: str
    stage: str = ""
    options: str = ""
    how: str = "This makes it"

    def command(self, made: Mapping[str, str]) -> str:
        """The command that makes it.

        Args:
            made: of `headway.report.commands.commands`.

        Returns:
            A line for a shell; empty where there is none.
        """
        first = made[self.stage].replace(" --no-bound", "") if self.stage else ""
        return f"{first} {self.options}".strip() if first else ""


Shown = Panel | Lack
NO_TRACE = Lack("trace.parquet is not there yet.", "trace")
NOT_TUNED = Lack("controller.json is not there yet.", "tune")
NOT_VALIDATED = Lack("validation.json is not there yet.", "validate")


def worded(lack: Lack, found: Findings) -> Lack:
    """What is lacking, where the stages were run one by one: `headway fit` reads a trace where it lies and keeps no copy.

    Args:
        lack: what cannot be shown.
        found: the run.

    Returns:
        The same, or of the trace what fits such a folder.
    """
    if lack != NO_TRACE or found.manifest.get("request"):
        return lack
    files = traces_of(found.plant)
    where = f"; the plant was fitted to {', '.join(files)}" if files else ""
    said = f"The stages were run one by one, and headway fit keeps no copy of the trace, so its figures are not here{where}."
    return Lack(said, "trace", how="This makes a run of its own that holds them")


def unsimulated(what: str, found: Opened) -> Lack:
    """What is said where there is no load to simulate.

    Args:
        what: cannot be shown.
        found: plant and controller, without loads.

    Returns:
        Lack.
    """
    return Lack(f"{sentence(f'{what} cannot be simulated here: {found.fault}')} Put the workload's file back, and it is drawn.")


def trace_panels(found: Recorded | None, hull: Hull | None) -> list[Shown]:
    """A recording over time, and which combinations of work it holds.

    Args:
        found: rows of the trace in order; None where there is no trace.
        hull: of the plant; None where there is none yet.

    Returns:
        Time line and excitation map.
    """
    if found is None:
        return [NO_TRACE]
    if not found.kept.any():
        return [Lack("Every row of the trace is set aside, so there is no step to draw; the table says why.")]
    regimes = {name: stretches(found, name) for name in REGIMES}
    cells, box = excitation_map(found), (hull.decode_requests, hull.prefill_tokens) if hull else None
    return [
        Panel("time-line", time_line(regimes, found), time_line_sentence(found, regimes)),
        Panel("work", work_map(cells, box), work_sentence(cells, box)),
    ]


def fit_panels(found: Findings) -> list[Shown]:
    """Measured against predicted step time.

    Args:
        found: the run.

    Returns:
        One panel a regime.
    """
    steps = found.steps
    if steps is None:
        return [NO_TRACE]
    parts: list[Shown] = []
    for regime in REGIMES:
        mine, band = steps.of(regime), found.band(regime)
        said = fit_sentence(steps, regime, band, dig(found.plant, "heldout", f"mape_{regime}"))
        if mine.any():
            figure = measured_against_predicted(steps.predicted_s[mine], steps.measured_s[mine], regime=regime, band=band)
            parts.append(Panel(f"fit-{regime}", figure, said))
        else:
            parts.append(Lack(said))
    return parts


def order_panels(found: Findings) -> list[Shown]:
    """Residuals in the order of the trace.

    Args:
        found: the run.

    Returns:
        One panel.
    """
    steps = found.steps
    if steps is None or len(steps.place) == 0:
        return [NO_TRACE]
    return [Panel("residuals", residuals_in_order(steps.place, steps.residual, steps.mixed), order_sentence(steps))]


def margin_panels(found: Findings) -> list[Shown]:
    """Residuals as distributions, and the margin that they call for.

    Args:
        found: the run.

    Returns:
        One panel a regime; nothing without a trace.
    """
    steps, margins, parts = found.steps, dig(found.plant, "margin") or {}, []
    if steps is None or len(steps.place) == 0:
        return []
    for regime in REGIMES:
        residual, margin = steps.residual[steps.of(regime)], margins.get(regime)
        ends = dig(found.plant, "margin_ci95", regime)
        said = margin_sentence(residual, regime, margin, dig(found.plant, "training", "epsilon"), ends)
        if len(residual):
            parts.append(
                Panel(f"margin-{regime}", residual_distribution(residual, regime=regime, margin=margin, band=found.band(regime)), said)
            )
        else:
            parts.append(Lack(said))
    return parts


def validated_panels(found: Findings) -> list[Shown]:
    """The closed loop over time, as the validation recorded it.

    Args:
        found: the run.

    Returns:
        One panel.
    """
    if found.validation is None:
        return [NOT_VALIDATED]
    timeline, other = (timeline_of(dig(found.validation, side)) for side in ("controller", "best_static"))
    if not timeline:
        return [Lack("The validation recorded no steps.", "validate")]
    budget_s, setpoint_s = dig(found.controller, "budget_s"), setpoint_of(found.controller)
    first, last, why = window_of(timeline)
    moves = SETPOINT if any(gain.kind == "margin" for gain in following(found.controller)) else ""
    said = (
        loop_sentence(timeline, other, budget_s, setpoint_s)
        + f"{moves} It opens with steps {count(first + 1)} to {count(last + 1)}, {why}."
    )
    return [Panel("validated", closed_loop(timeline, budget_s=budget_s, setpoint_s=setpoint_s, other=other, window=(first, last)), said)]
