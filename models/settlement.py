"""The end of a step: tokens come out, requests end, what was owed and what was on time is booked."""

from __future__ import annotations

import numpy as np

from headway.models.compiled import compiled, compiled_inline
from headway.models.goodput import FINISHED, Outcome, gap_bin, owed_at_cut, tokens_owed
from headway.models.mechanics import end_request
from headway.models.state import BOUND_BY_ADMISSION, BOUND_BY_BUDGET, BOUND_BY_KV, BOUND_BY_RUNNING, RUNNING_IDS, State

EXACT = 1.0 + 1e-9
"""A step of exactly the budget is on time whatever the clock's last digit says."""


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
    r.emitted += 1.0
    r.last_s = now_s


@compiled_inline
def count_step(e, step_time_s):
    """Book the step itself: its duration, what limited it, the rate at which it computed prompts.

    Args:
        e: the books.
        step_time_s: how long it took [s].
    """
    e.now_s += step_time_s
    e.settled_s = e.now_s
    e.step += 1
    e.last_step_s, e.last_prefill, e.last_decodes, e.last_bound = step_time_s, e.prefill, e.n_decode, e.bound
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
    if e.prefill >= 64.0:
        e.rate_tps += 0.02 * (e.prefill / step_time_s - e.rate_tps)


@compiled
def settle(req, books, ids, gaps, step_time_s, targets, next_step):
    """The step ended: tokens come out, requests end, the books are closed.

    Args:
        req: requests, with a composed step.
        books: the engine's.
        ids: id table.
        gaps: histogram, shape (classes, GAP_BINS).
        step_time_s: how long it took [s].
        targets: shape (classes, 4): TTFT at the engine, budget, ITL, transport [s].
        next_step: the first token comes one decode step after the prompt, not with its last chunk.
    """
    e = books[0]
    before_s = e.now_s
    count_step(e, step_time_s)
    now_s = e.now_s
    e.n_released = 0
    common = gap_bin(step_time_s)
    kept = 0
    for k in range(e.n_running):
        i = ids[RUNNING_IDS, k]
        r = req[i]
        x = r.take
        r.take = 0.0
        token = x < 0.0
        if x > 0.0:
            r.computed += x
            token = r.computed >= r.goal and not (next_step and r.emitted == 0.0)
        if token:
            emit(r, now_s, before_s, common, targets, gaps)
            if r.emitted >= r.output:
                end_request(i, r, e, ids, FINISHED)
                continue
        ids[RUNNING_IDS, kept] = i
        kept += 1
    e.n_running = kept


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
    )
