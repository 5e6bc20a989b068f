"""How much of the engine a load takes: the same law with everybody waiting, what runs carried, and what the plant's interval says."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from headway.controllers.simulator import Candidate, Draw, draw, simulate
from headway.models.bottleneck import batch_of, resources
from headway.models.goodput import FINISHED, REJECTED, Outcome, summarise
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits, Target
from headway.models.stability import Load, agreed, flooded_rps, load_of, load_verdict, plant_interval
from headway.models.workload import WorkloadSource

FLOOD = 1e-3
"""Arrivals are drawn together to this part of their time: everybody waits from the first steps on."""

REQUESTS = 8192
"""Requests of the flood: many times what runs at once, and so many that whom it drew says little."""

ROUNDS = 3
"""Requests of the flood for each that runs at once: with fewer it only fills the engine and drains it again."""

BEYOND = 1e-6
"""Share by which capacity lies above a rate that runs carried, and below one at which their backlog grew: load 1 is neither."""

STEPS = 4000
"""Steps recorded, over which the plant's interval is taken."""


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

    capacity: requests per second that the same law ends in order of arrival, nobody shed, when everybody has arrived, and
    no less than what the runs served without a growing backlog; rho = rate / capacity

    One more simulation, whose own chance in whom it drew is part of the interval. It serves in order of arrival because in the
    long run a load is carried only if all of it is. By slack the longest prompts of a crowd that came at once go first: the
    requests that end in any part of such a flood are not those that arrive, and its rate is theirs. Shedding is off for the
    same reason. Its ends are not simulated: an engine whose steps all take a share longer serves that share less.

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
    drawn = draw(source, identified, seed, REQUESTS, heldout=True)
    if drawn.workload.after is not None and (drawn.workload.after >= 0).any():
        return None
    flooded = flood(identified, candidate, drawn, targets, limits)
    (capacity_rps, drawn_half), arriving_rps = flooded_rps(flooded), rate_of(outcomes)
    crowded = (flooded.status == FINISHED).sum() >= ROUNDS * flooded.largest[0]
    if not (crowded and np.isfinite(capacity_rps) and np.isfinite(arriving_rps)):
        return None
    seen = agreed([load_verdict(o) for o in outcomes])
    carried_rps = (1 + BEYOND) * arriving_rps * served_share(outcomes) if seen == "stable" else 0.0
    capacity_rps = max(capacity_rps, carried_rps)
    # what the runs showed the flood's chance does not undo: a load that was carried, or that was too much
    late = min(drawn_half, capacity_rps / carried_rps - 1) if carried_rps > 0 else drawn_half
    over = 1 - (1 + BEYOND) * capacity_rps / arriving_rps
    early = min(drawn_half, over) if seen == "unstable" and over > 0 else drawn_half
    slower, faster = plant_interval(identified, batch_of(flooded.log))
    slower, faster = math.hypot(slower, late), min(math.hypot(faster, early), 0.99)
    return load_of(arriving_rps, capacity_rps, slower, faster, seen)


def flood(identified: IdentifiedPlant, candidate: Candidate, drawn: Draw, targets: tuple[Target, ...], limits: Limits) -> Outcome:
    """A run in which all requests arrive at once, nearly, and are served in that order; nobody is shed, or leaves.

    Args:
        identified: the plant.
        candidate: law and policy; what else the policy says than order and triage stays, as do its limits.
        drawn: requests and noise.
        targets: one per class.
        limits: of the engine.

    Returns:
        Outcome, with its first steps recorded.
    """
    arrival_s = FLOOD * (drawn.workload.arrival_s - drawn.workload.arrival_s[0])
    crowd = dataclasses.replace(drawn.workload, arrival_s=arrival_s, patience_s=None, cancel_s=None)
    # deadlines equally far off are the order of arrival for whatever needs a key: phases, strides, shares
    order = "fcfs" if candidate.policy.order == "fcfs" else "edf"
    policy = dataclasses.replace(candidate.policy, order=order, triage="none", priority_s=(), memory_price_s=0.0)
    alike = tuple(dataclasses.replace(target, ttft_s=targets[0].ttft_s) for target in targets)
    return simulate(identified, candidate._replace(policy=policy), drawn._replace(workload=crowd), alike, limits, record_steps=STEPS)


def served_share(outcomes: list[Outcome]) -> float:
    """Requests that were not shed, failed or left by a client who had waited too long, as a share of all.

    Args:
        outcomes: at least one.

    Returns:
        In [0, 1].
    """
    return 1.0 - sum(int((o.status >= REJECTED).sum()) for o in outcomes) / max(sum(len(o.status) for o in outcomes), 1)


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
