"""The exact simulator's twin in JAX: the same run, step by step, for sweeps by `vmap` on whatever device JAX has.

It does what docs/engine.md says, as `headway.controllers.simulator` does, and a test holds the two equal. There the queues
are heaps and every step touches only who takes part; here they are masks over all requests, so that a run costs the
number of requests in every step, and a sweep is worth it where a device runs thousands of them side by side. It keeps no
histogram of gaps. Pools are no part of it: every prompt is computed here. The clock needs 64 bits:
`jax.config.update("jax_enable_x64", True)`.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headway.controllers.controller import Controller
from headway.controllers.simulator import STALL, Candidate, Draw
from headway.controllers.twin.admission import gate_of
from headway.controllers.twin.compose import compose, ready, sums
from headway.controllers.twin.load import Choices, Load, Numbers, choices_of, load_of, numbers_of
from headway.controllers.twin.order import arrive, leave, renew
from headway.controllers.twin.settle import give_back, measured, owed, settle
from headway.controllers.twin.state import Books, Run, count, fresh_run, running, waiting
from headway.models.goodput import ABANDONED, CLEAN_SHARE, FINISHED, FUTURE, REJECTED, RUNNING
from headway.models.identified import IdentifiedPlant
from headway.models.measures import (
    ATTAINMENT,
    CLEAN,
    END_S,
    GOODPUT_TPS,
    ITL_P99_S,
    MAX_GAP_S,
    MEASURES,
    ON_TIME,
    OWED,
    SHED,
    STEPS,
    THROUGHPUT_TPS,
)
from headway.models.plant import Batch, Plant
from headway.models.signals import Limits, Measurement, Target

MAX_STEPS = 1_000_000
"""Steps after which a run is given up."""


class TwinOutcome(NamedTuple):
    """What a run did to every request, shapes (n,), and the run's own counts.

    Args:
        on_time: tokens on time [tokens].
        owed: tokens owed [tokens].
        clock_s: end of the run [s].
        steps: engine steps.
        status: FINISHED, REJECTED, ...
        emitted: tokens that came [tokens].
        ttft_s: at the engine; NaN where no token came [s].
        last_s: time of the last token at the engine [s].
        max_gap_s: longest gap between tokens at the engine [s].
        degraded: whether it was given degraded targets.
        spared: whether triage would have shed it, but for the cap.
        preempted: preemptions.
    """

    on_time: np.ndarray
    owed: np.ndarray
    clock_s: float
    steps: int
    status: np.ndarray
    emitted: np.ndarray
    ttft_s: np.ndarray
    last_s: np.ndarray
    max_gap_s: np.ndarray
    degraded: np.ndarray
    spared: np.ndarray
    preempted: int


def _signals(books: Books, numbers: Numbers, now: tuple[Any, ...]) -> Measurement:
    """What the law is told: of the step that ended last, asynchronous of the one before, and of the one to be composed."""
    y, prefill, decode, bound, kv, pairs, chunks, _ = jnp.where(numbers.asynchronous, books.earlier, books.last)
    n, read, context, _ = now
    return Measurement(y, prefill, decode, bound, n, kv, pairs, chunks, read, context)


def _step(choices: Choices, law: Controller, plant: Plant, numbers: Numbers, load: Load, run: Run) -> Run:
    """One step of an engine that has something to do."""
    now = ready(numbers, load, run, jnp.any(numbers.strides > 1))
    state, tokens = law.update(run.law, _signals(run.books, numbers, now), numbers.budget_s)
    budget = jnp.minimum(jnp.floor(jnp.asarray(tokens, float)), numbers.max_tokens)
    gate = gate_of(numbers, law, state, plant) if choices.admission else None
    run, bound, wants = compose(choices, numbers, load, run._replace(law=jnp.asarray(state, float)), budget, now[3], gate)
    total = sums(load, run.track)
    k = jnp.asarray(run.books.step % load.decode_noise.shape[0], int)
    y = plant.step_time_s(Batch(*total)) * jnp.where(total[2] > 0, load.mixed_noise[k], load.decode_noise[k])
    y = y + numbers.swap_block_s * run.books.moved
    given = _by_class(numbers, load, jnp.maximum(run.track.take, 0.0))
    shares = _deficits(numbers, run.books.deficit, given, _by_class(numbers, load, jnp.where(wants, 1.0, 0.0)) > 0)
    return settle(numbers, load, measured(run, y, total, jnp.where(bound, 1.0, 0.0)), shares)


def _by_class(numbers: Numbers, load: Load, what: Any) -> Any:
    return jnp.zeros_like(numbers.shares).at[load.kind].add(what)


def _deficits(numbers: Numbers, deficit: Any, given: Any, wants: Any) -> Any:
    """Prompt tokens that each class is behind its share, docs/engine.md section 4."""
    weights = jnp.sum(jnp.where(wants, numbers.shares, 0.0))
    due = numbers.shares / jnp.where(weights > 0, weights, 1.0) * jnp.sum(given) - given
    most = 2.0 * numbers.max_tokens
    return jnp.where(wants, jnp.clip(deficit + due, -most, most), 0.0)


def _jump(numbers: Numbers, run: Run) -> Any:
    """Time at which the engine goes on: an idle one at the next arrival, or at the cut."""
    next_s = jnp.min(jnp.where(run.track.status == FUTURE, run.track.arrival_s, jnp.inf))
    next_s = jnp.where(numbers.cut_s > 0, jnp.minimum(next_s, numbers.cut_s), next_s)
    idle = ~jnp.any(running(run.track) | waiting(run.track))
    return jnp.where(idle, jnp.maximum(run.books.now_s, next_s), run.books.now_s)


def run_to_end(choices: Choices, law: Controller, plant: Plant, numbers: Numbers, load: Load) -> Run:
    """Run until every request has ended, or to the cut. Pure, and fit for `jax.jit` and `jax.vmap` in all but `choices`.

    Args:
        choices: of the twin.
        law: of the token budget.
        plant: durations without noise.
        numbers: of the candidate.
        load: of the draw.

    Returns:
        The run at its end.
    """

    def undone(run: Run) -> Any:
        return jnp.any(run.track.status <= RUNNING)

    def more(run: Run) -> Any:
        cut = (numbers.cut_s > 0) & (_jump(numbers, run) >= numbers.cut_s)
        return undone(run) & ~cut & ~run.books.stalled & (run.books.step < numbers.max_steps)

    def turn(run: Run) -> Run:
        idle = ~jnp.any(running(run.track) | waiting(run.track))
        now_s = _jump(numbers, run)
        run = run._replace(books=run.books._replace(now_s=now_s))
        ghosts = run.track.ghost & idle
        run = give_back(numbers, load, run, ghosts)
        run = run._replace(track=run.track._replace(ghost=run.track.ghost & ~ghosts))
        run = arrive(choices, numbers, load, run, jnp.where(numbers.asynchronous & ~idle, run.books.started_s, now_s))
        run = leave(numbers, load, renew(choices, numbers, load, run))
        works = jnp.any(running(run.track) | waiting(run.track))
        return jax.lax.cond(works, lambda run: _step(choices, law, plant, numbers, load, run), lambda run: run, run)

    run = jax.lax.while_loop(more, turn, fresh_run(choices, numbers, load, law))
    books = run.books._replace(now_s=_jump(numbers, run))
    cut = undone(run) & (numbers.cut_s > 0) & (books.now_s >= numbers.cut_s)
    late = run._replace(books=books._replace(settled_s=jnp.maximum(books.settled_s, numbers.cut_s)))
    late = arrive(choices, numbers, load, late, books.now_s)
    run = jax.tree.map(lambda a, b: jnp.where(cut, a, b), late, run)
    return run._replace(track=run.track._replace(owed=owed(load, run)))


_run = jax.jit(run_to_end, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def _sweep(choices: Choices, laws: Controller, plant: Plant, numbers: Numbers, loads: Load) -> tuple[Any, Any]:
    """Every candidate on every draw: measures of shape (candidates, draws, MEASURES), and whether each run came to its end."""

    def one(law: Controller, number: Numbers, load: Load) -> tuple[Any, Any]:
        run = run_to_end(choices, law, plant, number, load)
        return measures(load, run), ended(number, run)

    return jax.vmap(jax.vmap(one, (None, None, 0)), (0, 0, None))(laws, numbers, loads)


def ended(numbers: Numbers, run: Run) -> Any:
    """Whether a run came to its end: it did not stall, and did not run out of steps.

    Args:
        numbers: of the candidate.
        run: at its end.

    Returns:
        Bool, shape ().
    """
    over = ~jnp.any(run.track.status <= RUNNING) | ((numbers.cut_s > 0) & (run.books.settled_s >= numbers.cut_s))
    return over & ~run.books.stalled


def measures(load: Load, run: Run) -> Any:
    """The figures that a search compares, as `headway.models.measures.measure`; the p99 of the gaps is NaN.

    Args:
        load: of the draw.
        run: at its end.

    Returns:
        Shape (MEASURES,).
    """
    track, end_s = run.track, run.books.settled_s
    on, due = jnp.sum(track.on_time), jnp.sum(track.owed)
    lost = track.status >= REJECTED
    arrived = count(track.status != FUTURE)
    decided = count((track.owed > 0) | (track.status == FINISHED) | lost)
    clean = count(~lost & (track.met > 0) & (track.on_time >= CLEAN_SHARE * track.owed - 1e-9))
    span = jnp.maximum(end_s - track.arrival_s[0], 1e-9)
    longest = jnp.max(jnp.where(track.max_gap_s > 0, track.max_gap_s + load.transport_s, 0.0))
    found = {
        ATTAINMENT: on / jnp.maximum(due, 1e-9),
        CLEAN: clean / jnp.maximum(decided, 1.0),
        SHED: count(lost & (track.status != ABANDONED)) / jnp.maximum(arrived, 1.0),
        GOODPUT_TPS: on / span,
        THROUGHPUT_TPS: jnp.sum(track.emitted) / span,
        ITL_P99_S: jnp.asarray(jnp.nan, float),
        MAX_GAP_S: longest,
        STEPS: run.books.step,
        ON_TIME: on,
        OWED: due,
        END_S: end_s,
    }
    return jnp.stack([found[k] for k in range(MEASURES)])


def _floats(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x, float), tree)


def _wide() -> None:
    if not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]  # made at run time
        raise RuntimeError("the twin's clock needs 64 bits; call jax.config.update('jax_enable_x64', True) before")


def simulate_twin(
    identified: IdentifiedPlant,
    candidate: Candidate,
    drawn: Draw,
    targets: tuple[Target, ...],
    limits: Limits,
    *,
    cut_s: float = 0.0,
    max_steps: int = MAX_STEPS,
) -> TwinOutcome:
    """One run of the twin; `headway.controllers.simulator.simulate` is the same, and faster for a single run.

    Args:
        identified: the plant.
        candidate: law and policy.
        drawn: workload and noise.
        targets: one per class.
        limits: of the engine.
        cut_s: end of a run of fixed length; 0 runs until every request has ended [s].
        max_steps: after which a run is given up.

    Returns:
        Outcome; the same arguments give the same one.

    Raises:
        RuntimeError: 32-bit floats, a run that takes more steps, or a stall, which would be a fault of Headway's.
        ValueError: a prefix unit that is no whole number of blocks, or numbers per class that do not match.
    """
    _wide()
    load, units = load_of(drawn, targets, limits)
    choices = choices_of(candidate.policy, units)
    numbers = numbers_of(candidate, targets, limits, identified.plant, cut_s, max_steps)
    run = jax.device_get(_run(choices, _floats(candidate.law), _floats(identified.plant), numbers, load))
    if run.books.stalled:
        raise RuntimeError(STALL)
    if not ended(numbers, run):
        raise RuntimeError(f"the run did not end within {max_steps:,} steps; raise max_steps")
    t, b = run.track, run.books
    counts = {"clock_s": float(b.settled_s), "steps": int(b.step), "preempted": int(b.fronts)}
    return TwinOutcome(
        t.on_time, t.owed, status=t.status, emitted=t.emitted, ttft_s=t.ttft_s, last_s=t.last_s, max_gap_s=t.max_gap_s,
        degraded=t.degraded, spared=t.spared, **counts
    )  # fmt: skip


def sweep(
    identified: IdentifiedPlant,
    candidates: list[Candidate],
    draws: list[Draw],
    targets: tuple[Target, ...],
    limits: Limits,
    *,
    cut_s: float = 0.0,
    max_steps: int = MAX_STEPS,
) -> np.ndarray:
    """Every candidate on every draw in one compiled call, as `headway.controllers.simulator.evaluate`.

    Candidates may differ in every number, in triage, phases and preemption, and between order by slack and by deadline;
    compiled once more is each kind of law, stock order, and admission.

    Args:
        identified: the plant.
        candidates: laws with policies.
        draws: all of one length.
        targets: one per class.
        limits: of the engine.
        cut_s: end of a run of fixed length; 0 for none [s].
        max_steps: after which a run is given up.

    Returns:
        Measures, shape (candidates, draws, MEASURES); the p99 of the gaps is NaN.

    Raises:
        RuntimeError: 32-bit floats, a run that takes more steps, or a stall, which would be a fault of Headway's.
        ValueError: a prefix unit that is no whole number of blocks, or numbers per class that do not match.
    """
    _wide()
    stack = lambda trees: jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)  # noqa: E731
    given = [load_of(d, targets, limits) for d in draws]
    width = max(load.unit.shape[1] for load, _ in given)
    padded = [load._replace(unit=np.pad(load.unit, ((0, 0), (0, width - load.unit.shape[1])), constant_values=-1)) for load, _ in given]
    loads, units = stack(padded), max(ids for _, ids in given)
    groups: dict[Any, list[int]] = {}
    for q, c in enumerate(candidates):
        groups.setdefault((choices_of(c.policy, units), jax.tree.structure(c.law)), []).append(q)
    out = np.zeros((len(candidates), len(draws), MEASURES))
    for (choices, _), mine in groups.items():
        laws = stack([_floats(candidates[q].law) for q in mine])
        numbers = stack([numbers_of(candidates[q], targets, limits, identified.plant, cut_s, max_steps) for q in mine])
        out[mine], fine = jax.device_get(_sweep(choices, laws, _floats(identified.plant), numbers, loads))
        if not fine.all():
            raise RuntimeError(f"{STALL}; or the run takes more than {max_steps:,} steps")
    return out
