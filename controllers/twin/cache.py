"""Cache blocks and the prefix cache of the twin: who holds what, what a newcomer finds, what is evicted."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from headway.controllers.twin.load import Load, Numbers
from headway.controllers.twin.state import Run, Track, Units, count, running
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
    """Blocks that can be had: those that hold nothing, and idle units.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.

    Returns:
        Blocks, shape ().
    """
    return run.books.free + count(run.units.cached & (run.units.holders == 0)) * unit_blocks(numbers, load)


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


def take_blocks(numbers: Numbers, load: Load, run: Run, need: Any) -> Run:
    """Take blocks that are known to be there, evicting the longest idle units where none is free.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.
        need: blocks, shape ().

    Returns:
        The run, with the blocks taken from the pool.
    """
    free = run.books.free - need
    if load.unit.shape[1] == 0:
        return run._replace(books=run.books._replace(free=free))
    size = unit_blocks(numbers, load)

    def short(carry: tuple[Any, Any]) -> Any:
        # both ways out of a refusal are computed: where there are fewer, this one must come to an end as well
        return (carry[1] < 0) & jnp.any(carry[0] & (run.units.holders == 0))

    def evict(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        cached, free = carry
        oldest = jnp.argmin(jnp.where(cached & (run.units.holders == 0), run.units.idle, jnp.inf))
        return cached & (jnp.arange(cached.shape[0]) != oldest), free + size

    cached, free = jax.lax.while_loop(short, evict, (run.units.cached, free))
    return run._replace(books=run.books._replace(free=free), units=run.units._replace(cached=cached))


def let_go(numbers: Numbers, load: Load, run: Run, i: Any) -> Run:
    """Give back all that one request holds; of its units the deepest is idle the longest.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.
        i: the request.

    Returns:
        The run.
    """
    track, units = run.track, run.units
    me = jnp.arange(track.blocks.shape[0]) == i
    books = run.books._replace(free=run.books.free + track.blocks[i])
    if load.unit.shape[1]:
        row = load.unit[i]
        depth = jnp.arange(row.shape[0], dtype=float)
        mine = jnp.where(depth < track.shared[i], row, units.cached.shape[0])
        holders = units.holders.at[mine].add(-1.0, mode="drop")
        age = units.releases * (row.shape[0] + 1.0) + (row.shape[0] - depth)
        idle = units.idle.at[mine].set(age, mode="drop")
        units = units._replace(holders=holders, idle=jnp.where(holders == 0, idle, units.idle), releases=units.releases + 1.0)
    track = track._replace(blocks=jnp.where(me, 0.0, track.blocks), shared=jnp.where(me, 0.0, track.shared))
    return run._replace(track=track, books=books, units=units)


def file_units(numbers: Numbers, load: Load, run: Run) -> Run:
    """Put the prompt units that are computed now into the cache; one that is there already is shared and its copy given back.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress, the chunks computed.

    Returns:
        The run.
    """
    width = load.unit.shape[1]
    if width == 0:
        return run
    track, units = run.track, run.units
    depth = jnp.arange(width, dtype=float)[None, :]
    there = (running(track) & numbers.caching)[:, None] & (load.unit >= 0)
    done = (depth + 1.0) * load.unit_tokens <= track.computed[:, None]
    fresh = there & (depth >= track.shared[:, None]) & done
    ids = units.cached.shape[0]
    more = jnp.zeros(ids).at[jnp.where(fresh, load.unit, ids)].add(1.0, mode="drop")
    kept = jnp.where((more > 0) & ~units.cached, 1.0, 0.0)
    size = unit_blocks(numbers, load)
    mine = jnp.sum(jnp.where(fresh, 1.0, 0.0), axis=1)
    books = run.books._replace(free=run.books.free + size * jnp.sum(more - kept))
    track = track._replace(blocks=track.blocks - size * mine, shared=track.shared + mine)
    units = units._replace(cached=units.cached | (more > 0), holders=units.holders + more)
    return run._replace(track=track, books=books, units=units)


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
    track = track._replace(
        take=jnp.where(me, 0.0, track.take),
        swapped=jnp.where(me, moved, track.swapped),
        computed=jnp.where(again, 0.0, track.computed),
        goal=jnp.where(again, load.prompt + track.emitted, track.goal),
        status=jnp.where(me, WAITING, track.status),
        place=jnp.where(me, -1.0 - books.fronts, track.place),
    )
    books = books._replace(moved=books.moved + moved, fronts=books.fronts + 1.0)
    return let_go(numbers, load, run._replace(track=track, books=books), i), back
