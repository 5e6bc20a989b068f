"""Decodes of a step: who is due, in which order, and who gives way where a cache block is lacking."""

from __future__ import annotations

import math

from headway.controllers.policy import BLOCK, DECODE_EVERY, HAS_PRIORITIES, PRIORITIES, STRIDES, SWAP
from headway.controllers.queue import join
from headway.models.compiled import compiled, compiled_inline
from headway.models.mechanics import give_way, schedule_chunk, schedule_decode, take_blocks
from headway.models.state import RUNNING_IDS

ANY, OVERDUE = range(2)
"""Which decodes: all that are due and have no token yet, or of them those whose last token is too old."""


@compiled_inline
def decode_due(r, e, policy):
    """Whether a request that could decode is due by its class's stride.

    Args:
        r: its record.
        e: the books.
        policy: packed.

    Returns:
        True if so.
    """
    return e.step - r.stepped >= policy[STRIDES + r.class_id]


@compiled
def victim(req, e, ids, policy):
    """Who gives way: the running request of the lowest priority, among equals the one admitted last.

    Args:
        req: requests.
        e: the books; somebody runs.
        ids: id table.
        policy: packed.

    Returns:
        Its place among the running.
    """
    place = e.n_running - 1
    if policy[HAS_PRIORITIES] > 0.0:
        least = math.inf
        for k in range(e.n_running - 1, -1, -1):
            priority = policy[PRIORITIES + req[ids[RUNNING_IDS, k]].class_id]
            if priority < least:
                least, place = priority, k
    return place


@compiled
def requeue(req, e, ids, keys, policy, targets, units, unit_ids):
    """Preempt the victim and put it back into the queue.

    Args:
        req: requests.
        e: the books; somebody runs.
        ids: id table.
        keys: key table [s].
        policy: packed.
        targets: shape (classes, 4) [s].
        units: the prefix cache.
        unit_ids: hash ids of all prompts.

    Returns:
        (request id, its place among the running before).
    """
    place = victim(req, e, ids, policy)
    i = give_way(place, req, e, ids, policy[SWAP] > 0.0, units, unit_ids)
    join(i, req, e, ids, keys, policy, targets, units, unit_ids)
    e.closed = 1
    return i, place


@compiled
def make_room(place, x, req, e, ids, keys, policy, targets, units, unit_ids):
    """Preempt until a running request has the blocks for its tokens, or was the victim itself.

    Args:
        place: where it stands among the running.
        x: tokens that it is to have, 1 for a decode [tokens].
        req: requests.
        e: the books.
        ids: id table.
        keys: key table [s].
        policy: packed.
        targets: shape (classes, 4) [s].
        units: the prefix cache.
        unit_ids: hash ids of all prompts.

    Returns:
        (place of the next one among the running, whether it has its tokens).
    """
    i = ids[RUNNING_IDS, place]
    r = req[i]
    while True:
        gone, at = requeue(req, e, ids, keys, policy, targets, units, unit_ids)
        if gone == i:
            return place, False
        place -= 1 if at < place else 0
        if r.computed >= r.goal:
            if schedule_decode(r, e, policy[BLOCK], units):
                return place + 1, True
        elif schedule_chunk(r, e, x, policy[BLOCK], units, unit_ids):
            return place + 1, True


@compiled_inline
def serve_all_decodes(req, e, ids, block, units):
    """Give a token to every decode in order of admission, up to the first that lacks a cache block: the usual step.

    Sums are kept in registers: a chain of additions in memory would cost as much as the rest of it.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        block: tokens in a cache block [tokens].
        units: the prefix cache.

    Returns:
        False if one lacks a block.
    """
    left, decodes, read, unit_blocks, done = e.left, 0.0, 0.0, e.unit_blocks, True
    for k in range(e.n_running):
        r = req[ids[RUNNING_IDS, k]]
        if r.computed >= r.goal:
            if left < 1.0:
                break
            length = r.prompt + r.emitted
            held = r.blocks + r.shared * unit_blocks
            if length > held * block:
                need = math.ceil(length / block) - held
                if need > e.free:
                    done = False
                    break
                take_blocks(r, e, need, units)
            r.take = -1.0
            decodes += 1.0
            read += length
            left -= 1.0
    e.left, e.n_decode, e.kv_read = left, e.n_decode + decodes, e.kv_read + read
    return done


@compiled
def serve_decodes(req, e, ids, keys, policy, targets, units, unit_ids, strides, which):
    """Give a token to the decodes that are due, in order of admission.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        keys: key table [s].
        policy: packed.
        targets: shape (classes, 4) [s].
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
        strides: whether classes are stepped by their stride.
        which: ANY or OVERDUE.
    """
    k, block = 0, policy[BLOCK]
    while k < e.n_running and e.left >= 1.0:
        i = ids[RUNNING_IDS, k]
        r = req[i]
        k += 1
        if r.computed < r.goal or r.take != 0.0 or (strides and not decode_due(r, e, policy)):
            continue
        if which == OVERDUE and e.step - r.stepped < policy[DECODE_EVERY]:
            continue
        if not schedule_decode(r, e, block, units):
            k, done = make_room(k - 1, 1.0, req, e, ids, keys, policy, targets, units, unit_ids)
            if not done:
                continue
        e.left -= 1.0


@compiled
def count_unserved(req, e, ids, policy, strides):
    """Decodes that were due and got nothing.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        policy: packed.
        strides: whether classes are stepped by their stride.
    """
    for k in range(e.n_running):
        r = req[ids[RUNNING_IDS, k]]
        if r.computed >= r.goal and r.take == 0.0 and not (strides and not decode_due(r, e, policy)):
            e.unserved += 1
