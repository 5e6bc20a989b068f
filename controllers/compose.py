"""A step by key: decodes and prompts in the phases of the policy, and the shares of the classes, as docs/engine.md 3.3 and 4 has it."""

from __future__ import annotations

import math

from headway.controllers.decodes import ANY, OVERDUE, count_unserved, serve_all_decodes, serve_decodes
from headway.controllers.policy import BLOCK, DECODE_EVERY, MAX_TOKENS, PHASE, PREFILL_EVERY, SHARES
from headway.controllers.prompts import list_prompts, serve_prompts
from headway.controllers.queue import push_key
from headway.models.compiled import compiled_inline
from headway.models.state import BOUND_BY_ADMISSION, BOUND_BY_BUDGET, BOUND_BY_KV, BOUND_BY_NONE, STASH

MIXED, PREFILL_FIRST = range(2)


@compiled_inline
def compose_by_key(req, e, ids, keys, policy, targets, units, unit_ids, strides):
    """Decodes and prompts in the phases of the policy, with its two-sided bound.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        keys: key table [s].
        policy: packed.
        targets: shape (classes, 4): TTFT at the engine, budget, ITL, transport [s].
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
        strides: whether classes are stepped by their stride.
    """
    n_classes, phase, tried = targets.shape[0], policy[PHASE], True
    e.n_stashed = 0
    if e.prompts > 0:
        list_prompts(req, e, ids, keys, policy, targets)
    due = policy[PREFILL_EVERY] > 0.0 and e.pending > 0 and e.since_prefill >= policy[PREFILL_EVERY] - 1.0
    overdue = policy[DECODE_EVERY] > 0.0 and e.oldest >= policy[DECODE_EVERY]
    if phase != MIXED:
        prompts_first = not overdue if phase == PREFILL_FIRST else due
        tried = prompts_first
        for turn in range(2):
            if (turn == 0) == prompts_first:
                tried = True
                serve_prompts(req, e, ids, keys, policy, n_classes, units, unit_ids, e.left)
            else:
                if overdue:
                    serve_decodes(req, e, ids, keys, policy, targets, units, unit_ids, strides, OVERDUE)
                serve_decodes(req, e, ids, keys, policy, targets, units, unit_ids, strides, ANY)
                count_unserved(req, e, ids, policy, strides)
            if e.n_decode + e.prefill > e.n_ghosts:
                break
    else:
        if due:
            serve_prompts(req, e, ids, keys, policy, n_classes, units, unit_ids, math.ceil(e.token_budget / 2.0))
        if overdue:
            serve_decodes(req, e, ids, keys, policy, targets, units, unit_ids, strides, OVERDUE)
            serve_decodes(req, e, ids, keys, policy, targets, units, unit_ids, strides, ANY)
        elif strides or due or not serve_all_decodes(req, e, ids, policy[BLOCK], units):
            serve_decodes(req, e, ids, keys, policy, targets, units, unit_ids, strides, ANY)
        if e.left < 1.0:
            count_unserved(req, e, ids, policy, strides)
        if e.left >= 1.0 and e.n_unfinished + e.n_waiting > 0:
            serve_prompts(req, e, ids, keys, policy, n_classes, units, unit_ids, e.left)
    for k in range(e.n_stashed):
        push_key(ids[STASH, k], req[ids[STASH, k]], req, e, ids, keys)
    if e.gave_way > 0:
        e.bound = BOUND_BY_KV
        return
    unserved = e.cut > 0 or e.unserved > 0 or (tried and (e.n_unfinished > 0 or e.n_waiting > e.held))
    if e.left < 1.0 and unserved and (e.bound == BOUND_BY_NONE or e.bound == BOUND_BY_ADMISSION):
        e.bound = BOUND_BY_BUDGET


@compiled_inline
def book_shares(e, policy, n_classes):
    """Book who got less and who got more than the share due, once the step has ended.

    Args:
        e: the books.
        policy: packed.
        n_classes: number of classes.
    """
    total, weights, most = 0.0, 0.0, 2.0 * policy[MAX_TOKENS]
    for c in range(n_classes):
        total += e.given[c]
        weights += policy[SHARES + c] if e.pending_of[c] > 0 else 0.0
    for c in range(n_classes):
        if e.pending_of[c] == 0:
            e.deficit[c] = 0.0
        elif total > 0.0:
            owed = (policy[SHARES + c] / weights * total if weights > 0.0 else 0.0) - e.given[c]
            e.deficit[c] = min(max(e.deficit[c] + owed, -most), most)
