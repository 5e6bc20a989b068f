"""Schedulers made to beat the bound: they know the workload and the noise, pause streams, batch prompts, sprint, and shed beforehand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headway.experiments.blocks as blocks
from headway.controllers.feedforward import FeedforwardLaw
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.controllers.static import StaticLaw
from headway.experiments.bound import upper_bound
from headway.experiments.drawn import shortfall
from headway.experiments.shedding import clairvoyant_shedding
from headway.models.measures import ATTAINMENT, CLEAN, GOODPUT_TPS
from headway.models.noise import Noise
from headway.models.plant import Batch
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload
from tests.small_problems import known

LIMITS = Limits(kv_tokens=200_000, max_seqs=64, max_tokens=4096, prefix_cache="off")
PLANT = RegimePlant((6e-3, 1e-4, 5e-8, 0.0, 0.0, 0.0), (7e-3, 1e-4, 5e-8, 4e-5, 1e-9, 2e-4))
TARGET = Target(1.0, 0.03)


def load(rate_rps: float, requests: int = 100, seed: int = 0) -> Workload:
    """Poisson arrivals, mean prompt 900 and mean output 60."""
    rng = np.random.default_rng(seed)
    arrival_s = np.concatenate([[0.0], np.cumsum(rng.exponential(1, requests - 1))]) / rate_rps
    prompt, output = rng.geometric(1 / 900, requests).clip(1, 6000), rng.geometric(1 / 60, requests).clip(1, 600)
    return Workload(arrival_s, prompt, output, np.zeros(requests, np.int64))


def noise(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors with rare, very quick and rare, very slow steps: the bound may not take all steps for quick ones."""
    rng = np.random.default_rng(seed)
    decode, mixed = np.exp(rng.normal(0, 0.02, 4096)), np.exp(rng.normal(0, 0.05, 4096))
    mixed[rng.random(4096) < 0.01] *= 0.6
    decode[rng.random(4096) < 0.01] *= 0.7
    return decode, mixed


def adversary(w: Workload, z: tuple[np.ndarray, np.ndarray], hold: int, patience: float, groups: int, worth: float, wait: bool) -> float:
    """Attainment of a scheduler that holds prompts back and computes them in giant steps, and sprints or pauses streams in between.

    hold: prompts that wait for a giant step; patience: share of the TTFT after which they go anyway; groups: streams decode in turns
    of so many groups; worth: prompts longer than so many times their output are shed at once; wait: giant steps go to the next quick factor.
    """
    queue = [i for i in range(len(w)) if w.prompt_tokens[i] <= worth * w.output_tokens[i]]
    owed = float(sum(w.output_tokens[i] for i in range(len(w)) if i not in set(queue)))
    alive: dict[int, list[float]] = {}  # emitted, last
    now, step, on = 0.0, 0, 0.0
    while queue or alive:
        here = [i for i in queue if w.arrival_s[i] <= now]
        if not here and not alive:
            now = float(w.arrival_s[queue[0]])
            continue
        cost = lambda i: 4e-5 * w.prompt_tokens[i] + 1e-9 * w.prompt_tokens[i] ** 2 / 2 + 2e-4  # noqa: E731
        for i in [i for i in here if now + 7e-3 * 0.5 + cost(i) * 0.5 > w.arrival_s[i] + TARGET.ttft_s]:
            owed += w.output_tokens[i]
            queue.remove(i)
            here.remove(i)
        quick = z[1][step % 4096] < 0.7 or not wait
        giant = here and ((len(here) >= hold and quick) or now - w.arrival_s[here[0]] > patience * TARGET.ttft_s or not alive)
        if giant:
            batch, tokens = [], 0
            for i in here:
                if tokens + w.prompt_tokens[i] <= LIMITS.max_tokens or not batch:
                    batch.append(i)
                    tokens += int(w.prompt_tokens[i])
            whole = batch if tokens <= LIMITS.max_tokens else []
            pairs = float(sum(w.prompt_tokens[i] ** 2 / 2 for i in batch))
            parts = math.ceil(tokens / LIMITS.max_tokens)
            for _ in range(parts):
                seconds = PLANT.step_time_s(Batch(0.0, 0.0, tokens / parts, pairs / parts, len(batch) / parts))
                now += float(seconds) * z[1][step % 4096]
                step += 1
            assert whole or len(batch) == 1
            for i in batch:
                queue.remove(i)
                if now > w.arrival_s[i] + TARGET.ttft_s:
                    owed += w.output_tokens[i]
                    continue
                on, owed = on + 1, owed + 1
                if w.output_tokens[i] > 1:
                    alive[i] = [1, now]
            continue
        mine = sorted(alive, key=lambda i: alive[i][1])[: max(1, -(-len(alive) // groups))][: LIMITS.max_seqs]
        kv = float(sum(w.prompt_tokens[i] + alive[i][0] for i in mine))
        now += float(PLANT.step_time_s(Batch(float(len(mine)), kv, 0.0, 0.0, 0.0))) * z[0][step % 4096]
        step += 1
        for i in mine:
            gap = now - alive[i][1]
            on, owed = on + (gap <= TARGET.itl_s + 1e-12), owed + max(1, math.floor(gap / TARGET.itl_s + 1e-9))
            alive[i] = [alive[i][0] + 1, now]
            if alive[i][0] >= w.output_tokens[i]:
                del alive[i]
    return float(on / owed)


@pytest.mark.parametrize("rate_rps", [15.0, 40.0, 300.0])
def test_no_adversary_exceeds_it(rate_rps: float):
    """Pausing, batching, sprinting, shedding with all known; the quickest factors kept for the largest steps."""
    rng, identified, bound = np.random.default_rng(int(rate_rps)), known(PLANT, LIMITS), 1.0
    for seed in range(2):
        w, z = load(rate_rps, seed=seed), noise(seed)
        bound = upper_bound(identified, w, (TARGET,), LIMITS, factors=z).attainment
        reached = []
        for _ in range(25):
            hold, patience, groups = int(rng.integers(1, 12)), float(rng.uniform(0, 0.9)), int(rng.integers(1, 4))
            worth, wait = float(rng.choice([8, 20, 60, 1e9])), bool(rng.integers(2))
            reached.append(adversary(w, z, hold, patience, groups, worth, wait))
        assert max(reached) <= bound + 1e-9, (seed, max(reached), bound)
        assert max(reached) > 0.3 * bound, "an adversary that attains nothing shows nothing"
    if rate_rps == 300.0:
        assert bound < 0.95, "where nobody can serve all, it must say so"


def test_no_extreme_of_the_engine_exceeds_it():
    """Phases apart, strides, held prefills, tiny and giant budgets, on an overloaded engine with heavy noise."""
    w, z = load(60.0, 150), noise(3)
    drawn, identified = Draw(w, *z), known(PLANT, LIMITS, Noise(np.log(z[0]), np.log(z[1])))
    policies = [
        Policy(order=order, triage=triage, phases=phases, prefill_every=every, decode_every=every, estimate=factor, preemption=preemption)
        for order in ("edf", "slack")
        for triage in ("reject", "defer")
        for phases, every in (("mixed", 0), ("prefill_first", 0), ("prefill_first", 6), ("decode_first", 8))
        for factor in (1.0, 6.0)
        for preemption in ("recompute", "swap")
    ]
    laws = [StaticLaw(float(b)) for b in (64, 512, 4096)]
    candidates = [Candidate(law, policy) for law in laws for policy in policies]
    for pool in (200_000, 12_000):
        limits = dataclasses.replace(LIMITS, kv_tokens=pool)
        measures = evaluate(identified, candidates, [drawn], (TARGET,), limits)[:, 0]
        bound = upper_bound(identified, w, (TARGET,), limits, factors=z)
        assert measures[:, ATTAINMENT].max() <= bound.attainment + 1e-9
        assert measures[:, CLEAN].max() <= bound.request_attainment + 1e-9
        assert measures[:, GOODPUT_TPS].max() <= bound.goodput_tps * (1 + 1e-9)


def test_shedding_beforehand_stays_below_it_and_beats_whoever_sheds_nobody():
    """The estimate as a teacher: told whom to serve, the same policies attain more, and never more than the bound."""
    w, z = load(45.0, 200), noise(5)
    drawn, identified = Draw(w, *z), known(PLANT, LIMITS)
    law = FeedforwardLaw(PLANT, margin=0.1, most_tokens=4096.0)
    candidates = [Candidate(law, Policy(order=order, triage="reject")) for order in ("edf", "slack")]
    alone = evaluate(identified, candidates, [drawn], (TARGET,), LIMITS)[:, 0, ATTAINMENT].max()
    shed = clairvoyant_shedding(identified, candidates, drawn, (TARGET,), LIMITS)
    bound = upper_bound(identified, w, (TARGET,), LIMITS, factors=z)
    assert shed.attainment <= bound.attainment + 1e-9
    assert shed.request_attainment <= bound.request_attainment + 1e-9
    assert shed.attainment > alone + 0.02
    assert 0 < (~shed.kept).sum() < 100


def test_blocks_in_time_bound_as_one_program_does(monkeypatch: pytest.MonkeyPatch):
    """Whoever stays below the one stays below the sum of its parts, which forget each other."""
    w, z, identified = load(200.0, 160), noise(7), known(PLANT, LIMITS)
    whole = upper_bound(identified, w, (TARGET,), LIMITS, factors=z, bin_s=0.25)
    monkeypatch.setattr(blocks, "BLOCK_REQUESTS", 60)
    parts = upper_bound(identified, w, (TARGET,), LIMITS, factors=z, bin_s=0.25)
    assert parts.attainment >= whole.attainment - 2e-3  # bins fall differently
    assert parts.request_attainment >= whole.request_attainment - 1e-2
    assert parts.attainment < 1.0
    reached = max(adversary(w, z, hold, 0.5, 1, worth, False) for hold in (1, 4) for worth in (8, 20, 60))
    assert reached <= parts.attainment + 1e-9
    assert np.isfinite(parts.served).sum() == np.isfinite(whole.served).sum()


@settings(max_examples=200)
@given(st.integers(0, 10_000), st.integers(0, 400), st.integers(1, 300), st.floats(0.01, 0.99), st.integers(0, 40))
def test_no_choice_of_steps_and_loads_is_quicker_than_the_rows_say(seed: int, start: int, count: int, quantile: float, extra: int):
    """sum of z q over S >= l sum of q - Q (m K + c), for any stretch of K steps, going round, any S in it and any loads up to Q."""
    rng = np.random.default_rng(seed)
    z = np.exp(rng.normal(0, 0.1, 97)) * np.where(rng.random(97) < 0.05, 0.5, 1.0)
    level, most = float(np.quantile(z, quantile)), 3.0
    mean, worst = shortfall(z, level, count + extra)
    steps = z[np.arange(start, start + count) % 97]
    lazy = np.where(steps < level, most, 0.0)  # the worst: all into the quick ones
    for loads in (lazy, most * rng.random(count) * (rng.random(count) < 0.5)):
        assert (steps * loads).sum() >= level * loads.sum() - most * (mean * count + worst) - 1e-9
