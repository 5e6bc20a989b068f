"""Clients who do not wait for ever: timeouts before the first token, streams that are closed, on top of any workload."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, final

import numpy as np

from headway.models.durations import Durations
from headway.models.workload import Workload, WorkloadSource

LEAVING = 0x1EAF
"""Key of the random numbers of those who leave: the workload below keeps its own."""


class Leaving(NamedTuple):
    """When the clients of one class leave.

    Args:
        when: how long after arrival.
        share: of the clients that would ever leave, in [0, 1]; the others stay to the end.
    """

    when: Durations
    share: float = 1.0


@final
@dataclasses.dataclass(frozen=True)
class Impatient(WorkloadSource):
    """A workload whose clients leave: before the first token when their patience runs out, or at a time whatever they have.

    The same requests at the same times as without it; a seed's patience does not depend on the rate.

    Args:
        inner: the workload.
        patience: of each class, None for one that waits for its first token for ever, shape (classes,); empty for none.
        cancel: of each class, None for one that never closes a stream, shape (classes,); empty for none.
        source: where it came from, for people.
    """

    inner: WorkloadSource
    patience: tuple[Leaving | None, ...] = ()
    cancel: tuple[Leaving | None, ...] = ()
    source: str = "impatient clients"

    def draw(self, seed: int, requests: int, *, heldout: bool) -> Workload:  # noqa: D102
        drawn = self.inner.draw(seed, requests, heldout=heldout)
        found = {}
        for kind, (name, leaving) in enumerate((("patience_s", self.patience), ("cancel_s", self.cancel))):
            if any(leaving):
                at_s = np.full(len(drawn), np.inf)
                for c, one in enumerate(leaving):
                    if one is not None:
                        sequence = np.random.SeedSequence(seed, spawn_key=(int(heldout), LEAVING, kind, c))
                        at_s = np.where(drawn.class_id == c, _leaves(one, np.random.default_rng(sequence), len(drawn)), at_s)
                found[name] = at_s
        return dataclasses.replace(drawn, source=self.source, **found)

    def check(self) -> None:
        """Refuse clients who cannot leave so.

        Raises:
            ValueError: a time that is not above zero, or a share out of range.
        """
        for name, leaving in (("patience", self.patience), ("cancel", self.cancel)):
            for one in (one for one in leaving if one is not None):
                one.when.check()
                if not one.when.mean_s > 0:
                    raise ValueError(f"{name} must be above 0, got {one.when.mean_s:g} s; a client that is gone on arrival sends nothing")
                if not 0 <= one.share <= 1:
                    raise ValueError(f"{name}_share must be in [0, 1], got {one.share:g}; write 0.2 for 20 %")


def _leaves(one: Leaving, rng: np.random.Generator, n: int) -> np.ndarray:
    """Times after arrival, infinite for those who stay, shape (n,) [s]."""
    chosen = rng.spawn(1)[0].random(n) < one.share
    return np.where(chosen, np.maximum(one.when.draw(rng, n), np.finfo(float).tiny), np.inf)
