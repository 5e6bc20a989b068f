"""The scheduler: composes one step from what runs and what waits, under the law's budget and the policy's order.

Stock order ("fcfs") is vLLM's: running requests in order of admission, decodes and unfinished prompts alike, then the
queue until something does not fit. The other orders are in `headway.controllers.compose`. docs/engine.md is the
specification of both.
"""

from __future__ import annotations

import math

from headway.controllers.admission import admission_limit_s, admits, ended, joined
from headway.controllers.compose import compose_by_key
from headway.controllers.decodes import decode_due, make_room, requeue
from headway.controllers.laws import law_step
from headway.controllers.order import FCFS, carried_tokens
from headway.controllers.policy import (
    ADMISSION,
    ASYNC,
    BLOCK,
    BUDGET_S,
    CHUNK,
    DECODE_EVERY,
    HAS_SHARES,
    HAS_STRIDES,
    MAX_TOKENS,
    ORDER,
    RESERVATION,
    RUNNING,
)
from headway.controllers.queue import arrive, kept_free, leave, next_arrival_s, part
from headway.controllers.renewal import renew, renewal_due
from headway.models.compiled import compiled, compiled_inline
from headway.models.goodput import WAITING
from headway.models.mechanics import enter, schedule_chunk, schedule_decode
from headway.models.settlement import bury_ghosts
from headway.models.state import (
    BOUND_BY_ADMISSION,
    BOUND_BY_BUDGET,
    BOUND_BY_KV,
    BOUND_BY_NONE,
    BOUND_BY_RUNNING,
    LEAVING,
    RUNNING_IDS,
    WAITING_IDS,
)


@compiled
def plan(req, books, ids, keys, units, unit_ids, law_state, policy, law, targets, signals):
    """Compose the next step: who arrives, who leaves, who decodes, whose prompt goes on, who is admitted.

    Work is conserved: a step is empty only if nobody runs or waits. Tokens never exceed the law's budget or the
    engine's limit, blocks never exceed the pool.

    Args:
        req: requests.
        books: the engine's.
        ids: id table.
        keys: key table [s].
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
        law_state: shape (LAW_STATE,).
        policy: packed, shape (POLICY_SIZE,).
        law: packed, shape (LAW_SIZE,).
        targets: shape (classes, 4): TTFT at the engine, budget, ITL, transport [s].
        signals: scratch, shape (SIGNALS,).

    Returns:
        True if there is a step to execute.
    """
    e = books[0]
    if policy[ADMISSION] > 0.0:
        ended(req, e, ids, policy)
    wake(req, e, ids, policy, units, unit_ids)
    # what seldom happens is looked for here: a call with nine arrays costs as much as all else that a small step does
    if next_arrival_s(req, e, keys) <= (e.seen_s if policy[ASYNC] > 0.0 else e.now_s):
        arrive(req, e, ids, keys, policy, targets, units, unit_ids)
    if renewal_due(e, policy):
        renew(req, e, ids, keys, policy, targets, units, unit_ids)
    if e.n_leaving > 0 and keys[LEAVING, 0] < e.now_s:
        leave(req, e, ids, keys, policy, targets)
    if e.n_running + e.n_waiting == 0:
        return False
    if policy[ASYNC] > 0.0:
        before = e.before
        signals[0], signals[1], signals[2], signals[3] = before[0], before[1], before[2], before[3]
        signals[5], signals[6], signals[7] = before[4], before[5], before[6]
    else:
        signals[0], signals[1], signals[2] = e.last_step_s, e.last_prefill, e.last_decodes
        signals[3] = 1.0 if e.last_bound == BOUND_BY_BUDGET else 0.0
        signals[5], signals[6], signals[7] = e.last_kv, e.last_pairs, e.last_chunks
    e.oldest = 0
    if policy[HAS_STRIDES] > 0.0 or policy[DECODE_EVERY] > 0.0:
        count_due(req, e, ids, policy)
    signals[4], signals[8] = e.ready + e.n_ghosts, e.ready_kv + e.ghost_kv
    signals[9] = e.context if e.prompts > 0 else 0.0
    budget = min(math.floor(law_step(law, law_state, signals, policy[BUDGET_S])), policy[MAX_TOKENS])
    e.token_budget = budget
    if policy[ADMISSION] > 0.0:
        e.admit_s = admission_limit_s(law, law_state, policy, policy[BUDGET_S])
    jammed, strides = 0, policy[HAS_STRIDES] > 0.0
    while True:
        open_step(e, budget, jammed)
        if policy[HAS_SHARES] > 0.0:
            open_shares(e, targets.shape[0])
        if policy[ORDER] == FCFS:
            compose_stock(req, e, ids, keys, policy, targets, units, unit_ids)
        else:
            compose_by_key(req, e, ids, keys, policy, targets, units, unit_ids, strides)
        if e.n_decode + e.prefill > e.n_ghosts:
            return True
        gave_way, jammed = e.gave_way > jammed, e.gave_way
        if e.n_running > 0 and (gave_way or strides):
            if not gave_way:
                strides = False
                e.oldest = oldest_decode(req, e, ids)
            continue
        # Unfinished prompts hold all blocks between them and none can go on: one of them gives way.
        if e.n_running < 2:
            if e.n_ghosts > 0:
                return True
            e.stalled = 1
            return False
        requeue(req, e, ids, keys, policy, targets, units, unit_ids)
        jammed += 1


@compiled_inline
def wake(req, e, ids, policy, units, unit_ids):
    """Ready for arrivals: an idle engine sees all of them and has forgotten who ended; estimates have a rate to begin with.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        policy: packed.
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
    """
    if e.n_running + e.n_waiting == 0:
        e.seen_s = e.now_s
        if e.n_ghosts > 0:
            bury_ghosts(req, e, ids, units, unit_ids)
    if e.used_tps == 0.0:
        e.used_tps = e.rate_tps
        e.carried = carried_tokens(e, policy)


@compiled_inline
def open_step(e, budget, jammed):
    """Books of a step in which nothing was given yet.

    Args:
        e: the books.
        budget: tokens in the step [tokens].
        jammed: requests that gave way already; nobody is admitted after that.
    """
    e.n_decode, e.kv_read, e.prefill, e.pairs, e.chunks = float(e.n_ghosts), e.ghost_kv, 0.0, 0.0, 0.0
    e.left = max(budget - e.n_ghosts, 1.0) if e.n_ghosts > 0 else budget
    e.closed, e.gave_way, e.blocked, e.held, e.cut, e.unserved, e.n_unfinished = jammed, jammed, 0, 0, 0, 0, 0
    e.bound = BOUND_BY_NONE
    e.pending = e.n_waiting + e.prompts


@compiled_inline
def open_shares(e, n_classes):
    """Whose prompts are pending, per class; running ones are counted when they are listed.

    Args:
        e: the books.
        n_classes: number of classes.
    """
    for c in range(n_classes):
        e.given[c] = 0.0
        e.pending_of[c] = e.waiting_of[c]


@compiled
def oldest_decode(req, e, ids):
    """Steps since the last token of the decode that waits longest, whatever the strides.

    Args:
        req: requests.
        e: the books.
        ids: id table.

    Returns:
        Their number, 0 where nobody decodes.
    """
    oldest = 0
    for k in range(e.n_running):
        r = req[ids[RUNNING_IDS, k]]
        if r.computed >= r.goal:
            oldest = max(oldest, e.step - r.stepped)
    return oldest


@compiled
def stop(req, e, ids, keys, policy, targets, units, unit_ids, cut_s):
    """End a run of fixed length: who came during the last step is there, and time has gone on to the cut.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        keys: key table [s].
        policy: packed.
        targets: shape (classes, 4) [s].
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
        cut_s: end of the run [s].
    """
    e.seen_s = e.now_s
    arrive(req, e, ids, keys, policy, targets, units, unit_ids)
    e.settled_s = max(e.settled_s, cut_s)


@compiled
def count_due(req, e, ids, policy):
    """Count the decodes that are due by the stride of their class, in place of all, and how long the oldest has waited.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        policy: packed.
    """
    ready, kv, oldest = 0.0, 0.0, 0
    for k in range(e.n_running):
        r = req[ids[RUNNING_IDS, k]]
        if r.computed >= r.goal and decode_due(r, e, policy):
            ready += 1.0
            kv += r.prompt + r.emitted
            oldest = max(oldest, e.step - r.stepped)
    e.ready, e.ready_kv, e.oldest = ready, kv, oldest


@compiled
def compose_stock(req, e, ids, keys, policy, targets, units, unit_ids):
    """vLLM's own order.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        keys: key table [s].
        policy: packed.
        targets: shape (classes, 4) [s].
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
    """
    k, block = 0, policy[BLOCK]
    cap = policy[CHUNK] if policy[CHUNK] > 0.0 and e.n_running + e.n_waiting > 1 else 1e18  # vLLM lifts it where nobody else is there
    while k < e.n_running and e.left >= 1.0:
        i = ids[RUNNING_IDS, k]
        r = req[i]
        if r.computed >= r.goal:
            x, done = 1.0, schedule_decode(r, e, block, units)
        else:
            x = min(r.goal - r.computed, cap, e.left)
            e.cut = 1 if x == e.left < r.goal - r.computed else e.cut
            done = schedule_chunk(r, e, x, block, units, unit_ids)
        k += 1
        if not done:
            k, done = make_room(k - 1, x, req, e, ids, keys, policy, targets, units, unit_ids)
            if not done:
                continue
        e.left -= x
    if k < e.n_running:
        e.cut = 1
    if e.gave_way > 0:
        e.bound = BOUND_BY_KV
        return
    while e.left >= 1.0 and e.n_waiting > 0:
        while req[ids[WAITING_IDS, e.head]].status != WAITING:
            e.head += 1
        if e.n_running >= policy[RUNNING]:
            e.bound = BOUND_BY_RUNNING
            break
        i = ids[WAITING_IDS, e.head]
        r = req[i]
        if policy[ADMISSION] > 0.0 and not admits(r, req, e, ids, policy):
            e.bound = BOUND_BY_ADMISSION
            break
        x = enter(i, r, e, ids, cap, block, policy[RESERVATION], kept_free(e, policy), units, unit_ids)
        if x == 0.0:
            e.bound = BOUND_BY_KV
            break
        e.cut = 1 if x == e.left < r.goal - r.computed else e.cut
        e.head += 1
        part(r, req, e, ids, policy)
        if policy[ADMISSION] > 0.0:
            joined(r, e, policy)
        e.left -= x
    if e.left < 1.0 and e.bound == BOUND_BY_NONE and (e.cut > 0 or e.n_waiting > 0):
        e.bound = BOUND_BY_BUDGET
