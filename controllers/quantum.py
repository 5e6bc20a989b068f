"""A command in whole quanta, held until the law has truly left it: what keeps noise from moving the engine's settings."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from headway.models.compiled import compiled_inline

HOLD = 0.5
"""Quanta that the law's own budget may stray beyond the rounding before the command follows. Half a quantum makes the
band of one command two quanta wide, so that noise in the budget of up to twice the quantum, peak to peak, never moves it."""
NONE = -1.0
"""Last command before the first."""


@compiled_inline
def held(u, last, quantum, most):
    """The command for a budget: a multiple of the quantum, the last one, whatever it is, as long as it will do.

    c := clip(c, floor(u / Q - 1/2) Q, floor(u / Q + 1/2) Q), at least Q, at most the multiple below `most`
    c := floor(u)                                              if u < Q: less than a quantum would be nothing at all

    Args:
        u: budget that the law asks for, at least 0 [tokens].
        last: command in force; negative before the first [tokens].
        quantum: Q, cut to a whole number; 1 or less is plain rounding down [tokens].
        most: upper limit of the budget [tokens].

    Returns:
        Command, a whole number [tokens].
    """
    q = float(int(max(quantum, 1.0)))
    if q <= 1.0 or u < q:
        return float(int(u))
    if last < 0.0:
        return float(int(u / q)) * q
    low = float(int(max(u - HOLD * q, q) / q)) * q
    high = float(int(min(u + HOLD * q, max(most, u)) / q)) * q
    return min(max(last, low), high)


def held_traced(u: Any, last: Any, quantum: Any, most: Any) -> Any:
    """`held` for JAX: the same number, without a gradient, which whole tokens do not have.

    Args:
        u: [tokens].
        last: [tokens].
        quantum: [tokens].
        most: [tokens].

    Returns:
        Command [tokens].
    """
    q = jnp.floor(jnp.maximum(quantum, 1.0))
    low = jnp.floor(jnp.maximum(u - HOLD * q, q) / q) * q
    high = jnp.floor(jnp.minimum(u + HOLD * q, jnp.maximum(most, u)) / q) * q
    command = jnp.where(last < 0, jnp.floor(u / q) * q, jnp.clip(last, low, high))
    return jax.lax.stop_gradient(jnp.where((q <= 1) | (u < q), jnp.floor(u), command))
