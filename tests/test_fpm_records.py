"""Forward pass metrics as their publishers write them: traced JSON lines, packed JSON lines, MessagePack."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.identification.readers import read_trace
from headway.identification.readers.msgpack_stream import end_of_object, objects
from headway.identification.rows import IDLE, judge, select, used_rows
from tests.engine_lines import aside_of, refused, table_of, written


def _metrics(counter: int, *, worker: str = "w0", wall: float = 0.01, name: str = "scheduled_requests", **more: object) -> dict:
    sums = {
        "num_prefill_requests": 1, "sum_prefill_tokens": 100, "var_prefill_length": 0.0, "sum_prefill_kv_tokens": 50,
        "num_decode_requests": 3, "sum_decode_kv_tokens": 900, "var_decode_kv_tokens": 1.0,
    }  # fmt: skip
    if not wall:
        sums = dict.fromkeys(sums, 0)
    return {
        "version": 1,
        "worker_id": worker,
        "dp_rank": 0,
        "counter_id": counter,
        "wall_time": wall,
        name: sums,
        "queued_requests": {},
    } | more


def _traced(metrics: dict, mode: str = "full") -> dict:
    event = {"schema": "dynamo.fpm.trace.v1", "capture_mode": mode, "observed_at_unix_ms": 5, "fpm": metrics}
    return {"timestamp": 1250, "event": event}


def test_case_e15_idle_heartbeat_rows(tmp_path: Path) -> None:
    records = [_metrics(1), _metrics(2), _metrics(3, wall=0.0), _metrics(1, worker=""), _metrics(2, worker="", wall=0.0)]
    for content in (
        "".join(json.dumps(_traced(record)) + "\n" for record in records).encode(),
        b"".join(msgspec.msgpack.encode(record) for record in records),
    ):
        trace = read_trace(written(tmp_path, content))
        assert trace.frame["source"].unique(maintain_order=True).to_list() == ["engine.log:w0/0", "engine.log:unknown/0"]
        reason = judge(trace)
        assert list(reason) == ["", "", IDLE, "", IDLE]
        assert used_rows(reason, select(trace, "all", None)) == {"read": 5, "used": 3, "set_aside": {IDLE: 2}}


def test_metrics_as_a_worker_traces_them_with_or_without_their_envelope(tmp_path: Path) -> None:
    records = [_metrics(k) for k in range(1, 4)]
    shapes = {
        "envelope": [_traced(r) for r in records],
        "event": [_traced(r)["event"] for r in records],
        "bare": records,
    }
    frames = [table_of(tmp_path, "".join(json.dumps(r) + "\n" for r in shape), "fpm_trace").frame for shape in shapes.values()]
    assert frames[0].equals(frames[1])
    assert frames[0].equals(frames[2])
    assert frames[0]["prefill_pairs"].to_list() == [100 * (50 + 50)] * 3
    plain = "".join(json.dumps(_metrics(k, name="scheduled")) + "\n" for k in range(1, 4))
    assert table_of(tmp_path, plain, "fpm_jsonl").frame.equals(frames[0])
    packed = gzip.compress("".join(json.dumps(r) + "\n" for r in shapes["envelope"]).encode())
    assert table_of(tmp_path, packed[:], "fpm_trace").frame.equals(frames[0])
    assert table_of(tmp_path, gzip.compress(plain.encode()), "fpm_jsonl").frame.equals(frames[0])
    # a worker rolls its file over: its segments may be joined as they are
    half = [gzip.compress((json.dumps(r) + "\n").encode()) for r in shapes["envelope"]]
    assert table_of(tmp_path, b"".join(half), "fpm_trace").frame.equals(frames[0])
    assert "expected a whole gzip file" in refused(tmp_path, packed[:-5])


def test_what_a_trace_of_metrics_says_of_itself(tmp_path: Path) -> None:
    sampled = "".join(json.dumps(_traced(_metrics(k * 50), "sampled")) + "\n" for k in range(3))
    assert any("capture_mode sampled" in said for said in table_of(tmp_path, sampled, "fpm_trace").warnings)
    device = "".join(json.dumps(_metrics(k, version=2, timing_scope="execute_model_cuda")) + "\n" for k in range(3))
    table = table_of(tmp_path, device, "fpm_trace")
    assert table.clock == "device"
    assert any("on the device alone" in said for said in table.warnings)
    assert read_trace(tmp_path / "engine.log").clock == "device"
    assert "column version: expected version 1 or 2 of" in refused(tmp_path, json.dumps(_metrics(1, version=3)))
    wrong = _traced(_metrics(1, wall="slow"))  # type: ignore[arg-type]
    assert "row 1, column event.fpm.wall_time: expected float, found 'str'" in refused(tmp_path, json.dumps(wrong))
    assert "column wall_time: expected a number that is not negative" in refused(tmp_path, json.dumps(_metrics(1, wall=-1.0)))
    assert "column counter_id: expected a number of at most 1e+15" in refused(tmp_path, json.dumps(_metrics(2**63)))


def test_metrics_in_messagepack(tmp_path: Path) -> None:
    records = [_metrics(k) for k in range(1, 40)]
    stream = b"".join(msgspec.msgpack.encode(r) for r in records)
    table = table_of(tmp_path, stream, "fpm_msgpack")
    assert table.frame["step"].to_list() == list(range(1, 40))
    assert table.frame["step_time_s"].to_list() == [0.01] * 39
    assert table_of(tmp_path, msgspec.msgpack.encode(records), "fpm_msgpack").frame.equals(table.frame)
    arrays = msgspec.msgpack.encode(records[:20]) + msgspec.msgpack.encode(records[20:])
    assert table_of(tmp_path, arrays, "fpm_msgpack").frame.equals(table.frame)
    plain = b"".join(msgspec.msgpack.encode(_metrics(k, name="scheduled")) for k in range(1, 40))
    assert table_of(tmp_path, plain, "fpm_msgpack").frame.equals(table.frame)
    assert table_of(tmp_path, gzip.compress(stream), "fpm_msgpack").frame.equals(table.frame)
    one = len(msgspec.msgpack.encode(records[-1]))
    for cut in (1, 2, one // 2, one - 1):
        trace = read_trace(written(tmp_path, stream[:-cut]))
        assert len(trace) == 38
        assert trace.aside == {"unreadable": 1}
    for content in (msgspec.msgpack.encode(records)[:-7], arrays[:-7]):
        assert aside_of(table_of(tmp_path, content, "fpm_msgpack")) == {"unreadable": 1}


def test_messagepack_that_is_no_stream_of_metrics_is_refused(tmp_path: Path) -> None:
    record = msgspec.msgpack.encode(_metrics(1))
    # a length that reaches over the rest of the stream is no record cut off, however the file ends
    long = record + b"\xdf\x00\xff\xff\xff" + record * 20
    assert "row 2: expected a whole map (forward pass metrics in MessagePack)" in refused(tmp_path, long)
    assert "row 2: expected a map (forward pass metrics in MessagePack), found 'byte 0xc1" in refused(tmp_path, record + b"\xc1" + record)
    assert "row 2: expected object, found 'int'" in refused(tmp_path, record + b"\x05" + record)
    assert "row 1, column counter_id: expected this key" in refused(
        tmp_path, msgspec.msgpack.encode({"wall_time": 1.0, "scheduled": None}) + record
    )
    assert "row 1, column scheduled_requests: expected this key" in refused(
        tmp_path, msgspec.msgpack.encode({"wall_time": 1.0, "counter_id": 1, "scheduled": None}) + record
    )
    assert "expected" in refused(tmp_path, b"", "fpm_msgpack")


SIMPLE = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=300)
)
NESTED = st.recursive(
    SIMPLE, lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=5), inner, max_size=20), max_leaves=40
)


@given(st.lists(NESTED, min_size=1, max_size=4))
def test_objects_of_a_stream_end_where_the_encoder_ended_them(values: list) -> None:
    parts = [msgspec.msgpack.encode(value) for value in values]
    stream, at = b"".join(parts), 0
    for part in parts:
        assert end_of_object(stream, at) == at + len(part)
        at += len(part)
    for size in range(1, len(parts[0])):
        assert end_of_object(parts[0][:size], 0) is None


@given(st.binary(min_size=1, max_size=200))
def test_any_bytes_are_walked_over_within_their_bounds(data: bytes) -> None:
    try:
        ends = list(objects(data))
    except ValueError:
        with pytest.raises(ValueError, match="begins no MessagePack object"):
            list(objects(data))
        return
    assert all(end is None or start < end <= len(data) for start, end in ends)
    assert all(end is not None for _, end in ends[:-1])
