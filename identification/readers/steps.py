"""Headway's own formats: the step table that `headway record` writes, and the trace of a scheduler plugin."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from headway.identification.readers.columns import Opened, Table, need_columns, numbers, pairs, requests, seconds, text_pieces, text_table
from headway.identification.readers.errors import TraceError
from headway.identification.readers.thinning import take
from headway.identification.readers.wall_clock import on_the_wall
from headway.identification.trace import COLUMNS

FORM_STEPS = "Headway's step table"
FORM_SCHEDULER = "a scheduler trace"

STEP_COLUMNS = tuple(name for name in COLUMNS if name != "source")
SUMS = ("n_prefill_reqs", "prefill_tokens", "prefill_ctx_tokens", "n_decode_reqs", "decode_ctx_tokens")
CLOCK = ("t_mono", "sched_us", "exec_ms")
KEPT = {"budget": "token_budget", "max_active": "running_limit", "chunk_cap": "chunk_tokens", "mode": "mode", "inflight": "inflight"}
PIECE_ROWS = 250_000
"""Rows of a Parquet file that are read at once [rows]."""
SWAPPED_SHARE = 0.5
"""Share of the steps that read the cache from which on too few tokens for their requests mean another column, not a slip."""
HOST_SHARE = 0.02
"""Share of the period outside the step time from which on it is said: below it no target would notice."""


def claims_steps(opened: Opened) -> bool:
    """Whether the file's own content says that it is a step table.

    Args:
        opened: the file; Parquet or CSV.

    Returns:
        True for any Parquet file, and for a header that names a duration of the step or most of the other columns.
    """
    header = opened.header
    timed = "step_time_s" in header or "device_time_s" in header
    return opened.start.startswith(b"PAR1") or timed or sum(n in header for n in STEP_COLUMNS) >= 4


def read_steps(opened: Opened) -> Table:
    """Read Headway's own step table.

    With `period_s`, from the start of a step to the start of the next one, beside `step_time_s` or `device_time_s`, the
    period is what is fitted: users wait for the host's gap as well. With `device_time_s` alone the clock is the device's.

    Args:
        opened: the file; Parquet or CSV.

    Returns:
        The trace's columns, and all others as they are.

    Raises:
        TraceError: a column missing, a cell that is no number or negative, no step, or two columns exchanged.
    """
    aside = {"unreadable": 0}
    parquet = opened.start.startswith(b"PAR1")
    taken = take(_from_parquet(opened) if parquet else _from_csv(opened, aside), opened.most_rows)
    frame = taken.frame
    others = [name for name in frame.columns if name not in COLUMNS and frame[name].dtype == pl.String]
    for name in others:
        values = frame[name].cast(pl.Float64, strict=False)
        if name not in ("worker_id", "dp_rank") and values.null_count() == frame[name].null_count():
            frame = frame.with_columns(values.alias(name))
    timed = on_the_wall(frame)
    # after the clock, which looks at the steps before and behind
    frame = _with_cache(timed.frame, opened.file, "decode_requests", "decode_kv_tokens")
    few = timed.frame.height - frame.height
    aside |= taken.aside | timed.aside | {"incomplete": timed.aside.get("incomplete", 0) + few}
    said = _said(few, "decode_requests", "decode_kv_tokens")
    return Table(frame, aside, (*taken.said, *said, *timed.said), clock=timed.clock)


def _with_cache(frame: pl.DataFrame, file: str, requests: str, read: str) -> pl.DataFrame:
    """Without the steps whose decodes read less than one cache token each, which none can; 0 is an engine that does not say."""
    known = (pl.col(requests) > 0) & (pl.col(read) > 0)
    few, steps = known & (pl.col(read) < pl.col(requests)), frame.filter(known).height
    count = frame.filter(few).height
    if count > SWAPPED_SHARE * steps:
        shown = f"{count:,} of {steps:,} steps hold less: are the two columns exchanged?"
        raise TraceError(file, f"{read} of at least {requests}, as a decode reads one cache token or more; {shown}")
    return frame.filter(~few) if count else frame


def _said(few: int, requests: str, read: str) -> tuple[str, ...]:
    return (f"{few:,} row{'s' * (few > 1)} set aside: less {read} than {requests}, which no engine reads",) if few else ()


def _required(names: Sequence[str]) -> tuple[str, ...]:
    """The columns that must be there: of the durations either one."""
    device = "device_time_s" in names and "step_time_s" not in names
    return tuple("device_time_s" if device and name == "step_time_s" else name for name in STEP_COLUMNS)


def _from_csv(opened: Opened, aside: dict[str, int]) -> Iterator[pl.DataFrame]:
    for cells in text_pieces(opened, _required(opened.header), FORM_STEPS):
        aside["unreadable"] += cells.cut
        yield _checked(cells.frame, opened, cells.before)


def _from_parquet(opened: Opened) -> Iterator[pl.DataFrame]:
    try:
        scanned = pl.scan_parquet(io.BytesIO(opened.data) if opened.packed else Path(opened.file), glob=False)
        rows = scanned.select(pl.len()).collect().item()
        for start in range(0, max(rows, 1), PIECE_ROWS):
            frame = scanned.slice(start, PIECE_ROWS).collect()
            need_columns(frame, opened.file, _required(frame.columns), FORM_STEPS)
            opened.progress(min((start + PIECE_ROWS) / max(rows, 1), 1.0))
            if rows:
                yield _checked(frame, opened, start)
    except pl.exceptions.PolarsError as error:
        raise TraceError(opened.file, "a whole Parquet file", found=str(error).splitlines()[0]) from None
    if rows == 0:
        raise TraceError(opened.file, f"at least one step in {FORM_STEPS}, found none")


def _checked(frame: pl.DataFrame, opened: Opened, before: int) -> pl.DataFrame:
    required = _required(frame.columns)
    frame = numbers(frame, opened.file, required, before=before)
    for name in ("device_time_s", "period_s"):
        if name in frame.columns and name not in required:
            frame = _where_known(frame, opened.file, name, before)
    return frame.with_columns(pl.col("source").cast(pl.String).fill_null("unknown")) if "source" in frame.columns else frame


def _where_known(frame: pl.DataFrame, file: str, name: str, before: int) -> pl.DataFrame:
    """A column of durations that may be empty, or below zero, where nothing was recorded."""
    cells = frame[name].str.strip_chars().replace("", None) if frame[name].dtype == pl.String else frame[name]
    known = frame.with_columns(cells.cast(pl.Float64, strict=False).fill_nan(None).fill_null(-1.0).alias(name))
    # what is there, but no number, must not pass for unknown
    broken = cells.is_not_null() & cells.cast(pl.Float64, strict=False).is_null()
    if broken.any():
        row = int(broken.arg_true()[0])
        raise TraceError(file, "a number, or nothing where it is not known", row=before + row + 1, column=name, found=cells[row])
    return numbers(known, file, (name,), negative=(name,), before=before).with_columns(
        pl.when(pl.col(name) > 0).then(pl.col(name)).alias(name)
    )


def claims_scheduler(opened: Opened) -> bool:
    """Whether the file's own content says that it is a scheduler trace.

    Args:
        opened: the file.

    Returns:
        True if its header names sums and clocks that only this format has.
    """
    return sum(name in opened.header for name in (*SUMS, *CLOCK)) >= 5


def read_scheduler(opened: Opened) -> Table:
    """Read the trace of a scheduler plugin, synchronous or not.

    step time(k) = done(k) - max(sched_end(k), done(k - 1)),  sched_end = t_mono + sched_us,  done = sched_end + exec_ms

    With two batches in flight a step waits for the one before it, and exec_ms counts that wait as well: it reads about
    twice the true duration. With one in flight the two are the same.

    Args:
        opened: the file.

    Returns:
        The trace's columns, the command in force, and `start_s`, the clock at the start of schedule() [s].

    Raises:
        TraceError: a column missing, a cell that is no number or negative, steps that end in another order than they began, or two
            columns exchanged.
    """
    names = ("step", *CLOCK, *SUMS)
    frame, cut = text_table(opened, names, FORM_SCHEDULER)
    frame = numbers(frame, opened.file, names, negative=("t_mono",))
    frame = frame.with_row_index("row", offset=1).sort("step", maintain_order=True)
    start = frame["t_mono"] + seconds(frame["sched_us"], 1e6)
    frame = frame.with_columns(start=start, done=start + seconds(frame["exec_ms"], 1e3))
    frame = frame.with_columns(step_time_s=pl.col("done") - pl.max_horizontal("start", pl.col("done").shift(1)))
    backwards = frame.filter(pl.col("step_time_s") < 0)
    if backwards.height:
        row, early = int(backwards["row"][0]), f"{-1e3 * float(backwards['step_time_s'][0]):.3f} ms before"
        raise TraceError(opened.file, "a step that ends after the one before it", row=row, column="exec_ms", found=early)
    warnings = _host_time(frame)
    whole = _with_cache(frame, opened.file, "n_decode_reqs", "decode_ctx_tokens")
    few, frame = frame.height - whole.height, whole
    warnings += _said(few, "n_decode_reqs", "decode_ctx_tokens")
    held = [pl.col(old).alias(new) for old, new in KEPT.items() if old in frame.columns]
    held = [c.cast(pl.Float64, strict=False) if c.meta.output_name() not in ("mode",) else c for c in held]
    return Table(
        frame.sort("row").select(
            pl.col("step").cast(pl.Int64),
            pl.lit("engine").alias("source"),
            "step_time_s",
            pl.col("n_decode_reqs").alias("decode_requests"),
            pl.col("decode_ctx_tokens").alias("decode_kv_tokens"),
            "prefill_tokens",
            pairs("prefill_tokens", "prefill_ctx_tokens", "n_prefill_reqs").alias("prefill_pairs"),
            requests("prefill_tokens", "n_prefill_reqs").alias("prefill_requests"),
            pl.col("t_mono").alias("start_s"),
            *held,
        ),
        {"unreadable": cut, "incomplete": few},
        warnings,
    )


def _host_time(frame: pl.DataFrame) -> tuple[str, ...]:
    """Say how much of the period between steps the step time leaves out: targets are promised on the wall clock."""
    if "period_ms" not in frame.columns:
        return ()
    # period(k) runs from the start of step k - 1 to the start of step k, so it is held against step k - 1
    period = seconds(frame["period_ms"].cast(pl.Float64, strict=False).fill_null(-1.0), 1e3)
    both = pl.DataFrame({"period": period, "device": frame["step_time_s"].shift(1)}).filter(pl.col("period") > 0).drop_nulls()
    if both.height < 20:
        return ()
    share = both.select((1 - pl.col("device") / pl.col("period")).median()).item()
    if share is None or share < HOST_SHARE:
        return ()
    return (f"the step time leaves out {share:.1%} of the period, which the host takes between steps: wall-clock targets need that room",)
