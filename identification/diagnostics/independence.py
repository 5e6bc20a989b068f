"""Does what the plant leaves over still depend on an input? On the step's own: a term is wrong. On a neighbour's: the clock is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.stats import norm

from headway.identification.diagnostics.correlation import autoregression, chance, explained, filtered, sampled, settled, whole

LAGS = 25
"""Longest lag, either way [steps]."""
FEWEST = 60
"""Steps of a regime below which nothing is tested [steps]."""
LEVEL = 0.01
"""Share of false alarms that all tests of one regime allow together."""
NOTICED = 0.15
"""Correlation with a step's own input from which on it is said: 2 % of the residual's variance."""
SHARE = 0.05
"""Share of the residual's variance that a neighbour's inputs must explain to be said,"""
CHANGE = 0.05
"""and how much longer or shorter a step beside one with prefill must be; or"""
LARGE_SHARE = 0.25
"""the share from which on it is said whatever prefill does."""


def independence(
    residual: np.ndarray,
    predicted_s: np.ndarray,
    mixed: np.ndarray,
    stream: np.ndarray,
    columns: Mapping[str, np.ndarray],
    *,
    structures: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Correlate the residual with each input of the same step, of those before and of those after.

    The residual is whitened by its own autoregression and the inputs filtered alike, so that the band holds for a
    residual that drifts. That the step before matters is tested beyond the step's own inputs, which resemble them.

    Args:
        residual: log(measured / predicted) of the used rows, in time order within each stream, shape (k,).
        predicted_s: by the plant, shape (k,) [s].
        mixed: whether the step has prefill, shape (k,), bool.
        stream: number of the source of each row, shape (k,).
        columns: inputs by name, the fields of `Batch`, each of shape (k,).
        structures: what to say of other structures, by regime; None says nothing.

    Returns:
        ({regime: {"steps", "band99", "inputs": {name: {"lag0", "lag", "correlation", "p"}}, "step_before" and
        "step_after": {"share", "p"}}}; what there is to say, one sentence each). "correlation" is the strongest within
        25 steps, at "lag" (above zero: an earlier step's input). A regime without enough steps is None.

    Source:
        Box and Jenkins, Time Series Analysis, 1970, chapter 11 (prewhitening and the cross-correlation's band).
    """
    rows, stretch, said = sampled(stream)
    names, inputs = list(columns), np.column_stack([np.asarray(columns[name], float)[rows] for name in columns])
    inputs = inputs / np.maximum(np.abs(inputs).max(axis=0, initial=0.0), 1e-300)
    relative = np.median(predicted_s) / predicted_s[rows] if len(rows) else np.zeros(0)
    inner, result = whole(stretch, LAGS, LAGS), {}
    for regime, mask in (("decode", inner & ~mixed[rows]), ("mixed", inner & mixed[rows])):
        at = np.flatnonzero(mask)
        if len(at) < FEWEST:
            result[regime] = None
            continue
        case = _Case(at, stretch[at], settled(residual[rows[at]]), inputs, relative)
        found = {"steps": len(at), "band99": float(norm.isf(0.005) / np.sqrt(len(at)))}
        found["inputs"] = {name: case.lags(j) for j, name in enumerate(names)}
        found["step_before"], found["step_after"] = case.beside(1), case.beside(-1)
        result[regime] = found
        said = (
            said
            + _own(regime, found, (structures or {}).get(regime, ""))
            + _neighbour(regime, found, residual[rows[at]], case.prefill_beside(names))
        )
    return result, said


class _Case:
    """The steps of one regime: their residual whitened along their own sequence, and what to filter beside it."""

    def __init__(self, at: np.ndarray, stretch: np.ndarray, values: np.ndarray, inputs: np.ndarray, relative: np.ndarray) -> None:
        self.at, self.inputs, self.values = at, inputs, values
        self.phi = autoregression(values, stretch)
        self.good = whole(stretch, len(self.phi))
        self.white = self.filtered(values)
        self.own = np.column_stack([inputs[at], inputs[at] * relative[at, None], relative[at]])

    def filtered(self, columns: np.ndarray) -> np.ndarray:
        return filtered(columns, self.phi)[self.good]

    def lags(self, j: int) -> dict[str, Any]:
        """Correlation by lag with one input: the step's own, and the strongest."""
        left = self.white - self.white.mean()
        right = self.filtered(np.ascontiguousarray(self.inputs[:, j])[self.at[:, None] - np.arange(-LAGS, LAGS + 1)])
        right = right - right.mean(axis=0)
        size = np.sqrt((left @ left) * (right**2).sum(axis=0))
        found = np.divide(left @ right, size, out=np.zeros(len(size)), where=size > 1e-9 * len(left))
        best = int(np.argmax(np.abs(found)))
        p = min(2 * float(norm.sf(abs(found[best]) * np.sqrt(len(left)))) * len(found), 1.0)
        return {"lag0": float(found[LAGS]), "lag": best - LAGS, "correlation": float(found[best]), "p": p}

    def beside(self, shift: int) -> dict[str, float]:
        """What the inputs of the step before (1) or after (-1) explain beyond the step's own, whitened and plain."""
        other = self.inputs[self.at - shift]
        tested = explained(self.white, self.filtered(self.own), self.filtered(other))
        # filtered or not: a share that only one of the two shows is the filter's, or the drift's
        return {"share": min(tested.share, explained(self.values, self.own, other).share), "p": tested.p}

    def prefill_beside(self, names: list[str]) -> dict[str, np.ndarray]:
        """Whether the step before, and the step after, had prefill."""
        j = names.index("prefill_tokens") if "prefill_tokens" in names else None
        return {} if j is None else {"before": self.inputs[self.at - 1, j] > 0, "after": self.inputs[self.at + 1, j] > 0}


def _own(regime: str, found: dict[str, Any], advice: str) -> list[str]:
    """The input of the step itself that the residual depends on most."""
    limit = float(norm.isf(LEVEL / 2 / max(len(found["inputs"]), 1)) / np.sqrt(found["steps"]))
    name = max(found["inputs"], key=lambda key: abs(found["inputs"][key]["lag0"]))
    value = found["inputs"][name]["lag0"]
    if abs(value) < max(limit, NOTICED):
        return []
    way = "longer" if value > 0 else "shorter"
    return [
        f"{regime}: steps with more {name} are {way} than the plant says (correlation {value:+.2f}, band +-{found['band99']:.2f}): their term is "
        f"missing, bent or held at zero{'; ' * bool(advice)}{advice}"
    ]


def _neighbour(regime: str, found: dict[str, Any], residual: np.ndarray, prefill: dict[str, np.ndarray]) -> list[str]:
    """Time that is booked on the step after, or before."""
    before, after = found["step_before"], found["step_after"]
    word, case = ("before", before) if before["share"] >= after["share"] else ("after", after)
    if case["p"] >= LEVEL / 4 or case["share"] < SHARE:
        return []
    cause = {
        "before": "time is booked one step late (asynchronous scheduling)",
        "after": "time is booked one step early (the launch of the next step)",
    }[word]
    much, change = "", 0.0
    if word in prefill and prefill[word].sum() >= 10 and (~prefill[word]).sum() >= 10:
        change = np.expm1(np.median(residual[prefill[word]]) - np.median(residual[~prefill[word]]))
        much = f"; with prefill in the step {word} it takes {change:+.0%}"
    if abs(change) < CHANGE and case["share"] < LARGE_SHARE:
        return []
    return [
        f"{regime}: the residual depends on the inputs of the step {word} ({case['share']:.0%} of its variance, {chance(case['p'])}{much}): {cause}; "
        "take durations from one step's end to the next one's end"
    ]
