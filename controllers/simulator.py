"""The exact simulator: the scheduler in closed loop with a plant and its noise. The judge of every tuning result."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from headway.controllers.compose import book_shares
from headway.controllers.controller import Controller
from headway.controllers.gain_schedule import GainSchedule
from headway.controllers.laws import law_init
from headway.controllers.order import DEGRADED
from headway.controllers.policy import (
    ASYNC,
    DEGRADE,
    HAS_SHARES,
    NEXT_STEP,
    RATE_TPS,
    SWAP_BLOCK_S,
    TRIAGE,
    Policy,
    pack_targets,
)
from headway.controllers.queue import next_arrival_s
from headway.controllers.scheduled import follow_load, pack_candidate, scheduled, stack_schedules
from headway.controllers.scheduler import plan, stop
from headway.models.compiled import compiled_inline, compiled_making, compiled_parallel
from headway.models.goodput import Outcome
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ATTAINMENT, MEASURES, measure
from headway.models.settlement import close_books, outcome_of, settle
from headway.models.signals import SIGNALS, Limits, Target
from headway.models.state import State, new_state
from headway.models.steptime import step_time
from headway.models.workload import Workload

NOISE_LENGTH = 8192
"""Noise factors per regime and run; a longer run goes round."""

LOG_COLUMNS = (
    "end_s",
    "step_time_s",
    "decode_requests",
    "decode_kv_tokens",
    "prefill_tokens",
    "prefill_pairs",
    "prefill_requests",
    "token_budget",
    "running",
    "waiting",
    "binding",
    "free_blocks",
)
"""What is recorded of a step."""

STALL = "the scheduler found nothing to do although requests wait; please report this workload and setting"
"""A fault of Headway's own, never of the user's."""


class Draw(NamedTuple):
    """The randomness of one run: a workload and the noise of every step. Common to all candidates that are compared.

    Args:
        workload: requests.
        decode: noise factors of decode-only steps, shape (NOISE_LENGTH,).
        mixed: noise factors of steps with prefill, shape (NOISE_LENGTH,).
    """

    workload: Workload
    decode: np.ndarray
    mixed: np.ndarray


class Candidate(NamedTuple):
    """What is compared: a law with a policy.

    Args:
        law: of the token budget.
        policy: of order, triage and caps.
        gains: numbers of both that follow the load, in their place; None where none does.
    """

    law: Controller
    policy: Policy
    gains: GainSchedule | None = None


@compiled_inline
def record(e, row):
    """Write down the step that just ended.

    Args:
        e: the books.
        row: one row of the log, shape (LOG_COLUMNS,), changed in place.
    """
    row[0], row[1] = e.now_s, e.last_step_s
    row[2], row[3], row[4], row[5], row[6] = e.n_decode, e.kv_read, e.prefill, e.pairs, e.chunks
    row[7], row[8], row[9] = e.token_budget, e.n_running, e.n_waiting
    row[10], row[11] = e.bound, e.free


@compiled_making
def habits_of(policy):
    """What the end of a step depends on, of a packed policy.

    Args:
        policy: packed.

    Returns:
        First token a step later, asynchronous, factor on degraded targets, shares, shape (4,).
    """
    degrade = policy[DEGRADE] if policy[TRIAGE] == DEGRADED else 0.0
    return np.array([policy[NEXT_STEP], policy[ASYNC], degrade, policy[HAS_SHARES]])


@compiled_making
def run_to_end(
    req, books, ids, keys, units, unit_ids, law_state, gaps, policy, law, schedule, targets, plant, decode_noise, mixed_noise, cut_s, log
):
    """Run until every request has ended, or to the cut.

    Args:
        req: requests before the first arrival; this and the next seven are the fields of a `State`, changed in place.
        books: the engine's.
        ids: id table.
        keys: key table [s].
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
        law_state: shape (STATE_SIZE,).
        gaps: histogram, shape (classes, GAP_BINS).
        policy: packed; this and the next are the fields of a `Packed`, changed in place where there is a schedule.
        law: packed.
        schedule: packed; shape (0,) for none.
        targets: shape (classes, 4) [s].
        plant: packed.
        decode_noise: factors, shape (k,).
        mixed_noise: factors, shape (k,).
        cut_s: end of a run of fixed length; 0 for none [s].
        log: shape (k, LOG_COLUMNS); (0, LOG_COLUMNS) records nothing.

    Returns:
        True; False if the scheduler stalled, which would be a fault of its own.
    """
    law_init(law, law_state)
    signals, habits = np.zeros(SIGNALS), habits_of(policy)
    e = books[0]
    n, length, n_classes, follows = len(req), len(decode_noise), targets.shape[0], scheduled(schedule)
    while e.done < n:
        if e.n_running + e.n_waiting == 0:
            next_s = next_arrival_s(req, e, keys)
            e.now_s = max(e.now_s, min(next_s, cut_s) if cut_s > 0.0 else next_s)
        if cut_s > 0.0 and e.now_s >= cut_s:
            stop(req, e, ids, keys, policy, targets, units, unit_ids, cut_s)
            break
        if follows:
            follow_load(e, schedule, policy, law, targets)
        if not plan(req, books, ids, keys, units, unit_ids, law_state, policy, law, targets, signals):
            if e.stalled != 0:
                return False
            continue
        y = step_time(plant, e.n_decode, e.kv_read, e.prefill, e.pairs, e.chunks)
        k = e.step % length
        y *= mixed_noise[k] if e.prefill > 0.0 else decode_noise[k]
        if e.moved > 0:
            y += policy[SWAP_BLOCK_S] * e.moved
        settle(req, books, ids, keys, units, unit_ids, gaps, y, targets, habits)
        if policy[HAS_SHARES] > 0.0:
            book_shares(e, policy, n_classes)
        if e.step <= log.shape[0]:
            record(e, log[e.step - 1])
    close_books(req, books, targets)
    return True


@compiled_parallel
def run_all(
    req,
    books,
    ids,
    keys,
    units,
    unit_ids,
    law_states,
    gaps,
    decode_noise,
    mixed_noise,
    policies,
    laws,
    schedules,
    targets,
    plant,
    stretch,
    cut_s,
    out,
):
    """Every candidate on every draw, in parallel.

    Args:
        req: fresh requests of each draw, shape (draws, n).
        books: of an idle engine before each draw, shape (draws, 1).
        ids: as many id tables as threads, shape (threads, ID_ROWS, columns).
        keys: as many key tables, shape as ids [s].
        units: empty prefix cache of each draw, shape (draws, units + 1).
        unit_ids: hash ids of all prompts of each draw, shape (draws, k); shorter ones filled up.
        law_states: scratch per thread, shape (threads, STATE_SIZE).
        gaps: scratch per thread, shape (threads, classes, GAP_BINS).
        decode_noise: shape (draws, k).
        mixed_noise: shape (draws, k).
        policies: shape (candidates, POLICY_SIZE).
        laws: shape (candidates, LAW_SIZE).
        schedules: shape (candidates, k); (candidates, 0) where none has any.
        targets: shape (classes, 4) [s].
        plant: packed.
        stretch: factor on all arrival times per candidate, shape (candidates,): above 1 is a lighter load.
        cut_s: end of a run of fixed length; 0 for none [s].
        out: measures, shape (candidates, draws, MEASURES), changed in place; NaN where the scheduler stalled.
    """
    draws, candidates = req.shape[0], laws.shape[0]
    for j in numba.prange(candidates * draws):
        q, m, t = j // draws, j % draws, numba.get_thread_id()
        mine, book, cache = req[m].copy(), books[m].copy(), units[m].copy()
        book[0].rate_tps = policies[q, RATE_TPS]
        gaps[t, :, :] = 0
        for i in range(len(mine)):
            mine[i].arrival_s *= stretch[q]
        log = np.zeros((0, 12))
        fine = run_to_end(
            mine,
            book,
            ids[t],
            keys[t],
            cache,
            unit_ids[m],
            law_states[t],
            gaps[t],
            policies[q].copy(),
            laws[q].copy(),
            schedules[q],
            targets,
            plant,
            decode_noise[m],
            mixed_noise[m],
            cut_s,
            log,
        )
        if fine:
            measure(mine, book, gaps[t], targets, out[q, m])
        else:
            out[q, m, :] = np.nan


def draw(source, identified: IdentifiedPlant, seed: int, requests: int, *, heldout: bool = False) -> Draw:
    """The randomness of one seed: a workload, and the plant's own residuals by block bootstrap.

    Args:
        source: a `WorkloadSource`.
        identified: the plant with its residuals.
        seed: from 0.
        requests: wanted.
        heldout: from what tuning never sees; other noise too.

    Returns:
        Draw.
    """
    workload = source.draw(seed, requests, heldout=heldout)
    decode, mixed = identified.noise.draw(2 * seed + heldout, NOISE_LENGTH)
    return Draw(workload, decode, mixed)


def simulate(
    identified: IdentifiedPlant,
    candidate: Candidate,
    drawn: Draw,
    targets: tuple[Target, ...],
    limits: Limits,
    *,
    cut_s: float = 0.0,
    record_steps: int = 0,
) -> Outcome:
    """One exact run.

    Args:
        identified: the plant.
        candidate: law, policy and gains.
        drawn: workload and noise.
        targets: one per class.
        limits: of the engine.
        cut_s: end of a run of fixed length; 0 runs until every request has ended [s].
        record_steps: most steps to record.

    Returns:
        Outcome; the same arguments give the same one.

    Raises:
        RuntimeError: the scheduler stalled with work to do: a fault of Headway's.
        ValueError: gains that law, policy or classes cannot follow.
    """
    classes, packed = pack_targets(targets), pack_candidate(candidate, targets, limits, identified.plant)
    s = fresh_state(drawn.workload, len(targets), limits, packed.policy[RATE_TPS])
    log = np.zeros((record_steps, len(LOG_COLUMNS)))
    if not run_to_end(*s, *packed, classes, identified.plant.pack(), drawn.decode, drawn.mixed, cut_s, log):
        raise RuntimeError(STALL)
    return outcome_of(s, log[: min(record_steps, int(s.books[0]["step"]))])


def fresh_state(w: Workload, n_classes: int, limits: Limits, rate_tps: float) -> State:
    """State of an idle engine with these limits.

    Args:
        w: requests.
        n_classes: number of classes.
        limits: of the engine.
        rate_tps: prefill rate to assume until one is measured [tokens/s].

    Returns:
        State.

    Raises:
        ValueError: a prompt unit that is no whole number of blocks.
    """
    caching = limits.prefix_cache == "on"
    return new_state(w, n_classes, blocks=limits.blocks, block_tokens=limits.block_tokens, caching=caching, rate_tps=rate_tps)


def evaluate(
    identified: IdentifiedPlant,
    candidates: list[Candidate],
    draws: list[Draw],
    targets: tuple[Target, ...],
    limits: Limits,
    *,
    stretch: np.ndarray | None = None,
    cut_s: float = 0.0,
) -> np.ndarray:
    """Every candidate on every draw: common random numbers, so differences between candidates are paired.

    Args:
        identified: the plant.
        candidates: laws with policies and gains.
        draws: all of one length.
        targets: one per class.
        limits: of the engine.
        stretch: factor on all arrival times per candidate, shape (candidates,); None for 1.
        cut_s: end of a run of fixed length; 0 for none [s].

    Returns:
        Measures, shape (candidates, draws, MEASURES).

    Raises:
        RuntimeError: the scheduler stalled with work to do: a fault of Headway's.
        ValueError: gains that law, policy or classes cannot follow.
    """
    packed = [pack_candidate(c, targets, limits, identified.plant) for c in candidates]
    fresh = [fresh_state(d.workload, len(targets), limits, 1.0) for d in draws]
    threads = numba.get_num_threads()
    out = np.zeros((len(candidates), len(draws), MEASURES))
    ids, keys, law_states, gaps = (np.stack([part] * threads) for part in (fresh[0].ids, fresh[0].keys, fresh[0].law, fresh[0].gaps))
    units = np.stack([_filled(s.units, max(len(f.units) for f in fresh)) for s in fresh])
    most_ids = max(len(s.unit_ids) for s in fresh)
    unit_ids = np.stack([np.concatenate([s.unit_ids, np.zeros(most_ids - len(s.unit_ids), np.int64)]) for s in fresh])
    run_all(
        np.stack([s.req for s in fresh]),
        np.stack([s.books for s in fresh]),
        ids,
        keys,
        units,
        unit_ids,
        law_states,
        gaps,
        np.stack([d.decode for d in draws]),
        np.stack([d.mixed for d in draws]),
        np.stack([p.policy for p in packed]),
        np.stack([p.law for p in packed]),
        stack_schedules([p.schedule for p in packed]),
        pack_targets(targets),
        identified.plant.pack(),
        np.ones(len(candidates)) if stretch is None else np.asarray(stretch, float),
        cut_s,
        out,
    )
    if np.isnan(out[..., ATTAINMENT]).any():
        raise RuntimeError(STALL)
    return out


def _filled(units: np.ndarray, length: int) -> np.ndarray:
    """An empty prefix cache with room for more units."""
    filled = np.zeros(length, units.dtype)
    filled["older"], filled["newer"] = length - 1, length - 1
    return filled
