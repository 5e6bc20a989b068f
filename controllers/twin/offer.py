"""What one request can be given in a step of the twin: a token to decode or a chunk, with the cache blocks it needs."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headway.controllers.twin.cache import available, file_units, hits, leading, preempt, take_blocks, unit_blocks
from headway.controllers.twin.load import Load, Numbers
from headway.controllers.twin.order import victim
from headway.controllers.twin.state import Run, count, running
from headway.models.goodput import RUNNING, WAITING


class Step(NamedTuple):
    """A step being composed; shapes () unless said.

    Args:
        run: in progress.
        left: tokens left of its budget [tokens].
        gave_way: preemptions in this step.
        closed: nobody new may come in, bool.
        blocked: newcomers that lacked blocks.
        limited: by the cache or the running limit, bool.
        held: admission held somebody back, bool.
        cut: the budget cut a prompt, bool.
    """

    run: Run
    left: Any
    gave_way: Any
    closed: Any
    blocked: Any
    limited: Any
    held: Any
    cut: Any


class Offer(NamedTuple):
    """What a request would get; shapes ().

    Args:
        tokens: a chunk, or 1 to decode [tokens].
        rest: what it has to compute [tokens].
        decode: bool.
        fresh: comes in from the queue, bool.
        units: prefix units that it holds with it.
        tail: blocks of its own that it finds again.
        computed: what counts as computed then [tokens].
        need: blocks to take.
        fits: the blocks are there, bool.
    """

    tokens: Any
    rest: Any
    decode: Any
    fresh: Any
    units: Any
    tail: Any
    computed: Any
    need: Any
    fits: Any


def offer(numbers: Numbers, load: Load, step: Step, i: Any) -> Offer:
    """What a request would get now.

    Args:
        numbers: of the candidate.
        load: of the draw.
        step: being composed.
        i: the request; it runs or waits.

    Returns:
        The offer.
    """
    run, track = step.run, step.run.track
    fresh, back = track.status[i] == WAITING, track.swapped[i] > 0
    looks = fresh & ~back
    found = hits(numbers, load, run.units, load.unit[i][None], track.goal[i][None])[0]
    units = jnp.where(looks, found, track.shared[i])
    size = unit_blocks(numbers, load)
    own = jnp.minimum(track.tail[i], jnp.floor((track.goal[i] - 1.0) / numbers.block) - units * size)
    tail = jnp.where(looks & track.begun[i] & (track.tail_at[i] == units), own, 0.0)
    computed = jnp.where(looks, units * load.unit_tokens + tail * numbers.block, track.computed[i])
    rest = track.goal[i] - computed
    decode = rest <= 0
    tokens = jnp.where(decode, 1.0, jnp.minimum(jnp.minimum(rest, numbers.chunk), step.left))
    upto = jnp.where(numbers.full & fresh, track.goal[i], computed + tokens)
    upto = jnp.where(decode, load.prompt[i] + track.emitted[i], upto)
    held = track.blocks[i] + units * size + tail
    need = jnp.maximum(jnp.ceil(upto / numbers.block) - held, jnp.where(fresh, track.swapped[i], 0.0))
    room = available(numbers, load, run) - jnp.where(fresh & jnp.any(running(track)), numbers.keep, 0.0) - tail
    if load.unit.shape[1]:
        mine = leading(load, i, jnp.where(looks, units, 0.0), run.units.cached.shape[0])
        room = room - size * count(mine & (run.units.holders == 0))
    need = jnp.maximum(need, 0.0)
    whole = jnp.maximum(jnp.ceil(track.goal[i] / numbers.block) - held, need)
    return Offer(tokens, rest, decode, fresh, units, tail, computed, need, jnp.where(numbers.gate & fresh, whole, need) <= room)


def accept(numbers: Numbers, load: Load, step: Step, i: Any, given: Offer) -> Step:
    """Give a request what was offered.

    Args:
        numbers: of the candidate.
        load: of the draw.
        step: being composed.
        i: the request.
        given: the offer; it fits.

    Returns:
        The step.
    """
    run, track, books, units = step.run, step.run.track, step.run.books, step.run.units
    me = jnp.arange(track.goal.shape[0]) == i
    came = me & given.fresh
    if load.unit.shape[1]:
        found = jnp.where(given.fresh & (track.swapped[i] == 0), given.units, 0.0)
        mine = leading(load, i, found, units.cached.shape[0])
        units = units._replace(holders=units.holders + jnp.where(mine, 1.0, 0.0), left=jnp.where(mine, 0.0, units.left))
    moved = jnp.where(given.fresh, track.swapped[i], 0.0)
    useless = jnp.where(given.fresh, track.tail[i] - given.tail, 0.0)  # what it does not find again of its tail is given up
    books = books._replace(free=books.free + useless, moved=books.moved + moved, seats=books.seats + jnp.where(given.fresh, 1.0, 0.0))
    track = track._replace(
        status=jnp.where(me, RUNNING, track.status),
        take=jnp.where(me, jnp.where(given.decode, -1.0, given.tokens), track.take),
        blocks=jnp.where(me, track.blocks + given.need + given.tail, track.blocks),
        tail=jnp.where(came, 0.0, track.tail),
        shared=jnp.where(me, given.units, track.shared),
        computed=jnp.where(me, given.computed, track.computed),
        swapped=jnp.where(me, 0.0, track.swapped),
        begun=track.begun | came,
        seat=jnp.where(came, books.seats, track.seat),
    )
    run = take_blocks(run._replace(track=track, books=books, units=units), given.need)
    after = given.computed + jnp.where(given.decode, 0.0, given.tokens)
    run = file_units(numbers, load, run, i, jnp.where(given.decode & ~given.fresh, 0.0, after))
    cut = ~given.decode & (given.tokens == step.left) & (given.tokens < given.rest)
    return step._replace(run=run, left=step.left - given.tokens, cut=step.cut | cut)


def either(test: Any, one: Any, other: Any) -> Any:
    """One of two trees of arrays, leaf by leaf.

    Args:
        test: bool, shape ().
        one: where it is true.
        other: where it is false, of the same shapes.

    Returns:
        The tree.
    """
    return jax.tree.map(lambda a, b: jnp.where(test, a, b), one, other)


def yield_one(numbers: Numbers, load: Load, step: Step) -> tuple[Step, Any]:
    """The victim gives way.

    Args:
        numbers: of the candidate.
        load: of the draw.
        step: being composed; somebody runs.

    Returns:
        (the step, who it was).
    """
    i = victim(numbers, load, step.run.track)
    run, back = preempt(numbers, load, step.run, i)
    return step._replace(run=run, left=step.left + back, gave_way=step.gave_way + 1.0), i
