"""AIPerf's profile_export.jsonl: a line per request, with the gaps of its chunks."""

from __future__ import annotations

from typing import Any

from headway.identification.readers.columns import Opened
from headway.identification.readers.errors import TraceError
from headway.identification.readers.request_rows import CUT, RequestRows, arrivals, count, lines, number, rows_frame

FORM = "AIPerf's profile_export.jsonl"
ITL = "aiperf_inter_token_latency_s"
FORMULAS = {ITL: "(E2E - TTFT) / (n - 1): the canonical TPOT under another name"}
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
"""Seconds in one unit, as AIPerf writes it beside each value."""


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it is such an export.

    Args:
        opened: the file.

    Returns:
        True for lines whose first holds a request's metadata and metrics.
    """
    first = opened.first
    if first is None:  # a first line longer than what is looked at
        return opened.text.startswith("{") and '"x_request_id"' in opened.text and '"metrics"' in opened.text
    return isinstance(first.get("metadata"), dict) and "metrics" in first and "x_request_id" in first["metadata"]


def read(opened: Opened) -> RequestRows:
    """Read the requests.

    Args:
        opened: the file.

    Returns:
        One row per request, warm-up set aside. Output tokens are those of the sequence, reasoning among them.

    Raises:
        TraceError: a line that is no record, or no request.
    """
    rows, cut, warm = [], 0, 0
    for k, record in lines(opened, FORM):
        if record is None:
            cut += 1
            continue
        about = record.get("metadata")
        if not isinstance(about, dict):
            raise TraceError(opened.file, f"metadata in every line of {FORM}", row=k, column="metadata", found=about)
        if about.get("benchmark_phase", about.get("credit_phase")) == "warmup":
            warm += 1
            continue
        rows.append(_row(record, about))
    if not rows:
        raise TraceError(opened.file, f"at least one request in {FORM}, found none")
    return RequestRows(rows_frame(rows, (ITL,)), "epoch", {CUT: cut, "of the warm-up, before the measurement": warm}, (), FORMULAS)


def _row(record: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    metrics, error = record.get("metrics") or {}, record.get("error") or {}
    sent = number(about.get("request_start_ns", about.get("timestamp_ns")), 1e-9)
    ttft = _seconds(metrics.get("time_to_first_token", metrics.get("ttft")))
    first = sent + ttft if sent is not None and ttft is not None else None
    whole = _seconds(metrics.get("request_latency"))
    tokens = count((metrics.get("output_sequence_length") or {}).get("value"))
    gaps = metrics.get("inter_chunk_latency") or {}
    values = [number(gap, SECONDS.get(str(gaps.get("unit")), 1e-3)) for gap in gaps.get("value") or []]
    known = [gap for gap in values if gap is not None]
    cancelled = bool(about.get("was_cancelled")) or error.get("code") == 499 or "Cancel" in str(error.get("type"))
    row = {
        "request_id": str(about.get("x_request_id") or ""),
        "status": "cancelled" if cancelled else "failed" if error else "ok",
        "sent_s": sent,
        "first_token_s": first,
        "last_token_s": sent + whole if sent is not None and whole is not None else None,
        "input_tokens": count((metrics.get("input_sequence_length") or {}).get("value")),
        "output_tokens": tokens,
        ITL: _seconds(metrics.get("inter_token_latency")),
    }
    written = gaps.get("value") is not None and len(known) == len(values)
    return {**row, **(arrivals(first, known, tokens) if written else {})}


def _seconds(metric: object) -> float | None:
    """A duration with the unit that stands beside it; without one it is unknown, not milliseconds."""
    if not isinstance(metric, dict) or metric.get("unit") not in SECONDS:
        return None
    return number(metric.get("value"), SECONDS[metric["unit"]])
