"""Arrivals whose rate changes: a Poisson process on a clock that runs faster and slower."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from typing import Self, final

import numpy as np

from headway.models.arrivals import Arrivals, Arrived, affordable, positive

BISECTIONS = 64
"""Halvings of an interval: what is left of it is below the spacing of floating-point numbers."""


class Varying(Arrivals):
    """A Poisson process of rate lambda(t), by warping the time of one of rate 1.

        t_i = Lambda^-1(e_1 + ... + e_i),  Lambda(t) = integral of lambda from 0 to t,  e_i exponential of mean 1

    Warping keeps the luck apart from the rate, which thinning does not: at another rate the same seed gives the same e_i, and so the
    same requests in the same order, further apart where the rate is lower.

    Source:
        Cinlar, Introduction to Stochastic Processes, 1975, section 4.7.
    """

    @abstractmethod
    def inverse_s(self, work: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """When the expected number of arrivals since the start reaches a value.

        Args:
            work: Lambda, ascending from 0, shape (n,) [requests].
            rng: where the course of the rate is drawn from, if chance has a part in it.

        Returns:
            Times, ascending, shape (n,) [s].
        """

    def arrive(self, rng: np.random.Generator, n: int) -> Arrived:  # noqa: D102
        affordable(n)
        course = rng.spawn(1)[0]
        arrival_s = self.inverse_s(np.concatenate([[0.0], np.cumsum(rng.standard_exponential(n - 1))]), course)
        return Arrived(arrival_s - arrival_s[0])  # later than 0 where it began in a silent state

    def rescaled(self, rate_rps: float) -> Self:  # noqa: D102
        positive("rate", rate_rps)
        factor, changed = rate_rps / self.rate_rps, {}
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]  # every member is a dataclass
            value = getattr(self, field.name)
            if field.name.endswith("_rps"):
                changed[field.name] = tuple(factor * one for one in value) if isinstance(value, tuple) else factor * value
        made = dataclasses.replace(self, **changed)  # pyright: ignore[reportArgumentType]
        made.check()
        return made


@final
@dataclasses.dataclass(frozen=True)
class MMPP(Varying):
    """A Markov-modulated Poisson process: the rate jumps between states, each held for an exponential time, in a round.

        p_k = dwell_k / sum(dwell),  rate = sum p_k rate_k
        two states:  Var N(t) = rate t + 2 p_1 p_2 (rate_1 - rate_2)^2 (c t - c^2 (1 - exp(-t / c)))
                     c = 1 / (1/dwell_1 + 1/dwell_2)

    A seed begins in a state drawn by p, and where that is a silent one, with the first request after it. Another rate
    multiplies the rates of all states; how long they are held stays.

    Args:
        rates_rps: in each state, none negative, at least two; 0 is silence [requests/s].
        dwells_s: mean time in each state before the next one, shape as `rates_rps` [s].

    Source:
        Fischer and Meier-Hellstern, The Markov-modulated Poisson process (MMPP) cookbook, Performance Evaluation 18, 1993.
    """

    rates_rps: tuple[float, ...]
    dwells_s: tuple[float, ...]

    @property
    def rate_rps(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]  # read-only is all that is needed
        """Mean rate over a long time [requests/s]."""
        return float(np.dot(self.rates_rps, self.dwells_s) / np.sum(self.dwells_s))

    def inverse_s(self, work: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # noqa: D102
        states, dwells_s, rates = len(self.rates_rps), np.array(self.dwells_s), np.array(self.rates_rps)
        begin = int(np.searchsorted(np.cumsum(dwells_s)[:-1] / dwells_s.sum(), rng.random(), side="right"))
        time_s, done = np.zeros(1), np.zeros(1)
        while done[-1] <= work[-1]:
            state = (begin + len(time_s) - 1 + np.arange(64 * states)) % states
            held_s = dwells_s[state] * rng.standard_exponential(len(state))
            time_s = np.concatenate([time_s, time_s[-1] + np.cumsum(held_s)])
            done = np.concatenate([done, done[-1] + np.cumsum(held_s * rates[state])])
        # The visit in which the work is reached; one without arrivals has no width in work, and is never it.
        visit = np.searchsorted(done, work, side="right") - 1
        return time_s[visit] + (work - done[visit]) / rates[(begin + visit) % states]

    def check(self) -> None:  # noqa: D102
        if len(self.rates_rps) < 2 or len(self.rates_rps) != len(self.dwells_s):
            raise ValueError(f"mmpp: needs as many rates as dwell times, at least two, got {len(self.rates_rps)} and {len(self.dwells_s)}")
        for dwell_s in self.dwells_s:
            positive("dwell", dwell_s)
        if not all(math.isfinite(rate) and rate >= 0 for rate in self.rates_rps) or not any(self.rates_rps):
            shown = ", ".join(f"{rate:g}" for rate in self.rates_rps)
            raise ValueError(f"mmpp: rates must be finite and not negative, one of them above 0, got {shown}")
        if (visited := self.rate_rps * sum(self.dwells_s)) < 1e-3:
            raise ValueError(f"mmpp: a round of all states holds {visited:.2g} requests on average; that is no other than poisson")


@final
@dataclasses.dataclass(frozen=True)
class Diurnal(Varying):
    """A rate that goes up and down as a day does.

        lambda(t) = rate (1 + amplitude sin(2 pi (t / period + phase)))
        Lambda(t) = rate (t - amplitude period / (2 pi) (cos(2 pi (t / period + phase)) - cos(2 pi phase)))

    Without a phase every seed begins at its own time of day, so that a few short runs see all of it. Another rate keeps the period.

    Args:
        rate_rps: mean rate over a period [requests/s].
        amplitude: largest departure from the mean, as a part of it; in [0, 1].
        period_s: from peak to peak [s].
        phase: part of a period at which a run begins, 0 at the mean and rising, 0.25 at the peak; None draws it.
    """

    rate_rps: float
    amplitude: float
    period_s: float
    phase: float | None = None

    def inverse_s(self, work: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # noqa: D102
        turn, phase = 2 * math.pi / self.period_s, 2 * math.pi * (rng.random() if self.phase is None else self.phase)
        even_s = work / self.rate_rps  # without the wave, which moves an arrival by at most `reach_s`
        reach_s = 2 * self.amplitude / turn
        low, high = even_s - reach_s, even_s + reach_s
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            early = middle - self.amplitude / turn * (np.cos(turn * middle + phase) - math.cos(phase)) < even_s
            low, high = np.where(early, middle, low), np.where(early, high, middle)
        return np.maximum.accumulate(np.maximum((low + high) / 2, 0.0))

    def check(self) -> None:  # noqa: D102
        positive("rate", self.rate_rps)
        positive("period", self.period_s)
        if not 0 <= self.amplitude <= 1:
            raise ValueError(f"diurnal: amplitude must be in [0, 1], got {self.amplitude:g}; 0.6 swings between 40 % and 160 % of the rate")
        if self.phase is not None and not 0 <= self.phase <= 1:
            raise ValueError(f"diurnal: phase must be in [0, 1], a part of the period, got {self.phase:g}; 0.25 begins at the peak")


@final
@dataclasses.dataclass(frozen=True)
class Step(Varying):
    """A rate that jumps at one time, and perhaps back at another: a fail-over, a campaign, a burst.

        lambda(t) = to  for at <= t < until,  rate otherwise

    Another rate multiplies both; the times stay.

    Args:
        rate_rps: before, and after `until_s` [requests/s].
        to_rps: from `at_s` on [requests/s].
        at_s: from the start of the run; 0 or later [s].
        until_s: when it jumps back; infinite for never [s].
    """

    rate_rps: float
    to_rps: float
    at_s: float
    until_s: float = math.inf

    def inverse_s(self, work: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # noqa: D102, ARG002  # the course is given
        before = self.rate_rps * self.at_s
        during = before + self.to_rps * (self.until_s - self.at_s)
        risen_s = self.at_s + (work - before) / self.to_rps
        back_s = self.until_s + (work - during) / self.rate_rps if math.isfinite(self.until_s) else risen_s
        return np.where(work < before, work / self.rate_rps, np.where(work < during, risen_s, back_s))

    def check(self) -> None:  # noqa: D102
        positive("rate", self.rate_rps)
        positive("to", self.to_rps)
        if not (math.isfinite(self.at_s) and self.at_s >= 0):
            raise ValueError(f"step: at must be finite and not negative, got {self.at_s:g} s")
        if not self.until_s > self.at_s:
            raise ValueError(f"step: until must lie after at, got {self.until_s:g} s and {self.at_s:g} s")


@final
@dataclasses.dataclass(frozen=True)
class Ramp(Varying):
    """A rate that rises or falls in a straight line, and then stays.

        lambda(t) = rate,  then  rate + (to - rate) (t - at) / over  from at to at + over,  then  to

    Another rate multiplies both; the times stay.

    Args:
        rate_rps: before [requests/s].
        to_rps: after [requests/s].
        over_s: length of the ramp [s].
        at_s: its beginning, from the start of the run; 0 or later [s].
    """

    rate_rps: float
    to_rps: float
    over_s: float
    at_s: float = 0.0

    def inverse_s(self, work: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # noqa: D102, ARG002  # the course is given
        rate, to, over_s = self.rate_rps, self.to_rps, self.over_s
        risen = work - rate * self.at_s
        whole = over_s * (rate + to) / 2
        # rate s + (to - rate) s^2 / (2 over) = risen, solved for s in the form that does not cancel
        inside = np.clip(risen, 0.0, whole)
        ramp_s = 2 * inside / (rate + np.sqrt(np.maximum(rate**2 + 2 * (to - rate) * inside / over_s, 0.0)))
        after_s = self.at_s + over_s + (risen - whole) / to
        return np.where(risen < 0, work / rate, np.where(risen < whole, self.at_s + ramp_s, after_s))

    def check(self) -> None:  # noqa: D102
        positive("rate", self.rate_rps)
        positive("to", self.to_rps)
        positive("over", self.over_s)
        if not (math.isfinite(self.at_s) and self.at_s >= 0):
            raise ValueError(f"ramp: at must be finite and not negative, got {self.at_s:g} s")
