"""Cache blocks and the prefix cache of the twin: who holds what, what a newcomer finds, what is evicted."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from headway.controllers.twin.load import Load, Numbers
from headway.controllers.twin.state import Run, Track, Units, count
from headway.models.goodput import WAITING


def unit_blocks(numbers: Numbers, load: Load) -> Any:
    """Cache blocks of a prefix unit.

    Args:
        numbers: of the candidate.
        load: of the draw.

    Returns:
        Blocks, shape (); 0 without a prefix cache.
    """
    return jnp.where(numbers.caching, load.unit_tokens / numbers.block, 0.0)


def available(numbers: Numbers, load: Load, run: Run) -> Any:
    """Blocks that can be had: those that hold nothing, and idle ones.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.

    Returns:
        Blocks, shape ().
    """
    return run.books.free + jnp.sum(run.units.left) + jnp.sum(run.track.tail)


def held_blocks(numbers: Numbers, load: Load, track: Track) -> Any:
    """Blocks that each request holds, alone and with others.

    Args:
        numbers: of the candidate.
        load: of the draw.
        track: of the requests.

    Returns:
        Blocks, shape (n,).
    """
    return track.blocks + track.shared * unit_blocks(numbers, load)


def hits(numbers: Numbers, load: Load, units: Units, rows: Any, goal: Any) -> Any:
    """Leading units of prompts that are cached now, leaving at least the last token to compute.

    Args:
        numbers: of the candidate.
        load: of the draw.
        units: the prefix cache.
        rows: ids of their units, shape (m, units).
        goal: tokens that they have to compute, shape (m,) [tokens].

    Returns:
        Units, shape (m,).
    """
    if rows.shape[1] == 0:
        return jnp.zeros_like(goal)
    there = (rows >= 0) & units.cached[jnp.maximum(rows, 0)]
    run = jnp.sum(jnp.cumprod(jnp.where(there, 1.0, 0.0), axis=1), axis=1)
    return jnp.where(numbers.caching, jnp.minimum(run, jnp.floor((goal - 1.0) / load.unit_tokens)), 0.0)


def leading(load: Load, i: Any, units: Any, ids: int) -> Any:
    """Which units are among the first of one prompt.

    Args:
        load: of the draw.
        i: the request.
        units: how many, shape ().
        ids: units in all.

    Returns:
        Mask, shape (ids,).
    """
    row = load.unit[i]
    first = jnp.arange(row.shape[0], dtype=float) < units
    return jnp.zeros(ids, bool).at[jnp.where(first, row, ids)].set(True, mode="drop")


def take_blocks(run: Run, need: Any) -> Run:
    """Take blocks that are known to be there, evicting the longest idle where none is free.

    Args:
        run: in progress.
        need: blocks, shape ().

    Returns:
        The run, with the blocks taken from the pool.
    """
    track, units = run.track, run.units
    ages = jnp.concatenate([units.idle, track.tail_age])
    before = jnp.concatenate([units.left, track.tail])

    def short(carry: tuple[Any, Any]) -> Any:
        # both ways out of a refusal are computed: where there are fewer, this one must come to an end as well
        return (carry[1] < 0) & jnp.any(carry[0] > 0)

    def evict(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        left, free = carry
        oldest = jnp.argmin(jnp.where(left > 0, ages, jnp.inf))
        taken = jnp.minimum(-free, left[oldest])
        return left.at[oldest].add(-taken), free + taken

    left, free = jax.lax.while_loop(short, evict, (before, run.books.free - need))
    ids = units.left.shape[0]
    units = units._replace(cached=units.cached & (left[:ids] >= before[:ids]), left=left[:ids])
    return run._replace(track=track._replace(tail=left[ids:]), books=run.books._replace(free=free), units=units)


def tails(numbers: Numbers, load: Load, track: Track) -> Any:
    """Blocks after its units that each request has full of computed tokens: those that it leaves in the cache.

    Args:
        numbers: of the candidate.
        load: of the draw.
        track: of the requests.

    Returns:
        Blocks, shape (n,).
    """
    decodes = track.computed >= track.goal
    tokens = jnp.where(decodes, jnp.maximum(track.goal, load.prompt + track.emitted - 1.0), track.computed)
    left = jnp.floor(tokens / numbers.block) - track.shared * unit_blocks(numbers, load)
    return jnp.where(numbers.caching, jnp.clip(left, 0.0, track.blocks), 0.0)


def let_go(numbers: Numbers, load: Load, run: Run, i: Any, keeps: Any) -> Run:
    """Give back all that one request holds; its tail is idle the longest, and of its units the deepest.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.
        i: the request.
        keeps: whether it leaves its tail in the cache, bool, shape ().

    Returns:
        The run.
    """
    track, units, width = run.track, run.units, load.unit.shape[1]
    me = jnp.arange(track.blocks.shape[0]) == i
    tail = jnp.where(keeps, tails(numbers, load, track)[i], 0.0)
    books = run.books._replace(free=run.books.free + track.blocks[i] - tail)
    if width:
        row = load.unit[i]
        depth = jnp.arange(width, dtype=float)
        mine = jnp.where(depth < track.shared[i], row, units.cached.shape[0])
        holders = units.holders.at[mine].add(-1.0, mode="drop")
        age = units.releases * (width + 1.0) + (width - depth)
        idle = units.idle.at[mine].set(age, mode="drop")
        left = units.left.at[mine].set(unit_blocks(numbers, load), mode="drop")
        units = units._replace(
            holders=holders, idle=jnp.where(holders == 0, idle, units.idle), left=jnp.where(holders == 0, left, units.left)
        )
    track = track._replace(
        tail=jnp.where(me, tail, track.tail),
        tail_at=jnp.where(me, track.shared, track.tail_at),
        tail_age=jnp.where(me, units.releases * (width + 1.0), track.tail_age),
        blocks=jnp.where(me, 0.0, track.blocks),
        shared=jnp.where(me, 0.0, track.shared),
    )
    return run._replace(track=track, books=books, units=units._replace(releases=units.releases + 1.0))


def file_units(numbers: Numbers, load: Load, run: Run, i: Any, upto: Any) -> Run:
    """Put the prompt units of one request that are computed after this step into the cache; one that is there is shared, its copy freed.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.
        i: the request.
        upto: tokens computed after this step, shape () [tokens].

    Returns:
        The run.
    """
    width = load.unit.shape[1]
    if width == 0:
        return run
    track, units, row = run.track, run.units, load.unit[i]
    depth = jnp.arange(width, dtype=float)
    fresh = numbers.caching & (row >= 0) & (depth >= track.shared[i]) & ((depth + 1.0) * load.unit_tokens <= upto)
    ids, size = units.cached.shape[0], unit_blocks(numbers, load)
    more = jnp.zeros(ids, bool).at[jnp.where(fresh, row, ids)].set(True, mode="drop")
    copies, useless = size * count(more & units.cached), jnp.sum(jnp.where(more & ~units.cached, units.left, 0.0))
    me, many = jnp.arange(track.blocks.shape[0]) == i, count(fresh)
    track = track._replace(
        blocks=jnp.where(me, track.blocks - size * many, track.blocks), shared=jnp.where(me, track.shared + many, track.shared)
    )
    units = units._replace(
        cached=units.cached | more, holders=units.holders + jnp.where(more, 1.0, 0.0), left=jnp.where(more, 0.0, units.left)
    )
    return run._replace(track=track, books=run.books._replace(free=run.books.free + copies + useless), units=units)


def preempt(numbers: Numbers, load: Load, run: Run, i: Any) -> tuple[Run, Any]:
    """Let a running request give way: its blocks come free, and what it had of this step goes back to the budget.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.
        i: the request.

    Returns:
        (the run, tokens given back).
    """
    track, books = run.track, run.books
    me = jnp.arange(track.blocks.shape[0]) == i
    moved = jnp.where(numbers.swap & (track.computed[i] > 0), held_blocks(numbers, load, track)[i], 0.0)
    again = me & ~(numbers.swap & (track.computed > 0))
    back = jnp.abs(track.take[i])
    run = let_go(numbers, load, run, i, again[i])
    track, books = run.track, run.books
    track = track._replace(
        take=jnp.where(me, 0.0, track.take),
        swapped=jnp.where(me, moved, track.swapped),
        computed=jnp.where(again, 0.0, track.computed),
        goal=jnp.where(again, load.prompt + track.emitted, track.goal),
        status=jnp.where(me, WAITING, track.status),
        place=jnp.where(me, -1.0 - books.fronts, track.place),
    )
    books = books._replace(moved=books.moved + moved, fronts=books.fronts + 1.0)
    return run._replace(track=track, books=books), back
