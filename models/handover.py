"""Requests that come to an engine with their prompt computed elsewhere and their first token sent: what a decode pool serves."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.models.outcome import Outcome
from headway.models.state import COMING, State


class Handed(NamedTuple):
    """What became of the first tokens of requests, and when their caches are where they go on. Shapes (n,).

    Args:
        comes_s: when the whole cache has arrived [s].
        ttft_s: time to first token [s].
        last_s: when that token was sent [s].
        on_time: 1 if it was on time [tokens].
        token_late: 1 if it was later than its own deadline [tokens].
        degraded: whether the request was given degraded targets, bool.
        degraded_on_time: 1 if the token was on time by those [tokens].
    """

    comes_s: np.ndarray
    ttft_s: np.ndarray
    last_s: np.ndarray
    on_time: np.ndarray
    token_late: np.ndarray
    degraded: np.ndarray
    degraded_on_time: np.ndarray


def handed(first: Outcome, rows: np.ndarray, comes_s: np.ndarray) -> Handed:
    """What a run that ended with first tokens hands on.

    Args:
        first: of that run; each of the rows emitted one token.
        rows: of the requests that go on, shape (n,), int64.
        comes_s: when their caches have arrived, shape (n,) [s].

    Returns:
        Handed.
    """
    zero = np.zeros(len(first.status))
    late = zero if first.token_late is None else first.token_late
    degraded = zero > 0 if first.degraded is None else first.degraded
    degraded_on = zero if first.degraded_on_time is None else first.degraded_on_time
    columns = (first.ttft_s, first.last_s, first.on_time, late, degraded, degraded_on)
    return Handed(comes_s, *(column[rows] for column in columns))


def take_over(s: State, given: Handed) -> None:
    """Let all requests of a fresh engine come with their prompt computed and one token out.

    They keep their client's arrival, by which deadlines and streams go, and come when their cache has arrived: by the same heap as
    requests that wait for another's end. On admission they need blocks for their whole context and decode in that step.

    Args:
        s: state before the first arrival, of requests without prefixes or predecessors, changed in place.
        given: one row per request.
    """
    req, n = s.req, len(s.req)
    req["computed"], req["emitted"] = req["goal"], 1.0
    req["ttft_s"], req["last_s"] = given.ttft_s, given.last_s
    req["met"], req["on_time"], req["owed"] = given.on_time, given.on_time, 1.0
    req["after_deadline"] = given.token_late
    req["degraded"] = np.where(given.degraded, np.where(given.degraded_on_time > 0, 2, 1), 0)
    req["degraded_on"] = given.degraded_on_time
    req["after"] = np.arange(n)  # no open arrival: the heap says when it comes
    order = np.argsort(given.comes_s, kind="stable")
    s.ids[COMING, :n], s.keys[COMING, :n] = order, given.comes_s[order]
    s.books["n_coming"] = n
