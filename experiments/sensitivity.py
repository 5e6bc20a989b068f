"""Dead knobs: which of the free numbers change anything at all on a probe workload, and which never fired."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.experiments.space import Space
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Target

PROBES = 3
"""Values tried of each number: both ends of its axis, and the middle."""

NEVER_FIRED = "never fired on this workload"
"""How the sentence on dead numbers begins."""


class Sensitivity(NamedTuple):
    """What a number changes.

    Args:
        name: of the number.
        values: tried, in its own unit; the one in force comes on top.
        change: largest relative change of any measure against the value in force, over all draws [1].
        fired: some measure of some draw changed; False for a dead knob.
    """

    name: str
    values: tuple[float, ...]
    change: float
    fired: bool


def sensitivities(
    identified: IdentifiedPlant, space: Space, around: Candidate, draws: list[Draw], targets: tuple[Target, ...]
) -> list[Sensitivity]:
    """Move every free number over its whole axis, one at a time, on the same arrivals and the same noise.

    change = max |m(x) - m(x0)| / max(|m(x)|, |m(x0)|)

    over measures m, draws, and values x. With common random numbers a number that nothing reads changes no measure in any
    digit, so no threshold is needed. It is not a ranking: the ends of an axis are far apart. A number whose place a gain schedule
    has taken is no free one, see `headway.experiments.space.followed`, and is not called dead.

    Args:
        identified: the plant.
        space: the free numbers.
        around: values of all others, and of each while another is moved.
        draws: the probe: workloads with noise.
        targets: one per class.

    Returns:
        One per free number, in the order of the space.

    Example:
        >>> from headway.experiments.sensitivity import Sensitivity, dead_sentence
        >>> dead_sentence([Sensitivity("stride", (0.0, 0.5, 1.0), 0.0, False)])
        'never fired on this workload, so its value means nothing: stride'
    """
    start = space.point(around)
    axes = [np.linspace(low, high, PROBES) for low, high in zip(space.low, space.high, strict=True)]
    points = [start, *(np.where(np.arange(len(start)) == i, x, start) for i, axis in enumerate(axes) for x in axis)]
    measures = evaluate(identified, [space.candidate(p) for p in points], draws, targets, space.limits)
    found = []
    for i, free in enumerate(space.free):
        at = 1 + i * PROBES
        moved = measures[at : at + PROBES]
        least = np.maximum(np.maximum(np.abs(moved), np.abs(measures[0])), 1e-300)
        # a measure that is NaN, no gap at all, is equal to itself
        change = np.where(np.isnan(moved) & np.isnan(measures[0]), 0.0, np.abs(moved - measures[0]) / least)
        fired = bool(np.any(change != 0))
        values = tuple(space.values(p)[free.name] for p in points[at : at + PROBES])
        found.append(Sensitivity(free.name, values, float(np.nanmax(change, initial=0.0)), fired))
    return found


def dead_sentence(found: list[Sensitivity]) -> str:
    """The numbers that never fired, in one line.

    Args:
        found: as from `sensitivities`.

    Returns:
        A sentence; empty where every number changed something.
    """
    dead = [s.name for s in found if not s.fired]
    if not dead:
        return ""
    return f"{NEVER_FIRED}, so {'its value means' if len(dead) == 1 else 'their values mean'} nothing: {', '.join(dead)}"
