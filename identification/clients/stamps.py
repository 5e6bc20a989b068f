"""Steps of the engine from what its clients saw: one step emits a token for every running request, at about one instant."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from headway.identification.clients.requests import RequestStamps

APART = 0.35
"""Share of a request's short gaps between tokens (one in four is shorter): arrivals further apart belong to two steps."""
LATE = 0.5
"""Share of the gap to its next token by which a request's token may trail those of its step and still be taken as one of them."""
FEWEST_TOKEN_STAMPED = 0.5
"""Share of answered requests that must have a stamp per token; below it too little is seen of single steps."""
MOST_MERGED = 0.25
"""Share of instants at which a request may have two tokens or more; above it steps cannot be told apart."""
BLURRED = 0.1
"""Median spread of a step's arrivals over the median step from which on it is said that instants are blurred."""


@dataclasses.dataclass(frozen=True)
class StampedSteps:
    """Steps recovered from clients' stamps.

    Args:
        frame: one row per step, the columns of `headway.identification.trace.COLUMNS` without `step`'s gaps closed, then
            `start_s` and `queued_requests` (sent, and no token yet: waiting or in prefill), shape (k,).
        aside: intervals that are no single step, by reason, a key of `headway.identification.trace.READ_ASIDE` [rows].
        warnings: what there is to say, one sentence each.
        spread_s: last arrival less first, of steps that emitted two tokens or more, shape (s,) [s].
        gap_jitter_s: by how much the way to the client stretched (or, negative, shrank) a gap between consecutive tokens,
            against the first arrivals of the two steps, shape (g,) [s].
    """

    frame: pl.DataFrame
    aside: Mapping[str, int]
    warnings: tuple[str, ...]
    spread_s: np.ndarray
    gap_jitter_s: np.ndarray


def steps_from_stamps(stamps: RequestStamps) -> StampedSteps:
    """Recover the steps of an engine from the arrivals of all its tokens.

    t_k = min over arrivals of step k,  step time = t_k - t_(k-1),  decode = tokens of step k that are no request's first,
    KV = sum over them of (input + tokens emitted before),  prefill = inputs of the requests whose first token it is

    Args:
        stamps: requests with a stamp per token. A request with chunks only counts as running between its first token and
            its last, and tells no instant but that of its first.

    Returns:
        The steps. An interval in which no request ran throughout holds idle time, one beside two tokens of one request
        that came at once cannot be cut into steps: both are set aside. Where an engine computes a prompt in several
        chunks, the steps before the last carry prompt tokens that no client sees: all are booked on the step of the first
        token. Steps that emit nothing are not seen.

    Raises:
        ValueError: no common clock, chunks of several tokens in most requests, or fewer than two steps.
    """
    if stamps.clock == "per_request":
        raise ValueError("the file does not say when each request was sent: its stamps share no clock, and no step can be told from them")
    answered = stamps.frame.filter(pl.col("token_s").list.len() > 0)
    bundled = int((answered["stamps"] == "chunk").sum())
    if answered.height == 0:
        raise ValueError("no request has stamps of its tokens (only of the first and the last): no step can be told from them")
    if bundled > (1 - FEWEST_TOKEN_STAMPED) * answered.height:
        raise ValueError(
            f"{bundled} of {answered.height} requests have chunks of several or unknown numbers of tokens: their gaps are no steps of the engine"
        )
    parts, warnings = [], []
    for key, run in stamps.frame.group_by("source", "run", maintain_order=True):
        if run["token_s"].list.len().fill_null(0).sum() > 1:
            parts.append(_Run(run, " ".join(str(k) for k in key if k)).steps())
    frame = pl.concat([part[0] for part in parts])
    if frame.height == 0:
        raise ValueError("fewer than two steps can be told from the stamps")
    aside: dict[str, int] = {}
    for part in parts:
        for reason, rows in part[1].items():
            aside[reason] = aside.get(reason, 0) + rows
    spread, jitter = (np.concatenate([part[k] for part in parts]) for k in (2, 3))
    warnings = _warnings(frame, aside, spread, bundled, answered.height)
    return StampedSteps(frame, aside, warnings, spread, jitter)


def _warnings(frame: pl.DataFrame, aside: Mapping[str, int], spread: np.ndarray, bundled: int, answered: int) -> tuple[str, ...]:
    """What a fit on such steps cannot know."""
    typical = float(np.median(frame["step_time_s"].to_numpy()))
    said = ["steps are recovered from clients' stamps: prompt tokens are booked on the step of a request's first token, however chunked"]
    if bundled:
        said.append(f"{bundled} of {answered} requests have bundled chunks: they count as running, and tell no instant")
    if merged := aside.get("merged_at_client", 0):
        said.append(
            f"{merged} intervals set aside beside tokens of one request that came at once: the client was late, or a step emits several"
        )
    if len(spread) and (blur := float(np.median(spread))) > BLURRED * typical:
        said.append(
            f"arrivals of one step lie {blur * 1e3:.2g} ms apart (median), against steps of {typical * 1e3:.3g} ms: single steps are blurred"
        )
    waiting = int((frame["queued_requests"] > 0).sum())
    if waiting:
        said.append(f"in {waiting} of {frame.height} steps a request was sent and had no token: prompt chunks computed there are not seen")
    return tuple(said)


class _Run:
    """The arrivals of one run, put together into steps."""

    def __init__(self, frame: pl.DataFrame, name: str) -> None:
        self.name = name
        self.frame = frame
        self.inputs = frame["input_tokens"].cast(pl.Float64).fill_null(0.0).to_numpy()
        rows = frame["token_s"].to_list()
        self.single = (frame["stamps"] == "token").fill_null(False).to_numpy()
        at, of, index, after = [], [], [], []
        for i, arrivals in enumerate(rows):
            told = (arrivals or []) if self.single[i] else (arrivals or [])[:1]
            for j, t in enumerate(told):
                at.append(t)
                of.append(i)
                index.append(j)
                after.append(told[j + 1] - t if j + 1 < len(told) else np.nan)
        order = np.argsort(np.asarray(at), kind="stable")
        self.at, self.of, self.index, self.after = (np.asarray(x)[order] for x in (at, of, index, after))

    def steps(self) -> tuple[pl.DataFrame, dict[str, int], np.ndarray, np.ndarray]:
        """The steps, what was set aside, the spread within steps and the jitter of gaps."""
        group = self._groups()
        count = int(group[-1]) + 1
        first = np.full(count, np.inf)
        np.minimum.at(first, group, self.at)
        last = np.full(count, -np.inf)
        np.maximum.at(last, group, self.at)
        several = np.bincount(group, minlength=count) > 1
        merged = self._merged(group, count)
        columns = self._columns(group, first)
        alive = columns.pop("alive")
        doubtful = merged[1:] | merged[:-1]
        keep = alive & ~doubtful
        if np.mean(merged) > MOST_MERGED:
            raise ValueError(
                f"in {np.sum(merged):,} of {count:,} instants a request has two tokens or more: the way to the client varies as much as "
                "a step takes, or a step emits several tokens; no single step can be told"
            )
        aside = {"merged_at_client": int(np.sum(alive & doubtful)), "averaged_over_idle": int(np.sum(~alive))}
        table = {"step": np.arange(1, count), "step_time_s": np.diff(first), "start_s": first[:-1], **columns}
        frame = pl.DataFrame(table).filter(pl.Series(keep))
        frame = frame.with_columns(source=pl.lit(self.name or "client"))
        return frame, aside, (last - first)[several & ~merged], self._jitter(group, first, several, merged)

    def _groups(self) -> np.ndarray:
        """Number of the step of each arrival."""
        gaps = self.after[np.isfinite(self.after)]
        if not len(gaps):
            raise ValueError("fewer than two steps can be told from the stamps")
        apart = APART * float(np.quantile(gaps, 0.25))
        cut = np.concatenate([[0], np.flatnonzero(np.diff(self.at) > apart) + 1, [len(self.at)]])
        group = np.zeros(len(self.at), int)
        number, start = 0, 0
        for a, b in itertools.pairwise(cut[1:]):
            if not self._trails(slice(start, a), slice(a, b)):
                number, start = number + 1, a
            group[a:b] = number
        return group

    def _trails(self, ahead: slice, behind: slice) -> bool:
        """Whether the later arrivals are the late part of the same step: other requests, all running, well before the next."""
        if not (np.all(self.index[behind] > 0) and np.any(self.index[ahead] > 0)):
            return False
        if set(self.of[ahead]) & set(self.of[behind]):
            return False
        after = self.after[ahead]
        after = after[np.isfinite(after)]
        return len(after) > 0 and bool(self.at[behind.start] - self.at[ahead.start] < LATE * float(np.median(after)))

    def _merged(self, group: np.ndarray, count: int) -> np.ndarray:
        """Steps in which a request has two tokens or more."""
        pair = group.astype(np.int64) * len(self.inputs) + self.of
        number, times = np.unique(pair, return_counts=True)
        merged = np.zeros(count, bool)
        merged[number[times > 1] // len(self.inputs)] = True
        return merged

    def _columns(self, group: np.ndarray, first: np.ndarray) -> dict[str, Any]:
        """What each step computed, from its own arrivals and from the requests known to run through it."""
        count, tokens = len(first), self.inputs[self.of]
        add = lambda weights: np.bincount(group, weights=weights, minlength=count)  # noqa: E731
        new = (self.index == 0).astype(float)
        decode, kv = add(1 - new), add((1 - new) * (tokens + self.index))
        begun = np.asarray(self.frame["first_token_s"].fill_null(np.inf).to_numpy(), float)
        ended = np.asarray(self.frame["last_token_s"].fill_null(-np.inf).to_numpy(), float)
        outputs = self.frame["output_tokens"].cast(pl.Float64).fill_null(1.0).to_numpy()
        alive = np.zeros(count - 1, bool)
        for i in np.flatnonzero(np.isfinite(begun) & np.isfinite(ended)):
            mine = group[self.of == i]
            start = int(mine[0]) if len(mine) else int(np.searchsorted(first, begun[i], "right")) - 1
            stop = int(mine[-1]) if self.single[i] and len(mine) else int(np.searchsorted(first, ended[i], "right")) - 1
            alive[start:stop] = True
            if not self.single[i] and stop > start:
                share = (first[start + 1 : stop + 1] - begun[i]) / max(ended[i] - begun[i], 1e-9)
                decode[start + 1 : stop + 1] += 1
                kv[start + 1 : stop + 1] += self.inputs[i] + np.round(share * (outputs[i] - 1))
        # a request that never had a token is left out: nothing says how long the engine kept it
        seen = np.isfinite(begun) & self.frame["sent_s"].is_not_null().to_numpy()
        sent = np.sort(self.frame["sent_s"].to_numpy()[seen])
        waiting = np.searchsorted(sent, first[:-1], "right") - np.searchsorted(np.sort(begun[seen]), first[1:], "right")
        queued = np.maximum(waiting - add(new)[1:], 0.0)
        columns = {"decode_requests": decode, "decode_kv_tokens": kv, "prefill_tokens": add(new * tokens)}
        columns |= {"prefill_pairs": add(new * tokens**2 / 2), "prefill_requests": add(new)}
        return {**{name: value[1:] for name, value in columns.items()}, "queued_requests": queued, "alive": alive}

    def _jitter(self, group: np.ndarray, first: np.ndarray, several: np.ndarray, merged: np.ndarray) -> np.ndarray:
        """Lateness behind its step, less that of the token before, of tokens whose steps emitted others too."""
        late = np.where(several[group] & ~merged[group], self.at - first[group], np.nan)
        order = np.lexsort((self.index, self.of))
        same = (np.diff(self.of[order]) == 0) & (np.diff(group[order]) == 1)
        jitter = np.diff(late[order])[same]
        return jitter[np.isfinite(jitter)]
