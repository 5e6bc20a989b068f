"""Workloads that are drawn, not recorded: arrivals joined with lengths and classes."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np

from headway.models.arrivals import Arrivals, Gamma, Poisson, Uniform
from headway.models.lengths import Lengths
from headway.models.workload import Workload, WorkloadSource

__all__ = ["Arrivals", "Gamma", "Poisson", "Synthetic", "Uniform", "draw_classes"]

GAPS, CLASSES, PROMPTS, OUTPUTS = range(4)
"""Streams of random numbers of one seed: each quantity has its own, so that changing one leaves the others as they were."""


@final
@dataclasses.dataclass(frozen=True)
class Synthetic(WorkloadSource):
    """A drawn workload: each seed is another stretch of the same traffic, of any length.

    Seeds differ in nothing but luck, so what is tuned on some holds on others. Held-out seeds use random streams of
    their own: no training seed, however large, gives the numbers of a held-out one. At one seed, another rate gives the
    same requests further apart or closer, and more requests give the same ones first: common random numbers.

    Args:
        arrivals: how they are spaced.
        prompt: lengths of prompts, one per class.
        output: lengths of outputs, one per class.
        shares: part of the requests in each class, shape (classes,); sums to 1.
        source: the text it was made from, for people.

    Example:
        >>> from headway.models.lengths import Constant, Geometric
        >>> chat = Synthetic(Poisson(5.0), prompt=(Constant(600),), output=(Geometric(200.0),))
        >>> chat.draw(seed=0, requests=3, heldout=False).prompt_tokens
        array([600, 600, 600])
    """

    arrivals: Arrivals
    prompt: tuple[Lengths, ...]
    output: tuple[Lengths, ...]
    shares: tuple[float, ...] = (1.0,)
    source: str = "synthetic"

    def draw(self, seed: int, requests: int, *, heldout: bool) -> Workload:
        """The workload of one seed.

        Args:
            seed: from 0.
            requests: number of requests, at least 1.
            heldout: draw from the streams that tuning never uses.

        Returns:
            A workload of exactly `requests` requests, the first arriving at 0.

        Raises:
            ValueError: a negative seed, or no request asked for.
        """
        if seed < 0 or requests < 1:
            raise ValueError(f"seed must be at least 0 and requests at least 1, got {seed} and {requests}")

        def stream(*key: int) -> np.random.Generator:
            return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(heldout), *key)))

        arrived = self.arrivals.arrive(stream(GAPS), requests)
        class_id = draw_classes(self.shares, stream(CLASSES), requests)
        prompt = np.stack([lengths.draw(stream(PROMPTS, c), requests) for c, lengths in enumerate(self.prompt)])
        output = np.stack([lengths.draw(stream(OUTPUTS, c), requests) for c, lengths in enumerate(self.output)])
        row = np.arange(requests)
        drawn = Workload(arrived.arrival_s, prompt[class_id, row], output[class_id, row], class_id, self.source)
        return dataclasses.replace(drawn, after=arrived.after, think_s=arrived.think_s)

    def rescaled(self, rate_rps: float | None) -> Synthetic:
        """The same traffic at another rate.

        Args:
            rate_rps: wanted mean rate [requests/s]; None leaves it as it is.

        Returns:
            A source of that rate.

        Raises:
            ValueError: a rate that is not positive and finite, or arrivals without a rate.
        """
        return self if rate_rps is None else dataclasses.replace(self, arrivals=self.arrivals.rescaled(rate_rps))

    def check(self) -> None:
        """Refuse what cannot be drawn from.

        Raises:
            ValueError: a parameter out of its range, another number of lengths than classes, shares that do not sum to 1.
        """
        self.arrivals.check()
        for name in ("prompt", "output"):
            lengths = getattr(self, name)
            if len(lengths) != len(self.shares):
                raise ValueError(f"{name} has lengths for {len(lengths)} classes, there are {len(self.shares)}")
            for one in lengths:
                one.check()
        if min(self.shares) < 0 or abs(sum(self.shares) - 1.0) > 1e-6:
            raise ValueError(f"shares of the classes must be at least 0 and sum to 1, got {', '.join(f'{s:g}' for s in self.shares)}")


def draw_classes(shares: tuple[float, ...], rng: np.random.Generator, n: int) -> np.ndarray:
    """A class for each request, by the shares.

    Args:
        shares: part of the requests in each class, shape (classes,); sums to 1.
        rng: where the randomness comes from.
        n: number of requests.

    Returns:
        Indices of classes, shape (n,), int64.

    Example:
        >>> draw_classes((0.5, 0.5), np.random.default_rng(0), 4)
        array([1, 0, 0, 0])
    """
    edges = np.cumsum(shares)[:-1]
    return np.searchsorted(edges, rng.random(n), side="right").astype(np.int64)
