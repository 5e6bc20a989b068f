"""Requests as vLLM's own statistics stamp them, one JSON object per line: queued, scheduled, first and last token."""

from __future__ import annotations

from headway.identification.readers.columns import Opened
from headway.identification.readers.errors import TraceError
from headway.identification.readers.request_rows import CUT, RequestRows, count, lines, number, rows_frame

FORM = "requests with an engine's stamps"
STAMPED = ("arrival_time", "queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it holds such requests.

    Args:
        opened: the file.

    Returns:
        True for lines whose first has an engine's stamps.
    """
    return opened.first is not None and {"request_id", "first_token_ts", "queued_ts"} <= set(opened.first)


def read(opened: Opened) -> RequestRows:
    """Read the requests.

    Args:
        opened: the file.

    Returns:
        One row per request: its sending on the caller's clock (epoch), all else on the engine's (monotonic).

    Raises:
        TraceError: a stamp that is missing or no number, or no request.
    """
    rows, cut = [], 0
    for k, record in lines(opened, FORM):
        if record is None:
            cut += 1
            continue
        at = {name: number(record.get(name)) for name in STAMPED}
        wrong = next((name for name in STAMPED[1:] if at[name] is None), None)
        if wrong is not None:
            raise TraceError(opened.file, f"a number of seconds in {FORM}", row=k, column=wrong, found=record.get(wrong))
        queued, scheduled, first, last = (at[name] or 0.0 for name in STAMPED[1:])
        rows.append(
            {
                "request_id": str(record.get("request_id") or ""),
                "status": "ok",
                "sent_s": at["arrival_time"],
                "input_tokens": count(record.get("input_toks")),
                "output_tokens": count(record.get("output_toks")),
                "engine_arrival_s": queued,
                "queue_s": scheduled - queued,
                "prefill_s": first - scheduled,
                "decode_s": last - first,
                "engine_first_token_s": first,
                "engine_last_token_s": last,
            }
        )
    if not rows:
        raise TraceError(opened.file, f"at least one request in {FORM}, found none")
    return RequestRows(rows_frame(rows), "epoch", {CUT: cut})
