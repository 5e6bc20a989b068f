"""How long prompts and outputs are: the distributions from which a synthetic workload draws them."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import final

import numpy as np

MOST_TOKENS = 1 << 20
"""Longest prompt or output that is drawn where no `max` is given [tokens]; longer than any engine of today takes."""


class Lengths(ABC):
    """A distribution of whole numbers of tokens, all at least 1."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Independent lengths.

        Args:
            rng: where the randomness comes from.
            n: how many.

        Returns:
            Lengths, shape (n,), int64 [tokens]; the first m of n are the m that the same rng would have given.
        """

    @abstractmethod
    def check(self) -> None:
        """Refuse what is no distribution of lengths.

        Raises:
            ValueError: a parameter out of its range.
        """


@final
@dataclasses.dataclass(frozen=True)
class LogNormal(Lengths):
    """The logarithm is normal: many short ones and a long tail, as in chat traffic.

        length = clip(round(median * exp(sigma * z)), low, high),  z ~ N(0, 1)

    Lengths outside the bounds are set to the bound. Drawing them again instead would move the median away from the one
    that was asked for, and engines do cut at a bound: an output limit leaves a lump of requests exactly at it.

    Args:
        median: half of the lengths lie below it, the bounds apart [tokens].
        sigma: standard deviation of the logarithm; 0 is a constant, 0.8 to 1.5 is chat traffic.
        low: smallest length [tokens].
        high: largest length [tokens].

    Example:
        >>> LogNormal(600.0, 0.8, low=16, high=4096).draw(np.random.default_rng(0), 3)
        array([ 663,  540, 1002])
    """

    median: float
    sigma: float
    low: int = 1
    high: int = MOST_TOKENS

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:  # noqa: D102
        # In logarithms, so that no exponential overflows before it is clipped.
        log = np.minimum(math.log(self.median) + self.sigma * rng.standard_normal(n), math.log(self.high))
        return np.clip(np.rint(np.exp(log)), self.low, self.high).astype(np.int64)

    def check(self) -> None:  # noqa: D102
        _check_range("lognormal", "min", self.low, "max", self.high)
        if not self.low <= self.median <= self.high:
            raise ValueError(f"lognormal: median must lie between min {self.low} and max {self.high}, got {self.median:g}")
        if not 0 <= self.sigma <= 10:
            raise ValueError(f"lognormal: sigma must be in [0, 10], got {self.sigma:g}; it is the spread of the logarithm, 0.8 for chat")


@final
@dataclasses.dataclass(frozen=True)
class UniformLengths(Lengths):
    """Every whole number from `low` to `high`, both included, is as likely as the others.

    Args:
        low: smallest length [tokens].
        high: largest length [tokens].
    """

    low: int
    high: int

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:  # noqa: D102
        # From one double each: bounded integer draws take a varying number of random words, and the seeds' common numbers would part.
        return np.minimum(self.low + np.floor(rng.random(n) * (self.high - self.low + 1)), self.high).astype(np.int64)

    def check(self) -> None:  # noqa: D102
        _check_range("uniform", "min", self.low, "max", self.high)


@final
@dataclasses.dataclass(frozen=True)
class Constant(Lengths):
    """Always the same.

    Args:
        value: the length [tokens].
    """

    value: int

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:  # noqa: D102, ARG002  # nothing is left to chance
        return np.full(n, self.value, dtype=np.int64)

    def check(self) -> None:  # noqa: D102
        _check_range("constant", "value", self.value, "the longest", MOST_TOKENS)


@final
@dataclasses.dataclass(frozen=True)
class Geometric(Lengths):
    """After every token the same chance to stop: the memoryless length of queueing theory.

        P(length = k) = (1 - 1/mean)^(k - 1) / mean,  k = 1, 2, ...

    Args:
        mean: average length [tokens]; at least 1.
    """

    mean: float

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:  # noqa: D102
        if self.mean == 1:
            return np.ones(n, dtype=np.int64)
        # Inverted from one double each, so that two means see the same luck: log(1 - u) / log(1 - p), rounded up.
        k = np.ceil(np.log1p(-rng.random(n)) / math.log1p(-1.0 / self.mean))
        return np.clip(k, 1, MOST_TOKENS).astype(np.int64)

    def check(self) -> None:  # noqa: D102
        if not 1 <= self.mean <= MOST_TOKENS / 16:
            raise ValueError(f"geometric: mean must be in [1, {MOST_TOKENS // 16}], got {self.mean:g}; for one fixed length write constant")


def _check_range(what: str, low_name: str, low: int, high_name: str, high: int) -> None:
    if not 1 <= low <= high:
        raise ValueError(f"{what}: {low_name} must be at least 1 and at most {high_name}, got {low} and {high}")
    if high > MOST_TOKENS:
        raise ValueError(f"{what}: {high_name} must be at most {MOST_TOKENS}, got {high}")
