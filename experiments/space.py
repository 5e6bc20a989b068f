"""What tuning may move: named numbers with bounds and a practical unit each, and the way from such a point to a candidate."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate
from headway.models.signals import Limits


class Free(NamedTuple):
    """One free number.

    Args:
        name: field of the law or of the policy.
        low: least value, on the scale that is searched.
        high: greatest.
        unit: a practical step on that scale: differences are taken over half of it, moves are measured in it.
        log2: searched as a base-2 logarithm.
        whole: a number searched so is rounded to a whole one.
    """

    name: str
    low: float
    high: float
    unit: float
    log2: bool = False
    whole: bool = True


def free_parameters(limits: Limits) -> dict[str, Free]:
    """All numbers that can be tuned, by name.

    Args:
        limits: of the engine: no cap is searched above them.

    Returns:
        Mapping from name to its range.
    """
    tokens, seqs = math.log2(limits.max_tokens), math.log2(limits.max_seqs)
    rows = (
        Free("margin", 0.0, 0.6, 0.05),
        Free("late_rate", -10.0, -2.0, 0.5, log2=True, whole=False),
        Free("aging_rate", 0.0, 3.0, 0.25),
        Free("chunk_tokens", min(4.0, tokens), tokens, 0.5, log2=True),
        # kp and ki up to a quarter keep a gain margin of 7.9 dB at a delay of two steps, while the plant is no steeper than the law assumes
        Free("kp", 0.0, 0.25, 0.05),
        Free("ki", 0.0, 0.25, 0.05),
        Free("running_limit", min(2.0, seqs), seqs, 0.5, log2=True),
        Free("most_tokens", min(4.0, tokens), tokens, 0.5, log2=True),
        Free("tolerance", -0.6, 0.4, 0.1),
        Free("estimate", 0.1, 3.0, 0.25),
    )
    return {row.name: row for row in rows}


ALWAYS = ("margin", "aging_rate")
"""Always among the free numbers."""


class Space:
    """The box that is searched. Points are arrays in units, so that a step of one means the same along every axis.

    Args:
        base: values of everything that is not free.
        limits: of the engine.
        names: of the free numbers; None for all.

    Raises:
        ValueError: an unknown name.
    """

    def __init__(self, base: Candidate, limits: Limits, names: tuple[str, ...] | None = None) -> None:
        """Choose what is free."""
        known = free_parameters(limits)
        unknown = [n for n in names or () if n not in known]
        if unknown:
            raise ValueError(f"cannot tune {unknown}; known: {', '.join(known)}")
        self.law_fields = frozenset(base.law.gains())
        there = self.law_fields | {f.name for f in dataclasses.fields(base.policy)}  # pyright: ignore[reportArgumentType]  # a dataclass by @pytree
        chosen = [n for n in known if n in there and (names is None or n in names or n in ALWAYS)]
        self.base, self.limits, self.free = base, limits, [known[n] for n in chosen]
        self.low = np.array([f.low / f.unit for f in self.free])
        self.high = np.array([f.high / f.unit for f in self.free])

    def values(self, point: np.ndarray) -> dict[str, float]:
        """The free numbers at a point.

        Args:
            point: in units, shape (d,).

        Returns:
            Mapping from name to value in its own unit.
        """
        point = np.clip(point, self.low, self.high)
        rows = {f.name: float(x * f.unit) for f, x in zip(self.free, point, strict=True)}
        return {f.name: _shown(f, rows[f.name]) for f in self.free}

    def candidate(self, point: np.ndarray) -> Candidate:
        """The candidate at a point.

        Args:
            point: in units, shape (d,).

        Returns:
            Candidate: the base with the free numbers put in.
        """
        values = self.values(point)
        law = dataclasses.replace(self.base.law, **{k: v for k, v in values.items() if k in self.law_fields})  # pyright: ignore[reportArgumentType]
        policy: Policy = dataclasses.replace(self.base.policy, **{k: v for k, v in values.items() if k not in self.law_fields})  # pyright: ignore[reportArgumentType]
        return Candidate(law, policy)

    def point(self, candidate: Candidate) -> np.ndarray:
        """The point of a candidate, cut to the box.

        Args:
            candidate: law and policy.

        Returns:
            In units, shape (d,).
        """
        rows = []
        for f in self.free:
            value = float(getattr(candidate.law if f.name in self.law_fields else candidate.policy, f.name))
            value = math.inf if f.name == "chunk_tokens" and value == 0 else value
            rows.append((math.log2(max(value, 1.0 if f.whole else 2.0**f.low)) if f.log2 else value) / f.unit)
        return np.clip(rows, self.low, self.high)


def _shown(free: Free, value: float) -> float:
    """A number of the search on its own scale."""
    if not free.log2:
        return value
    return float(round(2.0**value)) if free.whole else float(2.0**value)
