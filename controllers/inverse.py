"""The plant turned round: how many prompt tokens a step can take and still end in time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from headway.models.compiled import compiled
from headway.models.plant import Batch, Plant
from headway.models.steptime import step_time

HALVINGS = 21
"""Halvings after which a budget of up to two million tokens is known to the token."""


@compiled
def largest_prefill(plant, decode_requests, decode_kv_tokens, context_tokens, seconds, most):
    """Most prompt tokens with which the predicted step does not exceed a duration.

    max u in {0, 1, ..., most}:  F(n, kv, u, u (context + u / 2), 1) <= seconds

    Every plant grows with u, so halving finds it, across a jump as well: a step never lands past one that it has no
    time for.

    Args:
        plant: packed, shape (PACKED,).
        decode_requests: that the step decodes [requests].
        decode_kv_tokens: cache tokens that they read [tokens].
        context_tokens: of the prompt at the head, computed already [tokens].
        seconds: longest step [s].
        most: upper limit, a whole number [tokens].

    Returns:
        Prompt tokens, 0 if not even one fits.
    """
    low, high = 0.0, most + 1.0
    while high - low > 1.0:
        u = float(int((low + high) / 2.0))
        if step_time(plant, decode_requests, decode_kv_tokens, u, u * (context_tokens + 0.5 * u), 1.0) <= seconds:
            low = u
        else:
            high = u
    return low


def largest_prefill_traced(plant: Plant, decode_requests: Any, decode_kv_tokens: Any, context_tokens: Any, seconds: Any, most: Any) -> Any:
    """`largest_prefill` for JAX: the same number, without a gradient, which whole tokens do not have.

    Args:
        plant: any structure.
        decode_requests: [requests].
        decode_kv_tokens: [tokens].
        context_tokens: [tokens].
        seconds: [s].
        most: a whole number, at most two million [tokens].

    Returns:
        Prompt tokens.
    """
    fixed = jax.tree.map(jax.lax.stop_gradient, plant)

    def halve(_: Any, ends: tuple[Any, Any]) -> tuple[Any, Any]:
        low, high = ends
        u = jnp.floor((low + high) / 2.0)
        fits = fixed.step_time_s(Batch(decode_requests, decode_kv_tokens, u, u * (context_tokens + 0.5 * u), 1.0)) <= seconds
        open_still = high - low > 1.0
        return jnp.where(open_still & fits, u, low), jnp.where(open_still & ~fits, u, high)

    start = jnp.zeros_like(jnp.asarray(seconds, float)), jnp.asarray(most, float) + 1.0
    return jax.lax.stop_gradient(jax.lax.fori_loop(0, HALVINGS, halve, start)[0])
