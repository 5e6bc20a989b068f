"""What the way between client and engine takes of the promised times, and where the rest of a request's time goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from headway.identification.clients.clocks import RESOLUTION_S, ClockFit, fit_clock
from headway.identification.clients.pairs import Pairs, pair_requests
from headway.identification.clients.requests import RequestStamps
from headway.identification.clients.stamps import steps_from_stamps

PARTS = ("request path", "queue", "prefill", "decode", "host", "response path")
"""Where a request's time goes, in order: to the engine, waiting, computing, the engine's own rest, and back."""
ROUNDING_S = 1e-3
"""An engine that takes its times from two clocks may miss itself by so much; the rest of a request is then 0 [s]."""
FEWEST_PAIRS = 20
"""Requests stamped by both sides from which on their first and last tokens say how transport varies."""


class Rejected(NamedTuple):
    """A duration that cannot be.

    Args:
        request_id: as the client names it.
        what: which duration.
        value_s: below zero [s].
    """

    request_id: str
    what: str
    value_s: float


class Part(NamedTuple):
    """One part of the requests' time.

    Args:
        name: one of `PARTS`.
        share_e2e: of the time of all requests together; NaN where the engine did not write it.
        p50_s: [s].
        p99_s: [s].
    """

    name: str
    share_e2e: float
    p50_s: float
    p99_s: float


@dataclasses.dataclass(frozen=True)
class Transport:
    """Transport between clients and an engine.

    e2e = request path + queue + prefill + decode + host + response path

    Args:
        clock: the client's clock against the engine's; None without an engine's stamps.
        matched_by: how requests were found in both files; "" without an engine's stamps.
        rows: requests by what became of them: client, engine, matched, used [requests].
        rejected: durations below zero after the clocks were laid over each other; their requests are in no figure below.
        frame: one row per used request: `request_id`, a column in seconds for each of `PARTS` (spaces as _, `_s` behind),
            `response_first_s` (of the first token), `ttft_transport_s` (both ways of the first token, free of the clocks'
            offset), `drawn_s` (response path of the last token less that of the first), shape (u,).
        split: the parts over all used requests.
        response_s: response path by quantile ("p50", "p90", "p99", "max") [s].
        request_s: request path by quantile [s].
        ttft_transport_s: what to take off a TTFT promise: both ways of the first token, at `quantile` [s]; NaN if unknown.
        itl_transport_s: what to take off an ITL promise: by how much the way stretches a gap between tokens, at `quantile`
            [s]; NaN if unknown. A constant way takes nothing off a gap.
        itl_from: what told it.
        quantile: of both.
        itl_s: promise, where one was given [s].
        ttft_s: promise, where one was given [s].
        warnings: what there is to say, one sentence each.
    """

    clock: ClockFit | None
    matched_by: str
    rows: Mapping[str, int]
    rejected: tuple[Rejected, ...]
    frame: pl.DataFrame
    split: tuple[Part, ...]
    response_s: Mapping[str, float]
    request_s: Mapping[str, float]
    ttft_transport_s: float
    itl_transport_s: float
    itl_from: str
    quantile: float
    itl_s: float | None = None
    ttft_s: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def budget_s(self) -> float | None:
        """Longest step that keeps the ITL promise [s]: `itl_s - itl_transport_s`; None without a promise or a figure."""
        return None if self.itl_s is None or np.isnan(self.itl_transport_s) else self.itl_s - self.itl_transport_s

    @property
    def first_token_s(self) -> float | None:
        """Longest time to first token at the engine [s]: `ttft_s - ttft_transport_s`; None without a promise or a figure."""
        return None if self.ttft_s is None or np.isnan(self.ttft_transport_s) else self.ttft_s - self.ttft_transport_s


def transport(
    client: RequestStamps,
    engine: RequestStamps | None = None,
    *,
    itl_s: float | None = None,
    ttft_s: float | None = None,
    rtt_s: float | None = None,
    assume: str = "auto",
    quantile: float = 0.99,
) -> Transport:
    """Split requests' times between the engine and the way to it.

    Args:
        client: what clients saw; it may carry an engine's stamps of the same requests itself.
        engine: what the engine saw; None takes the client's own, if it has some.
        itl_s: promised gap between tokens [s].
        ttft_s: promised time to first token [s].
        rtt_s: round trip of the network, where known [s].
        assume: what decides the clocks' offset within its bounds, as for `fit_clock`.
        quantile: of transport to take off the promises, in (0, 1).

    Returns:
        The split. Without an engine's stamps only the variation between tokens of one step is known, if tokens are stamped.

    Raises:
        ValueError: stamps that share no request or no event, a promise that transport alone uses up, or a quantile that is none.
    """
    if not 0 < quantile < 1:
        raise ValueError(f"quantile must be in (0, 1), got {quantile}; write 0.99 for the slowest of a hundred")
    ours, theirs, by = _sides(client, engine)
    base = {"quantile": quantile, "itl_s": itl_s, "ttft_s": ttft_s, "matched_by": by}
    warnings = [*client.warnings, *(engine.warnings if engine else ())]
    jitter, from_tokens = _token_jitter(client, quantile)
    if theirs is None:
        rows = {"client": len(client), "engine": 0, "matched": 0, "used": 0}
        empty = {"rejected": (), "frame": pl.DataFrame(), "split": (), "response_s": {}, "request_s": {}}
        warnings.append("no engine's stamps: how long the way takes is unknown, only how it varies among tokens of one step")
        made = Transport(None, rows=rows, ttft_transport_s=np.nan, itl_transport_s=jitter, itl_from=from_tokens, **base, **empty)
        return _checked(dataclasses.replace(made, warnings=tuple(warnings)))
    clock = _clock(ours, theirs, rtt_s, assume)
    frame, rejected = _durations(ours, theirs, clock)
    rows = {"client": len(client), "engine": len(engine or client), "matched": ours.height, "used": frame.height}
    if frame.height == 0:
        raise ValueError("every request has a duration below zero after the clocks were laid over each other; is it the same run?")
    drawn, from_pairs = _drawn(frame, quantile)
    itl, told = max((drawn, from_pairs), (jitter, from_tokens), key=lambda pair: -1.0 if np.isnan(pair[0]) else pair[0])
    response, request = (_quantiles(frame[name].to_numpy()) for name in ("response_path_s", "request_path_s"))
    ttft = frame["ttft_transport_s"].drop_nulls().drop_nans().to_numpy()
    made = Transport(
        clock,
        rows=rows,
        rejected=rejected,
        frame=frame,
        split=_split(frame),
        response_s=response,
        request_s=request,
        ttft_transport_s=float(np.quantile(ttft, quantile)) if len(ttft) else np.nan,
        itl_transport_s=itl,
        itl_from=told,
        warnings=tuple(warnings),
        **base,
    )
    return _checked(made)


def _checked(made: Transport) -> Transport:
    for name, left in (("itl_s", made.budget_s), ("ttft_s", made.first_token_s)):
        if left is not None and left <= 0:
            taken = made.itl_transport_s if name == "itl_s" else made.ttft_transport_s
            raise ValueError(
                f"{name} of {getattr(made, name):g} s is less than what transport takes of it, {taken:.3g} s: no engine can keep it"
            )
    return made


def _sides(client: RequestStamps, engine: RequestStamps | None) -> tuple[pl.DataFrame, pl.DataFrame | None, str]:
    """The same requests on both sides, row by row; None for the engine's side where there is none."""
    stamped = pl.col("engine_arrival_s").is_not_null() | pl.col("engine_first_token_s").is_not_null()
    if client.frame["sent_s"].null_count() == len(client):
        raise ValueError(
            "the first file holds no client's stamps (no sending, no receipt); give the client's file first, then the engine's"
        )
    if engine is None:
        own = client.frame.filter(stamped)
        return (own, own, "one file") if own.height else (client.frame, None, "")
    if client.clock == "per_request":
        raise ValueError("the client's file does not say when requests were sent: its stamps share no clock with an engine's")
    theirs = engine.frame.filter(stamped)
    if theirs.height == 0:
        raise ValueError("the second file holds no engine's stamps of requests; give OpenTelemetry spans or requests with queued_ts there")
    ours = client.frame.filter(pl.col("sent_s").is_not_null())
    pairs: Pairs = pair_requests(ours, theirs)
    return ours[pairs.client], theirs[pairs.engine], pairs.by


def _clock(ours: pl.DataFrame, theirs: pl.DataFrame, rtt_s: float | None, assume: str) -> ClockFit:
    """The clocks, from sending, first token and last token."""
    of = lambda frame, name: frame[name].cast(pl.Float64).to_numpy()  # noqa: E731
    ways = []
    for events in ((("engine_arrival_s", "sent_s"),), (("engine_first_token_s", "first_token_s"), ("engine_last_token_s", "last_token_s"))):
        at = np.concatenate([of(theirs, here) for here, _ in events])
        value = np.concatenate([of(ours, there) - of(theirs, here) for here, there in events])
        known = np.isfinite(value)
        ways.append((at[known], value[known]))
    return fit_clock(ways[0], ways[1], rtt_s=rtt_s, assume=assume)


def _durations(ours: pl.DataFrame, theirs: pl.DataFrame, clock: ClockFit) -> tuple[pl.DataFrame, tuple[Rejected, ...]]:
    """The parts of each request, and those durations that are below zero."""
    of = lambda frame, name: frame[name].cast(pl.Float64).to_numpy()  # noqa: E731
    arrival, first, last = (of(theirs, f"engine_{name}_s") for name in ("arrival", "first_token", "last_token"))
    queue, prefill, decode = (of(theirs, name) for name in ("queue_s", "prefill_s", "decode_s"))
    request = arrival + clock.offset_at(arrival) - of(ours, "sent_s")
    response = of(ours, "last_token_s") - last - clock.offset_at(last)
    begun = of(ours, "first_token_s") - first - clock.offset_at(first)
    host = last - arrival - queue - prefill - decode
    host = np.where((host < 0) & (host > -ROUNDING_S), 0.0, host)
    parts = dict(zip(PARTS, (request, queue, prefill, decode, host, response), strict=True))
    checked = {**parts, "response path of the first token": begun}
    names = ours["request_id"].to_list()
    rejected, bad = [], np.zeros(len(names), bool)
    for what, values in checked.items():
        below = values < -RESOLUTION_S
        rejected += [Rejected(names[k], what, float(values[k])) for k in np.flatnonzero(below)]
        bad |= below
    columns = {f"{name.replace(' ', '_')}_s": value for name, value in parts.items()}
    columns |= {"response_first_s": begun, "ttft_transport_s": request + begun, "drawn_s": response - begun}
    frame = pl.DataFrame({"request_id": names, **columns, "output_tokens": ours["output_tokens"]}).filter(pl.Series(~bad))
    return frame, tuple(rejected)


def _split(frame: pl.DataFrame) -> tuple[Part, ...]:
    """Each part's share of the requests' whole time, and its quantiles, over requests of which every part is known."""
    columns = {name: frame[f"{name.replace(' ', '_')}_s"].to_numpy() for name in PARTS}
    written = {name: value for name, value in columns.items() if np.isfinite(value).any()}
    whole = np.all([np.isfinite(value) for value in written.values()], axis=0)
    total = float(sum(np.sum(value[whole]) for value in written.values()))
    parts = []
    for name, value in columns.items():
        known = value[whole] if name in written else np.zeros(0)
        if len(known):
            parts.append(
                Part(name, float(known.sum()) / total if total > 0 else np.nan, *(float(q) for q in np.quantile(known, [0.5, 0.99])))
            )
        else:
            parts.append(Part(name, np.nan, np.nan, np.nan))
    return tuple(parts)


def _drawn(frame: pl.DataFrame, quantile: float) -> tuple[float, str]:
    """By how much the way differs between two tokens of a request, either of which may come first [s]."""
    several = (frame["output_tokens"] > 1).fill_null(False).to_numpy()
    drawn = frame["drawn_s"].to_numpy()[several]
    drawn = drawn[np.isfinite(drawn)]
    if len(drawn) < FEWEST_PAIRS:
        return np.nan, "too few requests with two tokens stamped by both sides"
    return float(np.quantile(np.concatenate([drawn, -drawn]), quantile)), f"first against last token of {len(drawn):,} requests"


def _token_jitter(client: RequestStamps, quantile: float) -> tuple[float, str]:
    """By how much the way stretches gaps, from the tokens of one step that reach their clients apart [s]."""
    try:
        jitter = steps_from_stamps(client).gap_jitter_s
    except ValueError as error:
        return np.nan, str(error)
    if len(jitter) < FEWEST_PAIRS:
        return np.nan, "too few steps with two requests"
    return float(np.quantile(jitter, quantile)), f"{len(jitter):,} gaps between tokens, against the first arrivals of their steps"


def _quantiles(values: np.ndarray) -> dict[str, float]:
    known = values[np.isfinite(values)]
    if not len(known):
        return {}
    return dict(zip(("p50", "p90", "p99", "max"), (float(q) for q in np.quantile(known, [0.5, 0.9, 0.99, 1.0])), strict=True))
