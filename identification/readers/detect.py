"""Which format a file is in: told by its content, never by its name; and what to say of formats that hold no steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from headway.identification.readers.columns import Opened, Table
from headway.identification.readers.errors import TraceError


class TraceReader(NamedTuple):
    """One row of `TRACE_READERS`.

    Args:
        says: the format in words.
        claims: whether a file's own content says that it is this format.
        read: the reader.
    """

    says: str
    claims: Callable[[Opened], bool]
    read: Callable[[Opened], Table]


RECOGNISED: tuple[tuple[str, str], ...] = (
    (r"\A(PK\x03\x04|\x28\xb5\x2f\xfd)", "a compressed file; unpack it first"),
    (r"Avg prompt throughput", "a vLLM log, which averages over many steps; record its forward pass metrics"),
    (r"Iteration\(\d+\): ", "vLLM's iteration details, which are not supported yet; record its forward pass metrics"),
    (r'"iteration_index"', "the record of a vLLM stat logger, which lacks the KV tokens read; record its forward pass metrics"),
    (r"(Decode|Prefill) batch", "an SGLang log, which averages over many steps and is not supported yet"),
    (r"iterLatencyMS|hostStepTime|host_step_time|\[TRT-LLM\]", "TensorRT-LLM iteration statistics, which are not supported yet"),
    (r"^# (HELP|TYPE) ", "Prometheus metrics, which count over all steps and hold no single one"),
    (r"ContextTokens|\binput_toks\b|\binput_length\b|^arrival_s,", "a workload: requests, not steps; give it as the workload"),
    (r'guidellm|"x_request_id"|"request_rate"|"resourceSpans"', "what a client saw of its requests; a plant needs the engine's own steps"),
    (r"headway/plant/", "a plant that is fitted already"),
)
"""Formats that hold no steps, or that no reader here knows yet: a pattern of their content, and what to say."""


def format_of(found: Opened, readers: dict[str, TraceReader], wanted: str) -> str:
    """Choose the reader.

    Args:
        found: the file.
        readers: the table of readers.
        wanted: a key of `readers`, or "auto".

    Returns:
        A key of `readers`.

    Raises:
        ValueError: no such format is known.
        TraceError: the file is empty, or no reader claims it; the message says what was tried, and what it looks like.
    """
    if wanted != "auto" and wanted not in readers:
        raise ValueError(f"unknown trace format {wanted!r}; this version reads auto, {', '.join(readers)}")
    if not found.start.strip():
        raise TraceError(found.file, "a trace of engine steps, found an empty file")
    if wanted != "auto":
        return wanted
    for name, reader in readers.items():
        if reader.claims(found):
            return name
    start = found.text
    for pattern, says in RECOGNISED:
        if re.search(pattern, start, re.MULTILINE):
            raise TraceError(found.file, f"a trace of engine steps; this looks like {says}")
    tried = "; ".join(f"{name}: {reader.says}" for name, reader in readers.items())
    line = start.split("\n", 1)[0].strip()
    raise TraceError(found.file, f"a trace of engine steps, tried {tried}", found=line)
