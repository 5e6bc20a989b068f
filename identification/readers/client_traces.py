"""Traces from what clients saw: a stamp per token tells the engine's steps."""

from __future__ import annotations

import polars as pl

import headway.identification.readers.aiperf as aiperf
import headway.identification.readers.vllm_bench as vllm_bench
from headway.identification.clients.requests import RequestStamps
from headway.identification.clients.stamps import steps_from_stamps
from headway.identification.readers.columns import Opened, Table
from headway.identification.readers.errors import TraceError

FORM = "clients' stamps of every token (vllm bench serve --save-detailed, AIPerf's profile_export.jsonl)"


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it holds the gaps of single requests on one clock.

    Args:
        opened: the file.

    Returns:
        True for a detailed result of `vllm bench serve`, and for AIPerf's records.
    """
    return (vllm_bench.claims(opened) and b'"itls"' in opened.data) or aiperf.claims(opened)


def read(opened: Opened) -> Table:
    """Read the steps that clients' stamps tell.

    Args:
        opened: the file.

    Returns:
        One row per step, its `source` the run, with what was set aside.

    Raises:
        TraceError: no such file, or stamps from which no step can be told; the message says why.
    """
    rows = (vllm_bench if vllm_bench.claims(opened) else aiperf).read(opened)
    stamps = RequestStamps.of(rows.frame, clock=rows.clock, aside=rows.aside, warnings=rows.warnings)
    try:
        found = steps_from_stamps(stamps)
    except ValueError as error:
        raise TraceError(opened.file, f"stamps that tell the engine's steps; {error} (headway transport reads this file)") from None
    known = stamps.frame.filter(pl.col("token_s").list.len() > 0)["input_tokens"].null_count() == 0
    missing = () if known else ("decode_kv_tokens", "prefill_tokens", "prefill_pairs")
    return Table(found.frame, found.aside, (*stamps.warnings, *found.warnings), missing)
