"""Runs whose gains follow the load, step by step and in the open: for the tests of schedules and of what ships with one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headway.controllers.compose import book_shares
from headway.controllers.laws import law_init
from headway.controllers.policy import BLOCKS, HAS_SHARES, RATE_TPS, pack_targets
from headway.controllers.queue import next_arrival_s
from headway.controllers.scheduled import Packed, follow_load, pack_candidate, scheduled
from headway.controllers.scheduler import plan
from headway.controllers.simulator import habits_of
from headway.models.goodput import RUNNING, WAITING
from headway.models.settlement import settle
from headway.models.signals import SIGNALS
from headway.models.state import State
from headway.models.steptime import step_time
from tests.reference_schedule import Load
from tests.small_problems import Problem


def load_of(s: State, blocks: float, running_limit: float) -> Load:
    """The load, taken from the requests themselves."""
    open_ones = s.req[(s.req["status"] == RUNNING) | (s.req["status"] == WAITING)]
    decoding = np.sum((open_ones["status"] == RUNNING) & (open_ones["computed"] >= open_ones["goal"]))
    left = np.maximum(open_ones["goal"] - open_ones["computed"], 0.0).sum()
    return Load(int(left), float(decoding) / running_limit, (blocks - float(s.books[0]["free"])) / blocks)


def steps_of(of: Problem) -> Iterator[tuple[State, Packed, bool]]:
    """Before each step, its gains in force (False), and after it was composed, before it is executed (True)."""
    identified, candidate, drawn, targets, limits = of
    p, classes = pack_candidate(candidate, targets, limits, identified.plant), pack_targets(targets)
    s = new = fresh(of, p)
    e, signals, habits, plant = new.books[0], np.zeros(SIGNALS), habits_of(p.policy), identified.plant.pack()
    law_init(p.law, s.law)
    while e["done"] < len(drawn.workload):
        if e["n_running"] + e["n_waiting"] == 0:
            e["now_s"] = max(e["now_s"], next_arrival_s(s.req, e, s.keys))
        if scheduled(p.schedule):
            follow_load(e, p.schedule, p.policy, p.law, classes)
        yield s, p, False
        if not plan(s.req, s.books, s.ids, s.keys, s.units, s.unit_ids, s.law, p.policy, p.law, classes, signals):
            assert not e["stalled"]
            continue
        yield s, p, True
        y = step_time(plant, e["n_decode"], e["kv_read"], e["prefill"], e["pairs"], e["chunks"])
        noise = drawn.mixed if e["prefill"] > 0 else drawn.decode
        y = y * noise[e["step"] % len(noise)] + limits.swap_block_s * e["moved"]
        settle(s.req, s.books, s.ids, s.keys, s.units, s.unit_ids, s.gaps, y, classes, habits)
        if p.policy[HAS_SHARES] > 0:
            book_shares(e, p.policy, len(targets))


def fresh(of: Problem, p: Packed) -> State:
    """The idle engine of a problem."""
    from headway.controllers.simulator import fresh_state

    return fresh_state(of.drawn.workload, len(of.targets), of.limits, p.policy[RATE_TPS])


def blocks_of(p: Packed) -> float:
    """Cache blocks of the engine."""
    return float(p.policy[BLOCKS])
