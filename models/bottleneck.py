"""What held the engine back: which limit bound its steps, which part of the work took their time, and whether a law felt it."""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.models.plant import Batch, Plant

SUMS = ("decode_kv_tokens", "decode_requests", "prefill_pairs", "prefill_requests", "prefill_tokens")
"""Sums of a step in the order in which they are taken away: pairs before the tokens that they belong to."""

FEW = 1e-6
"""Prompt tokens in place of none: without any, a step would fall into the other regime [tokens]."""

FELT = 0.01
"""Share of the steps that a law's own limit must have bound for the law to have done anything."""

LIMITS = {"kv": "the KV cache", "running": "the running limit", "budget": "the token budget", "deferred": "admission", "none": "nothing"}
"""Limits of a step in words."""


def spent_s(plant: Plant, batch: Batch) -> dict[str, np.ndarray]:
    """What each sum adds to the time of steps; the rest is the floor.

    t(batch) - t(batch without x), one sum after the other, averaged over taking the cache away first and last

    Args:
        plant: of any structure.
        batch: sums of the steps, arrays of shape (k,).

    Returns:
        By sum, and "floor", each of shape (k,) [s]; together they are the predicted time.

    Under a roof the order matters, hence two of them. A step stays in the regime that it was in.
    """
    arrays = Batch(*(np.atleast_1d(np.asarray(x, float)) for x in batch))
    whole = np.asarray(plant.step_time_s(arrays), float)
    found = {name: np.zeros(len(whole)) for name in SUMS}
    for order in (SUMS, (*SUMS[1:], SUMS[0])):
        rest, before = arrays, whole
        for name in order:
            none = np.where(rest.prefill_tokens > 0, FEW, 0.0) if name == "prefill_tokens" else np.zeros(len(whole))
            rest = rest._replace(**{name: none})
            after = np.minimum(np.asarray(plant.step_time_s(rest), float), before)
            found[name] += 0.5 * (before - after)
            before = after
    return found | {"floor": whole - sum(found.values())}


def resources(plant: Plant, batch: Batch) -> dict[str, dict[str, float]]:
    """Where the steps' time went, and which part of it was the largest in how many of them.

    Args:
        plant: that predicts.
        batch: sums of the steps, arrays of shape (k,).

    Returns:
        {"time": share of the predicted time by sum, "steps": share of the steps in which it was the largest part}; empty for no step.
    """
    parts = spent_s(plant, batch)
    table = np.stack(list(parts.values()))
    if table.shape[1] == 0 or table.sum() <= 0:
        return {}
    largest = table.argmax(axis=0)
    return {
        "time": {name: float(row.sum() / table.sum()) for name, row in zip(parts, table, strict=True)},
        "steps": {name: float((largest == k).mean()) for k, name in enumerate(parts)},
    }


def batch_of(log: np.ndarray) -> Batch:
    """The sums of recorded steps.

    Args:
        log: shape (k, LOG_COLUMNS): end, step time, then the five sums in the order of `Batch`.

    Returns:
        Arrays of shape (k,).
    """
    return Batch(*(log[:, k] for k in range(2, 7)))


def blind(binding: dict[str, float], commanded: str = "budget", *, kept: bool = False) -> str:
    """What is to be said of a law whose own limit was not what held the engine.

    Args:
        binding: share of the steps by the limit that bound them.
        commanded: the limit that the law moves, a key of `LIMITS`.
        kept: whether the promise was kept; a law that was never needed is not blind.

    Returns:
        A sentence; empty where the limit was felt, or nothing was amiss.

    Example:
        >>> blind({"none": 0.1, "kv": 0.9, "budget": 0.0})
        'blind: the law moves the token budget, which bound 0.0 % of the steps; the KV cache bound 90.0 %'
        >>> blind({"none": 0.5, "budget": 0.5})
        ''
    """
    felt: Any = binding.get(commanded, 0.0)
    if kept or felt >= FELT or not binding:
        return ""
    other = max((name for name in binding if name != commanded), key=lambda name: binding[name])
    said = f"blind: the law moves {LIMITS[commanded]}, which bound {felt:.1%} of the steps; {LIMITS[other]} bound {binding[other]:.1%}"
    return said.replace("%", " %")
