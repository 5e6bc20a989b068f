"""Which format a file is in: told by its content, never by its name; and what to say of formats that hold no steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from headway.identification.readers.columns import Opened, Table
from headway.identification.readers.engine_log import holds, kv_size
from headway.identification.readers.errors import TraceError
from headway.identification.readers.unknown import Format, names_in, nearest, unknown
from headway.identification.trace import COLUMNS


class TraceReader(NamedTuple):
    """One row of `TRACE_READERS`.

    Args:
        says: the format in words.
        claims: whether a file's own content says that it is this format.
        read: the reader.
        columns: of a CSV, that it must have: they tell how near another file is to it.
        keys: the same of its first JSON object.
    """

    says: str
    claims: Callable[[Opened], bool]
    read: Callable[[Opened], Table]
    columns: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


TABLE = tuple(name for name in COLUMNS if name != "source")
"""Columns of Headway's own step table, for whoever has to write one."""
INSTEAD, LISTED = "give the engine's log or table, or write Headway's step table", 'docs/commands.md, "A trace",'
"""What to do with a file of no known format, and where the formats stand."""
STATS = "vllm_stats_lines"
"""The log of `engine_log.MARKS` that no reader takes."""

RECOGNISED: tuple[tuple[str, str], ...] = (
    (r"\A(PK\x03\x04|\x28\xb5\x2f\xfd)", "a compressed file; unpack it first"),
    (
        r"^(Avg latency: [\d.]+ seconds|\d+% percentile latency: )|\"avg_latency\"",
        "a latency benchmark, which times whole requests and no step: it lacks the batch and the duration of each step; "
        "record the steps of a server with --enable-logging-iteration-details, or its forward pass metrics",
    ),
    (
        r"Avg prompt throughput: [\d.]+ tokens/s",
        "vLLM's stats lines; a stats line every 10 s is no step trace: it lacks the batch and the duration of each step; "
        "start vLLM with --enable-logging-iteration-details, or record its forward pass metrics",
    ),
    (
        r"^# (HELP|TYPE) ",
        "Prometheus metrics, which count over all steps: they lack the batch and the duration of each step; "
        "record a vLLM log with --enable-logging-iteration-details, or forward pass metrics",
    ),
    (
        r"Batchsize forward time stats",
        "vLLM's forward times by batch size, which are medians since the start: they lack the batch of each step; "
        "start vLLM with --enable-logging-iteration-details, or record its forward pass metrics",
    ),
    (
        r'"queued_ts"',
        "requests with an engine's stamps, which hold the first and the last token and no step between them; headway transport reads them",
    ),
    (
        r"ContextTokens|\bRequest tokens\b|\binput_toks\b|\binput_length\b|^arrival_s,",
        "a workload: requests, not steps; give it as the workload",
    ),
    (
        r'"guidellm_version"',
        "a GuideLLM report, which stamps the first and the last token of a request and no step between them; headway transport reads it",
    ),
    (
        r'"resourceSpans"',
        "OpenTelemetry spans of requests, which hold no step of the engine; headway transport reads them beside a client's file",
    ),
    (
        r"\AMetric,avg,min,max,|\A\s*\{\s*\"records\":\s*\{",
        "AIPerf's summary, which holds averages and no single request; give the profile_export.jsonl beside it",
    ),
    (r"headway/plant/", "a plant that is fitted already, and no trace: headway score and headway tune take it"),
    (r"headway/controller/", "a tuned controller, which holds no steps: headway validate and headway export take it"),
    (
        r'"(scheduler|model|cache|parallel)_config\b|"engine_kwargs"',
        "an engine's configuration, which holds no steps; give the trace that lies beside it: the limits are read from there",
    ),
    (
        r"\A[^\n]*prompt_throughput,gen_throughput",
        "a time series of a server's throughput, which averages over many steps: it lacks the batch and the duration of each step; "
        "give the kernel tables beside it (the folder of attention.csv), which are held against it",
    ),
)
"""Formats that hold no steps: a pattern of their content, and what to say."""

REPORT = (
    r"\A\s*\{[^\0]*\}\s*\Z",
    "a JSON report that no reader here knows, as kernel benchmarks write: their layouts are no published "
    f"format; write a row a measured batch into a CSV with {', '.join(TABLE)}",
)
"""The same of any other JSON, where it is near no format."""


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
        TraceError: the file is empty, or no reader claims it; the message says what it looks like, or which format it is nearest to.
    """
    if wanted != "auto" and wanted not in readers:
        raise ValueError(f"unknown trace format {wanted!r}; this version reads auto, {', '.join(readers)}")
    if not found.start.strip():
        raise TraceError(found.file, "a trace of engine steps, found an empty file")
    if _utf16(found.start):
        raise TraceError(found.file, "UTF-8 text; the file is UTF-16, as PowerShell's > writes it: write it as UTF-8")
    if wanted != "auto":
        return wanted
    if mark := _separator(found):
        raise TraceError(found.file, f"commas between the cells of a CSV; its first line is separated by {mark}: write it with commas")
    for name, reader in readers.items():
        if reader.claims(found):
            return name
    start = found.text
    for pattern, says in RECOGNISED:
        if re.search(pattern, start, re.MULTILINE):
            raise TraceError(found.file, f"a trace of engine steps; this looks like {says}{_of_use(found)}")
    if holds(found, STATS):
        says = next(says for pattern, says in RECOGNISED if re.search(pattern, "Avg prompt throughput: 0.0 tokens/s"))
        raise TraceError(found.file, f"a trace of engine steps; this looks like {says}{_of_use(found)}")
    shape = "columns" if found.first is None else "keys"
    near = nearest(names_in(found), {name: Format(reader.says, getattr(reader, shape)) for name, reader in readers.items()})
    if near is None and re.search(REPORT[0], start):
        raise TraceError(found.file, f"a trace of engine steps; this looks like {REPORT[1]}")
    raise TraceError(found.file, unknown(found, "a trace of engine steps", near, INSTEAD, LISTED))


def _separator(found: Opened) -> str:
    """What stands between the names in the first line, if they are names and it is no comma."""
    line = found.text.split("\n", 1)[0].strip()
    for mark, said in ((";", "';'"), ("\t", "tabs"), ("|", "'|'")):
        names = [name.strip(' "') for name in line.split(mark)]
        if len(names) > 2 and "," not in line and all(re.fullmatch(r"[A-Za-z_][\w .()/%-]*", name) for name in names):
            return said
    return ""


def _utf16(start: bytes) -> bool:
    """Whether text is in two bytes a character: by its mark, or by zeros in every second place beside plain letters."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return True
    if start.startswith(b"PAR1"):
        return False
    even, odd = start[:400:2], start[1:400:2]
    return any(len(zeros) >= 4 and not any(zeros) and text.isascii() and all(text) for zeros, text in ((even, odd), (odd, even)))


def _of_use(found: Opened) -> str:
    """What a refused log is good for all the same."""
    size = kv_size(found)
    return f"; the size of the KV cache in it is of use, as --kv-tokens {size}" if size else ""
