"""The default law: feedforward, a slow robust bias, and a quantile tracker per regime. The margin is its output."""

from __future__ import annotations

import math
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

TRACKER = 5
CLIP = 0.15
"""Log residual beyond which one step moves the bias no further: a spike is not a slowdown."""
QUANTILE_MOST = 1.0
"""Largest quantile tracked, a margin of 63 %."""


@final
@pytree
class TrackerLaw(Controller):
    """The inverse plant at the budget less what its own residuals call for.

    s = log(step / F(n, kv, p)) - b                the score of the step that ended, r its regime (decode or mixed)
    b := b + kb clip(s, +-0.15)
    q_r := clip(q_r + eta ([s > q_r] - eps), 0, 1)
    both if the budget was binding or the step late; for decode-only steps always
    u = max{u: F(n, kv, u) <= (1 - margin) budget exp(-q_mixed - b)}   in quanta, and not past a jump that is not worth it
    token budget = max(u, least) + decoding requests

    q_r is the (1 - eps) quantile of the score, so eps is the late rate, and 1 - exp(-q_r) the margin that the plant's
    residuals call for: on any sequence of scores the late rate differs from eps by at most (1 + eta) / (eta T) after T
    steps. The bias takes a slowdown out in about 1 / kb steps, much faster than the quantile moves, so that the two do not
    fight. Where decodes alone exceed the budget (no authority: u = 0 and still late) both hold: what the law
    cannot change it must not learn from. `margin` adds a fixed one on top; 0 leaves it to the tracker.

    Where decodes alone fill the budget, u = 0 would hold prompts back for as long as they do: nobody new is served, and a
    long prompt at the head is never done. `least_tokens` goes on with them at the price of a late step. The scores are against
    the prediction of the step that ran, so such steps teach nothing false.

    Args:
        plant: to predict with.
        late_rate: eps, share of steps over the budget, in (0, 1).
        kb: gain of the bias, dimensionless.
        eta: gain of the quantile, well below kb.
        margin: share of the budget kept free beside it, in [0, 1).
        start_decode: q of decode-only steps before the first step.
        start_mixed: q of steps with prefill before the first step.
        least_tokens: lower limit of the prefill budget, 0 for none; `most_tokens` goes before it [tokens].
        most_tokens: upper limit of the prefill budget [tokens].
        quantum_tokens: the command is a multiple of it; 1 holds nothing [tokens].

    Source:
        Gibbs and Candes, Adaptive conformal inference under distribution shift, 2021; Angelopoulos, Candes and
        Tibshirani, Conformal PID control for time series prediction, 2023 (quantile tracking).
    """

    law: ClassVar[str] = "tracker"
    code: ClassVar[int] = TRACKER
    predicts: ClassVar[bool] = True
    plant: Any
    late_rate: float = 0.01
    kb: float = 0.05
    eta: float = 0.01
    margin: float = 0.0
    start_decode: float = 0.1
    start_mixed: float = 0.15
    most_tokens: float = 8192.0
    quantum_tokens: float = 1.0
    least_tokens: float = 0.0

    @property
    def setpoint_margin(self) -> float:
        """Share of the budget kept free before the first step: where the law starts, not where it will settle."""
        return 1 - (1 - float(self.margin)) * math.exp(-float(self.start_mixed))

    def init(self) -> Any:  # noqa: D102
        starts = (0.0, self.start_decode, self.start_mixed, NONE)
        return jnp.stack([jnp.asarray(x, float) for x in starts])

    def update(self, state: Any, signals: Measurement, budget_s: float) -> tuple[Any, Any]:  # noqa: D102
        bias, decode, mixed = state[0], state[1], state[2]
        true = (signals.step_time_s > 0) & (signals.decode_requests > 0)
        with_prefill = signals.prefill_tokens > 0
        step = Batch(
            signals.decode_requests, signals.decode_kv_tokens, signals.prefill_tokens, signals.prefill_pairs, signals.prefill_requests
        )
        predicted = jnp.where(true, self.plant.step_time_s(Batch(*(jnp.asarray(x, float) for x in step))), 1.0)
        ratio = jnp.log(jnp.where(true, signals.step_time_s, 1.0)) - jnp.log(jnp.maximum(predicted, 1e-12))
        late = signals.step_time_s > budget_s
        powerless = ~with_prefill & late & (predicted * jnp.exp(bias) > budget_s)
        learns = true & ~powerless & (jnp.where(with_prefill, signals.binding > 0, True) | late)
        score = ratio - bias
        moved = bias + self.kb * jnp.clip(score, -CLIP, CLIP)
        quantile = jnp.where(with_prefill, mixed, decode)
        tracked = jnp.clip(quantile + self.eta * (jnp.where(score > quantile, 1.0, 0.0) - self.late_rate), 0.0, QUANTILE_MOST)
        bias = jnp.where(learns, moved, bias)
        decode = jnp.where(learns & ~with_prefill, tracked, decode)
        mixed = jnp.where(learns & with_prefill, tracked, mixed)
        target_s = (1 - self.margin) * budget_s * jnp.exp(-mixed - bias)
        command = commanded_prefill_traced(self.plant, signals, target_s, self.most_tokens, state[3], self.quantum_tokens)
        command = jnp.maximum(command, jnp.floor(jnp.minimum(self.least_tokens, self.most_tokens)))
        idle = signals.ready_requests <= 0
        command = jnp.where(idle, state[3], command)
        return jnp.stack([bias, decode, mixed, command]), jnp.where(idle, self.most_tokens, command + signals.ready_requests)

    def resume(self, state: Any, prefill_tokens: Any) -> Any:  # noqa: D102
        return jnp.stack([*state[:3], jnp.clip(prefill_tokens, 0.0, self.most_tokens)])

    def gains(self) -> dict[str, Gain]:  # noqa: D102
        return {
            "late_rate": Gain(self.late_rate, "1", 1e-5, 0.5),
            "kb": Gain(self.kb, "1", 0.0, 1.0),
            "eta": Gain(self.eta, "1", 0.0, 1.0),
            "margin": Gain(self.margin, "1", 0.0, 0.95),
            "start_decode": Gain(self.start_decode, "1", 0.0, QUANTILE_MOST),
            "start_mixed": Gain(self.start_mixed, "1", 0.0, QUANTILE_MOST),
            "least_tokens": Gain(self.least_tokens, "tokens", 0.0, 1e6),
            "most_tokens": Gain(self.most_tokens, "tokens", 1.0, 1e6),
            "quantum_tokens": Gain(self.quantum_tokens, "tokens", 1.0, 4096.0),
        }


@compiled_inline
def tracker_step(law, state, signals, budget_s):
    """Compiled form of `TrackerLaw.update`.

    Args:
        law: packed, shape (LAW_SIZE,).
        state: changed in place, shape (s,).
        signals: as `Measurement`, shape (SIGNALS,).
        budget_s: [s].

    Returns:
        Token budget [tokens].
    """
    late_rate, kb, eta, margin, least, most, quantum = law[1], law[2], law[3], law[4], law[7], law[8], law[9]
    plant = law[PLANT_AT:]
    if signals[0] > 0.0 and signals[2] > 0.0:
        predicted = max(step_time(plant, signals[2], signals[5], signals[1], signals[6], signals[7]), 1e-12)
        late, mixed = signals[0] > budget_s, signals[1] > 0.0
        powerless = not mixed and late and predicted * math.exp(state[0]) > budget_s
        if not powerless and (late or not mixed or signals[3] > 0.0):
            score = math.log(signals[0]) - math.log(predicted) - state[0]
            r = 2 if mixed else 1
            q = state[r]
            state[0] += kb * min(max(score, -CLIP), CLIP)
            state[r] = min(max(q + eta * ((1.0 if score > q else 0.0) - late_rate), 0.0), QUANTILE_MOST)
    if signals[4] <= 0.0:
        return most
    target_s = (1.0 - margin) * budget_s * math.exp(-state[2] - state[0])
    state[3] = max(commanded_prefill(plant, signals, target_s, most, state[3], quantum), float(int(min(least, most))))
    return state[3] + signals[4]
