"""Keys made anew: when estimates take the measured rate, and keys the aging rate that the load calls for.

Two keys of different aging rates would be told apart by the time on the clock, so everybody's is made in the same step.
"""

from __future__ import annotations

import math

from headway.controllers.order import DEFER, FCFS, carried_tokens, infeasible_from_s, key_of, leaves_at_s
from headway.controllers.policy import AGING, AGING_NEXT, BLOCK, ORDER, TRIAGE
from headway.models.cache import spared
from headway.models.compiled import compiled, compiled_inline
from headway.models.goodput import WAITING
from headway.models.heap import heapify
from headway.models.state import BEHIND, FEASIBLE, LEAVING, WAITING_IDS

RENEW, RENEW_STEPS = 0.05, 32
"""Change of the measured rate at which estimates take it, and fewest steps in between, more where more wait: keys stand still."""

RENEW_AGING = 0.01
"""Change of the scheduled aging rate at which keys are made anew [s/s]."""


@compiled_inline
def renewal_due(e, policy):
    """Whether estimates take the measured rate, and keys the aging rate of the load, in this step.

    Args:
        e: the books.
        policy: packed.

    Returns:
        True if so.
    """
    changed = abs(e.rate_tps - e.used_tps) > RENEW * e.used_tps or abs(policy[AGING_NEXT] - policy[AGING]) > RENEW_AGING
    return changed and e.step - e.renewed >= max(RENEW_STEPS, e.n_waiting)


@compiled
def renew(req, e, ids, keys, policy, targets, units, unit_ids):
    """Let estimates take the measured rate and keys the aging rate of the load: keys and prefix hits of all who wait are made anew.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        keys: key table [s].
        policy: packed; its aging rate is changed in place.
        targets: shape (classes, 4) [s].
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
    """
    policy[AGING] = policy[AGING_NEXT]
    e.used_tps = e.rate_tps
    e.renewed = e.step
    e.carried = carried_tokens(e, policy)
    keyed = policy[ORDER] != FCFS
    for c in range(targets.shape[0]):
        e.n_feasible[c], e.n_behind[c] = 0, 0
    e.n_leaving = 0
    low, high = (0, e.n_waiting) if keyed else (e.head, e.tail)
    for k in range(low, high):
        i = ids[WAITING_IDS, k]
        r = req[i]
        if r.status != WAITING:
            continue
        r.behind = 1 if r.degraded + r.spared > 0 and r.emitted == 0.0 else 0
        if not r.admitted_s >= 0.0 and r.units > 0 and e.unit_blocks > 0:
            _, _, r.hit = spared(r, e, policy[BLOCK], units, unit_ids)
        if policy[TRIAGE] == DEFER and r.emitted == 0.0 and e.now_s > infeasible_from_s(r, e, policy, targets):
            r.behind = 1  # at once: thousands who are deferred already need not be found one by one again
        r.leave_s = leaves_at_s(r, e, policy, targets)
        if r.leave_s < math.inf:
            ids[LEAVING, e.n_leaving], keys[LEAVING, e.n_leaving] = i, r.leave_s
            e.n_leaving += 1
        if keyed:
            r.key_s = key_of(r, e, policy, targets)
            row, n = (BEHIND, e.n_behind) if r.behind > 0 else (FEASIBLE, e.n_feasible)
            at = e.heap_at[r.class_id] + n[r.class_id]
            ids[row, at], keys[row, at] = i, r.key_s
            n[r.class_id] += 1
    heapify(keys, ids, LEAVING, 0, e.n_leaving)
    for c in range(targets.shape[0]):
        heapify(keys, ids, FEASIBLE, e.heap_at[c], e.n_feasible[c])
        heapify(keys, ids, BEHIND, e.heap_at[c], e.n_behind[c])
