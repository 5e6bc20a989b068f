"""Workloads from what a load generator or an engine wrote of the requests it saw: when each was sent, and its lengths."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from headway.identification.clients.requests import STATUSES
from headway.identification.readers.errors import TraceError
from headway.identification.readers.request_rows import RequestRows, open_file
from headway.identification.readers.requests import RequestTable
from headway.identification.readers.requests_table import REQUEST_READERS, rows_of
from headway.models.arrivals import Poisson
from headway.models.recorded_lengths import RecordedLengths

FORM = "a benchmark's file of requests that does not say when each was sent"

IN_FLIGHT_SHARE = 0.5
"""Share of the sendings at which one number of requests was in flight, from which on the client is taken to have waited for answers."""


def claimed(path: str | Path) -> str | None:
    """Which reader of request stamps knows a file.

    Args:
        path: the file.

    Returns:
        A key of `REQUEST_READERS`; None for a folder, a file that is gone, or one that none claims.
    """
    if not os.path.isfile(path):
        return None
    opened = open_file(os.fspath(path))
    return next((name for name, reader in REQUEST_READERS.items() if reader.claims(opened)), None)


def read_client(path: str | Path, format: str = "auto") -> RequestTable:
    """The requests of a client's or an engine's file by the times at which they were sent.

    A request without its lengths cannot be replayed: failed ones, and most that were cancelled. Those are counted and said.

    Args:
        path: the file, as it was given.
        format: a key of `REQUEST_READERS`, or "auto".

    Returns:
        Its requests.

    Raises:
        TraceError: a file that cannot be read, holds no single request, or none whose sending and lengths are known.
    """
    name, rows = rows_of(os.fspath(path), format)
    if rows.clock == "per_request":
        raise TraceError(path, f"a rate beside {FORM}: write for example {name}:{Path(path).name}@8/s")
    frame = _columns(rows)
    frame = frame.with_columns(arrival_s=pl.when(pl.col("sent_s").is_null().all()).then("engine_arrival_s").otherwise("sent_s"))
    kept = frame.filter(pl.col("known") & pl.col("arrival_s").is_not_null())
    if not kept.height:
        raise TraceError(path, "at least one request whose sending, prompt and output tokens are written")
    notes = [*_said(frame, kept), *_runs(kept), *_waited(kept)]
    return RequestTable(kept["row"], kept["arrival_s"], kept["input_tokens"], kept["output_tokens"], None, notes)


def claims_lengths(path: Path) -> bool:
    """Whether a file holds single requests of a benchmark without the times at which they were sent.

    Args:
        path: as it was given.

    Returns:
        True for SGLang's details, and for results of `vllm bench serve` without start times.
    """
    if claimed(path) not in ("sglang_bench", "vllm_bench"):
        return False
    try:
        return rows_of(os.fspath(path), "auto")[1].clock == "per_request"
    except TraceError:  # averages only: the reader that is asked for requests says so
        return False


def read_lengths(path: Path, rate_rps: float | None, shares: Sequence[float]) -> tuple[RecordedLengths, list[str]]:
    """Requests of a benchmark's lengths, arriving as a Poisson process of the rate given.

    Args:
        path: the file.
        rate_rps: mean rate of arrivals; the file holds none [requests/s].
        shares: part of the requests in each class, shape (classes,).

    Returns:
        The source, and a sentence each on what was assumed or set aside.

    Raises:
        TraceError: no rate given, a file that cannot be read, or too few requests whose lengths are known.
    """
    name, rows = rows_of(os.fspath(path), "auto")
    if rate_rps is None:
        raise TraceError(path, f"a rate beside {FORM}: write for example {name}:{path.name}@8/s")
    frame = _columns(rows)
    kept = frame.filter("known")
    notes = [f"the file does not say when requests were sent: arrivals are drawn as a Poisson process of {rate_rps:g}/s"]
    pairs = (kept["input_tokens"].to_numpy(), kept["output_tokens"].to_numpy())
    source = RecordedLengths(Poisson(rate_rps), *pairs, tuple(shares), f"{path.name} at {rate_rps:g}/s")
    try:
        source.check()
    except ValueError as error:
        raise TraceError(path, f"{FORM} ({error})") from None
    return source, [*notes, *_said(frame, kept)]


def _columns(rows: RequestRows) -> pl.DataFrame:
    """What a workload needs, null where the file has none of it, and whether both lengths are known."""
    kinds = {"sent_s": pl.Float64, "engine_arrival_s": pl.Float64, "last_token_s": pl.Float64, "run": pl.String}
    kinds |= {"input_tokens": pl.Int64, "output_tokens": pl.Int64}
    frame = rows.frame.select(
        "status", *[(pl.col(name) if name in rows.frame.columns else pl.lit(None)).cast(kind).alias(name) for name, kind in kinds.items()]
    )
    return frame.with_row_index("row", offset=1).with_columns(
        pl.col("row").cast(pl.Int64), known=pl.col("input_tokens").is_not_null() & pl.col("output_tokens").is_not_null()
    )


def _said(frame: pl.DataFrame, kept: pl.DataFrame) -> list[str]:
    """Requests that did not end well, and those that cannot be replayed."""
    notes = []
    for status in STATUSES:
        n, stay = int((frame["status"] == status).sum()), int((kept["status"] == status).sum())
        if status != "ok" and n:
            replayed = f"{stay:,} of them replayed with the tokens they got" if stay else "none of them with its lengths"
            notes.append(f"{n:,} of {frame.height:,} requests were {status}, {replayed}")
    if frame.height > kept.height:
        notes.append(f"{frame.height - kept.height:,} of {frame.height:,} requests lack their sending, prompt or output tokens; set aside")
    return notes


def _runs(kept: pl.DataFrame) -> list[str]:
    """A word on files of several runs, whose pauses would be replayed with them."""
    runs = kept["run"].drop_nulls().n_unique()
    return [f"the file holds {runs} runs, replayed at the times they were made, pauses between them too"] if runs > 1 else []


def _waited(kept: pl.DataFrame) -> list[str]:
    """A word on clients that waited for answers: their arrivals are the recorded engine's doing as well."""
    known = kept.filter(pl.col("last_token_s").is_not_null()).sort("arrival_s")
    sent_s, ended_s = known["arrival_s"].to_numpy(), np.sort(known["last_token_s"].to_numpy())
    if len(sent_s) < 20:
        return []
    flying = np.arange(1, len(sent_s) + 1) - np.searchsorted(ended_s, sent_s, side="right")
    most = int(np.bincount(np.maximum(flying, 0)).argmax())
    share = float((flying == most).mean())
    if most < 2 or share < IN_FLIGHT_SHARE:
        return []
    found = f"at {share:.0%} of the sendings exactly {most} requests were in flight: the client waited for answers"
    return [f"{found}. They are replayed as recorded; closed:clients={most},... waits for the engine at hand"]
