"""The step-time loop alone: a law against given decodes, cache and noise, without requests. What laws are compared on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.controllers.controller import Controller
from headway.controllers.laws import STATE_SIZE, law_init, law_step
from headway.models.compiled import compiled_making
from headway.models.plant import Plant
from headway.models.signals import SIGNALS
from headway.models.steptime import step_time


class Disturbance(NamedTuple):
    """What the loop cannot choose, one row per step.

    Args:
        decode_requests: that decode in the step, shape (k,) [requests].
        decode_kv_tokens: cache tokens that they read, shape (k,) [tokens].
        available_tokens: prompt tokens that are waiting, shape (k,) [tokens].
        factor: noise and drift on the predicted duration, shape (k,).
    """

    decode_requests: np.ndarray
    decode_kv_tokens: np.ndarray
    available_tokens: np.ndarray
    factor: np.ndarray


class Response(NamedTuple):
    """What the loop did, one row per step.

    Args:
        step_time_s: durations, shape (k,) [s].
        prefill_tokens: prompt tokens that ran, shape (k,) [tokens].
        asked_tokens: prefill budget that the law asked for, shape (k,) [tokens].
        state: of the law after the step's measurement, shape (k, STATE_SIZE).
    """

    step_time_s: np.ndarray
    prefill_tokens: np.ndarray
    asked_tokens: np.ndarray
    state: np.ndarray


def respond(
    law: Controller, plant: Plant, disturbance: Disturbance, budget_s: float, *, delay: int = 1, most_tokens: float = 8192.0
) -> Response:
    """Run a law against a disturbance.

    Args:
        law: any.
        plant: the true one; a law that predicts has its own.
        disturbance: shape (k,).
        budget_s: longest step that keeps the ITL promise [s].
        delay: steps from a command to the first measurement that shows it: 1 in synchronous, 2 in asynchronous scheduling.
        most_tokens: the engine's own limit of prompt tokens in a step [tokens].

    Returns:
        The response.

    Raises:
        ValueError: a delay below 1.
    """
    if delay < 1:
        raise ValueError(f"delay must be at least 1 step, got {delay}")
    k = len(disturbance.factor)
    out, states = np.zeros((k, 3)), np.zeros((k, STATE_SIZE))
    n, kv, available, factor = (np.ascontiguousarray(column, dtype=float) for column in disturbance)
    _run(law.pack(), plant.pack(), n, kv, available, factor, budget_s, delay, most_tokens, out, states)
    return Response(out[:, 0], out[:, 1], out[:, 2], states)


@compiled_making
def _run(law, plant, decode_requests, decode_kv_tokens, available, factor, budget_s, delay, most_tokens, out, states):
    state, signals = np.zeros(STATE_SIZE), np.zeros(SIGNALS)
    law_init(law, state)
    for k in range(len(factor)):
        n, kv, j = decode_requests[k], decode_kv_tokens[k], k - delay
        signals[0] = np.nan
        if j >= 0:
            p = out[j, 1]
            signals[0], signals[1], signals[2] = out[j, 0], p, decode_requests[j]
            signals[3] = 1.0 if out[j, 2] <= available[j] else 0.0
            signals[5], signals[6], signals[7] = decode_kv_tokens[j], 0.5 * p * p, 1.0 if p > 0.0 else 0.0
        signals[4], signals[8], signals[9] = n, kv, 0.0
        u = min(max(float(int(law_step(law, state, signals, budget_s) - n)), 0.0), most_tokens)
        p = min(u, available[k])
        out[k, 0] = factor[k] * step_time(plant, n, kv, p, 0.5 * p * p, 1.0 if p > 0.0 else 0.0)
        out[k, 1], out[k, 2] = p, u
        states[k, :] = state
