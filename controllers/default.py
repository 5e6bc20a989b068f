"""The controller straight from the fit: what a user gets before any tuning, and where tuning starts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headway.controllers.policy import Policy, prefill_rate_tps
from headway.controllers.simulator import Candidate
from headway.controllers.tracker import TrackerLaw
from headway.models.identified import IdentifiedPlant
from headway.models.plant import Batch, Plant
from headway.models.signals import Limits, Target

FALLBACK_MARGIN = 0.2
"""Margin where the trace holds too few steps to derive one: the low end of what people set by hand."""

MOST_MARGIN = 0.6
"""Largest margin that the tracker is started from."""

LEAST_TOKENS = 128.0
"""Prefill budget that the law keeps where decodes alone fill the step: prompts are not held back for ever [tokens]."""

PRICE = 20.0
"""Price of a cache block, as a multiple of the time that its tokens take to prefill: long prompts let short ones pass."""

ESTIMATE = 3.0
"""Factor on the estimated time to completion where the prompts allow it: what a prompt has to expect beside its own prefill."""

ROOM = 1 / 3
"""Share of the TTFT target within which the longest prompts should be computed: the rest is for those that came before them."""

NEARLY = 0.95
"""Of the fastest prefill: what the floor goes for where steps within the ITL are too slow for the longest prompts."""

EVEN = 0.5
"""Of the fastest prefill: with no less in steps within the ITL it is kept, whatever the prompts: longer steps are then not much faster."""

LONG = 0.99
"""Quantile of the prompts that counts as the longest."""


def default_candidate(
    identified: IdentifiedPlant,
    targets: tuple[Target, ...],
    limits: Limits,
    *,
    policy: Mapping[str, Any] | None = None,
    prompt_tokens: Sequence[np.ndarray] = (),
) -> Candidate:
    """The quantile tracker started at the margins that the residuals call for, least slack first, hopeless prompts shed.

    Triage is on: a law that holds the ITL without it piles the excess onto everybody's TTFT, and past the knee that is
    worse than stock. Where long prompts share the engine with short ones, least slack alone lets the long ones, whose
    deadlines are far, pile up and then go before all others; so a block costs PRICE times its own prefill.

    Args:
        identified: the plant.
        targets: one per class; the law's late rate starts at the smallest of their epsilons.
        limits: of the engine.
        policy: what the policy is to have otherwise, by field; stock order has no price.
        prompt_tokens: lengths of the prompts that are expected, one array per class; () where nothing is known of them [tokens].

    Returns:
        Candidate.

    Raises:
        ValueError: a policy that cannot be.
    """
    most = float(limits.max_tokens)
    starts = [-math.log1p(-_margin(identified, regime)) for regime in ("decode", "mixed")]
    late_rate = min(target.epsilon for target in targets)
    law = TrackerLaw(identified.plant, late_rate=late_rate, start_decode=starts[0], start_mixed=starts[1], most_tokens=most)
    setpoint_s = (1 - law.setpoint_margin) * min(target.budget_s for target in targets)
    rate_tps = prefill_rate_tps(identified.plant, setpoint_s, limits.max_tokens)
    least = _least_tokens(identified.plant, targets, most, setpoint_s, rate_tps, prompt_tokens)
    law = dataclasses.replace(law, least_tokens=least)  # pyright: ignore[reportCallIssue]  # a dataclass by @pytree
    given = dict(policy or {})
    keyed = given.get("order", Policy().order) != "fcfs"
    own: dict[str, Any] = {
        "chunk_tokens": most,
        "running_limit": float(limits.max_seqs),
        "estimate": _estimate(targets, rate_tps, prompt_tokens),
        "memory_price_s": PRICE * limits.block_tokens / rate_tps if keyed else 0.0,
    }
    made = Policy(**(own | given))
    made.check()
    return Candidate(law, made)


def _least_tokens(
    plant: Plant, targets: tuple[Target, ...], most: float, setpoint_s: float, rate_tps: float, prompt_tokens: Sequence[np.ndarray]
) -> float:
    """LEAST_TOKENS; but where steps that keep the ITL are too slow for the longest prompts, the smallest budget that is nearly the fastest.

    There every first token that is missed costs a whole answer, a late step one token of each stream. Nothing between the two: a
    floor that makes every step with a prompt a little too long is late as often as a large one, and faster by nothing. Nor where long
    steps are no way out: if those within the ITL are at least EVEN as fast, breaking it buys too little.
    """
    least = min(LEAST_TOKENS, most)
    if all(longest <= ROOM * target.first_token_s * rate_tps for target, longest in _longest(targets, prompt_tokens)):
        return least
    tokens = np.unique(np.geomspace(least, most, 100).round())
    zero = np.zeros_like(tokens)
    context = max(longest for _, longest in _longest(targets, prompt_tokens)) / 2
    took_s = np.asarray(plant.step_time_s(Batch(zero, zero, tokens, tokens * context, zero + 1.0)))
    rates_tps = tokens / took_s
    if rates_tps[took_s <= setpoint_s].max(initial=0.0) >= EVEN * rates_tps.max():
        return least
    return float(tokens[np.argmax(rates_tps >= NEARLY * rates_tps.max())])


def _longest(targets: tuple[Target, ...], prompt_tokens: Sequence[np.ndarray]) -> list[tuple[Target, float]]:
    """The longest prompts of each class of which something is known."""
    return [(t, max(float(np.quantile(x, LONG)), 1.0)) for t, x in zip(targets, prompt_tokens, strict=False) if len(x)]


def _estimate(targets: tuple[Target, ...], rate_tps: float, prompt_tokens: Sequence[np.ndarray]) -> float:
    """The largest factor up to ESTIMATE with which the longest prompts of each class still fit their TTFT on an idle engine; 1 if unknown."""
    room = [ROOM * t.first_token_s * rate_tps / longest for t, longest in _longest(targets, prompt_tokens)]
    return float(np.clip(min(room, default=1.0), 1.0, ESTIMATE))


def _margin(identified: IdentifiedPlant, regime: str) -> float:
    margin = identified.margin.get(regime)
    return min(max(FALLBACK_MARGIN if margin is None else margin, 0.0), MOST_MARGIN)
