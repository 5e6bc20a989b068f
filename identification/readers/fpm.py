"""Forward pass metrics: what a vLLM engine reports of each step, as a table or as one JSON object per step."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import polars as pl

from headway.identification.readers.columns import Opened, Table, numbers, pairs, requests, seconds, text_pieces
from headway.identification.readers.errors import TraceError
from headway.identification.readers.thinning import take

FORM_CSV = "a table of forward pass metrics"
FORM_JSONL = "forward pass metrics, one JSON object a line"

SUMS = (
    "sum_prefill_tokens",
    "num_prefill_requests",
    "sum_prefill_kv_tokens",
    "num_decode_requests",
    "sum_decode_kv_tokens",
)
KEPT = ("workload_segment", "phase", "worker_id", "dp_rank")


class Scheduled(msgspec.Struct):
    """What was in one step.

    Args:
        num_prefill_requests: requests with a chunk [requests].
        sum_prefill_tokens: their prompt tokens in the step [tokens].
        sum_prefill_kv_tokens: their tokens in the cache before it [tokens].
        num_decode_requests: requests that decode [requests].
        sum_decode_kv_tokens: cache tokens that they read [tokens].
    """

    num_prefill_requests: float
    sum_prefill_tokens: float
    sum_prefill_kv_tokens: float
    num_decode_requests: float
    sum_decode_kv_tokens: float


class Record(msgspec.Struct):
    """One line.

    Args:
        wall_time: duration of the step [s]; 0 in the heartbeat of an idle engine.
        counter_id: running number of the step in its worker.
        scheduled: what was in it.
        worker_id: the worker; may be empty.
        dp_rank: its data-parallel rank.
    """

    wall_time: float
    counter_id: int
    scheduled: Scheduled
    worker_id: str | int = ""
    dp_rank: int = 0


def claims_csv(opened: Opened) -> bool:
    """Whether the file's own content says that it is such a table.

    Args:
        opened: the file.

    Returns:
        True if its header names sums that only this format has.
    """
    return sum(name in opened.header for name in (*SUMS, "latency_ms", "counter_id")) >= 4


def read_csv(opened: Opened) -> Table:
    """Read the table form.

    Args:
        opened: the file.

    Returns:
        The trace's columns; durations from `latency_ms` [s].

    Raises:
        TraceError: a column missing, or a cell that is no number or negative.
    """
    names, aside = ("counter_id", *SUMS, "latency_ms"), {"unreadable": 0}

    def frames() -> Iterator[pl.DataFrame]:
        for cells in text_pieces(opened, names, FORM_CSV):
            aside["unreadable"] += cells.cut
            frame = numbers(cells.frame, opened.file, names, before=cells.before)
            absent = [pl.lit("").alias(name) for name in ("worker_id", "dp_rank") if name not in frame.columns]
            yield steps_table(frame.with_columns(seconds(frame["latency_ms"], 1e3).alias("wall_time"), *absent), 0).frame

    taken = take(frames(), opened.most_rows)
    return Table(taken.frame, aside | taken.aside, taken.said)


def claims_jsonl(opened: Opened) -> bool:
    """Whether the file's own content says that it is this format.

    Args:
        opened: the file.

    Returns:
        True if its first object holds `scheduled` beside `wall_time` or `counter_id`.
    """
    return opened.first is not None and "scheduled" in opened.first and ("wall_time" in opened.first or "counter_id" in opened.first)


def read_jsonl(opened: Opened) -> Table:
    """Read the form of one JSON object per step. A last line that was cut off is set aside.

    Args:
        opened: the file.

    Returns:
        The trace's columns; durations from `wall_time` [s].

    Raises:
        TraceError: a line that is no such object, other than a last one cut off; a negative number; no step.
    """
    aside = {"unreadable": 0}
    taken = take(_records(opened, aside), opened.most_rows)
    return Table(taken.frame, aside | taken.aside, taken.said)


def _records(opened: Opened, aside: dict[str, int]) -> Iterator[pl.DataFrame]:
    decoder, before, lines = msgspec.json.Decoder(Record), 0, 0
    for text in opened.pieces(quoted=False):
        try:
            records = decoder.decode_lines(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            records = _one_by_one(opened, text, lines)
            aside["unreadable"] += 1
        lines += text.count(b"\n")
        if not records:
            continue
        columns: dict[str, list] = {name: [getattr(r.scheduled, name) for r in records] for name in SUMS}
        columns |= {name: [getattr(r, name) for r in records] for name in ("wall_time", "counter_id")}
        columns |= {name: [str(getattr(r, name)) for r in records] for name in ("worker_id", "dp_rank")}
        frame = numbers(pl.DataFrame(columns), opened.file, (*SUMS, "wall_time", "counter_id"), before=before)
        before += len(records)
        yield steps_table(frame, 0).frame
    if before == 0:
        raise TraceError(opened.file, f"at least one step in {FORM_JSONL}, found none")


def _one_by_one(opened: Opened, text: bytes, before: int) -> list[Record]:
    """The records of lines of which one is wrong: an error, unless it is the file's last and was cut off."""
    lines = [(i, line) for i, line in enumerate(text.split(b"\n"), before + 1) if line.strip()]
    decoder, records = msgspec.json.Decoder(Record), []
    for i, line in lines:
        try:
            records.append(decoder.decode(line))
        except msgspec.ValidationError as error:
            raise wrong_record(opened.file, i, error, FORM_JSONL) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            if i != lines[-1][0] or text.endswith(b"\n"):
                raise TraceError(opened.file, f"a JSON object ({FORM_JSONL})", row=i, found=line.decode(errors="replace")) from None
    return records


def wrong_record(file: str, row: int, error: msgspec.ValidationError, form: str) -> TraceError:
    """The validator's message in our words: what it expected, and at which key.

    Args:
        file: for the message.
        row: data row, counted from 1.
        error: of msgspec.
        form: what the file was taken for, for the message.

    Returns:
        The error to raise.
    """
    text = str(error)
    path = re.search(r"`\$\.?([^`]*)`", text)
    missing = re.search(r"missing required field `([^`]*)`", text)
    key = ".".join(part for part in (path[1] if path else "", missing[1] if missing else "") if part) or None
    wanted = re.search(r"Expected `([^`]*)`, got `([^`]*)`", text)
    if wanted:
        return TraceError(file, wanted[1], row=row, column=key, found=wanted[2])
    return TraceError(file, f"this key in {form}" if missing else text, row=row, column=key)


def steps_table(frame: pl.DataFrame, cut: int) -> Table:
    """The trace's columns from the metrics' own: one stream per worker and rank, the empty worker under "unknown".

    Args:
        frame: checked numbers by the metrics' own names, `wall_time` in seconds; worker_id and dp_rank as text, shape (k,).
        cut: rows that the file broke off in [rows].

    Returns:
        The trace's columns, and those of `KEPT` that are there.
    """
    worker = pl.when(pl.col("worker_id").fill_null("").str.strip_chars() == "").then(pl.lit("unknown")).otherwise(pl.col("worker_id"))
    frame = frame.with_columns(worker_id=worker, dp_rank=pl.col("dp_rank").cast(pl.String).fill_null("").replace("", "0"))
    held = [pl.col(name).cast(pl.String) for name in KEPT if name in frame.columns]
    return Table(
        frame.select(
            pl.col("counter_id").cast(pl.Int64).alias("step"),
            (pl.col("worker_id") + "/" + pl.col("dp_rank")).alias("source"),
            pl.col("wall_time").alias("step_time_s"),
            pl.col("num_decode_requests").alias("decode_requests"),
            pl.col("sum_decode_kv_tokens").alias("decode_kv_tokens"),
            pl.col("sum_prefill_tokens").alias("prefill_tokens"),
            pairs("sum_prefill_tokens", "sum_prefill_kv_tokens", "num_prefill_requests").alias("prefill_pairs"),
            requests("sum_prefill_tokens", "num_prefill_requests").alias("prefill_requests"),
            *held,
        ),
        {"unreadable": cut},
    )
