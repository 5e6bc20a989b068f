"""Places in a plant's hull where a loop is looked at: what one more prompt token costs there, and where the plant jumps."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from headway.controllers.inverse import OVERSTAY
from headway.models.identified import Hull
from headway.models.plant import Batch, Plant
from headway.models.signals import Limits

SMALL_SHARE = 1 / 32
"""Of the largest chunk: the small one."""

DIFFERENCE = 0.05
"""Half-width of the difference that reads a slope off, as a share of the chunk: beyond the plant's own rounding, within its bends."""

STRETCH_TOKENS = 16
"""Least half-width of the difference when the slopes between jumps are gathered: beyond the padding of small steps [tokens]."""

SHAPES = ("shape.", "roof.power")
"""Names of coefficients that say where a plant bends, not how much: no factor on the plant's gain is one on them."""


@dataclasses.dataclass(frozen=True)
class OperatingPoint:
    """One place in the plant's hull, and what one more prompt token costs there.

    Args:
        decode_requests: requests that decode beside the chunk [requests].
        decode_kv_tokens: cache tokens that they read [tokens].
        prefill_tokens: chunk [tokens].
        context_tokens: of the chunk's request, already in the cache [tokens].
        slope_s_per_token: of the step time in the chunk's size, without jumps [s/token].
    """

    decode_requests: float
    decode_kv_tokens: float
    prefill_tokens: float
    context_tokens: float
    slope_s_per_token: float


class Place(NamedTuple):
    """What decodes beside the prefill.

    Args:
        decode_requests: [requests].
        decode_kv_tokens: cache tokens that they read [tokens].
    """

    decode_requests: float
    decode_kv_tokens: float


class Sector(NamedTuple):
    """Slopes of the plant between two of its jumps: what a gain is multiplied by, whatever the load does there.

    Args:
        first_tokens: smallest chunk of the stretch [tokens].
        last_tokens: largest; one more token and the plant jumps, or the hull ends [tokens].
        low_s_per_token: least slope on it [s/token].
        high_s_per_token: greatest [s/token].
        jump_s: height of the jump after it; 0 at the hull's end [s].
    """

    first_tokens: float
    last_tokens: float
    low_s_per_token: float
    high_s_per_token: float
    jump_s: float


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


def places(hull: Hull) -> list[Place]:
    """Centre and corners of the hull in the decodes.

    Args:
        hull: what the plant's trace held.

    Returns:
        The centre first; five, less those that coincide.
    """
    n, kv = max(1.0, hull.decode_requests), hull.decode_kv_tokens
    centre = (float(round((1.0 + n) / 2)), float(round(kv / 2)))
    return [Place(*p) for p in dict.fromkeys((centre, *itertools.product((1.0, n), (0.0, kv))))]


def chunks(hull: Hull, limits: Limits, most_tokens: float) -> list[tuple[float, float]]:
    """A small chunk of a fresh prompt and a large one of a deep prompt.

    A chunk's attention reads the context before it, so the same token costs more late in a long prompt: these two are
    where the slope is least and greatest.

    Args:
        hull: what the plant's trace held.
        limits: of the engine.
        most_tokens: largest prefill budget of the law [tokens].

    Returns:
        (chunk, context before it), each.
    """
    large = max(1.0, min(hull.prefill_tokens, most_tokens, limits.max_tokens))
    # pairs per token is what the trace held; a smaller chunk reaches no further back than its largest did
    reach = hull.prefill_pairs / max(hull.prefill_tokens, 1.0)
    deep = float(np.clip(reach - large / 2, 0.0, max(limits.max_len - large, 0.0)))
    return list(dict.fromkeys(((max(1.0, float(round(large * SMALL_SHARE))), 0.0), (large, deep))))


def operating_points(plant: Plant, hull: Hull, limits: Limits, most_tokens: float) -> list[OperatingPoint]:
    """Every place of the hull with every chunk.

    Args:
        plant: the plant.
        hull: what its trace held.
        limits: of the engine.
        most_tokens: largest prefill budget of the law [tokens].

    Returns:
        Ten points, the centre first, less those that coincide.
    """
    sizes = chunks(hull, limits, most_tokens)
    return [OperatingPoint(*place, *chunk, slope(plant, place, *chunk)) for place in places(hull) for chunk in sizes]


def slope(plant: Plant, place: Place, prefill_tokens: float, context_tokens: float) -> float:
    """What one more token costs about a chunk; a jump nearby is no slope and left out.

    Args:
        plant: the plant.
        place: the decodes.
        prefill_tokens: chunk [tokens].
        context_tokens: before it [tokens].

    Returns:
        Slope [s/token].
    """
    half = max(DIFFERENCE * prefill_tokens, 0.5)
    tokens = np.linspace(prefill_tokens - half, prefill_tokens + half, max(2, math.ceil(2 * half) + 1))
    times = step_time_s(plant, *place, tokens, context_tokens)
    rises = np.diff(times)
    return float(rises[~_jumps(times)].sum() / (2 * half))


def _jumps(times: np.ndarray) -> np.ndarray:
    """Where one more token makes the step longer by more than a held command may: shape (k - 1,)."""
    return times[1:] > OVERSTAY * times[:-1]


def sectors(plant: Plant, place: Place, most_tokens: float, context_tokens: float = 0.0) -> list[Sector]:
    """The slopes of the plant on every side of its jumps.

    Args:
        plant: the plant.
        place: the decodes.
        most_tokens: largest chunk [tokens].
        context_tokens: before it [tokens].

    Returns:
        One sector without a jump, two with one.
    """
    tokens = np.arange(1.0, max(most_tokens, 2.0) + 1)
    times = step_time_s(plant, *place, tokens, context_tokens)
    ends = [*np.flatnonzero(_jumps(times)).tolist(), len(tokens) - 1]
    found, first = [], 0
    for end in ends:
        stretch, heights = tokens[first : end + 1], times[first : end + 1]
        jump = float(times[end + 1] - times[end]) if end + 1 < len(times) else 0.0
        if len(stretch) > 1:
            at = np.unique(np.geomspace(stretch[0], stretch[-1], 64).round())
            half = np.maximum(DIFFERENCE * at, STRETCH_TOKENS)
            low, high = np.maximum(at - half, stretch[0]), np.minimum(at + half, stretch[-1])
            slopes = (np.interp(high, stretch, heights) - np.interp(low, stretch, heights)) / (high - low)
            found.append(Sector(float(stretch[0]), float(stretch[-1]), float(slopes.min()), float(slopes.max()), jump))
        first = end + 1
    return found


def with_gain(plant: Plant, factor: float, points: Iterable[OperatingPoint]) -> Plant:
    """A plant whose slopes are some times as steep: every coefficient that the slope depends on, times a factor.

    Args:
        plant: the plant.
        factor: on the slope.
        points: where to look for what the slope depends on.

    Returns:
        Another plant of the same structure.
    """
    values, points = {name: c.value for name, c in plant.coefficients().items()}, list(points)
    moved = dict(values)
    for name, value in values.items():
        if value > 0 and not name.startswith(SHAPES):
            other = plant.from_coefficients({**values, name: 1.01 * value})
            if any(abs(_slope_at(other, p) - p.slope_s_per_token) > 1e-9 * p.slope_s_per_token for p in points):
                moved[name] = factor * value
    return plant.from_coefficients(moved)


def _slope_at(plant: Plant, point: OperatingPoint) -> float:
    return slope(plant, Place(point.decode_requests, point.decode_kv_tokens), point.prefill_tokens, point.context_tokens)


def slope_ends(plant: Plant, point: OperatingPoint, interval: Mapping[str, tuple[float, float]] | None) -> tuple[float, float]:
    """The slope's own interval, from those of the coefficients.

    Deviations are added as squares, as if coefficients erred independently. Those of tokens and of pairs err against
    each other, which makes the truth narrower: a trace in which long chunks reach far back cannot tell them apart.

    Args:
        plant: the plant.
        point: where.
        interval: 95 % interval of each coefficient, by name; None for none.

    Returns:
        (low, high) [s/token].
    """
    values = {name: c.value for name, c in plant.coefficients().items()}
    down = up = 0.0
    for name, ends in (interval or {}).items():
        if name not in values or name.startswith(SHAPES) or not all(map(math.isfinite, ends)):
            continue
        moves = [_slope_at(plant.from_coefficients({**values, name: max(end, 0.0)}), point) - point.slope_s_per_token for end in ends]
        down, up = down + min(*moves, 0.0) ** 2, up + max(*moves, 0.0) ** 2
    return max(point.slope_s_per_token - math.sqrt(down), 0.0), point.slope_s_per_token + math.sqrt(up)


def powerless(plant: Plant, place: Place, setpoint_s: float) -> bool:
    """Whether a place leaves no room for a single prompt token.

    Args:
        plant: the plant.
        place: the decodes.
        setpoint_s: of the step time [s].

    Returns:
        True if the step is too long with the smallest prefill.
    """
    return bool(step_time_s(plant, *place, np.array([1.0]))[0] > setpoint_s)


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


def at_point(point: OperatingPoint) -> str:
    """An operating point in words.

    Args:
        point: the point.

    Returns:
        A phrase that starts with "at".
    """
    chunk = f"a chunk of {point.prefill_tokens:,.0f} tokens after {point.context_tokens:,.0f}"
    return f"at {point.decode_requests:,.0f} decoding requests, {point.decode_kv_tokens:,.0f} KV tokens and {chunk}"
