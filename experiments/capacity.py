"""Capacity: the highest arrival rate that a setting carries within its promise."""

from __future__ import annotations

import numpy as np

from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ON_TIME, OWED
from headway.models.signals import Limits, Target

LOWEST, HIGHEST = 1 / 16, 16.0
"""Rates searched, as factors on the workload's own."""

HALVINGS = 10
"""Bisections: the factor is exact to 0.6 %."""


def capacity_factor(
    identified: IdentifiedPlant, candidates: list[Candidate], draws: list[Draw], targets: tuple[Target, ...], limits: Limits
) -> np.ndarray:
    """Highest rate, as a factor on the draws' own, at which attainment is at least 1 - epsilon.

    All candidates are bisected together. Attainment is taken to fall with the rate; where it does not, a rate is found
    at which it crosses.

    Args:
        identified: the plant.
        candidates: to compare.
        draws: workloads and noise; their arrivals are stretched.
        targets: one per class; the least epsilon decides.
        limits: of the engine.

    Returns:
        Factors, shape (candidates,); LOWEST where even that rate is too much.
    """
    promise = 1 - min(t.epsilon for t in targets)
    low, high = np.full(len(candidates), np.log(LOWEST)), np.full(len(candidates), np.log(HIGHEST))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        measures = evaluate(identified, candidates, draws, targets, limits, stretch=np.exp(-middle))
        fine = measures[..., ON_TIME].sum(axis=1) >= promise * measures[..., OWED].sum(axis=1)
        low, high = np.where(fine, middle, low), np.where(fine, high, middle)
    return np.exp(low)
