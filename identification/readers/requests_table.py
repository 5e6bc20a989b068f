"""Read the stamps of requests: open each file, tell its format, hand it to its reader, and join what they held."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

import headway.identification.readers.aiperf as aiperf
import headway.identification.readers.engine_requests as engine_requests
import headway.identification.readers.guidellm as guidellm
import headway.identification.readers.otel as otel
import headway.identification.readers.sglang_bench as sglang_bench
import headway.identification.readers.vllm_bench as vllm_bench
from headway.identification.clients.requests import RequestStamps
from headway.identification.readers.columns import Opened
from headway.identification.readers.errors import TraceError
from headway.identification.readers.request_rows import RequestRows, open_file
from headway.identification.readers.unknown import Format, names_in, nearest, unknown
from headway.identification.trace import Source


class RequestReader(NamedTuple):
    """One row of `REQUEST_READERS`.

    Args:
        says: the format in words.
        claims: whether a file's own content says that it is this format.
        read: the reader.
        keys: of its first JSON object, that it must have: they tell how near another file is to it.
    """

    says: str
    claims: Callable[[Opened], bool]
    read: Callable[[Opened], RequestRows]
    keys: tuple[str, ...] = ()


REQUEST_READERS: dict[str, RequestReader] = {
    "vllm_bench": RequestReader(
        vllm_bench.FORM, vllm_bench.claims, vllm_bench.read, ("num_prompts", "total_input_tokens", "request_throughput")
    ),
    "guidellm": RequestReader(guidellm.FORM, guidellm.claims, guidellm.read),
    "aiperf": RequestReader(aiperf.FORM, aiperf.claims, aiperf.read, ("metadata", "metrics")),
    "sglang_bench": RequestReader(
        sglang_bench.FORM, sglang_bench.claims, sglang_bench.read, ("backend", "request_rate", "random_input_len")
    ),
    "otel": RequestReader(otel.FORM, otel.claims, otel.read),
    "engine_requests": RequestReader(
        engine_requests.FORM, engine_requests.claims, engine_requests.read, ("request_id", "first_token_ts", "queued_ts")
    ),
}
"""Formats of request stamps by name: one row, one reader, told by content; the first that claims a file gets it."""

INSTEAD, LISTED = "give what a load generator or the engine wrote of single requests", 'docs/commands.md, "A trace",'
"""What to do with a file of no known format, and where the formats stand."""

REFUSED: tuple[tuple[str, str], ...] = (
    (
        r"\A\s*Metric,avg,min,max,|\A\s*\{\s*\"records\":\s*\{|\"input_config\"\s*:",
        "AIPerf's summary, which holds averages and quantiles and no single request; give the profile_export.jsonl beside it",
    ),
    (r"^# (HELP|TYPE) ", "Prometheus metrics, which count over all requests and hold no single one"),
    (
        r"ContextTokens|\binput_length\b|^arrival_s,",
        "a workload: what was asked, not when it was answered; give it as --workload of another command",
    ),
    (r"step_time_s|latency_ms|exec_ms", "a trace of engine steps; headway fit reads it"),
)
"""Formats that hold no single request: a pattern of their content, and what to say."""


def read_requests(paths: str | Path | Sequence[str | Path], format: str = "auto") -> RequestStamps:
    """Read one or several files of request stamps.

    Args:
        paths: a file, or several of the same kind of clock.
        format: a key of `REQUEST_READERS`, or "auto" to tell by content.

    Returns:
        All their requests: cancelled and failed ones too.

    Raises:
        ValueError: no file, or an unknown format.
        TraceError: a file that cannot be read, or holds no single request; the message says which format was found and
            what it lacks.
    """
    files = [os.fspath(p) for p in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not files:
        raise ValueError("read_requests needs at least one file")
    if len(set(files)) < len(files):
        raise ValueError(f"the same file was given twice: {next(f for f in files if files.count(f) > 1)}")
    read = [(file, *rows_of(file, format)) for file in files]
    clocks = {rows.clock for _, _, rows in read}
    if len(clocks) > 1:
        raise ValueError(f"files with different clocks ({', '.join(sorted(clocks))}) cannot be joined; give them one by one")
    frames, sources, warnings, aside, formulas = [], [], [], {}, {}
    for file, name, rows in read:
        frames.append(rows.frame.with_columns(source=pl.lit(Path(file).name if len(files) > 1 else "")))
        with open(file, "rb") as stream:
            sources.append(Source(file, hashlib.file_digest(stream, "sha256").hexdigest(), name))
        warnings += rows.warnings
        formulas |= rows.formulas
        for reason, count in rows.aside.items():
            aside[reason] = aside.get(reason, 0) + count
    frame = pl.concat(frames, how="diagonal_relaxed")
    return RequestStamps.of(frame, clock=clocks.pop(), aside=_some(aside), warnings=warnings, formulas=formulas, sources=sources)


def _some(aside: Mapping[str, int]) -> dict[str, int]:
    return {reason: count for reason, count in aside.items() if count}


def rows_of(file: str, format: str) -> tuple[str, RequestRows]:
    """The requests of one file, as its reader gave them.

    Args:
        file: as it was given.
        format: a key of `REQUEST_READERS`, or "auto" to tell by content.

    Returns:
        (a key of `REQUEST_READERS`, the requests).

    Raises:
        ValueError: an unknown format.
        TraceError: a file that cannot be read, or holds no single request.
    """
    if format != "auto" and format not in REQUEST_READERS:
        raise ValueError(f"unknown format of request stamps {format!r}; this version reads auto, {', '.join(REQUEST_READERS)}")
    opened = open_file(file)
    if not opened.start.strip():
        raise TraceError(file, "stamps of requests, found an empty file")
    if format != "auto":
        return format, REQUEST_READERS[format].read(opened)
    for name, reader in REQUEST_READERS.items():
        if reader.claims(opened):
            return name, reader.read(opened)
    for pattern, says in REFUSED:
        if re.search(pattern, opened.text, re.MULTILINE):
            raise TraceError(file, f"stamps of requests; this looks like {says}")
    names = names_in(opened) if opened.first is not None else ()
    near = nearest(names, {name: Format(reader.says, reader.keys) for name, reader in REQUEST_READERS.items()})
    raise TraceError(file, unknown(opened, "stamps of requests", near, INSTEAD, LISTED))
