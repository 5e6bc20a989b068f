"""SGLang's decode and prefill lines: averages over steps, of which only those are read that hold nothing else."""

from __future__ import annotations

import re
import statistics
from typing import NamedTuple

from headway.identification.readers.columns import Opened, Table
from headway.identification.readers.engine_log import Step, counted, frame_of, holds, lines
from headway.identification.readers.errors import TraceError

FORM = "SGLang's decode and prefill lines"

LINE = re.compile(rb"\b(Decode|Prefill) batch\b[^#\r\n]{0,24}(#(?:running-req|new-seq): \d{1,9}.*)")
BEGUN = re.compile(rb"\b(?:Decode|Prefill) batch\b[.,\s\[]")
FIELD = re.compile(rb"#?([a-z][a-z /()\-]{1,40}): (\d{1,12}(?:\.\d{1,9})?)(?![\d.])")
DP_RANK = re.compile(rb"\bDP(\d{1,6})\b")
RANK = re.compile(rb"\b([A-Z]P\d{1,6})\b")
INTERVAL = re.compile(rb"\bdecode_log_interval['\"]?\s?[=:]\s?(\d{1,6})\b")
DEFAULT_INTERVAL = 40
"""Steps from one decode line to the next unless --decode-log-interval says another number."""
FEWEST = 3
"""Lines whose cache grew as one interval lets it, from which on that interval is believed."""
ENDS = (b"gen throughput (token/s): ", b"input throughput (token/s): ")


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it is such a log.

    Args:
        opened: the file.

    Returns:
        True if a line of it, wherever it stands, is a decode or prefill line.
    """
    return holds(opened, "sglang")


def read(opened: Opened) -> Table:
    """Read the lines from which a step time follows; all others are passed over, or set aside and counted.

    A decode line tells the tokens generated since the last decode line, by the time since then. With r requests, each of
    which gains `accept len` tokens a step (1 without speculative decoding), a step took

        step time = r * accept_len / gen throughput

    and r and the cache tokens are the means of both lines, as both change evenly between them. If a prefill ran between
    the two lines, or the engine was idle, the time holds that too: only a decode line right after a decode line is read. An
    engine that only decodes (disaggregated) may have been idle all the same; such rows are left to the rules for rows.

    A prefill line tells its own new tokens by the time since the last prefill line (in versions that write #pending-token;
    before, it told the tokens of the last one). That time holds one batch and nothing else only if no request was decoding,
    #running-req 0, and the line before was a prefill that left work waiting.

    Args:
        opened: the file.

    Returns:
        The trace's columns and steps_averaged; one stream a data-parallel rank.

    Raises:
        TraceError: no such line, or none from which a step time follows.

    Source:
        https://github.com/sgl-project/sglang/pull/40254, pull/33067 (what the gap holds); sglang/srt, the scheduler's metrics.
    """
    log = _Log()
    for line, ended in lines(opened):
        log.take(line, ended)
    if not log.steps:
        raise TraceError(opened.file, _refusal(log))
    return log.table()


def _refusal(log: _Log) -> str:
    """Why there is no step, and what to record instead."""
    if not any(log.aside.values()):
        return f"{FORM}, found no such line"
    why = {
        "first_of_stream": "first of a stream",
        "averaged_over_idle": "averaged over idle time or over prefills and decodes",
        "incomplete": "without a duration: time stamps resolve a second",
        "unreadable": "cut off",
    }
    held = ", ".join(f"{rows} {why[reason]}" for reason, rows in log.aside.items() if rows)
    return (
        f"a step in {FORM}; of {counted(sum(log.aside.values()), 'line')} none can be timed ({held}): only a decode line right after "
        "another decode line is free of prefills and idle time; record forward pass metrics, or a longer log of steady decoding"
    )


class _Line(NamedTuple):
    """One line's numbers; None where it has none."""

    decode: bool
    requests: float
    tokens: float | None
    throughput: float | None
    accept: float | None
    new_tokens: float
    new_requests: float
    queued: float | None
    pending: float | None
    usage: float | None
    interval: int | None = None


def _parsed(decode: bool, text: bytes) -> _Line:
    values = {name.strip(): float(value) for name, value in FIELD.findall(text)}
    throughput = values.get(b"gen throughput (token/s)" if decode else b"input throughput (token/s)")
    return _Line(
        decode, values.get(b"running-req", 0.0), values.get(b"full token", values.get(b"token")), throughput, values.get(b"accept len"),
        values.get(b"new-token", 0.0), values.get(b"new-seq", 0.0), values.get(b"queue-req"), values.get(b"pending-token"),
        values.get(b"full token usage", values.get(b"token usage")),
    )  # fmt: skip


class _Log:
    """What was read so far."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.aside = {"first_of_stream": 0, "averaged_over_idle": 0, "incomplete": 0, "unreadable": 0}
        self.before: dict[str, tuple[int, _Line]] = {}
        self.grown: list[float] = []
        self.interval: int | None = None
        self.changed = self.without_kv = self.accepted = 0

    def take(self, line: bytes, ended: bool) -> None:
        """Read one line. What stands before the record in it, such as a progress bar, is passed over."""
        if found := INTERVAL.search(line):
            self.interval = int(found[1]) or None
        match = LINE.search(line)
        if match is None:
            self.aside["unreadable"] += not ended and BEGUN.search(line) is not None
            return
        if not ended and any(end in line and not re.search(re.escape(end) + rb"\d+\.\d\d", line) for end in ENDS):
            self.aside["unreadable"] += 1
            return
        here = _parsed(match[1] == b"Decode", match[2])
        stream = _stream(line[: match.start()])
        number, before = self.before.get(stream, (0, None))
        self.before[stream] = (number + 1, here)
        reason = self._no_step(here, before)
        if reason or before is None:
            self.aside[reason or "first_of_stream"] += 1
        else:
            self.steps.append(self._decode(number, stream, before, here) if here.decode else _prefill(number, stream, here))

    def _no_step(self, here: _Line, before: _Line | None) -> str | None:
        """Why no step time follows from a line, a key of `READ_ASIDE`; None if one does."""
        if here.throughput is None:
            return "incomplete"
        if before is None:
            return "first_of_stream"
        if not here.throughput or not (here.requests if here.decode else here.new_tokens):
            return "averaged_over_idle"
        if here.decode:
            return None if before.decode else "averaged_over_idle"
        alone = here.pending is not None and not here.requests and not before.decode and (before.queued or before.pending)
        return None if alone else "averaged_over_idle"

    def _decode(self, number: int, stream: str, before: _Line, here: _Line) -> Step:
        requests, accept = (before.requests + here.requests) / 2, here.accept or 1.0
        self.changed += before.requests != here.requests
        self.accepted += here.accept is not None
        kv_tokens = 0.0
        if here.tokens and before.tokens:
            kv_tokens = (before.tokens + here.tokens) / 2
            if before.requests == here.requests and here.accept is None:
                self.grown.append((here.tokens - before.tokens) / here.requests)
        else:
            self.without_kv += 1
        step_time_s = requests * accept / (here.throughput or 1.0)
        return Step(number, stream, step_time_s, requests, kv_tokens, 0.0, 0.0, 0.0, queued_requests=here.queued, kv_usage=here.usage)

    def table(self) -> Table:
        averaged, said = self._interval()
        steps = [step._replace(steps_averaged=1.0 if step.prefill_tokens else averaged) for step in self.steps]
        missing: tuple[str, ...] = ("prefill_pairs",) if any(step.prefill_tokens for step in steps) else ()
        if self.without_kv:
            steps, missing = [step._replace(decode_kv_tokens=0.0) for step in steps], ("decode_kv_tokens", *missing)
        if self.accepted:
            said += "; the accepted tokens of speculative decoding are divided out by the accept len of each line"
        warnings = [said] if any(not step.prefill_tokens for step in steps) else []
        if self.changed:
            warnings.append(f"in {counted(self.changed, 'line')} the requests changed since the line before: the mean of both is taken")
        if not missing and not any(step.prefill_tokens for step in steps):
            warnings.append("no prefill could be timed: this log tells of decoding alone")
        return Table(frame_of(steps), self.aside, tuple(warnings), missing)

    def _interval(self) -> tuple[float, str]:
        """Engine steps from line to line: said in the log, else seen in the growth of the cache, else the default."""
        each = "each decode line averages over {} steps ({}): the spread from step to step is not in this log"
        if self.interval:
            return float(self.interval), each.format(self.interval, "decode_log_interval, as the log says")
        seen = round(statistics.median(self.grown)) if len(self.grown) >= FEWEST else 0
        if seen > 0 and sum(abs(grown - seen) < 1 for grown in self.grown) * 2 > len(self.grown):
            return float(seen), each.format(seen, "seen in how the cache grew")
        return float(DEFAULT_INTERVAL), each.format(DEFAULT_INTERVAL, "the default of decode_log_interval, assumed")


def _prefill(number: int, stream: str, here: _Line) -> Step:
    """A prefill that ran alone. What its chunks had in the cache is not in the line."""
    seconds = here.new_tokens / (here.throughput or 1.0)
    chunks = max(here.new_requests, 1.0)
    return Step(number, stream, seconds, 0.0, 0.0, here.new_tokens, 0.0, chunks, queued_requests=here.queued, kv_usage=here.usage)


def _stream(before: bytes) -> str:
    """A data-parallel rank, else the rank that logs for all; without any the engine itself."""
    rank = DP_RANK.findall(before)
    if rank:
        return f"DP{int(rank[-1])}"
    ranks = RANK.findall(before)
    return ranks[0].decode() if ranks else "engine"
