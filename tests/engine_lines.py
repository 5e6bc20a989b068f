"""Lines of engine logs of our own making, and what the tests of their readers ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.identification.readers import TRACE_READERS, TraceError, read_trace
from headway.identification.readers.columns import Opened, Table

STATS_LINE = "INFO 09-06 04:08:18 [loggers.py:122] Engine 000: Avg prompt throughput: 1740.6 tokens/s, Running: 17 reqs, Waiting: 15 reqs\n"


def written(folder: Path, content: str | bytes, name: str = "engine.log") -> Path:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def table_of(folder: Path, content: str | bytes, format: str) -> Table:
    """What the reader alone hands on; the file must be told to be of this format by what it holds."""
    file = written(folder, content)
    assert read_trace(file).reader == format
    return TRACE_READERS[format].read(Opened(str(file)))


def aside_of(table: Table) -> dict[str, int]:
    return {reason: rows for reason, rows in table.aside.items() if rows}


def refused(folder: Path, content: str | bytes, format: str = "auto") -> str:
    with pytest.raises(TraceError) as caught:
        read_trace(written(folder, content), format)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text.replace(f"{folder}/", "")


def iteration(number: int, *, tokens: int = 0, requests: int = 4, ms: float = 10.0, before: str = "", after: str = "") -> str:
    return (
        f"{before}Iteration({number}): {int(tokens > 0)} context requests, {tokens} context tokens, {requests} generation requests, "
        f"{requests} generation tokens, iteration elapsed time: {ms:.2f} ms{after}\n"
    )


def loop(number: int, *, host: str = "8.5ms", device: str = "7.5ms", scheduled: str = "num_scheduled_requests: 6, ", rank: int = 0,
          context: int = 0, tokens: int = 0, generated: int = 6, cached: int | None = None) -> str:  # fmt: skip
    kept = "" if cached is None else f", 'cached_kv_tokens': {cached}"
    states = f"{{'num_ctx_requests': {context}, 'num_ctx_tokens': {tokens}, 'num_generation_tokens': {generated}{kept}}}"
    return (
        f"[TRT-LLM] [I] iter = {number}, global_rank = {rank}, rank = {rank}, currank_total_requests = 0/0, host_step_time = {host}, "
        f"prev_device_step_time = {device}, timestamp = 2026-07-07 00:00:00, {scheduled}states = {states}\n"
    )


def decode(
    requests: int, tokens: int, throughput: float, *, rank: str = " TP0", more: str = "", mark: str = ".", key: str = "#token"
) -> str:
    return (
        f"[2026-01-02 03:04:05{rank}] Decode batch{mark} #running-req: {requests}, {key}: {tokens}, token usage: 0.12, {more}"
        f"cuda graph: True, gen throughput (token/s): {throughput:.2f}, #queue-req: 2\n"
    )


def prefill(
    tokens: int, throughput: float | None, *, running: int = 0, queued: int = 0, pending: int | None = None, glued: str = ""
) -> str:
    text = f"{glued}[2026-01-02 03:04:05 TP0] Prefill batch, #new-seq: 1, #new-token: {tokens}, #cached-token: 0, token usage: 0.00, "
    text += f"#running-req: {running}, #queue-req: {queued}, "
    text += "" if pending is None else f"#pending-token: {pending}, "
    return text + ("" if throughput is None else f"cuda graph: False, input throughput (token/s): {throughput:.2f}") + "\n"
