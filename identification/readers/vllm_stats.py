"""What a vLLM stat-logger plugin writes of each step: one JSON object a line, with vLLM's own iteration details inside."""

from __future__ import annotations

import msgspec

from headway.identification.readers.columns import MOST, Opened, Table
from headway.identification.readers.engine_log import Step, Streams, frame_of, lines
from headway.identification.readers.errors import TraceError
from headway.identification.readers.fpm import wrong_record
from headway.identification.readers.vllm_iterations import LACKS, SHORTEST_MS
from headway.identification.readers.wall_clock import on_the_wall

FORM = "the record of a vLLM stat logger, one JSON object a line"


class Details(msgspec.Struct):
    """vLLM's iteration details.

    Args:
        iteration_index: running number of the step.
        num_ctx_requests: requests with a chunk [requests].
        num_ctx_tokens: their prompt tokens in the step [tokens].
        num_generation_requests: requests that decode [requests].
        num_generation_tokens: their tokens [tokens].
        elapsed_ms: from the wait for the model's result to its end: without scheduling and updating [ms].
        is_dummy: a step of an idle data-parallel rank.
    """

    iteration_index: int
    num_ctx_requests: float
    num_ctx_tokens: float
    num_generation_requests: float
    num_generation_tokens: float
    elapsed_ms: float
    is_dummy: bool = False


class Record(msgspec.Struct):
    """One line.

    Args:
        t: clock when the record was written, after the step [s].
        it: the step; None in a record of an engine that fell idle.
        running: requests that run after the step [requests].
        waiting: requests that wait [requests].
        kv: share of the KV cache in use, 0 to 1.
        engine: number of the engine, where the plugin writes it.
    """

    t: float
    it: Details | None
    running: float = 0.0
    waiting: float = 0.0
    kv: float | None = None
    engine: int | str = 0


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it is this format.

    Args:
        opened: the file.

    Returns:
        True if its first object holds a clock, the engine's state and iteration details.
    """
    return opened.first is not None and all(name in opened.first for name in ("t", "it", "running", "waiting"))


def read(opened: Opened) -> Table:
    """Read the record. A last line that was cut off is set aside.

    start = t - elapsed: the plugin runs in another process, some tenths of a millisecond after the step. A period runs to
    the start of the next step, and is left out where the engine fell idle between them. elapsed_ms leaves out what the host
    does between steps, so the periods are the durations where they are known, and elapsed_ms is kept as `device_time_s`.

    Args:
        opened: the file.

    Returns:
        The trace's columns, durations from start to start [s]; start_s, period_s, device_time_s, queued_requests and kv_usage.

    Raises:
        TraceError: a line that is no such object, other than a last one cut off; a number out of range; no step.
    """
    decoder, log = msgspec.json.Decoder(Record), _Log()
    for row, (line, ended) in enumerate(lines(opened), 1):
        if not line.strip():
            continue
        try:
            record = decoder.decode(line.removeprefix(b"\xef\xbb\xbf"))
        except msgspec.ValidationError as error:
            raise wrong_record(opened.file, row, error, FORM) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            if ended:
                raise TraceError(opened.file, f"a JSON object ({FORM})", row=row, found=line.decode(errors="replace")) from None
            log.aside["unreadable"] += 1
            continue
        _check(opened.file, row, record)
        log.take(record)
    if not log.steps:
        raise TraceError(opened.file, f"at least one step in {FORM}, found none: start vLLM with --enable-logging-iteration-details")
    timed = on_the_wall(frame_of(log.steps))
    aside = log.aside | {"incomplete": log.aside["incomplete"] + timed.aside.get("incomplete", 0)}
    return Table(timed.frame, aside, (*timed.said, *log.streams.said()), ("decode_kv_tokens", *LACKS), timed.clock)


class _Log:
    """What was read so far."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.aside = {"dummy": 0, "not_a_step": 0, "incomplete": 0, "unreadable": 0}
        self.streams = Streams()
        self.last: dict[str, int] = {}

    def take(self, record: Record) -> None:
        it, engine = record.it, f"engine {record.engine}"
        if it is None:
            self.aside["not_a_step"] += 1
            self.last.pop(engine, None)  # the engine fell idle: no period runs over this record
        elif it.is_dummy:
            self.aside["dummy"] += 1
        elif it.elapsed_ms < SHORTEST_MS and it.num_ctx_tokens + it.num_generation_tokens > 0:
            self.aside["incomplete"] += 1
        else:
            self._step(record, it, engine)

    def _step(self, record: Record, it: Details, engine: str) -> None:
        elapsed_s = it.elapsed_ms / 1e3
        start_s = record.t - elapsed_s
        at = self.last.pop(engine, None)
        if at is not None and (before := self.steps[at]).step == it.iteration_index - 1 and before.start_s is not None:
            # A record that was written late may seem to begin before the one before it: then there is no period to tell.
            period_s = start_s - before.start_s
            self.steps[at] = before._replace(period_s=period_s if period_s > 0 else None)
        chunks = max(it.num_ctx_requests, 1.0) if it.num_ctx_tokens else 0.0
        stream = self.streams.name(engine, it.iteration_index)
        step = Step(
            it.iteration_index, stream, elapsed_s, it.num_generation_requests, 0.0, it.num_ctx_tokens, 0.0, chunks,
            start_s=start_s, queued_requests=record.waiting, kv_usage=record.kv,
        )  # fmt: skip
        self.steps.append(step)
        if record.running or record.waiting:
            self.last[engine] = len(self.steps) - 1


def _check(file: str, row: int, record: Record) -> None:
    """Refuse what cannot be, by its key."""
    checked: dict[str, float] = {"running": record.running, "waiting": record.waiting, "kv": record.kv or 0.0}
    if not abs(record.t) <= MOST:
        raise TraceError(file, "a clock in seconds", row=row, column="t", found=record.t)
    if record.it is not None:
        checked |= {f"it.{name}": getattr(record.it, name) for name in Details.__struct_fields__[:-1]}
    for name, value in checked.items():
        if not 0 <= value <= MOST:
            raise TraceError(file, "a number that is not negative", row=row, column=name, found=value)
