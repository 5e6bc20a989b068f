"""Read traces: open each file, tell its format, hand it to its reader, and join what they held into one trace."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import polars as pl

import headway.identification.readers.aggregates as aggregates
import headway.identification.readers.bench_forward as bench_forward
import headway.identification.readers.client_traces as client_traces
import headway.identification.readers.dynamo_planner as dynamo_planner
import headway.identification.readers.fpm as fpm
import headway.identification.readers.fpm_records as fpm_records
import headway.identification.readers.llmservingsim as llmservingsim
import headway.identification.readers.sglang as sglang
import headway.identification.readers.silicon as silicon
import headway.identification.readers.splitwise as splitwise
import headway.identification.readers.steps as steps
import headway.identification.readers.trtllm_iterations as trtllm_iterations
import headway.identification.readers.trtllm_stats as trtllm_stats
import headway.identification.readers.vidur as vidur
import headway.identification.readers.vllm_adapter as vllm_adapter
import headway.identification.readers.vllm_iterations as vllm_iterations
import headway.identification.readers.vllm_stats as vllm_stats
from headway.identification.readers.columns import Opened, Table
from headway.identification.readers.detect import TraceReader, format_of
from headway.identification.readers.engine_config import engine_limits
from headway.identification.readers.errors import TraceError
from headway.identification.readers.thinning import MOST_ROWS, take
from headway.identification.trace import BLOCK_ROWS, COLUMNS, Source, Trace

TRACE_READERS: dict[str, TraceReader] = {
    "fpm_csv": TraceReader(fpm.FORM_CSV, fpm.claims_csv, fpm.read_csv, ("counter_id", *fpm.SUMS, "latency_ms")),
    "fpm_jsonl": TraceReader(fpm.FORM_JSONL, fpm.claims_jsonl, fpm.read_jsonl, keys=("wall_time", "counter_id", "scheduled")),
    "fpm_trace": TraceReader(fpm_records.FORM_TRACE, fpm_records.claims_trace, fpm_records.read_trace_records),
    "fpm_msgpack": TraceReader(fpm_records.FORM_MSGPACK, fpm_records.claims_msgpack, fpm_records.read_msgpack),
    "bench_forward": TraceReader(bench_forward.FORM, bench_forward.claims, bench_forward.read),
    "vllm_adapter": TraceReader(vllm_adapter.FORM, vllm_adapter.claims, vllm_adapter.read),
    "vllm_adapter_cpu": TraceReader(vllm_adapter.FORM_CPU, vllm_adapter.claims_cpu, vllm_adapter.read_cpu),
    "vllm_stats": TraceReader(vllm_stats.FORM, vllm_stats.claims, vllm_stats.read, keys=("t", "it", "running", "waiting")),
    "trtllm_stats": TraceReader(trtllm_stats.FORM, trtllm_stats.claims, trtllm_stats.read),
    "scheduler": TraceReader(steps.FORM_SCHEDULER, steps.claims_scheduler, steps.read_scheduler, ("step", *steps.CLOCK, *steps.SUMS)),
    "llmservingsim": TraceReader(llmservingsim.FORM, llmservingsim.claims, llmservingsim.read, (*llmservingsim.GRID, "time_us")),
    "vidur": TraceReader(vidur.FORM, vidur.claims, vidur.read),
    "splitwise": TraceReader(splitwise.FORM, splitwise.claims, splitwise.read, (*splitwise.NAMES, *splitwise.SIZES, *splitwise.TIMES)),
    "silicon": TraceReader(silicon.FORM, silicon.claims, silicon.read, silicon.NEEDED),
    "dynamo_decode": TraceReader(
        dynamo_planner.FORM_DECODE, dynamo_planner.claims_decode, dynamo_planner.read_decode, dynamo_planner.DECODE
    ),
    "dynamo_prefill": TraceReader(
        dynamo_planner.FORM_PREFILL, dynamo_planner.claims_prefill, dynamo_planner.read_prefill, dynamo_planner.PREFILL
    ),
    "client_stamps": TraceReader(client_traces.FORM, client_traces.claims, client_traces.read),
    "client_aggregates": TraceReader(aggregates.FORM, aggregates.claims, aggregates.read),
    "steps": TraceReader(steps.FORM_STEPS, steps.claims_steps, steps.read_steps, steps.STEP_COLUMNS),
    # Logs come last: their claims look through the whole file.
    "vllm_iterations": TraceReader(vllm_iterations.FORM, vllm_iterations.claims, vllm_iterations.read),
    "trtllm_iterations": TraceReader(trtllm_iterations.FORM, trtllm_iterations.claims, trtllm_iterations.read),
    "sglang": TraceReader(sglang.FORM, sglang.claims, sglang.read),
}
"""Trace formats by name: one row, one reader, told by content; the first that claims a file gets it."""


def read_trace(
    paths: str | Path | Sequence[str | Path], format: str = "auto", progress: Callable[[str, float], None] | None = None
) -> Trace:
    """Read one or several files into one trace. Of more than `MOST_ROWS` rows whole blocks are taken, and it is said.

    Args:
        paths: a file, or several; each keeps its own streams of steps.
        format: a key of `TRACE_READERS`, or "auto" to tell by content.
        progress: called with a label and the share read.

    Returns:
        The trace, with the limits of the engine where its configuration lies beside a file.

    Raises:
        ValueError: no file, or an unknown format.
        TraceError: a file that cannot be read; the message names file, row, column, value and what was expected.
    """
    files = [llmservingsim.table_of(os.fspath(p)) for p in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not files:
        raise ValueError("read_trace needs at least one file")
    if len(set(files)) < len(files):
        raise ValueError(f"the same file was given twice: {next(f for f in files if files.count(f) > 1)}")
    tables, sources = [], []
    bytes_of = [os.path.getsize(file) if os.path.isfile(file) else 0 for file in files]
    for number, file in enumerate(files):
        # a file's part of the rows that fit is its part of the bytes: rows are counted only by reading them
        part, before = bytes_of[number] / max(sum(bytes_of), 1), sum(bytes_of[:number]) / max(sum(bytes_of), 1)
        found = _open(file)
        found.most_rows = max(int(MOST_ROWS * part), BLOCK_ROWS)
        if progress:
            found.progress = functools.partial(_say, progress, before, part)
        name = format_of(found, TRACE_READERS, format)
        tables.append(_bounded(TRACE_READERS[name].read(found), found.most_rows))
        with open(file, "rb") as stream:
            sources.append(Source(file, hashlib.file_digest(stream, "sha256").hexdigest(), name))
    frame = pl.concat(_with_streams(files, tables), how="diagonal_relaxed")
    engine, said = engine_limits(files, frame)
    warnings = [*(w for table in tables for w in table.warnings), *said, *_repeated(frame), *_copied(sources)]
    aside: dict[str, int] = {}
    for table in tables:
        for reason, rows in table.aside.items():
            if rows:
                aside[reason] = aside.get(reason, 0) + rows
    if cut := aside.get("unreadable", 0):
        warnings.append(f"{cut} row{'s' * (cut > 1)} cut off at the end of a file, set aside as unreadable")
    for table in tables:
        engine = {**table.engine, **engine}
    missing = [name for name in COLUMNS if any(name in table.missing for table in tables)]
    clock = "device" if any(table.clock == "device" for table in tables) else "wall"
    return Trace.of(frame, sources=sources, engine=engine, aside=aside, warnings=warnings, missing=missing, clock=clock)


def _say(progress: Callable[[str, float], None], before: float, part: float, share: float) -> None:
    progress("reading", before + part * share)


def _bounded(table: Table, most: int) -> Table:
    """What a reader that holds the whole file hands on, thinned as the others thin while they read."""
    if table.frame.height <= most or "dropped_to_fit" in table.aside:
        return table
    taken = take([table.frame], most)
    return table._replace(frame=taken.frame, aside={**table.aside, **taken.aside}, warnings=(*table.warnings, *taken.said))


def _open(file: str) -> Opened:
    try:
        return Opened(file)
    except IsADirectoryError:
        raise TraceError(file, "a file, not a folder") from None
    except FileNotFoundError:
        raise TraceError(file, "a file, but there is none of this name") from None
    except OSError as error:
        raise TraceError(file, f"a file that can be read: {error.strerror}") from None


def _with_streams(files: Iterable[str], tables: Iterable[Table]) -> Iterable[pl.DataFrame]:
    """Name streams by file as well: two files never share one, even if they name their workers alike."""
    names = [Path(file).name for file in files]
    shown = names if len(set(names)) == len(names) else list(files)
    for name, table in zip(shown, tables, strict=True):
        if "source" in table.frame.columns:
            yield table.frame.with_columns(source=pl.lit(f"{name}:") + pl.col("source"))
        else:
            yield table.frame.with_columns(source=pl.lit(name))


def _copied(sources: Sequence[Source]) -> list[str]:
    """Two files of the same bytes: rows that are there twice look like evidence, and a left-out row is in its copy."""
    first: dict[str, str] = {}
    pairs = [(first.setdefault(source.sha256, source.file), source.file) for source in sources]
    return [
        f"{b} holds the same bytes as {a}: its rows count twice, so intervals are too narrow; give one of them" for a, b in pairs if a != b
    ]


def _repeated(frame: pl.DataFrame) -> list[str]:
    """A step number that comes twice means that two engines share a stream, as under an empty worker id."""
    twice = frame.group_by("source", "step", maintain_order=True).len().filter(pl.col("len") > 1)
    if not twice.height:
        return []
    name, step = twice["source"][0], twice["step"][0]
    come = "1 step number comes" if twice.height == 1 else f"{twice.height} step numbers come"
    return [f"{come} more than once in stream {name} (first: {step:.0f}); it may mix several workers"]
