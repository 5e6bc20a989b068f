"""The controller straight from the fit: what a user gets before any tuning, and where tuning starts."""

from __future__ import annotations

import math

from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate
from headway.controllers.tracker import TrackerLaw
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits, Target

FALLBACK_MARGIN = 0.2
"""Margin where the trace holds too few steps to derive one: the low end of what people set by hand."""

MOST_MARGIN = 0.6
"""Largest margin that the tracker is started from."""


def default_candidate(identified: IdentifiedPlant, targets: tuple[Target, ...], limits: Limits) -> Candidate:
    """The quantile tracker started at the margins that the residuals call for, least slack first, hopeless prompts shed.

    Triage is on: a law that holds the ITL without it piles the excess onto everybody's TTFT, and past the knee that is
    worse than stock.

    Args:
        identified: the plant.
        targets: one per class; the law's late rate starts at the smallest of their epsilons.
        limits: of the engine.

    Returns:
        Candidate.
    """
    most = float(limits.max_tokens)
    starts = [-math.log1p(-_margin(identified, regime)) for regime in ("decode", "mixed")]
    late_rate = min(target.epsilon for target in targets)
    law = TrackerLaw(identified.plant, late_rate=late_rate, start_decode=starts[0], start_mixed=starts[1], most_tokens=most)
    return Candidate(law, Policy(chunk_tokens=most, running_limit=float(limits.max_seqs)))


def _margin(identified: IdentifiedPlant, regime: str) -> float:
    margin = identified.margin.get(regime)
    return min(max(FALLBACK_MARGIN if margin is None else margin, 0.0), MOST_MARGIN)
