"""The controller of the run in miniature with gains that follow the load, made without chance: for the tests of what shows one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from headway.controllers.gain_schedule import GainSchedule
from headway.controllers.record import ControllerRecord
from tests.small_run import controller_json

TRAINED: dict[str, Any] = {
    "kind": "queued",
    "names": ["margin", "aging_rate", "chunk_tokens"],
    "knots": [8, 1, 1],
    "train_constant": 0.92,
    "train_schedule": 0.945,
    "constant": 0.9,
    "schedule": 0.921,
    "gain": 0.021,
    "gain_ci95": [0.012, 0.03],
    "verdict": "better than constants",
    "slopes": "exact differences in random directions, as asked",
    "gate": None,
    "heldout_said": "20 held-out seeds: the gain's interval is 0.9 % to either side",
    "tried": 71,
    "workload": "logs/azure.csv",
}
"""As `headway.experiments.gain_training.Scheduled.to_json`."""

NO_BETTER = TRAINED | {"gain": 0.002, "gain_ci95": [-0.004, 0.008], "schedule": 0.902, "verdict": "no better than constants"}
NONE_SCORED = TRAINED | {
    "train_schedule": 0.92,
    "schedule": 0.9,
    "gain": 0.0,
    "gain_ci95": [0.0, 0.0],
    "verdict": "no better than constants",
    "heldout_said": "12 held-out seeds, of the constants alone: no schedule was better on the training seeds",
}


def queued() -> GainSchedule:
    """Three gains over the queue: a margin that falls, an aging rate that rises and comes back, a chunk that doubles."""
    margin = np.linspace(0.2, 0.06, 8)
    aging = np.array([0.5, 0.6, 0.8, 1.0, 1.0, 0.8, 0.6, 0.5])
    return GainSchedule(("margin", "aging_rate", "chunk_tokens"), np.stack([margin, aging, np.arange(4.0, 12.0)]).reshape(3, 8, 1, 1))


def loaded() -> GainSchedule:
    """Two gains over all that a schedule can follow."""
    q, r, k = np.meshgrid(np.linspace(0, 1, 8), np.linspace(0, 1, 4), np.linspace(0, 1, 4), indexing="ij")
    return GainSchedule(("margin", "chunk_tokens"), np.stack([0.3 - 0.1 * q - 0.05 * r - 0.05 * k, 6 + 4 * q - r + 0.5 * k]))


def controller_with(gains: GainSchedule | None, trained: dict[str, Any] | None = TRAINED, spec: str = "logs/azure.csv") -> dict[str, Any]:
    """Content of controller.json with a schedule in force, or without one."""
    record = ControllerRecord.from_json(controller_json())
    tuning = {**record.tuning, "schedule": trained}
    load = {**record.workload, "spec": spec}
    return dataclasses.replace(record, candidate=record.candidate._replace(gains=gains), tuning=tuning, workload=load).to_json()
