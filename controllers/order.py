"""Who goes first, and until when a wait is worth it: deadlines, slack, aging, priorities, the price of memory."""

from __future__ import annotations

import math

from headway.controllers.policy import (
    AGING,
    BLOCK,
    CHUNK,
    DEGRADE,
    ESTIMATES,
    HAS_PRIORITIES,
    MAX_TOKENS,
    NEXT_STEP,
    ORDER,
    PRICE_S,
    PRIORITIES,
    SETPOINT_S,
    TIMEOUT,
    TOLERANCES,
    TRIAGE,
)
from headway.models.compiled import compiled_inline

BEHIND_S = 1e6
"""Added to the key of a deferred, degraded or spared request: behind every feasible one, among themselves still by key [s]."""
DUE_S = 4e6
"""Taken from the key of a request whose class is behind its share [s]."""
LACK_TOKENS = 1e-6
"""Deficit above which a class is behind its share: sums of shares leave less than that where nothing is due [tokens]."""
STREAM_S = 1e7
"""Taken from the key of a request that has emitted: its client is already watching a stream [s]."""

NO_TRIAGE, DEFER, REJECT, QUEUE_TIMEOUT, DEGRADED = range(5)
FCFS, EDF, SLACK = range(3)


@compiled_inline
def carried_tokens(e, policy):
    """Prompt tokens that one step carries, by the rate in use.

    Args:
        e: the books.
        policy: packed.

    Returns:
        At least 1 [tokens].
    """
    carried = min(e.used_tps * policy[SETPOINT_S], policy[MAX_TOKENS])
    if policy[CHUNK] > 0.0:
        carried = min(carried, policy[CHUNK])
    return max(carried, 1.0)


@compiled_inline
def time_for_s(tokens, c, e, policy):
    """Estimated time from now to the first token of a prompt, were it served without waiting.

    estimate (ceil(T / C) + e) setpoint

    C tokens that one step carries, e = 1 where the engine emits a step after the last chunk.

    Args:
        tokens: to go, T [tokens].
        c: its class.
        e: the books.
        policy: packed.

    Returns:
        Time [s].
    """
    return policy[ESTIMATES + c] * (math.ceil(tokens / e.carried) + policy[NEXT_STEP]) * policy[SETPOINT_S]


@compiled_inline
def service_s(r, e, policy):
    """`time_for_s` of a request that waits.

    Args:
        r: its record.
        e: the books.
        policy: packed.

    Returns:
        Time [s].
    """
    spared = 0.0 if r.admitted_s >= 0.0 else r.hit
    return time_for_s(r.goal - r.computed - spared, r.class_id, e, policy)


@compiled_inline
def first_token_s(r, policy, targets):
    """Longest time to first token at the engine, its own where it was degraded.

    Args:
        r: record of the request.
        policy: packed.
        targets: shape (classes, 4), the TTFT at the engine first [s].

    Returns:
        Time [s].
    """
    ttft = targets[r.class_id, 0]
    return ttft * policy[DEGRADE] if policy[TRIAGE] == DEGRADED and r.degraded > 0 else ttft


@compiled_inline
def due_s(r, ttft_s, service, policy):
    """Sort key of a prompt, least first, as docs/engine.md 3.2 has it; what is the same for all, (1 + aging) now, is left out.

    Args:
        r: record of the request.
        ttft_s: longest time to its first token [s].
        service: estimated time to it [s].
        policy: packed.

    Returns:
        Key [s].
    """
    if r.emitted > 0.0:
        return r.arrival_s - STREAM_S
    key = r.arrival_s + ttft_s
    if policy[ORDER] == SLACK:
        key = (1.0 + policy[AGING]) * r.arrival_s + ttft_s - service
    if policy[HAS_PRIORITIES] > 0.0:
        key -= policy[PRIORITIES + r.class_id]
    return key


@compiled_inline
def key_of(r, e, policy, targets):
    """Sort key of a request that waits: `due_s` and the price of its memory.

    Args:
        r: its record.
        e: the books.
        policy: packed.
        targets: shape (classes, 4), the TTFT at the engine first [s].

    Returns:
        Key [s].
    """
    key = due_s(r, first_token_s(r, policy, targets), service_s(r, e, policy), policy)
    if policy[PRICE_S] > 0.0 and r.emitted == 0.0:
        spared = 0.0 if r.admitted_s >= 0.0 else r.hit
        key += policy[PRICE_S] * (math.ceil(r.goal / policy[BLOCK]) - spared / policy[BLOCK])
    return key


@compiled_inline
def infeasible_from_s(r, e, policy, targets):
    """When a prompt that still waits is too late by more than the tolerance, even if started then.

    arrival + ttft (1 + tolerance) - service

    Args:
        r: record of the request.
        e: the books.
        policy: packed.
        targets: shape (classes, 4), the TTFT at the engine first [s].

    Returns:
        Time [s].
    """
    return r.arrival_s + first_token_s(r, policy, targets) * (1.0 + policy[TOLERANCES + r.class_id]) - service_s(r, e, policy)


@compiled_inline
def leaves_at_s(r, e, policy, targets):
    """When the wait of a request may end: its client leaves, or triage acts.

    Args:
        r: record of the request.
        e: the books.
        policy: packed.
        targets: shape (classes, 4), the TTFT at the engine first [s].

    Returns:
        Time, infinite for never [s].
    """
    at = r.arrival_s + r.cancel_s
    if r.emitted == 0.0:
        at = min(at, r.arrival_s + r.patience_s)
    rule = policy[TRIAGE]
    if rule == DEFER:
        if r.emitted == 0.0 and r.behind == 0:
            at = min(at, infeasible_from_s(r, e, policy, targets))
    elif r.emitted == 0.0 and not r.admitted_s >= 0.0 and r.spared == 0:
        if rule == QUEUE_TIMEOUT:
            at = min(at, r.arrival_s + policy[TIMEOUT] * targets[r.class_id, 0])
        elif rule != NO_TRIAGE:
            at = min(at, infeasible_from_s(r, e, policy, targets))
    return at
