"""Up/down in balance: steps up and down in the ratio of the late rate that is wanted, a quantile tracker on the budget itself."""

from __future__ import annotations

from typing import Any, ClassVar, final

import jax.numpy as jnp

from headway.controllers.controller import Controller, Gain
from headway.models.compiled import compiled_inline
from headway.models.pytree import pytree
from headway.models.signals import Measurement

BALANCED = 3
LEAST_TOKENS = 20.0
"""Prefill budget from which on a rise is a share of it [tokens]: from nothing, shares of nothing would never rise."""


@final
@pytree
class BalancedLaw(Controller):
    """Up/down whose equilibrium is a late rate of the user's choice, whatever the noise.

    u := max(1, u (1 - gain (1 - eps)))     if step > budget
    u := u + gain eps max(u, 20)            else, if the budget was binding
    token budget = floor(u) + decoding requests

    In equilibrium rises and cuts cancel, p (1 - eps) = (1 - p) eps, so the late rate p is eps. No plant, no margin: the
    least that works; it forgets nothing of a load step but what it learns from late steps.

    Args:
        late_rate: eps, share of steps over the budget, in (0, 1).
        gain: size of the steps, dimensionless.
        initial_tokens: prefill budget before the first step [tokens].
        most_tokens: upper limit of the prefill budget [tokens].

    Source:
        Robbins and Monro, A stochastic approximation method, 1951: with steps in this ratio, of a quantile.
    """

    law: ClassVar[str] = "balanced"
    code: ClassVar[int] = BALANCED
    late_rate: float = 0.01
    gain: float = 0.15
    initial_tokens: float = 256.0
    most_tokens: float = 8192.0

    def init(self) -> Any:  # noqa: D102
        return jnp.minimum(self.initial_tokens, self.most_tokens)[None].astype(float)

    def update(self, state: Any, signals: Measurement, budget_s: float) -> tuple[Any, Any]:  # noqa: D102
        u = state[0]
        seen = (signals.decode_requests > 0) & (signals.step_time_s > 0)
        late = seen & (signals.step_time_s > budget_s)
        good = seen & (signals.step_time_s <= budget_s) & (signals.binding > 0)
        cut = jnp.maximum(u - self.gain * (1 - self.late_rate) * u, 1.0)
        u = jnp.where(late, cut, jnp.where(good, u + self.gain * self.late_rate * jnp.maximum(u, LEAST_TOKENS), u))
        u = jnp.minimum(u, self.most_tokens)
        idle = signals.ready_requests <= 0
        return jnp.asarray([u]), jnp.where(idle, self.most_tokens, jnp.floor(u) + signals.ready_requests)

    def resume(self, state: Any, prefill_tokens: Any) -> Any:  # noqa: D102
        return jnp.clip(prefill_tokens, 1.0, self.most_tokens) + 0.0 * state

    def gains(self) -> dict[str, Gain]:  # noqa: D102
        return {
            "late_rate": Gain(self.late_rate, "1", 1e-5, 0.5),
            "gain": Gain(self.gain, "1", 1e-4, 1.0),
            "initial_tokens": Gain(self.initial_tokens, "tokens", 1.0, 1e6),
            "most_tokens": Gain(self.most_tokens, "tokens", 1.0, 1e6),
        }


@compiled_inline
def balanced_step(law, state, signals, budget_s):
    """Compiled form of `BalancedLaw.update`.

    Args:
        law: packed, shape (LAW_SIZE,).
        state: changed in place, shape (s,).
        signals: as `Measurement`, shape (SIGNALS,).
        budget_s: [s].

    Returns:
        Token budget [tokens].
    """
    late_rate, gain, most = law[1], law[2], law[4]
    u = state[0]
    if signals[2] > 0.0 and signals[0] > 0.0:
        if signals[0] > budget_s:
            u = max(u - gain * (1.0 - late_rate) * u, 1.0)
        elif signals[3] > 0.0:
            u = u + gain * late_rate * max(u, LEAST_TOKENS)
    state[0] = min(u, most)
    if signals[4] <= 0.0:
        return most
    return float(int(state[0])) + signals[4]
