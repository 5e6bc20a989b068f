"""The drift monitor of a plant: as patient as the plant's own noise wants it, and what lasting change that noise hides from it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from headway.controllers.drift import RAISED, DriftMonitor
from headway.controllers.paired import pair
from headway.models.identified import IdentifiedPlant
from headway.models.noise import Noise
from headway.models.plant import Batch
from headway.models.regimes import AffinePlant

FALSE, STREAM, STREAMS = 0.3, 24_000, 6
"""False alarms per stream that the plant's own noise may raise, steps of a stream, and streams of each regime and of both."""

STRICTER, TIMES = 1.2, 10
"""Factor from one limit of the CUSUM to the next that is tried, and how often."""


def monitor_of(identified: IdentifiedPlant) -> DriftMonitor:
    """The monitor of a plant, as patient as its noise wants it.

    spread = max(.05, 1.25 mean |r|),  limit = least of 13 x 1.2^i with at most .3 false alarms in 24,000 steps of this noise

    The usual numbers are those of an engine that wanders by a few percent. One that wanders by 30 % is in alarm from its first
    steps on if 5 % is believed, and learns nothing better meanwhile: a monitor in alarm does not teach its spread. So the
    belief is what the fit's residuals show, and the limit is tried on them, drawn as the simulator draws them: steps of either
    regime, and of both in turn.

    Args:
        identified: the plant with its residuals.

    Returns:
        A monitor; the usual one where the residuals are no larger than it believes and raise no more alarms than it promises.
    """
    noise, usual = identified.noise, DriftMonitor()
    known = np.concatenate([noise.decode, noise.mixed])
    if not len(known):
        return usual
    spread = float(np.clip(1.25 * np.abs(known).mean(), usual.spread, 10.0))
    streams = _streams(noise)
    tried = [dataclasses.replace(usual, spread=spread, limit=usual.limit * STRICTER**i) for i in range(TIMES)]
    return next((monitor for monitor in tried if _quiet(monitor, streams)), tried[-1])


def hidden_change(monitor: DriftMonitor) -> float:
    """Change of the step time whose share in the whitened residual is the CUSUM's reference: a lasting one below it adds up to nothing.

    Args:
        monitor: with its spread.

    Returns:
        The change, a share of the step time.
    """
    passes = (1 - monitor.memory) / (1 - monitor.memory * (1 - monitor.gain))
    return math.expm1(max(monitor.reference * monitor.spread / passes, 0.5 * math.log1p(monitor.slowdown)))


def _streams(noise: Noise) -> list[np.ndarray]:
    """Factors of a plant's own noise, shape (STREAM,) each: decode-only steps, steps with prefill, and both as they come."""
    found = []
    for seed in range(STREAMS):
        decode, mixed = noise.draw(seed, STREAM)
        both = np.where(np.random.default_rng([seed, 0xD21F]).random(STREAM) < 0.5, mixed, decode)
        found += [x for x, own in ((decode, noise.decode), (mixed, noise.mixed), (both, noise.mixed)) if len(own)]
    return found


def _quiet(monitor: DriftMonitor, streams: list[np.ndarray]) -> bool:
    """Whether a monitor raises hardly an alarm on steps that took a plant's time but for its noise."""
    one, none, raised = np.ones(STREAM), np.zeros(STREAM), 0.0
    for factors in streams:
        found = pair(AffinePlant((1.0, 0.0, 0.0, 0.0, 0.0, 0.0)), Batch(one, one, none, none, none), factors, monitor=monitor)
        raised += found.drift[RAISED]
        if raised > FALSE * len(streams):
            return False
    return True
