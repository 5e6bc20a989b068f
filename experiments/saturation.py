"""How much of the engine a load takes: the same law and policy with everybody waiting, and what the plant's interval makes of it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from headway.controllers.simulator import Candidate, draw, simulate
from headway.models.bottleneck import batch_of, resources
from headway.models.goodput import FINISHED, Outcome, summarise
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits, Target
from headway.models.stability import Load, agreed, flooded_rps, load_of, load_verdict, plant_interval
from headway.models.workload import WorkloadSource

FLOOD = 1e-3
"""Arrivals are drawn together to this part of their time: everybody waits from the first steps on."""

REQUESTS = 1024
"""Requests of the flood, at least: many times what runs at once on most engines."""

ROUNDS = 3
"""Requests of the flood for each that runs at once: with fewer it only fills the engine and drains it again."""

STEPS = 4000
"""Steps recorded, over which the plant's interval is taken."""

MOST_REQUESTS = 8192
"""Requests of the flood, at most."""


def load_on(
    identified: IdentifiedPlant,
    candidate: Candidate,
    source: WorkloadSource,
    targets: tuple[Target, ...],
    limits: Limits,
    outcomes: list[Outcome],
    *,
    seed: int = 0,
) -> Load | None:
    """Verdict on the load of runs, with the interval that the plant's intervals imply.

    capacity: requests per second that the same law and policy end, nobody shed, when everybody has arrived; rho = rate / capacity

    One more simulation, whose own chance in whom it drew is part of the interval. Its ends are not simulated: an engine
    whose steps all take a share longer serves that share less, whoever it chooses.

    Args:
        identified: the plant.
        candidate: law and policy of the runs.
        source: of their workloads.
        targets: one per class.
        limits: of the engine.
        outcomes: the runs, for their rate and what was seen.
        seed: of the flood.

    Returns:
        Load; None where arrivals wait for answers, so that no queue can grow for good, or too few requests end to say.
    """
    wanted = int(min(max(REQUESTS, (ROUNDS + 1) * limits.max_seqs), MOST_REQUESTS))
    drawn = draw(source, identified, seed, wanted, heldout=True)
    if drawn.workload.after is not None and (drawn.workload.after >= 0).any():
        return None
    arrival_s = FLOOD * (drawn.workload.arrival_s - drawn.workload.arrival_s[0])
    crowd = dataclasses.replace(drawn.workload, arrival_s=arrival_s, patience_s=None, cancel_s=None)
    patient = candidate._replace(policy=dataclasses.replace(candidate.policy, triage="none"))
    flooded = simulate(identified, patient, drawn._replace(workload=crowd), targets, limits, record_steps=STEPS)
    (capacity_rps, drawn_half), arriving_rps = flooded_rps(flooded), rate_of(outcomes)
    crowded = (flooded.status == FINISHED).sum() >= ROUNDS * flooded.largest[0]
    if not (crowded and np.isfinite(capacity_rps) and np.isfinite(arriving_rps)):
        return None
    slower, faster = (min(math.hypot(end, drawn_half), 0.99) for end in plant_interval(identified, batch_of(flooded.log)))
    return load_of(arriving_rps, capacity_rps, slower, faster, agreed([load_verdict(o) for o in outcomes]))


def figures_of(
    identified: IdentifiedPlant,
    candidate: Candidate,
    source: WorkloadSource,
    targets: tuple[Target, ...],
    limits: Limits,
    outcomes: list[Outcome],
) -> dict[str, Any]:
    """All figures of runs, their load and where the time of recorded steps went included.

    Args:
        identified: the plant.
        candidate: law and policy of the runs.
        source: of their workloads.
        targets: one per class.
        limits: of the engine.
        outcomes: the runs; steps of the first are taken where it recorded any.

    Returns:
        Fields of `headway.models.goodput.Goodput`, and "resources" of `headway.models.bottleneck.resources`.
    """
    load = load_on(identified, candidate, source, targets, limits, outcomes)
    return {**summarise(outcomes, targets, load).to_json(), "resources": resources(identified.plant, batch_of(outcomes[0].log))}


def rate_of(outcomes: list[Outcome]) -> float:
    """Requests that arrived per second, all runs together.

    Args:
        outcomes: at least one.

    Returns:
        [requests/s]; NaN where all arrived at once.
    """
    came = sum(max(len(o.arrival_s) - 1, 0) for o in outcomes)
    span_s = sum(float(o.arrival_s.max() - o.arrival_s.min()) for o in outcomes)
    return came / span_s if span_s > 0 else float("nan")
