"""The disturbance: who arrives when, with how long a prompt, and how long an answer (which the scheduler never sees)."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import final

import numpy as np

GOLDEN = 0.6180339887498949
"""Fraction whose multiples fill the unit interval evenly: seeds draw their windows by it."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """Requests in order of arrival.

    Args:
        arrival_s: time of arrival, ascending from 0, shape (n,) [s].
        prompt_tokens: shape (n,), at least 1 [tokens].
        output_tokens: tokens that the request will emit, shape (n,), at least 1 [tokens].
        class_id: index into the targets, shape (n,), int64.
        source: where it came from, for people.
    """

    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    class_id: np.ndarray
    source: str = ""

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.arrival_s)

    @property
    def rate_rps(self) -> float:
        """Mean arrival rate [requests/s]; NaN for fewer than two requests or no time between them."""
        span = float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) > 1 else 0.0
        return (len(self) - 1) / span if span > 0 else float("nan")

    def check(self) -> None:
        """Refuse what is no workload.

        Raises:
            ValueError: no request, unequal lengths, times not ascending or not finite, a length below one.
        """
        n = len(self)
        if n == 0:
            raise ValueError(f"workload {self.source or 'given'} holds no request")
        for name in ("prompt_tokens", "output_tokens", "class_id"):
            if len(getattr(self, name)) != n:
                raise ValueError(f"workload: {name} has {len(getattr(self, name))} rows, arrival_s has {n}")
        if not np.isfinite(self.arrival_s).all() or (np.diff(self.arrival_s) < 0).any():
            raise ValueError("workload: arrival_s must be finite and ascending; sort the rows by time")
        for name in ("prompt_tokens", "output_tokens"):
            if (getattr(self, name) < 1).any():
                row = int(np.argmax(getattr(self, name) < 1))
                raise ValueError(f"workload: {name} must be at least 1, row {row} has {getattr(self, name)[row]}")

    def rescaled(self, rate_rps: float | None) -> Workload:
        """The same requests at another mean rate: every gap between arrivals is stretched by one factor.

        Args:
            rate_rps: wanted mean rate [requests/s]; None leaves it as it is.

        Returns:
            A workload of that rate.

        Raises:
            ValueError: a rate that is not positive, or a workload that has none to rescale.
        """
        if rate_rps is None:
            return self
        if not (np.isfinite(rate_rps) and rate_rps > 0):
            raise ValueError(f"rate must be positive, got {rate_rps:g}; write for example --rate 12/s")
        if not np.isfinite(self.rate_rps):
            raise ValueError("a workload of one request, or with all arrivals at one instant, has no rate to rescale")
        return dataclasses.replace(self, arrival_s=(self.arrival_s - self.arrival_s[0]) * (self.rate_rps / rate_rps))

    def window(self, start: int, stop: int) -> Workload:
        """Consecutive requests, with the clock starting at the first of them.

        Args:
            start: index of the first.
            stop: index after the last.

        Returns:
            A workload of `stop - start` requests.
        """
        part = slice(start, stop)
        return Workload(
            self.arrival_s[part] - self.arrival_s[start],
            self.prompt_tokens[part],
            self.output_tokens[part],
            self.class_id[part],
            self.source,
        )


class WorkloadSource(ABC):
    """Where the workloads of an experiment come from: one per seed, training and held-out seeds never sharing a request."""

    source: str

    @abstractmethod
    def draw(self, seed: int, requests: int, *, heldout: bool) -> Workload:
        """The workload of one seed.

        Args:
            seed: from 0.
            requests: wanted number of requests.
            heldout: draw from what tuning never saw.

        Returns:
            A workload of at most `requests` requests; the same arguments give the same one.
        """


@final
@dataclasses.dataclass(frozen=True)
class Replay(WorkloadSource):
    """A recorded workload: a seed draws a time window, training seeds from the first two thirds, held-out from the last.

    Every window is stretched to the mean rate of the whole recording. Traffic drifts through a day; if windows kept their
    own rates, settings would be chosen at one load and judged at another, and the rate that was asked for would be nobody's.

    Args:
        workload: all recorded requests.
    """

    workload: Workload

    @property
    def source(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # read-only is all that is needed
        """Where the recording came from."""
        return self.workload.source

    def draw(self, seed: int, requests: int, *, heldout: bool) -> Workload:
        """The time window of one seed.

        Args:
            seed: from 0.
            requests: wanted number of requests.
            heldout: draw from the last third, which tuning never sees, instead of the first two.

        Returns:
            A workload of at most `requests` requests; the same arguments give the same one.

        Raises:
            ValueError: no request asked for, or fewer than six recorded: a third of them would hardly be a workload.
        """
        n = len(self.workload)
        if n < 6:
            raise ValueError(f"{self.source or 'the workload'} holds {n} requests; it takes at least 6 to hold a third of them back")
        if requests < 1:
            raise ValueError(f"requests must be at least 1, got {requests}")
        cut = n - n // 3
        low, high = (cut, n) if heldout else (0, cut)
        length = min(requests, high - low)
        fraction = (0.5 + seed * GOLDEN) % 1.0
        start = low + round(fraction * (high - low - length))
        window = self.workload.window(start, start + length)
        fits = np.isfinite(window.rate_rps) and np.isfinite(self.workload.rate_rps)
        return window.rescaled(self.workload.rate_rps) if fits else window
