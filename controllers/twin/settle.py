"""The end of a step and of a run in the twin: tokens come out, requests end, clients leave, what was owed and on time is booked."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from headway.controllers.twin.admission import forget
from headway.controllers.twin.cache import let_go, tails
from headway.controllers.twin.load import Load, Numbers
from headway.controllers.twin.order import end, left_as, out_of_time
from headway.controllers.twin.state import Run, Track, running
from headway.models.goodput import CANCELLED, FINISHED, FUTURE, REJECTED
from headway.models.mechanics import EXACT

LEARNS_FROM = 64.0
"""Least prompt tokens of a step from which the prefill rate is learned [tokens]."""
SEAT = 2.0**-30
"""Of what is let go at the same time, who was admitted first goes first: below one for as many admissions as there can be."""
WEIGHT = 0.02
"""Weight of the newest step in the rate."""


def emit(load: Load, track: Track, token: Any, now_s: Any) -> Track:
    """A token comes out.

    Args:
        load: of the draw.
        track: of the requests.
        token: of whom, shape (n,).
        now_s: when [s].

    Returns:
        The requests.
    """
    first = token & (track.emitted == 0)
    ttft_s, gap_s = now_s - track.arrival_s, now_s - track.last_s
    met = jnp.where(first, jnp.where(ttft_s <= load.ttft_s * EXACT, 1.0, 0.0), track.met)
    kept = gap_s <= load.budget_s * EXACT
    due = jnp.maximum(1.0, jnp.floor((gap_s + load.transport_s) / load.itl_s + 1e-9))
    owed = jnp.where(first, 1.0, track.owed + jnp.where(kept, 1.0, due))
    on_time = jnp.where(first, met, track.on_time + jnp.where(kept, track.met, 0.0))
    return track._replace(
        ttft_s=jnp.where(first, ttft_s, track.ttft_s),
        met=met,
        owed=jnp.where(token, owed, track.owed),
        on_time=jnp.where(token, on_time, track.on_time),
        max_gap_s=jnp.where(token & ~first, jnp.maximum(track.max_gap_s, gap_s), track.max_gap_s),
        emitted=track.emitted + jnp.where(token, 1.0, 0.0),
        last_s=jnp.where(token, now_s, track.last_s),
    )


def give_back(numbers: Numbers, load: Load, run: Run, who: Any) -> Run:
    """All that some requests hold comes free, in order of admission.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.
        who: they, shape (n,).

    Returns:
        The run.
    """
    if load.unit.shape[1] == 0:
        track, blocks = run.track, run.track.blocks
        tail = jnp.where(who, tails(numbers, load, track), track.tail)
        books = run.books._replace(free=run.books.free + jnp.sum(jnp.where(who, blocks - tail, 0.0)))
        age = jnp.where(who, run.units.releases + track.seat * SEAT, track.tail_age)
        track = track._replace(blocks=jnp.where(who, 0.0, blocks), tail=tail, tail_at=jnp.where(who, 0.0, track.tail_at), tail_age=age)
        return run._replace(track=track, books=books, units=run.units._replace(releases=run.units.releases + 1.0))

    def one(carry: tuple[Run, Any]) -> tuple[Run, Any]:
        run, left = carry
        i = jnp.argmin(jnp.where(left, run.track.seat, jnp.inf))
        return let_go(numbers, load, run, i, jnp.ones((), bool)), left & (jnp.arange(left.shape[0]) != i)

    return jax.lax.while_loop(lambda carry: jnp.any(carry[1]), one, (run, who))[0]


def settle(numbers: Numbers, load: Load, run: Run, shares: Any) -> Run:
    """The step ended: chunks are computed, tokens come out, requests end, clients leave.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress, the clock at the end of the step.
        shares: deficits of the classes once this step is booked, shape (classes,) [tokens].

    Returns:
        The run.
    """
    run = give_back(numbers, load, run, run.track.ghost)
    track, books = run.track._replace(ghost=jnp.zeros_like(run.track.ghost)), run.books
    chunk = track.take > 0
    computed = track.computed + jnp.where(chunk, track.take, 0.0)
    token = (track.take < 0) | (chunk & (computed >= track.goal) & ~(numbers.later & (track.emitted == 0)))
    track = track._replace(computed=computed, stepped=jnp.where(track.take != 0, books.step - 1.0, track.stepped))
    track = emit(load, track._replace(take=jnp.zeros_like(track.take)), token, books.now_s)
    run = run._replace(track=track, books=books._replace(deficit=shares))
    done = token & (run.track.emitted >= load.output)
    gone = running(run.track) & ~done & out_of_time(load, run)
    status = jnp.where(done, FINISHED, left_as(load, run))
    run = forget(numbers, load, run, done | gone, done)
    run = end(load, run, done | gone, status)
    ghost = (done | gone) & numbers.asynchronous
    run = give_back(numbers, load, run, (done | gone) & ~ghost)
    return run._replace(track=run.track._replace(ghost=ghost))


def measured(run: Run, step_time_s: Any, sums: tuple[Any, ...], bound: Any) -> Run:
    """Book the step itself.

    Args:
        run: in progress.
        step_time_s: how long it took [s].
        sums: decodes, cache tokens read, prompt tokens, pairs, prompts in it.
        bound: 1 if its budget was used up while work was waiting.

    Returns:
        The run, the clock at the end of the step.
    """
    books, (n, kv, prefill, pairs, chunks) = run.books, sums
    seen = jnp.stack([step_time_s, prefill, n, bound, kv, pairs, chunks, jnp.zeros_like(n)])
    now_s = books.now_s + step_time_s
    rate = books.rate_tps + WEIGHT * (prefill / step_time_s - books.rate_tps)
    books = books._replace(
        now_s=now_s,
        settled_s=now_s,
        started_s=books.now_s,
        step=books.step + 1.0,
        moved=jnp.zeros_like(books.moved),
        rate_tps=jnp.where(prefill >= LEARNS_FROM, rate, books.rate_tps),
        unprompted=jnp.where(prefill > 0, 0.0, books.unprompted + 1.0),
        last=seen,
        earlier=books.last,
    )
    return run._replace(books=books)


def owed(load: Load, run: Run) -> Any:
    """What every request owes in all, those cut off unfinished included, as `headway.models.goodput.owed_at_cut`.

    Args:
        load: of the draw.
        run: at its end.

    Returns:
        Tokens, shape (n,) [tokens].
    """
    track, cut_s = run.track, run.books.now_s
    open_still = jnp.minimum(load.output - track.emitted, jnp.floor((cut_s - track.last_s) / load.itl_s))
    late_s = cut_s - track.arrival_s - load.ttft_s
    unbegun = jnp.where(late_s < 0, 0.0, jnp.minimum(load.output, 1.0 + jnp.floor(late_s / load.itl_s)))
    due = jnp.where(track.emitted > 0, track.owed + jnp.maximum(0.0, open_still), unbegun)
    due = jnp.where(track.status == FUTURE, 0.0, due)
    due = jnp.where(track.status >= REJECTED, jnp.maximum(track.owed, load.output), due)
    return jnp.where((track.status == FINISHED) | (track.status == CANCELLED), track.owed, due)
