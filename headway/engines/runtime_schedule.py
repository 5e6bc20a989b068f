"""Gains that follow the load inside an engine's process: tables that are read between their knots."""

from __future__ import annotations

import math
from typing import Any

from headway.engines.runtime_gains import finite

QUEUED_TOKENS, WHOLE = 500.0, 1.0 + 1e-9
"""Queued prompt tokens at the second knot of their axis [tokens]; and the factor by which the logarithm of a whole number of tokens
stands for that number."""
SCHEDULED = {"margin": (0.0, 0.95), "aging_rate": (0.0, 100.0), "chunk_tokens": (0.0, math.log2(1e6)), "share": (0.0, 1e5)}
"""Gains that a table can stand for, with the least and the greatest value in it; a share is one of a class, "share.0", "share.1", ..."""
LOAD_AXES = ("queued_tokens", "running_share", "kv_share")


class Schedule:
    """Gains as functions of the load.

    g = multilinear in (log2(1 + queued tokens / 500), running share, KV share) between knots, held at the ends

    Args:
        data: the `schedule` of a gains file: knots by axis, tables by gain.

    Raises:
        ValueError: a missing or wrong value; the message names it.
    """

    def __init__(self, data: Any) -> None:
        """Read the tables."""
        try:
            self.sizes = tuple(len(data["knots"][axis]) for axis in LOAD_AXES)
            tables = {str(name): row["table"] for name, row in data["gains"].items()}
            if min(self.sizes) < 1 or not tables:
                raise ValueError("the gain schedule has no gain or an axis without a knot; write the gains anew with `headway export`")
            self.tables = {name: self._read(name, table) for name, table in tables.items()}
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"the gain schedule lacks or misstates {error}; write the gains anew with `headway export`") from None

    def _read(self, name: str, table: Any) -> list[list[list[float]]]:
        kind, _, number = name.partition(".")
        if kind not in SCHEDULED or (kind == "share") != number.isdigit():
            raise ValueError(f"no gain {name!r} can be scheduled; this runtime knows {', '.join(SCHEDULED)}.0, ...")
        low, high = SCHEDULED[kind]
        found = [[[finite(x, f"the schedule of {name}", low, high) for x in row] for row in rows] for rows in table]
        queued, running, kv = self.sizes
        if len(found) != queued or any(len(rows) != running or any(len(row) != kv for row in rows) for rows in found):
            raise ValueError(f"the schedule of {name} must have a value at each of its {self.sizes} knots")
        return found

    def at(self, queued_tokens: float, running_share: float, kv_share: float) -> dict[str, float]:
        """Every gain under a load.

        Args:
            queued_tokens: prompt tokens still to be computed, of all who wait or run [tokens].
            running_share: requests that decode, of the running limit.
            kv_share: cache blocks in use, of all.

        Returns:
            By name; "chunk_tokens" in whole tokens.
        """
        queued, running, kv = self.sizes
        i, in_q = _knot(math.log2(1.0 + queued_tokens / QUEUED_TOKENS), queued)
        j, in_r = _knot(running_share * (running - 1.0), running)
        k, in_k = _knot(kv_share * (kv - 1.0), kv)
        i_next, j_next, k_next = min(i + 1, queued - 1), min(j + 1, running - 1), min(k + 1, kv - 1)
        found = {}
        for name, table in self.tables.items():
            ends = []
            for rows in (table[i], table[i_next]):
                low, high = rows[j], rows[j_next]
                first = low[k] + in_k * (low[k_next] - low[k])
                ends.append(first + in_r * (high[k] + in_k * (high[k_next] - high[k]) - first))
            value = ends[0] + in_q * (ends[1] - ends[0])
            found[name] = float(math.floor(2.0**value * WHOLE)) if name == "chunk_tokens" else value
        return found


def _knot(place: float, knots: int) -> tuple[int, float]:
    """The knot below a place on an axis, and how far it is from there to the next."""
    held_place = min(max(place, 0.0), knots - 1.0)
    below = int(min(held_place, max(knots - 2.0, 0.0)))
    return below, held_place - below
