"""Read traces: open each file, tell its format, hand it to its reader, and join what they held into one trace."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

from headway.identification.readers.columns import Opened, Table
from headway.identification.readers.detect import TraceReader, format_of
from headway.identification.readers.engine_config import engine_limits
from headway.identification.readers.errors import TraceError
from headway.identification.readers.fpm import FORM_CSV, FORM_JSONL, claims_csv, claims_jsonl, read_csv, read_jsonl
from headway.identification.readers.steps import FORM_SCHEDULER, FORM_STEPS, claims_scheduler, claims_steps, read_scheduler, read_steps
from headway.identification.trace import COLUMNS, Source, Trace

TRACE_READERS: dict[str, TraceReader] = {
    "fpm_csv": TraceReader(FORM_CSV, claims_csv, read_csv),
    "fpm_jsonl": TraceReader(FORM_JSONL, claims_jsonl, read_jsonl),
    "scheduler": TraceReader(FORM_SCHEDULER, claims_scheduler, read_scheduler),
    "steps": TraceReader(FORM_STEPS, claims_steps, read_steps),
}
"""Trace formats by name: one row, one reader, told by content; the first that claims a file gets it."""


def read_trace(paths: str | Path | Sequence[str | Path], format: str = "auto") -> Trace:
    """Read one or several files into one trace.

    Args:
        paths: a file, or several; each keeps its own streams of steps.
        format: a key of `TRACE_READERS`, or "auto" to tell by content.

    Returns:
        The trace, with the limits of the engine where its configuration lies beside a file.

    Raises:
        ValueError: no file, or an unknown format.
        TraceError: a file that cannot be read; the message names file, row, column, value and what was expected.
    """
    files = [os.fspath(p) for p in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    if not files:
        raise ValueError("read_trace needs at least one file")
    if len(set(files)) < len(files):
        raise ValueError(f"the same file was given twice: {next(f for f in files if files.count(f) > 1)}")
    tables, sources = [], []
    for file in files:
        found = _open(file)
        name = format_of(found, TRACE_READERS, format)
        tables.append(TRACE_READERS[name].read(found))
        with open(file, "rb") as stream:
            sources.append(Source(file, hashlib.file_digest(stream, "sha256").hexdigest(), name))
    frame = pl.concat(_with_streams(files, tables), how="diagonal_relaxed")
    engine, said = engine_limits(files, frame)
    warnings = [*(w for table in tables for w in table.warnings), *said, *_repeated(frame)]
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


def _repeated(frame: pl.DataFrame) -> list[str]:
    """A step number that comes twice means that two engines share a stream, as under an empty worker id."""
    twice = frame.group_by("source", "step", maintain_order=True).len().filter(pl.col("len") > 1)
    if not twice.height:
        return []
    name, step = twice["source"][0], twice["step"][0]
    return [f"{twice.height} step numbers come more than once in stream {name} (first: {step}); it may mix several workers"]
