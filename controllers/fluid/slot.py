"""One slot of the fluid: what is demanded, who is served, and what becomes of it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from headway.controllers.fluid.admission import Places, gate, places
from headway.controllers.fluid.budget import Make, at_least, both_times, budget
from headway.controllers.fluid.state import Flow, Knobs, Masses, Now, Rows, Seen, Setting
from headway.controllers.fluid.threshold import DEFICIT, MOST, Offers, fill, served

SHEDS = ("reject", "timeout")
"""Forms of triage that never serve who is late; what has begun is finished."""
LEAST_MASS = 1e-4
"""Below this share of a request nothing is told of how far it is."""
LEAST_CARRIED = 64.0
"""Prompt tokens that a step is reckoned to carry at least: the engine measures its rate on such steps [tokens]."""
FULL = 0.999
"""Share of all demand that is served where the budget is not binding: the threshold stays finite."""


def completed(grid: Any, progress: Any, begun: Any) -> tuple[Any, Any]:
    """Share of a request whose prompt is complete, and share that was let in and computes.

    begun^whole (progress / begun)^power, and begun (1 - (progress / begun)^power); with begun = 1 where it is not
    followed. Completion is spread over the last part of a prompt, it is no event; and an engine serves a prompt whole,
    so that half of one is worth less than a half.

    Args:
        grid: of the run.
        progress: share of the prompt computed.
        begun: share that was let in.

    Returns:
        Shares in [0, 1].
    """
    if not grid.admission:
        done = progress**grid.power
        return done, 1.0 - done
    done = jnp.clip(progress / jnp.maximum(begun, LEAST_MASS), 0.0, 1.0) ** grid.power
    return jnp.maximum(begun, LEAST_MASS) ** grid.whole * done, begun * (1.0 - done)


def look(grid: Any, setting: Setting, rows: Rows, masses: Masses, flow: Flow, slot: Any) -> Now:
    """Sums over the requests at the beginning of a slot.

    Args:
        grid: of the run.
        setting: of the run.
        rows: live requests.
        masses: what is done of them.
        flow: from the last slot.
        slot: its number.

    Returns:
        Now.
    """
    time_s = slot * grid.slot_s
    arrived = jnp.clip((time_s + grid.slot_s - rows.arrival_s) / grid.slot_s, 0.0, 1.0)
    left = rows.prompt * (1.0 - masses.progress)
    done, inside = completed(grid, masses.progress, masses.begun)
    decoding = jnp.minimum(done, jnp.maximum(rows.output * done - masses.emitted, 0.0) * flow.step_s / grid.slot_s)
    kv = jnp.sum(decoding * (rows.prompt + masses.emitted))
    used, running, waiting = kv, jnp.sum(decoding), None
    if grid.admission:
        holding = inside + decoding
        running, waiting = jnp.sum(holding), jnp.maximum(masses.begun - inside - done, 0.0)
        used = jnp.sum(holding * (rows.prompt + 0.5 * setting.block_tokens + 1.0) + decoding * masses.emitted)
    return Now(time_s, arrived, left, done, decoding, jnp.sum(decoding), kv, used, running, waiting)


def given_up(forms: Any, grid: Any, rows: Rows, masses: Masses, now: Now, flow: Flow) -> Any:
    """Share of each request that triage has shed by now: it waits no longer.

    (1 - begun) (1 - clip((deadline - t - 2 steps) / width + 1/2, 0, 1)), begun = clip(computed / min(prompt, chunk), 0, 1)

    Args:
        forms: order and triage.
        grid: of the run.
        rows: live requests.
        masses: what is done of them.
        now: of this slot.
        flow: from the last slot.

    Returns:
        Shares in [0, 1]; 0 for triage that sheds nobody.
    """
    if forms.triage not in SHEDS:
        return jnp.zeros_like(now.left)
    spare = rows.arrival_s + rows.ttft_s - now.time_s - 2.0 * flow.step_s
    late = 1.0 - jnp.clip(spare / grid.triage_s + 0.5, 0.0, 1.0)
    return late * (1.0 - begun(rows, masses, flow.make.chunk_tokens))


def begun(rows: Rows, masses: Masses, chunk_tokens: Any) -> Any:
    """Share of each request whose first chunk is computed: what has begun is finished, whatever triage says.

    Args:
        rows: live requests.
        masses: what is done of them.
        chunk_tokens: most prompt tokens of one request in a step [tokens].

    Returns:
        Shares in [0, 1].
    """
    first = jnp.maximum(jnp.minimum(rows.prompt, chunk_tokens), 1.0)
    return jnp.clip(masses.progress * rows.prompt / first, 0.0, 1.0)


def offers(
    forms: Any, grid: Any, rows: Rows, masses: Masses, now: Now, flow: Flow, knobs: Knobs, setpoint_s: Any, steps: Any, carried: Any
) -> Any:
    """What could be served, in which order, and what is late already.

    slack = deadline - t - (max(left / carried + 1/2, 1) estimate + 1) setpoint; key = slack - aging wait + price prompt

    The mass of a request is split: a share clip(slack / width + 1/2, 0, 1) can still be on time, the rest is late. What
    is split has no jump, whatever triage does with the late part.

    Args:
        forms: order and triage.
        grid: of the run.
        rows: live requests.
        masses: what is done of them.
        now: of this slot.
        flow: from the last slot.
        knobs: of this slot.
        setpoint_s: [s].
        steps: in the slot.
        carried: prompt tokens of one request that a step is reckoned to carry [tokens].

    Returns:
        Offers, their gate open, and the share of each request that can still be on time, shape (rows,).
    """
    middle_s = now.time_s + 0.5 * grid.slot_s
    takes = (jnp.maximum(now.left / carried + 0.5, 1.0) * knobs.estimate + 1.0) * setpoint_s
    deadline_s = rows.arrival_s + rows.ttft_s
    slack = deadline_s - middle_s - takes
    wait = middle_s - rows.arrival_s
    early = _early(forms, grid, rows, knobs, slack, wait)
    key = {"slack": slack - knobs.aging_rate * wait, "edf": deadline_s - middle_s, "fcfs": -wait}[forms.order]
    key = key if forms.order == "fcfs" else key + knobs.price_s * rows.prompt
    first = (rows.class_id == 0).astype(key.dtype)
    reach = knobs.chunk_tokens * steps
    beside = (first, flow.deficit, knobs.share, knobs.boost, None)
    if not grid.admission:
        demand = jnp.minimum(now.left, reach) * now.arrived
        late = (1.0 - early) * demand
        if forms.triage in SHEDS:
            late = late * begun(rows, masses, carried)
        return Offers(key, demand * early, late, None, None, *beside), early
    old = jnp.minimum((masses.begun - masses.progress) * rows.prompt, reach * masses.begun) * now.arrived
    new = (1.0 - masses.begun) * jnp.minimum(rows.prompt, reach) * now.arrived
    kept = 0.0 if forms.triage in SHEDS else 1.0
    return Offers(key, old * early, old * (1.0 - early), new * early, kept * new * (1.0 - early), *beside), early


def _early(forms: Any, grid: Any, rows: Rows, knobs: Knobs, slack: Any, wait: Any) -> Any:
    """Share of each request that triage lets pass."""
    if forms.triage == "none":
        return jnp.ones_like(slack)
    spare = slack + knobs.tolerance * rows.ttft_s
    if forms.triage == "timeout":
        spare = knobs.timeout * rows.ttft_s - wait
    return jnp.clip(spare / grid.triage_s + 0.5, 0.0, 1.0)


def serve(forms: Any, grid: Any, offered: Offers, wanted: Places | None, room: Any, flow: Flow) -> tuple[Any, Any, Any]:
    """Serve as much as the slot has room for, in order; where cache or running limit bind, through the gate.

    Args:
        forms: order and triage.
        grid: of the run.
        offered: what could be served.
        wanted: places that the new want; None where nothing limits them.
        room: prompt tokens that the slot has room for [tokens].
        flow: of the last slot: where searches begin.

    Returns:
        Tokens as `served` gives them, the threshold [s] and the gate [s].
    """
    guess = flow.threshold_s

    def open_(offered: Offers, wanted: Places | None) -> tuple[Any, Any, Any]:
        del wanted
        parts = (offered.early, offered.late, offered.early_new, offered.late_new)
        total = jnp.minimum(room, FULL * sum(jnp.sum(part) for part in parts if part is not None))
        return *fill(offered, total, guess, grid.width_s, forms.defer_s), flow.gate_s

    def gated(offered: Offers, wanted: Places) -> tuple[Any, Any, Any]:
        let_in, gate_s = gate(forms, grid, offered, wanted, flow.gate_s)
        shut = offered._replace(let_in=let_in)
        most = served(shut, jnp.full_like(guess, MOST), room, grid.width_s, forms.defer_s)
        total = jnp.minimum(room, FULL * jnp.sum(most))
        return *fill(shut, total, guess, grid.width_s, forms.defer_s), gate_s

    if wanted is None:
        return open_(offered, None)
    starts = wanted.early + wanted.late
    binds = (jnp.sum(starts * wanted.size) > wanted.free) | (jnp.sum(starts) > wanted.seats)
    return lax.cond(binds, gated, open_, offered, wanted)


def after(
    grid: Any, setting: Setting, rows: Rows, masses: Masses, flow: Flow, now: Now, knobs: Knobs, plan: tuple[Any, Any], took: Any
) -> Any:
    """What the slot did: steps, progress, tokens, and which of them were on time.

    Args:
        grid: of the run.
        setting: of the run.
        rows: live requests.
        masses: before.
        flow: before.
        now: of this slot.
        knobs: of this slot.
        plan: prefill budget of a step [tokens], and steps in the slot.
        took: prompt tokens per row [tokens]; of begun and of new mass, shape (2, rows), where they are told apart.

    Returns:
        Masses and flow after the slot.
    """
    take, begun, (u, planned) = took, masses.begun, plan
    total = jnp.sum(take)
    each = jnp.sum(jnp.minimum(now.left, knobs.chunk_tokens) * now.arrived)
    carried = jnp.maximum(jnp.minimum(u, each), 1.0)
    mixed_s, decode_s = both_times(setting.plant, now.requests, now.kv_tokens, carried, flow.make)
    mixed = jnp.minimum(total / carried, grid.slot_s / mixed_s)
    alone = jnp.maximum(grid.slot_s - mixed * mixed_s, 0.0) / decode_s
    steps = mixed + alone
    if grid.admission:
        take = took[0] + took[1]
        begun = jnp.clip(begun + took[1] / jnp.minimum(rows.prompt, knobs.chunk_tokens * planned), 0.0, 1.0)
    progress = jnp.clip(masses.progress + take / rows.prompt, 0.0, 1.0)
    done = completed(grid, progress, begun)[0]
    due = rows.arrival_s + rows.ttft_s - mixed_s - now.time_s - 0.5 * grid.slot_s
    in_time = masses.in_time + (done - now.done) * jnp.clip(due / grid.deadline_s + 0.5, 0.0, 1.0)
    emitted = jnp.minimum(0.5 * (now.done + done) * steps, jnp.maximum(rows.output * done - masses.emitted, 0.0))
    counted = in_time / jnp.maximum(done, 1e-3) * emitted
    good, more = _credit(setting, rows, knobs, counted, emitted, (mixed / steps, mixed_s, decode_s))
    first = jnp.sum(jnp.where(rows.class_id == 0, take, 0.0))
    some = jnp.maximum(total, 1.0)
    make = Make(jnp.sum(take * masses.progress * rows.prompt) / some, jnp.sum(take * jnp.minimum(rows.prompt, knobs.chunk_tokens)) / some)
    flow = flow._replace(
        deficit=jnp.clip(flow.deficit + (knobs.share * total - first) * 1e-3, -DEFICIT, DEFICIT),
        step_s=grid.slot_s / steps,
        make=Make(*(jnp.where(total > 1.0, new, old) for new, old in zip(make, flow.make, strict=True))),
        good=flow.good + good,
        owed_more=flow.owed_more + more,
        served=flow.served + total,
    )
    return Masses(progress, masses.emitted + emitted, in_time, begun), flow


def _credit(setting: Setting, rows: Rows, knobs: Knobs, counted: Any, emitted: Any, steps: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    """Tokens on time and tokens owed beyond those emitted, over the distinct ITL targets."""
    share, mixed_s, decode_s = steps
    values, places = setting.itl_s
    good, more = jnp.zeros_like(mixed_s), jnp.zeros_like(mixed_s)
    for k, itl_s in enumerate(values):
        mine = jnp.ones_like(emitted)
        if len(values) > 1:
            mine = sum(
                ((rows.class_id == c).astype(emitted.dtype) for c, place in enumerate(places) if place == k), jnp.zeros_like(emitted)
            )
        on_time = share * setting.mixed.on_time(mixed_s, itl_s, knobs.trim) + (1 - share) * setting.decode.on_time(
            decode_s, itl_s, knobs.trim
        )
        owed = share * setting.mixed.owed(mixed_s, itl_s, knobs.trim) + (1 - share) * setting.decode.owed(decode_s, itl_s, knobs.trim)
        good = good + on_time * jnp.sum(counted * mine)
        more = more + (owed - 1.0) * jnp.sum(emitted * mine)
    return good, more


def slot_of(forms: Any, grid: Any, setting: Setting, schedule: Any, rows: Rows, state: tuple[Masses, Flow], slot: Any) -> Any:
    """One slot.

    Args:
        forms: order and triage.
        grid: of the run.
        setting: of the run.
        schedule: from the load to the knobs.
        rows: live requests.
        state: masses and flow.
        slot: its number.

    Returns:
        State after it.
    """
    masses, flow = state
    now = look(grid, setting, rows, masses, flow, slot)
    waits = now.left * now.arrived * (1.0 - given_up(forms, grid, rows, masses, now, flow))
    knobs = schedule(Seen(jnp.sum(waits), now.requests, now.used / setting.pool_tokens))
    setpoint_s = setting.budget_s * (1.0 - knobs.margin)
    most = jnp.maximum(jnp.minimum(setting.max_tokens - now.requests, knobs.most_tokens), 1.0)
    allowed = budget(setting.plant, now.requests, now.kv_tokens, flow.make, setpoint_s, most)
    if not (isinstance(knobs.least_tokens, float) and knobs.least_tokens == 0.0):  # a plant evaluated once more costs a slot a tenth
        least = jnp.minimum(knobs.least_tokens, most)
        allowed = at_least(setting.plant, now.requests, now.kv_tokens, flow.make, allowed, least)
    steps = grid.slot_s / allowed.step_s
    carried = jnp.minimum(knobs.chunk_tokens, jnp.maximum(allowed.tokens, LEAST_CARRIED)) if forms.carried else knobs.chunk_tokens
    offered, early = offers(forms, grid, rows, masses, now, flow, knobs, setpoint_s, steps, carried)
    wanted = places(setting, rows, now, knobs, offered, early, steps) if grid.admission else None
    room = allowed.tokens * steps
    took, threshold, gate_s = serve(forms, grid, offered, wanted, room, flow)
    excess = jnp.maximum(flow.excess, jnp.sum(took) / jnp.maximum(room, 1.0) - 1.0)
    kept = (threshold, gate_s, excess)
    names = ("threshold_s", "gate_s", "excess")
    flow = flow._replace(**{name: lax.stop_gradient(value) for name, value in zip(names, kept, strict=True)})
    return after(grid, setting, rows, masses, flow, now, knobs, (allowed.tokens, steps), took)
