"""A step of the twin: running requests in order, prompts one after another by rank and key, in the phases of the policy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from headway.controllers.policy import PHASES
from headway.controllers.twin.admission import Gate, held_back, joined
from headway.controllers.twin.cache import available, held_blocks, take_blocks
from headway.controllers.twin.load import NO_CAP, Choices, Load, Numbers
from headway.controllers.twin.offer import Step, accept, either, offer, yield_one
from headway.controllers.twin.order import pending, ranks
from headway.controllers.twin.state import Run, Track, count, decodes, running, waiting

TRIES = 8
"""Newcomers tried in vain for blocks before the door closes."""
MIXED, PREFILL_FIRST, _ = range(len(PHASES))


def serve_running(numbers: Numbers, load: Load, step: Step, who: Any, turn: Any) -> Step:
    """Give running requests their tokens, in order; one that lacks blocks makes others give way, until it has them or went itself.

    Where all decode, and budget and blocks are enough for all, which is nearly always, all get theirs at once.

    Args:
        numbers: of the candidate.
        load: of the draw.
        step: being composed.
        who: they, shape (n,).
        turn: least first, shape (n,).

    Returns:
        The step.
    """
    track = step.run.track
    need = jnp.maximum(jnp.ceil((load.prompt + track.emitted) / numbers.block) - held_blocks(numbers, load, track), 0.0)
    total = jnp.sum(jnp.where(who, need, 0.0))
    fast = (count(who) <= step.left) & (total <= available(numbers, load, step.run)) & ~jnp.any(who & ~decodes(track))
    given = who & fast
    track = track._replace(take=jnp.where(given, -1.0, track.take), blocks=track.blocks + jnp.where(given, need, 0.0))
    run = take_blocks(step.run._replace(track=track), jnp.where(fast, total, 0.0))
    step = step._replace(run=run, left=step.left - count(given))

    def after(carry: tuple[Step, Any]) -> Any:
        return who & running(carry[0].run.track) & (carry[0].run.track.take == 0) & (turn > carry[1])

    def one(carry: tuple[Step, Any]) -> tuple[Step, Any]:
        step, last = carry
        i = jnp.argmin(jnp.where(after(carry), turn, jnp.inf))
        given = offer(numbers, load, step, i)
        poorer, gone = yield_one(numbers, load, step)
        last = jnp.where(given.fits | (gone == i), turn[i], last)
        return either(given.fits, accept(numbers, load, step, i, given), poorer), last

    start = step, jnp.where(fast, jnp.inf, -jnp.inf)
    return jax.lax.while_loop(lambda carry: (carry[0].left >= 1) & jnp.any(after(carry)), one, start)[0]


def serve_prompts(
    numbers: Numbers, load: Load, step: Step, untried: Any, order: tuple[Any, Any], most: Any, door: tuple[int, Gate | None]
) -> tuple[Step, Any]:
    """Give chunks to prompts, least rank and key first, until `most` tokens are spent or nobody is left.

    Args:
        numbers: of the candidate.
        load: of the draw.
        step: being composed.
        untried: running prompts and newcomers that had no turn yet, shape (n,).
        order: ranks, least first, and keys among equals, then by number, each of shape (n,).
        most: tokens to spend [tokens].
        door: newcomers tried in vain for blocks before it closes, and the gate of admission.

    Returns:
        (the step, who had no turn).
    """
    rest = jnp.maximum(step.left - most, 0.0)
    (rank, key), (tries, gate) = order, door

    def open_to(step: Step, untried: Any) -> Any:
        return untried & (running(step.run.track) | (waiting(step.run.track) & ~step.closed))

    def one(carry: tuple[Step, Any]) -> tuple[Step, Any]:
        step, untried = carry
        who = open_to(step, untried)
        who = who & (rank == jnp.min(jnp.where(who, rank, jnp.inf)))
        i = jnp.argmin(jnp.where(who, key, jnp.inf))
        me, given = jnp.arange(who.shape[0]) == i, offer(numbers, load, step, i)
        full = given.fresh & (count(running(step.run.track)) >= numbers.running)
        held = jnp.zeros_like(full)
        if gate is not None:
            run, held = held_back(numbers, load, gate, step.run, i, given.fresh & ~full)
            step = step._replace(run=run, held=step.held | held)
        short = ~full & ~held & ~given.fits
        taken = accept(numbers, load, step, i, given)
        if gate is not None:
            taken = taken._replace(run=joined(numbers, load, taken.run, i, given.fresh))
        step = either(full | held | short, step, taken)
        blocked = step.blocked + jnp.where(short & given.fresh, 1.0, 0.0)
        closed = step.closed | full | held | (short & ~given.fresh) | (blocked >= tries)
        step = step._replace(blocked=blocked, closed=closed, limited=(step.limited | full | short) & ~held)
        return step, untried & ~(me & ~full & ~held)

    def more(carry: tuple[Step, Any]) -> Any:
        return (carry[0].left >= 1) & jnp.any(open_to(*carry))

    step, untried = jax.lax.while_loop(more, one, (step._replace(left=step.left - rest), untried))
    return step._replace(left=step.left + rest), untried


def opened(run: Run, left: Any, jammed: Any) -> Step:
    """A step in which nothing was given yet.

    Args:
        run: in progress.
        left: its budget [tokens].
        jammed: requests that gave way already; nobody is admitted after that.

    Returns:
        The step.
    """
    no = jnp.zeros((), bool)
    return Step(run, left, jammed, jammed > 0, jnp.zeros_like(left), no, no, no)


def compose_stock(numbers: Numbers, load: Load, step: Step, gate: Gate | None) -> tuple[Step, Any]:
    """vLLM's own order: running requests in order of admission, then the queue until something does not fit.

    The chunk cap is lifted where one request alone runs or waits.

    Args:
        numbers: of the candidate.
        load: of the draw.
        step: being composed.
        gate: of admission; None without.

    Returns:
        (the step, whether its budget is what bounds it).
    """
    track = step.run.track
    alone = count(running(track) | waiting(track)) <= 1
    numbers = numbers._replace(chunk=jnp.where(alone, NO_CAP, numbers.chunk))
    step = serve_running(numbers, load, step, running(track), track.seat)
    cut = step.cut | jnp.any(running(step.run.track) & (step.run.track.take == 0))
    step = step._replace(cut=cut, closed=step.closed | (step.gave_way > 0))
    place = step.run.track.place
    step, _ = serve_prompts(numbers, load, step, waiting(step.run.track), (jnp.zeros_like(place), place), step.left, (1, gate))
    return step, _bounds(step, ~step.held & (step.cut | jnp.any(waiting(step.run.track))))


def compose_by_key(numbers: Numbers, load: Load, step: Step, tokens: Any, oldest: Any, strides: Any, gate: Gate | None) -> tuple[Step, Any]:
    """Decodes and prompts in the phases of the policy, with its two-sided bound.

    Both phases have two turns; each serves prompts, then decodes, as far as they are asked for in it.

    Args:
        numbers: of the candidate.
        load: of the draw.
        step: being composed.
        tokens: its budget, those included that ride once more [tokens].
        oldest: steps since the last token of the decode that waits longest.
        strides: whether classes are stepped by their stride, bool.
        gate: of admission; None without.

    Returns:
        (the step, whether its budget is what bounds it).
    """
    track, books = step.run.track, step.run.books
    order, half = ranks(numbers, load, step.run), jnp.ceil(tokens / 2.0)
    mixed, age = numbers.phases == MIXED, books.step - track.stepped
    starved = (numbers.prefill_every > 0) & jnp.any(pending(track)) & (books.unprompted >= numbers.prefill_every - 1)
    overdue = (numbers.decode_every > 0) & (oldest >= numbers.decode_every)
    prompts_first = jnp.where(numbers.phases == PREFILL_FIRST, ~overdue, starved)
    due = decodes(track) & due_now(numbers, load, step.run, strides)
    turn = track.seat + jnp.where(overdue & (age < numbers.decode_every), books.seats + 1.0, 0.0)

    def serve(t: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        step, untried, asked, tried = carry
        mine = prompts_first == (t == 0)
        begun = jnp.any(step.run.track.take != 0)
        share = jnp.where(t == 0, jnp.where(starved, half, 0.0), step.left)
        most = jnp.where(mixed, share, jnp.where(mine & ~begun, step.left, 0.0))
        step, untried = serve_prompts(numbers, load, step, untried, order, most, (TRIES, gate))
        who = due & jnp.where(mixed, t == 0, ~mine & ~begun) & (step.run.track.take == 0)
        step = serve_running(numbers, load, step, who, turn)
        return step._replace(closed=step.closed | (step.gave_way > 0)), untried, asked | who, tried | (mine & ~begun)

    start = step, pending(track), jnp.zeros_like(due), mixed
    step, untried, asked, tried = jax.lax.fori_loop(0, 2, serve, start)
    unserved = jnp.any(asked & (step.run.track.take == 0))
    kept = tried & (jnp.any(untried & running(step.run.track)) | (count(waiting(step.run.track)) > count(step.held)))
    return step, _bounds(step, step.cut | unserved | kept)


def due_now(numbers: Numbers, load: Load, run: Run, strides: Any) -> Any:
    """Who is due by its class's stride.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.
        strides: whether classes are stepped by their stride, bool.

    Returns:
        Mask, shape (n,).
    """
    return ~strides | (run.books.step - run.track.stepped >= numbers.strides[load.kind])


def _bounds(step: Step, wanting: Any) -> Any:
    return (step.gave_way == 0) & (step.left < 1) & ~step.limited & wanting


def compose(choices: Choices, numbers: Numbers, load: Load, run: Run, budget: Any, oldest: Any, gate: Gate | None) -> tuple[Run, Any, Any]:
    """Compose a step; where nothing could be given strides are ignored, and where still nothing, victims give way.

    Where somebody gave way and nothing could be given, it is tried again before that.

    Requests that ride once more make a step by themselves where their blocks are what is lacking.

    Args:
        choices: of the twin.
        numbers: of the candidate.
        load: of the draw.
        run: in progress; somebody runs or waits.
        budget: tokens of the step [tokens].
        oldest: steps since the last token of the decode that waits longest.
        gate: of admission; None without.

    Returns:
        (the run with every request's `take`, whether the budget bounds the step, whose prompts were pending).
    """
    ghosts = count(run.track.ghost)
    left = jnp.where(ghosts > 0, jnp.maximum(budget - ghosts, 1.0), budget)

    def attempt(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        run, strides, jammed, oldest, *_ = carry
        step, wants = opened(run, left, jammed), pending(run.track)
        if choices.stock:
            step, bound = compose_stock(numbers, load, step, gate)
        else:
            step, bound = compose_by_key(numbers, load, step, budget, oldest, strides, gate)
        nothing = ~jnp.any(step.run.track.take != 0)
        left_over, gave_way = count(running(step.run.track)), step.gave_way > jammed
        again = nothing & (left_over > 0) & (gave_way | strides)
        gives, alone = nothing & ~again & (left_over >= 2), nothing & ~again & (left_over < 2)
        stalled, strides = alone & (ghosts == 0), strides & ~(again & ~gave_way)
        oldest = jnp.where(again & ~gave_way, oldest_of(step.run, decodes(step.run.track)), oldest)
        run = either(gives, yield_one(numbers, load, step)[0].run, step.run)
        run = run._replace(books=run.books._replace(stalled=run.books.stalled | stalled))
        return run, strides, step.gave_way + jnp.where(gives, 1.0, 0.0), oldest, again | gives, bound, wants

    strides = jnp.any(numbers.strides > 1) & (not choices.stock)
    nobody = jnp.zeros_like(run.track.begun)
    start = run, strides, jnp.zeros_like(budget), oldest, jnp.ones((), bool), jnp.zeros((), bool), nobody
    run, *_, bound, wants = jax.lax.while_loop(lambda carry: carry[4], attempt, start)
    return run, bound, wants


def ready(numbers: Numbers, load: Load, run: Run, strides: Any) -> tuple[Any, Any, Any, Any]:
    """Who is due to decode, and how far the prompt is that goes on first.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.
        strides: whether classes are stepped by their stride, bool.

    Returns:
        (their number [requests], cache tokens they read [tokens], context of the first unfinished prompt [tokens], steps since
        the last token of the one that waits longest).
    """
    track = run.track
    due = decodes(track) & due_now(numbers, load, run, strides)
    unfinished = running(track) & ~decodes(track)
    first = jnp.argmin(jnp.where(unfinished, track.seat, jnp.inf))
    context = jnp.where(jnp.any(unfinished), track.computed[first], 0.0)
    return count(due | track.ghost), read(load, track, due | track.ghost), context, oldest_of(run, due)


def oldest_of(run: Run, who: Any) -> Any:
    """Steps since the last token of the one that waits longest.

    Args:
        run: in progress.
        who: of whom, shape (n,).

    Returns:
        Steps, shape (); 0 of nobody.
    """
    return jnp.max(jnp.where(who, run.books.step - run.track.stepped, 0.0))


def read(load: Load, track: Track, who: Any) -> Any:
    """Cache tokens that decodes read; one that rides once more with an unfinished prompt, what it has computed.

    Args:
        load: of the draw.
        track: of the requests.
        who: they, shape (n,).

    Returns:
        Their sum, shape () [tokens].
    """
    length = jnp.where(track.computed >= track.goal, load.prompt + track.emitted, track.computed)
    return jnp.sum(jnp.where(who, length, 0.0))


def sums(load: Load, track: Track) -> tuple[Any, ...]:
    """What the composed step holds.

    Args:
        load: of the draw.
        track: of the requests.

    Returns:
        Decodes, cache tokens read, prompt tokens, pairs, prompts in it.
    """
    decode, chunk = (track.take < 0) | track.ghost, track.take > 0
    x = jnp.where(chunk, track.take, 0.0)
    return count(decode), read(load, track, decode), jnp.sum(x), jnp.sum(x * (track.computed + 0.5 * x)), count(chunk)
