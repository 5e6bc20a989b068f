"""TensorRT-LLM's iteration lines: what its PyTorch executor logs of each loop if started with print_iter_log."""

from __future__ import annotations

import re
from typing import NamedTuple

from headway.identification.readers.columns import Opened, Table
from headway.identification.readers.engine_log import Step, Streams, counted, frame_of, holds, lines
from headway.identification.readers.errors import TraceError

FORM = "TensorRT-LLM's iteration lines"

BEGIN = re.compile(rb"\biter = (\d{1,15}), ")
FIELD = re.compile(rb"\b([a-z_]{3,40})'?(?: =|:) (\d{1,15}(?:\.\d{1,24})?(?:e-?\d{1,2})?)")
TIMED = re.compile(rb"\b(?:host_step_time|elapsed_time) = ")
PADDED = (
    "num_scheduled_requests is not in the lines: num_generation_tokens stands for the requests that decode, and counts the padding of "
    "CUDA graphs and draft tokens as well"
)
ELAPSED = "host_step_time is not in the lines: elapsed_time is taken as the duration of a step"
SPLIT = (
    "cached_kv_tokens counts all requests of a step: in {} with prompt tokens as well as decoding requests all of it is booked on those "
    "that decode"
)


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it is such a log.

    Args:
        opened: the file.

    Returns:
        True if a line of it, wherever it stands, is an iteration line.
    """
    return holds(opened, "trtllm_iterations")


def read(opened: Opened) -> Table:
    """Read the iteration lines; all others are passed over.

    The duration is host_step_time, one loop of the executor, and elapsed_time in older lines, the same loop.
    prev_device_step_time belongs to the iteration before, and is put there as device_time_s. Requests that decode are
    num_scheduled_requests - num_ctx_requests: num_generation_tokens counts padding and drafts. The states of an iteration
    that scheduled nothing are those of the one before; it is no step.

    Args:
        opened: the file.

    Returns:
        The trace's columns; one stream a rank and start.

    Raises:
        TraceError: no such line, or none with a step.

    Source:
        https://github.com/NVIDIA/TensorRT-LLM/pull/3914 (padding), pull/14127 (which duration is which), pull/14734
        (cached_kv_tokens: what the cache holds for the sequences of the step, before it).
    """
    log = _Log()
    for line, ended in lines(opened):
        log.take(line, ended)
    if not log.steps:
        if not any(log.aside.values()):
            raise TraceError(opened.file, f"{FORM}, found no such line")
        raise TraceError(
            opened.file,
            f"a step in {FORM}; of {counted(sum(log.aside.values()), 'line')} none holds both a duration and the states of its batch",
        )
    return log.table()


class _Line(NamedTuple):
    """One line's numbers, in its own units; None where it has none."""

    host_step_time: float | None
    prev_device_step_time: float | None
    elapsed_time: float | None
    num_scheduled_requests: float | None
    kv_cache_util: float | None
    num_unscheduled: float | None
    num_ctx_requests: float | None
    num_ctx_tokens: float | None
    num_generation_tokens: float | None
    cached_kv_tokens: float | None
    global_rank: float | None


_NAMES = tuple(name.encode() for name in _Line._fields)


class _Log:
    """What was read so far."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.aside = {"not_a_step": 0, "incomplete": 0, "unreadable": 0}
        self.padded = self.elapsed = self.without_kv = self.both = 0
        self.streams = Streams()
        self.last: dict[str, int] = {}

    def take(self, line: bytes, ended: bool) -> None:
        """Read one line, which may hold several records where two ranks wrote into each other's line."""
        begins = [match.start() for match in BEGIN.finditer(line)]
        if not begins:
            if TIMED.search(line):
                # With no iteration and no batch: the gate of a benchmark, which sleeps, or a line that someone shortened.
                self.aside["incomplete" if b"num_ctx_tokens" in line or not ended else "not_a_step"] += 1
            return
        for start, end in zip(begins, [*begins[1:], len(line)], strict=True):
            self._take(line[start:end], ended or end < len(line))

    def _take(self, text: bytes, ended: bool) -> None:
        number = BEGIN.match(text)
        if number is None or not TIMED.search(text):
            return
        values = dict(FIELD.findall(text))
        found = _Line(*(float(values[name]) if name in values else None for name in _NAMES))
        duration_s = found.host_step_time / 1e3 if found.host_step_time is not None else found.elapsed_time
        iteration, engine = int(number[1]), f"rank {int(found.global_rank or 0)}"
        self._device_time(engine, iteration, found.prev_device_step_time)
        if not ended and not text.rstrip().endswith(b"}") and b"}, " not in text:
            self.aside["unreadable"] += 1
        elif duration_s is None or None in (found.num_ctx_requests, found.num_ctx_tokens, found.num_generation_tokens):
            self.aside["incomplete"] += 1
        elif not (found.num_scheduled_requests or (found.num_scheduled_requests is None and _tokens(found))):
            self.aside["not_a_step"] += 1
        else:
            self.elapsed += found.host_step_time is None
            self.steps.append(self._step(found, iteration, self.streams.name(engine, iteration), duration_s))
            self.last[engine] = len(self.steps) - 1

    def _device_time(self, engine: str, iteration: int, device_ms: float | None) -> None:
        """Put a device time where it belongs: on the iteration before, if that was a step."""
        at = self.last.get(engine)
        if at is not None and device_ms is not None and self.steps[at].step == iteration - 1:
            self.steps[at] = self.steps[at]._replace(device_time_s=device_ms / 1e3)

    def _step(self, found: _Line, iteration: int, stream: str, duration_s: float) -> Step:
        context, tokens = found.num_ctx_requests or 0.0, found.num_ctx_tokens or 0.0
        if found.num_scheduled_requests is None:
            requests = found.num_generation_tokens or 0.0
            self.padded += requests > 0
        else:
            requests = max(found.num_scheduled_requests - context, 0.0)
        chunks = max(context, 1.0) if tokens else 0.0
        cached, pairs = found.cached_kv_tokens or 0.0, 0.0
        self.without_kv += found.cached_kv_tokens is None
        if tokens:
            own = 0.0 if requests else cached
            cached, pairs = cached - own, tokens * (own + tokens / 2) / chunks
            self.both += requests > 0 and cached > 0
        waiting, usage = found.num_unscheduled, found.kv_cache_util
        return Step(iteration, stream, duration_s, requests, cached, tokens, pairs, chunks, queued_requests=waiting, kv_usage=usage)

    def table(self) -> Table:
        steps, missing = self.steps, ()
        if self.without_kv:
            steps = [step._replace(decode_kv_tokens=0.0, prefill_pairs=0.0) for step in steps]
            missing = ("decode_kv_tokens", "prefill_pairs")
        both = SPLIT.format(counted(self.both, "step")) if self.both and not missing else ""
        said = (PADDED if self.padded else "", ELAPSED if self.elapsed else "", both, *self.streams.said())
        return Table(frame_of(steps), self.aside, tuple(text for text in said if text), missing)


def _tokens(found: _Line) -> float:
    return (found.num_ctx_tokens or 0.0) + (found.num_generation_tokens or 0.0)
