"""Gains that follow the load: the panel that shows their tables, and what training them brought, in the report and the workbench alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.controllers.gain_schedule import GainSchedule, knots_of
from headway.report.data import Findings, dig
from headway.report.panels import Panel, Shown
from headway.report.schedule_figures import axis_of, schedule_figure
from headway.report.scheduled import Following, following, listed, names_of, ranges, schedule_of, shown_at
from headway.report.text import NONE, count, digits, escape, number, percent, sentence, signed

TITLE = "Gains that follow the load"

OVER = {
    "queued": "over the queue",
    "load": "over queue, decodes and cache",
    "network": "that a small network fills over queue, decodes and cache",
}
"""What a table of each kind follows; kinds of `headway.experiments.gain_forms.KINDS`, not imported from there since that loads optimizers."""

WHAT = {"attainment": "of the tokens on time", "requests": "of the requests clean", "capacity": "requests/s carried"}
"""What an objective counts."""


def schedule_parts(found: Findings) -> list[Shown | str]:
    """The tables of the gains that follow the load, or what became of training them.

    Args:
        found: the run.

    Returns:
        One panel; one paragraph of HTML where training found none that is better; nothing where no schedule was asked for.
    """
    schedule, said = schedule_of(found.controller), schedule_sentence(found.controller)
    if schedule is None:
        return [f"<p>{escape(said)}</p>"] if said else []
    return [Panel("schedule", schedule_figure(found.controller, schedule), said)]


def schedule_sentence(controller: Any) -> str:
    """What to see in the tables, what they brought over constants, and how they were trained.

    Args:
        controller: content of controller.json; None before tuning.

    Returns:
        Sentences; empty where no schedule is in force and none was tried.
    """
    schedule, result = schedule_of(controller), dig(controller, "tuning", "schedule")
    if schedule is None:
        return f"Gains that follow the load were tried, and none is in force. {_judged(controller, result)}" if result else ""
    verb = "follows" if len(schedule.names) == 1 else "follow"
    look = sentence(f"{names_of(controller)} {verb} the load: {_moves(controller, schedule)}")
    look += " Markers are the knots, beyond the last of which a gain stays; dotted is the constant before."
    judged = _judged(controller, result) if result else "How that compares with constants was not written down."
    return f"{look} {judged}"


def _moves(controller: Any, schedule: GainSchedule) -> str:
    """Where each gain goes, and what it was before."""
    queue_alone = axis_of(schedule) == 0 and max(schedule.shape[1:]) == 1
    queued = knots_of(schedule.shape)[0]
    ends = shown_at(controller, schedule, queued[[0, -1]], 0.0, 0.0)
    parts = []
    for k, (gain, (low, high)) in enumerate(zip(following(controller), ranges(controller, schedule), strict=True)):
        way = _way(gain, low, high, ends[k] if queue_alone else None)
        parts.append(f"{gain.label} {way} (before: {gain.worded(gain.constant)})")
    start = f"from an empty queue to {count(queued[-1])} queued tokens, " if queue_alone and len(queued) > 1 else ""
    return start + "; ".join(parts)


def _way(gain: Following, low: float, high: float, ends: np.ndarray | None) -> str:
    """From where to where one gain goes along the queue; of one that follows more than that, within which ends."""
    least, most = gain.worded(low), gain.worded(high)
    if least == most:
        return f"{least} under every load"
    if ends is None:
        return f"{least} to {most}"
    first, last = (gain.worded(float(x)) for x in ends)
    return f"{first} to {last}" if {least, most} <= {first, last} else f"{first} to {last}, within {least} and {most}"


def _judged(controller: Any, result: Any) -> str:
    """The verdict with its figures, and how the tables were trained."""
    objective = str(dig(controller, "tuning", "objective") or "attainment")
    show = percent if objective != "capacity" else (lambda value: f"{digits(value, 3)}")
    constant, followed = (show(dig(result, key)) for key in ("constant", "schedule"))
    what, verdict = WHAT.get(objective, ""), str(dig(result, "verdict") or "no verdict")
    if not dig(result, "names"):
        return sentence(f"{verdict}: {dig(result, 'slopes') or 'nothing was trained'}")
    if not _scored(result):
        text = f"{sentence(f'{verdict}: no schedule beat them on the training seeds')} They put {constant} {what} held out."
        return f"{text}{_trained(result)}"
    by, (low, high) = _difference(dig(result, "gain"), objective), _interval(result, objective)
    inside = f" ({low} to {high})" if low != NONE and high != NONE else ""
    text = sentence(f"{verdict}: {followed} {what} against {constant}, {by}{inside}, paired on held-out seeds")
    before, after = (show(dig(result, f"train_{key}")) for key in ("constant", "schedule"))
    return f"{text} On the training seeds it was {after} against {before}.{_trained(result)}"


def _scored(result: Any) -> bool:
    """Whether a schedule was held against the constants on held-out seeds: training may have found none to hold."""
    pairs = [(dig(result, a), dig(result, b)) for a, b in (("constant", "schedule"), ("train_constant", "train_schedule"))]
    return any(a != b for a, b in pairs) or bool(number(dig(result, "gain")))


def _trained(result: Any) -> str:
    """How the tables were trained."""
    names = [str(name) for name in dig(result, "names") or []]
    kind, knots = str(dig(result, "kind")), dig(result, "knots")
    size = f" of {' x '.join(count(n) for n in knots if n != 1)} knots" if isinstance(knots, list) and any(n != 1 for n in knots) else ""
    words = listed([name.replace("_", " ").replace("chunk tokens", "chunk").replace("share.", "share of class ") for name in names])
    tried = number(dig(result, "tried"))
    many = f"; {count(tried)} {'was' if tried == 1 else 'were'} scored" if tried else ""
    text = f" Trained: a table{size} for each of {words}, {OVER.get(kind, kind)}{many}."
    rest = (dig(result, "slopes"), dig(result, "heldout_said"))
    return text + "".join(f" {sentence(said)}" for said in rest if said)


def _interval(result: Any, objective: str) -> tuple[str, str]:
    ends = dig(result, "gain_ci95")
    low, high = ends if isinstance(ends, list | tuple) and len(ends) == 2 else (None, None)
    return _signed(low, objective), _signed(high, objective)


def _difference(value: Any, objective: str) -> str:
    unit = "requests/s" if objective == "capacity" else "points"
    return f"{_signed(value, objective)} {unit}"


def _signed(value: Any, objective: str) -> str:
    known = number(value)
    if known is None:
        return NONE
    return signed(known, "+.3g") if objective == "capacity" else signed(100 * known)


def of_constants(controller: Any) -> str:
    """What answer, margins and certificate are of, where the margin follows the load.

    Args:
        controller: content of controller.json; None before tuning.

    Returns:
        A sentence; empty where the margin is a constant.
    """
    schedule = schedule_of(controller)
    if schedule is None or "margin" not in schedule.names:
        return ""
    k = schedule.names.index("margin")
    gain, (low, high) = following(controller)[k], ranges(controller, schedule)[k]
    return (
        f"Answer, margins and certificate are those of the law with the margin of {gain.worded(gain.constant)} that its table replaced; in force it "
        f"lies between {gain.worded(low)} and {gain.worded(high)}, and an export is certified at both ends."
    )


def carried_sentence(controller: Any) -> str:
    """What an export makes of gains that follow the load.

    Args:
        controller: content of controller.json; None before tuning.

    Returns:
        A sentence; empty where all gains are constants.
    """
    names = names_of(controller)
    if not names:
        return ""
    verb = "follows" if len(following(controller)) == 1 else "follow"
    return sentence(f"{names} {verb} the load: an export holds the tables, or is refused for an engine that cannot follow them")
