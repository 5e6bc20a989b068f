"""What a run leaves behind: the status of every request, which tokens were on time and which were owed.

A token is on time iff its request met its TTFT target and the gap before it is within the ITL target. A gap g owes
max(1, floor(g / itl)) tokens: the promise is "one at least every D", so a stall of three targets owes three tokens of
which at most one arrived. Requests that were shed, failed, expired or abandoned owe all their tokens. Everything is judged
on the client's clock: the transport's part is added to what the engine did.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from headway.models.compiled import compiled_inline

FUTURE, WAITING, RUNNING, FINISHED, CANCELLED, REJECTED, EXPIRED, FAILED, ABANDONED = range(9)
"""Status of a request. Cancelled: its client left and nothing was late. Rejected: shed on estimated slack. Expired: its time in
the queue ran out. Failed: can never fit. Abandoned: its client left, and something was late or the first token overdue. From
rejected on it was lost, and owes all its tokens."""

CLEAN_SHARE = 0.99
"""A request is clean if its TTFT was met and at least this share of its owed tokens was on time."""

BOUNDS = ("none", "kv", "running", "budget", "deferred")
"""What may limit a step, in the order of the numbers in headway.models.state."""

GAP_BINS = 2048
GAP_LOW_S = 1e-5
GAP_RATIO = 1.009
"""Gaps are counted in bins 0.9 % wide from 10 us to 1,000 s, so quantiles are exact to half of that."""


@compiled_inline
def tokens_owed(gap_s, itl_s):
    """Tokens that a gap owes.

    Args:
        gap_s: between consecutive tokens at the client [s].
        itl_s: target [s].

    Returns:
        max(1, floor(gap / itl)) [tokens].

    Example:
        >>> tokens_owed(0.024, 0.025), tokens_owed(0.049, 0.025), tokens_owed(0.110, 0.025)
        (1.0, 1.0, 4.0)
    """
    return max(1.0, math.floor(gap_s / itl_s + 1e-9))


@compiled_inline
def gap_bin(gap_s):
    """Bin of a gap in the histogram.

    Args:
        gap_s: [s].

    Returns:
        Index in [0, GAP_BINS).
    """
    if gap_s <= GAP_LOW_S:
        return 0
    return min(GAP_BINS - 1, int(math.log(gap_s / GAP_LOW_S) / math.log(GAP_RATIO)))


@compiled_inline
def owed_at_cut(status, emitted, output, arrival_s, last_s, owed, cut_s, ttft_s, itl_s):
    """Tokens that a request owes in all, given where it stood when the run ended.

    Finished requests owe what their gaps owed, cancelled ones what was due when their client left: nothing, if that was not
    even the first token. Shed, failed and abandoned ones owe every token. One that was cut off unfinished owes what was due
    by then, at least what it had owed so far.

    Args:
        status: of the request.
        emitted: tokens it got [tokens].
        output: tokens it asked for [tokens].
        arrival_s: [s].
        last_s: time of its last token [s].
        owed: owed by the gaps so far [tokens].
        cut_s: end of the run [s].
        ttft_s: target at the engine [s].
        itl_s: target [s].

    Returns:
        Owed tokens [tokens].
    """
    if status in (FINISHED, CANCELLED):
        return owed
    if status >= REJECTED:
        return max(owed, output)
    if status == FUTURE:
        return 0.0
    if emitted > 0:
        return owed + max(0.0, min(output - emitted, math.floor((cut_s - last_s) / itl_s)))
    late = cut_s - arrival_s - ttft_s
    return 0.0 if late < 0 else min(output, 1.0 + math.floor(late / itl_s))


class Outcome(NamedTuple):
    """What a run did to every request, shapes (n,) in order of arrival, and the run's own counts.

    Args:
        status: FINISHED, REJECTED, ...
        class_id: index into the targets.
        arrival_s: [s].
        prompt_tokens: [tokens].
        output_tokens: asked for [tokens].
        emitted: tokens that came [tokens].
        ttft_s: at the engine; NaN where no token came [s].
        last_s: time of the last token at the engine [s].
        on_time: tokens on time [tokens].
        owed: tokens owed [tokens].
        max_gap_s: longest gap between tokens at the engine [s].
        gaps: histogram of the gaps at the engine, shape (classes, GAP_BINS).
        end_s: end of the run [s].
        steps: engine steps.
        preempted: preemptions.
        binding: steps limited by nothing, the cache, the running limit, the token budget, admission, shape (5,).
        largest: largest decode requests, KV tokens read, prefill tokens, pairs of any step, shape (4,).
        log: per step, if it was recorded, shape (k, LOG_COLUMNS), else (0, LOG_COLUMNS).
        degraded: whether a request was given degraded targets, shape (n,), bool; None where nothing is degraded.
        degraded_on_time: tokens on time against the degraded targets, shape (n,) [tokens].
        spared: whether triage would have shed a request but for the cap on shedding, shape (n,), bool; None where nobody counts them.
        hit_tokens: prompt tokens that the prefix cache held when it was first admitted, shape (n,) [tokens].
        recomputed: computed again after preemptions [tokens].
        swapped_blocks: moved out or in [blocks].
        token_late: tokens later than arrival + TTFT target + j ITL target, j from 0, at the client, shape (n,) [tokens].
    """

    status: np.ndarray
    class_id: np.ndarray
    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    emitted: np.ndarray
    ttft_s: np.ndarray
    last_s: np.ndarray
    on_time: np.ndarray
    owed: np.ndarray
    max_gap_s: np.ndarray
    gaps: np.ndarray
    end_s: float
    steps: int
    preempted: int
    binding: np.ndarray
    largest: np.ndarray
    log: np.ndarray
    degraded: np.ndarray | None = None
    degraded_on_time: np.ndarray | None = None
    spared: np.ndarray | None = None
    hit_tokens: np.ndarray | None = None
    recomputed: float = 0.0
    swapped_blocks: float = 0.0
    token_late: np.ndarray | None = None
