"""The public cases that speak of the scheduler, each on the compiled engine and on the plain one of these tests."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from headway.controllers.policy import PHASES, Policy
from headway.models.outcome import FINISHED, REJECTED, Outcome
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Prefix, Workload
from tests.small_problems import Problem
from tests.test_simulator import LONG_S, assert_same_requests, assert_same_steps, columns, plain, run

PROMISED = Target(1.0, 0.0251)
"""A gap of some steps of 10 ms is never a whole number of these."""


def agreed(of: Problem) -> Outcome:
    """The run of the compiled engine, once the plain one has said the same."""
    found, wanted = run(of), of.reference(LONG_S)
    assert_same_requests(found, wanted)
    assert_same_steps(found, wanted)
    return found


def served(found: Outcome) -> list[int]:
    """Who got a first token, in that order."""
    first_s = np.where(found.emitted > 0, found.arrival_s + found.ttft_s, np.inf)
    return [int(i) for i in np.argsort(first_s, kind="stable") if found.emitted[i]]


@pytest.mark.parametrize(("degrade", "order"), [(1.0, [1, 2]), (3.0, [1, 2, 0])])
def test_case_e16_expired_deadline_is_degraded_behind_the_feasible_or_shed(degrade: float, order: list[int]) -> None:
    """Slacks of -0.5, 0.05 and 2 s, room for one: a step is estimated at 1 s. Thrice its TTFT of 0.5 s is feasible, once is not."""
    policy = Policy(order="slack", triage="degrade", degrade=degrade, estimate=40.0, running_limit=1.0)
    targets = tuple(Target(slack_s + 1.0, 0.025, name=f"{slack_s:g}") for slack_s in (-0.5, 0.05, 2.0))
    found = agreed(plain(np.zeros(3), np.full(3, 8), np.full(3, 2), Limits(100_000, 1), policy, 512.0, *targets))
    assert served(found) == order
    assert (found.status[0] == REJECTED) == (degrade == 1.0)


@pytest.mark.parametrize("phases", PHASES)
def test_case_e16b_expired_in_queue_costs_no_prefill_in_any_phase(phases: str) -> None:
    # one runs at a time, for 1.5 s; the second may wait for 0.5 s
    policy = Policy(order="edf", triage="timeout", timeout=0.5, running_limit=1.0, phases=phases)
    found = agreed(plain([0.0, 0.2, 1.24], [8, 300, 40], [150, 5, 5], Limits(100_000, 1), policy, 512.0))
    assert columns(found)["prefill_tokens"].sum() == 8 + 40
    assert (found.emitted[1], found.owed[1]) == (0, 5)


@pytest.mark.parametrize("aging", [0.0, 1.0, 4.0])
def test_case_e17_the_low_class_waits_no_longer_than_priority_over_rate(aging: float) -> None:
    """A class put forward by 1.97 s floods the engine; one of the other is overtaken by who comes within 1.97 s / (1 + aging)."""
    n, low, put_forward_s = 60, 7, 1.97
    arrival_s = 0.1 * np.arange(n)
    policy = Policy(order="slack", triage="none", aging_rate=aging, running_limit=1.0, priority_s=(put_forward_s, 0.0))
    of = plain(arrival_s, np.full(n, 8), np.full(n, 20), Limits(100_000, 1), policy, 64.0)
    workload = dataclasses.replace(of.drawn.workload, class_id=(np.arange(n) == low).astype(int))
    found = agreed(of._replace(drawn=of.drawn._replace(workload=workload), targets=of.targets * 2))
    order = served(found)
    before = np.array(order[: order.index(low)])
    last = arrival_s[low] + put_forward_s / (1 + aging)
    assert arrival_s[before].max() < last
    assert set(np.flatnonzero(arrival_s < last - 1e-9)) <= {*before.tolist(), low}, "and all of those went first"


def hot_and_cold(aging: float, price_s: float) -> Outcome:
    """Prompts that hit the cache for 96 of 100 units arrive faster than they are served, for 20 s; a cold one comes after 1 s."""
    n, cold, units = 500, 25, 100
    ids = [[*range(96), *range(1000 + 4 * i, 1004 + 4 * i)] if i != cold else list(range(100_000, 100_100)) for i in range(n)]
    prefix = Prefix(16, units * np.arange(n + 1), np.concatenate(ids))
    workload = Workload(0.04 * np.arange(n), np.full(n, 16 * units), np.full(n, 5), np.zeros(n, int), prefix=prefix)
    policy = Policy(order="slack", triage="none", running_limit=1.0, aging_rate=aging, memory_price_s=price_s)
    of = plain(np.zeros(n), np.full(n, 1), np.full(n, 5), Limits(16_000, 16), policy, 2048.0)
    return agreed(of._replace(drawn=of.drawn._replace(workload=workload)))


def test_case_e19_hot_traffic_starves_the_cold_request_until_aging_bounds_its_wait() -> None:
    # the cold one needs 96 blocks more, which at a second each puts it behind everybody who comes
    starved, bounded, off = hot_and_cold(0.0, 1.0), hot_and_cold(95.0, 1.0), hot_and_cold(0.0, 0.0)
    assert served(starved)[-1] == 25, "its wait lasts as long as the traffic does"
    assert starved.ttft_s[25] > 20.0
    # 96 s / (1 + 95): overtaken by those who come within a second, served 50 ms each
    overtaken = np.array(served(bounded)[: served(bounded).index(25)])
    assert 0.04 * overtaken.max() <= 1.0 + 96.0 / 96.0
    assert bounded.ttft_s[25] < 3.0
    assert served(off).index(25) == 25


CHUNK, CHUNK_S, DECODE_S, LONG_PROMPT = 3456, 1.330, 0.0169, 200_019


def stalled(**fields) -> Outcome:
    """A stream of 699 tokens, and a prompt of 200,019 that comes 6 s later."""
    plant = RegimePlant((DECODE_S, 0.0, 0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, CHUNK_S / CHUNK, 0.0, 0.0))
    limits = Limits(300_000, 16, max_len=300_000, max_tokens=CHUNK)
    policy = Policy(order="edf", triage="none", phases="prefill_first", **fields)
    return agreed(plain([0.0, 6.0], [16, LONG_PROMPT], [699, 2], limits, policy, float(CHUNK), Target(100.0, 3.0), plant=plant))


def test_case_e20_prefill_first_stall() -> None:
    stall, woven = stalled(), stalled(decode_every=3.0)
    assert stall.max_gap_s[0] == pytest.approx(77.0, abs=2.0)
    assert 699 / stall.last_s[0] == pytest.approx(7.7, abs=0.3)
    assert woven.max_gap_s[0] <= 2 * CHUNK_S + DECODE_S + 1e-9
    # a class that was promised a gap of 3 s prefers two chunks to a token, and what that costs the prompt is seen
    assert woven.on_time[0] == woven.owed[0] == 699
    assert stall.on_time[0] / stall.owed[0] < 0.97
    chunks = math.ceil(LONG_PROMPT / CHUNK)
    assert woven.ttft_s[1] - stall.ttft_s[1] == pytest.approx(chunks // 2 * DECODE_S, abs=2 * DECODE_S)


@pytest.mark.parametrize(("every", "least_s", "most_s"), [(0.0, 9.0, 10.0), (4.0, 0.0, 0.05)])
def test_case_e21_decode_debt_does_not_block_admission(every: float, least_s: float, most_s: float) -> None:
    """Decodes alone, as long as there are any: a stream of 10 s holds a prompt back, unless one is let in every fourth step."""
    policy = Policy(order="edf", triage="none", phases="decode_first", prefill_every=every)
    found = agreed(plain([0.0, 0.505], [8, 8], [1000, 2], Limits(100_000, 1), policy, 64.0, PROMISED))
    assert least_s < found.ttft_s[1] < most_s


@pytest.mark.parametrize("phases", PHASES)
@pytest.mark.parametrize("every", [0.0, 1.0, 3.0])
def test_case_e22_cap_bounds_size_not_count_in_any_phase(phases: str, every: float) -> None:
    policy = Policy(order="slack", triage="none", chunk_tokens=1024.0, phases=phases, prefill_every=every, decode_every=every)
    found = agreed(plain(np.repeat([0.0, 0.055], 4), np.full(8, 1024), np.full(8, 20), Limits(100_000), policy, 2048.0, PROMISED))
    log = columns(found)
    assert (log["decode_requests"] + log["prefill_tokens"]).max() <= 2048
    assert log["prefill_requests"].max() >= 2
    assert (found.status == FINISHED).all()


@pytest.mark.parametrize(
    ("limits", "fields", "budget", "label"),
    [
        (Limits(100_000, 1), {}, 512.0, 0),
        (Limits(90, 1), {}, 512.0, 1),
        (Limits(100_000, 1), {"running_limit": 2.0}, 512.0, 2),
        (Limits(100_000, 1), {}, 8.0, 3),
        (Limits(2_000, 1), {"admission": "lookahead", "lookahead_steps": 1000.0, "prior_output_tokens": 2000.0}, 512.0, 4),
    ],
    ids=["none", "kv", "running", "budget", "deferred"],
)
@pytest.mark.parametrize("order", ["fcfs", "edf"])
def test_case_e34_every_step_says_what_limited_it(limits: Limits, fields: dict, budget: float, label: int, order: str) -> None:
    """A stock, blocks in use, says nothing of why nobody comes in: with 16 % of the cache in use the running limit may bind."""
    of = plain(np.zeros(6), np.full(6, 20), np.full(6, 30), limits, Policy(order=order, triage="none", **fields), budget, PROMISED)
    found = agreed(of)
    bound = columns(found)["binding"]
    assert label in bound[:3]
    assert set(bound) <= {0.0, float(label)}
    used = 1 - columns(found)["free_blocks"] / limits.blocks
    assert label not in (2, 4) or used.max() < 0.16


SOME_PARTS = {
    "degrade": {"triage": "degrade", "degrade": 30.0},
    "prefill_first": {"phases": "prefill_first"},
    "decode_first": {"phases": "decode_first"},
    "prefill_every": {"prefill_every": 1.0},
    "decode_every": {"phases": "prefill_first", "decode_every": 2.0},
    "stride": {"stride": 1.0},
    "class_shares": {"class_shares": (1.0, 9.0)},
    "priority_s": {"priority_s": (0.0, 3.0)},
    "memory_price_s": {"memory_price_s": 0.05},
    "swap": {"preemption": "swap"},
}
BESIDE = {"degrade": {"triage": "reject"}, "decode_every": {"phases": "prefill_first"}}
"""Parts that are set against another setting than none."""


@pytest.mark.parametrize("name", SOME_PARTS)
def test_case_e4_no_part_is_a_dead_knob(name: str) -> None:
    """On a probe in which cache, budget and time are short, every part changes what becomes of somebody."""
    rng = np.random.default_rng(4)
    n, plant = 60, RegimePlant((6e-3, 1e-4, 1e-6, 0.0, 0.0, 0.0), (7e-3, 1e-4, 1e-6, 4e-5, 1e-8, 5e-4))
    shape = np.cumsum(rng.exponential(0.02, n)), rng.integers(10, 300, n), rng.integers(5, 60, n), Limits(1600, 16, max_tokens=128)
    targets = Target(0.12, 0.012), Target(2.0, 0.06)
    told = [
        agreed(plain(*shape, Policy(order="slack", **{"triage": "none", "estimate": 1.5, **fields}), 96.0, *targets, plant=plant))
        for fields in (BESIDE.get(name, {}), SOME_PARTS[name])
    ]
    assert not np.array_equal(told[0].ttft_s, told[1].ttft_s, equal_nan=True)
