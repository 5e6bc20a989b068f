"""The state of a run: one record per request, one of the engine's books, and the queues, all changed in place by compiled code.

Records keep what is touched together in one or two cache lines and pass by address: thirty separate arrays cost eight
times as much per step, most of it in reference counts and cache misses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.models.goodput import GAP_BINS

LAW_STATE = 8
"""Numbers of state that any law may keep."""
REQUEST = np.dtype(
    [
        ("arrival_s", "f8"),  # [s]
        ("prompt", "f8"),  # prompt tokens
        ("output", "f8"),  # tokens to emit: ends a request, and fails one at the door that can never fit; unknown to order and triage
        ("class_id", "i8"),  # index into the targets
        ("goal", "f8"),  # tokens to compute before it decodes: the prompt, after a preemption also what it had emitted
        ("computed", "f8"),  # of them, computed so far
        ("emitted", "f8"),  # tokens emitted
        ("blocks", "i8"),  # cache blocks held
        ("last_s", "f8"),  # time of its last token [s]
        ("ttft_s", "f8"),  # NaN until the first token [s]
        ("met", "f8"),  # 1 if the first token was on time
        ("on_time", "f8"),  # tokens on time
        ("owed", "f8"),  # tokens owed
        ("max_gap_s", "f8"),  # longest gap [s]
        ("status", "i8"),  # see headway.models.goodput
        ("admitted_s", "f8"),  # when it was first admitted, NaN until then [s]
        ("take", "f8"),  # tokens in this step: a chunk, -1 for a decode, 0 for nothing
    ]
)
"""What is known of one request."""

OUTLOOK_BINS = 144
"""Bins of output lengths: one per token up to 16, then eight to every doubling, up to a million tokens."""
OUTLOOK_CLASSES = 8
"""Classes whose output lengths are kept apart; any further ones count with the last."""
EXPECTED, EXPECTED_KV, VARIANCE, ALL_STAY, CENSORED, EXPOSED, SEEN, ALIVE = range(8)
"""Rows of the outlook. One column per point of the horizon: requests and cache tokens expected, the variance of the
latter, cache tokens if nobody ends. One column per bin: running requests that are in it, and requests that were watched
through it, both scratch; then for every class outputs that ended in it, and the probability to reach it."""

BOOKS = np.dtype(
    [
        ("now_s", "f8"),
        ("settled_s", "f8"),  # end of the last step [s]
        ("arrived", "i8"),  # requests that have arrived
        ("done", "i8"),  # requests that have ended
        ("n_running", "i8"),
        ("head", "i8"),  # the queue is ids[WAITING_IDS, head:tail]
        ("tail", "i8"),
        ("n_released", "i8"),
        ("stale", "i8"),  # places in the queue of requests that were admitted and not yet closed up
        ("free", "i8"),  # free cache blocks
        ("preempted", "i8"),
        ("step", "i8"),
        ("stalled", "i8"),  # 1 if there was work and no step: a fault
        ("bound", "i8"),  # what limits the step being composed
        ("last_bound", "i8"),  # what limited the last one
        ("rate_tps", "f8"),  # prefill rate lately measured [tokens/s]
        ("last_step_s", "f8"),  # duration of the last step [s]
        ("last_prefill", "f8"),
        ("last_decodes", "f8"),
        ("n_decode", "f8"),  # sums of the step being composed
        ("kv_read", "f8"),
        ("prefill", "f8"),
        ("pairs", "f8"),
        ("chunks", "f8"),
        ("token_budget", "f8"),
        ("most_decode", "f8"),  # largest sums of any step
        ("most_kv", "f8"),
        ("most_prefill", "f8"),
        ("most_pairs", "f8"),
        ("by_none", "i8"),  # steps by what limited them
        ("by_kv", "i8"),
        ("by_running", "i8"),
        ("by_budget", "i8"),
        ("by_admission", "i8"),
        ("admit_s", "f8"),  # longest decode-only step that admission may lead to [s]
        ("learned", "i8"),  # step up to which the outlook knows whose output ended
        ("outlook_until", "i8"),  # step from which the outlook is to be made anew
        ("outlook_preempted", "i8"),  # preemptions when it was made
        ("outlook", "f8", (SEEN + 2 * OUTLOOK_CLASSES, OUTLOOK_BINS)),  # here, and not beside, an array costs the step no time
    ]
)
"""The engine's books."""

RUNNING_IDS, WAITING_IDS, RELEASED_IDS, HEAP_IDS = range(4)
"""Rows of the id table: in order of admission; in order of arrival, preempted ones in front; freed; candidates."""

BOUND_BY_NONE, BOUND_BY_KV, BOUND_BY_RUNNING, BOUND_BY_BUDGET, BOUND_BY_ADMISSION = range(5)
"""What limited a step."""


class State(NamedTuple):
    """A run in progress.

    Args:
        req: one record per request in order of arrival, shape (n,), dtype REQUEST.
        books: the engine's, shape (1,), dtype BOOKS.
        ids: running, waiting, released and candidate request ids, shape (4, 2n + 2), int64.
        keys: sort keys of the candidates, shape (n,) [s].
        law: state of the law, shape (LAW_STATE,).
        gaps: histogram of gaps, shape (classes, GAP_BINS), int64.
    """

    req: np.ndarray
    books: np.ndarray
    ids: np.ndarray
    keys: np.ndarray
    law: np.ndarray
    gaps: np.ndarray


def new_state(
    arrival_s: np.ndarray, prompt: np.ndarray, output: np.ndarray, class_id: np.ndarray, n_classes: int, n_blocks: int, rate_tps: float
) -> State:
    """State of an idle engine before the first arrival.

    Args:
        arrival_s: ascending, shape (n,) [s].
        prompt: shape (n,) [tokens].
        output: shape (n,) [tokens].
        class_id: shape (n,).
        n_classes: number of classes.
        n_blocks: cache blocks in the pool.
        rate_tps: prefill rate to assume until one is measured [tokens/s].

    Returns:
        State.
    """
    n = len(arrival_s)
    req, books = np.zeros(n, REQUEST), np.zeros(1, BOOKS)
    req["arrival_s"], req["prompt"], req["output"], req["class_id"], req["goal"] = arrival_s, prompt, output, class_id, prompt
    req["ttft_s"], req["admitted_s"] = np.nan, np.nan
    books["free"], books["rate_tps"], books["last_step_s"] = n_blocks, rate_tps, np.nan
    return State(
        req, books, np.zeros((4, 2 * n + 2), np.int64), np.zeros(n), np.zeros(LAW_STATE), np.zeros((n_classes, GAP_BINS), np.int64)
    )
