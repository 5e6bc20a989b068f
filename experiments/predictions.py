"""What a validation says of its plant: every prediction paired with its measurement, the drift alarm, and the online correction."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from headway.controllers.correction import PlantCorrection
from headway.controllers.drift import DOWN, UP, DriftMonitor
from headway.controllers.paired import Paired, pair
from headway.experiments.drift_monitor import hidden_change, monitor_of
from headway.models.identified import IdentifiedPlant
from headway.models.plant import Batch

FEW_ALARMS = 3
"""Alarms that are named one by one; the others are counted."""


@dataclasses.dataclass(frozen=True)
class Alarm:
    """One alarm of the drift monitor.

    Args:
        run: of the validation, from 1.
        step: of the run at which it was raised, from 1.
        steps: it lasted.
        size: change of the step time against the plant from where its CUSUM left zero to where it last stood highest, a share;
            positive is slower. What comes after, till the alarm ends, is the way back.
        lasting: it was still there when the record of the run ended.
    """

    run: int
    step: int
    steps: int
    size: float
    lasting: bool


@dataclasses.dataclass(frozen=True)
class Predictions:
    """Predictions of the fitted plant, and of the plant corrected online, against the steps of a validation.

    Args:
        runs: of the controller that recorded steps.
        steps: paired, in all.
        outside: of them outside the plant's hull.
        bias: median of measured over predicted, less 1.
        error: mean of |predicted / measured - 1| by regime, "decode" and "mixed"; NaN for a regime without steps.
        corrected_error: the same for the plant corrected by the steps known when each was composed.
        alarms: of the drift monitor, in order.
        hidden: lasting change of the step time up to which the plant's noise hides it from the alarm, a share.
    """

    runs: int
    steps: int
    outside: int
    bias: float
    error: dict[str, float]
    corrected_error: dict[str, float]
    alarms: list[Alarm]
    hidden: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            The fields, and `said`: the same in sentences.
        """
        known = lambda rows: {k: None if math.isnan(v) else v for k, v in rows.items()}  # noqa: E731
        whole = dataclasses.asdict(self)
        return {**whole, "error": known(self.error), "corrected_error": known(self.corrected_error), "said": self.sentences()}

    def sentences(self) -> list[str]:
        """What there is to say.

        Returns:
            One sentence on the alarm, one on the errors.
        """
        off = "; ".join(
            f"{regime} {100 * self.error[regime]:.1f} %, with the plant corrected online {100 * self.corrected_error[regime]:.1f} %"
            for regime in self.error
            if not math.isnan(self.error[regime])
        )
        where = f"{self.steps:,} steps of {self.runs} run{'s' * (self.runs != 1)}"
        most = f"{100 * abs(self.bias):.1f} % {'longer' if self.bias > 0 else 'less'} than" if abs(self.bias) >= 5e-4 else "as long as"
        return [_alarmed(self.alarms, where, self.hidden), f"steps took {most} predicted in the median; mean error {off}"]


def _alarms(run: int, one: Paired, monitor: DriftMonitor) -> list[Alarm]:
    """The alarms of a run, without those of an engine that only came back.

    The CUSUM whitens, so the end of an excursion looks like a shift the other way, though the steps then take what the plant
    says. A shift below half of the slowdown to be found is left out as well: the monitor promises silence on it.
    """
    if not one.alarms:
        return []
    behind, cusum = _followed(one, monitor)
    least, found = 0.5 * math.log1p(monitor.slowdown), []
    for first, last, direction in one.alarms:
        side = UP if direction > 0 else DOWN
        path = cusum[side][first:last]
        top = first + len(path) - int(np.argmax(path[::-1]))  # behind the last of the highest: it stands at its cap while a shift lasts
        rows = slice(behind[side][first], top)
        factor = float(np.median(one.step_time_s[rows] / np.maximum(one.fitted_s[rows], 1e-12)))
        if direction * math.log(max(factor, 1e-12)) >= least:
            found.append(Alarm(run, first + 1, last - first, factor - 1, last == len(one.alarm)))
    return found


def _followed(one: Paired, monitor: DriftMonitor) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
    """By CUSUM: the step at which it last left zero, and where it stands, shapes (k,)."""
    state, steps = monitor.init(), len(one.alarm)
    behind, cusum = ({UP: np.zeros(steps, kind), DOWN: np.zeros(steps, kind)} for kind in (int, float))
    for k in range(steps):
        state, _ = monitor.update(state, one.fitted_s[k], one.step_time_s[k])
        for side in (UP, DOWN):
            cusum[side][k] = state[side]
            behind[side][k] = k + 1 if state[side] <= 0 else behind[side][k - 1] if k else 0
    return behind, cusum


def paired_predictions(logs: list[np.ndarray], identified: IdentifiedPlant) -> Predictions | None:
    """Pair the recorded steps of a controller's runs with what the plant says of them, each run from a fresh monitor.

    Args:
        logs: one per run, each of shape (k, LOG_COLUMNS); a run of which nothing was recorded is left out.
        identified: the plant that predicts, with the residuals that say how noisy its steps are.

    Returns:
        Predictions; None where no step was recorded.
    """
    if not any(map(len, logs)):
        return None
    monitor, correction = monitor_of(identified), PlantCorrection.of(identified)
    found: list[Paired] = []
    mixed: list[np.ndarray] = []
    alarms: list[Alarm] = []
    for run, log in enumerate(logs, 1):
        if not len(log):
            continue
        batch = Batch(*(log[:, k] for k in (2, 3, 4, 5, 6)))
        one = pair(identified.plant, batch, log[:, 1], hull=identified.hull, monitor=monitor, correction=correction)
        found.append(one)
        mixed.append(log[:, 4] > 0)
        alarms += _alarms(run, one, monitor)
    took, fitted, corrected, inside = (
        np.concatenate([getattr(one, name) for one in found]) for name in ("step_time_s", "fitted_s", "corrected_s", "inside")
    )
    regime = np.concatenate(mixed)
    bias = float(np.median(took / np.maximum(fitted, 1e-12))) - 1
    error, corrected_error = (_errors(said, took, regime) for said in (fitted, corrected))
    return Predictions(len(found), len(took), int((~inside).sum()), bias, error, corrected_error, alarms, hidden_change(monitor))


def _errors(said_s: np.ndarray, took_s: np.ndarray, mixed: np.ndarray) -> dict[str, float]:
    off = np.abs(said_s / took_s - 1)
    return {name: float(off[rows].mean()) if rows.any() else math.nan for name, rows in (("decode", ~mixed), ("mixed", mixed))}


def _alarmed(alarms: list[Alarm], where: str, hidden: float) -> str:
    if not alarms and hidden > DriftMonitor().slowdown:
        return f"no drift alarm in {where}; the noise of this plant hides a lasting change of up to {100 * hidden:.0f} %"
    if not alarms:
        return f"no drift alarm in {where}: the engine behaves as its plant says"
    said = [
        f"at step {a.step:,} of run {a.run}: steps took {100 * abs(a.size):.0f} % {'longer' if a.size > 0 else 'less'} than the plant says, "
        f"for {a.steps:,} steps{' and to the end' * a.lasting}"
        for a in alarms[:FEW_ALARMS]
    ]
    more = f"; {len(alarms) - FEW_ALARMS} more" if len(alarms) > FEW_ALARMS else ""
    inside = f"{sum(a.steps for a in alarms):,} of {where}"
    what = (
        "if it stays"
        if any(a.lasting for a in alarms)
        else "each ended within its run: look what else the device did then; if they come again"
    )
    return f"drift alarm {'; '.join(said)}{more} ({inside}); {what}, record a trace and run `headway fit` on it"
