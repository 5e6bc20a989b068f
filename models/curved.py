"""A plant whose terms bend: experts that saturate, captured graphs that pad and end, knees of arithmetic and of the cache."""

from __future__ import annotations

from typing import Any, ClassVar, final

import numpy as np

from headway.models.plant import Batch, Coefficient, Plant
from headway.models.pytree import pytree
from headway.models.regimes import TERMS, checked, namespace, terms
from headway.models.steptime import CURVED, CURVES

BENT: tuple[tuple[str, str], ...] = (
    ("per_context_token", "s/token"),
    ("per_longest_token", "s/token"),
    ("per_kneed_token", "s/token"),
    ("saturation", "s"),
    ("per_padded_token", "s/token"),
    ("past_limit", "s"),
    ("per_token_past_limit", "s/token"),
    ("per_kv_token_past_cache", "s/token"),
)
"""Name and unit of the terms that bend, in packed order."""
SHAPES: tuple[tuple[str, str], ...] = (
    ("knee_tokens", "tokens"),
    ("knee_power", "1"),
    ("saturation_tokens", "tokens"),
    ("decode_limit_tokens", "tokens"),
    ("mixed_limit_tokens", "tokens"),
    ("stride_tokens", "tokens"),
    ("cache_tokens", "tokens"),
)
"""Name and unit of the numbers that say where they bend, in packed order."""
DECODE_LINEAR, DECODE_BENT = 3, 1
"""In a decode-only step the first 3 of `TERMS` act, and those of `BENT` from number 1 on: it has no chunk and no context of one."""


def bent(batch: Batch, shape: Any, like: Any = np) -> Any:
    """The regressors that bend, with T = n + p tokens in the step.

    context c = pairs r / p - p / 2, longest = max(kv / n, c / r), (T^q + knee^q)^(1/q), 1 - exp(-T / n0), T padded to
    the captured sizes, [T > limit], max(T - limit, 0), max(kv - cache, 0)

    Args:
        batch: sums of the steps, arrays of shape (k,) or scalars.
        shape: the seven numbers in the order of `SHAPES`, shape (7,).
        like: `numpy` or `jax.numpy`.

    Returns:
        Array of shape (k, 8), or (8,) for scalars.
    """
    n, kv, p, pairs, r = (like.asarray(x, dtype=float) for x in batch)
    knee, power, spread, in_decode, in_mixed, stride, cache = (like.asarray(shape)[i] for i in range(len(SHAPES)))
    tokens, some, limit = n + p, like.where(p > 0, p, 1.0), like.where(p > 0, in_mixed, in_decode)
    context = like.where(p > 0, like.maximum(pairs * r / some - p / 2, 0.0), 0.0)
    chunk = like.where(r > 0, context / like.where(r > 0, r, 1.0), 0.0)
    longest = like.maximum(like.where(n > 0, kv / like.where(n > 0, n, 1.0), 0.0), chunk)
    saturated = like.where(spread > 0, 1.0 - like.exp(-tokens / like.where(spread > 0, spread, 1.0)), 0.0)
    past = tokens > limit
    columns = [
        context,
        longest,
        norm(tokens, knee, power, like),
        saturated,
        padding(tokens, stride, limit, like),
        like.where(past, 1.0, 0.0),
        like.where(past, tokens - limit, 0.0),
        like.maximum(kv - cache, 0.0),
    ]
    return like.stack(columns, axis=-1)


def norm(a: Any, b: Any, power: Any, like: Any = np) -> Any:
    """(a^q + b^q)^(1/q), as `headway.models.steptime.p_norm`.

    Args:
        a: not negative, shape (k,).
        b: not negative, shape (k,) or a scalar, in the unit of a.
        power: q, at least 1; 0 for the maximum.
        like: `numpy` or `jax.numpy`.

    Returns:
        The norm, shape (k,).
    """
    large, small = like.maximum(a, b), like.minimum(a, b)
    curved = (power > 0) & (small > 0)
    q = like.where(power > 0, power, 1.0)
    ratio = like.where(curved, small / like.where(large > 0, large, 1.0), 0.5)
    return large * like.where(curved, (1.0 + ratio**q) ** (1.0 / q), 1.0)


def padding(tokens: Any, stride: Any, limit: Any, like: Any = np) -> Any:
    """Tokens that a captured graph computes, as `headway.models.steptime.padded`.

    Args:
        tokens: in the steps, shape (k,) [tokens].
        stride: distance of the captured sizes [tokens].
        limit: the largest captured size [tokens].
        like: `numpy` or `jax.numpy`.

    Returns:
        Padded tokens, shape (k,) [tokens].
    """
    some, wide = like.where(tokens > 0, tokens, 1.0), like.where(stride > 1, stride, 1.0)
    small = 2.0 ** like.ceil(like.log2(some))
    size = like.where(tokens <= wide, small, like.ceil(tokens / wide) * wide)
    plain = (stride <= 1) | (tokens <= 0) | (tokens > limit)
    return like.where(plain, tokens, like.minimum(size, like.maximum(limit, 0.0)))


@final
@pytree
class CurvedPlant(Plant):
    """Two regimes as in `RegimePlant`, each with terms that bend; a term whose number is zero is not there.

    t = c . (1, n, kv, p, pairs, r) + b . bent(n, kv, p, pairs, r; shape)

    Args:
        decode: six numbers in the order of `TERMS`, shape (6,); the last three never act.
        mixed: six numbers, shape (6,).
        decode_bent: eight numbers in the order of `BENT`, shape (8,); the first never acts.
        mixed_bent: eight numbers, shape (8,).
        shape: where they bend, in the order of `SHAPES`, shape (7,).

    Source:
        Saturation of experts: with n tokens on m experts of which each takes k, m (1 - (1 - k / m)^n) are read. Knee:
        Williams, Waterman and Patterson, Roofline, 2009. Graphs: engines capture fixed batch sizes and pad to the next.
    """

    structure: ClassVar[str] = "curved"
    decode: Any
    mixed: Any
    decode_bent: Any
    mixed_bent: Any
    shape: Any

    def step_time_s(self, batch: Batch) -> Any:  # noqa: D102
        like = namespace((self.decode, self.mixed, self.decode_bent, self.mixed_bent, self.shape), batch)
        rows, curves = terms(batch, like), bent(batch, like.asarray(self.shape), like)
        mixed = like.asarray(batch.prefill_tokens) > 0
        with_prefill = rows @ like.asarray(self.mixed) + curves @ like.asarray(self.mixed_bent)
        return like.where(mixed, with_prefill, rows @ like.asarray(self.decode) + curves @ like.asarray(self.decode_bent))

    def pack(self) -> np.ndarray:  # noqa: D102
        parts = (self.decode, self.mixed, [CURVED], self.decode_bent, self.mixed_bent, self.shape)
        return np.concatenate([np.asarray(part, float) for part in parts])

    def coefficients(self) -> dict[str, Coefficient]:  # noqa: D102
        found = {}
        for (name, unit), value in zip(_names(), self._values(), strict=True):
            found[name] = Coefficient(float(value), unit)
        return found

    def _values(self) -> list[Any]:
        decode = [*self.decode[:DECODE_LINEAR], *self.decode_bent[DECODE_BENT:]]
        return [*decode, *self.mixed, *self.mixed_bent, *self.shape]

    @classmethod
    def from_coefficients(cls, values: dict[str, float]) -> CurvedPlant:  # noqa: D102
        numbers = checked(values, [name for name, _ in _names()], cls.structure)
        split = np.cumsum([DECODE_LINEAR, CURVES - DECODE_BENT, len(TERMS), CURVES]).tolist()
        decode, decode_bent, mixed, mixed_bent = (numbers[a:b] for a, b in zip([0, *split], split, strict=False))
        linear = (*decode, *[0.0] * (len(TERMS) - DECODE_LINEAR))
        return cls(linear, tuple(mixed), (*[0.0] * DECODE_BENT, *decode_bent), tuple(mixed_bent), tuple(numbers[split[-1] :]))


def _names() -> list[tuple[str, str]]:
    rows = [(f"decode.{name}", unit) for name, unit in (*TERMS[:DECODE_LINEAR], *BENT[DECODE_BENT:])]
    rows += [(f"mixed.{name}", unit) for name, unit in (*TERMS, *BENT)]
    return rows + [(f"shape.{name}", unit) for name, unit in SHAPES]
