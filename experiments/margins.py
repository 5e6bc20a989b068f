"""How far a PI loop is from instability: its transfer at an operating point, and the exact gain limit by a root test."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np

from headway.controllers.pi import PILaw
from headway.models.identified import Hull
from headway.models.plant import Batch, Plant
from headway.models.signals import Limits

SMALL_SHARE = 1 / 32
"""Of the largest chunk: the small one."""

DIFFERENCE = 0.05
"""Half-width of the difference that reads a slope off, as a share of the chunk: beyond the plant's own rounding, within its bends."""

NO_GAIN = 1e-9
"""Gain below which a part of the law does not act: it would need more steps than an engine lives for."""

GREATEST = 1e9
"""Factor on the gain beyond which a loop counts as stable at any gain."""


@dataclasses.dataclass(frozen=True)
class OperatingPoint:
    """One place in the plant's hull, and what one more prompt token costs there.

    Args:
        decode_requests: requests that decode beside the chunk [requests].
        decode_kv_tokens: cache tokens that they read [tokens].
        prefill_tokens: chunk [tokens].
        context_tokens: of the chunk's request, already in the cache [tokens].
        slope_s_per_token: of the step time in the chunk's size [s/token].
    """

    decode_requests: float
    decode_kv_tokens: float
    prefill_tokens: float
    context_tokens: float
    slope_s_per_token: float


def step_time_s(
    plant: Plant, decode_requests: float, decode_kv_tokens: float, prefill_tokens: np.ndarray, context_tokens: float = 0.0
) -> np.ndarray:
    """Predicted duration of steps with one chunk beside the decodes.

    Args:
        plant: the plant.
        decode_requests: requests that decode [requests].
        decode_kv_tokens: cache tokens that they read [tokens].
        prefill_tokens: chunks to compare, shape (k,) [tokens].
        context_tokens: already in the cache before the chunk [tokens].

    Returns:
        Durations, shape (k,) [s].
    """
    p = np.asarray(prefill_tokens, float)
    batch = Batch(np.full_like(p, decode_requests), np.full_like(p, decode_kv_tokens), p, p * (context_tokens + p / 2), (p > 0) * 1.0)
    return np.asarray(plant.step_time_s(batch), float)


def operating_points(plant: Plant, hull: Hull, limits: Limits, most_tokens: float) -> list[OperatingPoint]:
    """Centre and corners of the hull in the decodes, each with a small chunk of a fresh prompt and a large one of a deep prompt.

    A chunk's attention reads the context before it, so the same token costs more late in a long prompt: the small fresh
    chunk and the large deep one are where the slope is least and greatest.

    Args:
        plant: the plant.
        hull: what its trace held.
        limits: of the engine.
        most_tokens: largest prefill budget of the law [tokens].

    Returns:
        Ten points, the centre first, less those that coincide.
    """
    large = max(1.0, min(hull.prefill_tokens, most_tokens, limits.max_tokens))
    # pairs per token is what the trace held; a smaller chunk reaches no further back than its largest did
    reach = hull.prefill_pairs / max(hull.prefill_tokens, 1.0)
    deep = float(np.clip(reach - large / 2, 0.0, max(limits.max_len - large, 0.0)))
    chunks = dict.fromkeys(((max(1.0, float(round(large * SMALL_SHARE))), 0.0), (large, deep)))
    n, kv = max(1.0, hull.decode_requests), hull.decode_kv_tokens
    centre = (float(round((1.0 + n) / 2)), float(round(kv / 2)))
    places = dict.fromkeys((centre, *itertools.product((1.0, n), (0.0, kv))))
    return [OperatingPoint(*place, *chunk, _slope(plant, *place, *chunk)) for place in places for chunk in chunks]


def _slope(plant: Plant, n: float, kv: float, p: float, context: float) -> float:
    half = max(DIFFERENCE * p, 0.5)
    low, high = step_time_s(plant, n, kv, np.array([p - half, p + half]), context)
    return float((high - low) / (2 * half))


def loop_transfer(law: PILaw, slope_s_per_token: float, delay: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """The loop opened at the step time, in step index: everything from an error to the step time that answers it.

    L(z) = (slope / law's slope) (kp + ki z / (z - 1)) z^-delay

    The law adds ki e to its integrator before it adds kp e, so the integrator acts without a delay of its own; its
    command shapes the next step, which is measured when it ends: one delay in all where the engine composes a step
    after the last has ended, two where it composes one step ahead. Factors common to both polynomials are removed: a
    pole at 1 that no gain moves would look like an unstable one.

    Args:
        law: its kp, ki and slope.
        slope_s_per_token: the plant's where it operates [s/token].
        delay: steps from a command to its measurement; 1 or more.

    Returns:
        (numerator, denominator), coefficients from the highest power down; numerator 0 where nothing is fed back.
    """
    ratio = slope_s_per_token / float(law.slope_s_per_token)
    kp, ki = float(law.kp) * ratio, float(law.ki) * ratio
    if ki < NO_GAIN:
        return np.array([kp if kp >= NO_GAIN else 0.0]), np.array([1.0] + [0.0] * delay)
    if kp < NO_GAIN:
        return np.array([ki]), np.array([1.0, -1.0] + [0.0] * (delay - 1))
    return np.array([kp + ki, -kp]), np.array([1.0, -1.0] + [0.0] * delay)


def closed_radius(numerator: np.ndarray, denominator: np.ndarray, factor: float = 1.0) -> float:
    """Largest magnitude of the closed loop's poles: below 1 is stable.

    Args:
        numerator: of the loop, from the highest power down, shape (m,).
        denominator: shape (n,), n >= m.
        factor: on the loop's gain.

    Returns:
        Spectral radius; a disturbance shrinks by it in every step, in the long run.
    """
    poles = np.roots(np.polyadd(denominator, factor * np.asarray(numerator, float)))
    return float(np.abs(poles).max(initial=0.0))


def gain_limit(numerator: np.ndarray, denominator: np.ndarray) -> float:
    """The factor on the loop's gain at which it stops being stable, found from the poles themselves.

    The phase of a PI loop with delay falls steadily in the frequency, so all smaller gains are stable and all greater
    ones are not: one bisection finds the edge. `control.margin` looks for phase crossings below the Nyquist frequency
    and misses the one that lies on it, which is where every loop with one delay loses stability: of 0.1 / (z - 1) it
    says infinity, the truth is 20.

    Args:
        numerator: of the loop, from the highest power down, shape (m,).
        denominator: shape (n,), n >= m.

    Returns:
        Factor; below 1 the loop is unstable as it stands, infinity means no gain makes it so.

    Example:
        >>> round(gain_limit(np.array([0.1]), np.array([1.0, -1.0])), 9)
        20.0
    """
    if not np.any(numerator):
        return math.inf
    low = high = 1.0
    while closed_radius(numerator, denominator, high) < 1.0:
        low, high = high, 2 * high
        if high > GREATEST:
            return math.inf
    while closed_radius(numerator, denominator, low) >= 1.0:
        low, high = low / 2, low
        if low < 1 / GREATEST:
            return 0.0
    while high / low - 1 > 1e-13:
        middle = math.sqrt(low * high)
        if closed_radius(numerator, denominator, middle) < 1.0:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def authority(plant: Plant, points: Iterable[OperatingPoint], setpoint_s: float, most_tokens: float) -> Iterator[str]:
    """Places where no budget holds the setpoint, whatever the margins say.

    Args:
        plant: the plant.
        points: places in its hull.
        setpoint_s: of the step time [s].
        most_tokens: largest prefill budget of the law [tokens].

    Yields:
        One sentence per place.
    """
    goal = f"the setpoint of {setpoint_s * 1e3:.1f} ms"
    for n, kv in dict.fromkeys((p.decode_requests, p.decode_kv_tokens) for p in points):
        none, one, most = step_time_s(plant, n, kv, np.array([0.0, 1.0, most_tokens]))
        where = f"with {n:,.0f} decoding requests and {kv:,.0f} KV tokens"
        if none > setpoint_s:
            yield f"{where} a step takes {none * 1e3:.1f} ms without any prefill, more than {goal}: only admission helps there"
        elif one > setpoint_s:
            between = f"between {none * 1e3:.1f} ms without prefill and {one * 1e3:.1f} ms with one token of it"
            yield f"{where} {goal} lies {between}: the law will switch prefill on and off"
        elif most < setpoint_s:
            yield f"{where} the largest prefill takes {most * 1e3:.1f} ms, less than {goal}: the limit rules there, not the law"


def instability(law: PILaw, plant: Plant, hull: Hull, limits: Limits, delay: int = 1) -> str | None:
    """Where in the hull the law would be unstable: what must not be exported.

    Args:
        law: the law.
        plant: the plant.
        hull: what its trace held.
        limits: of the engine.
        delay: steps from a command to its measurement; 1 or more.

    Returns:
        A sentence about the worst point, or None if all are stable.
    """
    points = operating_points(plant, hull, limits, float(law.most_tokens))
    worst = max(points, key=lambda point: point.slope_s_per_token)
    limit = gain_limit(*loop_transfer(law, worst.slope_s_per_token, delay))
    if limit > 1.0:
        return None
    return (
        f"unstable {at_point(worst)}: the loop's gain is {1 / limit if limit else math.inf:.2f} times what it can bear; "
        f"kp {law.kp:g} and ki {law.ki:g} must come down"
    )


def at_point(point: OperatingPoint) -> str:
    """An operating point in words.

    Args:
        point: the point.

    Returns:
        A phrase that starts with "at".
    """
    chunk = f"a chunk of {point.prefill_tokens:,.0f} tokens after {point.context_tokens:,.0f}"
    return f"at {point.decode_requests:,.0f} decoding requests, {point.decode_kv_tokens:,.0f} KV tokens and {chunk}"
