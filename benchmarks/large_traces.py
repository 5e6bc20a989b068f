"""Large traces: a million steps fitted, and twenty million within the memory of a small machine.

python -m benchmarks.large_traces
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from scipy.signal import lfilter

from benchmarks.table import ROOT, Missing, Row, at_most, informs, run
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.identification.trace import Trace
from headway.models.identified import IdentifiedPlant
from headway.models.plant import Batch
from headway.models.regimes import RegimePlant, terms

TRUTH = RegimePlant((6e-3, 7e-5, 5e-9, 0.0, 0.0, 0.0), (6.5e-3, 1e-4, 6e-9, 1.5e-5, 5e-10, 5e-4))
PIECE = 500_000
"""Rows that are made at once."""
REPEATED = 3
"""Times that a fit of a million steps is measured; the median counts."""
GIB = 1 << 30


def made(rows: int, seed: int) -> pl.DataFrame:
    """Steps of a known plant: a quarter with prefill, correlated noise of 5 %, and now and then a stall."""
    rng = np.random.default_rng(seed)
    decoding = rng.integers(1, 64, rows).astype(float)
    prefill = rng.random(rows) < 0.25
    requests = np.where(prefill, rng.integers(1, 4, rows), 0).astype(float)
    tokens = np.where(prefill, rng.integers(16, 2000, rows), 0).astype(float)
    context = np.where(prefill, rng.integers(0, 3000, rows), 0)
    pairs = tokens * (context + tokens / 2) / np.maximum(requests, 1)
    batch = Batch(decoding, np.round(decoding * rng.integers(200, 4000, rows)), tokens, pairs, requests)
    noise = lfilter([np.sqrt(0.75)], [1, -0.5], 0.05 * rng.normal(size=rows))
    stall = np.where(rng.random(rows) < 1e-4, 8.0, 1.0)
    time_s = TRUTH.step_time_s(batch) * np.exp(noise) * stall
    return pl.DataFrame({"step": np.arange(rows), "step_time_s": time_s, **batch._asdict()})


def metrics(steps: pl.DataFrame) -> pl.DataFrame:
    """The same steps as a table of forward pass metrics, its nineteen columns."""
    whole = {n: pl.col(n).cast(pl.Int64) for n in ("prefill_tokens", "prefill_requests", "decode_requests", "decode_kv_tokens")}
    context = pl.col("prefill_pairs") * pl.col("prefill_requests") / pl.col("prefill_tokens").clip(1) - pl.col("prefill_tokens") / 2
    return steps.select(
        pl.lit("decode").alias("phase"),
        pl.lit("real").alias("workload_segment"),
        pl.col("step").alias("counter_id"),
        pl.lit("7927590660159844889").alias("worker_id"),
        pl.lit(0).alias("dp_rank"),
        whole["prefill_tokens"].alias("sum_prefill_tokens"),
        whole["prefill_requests"].alias("num_prefill_requests"),
        context.clip(0).round().cast(pl.Int64).alias("sum_prefill_kv_tokens"),
        pl.lit("0.000").alias("var_prefill_length"),
        whole["decode_requests"].alias("num_decode_requests"),
        whole["decode_kv_tokens"].alias("sum_decode_kv_tokens"),
        pl.lit("0.000").alias("var_decode_kv_tokens"),
        *[pl.lit(0).alias(f"queued_{n}") for n in ("prefill_requests", "prefill_tokens", "var_prefill_length")],
        *[pl.lit(0).alias(f"queued_{n}") for n in ("decode_requests", "decode_kv_tokens", "var_decode_kv_tokens")],
        (1e3 * pl.col("step_time_s")).round(3).alias("latency_ms"),
    )


def _written(folder: Path, form: str, rows: int) -> Path:
    """A trace of that many rows, made and written piece by piece."""
    file = folder / f"trace.{'jsonl' if form == 'jsonl' else 'csv'}"
    with file.open("wb") as stream:
        for number in range(rows // PIECE):
            steps = made(PIECE, number).with_columns(pl.col("step") + number * PIECE)
            if form == "jsonl":
                _records(metrics(steps)).write_ndjson(stream)
            else:
                (metrics(steps) if form == "fpm" else steps).write_csv(stream, include_header=number == 0)
    if form != "parquet":
        return file
    packed = folder / "trace.parquet"
    pl.scan_csv(file).sink_parquet(packed)
    file.unlink()
    return packed


def _records(table: pl.DataFrame) -> pl.DataFrame:
    """Forward pass metrics as one object a line."""
    inside = [n for n in table.columns if n.startswith(("sum_", "num_"))]
    return table.select((pl.col("latency_ms") / 1e3).alias("wall_time"), "counter_id", "worker_id", "dp_rank", scheduled=pl.struct(inside))


def million() -> Iterator[Row]:
    """A million steps in memory, all of them used: judging, fit, held-out error, intervals, diagnostics."""
    with tempfile.TemporaryDirectory() as folder:
        file = _written(Path(folder), "parquet", 1_000_000)
        runs = [_timed(file) for _ in range(REPEATED)]
    trace, found = runs[-1][:2]
    read, took = float(np.median([one[2] for one in runs])), float(np.median([one[3] for one in runs]))
    columns, step_time_s = terms(trace.batch()), trace.step_time_s
    began = time.perf_counter()
    np.linalg.lstsq(columns, step_time_s, rcond=None)
    plain = time.perf_counter() - began
    values = {name: c.value for name, c in found.plant.coefficients().items()}
    off = max(abs(values[name] / c.value - 1) for name, c in TRUTH.coefficients().items())
    yield at_most("1,000,000 steps read and fitted, structure regimes", took, 10.0, "s")
    yield informs("1,000,000 steps: reading alone", f"{read:.2f} s")
    yield informs(
        "1,000,000 steps: plain least squares on the same rows, and how many times that we take", f"{plain:.2f} s, {took / plain:.0f}"
    )
    yield at_most("1,000,000 steps: coefficient furthest from the plant that made them", 100 * off, 2.0, "%")
    began = time.perf_counter()
    chosen = fit(trace)
    yield at_most(f"1,000,000 steps fitted, structure searched ({chosen.plant.structure})", time.perf_counter() - began, 10.0, "s")


def _timed(file: Path) -> tuple[Trace, IdentifiedPlant, float, float]:
    """The trace, its plant, and the time for reading alone and for both [s]."""
    began = time.perf_counter()
    trace = read_trace(file)
    read = time.perf_counter() - began
    return trace, fit(trace, structure="regimes"), read, time.perf_counter() - began


def twenty_million() -> Iterator[Row]:
    """`headway fit` on twenty million steps, as a process of its own: time, and the most memory that it held."""
    for form, words in (("parquet", "Parquet"), ("steps", "CSV"), ("fpm", "forward pass metrics, CSV")):
        yield from _fitted(form, words, 20_000_000, "20,000,000")
    yield from _fitted("jsonl", "forward pass metrics, JSON lines", 4_000_000, "4,000,000")


def _fitted(form: str, words: str, rows: int, shown: str) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        file = _written(Path(folder), form, rows)
        size = file.stat().st_size
        began = time.perf_counter()
        code = [sys.executable, "-m", "headway", "fit", str(file), "--out", str(Path(folder) / "plant.json")]
        child = subprocess.Popen(code, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        took = time.perf_counter() - began
        if child.returncode:
            raise Missing(f"headway fit of {words} ended with {child.returncode}")
        yield at_most(f"{shown} rows, {words} ({size / GIB:.1f} GiB): most memory held", usage.ru_maxrss * 1024 / GIB, 2.0, "GiB")
        if form == "parquet":
            plain = _plain(file)
            yield informs(
                f"{shown} rows, {words}: time; one pass of plain least squares over all; times that",
                f"{took:.0f} s; {plain:.1f} s; {took / plain:.0f}",
            )
        else:
            yield informs(f"{shown} rows, {words}: time", f"{took:.0f} s")


def _plain(file: Path) -> float:
    """Least squares of all rows by sums, piece by piece [s]."""
    began = time.perf_counter()
    scanned, gram, right = pl.scan_parquet(file), np.zeros((6, 6)), np.zeros(6)
    for start in range(0, scanned.select(pl.len()).collect().item(), PIECE):
        frame = scanned.slice(start, PIECE).collect()
        columns = terms(Batch(*(frame[name].to_numpy() for name in Batch._fields)))
        gram += columns.T @ columns
        right += frame["step_time_s"].to_numpy() @ columns
    np.linalg.solve(gram, right)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(run("large_traces", {"million": million, "twenty_million": twenty_million}))
