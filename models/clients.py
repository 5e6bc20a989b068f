"""A pool of clients whose traffic shifts through the week: each has its own rate, burstiness and lengths, window by window."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple, final

import numpy as np

from headway.models.generators import draw_classes
from headway.models.workload import GOLDEN, Workload, WorkloadSource

SILENT, GAMMA, WEIBULL = range(3)
"""Families of the gaps between a client's requests in one window; SILENT: it sends none."""
SETTLED = 0.5
"""Largest part of its first window that a draw leaves out: a renewal process that has only begun is burstier than it is later on."""


class LengthTable(NamedTuple):
    """How long a client's prompts and outputs are from some time on, as shares of the lengths that were seen.

    Args:
        start_s: from when on [s].
        prompt_tokens: lengths, ascending, at least 1, shape (a,) [tokens].
        prompt_share: share of the requests of at most each length, ascending to 1, shape (a,).
        output_tokens: lengths, ascending, at least 1, shape (b,) [tokens].
        output_share: as for prompts, shape (b,).
    """

    start_s: float
    prompt_tokens: np.ndarray
    prompt_share: np.ndarray
    output_tokens: np.ndarray
    output_share: np.ndarray


class Client(NamedTuple):
    """One client.

    Args:
        rate_rps: mean rate in each window, shape (w,) [requests/s].
        family: of its gaps in each window, SILENT, GAMMA or WEIBULL, shape (w,), int64.
        shape: parameter of that family; below 1 is bursts, shape (w,).
        lengths: in order of time, at least one.
    """

    rate_rps: np.ndarray
    family: np.ndarray
    shape: np.ndarray
    lengths: tuple[LengthTable, ...]


@final
@dataclasses.dataclass(frozen=True)
class ClientPool(WorkloadSource):
    """Requests drawn client by client, as ServeGen composes them: a seed draws a stretch of the week.

    gap = family(shape) scaled to the mean 1 / rate of the window

    Training seeds draw from the first two thirds of the windows, held-out ones from the last. Like a `Replay`, every
    draw is stretched to one mean rate: the one asked for, or that of the whole pool. The rate of a window counts, not
    the scale that was fitted with its shape: where gaps are heavy-tailed that would miss the rate several times over.

    Args:
        clients: at least one, all of the same windows.
        window_s: length of a window [s].
        shares: part of the requests in each class of targets, shape (classes,); sums to 1.
        rate_rps: mean rate of every draw; None for the pool's own [requests/s].
        source: where it came from, for people.

    Source:
        Xiang et al., ServeGen: Workload Characterization and Generation of Large Language Model Serving in Production,
        NSDI 2026.
    """

    clients: tuple[Client, ...]
    window_s: float
    shares: tuple[float, ...] = (1.0,)
    rate_rps: float | None = None
    source: str = "client pool"

    @property
    def pool_rate_rps(self) -> float:
        """Mean rate of all clients together, over the windows in which any of them sends [requests/s]."""
        total = np.sum([client.rate_rps for client in self.clients], axis=0)
        return float(total[total > 0].mean())

    def draw(self, seed: int, requests: int, *, heldout: bool) -> Workload:
        """The workload of one seed.

        Args:
            seed: from 0.
            requests: number of requests, at least 1.
            heldout: draw from the last third of the windows, which tuning never sees.

        Returns:
            A workload of exactly `requests` requests, the first arriving at 0.

        Raises:
            ValueError: a negative seed, or no request asked for.
        """
        if seed < 0 or requests < 1:
            raise ValueError(f"seed must be at least 0 and requests at least 1, got {seed} and {requests}")
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(heldout), 0xC11E)))
        arrival_s, prompt, output = self._stretch(rng, seed, requests, heldout)
        order = np.argsort(arrival_s, kind="stable")[:requests]
        arrival_s = arrival_s[order] - arrival_s[order[0]]
        drawn = Workload(arrival_s, prompt[order], output[order], draw_classes(self.shares, rng, requests), self.source)
        return drawn.rescaled(self.rate_rps or self.pool_rate_rps) if np.isfinite(drawn.rate_rps) else drawn

    def rescaled(self, rate_rps: float | None) -> ClientPool:
        """The same traffic at another mean rate.

        Args:
            rate_rps: wanted mean rate [requests/s]; None leaves it as it is.

        Returns:
            A source of that rate.

        Raises:
            ValueError: a rate that is not positive and finite.
        """
        if rate_rps is None:
            return self
        if not (math.isfinite(rate_rps) and rate_rps > 0):
            raise ValueError(f"rate must be positive and finite, got {rate_rps:g}; write for example --rate 12/s")
        return dataclasses.replace(self, rate_rps=rate_rps)

    def check(self) -> None:
        """Refuse what cannot be drawn from.

        Raises:
            ValueError: no client, clients of different windows, fewer than three windows with requests, or one third of
                them silent.
        """
        windows = {len(client.rate_rps) for client in self.clients}
        if len(windows) != 1:
            raise ValueError(f"a pool needs clients of the same windows, got {sorted(windows) or 'no client'}")
        for heldout in (False, True):
            if not len(self._windows(heldout)):
                part = "last third" if heldout else "first two thirds"
                raise ValueError(f"{self.source}: no client sends a request in the {part} of the windows; a draw needs both parts")

    def _windows(self, heldout: bool) -> np.ndarray:
        """Windows of one part in which a request is sent."""
        total = np.sum([client.rate_rps for client in self.clients], axis=0)
        cut = len(total) - len(total) // 3
        sending = np.flatnonzero(total > 0)
        return sending[sending >= cut] if heldout else sending[sending < cut]

    def _stretch(self, rng: np.random.Generator, seed: int, requests: int, heldout: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """At least so many requests from one window on; after the last window of the part comes its first."""
        windows = self._windows(heldout)
        place, began = int((0.5 + seed * GOLDEN) % 1.0 * len(windows)), 0.0
        left_out_s, found, count = rng.random() * SETTLED * self.window_s, [], 0
        while count < requests:
            window = int(windows[place % len(windows)])
            for client in self.clients:
                arrival_s = _arrivals(rng, client, window, self.window_s)
                arrival_s = arrival_s[arrival_s >= left_out_s]
                prompt, output = _lengths(rng, client, window * self.window_s, len(arrival_s))
                found.append((began + arrival_s, prompt, output))
                count += len(arrival_s)
            place, began, left_out_s = place + 1, began + self.window_s, 0.0
        arrival_s, prompt, output = (np.concatenate(column) for column in zip(*found, strict=True))
        return arrival_s, prompt, output


def _arrivals(rng: np.random.Generator, client: Client, window: int, window_s: float) -> np.ndarray:
    """Times within a window, from its start, shape (n,) [s]."""
    rate, family, shape = client.rate_rps[window], client.family[window], client.shape[window]
    if family == SILENT or rate <= 0:
        return np.zeros(0)
    mean = shape if family == GAMMA else math.gamma(1 + 1 / shape)
    gaps, reached_s = [], 0.0
    while reached_s < window_s:
        many = int(rate * window_s * 0.5) + 8
        drawn = (rng.standard_gamma(shape, many) if family == GAMMA else rng.weibull(shape, many)) / (mean * rate)
        gaps.append(drawn)
        reached_s += float(drawn.sum())
    arrival_s = np.cumsum(np.concatenate(gaps))
    return arrival_s[arrival_s < window_s]


def _lengths(rng: np.random.Generator, client: Client, time_s: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths by the table that holds at a time; before the first, that one."""
    table = [one for one in client.lengths if one.start_s <= time_s][-1:] or [client.lengths[0]]
    prompt = table[0].prompt_tokens[np.searchsorted(table[0].prompt_share, rng.random(n), side="right")]
    return prompt, table[0].output_tokens[np.searchsorted(table[0].output_share, rng.random(n), side="right")]
