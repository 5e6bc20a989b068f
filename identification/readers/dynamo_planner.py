"""Dynamo's planner tables: ITL by cache use and context, TTFT by prompt length, one engine profiled alone."""

from __future__ import annotations

import numpy as np
import polars as pl

from headway.identification.readers.columns import Opened, Table, numbers, text_table
from headway.identification.readers.errors import TraceError

FORM_DECODE = "the Dynamo planner's decode table"
FORM_PREFILL = "the Dynamo planner's prefill table"
DECODE = ("kv_usage", "context_length", "itl_ms", "thpt_per_gpu", "max_kv_tokens")
PREFILL = ("prefill_isl", "prefill_ttft_ms")
WAITING = 0.10
"""Share of the requests in the cache from which on they cannot all have decoded at once."""


def claims_decode(opened: Opened) -> bool:
    """Whether the file's own content says that it is the decode table.

    Args:
        opened: the file.

    Returns:
        True if its header names cache use, context and ITL.
    """
    return {"kv_usage", "context_length", "itl_ms", "max_kv_tokens"} <= set(opened.header)


def claims_prefill(opened: Opened) -> bool:
    """Whether the file's own content says that it is the prefill table.

    Args:
        opened: the file.

    Returns:
        True if its header names prompt length and TTFT.
    """
    return set(PREFILL) <= set(opened.header)


def read_decode(opened: Opened) -> Table:
    """Read each row as a decode step.

    kv = kv_usage * max_kv_tokens,  n = kv / context

    By Little's law throughput * ITL is the number that decoded. Where it is well below n, the rest waited, and the row
    is no step of n requests.

    Args:
        opened: the file.

    Returns:
        The trace's columns, `kv_usage`, and `steps_averaged`, which is not known: NaN.

    Raises:
        TraceError: a column missing, a cell that is no number or negative, a context of 0, or no row left.
    """
    frame, cut = text_table(opened, DECODE, FORM_DECODE)
    frame = numbers(frame, opened.file, DECODE)
    usage, context, itl_ms, throughput, most = (frame[name].to_numpy() for name in DECODE)
    if np.any(context <= 0):
        row = int(np.argmax(context <= 0))
        raise TraceError(opened.file, "a context above zero", row=row + 1, column="context_length", found=context[row])
    cache = usage * most
    decodes, itl_s = cache / context, itl_ms / 1e3
    waited = throughput * itl_s < (1 - WAITING) * decodes
    if waited.all():
        raise TraceError(opened.file, f"at least one row in {FORM_DECODE} whose requests all decoded, found none", column="thpt_per_gpu")
    said = ["durations are ITLs, means over a run of one batch: host time and gaps are in them"]
    if waited.any():
        shares = f"{100 * (1 - throughput * itl_s / np.maximum(decodes, 1e-9))[waited].max():.0f} %"
        said.append(
            f"in {int(waited.sum())} rows up to {shares} of the requests waited, by throughput times ITL: no such batch ran; set aside"
        )
    zero = np.zeros(len(cache))
    columns = {
        "step": 2 * np.arange(len(cache)),  # no two rows ran one after the other: none is another's neighbour
        "step_time_s": itl_s,
        "decode_requests": decodes,
        "decode_kv_tokens": cache,
        "prefill_tokens": zero,
        "prefill_pairs": zero,
        "prefill_requests": zero,
        "kv_usage": usage,
        "steps_averaged": np.full(len(cache), np.nan),
    }
    engine = {"kv_tokens": int(most.min())} if most.min() >= 1 else {}
    kept = pl.DataFrame(columns).filter(pl.Series(~waited))
    return Table(kept, {"unreadable": cut, "not_one_batch": int(waited.sum())}, tuple(said), engine=engine)


def read_prefill(opened: Opened) -> Table:
    """Read each row as the step of one prompt, alone in the engine.

    Args:
        opened: the file.

    Returns:
        The trace's columns.

    Raises:
        TraceError: a column missing, or a cell that is no number or negative.
    """
    frame, cut = text_table(opened, PREFILL, FORM_PREFILL)
    frame = numbers(frame, opened.file, PREFILL)
    prompt, ttft_ms = (frame[name].to_numpy() for name in PREFILL)
    zero = np.zeros(len(prompt))
    columns = {
        "step": 2 * np.arange(len(prompt)),
        "step_time_s": ttft_ms / 1e3,
        "decode_requests": zero,
        "decode_kv_tokens": zero,
        "prefill_tokens": prompt,
        "prefill_pairs": prompt**2 / 2,
        "prefill_requests": (prompt > 0).astype(float),
    }
    said = ("durations are TTFTs of single prompts: if an engine cut them into chunks, a row spans several steps",)
    return Table(pl.DataFrame(columns), {"unreadable": cut}, said)
