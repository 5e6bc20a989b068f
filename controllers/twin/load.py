"""What the twin of a run is given: requests as asked with the noise of every step, and a candidate as numbers, arrays of fixed shape."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headway.controllers.policy import PHASES, TRIAGES, Policy, check_classes, prefill_rate_tps
from headway.controllers.simulator import Candidate, Draw
from headway.models.plant import Plant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload

NO_CAP = 1e18
"""Chunk cap that caps nothing [tokens]."""


class Choices(NamedTuple):
    """What a compiled twin is specialised on. Everything else is a number that a sweep may vary.

    Args:
        stock: the engine's own order; else by key.
        admission: by prediction; else up to the running limit and the cache.
        units: prefix units that there are in all; 0 leaves the prefix cache out.
    """

    stock: bool
    admission: bool
    units: int


class Load(NamedTuple):
    """Requests as asked, with what their class was promised, and the noise of every step; shapes (n,) unless said.

    Args:
        arrival_s: [s].
        prompt: [tokens].
        output: [tokens].
        kind: class, int.
        after: request whose end it waits for, -1 for none, int.
        think_s: from that end to its arrival [s].
        patience_s: infinite for never [s].
        cancel_s: infinite for never [s].
        ttft_s: at the engine [s].
        budget_s: longest gap at the engine [s].
        itl_s: [s].
        transport_s: [s].
        unit: ids of prefix units, -1 beyond the last, shape (n, units), int.
        unit_tokens: of one unit, shape () [tokens].
        decode_noise: factors, shape (k,).
        mixed_noise: factors, shape (k,).
    """

    arrival_s: Any
    prompt: Any
    output: Any
    kind: Any
    after: Any
    think_s: Any
    patience_s: Any
    cancel_s: Any
    ttft_s: Any
    budget_s: Any
    itl_s: Any
    transport_s: Any
    unit: Any
    unit_tokens: Any
    decode_noise: Any
    mixed_noise: Any


class Numbers(NamedTuple):
    """A policy under its law, targets and limits, as numbers of shape () and flags; some have one per class.

    Args:
        tolerance: see `Policy`, as the next thirteen; shape (classes,).
        estimate: factor, shape (classes,).
        shed_cap: share of a class's arrivals.
        timeout: share of the TTFT.
        aging: [s/s].
        chunk: NO_CAP for none [tokens].
        running: [requests].
        degrade: factor.
        prefill_every: [steps].
        decode_every: [steps].
        strides: a class is stepped every so many steps, shape (classes,).
        price_s: of a block [s].
        shares: weights, all 0 for none, shape (classes,).
        priority_s: shape (classes,) [s].
        triage: place in `TRIAGES`.
        phases: place in `PHASES`.
        slack: order by slack, else by deadline.
        swap: preempt by swap, else by recomputation.
        look_steps: horizon of admission; 0 for now alone [steps].
        look_z: standard deviations of cache growth.
        prior_tokens: median output assumed [tokens].
        prior_requests: weight of that [requests].
        setpoint_s: [s].
        budget_s: tightest of all classes [s].
        rate_tps: estimate of the prefill rate before one was measured [tokens/s].
        asynchronous: scheduling, see `Limits`, as the rest.
        caching: of prefixes.
        full: reservation of the whole prompt.
        gate: the whole prompt must fit, but only the chunk's blocks are taken.
        later: the first token comes a step after the last chunk.
        block: [tokens].
        blocks: of the pool.
        keep: blocks that a newcomer leaves free where others run.
        look_blocks: of the pool, less the watermark, as admission counts them.
        max_tokens: in a step [tokens].
        max_len: of a request [tokens].
        swap_block_s: [s].
        cut_s: end of a run of fixed length; 0 for none [s].
        max_steps: after which a run is given up.
    """

    tolerance: Any
    estimate: Any
    shed_cap: Any
    timeout: Any
    aging: Any
    chunk: Any
    running: Any
    degrade: Any
    prefill_every: Any
    decode_every: Any
    strides: Any
    price_s: Any
    shares: Any
    priority_s: Any
    triage: Any
    phases: Any
    slack: Any
    swap: Any
    look_steps: Any
    look_z: Any
    prior_tokens: Any
    prior_requests: Any
    setpoint_s: Any
    budget_s: Any
    rate_tps: Any
    asynchronous: Any
    caching: Any
    full: Any
    gate: Any
    later: Any
    block: Any
    blocks: Any
    keep: Any
    look_blocks: Any
    max_tokens: Any
    max_len: Any
    swap_block_s: Any
    cut_s: Any
    max_steps: Any


def choices_of(policy: Policy, units: int) -> Choices:
    """What the twin of a policy is specialised on.

    Args:
        policy: the policy.
        units: prefix units that there are in all.

    Returns:
        Choices.
    """
    return Choices(policy.order == "fcfs", policy.admission != "none", units)


def numbers_of(candidate: Candidate, targets: tuple[Target, ...], limits: Limits, plant: Plant, cut_s: float, max_steps: int) -> Numbers:
    """A candidate as numbers.

    Args:
        candidate: law, whose margin gives the setpoint, and policy.
        targets: one per class.
        limits: of the engine.
        plant: for the first estimate of the prefill rate.
        cut_s: end of a run of fixed length; 0 for none [s].
        max_steps: after which a run is given up.

    Returns:
        Numbers, of numpy.

    Raises:
        ValueError: numbers per class for another number of classes than there are, or gains that follow the load.
    """
    policy, law = candidate.policy, candidate.law
    if candidate.gains is not None:
        raise ValueError(f"the twin holds gains still, and {', '.join(candidate.gains.names)} follow the load; use the exact simulator")
    check_classes(policy, len(targets))
    budget_s = min(t.budget_s for t in targets)
    setpoint_s = (1 - law.setpoint_margin) * budget_s
    per_class = lambda given: np.array([*map(float, given), *[0.0] * len(targets)][: len(targets)])  # noqa: E731
    row = Numbers(
        tolerance=np.zeros(len(targets)) + policy.tolerance,
        estimate=np.zeros(len(targets)) + policy.estimate,
        shed_cap=policy.shed_cap,
        timeout=policy.timeout,
        aging=policy.aging_rate,
        chunk=np.floor(policy.chunk_tokens) or NO_CAP,
        running=min(np.floor(policy.running_limit), limits.max_seqs),
        degrade=policy.degrade,
        prefill_every=np.floor(policy.prefill_every),
        decode_every=np.floor(policy.decode_every),
        strides=np.maximum(1.0, np.floor(policy.stride * np.array([t.budget_s for t in targets]) / setpoint_s + 1e-9)),
        price_s=policy.memory_price_s,
        shares=per_class(policy.class_shares),
        priority_s=per_class(policy.priority_s),
        triage=TRIAGES.index(policy.triage),
        phases=PHASES.index(policy.phases),
        slack=policy.order == "slack",
        swap=policy.preemption == "swap",
        look_steps=policy.lookahead_steps if policy.admission == "lookahead" else 0.0,
        look_z=policy.lookahead_z,
        prior_tokens=policy.prior_output_tokens,
        prior_requests=policy.prior_requests,
        setpoint_s=setpoint_s,
        budget_s=budget_s,
        rate_tps=prefill_rate_tps(plant, setpoint_s, limits.max_tokens),
        **_engine(limits),
        cut_s=cut_s,
        max_steps=max_steps,
    )
    return Numbers(*(np.asarray(x, bool if isinstance(x, bool) else float) for x in row))


def _engine(limits: Limits) -> dict[str, Any]:
    """What of the numbers the engine gives."""
    return {
        "asynchronous": limits.scheduling == "async",
        "caching": limits.prefix_cache == "on",
        "full": limits.reservation == "full",
        "gate": limits.reservation == "gate",
        "later": limits.first_token == "next_step",
        "block": limits.block_tokens,
        "blocks": limits.blocks,
        "keep": np.floor(limits.watermark * (limits.blocks + 1)),
        "look_blocks": limits.blocks - np.ceil(limits.watermark * limits.blocks),
        "max_tokens": limits.max_tokens,
        "max_len": limits.max_len,
        "swap_block_s": limits.swap_block_s,
    }


def load_of(drawn: Draw, targets: tuple[Target, ...], limits: Limits) -> tuple[Load, int]:
    """A draw as arrays.

    Args:
        drawn: workload and noise.
        targets: one per class.
        limits: of the engine.

    Returns:
        (the load, of numpy; how many prefix units there are in all).

    Raises:
        ValueError: a prefix unit that is no whole number of blocks.
    """
    w, n = drawn.workload, len(drawn.workload)
    given = lambda column, otherwise: np.full(n, otherwise) if column is None else np.asarray(column)  # noqa: E731
    kind = np.asarray(w.class_id, np.int64)
    ttft_s, budget_s, itl_s, transport_s = np.array([[t.first_token_s, t.budget_s, t.itl_s, t.transport_s] for t in targets])[kind].T
    unit, unit_tokens, ids = _units(w, limits)
    load = Load(
        arrival_s=np.asarray(w.arrival_s, float),
        prompt=np.asarray(w.prompt_tokens, float),
        output=np.asarray(w.output_tokens, float),
        kind=kind,
        after=np.asarray(given(w.after, -1), np.int64),
        think_s=np.asarray(given(w.think_s, 0.0), float),
        patience_s=np.asarray(given(w.patience_s, np.inf), float),
        cancel_s=np.asarray(given(w.cancel_s, np.inf), float),
        ttft_s=ttft_s,
        budget_s=budget_s,
        itl_s=itl_s,
        transport_s=transport_s,
        unit=unit,
        unit_tokens=np.asarray(unit_tokens),
        decode_noise=np.asarray(drawn.decode, float),
        mixed_noise=np.asarray(drawn.mixed, float),
    )
    return load, ids


def _units(w: Workload, limits: Limits) -> tuple[np.ndarray, float, int]:
    """Unit ids of every prompt, -1 beyond the last; tokens of a unit; how many ids there are."""
    if w.prefix is None or not len(w.prefix.ids):
        return np.full((len(w), 0), -1), 1.0, 0
    if w.prefix.unit_tokens % limits.block_tokens and limits.prefix_cache == "on":
        raise ValueError(f"a prompt unit of {w.prefix.unit_tokens} tokens is no whole number of blocks of {limits.block_tokens}")
    sizes = np.diff(w.prefix.start)
    unit = np.full((len(w), int(sizes.max())), -1)
    for i, size in enumerate(sizes):
        unit[i, :size] = w.prefix.ids[w.prefix.start[i] : w.prefix.start[i + 1]]
    return unit, float(w.prefix.unit_tokens), int(w.prefix.ids.max()) + 1
