"""Where a term bends: its knee, its limit, its stride, found by the error of the fit that has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from headway.identification.structures.crossval import compare
from headway.identification.structures.terms import Structure

SATURATION = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
KNEE = (32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
POWERS = (2.0, 4.0, 0.0)
STRIDES = (8.0, 16.0, 32.0, 64.0, 512.0)
"""Distances of captured sizes that engines use; below the stride all of them double."""
CANDIDATES = 24
"""Thresholds tried at once between the smallest and the largest."""
EDGE = 8
"""Rows needed on either side of a threshold."""


class Bend(NamedTuple):
    """One rung of the ladder: a term that may act, and where it may bend.

    Args:
        name: in words.
        terms: numbers of its terms in `headway.models.curved.BENT`.
        shapes: its shape numbers, by name of `headway.models.curved.SHAPES`; "limit_tokens" stands for the regime's own.
        decode_first: whether decode-only steps tell its shape better than those with prefill.
    """

    name: str
    terms: tuple[int, ...]
    shapes: tuple[str, ...] = ()
    decode_first: bool = False


BENDS: tuple[Bend, ...] = (
    Bend("saturation in tokens", (3,), ("saturation_tokens",), decode_first=True),
    Bend("jump at a number of tokens", (5, 6), ("limit_tokens",)),
    Bend("padding to captured sizes", (4,), ("stride_tokens", "limit_tokens"), decode_first=True),
    Bend("knee between weights and arithmetic", (2,), ("knee_tokens", "knee_power")),
    Bend("context read by chunks", (0,)),
    Bend("longest sequence", (1,)),
    Bend("cache that no longer fits", (7,), ("cache_tokens",)),
)
"""Every term that bends, in the order in which equals are taken."""


def shapes_of(bend: Bend, regime: str) -> tuple[str, ...]:
    """The shape numbers of a term in one regime.

    Args:
        bend: the term.
        regime: "decode" or "mixed".

    Returns:
        Names of `headway.models.curved.SHAPES`.
    """
    return tuple(f"{regime}_limit_tokens" if name == "limit_tokens" else name for name in bend.shapes)


def best_shape(
    bend: Bend,
    regime: str,
    structure: Structure,
    tokens: np.ndarray,
    kv: np.ndarray,
    told: Callable[[Structure], np.ndarray],
    fixed: frozenset[str],
) -> Structure:
    """Find where a term bends.

    Args:
        bend: the term.
        regime: in which it acts.
        structure: with the term acting; its shape is changed.
        tokens: tokens of the rows that are fitted to, shape (k,) [tokens].
        kv: their cache tokens, shape (k,) [tokens].
        told: log residuals of a fit of a structure to these rows, shape (k,).
        fixed: shape numbers that another term fixed already, by name.

    Returns:
        The structure with the best shape found.
    """

    def loss(candidate: Structure) -> float:
        return float(np.abs(told(candidate)).mean())

    limit = f"{regime}_limit_tokens"
    free = [name for name in shapes_of(bend, regime) if name not in fixed]
    if not free:
        return structure
    if free == [limit]:
        top = float(2 ** np.ceil(np.log2(max(float(tokens.max()), 1.0))))
        if "stride_tokens" in bend.shapes:
            return structure.with_shape(**{limit: top})
        return structure.with_shape(**{limit: _limit(tokens, lambda x: told(structure.with_shape(**{limit: x})))})
    if free == ["cache_tokens"]:
        return structure.with_shape(cache_tokens=_threshold(kv, lambda x: loss(structure.with_shape(cache_tokens=x)))[0])
    found = min(_grid(free, limit, structure, tokens), key=loss)
    smooth = next((name for name in ("saturation_tokens", "knee_tokens") if name in free), None)
    return _polished(found, smooth, loss) if smooth else found


def _grid(free: list[str], limit: str, structure: Structure, tokens: np.ndarray) -> Iterable[Structure]:
    if "saturation_tokens" in free:
        return [structure.with_shape(saturation_tokens=x) for x in SATURATION]
    if "knee_tokens" in free:
        return [structure.with_shape(knee_tokens=x, knee_power=q) for x in KNEE for q in POWERS]
    top = float(2 ** np.ceil(np.log2(max(float(tokens.max()), 1.0))))
    return [structure.with_shape(stride_tokens=x, **({limit: top} if limit in free else {})) for x in STRIDES]


def _polished(structure: Structure, name: str, loss: Callable[[Structure], float]) -> Structure:
    """Between the neighbours of the grid's best, by golden sections of its logarithm."""
    start = structure.shapes()[name]
    found: Any = minimize_scalar(
        lambda x: loss(structure.with_shape(**{name: float(np.exp(x))})),
        bounds=(np.log(start / 2), np.log(start * 2)),
        method="bounded",
        options={"maxiter": 12, "xatol": 0.02},
    )
    better = structure.with_shape(**{name: float(np.exp(found.x))})
    return better if loss(better) < loss(structure) else structure


def _threshold(values: np.ndarray, loss: Callable[[float], float]) -> tuple[float, float]:
    """The two neighbouring measured values between which the threshold with the least error lies."""
    distinct = _distinct(values)
    if len(distinct) < 2:
        return (float(values.max()), np.inf) if len(values) else (0.0, np.inf)
    low, high = 0, len(distinct) - 1
    while True:
        at = np.unique(np.linspace(low, high, CANDIDATES).round().astype(int))
        best = int(at[int(np.argmin([loss(float(distinct[i])) for i in at]))])
        if len(at) < CANDIDATES or high - low < CANDIDATES:
            break
        step = max((high - low) // (CANDIDATES - 1), 1)
        low, high = max(best - step, 0), min(best + step, len(distinct) - 1)
    return float(distinct[best]), float(distinct[best + 1] if best + 1 < len(distinct) else distinct[best] + 1)


def _distinct(values: np.ndarray) -> np.ndarray:
    """Values that have EDGE rows on either side."""
    ordered = np.sort(values)
    return np.unique(ordered[EDGE - 1 : len(ordered) - EDGE]) if len(ordered) > 2 * EDGE else np.zeros(0)


def _limit(tokens: np.ndarray, told: Callable[[float], np.ndarray]) -> float:
    """The threshold with the least error; of all that are not surely worse the roundest number, and of such the nearest.

    Where a trace has few steps between two sizes that engines are set to, one odd step among them would decide.
    """
    low, high = _threshold(tokens, lambda x: float(np.abs(told(x)).mean()))
    if not np.isfinite(high):
        return low
    found, distinct = roundest(low, high), _distinct(tokens)
    least = told(found)
    power = 1 << int(np.log2(max(float(distinct[-1]), 1.0)))
    while power > 1 and found % power:
        below, above = np.floor(found / power) * power, np.ceil(found / power) * power
        for number in sorted((float(below), float(above)), key=lambda x: abs(np.log(max(x, 0.5) / found))):
            if distinct[0] <= number < distinct[-1] and not compare(least, told(number)).worse:
                return number
        power //= 2
    return found


def roundest(low: float, high: float) -> float:
    """The multiple of the largest power of two in [low, high): engines are set to such numbers.

    Args:
        low: the largest value on the near side.
        high: the smallest value on the far side.

    Returns:
        The number.

    Example:
        >>> roundest(510, 514)
        512.0
    """
    power = 1 << max(int(np.floor(np.log2(max(high, 1.0)))), 0)
    while power > 1:
        candidate = float(np.ceil(low / power) * power)
        if low <= candidate < high:
            return candidate
        power //= 2
    return float(np.ceil(low)) if low <= np.ceil(low) < high else low
