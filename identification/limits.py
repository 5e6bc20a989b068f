"""What the engine can bear: from its configuration beside the trace, from the command line, and else from the rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from headway.identification.trace import Trace
from headway.models.signals import Limits


def limits_of(trace: Trace, given: Limits | Mapping[str, Any] | None) -> tuple[Limits, list[str]]:
    """The engine's limits.

    Args:
        trace: with what its configuration said, shape (k,).
        given: all limits, or some of them by field of `Limits`; they count before the trace's.

    Returns:
        (limits; what there is to say, one sentence each).

    Raises:
        ValueError: an unknown field, or limits under which no request could run.
    """
    if isinstance(given, Limits):
        given.check()
        return given, []
    fields = [f.name for f in dataclasses.fields(Limits)]
    unknown = [name for name in given or {} if name not in fields]
    if unknown:
        raise ValueError(f"unknown engine limits {unknown}; known are {fields}")
    known: dict[str, Any] = {**trace.engine, **(given or {})}
    said = []
    block = int(known.get("block_tokens", Limits.block_tokens))
    if block < 1:
        raise ValueError(f"block_tokens must be at least 1, got {block}")
    if "kv_tokens" not in known:
        batch = trace.batch()
        largest = int((batch.decode_kv_tokens + batch.prefill_tokens + batch.decode_requests).max())
        known["kv_tokens"] = max(-(-largest // block), 1) * block
        said.append(f"the size of the KV cache is not in the trace; taken as the largest use seen, {known['kv_tokens']:,} tokens")
    said += _believe_rows(trace, known, given or {})
    limits = Limits(**known)
    limits.check()
    return limits, said


def is_told(trace: Trace, given: Limits | Mapping[str, Any] | None, field: str) -> bool:
    """Whether somebody said a limit, and it is no default.

    Args:
        trace: with what its configuration said, shape (k,).
        given: all limits, or some of them by field of `Limits`.
        field: of `Limits`.

    Returns:
        True where it was given, or stands in the engine's configuration.
    """
    return isinstance(given, Limits) or field in trace.engine or field in (given or {})


def _believe_rows(trace: Trace, known: dict[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Raise a limit that nobody gave to what the rows show: a default must not contradict a measurement."""
    batch = trace.batch()
    seen = {"max_tokens": batch.prefill_tokens + batch.decode_requests, "max_seqs": batch.decode_requests}
    said = []
    held, most = int(known["kv_tokens"]), int(batch.decode_kv_tokens.max())
    if most > held:
        said.append(f"kv_tokens is {held:,}, but a step read {most:,} cache tokens: right only where requests share their prefixes")
    for field, values in seen.items():
        most, held = int(values.max()), int(known.get(field, getattr(Limits, field)))
        if most > held:
            if field in given:
                said.append(f"{field} was given as {held}, but the trace shows {most}")
            else:
                known[field] = most
    return said
