"""What a validation is held against: gates of the experiment, the target, the prediction, and the best static setting."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from headway.experiments.constraints import TIMES, Requirement, found_in
from headway.experiments.contest import NEAR
from headway.models.goodput import REJECTED, Goodput, Outcome
from headway.models.identified import IdentifiedPlant
from headway.models.plant import Batch
from headway.models.signals import Target
from headway.models.stability import UNSERVED, backlog_drift, queue_verdict

AGREE = 0.10
"""Predicted attainment and goodput may be off by this share."""

LOADED = 1.3
"""Steps of a live run may be this much slower or faster than the plant in the median; beyond it is another machine, or a busy one."""


@dataclasses.dataclass(frozen=True)
class Check:
    """One condition of the verdict.

    Args:
        name: what is asked.
        bar: the condition, in words.
        value: what was found; None where it could not be.
        ok: whether it holds.
        unit: of the value, "s", or a word for what was counted; "" where the name says.
        part: of the verdict that it belongs to: "gate" of the experiment, "target" or "prediction".
    """

    name: str
    bar: str
    value: float | None
    ok: bool
    unit: str = ""
    part: str = "gate"


def live_gates(controller: list[Outcome], static: list[Outcome], identified: IdentifiedPlant) -> list[Check]:
    """Whether a live run can say anything: did prompts meet decodes, was the budget felt, was the machine left alone.

    Args:
        controller: its runs.
        static: those of the static setting.
        identified: the plant that predicts.

    Returns:
        Gates.
    """
    log = np.concatenate([o.log for o in controller])
    both = np.concatenate([o.log for o in (*controller, *static)])
    overlap = int(((log[:, 2] > 0) & (log[:, 4] > 0)).sum())
    bound = float((log[:, 10] == 3).mean()) if len(log) else 0.0
    expected = np.asarray(identified.plant.step_time_s(Batch(*(both[:, k] for k in (2, 3, 4, 5, 6)))))
    drift = float(np.median(both[:, 1] / np.maximum(expected, 1e-9)))
    return [
        Check("prompts met decodes", "in at least 50 steps", float(overlap), overlap >= 50),
        Check("the token budget was felt", "binding in at least 1 % of steps", bound, bound >= 0.01),
        Check(
            "the engine is the one that was identified",
            f"steps between {1 / LOADED:.2f} and {LOADED:.2f} times what the plant says, in the median; else other work or another machine",
            drift,
            1 / LOADED <= drift <= LOADED,
        ),
    ]


def no_worse(measured: Goodput, static: Goodput) -> Check:
    """Whether the controller did no worse than the best static setting on the same arrivals, but for what tuning may give up.

    Among candidates within NEAR of the best attainment tuning takes the one with the most clean requests.

    Args:
        measured: of the controller.
        static: of the static setting.

    Returns:
        The check; its value is the difference of the attainments.
    """
    ahead = measured.attainment - static.attainment
    bar = f"attainment at least its own, less the {100 * NEAR:g} point that tuning may give up for clean requests"
    return Check("no worse than the best static setting", bar, ahead, ahead >= -NEAR, "points", "prediction")


def kept(target: Target, figures: dict[str, Any]) -> list[Check]:
    """Whether the target of a class was kept: the share on time, and the p99 of the gaps.

    Args:
        target: of the class.
        figures: measured, of that class.

    Returns:
        Two checks.
    """
    attained, p99 = figures["attainment"], figures["itl_p99_s"]
    of = "" if target.name == "default" else f", class {target.name}"
    why = figures["refused"].get("itl_s.p99")
    bar = f"at most {target.itl_s * 1e3:.4g} ms + 10 %" + (f"; no p99 to hold to it: {why}" if why else "")
    return [
        Check(
            f"on time{of}",
            f"at least {1 - target.epsilon:.4g} of the tokens owed",
            attained,
            attained is not None and attained >= 1 - target.epsilon,
            part="target",
        ),
        Check(f"p99 ITL{of}", bar, p99, p99 is None or p99 <= 1.1 * target.itl_s, part="target"),
    ]


def queue_held(outcomes: list[Outcome]) -> Check:
    """Whether those who were not shed do not wait longer and longer: else a longer run attains less than this one.

    Args:
        outcomes: runs of the controller.

    Returns:
        The check; its value is the growth of the unserved prompt work as a share of what arrives.
    """
    drift = np.concatenate([backlog_drift(o, o.status < REJECTED) for o in outcomes])
    bar = f"at most {UNSERVED:.0%} of the prompt work that arrives stays behind, what is shed apart"
    held, growth = queue_verdict(outcomes) != "unstable", float(drift.mean()) if len(drift) else None
    return Check("the queue holds", bar, growth, held, part="target")


def required(require: tuple[Requirement, ...], outcomes: list[Outcome], targets: tuple[Target, ...]) -> list[Check]:
    """Whether what was required at tuning was kept.

    Args:
        require: what was asked.
        outcomes: runs of the controller.
        targets: one per class.

    Returns:
        A check for each; what cannot be said counts as kept, as it does in tuning.
    """
    checks = []
    for asked, value in found_in(require, outcomes, targets).items():
        time = asked.name in TIMES
        bound = f"{1e3 * asked.bound:.4g} ms" if time else f"{100 * asked.bound:.4g} %"
        shown = float(value) if np.isfinite(value) else None
        checks.append(
            Check(f"required {asked.label}", f"at {asked.side} {bound}", shown, asked.missed(value) == 0, "s" if time else "", "target")
        )
    return checks


def agrees(name: str, measured: Goodput, expected: Goodput) -> Check:
    """Whether a figure came out as predicted.

    Args:
        name: of a field of Goodput.
        measured: by the runs.
        expected: predicted for the same arrivals.

    Returns:
        The check; its value is measured / predicted - 1.
    """
    a, b = float(getattr(measured, name)), float(getattr(expected, name))
    off = a / b - 1 if b > 0 else float("nan")
    label = name.removesuffix("_tps")
    bar, found = f"measured within {AGREE:.0%} of predicted", off if np.isfinite(off) else None
    return Check(f"{label} as predicted", bar, found, abs(off) <= AGREE, part="prediction")
