"""Small problems for the tests of simulator, twin, loop and tuning: drawn by hypothesis, or from a seed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from headway.controllers import PILaw, StaticLaw, UpDownLaw
from headway.controllers.controller import Controller
from headway.controllers.gain_schedule import GainSchedule
from headway.controllers.policy import ADMISSIONS, ORDERS, PHASES, PREEMPTIONS, TRIAGES, Policy
from headway.controllers.simulator import Candidate, Draw
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.plant import Plant
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Prefix, Workload
from tests.reference import Reference, Verdict


class Problem(NamedTuple):
    """Everything that a run takes, in the order in which `simulate` takes it."""

    identified: IdentifiedPlant
    candidate: Candidate
    drawn: Draw
    targets: tuple[Target, ...]
    limits: Limits

    def one_by_one(self, **limits: str) -> Problem:
        """The same on an engine that composes a step when the last has ended."""
        changed = dataclasses.replace(self.limits, scheduling="sync", **limits)
        return self._replace(limits=changed, identified=dataclasses.replace(self.identified, limits=changed))

    def reference(self, cut_s: float = math.inf) -> Verdict:
        identified, candidate, drawn, targets, limits = self
        return Reference(identified, candidate, drawn.workload, targets, limits).run(drawn.decode, drawn.mixed, cut_s)


def known(plant: Plant, limits: Limits, noise: Noise = Noise(np.zeros(0), np.zeros(0))) -> IdentifiedPlant:  # noqa: B008
    """A plant that was never fitted."""
    return IdentifiedPlant(plant, noise, Hull(64.0, 1e5, 8192.0, 1e7), {"decode": 0.05, "mixed": 0.1}, {}, limits, {})


Choose = Callable[[Sequence[Any]], Any]
"""Takes one of the options."""


def prefix_of(rng: np.random.Generator, choose: Choose, prompts: np.ndarray, block: int) -> Prefix:
    """Prompts of a few families: a beginning that all share, one that half a family shares, and the rest of their own."""
    unit, families, depth = block * choose([1, 2, 4]), choose([1, 2, 4]), choose([1, 3, 100])
    known_ids: dict[tuple, int] = {}
    ids, start = [], [0]
    for i, prompt in enumerate(prompts):
        family, half = int(rng.integers(families)), int(rng.integers(2))
        for k in range(int(prompt) // unit):
            path = (family, k) if k < depth else (family, half, k) if k < 2 * depth else (family, half, i, k)
            ids.append(known_ids.setdefault(path, len(known_ids)))
        start.append(len(ids))
    return Prefix(unit, np.array(start, np.int64), np.array(ids, np.int64))


def clients_of(rng: np.random.Generator, choose: Choose, n: int) -> dict[str, Any]:
    """Patience, streams that are closed, and followers: each for some of the requests of some of the problems."""
    parts: dict[str, Any] = {}
    for name in ("patience_s", "cancel_s"):
        if choose([False, True]):
            times_s = rng.uniform(0.0, choose([0.1, 0.5, 2.0]), n)
            parts[name] = np.where(rng.random(n) < 0.6, times_s, np.inf)
    if choose([False, True]):
        follows = (rng.random(n) < 0.6) & (np.arange(n) > 0)
        parts["after"] = np.where(follows, np.floor(rng.random(n) * np.arange(n)), -1).astype(np.int64)
        parts["think_s"] = np.where(rng.random(n) < 0.7, rng.exponential(choose([0.01, 0.2]), n), 0.0)
    return parts


def workload_of(rng: np.random.Generator, choose: Choose, n: int, classes: int, block: int) -> Workload:
    """Few requests: some at once, some that begin alike, some that follow another, some that give up."""
    gaps_s = rng.exponential(choose([0.001, 0.02, 0.2]), n - 1)
    arrival_s = np.concatenate([[0.0], np.cumsum(gaps_s)])
    if choose([False, True]):
        arrival_s = np.round(arrival_s, 1)  # several at once
    prompts = rng.integers(1, choose([20, 100, 300]), n)
    outputs = rng.integers(1, choose([3, 40, 120]) + 1, n)
    prefix = prefix_of(rng, choose, prompts, block) if choose([False, True]) else None
    plain = Workload(arrival_s, prompts, outputs, rng.integers(0, classes, n), prefix=prefix)
    return dataclasses.replace(plain, **clients_of(rng, choose, n))


def limits_of(rng: np.random.Generator, choose: Choose) -> Limits:
    """An engine whose cache is often too small for what is asked of it."""
    return Limits(
        kv_tokens=int(rng.integers(200, choose([450, 450, 1500]) + 1)),
        block_tokens=choose([1, 4, 16]),
        max_seqs=choose([int(rng.integers(1, 13)), 12]),
        max_len=choose([250, 100_000]),
        max_tokens=choose([16, 100, 512, 512]),
        watermark=choose([0.0, 0.01, 0.1]),
        reservation=choose(["gate", "chunk", "full"]),
        first_token=choose(["last_chunk", "next_step"]),
        scheduling=choose(["sync", "async"]),
        prefix_cache=choose(["on", "on", "on", "off"]),
        swap_block_s=choose([0.0, 1e-4, 2e-3]),
    )


def keyed_parts(rng: np.random.Generator, choose: Choose, classes: int) -> dict[str, Any]:
    """The parts of a policy that need a key."""
    return {
        "phases": choose(["mixed", *PHASES]),
        "prefill_every": float(choose([0, 0, 1, 2, 5])),
        "decode_every": float(choose([0, 0, 1, 2, 5])),
        "stride": choose([0.0, 0.0, 0.4, 1.0]),
        "class_shares": choose([(), tuple(rng.uniform(0.1, 1.0, classes))]),
        "priority_s": choose([(), tuple(rng.uniform(-0.5, 0.5, classes))]),
        "memory_price_s": choose([0.0, rng.uniform(0.0, 0.05)]),
        "shed_cap": choose([1.0, 0.0, rng.uniform(0.05, 0.6)]),
    }


def policy_of(
    rng: np.random.Generator, choose: Choose, classes: int, orders: Sequence[str], triages: Sequence[str], admissions: Sequence[str]
) -> Policy:
    """Any policy that is none of those that `Policy.check` refuses."""
    order = choose(orders)
    keyed = keyed_parts(rng, choose, classes) if order != "fcfs" else {}
    allowed = [t for t in triages if order != "fcfs" or t not in ("defer", "degrade")] or ["none"]
    allowed += [t for t in allowed if t == "degrade"]  # twice as often as the others: a fifth of all, stock order included
    policy = Policy(
        order=order,
        triage=choose(allowed),
        tolerance=choose([rng.uniform(-0.5, 0.5), tuple(rng.uniform(-0.5, 0.5, classes))]),
        estimate=choose([rng.uniform(0.1, 2.0), tuple(rng.uniform(0.1, 2.0, classes))]),
        timeout=rng.uniform(0.3, 2.0),
        degrade=rng.uniform(1.0, 4.0),
        aging_rate=choose([0.0, 0.5, 2.0]),
        chunk_tokens=choose([0.0, 16.0, 50.0, 500.0]),
        running_limit=choose([float(rng.integers(1, 13)), 256.0]),
        admission=choose(admissions),
        lookahead_steps=rng.uniform(0.0, 60.0),
        prior_output_tokens=rng.uniform(2.0, 40.0),
        preemption=choose(PREEMPTIONS),
        **keyed,
    )
    policy.check()
    return policy


KNOTS = ((1, 1, 1), (4, 1, 1), (1, 3, 1), (1, 1, 2), (3, 2, 4))
"""Knots of the axes of schedules."""


def gains_of(rng: np.random.Generator, choose: Choose, law: Controller, policy: Policy, classes: int) -> GainSchedule:
    """Gains that swing with the load, of those that law and policy can follow."""
    shape, values = choose(KNOTS), {}
    for name, low, high in (("margin", 0.0, 0.7), ("aging_rate", 0.0, 3.0), ("chunk_tokens", 1.0, 8.5)):
        if choose([False, True]) and (name != "margin" or law.law != "static"):
            values[name] = rng.uniform(low, high, shape)
    if policy.order != "fcfs" and choose([False, True]):
        some = [c for c in range(classes) if not policy.class_shares or choose([False, True])]
        values |= {f"share.{c}": rng.uniform(0.1, 1.0, shape) for c in some}
    values = values or {"chunk_tokens": rng.uniform(1.0, 8.5, shape)}
    return GainSchedule(tuple(values), np.array(list(values.values())))


def built(
    rng: np.random.Generator,
    choose: Choose,
    n: int,
    classes: int,
    orders: Sequence[str] = ORDERS,
    triages: Sequence[str] = TRIAGES,
    admissions: Sequence[str] = ("none",),
    scheduled: bool = False,
) -> Problem:
    """One problem. What decides its kind goes through `choose`, what only fills it in comes from the generator."""
    limits = limits_of(rng, choose)
    workload = workload_of(rng, choose, n, classes, limits.block_tokens)
    policy = policy_of(rng, choose, classes, orders, triages, admissions)
    tokens, most = float(rng.integers(1, 401)), float(choose([20, 60, 400]))
    slew = choose([1e6, 5.0])
    law = {
        "static": StaticLaw(tokens),
        "updown": UpDownLaw(up_tokens=8.5, initial_tokens=tokens, most_tokens=most),
        "pi": PILaw(kp=0.25, ki=0.35, slope_s_per_token=4.1e-5, slew_tokens=slew, initial_tokens=tokens, most_tokens=most),
    }[choose(["static", "updown", "pi"])]
    terms = np.array([[6e-3, 1e-4, 1e-6, 0.0, 0.0, 0.0], [7e-3, 1e-4, 1e-6, 4e-5, 1e-8, 5e-4]]) * rng.uniform(0.5, 1.5, (2, 6))
    targets = tuple(
        Target(rng.uniform(0.05, 1.0), rng.uniform(0.012, 0.05), float(rng.choice([0.0, 0.002])), name=f"class {c}") for c in range(classes)
    )
    drawn = Draw(workload, np.exp(rng.normal(0, 0.1, 64)), np.exp(rng.normal(0, 0.2, 64)))
    gains = (
        gains_of(rng, choose, law, policy, classes) if scheduled and choose([True, True, False]) else None
    )  # last: else nothing is drawn
    return Problem(known(RegimePlant(tuple(terms[0]), tuple(terms[1])), limits), Candidate(law, policy, gains), drawn, targets, limits)


@st.composite
def problems(draw, orders: tuple[str, ...] = ORDERS, triages: tuple[str, ...] = TRIAGES, scheduled: bool = False) -> Problem:
    """Small random runs: many with a cache too small for what is asked of it, with caps, classes, ties, noise and every habit.

    With `scheduled` two of three have gains that follow the load.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, classes = draw(st.integers(1, 20)), draw(st.integers(1, 3))
    return built(rng, lambda options: draw(st.sampled_from(options)), n, classes, orders, triages, scheduled=scheduled)


def problem(seed: int, requests: int = 16, classes: int = 2, admissions: tuple[str, ...] = ADMISSIONS, scheduled: bool = False) -> Problem:
    """The problem of one seed, always the same: of 200 in a row each part of the engine is on in at least 50.

    Stock order, under which most parts must be off, is one in six. With `scheduled` two of three have gains that follow the load.
    """
    rng = np.random.default_rng([seed, 20_261_130])
    orders = ("fcfs", "edf", "edf", "slack", "slack", "slack")
    return built(
        rng, lambda options: options[int(rng.integers(len(options)))], requests, classes, orders, admissions=admissions, scheduled=scheduled
    )
