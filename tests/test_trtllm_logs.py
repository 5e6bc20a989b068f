"""TensorRT-LLM's logs of its steps: iteration lines and iteration statistics."""

from __future__ import annotations

import json
from pathlib import Path

from tests.engine_lines import aside_of, loop, refused, table_of


def test_iteration_lines_of_tensorrt_llm_in_all_their_shapes(tmp_path: Path) -> None:
    log = (
        loop(1, device="N/A", host="900.25 ms")
        + loop(2, generated=16)
        + loop(3, device="7.25ms", scheduled="num_scheduled_requests = 9, kv_cache_util = 0.125, ", context=2, tokens=300, generated=28)
        + loop(4, device="6.5ms").replace("}\n", "}, num_active = 14, num_fetched = 3, num_dummy = 1, num_unscheduled = 5\n")
        + loop(1, rank=1, device="3ms")
        + "iter = 1 ... host_step_time = 215286.68 ms ... num_ctx_tokens: 58, num_generation_tokens: 0\n"
        + "currank_total_requests = 256/1024, host_step_time = 101 ms\n"
        + loop(5, scheduled="num_scheduled_requests = 0, ", context=2, tokens=300)
        + loop(6, device="1456.7ms")
    )
    table = table_of(tmp_path, log, "trtllm_iterations")
    assert table.frame["step"].to_list() == [1, 2, 3, 4, 1, 6]
    assert table.frame["source"].to_list() == ["rank 0"] * 4 + ["rank 1", "rank 0"]
    assert table.frame["step_time_s"].to_list() == [0.90025] + [0.0085] * 5
    # requests, not tokens: 16 and 28 count padding and drafts
    assert table.frame["decode_requests"].to_list() == [6, 6, 7, 6, 6, 6]
    # each on the iteration before; the 1456.7 ms belong to iteration 5, which scheduled nothing and is no step
    assert table.frame["device_time_s"].to_list() == [0.0075, 0.00725, 0.0065, 0.0075, None, None]
    assert table.frame["queued_requests"].to_list() == [None, None, None, 5, None, None]
    assert table.frame["kv_usage"].to_list() == [None, None, 0.125, None, None, None]
    assert table.missing == ("decode_kv_tokens", "prefill_pairs")
    assert aside_of(table) == {"not_a_step": 2, "incomplete": 1}
    assert table.clock == "wall"


def test_older_lines_say_what_stands_for_what(tmp_path: Path) -> None:
    line = loop(198, scheduled="", generated=16).replace("host_step_time = 8.5ms, prev_device_step_time = 7.5ms", "elapsed_time = 0.00506s")
    table = table_of(tmp_path, line, "trtllm_iterations")
    assert table.frame["step_time_s"].to_list() == [0.00506]
    assert table.frame["decode_requests"].to_list() == [16]
    assert any("counts the padding of CUDA graphs" in said for said in table.warnings)
    assert any("elapsed_time is taken" in said for said in table.warnings)


def test_cached_tokens_count_all_requests_of_a_step(tmp_path: Path) -> None:
    sched = "num_scheduled_requests = {}, "
    log = (
        loop(1, cached=900)
        + loop(2, scheduled=sched.format(1), context=1, tokens=100, generated=0, cached=400)
        + loop(3, scheduled=sched.format(7), context=1, tokens=100, cached=1300)
    )
    table = table_of(tmp_path, log, "trtllm_iterations")
    assert table.missing == ()
    assert table.frame["decode_kv_tokens"].to_list() == [900, 0, 1300]
    assert table.frame["prefill_pairs"].to_list() == [0, 100 * (400 + 50), 100 * 50]
    assert any("cached_kv_tokens counts all requests of a step: in 1 step with" in said for said in table.warnings)


def test_lines_of_tensorrt_llm_without_a_batch_are_no_trace(tmp_path: Path) -> None:
    text = refused(tmp_path, "x, host_step_time = 101 ms\n" * 2)
    assert "TensorRT-LLM's iteration lines; of 2 lines none holds both a duration and the states of its batch" in text
    for cut in (2, 3, 20, 40, 100):  # of 64 tokens a line that ends early may hold the 6
        table = table_of(tmp_path, loop(1) + loop(2, generated=64)[:-cut], "trtllm_iterations")
        assert len(table.frame) == 1
        assert aside_of(table) == {"unreadable": 1}


def _stats(number: int | None, *, rank: int = 0, gen: object = 2, ctx: int = 0, kv: bool = True, **more: object) -> dict:
    batch: dict = {"numContextRequests": int(ctx > 0), "numCtxTokens": ctx, "numGenRequests": gen, "numQueuedContextRequests": 7}
    if kv:
        batch |= {"numCtxKvTokens": 10 * (ctx > 0), "numGenKvTokens": 40}
    named = {} if number is None else {"iter": number}
    return {"attentionDpRank": rank, "iterLatencyMS": 12.5, "inflightBatchingStats": batch} | named | more


def test_iteration_statistics(tmp_path: Path) -> None:
    records = [
        _stats(10, hostStepTimeMS=6.0, prevDeviceStepTimeMS=99.0, ctx=100),
        _stats(11, hostStepTimeMS=7.0, prevDeviceStepTimeMS=5.0),
        _stats(12, hostStepTimeMS=8.0, prevDeviceStepTimeMS=5.5, gpuForwardTimeMS=4.25),
        _stats(13, hostStepTimeMS=8.0, prevDeviceStepTimeMS=4.5, gen=0),
        _stats(10, rank=1, hostStepTimeMS=6.5),
        {"iter": 154, "iterLatencyMS": 7.0, "numActiveRequests": 1},
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    table = table_of(tmp_path, lines, "trtllm_stats")
    assert table.frame["step_time_s"].to_list() == [0.006, 0.007, 0.008, 0.0065]
    # one record later than what it tells; the record's own measure counts before it
    assert table.frame["device_time_s"].to_list() == [0.005, 0.0055, 0.00425, None]
    assert table.frame["decode_kv_tokens"].to_list() == [40, 40, 40, 40]
    assert table.frame["prefill_pairs"].to_list() == [100 * (10 + 50), 0, 0, 0]
    assert table.frame["source"].to_list() == ["rank 0"] * 3 + ["rank 1"]
    assert table.frame["queued_requests"].to_list() == [7] * 4
    assert aside_of(table) == {"not_a_step": 1, "incomplete": 1}
    assert table.warnings == table.missing == ()
    # as /metrics answers: all records in one array
    assert table_of(tmp_path, json.dumps(records), "trtllm_stats").frame.equals(table.frame)


def test_a_latency_over_two_loops_is_said(tmp_path: Path) -> None:
    lines = "".join(json.dumps(_stats(None, kv=False)) + "\n" for _ in range(3))
    table = table_of(tmp_path, lines, "trtllm_stats")
    assert table.frame["step"].to_list() == [0, 1, 2]
    assert table.frame["step_time_s"].to_list() == [0.0125] * 3
    assert "hostStepTimeMS is not in 3 records" in table.warnings[0]
    assert "about two loops" in table.warnings[0]
    assert table.missing == ("decode_kv_tokens", "prefill_pairs")


def test_statistics_without_a_batch_are_refused(tmp_path: Path) -> None:
    assert "2 records without inflightBatchingStats" in refused(tmp_path, '{"iter": 1, "iterLatencyMS": 16.5}\n' * 2)
    legacy = '{"Active Request Count":1,"Iteration Counter":0,"Total Context Tokens":2048}\n'
    assert "1 record without inflightBatchingStats" in refused(tmp_path, legacy)
    assert "row 1, column hostStepTimeMS: expected a number" in refused(tmp_path, json.dumps(_stats(1, hostStepTimeMS=-1.0)))
    assert "expected a whole JSON array" in refused(tmp_path, json.dumps([_stats(1)])[:-3])
    assert "column inflightBatchingStats.numGenRequests: expected float | null, found 'str'" in refused(
        tmp_path, json.dumps(_stats(1, gen="x"))
    )
