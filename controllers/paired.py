"""Every prediction paired with its measurement: a stream of steps through the drift monitor and the online correction."""

from __future__ import annotations

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np

from headway.controllers.correction import PARTS, PlantCorrection, corrected_s, correction_step, parts_of
from headway.controllers.drift import DriftMonitor, drift_step
from headway.models.compiled import compiled_making
from headway.models.identified import Hull
from headway.models.plant import Batch, Plant


class Paired(NamedTuple):
    """One row per step: what was said of it before it ran, what it took, and what the monitor made of it.

    Args:
        fitted_s: prediction of the fitted plant, shape (k,) [s].
        corrected_s: prediction of the plant as corrected by the steps known when this one was composed, shape (k,) [s].
        step_time_s: measured, shape (k,) [s].
        inside: whether the step lay in the hull, shape (k,), bool.
        alarm: 1 slower than the fitted plant says, -1 faster, 0 as it says, shape (k,).
        drift: state of the monitor at the end.
        correction: state of the correction at the end.
    """

    fitted_s: np.ndarray
    corrected_s: np.ndarray
    step_time_s: np.ndarray
    inside: np.ndarray
    alarm: np.ndarray
    drift: list[float]
    correction: list[float]

    @property
    def alarms(self) -> list[tuple[int, int, int]]:
        """First row, row after the last, and direction of every alarm."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], self.alarm, [0]])))
        cuts = sorted({int(edge) for edge in edges})
        return [(a, b, int(self.alarm[a])) for a, b in itertools.pairwise(cuts) if self.alarm[a] != 0]


def pair(
    plant: Plant,
    batch: Batch,
    step_time_s: np.ndarray,
    *,
    hull: Hull | None = None,
    monitor: DriftMonitor | None = None,
    correction: PlantCorrection | None = None,
    delay: int = 1,
) -> Paired:
    """Run a stream of steps through monitor and correction, each predicted before it is known.

    The monitor watches the fitted plant, not the corrected one: what was certified rests on the fit, and a correction that
    is good enough must not silence the alarm.

    Args:
        plant: as fitted.
        batch: sums of the steps, arrays of shape (k,).
        step_time_s: measured, shape (k,) [s]; a value that is no positive number teaches nothing.
        hull: box that the plant was fitted on; None lets every step teach.
        monitor: None takes the usual one.
        correction: None takes the usual one.
        delay: steps from composing one to knowing how long it took: 1 in synchronous, 2 in asynchronous scheduling.

    Returns:
        The pairs.

    Raises:
        ValueError: a delay below 1, or numbers of monitor or correction out of range.
    """
    if delay < 1:
        raise ValueError(f"delay must be at least 1 step, got {delay}")
    monitor, correction = monitor or DriftMonitor(), correction or PlantCorrection()
    monitor.check()
    correction.check()
    measured = np.ascontiguousarray(step_time_s, dtype=float)
    columns = np.column_stack([*(np.asarray(x, float) * np.ones(len(measured)) for x in batch), measured])
    inside = np.ones(len(measured), bool)
    if hull is not None:
        for field in dataclasses.fields(Hull):
            inside &= np.asarray(getattr(batch, field.name), float) <= getattr(hull, field.name) * (1 + 1e-9)
    states = np.array(monitor.init()), np.array(correction.init())
    out = np.zeros((len(measured), 3))
    numbers = np.array(monitor.pack()), np.array(correction.pack())
    _pair(plant.pack(), *numbers, *states, columns, inside.astype(float), delay, out)
    return Paired(out[:, 0], out[:, 1], measured, inside, out[:, 2].astype(int), states[0].tolist(), states[1].tolist())


@compiled_making
def _pair(plant, monitor, correction, drift, factors, columns, inside, delay, out):
    parts = np.zeros(PARTS)
    for k in range(len(columns)):
        j = k - delay
        if j >= 0:
            mixed = parts_of(plant, columns[j, 0], columns[j, 1], columns[j, 2], columns[j, 3], columns[j, 4], parts)
            correction_step(correction, factors, parts, mixed, columns[j, 5], inside[j])
        mixed = parts_of(plant, columns[k, 0], columns[k, 1], columns[k, 2], columns[k, 3], columns[k, 4], parts)
        out[k, 0] = np.sum(parts)
        out[k, 1] = corrected_s(factors, parts, mixed)
        out[k, 2] = drift_step(monitor, drift, out[k, 0], columns[k, 5])
