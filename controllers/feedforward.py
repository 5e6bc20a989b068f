"""Feedforward with integral trim: the plant turned round says the budget, an integral of the error puts its offset right."""

from __future__ import annotations

from typing import Any, ClassVar, final

import jax.numpy as jnp

from headway.controllers.controller import PLANT_AT, Controller, Gain
from headway.controllers.inverse import largest_prefill, largest_prefill_traced
from headway.models.compiled import compiled_inline
from headway.models.pytree import pytree
from headway.models.signals import Measurement

FEEDFORWARD = 4
REACH = 0.4
"""Most of the budget that the trim may add or take: beyond it the plant is wrong, not offset."""


@final
@pytree
class FeedforwardLaw(Controller):
    """The inverse plant at a target that an integral trims.

    I := clip(I + ki e, +-0.4 budget)   if the budget was binding or the step above its setpoint,  e = (1 - margin) budget - step
    u = max{u: F(n, kv, u) <= (1 - margin) budget + I}
    token budget = u + decoding requests

    It answers a jump of n or kv in the step in which it comes, where feedback alone learns of it from a late step.

    Args:
        plant: to predict with.
        margin: share of the budget kept free, in [0, 1).
        ki: integral gain, dimensionless.
        most_tokens: upper limit of the prefill budget [tokens].

    Source:
        Astrom and Hagglund, Advanced PID Control, 2006, section 5.6 (feedforward with feedback trim).
    """

    law: ClassVar[str] = "feedforward"
    code: ClassVar[int] = FEEDFORWARD
    predicts: ClassVar[bool] = True
    plant: Any
    margin: float = 0.15
    ki: float = 0.1
    most_tokens: float = 8192.0

    @property
    def setpoint_margin(self) -> float:  # noqa: D102
        return float(self.margin)

    def init(self) -> Any:  # noqa: D102
        return jnp.zeros(1)

    def update(self, state: Any, signals: Measurement, budget_s: float) -> tuple[Any, Any]:  # noqa: D102
        setpoint_s = (1 - self.margin) * budget_s
        true = signals.step_time_s > 0
        step_time_s = jnp.where(true, signals.step_time_s, setpoint_s)
        active = true & (signals.decode_requests > 0) & ((signals.binding > 0) | (step_time_s > setpoint_s))
        moved = jnp.clip(state[0] + self.ki * (setpoint_s - step_time_s), -REACH * budget_s, REACH * budget_s)
        trim = jnp.where(active, moved, state[0])
        u = largest_prefill_traced(
            self.plant,
            signals.ready_requests,
            signals.ready_kv_tokens,
            signals.context_tokens,
            setpoint_s + trim,
            jnp.floor(self.most_tokens),
        )
        idle = signals.ready_requests <= 0
        return trim[None], jnp.where(idle, self.most_tokens, u + signals.ready_requests)

    def resume(self, state: Any, prefill_tokens: Any) -> Any:  # noqa: D102
        return state

    def gains(self) -> dict[str, Gain]:  # noqa: D102
        return {
            "margin": Gain(self.margin, "1", 0.0, 0.95),
            "ki": Gain(self.ki, "1", 0.0, 1.0),
            "most_tokens": Gain(self.most_tokens, "tokens", 1.0, 1e6),
        }


@compiled_inline
def feedforward_step(law, state, signals, budget_s):
    """Compiled form of `FeedforwardLaw.update`.

    Args:
        law: packed, shape (LAW_SIZE,).
        state: changed in place, shape (s,).
        signals: as `Measurement`, shape (SIGNALS,).
        budget_s: [s].

    Returns:
        Token budget [tokens].
    """
    margin, ki, most = law[1], law[2], law[3]
    setpoint_s = (1.0 - margin) * budget_s
    if signals[0] > 0.0 and signals[2] > 0.0 and (signals[3] > 0.0 or signals[0] > setpoint_s):
        state[0] = min(max(state[0] + ki * (setpoint_s - signals[0]), -REACH * budget_s), REACH * budget_s)
    if signals[4] <= 0.0:
        return most
    return largest_prefill(law[PLANT_AT:], signals[4], signals[8], signals[9], setpoint_s + state[0], float(int(most))) + signals[4]
