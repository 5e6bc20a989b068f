"""The state of a run: one record per request, one of the engine's books, and the queues, all changed in place by compiled code.

Records keep what is touched together in one or two cache lines and pass by address: thirty separate arrays cost eight
times as much per step, most of it in reference counts and cache misses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.models.goodput import GAP_BINS
from headway.models.workload import Workload

LAW_STATE = 8
"""Numbers of state that any law may keep."""
REQUEST = np.dtype(
    [
        # what every step of a running request touches: two cache lines
        ("take", "f8"),  # tokens in this step: a chunk, -1 for a decode, 0 for nothing
        ("computed", "f8"),  # of the goal, computed so far
        ("goal", "f8"),  # tokens to compute before it decodes: the prompt, after a preemption also what it had emitted
        ("prompt", "f8"),  # prompt tokens
        ("emitted", "f8"),  # tokens emitted
        ("blocks", "i8"),  # cache blocks held alone
        ("output", "f8"),  # tokens to emit: ends a request, and fails one at the door that can never fit; unknown to order and triage
        ("class_id", "i8"),  # index into the targets
        ("last_s", "f8"),  # time of its last token [s]
        ("met", "f8"),  # 1 if the first token was on time
        ("on_time", "f8"),  # tokens on time
        ("owed", "f8"),  # tokens owed
        ("max_gap_s", "f8"),  # longest gap [s]
        ("arrival_s", "f8"),  # [s]
        ("stepped", "i8"),  # step that gave its last token or chunk
        ("shared", "i8"),  # leading prompt units held together with others
        # what is touched when it comes, waits and goes
        ("status", "i8"),  # see headway.models.goodput
        ("ttft_s", "f8"),  # NaN until the first token [s]
        ("admitted_s", "f8"),  # when it was first admitted, NaN until then [s]
        ("key_s", "f8"),  # by which it waits in the queue [s]
        ("leave_s", "f8"),  # when triage or its client may end its wait [s]
        ("place", "i8"),  # among those who wait
        ("behind", "i8"),  # 1 while it ranks behind the feasible
        ("degraded", "i8"),  # 1 once it got its own targets, 2 if its first token was on time by them
        ("hit", "f8"),  # prompt tokens that the prefix cache spares it: as estimated while it waits, as found on admission
        ("swapped", "i8"),  # cache blocks moved out
        ("units", "i8"),  # prompt units with a hash
        ("first_unit", "i8"),  # the first of them among all ids
        ("patience_s", "f8"),  # from arrival to when its client leaves without a first token; infinite for never [s]
        ("cancel_s", "f8"),  # from arrival to when its client closes the stream; infinite for never [s]
        ("after", "i8"),  # whose end it waits for, -1 for nobody's
        ("think_s", "f8"),  # from then to its arrival [s]
        ("follower", "i8"),  # first of those that wait for its end, -1 for none
        ("sibling", "i8"),  # next one that waits for the same end, -1 for none
        ("after_deadline", "f8"),  # tokens later than arrival + ttft + j itl
        ("degraded_on", "f8"),  # tokens on time by its degraded targets
        ("tail_at", "i8"),  # units before the tail that it left in the prefix cache
        ("spared", "i8"),  # 1 once triage would have shed it, and its class had been shed up to the cap
    ]
)
"""What is known of one request."""

UNIT = np.dtype([("cached", "i8"), ("holders", "i8"), ("left", "i8"), ("older", "i8"), ("newer", "i8")])
"""What is in the prefix cache: a prompt unit (found while `cached`), and after all units the tail of each request, the blocks of its
own that it left. What nobody holds forms a list by age, `left` blocks of each, with the last record as its ends."""

OUTLOOK_BINS = 144
"""Bins of output lengths: one per token up to 16, then eight to every doubling, up to a million tokens."""
OUTLOOK_CLASSES = 8
"""Classes whose output lengths are kept apart; any further ones count with the last."""
EXPECTED, EXPECTED_KV, VARIANCE, ALL_STAY, CENSORED, EXPOSED, SEEN, ALIVE = range(8)
"""Rows of the outlook. One column per point of the horizon: requests and cache tokens expected, the variance of the
latter, cache tokens if nobody ends. One column per bin: running requests that are in it, and requests that were watched
through it, both scratch; then for every class outputs that ended in it, and the probability to reach it."""

MOST_CLASSES = 16
"""Classes that the scheduler can tell apart."""
SEEN_SIGNALS = 7
"""Numbers measured of a step."""

BOOKS = np.dtype(
    [
        ("now_s", "f8"),
        ("settled_s", "f8"),  # end of the last step [s]
        ("seen_s", "f8"),  # time up to which an asynchronous scheduler sees arrivals [s]
        ("arrived", "i8"),  # rows passed in search of open arrivals
        ("done", "i8"),  # requests that have ended
        ("n_running", "i8"),
        ("n_waiting", "i8"),
        ("head", "i8"),  # in stock order the queue is ids[WAITING_IDS, head:tail], with holes where somebody left
        ("tail", "i8"),
        ("n_released", "i8"),
        ("n_leaving", "i8"),  # entries of heaps
        ("n_coming", "i8"),
        ("n_unfinished", "i8"),
        ("n_stashed", "i8"),
        ("n_ghosts", "i8"),  # requests that ended in the last step of an asynchronous engine
        ("ghost_kv", "f8"),  # what they read once more [tokens]
        ("free", "i8"),  # free cache blocks, idle ones included
        ("caching", "i8"),  # 1 with a prefix cache
        ("unit_blocks", "i8"),  # blocks of a prompt unit, 0 without any
        ("block_tokens", "f8"),  # tokens in a block [tokens]
        ("tails", "i8"),  # record of the first request's tail in the prefix cache
        ("idle_blocks", "i8"),  # cached blocks that nobody holds
        ("clients", "i8"),  # 1 if clients may leave
        ("preempted", "i8"),
        ("recomputed", "f8"),  # tokens computed again after a preemption
        ("swapped", "i8"),  # blocks moved out
        ("moved", "i8"),  # blocks moved out or in since the last step ended
        ("step", "i8"),
        ("stalled", "i8"),  # 1 if there was work and no step: a fault
        ("bound", "i8"),  # what limits the step being composed
        ("last_bound", "i8"),  # what limited the last one
        ("last_step_s", "f8"),  # what was measured of the last step: its duration [s]
        ("last_prefill", "f8"),
        ("last_decodes", "f8"),
        ("last_kv", "f8"),
        ("last_pairs", "f8"),
        ("last_chunks", "f8"),
        ("rate_tps", "f8"),  # prefill rate lately measured [tokens/s]
        ("used_tps", "f8"),  # prefill rate that estimates use [tokens/s]
        ("renewed", "i8"),  # step in which estimates last took it
        ("carried", "f8"),  # prompt tokens that a step carries by it [tokens]
        ("n_decode", "f8"),  # sums of the step being composed
        ("kv_read", "f8"),
        ("prefill", "f8"),
        ("pairs", "f8"),
        ("chunks", "f8"),
        ("left", "f8"),  # tokens left of its budget
        ("token_budget", "f8"),
        ("closed", "i8"),  # 1 once nobody new may come in
        ("blocked", "i8"),  # newcomers that lacked blocks
        ("held", "i8"),  # 1 if admission held somebody back
        ("cut", "i8"),  # 1 if the budget cut a prompt
        ("unserved", "i8"),  # decodes that were due and got no token
        ("gave_way", "i8"),  # preemptions
        ("ready", "f8"),  # requests that could decode when the last step ended
        ("ready_kv", "f8"),  # cache tokens that they would read
        ("queued", "f8"),  # prompt tokens still to be computed of all who wait or run
        ("context", "f8"),  # of the first running prompt that is not computed yet, computed so far
        ("prompts", "i8"),  # running prompts that are not computed yet
        ("pending", "i8"),  # prompts that want tokens
        ("since_prefill", "i8"),  # steps since one carried prompt tokens
        ("oldest", "i8"),  # steps since the last token of the decode that waits longest
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
        ("before", "f8", (SEEN_SIGNALS,)),  # the last but one, where the scheduler is a step ahead
        ("heap_at", "i8", (MOST_CLASSES + 1,)),  # where each class's heaps begin
        ("n_feasible", "i8", (MOST_CLASSES,)),  # entries of its heaps
        ("n_behind", "i8", (MOST_CLASSES,)),
        ("waiting_of", "i8", (MOST_CLASSES,)),  # who waits, per class
        ("pending_of", "i8", (MOST_CLASSES,)),  # prompts that wanted tokens, per class
        ("deficit", "f8", (MOST_CLASSES,)),  # tokens that a class is behind its share
        ("given", "f8", (MOST_CLASSES,)),  # prompt tokens in this step, per class
        ("arrivals", "i8", (MOST_CLASSES,)),  # who has come, per class
        ("shed", "i8", (MOST_CLASSES,)),  # of them, whom triage has shed
        ("outlook", "f8", (SEEN + 2 * OUTLOOK_CLASSES, OUTLOOK_BINS)),  # here, and not beside, an array costs the step no time
    ]
)
"""The engine's books."""

(RUNNING_IDS, WAITING_IDS, RELEASED_IDS, FEASIBLE, BEHIND, LEAVING, COMING, UNFINISHED, STASH, GHOSTS, ENDED, ID_ROWS) = range(12)
"""Rows of the id table: in order of admission; who waits; whose blocks came free; and heaps whose keys stand in the same row of
the key table: feasible and deferred requests per class, when somebody's wait may end, who comes after somebody's end, running
prompts; then newcomers that lacked blocks, who ended in the last step of an asynchronous engine, and who has
ended, in that order."""

BOUND_BY_NONE, BOUND_BY_KV, BOUND_BY_RUNNING, BOUND_BY_BUDGET, BOUND_BY_ADMISSION = range(5)
"""What limited a step."""


class State(NamedTuple):
    """A run in progress.

    Args:
        req: one record per request, shape (n,), dtype REQUEST.
        books: the engine's, shape (1,), dtype BOOKS.
        ids: request ids by row, shape (ID_ROWS, 2n + 2 + MOST_CLASSES), int64.
        keys: keys of the heaps, shape as ids [s].
        units: the prefix cache, shape (units + n + 1,), dtype UNIT; (1,) without.
        unit_ids: hash ids of all requests' prompt units, shape (k,), int64.
        law: state of the law, shape (LAW_STATE,).
        gaps: histogram of gaps, shape (classes, GAP_BINS), int64.
    """

    req: np.ndarray
    books: np.ndarray
    ids: np.ndarray
    keys: np.ndarray
    units: np.ndarray
    unit_ids: np.ndarray
    law: np.ndarray
    gaps: np.ndarray


def new_state(workload: Workload, n_classes: int, *, blocks: int, block_tokens: int, caching: bool = True, rate_tps: float = 1.0) -> State:
    """State of an idle engine before the first arrival.

    Args:
        workload: requests.
        n_classes: number of classes.
        blocks: cache blocks in the pool.
        block_tokens: tokens in a block [tokens].
        caching: whether blocks are kept, and shared by prompts that begin alike.
        rate_tps: prefill rate to assume until one is measured [tokens/s].

    Returns:
        State.

    Raises:
        ValueError: a prompt unit that is no whole number of blocks.
    """
    n, w = len(workload), workload
    req, books = np.zeros(n, REQUEST), np.zeros(1, BOOKS)
    req["arrival_s"], req["prompt"], req["output"], req["class_id"] = w.arrival_s, w.prompt_tokens, w.output_tokens, w.class_id
    req["goal"] = req["prompt"]
    req["ttft_s"], req["admitted_s"] = np.nan, np.nan
    req["patience_s"] = np.inf if w.patience_s is None else w.patience_s
    req["cancel_s"] = np.inf if w.cancel_s is None else w.cancel_s
    req["after"], req["follower"], req["sibling"] = -1, -1, -1
    if w.after is not None:
        req["after"], req["think_s"] = w.after, 0.0 if w.think_s is None else w.think_s
        for i in np.flatnonzero(w.after >= 0)[::-1]:
            req["sibling"][i], req["follower"][w.after[i]] = req["follower"][w.after[i]], i
    books["free"], books["rate_tps"], books["last_step_s"], books["before"][:, 0] = blocks, rate_tps, np.nan, np.nan
    books["since_prefill"] = 1 << 40
    books["clients"] = bool(np.isfinite(req["patience_s"]).any() or np.isfinite(req["cancel_s"]).any())
    counts = np.bincount(np.asarray(w.class_id, np.int64), minlength=MOST_CLASSES)[:MOST_CLASSES]
    books["heap_at"][0, 1:] = np.cumsum(2 * counts + 1)
    unit_ids = np.zeros(0, np.int64)
    books["caching"], books["block_tokens"] = caching, block_tokens
    if w.prefix is not None and caching:
        if w.prefix.unit_tokens % block_tokens != 0:
            raise ValueError(
                f"a prompt unit of {w.prefix.unit_tokens} tokens is no whole number of cache blocks of {block_tokens}; "
                "choose a block that divides it, or prefix_cache='off'"
            )
        unit_ids = np.asarray(w.prefix.ids, np.int64)
        books["tails"] = int(unit_ids.max(initial=-1)) + 1
        req["first_unit"], req["units"] = w.prefix.start[:-1], np.diff(w.prefix.start)
        books["unit_blocks"] = w.prefix.unit_tokens // block_tokens
    units = np.zeros(int(books["tails"][0]) + n + 1 if caching else 1, UNIT)
    units["older"], units["newer"] = len(units) - 1, len(units) - 1
    width = 2 * n + 2 + MOST_CLASSES
    ids, keys = np.zeros((ID_ROWS, width), np.int64), np.zeros((ID_ROWS, width))
    return State(req, books, ids, keys, units, unit_ids, np.zeros(LAW_STATE), np.zeros((n_classes, GAP_BINS), np.int64))
