"""Gains that follow the load in the second scheduler, for the tests alone: read from lists, one axis after the other."""

from __future__ import annotations

import math
from typing import NamedTuple

from headway.controllers.simulator import Candidate


class Load(NamedTuple):
    """What the last step left behind: prompt tokens to compute, share of the running limit that decodes, share of the cache in use."""

    queued_tokens: int = 0
    running_share: float = 0.0
    kv_share: float = 0.0


class Gains(NamedTuple):
    """The gains of one step."""

    margin: float
    setpoint_s: float
    aging_rate: float
    chunk_cap: int
    weights: tuple[float, ...]


def read(table: list, places: list[float]) -> float:
    """The value of nested lists at a place on each axis: knots lie at 0, 1, 2, ...; beyond the ends it holds."""
    if not places:
        return table  # pyright: ignore[reportReturnType]  # a number by now
    place = min(max(places[0], 0.0), len(table) - 1.0)
    below = max(min(math.floor(place), len(table) - 2), 0)
    low = read(table[below], places[1:])
    if below + 1 == len(table):
        return low
    return low + (place - below) * (read(table[below + 1], places[1:]) - low)


class Schedule:
    """The gains of one candidate under any load; without a schedule always the same ones."""

    def __init__(self, candidate: Candidate, budget_s: float) -> None:
        self.candidate, self.budget_s = candidate, budget_s
        gains = candidate.gains
        self.tables = {} if gains is None else dict(zip(gains.names, gains.table.tolist(), strict=True))

    def at(self, load: Load) -> Gains:
        law, policy, found = self.candidate.law, self.candidate.policy, {}
        for name, table in self.tables.items():
            knots_r, knots_kv = len(table[0]), len(table[0][0])
            places = [math.log2(1 + load.queued_tokens / 500), load.running_share * (knots_r - 1), load.kv_share * (knots_kv - 1)]
            found[name] = read(table, places)
        margin = found.get("margin", getattr(law, "margin", 0.0))
        setpoint_s = (1 - (margin if "margin" in found else law.setpoint_margin)) * self.budget_s
        cap = math.floor(2 ** found["chunk_tokens"] * (1 + 1e-9)) if "chunk_tokens" in found else math.floor(policy.chunk_tokens) or 10**9
        weights = dict(enumerate(map(float, policy.class_shares)))
        weights |= {int(name.removeprefix("share.")): w for name, w in found.items() if name.startswith("share.")}
        aging = found.get("aging_rate", float(policy.aging_rate))
        return Gains(margin, setpoint_s, aging, cap, tuple(weights[c] for c in range(len(weights))))
