"""What a law is certified against: a plant, its hull and its intervals, the setpoint, and the plant's jumps."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from headway.controllers.controller import Controller
from headway.experiments.cycles import at_the_budget
from headway.experiments.points import OperatingPoint, Place, Sector, operating_points, places, powerless, sectors, slope, step_time_s
from headway.models.identified import Hull
from headway.models.noise import Noise
from headway.models.plant import Plant
from headway.models.signals import Limits


class Case(NamedTuple):
    """What a law is certified against.

    Args:
        law: the law.
        plant: the plant.
        points: places of its hull, with a chunk each.
        places: of its hull, with room for at least one prompt token within the setpoint.
        setpoint_s: (1 - margin) budget [s].
        budget_s: longest step that keeps the ITL promise [s].
        most_tokens: largest prefill of a step [tokens].
        quantum_tokens: of the command; a cache block at least, as an engine allocates nothing less [tokens].
        interval: of the plant's coefficients, 95 %.
        noise: the plant's residuals, if they are known.
    """

    law: Controller
    plant: Plant
    points: tuple[OperatingPoint, ...]
    places: tuple[Place, ...]
    setpoint_s: float
    budget_s: float
    most_tokens: float
    quantum_tokens: float
    interval: Mapping[str, tuple[float, float]] | None
    noise: Noise | None


def case_of(
    law: Controller,
    plant: Plant,
    hull: Hull,
    limits: Limits,
    budget_s: float,
    interval: Mapping[str, tuple[float, float]] | None = None,
    noise: Noise | None = None,
) -> Case:
    """Gather what a law is certified against.

    Args:
        law: any.
        plant: the plant.
        hull: what its trace held.
        limits: of the engine.
        budget_s: longest step that keeps the ITL promise [s].
        interval: 95 % interval of each coefficient, by name.
        noise: residuals of the plant.

    Returns:
        The case.
    """
    most = float(min(getattr(law, "most_tokens", limits.max_tokens), limits.max_tokens))
    setpoint_s = (1 - law.setpoint_margin) * budget_s
    return Case(
        law,
        plant,
        tuple(dict.fromkeys(before_jumps(plant, p, setpoint_s) for p in operating_points(plant, hull, limits, most))),
        tuple(p for p in places(hull) if not powerless(plant, p, setpoint_s)),
        setpoint_s,
        budget_s,
        most,
        max(float(getattr(law, "quantum_tokens", 1.0)), float(limits.block_tokens)),
        interval,
        noise,
    )


def before_jumps(plant: Plant, point: OperatingPoint, setpoint_s: float) -> OperatingPoint:
    """A point on a side of the plant's jumps where a law can settle.

    Past a jump that makes the step longer than the setpoint a law does not stay: what a token costs there is not in
    its loop.

    Args:
        plant: the plant.
        point: any.
        setpoint_s: of the step time [s].

    Returns:
        The point, or the last chunk before such a jump.
    """
    place = Place(point.decode_requests, point.decode_kv_tokens)
    for sector in sectors(plant, place, point.prefill_tokens, point.context_tokens):
        if sector.jump_s > 0 and not settles_past(plant, place, sector, setpoint_s):
            steepness = slope(plant, place, sector.last_tokens, point.context_tokens)
            return dataclasses.replace(point, prefill_tokens=sector.last_tokens, slope_s_per_token=steepness)
    return point


def settles_past(plant: Plant, place: Place, sector: Sector, setpoint_s: float) -> bool:
    """Whether the setpoint leaves room beyond the jump that ends a sector.

    Args:
        plant: the plant.
        place: the decodes.
        sector: one with a jump at its end.
        setpoint_s: of the step time [s].

    Returns:
        True if the shortest step past the jump, that of a fresh prompt, keeps the setpoint.
    """
    return bool(step_time_s(plant, *place, np.array([sector.last_tokens + 1]))[0] <= setpoint_s)


def slope_at_setpoint(case: Case, place: Place) -> float:
    """What one more prompt token costs where the law operates.

    Args:
        case: the case.
        place: the decodes.

    Returns:
        Slope of the step time of a fresh prompt's chunk [s/token].
    """
    return slope(case.plant, place, max(1.0, at_the_budget(case.plant, place, case.setpoint_s, case.most_tokens)), 0.0)


def jumps(case: Case) -> list[tuple[Place, float, float, float]]:
    """Jumps of the plant within the law's reach.

    Args:
        case: the case.

    Returns:
        (place, chunk before the jump [tokens], step time before it [s], after it [s]) for each.
    """
    found = []
    for place in dict.fromkeys(Place(p.decode_requests, p.decode_kv_tokens) for p in case.points):
        for sector in sectors(case.plant, place, case.most_tokens):
            if sector.jump_s > 0:
                before = float(step_time_s(case.plant, *place, np.array([sector.last_tokens]))[0])
                found.append((place, sector.last_tokens, before, before + sector.jump_s))
    return found


def setpoint_in_jump(case: Case) -> str | None:
    """Whether some load of the hull puts the setpoint inside a jump, where no budget gives it.

    The hull is connected, and step times before and after the jump change steadily over it: if the least before it is
    below the setpoint and the greatest after it above, some place has it in between.

    Args:
        case: the case.

    Returns:
        A sentence, or None.
    """
    rows = jumps(case)
    if not rows or not min(r[2] for r in rows) < case.setpoint_s < max(r[3] for r in rows):
        return None
    place, tokens, before, after = min(rows, key=lambda r: abs((r[2] + r[3]) / 2 - case.setpoint_s))
    return (
        f"the setpoint of {case.setpoint_s * 1e3:.1f} ms comes to lie inside a jump of the plant, which after {tokens:,.0f} tokens beside "
        f"{place.decode_requests:,.0f} decoding requests goes from {before * 1e3:.1f} to {after * 1e3:.1f} ms: feedback alone swings across it"
    )
