"""Averages per rate that serving benchmarks write: a curve of the time per token over the requests that ran at once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl

import headway.identification.readers.sglang_bench as sglang_bench
import headway.identification.readers.vllm_bench as vllm_bench
from headway.identification.readers.columns import Opened, Table, apart
from headway.identification.readers.errors import TraceError
from headway.identification.readers.request_rows import lines, number, open_file, whole

FORM = "averages per rate of a serving benchmark (SGLang's bench_serving, vllm bench serve)"
MISSING = ("decode_kv_tokens", "prefill_tokens", "prefill_pairs", "prefill_requests")
TPOT_FROM = {
    "mean_tpot": "the mean of the requests' own TPOT",
    "mean_times": "(mean E2E - mean TTFT) / (mean n - 1)",
    "median_times": "(median E2E - median TTFT) / (mean n - 1)",
}
"""Where the time per token of a row comes from: what the tool wrote decides. Its ITL is never taken: chunks blur it."""


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it holds such averages, and no single requests of a known clock.

    Args:
        opened: the file.

    Returns:
        True for a result of SGLang's benchmark, or one of vLLM's without its arrays.
    """
    return sglang_bench.claims(opened) or (vllm_bench.claims(opened) and b'"itls"' not in opened.data)


def aggregates(paths: str | Path | Sequence[str | Path]) -> pl.DataFrame:
    """Read averages per rate.

    concurrency = completed / duration x mean E2E (Little)

    Args:
        paths: a file, or several.

    Returns:
        One row per rate, in the order of the files: `rate_rps` (infinite where all were sent at once), `concurrency`
        [requests], `tpot_s`, `tpot_from` (a key of `TPOT_FROM`), `ttft_s` (mean, or median where no mean is written),
        `e2e_s`, `input_tokens` and `output_tokens` (means per request), `requests`.

    Raises:
        TraceError: a file of another kind, or a figure that is missing.
    """
    files = [os.fspath(p) for p in ([paths] if isinstance(paths, str | os.PathLike) else paths)]
    rows: list[dict[str, Any]] = []
    for file in files:
        opened = open_file(file)
        if not (sglang_bench.claims(opened) or vllm_bench.claims(opened)):
            raise TraceError(file, FORM, found=opened.text.split("\n", 1)[0].strip())
        rows += _rows(opened)[0]
    return pl.DataFrame(rows)


def _rows(opened: Opened) -> tuple[list[dict[str, Any]], int]:
    """The rates of a file, and lines that were cut off."""
    found: Iterator[tuple[int, dict[str, Any] | None]]
    found = lines(opened, FORM) if sglang_bench.claims(opened) else iter([(1, whole(opened, FORM))])
    rows, cut = [], 0
    for k, result in found:
        if result is None:
            cut += 1
        else:
            rows.append(_row(result, opened.file, k))
    if not rows:
        raise TraceError(opened.file, f"at least one rate in {FORM}")
    return rows, cut


def _row(result: dict[str, Any], file: str, row: int) -> dict[str, Any]:
    def figure(*names: str) -> float:
        for name in names:
            value = number(result.get(name))
            if value is not None and value > 0:
                return value
        raise TraceError(file, "a number above zero", row=row, column=names[0], found=result.get(names[0]))

    requests, duration = figure("completed"), figure("duration")
    inputs, outputs = figure("total_input_tokens") / requests, figure("total_output_tokens") / requests
    e2e = figure("mean_e2e_latency_ms", "mean_e2el_ms") * 1e-3
    tpot, source = _tpot(result, outputs)
    if tpot is None:
        raise TraceError(file, "a time per token (mean_tpot_ms), or E2E and TTFT to take it from", row=row, column="mean_tpot_ms")
    rate = result.get("request_rate")
    return {
        "rate_rps": float("inf") if rate in (float("inf"), "inf") else number(rate),
        "concurrency": requests / duration * e2e,
        "tpot_s": tpot,
        "tpot_from": source,
        "ttft_s": figure("mean_ttft_ms", "median_ttft_ms") * 1e-3,
        "e2e_s": e2e,
        "input_tokens": inputs,
        "output_tokens": outputs,
        "requests": int(requests),
    }


def _tpot(result: dict[str, Any], outputs: float) -> tuple[float | None, str]:
    """Time per output token, canonical or as near to it as the averages allow [s]."""
    mean = number(result.get("mean_tpot_ms"), 1e-3)
    if mean is not None and mean > 0:
        return mean, "mean_tpot"
    for kind in ("mean", "median"):
        e2e = number(result.get(f"{kind}_e2e_latency_ms", result.get(f"{kind}_e2el_ms")), 1e-3)
        ttft = number(result.get(f"{kind}_ttft_ms"), 1e-3)
        if e2e is not None and ttft is not None and e2e > ttft and outputs > 1:
            return (e2e - ttft) / (outputs - 1), f"{kind}_times"
    return None, ""


def read(opened: Opened) -> Table:
    """Read averages per rate as rows of a trace: each an average over all steps of a run.

    Args:
        opened: the file.

    Returns:
        One row per rate: `decode_requests` is the mean number of requests in the system, `step_time_s` their time per
        token, `decode_kv_tokens` the mean context times their number, an estimate. Nothing of prefill is recorded.

    Raises:
        TraceError: no such averages, or a figure that is missing.
    """
    rows, cut = _rows(opened)
    frame = pl.DataFrame(rows)
    n = pl.col("concurrency")
    frame = frame.select(
        step=apart(pl.int_range(pl.len())),
        step_time_s=pl.col("tpot_s"),
        decode_requests=n,
        decode_kv_tokens=n * (pl.col("input_tokens") + pl.col("output_tokens") / 2),
        prefill_tokens=pl.lit(0.0),
        prefill_pairs=pl.lit(0.0),
        prefill_requests=pl.lit(0.0),
        steps_averaged=pl.col("output_tokens") * pl.col("requests") / n,
    )
    sources = "; ".join(TPOT_FROM[name] for name in dict.fromkeys(row["tpot_from"] for row in rows))
    said = (
        f"a row is an average over a run: its step time is {sources}, steps with prefill among them; its requests are those in the "
        "system, waiting ones too (Little), and decode_kv_tokens is estimated as their number times (mean input + mean output / 2)",
    )
    return Table(frame, {"unreadable": cut}, said, MISSING)
