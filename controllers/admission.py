"""Model-predictive admission: a request is let in while the decodes to come are expected to stay within their budget and the cache.

    admit while, at h_k = k H / 7, k = 0 ... 7:  F_decode(N(h), R(h)) <= budget exp(-q_decode - b)
                                                (R(h) + N(h) (block - 1)) / block <= pool - watermark

    s_i(h) = P(L > d_i + h | L > d_i)           i runs or asks to; it has emitted d_i tokens, its context is c_i
    N(h) = sum s_i,  KV(h) = sum s_i (c_i + h),  V(h) = sum s_i (1 - s_i) (c_i + h)^2
    R(h) = min(KV(h) + z sqrt(V(h)), sum (c_i + h))

F_decode is the plant of decode-only steps, q_decode and b what the tracker found; for other laws the limit is their
setpoint. Prefill is left out: the law fits it into what decodes leave. What it cannot do is make decodes shorter, so
that only admission, long before, keeps them within the budget.

Outputs are unknown until they end; P is what `headway.controllers.survival` learns of them.

A quadratic program over the same horizon was tried as a reference (`headway.experiments.mpc`); this explicit form is a
sum over the running requests when the outlook is made anew, and eight evaluations of the plant per candidate. It is
made anew, where a candidate waits, if somebody was preempted, if it is AGE steps old, or if somebody ended and it is
n / SPARING steps old with n running. Whoever is let in is added to it.

Source:
    Mesbah, Stochastic model predictive control, IEEE Control Systems Magazine, 2016 (chance constraints).
"""

from __future__ import annotations

import math

from headway.controllers.policy import (
    ADMISSION,
    BLOCK,
    BLOCKS,
    LOOK_STEPS,
    LOOK_Z,
    POLICY_PLANT,
    PRIOR_REQUESTS,
    PRIOR_TOKENS,
    SETPOINT_S,
    WATERMARK,
)
from headway.controllers.survival import count_lengths, reached, row_of
from headway.controllers.tracker import TRACKER
from headway.models.compiled import compiled
from headway.models.state import ALIVE, ALL_STAY, CENSORED, EXPECTED, EXPECTED_KV, RUNNING_IDS, VARIANCE
from headway.models.steptime import step_time

MYOPIC, LOOKAHEAD = 1.0, 2.0
POINTS = 8
"""Points of the horizon, now included: outputs shorter than the first interval peak at once."""
AGE = 16
"""Steps after which an outlook is made anew: a sixtieth of the horizon."""
SPARING = 64
"""Running requests for every step that an outlook lasts at least when requests end: an engine of many ends one each step."""


@compiled
def joined(r, e, policy):
    """Add one request to the outlook.

    Args:
        r: its record.
        e: the books.
        policy: packed.
    """
    o, context = e.outlook, r.prompt + r.emitted
    alive = o[ALIVE + row_of(r)]
    here = reached(alive, r.emitted + 1.0)
    for k in range(1 if policy[ADMISSION] == MYOPIC else POINTS):
        h = policy[LOOK_STEPS] * k / (POINTS - 1)
        s = reached(alive, r.emitted + 1.0 + h) / here if here > 0.0 else 1.0
        o[EXPECTED, k] += s
        o[EXPECTED_KV, k] += s * (context + h)
        o[VARIANCE, k] += s * (1.0 - s) * (context + h) * (context + h)
        o[ALL_STAY, k] += context + h


@compiled
def look(req, e, ids, policy):
    """Make the outlook anew: survival from all that was seen, then the sums over the running requests.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        policy: packed.
    """
    e.outlook_until, e.outlook_preempted, e.outlook_ended = e.step + AGE, e.preempted, 0
    count_lengths(req, e, ids, policy[PRIOR_TOKENS], policy[PRIOR_REQUESTS])
    e.outlook[:CENSORED, :POINTS] = 0.0
    for k in range(e.n_running):
        joined(req[ids[RUNNING_IDS, k]], e, policy)


@compiled
def admits(r, req, e, ids, policy):
    """Whether a waiting request may come in. Where nobody runs it may: what never fits must not wait for ever.

    Args:
        r: its record.
        req: requests.
        e: the books; the outlook is made anew if it is out of date.
        ids: id table.
        policy: packed.

    Returns:
        True if so.
    """
    age = e.step - (e.outlook_until - AGE)
    if age >= AGE or e.preempted != e.outlook_preempted or (e.outlook_ended > 0 and age * SPARING >= e.n_running):
        look(req, e, ids, policy)
    if e.n_running == 0:
        return True
    o, plant, block = e.outlook, policy[POLICY_PLANT:], policy[BLOCK]
    pool = policy[BLOCKS] - math.ceil(policy[WATERMARK] * policy[BLOCKS])
    alive, context = o[ALIVE + row_of(r)], r.prompt + r.emitted
    here = reached(alive, r.emitted + 1.0)
    for k in range(1 if policy[ADMISSION] == MYOPIC else POINTS):
        h = policy[LOOK_STEPS] * k / (POINTS - 1)
        s = reached(alive, r.emitted + 1.0 + h) / here if here > 0.0 else 1.0
        c = context + h
        n, kv, variance = o[EXPECTED, k] + s, o[EXPECTED_KV, k] + s * c, o[VARIANCE, k] + s * (1.0 - s) * c * c
        kv = min(kv + policy[LOOK_Z] * math.sqrt(variance), o[ALL_STAY, k] + c)
        if (kv + n * (block - 1.0)) / block > pool or step_time(plant, n, kv, 0.0, 0.0, 0.0) > e.admit_s:
            return False
    return True


@compiled
def admission_limit_s(law, law_state, policy, budget_s):
    """Longest decode-only step, as predicted, that admission may lead to.

    Args:
        law: packed.
        law_state: shape (STATE_SIZE,).
        policy: packed.
        budget_s: longest step that keeps the ITL promise [s].

    Returns:
        (1 - margin) budget exp(-q_decode - b) for the tracker, the setpoint for any other law [s].
    """
    if law[0] == TRACKER:
        return (1.0 - law[4]) * budget_s * math.exp(-law_state[1] - law_state[0])
    return policy[SETPOINT_S]
