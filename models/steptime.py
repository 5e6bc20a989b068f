"""The compiled form of every plant: one function over one array of numbers, for the exact simulator's inner loop."""

from __future__ import annotations

from headway.models.compiled import compiled_inline

PACKED = 12
"""Length of a packed plant: six terms for decode-only steps, then six for steps with prefill."""


@compiled_inline
def step_time(plant, decode_requests, decode_kv_tokens, prefill_tokens, prefill_pairs, prefill_requests):
    """Predicted duration of one step.

    t = c0 + c1 n + c2 kv + c3 p + c4 pairs + c5 r, the six numbers of the regime that the step is in.

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
    return (
        plant[o]
        + plant[o + 1] * decode_requests
        + plant[o + 2] * decode_kv_tokens
        + plant[o + 3] * prefill_tokens
        + plant[o + 4] * prefill_pairs
        + plant[o + 5] * prefill_requests
    )
