"""Recorded lengths without recorded arrivals: pairs of prompt and output, sent at a rate of one's own."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np

from headway.models.arrivals import Arrivals
from headway.models.generators import CLASSES, GAPS, PROMPTS, draw_classes
from headway.models.workload import Workload, WorkloadSource


@final
@dataclasses.dataclass(frozen=True)
class RecordedLengths(WorkloadSource):
    """Every request takes a recorded pair of lengths, drawn with replacement: a long prompt keeps the output it had.

    Training seeds draw from the first two thirds of the pairs, held-out ones from the last: they never share one.

    Args:
        arrivals: how requests are spaced.
        prompt_tokens: shape (n,), at least 1 [tokens].
        output_tokens: shape (n,), at least 1 [tokens].
        shares: part of the requests in each class, shape (classes,); sums to 1.
        source: where the lengths came from, for people.
    """

    arrivals: Arrivals
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    shares: tuple[float, ...] = (1.0,)
    source: str = "recorded lengths"

    def draw(self, seed: int, requests: int, *, heldout: bool) -> Workload:
        """The workload of one seed.

        Args:
            seed: from 0.
            requests: number of requests, at least 1.
            heldout: draw from the last third of the pairs, which tuning never sees.

        Returns:
            A workload of exactly `requests` requests, the first arriving at 0.

        Raises:
            ValueError: a negative seed, or no request asked for.
        """
        if seed < 0 or requests < 1:
            raise ValueError(f"seed must be at least 0 and requests at least 1, got {seed} and {requests}")

        def stream(key: int) -> np.random.Generator:
            return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(heldout), key)))

        n = len(self.prompt_tokens)
        low, high = (n - n // 3, n) if heldout else (0, n - n // 3)
        pair = low + np.floor(stream(PROMPTS).random(requests) * (high - low)).astype(np.int64)
        arrived = self.arrivals.arrive(stream(GAPS), requests)
        class_id = draw_classes(self.shares, stream(CLASSES), requests)
        drawn = Workload(arrived.arrival_s, self.prompt_tokens[pair], self.output_tokens[pair], class_id, self.source)
        return dataclasses.replace(drawn, after=arrived.after, think_s=arrived.think_s)

    def check(self) -> None:
        """Refuse what cannot be drawn from.

        Raises:
            ValueError: fewer than six pairs, or a parameter of the arrivals out of range.
        """
        if len(self.prompt_tokens) < 6:
            raise ValueError(
                f"{self.source} holds {len(self.prompt_tokens)} pairs of lengths; it takes at least 6 to hold a third of them back"
            )
        self.arrivals.check()
