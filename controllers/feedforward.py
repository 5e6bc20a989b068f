"""Feedforward with integral trim: the plant turned round says the budget, an integral of what it is off by puts it right."""

from __future__ import annotations

from typing import Any, ClassVar, final

import jax.numpy as jnp

from headway.controllers.controller import PLANT_AT, Controller, Gain
from headway.controllers.inverse import commanded_prefill, commanded_prefill_traced
from headway.controllers.quantum import NONE
from headway.models.compiled import compiled_inline
from headway.models.plant import Batch
from headway.models.pytree import pytree
from headway.models.signals import Measurement
from headway.models.steptime import step_time

FEEDFORWARD = 4
REACH = 0.4
"""Most of the budget that the trim may add or take: beyond it the plant is wrong, not offset."""


@final
@pytree
class FeedforwardLaw(Controller):
    """The inverse plant at a target that an integral trims.

    I := clip(I + ki (F(n, kv, p) - step - I), +-0.4 budget)   if the budget was binding or the step above its setpoint
    u = max{u: F(n, kv, u) <= (1 - margin) budget + I}         in quanta, and not past a jump that is not worth it
    token budget = u + decoding requests

    It answers a jump of n or kv in the step in which it comes, where feedback alone learns of it from a late step. In
    a step that used its budget F = (1 - margin) budget + I, so the bracket is the error, setpoint less step, and I its
    integral. Where the step could not take what the setpoint allows (a jump of the plant, a quantum, no authority) the
    error would wind I up; the bracket there is what the plant is off by, which is all that a trim can put right.

    Args:
        plant: to predict with.
        margin: share of the budget kept free, in [0, 1).
        ki: integral gain, dimensionless.
        most_tokens: upper limit of the prefill budget [tokens].
        quantum_tokens: the command is a multiple of it; 1 holds nothing [tokens].

    Source:
        Astrom and Hagglund, Advanced PID Control, 2006, section 5.6 (feedforward with feedback trim), 8.4 (internal model).
    """

    law: ClassVar[str] = "feedforward"
    code: ClassVar[int] = FEEDFORWARD
    predicts: ClassVar[bool] = True
    plant: Any
    margin: float = 0.15
    ki: float = 0.1
    most_tokens: float = 8192.0
    quantum_tokens: float = 1.0

    @property
    def setpoint_margin(self) -> float:  # noqa: D102
        return float(self.margin)

    def init(self) -> Any:  # noqa: D102
        return jnp.array([0.0, NONE])

    def update(self, state: Any, signals: Measurement, budget_s: float) -> tuple[Any, Any]:  # noqa: D102
        setpoint_s = (1 - self.margin) * budget_s
        true = signals.step_time_s > 0
        step_time_s = jnp.where(true, signals.step_time_s, setpoint_s)
        active = true & (signals.decode_requests > 0) & ((signals.binding > 0) | (step_time_s > setpoint_s))
        step = (signals.decode_requests, signals.decode_kv_tokens, signals.prefill_tokens, signals.prefill_pairs, signals.prefill_requests)
        predicted_s = self.plant.step_time_s(Batch(*(jnp.asarray(x, float) for x in step)))
        moved = jnp.clip(state[0] + self.ki * (predicted_s - step_time_s - state[0]), -REACH * budget_s, REACH * budget_s)
        trim = jnp.where(active, moved, state[0])
        command = commanded_prefill_traced(self.plant, signals, setpoint_s + trim, self.most_tokens, state[1], self.quantum_tokens)
        idle = signals.ready_requests <= 0
        command = jnp.where(idle, state[1], command)
        return jnp.stack([trim, command]), jnp.where(idle, self.most_tokens, command + signals.ready_requests)

    def resume(self, state: Any, prefill_tokens: Any) -> Any:  # noqa: D102
        return jnp.stack([state[0], jnp.clip(prefill_tokens, 0.0, self.most_tokens)])

    def gains(self) -> dict[str, Gain]:  # noqa: D102
        return {
            "margin": Gain(self.margin, "1", 0.0, 0.95),
            "ki": Gain(self.ki, "1", 0.0, 1.0),
            "most_tokens": Gain(self.most_tokens, "tokens", 1.0, 1e6),
            "quantum_tokens": Gain(self.quantum_tokens, "tokens", 1.0, 4096.0),
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
    margin, ki, most, quantum = law[1], law[2], law[3], law[4]
    setpoint_s, plant = (1.0 - margin) * budget_s, law[PLANT_AT:]
    if signals[0] > 0.0 and signals[2] > 0.0 and (signals[3] > 0.0 or signals[0] > setpoint_s):
        predicted_s = step_time(plant, signals[2], signals[5], signals[1], signals[6], signals[7])
        state[0] = min(max(state[0] + ki * (predicted_s - signals[0] - state[0]), -REACH * budget_s), REACH * budget_s)
    if signals[4] <= 0.0:
        return most
    state[1] = commanded_prefill(plant, signals, setpoint_s + state[0], most, state[1], quantum)
    return state[1] + signals[4]
