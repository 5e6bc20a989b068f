"""Who goes first, and who is turned away: deadlines, slack, aging, triage, and a heap over keys that stand still."""

from __future__ import annotations

import math

from headway.controllers.policy import (
    AGING,
    CHUNK,
    ESTIMATE,
    MAX_TOKENS,
    NEXT_STEP,
    ORDER,
    SETPOINT_S,
    TIMEOUT,
    TOLERANCE,
    TRIAGE,
)
from headway.models.compiled import compiled, compiled_inline
from headway.models.goodput import EXPIRED, REJECTED, WAITING
from headway.models.mechanics import end_request
from headway.models.state import HEAP_IDS, WAITING_IDS

BEHIND_S = 1e6
"""Added to the key of a deferred request: behind every feasible one, among themselves still by key."""

NO_TRIAGE, DEFER, REJECT, QUEUE_TIMEOUT = range(4)
FCFS, EDF, SLACK = range(3)


@compiled_inline
def slack_s(r, e, policy, targets):
    """Slack of a prompt: time left at its TTFT deadline if it were served from now on without waiting.

    slack = arrival + ttft - now - estimate (ceil(T / C) + e) setpoint

    T tokens to go, C tokens that one step carries, e = 1 where the engine emits a step after the last chunk.

    Args:
        r: record of the request.
        e: the books.
        policy: packed.
        targets: shape (classes, 4), the TTFT at the engine first [s].

    Returns:
        Slack [s]; negative means late even if started now.
    """
    carried = min(e.rate_tps * policy[SETPOINT_S], policy[MAX_TOKENS])
    if policy[CHUNK] > 0.0:
        carried = min(carried, policy[CHUNK])
    steps = math.ceil((r.goal - r.computed) / max(carried, 1.0)) + policy[NEXT_STEP]
    return r.arrival_s + targets[r.class_id, 0] - e.now_s - policy[ESTIMATE] * steps * policy[SETPOINT_S]


@compiled_inline
def key_of(r, e, policy, targets):
    """Sort key of a request, least first.

    A request that was preempted after its first token goes before all others: its client is already watching a stream.

    Args:
        r: record of the request.
        e: the books.
        policy: packed.
        targets: shape (classes, 4), the TTFT at the engine first [s].

    Returns:
        Key [s].
    """
    if r.emitted > 0.0:
        return r.arrival_s - BEHIND_S
    if policy[ORDER] == FCFS:
        return r.arrival_s
    key = r.arrival_s + targets[r.class_id, 0]
    slack = 0.0
    if policy[ORDER] == SLACK or policy[TRIAGE] == DEFER:
        slack = slack_s(r, e, policy, targets)
    if policy[ORDER] == SLACK:
        key = slack - policy[AGING] * (e.now_s - r.arrival_s)
    if policy[TRIAGE] == DEFER and slack < -policy[TOLERANCE] * targets[r.class_id, 0]:
        key += BEHIND_S
    return key


@compiled
def sift_queue(req, e, ids, policy, targets):
    """Close the gaps in the queue and shed whom triage turns away: no token is spent on them.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        policy: packed.
        targets: shape (classes, 4), the TTFT at the engine first [s].
    """
    kept = e.head
    rule = policy[TRIAGE]
    for k in range(e.head, e.tail):
        i = ids[WAITING_IDS, k]
        r = req[i]
        if r.status != WAITING:
            continue
        if not r.admitted_s >= 0.0:  # work once begun is finished
            ttft = targets[r.class_id, 0]
            if rule == REJECT and slack_s(r, e, policy, targets) < -policy[TOLERANCE] * ttft:
                end_request(i, r, e, ids, REJECTED)
                continue
            if rule == QUEUE_TIMEOUT and e.now_s - r.arrival_s > policy[TIMEOUT] * ttft:
                end_request(i, r, e, ids, EXPIRED)
                continue
        ids[WAITING_IDS, kept] = i
        kept += 1
    e.tail = kept
    e.stale = 0


@compiled_inline
def before(keys, ids, a, b):
    """Whether heap entry a goes before b: smaller key, ties by arrival.

    Args:
        keys: of the candidates [s].
        ids: id table.
        a: place in the heap.
        b: place in the heap.

    Returns:
        True if so.
    """
    if keys[a] != keys[b]:
        return keys[a] < keys[b]
    return ids[HEAP_IDS, a] < ids[HEAP_IDS, b]


@compiled
def sink(keys, ids, place, size):
    """Let the entry at a place sink to where it belongs.

    Args:
        keys: of the candidates, changed in place [s].
        ids: id table, changed in place.
        place: where the entry is.
        size: entries in the heap.
    """
    while True:
        least = place
        left, right = 2 * place + 1, 2 * place + 2
        if left < size and before(keys, ids, left, least):
            least = left
        if right < size and before(keys, ids, right, least):
            least = right
        if least == place:
            return
        keys[place], keys[least] = keys[least], keys[place]
        ids[HEAP_IDS, place], ids[HEAP_IDS, least] = ids[HEAP_IDS, least], ids[HEAP_IDS, place]
        place = least


@compiled
def heapify(keys, ids, size):
    """Make a heap of the entries placed so far. Keys were computed once and do not change while it is used.

    Args:
        keys: of the candidates, changed in place [s].
        ids: id table, changed in place.
        size: entries.
    """
    for place in range(size // 2 - 1, -1, -1):
        sink(keys, ids, place, size)


@compiled
def pop_least(keys, ids, size):
    """Take the entry that goes first.

    Args:
        keys: of the candidates, changed in place [s].
        ids: id table, changed in place.
        size: entries before; at least one.

    Returns:
        Request id.
    """
    i = ids[HEAP_IDS, 0]
    keys[0], ids[HEAP_IDS, 0] = keys[size - 1], ids[HEAP_IDS, size - 1]
    sink(keys, ids, 0, size - 1)
    return i
