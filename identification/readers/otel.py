"""OpenTelemetry spans of requests, as vLLM names their attributes: what the engine saw of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headway.identification.readers.columns import Opened
from headway.identification.readers.errors import TraceError
from headway.identification.readers.request_rows import CUT, RequestRows, count, lines, number, rows_frame, whole

FORM = "OpenTelemetry request spans"
LATENCY = "gen_ai.latency."


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it holds spans.

    Args:
        opened: the file; an export object per line.

    Returns:
        True where resource spans are named.
    """
    return opened.text.lstrip().startswith("{") and '"resourceSpans"' in opened.text


def read(opened: Opened) -> RequestRows:
    """Read the spans that are requests of an engine.

    Args:
        opened: the file.

    Returns:
        One row per request, with the engine's stamps only: the start of the span is its arrival at the engine.

    Raises:
        TraceError: no span of a request with the engine's latencies.
    """
    rows, cut, others = [], 0, 0
    # a collector writes an object per line, other tools one object over many lines
    for record in (r for _, r in lines(opened, FORM)) if opened.first is not None else [whole(opened, FORM)]:
        if record is None:
            cut += 1
            continue
        for span in _spans(record):
            row = _row(span)
            if row is None:
                others += 1
            else:
                rows.append(row)
    if not rows:
        raise TraceError(
            opened.file,
            f"spans with the engine's latencies ({LATENCY}time_to_first_token, {LATENCY}e2e); this file holds {others} other spans",
        )
    return RequestRows(rows_frame(rows), "epoch", {CUT: cut, "a span that is no request of an engine": others})


def _spans(record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in record.get("resourceSpans") or []:
        for scope in resource.get("scopeSpans") or []:
            yield from scope.get("spans") or []


def _row(span: dict[str, Any]) -> dict[str, Any] | None:
    """The engine's stamps of a request; None for a span of another kind."""
    of = {str(a.get("key")): next(iter((a.get("value") or {}).values()), None) for a in span.get("attributes") or []}
    start = number(span.get("startTimeUnixNano"), 1e-9)
    ttft, e2e = number(of.get(f"{LATENCY}time_to_first_token")), number(of.get(f"{LATENCY}e2e"))
    if start is None or ttft is None or e2e is None:
        return None
    queue, prefill, decode = (number(of.get(LATENCY + name)) for name in ("time_in_queue", "time_in_model_prefill", "time_in_model_decode"))
    return {
        "request_id": str(of.get("gen_ai.request.id") or span.get("spanId") or ""),
        "status": "failed" if (span.get("status") or {}).get("code") in (2, "STATUS_CODE_ERROR") else "ok",
        "input_tokens": count(of.get("gen_ai.usage.prompt_tokens")),
        "output_tokens": count(of.get("gen_ai.usage.completion_tokens")),
        "engine_arrival_s": start,
        "queue_s": queue,
        "prefill_s": prefill,
        "decode_s": decode,
        "engine_first_token_s": start + ttft,
        "engine_last_token_s": start + e2e,
    }
