"""GuideLLM reports, versions 1 and 2: benchmarks, each with its requests by how they ended."""

from __future__ import annotations

from typing import Any

from headway.identification.readers.columns import Opened
from headway.identification.readers.errors import TraceError
from headway.identification.readers.request_rows import RequestRows, count, number, rows_frame, whole

FORM = "a GuideLLM report"
ENDED = {"successful": "ok", "incomplete": "cancelled", "errored": "failed"}
"""How GuideLLM calls the ways in which a request ends."""
TPOT, ITL = "guidellm_time_per_output_token_s", "guidellm_inter_token_latency_s"
FORMULAS = {
    TPOT: "E2E / n: the whole time, TTFT too, over all n tokens",
    ITL: "(E2E - TTFT) / (n - 1): the canonical TPOT under another name",
}
"""What GuideLLM's own figures stand for: its time per output token is another quantity than TPOT."""


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it is a report.

    Args:
        opened: the file.

    Returns:
        True for an object that names GuideLLM's version.
    """
    return opened.text.lstrip().startswith("{") and '"guidellm_version"' in opened.text


def read(opened: Opened) -> RequestRows:
    """Read the requests of all benchmarks of a report.

    Args:
        opened: the file.

    Returns:
        One row per request; `run` is the benchmark that it belongs to.

    Raises:
        TraceError: no report, or one that lists no request.
    """
    report = whole(opened, FORM)
    version = (report.get("metadata") or {}).get("version")
    form = f"{FORM} of version {version}"
    rows, counted = [], 0
    benchmarks = report.get("benchmarks")
    if not isinstance(benchmarks, list):
        raise TraceError(opened.file, f"an array in {form}", column="benchmarks", found=benchmarks)
    for k, benchmark in enumerate(benchmarks, 1):
        requests = benchmark.get("requests") or {}
        totals = (benchmark.get("metrics") or {}).get("request_totals") or {}
        counted += int(totals.get("total") or 0)
        run = f"{k} {((benchmark.get('config') or {}).get('strategy') or {}).get('type_', '')}".strip()
        for name, status in ENDED.items():
            rows += [_row(one, status, run) for one in requests.get(name) or []]
    if not rows:
        raise TraceError(
            opened.file,
            f"single requests in {form}; this one counts {counted} in {len(benchmarks)} benchmarks and lists none with its "
            "times: write the report with its requests, without a limit on sampled ones",
        )
    left = max(counted - len(rows), 0)
    return RequestRows(
        rows_frame(rows, tuple(FORMULAS)), "epoch", {"counted by GuideLLM but not listed with its times": left}, (), FORMULAS
    )


def _row(one: dict[str, Any], status: str, run: str) -> dict[str, Any]:
    info = one.get("info") or {}
    at = info.get("timings") or {}
    first = lambda *names: next((value for name in names if (value := number(at.get(name))) is not None), None)  # noqa: E731
    metrics = one.get("output_metrics") or {}
    inputs = one.get("input_metrics") or {}
    sent = first("request_start")
    return {
        "run": run,
        # the server's name for the request where it was written: engines know no other
        "request_id": str(one.get("response_id") or one.get("request_id") or info.get("request_id") or ""),
        "status": status,
        "sent_s": sent if sent is not None else number(one.get("request_start_time")),
        "first_token_s": first("first_token_iteration", "first_iteration"),
        "last_token_s": first("last_token_iteration", "last_iteration"),
        "input_tokens": count(one.get("prompt_tokens")) or count(inputs.get("total_tokens")) or count(inputs.get("text_tokens")),
        "output_tokens": count(one.get("output_tokens")) or count(metrics.get("total_tokens")) or count(metrics.get("text_tokens")),
        "chunks": count(at.get("token_iterations")) or count(at.get("iterations")),
        TPOT: number(one.get("time_per_output_token_ms"), 1e-3),
        ITL: number(one.get("inter_token_latency_ms"), 1e-3),
    }
