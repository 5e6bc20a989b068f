"""The controller straight from the fit: what a user gets before any tuning, and where tuning starts."""

from __future__ import annotations

import numpy as np

from headway.controllers.pi import PILaw
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate
from headway.models.identified import IdentifiedPlant
from headway.models.plant import Batch
from headway.models.signals import Limits, Target

FALLBACK_MARGIN = 0.2
"""Margin where the trace holds too few steps to derive one: the low end of what people set by hand."""

TYPICAL_SHARE = 0.5
"""Of the trace's hull: where the plant's slope is read off."""


def slope_s_per_token(identified: IdentifiedPlant, limits: Limits) -> float:
    """What one more prompt token costs, at the steep end of what the trace held.

    A chunk costs the more the longer the context before it. The slope at the longest context makes the loop's gain at
    most what it was designed for; a mean slope would let long prompts drive it towards instability.

    Args:
        identified: the plant.
        limits: of the engine.

    Returns:
        Slope of the step time in the prefill tokens of one chunk [s/token].
    """
    n = max(1.0, TYPICAL_SHARE * identified.hull.decode_requests)
    kv = TYPICAL_SHARE * identified.hull.decode_kv_tokens
    reach = longest_reach(identified)
    low, high = max(1.0, limits.max_tokens / 32), max(2.0, limits.max_tokens / 8)
    columns = ((n, n), (kv, kv), (low, high), (low * reach, high * reach), (1, 1))
    times = identified.plant.step_time_s(Batch(*(np.array(pair, float) for pair in columns)))
    return float(max((times[1] - times[0]) / (high - low), 1e-9))


def longest_reach(identified: IdentifiedPlant) -> float:
    """Tokens that a prefill token attends to, at the step of the trace that worked hardest at it.

    Args:
        identified: the plant with its hull.

    Returns:
        Attention pairs per prefill token [tokens].
    """
    return identified.hull.prefill_pairs / max(identified.hull.prefill_tokens, 1.0)


def default_candidate(identified: IdentifiedPlant, targets: tuple[Target, ...], limits: Limits) -> Candidate:
    """PI on the step time with the margin that the residuals call for, least slack first, prompts that cannot make it shed.

    Triage is on: a law that holds the ITL without it piles the excess onto everybody's TTFT, and past the knee that is
    worse than stock.

    Args:
        identified: the plant.
        targets: one per class.
        limits: of the engine.

    Returns:
        Candidate.
    """
    margin = identified.margin.get("mixed") or identified.margin.get("decode") or FALLBACK_MARGIN
    margin = float(np.clip(margin, 0.02, 0.5))
    budget_s = min(t.budget_s for t in targets)
    tokens = np.unique(np.geomspace(1, limits.max_tokens, 200).round())
    n = np.full_like(tokens, TYPICAL_SHARE * identified.hull.decode_requests)
    kv = np.full_like(tokens, TYPICAL_SHARE * identified.hull.decode_kv_tokens)
    fits = tokens[
        np.asarray(identified.plant.step_time_s(Batch(n, kv, tokens, tokens**2 / 2, np.ones_like(tokens)))) <= (1 - margin) * budget_s
    ]
    law = PILaw(
        margin=margin,
        slope_s_per_token=slope_s_per_token(identified, limits),
        initial_tokens=float(fits[-1]) if len(fits) else max(1.0, limits.max_tokens / 64),
        most_tokens=float(limits.max_tokens),
    )
    return Candidate(law, Policy(chunk_tokens=float(limits.max_tokens), running_limit=float(limits.max_seqs)))
