"""Case E4, parts: what acted is counted, what never did is said, and both agree with the runs themselves."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from headway.controllers.gain_schedule import GainSchedule
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw, evaluate, simulate
from headway.controllers.static import StaticLaw
from headway.experiments.fired import ENGINE, ROWS, WATCHDOG, fired
from headway.models.goodput import EXPIRED, REJECTED
from headway.models.measures import ATTAINMENT
from headway.models.workload import Workload
from tests.test_sensitivity import IDENTIFIED, LIMITS, TARGETS, based, probe


def by_name(candidate: Candidate, draws: list[Draw]):
    found = fired(IDENTIFIED, candidate, draws, TARGETS, LIMITS)
    return found, {p.name: p for p in found.parts}


def test_what_acted_is_counted_as_the_runs_count_it() -> None:
    candidate = based(triage="reject", aging_rate=0.5, admission="lookahead", running_limit=20.0, chunk_tokens=256.0)
    draws = probe()
    found, parts = by_name(candidate, draws)
    outcomes = [simulate(IDENTIFIED, candidate, d, TARGETS, LIMITS) for d in draws]
    shed = sum(int(np.isin(o.status, (REJECTED, EXPIRED)).sum()) for o in outcomes)
    assert shed > 0
    assert parts["triage by slack"].times == shed
    assert parts["running limit"].times == sum(int(o.binding[2]) for o in outcomes)
    assert parts["preemption"].times == sum(o.preempted for o in outcomes)
    assert parts["admission"].times == sum(int(o.binding[4]) for o in outcomes)
    for name in ("triage by slack", "aging", "chunk cap", "budget law", "order slack"):
        assert parts[name].fired
        assert parts[name].changed == 1.0
    assert not parts["triage by timeout"].on
    assert found.sentence() == "never fired in 1 run, so untested there: admission; nor did the engine come to preemption, full cache"
    _, fuller = by_name(based(triage="reject", running_limit=4.0), draws)
    assert fuller["running limit"].fired


def test_what_a_part_brings_is_what_is_missing_without_it() -> None:
    candidate, draws = based(triage="reject"), probe()
    _, parts = by_name(candidate, draws)
    without = candidate._replace(policy=dataclasses.replace(candidate.policy, triage="none"))  # pyright: ignore[reportArgumentType]
    rows = evaluate(IDENTIFIED, [candidate, without], draws, TARGETS, LIMITS)[..., ATTAINMENT]
    brings = parts["triage by slack"].brings
    assert brings is not None
    assert brings.value == pytest.approx((rows[0] - rows[1]).mean())


def test_case_e4_parts_that_nothing_called_are_said_to_be_untested() -> None:
    # one request at a time: nobody waits, nobody is late, the cache is never full
    alone = Workload(np.arange(12) * 5.0, np.full(12, 100), np.full(12, 5), np.arange(12) % 2)
    candidate = based(triage="reject", aging_rate=0.5, stride=0.5, running_limit=20.0, chunk_tokens=512.0)
    found, parts = by_name(candidate, [Draw(alone, np.ones(8), np.ones(8))] * 2)
    idle = {"triage by slack", "aging", "stride", "running limit", "chunk cap", "memory price", "order slack", "budget law"}
    assert {p.name for p in found.parts if p.on and not p.fired} == idle | {"preemption", "full cache"}
    assert parts["aging"].changed == 0.0
    assert parts["aging"].brings == (0.0, 0.0, 0.0)
    said = found.sentence()
    assert said.startswith("never fired in 2 runs, so untested there: ")
    assert all(name in said for name in idle)
    assert said.endswith("; nor did the engine come to preemption, full cache")
    assert found.to_json()["left_out"] == WATCHDOG, "what no simulated run can call is not counted as never fired"
    json.dumps(found.to_json(), allow_nan=False)


def test_every_part_can_be_switched_off_alone_and_is_off_then() -> None:
    on = {
        "triage by timeout": {"triage": "timeout"},
        "triage by slack": {"triage": "reject"},
        "cap on shedding": {"shed_cap": 0.1},
        "deferring": {"triage": "defer"},
        "degrading": {"triage": "degrade"},
        "admission": {"admission": "myopic"},
        "aging": {"aging_rate": 1.0},
        "chunk cap": {"chunk_tokens": 64.0},
        "running limit": {"running_limit": 8.0},
        "phases": {"phases": "decode_first"},
        "prefill turn": {"prefill_every": 4.0},
        "decode turn": {"decode_every": 4.0},
        "stride": {"stride": 0.5},
        "class shares": {"class_shares": (1.0, 2.0)},
        "priorities": {"priority_s": (0.5, 0.0)},
        "memory price": {"memory_price_s": 0.01},
        "swapping": {"preemption": "swap"},
    }
    assert [row.name for row in ROWS] == list(on)
    for row in ROWS:
        plain = {"chunk_tokens": 0.0, "triage": "none", "memory_price_s": 0.0}
        candidate = based(**plain | on[row.name])
        assert row.on(candidate, LIMITS), row.name
        assert not row.on(based(**plain), LIMITS), row.name
        candidate.policy.check()
        off = dataclasses.replace(candidate.policy, **row.off)  # pyright: ignore[reportArgumentType]
        off.check()
        assert not row.on(candidate._replace(policy=off), LIMITS), row.name


def test_a_number_that_follows_the_load_is_switched_off_with_its_schedule() -> None:
    fixed = based(triage="reject", aging_rate=2.0)
    followed = based(triage="reject", aging_rate=0.0)._replace(gains=GainSchedule.constant(("aging_rate",), [2.0]))
    parts = [by_name(candidate, probe())[1] for candidate in (fixed, followed)]
    for name in ("aging", "order slack", "triage by slack"):
        fine, same = (p[name] for p in parts)
        assert same.on
        assert same.changed == fine.changed
        assert same.brings is not None
        assert fine.brings is not None
        assert same.brings.value == pytest.approx(fine.brings.value)
    assert parts[0]["aging"].fired


def test_stock_has_no_law_and_no_order_to_switch_off() -> None:
    stock = Candidate(StaticLaw(float(LIMITS.max_tokens)), Policy(order="fcfs", triage="none", running_limit=float(LIMITS.max_seqs)))
    found, parts = by_name(stock, probe())
    assert {p.name for p in found.parts if p.on} == set(ENGINE) - {"prefix cache"}
    assert parts["budget law"].changed == 0.0
    assert parts["full cache"].fired
