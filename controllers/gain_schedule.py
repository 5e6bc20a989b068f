"""Gain schedules: gains as functions of the load, tables that are read between their knots. docs/engine.md, section 7."""

from __future__ import annotations

import math
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from headway.models.pytree import pytree, static
from headway.models.state import MOST_CLASSES

MARGIN, AGING_RATE, CHUNK_TOKENS, SHARE = range(4)
"""Codes of the gains in a packed schedule; that of a class's share is SHARE plus the class."""

NAMES = ("margin", "aging_rate", "chunk_tokens", *(f"share.{c}" for c in range(MOST_CLASSES)))
"""Gains that can be scheduled, at their code."""

UNITS = {"margin": "1", "aging_rate": "s/s", "chunk_tokens": "log2 tokens", "share": "weight"}
"""Unit of each kind of gain, as a table holds it."""

RANGES = {"margin": (0.0, 0.95), "aging_rate": (0.0, 100.0), "chunk_tokens": (0.0, math.log2(1e6)), "share": (0.0, 1e5)}
"""Least and greatest of each kind, as a table holds it: those of the gain that it stands for."""

AXES = ("queued_tokens", "running_share", "kv_share")
"""What a schedule follows, in the order of its axes."""

QUEUED_TOKENS = 500.0
"""Queued prompt tokens at the second knot of the first axis [tokens]."""

MOST_KNOTS = 64
"""Most knots on an axis: the queue's would reach beyond what can be counted."""

WHOLE = 1.0 + 1e-9
"""Factor before a chunk is rounded down: the logarithm of a whole number of tokens stands for that number."""

COUNT, QUEUED, RUNNING, KV, MARGIN_AT, START_FACTOR, STRIDE, CODES = range(8)
"""Places in a packed schedule: gains, knots of each axis; place of the margin in the packed law (0: not scheduled), what the
tracker starts with, exp(-start_mixed), 0 for other laws, stride of the policy; codes of the gains, and their tables after those."""

TABLE = CODES + len(NAMES)
"""Where the tables of a packed schedule begin."""


@final
@pytree
class GainSchedule:
    """Gains that follow the load, in place of the numbers of law and policy that they are named after.

    g = multilinear in (log2(1 + queued tokens / 500), running share, KV share) between knots, held at the ends

    Queued are the prompt tokens still to be computed of all who wait or run; the running share is that of the requests that
    decode in the running limit; the KV share that of the cache blocks in use. All are as the last step left them. Knots of
    the first axis lie at 0, 1, 2, ... of its logarithm (0, 500, 1500, 3500 tokens, ...), those of the others evenly from 0 to 1;
    an axis with one knot follows nothing.

    "margin" is of the law, "aging_rate" and "chunk_tokens" of the policy, "share.0", "share.1", ... the weights of the classes.
    The table of "chunk_tokens" holds the logarithm to the base 2.

    Args:
        names: of the gains, from NAMES.
        table: value of each at every knot, shape (names, queued, running, kv), in UNITS.

    Example:
        >>> rise = GainSchedule(("aging_rate",), np.array([0.1, 0.3]).reshape(1, 2, 1, 1))
        >>> rise.at(np.array([0.0, 500.0, 1e6]), 0.5, 0.5)
        array([[0.1, 0.3, 0.3]])
    """

    names: tuple[str, ...] = static()  # pyright: ignore[reportAssignmentType]  # a dataclass field, as dataclasses.field is
    table: Any = None

    def __eq__(self, other: object) -> bool:
        """Whether names and tables are the same."""
        return isinstance(other, GainSchedule) and self.names == other.names and np.array_equal(self.table, other.table)

    def __hash__(self) -> int:
        """Of names and numbers."""
        return hash((self.names, np.shape(self.table), np.asarray(self.table, float).tobytes()))

    def __repr__(self) -> str:
        """Every number: whoever keeps answers by what was asked must not take two schedules for one."""
        return f"GainSchedule({self.names!r}, {np.asarray(self.table).tolist()!r})"

    @staticmethod
    def constant(names: tuple[str, ...], values: Any, shape: tuple[int, int, int] = (1, 1, 1)) -> GainSchedule:
        """A schedule whose gains are the same under every load.

        Args:
            names: of the gains.
            values: one per name, as a table holds it: of "chunk_tokens" the logarithm to the base 2.
            shape: knots of the axes.

        Returns:
            The schedule, its table an array of the kind of `values`.
        """
        xp = jnp if isinstance(values, jax.Array) else np
        return GainSchedule(tuple(names), xp.broadcast_to(xp.asarray(values, float).reshape(-1, 1, 1, 1), (len(names), *shape)))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Knots of the axes: queued, running, kv."""
        return tuple(np.shape(self.table)[1:])

    def without(self, *kinds: str) -> GainSchedule | None:
        """The same without some of its gains.

        Args:
            kinds: "margin", "aging_rate", "chunk_tokens" or "share", which stands for those of all classes.

        Returns:
            The schedule; None where nothing is left.
        """
        kept = [k for k, name in enumerate(self.names) if name.partition(".")[0] not in kinds]
        return GainSchedule(tuple(self.names[k] for k in kept), self.table[np.array(kept)]) if kept else None

    def at(self, queued_tokens: Any, running_share: Any, kv_share: Any) -> Any:
        """Every gain under a load. For NumPy and for JAX, where it has a gradient with respect to table and load.

        Args:
            queued_tokens: prompt tokens still to be computed, any shape S [tokens].
            running_share: requests that decode, of the running limit, a shape that broadcasts with S.
            kv_share: cache blocks in use, of all, a shape that broadcasts with S.

        Returns:
            As the table holds them, shape (names, *S).
        """
        given = (queued_tokens, running_share, kv_share)
        xp = jnp if any(isinstance(x, jax.Array) for x in (self.table, *given)) else np
        shape = np.broadcast_shapes(*(np.shape(x) for x in given))
        queued, running, kv = (xp.broadcast_to(xp.asarray(x, float), shape) for x in given)
        knots = self.shape
        places = (xp.log2(1.0 + queued / QUEUED_TOKENS), running * (knots[1] - 1.0), kv * (knots[2] - 1.0))
        table, ends = xp.asarray(self.table, float), []
        for place, n in zip(places, knots, strict=True):
            held = xp.clip(place, 0.0, n - 1.0)
            low = xp.clip(xp.floor(held), 0.0, max(n - 2.0, 0.0)).astype(int)
            ends.append((low, xp.minimum(low + 1, n - 1), (held - low.astype(float))[None]))
        (q, q_next, in_q), (r, r_next, in_r), (k, k_next, in_k) = ends

        def along_kv(i: Any, j: Any) -> Any:
            return table[:, i, j, k] + in_k * (table[:, i, j, k_next] - table[:, i, j, k])

        def along_running(i: Any) -> Any:
            return along_kv(i, r) + in_r * (along_kv(i, r_next) - along_kv(i, r))

        return along_running(q) + in_q * (along_running(q_next) - along_running(q))

    def check(self) -> None:
        """Refuse what is no schedule.

        Raises:
            ValueError: no name, one that is unknown or comes twice, a table of another size, or a value that is not finite or out of
                the range of its gain; the message names it.
        """
        if not self.names:
            raise ValueError(f"a gain schedule must name at least one gain, got none; known: {', '.join(NAMES[:SHARE])}, share.0, ...")
        for name in self.names:
            if name not in NAMES:
                raise ValueError(f"no gain {name!r} can be scheduled; known: {', '.join(NAMES[:SHARE])}, share.0 to {NAMES[-1]}")
            if self.names.count(name) > 1:
                raise ValueError(f"a gain schedule must name each gain once, got {name!r} {self.names.count(name)} times")
        found = np.asarray(self.table, float)
        if found.ndim != 4 or len(found) != len(self.names) or not all(1 <= n <= MOST_KNOTS for n in found.shape[1:]):
            sizes = f"({len(self.names)}, queued, running, kv), each axis of 1 to {MOST_KNOTS} knots"
            raise ValueError(f"the table of a gain schedule must have the shape {sizes}, got {found.shape}")
        for name, values in zip(self.names, found, strict=True):
            kind = name.partition(".")[0]
            low, high = RANGES[kind]
            bad = values[~((low <= values) & (values <= high))]
            if bad.size:
                raise ValueError(f"the schedule of {name} must be in [{low:g}, {high:g}] {UNITS[kind]}, got {bad[0]:g}")

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            Knots by axis, and unit and table by gain; `from_json` is the inverse.
        """
        tables = zip(self.names, np.asarray(self.table, float).tolist(), strict=True)
        gains = {name: {"unit": UNITS[name.partition(".")[0]], "table": values} for name, values in tables}
        return {"knots": dict(zip(AXES, map(list, knots_of(self.shape)), strict=True)), "gains": gains}

    @staticmethod
    def from_json(data: Any) -> GainSchedule:
        """Read what `to_json` wrote.

        Args:
            data: its content.

        Returns:
            The schedule, checked.

        Raises:
            ValueError: a missing or wrong value, or knots that are not those of a schedule; the message names it.
        """
        try:
            names = tuple(str(name) for name in data["gains"])
            tables = [np.asarray(data["gains"][name]["table"], float) for name in names]
            given = [[float(x) for x in data["knots"][axis]] for axis in AXES]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the gain schedule lacks or misstates {error}") from None
        except ValueError:
            raise ValueError("the gain schedule has a table that is no full array of numbers, or a knot that is no number") from None
        shape = tuple(map(len, given))
        for name, values in zip(names, tables, strict=True):
            unit = UNITS.get(name.partition(".")[0])
            if unit and data["gains"][name].get("unit") != unit:
                raise ValueError(f"the schedule of {name} must be in {unit!r}, got {data['gains'][name].get('unit')!r}")
            if values.shape != shape:
                raise ValueError(f"the schedule of {name} must have a value at each of its {shape} knots, got the shape {values.shape}")
        schedule = GainSchedule(names, np.array(tables) if tables else np.zeros((0, *shape)))
        schedule.check()
        for axis, found, wanted in zip(AXES, given, knots_of(schedule.shape), strict=True):
            if not np.allclose(found, wanted, rtol=1e-9, atol=1e-12):
                raise ValueError(f"knots of {axis} must be {[float(f'{x:.6g}') for x in wanted]}, got {found}; tables are read at these")
        return schedule

    def pack(self) -> np.ndarray:
        """The schedule as the compiled engine reads it; what depends on law and policy is 0, see `headway.controllers.scheduled`.

        Returns:
            float64 array of shape (TABLE + names * knots,).
        """
        packed = np.zeros(TABLE + int(np.size(self.table)))
        packed[[COUNT, QUEUED, RUNNING, KV]] = len(self.names), *self.shape
        packed[CODES : CODES + len(self.names)] = [NAMES.index(name) for name in self.names]
        packed[TABLE:] = np.asarray(self.table, float).ravel()
        return packed


def knots_of(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the knots of a schedule lie: what a function of the load is to be evaluated at, to make a table of it.

    500 (2^i - 1) tokens;  j / (n - 1) of the running limit and of the cache, 0 on an axis with one knot

    Args:
        shape: knots of the axes: queued, running, kv.

    Returns:
        Queued tokens, running shares, KV shares, one array per axis.

    Example:
        >>> knots_of((3, 1, 2))[0]
        array([   0.,  500., 1500.])
    """
    queued, running, kv = shape
    return QUEUED_TOKENS * (2.0 ** np.arange(queued) - 1.0), np.linspace(0.0, 1.0, running), np.linspace(0.0, 1.0, kv)
