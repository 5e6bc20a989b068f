"""Workloads that are drawn, not recorded: how arrivals are spaced, and the source that joins them with lengths and classes."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import final

import numpy as np

from headway.models.lengths import Lengths
from headway.models.workload import Workload, WorkloadSource

GAPS, CLASSES, PROMPTS, OUTPUTS = range(4)
"""Streams of random numbers of one seed: each quantity has its own, so that changing one leaves the others as they were."""


class Arrivals(ABC):
    """A renewal process: independent gaps of one distribution.

    Args:
        rate_rps: mean rate of arrivals [requests/s].
    """

    rate_rps: float

    @abstractmethod
    def gaps_s(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Independent gaps between arrivals.

        Args:
            rng: where the randomness comes from.
            n: how many.

        Returns:
            Gaps, shape (n,), not negative, of mean 1 / rate_rps [s].
        """

    def check(self) -> None:
        """Refuse what is no process of arrivals.

        Raises:
            ValueError: a parameter that is not positive and finite.
        """
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]  # every member of the family is a dataclass
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{field.name.removesuffix('_rps')} of arrivals must be positive and finite, got {value:g}")


@final
@dataclasses.dataclass(frozen=True)
class Poisson(Arrivals):
    """Many independent clients: exponential gaps, CV 1.

    Args:
        rate_rps: mean rate of arrivals [requests/s].
    """

    rate_rps: float

    def gaps_s(self, rng: np.random.Generator, n: int) -> np.ndarray:  # noqa: D102
        return rng.standard_exponential(n) / self.rate_rps


@final
@dataclasses.dataclass(frozen=True)
class Gamma(Arrivals):
    """Bursts for cv > 1, a steadier stream for cv < 1: gaps of a Gamma distribution.

        shape = 1 / cv^2,  scale = cv^2 / rate

    The variance of the count in a long window is cv^2 times that of a Poisson process.

    Args:
        rate_rps: mean rate of arrivals [requests/s].
        cv: coefficient of variation of the gaps, standard deviation over mean; 1 is Poisson.
    """

    rate_rps: float
    cv: float

    def gaps_s(self, rng: np.random.Generator, n: int) -> np.ndarray:  # noqa: D102
        square = self.cv**2
        return rng.standard_gamma(1.0 / square, n) * (square / self.rate_rps)


@final
@dataclasses.dataclass(frozen=True)
class Uniform(Arrivals):
    """Evenly spaced: every gap is 1 / rate, as load generators send that are given a fixed rate.

    Args:
        rate_rps: rate of arrivals [requests/s].
    """

    rate_rps: float

    def gaps_s(self, rng: np.random.Generator, n: int) -> np.ndarray:  # noqa: D102, ARG002  # nothing is left to chance
        return np.full(n, 1.0 / self.rate_rps)


@final
@dataclasses.dataclass(frozen=True)
class Synthetic(WorkloadSource):
    """A drawn workload: each seed is another stretch of the same traffic, of any length.

    Seeds differ in nothing but luck, so what is tuned on some holds on others. Held-out seeds use random streams of
    their own: no training seed, however large, gives the numbers of a held-out one. At one seed, another rate gives the
    same requests with every gap stretched, and more requests give the same ones first: common random numbers.

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

        gaps_s = self.arrivals.gaps_s(stream(GAPS), requests - 1)
        class_id = draw_classes(self.shares, stream(CLASSES), requests)
        prompt = np.stack([lengths.draw(stream(PROMPTS, c), requests) for c, lengths in enumerate(self.prompt)])
        output = np.stack([lengths.draw(stream(OUTPUTS, c), requests) for c, lengths in enumerate(self.output)])
        row = np.arange(requests)
        arrival_s = np.concatenate([[0.0], np.cumsum(gaps_s)])
        return Workload(arrival_s, prompt[class_id, row], output[class_id, row], class_id, self.source)

    def rescaled(self, rate_rps: float | None) -> Synthetic:
        """The same traffic at another rate.

        Args:
            rate_rps: wanted mean rate [requests/s]; None leaves it as it is.

        Returns:
            A source of that rate.

        Raises:
            ValueError: a rate that is not positive and finite.
        """
        if rate_rps is None:
            return self
        arrivals = dataclasses.replace(self.arrivals, rate_rps=rate_rps)  # pyright: ignore[reportArgumentType]  # a dataclass
        arrivals.check()
        return dataclasses.replace(self, arrivals=arrivals)

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
