"""The program of a long workload, block by block in time: what the blocks come to one by one, together no run exceeds.

A run satisfies the program of each block of requests, for what the engine does for others only takes time from them. Each block
forgets the others' load, so the sum is a bound, looser at the seams; its cost grows with the number of requests, not with its square.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.experiments.demand import Demand
from headway.experiments.envelope import Envelope
from headway.experiments.relaxation import Best, Relaxation
from headway.models.signals import Limits

BLOCK_REQUESTS = 1000
"""Requests of one program, at most."""


class Blocks:
    """Programs of consecutive requests, asked like one."""

    def __init__(self, demand: Demand, below: Envelope, limits: Limits, least: dict[bool, float], cut_s: float, **options: Any) -> None:
        """Divide the counted requests by arrival, evenly.

        Args:
            demand: what the requests need.
            below: planes below the plant.
            limits: of the engine.
            least: smallest noise factor, by whether the step has prefill.
            cut_s: end of a run of fixed length; 0 for none [s].
            options: as in `headway.experiments.relaxation.Relaxation`.
        """
        self.demand, self.below, self.least, self.cut_s = demand, below, least, cut_s
        n = len(demand.rows)
        parts = np.array_split(np.arange(n), max(1, -(-n // BLOCK_REQUESTS)))
        self.programs = [Relaxation(demand.of(part), below, limits, least, cut_s, **options) for part in parts]

    def tokens(self, price: float) -> Best:
        """The most of: tokens of served requests, less a price on all that is owed.

        Args:
            price: of an owed token.

        Returns:
            Best; its value includes the tokens that served and lost requests owe in any case.
        """
        found = [program.tokens(price) for program in self.programs]
        value = sum(f.value for f in found) - price * self.demand.lost
        return Best(value, np.concatenate([f.served for f in found]), sum(f.owed for f in found))

    def requests(self, late_share: float) -> float:
        """The most requests that are served and owe no more late than a share of their tokens.

        Args:
            late_share: of the owed tokens that may be late.

        Returns:
            Their number.
        """
        return sum(program.requests(late_share) for program in self.programs)
