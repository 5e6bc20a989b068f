"""TensorRT-LLM's iteration statistics: the records of its /metrics, one JSON object an iteration and rank."""

from __future__ import annotations

import re

import msgspec

from headway.identification.readers.columns import MOST, Opened, Table
from headway.identification.readers.engine_log import Step, Streams, counted, frame_of, lines
from headway.identification.readers.errors import TraceError
from headway.identification.readers.fpm import wrong_record

FORM = "TensorRT-LLM's iteration statistics"

OLD = re.compile(rb'"Iteration Counter"\s*:')
LATENCY = (
    "hostStepTimeMS is not in {}: iterLatencyMS is taken as the duration, and under the overlap scheduler (the default) it spans about "
    "two loops of the executor, so that steps read up to twice as long as they are; record with a version that writes hostStepTimeMS"
)

LACKING = (
    "{} without inflightBatchingStats (numContextRequests, numCtxTokens, numGenRequests): what was in the batch is not recorded; start "
    "the engine with enable_iter_perf_stats, in a version that writes them"
)


class Batching(msgspec.Struct):
    """What was in the iteration.

    Args:
        numContextRequests: requests with a chunk [requests].
        numCtxTokens: their prompt tokens in the iteration [tokens].
        numGenRequests: requests that decode [requests].
        numCtxKvTokens: tokens in the cache before the chunks; None in older records [tokens].
        numGenKvTokens: cache tokens that the others read; None in older records [tokens].
        numQueuedContextRequests: requests that wait [requests].
    """

    numContextRequests: float | None = None
    numCtxTokens: float | None = None
    numGenRequests: float | None = None
    numCtxKvTokens: float | None = None
    numGenKvTokens: float | None = None
    numQueuedContextRequests: float | None = None


class Record(msgspec.Struct):
    """One record.

    Args:
        iterLatencyMS: life of the batch: about two loops under the overlap scheduler [ms].
        hostStepTimeMS: one loop of the executor [ms].
        prevDeviceStepTimeMS: of the iteration before, on the device [ms].
        gpuForwardTimeMS: of this one, on the device; newer records only [ms].
        inflightBatchingStats: what was in it.
        iter: running number; None in a record that has none.
        attentionDpRank: its data-parallel rank.
    """

    iterLatencyMS: float | None = None
    hostStepTimeMS: float | None = None
    prevDeviceStepTimeMS: float | None = None
    gpuForwardTimeMS: float | None = None
    inflightBatchingStats: Batching | None = None
    iter: int | None = None
    attentionDpRank: int | None = None


TIMES = ("iterLatencyMS", "hostStepTimeMS", "prevDeviceStepTimeMS", "gpuForwardTimeMS")


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it is this format.

    Args:
        opened: the file.

    Returns:
        True if its first object, or the first of its array, holds an iteration's latency.
    """
    start = opened.start.lstrip()
    return start[:1] in (b"{", b"[") and any(f'"{name}"'.encode() in start or OLD.search(start) for name in TIMES[:2])


def read(opened: Opened) -> Table:
    """Read the records, one a line or in one array. A last line that was cut off is set aside.

    The duration is hostStepTimeMS. A record that has only iterLatencyMS is read with that, which is said: it is no step time
    under the overlap scheduler. prevDeviceStepTimeMS belongs to the record before, gpuForwardTimeMS to its own.

    Args:
        opened: the file.

    Returns:
        The trace's columns; one stream a rank and start.

    Raises:
        TraceError: no such record, a number that cannot be, or records that lack what was in the batch.

    Source:
        https://github.com/NVIDIA/TensorRT-LLM/pull/14127
    """
    log = _Log(opened.file)
    for row, record in _records(opened, log.aside):
        log.take(row, record)
    if not log.steps:
        lacking = log.aside["incomplete"]
        raise TraceError(opened.file, f"a step in {FORM}; " + (LACKING.format(counted(lacking, "record")) if lacking else "found none"))
    return log.table()


def _records(opened: Opened, aside: dict[str, int]):
    """(row, record) of each."""
    if opened.start.lstrip().startswith(b"["):
        try:
            yield from enumerate(msgspec.json.decode(opened.data, type=list[Record]), 1)
        except msgspec.ValidationError as error:
            raise wrong_record(opened.file, 0, error, FORM) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(opened.file, f"a whole JSON array ({FORM})", found=str(error)) from None
        return
    decoder = msgspec.json.Decoder(Record)
    for row, (line, ended) in enumerate(lines(opened), 1):
        if not line.strip():
            continue
        try:
            yield row, decoder.decode(line.removeprefix(b"\xef\xbb\xbf"))
        except msgspec.ValidationError as error:
            raise wrong_record(opened.file, row, error, FORM) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            if ended:
                raise TraceError(opened.file, f"a JSON object ({FORM})", row=row, found=line.decode(errors="replace")) from None
            aside["unreadable"] += 1


class _Log:
    """What was read so far."""

    def __init__(self, file: str) -> None:
        self.file, self.latency, self.without_kv = file, 0, 0
        self.steps: list[Step] = []
        self.aside = {"not_a_step": 0, "incomplete": 0, "unreadable": 0}
        self.streams = Streams()
        self.last: dict[str, int] = {}
        self.numbers: dict[str, int] = {}

    def take(self, row: int, record: Record) -> None:
        batch = record.inflightBatchingStats
        self._check(row, record, TIMES)
        rank = f"rank {record.attentionDpRank or 0}"
        number = self.numbers.get(rank, -1) + 1 if record.iter is None else record.iter
        self.numbers[rank] = number
        self._device_time(rank, number, record)
        duration_ms = record.hostStepTimeMS if record.hostStepTimeMS is not None else record.iterLatencyMS
        if batch is None or duration_ms is None or None in (batch.numContextRequests, batch.numCtxTokens, batch.numGenRequests):
            self.aside["incomplete"] += 1
            return
        self._check(row, batch, Batching.__struct_fields__)
        if not batch.numCtxTokens and not batch.numGenRequests:
            self.aside["not_a_step"] += 1
            return
        self.latency += record.hostStepTimeMS is None
        stream = self.streams.name(rank, number)
        self.steps.append(self._step(batch, number, stream, duration_ms / 1e3, record.gpuForwardTimeMS))
        self.last[rank] = len(self.steps) - 1

    def _check(self, row: int, held: Record | Batching, names: tuple[str, ...]) -> None:
        for name in names:
            value = getattr(held, name)
            if value is not None and not 0 <= value <= MOST:
                raise TraceError(self.file, "a number that is not negative", row=row, column=name, found=value)

    def _device_time(self, rank: str, number: int, record: Record) -> None:
        """Put a device time where it belongs: on the record before, unless that says its own."""
        at = self.last.get(rank)
        if at is None or record.prevDeviceStepTimeMS is None:
            return
        before = self.steps[at]
        if before.step == number - 1 and before.device_time_s is None:
            self.steps[at] = before._replace(device_time_s=record.prevDeviceStepTimeMS / 1e3)

    def _step(self, batch: Batching, number: int, stream: str, duration_s: float, device_ms: float | None) -> Step:
        tokens, requests = batch.numCtxTokens or 0.0, batch.numGenRequests or 0.0
        chunks = max(batch.numContextRequests or 0.0, 1.0) if tokens else 0.0
        self.without_kv += batch.numGenKvTokens is None or batch.numCtxKvTokens is None
        pairs = tokens * ((batch.numCtxKvTokens or 0.0) + tokens / 2) / max(chunks, 1.0)
        device_s = None if device_ms is None else device_ms / 1e3
        waiting = batch.numQueuedContextRequests
        return Step(
            number, stream, duration_s, requests, batch.numGenKvTokens or 0.0, tokens, pairs, chunks,
            device_time_s=device_s, queued_requests=waiting,
        )  # fmt: skip

    def table(self) -> Table:
        steps, missing = self.steps, ()
        if self.without_kv:
            steps = [step._replace(decode_kv_tokens=0.0, prefill_pairs=0.0) for step in steps]
            missing = ("decode_kv_tokens", "prefill_pairs")
        said = (LATENCY.format(counted(self.latency, "record")),) if self.latency else ()
        return Table(frame_of(steps), self.aside, (*said, *self.streams.said()), missing)
