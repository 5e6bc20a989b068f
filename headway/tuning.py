"""The result of tuning as it is written down and shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headway.experiments.checkpoint import Store
from headway.experiments.drift_monitor import monitor_of
from headway.experiments.gain_training import BETTER, train_schedule
from headway.experiments.tune import Tuned, rejudged

SCHEMA = "headway/tuning/1"

BESIDE = ("bound", "ablation", "knees", "pareto", "plant_error", "shift", "fired", "schedule")
"""What may stand beside a result, each with a schema of its own; null where it was not looked at."""


def with_schedule(
    tuned: Tuned,
    kind: str | None,
    *,
    free: tuple[str, ...] | None,
    progress: Callable[[str, float], None] | None = None,
    store: Store | None = None,
) -> tuple[Tuned, dict[str, Any]]:
    """The result of tuning, or that of gains that follow the load, where they were asked for and are better on held-out seeds.

    Args:
        tuned: the result of tuning.
        kind: of schedule, one of `headway.experiments.gain_forms.KINDS`; None for constants.
        free: names of the numbers that were free, as `headway.experiments.tune.tune` takes them.
        progress: called with a label and a fraction in [0, 1].
        store: where the answers of the training are kept, for one that is killed; None keeps none.

    Returns:
        (result, its figures those of the controller that is kept; what stands beside it: empty, or the summary under "schedule").

    Raises:
        ValueError: an unknown kind.
    """
    if kind is None:
        return tuned, {}
    found = train_schedule(tuned.problem, tuned.tuned.candidate, kind=kind, effort=tuned.effort, progress=progress, store=store)
    kept = rejudged(tuned, found.candidate, free) if found.verdict == BETTER else tuned
    return kept, {"schedule": found.to_json()}


def tuning_json(tuned: Tuned, curve: dict[str, Any] | None, notes: Sequence[str], sides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The result of tuning as plain JSON values, without the controller itself.

    Args:
        tuned: the result.
        curve: goodput against load; None where it was not computed.
        notes: sentences on the load.
        sides: what stands beside it, as `headway.experiments.beside.beside`; None where nothing was looked at.

    Returns:
        Fields by name, as `headway tune --json` shows them.
    """
    side = lambda s: s.to_json()  # noqa: E731
    return {
        "schema": SCHEMA,
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
        **{name: (sides or {}).get(name) for name in BESIDE},
        "capacity_rps": tuned.capacity_rps,
        "outcome": tuned.outcome,
        "required": tuned.kept,
        "robust": tuned.robust,
        "drift_monitor": dataclasses.asdict(monitor_of(tuned.problem.identified)),
        "slopes": tuned.slopes,
        "gates": [dataclasses.asdict(gate) for gate in tuned.gates],
        "heldout_said": tuned.heldout,
        "resumed": tuned.resumed,
        "load_curve": curve,
        "tried": tuned.tried,
        "effort": dataclasses.asdict(tuned.effort),
        "warnings": [*tuned.warnings, *notes],
    }
