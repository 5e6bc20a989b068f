"""Goodput against batch: what a stock engine makes of one load as its running limit grows. It rises, bends, and collapses."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.experiments.baseline import Static
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ATTAINMENT, GOODPUT_TPS, THROUGHPUT_TPS
from headway.models.signals import Limits, Target

SIZES = 24
"""Running limits tried, evenly spaced on a logarithmic scale."""


class BatchCurve(NamedTuple):
    """One load under each running limit, shapes (k,).

    Args:
        running_limit: most requests running [requests].
        throughput_tps: tokens per second, on time or not [tokens/s].
        goodput_tps: tokens on time per second [tokens/s].
        attainment: tokens on time / tokens owed, in [0, 1].
        token_budget: of every step [tokens].
    """

    running_limit: np.ndarray
    throughput_tps: np.ndarray
    goodput_tps: np.ndarray
    attainment: np.ndarray
    token_budget: int

    @property
    def best(self) -> int:
        """Place of the greatest goodput."""
        return int(np.argmax(self.goodput_tps))


def batch_curve(
    identified: IdentifiedPlant,
    draws: list[Draw],
    targets: tuple[Target, ...],
    limits: Limits,
    token_budget: int,
    *,
    beside: Candidate | None = None,
) -> tuple[BatchCurve, float | None]:
    """Serve one load under each running limit, first come first served, nothing shed.

    Args:
        identified: the plant.
        draws: workloads and noise.
        targets: one per class.
        limits: of the engine: the largest running limit is its own.
        token_budget: of every step [tokens].
        beside: a controller to serve the same load with; None for none.

    Returns:
        (the curve, goodput of the controller [tokens/s] or None).
    """
    sizes = np.unique(np.round(np.geomspace(1, limits.max_seqs, SIZES)).astype(int))
    settings = [Static(token_budget, int(n)).candidate() for n in sizes]
    means = evaluate(identified, [*settings, *([beside] if beside else [])], draws, targets, limits).mean(axis=1)
    rows = means[: len(sizes)]
    curve = BatchCurve(sizes, rows[:, THROUGHPUT_TPS], rows[:, GOODPUT_TPS], rows[:, ATTAINMENT], token_budget)
    return curve, float(means[-1, GOODPUT_TPS]) if beside else None
