"""One slot of the fluid: what is demanded, who is served, and what becomes of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from headway.controllers.fluid_budget import Make, both_times, budget
from headway.controllers.fluid_noise import StepNoise
from headway.controllers.fluid_threshold import MOST, Offers, fill, ramp, served, solve
from headway.models.plant import Plant
from headway.models.pytree import pytree

SHEDS = ("reject", "timeout")
"""Forms of triage that never serve who is late; what has begun is finished."""
FULL = 0.999
"""Share of all demand that is served where the budget is not binding: the threshold stays finite."""


@pytree
class Knobs:
    """The numbers of the scheduler in one slot. Each may be constant or follow the load.

    Args:
        margin: share of the step budget kept free.
        aging_rate: seconds of slack that one second of waiting is worth [s/s].
        chunk_tokens: most prompt tokens of one request in a step [tokens].
        trim: integral gain of the law; what it costs is that it answers noise.
        share: prompt tokens due to class 0, as a share of all, in [0, 1].
        boost: seconds of slack that a deficit of a thousand tokens is worth; 0 for no shares [s].
        tolerance: negative slack tolerated, as a share of the TTFT target.
        estimate: factor on the estimated time to completion.
        timeout: share of the TTFT target after which "timeout" sheds.
        running_limit: most requests running at once [requests].
    """

    margin: Any = 0.15
    aging_rate: Any = 0.0
    chunk_tokens: Any = 512.0
    trim: Any = 0.0
    share: Any = 0.5
    boost: Any = 0.0
    tolerance: Any = 0.0
    estimate: Any = 1.0
    timeout: Any = 1.0
    running_limit: Any = 256.0


class Seen(NamedTuple):
    """The load, as a schedule of knobs sees it.

    Args:
        queued_tokens: prompt tokens that wait [tokens].
        running_requests: requests that decode [requests].
        kv_share: of the cache in use, in [0, 1].
    """

    queued_tokens: Any
    running_requests: Any
    kv_share: Any


class Rows(NamedTuple):
    """Live requests of a segment, shapes (rows,).

    Args:
        arrival_s: [s].
        prompt: [tokens].
        output: [tokens].
        class_id: index into the targets.
        ttft_s: target at the engine [s].
    """

    arrival_s: Any
    prompt: Any
    output: Any
    class_id: Any
    ttft_s: Any


class Masses(NamedTuple):
    """What is done of each request, shapes (rows,).

    Args:
        progress: share of the prompt computed, in [0, 1].
        emitted: [tokens].
        in_time: share of the request whose first token came in time, in [0, 1].
    """

    progress: Any
    emitted: Any
    in_time: Any


class Flow(NamedTuple):
    """What passes from slot to slot beside the requests. Scalars, but for the two sums per class.

    Args:
        deficit: of class 0 [thousand tokens].
        step_s: mean step of the last slot [s].
        threshold_s: of the last slot [s].
        gate_s: of the last slot [s].
        make: of the last slot's prompt part.
        budget_tokens: of the last slot [tokens].
        good: tokens on time so far [tokens].
        owed_more: tokens owed beyond those emitted so far [tokens].
        served: prompt tokens so far [tokens].
        excess: largest share by which prompt tokens exceeded the budget of a slot.
    """

    deficit: Any
    step_s: Any
    threshold_s: Any
    gate_s: Any
    make: Make
    budget_tokens: Any
    good: Any
    owed_more: Any
    served: Any
    excess: Any


class Setting(NamedTuple):
    """What holds during a whole run.

    Args:
        plant: the plant.
        decode: noise of steps without prompts.
        mixed: noise of steps with prompts.
        itl_s: distinct ITL targets, with transport, and their classes' places in them.
        budget_s: least step budget of all classes [s].
        pool_tokens: of the cache [tokens].
        watermark: share of it kept free for who runs.
        block_tokens: size of a block [tokens].
        max_tokens: most tokens of a step [tokens].
        max_seqs: most requests that the engine runs [requests].
    """

    plant: Plant
    decode: StepNoise
    mixed: StepNoise
    itl_s: tuple[tuple[float, ...], tuple[int, ...]]
    budget_s: float
    pool_tokens: float
    watermark: float
    block_tokens: float
    max_tokens: float
    max_seqs: float


class Now(NamedTuple):
    """What follows from the state at the beginning of a slot.

    Args:
        time_s: beginning of the slot [s].
        arrived: share of the slot after each arrival, in [0, 1].
        left: prompt tokens to compute [tokens].
        done: share of each request whose prompt is complete.
        decoding: share of each request that decodes.
        begun: share of each request that has its place in the cache.
        fresh: share of the prompt left that belongs to mass without a place.
        requests: sum of decoding.
        kv_tokens: that they read [tokens].
        used: cache tokens in use [tokens].
        running: requests that have a place.
    """

    time_s: Any
    arrived: Any
    left: Any
    done: Any
    decoding: Any
    begun: Any
    fresh: Any
    requests: Any
    kv_tokens: Any
    used: Any
    running: Any


def look(forms: Any, grid: Any, setting: Setting, rows: Rows, masses: Masses, flow: Flow, chunk_tokens: Any, slot: Any) -> Now:
    """Sums over the requests at the beginning of a slot.

    Mass completes as progress^p: completion is spread over the last part of a prompt, no event. Mass that has a place in
    the cache, 1 - (1 - progress)^chunks, has had its first chunk.

    Args:
        forms: order and triage.
        grid: of the run.
        setting: of the run.
        rows: live requests.
        masses: what is done of them.
        flow: from the last slot.
        chunk_tokens: of the last slot [tokens].
        slot: its number.

    Returns:
        Now.
    """
    time_s = slot * grid.slot_s
    arrived = jnp.clip((time_s + grid.slot_s - rows.arrival_s) / grid.slot_s, 0.0, 1.0)
    left = rows.prompt * (1.0 - masses.progress)
    done = masses.progress**grid.power
    decoding = jnp.minimum(done, jnp.maximum(rows.output * done - masses.emitted, 0.0) * flow.step_s / grid.slot_s)
    kv = jnp.sum(decoding * (rows.prompt + masses.emitted))
    fresh = begun = jnp.zeros_like(done)
    used, running = kv, jnp.sum(decoding)
    if grid.admission or forms.triage in SHEDS:
        chunks = jnp.maximum(rows.prompt / chunk_tokens, 1.0)
        begun = 1.0 - jnp.maximum(1.0 - masses.progress, 1e-6) ** chunks
        fresh = jnp.clip((1.0 - begun) / jnp.maximum(1.0 - masses.progress, 1e-6), 0.0, 1.0)
        holding = jnp.maximum(begun - done, 0.0)
        running = jnp.sum(holding + decoding)
        used = jnp.sum((holding + decoding) * (rows.prompt + 0.5 * setting.block_tokens + 1.0) + decoding * masses.emitted)
    return Now(time_s, arrived, left, done, decoding, begun, fresh, jnp.sum(decoding), kv, used, running)


def offers(forms: Any, grid: Any, rows: Rows, now: Now, flow: Flow, knobs: Knobs, setpoint_s: Any, steps: Any) -> Offers:
    """What could be served, in which order, and what is late already.

    slack = deadline - t - (max(left / chunk + 1/2, 1) estimate + 1) setpoint; key = slack - aging wait

    The mass of a request is split: a share clip(slack / width + 1/2, 0, 1) can still be on time, the rest is late. What
    is split has no jump, whatever triage does with the late part.

    Args:
        forms: order and triage.
        grid: of the run.
        rows: live requests.
        now: of this slot.
        flow: from the last slot.
        knobs: of this slot.
        setpoint_s: [s].
        steps: in the slot.

    Returns:
        Offers; the gate is that of the last slot.
    """
    middle_s = now.time_s + 0.5 * grid.slot_s
    demand = jnp.minimum(now.left, knobs.chunk_tokens * steps) * now.arrived
    takes = (jnp.maximum(now.left / knobs.chunk_tokens + 0.5, 1.0) * knobs.estimate + 1.0) * setpoint_s
    deadline_s = rows.arrival_s + rows.ttft_s
    slack = deadline_s - middle_s - takes
    wait = middle_s - rows.arrival_s
    early = _early(forms, grid, rows, knobs, slack, wait)
    key = {"slack": slack - knobs.aging_rate * wait, "edf": deadline_s - middle_s, "fcfs": -wait}[forms.order]
    kept = 0.0 if forms.triage in SHEDS else 1.0
    fresh = now.fresh * demand
    first = (rows.class_id == 0).astype(demand.dtype)
    parts = ((demand - fresh) * early, (demand - fresh) * (1.0 - early), fresh * early, kept * fresh * (1.0 - early))
    return Offers(key, *parts, first, flow.deficit, knobs.share, knobs.boost, flow.gate_s, grid.width_s / grid.gate_s)


def _early(forms: Any, grid: Any, rows: Rows, knobs: Knobs, slack: Any, wait: Any) -> Any:
    """Share of each request that triage lets pass."""
    if forms.triage == "none":
        return jnp.ones_like(slack)
    spare = slack + knobs.tolerance * rows.ttft_s
    if forms.triage == "timeout":
        spare = knobs.timeout * rows.ttft_s - wait
    return jnp.clip(spare / grid.triage_s + 0.5, 0.0, 1.0)


class Places(NamedTuple):
    """What the new need, and what there is.

    Args:
        early: requests that would begin in the slot and can be on time, per row.
        late: that cannot.
        size: cache that one takes, per row [tokens].
        free: cache that is free for them [tokens].
        seats: of the running limit that are free [requests].
    """

    early: Any
    late: Any
    size: Any
    free: Any
    seats: Any


def places(setting: Setting, rows: Rows, now: Now, knobs: Knobs, offered: Offers) -> Places:
    """What the new need of cache and running limit.

    Args:
        setting: of the run.
        rows: live requests.
        now: of this slot.
        knobs: of this slot.
        offered: what could be served.

    Returns:
        Places.
    """
    chunks = jnp.maximum(rows.prompt / knobs.chunk_tokens, 1.0)
    size = rows.prompt + 0.5 * setting.block_tokens + 1.0
    most = jnp.maximum(1.0 - now.begun, 0.0)
    early = jnp.minimum(offered.early_new * chunks / rows.prompt, most)
    late = jnp.minimum(offered.late_new * chunks / rows.prompt, most - early)
    free = jnp.maximum(setting.pool_tokens * (1.0 - setting.watermark) - now.used, 1.0)
    seats = jnp.maximum(jnp.minimum(knobs.running_limit, setting.max_seqs) - now.running, 0.01)
    return Places(early, late, size, free, seats)


def gate(forms: Any, grid: Any, offered: Offers, wanted: Places) -> Any:
    """Where the gate has to be so that cache and running limit are kept.

    It solves max(cache taken / cache free, requests begun / requests free) = 1: nobody later in the order passes whoever
    has to wait, as in the engine.

    Args:
        forms: order and triage.
        grid: of the run.
        offered: with the gate of the last slot.
        wanted: by the new.

    Returns:
        Key above which nobody new is let in [s].
    """
    shift = offered.first * (offered.boost * offered.deficit)

    def full(x: Any, given: Any) -> Any:
        key, wanted = given
        x = (x - key) / grid.gate_s
        starts = wanted.early * ramp(x) + wanted.late * ramp(x - forms.defer_s / grid.gate_s)
        return jnp.maximum(jnp.sum(starts * wanted.size) / wanted.free, jnp.sum(starts) / wanted.seats) - 1.0

    return solve(full, (offered.key_s - shift, wanted), offered.gate_s, grid.gate_s)


def serve(forms: Any, grid: Any, offered: Offers, wanted: Places | None, room: Any, guess: Any) -> tuple[Any, Any, Any]:
    """Serve as much as the slot has room for, in order; where cache or running limit bind, through the gate.

    Args:
        forms: order and triage.
        grid: of the run.
        offered: what could be served.
        wanted: places that the new want; None where nothing limits them.
        room: prompt tokens that the slot has room for [tokens].
        guess: threshold of the last slot [s].

    Returns:
        Tokens per row, shape (rows,), the threshold [s] and the gate [s].
    """

    def open_(offered: Offers, wanted: Places | None) -> tuple[Any, Any, Any]:
        del wanted
        joined = offered._replace(early=offered.early + offered.early_new, late=offered.late + offered.late_new, gate_s=None)
        total = jnp.minimum(room, FULL * jnp.sum(joined.early + joined.late))
        return *fill(joined, total, guess, grid.width_s, forms.defer_s), jnp.full_like(guess, MOST)

    def gated(offered: Offers, wanted: Places) -> tuple[Any, Any, Any]:
        shut = offered._replace(gate_s=gate(forms, grid, offered, wanted))
        most = served(shut, jnp.full_like(guess, MOST), room, grid.width_s, forms.defer_s)
        total = jnp.minimum(room, FULL * jnp.sum(most))
        return *fill(shut, total, guess, grid.width_s, forms.defer_s), shut.gate_s

    if wanted is None:
        return open_(offered, None)
    starts = wanted.early + wanted.late
    binds = (jnp.sum(starts * wanted.size) > wanted.free) | (jnp.sum(starts) > wanted.seats)
    return lax.cond(binds, gated, open_, offered, wanted)


def after(grid: Any, setting: Setting, rows: Rows, masses: Masses, flow: Flow, now: Now, knobs: Knobs, u: Any, take: Any) -> Any:
    """What the slot did: steps, progress, tokens, and which of them were on time.

    Args:
        grid: of the run.
        setting: of the run.
        rows: live requests.
        masses: before.
        flow: before.
        now: of this slot.
        knobs: of this slot.
        u: prefill budget of a step [tokens].
        take: prompt tokens per row [tokens].

    Returns:
        Masses and flow after the slot.
    """
    total = jnp.sum(take)
    each = jnp.sum(jnp.minimum(now.left, knobs.chunk_tokens) * now.arrived)
    carried = jnp.maximum(jnp.minimum(u, each), 1.0)
    mixed_s, decode_s = both_times(setting.plant, now.requests, now.kv_tokens, carried, flow.make)
    mixed = jnp.minimum(total / carried, grid.slot_s / mixed_s)
    alone = jnp.maximum(grid.slot_s - mixed * mixed_s, 0.0) / decode_s
    steps = mixed + alone
    progress = jnp.clip(masses.progress + take / rows.prompt, 0.0, 1.0)
    done = progress**grid.power
    due = rows.arrival_s + rows.ttft_s - mixed_s - now.time_s - 0.5 * grid.slot_s
    in_time = masses.in_time + (done - now.done) * jnp.clip(due / grid.deadline_s + 0.5, 0.0, 1.0)
    emitted = jnp.minimum(0.5 * (now.done + done) * steps, jnp.maximum(rows.output * done - masses.emitted, 0.0))
    counted = in_time / jnp.maximum(done, 1e-3) * emitted
    good, more = _credit(setting, rows, knobs, counted, emitted, (mixed / steps, mixed_s, decode_s))
    first = jnp.sum(jnp.where(rows.class_id == 0, take, 0.0))
    some = jnp.maximum(total, 1.0)
    make = Make(jnp.sum(take * masses.progress * rows.prompt) / some, jnp.sum(take * jnp.minimum(rows.prompt, knobs.chunk_tokens)) / some)
    flow = flow._replace(
        deficit=jnp.clip(flow.deficit + (knobs.share * total - first) * 1e-3, -5.0, 5.0),
        step_s=grid.slot_s / steps,
        make=Make(*(jnp.where(total > 1.0, new, old) for new, old in zip(make, flow.make, strict=True))),
        good=flow.good + good,
        owed_more=flow.owed_more + more,
        served=flow.served + total,
    )
    return Masses(progress, masses.emitted + emitted, in_time), flow


def _credit(setting: Setting, rows: Rows, knobs: Knobs, counted: Any, emitted: Any, steps: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    """Tokens on time and tokens owed beyond those emitted, over the distinct ITL targets."""
    share, mixed_s, decode_s = steps
    values, places = setting.itl_s
    good, more = jnp.zeros_like(mixed_s), jnp.zeros_like(mixed_s)
    for k, itl_s in enumerate(values):
        mine = jnp.ones_like(emitted)
        if len(values) > 1:
            mine = sum(((rows.class_id == c).astype(emitted.dtype) for c, place in enumerate(places) if place == k), jnp.zeros_like(emitted))
        on_time = share * setting.mixed.on_time(mixed_s, itl_s, knobs.trim) + (1 - share) * setting.decode.on_time(decode_s, itl_s, knobs.trim)
        owed = share * setting.mixed.owed(mixed_s, itl_s, knobs.trim) + (1 - share) * setting.decode.owed(decode_s, itl_s, knobs.trim)
        good = good + on_time * jnp.sum(counted * mine)
        more = more + (owed - 1.0) * jnp.sum(emitted * mine)
    return good, more


def slot_of(forms: Any, grid: Any, setting: Setting, schedule: Any, rows: Rows, state: tuple[Masses, Flow, Any], slot: Any) -> Any:
    """One slot.

    Args:
        forms: order and triage.
        grid: of the run.
        setting: of the run.
        schedule: from the load to the knobs.
        rows: live requests.
        state: masses, flow and the knobs' chunk of the last slot.
        slot: its number.

    Returns:
        State after it.
    """
    masses, flow, chunk = state
    now = look(forms, grid, setting, rows, masses, flow, chunk, slot)
    knobs = schedule(Seen(jnp.sum(now.left * now.arrived), now.requests, now.used / setting.pool_tokens))
    setpoint_s = setting.budget_s * (1.0 - knobs.margin)
    most = jnp.maximum(setting.max_tokens - now.requests, 1.0)
    allowed = budget(setting.plant, now.requests, now.kv_tokens, flow.make, setpoint_s, most, flow.budget_tokens)
    steps = grid.slot_s / allowed.step_s
    offered = offers(forms, grid, rows, now, flow, knobs, setpoint_s, steps)
    wanted = places(setting, rows, now, knobs, offered) if grid.admission else None
    room = allowed.tokens * steps
    take, threshold, gate_s = serve(forms, grid, offered, wanted, room, flow.threshold_s)
    excess = jnp.maximum(flow.excess, jnp.sum(take) / jnp.maximum(room, 1.0) - 1.0)
    kept = (threshold, gate_s, allowed.found, excess)
    names = ("threshold_s", "gate_s", "budget_tokens", "excess")
    flow = flow._replace(**{name: lax.stop_gradient(value) for name, value in zip(names, kept, strict=True)})
    masses, flow = after(grid, setting, rows, masses, flow, now, knobs, allowed.tokens, take)
    return masses, flow, knobs.chunk_tokens
