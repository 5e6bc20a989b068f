"""The trace of a run folder: a long one, as Headway itself writes it, is read for its sums alone; any other is read as a stranger's file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from headway.identification.readers import read_trace
from headway.identification.readers.columns import MOST
from headway.identification.readers.thinning import MOST_ROWS
from headway.identification.trace import COLUMNS, Trace
from headway.report.recorded import MOST_JUDGED

TIMED_ELSE = ("device_time_s", "period_s")
"""Columns by which durations are put on the wall clock: with one of them the reader has more to do."""
NUMBERS = tuple(name for name in COLUMNS if name not in ("step", "source"))


def trace_of_run(path: Path, where: Mapping[str, Any] | None = None) -> Trace:
    """The trace of a run, row for row what `read_trace` makes of it.

    Args:
        path: of trace.parquet.
        where: rows that its fit was asked to take, by any column; None for all.

    Returns:
        The trace; of a long one its columns alone, without hash and limits.

    Raises:
        ValueError: it cannot be read; the message names it.
    """
    found = None if where else _written(path)
    return read_trace(path) if found is None else found


def _written(path: Path) -> Trace | None:
    """A long trace that is as Headway writes it, in order, every number checked; None for any other."""
    try:
        scanned = pl.scan_parquet(path, glob=False)
        schema, rows = scanned.collect_schema(), scanned.select(pl.len()).collect().item()
        if not MOST_JUDGED < rows <= MOST_ROWS or {name: schema.get(name) for name in COLUMNS} != {n: t() for n, t in COLUMNS.items()}:
            return None
        if any(name in schema for name in TIMED_ELSE):
            return None
        frame = scanned.select(*COLUMNS).collect()
    except (pl.exceptions.PolarsError, OSError):
        return None
    whole = [pl.col(name).is_between(0.0, MOST).fill_null(False).all() for name in NUMBERS]
    source, step = pl.col("source"), pl.col("step")
    new = source != source.shift(1)
    checks = [*whole, (new | (step >= step.shift(1))).all(), source.is_not_null().all() & (new.sum() + 1 == source.n_unique())]
    found = frame.select(pl.all_horizontal(*checks).alias("good"), pl.all_horizontal(step.is_not_null().all()).alias("numbered"))
    return Trace(frame) if all(found.row(0)) else None
