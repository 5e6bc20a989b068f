"""Proportional-integral control of the prefill budget, with anti-windup: the classical law, in step index and relative error."""

from __future__ import annotations

from typing import Any, ClassVar, final

import jax.numpy as jnp

from headway.controllers.controller import Controller, Gain
from headway.controllers.quantum import NONE, held, held_traced
from headway.models.compiled import compiled_inline
from headway.models.pytree import pytree
from headway.models.signals import Measurement

PI = 2


@final
@pytree
class PILaw(Controller):
    """PI on the step time; the command is the prefill budget u of the next step.

    e = (1 - margin) budget - step            the error [s]
    I := I + ki e / s                         only if the budget was binding or the step above its setpoint
    u := clip(I + kp e / s, max(0, u - slew), min(most, u + slew))
    I := I + kt (u - w),  w the unclipped command            back-calculation against the actuator's limits and the slew
    token budget = c + decoding requests,  c = u rounded down to the quantum and held (`headway.controllers.quantum`)

    s, the plant's slope [s/token], turns an error in time into tokens, so kp and ki have no unit and mean the same on
    every engine: the loop gain is ki times (true slope / s). Integrating only while the budget is binding, clamping, is
    what keeps the law from winding up in lulls, when few prompts wait and short steps say nothing about the budget;
    pulling I to the *used* budget instead would empty it between prompts and start every prompt from nothing. The slew
    holds both ways: one spike moves the engine by no more, and a slowdown is answered over as many steps more; its
    default, a million tokens, limits nothing. The integrator keeps fractions of a token, so rounding to whole tokens
    cannot make the loop cycle. A wider quantum could: what it takes from the command, u - c, the error shows and the
    integrator would run after, so that e less s (u - c) is integrated, and u stays the law's estimate of the right
    budget whatever is held. A step without decoding requests has no ITL to keep: it gets the most there is, and the
    state holds.

    Args:
        margin: share of the budget kept free, in [0, 1).
        kp: proportional gain, dimensionless.
        ki: integral gain, dimensionless; stable below 2 at a delay of one step, below 1 at two.
        kt: back-calculation gain in [0.05, 1]: nearer to 0 there would be no anti-windup.
        slope_s_per_token: of the plant where it operates [s/token].
        slew_tokens: most by which u may move from one step to the next; the command strays from u by its rounding alone [tokens].
        initial_tokens: prefill budget before the first step [tokens].
        most_tokens: upper limit of the prefill budget [tokens].
        quantum_tokens: the command is a multiple of it; 1 holds nothing [tokens].

    Source:
        Astrom and Hagglund, Advanced PID Control, 2006, sections 3.5 (windup, back-calculation, conditional integration).
    """

    law: ClassVar[str] = "pi"
    code: ClassVar[int] = PI
    margin: float = 0.15
    kp: float = 0.1
    ki: float = 0.15
    kt: float = 0.5
    slope_s_per_token: float = 4e-5
    slew_tokens: float = 1e6
    initial_tokens: float = 256.0
    most_tokens: float = 8192.0
    quantum_tokens: float = 1.0

    @property
    def setpoint_margin(self) -> float:  # noqa: D102
        return float(self.margin)

    def init(self) -> Any:  # noqa: D102
        start = jnp.minimum(jnp.asarray(self.initial_tokens, float), self.most_tokens)
        return jnp.stack([start, start, jnp.full_like(start, NONE)]).astype(float)

    def update(self, state: Any, signals: Measurement, budget_s: float) -> tuple[Any, Any]:  # noqa: D102
        setpoint_s = (1 - self.margin) * budget_s
        # a reading that is missing (NaN), zero or negative moves nothing: the state and with it the command hold
        true = signals.step_time_s > 0
        step_time_s = jnp.where(true, signals.step_time_s, setpoint_s)
        active = true & (signals.decode_requests > 0) & ((signals.binding > 0) | (step_time_s > setpoint_s))
        error = (setpoint_s - step_time_s) / self.slope_s_per_token
        withheld = jnp.where((self.quantum_tokens >= 2) & (state[2] >= 0), state[1] - state[2], 0.0)
        integral = state[0] + self.ki * (error - withheld)
        wanted = integral + self.kp * error
        u = jnp.clip(wanted, jnp.maximum(state[1] - self.slew_tokens, 0.0), jnp.minimum(state[1] + self.slew_tokens, self.most_tokens))
        integral = integral + self.kt * (u - wanted)
        integral, u = jnp.where(active, integral, state[0]), jnp.where(active, u, state[1])
        command = held_traced(u, state[2], self.quantum_tokens, self.most_tokens)
        idle = signals.ready_requests <= 0
        return jnp.stack([integral, u, command]), jnp.where(idle, self.most_tokens, command + signals.ready_requests)

    def resume(self, state: Any, prefill_tokens: Any) -> Any:  # noqa: D102
        return jnp.clip(prefill_tokens, 0.0, self.most_tokens) + 0.0 * state

    def gains(self) -> dict[str, Gain]:  # noqa: D102
        return {
            "margin": Gain(self.margin, "1", 0.0, 0.95),
            "kp": Gain(self.kp, "1", 0.0, 10.0),
            "ki": Gain(self.ki, "1", 0.0, 10.0),
            "kt": Gain(self.kt, "1", 0.05, 1.0),
            "slope_s_per_token": Gain(self.slope_s_per_token, "s/token", 1e-12, 10.0),
            "slew_tokens": Gain(self.slew_tokens, "tokens", 1.0, 1e6),
            "initial_tokens": Gain(self.initial_tokens, "tokens", 0.0, 1e6),
            "most_tokens": Gain(self.most_tokens, "tokens", 1.0, 1e6),
            "quantum_tokens": Gain(self.quantum_tokens, "tokens", 1.0, 4096.0),
        }


@compiled_inline
def pi_step(law, state, signals, budget_s):
    """Compiled form of `PILaw.update`.

    Args:
        law: packed, shape (LAW_SIZE,).
        state: changed in place, shape (s,).
        signals: as `Measurement`, shape (SIGNALS,).
        budget_s: [s].

    Returns:
        Token budget [tokens].
    """
    margin, kp, ki, kt, slope, slew, most, quantum = law[1], law[2], law[3], law[4], law[5], law[6], law[8], law[9]
    setpoint_s = (1.0 - margin) * budget_s
    if signals[0] > 0.0 and signals[2] > 0.0 and (signals[3] > 0.0 or signals[0] > setpoint_s):
        error = (setpoint_s - signals[0]) / slope
        withheld = state[1] - state[2] if quantum >= 2.0 and state[2] >= 0.0 else 0.0
        integral = state[0] + ki * (error - withheld)
        wanted = integral + kp * error
        u = min(max(wanted, state[1] - slew, 0.0), state[1] + slew, most)
        state[0] = integral + kt * (u - wanted)
        state[1] = u
    state[2] = held(state[1], state[2], quantum, most)
    if signals[4] <= 0.0:
        return most
    return state[2] + signals[4]
