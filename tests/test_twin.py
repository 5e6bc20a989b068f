"""The twin against the exact simulator: 240 random configurations, the parts that are on in them, and a sweep."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from headway.controllers import PILaw, TrackerLaw
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw, evaluate, simulate
from headway.controllers.twin.run import TwinOutcome, simulate_twin, sweep
from headway.engines.live import keep_programs
from headway.models.goodput import ABANDONED, CANCELLED, EXPIRED, FAILED, FINISHED, REJECTED
from headway.models.measures import END_S, ITL_P99_S
from headway.models.regimes import RegimePlant
from headway.models.signals import Target
from headway.models.workload import Prefix, Workload
from tests.small_problems import Problem, clients_of, known, limits_of, policy_of

CONFIGURATIONS, ON = 240, 50
REQUESTS, CLASSES, UNIT_TOKENS, UNITS, FAMILIES = 16, 2, 16, 4, 2
STOCK_TRIAGES = ("timeout", "reject", "timeout", "none")
KEYED_TRIAGES = ("defer", "degrade", "reject", "timeout", "defer", "degrade", "timeout", "reject", "defer", "degrade")


class Kind(NamedTuple):
    """What is compiled once."""

    orders: tuple[str, ...]
    law: str
    admits: bool


STOCK, STOCK_ADMISSION = (Kind(("fcfs",), "pi", admits) for admits in (False, True))
KEYED, KEYED_ADMISSION = (Kind(("edf", "slack", "slack"), "tracker", admits) for admits in (False, True))
KINDS = (STOCK, *[KEYED, KEYED_ADMISSION] * 2, KEYED, STOCK_ADMISSION, *[KEYED, KEYED_ADMISSION] * 2, KEYED)
"""In turn: five of six by key, five of twelve with admission."""


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    """Compiling takes nearly all the time of these tests: what one process compiled is kept for the others."""
    keep_programs()


def prompts_alike(rng: np.random.Generator) -> tuple[np.ndarray, Prefix]:
    """Prompts of two families that begin alike, and the first of all units; shapes are the same for every seed."""
    prompts = rng.integers(1, rng.choice([20, 100, 300]), REQUESTS)
    prompts[0] = max(prompts[0], UNIT_TOKENS * UNITS)
    families = rng.integers(FAMILIES, size=REQUESTS)
    families[0] = FAMILIES - 1
    ids = [range(f * UNITS, f * UNITS + min(int(p) // UNIT_TOKENS, UNITS)) for f, p in zip(families, prompts, strict=True)]
    start = np.cumsum([0, *map(len, ids)])
    return prompts, Prefix(UNIT_TOKENS, start, np.array([u for row in ids for u in row], np.int64))


def workload_of(rng: np.random.Generator, choose: Callable[[Any], Any]) -> Workload:
    arrival_s = np.concatenate([[0.0], np.cumsum(rng.exponential(choose([0.001, 0.02, 0.2]), REQUESTS - 1))])
    if choose([False, True]):
        arrival_s = np.round(arrival_s, 1)  # several at once
    prompts, prefix = prompts_alike(rng)
    outputs = rng.integers(1, choose([3, 40, 120]) + 1, REQUESTS)
    clients = clients_of(rng, choose, REQUESTS)
    return Workload(arrival_s, prompts, outputs, rng.integers(0, CLASSES, REQUESTS), prefix=prefix, **clients)


@functools.cache
def configuration(seed: int) -> Problem:
    """The configuration of one seed: everything is drawn but kind, triage and admission, which go in turn."""
    rng = np.random.default_rng([seed, 5])
    choose = lambda options: options[rng.integers(len(options))]  # noqa: E731
    kind, place = KINDS[seed % len(KINDS)], seed // len(KINDS)
    triages = STOCK_TRIAGES if kind.orders == ("fcfs",) else KEYED_TRIAGES
    triage = triages[(place + seed) % len(triages)]
    limits, workload = limits_of(rng, choose), workload_of(rng, choose)
    admission = ("myopic", "lookahead")[place % 2] if kind.admits else "none"
    policy = policy_of(rng, choose, CLASSES, kind.orders, (triage,), (admission,))
    terms = np.array([[6e-3, 1e-4, 1e-6, 0.0, 0.0, 0.0], [7e-3, 1e-4, 1e-6, 4e-5, 1e-8, 5e-4]]) * rng.uniform(0.5, 1.5, (2, 6))
    plant = RegimePlant(tuple(terms[0]), tuple(terms[1]))
    tokens, most = float(rng.integers(1, 401)), float(choose([20, 60, 400]))
    law = {
        "pi": PILaw(kp=0.25, ki=0.35, slope_s_per_token=4.1e-5, initial_tokens=tokens, most_tokens=most),
        "tracker": TrackerLaw(plant, most_tokens=most, quantum_tokens=choose([1.0, 8.0]), least_tokens=12.0 * (place % 2)),
    }[kind.law]
    itl_s = rng.uniform(0.012, 0.05, CLASSES)
    targets = tuple(Target(rng.uniform(0.05, 1.0), d, float(rng.choice([0.0, 0.002])), name=f"class {c}") for c, d in enumerate(itl_s))
    drawn = Draw(workload, np.exp(rng.normal(0, 0.1, 64)), np.exp(rng.normal(0, 0.2, 64)))
    return Problem(known(plant, limits), Candidate(law, policy), drawn, targets, limits)


@functools.cache
def outcome(seed: int) -> TwinOutcome:
    return simulate_twin(*configuration(seed), max_steps=20_000)


def assert_equal(twin: TwinOutcome, problem: Problem, cut_s: float = 0.0) -> None:
    exact = simulate(*problem, cut_s=cut_s)
    for name in ("status", "on_time", "owed", "emitted"):
        np.testing.assert_array_equal(getattr(twin, name), getattr(exact, name), err_msg=name)
    assert (twin.steps, twin.preempted) == (exact.steps, exact.preempted)
    assert twin.clock_s == pytest.approx(exact.end_s, rel=1e-9)
    for name in ("ttft_s", "last_s", "max_gap_s"):
        np.testing.assert_allclose(getattr(twin, name), getattr(exact, name), rtol=1e-9, atol=1e-12, err_msg=name)
    np.testing.assert_array_equal(twin.degraded, np.zeros(REQUESTS, bool) if exact.degraded is None else exact.degraded > 0)
    np.testing.assert_array_equal(twin.spared, exact.spared)


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_good_tokens_and_clock_are_those_of_the_exact_simulator(kind: Kind) -> None:
    for seed in range(CONFIGURATIONS):
        if KINDS[seed % len(KINDS)] == kind:
            assert_equal(outcome(seed), configuration(seed))


def test_a_run_of_fixed_length_ends_at_the_cut_in_both() -> None:
    for seed in range(0, CONFIGURATIONS, 8):
        cut_s = 0.6 * outcome(seed).clock_s
        assert_equal(simulate_twin(*configuration(seed), cut_s=cut_s, max_steps=20_000), configuration(seed), cut_s)


def with_policy(**changes: Any) -> Callable[[Problem], Problem]:
    def off(problem: Problem) -> Problem:
        policy = dataclasses.replace(problem.candidate.policy, **changes)
        return problem._replace(candidate=problem.candidate._replace(policy=policy))

    return off


def with_limits(**changes: Any) -> Callable[[Problem], Problem]:
    return lambda problem: problem._replace(limits=dataclasses.replace(problem.limits, **changes))


def with_workload(**changes: Any) -> Callable[[Problem], Problem]:
    def off(problem: Problem) -> Problem:
        workload = dataclasses.replace(problem.drawn.workload, **changes)
        return problem._replace(drawn=problem.drawn._replace(workload=workload))

    return off


class Part(NamedTuple):
    """A part of the engine: whether it is on, and how it is switched off."""

    on: Callable[[Policy, Any, Workload], Any]
    off: Callable[[Problem], Problem]


PARTS = {
    "order slack": Part(lambda p, e, w: p.order == "slack", with_policy(order="edf")),
    **{
        f"triage {rule}": Part(lambda p, e, w, rule=rule: p.triage == rule, with_policy(triage="none"))
        for rule in ("defer", "reject", "timeout", "degrade")
    },
    "tolerance of a class": Part(
        lambda p, e, w: p.triage in ("defer", "reject", "degrade") and np.ndim(p.tolerance),
        lambda p: with_policy(tolerance=p.candidate.policy.tolerance[0])(p),
    ),
    "estimate of a class": Part(
        lambda p, e, w: (p.order == "slack" or p.triage in ("defer", "reject", "degrade")) and np.ndim(p.estimate),
        lambda p: with_policy(estimate=p.candidate.policy.estimate[0])(p),
    ),
    "shed_cap": Part(lambda p, e, w: p.shed_cap < 1 and p.triage in ("reject", "timeout", "degrade"), with_policy(shed_cap=1.0)),
    "tolerance": Part(lambda p, e, w: p.triage in ("defer", "reject", "degrade"), with_policy(tolerance=0.0)),
    "estimate": Part(lambda p, e, w: p.order == "slack" or p.triage in ("defer", "reject", "degrade"), with_policy(estimate=0.0)),
    "aging_rate": Part(lambda p, e, w: p.order == "slack" and p.aging_rate > 0, with_policy(aging_rate=0.0)),
    "chunk_tokens": Part(lambda p, e, w: p.chunk_tokens > 0, with_policy(chunk_tokens=0.0)),
    "running_limit": Part(lambda p, e, w: p.running_limit < REQUESTS, with_policy(running_limit=256.0)),
    "phases": Part(lambda p, e, w: p.phases != "mixed", with_policy(phases="mixed")),
    "prefill_every": Part(lambda p, e, w: p.prefill_every > 0, with_policy(prefill_every=0.0)),
    "decode_every": Part(lambda p, e, w: p.decode_every > 0, with_policy(decode_every=0.0)),
    "stride": Part(lambda p, e, w: p.stride > 0, with_policy(stride=0.0)),
    "class_shares": Part(lambda p, e, w: len(p.class_shares), with_policy(class_shares=())),
    "priority_s": Part(lambda p, e, w: len(p.priority_s), with_policy(priority_s=())),
    "memory_price_s": Part(lambda p, e, w: p.memory_price_s > 0, with_policy(memory_price_s=0.0)),
    "admission": Part(lambda p, e, w: p.admission != "none", with_policy(admission="none")),
    "admission lookahead": Part(lambda p, e, w: p.admission == "lookahead", with_policy(admission="myopic")),
    "lookahead_z": Part(lambda p, e, w: p.admission == "lookahead", with_policy(lookahead_z=0.0)),
    "prior_output_tokens": Part(lambda p, e, w: p.admission == "lookahead", with_policy(prior_output_tokens=256.0)),
    "preemption swap": Part(lambda p, e, w: p.preemption == "swap", with_policy(preemption="recompute")),
    "scheduling async": Part(lambda p, e, w: e.scheduling == "async", with_limits(scheduling="sync")),
    "prefix_cache": Part(lambda p, e, w: e.prefix_cache == "on", with_limits(prefix_cache="off")),
    "swap_block_s": Part(lambda p, e, w: p.preemption == "swap" and e.swap_block_s > 0, with_limits(swap_block_s=0.0)),
    "reservation gate": Part(lambda p, e, w: e.reservation == "gate", with_limits(reservation="chunk")),
    "reservation full": Part(lambda p, e, w: e.reservation == "full", with_limits(reservation="chunk")),
    "first_token next_step": Part(lambda p, e, w: e.first_token == "next_step", with_limits(first_token="last_chunk")),
    "watermark": Part(lambda p, e, w: e.watermark > 0, with_limits(watermark=0.0)),
    "patience_s": Part(lambda p, e, w: w.patience_s is not None, with_workload(patience_s=None)),
    "cancel_s": Part(lambda p, e, w: w.cancel_s is not None, with_workload(cancel_s=None)),
    "after": Part(lambda p, e, w: w.after is not None, with_workload(after=None, think_s=None)),
}


@pytest.mark.parametrize("name", PARTS)
def test_every_part_is_on_in_at_least_50_and_changes_a_result(name: str) -> None:
    part, on = PARTS[name], []
    for seed in range(CONFIGURATIONS):
        problem = configuration(seed)
        if part.on(problem.candidate.policy, problem.limits, problem.drawn.workload):
            on.append(seed)
    assert len(on) >= ON

    def matters(seed: int) -> bool:
        without, with_it = simulate_twin(*part.off(configuration(seed)), max_steps=20_000), outcome(seed)
        return without.clock_s != with_it.clock_s or not np.array_equal(without.on_time, with_it.on_time)

    assert any(matters(seed) for seed in on)


def test_every_way_to_end_occurs() -> None:
    ends = np.concatenate([outcome(seed).status for seed in range(CONFIGURATIONS)])
    assert set(ends.tolist()) == {FINISHED, CANCELLED, REJECTED, EXPIRED, FAILED, ABANDONED}
    assert sum(outcome(seed).preempted for seed in range(CONFIGURATIONS)) > CONFIGURATIONS


def test_a_sweep_gives_the_measures_of_the_exact_simulator() -> None:
    """Over numbers, triage, phases and admissions at once, and both orders by key: one compiled call; stock order is another."""
    problem, other = configuration(1), configuration(7)
    policy = dataclasses.replace(problem.candidate.policy, order="slack", aging_rate=0.5, admission="lookahead")
    laws = [PILaw(margin=m, kp=0.25, slope_s_per_token=4.1e-5, initial_tokens=100.0) for m in (0.05, 0.3)]
    policies = [
        policy,
        dataclasses.replace(
            policy, order="edf", triage="defer", admission="myopic", phases="prefill_first", stride=0.8, class_shares=(0.3, 0.9)
        ),
        dataclasses.replace(policy, triage="degrade", prefill_every=2.0, decode_every=3.0, priority_s=(0.0, 0.4), running_limit=3.0),
        Policy(order="fcfs", triage="reject", chunk_tokens=32.0),
    ]
    candidates = [Candidate(law, p) for law in laws for p in policies]
    draws = [problem.drawn, other.drawn]
    found = sweep(problem.identified, candidates, draws, problem.targets, problem.limits)
    exact = evaluate(problem.identified, candidates, draws, problem.targets, problem.limits)
    shown = [k for k in range(exact.shape[2]) if k != ITL_P99_S]
    np.testing.assert_allclose(found[..., shown], exact[..., shown], rtol=1e-9)
    assert np.isnan(found[..., ITL_P99_S]).all()
    assert len(np.unique(found[:, 0, END_S])) > 2


def test_what_the_twin_cannot_do_is_refused() -> None:
    problem = configuration(1)
    with pytest.raises(RuntimeError, match="max_steps"):
        simulate_twin(*problem, max_steps=3)
    with pytest.raises(ValueError, match="one number per class"):
        simulate_twin(*with_policy(class_shares=(1.0, 2.0, 3.0))(problem))
    with pytest.raises(ValueError, match="whole number of blocks"):
        simulate_twin(*with_limits(block_tokens=5, prefix_cache="on")(problem))
