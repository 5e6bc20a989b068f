"""Forward pass metrics as their publishers write them: the record of a tracing worker (JSON lines), and MessagePack."""

from __future__ import annotations

import msgspec
import polars as pl

from headway.identification.readers.columns import Opened, Table, numbers
from headway.identification.readers.engine_log import lines
from headway.identification.readers.errors import TraceError
from headway.identification.readers.fpm import SUMS, Scheduled, steps_table, wrong_record
from headway.identification.readers.msgpack_stream import ARRAYS, MAPS, objects

FORM_TRACE = "forward pass metrics as a worker traces them, one JSON object a line"
FORM_MSGPACK = "forward pass metrics in MessagePack"
VERSIONS = (1, 2)
"""Versions of the record. The second says what its durations were taken on; the rest is the same."""
ON_DEVICE = "execute_model_cuda"
LONGEST = 4096
"""A record takes some 600 bytes: a rest longer than this is no record cut off, but a stream that is no such one [bytes]."""
SAMPLED = (
    "the worker kept a sample of its steps, the latest of each interval (capture_mode sampled): a row's neighbours did not run "
    "beside it; trace in mode full to see every step"
)
DEVICE = f"wall_time was taken on the device alone ({ON_DEVICE}): it leaves out what the host does between steps"


class Metrics(msgspec.Struct):
    """The metrics of one step.

    Args:
        wall_time: duration of the step [s]; 0 in the heartbeat of an idle engine.
        counter_id: running number of the step in its worker.
        scheduled_requests: what was in it; under this name, or
        scheduled: under this one.
        worker_id: the worker; may be empty.
        dp_rank: its data-parallel rank.
        version: of the record, one of `VERSIONS`.
        timing_scope: what the duration was taken on; empty for the wall clock.
    """

    wall_time: float
    counter_id: int
    scheduled_requests: Scheduled | None = None
    scheduled: Scheduled | None = None
    worker_id: str | int | None = ""
    dp_rank: int = 0
    version: int = 1
    timing_scope: str = ""


class Event(msgspec.Struct):
    """What a tracing worker wraps around them.

    Args:
        fpm: the metrics.
        capture_mode: "full", or "sampled".
    """

    fpm: Metrics
    capture_mode: str = "full"


class Envelope(msgspec.Struct):
    """What the writer of its file wraps around that.

    Args:
        event: the traced event.
    """

    event: Event


def claims_trace(opened: Opened) -> bool:
    """Whether the file's own content says that it is this format.

    Args:
        opened: the file.

    Returns:
        True if its first object holds the metrics under their published names, wrapped or not.
    """
    return opened.first is not None and _kind(opened.first) is not None


def read_trace_records(opened: Opened) -> Table:
    """Read a worker's trace, with the envelope of its file, without it, or the bare metrics. A last line cut off is set aside.

    Args:
        opened: the file.

    Returns:
        The trace's columns; durations from `wall_time` [s].

    Raises:
        TraceError: a line that is no such object, other than a last one cut off; another version; a negative number; no step.
    """
    kind = _kind(opened.first or {})
    if kind is None:
        raise TraceError(opened.file, FORM_TRACE, found=opened.start.split(b"\n", 1)[0].decode(errors="replace"))
    decoder, gathered, cut = msgspec.json.Decoder(kind), _Gathered(opened.file, FORM_TRACE), 0
    for row, (line, ended) in enumerate(lines(opened), 1):
        if not line.strip():
            continue
        try:
            gathered.add(row, decoder.decode(line.removeprefix(b"\xef\xbb\xbf")))
        except msgspec.ValidationError as error:
            raise wrong_record(opened.file, row, error, FORM_TRACE) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            if ended:
                raise TraceError(opened.file, f"a JSON object ({FORM_TRACE})", row=row, found=line.decode(errors="replace")) from None
            cut = 1
    return gathered.table(cut)


def claims_msgpack(opened: Opened) -> bool:
    """Whether the file's own content says that it is this format.

    Args:
        opened: the file.

    Returns:
        True if it begins with a MessagePack map or array, and names the metrics.
    """
    begins = bool(opened.start) and opened.start[0] in MAPS | ARRAYS
    return begins and b"scheduled" in opened.start and (b"wall_time" in opened.start or b"counter_id" in opened.start)


def read_msgpack(opened: Opened) -> Table:
    """Read MessagePack maps: one after the other, as a publisher sends them, or in arrays. A last map cut off is set aside.

    Args:
        opened: the file.

    Returns:
        The trace's columns; durations from `wall_time` [s].

    Raises:
        TraceError: what is no such map, other than a last one cut off; another version; a negative number; no step.
    """
    data, gathered, cut = opened.data, _Gathered(opened.file, FORM_MSGPACK), 0
    decoder, row = msgspec.msgpack.Decoder(Metrics), 0
    try:
        for row, (start, end) in enumerate(objects(data), 1):
            if end is None:
                if len(data) - start > LONGEST or data[start] not in MAPS:
                    raise TraceError(opened.file, f"a whole map ({FORM_MSGPACK})", row=row, found=data[start : start + 40])
                cut = 1
                break
            gathered.add(row, decoder.decode(data[start:end]))
    except msgspec.ValidationError as error:
        raise wrong_record(opened.file, row, error, FORM_MSGPACK) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(opened.file, f"a map ({FORM_MSGPACK})", row=row, found=str(error)) from None
    except TraceError:
        raise
    except ValueError as error:
        raise TraceError(opened.file, f"a map ({FORM_MSGPACK})", row=row + 1, found=str(error)) from None
    return gathered.table(cut)


def _kind(first: dict) -> type[Envelope] | type[Event] | type[Metrics] | None:
    """How the metrics are wrapped, by the first object."""
    event = first.get("event")
    if isinstance(event, dict) and "fpm" in event:
        return Envelope
    if isinstance(first.get("fpm"), dict):
        return Event
    return Metrics if "scheduled_requests" in first and ("wall_time" in first or "counter_id" in first) else None


class _Gathered:
    """Records column by column."""

    def __init__(self, file: str, form: str) -> None:
        self.file, self.form = file, form
        self.columns: dict[str, list] = {name: [] for name in (*SUMS, "wall_time", "counter_id", "worker_id", "dp_rank")}
        self.sampled = self.device = False

    def add(self, row: int, record: Envelope | Event | Metrics) -> None:
        event = record.event if isinstance(record, Envelope) else record
        if isinstance(event, Event):
            self.sampled |= event.capture_mode == "sampled"
        metrics = event.fpm if isinstance(event, Event) else event
        if metrics.version not in VERSIONS:
            known = " or ".join(str(version) for version in VERSIONS)
            raise TraceError(self.file, f"version {known} of {self.form}", row=row, column="version", found=metrics.version)
        scheduled = metrics.scheduled_requests or metrics.scheduled
        if scheduled is None:
            raise TraceError(self.file, f"this key in {self.form}", row=row, column="scheduled_requests")
        self.device |= metrics.timing_scope == ON_DEVICE
        for name in SUMS:
            self.columns[name].append(getattr(scheduled, name))
        self.columns["wall_time"].append(metrics.wall_time)
        # as a float: a counter too large for a column of whole numbers is then refused by name, like any other
        self.columns["counter_id"].append(float(max(min(metrics.counter_id, 1 << 62), -1)))
        self.columns["worker_id"].append("" if metrics.worker_id is None else str(metrics.worker_id))
        self.columns["dp_rank"].append(str(metrics.dp_rank))

    def table(self, cut: int) -> Table:
        if not self.columns["wall_time"]:
            raise TraceError(self.file, f"at least one step in {self.form}, found none")
        table = steps_table(numbers(pl.DataFrame(self.columns), self.file, (*SUMS, "wall_time", "counter_id")), cut)
        said = tuple(text for text, holds in ((SAMPLED, self.sampled), (DEVICE, self.device)) if holds)
        return table._replace(warnings=(*table.warnings, *said), clock="device" if self.device else "wall")
