"""The scheduler: composes one step from what runs and what waits, under the law's budget and the policy's order.

Stock order ("fcfs") is vLLM's: running requests in order of admission, decodes and unfinished prompts alike, then the
queue until something does not fit. The other orders protect decodes: they come first, then prompts by key.
"""

from __future__ import annotations

import math

from headway.controllers.admission import admission_limit_s, admits, ended, joined
from headway.controllers.laws import law_step
from headway.controllers.order import FCFS, heapify, key_of, pop_least, sift_queue
from headway.controllers.policy import (
    ADMISSION,
    BLOCK,
    BLOCKS,
    BUDGET_S,
    CHUNK,
    MAX_LEN,
    MAX_TOKENS,
    ORDER,
    RESERVE_FULL,
    RUNNING,
    TRIAGE,
    WATERMARK,
)
from headway.models.compiled import compiled
from headway.models.goodput import WAITING
from headway.models.mechanics import admit, arrive, preempt_last, schedule_chunk, schedule_decode
from headway.models.state import (
    BOUND_BY_ADMISSION,
    BOUND_BY_BUDGET,
    BOUND_BY_KV,
    BOUND_BY_NONE,
    BOUND_BY_RUNNING,
    HEAP_IDS,
    RUNNING_IDS,
    WAITING_IDS,
)

BLOCKED_TRIES = 8
"""Candidates tried in vain for cache blocks before a step gives up looking: the pool is full, not unlucky."""


@compiled
def plan(req, books, ids, keys, law_state, policy, law, targets, signals):
    """Compose the next step: who arrives, who is shed, who decodes, whose prompt goes on, who is admitted.

    Work is conserved: a step is empty only if nobody runs or waits. Tokens never exceed the law's budget or the
    engine's limit, blocks never exceed the pool.

    Args:
        req: requests.
        books: the engine's.
        ids: id table.
        keys: scratch for the candidates' keys, shape (n,) [s].
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
    arrive(req, e, ids, policy[BLOCK], policy[BLOCKS], policy[WATERMARK], policy[MAX_LEN])
    # under plain FCFS the queue loses requests at its head only, which costs nothing to close
    if policy[ORDER] != FCFS or policy[TRIAGE] != 0.0:
        sift_queue(req, e, ids, policy, targets)
    if e.n_running == 0 and e.head == e.tail:
        return False
    signals[0], signals[1], signals[2] = e.last_step_s, e.last_prefill, e.last_decodes
    signals[3] = 1.0 if e.last_bound == BOUND_BY_BUDGET else 0.0
    # the sums of the last step stand until the next is composed below
    signals[5], signals[6], signals[7] = e.kv_read, e.pairs, e.chunks
    signals[4], signals[8], signals[9] = count_ready(req, e, ids)
    budget = min(math.floor(law_step(law, law_state, signals, policy[BUDGET_S])), policy[MAX_TOKENS])
    e.token_budget = budget
    if policy[ADMISSION] > 0.0:
        e.admit_s = admission_limit_s(law, law_state, policy, policy[BUDGET_S])
    jammed = 0
    while True:
        e.n_decode, e.kv_read, e.prefill, e.pairs, e.chunks = 0.0, 0.0, 0.0, 0.0, 0.0
        if policy[ORDER] == FCFS:
            compose_stock(req, e, ids, policy, budget, jammed)
        else:
            compose_by_key(req, e, ids, keys, policy, targets, budget, jammed)
        if e.n_decode + e.prefill > 0.0:
            return True
        # Unfinished prompts hold all blocks between them and none can go on: the last of them gives way.
        if e.n_running < 2:
            e.stalled = 1
            return False
        preempt_last(req, e, ids)
        jammed += 1


@compiled
def stop(req, e, ids, policy, cut_s):
    """End a run of fixed length: who came during the last step is there, and time has gone on to the cut.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        policy: packed.
        cut_s: end of the run [s].
    """
    arrive(req, e, ids, policy[BLOCK], policy[BLOCKS], policy[WATERMARK], policy[MAX_LEN])
    e.settled_s = max(e.settled_s, cut_s)


@compiled
def count_ready(req, e, ids):
    """Requests that want to decode, what they read, and how far the prompt is that goes on first.

    Args:
        req: requests.
        e: the books.
        ids: id table.

    Returns:
        (their number [requests], cache tokens they read [tokens], context of the first unfinished prompt [tokens]).
    """
    ready, kv, context, found = 0.0, 0.0, 0.0, False
    for k in range(e.n_running):
        r = req[ids[RUNNING_IDS, k]]
        if r.computed >= r.goal:
            ready += 1.0
            kv += r.prompt + r.emitted
        elif not found:
            context, found = r.computed, True
    return ready, kv, context


@compiled
def compose_stock(req, e, ids, policy, budget, preempted):
    """vLLM's own order.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        policy: packed.
        budget: tokens in the step [tokens].
        preempted: requests that this step has preempted already; nobody is admitted after a preemption.
    """
    left, k, cut = budget, 0, False
    block = policy[BLOCK]
    cap = policy[CHUNK] if policy[CHUNK] > 0.0 else 1e18
    while k < e.n_running and left >= 1.0:
        i = ids[RUNNING_IDS, k]
        r = req[i]
        decode = r.computed >= r.goal
        x = 1.0
        if not decode:
            x = min(r.goal - r.computed, cap, left)
            cut = cut or x == left < r.goal - r.computed
        alive = True
        while not (schedule_decode(r, e, block) if decode else schedule_chunk(r, e, x, block, False, 0)):
            victim, back = preempt_last(req, e, ids)
            left += back
            preempted += 1
            if victim == i:
                alive = False
                break
        if not alive:
            break
        left -= x
        k += 1
    bound = BOUND_BY_KV if preempted > 0 else BOUND_BY_NONE
    cut = cut or k < e.n_running
    keep = math.ceil(policy[WATERMARK] * policy[BLOCKS])
    while preempted == 0 and left >= 1.0 and e.head < e.tail:
        if e.n_running >= policy[RUNNING]:
            bound = BOUND_BY_RUNNING
            break
        i = ids[WAITING_IDS, e.head]
        r = req[i]
        if policy[ADMISSION] > 0.0 and not admits(r, req, e, ids, policy):
            bound = BOUND_BY_ADMISSION
            break
        x = min(r.goal, cap, left)
        if not schedule_chunk(r, e, x, block, policy[RESERVE_FULL] > 0.0, keep):
            bound = BOUND_BY_KV
            break
        cut = cut or x == left < r.goal
        e.head += 1
        admit(i, r, e, ids)
        if policy[ADMISSION] > 0.0:
            joined(r, e, policy)
        left -= x
    e.bound = BOUND_BY_BUDGET if left < 1.0 and bound == BOUND_BY_NONE and (cut or e.head < e.tail) else bound


@compiled
def compose_by_key(req, e, ids, keys, policy, targets, budget, preempted):
    """Decodes first, then prompts by key: slack or deadline, aged, feasible before deferred.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        keys: scratch for the candidates' keys, shape (n,) [s].
        policy: packed.
        targets: shape (classes, 4): TTFT at the engine, budget, ITL, transport [s].
        budget: tokens in the step [tokens].
        preempted: requests that this step has preempted already; nobody is admitted after a preemption.
    """
    left, k = budget, 0
    size = 0
    block = policy[BLOCK]
    while k < e.n_running and left >= 1.0:
        i = ids[RUNNING_IDS, k]
        r = req[i]
        if r.computed >= r.goal:
            alive = True
            while not schedule_decode(r, e, block):
                victim, back = preempt_last(req, e, ids)
                left += back
                preempted += 1
                if victim == i:
                    alive = False
                    break
            if not alive:
                break
            left -= 1.0
        k += 1
    unserved = 0
    for j in range(e.n_running):
        i = ids[RUNNING_IDS, j]
        r = req[i]
        if r.computed >= r.goal and r.take == 0.0:
            unserved += 1
        if r.computed < r.goal:
            keys[size], ids[HEAP_IDS, size] = key_of(r, e, policy, targets), i
            size += 1
    unfinished = size
    waiting = e.tail - e.head
    if preempted == 0 and left >= 1.0:
        for k in range(e.head, e.tail):
            i = ids[WAITING_IDS, k]
            keys[size], ids[HEAP_IDS, size] = key_of(req[i], e, policy, targets), i
            size += 1
    heapify(keys, ids, size)
    fill_by_key(req, e, ids, keys, policy, left, size, unfinished)
    if preempted > 0:
        e.bound = BOUND_BY_KV
    elif left < 1.0 and waiting + unfinished + unserved > 0:
        e.bound = BOUND_BY_BUDGET


@compiled
def fill_by_key(req, e, ids, keys, policy, left, size, unfinished):
    """Spend the rest of the budget on the candidates in the heap, and book what limited the step.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        keys: of the candidates [s].
        policy: packed.
        left: tokens to spend [tokens].
        size: candidates in the heap.
        unfinished: of them, already running.
    """
    cap = policy[CHUNK] if policy[CHUNK] > 0.0 else 1e18
    keep = math.ceil(policy[WATERMARK] * policy[BLOCKS])
    bound, blocked, cut, closed = BOUND_BY_NONE, 0, False, False
    while left >= 1.0 and size > 0:
        i = pop_least(keys, ids, size)
        r = req[i]
        size -= 1
        fresh = r.status == WAITING
        if fresh and e.n_running >= policy[RUNNING]:
            bound = BOUND_BY_RUNNING
            if unfinished == 0:
                break
            continue
        if fresh and not closed and policy[ADMISSION] > 0.0 and not admits(r, req, e, ids, policy):
            # the one whose turn it is waits, and nobody overtakes it: a long prompt would wait for ever behind short ones
            bound, closed = BOUND_BY_ADMISSION, True
        if fresh and closed:
            if unfinished == 0:
                break
            continue
        if not fresh:
            unfinished -= 1
        x = min(r.goal - r.computed, cap, left)
        if schedule_chunk(r, e, x, policy[BLOCK], policy[RESERVE_FULL] > 0.0 and fresh, keep if fresh else 0):
            cut = cut or x == left < r.goal - r.computed
            left -= x
            if fresh:
                admit(i, r, e, ids)
                e.stale += 1
                if policy[ADMISSION] > 0.0:
                    joined(r, e, policy)
        else:
            bound = BOUND_BY_KV
            blocked += 1
            # a prompt that was begun goes before newcomers: admitting them into a full pool would make the two preempt each other
            closed = closed or not fresh
            if blocked >= BLOCKED_TRIES and unfinished == 0:
                break
    open_still = bound in (BOUND_BY_NONE, BOUND_BY_ADMISSION)
    e.bound = BOUND_BY_BUDGET if left < 1.0 and open_still and (size > 0 or cut) else bound
