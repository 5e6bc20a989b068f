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

No program is solved: whoever is let in only adds to both sides, so that one after another from the head of the queue
is the longest prefix that fits. It costs eight evaluations of the plant per candidate, and a sum over the running
requests when the outlook is made anew: where a candidate waits, every AGE steps, and if somebody was preempted. In between, who
is let in is added to it and who ends is taken out.

Source:
    Mesbah, Stochastic model predictive control, IEEE Control Systems Magazine, 2016 (chance constraints).
"""

from __future__ import annotations

import math

from headway.controllers.policy import (
    ADMISSION,
    ASYNC,
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
from headway.controllers.survival import count_lengths, learn, reached, row_of
from headway.controllers.tracker import TRACKER
from headway.models.compiled import compiled
from headway.models.goodput import ABANDONED, CANCELLED, FINISHED
from headway.models.state import ALIVE, ALL_STAY, CENSORED, EXPECTED, EXPECTED_KV, GHOSTS, RELEASED_IDS, RUNNING_IDS, VARIANCE
from headway.models.steptime import step_time

MYOPIC, LOOKAHEAD = 1.0, 2.0
POINTS = 8
"""Points of the horizon, now included: outputs shorter than the first interval peak at once."""
AGE = 16
"""Steps after which an outlook is made anew: a sixtieth of the default horizon."""


@compiled
def count_in(o, row, emitted, context, sign, policy):
    """Add one request to the outlook, or take it out.

    Args:
        o: the outlook, changed in place.
        row: of its class.
        emitted: tokens it emitted [tokens].
        context: its prompt and those [tokens].
        sign: 1 to add, -1 to take out.
        policy: packed.
    """
    alive = o[ALIVE + row]
    here = reached(alive, emitted + 1.0)
    for k in range(1 if policy[ADMISSION] == MYOPIC else POINTS):
        h = policy[LOOK_STEPS] * k / (POINTS - 1)
        s = reached(alive, emitted + 1.0 + h) / here if here > 0.0 else 1.0
        c = context + h
        o[EXPECTED, k] += sign * s
        o[EXPECTED_KV, k] += sign * (s * c)
        o[VARIANCE, k] += sign * (s * (1.0 - s) * c * c)
        o[ALL_STAY, k] += sign * c


@compiled
def joined(r, e, policy):
    """Add a request that was let in to the outlook.

    Args:
        r: its record.
        e: the books.
        policy: packed.
    """
    count_in(e.outlook, row_of(r), r.emitted, r.prompt + r.emitted, 1.0, policy)


@compiled
def ended(req, e, ids, policy):
    """Learn from the outputs that ended with the last step, and take them out. To be called before anything else is released.

    A request is taken out as it stood when the outlook was made, one token shorter for every step since. For one that waited
    in between, its cache taken away, that is too short: the outlook is then too full until it is made anew.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        policy: packed.
    """
    if e.learned == e.step:
        return
    e.learned = e.step
    age = e.step - (e.outlook_until - AGE)
    ahead = policy[ASYNC] > 0.0  # then those who ended keep their blocks for a step
    row, n = (GHOSTS, e.n_ghosts) if ahead else (RELEASED_IDS, e.n_released)
    for k in range(n):
        r = req[ids[row, k]]
        if r.status == FINISHED:
            learn(r, e)
        if r.status == FINISHED or r.status == CANCELLED or r.status == ABANDONED:
            then = max(r.emitted - age, 0.0)
            count_in(e.outlook, row_of(r), then, r.prompt + then, -1.0, policy)


@compiled
def look(req, e, ids, policy):
    """Make the outlook anew: survival from all that was seen, then the sums over the running requests.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        policy: packed.
    """
    e.outlook_until, e.outlook_preempted = e.step + AGE, e.preempted
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
    if e.step >= e.outlook_until or e.preempted != e.outlook_preempted or e.n_running == 0:
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
        kv = min(kv + policy[LOOK_Z] * math.sqrt(max(variance, 0.0)), o[ALL_STAY, k] + c)
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
