"""The disturbance: who arrives when, with how long a prompt, and how long an answer (which the scheduler never sees)."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import final

import numpy as np

from headway.models.prefix import Prefix

GOLDEN = 0.6180339887498949
"""Fraction whose multiples fill the unit interval evenly: seeds draw their windows by it."""

OPTIONAL = ("patience_s", "cancel_s", "after", "think_s")
"""Columns that a workload may have, one entry per request; the prefixes beside them have several."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """Requests in order of arrival.

    Args:
        arrival_s: time of arrival, ascending from 0, shape (n,) [s]; of a request with a predecessor, as recorded.
        prompt_tokens: shape (n,), at least 1 [tokens].
        output_tokens: tokens that the request will emit, shape (n,), at least 1 [tokens].
        class_id: index into the targets, shape (n,), int64.
        source: where it came from, for people.
        prefix: which prompts begin alike; None for none.
        patience_s: the client leaves if it has no first token so long after arrival, shape (n,) [s]; None for never.
        cancel_s: the client closes its stream so long after arrival, shape (n,) [s]; None for never.
        after: number of the request whose end it waits for, an earlier row; -1 for none, shape (n,), int64; None for none at all.
        think_s: from that end to its arrival, shape (n,) [s]; None where there is no `after`.
    """

    arrival_s: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    class_id: np.ndarray
    source: str = ""
    prefix: Prefix | None = None
    patience_s: np.ndarray | None = None
    cancel_s: np.ndarray | None = None
    after: np.ndarray | None = None
    think_s: np.ndarray | None = None

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
            ValueError: no request, unequal lengths, times not ascending or not finite, a length below one, a client that leaves
                before it came, a predecessor that is no earlier row, a thinking time that is negative, or prefixes that are none.
        """
        n = len(self)
        if n == 0:
            raise ValueError(f"workload {self.source or 'given'} holds no request")
        for name in ("prompt_tokens", "output_tokens", "class_id", *OPTIONAL):
            rows = getattr(self, name)
            if rows is not None and len(rows) != n:
                raise ValueError(f"workload: {name} has {len(rows)} rows, arrival_s has {n}")
        if not np.isfinite(self.arrival_s).all() or (np.diff(self.arrival_s) < 0).any():
            raise ValueError("workload: arrival_s must be finite and ascending; sort the rows by time")
        for name in ("prompt_tokens", "output_tokens"):
            _refuse(getattr(self, name), getattr(self, name) < 1, f"{name} must be at least 1")
        for name in ("patience_s", "cancel_s"):
            if (left := getattr(self, name)) is not None:
                _refuse(left, ~(left > 0), f"{name} must be above 0, infinite for a client that never leaves")
        if (self.after is None) != (self.think_s is None):
            raise ValueError("workload: after and think_s go together: who is waited for, and how long it takes from that end")
        if self.after is not None and self.think_s is not None:
            wrong = (self.after < -1) | (self.after >= np.arange(n))
            _refuse(self.after, wrong, "after must be the number of an earlier row, or -1 for none")
            _refuse(self.think_s, ~(np.isfinite(self.think_s) & (self.think_s >= 0)), "think_s must be finite and not negative")
        if self.prefix is not None:
            self.prefix.check(self.prompt_tokens)

    def rescaled(self, rate_rps: float | None) -> Workload:
        """The same requests at another mean rate: every gap between arrivals is stretched by one factor.

        Patience and thinking times are the clients' own and stay as they are; so do the arrivals of requests that wait for another's end.

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

        One that waited for a request before the window arrives at its recorded time.

        Args:
            start: index of the first.
            stop: index after the last.

        Returns:
            A workload of `stop - start` requests, numbered from 0.
        """
        part = slice(start, stop)
        optional = {name: rows[part] for name in OPTIONAL if (rows := getattr(self, name)) is not None}
        if self.after is not None:
            optional["after"] = np.maximum(self.after[part] - start, -1)
        if self.prefix is not None:
            optional["prefix"] = self.prefix.rows(np.arange(len(self))[part])
        return Workload(
            self.arrival_s[part] - self.arrival_s[start],
            self.prompt_tokens[part],
            self.output_tokens[part],
            self.class_id[part],
            self.source,
            **optional,
        )

    def with_patience(self, patience_s: float | np.ndarray) -> Workload:
        """The same requests from clients who leave if there is no first token in time.

        Args:
            patience_s: after arrival; one for all, or shape (n,); infinite for never [s].

        Returns:
            A workload.

        Raises:
            ValueError: a patience that is not above 0.

        Example:
            >>> one = np.ones(2, int)
            >>> Workload(np.zeros(2), one, one, one * 0).with_patience(2.0).patience_s
            array([2., 2.])
        """
        return self._with("patience_s", patience_s)

    def with_cancel(self, cancel_s: float | np.ndarray) -> Workload:
        """The same requests from clients who close the stream some time after arrival, whatever they have.

        Args:
            cancel_s: after arrival; one for all, or shape (n,); infinite for never [s].

        Returns:
            A workload.

        Raises:
            ValueError: a time that is not above 0.
        """
        return self._with("cancel_s", cancel_s)

    def with_thinking(self, after: np.ndarray, think_s: float | np.ndarray) -> Workload:
        """The same requests, some of which arrive only when another has ended: turns of a conversation.

        Args:
            after: number of the request that each waits for, an earlier row; -1 for none, shape (n,), int64.
            think_s: from that end to the arrival; one for all, or shape (n,) [s].

        Returns:
            A workload.

        Raises:
            ValueError: a predecessor that is no earlier row, or a thinking time that is negative.
        """
        return dataclasses.replace(self, after=np.asarray(after, np.int64))._with("think_s", think_s)

    def _with(self, name: str, value_s: float | np.ndarray) -> Workload:
        value_s = np.asarray(value_s, float)
        changed = dataclasses.replace(self, **{name: np.full(len(self), value_s) if value_s.ndim == 0 else value_s})
        changed.check()
        return changed


def _refuse(rows: np.ndarray, wrong: np.ndarray, rule: str) -> None:
    """Name the first row that breaks a rule."""
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(f"workload: {rule}, row {row} has {rows[row]}")


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
