"""Who comes, who goes first, and who is turned away, in the twin: masks and keys over all requests, no queue and no heap."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from headway.controllers.order import LACK_TOKENS
from headway.controllers.policy import TRIAGES
from headway.controllers.renewal import RENEW, RENEW_STEPS
from headway.controllers.twin.cache import hits
from headway.controllers.twin.load import Choices, Load, Numbers
from headway.controllers.twin.state import Run, Track, count, decodes, running, waiting
from headway.models.goodput import ABANDONED, CANCELLED, EXPIRED, FAILED, FUTURE, REJECTED, WAITING

_, DEFER, REJECT, TIMEOUT, DEGRADE = range(len(TRIAGES))


def own_ttft_s(numbers: Numbers, load: Load, track: Track) -> Any:
    """TTFT that each request is held to: its class's, or what it was degraded to.

    Args:
        numbers: of the candidate.
        load: of the draw.
        track: of the requests.

    Returns:
        At the engine, shape (n,) [s].
    """
    return jnp.where(track.degraded, load.ttft_s * numbers.degrade, load.ttft_s)


def serving_s(numbers: Numbers, load: Load, run: Run) -> Any:
    """Estimated time from now to each first token if nothing stood in the way: `estimate` steps of one setpoint each.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.

    Returns:
        Time, shape (n,) [s].
    """
    track = run.track
    cap = jnp.minimum(numbers.max_tokens, numbers.chunk)
    carried = jnp.maximum(1.0, jnp.minimum(run.books.used_tps * numbers.setpoint_s, cap))
    rest = track.goal - track.computed - jnp.where(track.begun, 0.0, track.hit)
    steps = jnp.ceil(rest / carried) + jnp.where(numbers.later, 1.0, 0.0)
    return numbers.estimate[load.kind] * steps * numbers.setpoint_s


def infeasible(numbers: Numbers, load: Load, run: Run) -> Any:
    """Whose first token would be late even if it were served from now on.

    now > arrival + ttft (1 + tolerance) - estimate steps setpoint

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.

    Returns:
        Mask, shape (n,).
    """
    return run.books.now_s > infeasible_from_s(numbers, load, run)


def infeasible_from_s(numbers: Numbers, load: Load, run: Run) -> Any:
    """When each first token becomes too late by more than the tolerance, even if served from then on.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.

    Returns:
        Time, shape (n,) [s].
    """
    latest = run.track.arrival_s + own_ttft_s(numbers, load, run.track) * (1.0 + numbers.tolerance[load.kind])
    return latest - serving_s(numbers, load, run)


def keys_s(numbers: Numbers, load: Load, run: Run) -> Any:
    """Sort keys, least first; the price of memory is for those who wait.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.

    Returns:
        Keys, shape (n,) [s].
    """
    track, ttft_s = run.track, own_ttft_s(numbers, load, run.track)
    slack = (1.0 + numbers.aging) * track.arrival_s + ttft_s - serving_s(numbers, load, run)
    key = jnp.where(numbers.slack, slack, track.arrival_s + ttft_s)
    spared = jnp.where(track.begun, 0.0, track.hit) / numbers.block
    price = numbers.price_s * (jnp.ceil(track.goal / numbers.block) - spared)
    return key + jnp.where(waiting(track), price, 0.0) - numbers.priority_s[load.kind]


def key_anew(numbers: Numbers, load: Load, run: Run, who: Any, look: bool) -> Run:
    """Take keys anew.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.
        who: whose, shape (n,).
        look: look into the prefix cache as well.

    Returns:
        The run.
    """
    if look:
        found = hits(numbers, load, run.units, load.unit, run.track.goal) * load.unit_tokens
        run = run._replace(track=run.track._replace(hit=jnp.where(who & ~run.track.begun, found, run.track.hit)))
    keys = keys_s(numbers, load, run)
    return run._replace(track=run.track._replace(key=jnp.where(who, keys, run.track.key)))


def end(load: Load, run: Run, who: Any, status: Any) -> Run:
    """Take requests out of the books, and say when those come that wait for their end.

    Args:
        load: of the draw.
        run: in progress.
        who: they, shape (n,).
        status: of each, shape (n,) or ().

    Returns:
        The run.
    """
    track = run.track
    ended_s = jnp.where(who, run.books.now_s, track.ended_s)
    arrival_s = jnp.where(load.after >= 0, ended_s[jnp.maximum(load.after, 0)] + load.think_s, track.arrival_s)
    track = track._replace(status=jnp.where(who, status, track.status), ended_s=ended_s, arrival_s=arrival_s)
    return run._replace(track=track)


def arrive(choices: Choices, numbers: Numbers, load: Load, run: Run, seen_s: Any) -> Run:
    """Everyone comes whose time is up, one after the other where their order is that of the queue.

    Args:
        choices: of the twin.
        numbers: of the candidate.
        load: of the draw.
        run: in progress.
        seen_s: time up to which the scheduler sees arrivals [s].

    Returns:
        The run.
    """
    length = load.prompt + load.output
    never = (length > numbers.max_len) | (jnp.ceil(length / numbers.block) > numbers.blocks)

    def due(run: Run) -> Any:
        return (run.track.status == FUTURE) & (run.track.arrival_s <= seen_s)

    def come(run: Run) -> Run:
        who, track = due(run), run.track
        if choices.stock:
            first = who & (track.arrival_s == jnp.min(jnp.where(who, track.arrival_s, jnp.inf)))
            who = jnp.arange(first.shape[0]) == jnp.argmax(first)
        run = end(load, run, who & never, FAILED)
        track = run.track._replace(
            status=jnp.where(who & ~never, WAITING, run.track.status), place=jnp.where(who, run.books.places, run.track.place)
        )
        arrivals = run.books.arrivals.at[load.kind].add(jnp.where(who, 1.0, 0.0))
        run = run._replace(track=track, books=run.books._replace(places=run.books.places + 1.0, arrivals=arrivals))
        return key_anew(numbers, load, run, who, choices.units > 0)

    return jax.lax.while_loop(lambda run: jnp.any(due(run)), come, run)


def renew(choices: Choices, numbers: Numbers, load: Load, run: Run) -> Run:
    """Let estimates use the measured rate where the two have parted, not too soon again; those preempted since get a key.

    Args:
        choices: of the twin.
        numbers: of the candidate.
        load: of the draw.
        run: in progress.

    Returns:
        The run.
    """
    books, queue = run.books, waiting(run.track)
    rate, used = books.rate_tps, books.used_tps
    wait = jnp.maximum(float(RENEW_STEPS), count(queue))
    due = (jnp.abs(rate - used) > RENEW * used) & (books.step - books.renewed >= wait)
    books = books._replace(used_tps=jnp.where(due, rate, used), renewed=jnp.where(due, books.step, books.renewed))
    return key_anew(numbers, load, run._replace(books=books), queue & (due | run.track.begun), choices.units > 0)


def left_as(load: Load, run: Run) -> Any:
    """How each request ends if its client leaves now.

    Args:
        load: of the draw.
        run: in progress.

    Returns:
        Status, shape (n,): cancelled if nothing was late, else abandoned.
    """
    track, now_s = run.track, run.books.now_s
    overdue = now_s > track.arrival_s + load.ttft_s
    late = (track.on_time < track.owed) | (jnp.floor((now_s - track.last_s) / load.itl_s) >= 1)
    return jnp.where(jnp.where(track.emitted == 0, overdue, late), ABANDONED, CANCELLED)


def out_of_time(load: Load, run: Run) -> Any:
    """Whose client leaves now: no first token within its patience, or its stream's time has run out.

    Args:
        load: of the draw.
        run: in progress.

    Returns:
        Mask, shape (n,).
    """
    track, now_s = run.track, run.books.now_s
    impatient = (track.emitted == 0) & (now_s > track.arrival_s + load.patience_s)
    return impatient | (now_s > track.arrival_s + load.cancel_s)


def leave(numbers: Numbers, load: Load, run: Run) -> Run:
    """Clients leave, and triage turns away: of those who wait.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.

    Returns:
        The run.
    """
    gone = waiting(run.track) & out_of_time(load, run)
    run = end(load, run, gone, left_as(load, run))
    new = waiting(run.track) & ~run.track.begun & ~run.track.spared
    late, rule = new & infeasible(numbers, load, run), numbers.triage
    fresh = (rule == DEGRADE) & late & ~run.track.degraded
    run = run._replace(track=run.track._replace(degraded=run.track.degraded | fresh))
    run = key_anew(numbers, load, run, fresh, False)
    expired_s = run.track.arrival_s + numbers.timeout * load.ttft_s
    over_s = jnp.where(rule == TIMEOUT, expired_s, infeasible_from_s(numbers, load, run))
    sheds = (rule == REJECT) | (rule == DEGRADE) | (rule == TIMEOUT)
    return shed(numbers, load, run, new & sheds & (run.books.now_s > over_s), over_s)


def shed(numbers: Numbers, load: Load, run: Run, whom: Any, over_s: Any) -> Run:
    """Shed those whose wait is over, the longest over first, as far as the cap lets; who would exceed it is spared.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.
        whom: they, shape (n,).
        over_s: when the wait of each was over, shape (n,) [s].

    Returns:
        The run.
    """
    status = jnp.where(numbers.triage == TIMEOUT, EXPIRED, REJECTED)

    def more(carry: tuple[Run, Any]) -> Any:
        return jnp.any(carry[1])

    def one(carry: tuple[Run, Any]) -> tuple[Run, Any]:
        run, left = carry
        first = jnp.arange(left.shape[0]) == jnp.argmin(jnp.where(left, over_s, jnp.inf))
        who = jnp.where(numbers.shed_cap < 1.0, first, left)  # without a cap all at once
        books, kind = run.books, load.kind
        allowed = (numbers.shed_cap >= 1.0) | (books.shed[kind] + 1.0 <= numbers.shed_cap * books.arrivals[kind])
        run = end(load, run, who & allowed, status)
        counted = books.shed.at[kind].add(jnp.where(who & allowed, 1.0, 0.0))
        track = run.track._replace(spared=run.track.spared | (who & ~allowed))
        return run._replace(track=track, books=run.books._replace(shed=counted)), left & ~who

    return jax.lax.while_loop(more, one, (run, whom))[0]


def ranks(numbers: Numbers, load: Load, run: Run) -> tuple[Any, Any]:
    """Order of all prompts in this step: rank first, then key, then number.

    0 a stream, 1 and 2 of a class behind its share, 3 and 4 of another; of the two the second is deferred, degraded or spared.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.

    Returns:
        (ranks, keys [s]), each of shape (n,).
    """
    track = run.track
    stream = track.emitted > 0
    ahead = run.books.deficit[load.kind] <= LACK_TOKENS
    behind = track.degraded | track.spared | ((numbers.triage == DEFER) & infeasible(numbers, load, run))
    rank = jnp.where(stream, 0.0, 1.0 + jnp.where(ahead, 2.0, 0.0) + jnp.where(behind, 1.0, 0.0))
    key = jnp.where(waiting(track), track.key, keys_s(numbers, load, run))
    return rank, jnp.where(stream, track.arrival_s, key)


def pending(track: Track) -> Any:
    """Whose prompt is pending: all who wait, and who runs with tokens to compute.

    Args:
        track: of the requests.

    Returns:
        Mask, shape (n,).
    """
    return waiting(track) | (running(track) & ~decodes(track))


def victim(numbers: Numbers, load: Load, track: Track) -> Any:
    """Who gives way: the running request of the lowest priority, among equals the one admitted last.

    Args:
        numbers: of the candidate.
        load: of the draw.
        track: of the requests.

    Returns:
        The request, shape ().
    """
    who, priority_s = running(track), numbers.priority_s[load.kind]
    lowest = who & (priority_s == jnp.min(jnp.where(who, priority_s, jnp.inf)))
    return jnp.argmax(jnp.where(lowest, track.seat, -1.0))
