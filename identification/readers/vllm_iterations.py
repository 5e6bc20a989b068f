"""vLLM's iteration details: the line that it logs for each step if started with --enable-logging-iteration-details."""

from __future__ import annotations

import re
from typing import NamedTuple

from headway.identification.readers.columns import Opened, Table
from headway.identification.readers.engine_log import KV_SIZE, Step, Streams, counted, frame_of, holds, lines, whole
from headway.identification.readers.errors import TraceError

FORM = "vLLM's iteration details, a log line a step"

LINE = re.compile(
    rb"(?<![A-Za-z])Iteration\((\d{1,15})\): (\d{1,12}) context requests, (\d{1,12}) context tokens, "
    rb"(\d{1,12}) generation requests, (\d{1,12}) generation tokens, "
    rb"iteration elapsed time: (\d{1,12}(?:\.\d{1,9})?) ms( \(dummy\))?(?:, \w{1,8} KV cache usage: (\d{1,3}(?:\.\d{1,6})?)%)?"
)
BEGUN = b"Iteration("
CUT = re.compile(rb"(?<![A-Za-z])Iteration\(\d+(\)(: \d*)?)?[^:]*$")
ENGINE = re.compile(rb"(?:Engine (\d{1,6}):|EngineCore_DP(\d{1,6}))")
SHORTEST_MS = 0.1
"""No engine makes a step in less. Under it vLLM timed no more than the fetching of a result that lay there [ms]."""
MOST_SHORT = 0.1
"""Share of such lines from which on the others are no durations either."""
LACKS = ("prefill_pairs",)
WAIT = (
    "vLLM times its wait for the result of a step: under asynchronous scheduling, the default on GPUs, a step is longer by what the "
    "host does meanwhile, and wall-clock targets need that room"
)
ESTIMATE = (
    "decode_kv_tokens is an estimate: the share of the KV cache in use times its size, less the prompt tokens of the step; "
    "shared prefixes count once, half-filled prompts in full"
)

NO_SIZE = (
    "the lines tell the share of the KV cache in use, but the log not its size: with the start of the log, where vLLM says "
    "'GPU KV cache size', decode_kv_tokens can be estimated"
)


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it is such a log.

    Args:
        opened: the file.

    Returns:
        True if a line of it, wherever it stands, is an iteration detail.
    """
    return holds(opened, "vllm_iterations")


def read(opened: Opened) -> Table:
    """Read the lines of iteration details; all others are passed over.

    Context lengths are not in the line. Where it ends with the use of the KV cache, and the log says how large that is,
    decode_kv_tokens = usage * size - context tokens is taken; that is an estimate, and said to be one.

    Args:
        opened: the file.

    Returns:
        The trace's columns; durations from the iteration elapsed time [s]; one stream an engine and start.

    Raises:
        TraceError: no such line, none with a step, or lines that were timed under asynchronous scheduling and hold nothing.
    """
    log = _Log()
    for line, ended in lines(opened):
        log.take(line, ended)
    if not log.steps and not any(log.aside.values()):
        raise TraceError(opened.file, f"{FORM}, found no such line")
    short = log.aside["incomplete"] - log.garbled
    if short > MOST_SHORT * (short + len(log.steps)):
        raise TraceError(
            opened.file,
            f"{FORM}; {counted(short, 'step')} of {short + len(log.steps)} read less than {SHORTEST_MS} ms: under asynchronous "
            "scheduling vLLM times only the end of a step; start it with --no-async-scheduling, or record forward pass metrics",
        )
    if not log.steps:
        raise TraceError(opened.file, f"a step in {FORM}; the log holds only steps of idle ranks, or lines that are cut off")
    return log.table()


class _Line(NamedTuple):
    """One line's numbers, in its own units."""

    context_requests: int
    context_tokens: int
    requests: int
    tokens: int
    elapsed_ms: float
    usage: float | None


class _Log:
    """What was read so far."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.aside = {"dummy": 0, "incomplete": 0, "unreadable": 0}
        self.garbled = self.encoders = 0
        self.streams = Streams()
        self.sizes: list[int] = []
        self.size_at: list[int] = []

    def take(self, line: bytes, ended: bool) -> None:
        """Read one line, which may hold several records where two processes wrote into each other's line."""
        if size := KV_SIZE.search(line):
            self.sizes.append(whole(size[1]))
        if BEGUN not in line:
            return
        end = found = 0
        for match in LINE.finditer(line):
            self._take(match, line[end : match.start()], line[match.end() :])
            end, found = match.end(), found + 1
        if not found and (b"context requests" in line or (not ended and CUT.search(line))):
            self.aside["incomplete" if ended else "unreadable"] += 1
            self.garbled += ended

    def _take(self, match: re.Match[bytes], before: bytes, after: bytes) -> None:
        names = ENGINE.findall(before)
        engine = f"engine {int(names[-1][0] or names[-1][1])}" if names else "engine 0"
        number = int(match[1])
        if match[7]:
            self.aside["dummy"] += 1
            return
        usage = float(match[8]) / 100 if match[8] else None
        found = _Line(int(match[2]), int(match[3]), int(match[4]), int(match[5]), float(match[6]), usage)
        stream = self.streams.name(engine, number)
        if found.elapsed_ms < SHORTEST_MS and found.context_tokens + found.tokens > 0:
            self.aside["incomplete"] += 1
            return
        self.encoders += after.startswith(b", encoder inputs: ") and not after.startswith(b", encoder inputs: 0")
        chunks = max(found.context_requests, 1) if found.context_tokens else 0
        elapsed_s = found.elapsed_ms / 1e3
        self.steps.append(Step(number, stream, elapsed_s, found.requests, 0.0, found.context_tokens, 0.0, chunks, kv_usage=found.usage))
        self.size_at.append(max(len(self.sizes) - 1, 0))

    def table(self) -> Table:
        said, missing = [WAIT, *self.streams.said()], LACKS
        steps = self._with_kv()
        if steps is None:
            steps, missing = self.steps, ("decode_kv_tokens", *LACKS)
            if not self.sizes and any(step.kv_usage for step in steps):
                said.append(NO_SIZE)
        elif any(step.decode_requests for step in steps):
            said.append(ESTIMATE)
        if self.encoders:
            said.append(f"{counted(self.encoders, 'step')} ran an encoder as well (images, audio), which no plant here has a term for")
        if short := self.aside["incomplete"] - self.garbled:
            said.append(f"{counted(short, 'step')} read less than {SHORTEST_MS} ms: only their end was timed; set aside as incomplete")
        return Table(frame_of(steps), self.aside, tuple(said), missing, engine={"kv_tokens": self.sizes[-1]} if self.sizes else {})

    def _with_kv(self) -> list[Step] | None:
        """The steps with their cache tokens; None if one that decodes has no use of the cache, or no size of it is said."""
        if not self.sizes or any(step.decode_requests and step.kv_usage is None for step in self.steps):
            return None
        held = [(step.kv_usage or 0.0) * self.sizes[at] - step.prefill_tokens for step, at in zip(self.steps, self.size_at, strict=True)]
        return [
            step._replace(decode_kv_tokens=max(tokens, 0.0) if step.decode_requests else 0.0)
            for step, tokens in zip(self.steps, held, strict=True)
        ]
