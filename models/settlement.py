"""The end of a step: tokens come out, requests end, what was owed and what was on time is booked."""

from __future__ import annotations

import numpy as np

from headway.models.compiled import compiled, compiled_inline
from headway.models.goodput import FINISHED, Outcome, gap_bin, owed_at_cut, tokens_owed
from headway.models.mechanics import EXACT, client_left, end_request, release
from headway.models.state import BOUND_BY_ADMISSION, BOUND_BY_BUDGET, BOUND_BY_KV, BOUND_BY_RUNNING, GHOSTS, RUNNING_IDS, State


@compiled_inline
def emit(r, now_s, before_s, common_bin, targets, gaps):
    """One token of one request comes out.

    Args:
        r: its record.
        now_s: when [s].
        before_s: when the step began, which is when most requests got their last token [s].
        common_bin: histogram bin of the step's own duration.
        targets: shape (classes, 4): TTFT at the engine, budget, ITL, transport [s].
        gaps: histogram, shape (classes, GAP_BINS).
    """
    c = r.class_id
    if r.emitted == 0.0:
        r.ttft_s = now_s - r.arrival_s
        r.met = 1.0 if r.ttft_s <= targets[c, 0] * EXACT else 0.0
        r.owed = 1.0
        r.on_time = r.met
    else:
        gap = now_s - r.last_s
        if gap <= targets[c, 1] * EXACT:
            r.owed += 1.0
            r.on_time += r.met
        else:
            r.owed += tokens_owed(gap + targets[c, 3], targets[c, 2])
        if gap > r.max_gap_s:
            r.max_gap_s = gap
        gaps[c, common_bin if r.last_s == before_s else gap_bin(gap)] += 1
    # as long as every token was on time, each comes before arrival + ttft + j itl
    if r.on_time < r.owed and now_s > r.arrival_s + (targets[c, 0] + r.emitted * targets[c, 2]) * EXACT:
        r.after_deadline += 1.0
    r.emitted += 1.0


@compiled
def emit_degraded(r, now_s, degrade, targets):
    """Count a token of a degraded request by its own targets; to be called before `last_s` is renewed.

    Args:
        r: its record, the token emitted.
        now_s: when [s].
        degrade: factor on the targets of its class.
        targets: shape (classes, 4): TTFT at the engine, budget, ITL, transport [s].
    """
    if r.emitted == 1.0:
        if now_s - r.arrival_s <= degrade * targets[r.class_id, 0] * EXACT:
            r.degraded, r.degraded_on = 2, 1.0
    elif r.degraded == 2 and now_s - r.last_s <= degrade * targets[r.class_id, 1] * EXACT:
        r.degraded_on += 1.0


@compiled
def keep_before(e):
    """Keep what was measured of the last step for the one after the next.

    Args:
        e: the books.
    """
    before = e.before
    before[0], before[1], before[2] = e.last_step_s, e.last_prefill, e.last_decodes
    before[3] = 1.0 if e.last_bound == BOUND_BY_BUDGET else 0.0
    before[4], before[5], before[6] = e.last_kv, e.last_pairs, e.last_chunks


@compiled_inline
def count_step(e, step_time_s):
    """Book the step itself: its duration, what limited it, what was measured, the rate at which it computed prompts.

    Args:
        e: the books.
        step_time_s: how long it took [s].
    """
    e.now_s += step_time_s
    e.settled_s = e.now_s
    e.step += 1
    e.last_step_s, e.last_prefill, e.last_decodes, e.last_bound = step_time_s, e.prefill, e.n_decode, e.bound
    e.last_kv, e.last_pairs, e.last_chunks = e.kv_read, e.pairs, e.chunks
    if e.bound == BOUND_BY_BUDGET:
        e.by_budget += 1
    elif e.bound == BOUND_BY_RUNNING:
        e.by_running += 1
    elif e.bound == BOUND_BY_KV:
        e.by_kv += 1
    elif e.bound == BOUND_BY_ADMISSION:
        e.by_admission += 1
    else:
        e.by_none += 1
    e.most_decode, e.most_kv = max(e.most_decode, e.n_decode), max(e.most_kv, e.kv_read)
    e.most_prefill, e.most_pairs = max(e.most_prefill, e.prefill), max(e.most_pairs, e.pairs)
    e.since_prefill = e.since_prefill + 1 if e.prefill == 0.0 else 0
    e.moved = 0
    e.queued -= e.prefill
    if e.prefill >= 64.0:
        e.rate_tps += 0.02 * (e.prefill / step_time_s - e.rate_tps)


@compiled
def bury_ghosts(req, e, ids, units, unit_ids):
    """Give back what those held who rode along after their end.

    Args:
        req: requests.
        e: the books.
        ids: id table.
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
    """
    for k in range(e.n_ghosts):
        i = ids[GHOSTS, k]
        release(i, req[i], e, ids, units, unit_ids)
    e.n_ghosts, e.ghost_kv = 0, 0.0


@compiled_inline
def depart(i, r, e, ids, units, unit_ids, ghosts):
    """Give back what a running request held that ended, or let it ride along once more.

    Args:
        i: request id.
        r: its record.
        e: the books.
        ids: id table.
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
        ghosts: whether the scheduler is a step ahead and does not know yet.
    """
    if ghosts:
        ids[GHOSTS, e.n_ghosts] = i
        e.n_ghosts += 1
        e.ghost_kv += r.prompt + r.emitted if r.computed >= r.goal else r.computed
    else:
        release(i, r, e, ids, units, unit_ids)


@compiled
def settle(req, books, ids, keys, units, unit_ids, gaps, step_time_s, targets, habits):
    """The step ended: tokens come out, requests end, clients leave, the books are closed.

    Args:
        req: requests, with a composed step.
        books: the engine's.
        ids: id table.
        keys: key table [s].
        units: the prefix cache.
        unit_ids: hash ids of all prompts.
        gaps: histogram, shape (classes, GAP_BINS).
        step_time_s: how long it took [s].
        targets: shape (classes, 4): TTFT at the engine, budget, ITL, transport [s].
        habits: first token a step after the last chunk, asynchronous (1 or 0 each); factor on degraded targets, 0 for none;
            whether shares are kept (1 or 0), shape (4,).
    """
    e = books[0]
    before_s = e.now_s
    next_step, ghosts, degrades, shares = habits[0] > 0.0, habits[1] > 0.0, habits[2] > 0.0, habits[3] > 0.0
    if ghosts:
        e.seen_s = before_s
        keep_before(e)
    count_step(e, step_time_s)
    now_s, step = e.now_s, e.step - 1
    e.n_released = 0
    if e.n_ghosts > 0:
        bury_ghosts(req, e, ids, units, unit_ids)
    common, clients = gap_bin(step_time_s), e.clients
    kept, ready, ready_kv, prompts = 0, 0.0, 0.0, 0
    for k in range(e.n_running):
        i = ids[RUNNING_IDS, k]
        r = req[i]
        x = r.take
        r.take = 0.0
        token = x < 0.0
        if x > 0.0:
            r.computed += x
            if shares:
                e.given[r.class_id] += x
            r.stepped = step
            token = r.computed >= r.goal and not (next_step and r.emitted == 0.0)
        if token:
            emit(r, now_s, before_s, common, targets, gaps)
            if degrades and r.degraded > 0:
                emit_degraded(r, now_s, habits[2], targets)
            r.last_s = now_s
            r.stepped = step
            if r.emitted >= r.output:
                depart(i, r, e, ids, units, unit_ids, ghosts)
                end_request(i, req, e, ids, keys, FINISHED)
                continue
        if clients > 0 and (now_s > r.arrival_s + r.cancel_s or (r.emitted == 0.0 and now_s > r.arrival_s + r.patience_s)):
            status = client_left(r, now_s, targets[r.class_id, 0], targets[r.class_id, 2])
            depart(i, r, e, ids, units, unit_ids, ghosts)
            end_request(i, req, e, ids, keys, status)
            continue
        # counted for the next step while the record is at hand
        if r.computed >= r.goal:
            ready += 1.0
            ready_kv += r.prompt + r.emitted
        else:
            if prompts == 0:
                e.context = r.computed
            prompts += 1
        ids[RUNNING_IDS, kept] = i
        kept += 1
    e.n_running, e.ready, e.ready_kv, e.prompts = kept, ready, ready_kv, prompts


@compiled
def close_books(req, books, targets):
    """The run is over: what every request owes in all, those cut off unfinished included.

    Args:
        req: requests.
        books: the engine's.
        targets: shape (classes, 4): TTFT at the engine, budget, ITL, transport [s].
    """
    now_s = books[0].now_s
    for i in range(len(req)):
        r = req[i]
        ttft_s, itl_s = targets[r.class_id, 0], targets[r.class_id, 2]
        r.owed = owed_at_cut(r.status, r.emitted, r.output, r.arrival_s, r.last_s, r.owed, now_s, ttft_s, itl_s)


def outcome_of(s: State, log: np.ndarray) -> Outcome:
    """What a run did, once its books are closed.

    Args:
        s: state at the end.
        log: recorded steps, shape (k, LOG_COLUMNS), or none, shape (0, LOG_COLUMNS).

    Returns:
        Outcome; its end is the end of the last step.
    """
    req, e = s.req, s.books[0]
    return Outcome(
        status=req["status"],
        class_id=req["class_id"],
        arrival_s=req["arrival_s"],
        prompt_tokens=req["prompt"],
        output_tokens=req["output"],
        emitted=req["emitted"],
        ttft_s=req["ttft_s"],
        last_s=req["last_s"],
        on_time=req["on_time"],
        owed=req["owed"],
        max_gap_s=req["max_gap_s"],
        gaps=s.gaps,
        end_s=float(e["settled_s"]),
        steps=int(e["step"]),
        preempted=int(e["preempted"]),
        binding=np.array([e["by_none"], e["by_kv"], e["by_running"], e["by_budget"], e["by_admission"]]),
        largest=np.array([e["most_decode"], e["most_kv"], e["most_prefill"], e["most_pairs"]]),
        log=log,
        degraded=req["degraded"] > 0,
        degraded_on_time=req["degraded_on"],
        spared=req["spared"] > 0,
        hit_tokens=req["hit"],
        recomputed=float(e["recomputed"]),
        swapped_blocks=float(e["swapped"]),
        token_late=req["after_deadline"],
    )
