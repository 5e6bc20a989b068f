"""The regressors of every structure that is linear once its shape is known: which act in which regime, and their names."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.models import PLANTS
from headway.models.curved import BENT, DECODE_BENT, DECODE_LINEAR, SHAPES, bent
from headway.models.plant import Batch, Plant
from headway.models.regimes import TERMS, terms

LINEAR = len(TERMS)
NAMES: tuple[str, ...] = tuple(name for name, _ in (*TERMS, *BENT))
"""Names of the columns of `table`: the linear terms, then those that bend."""
NO_SHAPE: tuple[float, ...] = (0.0,) * len(SHAPES)


class Structure(NamedTuple):
    """What a fit is asked for: one of the linear structures, or a curved one with the terms that may act in it.

    Args:
        name: a key of `headway.models.PLANTS` that is linear in its terms: "affine", "regimes" or "curved".
        decode: numbers of the terms of `headway.models.curved.BENT` that act in decode-only steps.
        mixed: the same in steps with prefill.
        shape: where they bend, in the order of `headway.models.curved.SHAPES`, shape (7,).
        linear: how many leading terms of `headway.models.regimes.TERMS` act in steps with prefill.
    """

    name: str
    decode: tuple[int, ...] = ()
    mixed: tuple[int, ...] = ()
    shape: tuple[float, ...] = NO_SHAPE
    linear: int = LINEAR

    def columns(self, regime: str) -> list[int]:
        """Which columns of `table` act.

        Args:
            regime: "decode", "mixed" or "all".

        Returns:
            Their numbers, ascending.
        """
        if regime == "decode":
            return [*range(DECODE_LINEAR), *(LINEAR + b for b in sorted(self.decode) if b >= DECODE_BENT)]
        return [*range(self.linear), *(LINEAR + b for b in sorted(self.mixed))]

    def shapes(self) -> dict[str, float]:
        """The numbers of its shape.

        Returns:
            By name of `SHAPES` [their units].
        """
        return {name: value for (name, _), value in zip(SHAPES, self.shape, strict=True)}

    def with_shape(self, **values: float) -> Structure:
        """The same with other numbers of its shape.

        Args:
            values: by name of `SHAPES` [their units].

        Returns:
            The structure.
        """
        return self._replace(shape=tuple(({**self.shapes(), **values}).values()))

    def plant(self, found: dict[str, float]) -> Plant:
        """The plant with these coefficients, and zero for all others.

        Args:
            found: value by "regime.term".

        Returns:
            The plant.
        """
        kind = PLANTS[self.name]
        shape = {f"shape.{name}": value for (name, _), value in zip(SHAPES, self.shape, strict=True)}
        known = kind.from_coefficients(dict.fromkeys(names_of(self.name), 0.0)).coefficients()
        values = dict.fromkeys(known, 0.0) | {name: v for name, v in {**shape, **found}.items() if name in known}
        return kind.from_coefficients(values)


def names_of(structure: str) -> list[str]:
    """Names of all coefficients of a structure.

    Args:
        structure: "affine", "regimes" or "curved".

    Returns:
        "regime.term", in order.
    """
    linear = [name for name, _ in TERMS]
    if structure == "affine":
        return [f"all.{name}" for name in linear]
    if structure == "regimes":
        return [*(f"decode.{n}" for n in linear[:DECODE_LINEAR]), *(f"mixed.{n}" for n in linear)]
    decode = [*linear[:DECODE_LINEAR], *(n for n, _ in BENT[DECODE_BENT:])]
    return [*(f"decode.{n}" for n in decode), *(f"mixed.{n}" for n in NAMES), *(f"shape.{n}" for n, _ in SHAPES)]


def table(batch: Batch, structure: Structure) -> np.ndarray:
    """The regressors of steps.

    Args:
        batch: sums of the steps, shape (k,).
        structure: whose shape is used; the terms that bend are left out where none acts.

    Returns:
        Array of shape (k, 6) or (k, 14), columns as in `NAMES`.
    """
    linear = np.asarray(terms(batch), float)
    if not structure.decode and not structure.mixed:
        return linear
    return np.concatenate([linear, np.asarray(bent(batch, np.asarray(structure.shape, float)), float)], axis=-1)
