"""Engine logs: how they are told, what is said of logs that hold no step, and every real one."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.identification.readers import TraceError, read_trace
from headway.identification.readers.engine_log import CHUNK
from tests.engine_lines import STATS_LINE, aside_of, decode, iteration, loop, prefill, refused, table_of, written

LOGS = ("vllm_iterations", "trtllm_iterations", "sglang")
RECORDS = ("fpm_trace", "fpm_msgpack", "vllm_stats", "trtllm_stats")


def test_a_log_is_read_for_its_steps_wherever_they_begin(tmp_path: Path) -> None:
    for before in (0, 3 * CHUNK, CHUNK - 40):
        start = (STATS_LINE * (before // len(STATS_LINE) + 1)) + "x" * (before % len(STATS_LINE)) + "\n"
        trace = read_trace(written(tmp_path, start + iteration(1) + STATS_LINE + iteration(2)))
        assert trace.reader == "vllm_iterations"
        assert len(trace) == 2
        assert trace.aside == {}


def test_stats_lines_are_no_step_trace_and_say_what_to_record(tmp_path: Path) -> None:
    said = refused(tmp_path, STATS_LINE)
    assert "vLLM's stats lines; a stats line every 10 s is no step trace" in said
    assert "--enable-logging-iteration-details" in said
    assert "--kv-tokens" not in said
    assert refused(tmp_path, "INFO: GPU KV cache size: 44,640 tokens\n" + STATS_LINE).endswith("of use, as --kv-tokens 44640")
    assert "vLLM's stats lines" in refused(tmp_path, "loading\n" * 20_000 + STATS_LINE)
    assert "Prometheus metrics" in refused(tmp_path, "# HELP a b\n# TYPE a counter\na 1\n")
    assert "a latency benchmark" in refused(tmp_path, STATS_LINE + "Avg latency: 0.89 seconds\n")
    report = refused(tmp_path, json.dumps({"batches": [1, 2], "ms": [3.0, 4.0]}, indent=1))
    assert "a JSON report that no reader here knows" in report
    assert "step_time_s" in report


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("format", ["auto", "vllm_iterations", "fpm_jsonl"])
def test_two_bytes_a_character_are_named(encoding: str, format: str, tmp_path: Path) -> None:
    said = refused(tmp_path, iteration(1).encode(encoding), format)
    assert said == "engine.log: expected UTF-8 text; the file is UTF-16, as PowerShell's > writes it: write it as UTF-8"


@pytest.mark.parametrize("format", ["vllm_iterations", "trtllm_iterations", "sglang"])
@pytest.mark.parametrize("change", ["\r\n", "byte order mark", "gzip", "no final newline", "not text"])
def test_how_a_log_is_stored_changes_nothing(format: str, change: str, tmp_path: Path) -> None:
    log = {
        "vllm_iterations": iteration(1) + iteration(2),
        "trtllm_iterations": loop(1) + loop(2),
        "sglang": decode(8, 100, 200.0) * 3,
    }[format]
    plain = table_of(tmp_path, log, format)
    changed = {
        "\r\n": log.replace("\n", "\r\n").encode(),
        "byte order mark": b"\xef\xbb\xbf" + log.encode(),
        "gzip": gzip.compress(log.encode()),
        "no final newline": log.rstrip("\n").encode(),
        "not text": b"\xff\xfe\x00\x81 caf\xe9\n".join([b"", *(line.encode() + b"\n" for line in log.splitlines())])[5:],
    }[change]
    other = table_of(tmp_path, changed, format)
    assert other.frame.equals(plain.frame)
    assert aside_of(other) == aside_of(plain)


@pytest.mark.parametrize("format", [*LOGS, *RECORDS])
@pytest.mark.parametrize("foreign", ["a,b\n1,2\n", '{"a": 1}\n', "[]\n", "some words\n", "\x81\x00\xff", "\xdc\x00\x01", "[1, 2]\n"])
def test_a_format_that_was_named_refuses_what_it_is_not(format: str, foreign: str, tmp_path: Path) -> None:
    assert refused(tmp_path, foreign.encode("latin-1"), format).startswith("engine.log: ")


PARTS = st.sampled_from([
    iteration(3, tokens=5, after=", GPU KV cache usage: 3.1%"), loop(4, cached=7), decode(3, 50, 20.0), prefill(30, 10.0, pending=0),
    STATS_LINE, "iter = 1 ... host_step_time = 3 ms\n", "GPU KV cache size: 1,000 tokens\n", "\n", "Iteration(", "#running-req: 9e99, ",
]) | st.text(max_size=9)  # fmt: skip


@given(st.lists(PARTS, max_size=12), st.integers(0, 10**6), st.integers(0, 30))
def test_broken_logs_are_read_in_part_or_refused_and_nothing_else(tmp_path_factory, parts: list[str], place: int, cut: int) -> None:
    text = "".join(parts)
    at = place % (len(text) + 1)
    file = written(tmp_path_factory.mktemp("log"), text[:at] + text[at + cut :])
    for format in ("auto", *LOGS):
        with contextlib.suppress(TraceError):
            assert len(read_trace(file, format)) > 0


STATS = "vLLM's stats lines"
REAL: dict[str, tuple[str, int, dict[str, int]] | str] = {
    "NOTES_measurement_traps.md": "is of no known format: give the engine's log or table",
    "sglang_2025-02_issue3909.log": ("sglang", 8, {"first_of_stream": 1}),
    "sglang_2025-06_issue6017_dp32.log": "SGLang's decode and prefill lines; of 3 lines none can be timed (3 first of a stream)",
    "sglang_2025-09_issue10053.log": ("sglang", 2, {"averaged_over_idle": 2, "incomplete": 2}),
    "sglang_2025-10_pr11854_mtp_dp8.log": "SGLang's decode and prefill lines; of 4 lines none can be timed (4 first of a stream)",
    "sglang_2025-11_pr13023_prefill_burst.log": "SGLang's decode and prefill lines; of 9 lines none can be timed (9 without a duration",
    "sglang_2026-04_pr22166.log": "of 5 lines none can be timed (1 first of a stream, 4 averaged over idle time",
    "sglang_2026-07_pr30047_npu_mamba.log": "of 4 lines none can be timed (1 first of a stream, 3 averaged over idle time",
    "sglang_2026-08_issue36081_swa_spec.log": ("sglang", 1, {"first_of_stream": 1, "averaged_over_idle": 2}),
    "trtllm_iter_2025-04_pr3914.log": ("trtllm_iterations", 2, {}),
    "trtllm_iter_host_step_time_variants.log": ("trtllm_iterations", 2, {"not_a_step": 1, "incomplete": 1}),
    "trtllm_iteration_stats_examples.jsonl": ("trtllm_stats", 2, {"incomplete": 3}),
    "vllm_0.32_prometheus_metrics.txt": "Prometheus metrics",
    "vllm_engine_dec11-train-qwen7b-1.log": "--kv-tokens 1053328",
    "vllm_engine_jan20-codellama-prefill-1.log": "--kv-tokens 44640",
    "vllm_engine_jan20-codellama-train-1.log": "--kv-tokens 40592",
    "vllm_engine_jan21-llama7b-train-1.log": "--kv-tokens 119008",
    "vllm_iteration_details_2025-12_pr31193.log": ("vllm_iterations", 3, {}),
    "vllm_iteration_details_variants_2026.log": ("vllm_iterations", 2, {"dummy": 1}),
    "vllm_mi300x_latency_bs8_2025-08.log": "a latency benchmark",
    "vllm_stats_2025-09_intel_llmscaler77.log": STATS,
    "vllm_stats_2026-03_pr37307.log": STATS,
    "vllm_stats_2026-05_issue43295_kv_saturated.log": STATS,
    "vllm_stats_2026-07_issue42363_mm_spec.log": STATS,
    "vllm_stats_v0_2024-01_issue2595.log": STATS,
}
"""Every real log: (reader, steps, rows set aside), or what its refusal says."""


def test_every_real_log_is_read_or_refused_by_name(shared_data: Path) -> None:
    files = sorted(path.name for path in (shared_data / "logs").iterdir())
    assert files == sorted(REAL)
    for name in files:
        expected = REAL[name]
        file = shared_data / "logs" / name
        if isinstance(expected, str):
            with pytest.raises(TraceError) as caught:
                read_trace(file)
            assert expected in str(caught.value)
            if name.startswith("vllm_engine"):
                assert STATS in str(caught.value)
        else:
            trace = read_trace(file)
            assert (trace.reader, len(trace), dict(trace.aside)) == expected


def test_real_figures_are_those_of_the_logs(shared_data: Path) -> None:
    logs = shared_data / "logs"
    steady = read_trace(logs / "sglang_2025-02_issue3909.log")
    assert steady.step_time_s == pytest.approx(0.0431, rel=0.01)  # 8 requests at 184 to 187 tokens/s
    assert steady.frame["steps_averaged"].to_list() == [40] * 8
    assert read_trace(logs / "sglang_2025-09_issue10053.log").step_time_s == pytest.approx([1 / 84.20, 1 / 81.97])
    assert read_trace(logs / "sglang_2026-08_issue36081_swa_spec.log").step_time_s == pytest.approx([8192 / 13663.01])
    assert read_trace(logs / "trtllm_iter_2025-04_pr3914.log").batch().decode_requests.tolist() == [16, 10]
    later = read_trace(logs / "trtllm_iter_host_step_time_variants.log")
    assert later.step_time_s.tolist() == [0.008512, 0.0074]
    assert later.batch().decode_requests.tolist() == [64, 8]
    mixed = read_trace(logs / "vllm_iteration_details_variants_2026.log")
    assert mixed.step_time_s == pytest.approx([1.11564, 0.0098])
    assert mixed.batch().prefill_tokens.tolist() == [7986, 0]


def test_our_own_stat_logger_record(shared_data: Path) -> None:
    trace = read_trace(shared_data / "steps" / "vllm_cpu" / "stat_logger_sample.jsonl")
    assert trace.reader == "vllm_stats"
    # of 39 steps one stood before the idle time after step 27, and one was the last: their periods are not known
    assert len(trace) == 37
    assert trace.aside == {"not_a_step": 1, "incomplete": 2}
    assert trace.clock == "wall"
    assert 27 not in trace.frame["step"].to_list()
    assert trace.frame["period_s"].max() < 0.05  # type: ignore[operator]
    assert (trace.frame["step_time_s"] == trace.frame["period_s"]).all()
    assert any("the host takes 1.79 ms" in said and "22.9% of the period" in said for said in trace.warnings)
