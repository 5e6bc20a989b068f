"""Capacity: the highest arrival rate that a setting carries within its promise."""

from __future__ import annotations

import dataclasses

import numpy as np

from headway.controllers.simulator import Candidate, Draw, evaluate, simulate
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


def class_capacity_factors(
    identified: IdentifiedPlant, candidate: Candidate, draws: list[Draw], targets: tuple[Target, ...], limits: Limits
) -> np.ndarray:
    """Highest rate of all classes together, as a factor on the draws' own, at which one class still attains 1 - its epsilon.

    The class that fails first bounds the others' use of the engine, not their promise: their factors show what they have left.

    Args:
        identified: the plant.
        candidate: law and policy.
        draws: workloads and noise; their arrivals are stretched.
        targets: one per class.
        limits: of the engine.

    Returns:
        Factors, shape (classes,); LOWEST where even that rate is too much.
    """
    found = np.empty(len(targets))
    for c, target in enumerate(targets):
        low, high = np.log(LOWEST), np.log(HIGHEST)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            on_time = owed = 0.0
            for drawn in draws:
                denser = dataclasses.replace(drawn.workload, arrival_s=drawn.workload.arrival_s * np.exp(-middle))
                outcome = simulate(identified, candidate, drawn._replace(workload=denser), targets, limits)
                mine = outcome.class_id == c
                on_time, owed = on_time + outcome.on_time[mine].sum(), owed + outcome.owed[mine].sum()
            low, high = (middle, high) if on_time >= (1 - target.epsilon) * owed else (low, middle)
        found[c] = np.exp(low)
    return found
