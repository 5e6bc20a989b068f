"""The compiled form of every plant: one function over one array of numbers, for the exact simulator's inner loop."""

from __future__ import annotations

import math

from headway.models.compiled import compiled, compiled_inline

PACKED = 36
"""Length of a packed plant: six linear terms for decode-only steps, six for steps with prefill, its kind, and what that kind adds."""
KIND = 12
"""Where the kind stands."""
LINEAR, CURVED, ROOFLINE, CONCURRENCY = 0.0, 1.0, 2.0, 3.0
CURVES = 8
"""Terms that bend, per regime, in a curved plant; the numbers of their shapes follow."""


@compiled_inline
def step_time(plant, decode_requests, decode_kv_tokens, prefill_tokens, prefill_pairs, prefill_requests):
    """Predicted duration of one step.

    t = c0 + c1 n + c2 kv + c3 p + c4 pairs + c5 r, the six numbers of the regime that the step is in, and what bends

    Args:
        plant: packed plant, shape (PACKED,).
        decode_requests: n [requests].
        decode_kv_tokens: kv [tokens].
        prefill_tokens: p [tokens]; any prefill puts the step in the mixed regime.
        prefill_pairs: pairs [tokens^2].
        prefill_requests: r [requests].

    Returns:
        Duration [s].
    """
    o = 6 if prefill_tokens > 0.0 else 0
    t = (
        plant[o]
        + plant[o + 1] * decode_requests
        + plant[o + 2] * decode_kv_tokens
        + plant[o + 3] * prefill_tokens
        + plant[o + 4] * prefill_pairs
        + plant[o + 5] * prefill_requests
    )
    if plant[KIND] != LINEAR:
        t += _bent(plant, decode_requests, decode_kv_tokens, prefill_tokens, prefill_pairs, prefill_requests)
    return t


@compiled
def _bent(plant, n, kv, p, pairs, r):
    """What the structures that are not linear add to their linear part."""
    tokens = n + p
    if plant[KIND] == ROOFLINE:
        power = plant[KIND + 5]
        memory = plant[KIND + 1] + plant[KIND + 2] * kv
        return p_norm(memory, plant[KIND + 3] * tokens + plant[KIND + 4] * pairs, power)
    if plant[KIND] == CONCURRENCY:
        return plant[KIND + 1] * math.sqrt(n)
    o = KIND + 1 + (CURVES if p > 0.0 else 0)
    s = KIND + 1 + 2 * CURVES
    knee, power, spread, stride, cache = plant[s], plant[s + 1], plant[s + 2], plant[s + 5], plant[s + 6]
    limit = plant[s + 4] if p > 0.0 else plant[s + 3]
    context = max(pairs * r / p - p / 2.0, 0.0) if p > 0.0 else 0.0
    longest = max(kv / n if n > 0.0 else 0.0, context / r if r > 0.0 else 0.0)
    t = plant[o] * context + plant[o + 1] * longest
    if plant[o + 2] > 0.0:
        t += plant[o + 2] * p_norm(tokens, knee, power)
    if plant[o + 3] > 0.0 and spread > 0.0:
        t += plant[o + 3] * (1.0 - math.exp(-tokens / spread))
    if plant[o + 4] > 0.0:
        t += plant[o + 4] * padded(tokens, stride, limit)
    if tokens > limit:
        t += plant[o + 5] + plant[o + 6] * (tokens - limit)
    return t + plant[o + 7] * max(kv - cache, 0.0)


@compiled
def p_norm(a, b, power):
    """(a^q + b^q)^(1/q), without overflow; the larger of the two where q is 0, which stands for infinity.

    Args:
        a: not negative.
        b: not negative, in the unit of a.
        power: q, at least 1; 0 for the maximum.

    Returns:
        The norm, in the unit of a.
    """
    large, small = max(a, b), min(a, b)
    if power <= 0.0 or large <= 0.0 or small <= 0.0:
        return large
    return large * (1.0 + (small / large) ** power) ** (1.0 / power)


@compiled
def padded(tokens, stride, limit):
    """Tokens that a captured graph computes: powers of two up to the stride, then its multiples, up to the limit.

    Args:
        tokens: in the step [tokens].
        stride: distance of the captured sizes [tokens]; at most 1 means no padding.
        limit: the largest captured size; a larger step runs without a graph and is not padded [tokens].

    Returns:
        Padded tokens [tokens].
    """
    if stride <= 1.0 or tokens <= 0.0 or tokens > limit:
        return tokens
    size = 2.0 ** math.ceil(math.log2(tokens)) if tokens <= stride else math.ceil(tokens / stride) * stride
    return min(size, limit)
