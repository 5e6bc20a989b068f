"""Engine logs: their lines one by one, what tells them, and steps from numbers that stood in text."""

from __future__ import annotations

import gzip
import re
import weakref
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import polars as pl

from headway.identification.readers.columns import Opened
from headway.identification.readers.errors import TraceError
from headway.identification.trace import COLUMNS

CHUNK = 1 << 20
"""Bytes of a log that are looked through at once [bytes]."""
OVERLAP = 4096
"""Bytes of a chunk that are looked at again with the next one: no line that tells a log is longer [bytes]."""
BEHIND = 64
"""A counter that falls back further than this has started over; by less, its lines only stand out of order."""
GONE_ON = 8
"""So has one that begins at 0 or 1 again after it had gone on as far as this."""
KV_SIZE = re.compile(rb"(?:GPU|CPU) KV cache size: ([\d,]{1,20}) tokens")

MARKS: dict[str, tuple[bytes, re.Pattern[bytes]]] = {
    "vllm_iterations": (b"Iteration(", re.compile(rb"(?<![A-Za-z])Iteration\(\d+\): \d+ context requests")),
    "vllm_stats_lines": (b"Avg prompt throughput", re.compile(rb"Avg prompt throughput: [\d.]+ tokens/s")),
    "trtllm_iterations": (
        b"_time = ",
        re.compile(rb"\biter = \d+, .{0,400}?\b(?:host_step_time|elapsed_time) = |host_step_time = [\d.]+ ?ms"),
    ),
    "sglang": (b" batch", re.compile(rb"\b(?:Decode|Prefill) batch\b[^#\r\n]{0,24}#(?:running-req|new-seq): \d")),
}
"""What tells a log: a text that a line must hold, and the pattern around it. The first is searched for, as it is fast."""

_SEEN: weakref.WeakKeyDictionary[Opened, frozenset[str]] = weakref.WeakKeyDictionary()


class Step(NamedTuple):
    """One step as a log tells it.

    Args:
        step: running number in its stream.
        source: name of the stream.
        step_time_s: duration [s].
        decode_requests: requests that decode [requests].
        decode_kv_tokens: cache tokens that they read; 0 where that is not recorded [tokens].
        prefill_tokens: prompt tokens in the step [tokens].
        prefill_pairs: attention work of the chunks; 0 where that is not recorded [tokens^2].
        prefill_requests: requests with a chunk [requests].
        start_s: clock at the start of the step; None where that is not recorded [s].
        period_s: from its start to the start of the next one; None where the engine was idle between them [s].
        device_time_s: duration on the device alone [s].
        steps_averaged: engine steps that the numbers average.
        queued_requests: requests that wait [requests].
        kv_usage: share of the cache in use, 0 to 1.
    """

    step: int
    source: str
    step_time_s: float
    decode_requests: float
    decode_kv_tokens: float
    prefill_tokens: float
    prefill_pairs: float
    prefill_requests: float
    start_s: float | None = None
    period_s: float | None = None
    device_time_s: float | None = None
    steps_averaged: float | None = None
    queued_requests: float | None = None
    kv_usage: float | None = None


def lines(opened: Opened) -> Iterator[tuple[bytes, bool]]:
    """The lines of a log, one at a time: a log is read once and never held whole.

    Args:
        opened: the file.

    Returns:
        (line without its end; whether it had one: a last line without one may be cut off).

    Raises:
        TraceError: a compressed file that is broken.
    """
    try:
        with gzip.open(opened.file, "rb") if opened.packed else open(opened.file, "rb") as stream:
            for line in stream:
                yield line.rstrip(b"\r\n"), line.endswith(b"\n")
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(opened.file, "a whole gzip file", found=str(error)) from None


def holds(opened: Opened, log: str) -> bool:
    """Whether a line of this log stands anywhere in the file: what an engine says while it starts may fill megabytes.

    Args:
        opened: the file.
        log: a key of `MARKS`.

    Returns:
        True if there is one.
    """
    if opened not in _SEEN:
        _SEEN[opened] = frozenset(_logs_in(opened))
    return log in _SEEN[opened]


def frame_of(steps: Iterable[Step]) -> pl.DataFrame:
    """The steps as a table. Columns beside those of every trace are there if any step has them.

    Args:
        steps: in file order, shape (k,).

    Returns:
        The columns of `headway.identification.trace.COLUMNS` and others, shape (k, columns).
    """
    schema = {name: COLUMNS.get(name, pl.Float64) for name in Step._fields}
    frame = pl.DataFrame(list(steps), schema=schema, orient="row")
    return frame.drop([name for name in Step._fields if name not in COLUMNS and frame[name].null_count() == frame.height])


class Streams:
    """Names the streams of a log. A counter that starts over begins another one: between them lies a restart."""

    def __init__(self) -> None:
        self._largest: dict[str, int] = {}
        self._starts: dict[str, int] = {}

    def name(self, engine: str, number: int) -> str:
        """The stream of a record.

        Args:
            engine: which engine or rank wrote it.
            number: of its step, in that engine's own counting.

        Returns:
            The name of the engine, and from the second start on the number of the start.
        """
        largest = self._largest.get(engine, -1)
        over = number < largest - BEHIND or (number <= 1 and largest >= GONE_ON)
        self._largest[engine] = number if over else max(number, largest)
        self._starts[engine] = self._starts.get(engine, 1) + over
        start = self._starts[engine]
        return engine if start == 1 else f"{engine}, start {start}"

    def said(self) -> tuple[str, ...]:
        """What there is to say of restarts, one sentence each."""
        over = sum(self._starts.values()) - len(self._starts)
        return (f"the step counter started over {over} time{'s' * (over > 1)}: each start is a stream of its own",) if over else ()


def kv_size(opened: Opened) -> int | None:
    """Size of the KV cache as vLLM says it at the start, which must be in the start of the file that was looked at.

    Args:
        opened: the file.

    Returns:
        The size [tokens]; None if it is not said.
    """
    found = KV_SIZE.search(opened.start)
    return whole(found[1]) if found else None


def whole(digits: bytes) -> int:
    """A whole number with commas between thousands.

    Args:
        digits: at most 20 digits and commas.

    Returns:
        The number.
    """
    return int(digits.replace(b",", b"") or b"0")


def counted(number: int, what: str) -> str:
    """A number and what it counts, for a sentence.

    Args:
        number: how many.
        what: one of them.

    Returns:
        For example "1 line", "3 lines".
    """
    return f"{number} {what}{'s' * (number != 1)}"


def _logs_in(opened: Opened) -> Iterator[str]:
    """Names of the logs that have a line in the file."""
    left, before = dict(MARKS), b""
    try:
        with gzip.open(opened.file, "rb") if opened.packed else open(opened.file, "rb") as stream:
            while left and (chunk := stream.read(CHUNK)):
                seen = before + chunk
                for name in [name for name, (text, pattern) in left.items() if text in seen and pattern.search(seen)]:
                    del left[name]
                    yield name
                before = seen[-OVERLAP:]
    except (OSError, EOFError, zlib.error):
        return  # a broken file is told of by the reader that reads it
