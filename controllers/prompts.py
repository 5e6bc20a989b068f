"""Prompts of a step: running ones and newcomers, by share, rank and key, as docs/engine.md 3.2 and 3.4 has it."""

from __future__ import annotations

import math

from headway.controllers.admission import admits, joined
from headway.controllers.order import BEHIND_S, DEFER, DEGRADED, DUE_S, LACK_TOKENS, due_s, first_token_s, time_for_s
from headway.controllers.policy import ADMISSION, BLOCK, CHUNK, HAS_SHARES, RESERVATION, RUNNING, SHED_CAP, TOLERANCES, TRIAGE
from headway.controllers.queue import first_of, kept_free, part
from headway.models.compiled import compiled, compiled_inline
from headway.models.goodput import RUNNING as RUNS
from headway.models.heap import drop_least, heapify
from headway.models.mechanics import enter, schedule_chunk
from headway.models.state import (
    BEHIND,
    BOUND_BY_ADMISSION,
    BOUND_BY_KV,
    BOUND_BY_RUNNING,
    FEASIBLE,
    RUNNING_IDS,
    STASH,
    UNFINISHED,
)

BLOCKED_TRIES = 8
"""Newcomers tried in vain for cache blocks before the door closes: the pool is full, not unlucky."""


@compiled_inline
def rank_key(r, c, key, behind, e, policy):
    """Key of a prompt with its rank: streams, then classes behind their share, then the others; the feasible before the rest.

    Args:
        r: its record.
        c: its class.
        key: its key [s].
        behind: whether it ranks behind the feasible.
        e: the books.
        policy: packed.

    Returns:
        Key [s].
    """
    if r.emitted > 0.0:
        return key
    if behind > 0:
        key += BEHIND_S
    if policy[HAS_SHARES] > 0.0 and e.deficit[c] > LACK_TOKENS:
        key -= DUE_S
    return key


@compiled
def list_prompts(req, e, ids, keys, policy, targets):
    """List the running prompts that are not computed yet, and count who is pending.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        keys: key table [s].
        policy: packed.
        targets: shape (classes, 4) [s].
    """
    n = 0
    for k in range(e.n_running):
        i = ids[RUNNING_IDS, k]
        r = req[i]
        if r.computed < r.goal:
            ttft, service = first_token_s(r, policy, targets), time_for_s(r.goal - r.computed, r.class_id, e, policy)
            behind = 0
            if policy[TRIAGE] == DEFER:
                behind = 1 if e.now_s > r.arrival_s + ttft * (1.0 + policy[TOLERANCES + r.class_id]) - service else 0
            elif policy[TRIAGE] == DEGRADED:
                behind = 1 if r.degraded > 0 else 0
            if policy[SHED_CAP] < 1.0 and r.spared > 0:
                behind = 1
            ids[UNFINISHED, n] = i
            keys[UNFINISHED, n] = rank_key(r, r.class_id, due_s(r, ttft, service, policy), behind, e, policy)
            n += 1
            if policy[HAS_SHARES] > 0.0:
                e.pending_of[r.class_id] += 1
    e.n_unfinished = n
    if n > 1:
        heapify(keys, ids, UNFINISHED, 0, n)


@compiled_inline
def best_waiting(req, e, ids, keys, policy, n_classes):
    """Who waits and goes first.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        keys: key table [s].
        policy: packed.
        n_classes: number of classes.

    Returns:
        (request id, or -1 if nobody waits; its key with its rank [s]; row of its heap).
    """
    best, best_key, best_row = -1, math.inf, FEASIBLE
    for c in range(n_classes):
        row = FEASIBLE
        if not first_of(c, req, e, ids, keys, FEASIBLE):
            row = BEHIND
            if not first_of(c, req, e, ids, keys, BEHIND):
                continue
        i, key = ids[row, e.heap_at[c]], keys[row, e.heap_at[c]]
        key = rank_key(req[i], c, key, 1 if row == BEHIND else 0, e, policy)
        if key < best_key or (key == best_key and i < best):
            best, best_key, best_row = i, key, row
    return best, best_key, best_row


@compiled_inline
def take_out(c, e, ids, keys, row):
    """Drop the entry that goes first in a class's heap.

    Args:
        c: the class.
        e: the books.
        ids: id table.
        keys: key table [s].
        row: FEASIBLE or BEHIND.
    """
    n = e.n_behind if row == BEHIND else e.n_feasible
    drop_least(keys, ids, row, e.heap_at[c], n[c])
    n[c] -= 1


@compiled
def serve_prompts(req, e, ids, keys, policy, n_classes, units, unit_ids, most):
    """Give chunks to prompts, least key first, until `most` tokens are spent.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        keys: key table [s].
        policy: packed.
        n_classes: number of classes.
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
        most: tokens to spend [tokens].
    """
    block, rest = policy[BLOCK], max(e.left - most, 0.0)
    cap = policy[CHUNK] if policy[CHUNK] > 0.0 else 1e18
    e.left -= rest
    while e.left >= 1.0:
        fresh, fresh_key, row = -1, math.inf, FEASIBLE
        if e.closed == 0 and e.n_waiting > 0:
            fresh, fresh_key, row = best_waiting(req, e, ids, keys, policy, n_classes)
        if e.n_unfinished > 0:
            i, key = ids[UNFINISHED, 0], keys[UNFINISHED, 0]
            if fresh < 0 or key < fresh_key or (key == fresh_key and i < fresh):
                drop_least(keys, ids, UNFINISHED, 0, e.n_unfinished)
                e.n_unfinished -= 1
                serve_running(req[i], e, cap, block, units, unit_ids)
                continue
        if fresh < 0:
            break
        r = req[fresh]
        if e.n_running >= policy[RUNNING]:
            e.bound, e.closed = BOUND_BY_RUNNING, 1
            continue
        if policy[ADMISSION] > 0.0 and not admits(r, req, e, ids, policy):
            # the one whose turn it is waits, and nobody overtakes it: a long prompt would wait for ever behind short ones
            e.bound, e.closed, e.held = BOUND_BY_ADMISSION, 1, 1
            continue
        take_out(r.class_id, e, ids, keys, row)
        x = enter(fresh, r, e, ids, cap, block, policy[RESERVATION], kept_free(e, policy), units, unit_ids)
        if x > 0.0:
            e.cut = 1 if x == e.left < r.goal - r.computed else e.cut
            e.left -= x
            part(r, req, e, ids, policy)
            if policy[ADMISSION] > 0.0:
                joined(r, e, policy)
            continue
        ids[STASH, e.n_stashed] = fresh
        e.n_stashed += 1
        e.bound = BOUND_BY_KV
        e.blocked += 1
        if e.blocked >= BLOCKED_TRIES:
            e.closed = 1
    e.left += rest


@compiled_inline
def serve_running(r, e, cap, block, units, unit_ids):
    """Give a running prompt its next chunk, if it still runs and got none in this step.

    A prompt that was begun goes before newcomers: admitting them into a full pool would make the two preempt each other.

    Args:
        r: its record.
        e: the books.
        cap: most prompt tokens of one request [tokens].
        block: tokens in a cache block [tokens].
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
    """
    if r.status == RUNS and r.take == 0.0:
        x = min(r.goal - r.computed, cap, e.left)
        if schedule_chunk(r, e, x, block, units, unit_ids):
            e.cut = 1 if x == e.left < r.goal - r.computed else e.cut
            e.left -= x
        else:
            e.bound, e.closed = BOUND_BY_KV, 1
