"""How long clients think, wait and stay: the distributions from which such times are drawn."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import final

import numpy as np


class Durations(ABC):
    """A distribution of lengths of time, none negative, of the average `mean_s` [s]."""

    mean_s: float

    @abstractmethod
    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Independent durations.

        Args:
            rng: where the randomness comes from.
            n: how many.

        Returns:
            Durations, shape (n,), not negative [s]; the first m of n are the m that the same rng would have given.
        """

    @abstractmethod
    def check(self) -> None:
        """Refuse what is no distribution of durations.

        Raises:
            ValueError: a parameter out of its range.
        """


@final
@dataclasses.dataclass(frozen=True)
class FixedTime(Durations):
    """Always the same.

    Args:
        value_s: the duration; not negative [s].
    """

    value_s: float

    @property
    def mean_s(self) -> float:  # noqa: D102  # pyright: ignore[reportIncompatibleVariableOverride]  # read-only is all that is needed
        return self.value_s

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:  # noqa: D102, ARG002  # nothing is left to chance
        return np.full(n, float(self.value_s))

    def check(self) -> None:  # noqa: D102
        if not (math.isfinite(self.value_s) and self.value_s >= 0):
            raise ValueError(f"constant: the time must be finite and not negative, got {self.value_s:g} s")


@final
@dataclasses.dataclass(frozen=True)
class ExponentialTime(Durations):
    """At every instant the same chance to end.

        P(T > t) = exp(-t / mean)

    Args:
        mean_s: average, positive [s].
    """

    mean_s: float

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:  # noqa: D102
        return self.mean_s * rng.standard_exponential(n)

    def check(self) -> None:  # noqa: D102
        if not (math.isfinite(self.mean_s) and self.mean_s > 0):
            raise ValueError(f"exponential: the mean must be positive and finite, got {self.mean_s:g} s")


@final
@dataclasses.dataclass(frozen=True)
class LogNormalTime(Durations):
    """The logarithm is normal: how long people take to read and write.

        T = median exp(sigma z),  z ~ N(0, 1);  E T = median exp(sigma^2 / 2)

    Args:
        median_s: half of the times lie below it [s].
        sigma: standard deviation of the logarithm.
    """

    median_s: float
    sigma: float

    @property
    def mean_s(self) -> float:  # noqa: D102  # pyright: ignore[reportIncompatibleVariableOverride]  # read-only is all that is needed
        return self.median_s * math.exp(self.sigma**2 / 2)

    def draw(self, rng: np.random.Generator, n: int) -> np.ndarray:  # noqa: D102
        return self.median_s * np.exp(self.sigma * rng.standard_normal(n))

    def check(self) -> None:  # noqa: D102
        if not (math.isfinite(self.median_s) and self.median_s > 0):
            raise ValueError(f"lognormal: the median must be positive and finite, got {self.median_s:g} s")
        if not 0 <= self.sigma <= 10:
            raise ValueError(f"lognormal: sigma must be in [0, 10], got {self.sigma:g}; it is the spread of the logarithm")
