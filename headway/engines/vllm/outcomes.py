"""What clients saw, judged like a run of the simulator: which tokens were on time, which were owed, what became of each request."""

from __future__ import annotations

import numpy as np

from headway.controllers.simulator import LOG_COLUMNS
from headway.engines.vllm.clients import ClientRun
from headway.models.goodput import Outcome
from headway.models.outcome import (
    ABANDONED,
    CANCELLED,
    EXPIRED,
    FAILED,
    FINISHED,
    FUTURE,
    GAP_BINS,
    GAP_LOW_S,
    GAP_RATIO,
    REJECTED,
    RUNNING,
    WAITING,
    owed_at_cut,
)
from headway.models.signals import Target

NAMED = {"finished": FINISHED, "gave up": EXPIRED, "shed": REJECTED, "refused": REJECTED, "failed": FAILED, "future": FUTURE}
"""How the simulator calls what became of a request. One whose client gives up before its first token is what a queue timeout leaves."""
EXACT = 1 + 1e-9


def outcome_of(run: ClientRun, targets: tuple[Target, ...], log: np.ndarray, *, preempted: int = 0) -> Outcome:
    """Judge a run of clients.

    A time to first token counts from when the request was to be sent: a load generator that is late does not flatter the
    server. Gaps are the client's; what is handed on are times at the engine, the promised transport taken off, which is
    added again wherever an outcome is judged.

    Args:
        run: what clients saw.
        targets: one per class.
        log: steps of the run, shape (k, LOG_COLUMNS).
        preempted: preemptions in it.

    Returns:
        Outcome.
    """
    n, end_s = len(run.status), max((float(x[-1]) for x in run.token_s if len(x)), default=run.span_s)
    first, last, longest = np.full(n, np.nan), np.full(n, np.nan), np.zeros(n)
    emitted, on_time, owed, past = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    gaps, status = np.zeros((len(targets), GAP_BINS)), np.zeros(n, np.int64)
    for k in range(n):
        target, stamps = targets[int(run.class_id[k])], run.token_s[k]
        emitted[k] = len(stamps)
        if len(stamps):
            ttft_s, between = float(stamps[0] - run.arrival_s[k]), np.diff(stamps)
            met = ttft_s <= target.ttft_s * EXACT
            first[k], last[k] = ttft_s - target.transport_s, stamps[-1]
            fine = between <= target.itl_s * EXACT
            owed[k] = 1 + np.where(fine, 1.0, np.maximum(1.0, np.floor(between / target.itl_s + 1e-9))).sum()
            on_time[k] = met * (1 + fine.sum())
            at_engine = np.maximum(between - target.transport_s, 0.0)
            longest[k] = at_engine.max(initial=0.0)
            np.add.at(gaps[int(run.class_id[k])], _bins(at_engine), 1)
            due = run.arrival_s[k] + target.ttft_s + np.arange(len(stamps)) * target.itl_s
            past[k] = (stamps > due * EXACT).sum()
        status[k] = _status(run, k, target, on_time[k] >= owed[k])
        asked, spent = float(run.output_tokens[k]), float(run.span_s if status[k] in (RUNNING, WAITING) else run.end_s[k])
        args = (status[k], emitted[k], asked, run.arrival_s[k], last[k], owed[k], spent, target.first_token_s, target.itl_s)
        owed[k] = owed_at_cut(*args)
    bound = np.bincount(log[:, LOG_COLUMNS.index("binding")].astype(int), minlength=5)[:5] if len(log) else np.zeros(5)
    largest = np.array([log[:, k].max(initial=0.0) for k in (2, 3, 4, 5)]) if len(log) else np.zeros(4)
    return Outcome(
        status=status,
        class_id=run.class_id,
        arrival_s=run.arrival_s,
        prompt_tokens=run.prompt_tokens.astype(float),
        output_tokens=run.output_tokens.astype(float),
        emitted=emitted,
        ttft_s=first,
        last_s=last,
        on_time=on_time,
        owed=owed,
        max_gap_s=longest,
        gaps=gaps,
        end_s=end_s,
        steps=len(log),
        preempted=preempted,
        binding=bound.astype(float),
        largest=largest,
        log=log,
        token_late=past,
    )


def _status(run: ClientRun, k: int, target: Target, all_on_time: bool) -> int:
    """As the simulator would call it."""
    said, tokens = str(run.status[k]), len(run.token_s[k])
    if said == "running":
        return RUNNING if tokens else WAITING
    if said == "left":  # nothing late, and the first token not overdue: nobody broke a promise
        overdue = not tokens and run.end_s[k] - run.arrival_s[k] > target.ttft_s
        return ABANDONED if overdue or not all_on_time else CANCELLED
    return NAMED[said]


def _bins(gap_s: np.ndarray) -> np.ndarray:
    """Bins of gaps in the histogram."""
    at = np.log(np.maximum(gap_s, GAP_LOW_S) / GAP_LOW_S) / np.log(GAP_RATIO)
    return np.minimum(at.astype(int), GAP_BINS - 1)
