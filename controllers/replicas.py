"""All replicas of a topology before a run that ties them together in time, and what the run did, taken together."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from headway.controllers.dispatch import gateway
from headway.controllers.fleet import CACHE, PROMPT, Fleet, Traffic, expect
from headway.controllers.policy import RATE_TPS
from headway.controllers.scheduled import pack_candidate, stack_schedules
from headway.controllers.simulator import LOG_COLUMNS, Candidate, fresh_state
from headway.models.goodput import FUTURE, WAITING, Outcome
from headway.models.identified import IdentifiedPlant
from headway.models.settlement import close_books, outcome_of
from headway.models.signals import Limits, Target
from headway.models.state import State
from headway.models.workload import Workload


class Replica(NamedTuple):
    """What one replica is given.

    Args:
        identified: its plant.
        candidate: law and policy.
        limits: of the engine.
        requests: all requests, as its pool has them.
        noise: (decode, mixed) factors, shape (k,) each.
    """

    identified: IdentifiedPlant
    candidate: Candidate
    limits: Limits
    requests: Workload
    noise: tuple[np.ndarray, np.ndarray]


def new_fleet(replicas: list[Replica], targets: tuple[Target, ...]) -> Fleet:
    """Idle replicas, to none of which anybody was sent yet.

    Args:
        replicas: the prefill pool first.
        targets: one per class.

    Returns:
        Fleet.
    """
    packed = [pack_candidate(r.candidate, targets, r.limits, r.identified.plant) for r in replicas]
    policies = [p.policy for p in packed]
    alone = [dataclasses.replace(r.requests, after=None, think_s=None) for r in replicas]
    states = [fresh_state(w, len(targets), r.limits, p[RATE_TPS]) for w, r, p in zip(alone, replicas, policies, strict=True)]
    for s in states:
        s.req["after"] = 0  # no open arrival: the heap says who comes when
    most = max(len(s.units) for s in states)
    units = np.zeros((len(states), most), states[0].units.dtype)
    units["older"], units["newer"] = most - 1, most - 1
    each = lambda name: np.stack([getattr(s, name) for s in states])  # noqa: E731
    return Fleet(
        req=each("req"),
        books=each("books"),
        ids=each("ids"),
        keys=each("keys"),
        units=units,
        unit_ids=states[0].unit_ids,
        laws=each("law"),
        gaps=each("gaps"),
        policies=np.stack(policies),
        packed_laws=np.stack([p.law for p in packed]),
        schedules=stack_schedules([p.schedule for p in packed]),
        plants=np.stack([r.identified.plant.pack() for r in replicas]),
        decode_noise=np.stack([r.noise[0] for r in replicas]),
        mixed_noise=np.stack([r.noise[1] for r in replicas]),
    )


def new_traffic(w: Workload, prefill: int, decode: int, **numbers: Any) -> Traffic:
    """All open arrivals expected, nobody sent anywhere.

    Args:
        w: requests, as they were asked for.
        prefill: replicas of the first pool.
        decode: of the second; 0 where there is one pool.
        numbers: `least`, `rate_tps`, `stay_s`, `s_per_token` and `latency_s` of `Traffic`.

    Returns:
        Traffic.
    """
    n = len(w)
    after = np.full(n, -1) if w.after is None else np.asarray(w.after, np.int64)
    follower, sibling = np.full(n, -1), np.full(n, -1)
    for i in np.flatnonzero(after >= 0)[::-1]:
        sibling[i], follower[after[i]] = follower[after[i]], i
    traffic = Traffic(
        prefill=prefill,
        decode=decode,
        output=np.asarray(w.output_tokens, float),
        think_s=np.zeros(n) if w.think_s is None else np.asarray(w.think_s, float),
        follower=follower,
        sibling=sibling,
        where=np.full((2, n), -1),
        times_s=np.zeros((1, 2 * n)),
        what=np.zeros((1, 2 * n), np.int64),
        counts=np.zeros(1, np.int64),
        told=np.zeros(prefill + decode, np.int64),
        link_s=np.zeros(prefill),
        prompts=gateway(prefill, n),
        caches=gateway(max(decode, 1), n),
        **numbers,
    )
    for i in np.flatnonzero(after < 0):
        expect(float(w.arrival_s[i]), int(i), traffic)
    return traffic


def outcome_of_fleet(fleet: Fleet, traffic: Traffic, w: Workload, targets: np.ndarray) -> Outcome:
    """What all replicas did, taken together.

    Args:
        fleet: at the end of a run; its books are closed here.
        traffic: at the end.
        w: requests, as they were asked for.
        targets: shape (classes, 4) [s].

    Returns:
        Outcome in order of the requests. One that nobody was sent yet is future; one whose cache is on a link waits.
    """
    n, everyone = len(w), np.arange(len(w))
    fleet.req["output"] = w.output_tokens  # a prefill replica had them end with the first token
    moved = np.flatnonzero(traffic.where[CACHE] >= 0)
    there = fleet.req[traffic.where[CACHE, moved], moved]
    there["status"] = np.where(there["status"] == FUTURE, WAITING, there["status"])
    fleet.req[traffic.where[CACHE, moved], moved] = there
    for req, books in zip(fleet.req, fleet.books, strict=True):
        close_books(req, books, targets)
    prompt_at = np.maximum(traffic.where[PROMPT], 0)
    rows = fleet.req[np.where(traffic.where[CACHE] >= 0, traffic.where[CACHE], prompt_at), everyone]
    books = fleet.books[:, 0]
    s = State(rows, fleet.books[0], fleet.ids[0], fleet.keys[0], fleet.units[0], fleet.unit_ids, fleet.laws[0], fleet.gaps.sum(axis=0))
    whole = outcome_of(s, np.zeros((0, len(LOG_COLUMNS))))
    computed = fleet.req[prompt_at, everyone]
    total = lambda *names: np.array([books[name].sum() for name in names])  # noqa: E731
    return whole._replace(
        end_s=float(books["settled_s"].max()),
        steps=int(total("step")[0]),
        preempted=int(total("preempted")[0]),
        binding=total("by_none", "by_kv", "by_running", "by_budget", "by_admission"),
        largest=np.array([books[name].max() for name in ("most_decode", "most_kv", "most_prefill", "most_pairs")]),
        hit_tokens=computed["hit"],
        spared=computed["spared"] > 0,
        recomputed=float(total("recomputed")[0]),
        swapped_blocks=float(total("swapped")[0]),
        class_id=np.asarray(w.class_id).reshape(n),
    )
