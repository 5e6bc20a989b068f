"""Who waits: they come, they leave, and the one that goes first is found without walking the queue.

In stock order the queue is a row of the id table with holes where somebody left. By key it is a heap per class of the
feasible and one of those ranked behind, next to a set of all who wait. One more heap holds when each wait may end.
A heap's entry is void once its request does not wait any more, or waits with another key or rank.
"""

from __future__ import annotations

import math

from headway.controllers.order import DEGRADED, FCFS, QUEUE_TIMEOUT, REJECT, key_of, leaves_at_s
from headway.controllers.policy import (
    ASYNC,
    BLOCK,
    BLOCKS,
    HAS_SHARES,
    MAX_LEN,
    ORDER,
    SHED_CAP,
    TRIAGE,
    WATERMARK,
)
from headway.models.cache import spared
from headway.models.compiled import compiled, compiled_inline
from headway.models.goodput import EXPIRED, FAILED, REJECTED, WAITING
from headway.models.heap import drop_least, heapify, push
from headway.models.mechanics import client_left, end_request
from headway.models.state import BEHIND, COMING, FEASIBLE, LEAVING, WAITING_IDS


@compiled
def compact(c, req, e, ids, keys, row, n):
    """Make a class's heap anew of the entries that are not void.

    Args:
        c: the class.
        req: requests.
        e: the books.
        ids: id table.
        keys: key table [s].
        row: FEASIBLE or BEHIND.
        n: entries of that row's heaps, per class.
    """
    at, kept, rank = e.heap_at[c], 0, 1 if row == BEHIND else 0
    for k in range(at, at + n[c]):
        r = req[ids[row, k]]
        if r.status == WAITING and r.behind == rank and r.key_s == keys[row, k]:
            ids[row, at + kept], keys[row, at + kept] = ids[row, k], keys[row, k]
            kept += 1
    n[c] = kept
    heapify(keys, ids, row, at, kept)


@compiled
def push_key(i, r, req, e, ids, keys):
    """Enter a request under its key into the heap of its class and rank.

    Args:
        i: request id.
        r: its record.
        req: requests.
        e: the books.
        ids: id table.
        keys: key table [s].
    """
    c = r.class_id
    room = e.heap_at[c + 1] - e.heap_at[c]
    if r.behind > 0:
        if e.n_behind[c] == room:
            compact(c, req, e, ids, keys, BEHIND, e.n_behind)
        push(keys, ids, BEHIND, e.heap_at[c], e.n_behind[c], r.key_s, i)
        e.n_behind[c] += 1
    else:
        if e.n_feasible[c] == room:
            compact(c, req, e, ids, keys, FEASIBLE, e.n_feasible)
        push(keys, ids, FEASIBLE, e.heap_at[c], e.n_feasible[c], r.key_s, i)
        e.n_feasible[c] += 1


@compiled
def push_leave(i, req, e, ids, keys):
    """Enter when the wait of a request may end; where the row is full of void entries, it is made anew.

    Args:
        i: request id.
        req: requests.
        e: the books.
        ids: id table.
        keys: key table [s].
    """
    if req[i].leave_s == math.inf:
        return
    if e.n_leaving == ids.shape[1]:
        kept = 0
        for k in range(e.n_leaving):
            j = ids[LEAVING, k]
            if req[j].status == WAITING and req[j].leave_s == keys[LEAVING, k] and j != i:
                ids[LEAVING, kept], keys[LEAVING, kept] = j, keys[LEAVING, k]
                kept += 1
        e.n_leaving = kept
        heapify(keys, ids, LEAVING, 0, kept)
    push(keys, ids, LEAVING, 0, e.n_leaving, req[i].leave_s, i)
    e.n_leaving += 1


@compiled
def join(i, req, e, ids, keys, policy, targets, units, unit_ids):
    """Somebody waits: a newcomer at the end, in stock order who was preempted in front.

    Args:
        i: request id.
        req: requests.
        e: the books.
        ids: id table.
        keys: key table [s].
        policy: packed.
        targets: shape (classes, 4) [s].
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
    """
    r = req[i]
    begun = r.admitted_s >= 0.0
    r.status = WAITING
    r.behind = 1 if r.degraded + r.spared > 0 and r.emitted == 0.0 else 0
    if policy[ORDER] == FCFS:
        if begun:
            e.head -= 1
            ids[WAITING_IDS, e.head] = i
        else:
            ids[WAITING_IDS, e.tail] = i
            e.tail += 1
    else:
        ids[WAITING_IDS, e.n_waiting] = i
        r.place = e.n_waiting
    e.n_waiting += 1
    if policy[HAS_SHARES] > 0.0:
        e.waiting_of[r.class_id] += 1
    if not begun and r.units > 0 and e.unit_blocks > 0:
        _, _, r.hit = spared(r, e, policy[BLOCK], units, unit_ids)
    if policy[ORDER] != FCFS:
        r.key_s = key_of(r, e, policy, targets)
        push_key(i, r, req, e, ids, keys)
    r.leave_s = leaves_at_s(r, e, policy, targets)
    push_leave(i, req, e, ids, keys)


@compiled_inline
def part(r, req, e, ids, policy):
    """Take a request out of the set of those who wait; entries in heaps are void from then on.

    Args:
        r: its record.
        req: requests.
        e: the books.
        ids: id table.
        policy: packed.
    """
    e.n_waiting -= 1
    if policy[HAS_SHARES] > 0.0:
        e.waiting_of[r.class_id] -= 1
    if policy[ORDER] != FCFS:
        last = ids[WAITING_IDS, e.n_waiting]
        ids[WAITING_IDS, r.place] = last
        req[last].place = r.place


@compiled_inline
def next_arrival_s(req, e, keys):
    """When the next request comes.

    Args:
        req: requests.
        e: the books.
        keys: key table [s].

    Returns:
        Time, infinite if nobody comes any more without somebody's end [s].
    """
    while e.arrived < len(req) and req[e.arrived].after >= 0:
        e.arrived += 1
    at = req[e.arrived].arrival_s if e.arrived < len(req) else math.inf
    return min(at, keys[COMING, 0]) if e.n_coming > 0 else at


@compiled_inline
def kept_free(e, policy):
    """Blocks that a newcomer must leave free; an engine in which nobody runs keeps none back.

    Args:
        e: the books.
        policy: packed.

    Returns:
        Share of the watermark of all blocks, vLLM's null block counted in, rounded down.
    """
    return math.floor(policy[WATERMARK] * (policy[BLOCKS] + 1.0)) if e.n_running > 0 else 0.0


@compiled_inline
def goes_before(i, req, other_s, other):
    """Whether the next open arrival comes before one that waited for another's end: it comes earlier, ties by number.

    Args:
        i: the open one; the number of requests where there is none.
        req: requests.
        other_s: when the other comes [s].
        other: its request id.

    Returns:
        True if so.
    """
    return i < len(req) and (req[i].arrival_s < other_s or (req[i].arrival_s == other_s and i < other))


@compiled
def arrive(req, e, ids, keys, policy, targets, units, unit_ids):
    """Queue everyone who has arrived, as far as the scheduler sees. One that can never fit fails here, where it costs nothing.

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
    seen_s = e.seen_s if policy[ASYNC] > 0.0 else e.now_s
    while next_arrival_s(req, e, keys) <= seen_s:
        i = e.arrived
        if e.n_coming > 0 and not goes_before(i, req, keys[COMING, 0], ids[COMING, 0]):
            i = ids[COMING, 0]
            drop_least(keys, ids, COMING, 0, e.n_coming)
            e.n_coming -= 1
        else:
            e.arrived += 1
        e.arrivals[req[i].class_id] += 1
        e.queued += req[i].goal - req[i].computed
        length = req[i].prompt + req[i].output
        if length > policy[MAX_LEN] or math.ceil(length / policy[BLOCK]) > policy[BLOCKS]:
            end_request(i, req, e, ids, keys, FAILED)
        else:
            join(i, req, e, ids, keys, policy, targets, units, unit_ids)


@compiled_inline
def sheds(r, policy):
    """Whether triage means to shed a request whose wait is over, and not to degrade or to defer it.

    Args:
        r: its record.
        policy: packed.

    Returns:
        True if so.
    """
    return policy[TRIAGE] >= REJECT and (policy[TRIAGE] != DEGRADED or r.degraded > 0)  # from REJECT on they shed


@compiled
def leave(req, e, ids, keys, policy, targets):
    """End the waits that are over: clients leave, and triage turns away, spares, degrades or defers. No token is spent on them.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        keys: key table [s].
        policy: packed.
        targets: shape (classes, 4), the TTFT at the engine first [s].
    """
    while e.n_leaving > 0 and keys[LEAVING, 0] < e.now_s:
        i, at_s = ids[LEAVING, 0], keys[LEAVING, 0]
        drop_least(keys, ids, LEAVING, 0, e.n_leaving)
        e.n_leaving -= 1
        r = req[i]
        if r.status != WAITING or r.leave_s != at_s:
            continue
        if e.now_s > r.arrival_s + r.cancel_s or (r.emitted == 0.0 and e.now_s > r.arrival_s + r.patience_s):
            status = client_left(r, e.now_s, targets[r.class_id, 0], targets[r.class_id, 2])
        elif sheds(r, policy) and (policy[SHED_CAP] >= 1.0 or e.shed[r.class_id] + 1.0 <= policy[SHED_CAP] * e.arrivals[r.class_id]):
            e.shed[r.class_id] += 1
            status = EXPIRED if policy[TRIAGE] == QUEUE_TIMEOUT else REJECTED
        else:
            if sheds(r, policy):
                r.spared = 1
            elif policy[TRIAGE] == DEGRADED:
                r.degraded = 1
            rank, key = r.behind, r.key_s
            r.behind, r.key_s = 1, key_of(r, e, policy, targets)
            if rank == 0 or r.key_s != key:  # else its entry holds: a second would have it tried twice in a step
                push_key(i, r, req, e, ids, keys)
            r.leave_s = leaves_at_s(r, e, policy, targets)
            push_leave(i, req, e, ids, keys)
            continue
        part(r, req, e, ids, policy)
        end_request(i, req, e, ids, keys, status)


@compiled_inline
def first_of(c, req, e, ids, keys, row):
    """Clear void entries from the front of a class's heap.

    Args:
        c: the class.
        req: requests.
        e: the books.
        ids: id table.
        keys: key table [s].
        row: FEASIBLE or BEHIND.

    Returns:
        Whether somebody is left in it.
    """
    n = e.n_behind if row == BEHIND else e.n_feasible
    rank, at = (1 if row == BEHIND else 0), e.heap_at[c]
    while n[c] > 0:
        r = req[ids[row, at]]
        if r.status == WAITING and r.behind == rank and r.key_s == keys[row, at]:
            return True
        drop_least(keys, ids, row, at, n[c])
        n[c] -= 1
    return False
