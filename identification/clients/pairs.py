"""Which request of a client's file is which request of an engine's: by name, else by lengths and the order of time."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

PREFIX, SUFFIX = re.compile(r"^(chat)?cmpl-"), re.compile(r"-\d{1,4}$")
"""What engines put before and after the name that a client knows: the kind of call, and the number of the choice."""
FAR_S = 2.0
"""Once the clocks are laid over each other, two stamps of one request are no further apart [s]."""
LEAST_NAMED = 0.5
"""Share of the smaller file that must be named alike for names to decide."""


class Pairs(NamedTuple):
    """Requests found in both files.

    Args:
        client: rows of the client's frame, shape (p,).
        engine: rows of the engine's frame, the same requests, shape (p,).
        by: how they were found, in words.
    """

    client: np.ndarray
    engine: np.ndarray
    by: str


def pair_requests(client: pl.DataFrame, engine: pl.DataFrame) -> Pairs:
    """Find the same requests in two files.

    Args:
        client: requests with `sent_s`, columns of `headway.identification.clients.requests.GIVEN`, shape (n,).
        engine: requests with `engine_arrival_s`, the same columns, shape (m,).

    Returns:
        The pairs; a request without a partner, or whose name is held twice, is in none.

    Raises:
        ValueError: neither names nor lengths tell any pair.
    """
    fewest = LEAST_NAMED * min(client.height, engine.height)
    for words, name in (("request id", lambda text: text), ("request id without the engine's own prefix and number", _bare)):
        rows = _same([name(i) for i in client["request_id"].to_list()], [name(i) for i in engine["request_id"].to_list()])
        if len(rows) and len(rows) >= fewest:
            return Pairs(rows[:, 0], rows[:, 1], words)
    for words, columns in (("lengths and order", ["input_tokens", "output_tokens"]), ("output lengths and order", ["output_tokens"])):
        rows = _by_lengths(client, engine, columns)
        if len(rows) and len(rows) >= fewest:
            return Pairs(rows[:, 0], rows[:, 1], words)
    raise ValueError("the two files share no request: neither names nor lengths in their order of time are the same")


def _bare(name: str) -> str:
    return SUFFIX.sub("", PREFIX.sub("", name))


def _same(ours: list[str], theirs: list[str]) -> np.ndarray:
    """Rows of equal names that each side holds once."""
    left, right = _once(ours), _once(theirs)
    return np.array([(k, right[name]) for name, k in left.items() if name in right], int).reshape(-1, 2)


def _once(names: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    twice: set[str] = {""}
    for k, name in enumerate(names):
        if name in found:
            twice.add(name)
        found[name] = k
    return {name: k for name, k in found.items() if name not in twice}


def _by_lengths(client: pl.DataFrame, engine: pl.DataFrame, columns: list[str]) -> np.ndarray:
    """Rows of equal lengths, one to one in the order of time, after the files are laid over each other."""
    sent, arrived = client["sent_s"].to_numpy(), engine["engine_arrival_s"].to_numpy()
    ours, theirs = (_keys(frame, columns, at) for frame, at in ((client, sent), (engine, arrived)))
    single = [(rows[0], theirs[key][0]) for key, rows in ours.items() if len(rows) == 1 and len(theirs.get(key, [])) == 1]
    if single:
        offset = float(np.median([sent[i] - arrived[j] for i, j in single]))
    else:
        left, right = (sorted(k for rows in keys.values() for k in rows) for keys in (ours, theirs))
        if not left or len(left) != len(right):
            return np.zeros((0, 2), int)
        offset = float(np.median(np.sort(sent[left]) - np.sort(arrived[right])))
    found = []
    for key, rows in ours.items():
        mine, other = sorted(rows, key=lambda k: sent[k]), sorted(theirs.get(key, []), key=lambda k: arrived[k])
        i = j = 0
        while i < len(mine) and j < len(other):
            apart = sent[mine[i]] - offset - arrived[other[j]]
            if abs(apart) <= FAR_S:
                found.append((mine[i], other[j]))
            i, j = i + (apart <= FAR_S), j + (apart >= -FAR_S)
    return np.array(found, int).reshape(-1, 2)


def _keys(frame: pl.DataFrame, columns: list[str], at: np.ndarray) -> dict[tuple[int, ...], list[int]]:
    """Rows by their lengths; a row without one, or without a stamp, is in none."""
    found: dict[tuple[int, ...], list[int]] = {}
    for k, lengths in enumerate(frame.select(columns).rows()):
        if None not in lengths and np.isfinite(at[k]):
            found.setdefault(lengths, []).append(k)
    return found
