"""Two plant structures that are linear in their terms: one law for all steps, or one for each of two regimes."""

from __future__ import annotations

import math
from typing import Any, ClassVar, final

import jax.numpy as jnp
import numpy as np

from headway.models.plant import Batch, Coefficient, Plant
from headway.models.pytree import pytree
from headway.models.steptime import PACKED

TERMS: tuple[tuple[str, str], ...] = (
    ("floor", "s"),
    ("per_decode_request", "s/request"),
    ("per_kv_token", "s/token"),
    ("per_prefill_token", "s/token"),
    ("per_prefill_pair", "s/token^2"),
    ("per_prefill_request", "s/request"),
)
"""Name and unit of the terms, in packed order."""


def terms(batch: Batch, like: Any = np) -> Any:
    """The regressors of the linear structures.

    Args:
        batch: sums of the steps, arrays of shape (k,) or scalars.
        like: `numpy` or `jax.numpy`.

    Returns:
        Array of shape (k, 6), or (6,) for scalars: 1, n, kv, p, pairs, r.
    """
    columns = [like.asarray(x, dtype=float) for x in batch]
    return like.stack([like.ones_like(columns[0]), *columns], axis=-1)


def checked(values: dict[str, float], names: list[str], structure: str) -> list[float]:
    """The numbers of a plant in order.

    Args:
        values: by name.
        names: wanted, in order.
        structure: for the message.

    Returns:
        The values, in the order of `names`.

    Raises:
        ValueError: a missing or unknown name, or a value that is negative or not finite.
    """
    missing, unknown = [n for n in names if n not in values], [n for n in values if n not in names]
    if missing or unknown:
        raise ValueError(f"coefficients of structure {structure!r}: missing {missing}, unknown {unknown}; expected {names}")
    for name in names:
        if not (math.isfinite(values[name]) and values[name] >= 0):
            raise ValueError(f"coefficient {name} must be finite and not negative, got {values[name]}; more work never takes less time")
    return [float(values[n]) for n in names]


@final
@pytree
class AffinePlant(Plant):
    """One linear law for all steps.

    t = c . (1, n, kv, p, pairs, r)

    Args:
        law: the six numbers in the order of `TERMS`, shape (6,).

    Example:
        >>> plant = AffinePlant((0.01, 0.0, 0.0, 1e-5, 0.0, 0.0))
        >>> float(plant.step_time_s(Batch(0, 0, 1000, 0, 1)).round(3))
        0.02
    """

    structure: ClassVar[str] = "affine"
    law: Any

    def step_time_s(self, batch: Batch) -> Any:  # noqa: D102
        like = namespace(self.law, batch)
        return terms(batch, like) @ like.asarray(self.law)

    def pack(self) -> np.ndarray:  # noqa: D102
        return np.concatenate([np.asarray(self.law, float)] * 2 + [np.zeros(PACKED - 2 * len(TERMS))])

    def coefficients(self) -> dict[str, Coefficient]:  # noqa: D102
        return {f"all.{name}": Coefficient(float(v), unit) for (name, unit), v in zip(TERMS, self.law, strict=True)}

    @classmethod
    def from_coefficients(cls, values: dict[str, float]) -> AffinePlant:  # noqa: D102
        return cls(tuple(checked(values, [f"all.{n}" for n, _ in TERMS], cls.structure)))


@final
@pytree
class RegimePlant(Plant):
    """One linear law for decode-only steps, another for every step with prefill ("mixed", prefill-only included).

    Engines run the two through different code (captured graphs against eager or piecewise), which one law cannot hold:
    on measured traces it triples the error of the mixed steps, the ones that a controller shapes.

    Args:
        decode: six numbers in the order of `TERMS`, shape (6,); the last three never act.
        mixed: six numbers, shape (6,).

    Source:
        Headway's own comparison on vLLM 0.20.1 step traces; see docs/design.md, "Two regimes".
    """

    structure: ClassVar[str] = "regimes"
    decode: Any
    mixed: Any

    def step_time_s(self, batch: Batch) -> Any:  # noqa: D102
        like = namespace((self.decode, self.mixed), batch)
        rows = terms(batch, like)
        mixed = like.asarray(batch.prefill_tokens) > 0
        return like.where(mixed, rows @ like.asarray(self.mixed), rows @ like.asarray(self.decode))

    def pack(self) -> np.ndarray:  # noqa: D102
        return np.concatenate([np.asarray(self.decode, float), np.asarray(self.mixed, float), np.zeros(PACKED - 2 * len(TERMS))])

    def coefficients(self) -> dict[str, Coefficient]:  # noqa: D102
        rows = {}
        for regime, law, last in (("decode", self.decode, 3), ("mixed", self.mixed, 6)):
            for (name, unit), value in zip(TERMS[:last], law[:last], strict=True):
                rows[f"{regime}.{name}"] = Coefficient(float(value), unit)
        return rows

    @classmethod
    def from_coefficients(cls, values: dict[str, float]) -> RegimePlant:  # noqa: D102
        names = [f"decode.{n}" for n, _ in TERMS[:3]] + [f"mixed.{n}" for n, _ in TERMS]
        numbers = checked(values, names, cls.structure)
        return cls((*numbers[:3], 0.0, 0.0, 0.0), tuple(numbers[3:]))


def namespace(numbers: Any, batch: Batch) -> Any:
    """numpy where everything is numpy or plain numbers, else JAX.

    Args:
        numbers: a pytree of the plant's numbers.
        batch: sums of the steps.

    Returns:
        `numpy` or `jax.numpy`.
    """
    import jax

    leaves = jax.tree.leaves((numbers, tuple(batch)))
    return jnp if any(isinstance(x, jax.Array) for x in leaves) else np
