"""The best of all schedules of a tiny problem, by exhausting them: what the bound is held against."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np


class Tiny(NamedTuple):
    """A problem whose times are whole numbers of one tick, so that schedules meet again in the same state.

    Args:
        arrival, prompt, output: per request.
        ttft, itl: promises [ticks].
        floor, per_decode, per_token, per_read: of a step [ticks]; per_read is for one cached token that a decode reads.
        factors: of steps 0, 1, ..., going round; whole numbers.
        cache: tokens that fit.
        running: requests that may run at once.
        budget: tokens that fit into a step.
    """

    arrival: tuple[int, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    ttft: int
    itl: int
    floor: int
    per_decode: int
    per_token: int
    per_read: int
    factors: tuple[int, ...]
    cache: int
    running: int
    budget: int


def tiny(seed: int) -> Tiny:
    """The problem of a seed: at most three requests, promises that are often tight."""
    rng = np.random.default_rng([seed, 4711])
    n = int(rng.integers(1, 4))
    pick = lambda low, high: int(rng.integers(low, high + 1))  # noqa: E731
    arrival = np.sort(np.concatenate([[0], rng.integers(0, 12, n - 1)])).tolist()
    prompt, output = rng.integers(1, 4, n).tolist(), rng.integers(1, 4, n).tolist()
    largest = max(p + o for p, o in zip(prompt, output, strict=True))
    floor, slope = pick(1, 4), pick(1, 3)
    return Tiny(
        *(tuple(int(x) for x in rows) for rows in (arrival, prompt, output)),
        ttft=pick(3, 20),
        itl=pick(2, 9),
        floor=floor,
        per_decode=pick(0, 1),
        per_token=slope,
        per_read=pick(0, 1) if slope > 1 else 0,
        factors=tuple(pick(1, 2) for _ in range(pick(1, 3))),
        cache=pick(largest, largest + 6),
        running=pick(1, 3),
        budget=pick(1, 4),
    )


Request = tuple[int, int, int]
"""Prompt tokens computed, tokens emitted, time of the last token. A request that has computed nothing holds nothing."""


def best_attainment(t: Tiny) -> float:
    """The highest attainment of any schedule: rejection, order, idling, chunks, pauses, everything known beforehand.

    A prompt that was begun stays; whoever met its first token's time is served to the end; whoever cannot meet it any more is refused, for
    it would owe all its tokens either way. The ratio is found by Dinkelbach's method on an exhausted search.
    """
    price = 0.0
    while True:
        worth, on, owed = _best(t, price)
        ratio = on / owed
        if worth <= 1e-9 or ratio <= price + 1e-12:
            return price
        price = ratio


def _best(t: Tiny, price: float) -> tuple[float, float, float]:
    """(largest on - price * owed, and its on and owed) over all schedules."""
    n, period = len(t.arrival), len(t.factors)

    @functools.cache
    def onward(now: int, step: int, state: tuple[Request | None, ...]) -> tuple[float, float, float]:
        if all(r is None for r in state):
            return 0.0, 0.0, 0.0
        best = (-np.inf, 0.0, 0.0)
        gone, lost = _refuse(t, now, state)
        if lost:
            return _plus(onward(now, step, gone), 0.0, float(lost), price)
        for batch in _batches(t, now, state):
            if not any(batch):  # to idle where nobody is still to come only puts everything off
                later = [a for a, r in zip(t.arrival, state, strict=True) if r is not None and a > now]
                waits = now + 1 if any(r is not None and a <= now for a, r in zip(t.arrival, state, strict=True)) else min(later)
                found = onward(waits, step, state) if later else best
            else:
                after, then, on, owed = _execute(t, now, step, state, batch)
                found = _plus(onward(then, (step + 1) % period, after), on, owed, price)
            best = max(best, found)
        return max(best, _give_up(t, now, step, state, onward, price))

    return onward(0, 0, tuple((0, 0, 0) for _ in range(n)))


def _plus(found: tuple[float, float, float], on: float, owed: float, price: float) -> tuple[float, float, float]:
    return found[0] + on - price * owed, found[1] + on, found[2] + owed


def _refuse(t: Tiny, now: int, state: tuple[Request | None, ...]) -> tuple[tuple[Request | None, ...], int]:
    """Without the requests whose first token is overdue, and the tokens that these owe."""
    over = [r is not None and r[1] == 0 and now > a + t.ttft for a, r in zip(t.arrival, state, strict=True)]
    lost = sum(o for o, gone in zip(t.output, over, strict=True) if gone)
    return tuple(None if gone else r for r, gone in zip(state, over, strict=True)), lost


def _give_up(t: Tiny, now: int, step: int, state: tuple[Request | None, ...], onward, price: float) -> tuple[float, float, float]:
    """The best after refusing one request that has no token yet, so that its cache comes free."""
    best = (-np.inf, 0.0, 0.0)
    for i, r in enumerate(state):
        if r is not None and r[1] == 0 and r[0] > 0:
            without = tuple(None if k == i else s for k, s in enumerate(state))
            best = max(best, _plus(onward(now, step, without), 0.0, float(t.output[i]), price))
    return best


def _batches(t: Tiny, now: int, state: tuple[Request | None, ...]) -> Iterator[tuple[int, ...]]:
    """Every composition of the next step, tokens per request; all zeros is to wait."""
    offers = []
    for i, r in enumerate(state):
        most = 0 if r is None or t.arrival[i] > now else 1 if r[1] > 0 else t.prompt[i] - r[0]
        offers.append(range(most + 1))
    for batch in itertools.product(*offers):
        holds, runs = 0, 0
        for i, (r, x) in enumerate(zip(state, batch, strict=True)):
            if r is not None and (r[0] > 0 or x > 0):
                runs += 1
                holds += t.prompt[i] + r[1] - 1 + x if r[1] > 0 else r[0] + x
        if sum(batch) <= t.budget and runs <= t.running and holds <= t.cache:
            yield batch


def _execute(
    t: Tiny, now: int, step: int, state: tuple[Request | None, ...], batch: tuple[int, ...]
) -> tuple[tuple[Request | None, ...], int, float, float]:
    """(state after the step, its end, tokens that became on time, tokens that were owed)."""
    time = t.floor
    for i, (r, x) in enumerate(zip(state, batch, strict=True)):
        if r is not None and x:
            time += t.per_decode + t.per_read * (t.prompt[i] + r[1]) if r[1] > 0 else t.per_token * x
    then, on, owed, after = now + time * t.factors[step], 0.0, 0.0, []
    for i, (r, x) in enumerate(zip(state, batch, strict=True)):
        if r is None or not x:
            after.append(r)
            continue
        computed, emitted, last = r
        if emitted > 0:
            gap = then - last
            on, owed = on + (gap <= t.itl), owed + max(1, gap // t.itl)
            emitted, last = emitted + 1, then
        else:
            computed += x
            if computed == t.prompt[i]:
                if then > t.arrival[i] + t.ttft:
                    owed += t.output[i]
                    after.append(None)
                    continue
                on, owed, emitted, last = on + 1, owed + 1, 1, then
        after.append(None if emitted >= t.output[i] else (computed, emitted, last))
    return tuple(after), then, on, owed
