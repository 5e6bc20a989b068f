"""Replicas run side by side in time, for requests that wait for each other's end and for runs of fixed length.

Always the replica goes on whose next step begins first. Nothing that another does later can come to it before: what happens at the end
of a step comes after that step began. docs/engine.md, section 6, is the specification.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from headway.controllers.compose import book_shares
from headway.controllers.dispatch import Gateway, send_cache, send_prompt
from headway.controllers.laws import law_init
from headway.controllers.policy import ASYNC, HAS_SHARES, SWAP_BLOCK_S
from headway.controllers.queue import arrive, next_arrival_s
from headway.controllers.scheduled import follow_load, scheduled
from headway.controllers.scheduler import plan, stop, wake
from headway.controllers.simulator import habits_of
from headway.models.compiled import compiled, compiled_making
from headway.models.goodput import FINISHED
from headway.models.heap import drop_least, push
from headway.models.settlement import settle
from headway.models.signals import SIGNALS
from headway.models.state import COMING, ENDED
from headway.models.steptime import step_time

PROMPT, CACHE = range(2)
"""Rows of `Traffic.where`."""


class Fleet(NamedTuple):
    """All replicas, the prefill pool first: the fields of a `State` and what a run is given, one entry per replica each.

    Args:
        req: every request in every replica's table, shape (replicas, n).
        books: shape (replicas, 1).
        ids: shape (replicas, ID_ROWS, columns).
        keys: shape as ids [s].
        units: prefix caches, shape (replicas, units + 1).
        unit_ids: hash ids of all prompts, shape (k,).
        laws: states of the laws, shape (replicas, STATE_SIZE).
        gaps: histograms, shape (replicas, classes, GAP_BINS).
        policies: packed, shape (replicas, POLICY_SIZE).
        packed_laws: shape (replicas, LAW_SIZE).
        schedules: packed, shape (replicas, k); (replicas, 0) where none has any.
        plants: packed, shape (replicas, PACKED).
        decode_noise: factors, shape (replicas, k).
        mixed_noise: factors, shape (replicas, k).
    """

    req: np.ndarray
    books: np.ndarray
    ids: np.ndarray
    keys: np.ndarray
    units: np.ndarray
    unit_ids: np.ndarray
    laws: np.ndarray
    gaps: np.ndarray
    policies: np.ndarray
    packed_laws: np.ndarray
    schedules: np.ndarray
    plants: np.ndarray
    decode_noise: np.ndarray
    mixed_noise: np.ndarray


class Traffic(NamedTuple):
    """What goes between clients and replicas.

    Args:
        prefill: replicas of the first pool.
        decode: of the second; 0 where there is one pool.
        least: whether dispatch is "least_loaded".
        rate_tps: prompt tokens that a replica is taken to compute per second [tokens/s].
        stay_s: how long a cache is taken to stay [s].
        s_per_token: time on a link per prompt token [s/token].
        latency_s: beside that [s].
        output: tokens asked for, shape (n,) [tokens].
        think_s: from its predecessor's end to its arrival, shape (n,) [s].
        follower: first of those that wait for its end, -1 for none, shape (n,).
        sibling: next one that waits for the same end, -1 for none, shape (n,).
        where: replica that each was sent to with its prompt, and with its cache; -1 for not yet, shape (2, n).
        times_s: heap of what is to come, by time, shape (1, 2n) [s].
        what: the same: a request that arrives, or n + one whose prompt is ready, shape (1, 2n).
        counts: entries of that heap, shape (1,).
        told: ends of each replica that were made known, shape (replicas,).
        link_s: until when the link of each prefill replica is taken, shape (prefill,) [s].
        prompts: gateway of the prefill pool.
        caches: gateway of the decode pool.
    """

    prefill: int
    decode: int
    least: bool
    rate_tps: float
    stay_s: float
    s_per_token: float
    latency_s: float
    output: np.ndarray
    think_s: np.ndarray
    follower: np.ndarray
    sibling: np.ndarray
    where: np.ndarray
    times_s: np.ndarray
    what: np.ndarray
    counts: np.ndarray
    told: np.ndarray
    link_s: np.ndarray
    prompts: Gateway
    caches: Gateway


@compiled
def expect(at_s, what, traffic):
    """Something is to come.

    Args:
        at_s: when [s].
        what: see `Traffic.what`.
        traffic: changed in place.
    """
    push(traffic.times_s, traffic.what, 0, 0, traffic.counts[0], at_s, what)
    traffic.counts[0] += 1


@compiled
def hand_over(r, q):
    """A request goes on where it decodes, its prompt computed and one token out.

    Args:
        r: its record on the prefill replica.
        q: on the decode replica, fresh, changed in place.
    """
    q.arrival_s, q.computed, q.emitted = r.arrival_s, q.goal, 1.0
    q.ttft_s, q.last_s = r.ttft_s, r.last_s
    q.met, q.on_time, q.owed = r.on_time, r.on_time, 1.0
    q.after_deadline, q.degraded_on = r.after_deadline, r.degraded_on
    q.degraded = (2 if r.degraded_on > 0.0 else 1) if r.degraded > 0 else 0


@compiled
def send_next(fleet, traffic):
    """Send what comes next: a request to a prefill replica, or a cache over the link to a decode replica.

    Args:
        fleet: changed in place.
        traffic: changed in place; something is to come.
    """
    at_s, i, n = traffic.times_s[0, 0], traffic.what[0, 0], fleet.req.shape[1]
    drop_least(traffic.times_s, traffic.what, 0, 0, traffic.counts[0])
    traffic.counts[0] -= 1
    if i < n:
        k = send_prompt(traffic.prompts, traffic.least, at_s, fleet.req[0, i].prompt, traffic.rate_tps)
        traffic.where[PROMPT, i] = k
        fleet.req[k, i].arrival_s = at_s
    else:
        i -= n
        p = traffic.where[PROMPT, i]
        r = fleet.req[p, i]
        k = traffic.prefill + send_cache(traffic.caches, traffic.least, at_s, r.prompt, traffic.stay_s)
        traffic.where[CACHE, i] = k
        traffic.link_s[p] = max(at_s, traffic.link_s[p]) + r.prompt * traffic.s_per_token
        at_s = traffic.link_s[p] + traffic.latency_s
        hand_over(r, fleet.req[k, i])
    e = fleet.books[k, 0]
    push(fleet.keys[k], fleet.ids[k], COMING, 0, e.n_coming, at_s, i)
    e.n_coming += 1


@compiled
def tell_ends(k, fleet, traffic):
    """What follows from the ends on a replica: a cache that is ready, or requests that had waited for them.

    Args:
        k: the replica.
        fleet: all replicas.
        traffic: changed in place.
    """
    e, n = fleet.books[k, 0], fleet.req.shape[1]
    while traffic.told[k] < e.done:
        i = fleet.ids[k, ENDED, traffic.told[k]]
        traffic.told[k] += 1
        r = fleet.req[k, i]
        if k < traffic.prefill and traffic.decode > 0 and r.status == FINISHED and traffic.output[i] > 1.0:
            expect(r.last_s, n + i, traffic)
            continue
        j = traffic.follower[i]
        while j >= 0:
            fleet.req[0, j].arrival_s = e.now_s + traffic.think_s[j]  # known from now on, whoever gets it
            expect(fleet.req[0, j].arrival_s, j, traffic)
            j = traffic.sibling[j]


@compiled
def open_door(k, fleet, traffic, targets):
    """Let in whoever has come to a replica, those included who come because one of them failed at the door.

    Args:
        k: the replica.
        fleet: changed in place.
        traffic: changed in place.
        targets: shape (classes, 4) [s].
    """
    req, e, ids, keys, policy, units = fleet.req[k], fleet.books[k, 0], fleet.ids[k], fleet.keys[k], fleet.policies[k], fleet.units[k]
    wake(req, e, ids, policy, units, fleet.unit_ids)
    while True:
        if next_arrival_s(req, e, keys) <= (e.seen_s if policy[ASYNC] > 0.0 else e.now_s):
            arrive(req, e, ids, keys, policy, targets, units, fleet.unit_ids)
        tell_ends(k, fleet, traffic)
        if traffic.counts[0] == 0 or traffic.times_s[0, 0] > e.now_s:
            break
        while traffic.counts[0] > 0 and traffic.times_s[0, 0] <= e.now_s:
            send_next(fleet, traffic)


@compiled
def clock_s(k, fleet):
    """When the next step of a replica begins.

    Args:
        k: the replica.
        fleet: all replicas.

    Returns:
        Time; infinite while nothing is on its way to it [s].
    """
    e = fleet.books[k, 0]
    if e.n_running + e.n_waiting > 0:
        return e.now_s
    return max(e.now_s, next_arrival_s(fleet.req[k], e, fleet.keys[k]))


@compiled
def go_on(k, fleet, traffic, targets, signals):
    """One step of one replica.

    Args:
        k: the replica.
        fleet: changed in place.
        traffic: changed in place.
        targets: shape (classes, 4) [s].
        signals: scratch, shape (SIGNALS,).

    Returns:
        False if its scheduler stalled.
    """
    req, books, ids, keys, policy, units = fleet.req[k], fleet.books[k], fleet.ids[k], fleet.keys[k], fleet.policies[k], fleet.units[k]
    e, unit_ids = books[0], fleet.unit_ids
    e.now_s = clock_s(k, fleet)
    if scheduled(fleet.schedules[k]):
        follow_load(e, fleet.schedules[k], policy, fleet.packed_laws[k], targets)
    open_door(k, fleet, traffic, targets)
    if not plan(req, books, ids, keys, units, unit_ids, fleet.laws[k], policy, fleet.packed_laws[k], targets, signals):
        tell_ends(k, fleet, traffic)
        return e.stalled == 0
    tell_ends(k, fleet, traffic)  # who left the queue ended before the step
    y = step_time(fleet.plants[k], e.n_decode, e.kv_read, e.prefill, e.pairs, e.chunks)
    place = e.step % fleet.decode_noise.shape[1]
    y *= fleet.mixed_noise[k, place] if e.prefill > 0.0 else fleet.decode_noise[k, place]
    if e.moved > 0:
        y += policy[SWAP_BLOCK_S] * e.moved
    settle(req, books, ids, keys, units, unit_ids, fleet.gaps[k], y, targets, habits_of(policy))
    if policy[HAS_SHARES] > 0.0:
        book_shares(e, policy, targets.shape[0])
    tell_ends(k, fleet, traffic)
    return True


@compiled
def cut_off(fleet, traffic, targets, cut_s):
    """End a run of fixed length: who has come to a replica by the end of its last step, or by the cut, is there.

    Args:
        fleet: no replica of which begins a step before the cut; changed in place.
        traffic: changed in place.
        targets: shape (classes, 4) [s].
        cut_s: end of the run [s].
    """
    latest_s = cut_s
    for k in range(fleet.req.shape[0]):
        e = fleet.books[k, 0]
        e.now_s = max(e.now_s, cut_s)
        latest_s = max(latest_s, e.now_s)
    while True:
        while traffic.counts[0] > 0 and traffic.times_s[0, 0] <= latest_s:
            send_next(fleet, traffic)
        for k in range(fleet.req.shape[0]):
            e = fleet.books[k, 0]
            e.seen_s = e.now_s
            open_door(k, fleet, traffic, targets)
            stop(fleet.req[k], e, fleet.ids[k], fleet.keys[k], fleet.policies[k], targets, fleet.units[k], fleet.unit_ids, cut_s)
        there = traffic.counts[0] > 0 and traffic.times_s[0, 0] <= latest_s
        for k in range(fleet.req.shape[0]):  # one that failed at the door of another may have sent its follower to one that was done
            e = fleet.books[k, 0]
            there = there or next_arrival_s(fleet.req[k], e, fleet.keys[k]) <= e.now_s
        if not there:
            return


@compiled_making
def run_fleet(fleet, traffic, targets, cut_s):
    """Run all replicas until every request has ended, or to the cut.

    Args:
        fleet: idle replicas, changed in place.
        traffic: the first arrivals expected; changed in place.
        targets: shape (classes, 4) [s].
        cut_s: end of a run of fixed length; 0 for none [s].

    Returns:
        True; False if a scheduler stalled, which would be a fault of its own.
    """
    signals = np.zeros(SIGNALS)
    for k in range(fleet.req.shape[0]):
        law_init(fleet.packed_laws[k], fleet.laws[k])
    while True:
        first, at_s = -1, math.inf
        for k in range(fleet.req.shape[0]):
            begins_s = clock_s(k, fleet)
            if begins_s < at_s:
                first, at_s = k, begins_s
        if traffic.counts[0] > 0 and traffic.times_s[0, 0] <= at_s and not 0.0 < cut_s <= traffic.times_s[0, 0]:
            send_next(fleet, traffic)
            continue
        if first < 0 or 0.0 < cut_s <= at_s:
            break
        if not go_on(first, fleet, traffic, targets, signals):
            return False
    if cut_s > 0.0 and not all_ended(fleet, traffic):
        cut_off(fleet, traffic, targets, cut_s)
    return True


@compiled
def all_ended(fleet, traffic):
    """Whether nobody runs, waits or is to come.

    Args:
        fleet: all replicas.
        traffic: what is to come.

    Returns:
        True if so.
    """
    for k in range(fleet.req.shape[0]):
        if clock_s(k, fleet) < math.inf:
            return False
    return traffic.counts[0] == 0
