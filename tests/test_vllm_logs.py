"""vLLM's logs of its steps: iteration details and stat loggers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.identification.readers import read_trace
from headway.identification.readers.engine_log import GONE_ON, Streams
from tests.engine_lines import aside_of, iteration, refused, table_of, written


def test_iteration_details_in_all_their_shapes(tmp_path: Path) -> None:
    log = (
        iteration(7, before="(EngineCore_DP0 pid=12) INFO 03-04 05:06:07 [core.py:349] ")
        + iteration(3, tokens=500, before="(EngineCore_DP1 pid=13) INFO 03-04 05:06:07 [v1/engine/core.py:359] ")
        + 'INFO:     10.0.0.1:5 - "POST /v1/completions HTTP/1.1" 200 OK\n'
        + iteration(8, before="INFO 03-04 05:06:07 [loggers.py:199] Engine 000: ", after=", CPU KV cache usage: 0.1%")
        + iteration(4, requests=0, before="INFO EngineCore_DP1 ", after=" (dummy)")
        + iteration(9, before="\x1b[36mx\x1b[0m ", after=", GPU KV cache usage: 3.1%, encoder inputs: 4, encoder output embeddings: 9")
    )
    table = table_of(tmp_path, log, "vllm_iterations")
    assert table.frame["step"].to_list() == [7, 3, 8, 9]
    assert table.frame["source"].to_list() == ["engine 0", "engine 1", "engine 0", "engine 0"]
    assert table.frame["step_time_s"].to_list() == [0.01] * 4
    assert table.frame["prefill_tokens"].to_list() == [0, 500, 0, 0]
    assert table.frame["prefill_requests"].to_list() == [0, 1, 0, 0]
    assert table.frame["decode_kv_tokens"].to_list() == table.frame["prefill_pairs"].to_list() == [0] * 4
    assert table.missing == ("decode_kv_tokens", "prefill_pairs")
    assert aside_of(table) == {"dummy": 1}
    assert any("1 step ran an encoder" in said for said in table.warnings)
    assert any("asynchronous scheduling" in said for said in table.warnings)
    assert any("GPU KV cache size" in said for said in table.warnings)


def test_cache_tokens_are_estimated_where_the_log_says_the_size(tmp_path: Path) -> None:
    size = "INFO 01-20 06:10:30 [kv_cache_utils.py:1] GPU KV cache size: 40,000 tokens\n"
    log = size + iteration(1, after=", GPU KV cache usage: 10.0%") + iteration(2, tokens=500, after=", GPU KV cache usage: 12.5%")
    table = table_of(tmp_path, log, "vllm_iterations")
    assert table.frame["decode_kv_tokens"].to_list() == [4000, 4500]
    assert table.frame["kv_usage"].to_list() == [0.1, 0.125]
    assert table.missing == ("prefill_pairs",)
    assert table.engine == {"kv_tokens": 40_000}
    assert any("decode_kv_tokens is an estimate" in said for said in table.warnings)
    # a line without the use of the cache leaves nothing to estimate: no column is half measured
    table = table_of(tmp_path, log + iteration(3), "vllm_iterations")
    assert table.missing == ("decode_kv_tokens", "prefill_pairs")
    assert table.frame["decode_kv_tokens"].to_list() == [0, 0, 0]
    # an engine without a decoding request reads no cache
    table = table_of(tmp_path, size + iteration(1, tokens=500, requests=0), "vllm_iterations")
    assert table.missing == ("prefill_pairs",)


def test_a_restart_begins_a_stream_and_disorder_does_not(tmp_path: Path) -> None:
    log = "".join(iteration(n, ms=1.0 + n) for n in (100, 101, 103, 102, 104, 0, 1, 2))
    trace = read_trace(written(tmp_path, log))
    assert trace.frame["step"].to_list() == [100, 101, 102, 103, 104, 0, 1, 2]
    assert trace.stream.tolist() == [0] * 5 + [1] * 3
    assert trace.frame["source"].to_list()[-1] == "engine.log:engine 0, start 2"
    assert any("started over 1 time:" in said for said in trace.warnings)
    assert not any("more than once" in said for said in trace.warnings)


@given(st.lists(st.integers(GONE_ON + 1, 400), min_size=1, max_size=5))
def test_however_often_an_engine_starts_no_stream_holds_a_step_twice(lengths: list[int]) -> None:
    streams, seen = Streams(), set()
    for length in lengths:
        for number in range(length):
            seen.add((streams.name("engine", number), number))
    assert len(seen) == sum(lengths)


def test_steps_that_were_timed_only_at_their_end_are_set_aside_or_refuse_the_log(tmp_path: Path) -> None:
    whole, short = "".join(iteration(n) for n in range(20)), iteration(20, ms=0.03)
    table = table_of(tmp_path, whole + short, "vllm_iterations")
    assert len(table.frame) == 20
    assert aside_of(table) == {"incomplete": 1}
    assert any("1 step read less than 0.1 ms" in said for said in table.warnings)
    said = refused(tmp_path, whole + short * 3)
    assert "3 steps of 23 read less than 0.1 ms" in said
    assert "--no-async-scheduling" in said


def test_lines_that_run_into_each_other_or_break_off(tmp_path: Path) -> None:
    glued = iteration(1).strip() + "(EngineCore_DP1 pid=2) " + iteration(1, requests=6)
    garbled = "Iteration(2): 0 context requests, 0 coIteration 4 generation requests\n"
    for cut in (1, 9, 30, 60, 112):
        table = table_of(tmp_path, glued + garbled + iteration(3)[:-cut].removesuffix("\n"), "vllm_iterations")
        whole = cut == 1
        assert table.frame["source"].to_list() == ["engine 0", "engine 1"] + ["engine 0"] * whole
        assert table.frame["decode_requests"].to_list() == [4, 6] + [4] * whole
        assert aside_of(table) == ({"incomplete": 1} if whole else {"incomplete": 1, "unreadable": 1})


def test_a_log_of_idle_ranks_holds_no_step(tmp_path: Path) -> None:
    assert "only steps of idle ranks" in refused(tmp_path, iteration(1, requests=0, after=" (dummy)"))


def _logged(index: int, t: float, *, ms: float = 5.0, running: int = 1, **more: object) -> str:
    it = {
        "iteration_index": index, "num_ctx_requests": 0, "num_ctx_tokens": 0, "num_generation_requests": 2,
        "num_generation_tokens": 2, "elapsed_ms": ms, "num_encoder_inputs": 0, "is_dummy": False,
    } | more  # fmt: skip
    return (
        json.dumps({"t": t, "running": running, "waiting": 3, "kv": 0.25, "it": it, "itl": [0.1]} | ({} if running else {"waiting": 0}))
        + "\n"
    )


def test_the_record_of_a_stat_logger(tmp_path: Path) -> None:
    idle = json.dumps({"t": 10.034, "running": 0, "waiting": 0, "kv": 0.0, "it": None}) + "\n"
    log = (
        _logged(0, 10.010, num_ctx_requests=1, num_ctx_tokens=100)
        + _logged(1, 10.020)
        + _logged(2, 10.032, running=0)
        + idle
        + _logged(3, 11.000)
        + _logged(4, 11.007, is_dummy=True)
        + _logged(5, 11.020)[:-9]
    )
    table = table_of(tmp_path, log, "vllm_stats")
    assert table.frame["step_time_s"].to_list() == [0.005] * 4
    assert table.frame["start_s"].to_list() == pytest.approx([10.005, 10.015, 10.027, 10.995])
    # from start to start; not over the time in which the engine was idle, and not behind the last step
    assert table.frame["period_s"].to_list()[:2] == pytest.approx([0.010, 0.012])
    assert table.frame["period_s"].to_list()[2:] == [None, None]
    assert table.frame["queued_requests"].to_list() == [3, 3, 0, 3]
    assert table.frame["kv_usage"].to_list() == [0.25] * 4
    assert table.missing == ("decode_kv_tokens", "prefill_pairs")
    assert aside_of(table) == {"not_a_step": 1, "dummy": 1, "unreadable": 1}
    assert table.clock == "device"
    assert any("only 2 periods of consecutive steps are recorded" in said for said in table.warnings)


def test_case_e10_a_stat_logger_s_steps_are_fitted_from_start_to_start(tmp_path: Path) -> None:
    busy = "".join(_logged(k, 10.0 + 0.010 * k) for k in range(30))
    table = table_of(tmp_path, busy, "vllm_stats")
    assert table.clock == "wall"
    assert table.frame["step_time_s"].to_list() == pytest.approx([0.010] * 29)
    assert table.frame["device_time_s"].to_list() == pytest.approx([0.005] * 29)
    assert aside_of(table) == {"incomplete": 1}  # the last one, whose period nobody knows
    assert table.warnings[0].startswith("the host takes 5.00 ms (5.00 to 5.00) between steps, 50.0% of the period")


def test_a_stat_logger_without_iteration_details_says_what_to_start(tmp_path: Path) -> None:
    idle = json.dumps({"t": 1.0, "running": 0, "waiting": 0, "kv": 0.0, "it": None}) + "\n"
    assert "start vLLM with --enable-logging-iteration-details" in refused(tmp_path, idle * 3)
    assert "row 1, column it.elapsed_ms: expected a number that is not negative, found -1.0" in refused(tmp_path, _logged(1, 1.0, ms=-1.0))
    assert "row 2: expected a JSON object" in refused(tmp_path, _logged(1, 1.0) + "{\n" + _logged(2, 1.1))
    assert "column it.iteration_index: expected int, found 'str'" in refused(tmp_path, _logged(1, 1.0, iteration_index="x"))
