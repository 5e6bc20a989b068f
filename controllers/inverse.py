"""The plant turned round: how many prompt tokens a step can take and still end in time."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from headway.controllers.quantum import NONE, held, held_traced
from headway.models.compiled import compiled
from headway.models.curved import CurvedPlant
from headway.models.plant import Batch, Plant
from headway.models.signals import Measurement
from headway.models.steptime import CURVED, CURVES, KIND, step_time

HALVINGS = 21
"""Halvings after which a budget of up to two million tokens is known to the token."""
WORTH = 1.1
"""Rate of prompt tokens past a jump, relative to the rate just below it, that is worth the jump; once past it, 1 will do."""
OVERSTAY = 1.05
"""A command that is held may make the step this much longer than the budget of the moment would: more is a jump."""
MIXED_BENT, SHAPE = KIND + 1 + CURVES, KIND + 1 + 2 * CURVES
JUMP, BEND, LIMIT = MIXED_BENT + 5, MIXED_BENT + 6, SHAPE + 4
"""Where a packed curved plant holds its jump, its slope past it and the tokens at which it comes, for steps with prefill."""


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


@compiled
def commanded_prefill(plant, signals, seconds, most, last, quantum):
    """Prompt tokens to run: the most that fit, not past a jump that is not worth it, in quanta that are held.

    u = max{u: F(u) <= seconds};  past a jump at L, where u / F(u) < w L / F(L): u := L
    w = 1.1, or 1 if the last step was past it already: a load on the edge would cross it back and forth otherwise
    c = held(u, c);  if c > u and F(c) > 1.05 F(u): c := u rounded down, as what is held must not cross a jump either

    Args:
        plant: packed, shape (PACKED,).
        signals: as `Measurement`, shape (SIGNALS,).
        seconds: longest step [s].
        most: upper limit [tokens].
        last: command in force; negative before the first [tokens].
        quantum: of the command [tokens].

    Returns:
        Command [tokens].
    """
    n, kv, context = signals[4], signals[8], signals[9]
    u = largest_prefill(plant, n, kv, context, seconds, float(int(most)))
    if plant[KIND] == CURVED and plant[JUMP] + plant[BEND] > 0.0:
        edge = math.floor(plant[LIMIT] - n)
        if 1.0 <= edge < u:
            worth = 1.0 if signals[1] > 0.0 and signals[1] + signals[2] > plant[LIMIT] else WORTH
            here = u / step_time(plant, n, kv, u, u * (context + 0.5 * u), 1.0)
            if here < worth * edge / step_time(plant, n, kv, edge, edge * (context + 0.5 * edge), 1.0):
                u = edge
    c = held(u, last, quantum, most)
    if c > u:
        longest = OVERSTAY * step_time(plant, n, kv, u, u * (context + 0.5 * u), 1.0)
        if step_time(plant, n, kv, c, c * (context + 0.5 * c), 1.0) > longest:
            c = held(u, NONE, quantum, most)
    return c


def commanded_prefill_traced(plant: Plant, signals: Measurement, seconds: Any, most: Any, last: Any, quantum: Any) -> Any:
    """`commanded_prefill` for JAX: the same number, without a gradient.

    Args:
        plant: any structure.
        signals: of the step that ended and of the one to be composed.
        seconds: [s].
        most: [tokens].
        last: [tokens].
        quantum: [tokens].

    Returns:
        Command [tokens].
    """
    fixed, n, kv, context = (
        jax.tree.map(jax.lax.stop_gradient, plant),
        signals.ready_requests,
        signals.ready_kv_tokens,
        signals.context_tokens,
    )

    def time_s(u: Any) -> Any:
        return fixed.step_time_s(Batch(*(jnp.asarray(x, float) for x in (n, kv, u, u * (context + 0.5 * u), 1.0))))

    u = largest_prefill_traced(plant, n, kv, context, seconds, jnp.floor(most))
    if isinstance(fixed, CurvedPlant):
        limit = jnp.asarray(fixed.shape[LIMIT - SHAPE], float)
        edge = jnp.floor(limit - n)
        past = (signals.prefill_tokens > 0) & (signals.prefill_tokens + signals.decode_requests > limit)
        jumps = fixed.mixed_bent[JUMP - MIXED_BENT] + fixed.mixed_bent[BEND - MIXED_BENT] > 0
        dear = u / time_s(jnp.maximum(u, 1.0)) < jnp.where(past, 1.0, WORTH) * edge / time_s(jnp.maximum(edge, 1.0))
        u = jnp.where(jumps & (edge >= 1) & (edge < u) & dear, edge, u)
    command = held_traced(u, last, quantum, most)
    overstays = (command > u) & (time_s(command) > OVERSTAY * time_s(u))
    return jax.lax.stop_gradient(jnp.where(overstays, held_traced(u, NONE, quantum, most), command))
