"""How arrivals are spaced: renewal processes, whose gaps are independent, and clients who send when they were answered."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from typing import NamedTuple, Self, final

import numpy as np

from headway.models.durations import Durations, FixedTime


class Arrived(NamedTuple):
    """Arrivals as a process gave them.

    Args:
        arrival_s: ascending from 0, shape (n,) [s].
        after: number of the request whose end each waits for, -1 for none, shape (n,), int64; None where none waits.
        think_s: from that end to the arrival, shape (n,) [s]; None where none waits.
    """

    arrival_s: np.ndarray
    after: np.ndarray | None = None
    think_s: np.ndarray | None = None


class Arrivals(ABC):
    """A process of arrivals. The first comes at 0; of n arrivals, the first m are those that m would have been."""

    rate_rps: float

    @abstractmethod
    def arrive(self, rng: np.random.Generator, n: int) -> Arrived:
        """The first arrivals.

        Args:
            rng: where the randomness comes from.
            n: how many, at least 1.

        Returns:
            Arrivals, shape (n,).
        """

    @abstractmethod
    def rescaled(self, rate_rps: float) -> Self:
        """The same traffic at another rate: the same luck, and whatever has a clock of its own keeps it.

        Args:
            rate_rps: in place of this one's own [requests/s].

        Returns:
            A process.

        Raises:
            ValueError: a rate that is not positive and finite, or a process without a rate.
        """

    @abstractmethod
    def check(self) -> None:
        """Refuse what is no process of arrivals.

        Raises:
            ValueError: a parameter out of its range.
        """


class Renewal(Arrivals):
    """Independent gaps of one distribution, of mean 1 / rate. Another rate stretches all of them by one factor."""

    @abstractmethod
    def gaps_s(self, rng: np.random.Generator, n: int) -> np.ndarray:
        """Independent gaps between arrivals.

        Args:
            rng: where the randomness comes from.
            n: how many.

        Returns:
            Gaps, shape (n,), not negative, of mean 1 / rate_rps [s].
        """

    def arrive(self, rng: np.random.Generator, n: int) -> Arrived:  # noqa: D102
        affordable(n)
        return Arrived(np.concatenate([[0.0], np.cumsum(self.gaps_s(rng, n - 1))]))

    def rescaled(self, rate_rps: float) -> Self:  # noqa: D102
        changed = dataclasses.replace(self, rate_rps=rate_rps)  # pyright: ignore[reportArgumentType]  # every member is a dataclass
        changed.check()
        return changed

    def check(self) -> None:  # noqa: D102
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]  # every member is a dataclass
            positive(field.name.removesuffix("_rps"), getattr(self, field.name))


SPAN = (1e-15, 1e15)
"""Least and greatest parameter of arrivals that is taken: beyond it squares and products leave what a computer can count."""

MOST_REQUESTS = 10_000_000
"""Requests that are drawn at once at most: some gigabytes."""


def affordable(n: int) -> None:
    """Refuse to draw more arrivals than fit into memory.

    Args:
        n: how many.

    Raises:
        ValueError: more than MOST_REQUESTS.
    """
    if n > MOST_REQUESTS:
        raise ValueError(f"a run holds at most {MOST_REQUESTS:,} requests, got {n:,}; ask for fewer requests")


def positive(name: str, value: float) -> None:
    """Refuse a parameter of arrivals that is not above zero, or beyond what can be counted.

    Args:
        name: of the parameter.
        value: as given.

    Raises:
        ValueError: not positive, not finite, or outside SPAN.
    """
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} of arrivals must be positive and finite, got {value:g}")
    if not SPAN[0] <= value <= SPAN[1]:
        raise ValueError(f"{name} of arrivals must be in [{SPAN[0]:g}, {SPAN[1]:g}], got {value:g}")


@final
@dataclasses.dataclass(frozen=True)
class Poisson(Renewal):
    """Many independent clients: exponential gaps, CV 1.

    Args:
        rate_rps: mean rate of arrivals [requests/s].
    """

    rate_rps: float

    def gaps_s(self, rng: np.random.Generator, n: int) -> np.ndarray:  # noqa: D102
        return rng.standard_exponential(n) / self.rate_rps


CVS = (1e-3, 1e3)
"""Coefficients of variation of Gamma gaps that are drawn: at 1e3 nearly all of the gaps of a run are 0 already, at 1e-3 all are alike."""


@final
@dataclasses.dataclass(frozen=True)
class Gamma(Renewal):
    """Bursts for cv > 1, a steadier stream for cv < 1: gaps of a Gamma distribution.

        shape = 1 / cv^2,  scale = cv^2 / rate

    The variance of the count in a long window is cv^2 times that of a Poisson process.

    Args:
        rate_rps: mean rate of arrivals [requests/s].
        cv: coefficient of variation of the gaps, standard deviation over mean; 1 is Poisson, in [0.001, 1000].
    """

    rate_rps: float
    cv: float

    def gaps_s(self, rng: np.random.Generator, n: int) -> np.ndarray:  # noqa: D102
        square = self.cv**2
        return rng.standard_gamma(1.0 / square, n) * (square / self.rate_rps)

    def check(self) -> None:  # noqa: D102
        if 0 < self.cv < math.inf and not CVS[0] <= self.cv <= CVS[1]:
            raise ValueError(f"cv of arrivals must be in [{CVS[0]:g}, {CVS[1]:g}], got {self.cv:g}; 1 is Poisson, above it are bursts")
        super().check()


SHAPES = (0.1, 100.0)
"""Shapes of Weibull gaps that are drawn: at 0.1 their CV is 429 already."""


@final
@dataclasses.dataclass(frozen=True)
class Weibull(Renewal):
    """Gaps whose chance to end falls with their age for shape < 1, in bursts and silences, and rises for shape > 1.

        P(gap > t) = exp(-(t / scale)^shape),  scale = 1 / (rate Gamma(1 + 1 / shape))
        cv^2 = Gamma(1 + 2 / shape) / Gamma(1 + 1 / shape)^2 - 1

    Shape 1 is Poisson, 0.6 has the CV 1.76. The tail is heavier than a Gamma's of the same CV.

    Args:
        rate_rps: mean rate of arrivals [requests/s].
        shape: below 1 is bursts; in [0.1, 100].

    Source:
        Weibull, A statistical distribution function of wide applicability, 1951; as a law of LLM traffic: Xiang et al., ServeGen,
        NSDI 2026.
    """

    rate_rps: float
    shape: float

    @property
    def cv(self) -> float:
        """Coefficient of variation of the gaps, standard deviation over mean."""
        return math.sqrt(math.gamma(1 + 2 / self.shape) / math.gamma(1 + 1 / self.shape) ** 2 - 1)

    def gaps_s(self, rng: np.random.Generator, n: int) -> np.ndarray:  # noqa: D102
        return rng.standard_exponential(n) ** (1 / self.shape) / (math.gamma(1 + 1 / self.shape) * self.rate_rps)

    def check(self) -> None:  # noqa: D102
        positive("rate", self.rate_rps)
        if not SHAPES[0] <= self.shape <= SHAPES[1]:
            raise ValueError(
                f"weibull: shape must be in [{SHAPES[0]:g}, {SHAPES[1]:g}], got {self.shape:g}; 1 is Poisson, below it are bursts"
            )


@final
@dataclasses.dataclass(frozen=True)
class Uniform(Renewal):
    """Evenly spaced: every gap is 1 / rate, as load generators send that are given a fixed rate.

    Args:
        rate_rps: rate of arrivals [requests/s].
    """

    rate_rps: float

    def gaps_s(self, rng: np.random.Generator, n: int) -> np.ndarray:  # noqa: D102, ARG002  # nothing is left to chance
        return np.full(n, 1.0 / self.rate_rps)


MOST_CLIENTS = 100_000
"""Clients that a closed loop holds at most: an engine runs some hundred requests."""

NO_TIME = FixedTime(0.0)
"""Clients who send as soon as they are answered, as load generators of a fixed concurrency do."""


@final
@dataclasses.dataclass(frozen=True)
class Closed(Arrivals):
    """A closed loop: so many clients, each of which thinks, sends, and waits for the end of its answer before it thinks again.

        rate = clients / (response time + think time)     (the response time law)

    A slow engine is sent less: late answers thin out the load that made them late. Clients begin one after the other, each a random
    part of a thinking time after the start. Arrivals after a client's first are written down as an engine that takes no time would
    see them, none before the one above it; they count only in a window that cuts off whom they wait for.

    Args:
        clients: how many, at least 1: at most so many requests are unfinished at once.
        think: how long a client thinks between an end and its next request.

    Source:
        Denning and Buzen, The Operational Analysis of Queueing Network Models, ACM Computing Surveys 10, 1978.
    """

    clients: int
    think: Durations = NO_TIME

    @property
    def rate_rps(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]  # read-only is all that is needed
        """Rate that an engine which takes no time would see; infinite without thinking [requests/s]."""
        return self.clients / self.think.mean_s if self.think.mean_s > 0 else math.inf

    def arrive(self, rng: np.random.Generator, n: int) -> Arrived:  # noqa: D102
        affordable(n)
        first, number = rng.spawn(1)[0], np.arange(n)
        think_s = self.think.draw(rng, n)
        begins_s = np.sort(first.random(self.clients) * self.think.draw(first, self.clients))
        # Clients take turns, so that all of them have the same number of requests and none runs out long before the others.
        own_s = np.where(number < self.clients, 0.0, think_s)
        own_s[: self.clients] = (begins_s - begins_s[0])[:n]
        turns = np.concatenate([own_s, np.zeros(-n % self.clients)]).reshape(-1, self.clients)
        arrival_s = np.maximum.accumulate(np.cumsum(turns, axis=0).ravel()[:n])
        after = np.maximum(number - self.clients, -1)
        return Arrived(arrival_s, after, np.where(after < 0, 0.0, think_s))

    def rescaled(self, rate_rps: float) -> Self:  # noqa: D102
        raise ValueError(
            f"a closed loop has no rate to set, got {rate_rps:g}/s: its clients send when they were answered; change clients or think"
        )

    def check(self) -> None:  # noqa: D102
        if not 1 <= self.clients <= MOST_CLIENTS:
            raise ValueError(f"closed: clients must be in [1, {MOST_CLIENTS}], got {self.clients}")
        self.think.check()
