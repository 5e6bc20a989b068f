"""Does the residual scatter alike everywhere? One margin for calm and for noisy steps is too small for some, too large for others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import rankdata

from headway.identification.diagnostics.correlation import autoregression, chance, explained, filtered, sampled, spread, whole
from headway.identification.row_filter import column_range

FEWEST = 60
"""Steps of a regime below which nothing is tested [steps]."""
LEVEL = 0.01
"""Share of false alarms that all tests of one regime allow together."""
RATIO = 1.5
"""Ratio of scatter between the top and the bottom third from which on a significant one is said."""
EXCESS = 1.5
"""Times epsilon that the noisier third must be over the margin to be said: else the margin holds for it all the same."""
BETWEEN = 2.0
"""Ratio of scatter between the regimes from which on it is said."""
PREDICTED = "predicted_s"


def variance(
    residual: np.ndarray,
    predicted_s: np.ndarray,
    mixed: np.ndarray,
    stream: np.ndarray,
    columns: Mapping[str, np.ndarray],
    *,
    epsilon: float = 0.01,
) -> tuple[dict[str, Any], list[str]]:
    """Test the size of the residual against the predicted time and each input, per regime.

    A Breusch-Pagan test on ranks: ranks of |residual| on ranks of the input, filtered by the former's autoregression,
    so that neither a spike nor calm and noisy spells decide it.

    Args:
        residual: log(measured / predicted) of the used rows, in time order within each stream, shape (k,).
        predicted_s: by the plant, shape (k,) [s].
        mixed: whether the step has prefill, shape (k,), bool.
        stream: number of the source of each row, shape (k,).
        columns: inputs by name, the fields of `Batch`, each of shape (k,).
        epsilon: share of steps over the budget that the margins allow, in (0, 1).

    Returns:
        ({regime: {"steps", "spread", "against": {name: {"p", "rank_correlation", "low", "high", "over", "thirds", "noisy_steps"}}}};
        what there is to say, one sentence each). low and high are the robust standard deviation in the bottom and the top
        third of the input, over the share of steps over the regime's margin in the third that scatters more, thirds the
        largest input of the bottom and the smallest of the top one, noisy_steps how many the third that scatters more holds.
        A regime without enough steps is None.

    Source:
        Breusch and Pagan, A simple test for heteroscedasticity, 1979; Koenker, A note on studentizing it, 1981.
    """
    rows, stretch, said = sampled(stream)
    result: dict[str, Any] = {}
    inputs = {PREDICTED: predicted_s, **columns}
    for regime, mask in (("decode", ~mixed[rows]), ("mixed", mixed[rows])):
        at = rows[mask]
        if len(at) < FEWEST:
            result[regime] = None
            continue
        against = {}
        for name, column in inputs.items():
            values = np.asarray(column, float)[at]
            if np.ptp(values) > 0:
                against[name] = _against(residual[at], values, stretch[mask], epsilon)
        result[regime] = {"steps": len(at), "spread": spread(residual[at]), "against": against}
        said = said + _said(regime, against, epsilon)
    return result, said + _between(result)


def _against(residual: np.ndarray, values: np.ndarray, stretch: np.ndarray, epsilon: float) -> dict[str, Any]:
    size, rank = rankdata(np.abs(residual - np.median(residual))), rankdata(values)
    size, rank = size - size.mean(), rank - rank.mean()
    phi = autoregression(size, stretch)
    good = whole(stretch, len(phi))
    found = explained(filtered(size, phi)[good], np.ones((int(good.sum()), 0)), filtered(rank, phi)[good, None])
    first, second = np.quantile(values, [1 / 3, 2 / 3])
    below, above = values <= first, values >= second
    bottom, top = residual[below], residual[above]
    low, high = spread(bottom), spread(top)
    thirds = [float(values[below].max()), float(values[above].min())]
    noisy = top if high > low else bottom
    over = noisy > np.quantile(residual, 1 - epsilon)
    correlation = float(size @ rank / np.sqrt((size @ size) * (rank @ rank))) if size.any() else 0.0
    shown = {"p": found.p, "rank_correlation": correlation, "low": low, "high": high, "over": float(over.mean())}
    return {**shown, "thirds": thirds, "noisy_steps": len(noisy)}


def _said(regime: str, against: dict[str, dict[str, Any]], epsilon: float) -> list[str]:
    """The input along which the scatter changes most, the predicted time first if it does as well."""
    clear = [
        name
        for name, case in against.items()
        if case["p"] < LEVEL / len(against)
        and max(case["low"], case["high"]) > RATIO * min(case["low"], case["high"])
        and case["over"] > EXCESS * epsilon
    ]
    if not clear:
        return []
    name = PREDICTED if PREDICTED in clear else max(clear, key=lambda key: against[key]["over"])
    case = against[name]
    word, more = (
        ("long" if name == PREDICTED else "large", True)
        if case["high"] > case["low"]
        else ("short" if name == PREDICTED else "small", False)
    )
    what = "predicted time" if name == PREDICTED else name
    calm, noisy = (case["low"], case["high"]) if more else (case["high"], case["low"])
    return [
        f"{regime}: steps of {word} {what} scatter by {noisy:.1%}, the others by {calm:.1%} ({chance(case['p'])}): of those, {case['over']:.1%} "
        f"exceed a margin made for {epsilon:.1%}; fit the operating point that you run at ({_option(against, clear, epsilon)}), or ask for a smaller epsilon"
    ]


def _option(against: dict[str, dict[str, Any]], clear: list[str], epsilon: float) -> str:
    """How to take the third that scatters more: by a column of the trace, and only where it holds steps enough for a margin."""
    columns = [name for name in clear if name != PREDICTED and against[name]["noisy_steps"] >= 1 / epsilon]
    if not columns:
        return "--where COLUMN=LOW:HIGH"
    name = max(columns, key=lambda key: against[key]["over"])
    (below, above), more = against[name]["thirds"], against[name]["high"] > against[name]["low"]
    return f"{column_range(name, *((above, np.inf) if more else (-np.inf, below)))} takes those that scatter more"


def _between(result: Mapping[str, Any]) -> list[str]:
    decode, mixed = result["decode"], result["mixed"]
    if not (decode and mixed) or min(decode["spread"], mixed["spread"]) <= 0:
        return []
    low, high = sorted((("decode-only", decode["spread"]), ("prefill", mixed["spread"])), key=lambda pair: pair[1])
    if high[1] < BETWEEN * low[1]:
        return []
    return [f"{high[0]} steps scatter by {high[1]:.1%}, {low[0]} ones by {low[1]:.1%}: use the margin of each regime, never one for both"]
