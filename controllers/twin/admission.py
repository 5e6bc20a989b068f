"""Model-predictive admission in the twin: what `headway.controllers.admission` and `survival` do, as arrays over all requests."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headway.controllers.admission import AGE, POINTS
from headway.controllers.controller import Controller
from headway.controllers.survival import EDGES, FINE, LONGEST, MEMORY, WIDTHS
from headway.controllers.tracker import TrackerLaw
from headway.controllers.twin.load import Load, Numbers
from headway.controllers.twin.state import Outlook, Run, running
from headway.models.plant import Batch, Plant
from headway.models.state import OUTLOOK_BINS, OUTLOOK_CLASSES


class Gate(NamedTuple):
    """What admission predicts with in one step.

    Args:
        plant: durations without noise.
        limit_s: longest decode-only step that it may lead to, shape () [s].
    """

    plant: Plant
    limit_s: Any


def gate_of(numbers: Numbers, law: Controller, state: Any, plant: Plant) -> Gate:
    """What admission predicts with, once the law has given its budget.

    Args:
        numbers: of the candidate.
        law: of the token budget.
        state: of the law.
        plant: durations without noise.

    Returns:
        The gate; its limit is the law's setpoint, the tracker's by what it has found.
    """
    if isinstance(law, TrackerLaw):
        return Gate(plant, (1.0 - law.margin) * numbers.budget_s * jnp.exp(-state[1] - state[0]))
    return Gate(plant, numbers.setpoint_s)


def _bins(tokens: Any) -> Any:
    """Bins that output lengths fall into, as `headway.controllers.survival.bin_of`."""
    part, octave = jnp.frexp(jnp.minimum(tokens, LONGEST))
    coarse = jnp.minimum((octave.astype(float) - 4) * FINE + jnp.floor(part * 2 * FINE), OUTLOOK_BINS - 2)
    return jnp.where(tokens < 2 * FINE, jnp.floor(tokens), coarse).astype(int)


def _into(tokens: Any, bins: Any) -> Any:
    """Part of its bin that an output has behind it."""
    return jnp.minimum((tokens - jnp.asarray(EDGES)[bins]) / jnp.asarray(WIDTHS)[bins], 1.0)


def _rows(load: Load) -> Any:
    return jnp.minimum(load.kind, OUTLOOK_CLASSES - 1)


def expected(numbers: Numbers, alive: Any, kind: Any, emitted: Any, prompt: Any) -> Any:
    """What requests add to the outlook at every point of the horizon, as `headway.controllers.admission.count_in`.

    Args:
        numbers: of the candidate.
        alive: probability to reach each bin, shape (classes, bins).
        kind: classes, shape (m,), int.
        emitted: shape (m,) [tokens].
        prompt: shape (m,) [tokens].

    Returns:
        Requests, cache tokens, variance of those and cache tokens if nobody ends, shape (4, m, POINTS).
    """

    def reached(tokens: Any) -> Any:
        j = _bins(tokens)
        low, high = alive[kind[:, None], j], alive[kind[:, None], j + 1]
        return low + _into(tokens, j) * (high - low)

    h = numbers.look_steps * jnp.arange(POINTS, dtype=float)[None] / (POINTS - 1)
    next_token, context = emitted[:, None] + 1.0, (prompt + emitted)[:, None] + h
    here = reached(next_token)
    s = jnp.where(here > 0, reached(next_token + h) / jnp.where(here > 0, here, 1.0), 1.0)
    return jnp.stack([s, s * context, s * (1.0 - s) * context * context, context])


def outlook_of(run: Run) -> Outlook:
    """The outlook of a run under admission.

    Args:
        run: in progress.

    Returns:
        The outlook.

    Raises:
        ValueError: a run without admission: a fault of the twin's.
    """
    if run.outlook is None:
        raise ValueError("this run was begun without admission; expected `Choices.admission` to be true when `fresh_run` was called")
    return run.outlook


def look(numbers: Numbers, load: Load, run: Run) -> Outlook:
    """The outlook made anew: survival from all that was seen, then the sums over the running requests.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.

    Returns:
        The outlook.
    """
    track, seen, kind = run.track, outlook_of(run).seen, _rows(load)
    who, bins = jnp.where(running(track), 1.0, 0.0), _bins(track.emitted + 1.0)
    censored, none = jnp.zeros_like(seen).at[kind, bins].add(who), jnp.zeros_like(seen[:, :1])
    exposed = jnp.zeros_like(seen).at[kind, bins].add(who * _into(track.emitted + 1.0, bins))
    beyond = jnp.flip(jnp.cumsum(jnp.flip(seen + censored, 1), axis=1), 1)
    exposed = exposed + seen + jnp.concatenate([beyond[:, 1:], none], axis=1)
    ratio = jnp.maximum(EDGES[None] - 1.0, 0.0) / numbers.prior_tokens
    prior = numbers.prior_requests / (1.0 + ratio * ratio)
    ended = (prior[:, :-1] - prior[:, 1:] + seen[:, :-1]) / (prior[:, :-1] + exposed[:, :-1])
    alive = jnp.concatenate([none + 1.0, jnp.cumprod(1.0 - ended, axis=1)], axis=1)
    sums = jnp.sum(expected(numbers, alive, kind, track.emitted, load.prompt) * who[None, :, None], axis=1)
    return Outlook(seen, alive, sums, run.books.step + AGE, run.books.fronts)


def _alone(numbers: Numbers, load: Load, run: Run, i: Any) -> Any:
    """What one request adds to the outlook, shape (4, POINTS)."""
    rows = (_rows(load)[i][None], run.track.emitted[i][None], load.prompt[i][None])
    return expected(numbers, outlook_of(run).alive, *rows)[:, 0]


def held_back(numbers: Numbers, load: Load, gate: Gate, run: Run, i: Any, asks: Any) -> tuple[Run, Any]:
    """Whether admission holds a newcomer back; where nobody runs it does not. An outlook out of date is made anew.

    Args:
        numbers: of the candidate.
        load: of the draw.
        gate: of the step.
        run: in progress.
        i: the newcomer.
        asks: whether it is its turn, bool.

    Returns:
        (the run, bool).
    """
    old, somebody = outlook_of(run), jnp.any(running(run.track))
    stale = (run.books.step >= old.until) | (run.books.fronts != old.fronts) | ~somebody
    outlook = jax.lax.cond(asks & stale, lambda run: look(numbers, load, run), outlook_of, run)
    run = run._replace(outlook=outlook)
    n, kv, variance, most = outlook.sums + _alone(numbers, load, run, i)
    kv = jnp.minimum(kv + numbers.look_z * jnp.sqrt(jnp.maximum(variance, 0.0)), most)
    none = jnp.zeros_like(n)
    late = gate.plant.step_time_s(Batch(n, kv, none, none, none)) > gate.limit_s
    over = (kv + n * (numbers.block - 1.0)) / numbers.block > numbers.look_blocks
    return run, asks & somebody & jnp.any(over | late)


def joined(numbers: Numbers, load: Load, run: Run, i: Any, fresh: Any) -> Run:
    """Add a newcomer that was let in to the outlook.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress.
        i: the request.
        fresh: whether it is a newcomer, bool.

    Returns:
        The run.
    """
    old = outlook_of(run)
    return run._replace(outlook=old._replace(sums=old.sums + jnp.where(fresh, _alone(numbers, load, run, i), 0.0)))


def forget(numbers: Numbers, load: Load, run: Run, gone: Any, done: Any) -> Run:
    """Take out who ended with this step, as it stood when the outlook was made, and learn how long outputs were.

    Args:
        numbers: of the candidate.
        load: of the draw.
        run: in progress, at the end of a step.
        gone: who ended or left while running, shape (n,).
        done: who of them has all its tokens, shape (n,).

    Returns:
        The run.
    """
    if run.outlook is None:
        return run
    track, outlook, kind = run.track, run.outlook, _rows(load)
    then = jnp.maximum(track.emitted - (run.books.step - (outlook.until - AGE)), 0.0)
    out = expected(numbers, outlook.alive, kind, then, load.prompt) * jnp.where(gone, 1.0, 0.0)[None, :, None]

    def learn(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        seen, left = carry
        i = jnp.argmin(jnp.where(left, track.seat, jnp.inf))
        seen = seen.at[kind[i]].multiply(MEMORY).at[kind[i], _bins(track.emitted)[i]].add(1.0)
        return seen, left & (jnp.arange(left.shape[0]) != i)

    seen, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[1]), learn, (outlook.seen, done))
    return run._replace(outlook=outlook._replace(seen=seen, sums=outlook.sums - jnp.sum(out, axis=1)))
