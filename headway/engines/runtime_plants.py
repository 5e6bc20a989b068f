"""Plants inside an engine's process: the predicted duration of a step, and the most prompt tokens that still end in time.

Every sum is taken in the order of Headway's compiled plants, so that both give the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

INF, NAN = math.inf, math.nan
Numbers = tuple[float, ...]

TERMS = ("floor", "per_decode_request", "per_kv_token", "per_prefill_token", "per_prefill_pair", "per_prefill_request")
BENT = (
    "per_context_token",
    "per_longest_token",
    "per_kneed_token",
    "saturation",
    "per_padded_token",
    "past_limit",
    "per_token_past_limit",
    "per_kv_token_past_cache",
)
SHAPES = (
    "knee_tokens",
    "knee_power",
    "saturation_tokens",
    "decode_limit_tokens",
    "mixed_limit_tokens",
    "stride_tokens",
    "cache_tokens",
)
ROOF = ("memory.weights", "memory.per_kv_token", "arithmetic.per_token", "arithmetic.per_pair", "roof.power")
"""Names of a plant's numbers, in the order in which its sums take them."""

NEWTON_TRIES = 5
"""Guesses along the slope before the search of the largest budget goes over to halving."""


class PlantTwin(NamedTuple):
    """A plant as two functions.

    Args:
        step_time: (decode_requests, decode_kv_tokens, prefill_tokens, prefill_pairs, prefill_requests) -> duration [s].
        along: (decode_requests, decode_kv_tokens, context_tokens) -> the duration as a function of the tokens of one chunk.
        slope_s_per_token: roughly what a prompt token costs: where the search begins [s/token].
        limit_tokens: tokens of a step with prefill past which its duration jumps; infinite where none does [tokens].
    """

    step_time: Callable[[float, float, float, float, float], float]
    along: Callable[[float, float, float], Callable[[float], float]]
    slope_s_per_token: float
    limit_tokens: float = INF


def largest_prefill(at: Callable[[float], float], seconds: float, most: float, start: float, slope_s_per_token: float) -> float:
    """Most prompt tokens with which the predicted step does not exceed a duration.

    max u in {0, 1, ..., most}:  at(u) <= seconds

    A plant grows with u, so the answer does not depend on where the search begins; from the last step's it takes three
    or four looks at the plant where halving takes one per bit of `most`.

    Args:
        at: duration of the step with a chunk of u tokens, u >= 1 [s].
        seconds: longest step [s].
        most: upper limit, a whole number [tokens].
        start: a guess, such as the last answer [tokens].
        slope_s_per_token: roughly what a token costs [s/token].

    Returns:
        Prompt tokens, 0 if not even one fits.
    """
    low, high, jump, tries, slope = 0.0, most + 1.0, 1.0, 0, slope_s_per_token
    if slope <= 0.0:
        start = most  # nothing grows: all or nothing fits
    u = start // 1.0 if start < most else most
    u = u if u > 1.0 else 1.0
    u_before = t_before = 0.0
    while high - low > 1.0:
        t = at(u)
        gap = seconds - t
        if gap >= 0.0:
            low = u
        else:
            high = u
        if tries:
            secant = (t - t_before) / (u - u_before)
            slope = secant if secant > 0.0 else slope
        tries += 1
        if tries <= NEWTON_TRIES and slope > 0.0:
            u_before, t_before = u, t
            u = (u + gap / slope) // 1.0
        else:
            u_before, t_before = u, t
            u = min(low + jump, (low + high) / 2.0) // 1.0
            jump += jump
        u = high - 1.0 if u >= high else u
        u = u if u > low else low + 1.0
    return low


def read_plant(plant: dict[str, Any], number: Callable[[dict[str, Any], str], float]) -> PlantTwin | None:
    """The plant of a gains file.

    Args:
        plant: its `structure` and `coefficients`.
        number: reads one number by name and refuses what is none.

    Returns:
        The plant; None for a structure that this runtime does not know.
    """
    structure, numbers = plant["structure"], plant["coefficients"]

    def read(prefix: str, names: tuple[str, ...]) -> Numbers:
        return tuple(number(numbers, prefix + name) for name in names)

    if structure == "affine":
        return _linear(read("all.", TERMS), read("all.", TERMS))
    if structure == "regimes":
        return _linear((*read("decode.", TERMS[:3]), 0.0, 0.0, 0.0), read("mixed.", TERMS))
    if structure == "curved":
        decode = (*read("decode.", TERMS[:3]), 0.0, 0.0, 0.0)
        return _curved(decode, read("mixed.", TERMS), (0.0, *read("decode.", BENT[1:])), read("mixed.", BENT), read("shape.", SHAPES))
    if structure == "roofline":
        floors, per = read("", ("decode.floor", "mixed.floor")), read("all.", ("per_decode_request", "per_prefill_request"))
        return _roofline(floors, per, read("", ROOF))
    if structure == "concurrency":
        return _concurrency(*read("all.", ("floor", "per_decode_request", "per_sqrt_decode_request")))
    return None


def _linear(decode: Numbers, mixed: Numbers) -> PlantTwin:
    floor, per_n, per_kv, per_p, per_pair, per_r = mixed

    def step_time(n: float, kv: float, p: float, pairs: float, r: float) -> float:
        c0, c1, c2, c3, c4, c5 = mixed if p > 0.0 else decode
        return c0 + c1 * n + c2 * kv + c3 * p + c4 * pairs + c5 * r

    def along(n: float, kv: float, context: float) -> Callable[[float], float]:
        base = floor + per_n * n + per_kv * kv
        return lambda u: base + per_p * u + per_pair * (u * (context + 0.5 * u)) + per_r

    return PlantTwin(step_time, along, per_p)


def _curved(decode: Numbers, mixed: Numbers, decode_bent: Numbers, mixed_bent: Numbers, shape: Numbers) -> PlantTwin:
    decode_limit, mixed_limit, cache = shape[3], shape[4], shape[6]
    # a term whose number is zero adds nothing, and is not computed
    with_prefill: tuple[Any, ...] = (*mixed, *mixed_bent[:2], any(mixed_bent[:2]), _bend(mixed_bent, shape, mixed_limit), mixed_bent[7])
    without: tuple[Any, ...] = (*decode, *decode_bent[:2], any(decode_bent[:2]), _bend(decode_bent, shape, decode_limit), decode_bent[7])

    def step_time(n: float, kv: float, p: float, pairs: float, r: float) -> float:
        c0, c1, c2, c3, c4, c5, per_context, per_longest, reaches, bend, spills = with_prefill if p > 0.0 else without
        t = 0.0
        if reaches:
            context = max(pairs * r / p - p / 2.0, 0.0) if p > 0.0 else 0.0
            t = per_context * context + per_longest * max(kv / n if n > 0.0 else 0.0, context / r if r > 0.0 else 0.0)
        if bend:
            t = bend(n + p, t)
        if spills > 0.0:
            t += spills * max(kv - cache, 0.0)
        return c0 + c1 * n + c2 * kv + c3 * p + c4 * pairs + c5 * r + t

    floor, per_n, per_kv, per_p, per_pair, per_r, per_context, per_longest, reaches, bend, spills = with_prefill

    def along(n: float, kv: float, context: float) -> Callable[[float], float]:
        base, mean = floor + per_n * n + per_kv * kv, kv / n if n > 0.0 else 0.0
        spilled = spills * max(kv - cache, 0.0)

        def at(u: float) -> float:
            pairs, t = u * (context + 0.5 * u), 0.0
            if reaches:
                before = max(pairs / u - u / 2.0, 0.0)
                t = per_context * before + per_longest * max(mean, before)
            if bend:
                t = bend(n + u, t)
            return base + per_p * u + per_pair * pairs + per_r + (t + spilled)

        return at

    jumps = mixed_bent[5] + mixed_bent[6] > 0.0
    return PlantTwin(step_time, along, per_p + mixed_bent[2] + mixed_bent[4], mixed_limit if jumps else INF)


def _bend(bent: Numbers, shape: Numbers, limit: float) -> Callable[[float, float], float] | None:
    """The terms in a step's tokens that a regime has, as (tokens, t) -> t and those terms; None if it has none."""
    knee, power, spread, _, _, stride, _ = shape
    _, _, per_kneed, saturation, per_padded, past, per_past, _ = bent

    def bend(tokens: float, t: float) -> float:
        if per_kneed > 0.0:
            t += per_kneed * _norm(tokens, knee, power)
        if saturates:
            t += saturation * (1.0 - math.exp(-tokens / spread))
        if per_padded > 0.0:
            t += per_padded * _padded(tokens, stride, limit)
        return t + (past + per_past * (tokens - limit)) if tokens > limit else t

    saturates = saturation > 0.0 and spread > 0.0
    return bend if any(bent[2:7]) else None


def _roofline(floors: Numbers, per: Numbers, roof: Numbers) -> PlantTwin:
    (decode, mixed), (per_n, per_r), (weights, per_kv, per_token, per_pair, power) = floors, per, roof

    def step_time(n: float, kv: float, p: float, pairs: float, r: float) -> float:
        bound = _norm(weights + per_kv * kv, per_token * (n + p) + per_pair * pairs, power)
        return (mixed if p > 0.0 else decode) + per_n * n + per_r * r + bound

    def along(n: float, kv: float, context: float) -> Callable[[float], float]:
        base, memory = mixed + per_n * n + per_r, weights + per_kv * kv
        return lambda u: base + _norm(memory, per_token * (n + u) + per_pair * (u * (context + 0.5 * u)), power)

    return PlantTwin(step_time, along, per_token)


def _concurrency(floor: float, per_n: float, per_root: float) -> PlantTwin:
    def step_time(n: float, kv: float, p: float, pairs: float, r: float) -> float:  # noqa: ARG001  # of all that, n is what it knows
        return floor + per_n * n + per_root * math.sqrt(n)

    def along(n: float, kv: float, context: float) -> Callable[[float], float]:  # noqa: ARG001
        seconds = floor + per_n * n + per_root * math.sqrt(n)
        return lambda u: seconds  # noqa: ARG005

    return PlantTwin(step_time, along, 0.0)


def _norm(a: float, b: float, power: float) -> float:
    """(a^q + b^q)^(1/q); a power of 0 stands for infinity, the larger of the two."""
    large, small = (a, b) if a > b else (b, a)
    if power <= 0.0 or large <= 0.0 or small <= 0.0:
        return large
    return large * (1.0 + (small / large) ** power) ** (1.0 / power)


def _padded(tokens: float, stride: float, limit: float) -> float:
    """Tokens that a captured graph computes."""
    if stride <= 1.0 or tokens <= 0.0 or tokens > limit:
        return tokens
    size = 2.0 ** math.ceil(math.log2(tokens)) if tokens <= stride else math.ceil(tokens / stride) * stride
    return min(size, limit)
