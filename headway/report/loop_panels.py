"""A controller before it runs: where its loop has least margin, how it answers there, and the closed loop on a short held-out load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from headway.controllers.controller import Controller
from headway.controllers.pi import PILaw
from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import LOG_COLUMNS, Candidate, simulate
from headway.experiments.case import case_of
from headway.experiments.loops import gain_ratio, has_loop, loop_of
from headway.experiments.margins import loop_margins
from headway.experiments.points import OperatingPoint
from headway.models.identified import IdentifiedPlant
from headway.report.data import dig
from headway.report.figures import closed_loop
from headway.report.loop_figures import bode, margin_text, nyquist, response_sentence, step_response
from headway.report.opened import Opened
from headway.report.panels import Lack, Panel, Shown, unsimulated
from headway.report.scheduled import SETPOINT
from headway.report.sentences import loop_sentence
from headway.report.text import percent, sentence

STEPS = 600
"""Steps of the closed loop that are drawn: what a gain changes shows in them, and a page stays quick."""
SHOWN_COLUMNS = ("end_s", "step_time_s", "token_budget", "running", "waiting", "binding")
NO_LOOP = "This law has no linear loop, so it has no margins and no Bode plot: what it does shows in the closed loop alone."
UNSTABLE = "The loop is unstable at its weakest place, so there is no answer to draw: its steps swing until a limit holds them."


class Weakest(NamedTuple):
    """The loop at the operating point where it has least gain margin.

    Args:
        margins: by name, None where infinite.
        curve: frequency response.
        answer: to a step; None if unstable.
        point: where.
    """

    margins: dict[str, Any]
    curve: Any
    answer: Any
    point: OperatingPoint


def points_of(law: Controller, identified: IdentifiedPlant, record: ControllerRecord) -> tuple[OperatingPoint, ...]:
    """Operating points that a law is looked at: they hang on its setpoint where the plant jumps.

    Args:
        law: any.
        identified: the plant.
        record: targets and limits.

    Returns:
        Points, as `headway analyse` has them.
    """
    budget_s = min(t.budget_s for t in record.targets)
    return case_of(law, identified.plant, identified.hull, record.limits, budget_s, identified.interval, identified.noise).points


def weakest(law: Controller, identified: IdentifiedPlant, points: tuple[OperatingPoint, ...], delay: int) -> Weakest | None:
    """Margins, curves and answer where the loop has least gain margin.

    Args:
        law: any.
        identified: the plant.
        points: of `points_of`.
        delay: steps from a command to its measurement.

    Returns:
        Weakest; None for a law without a linear loop.
    """
    # it brings python-control, which takes seconds to load: not before it is needed
    from headway.experiments.analysis import curve, response

    if not has_loop(law):
        return None
    ratios = [gain_ratio(law, identified.plant, p) for p in points]
    loops = [loop for ratio in ratios if (loop := loop_of(law, ratio, delay, identified.noise)) is not None]
    if not any(np.any(loop.numerator) for loop in loops):
        return None
    margins = [loop_margins(*loop) for loop in loops]
    at = min(range(len(loops)), key=lambda k: margins[k].gain_margin_db)
    finite = {name: value if np.isfinite(value) else None for name, value in margins[at]._asdict().items()}
    direct = None if isinstance(law, PILaw) else ratios[at]
    return Weakest(finite, curve(loops[at]), response(*loops[at], delay, direct=direct), points[at])


def margin_panels_of(found: Weakest | None, delay: int) -> list[Shown]:
    """Answer to a step, Nyquist's curve, Bode's curves.

    Args:
        found: of `weakest`.
        delay: that it was looked at with [steps].

    Returns:
        Three panels; what cannot be drawn is said.
    """
    if found is None:
        return [Lack(NO_LOOP)]
    curve, margins, place = found.curve, found.margins, found.point
    where = (
        f"The opened loop at {place.decode_requests:,.0f} decoding requests and {place.prefill_tokens:,.0f} prompt tokens in a step, where the gain "
        f"margin is least, with a delay of {delay} step{'s' if delay > 1 else ''}. How far the gain is below 0 dB where the phase passes -180 "
        "degrees is the gain margin; how far the phase is above -180 degrees where the gain passes 0 dB is the phase margin."
    )
    answer = Panel("step", step_response(*found.answer), response_sentence(*found.answer)) if found.answer is not None else Lack(UNSTABLE)
    return [
        answer,
        Panel("nyquist", nyquist(curve.real, curve.imaginary), margin_text(margins)),
        Panel("bode", bode(curve.omega, curve.magnitude_db, curve.phase_deg, margins), where),
    ]


def simulated_panel(found: Opened, candidate: Candidate) -> Shown:
    """The closed loop on a short held-out load.

    Args:
        found: plant, targets, limits and loads.
        candidate: law and policy to run.

    Returns:
        Panel; what is lacking where there is no load to run.
    """
    record = found.record
    if not found.draws:
        return unsimulated("The closed loop", found)
    load = found.draws[0]
    out = simulate(found.identified, candidate, load, record.targets, record.limits, record_steps=STEPS)
    columns = dict(zip(LOG_COLUMNS, np.asarray(out.log).T, strict=True))
    timeline = {name: columns[name].tolist() for name in SHOWN_COLUMNS if name in columns}
    budget_s = min(t.budget_s for t in record.targets)
    moves = candidate.gains is not None and "margin" in candidate.gains.names
    setpoint_s = None if moves else (1 - candidate.law.setpoint_margin) * budget_s
    on, owed = out.on_time.sum(), out.owed.sum()
    text = f"Simulated on a held-out load of {len(load.workload)} requests: {percent(on / max(owed, 1e-9))} of the owed tokens on time. "
    figure = closed_loop(timeline, budget_s=budget_s, setpoint_s=setpoint_s)
    return Panel("loop", figure, text + loop_sentence(timeline, {}, budget_s, setpoint_s) + SETPOINT * moves)


def certificate_sentence(controller: Mapping[str, Any] | None) -> str:
    """What the certificate of a controller says, as it was tuned.

    Args:
        controller: content of controller.json.

    Returns:
        A sentence; empty where there is none.
    """
    certificate = dig(controller, "tuning", "certificate")
    verdict, reason = dig(certificate, "verdict"), dig(certificate, "reason")
    return sentence(f"{verdict}: {reason}") if verdict and reason else ""


def loop_panels(found: Opened, delay: int = 1) -> list[Shown]:
    """The controller as tuned, before it runs.

    Args:
        found: plant, controller and loads.
        delay: steps from a command to its measurement.

    Returns:
        Answer to a step, Nyquist's curve, Bode's curves, the closed loop.
    """
    record, law = found.record, found.record.candidate.law
    parts = margin_panels_of(weakest(law, found.identified, points_of(law, found.identified, record), delay), delay)
    return [*parts, simulated_panel(found, record.candidate)]
