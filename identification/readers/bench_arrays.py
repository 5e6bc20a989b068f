"""Results of the serving benchmarks of vLLM and SGLang: one object per rate, with one array entry per request if wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.identification.readers.errors import TraceError
from headway.identification.readers.request_rows import arrivals, count, number

ARRAYS = ("input_lens", "output_lens", "ttfts", "itls")
"""Keys of the arrays that say when a request's tokens came."""


def array_rows(result: dict[str, Any], file: str, form: str, *, run: str = "", row: int | None = None) -> list[dict[str, Any]]:
    """Requests from the arrays of one result.

    Args:
        result: the object, with the keys of `ARRAYS`, and `start_times`, `errors` where the tool wrote them.
        file: for the message.
        form: what the file was taken for, for the message.
        run: name of this result within the file.
        row: its line, for the message; None if the file holds one.

    Returns:
        One mapping per request, by column of `headway.identification.clients.requests.GIVEN`. Without `start_times`, stamps
        count from each request's own sending.

    Raises:
        TraceError: arrays of different length, or an entry that is none.
    """
    n = len(result["ttfts"])
    wanted = [*ARRAYS, *[name for name in ("start_times", "errors") if name in result]]
    for name in wanted:
        values = result.get(name)
        if not isinstance(values, list) or len(values) != n:
            found = len(values) if isinstance(values, list) else values
            raise TraceError(file, f"an array of {n} entries in {form}, as long as ttfts", row=row, column=name, found=found)
    rows = []
    for k in range(n):
        sent = number(result["start_times"][k]) if "start_times" in result else 0.0
        ttft, gaps = number(result["ttfts"][k]), result["itls"][k]
        if not isinstance(gaps, list) or not all(number(gap) is not None for gap in gaps):
            raise TraceError(file, f"an array of gaps for request {k + 1} in {form}", row=row, column="itls", found=gaps)
        failed = bool((result.get("errors") or [""] * n)[k])
        came = ttft is not None and ttft > 0 and sent is not None
        first = sent + ttft if came and sent is not None and ttft is not None else None
        tokens = count(result["output_lens"][k])
        own = {"run": run, "request_id": f"{run}{'/' if run else ''}{k}", "status": "failed" if failed or not came else "ok"}
        seen = {"sent_s": sent, "first_token_s": first, "input_tokens": count(result["input_lens"][k]), "output_tokens": tokens}
        rows.append({**own, **seen, **arrivals(first, gaps, tokens)})
    return rows


def detailed(result: dict[str, Any]) -> bool:
    """Whether a result holds an entry per request.

    Args:
        result: the object.

    Returns:
        True if all of `ARRAYS` are there and not empty.
    """
    return all(isinstance(result.get(name), list) and result[name] for name in ARRAYS)


def failed_note(rows: Sequence[dict[str, Any]], result: dict[str, Any]) -> list[str]:
    """Say where the tool's own count of failures is another than the arrays'.

    Args:
        rows: of `array_rows`.
        result: the object.

    Returns:
        One sentence, or none.
    """
    said, seen = result.get("completed"), sum(row["status"] == "ok" for row in rows)
    if isinstance(said, int) and said != seen:
        return [f"the file says that {said} requests were completed, its arrays hold {seen} that were answered"]
    return []
