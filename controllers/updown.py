"""The up/down law: a few tokens more after a good step, a cut after a late one. Simple, and it cycles by design."""

from __future__ import annotations

from typing import Any, ClassVar, final

import jax.numpy as jnp

from headway.controllers.controller import Controller, Gain
from headway.models.compiled import compiled_inline
from headway.models.pytree import pytree
from headway.models.signals import Measurement

UPDOWN = 1


@final
@pytree
class UpDownLaw(Controller):
    """Additive increase, multiplicative decrease of the prefill budget u.

    u := down u              if step > budget
    u := u + up              if step < (1 - margin) budget and the budget was binding
    token budget = u + decoding requests

    Without noise it cycles with an overshoot of about up times the delay. Its equilibrium late rate is
    up / (up + (1 - down) u): 15 % at 8 tokens and 0.85 around u = 300, with no dead zone.

    Args:
        margin: width of the dead zone below the budget, in [0, 1).
        up_tokens: added after a good step [tokens].
        down: factor after a late one, in (0, 1).
        initial_tokens: prefill budget before the first step [tokens].
        most_tokens: upper limit of the prefill budget [tokens].

    Source:
        Chiu and Jain, Analysis of the increase and decrease algorithms, 1989.
    """

    law: ClassVar[str] = "updown"
    code: ClassVar[int] = UPDOWN
    margin: float = 0.25
    up_tokens: float = 8.0
    down: float = 0.85
    initial_tokens: float = 256.0
    most_tokens: float = 8192.0

    @property
    def setpoint_margin(self) -> float:  # noqa: D102
        return float(self.margin)

    def init(self) -> Any:  # noqa: D102
        return jnp.minimum(self.initial_tokens, self.most_tokens)[None].astype(float)

    def update(self, state: Any, signals: Measurement, budget_s: float) -> tuple[Any, Any]:  # noqa: D102
        u = state[0]
        # a missing reading is NaN, and neither late nor good; zero or negative is no reading either
        seen = (signals.decode_requests > 0) & (signals.step_time_s > 0)
        late = seen & (signals.step_time_s > budget_s)
        good = seen & (signals.step_time_s < (1 - self.margin) * budget_s) & (signals.binding > 0)
        u = jnp.where(late, jnp.maximum(u * self.down, 1.0), jnp.where(good, u + self.up_tokens, u))
        u = jnp.minimum(u, self.most_tokens)
        idle = signals.ready_requests <= 0
        return jnp.asarray([u]), jnp.where(idle, self.most_tokens, jnp.floor(u) + signals.ready_requests)

    def resume(self, state: Any, prefill_tokens: Any) -> Any:  # noqa: D102
        return jnp.clip(prefill_tokens, 1.0, self.most_tokens) + 0.0 * state

    def gains(self) -> dict[str, Gain]:  # noqa: D102
        return {
            "margin": Gain(self.margin, "1", 0.0, 0.95),
            "up_tokens": Gain(self.up_tokens, "tokens", 0.0, 1e5),
            "down": Gain(self.down, "1", 0.01, 1.0),
            "initial_tokens": Gain(self.initial_tokens, "tokens", 1.0, 1e6),
            "most_tokens": Gain(self.most_tokens, "tokens", 1.0, 1e6),
        }


@compiled_inline
def updown_step(law, state, signals, budget_s):
    """Compiled form of `UpDownLaw.update`.

    Args:
        law: packed, shape (LAW_SIZE,).
        state: changed in place, shape (s,).
        signals: as `Measurement`, shape (SIGNALS,).
        budget_s: [s].

    Returns:
        Token budget [tokens].
    """
    margin, up, down, most = law[1], law[2], law[3], law[5]
    u = state[0]
    if signals[2] > 0.0 and signals[0] > 0.0:
        if signals[0] > budget_s:
            u = max(u * down, 1.0)
        elif signals[0] < (1.0 - margin) * budget_s and signals[3] > 0.0:
            u = u + up
    state[0] = min(u, most)
    if signals[4] <= 0.0:
        return most
    return float(int(state[0])) + signals[4]
