"""The trace of Headway's own adapter inside vLLM: a header, then one JSON object a step; a server started again writes a new header."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import polars as pl

from headway.identification.readers.columns import MOST, Opened, Table
from headway.identification.readers.engine_log import counted, lines
from headway.identification.readers.errors import TraceError
from headway.identification.readers.fpm import wrong_record
from headway.identification.trace import COLUMNS

FORM = "the trace of Headway's adapter in vLLM"
FORM_CPU = "the same, by the CPU time of the process that runs the llm"
VERSION = 1
SUMS = ("decode_requests", "decode_kv_tokens", "prefill_tokens", "prefill_pairs", "prefill_requests")
LIMITS = {
    "kv_tokens": "kv_tokens",
    "block_tokens": "block_tokens",
    "max_seqs": "max_seqs",
    "max_tokens": "max_tokens",
    "max_len": "max_len",
}
"""Limits in a header, and the field of `Limits` that each is."""


class Header(msgspec.Struct):
    """What the steps behind it are of.

    Args:
        headway_trace: version of the format.
        engine: whose steps they are.
        version: of the engine.
        asynchronous: a step was composed while the one before it ran.
        limits: that the engine was started with [tokens, requests].
        mode: of the adapter.
        clock: which durations the adapter was told to be read by, "wall" or "cpu".
    """

    headway_trace: int
    engine: str = "vllm"
    version: str = ""
    asynchronous: bool = msgspec.field(name="async", default=False)
    limits: dict[str, int] = {}
    mode: str = ""
    clock: str = "wall"


class Row(msgspec.Struct):
    """One step.

    Args:
        step: number since the start of the engine.
        clock_s: monotonic clock when it was composed [s].
        step_time_s: its duration, done(k) - max(sched_end(k), done(k-1)) [s].
        decode_requests: requests that decoded [requests].
        decode_kv_tokens: cache tokens that they read [tokens].
        prefill_tokens: prompt tokens [tokens].
        prefill_pairs: attention work of the chunks [tokens^2].
        prefill_requests: requests with a chunk [requests].
        token_budget: in force [tokens].
        running_limit: in force [requests].
        chunk_tokens: cap of one request's chunk in force; 0 is none [tokens].
        waiting: requests that waited when it was composed [requests].
        running: requests that ran [requests].
        kv_usage: share of the cache in use, 0 to 1.
        worker_cpu_s: CPU time of the process that ran the llm [s]; null where it tells nothing.
        schedule_s: inside the scheduler [s].
        binding: its budget was used up while prompt work was waiting.
        admitted: requests that came in.
        preempted: requests that had to leave.
        shed: requests refused since the step before.
        mode: of the adapter.
    """

    step: int
    clock_s: float
    step_time_s: float
    decode_requests: float
    decode_kv_tokens: float
    prefill_tokens: float
    prefill_pairs: float
    prefill_requests: float
    token_budget: float
    running_limit: float
    chunk_tokens: float
    waiting: float = 0.0
    running: float = 0.0
    kv_usage: float = 0.0
    worker_cpu_s: float | None = None
    schedule_s: float = 0.0
    binding: bool = False
    admitted: float = 0.0
    preempted: float = 0.0
    shed: float = 0.0
    mode: str = ""


CHECKED = tuple(name for name in Row.__struct_fields__ if name not in ("clock_s", "worker_cpu_s", "binding", "mode"))


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it is this format, to be read by the wall clock.

    Args:
        opened: the file.

    Returns:
        True if its first line is such a header.
    """
    return _begins(opened) and not claims_cpu(opened)


def claims_cpu(opened: Opened) -> bool:
    """Whether the file's own content says that it is this format, to be read by CPU time.

    Args:
        opened: the file.

    Returns:
        True if its first line is such a header and says so.
    """
    return _begins(opened) and (opened.first or {}).get("clock") == "cpu"


def _begins(opened: Opened) -> bool:
    return opened.first is not None and "headway_trace" in opened.first


def read(opened: Opened) -> Table:
    """Read the trace by the wall clock. A last line that was cut off is set aside.

    Args:
        opened: the file.

    Returns:
        The trace's columns, and the adapter's own as they are; one stream a start of the engine.

    Raises:
        TraceError: a line that is no step, other than a last one cut off; a number out of range; no step.
    """
    return _table(opened, cpu=False)


def read_cpu(opened: Opened) -> Table:
    """Read the trace by the CPU time of the process that runs the llm: on a busy machine of CPUs, the wall clock times the others too.

    Args:
        opened: the file.

    Returns:
        As `read`; durations are `worker_cpu_s`, and the clock is the device's. `wall_time_s` keeps the wall's.

    Raises:
        TraceError: as `read`, or the trace holds no CPU time.
    """
    return _table(opened, cpu=True)


def _table(opened: Opened, *, cpu: bool) -> Table:
    aside, headers = {"unreadable": 0, "incomplete": 0}, []
    rows = [{"source": _stream(len(headers)), **msgspec.structs.asdict(row)} for row in _rows(opened, aside, headers)]
    if not rows:
        raise TraceError(opened.file, f"at least one step in {FORM}, found none: the server ran nothing while it was recorded")
    frame = pl.DataFrame(rows, infer_schema_length=None).with_columns(pl.col("clock_s").alias("start_s"))
    said = _host_share(frame)
    if cpu:
        frame, said = _by_cpu(frame, opened.file, aside)
    header = headers[-1]
    engine = {field: header.limits[name] for name, field in LIMITS.items() if header.limits.get(name, 0) > 0}
    others = [name for name in frame.columns if name not in COLUMNS]
    return Table(frame.select(*COLUMNS, *others), aside, said, (), "device" if cpu else "wall", engine)


def _stream(starts: int) -> str:
    """The rows behind each header are a stream of their own: step numbers begin anew with a server."""
    return f"start {starts}" if starts > 1 else "engine"


def _rows(opened: Opened, aside: dict[str, int], headers: list[Header]) -> Iterator[Row]:
    """Steps in file order; headers are put into a list on the way."""
    row_decoder, header_decoder = msgspec.json.Decoder(Row), msgspec.json.Decoder(Header)
    for number, (line, ended) in enumerate(lines(opened)):
        text = line.removeprefix(b"\xef\xbb\xbf").strip()
        if not text:
            continue
        begins = b'"headway_trace"' in text
        try:
            found = header_decoder.decode(text) if begins else row_decoder.decode(text)
        except msgspec.ValidationError as error:
            raise wrong_record(opened.file, number, error, FORM) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            # a server that was killed leaves half a line, and the next start writes its header behind it
            if ended and b'"headway_trace"' not in text:
                raise TraceError(opened.file, f"a JSON object ({FORM})", row=number, found=line.decode(errors="replace")) from None
            aside["unreadable"] += 1
            if ended:
                headers.append(_behind(text, header_decoder, opened.file, number))
            continue
        if isinstance(found, Header):
            if found.headway_trace != VERSION:
                raise TraceError(opened.file, f"version {VERSION} of {FORM}", row=number, column="headway_trace", found=found.headway_trace)
            headers.append(found)
        else:
            _check(opened.file, number, found)
            yield found


def _behind(text: bytes, decoder: msgspec.json.Decoder[Header], file: str, row: int) -> Header:
    """The header behind the half line of a server that was killed."""
    at = text.find(b'{"headway_trace"')
    try:
        return decoder.decode(text[max(at, 0) :])
    except msgspec.MsgspecError:
        raise TraceError(file, f"a JSON object ({FORM})", row=row, found=text.decode(errors="replace")) from None


def _check(file: str, row: int, found: Row) -> None:
    """Refuse what cannot be, by its key."""
    for name in CHECKED:
        value = getattr(found, name)
        if not 0 <= value <= MOST:
            raise TraceError(file, "a number that is not negative", row=row, column=name, found=value)
    if not abs(found.clock_s) <= MOST:
        raise TraceError(file, "a clock in seconds", row=row, column="clock_s", found=found.clock_s)


def _by_cpu(frame: pl.DataFrame, file: str, aside: dict[str, int]) -> tuple[pl.DataFrame, tuple[str, ...]]:
    known = frame["worker_cpu_s"].cast(pl.Float64).fill_null(0.0) > 0
    if not known.any():
        raise TraceError(file, "CPU times (worker_cpu_s), which the adapter writes where vLLM runs on CPUs; read it by the wall clock")
    left = frame.height - int(known.sum())
    aside["incomplete"] += left
    frame = frame.with_columns(wall_time_s=pl.col("step_time_s"), step_time_s=pl.col("worker_cpu_s")).filter(known)
    said = f"durations are the CPU time of the process that runs the llm; {counted(left, 'step')} without it"
    return frame, (said,)


def _host_share(frame: pl.DataFrame) -> tuple[str, ...]:
    """Say how much of a busy engine's period lies outside the steps: targets are promised on the wall clock."""
    period = frame.select(
        period=pl.when(pl.col("step").shift(-1) == pl.col("step") + 1).then(pl.col("clock_s").shift(-1) - pl.col("clock_s")),
        device="step_time_s",
        running="running",
    )
    busy = period.filter((pl.col("period") > 0) & (pl.col("running") > 0)).drop_nulls()
    if busy.height < 20:
        return ()
    share = busy.select((1 - pl.col("device") / pl.col("period")).median()).item()
    if share is None or share < 0.02:
        return ()
    return (f"the step time leaves out {share:.1%} of the period, which the host takes between steps: wall-clock targets need that room",)
