"""Goodput against load: the same contenders on the same held-out seeds, arrivals stretched."""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ATTAINMENT, CLEAN, GOODPUT_TPS, ITL_P99_S, SHED
from headway.models.signals import Limits, Target

FACTORS = (0.5, 0.65, 0.8, 0.9, 1.0, 1.1, 1.25, 1.4, 1.6)
"""Loads shown, as factors on the workload's own rate."""


def load_curve(
    identified: IdentifiedPlant,
    contenders: dict[str, Candidate],
    draws: list[Draw],
    targets: tuple[Target, ...],
    limits: Limits,
    factors: tuple[float, ...] = FACTORS,
) -> dict[str, Any]:
    """What each contender makes of lighter and heavier loads. Settings stay as they were chosen for the load of factor 1.

    Args:
        identified: the plant.
        contenders: by name.
        draws: held-out workloads and noise.
        targets: one per class.
        limits: of the engine.
        factors: loads, as factors on the workload's own rate.

    Returns:
        {"rate_rps": [...], name: {"attainment": [...], "request_attainment", "goodput_tps", "itl_p99_s", "shed"}}.
    """
    rate = float(np.mean([d.workload.rate_rps for d in draws]))
    curve: dict[str, Any] = {"rate_rps": [rate * f for f in factors]}
    names = {"attainment": ATTAINMENT, "request_attainment": CLEAN, "goodput_tps": GOODPUT_TPS, "itl_p99_s": ITL_P99_S, "shed": SHED}
    stretch = 1.0 / np.asarray(factors)
    for name, candidate in contenders.items():
        means = evaluate(identified, [candidate] * len(factors), draws, targets, limits, stretch=stretch).mean(axis=1)
        curve[name] = {label: [float(x) for x in means[:, column]] for label, column in names.items()}
    return curve
