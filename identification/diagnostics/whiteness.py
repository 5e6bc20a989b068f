"""Is what the plant leaves over white? Neighbouring steps that share their residual are not independent evidence."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import chi2

from headway.identification.diagnostics.correlation import autocorrelation, chance, sampled, settled
from headway.identification.structures.intervals import block_length

MOST_LAGS = 25
FEWEST = 40
"""Steps of one regime in one stream below which nothing is tested [steps]."""
LEVEL = 0.01
"""Share of false alarms that the test allows, over all regimes and streams together."""
NOTICED = 0.1
"""Lag-1 correlation below which a significant one is not said: thousands of steps make any significant."""
LISTED = 16
"""Streams that are listed; the test counts all."""


def whiteness(residual: np.ndarray, mixed: np.ndarray, stream: np.ndarray) -> tuple[dict[str, Any], list[str]]:
    """Ljung-Box test of the residual, per regime and per stream, over the regime's own steps in order.

    Q = n (n + 2) sum_h r_h^2 / (n - h), h up to 25 or n / 5; chi-squared with as many degrees of freedom

    Args:
        residual: log(measured / predicted) of the used rows, in time order within each stream, shape (k,).
        mixed: whether the step has prefill, shape (k,), bool.
        stream: number of the source of each row, shape (k,).

    Returns:
        ({regime: {"steps", "lag1", "p", "white", "lags", "block", "streams": [...], "streams_not_tested"}}; what there
        is to say, one sentence each). A regime without enough steps is None.

    Source:
        Ljung and Box, On a measure of lack of fit in time series models, 1978.
    """
    rows, stretch, said = sampled(stream)
    result: dict[str, Any] = {}
    for regime, mask in (("decode", ~mixed[rows]), ("mixed", mixed[rows])):
        result[regime], more = _regime(regime, residual[rows[mask]], stretch[mask], stream[rows[mask]])
        said = said + more
    return result, said


def _regime(regime: str, residual: np.ndarray, stretch: np.ndarray, stream: np.ndarray) -> tuple[dict[str, Any] | None, list[str]]:
    listed, skipped, q, freedom, lag1, weight = [], 0, 0.0, 0, 0.0, 0
    for number in np.unique(stream):
        here = stream == number
        n = int(here.sum())
        if n < FEWEST:
            skipped += 1
            continue
        lags = min(MOST_LAGS, n // 5)
        r = autocorrelation(settled(residual[here]), stretch[here], lags)
        own = float(n * (n + 2) * (r**2 / (n - np.arange(1, lags + 1))).sum())
        listed.append({"stream": int(number), "steps": n, "lags": lags, "lag1": float(r[0]), "q": own, "p": float(chi2.sf(own, lags))})
        q, freedom, lag1, weight = q + own, freedom + lags, lag1 + n * float(r[0]), weight + n
    if not listed:
        return None, []
    lag1, p = lag1 / weight, float(chi2.sf(q, freedom))
    block = block_length(residual)
    found = {
        "steps": weight,
        "lag1": lag1,
        "p": p,
        "white": p >= LEVEL / 2,
        "lags": listed[0]["lags"],
        "block": block,
        "streams": sorted(listed, key=lambda row: row["p"])[:LISTED],
        "streams_not_tested": skipped,
    }
    return found, [] if found["white"] else _said(regime, lag1, p, block)


def _said(regime: str, lag1: float, p: float, block: int) -> list[str]:
    if lag1 <= -2 * NOTICED:
        return [
            f"{regime}: a step is long where the one before it was short (lag-1 correlation {lag1:.2f}, {chance(p)}): its end is stamped early "
            "or late, or its time booked on a neighbour; single steps scatter less than the margin says: stamp on the device"
        ]
    if lag1 >= NOTICED:
        return [
            f"{regime}: a step's residual resembles that of the one before it (lag-1 correlation {lag1:.2f}, blocks of {block} steps): steps "
            "are not independent evidence; trust only intervals over blocks, and keep the controller's feedback on"
        ]
    return []
