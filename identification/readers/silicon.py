"""AIConfigurator's table of measured TTFT and TPOT: points of many curves against concurrency."""

from __future__ import annotations

import polars as pl

from headway.identification.copies import repeated_rows
from headway.identification.readers.columns import Opened, Table, apart, numbers, seconds, text_table
from headway.identification.readers.errors import TraceError

FORM = "AIConfigurator's table of measured TTFT and TPOT"
TPOT, TTFT, ABOUT = "silicon_tpot_ms", "silicon_ttft_ms", "silicon_data_source"
NEEDED = ("id", ABOUT, "isl", "osl", TTFT, TPOT)
MOVES = ("id", ABOUT, "batch_size", "prefill_batch_size", "decode_batch_size", TTFT, TPOT)
"""Columns that move along a curve; all others, and the run it came from, tell curves apart."""
KEPT = ("backend", "model_path", "system", "mode", "isl", "osl", "tp_size")
MISSING = ("decode_kv_tokens", "prefill_tokens", "prefill_pairs", "prefill_requests")
CONCURRENCY = r"silicon_concurrency=(\d+)"
RUN = r"(config_id=\d+|source_file=[^;]+)"


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it is this table.

    Args:
        opened: the file.

    Returns:
        True if its header names both measured columns.
    """
    return {TTFT, TPOT} <= set(opened.header)


def read(opened: Opened) -> Table:
    """Read each row as one aggregate decode step at a concurrency, one stream for each curve.

    n = concurrency, kv = n * (isl + osl / 2), estimated: nothing of the cache was recorded

    Args:
        opened: the file.

    Returns:
        The trace's columns, `curve` and `curve_points`, the number of the row's curve and its points, `steps_averaged`, at
        least as many as a request has tokens, and what the deployment was.

    Raises:
        TraceError: a column missing, a cell that is no number or not above zero, or no row that says its concurrency.
    """
    frame, cut = text_table(opened, NEEDED, FORM)
    frame = numbers(frame, opened.file, ("isl", "osl", TTFT, TPOT))
    frame = frame.with_columns(concurrency=pl.col(ABOUT).str.extract(CONCURRENCY).cast(pl.Float64), run=pl.col(ABOUT).str.extract(RUN))
    silent = int(frame["concurrency"].null_count())
    copies = repeated_rows(frame, [TTFT, TPOT])
    kept = frame.with_row_index("row").filter(pl.Series(~copies) & pl.col("concurrency").is_not_null() & (pl.col("concurrency") > 0))
    if kept.height == 0:
        raise TraceError(opened.file, f"at least one row that says silicon_concurrency in {FORM}", column=ABOUT)
    curve = [name for name in frame.columns if name not in (*MOVES, "concurrency")]
    kept = kept.with_columns(curve=pl.struct(curve).rank("dense").cast(pl.Int64), points=pl.col("concurrency").n_unique().over(curve))
    said = [
        "each row is a mean over a whole run at one concurrency: the prompts of other requests are in it, and decode_kv_tokens is estimated as "
        "concurrency * (isl + osl / 2)",
    ]
    if copies.any():
        said.append(
            f"{int(copies.sum())} rows repeat the times of another row to the last digit, mostly under another llm's name; set aside"
        )
    if silent:
        said.append(f"{silent} rows do not say their concurrency; set aside")
    aside = {"unreadable": cut, "scaled_copy": int(copies.sum()), "incomplete": frame.height - int(copies.sum()) - kept.height}
    return Table(_points(kept), aside, tuple(said), missing=MISSING)


def _points(kept: pl.DataFrame) -> pl.DataFrame:
    requests = pl.col("concurrency")
    return kept.select(
        apart(pl.col("row")).alias("step"),
        ("curve " + pl.col("curve").cast(pl.String)).alias("source"),
        seconds(kept[TPOT], 1e3).alias("step_time_s"),
        requests.alias("decode_requests"),
        (requests * (pl.col("isl") + pl.col("osl") / 2)).alias("decode_kv_tokens"),
        pl.lit(0.0).alias("prefill_tokens"),
        pl.lit(0.0).alias("prefill_pairs"),
        pl.lit(0.0).alias("prefill_requests"),
        pl.col("curve"),
        pl.col("points").cast(pl.Int64).alias("curve_points"),
        pl.col("osl").alias("steps_averaged"),
        *(pl.col(name) for name in KEPT if name in kept.columns),
    )
