"""Goodput as others define it, each under its own name, beside ours: what they pass that a client would notice.

None of them is aimed at. Means hide stalls, gaps alone forget the first token, and a deadline per token forgives a stall
that earlier tokens were early for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.models.outcome import (
    CANCELLED,
    FINISHED,
    FUTURE,
    GAP_BINS,
    REJECTED,
    RUNNING,
    WAITING,
    Outcome,
    gap_bin,
)
from headway.models.signals import Target

DEFINITIONS = {
    "gap_only": "share of the gaps within the ITL target, whatever the TTFT and however long the others (to a bin, 0.9 %)",
    "per_token_deadline": "share of the tokens by arrival + TTFT target + j ITL target, j from 0: time saved may be spent on a stall",
    "vllm_bench": "share of the requests that finished with TTFT and (E2E - TTFT) / (n - 1) within target; one token passes as 0",
    "aiperf": "the same, and an answer of one token, which has no such mean, does not pass",
    "guidellm_tpot": "share of the requests that finished with TTFT and E2E / n within target: time_per_output_token_ms holds the TTFT",
}
"""What each figure is, by name. Those of requests come per second too, as name_rps, which is what the tools print."""

HIDDEN = 0.05
"""A mean passes at least so many more requests than are clean: then it hides something worth a sentence."""


def tpot_s(ttft_s: Any, e2e_s: Any, tokens: Any) -> Any:
    """Time per output token, the mean gap of a request.

    (E2E - TTFT) / (n - 1)

    Args:
        ttft_s: shape (n,) [s].
        e2e_s: arrival to last token, shape (n,) [s].
        tokens: that came, shape (n,) [tokens].

    Returns:
        Shape (n,) [s]; NaN for answers of one token, which have none.

    Example:
        >>> float(tpot_s(0.5, 1.5, 11))
        0.1
    """
    tokens = np.asarray(tokens, float)
    some = np.where(tokens > 1, tokens - 1, np.nan)
    return (np.asarray(e2e_s, float) - np.asarray(ttft_s, float)) / some


def guidellm_tpot_s(e2e_s: Any, tokens: Any) -> Any:
    """What guidellm calls time_per_output_token_ms, in seconds.

    E2E / n, the first token's wait included

    Args:
        e2e_s: arrival to last token, shape (n,) [s].
        tokens: that came, at least 1, shape (n,) [tokens].

    Returns:
        Shape (n,) [s].

    Example:
        >>> round(1e3 * float(guidellm_tpot_s(1.5, 11)), 1)
        136.4
    """
    return np.asarray(e2e_s, float) / np.maximum(np.asarray(tokens, float), 1.0)


def past_deadline(times_s: Any, arrival_s: float, ttft_s: float, itl_s: float) -> int:
    """Tokens of one answer that came after their own deadline.

    t_j > arrival + ttft + j itl, j from 0

    Args:
        times_s: of the tokens at the client, ascending, shape (n,) [s].
        arrival_s: [s].
        ttft_s: target [s].
        itl_s: target [s].

    Returns:
        Their number.

    Example:
        >>> past_deadline([1.0, 1.01, 1.08, 1.09], 0.0, 1.0, 0.03)
        1
    """
    times = np.asarray(times_s, float)
    return int((times > arrival_s + ttft_s + np.arange(len(times)) * itl_s + 1e-9).sum())


def other_goodputs(outcomes: list[Outcome], targets: tuple[Target, ...], span_s: float) -> dict[str, float | None]:
    """Every figure of `DEFINITIONS`, on the client's clock.

    Args:
        outcomes: at least one.
        targets: one per class.
        span_s: first arrival to last token, all runs together [s].

    Returns:
        By name; requests per second under name_rps; None where it cannot be said.
    """
    both = lambda name: np.concatenate([getattr(o, name) for o in outcomes])  # noqa: E731
    status, c, emitted, owed = (both(n) for n in ("status", "class_id", "emitted", "owed"))
    ttft_at, itl_at, transport = (np.array([getattr(t, n) for t in targets])[c] for n in ("ttft_s", "itl_s", "transport_s"))
    ttft, e2e = both("ttft_s") + transport, both("last_s") - both("arrival_s") + transport
    judged = (status != FUTURE) & ~(np.isin(status, (WAITING, RUNNING, CANCELLED)) & (owed == 0))
    fine = (status == FINISHED) & (np.nan_to_num(ttft, nan=np.inf) <= ttft_at * (1 + 1e-9))
    with np.errstate(invalid="ignore"):
        mean, whole = tpot_s(ttft, e2e, emitted), guidellm_tpot_s(e2e, emitted)
        within = {
            "vllm_bench": fine & (np.nan_to_num(mean, nan=0.0) <= itl_at * (1 + 1e-9)),
            "aiperf": fine & (mean <= itl_at * (1 + 1e-9)),
            "guidellm_tpot": fine & (whole <= itl_at * (1 + 1e-9)),
        }
    found: dict[str, float | None] = {
        "gap_only": gaps_within(outcomes, targets),
        "per_token_deadline": within_deadline(outcomes, targets),
    }
    for name, good in within.items():
        found[name] = float(good.sum() / judged.sum()) if judged.any() else None
        found[f"{name}_rps"] = float(good.sum() / span_s) if span_s > 0 else None
    return found


def gaps_within(outcomes: list[Outcome], targets: tuple[Target, ...]) -> float | None:
    """Share of the gaps within the ITL target, whatever else.

    Args:
        outcomes: at least one.
        targets: one per class.

    Returns:
        In [0, 1], to the bin that holds the target; None where there was no gap.
    """
    gaps = np.sum([o.gaps for o in outcomes], axis=0)[: len(targets)]
    last = np.array([gap_bin(t.itl_s - t.transport_s) if t.itl_s > t.transport_s else -1 for t in targets])
    fine = np.arange(GAP_BINS) <= last[:, None]
    return float(gaps[fine].sum() / gaps.sum()) if gaps.sum() > 0 else None


def within_deadline(outcomes: list[Outcome], targets: tuple[Target, ...]) -> float | None:
    """Share of the tokens that came by arrival + TTFT target + j ITL target.

    Whoever was lost counts with all tokens, who was cut off with those due by then, who left in time with those that came.

    Args:
        outcomes: with `token_late`.
        targets: one per class.

    Returns:
        In [0, 1]; None where a run did not count, or nothing was due.
    """
    due, came = 0.0, 0.0
    for o in outcomes:
        if o.token_late is None:
            return None
        ttft, itl = (np.array([getattr(t, n) for t in targets])[o.class_id] for n in ("ttft_s", "itl_s"))
        by_now = np.floor((o.end_s - o.arrival_s - ttft) / itl + 1e-9) + 1.0
        mine = np.clip(by_now, o.emitted, o.output_tokens)
        mine = np.where(o.status == CANCELLED, o.emitted, np.where((o.status >= REJECTED) | (o.status == FINISHED), o.output_tokens, mine))
        arrived = o.status != FUTURE
        due += float(mine[arrived].sum())
        came += float((o.emitted - o.token_late)[arrived].sum())
    return came / due if due > 0 else None


def hidden_by_means(others: dict[str, float | None], request_attainment: float | None) -> str:
    """What is to be said where a mean per request passes what clients would notice.

    Args:
        others: as `other_goodputs`.
        request_attainment: share of clean requests; None where unknown.

    Returns:
        A sentence; empty where the two agree.
    """
    mean = others.get("vllm_bench")
    if mean is None or request_attainment is None or not mean - request_attainment >= HIDDEN:
        return ""
    return (
        f"a mean hides stalls: {100 * mean:.0f} % of the requests keep the ITL target on the average of their gaps, "
        f"{100 * request_attainment:.0f} % are clean; do not tune on mean TPOT or ITL"
    )
