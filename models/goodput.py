"""Goodput, in one place: which tokens were on time, which were owed, and what a client would have noticed.

A token is on time iff its request met its TTFT target and the gap before it is within the ITL target. A gap g owes
max(1, floor(g / itl)) tokens: the promise is "one at least every D", so a stall of three targets owes three tokens of
which at most one arrived. Requests that were shed, failed or expired owe all their tokens. Everything is judged on the
client's clock: the transport's part is added to what the engine did.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from headway.models.compiled import compiled_inline
from headway.models.signals import Target

FUTURE, WAITING, RUNNING, FINISHED, REJECTED, EXPIRED, FAILED = range(7)
"""Status of a request. Rejected: shed on estimated slack. Expired: its time in the queue ran out. Failed: can never fit."""

CLEAN_SHARE = 0.99
"""A request is clean if its TTFT was met and at least this share of its owed tokens was on time."""

BOUNDS = ("none", "kv", "running", "budget", "deferred")
"""What may limit a step, in the order of the numbers in headway.models.state."""

UNSERVED = 0.05
"""Share of the arriving prompt work that may go unserved before a load counts as more than the engine can carry."""

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

    Finished requests owe what their gaps owed. Shed and failed ones owe every token. One that was cut off unfinished
    owes what was due by then, at least what it had owed so far.

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
    if status == FINISHED:
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


@dataclasses.dataclass(frozen=True)
class Goodput:
    """What became of the promise in one run, or in several taken together. Times are the client's.

    Args:
        requests: that arrived.
        attainment: tokens on time / tokens owed, in [0, 1].
        request_attainment: share of clean requests, in [0, 1]; those cut off before their first token was due are left out.
        goodput_tps: tokens on time per second from the first arrival to the last token [tokens/s].
        throughput_tps: tokens per second over the same time [tokens/s].
        ttft_s: quantiles by name [s]; None where no request got a token.
        itl_s: quantiles of the gaps [s].
        tpot_s: quantiles of (E2E - TTFT) / (n - 1) [s], one-token answers left out.
        max_gap_s: longest gap [s].
        shed: share of requests rejected, expired or failed, in [0, 1].
        preempted: preemptions.
        binding: share of steps by the limit that bound them; "deferred", admission held back, where there are such steps.
        load: "stable", "unstable" or "uncertain": whether unserved prompt work grows with time.
        classes: per class name its attainment, request_attainment, shed share, itl_p99_s and ttft_p99_s [s].
    """

    requests: int
    attainment: float
    request_attainment: float
    goodput_tps: float
    throughput_tps: float
    ttft_s: dict[str, float | None]
    itl_s: dict[str, float | None]
    tpot_s: dict[str, float | None]
    max_gap_s: float | None
    shed: float
    preempted: int
    binding: dict[str, float]
    load: str
    classes: dict[str, dict[str, float | None]]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            Mapping by field name.
        """
        return dataclasses.asdict(self)


QUANTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "p999": 0.999}


def quantiles(values: np.ndarray) -> dict[str, float | None]:
    """The four quantiles that are always shown.

    Args:
        values: shape (n,); infinities (requests that never got a token) sort last.

    Returns:
        By name; None where there is no value or the quantile is infinite.
    """
    if len(values) == 0:
        return dict.fromkeys(QUANTILES)
    found = np.quantile(values, list(QUANTILES.values()), method="higher")
    return {name: float(q) if np.isfinite(q) else None for name, q in zip(QUANTILES, found, strict=True)}


def gap_quantiles(gaps: np.ndarray, transport_s: np.ndarray) -> dict[str, float | None]:
    """Quantiles of the gaps from their histogram, upper edges of the bins, so never flattering.

    Args:
        gaps: counts, shape (classes, GAP_BINS).
        transport_s: added to the gaps of each class, shape (classes,) [s].

    Returns:
        By name [s]; None where there was no gap.
    """
    edges = GAP_LOW_S * GAP_RATIO ** (np.arange(GAP_BINS) + 1.0)
    values = (edges + transport_s[:, None]).ravel()
    order = np.argsort(values, kind="stable")
    counts = np.cumsum(gaps.ravel()[order])
    if counts[-1] == 0:
        return dict.fromkeys(QUANTILES)
    rows = np.searchsorted(counts, [q * counts[-1] for q in QUANTILES.values()])
    return {name: float(values[order][min(i, len(order) - 1)]) for name, i in zip(QUANTILES, rows, strict=True)}


def load_verdict(outcome: Outcome) -> str:
    """Whether prompt work that nobody serves grows by more than a twentieth of what arrives, which no longer queue would absorb.

    The backlog counts arrived prompt tokens whose request has no first token yet; shed requests stay in it, so a policy
    cannot pass for stable by shedding. Its drift is measured over eight stretches after a warm-up of one fifth.

    Args:
        outcome: of one run.

    Returns:
        "stable", "unstable", or "uncertain" where the interval of the drift holds both or the run is too short to say.
    """
    n = len(outcome.arrival_s)
    if n < 64:
        return "uncertain"
    times = np.linspace(outcome.arrival_s[n // 5], outcome.arrival_s[-1], 9)
    if times[-1] <= times[0]:
        return "uncertain"
    arrived = np.cumsum(outcome.prompt_tokens)
    served_s = outcome.arrival_s + np.where(np.isnan(outcome.ttft_s), np.inf, outcome.ttft_s)
    order = np.argsort(served_s)
    served = np.cumsum(outcome.prompt_tokens[order])
    at = lambda total, when: np.concatenate([[0.0], total])[np.searchsorted(when, times, side="right")]  # noqa: E731
    backlog = at(arrived, outcome.arrival_s) - at(served, served_s[order])
    rate = (at(arrived, outcome.arrival_s)[-1] - at(arrived, outcome.arrival_s)[0]) / 8
    drift = np.diff(backlog) / max(rate, 1e-9)
    half = 2.36 * drift.std(ddof=1) / math.sqrt(len(drift))
    if drift.mean() > UNSERVED and drift.mean() - half > 0:
        return "unstable"
    return "stable" if drift.mean() <= UNSERVED and drift.mean() + half < 3 * UNSERVED else "uncertain"


def summarise(outcomes: list[Outcome], targets: tuple[Target, ...]) -> Goodput:
    """The figures of one run, or of several runs taken as one population.

    Args:
        outcomes: at least one.
        targets: one per class.

    Returns:
        Goodput on the client's clock.
    """
    both = lambda name: np.concatenate([getattr(o, name) for o in outcomes])  # noqa: E731
    status, classes, owed, on_time, emitted = (both(n) for n in ("status", "class_id", "owed", "on_time", "emitted"))
    transport = np.array([t.transport_s for t in targets])
    ttft_at = np.array([t.ttft_s for t in targets])
    lost = status >= REJECTED
    counts = status != FUTURE
    # cut off while it waited, its first token not yet due: nobody knows what would have become of it
    decided = counts & ~(((status == WAITING) | (status == RUNNING)) & (owed == 0))
    ttft = both("ttft_s") + transport[classes]
    met = np.nan_to_num(ttft, nan=np.inf) <= ttft_at[classes] + 1e-12
    clean = decided & met & (on_time >= CLEAN_SHARE * owed - 1e-9) & ~lost
    e2e = both("last_s") - both("arrival_s")
    many = (status == FINISHED) & (emitted > 1)
    tpot = (e2e[many] + transport[classes[many]] - ttft[many]) / (emitted[many] - 1)
    gaps = np.sum([o.gaps for o in outcomes], axis=0)
    span = sum(max(float(o.end_s - o.arrival_s[0]), 1e-9) for o in outcomes)
    longest = (both("max_gap_s") + transport[classes])[emitted > 1]
    steps = np.maximum(np.sum([o.binding for o in outcomes], axis=0), 0)
    share = lambda part, whole: float(part / whole) if whole > 0 else float("nan")  # noqa: E731
    by_class = {}
    for c, target in enumerate(targets):
        mine, known = counts & (classes == c), decided & (classes == c)
        if mine.any():
            by_class[target.name] = {
                "attainment": share(on_time[mine].sum(), owed[mine].sum()) if owed[mine].sum() > 0 else None,
                "request_attainment": share(clean[known].sum(), known.sum()) if known.any() else None,
                "shed": share(lost[mine].sum(), mine.sum()),
                "itl_p99_s": gap_quantiles(gaps[c : c + 1], transport[c : c + 1])["p99"],
                "ttft_p99_s": quantiles(np.nan_to_num(ttft[known & ~lost], nan=np.inf))["p99"],
            }
    verdicts = [load_verdict(o) for o in outcomes]
    return Goodput(
        requests=int(counts.sum()),
        attainment=share(on_time.sum(), owed.sum()),
        request_attainment=share(clean.sum(), decided.sum()),
        goodput_tps=float(on_time.sum() / span),
        throughput_tps=float(emitted.sum() / span),
        ttft_s=quantiles(np.nan_to_num(ttft[decided & ~lost], nan=np.inf)),
        itl_s=gap_quantiles(gaps, transport),
        tpot_s=quantiles(tpot),
        max_gap_s=float(longest.max()) if len(longest) else None,
        shed=share(lost.sum(), counts.sum()),
        preempted=int(sum(o.preempted for o in outcomes)),
        binding={k: share(v, steps.sum()) for k, v in zip(BOUNDS, steps, strict=False) if k != "deferred" or v > 0},
        load=next((v for v in ("stable", "unstable") if 2 * verdicts.count(v) > len(verdicts)), "uncertain"),
        classes=by_class,
    )
