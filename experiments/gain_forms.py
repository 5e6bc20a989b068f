"""What is trained of a gain schedule: the entries of its table, or the weights of a small network that fills the table."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple, Protocol, final

import jax
import jax.numpy as jnp
import numpy as np

from headway.controllers.gain_schedule import GainSchedule
from headway.controllers.simulator import Candidate
from headway.experiments.free import free_parameters, needs
from headway.models.signals import Limits, Target

KINDS = {"queued": (8, 1, 1), "load": (8, 4, 4), "network": (8, 4, 4)}
"""Knots of queue, running share and cache share by kind: a table over the queue, one over all three, one that a network fills."""

NEAR = 0.85
"""Correlation of neighbouring knots in a random direction: gains that jump from knot to knot are not looked for."""

HIDDEN = 12
"""Units of the network's hidden layer."""

LEVELS = ("margin", "aging_rate", "chunk_tokens")
"""Gains that are made to follow the load; the shares of the classes join them where there are any."""


class Gain(NamedTuple):
    """One gain that follows the load.

    Args:
        name: in `GainSchedule`.
        low: least value, as its table holds it.
        high: greatest.
        unit: a practical step.
        start: of the constant candidate.
    """

    name: str
    low: float
    high: float
    unit: float
    start: float


def gains_of(candidate: Candidate, limits: Limits, targets: tuple[Target, ...]) -> tuple[Gain, ...]:
    """The gains of a candidate that can follow the load, where it stands, and how far they may go.

    Args:
        candidate: with constant gains.
        limits: of the engine.
        targets: one per class.

    Returns:
        Gains; none where nothing that could be scheduled acts, as in a static setting with stock order.
    """
    free = free_parameters(limits, targets)
    acting = [name for name in LEVELS if not needs(name, candidate)]
    if acting == ["chunk_tokens"]:  # stock order under a law without a margin: nothing of Headway's to schedule
        return ()
    found = []
    for name in acting:
        row, holder = free[name], candidate.law if name in candidate.law.gains() else candidate.policy
        start = float(np.clip(row.place(float(getattr(holder, name))), row.low, row.high))
        found.append(Gain(name, row.low, row.high, row.unit, start))
    weights = [float(w) for w in candidate.policy.class_shares]
    if any(weights):
        whole = sum(weights)
        found += [Gain(f"share.{k}", 0.02, 1.0, 0.1, max(w / whole, 0.02)) for k, w in enumerate(weights)]
    return tuple(found)


class Form(Protocol):
    """Numbers that are trained, and the table that they make."""

    @property
    def start(self) -> np.ndarray:
        """Numbers of the constant schedule, shape (d,)."""
        ...

    @property
    def box(self) -> tuple[np.ndarray, np.ndarray]:
        """Least and greatest of each number, shapes (d,)."""
        ...

    def table(self, numbers: Any) -> Any:
        """The table.

        Args:
            numbers: shape (d,).

        Returns:
            In units of the gains, shape (gains, queued, running, kv); of the kind of `numbers`.
        """
        ...

    def directions(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Random directions, in which the neighbours of a knot go along with it.

        Args:
            rng: draws them.
            count: of directions.

        Returns:
            Shape (count, d).
        """
        ...


@final
@dataclasses.dataclass(frozen=True)
class TableForm:
    """The table itself, in units of the gains.

    Args:
        gains: that follow the load.
        shape: knots of queue, running share and cache share.
    """

    gains: tuple[Gain, ...]
    shape: tuple[int, int, int]

    @property
    def start(self) -> np.ndarray:  # noqa: D102
        return np.repeat([g.start / g.unit for g in self.gains], math.prod(self.shape))

    @property
    def box(self) -> tuple[np.ndarray, np.ndarray]:  # noqa: D102
        ends = ([g.low / g.unit for g in self.gains], [g.high / g.unit for g in self.gains])
        low, high = (np.repeat(end, math.prod(self.shape)) for end in ends)
        return low, high

    def table(self, numbers: Any) -> Any:  # noqa: D102
        return numbers.reshape(len(self.gains), *self.shape)

    def directions(self, rng: np.random.Generator, count: int) -> np.ndarray:  # noqa: D102
        found = rng.standard_normal((count, len(self.gains), *self.shape))
        for axis, knots in enumerate(self.shape, start=2):
            near = NEAR ** abs(np.subtract.outer(np.arange(knots), np.arange(knots)))
            root = np.linalg.cholesky(near)
            found = np.moveaxis(np.tensordot(found, root, axes=(axis, 1)), -1, axis)
        return found.reshape(count, -1)


@final
@dataclasses.dataclass(frozen=True)
class NetworkForm:
    """One hidden layer over the three features of the load, read at the knots: an offset of each gain, in units.

    u = start + V tanh(W x + b) + c, cut to the box;  x = 2 place / (knots - 1) - 1 on each axis

    It starts with V = 0 and c = 0, as the constant schedule. What an engine gets is the table.

    Args:
        gains: that follow the load.
        shape: knots of queue, running share and cache share.
        hidden: units.
        seed: of the first layer.
    """

    gains: tuple[Gain, ...]
    shape: tuple[int, int, int]
    hidden: int = HIDDEN
    seed: int = 0

    @property
    def start(self) -> np.ndarray:  # noqa: D102
        first = np.random.default_rng(self.seed).standard_normal(4 * self.hidden)
        return np.concatenate([first, np.zeros((self.hidden + 1) * len(self.gains))])

    @property
    def box(self) -> tuple[np.ndarray, np.ndarray]:  # noqa: D102
        wide = np.full(len(self.start), 20.0)
        return -wide, wide

    def table(self, numbers: Any) -> Any:  # noqa: D102
        xp = jnp if isinstance(numbers, jax.Array) else np
        as_numbers = lambda x: xp.asarray(x, numbers.dtype)  # noqa: E731
        h, n = self.hidden, len(self.gains)
        weights, bias = numbers[: 3 * h].reshape(h, 3), numbers[3 * h : 4 * h]
        out, shift = numbers[4 * h : 4 * h + n * h].reshape(n, h), numbers[4 * h + n * h :]
        axes = [np.linspace(-1.0, 1.0, knots) if knots > 1 else np.zeros(1) for knots in self.shape]
        features = as_numbers(np.stack(np.meshgrid(*axes, indexing="ij")).reshape(3, -1))
        offset = out @ xp.tanh(weights @ features + bias[:, None]) + shift[:, None]
        start, low, high = (as_numbers([[end / g.unit] for g, end in zip(self.gains, ends, strict=True)]) for ends in self._ends())
        return xp.clip(start + offset, low, high).reshape(n, *self.shape)

    def directions(self, rng: np.random.Generator, count: int) -> np.ndarray:  # noqa: D102
        return rng.standard_normal((count, len(self.start)))

    def _ends(self) -> tuple[list[float], list[float], list[float]]:
        return [g.start for g in self.gains], [g.low for g in self.gains], [g.high for g in self.gains]


def check_kind(kind: str) -> None:
    """Refuse a kind of schedule that there is not.

    Args:
        kind: of schedule.

    Raises:
        ValueError: it is none of KINDS.
    """
    if kind not in KINDS:
        raise ValueError(
            f"schedule must be one of {', '.join(KINDS)}, got {kind!r}; queued follows the queue alone, the others all of the load"
        )


def form_of(kind: str, gains: tuple[Gain, ...], seed: int = 0) -> Form:
    """What is trained for a kind of schedule.

    Args:
        kind: one of KINDS.
        gains: that follow the load.
        seed: of a network's first layer.

    Returns:
        Form.

    Raises:
        ValueError: an unknown kind.
    """
    check_kind(kind)
    return NetworkForm(gains, KINDS[kind], seed=seed) if kind == "network" else TableForm(gains, KINDS[kind])


def schedule_of(gains: tuple[Gain, ...], table: Any) -> GainSchedule:
    """A table in units as the schedule that engines take.

    Args:
        gains: that follow the load.
        table: in units of the gains, shape (gains, queued, running, kv).

    Returns:
        Schedule.
    """
    xp = jnp if isinstance(table, jax.Array) else np
    unit = xp.asarray([g.unit for g in gains], table.dtype).reshape(-1, 1, 1, 1)
    return GainSchedule(tuple(g.name for g in gains), table * unit)
