"""The result of tuning as it is written down and shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from headway.experiments.tune import Tuned


def tuning_json(tuned: Tuned, curve: dict[str, Any] | None, notes: Sequence[str]) -> dict[str, Any]:
    """The result of tuning as plain JSON values, without the controller itself.

    Args:
        tuned: the result.
        curve: goodput against load; None where it was not computed.
        notes: sentences on the load.

    Returns:
        Fields by name, as `headway tune --json` shows them.
    """
    side = lambda s: s.to_json()  # noqa: E731
    return {
        "objective": tuned.problem.objective,
        "heldout": side(tuned.tuned),
        "best_static": side(tuned.static),
        "best_timeout": side(tuned.early),
        "best_static_hindsight": side(tuned.hindsight),
        "untuned": side(tuned.default),
        "gain": tuned.gain.value,
        "gain_ci95": [tuned.gain.low, tuned.gain.high],
        "gain_over_timeout": tuned.gain_early.value,
        "gain_over_timeout_ci95": [tuned.gain_early.low, tuned.gain_early.high],
        "bound": None,
        "capacity_rps": tuned.capacity_rps,
        "outcome": tuned.outcome,
        "required": tuned.kept,
        "robust": tuned.robust,
        "slopes": tuned.slopes,
        "gates": [dataclasses.asdict(gate) for gate in tuned.gates],
        "heldout_said": tuned.heldout,
        "resumed": tuned.resumed,
        "load_curve": curve,
        "tried": tuned.tried,
        "effort": dataclasses.asdict(tuned.effort),
        "warnings": [*tuned.warnings, *notes],
    }
