"""Files of load generators: read with all their requests, or refused with what they lack; and what a TPOT is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from headway.identification.clients.requests import RequestStamps, kind_of
from headway.identification.readers import TRACE_READERS, TraceError, read_trace
from headway.identification.readers.aggregates import aggregates
from headway.identification.readers.columns import Opened
from headway.identification.readers.requests_table import REQUEST_READERS, read_requests

GUIDELLM = "client/guidellm/codellama34b_h100_chunk64.guidellm-results.notext.json"
OTEL = "client/otel/codellama34b_h100_chunk64.vllm_traces.json"


def written(tmp_path: Path, *values: Any, name: str = "f") -> Path:
    file = tmp_path / name
    file.write_text("\n".join(v if isinstance(v, str) else json.dumps(v) for v in values) + "\n")
    return file


def refused(read, *given) -> str:
    with pytest.raises(TraceError) as caught:
        read(*given)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


def guidellm_request(status: str = "ok", **changes: Any) -> dict[str, Any]:
    """A request that was sent at 100 s, with a TTFT of 500 ms, an E2E of 1500 ms and 11 tokens."""
    timings = {"request_start": 100.0, "first_token_iteration": 100.5, "last_token_iteration": 101.5, "token_iterations": 11}
    one = {"response_id": "cmpl-7", "info": {"status": status, "timings": timings}, "prompt_tokens": 64, "output_tokens": 11}
    return {**one, "time_per_output_token_ms": 1500 / 11, "inter_token_latency_ms": 100.0, **changes}


def guidellm_report(version: int = 1, **requests: list[dict[str, Any]]) -> dict[str, Any]:
    total = sum(len(v) for v in requests.values())
    benchmark = {"config": {"strategy": {"type_": "constant"}}, "metrics": {"request_totals": {"total": total}}, "requests": requests}
    return {"metadata": {"version": version, "guidellm_version": "0.6"}, "benchmarks": [benchmark]}


def test_case_e26_tpot_formula_on_import(tmp_path: Path) -> None:
    file = written(tmp_path, guidellm_report(successful=[guidellm_request()]))
    found = read_requests(file)
    row = found.frame.row(0, named=True)
    assert row["ttft_s"] == pytest.approx(0.5)
    assert row["e2e_s"] == pytest.approx(1.5)
    assert row["tpot_s"] == pytest.approx(0.100)
    assert row["guidellm_time_per_output_token_s"] == pytest.approx(0.13636, abs=1e-5)
    assert "E2E / n" in found.formulas["guidellm_time_per_output_token_s"]
    assert row["guidellm_inter_token_latency_s"] == pytest.approx(row["tpot_s"])


def test_case_e24_bundled_chunks(tmp_path: Path) -> None:
    # chunks of 1, 4 and 3 tokens at 0, 40 and 80 ms
    result = {"num_prompts": 1, "total_input_tokens": 5, "request_throughput": 1.0, "completed": 1, "start_times": [10.0], "errors": [""]}
    file = written(tmp_path, {**result, "input_lens": [5], "output_lens": [8], "ttfts": [0.2], "itls": [[0.04, 0.04]]})
    found = read_requests(file)
    row = found.frame.row(0, named=True)
    assert row["tpot_s"] == pytest.approx(0.080 / 7)
    assert (row["stamps"], row["chunks"]) == ("chunk", 3)
    assert row["max_chunk_gap_s"] == pytest.approx(0.040)
    assert row["max_token_gap_s"] is None
    assert len(found.token_gaps_s()) == 0
    assert found.chunk_gaps_s() == pytest.approx([0.04, 0.04])
    assert "chunks of several or unknown numbers of tokens" in refused(read_trace, file)


def test_case_e24_a_missing_count_is_unknown_not_one(tmp_path: Path) -> None:
    result = {"num_prompts": 1, "total_input_tokens": 5, "request_throughput": 1.0, "start_times": [10.0, 11.0], "errors": ["", ""]}
    arrays = {"input_lens": [5, 5], "output_lens": [None, 0], "ttfts": [0.2, 0.2], "itls": [[0.04, 0.05], []]}
    found = read_requests(written(tmp_path, {**result, **arrays}))
    assert found.frame["output_tokens"].to_list() == [None, None]
    assert found.frame["tpot_s"].to_list() == [None, None]
    assert found.frame["stamps"].to_list() == ["chunk", "chunk"]
    assert found.tpot_counts["tokens unknown"] == 2


def test_a_request_of_one_token_has_no_tpot_and_is_counted() -> None:
    rows = {"request_id": ["a", "b"], "status": ["ok", "ok"], "sent_s": [0.0, 0.0], "first_token_s": [1.0, 1.0], "last_token_s": [1.0, 2.0]}
    found = RequestStamps.of(pl.DataFrame({**rows, "output_tokens": [1, 5]}))
    assert found.frame["tpot_s"].to_list() == [None, 0.25]
    assert found.tpot_counts == {"measured": 1, "TPOT n/a": 1, "tokens unknown": 0, "no client stamps": 0}


def test_a_stamp_before_the_one_it_follows_gives_no_duration() -> None:
    rows = {"request_id": ["a"], "status": ["ok"], "sent_s": [5.0], "first_token_s": [4.0], "last_token_s": [6.0], "output_tokens": [3]}
    found = RequestStamps.of(pl.DataFrame(rows))
    assert found.frame.select("ttft_s", "e2e_s", "tpot_s").row(0) == (None, None, None)
    assert list(found.aside.values()) == [1]
    assert len(found) == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"status": ["done"]}, "status of a request must be one of"),
        ({"stamps": ["word"]}, "stamps of a request must be one of"),
        ({"tpot_s": [0.1]}, "under another name"),
    ],
)
def test_what_requests_are_not_made_from(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RequestStamps.of(pl.DataFrame({"request_id": ["a"], "status": ["ok"], **changes}))
    with pytest.raises(ValueError, match="clock must be"):
        RequestStamps.of(pl.DataFrame({"request_id": ["a"], "status": ["ok"]}), clock="sun")


def test_gaps_that_were_spread_over_a_chunk_are_no_token_gaps() -> None:
    measured = [0.0101, 0.0102, 0.0099, 0.0103, 0.0100]
    assert kind_of(measured, 6) == "token"
    assert kind_of([0.0101] * 3 + [0.02] * 2, 6) == "chunk"
    assert kind_of(measured, 7) == "chunk"
    assert kind_of(measured, None) == "chunk"
    assert kind_of(None, 6) is None


def test_guidellm_of_both_versions_counts_every_ending(tmp_path: Path) -> None:
    bare = {"request_id": "x", "info": {"status": "errored", "timings": {"request_start": 101.0}}}
    for version in (1, 2):
        report = guidellm_report(
            version, successful=[guidellm_request()], incomplete=[guidellm_request(output_tokens=None)], errored=[bare]
        )
        found = read_requests(written(tmp_path, report, name=f"v{version}"))
        assert found.reader == "guidellm"
        assert found.counts == {"ok": 1, "cancelled": 1, "failed": 1}
        assert found.frame.filter(pl.col("status") != "ok")["tpot_s"].null_count() == 2
    report["benchmarks"][0]["metrics"]["request_totals"]["total"] = 10
    assert list(read_requests(written(tmp_path, report, name="sampled")).aside.values()) == [7]


def aiperf_record(**changes: Any) -> dict[str, Any]:
    value = lambda v, unit: {"value": v, "unit": unit}  # noqa: E731
    metrics = {
        "time_to_first_token": value(500.0, "ms"),
        "request_latency": value(530.0, "ms"),
        "output_sequence_length": value(4, "tokens"),
    }
    metrics |= {"input_sequence_length": value(32, "tokens"), "inter_chunk_latency": value([9.0, 10.0, 11.0], "ms")}
    about = {"x_request_id": "r1", "request_start_ns": 1_700_000_000_000_000_000, "benchmark_phase": "profiling"}
    return {"metadata": about, "metrics": metrics, "error": None, **changes}


def test_aiperf_in_its_older_and_newer_form(tmp_path: Path) -> None:
    new = aiperf_record()
    old = {**new, "metadata": {"x_request_id": "r2", "timestamp_ns": 1_700_000_001_000_000_000, "credit_phase": "profiling"}}
    old["metrics"] = {"ttft" if k == "time_to_first_token" else k: v for k, v in new["metrics"].items()}
    cancelled = aiperf_record(metrics={}, error={"code": 499, "type": "RequestCancellationError"})
    failed = aiperf_record(metrics={}, error={"code": 500, "type": "ServerError"})
    warm = aiperf_record(metadata={**new["metadata"], "benchmark_phase": "warmup"})
    found = read_requests(written(tmp_path, new, old, cancelled, failed, warm))
    assert found.counts == {"ok": 2, "cancelled": 1, "failed": 1}
    assert list(found.aside) == ["of the warm-up, before the measurement"]
    ok = found.frame.filter(pl.col("status") == "ok")
    assert ok["ttft_s"].to_list() == pytest.approx([0.5, 0.5], abs=1e-6)
    assert ok["tpot_s"].to_list() == pytest.approx([0.01, 0.01], abs=1e-6)
    assert ok["stamps"].to_list() == ["token", "token"]


def test_a_duration_without_a_unit_is_unknown(tmp_path: Path) -> None:
    record = aiperf_record()
    record["metrics"]["time_to_first_token"] = {"value": 500.0}
    assert read_requests(written(tmp_path, record)).frame["ttft_s"].to_list() == [None]


SGLANG = {"backend": "sglang", "dataset_name": "random", "request_rate": float("inf"), "random_input_len": 64, "duration": 10.0}
MEANS = {"completed": 20, "total_input_tokens": 1280, "total_output_tokens": 2000, "mean_e2e_latency_ms": 2000.0, "median_ttft_ms": 100.0}


def test_sglang_with_single_requests(tmp_path: Path) -> None:
    arrays = {"input_lens": [64, 64], "output_lens": [3, 5], "ttfts": [0.1, 0.0], "itls": [[0.01, 0.02], []], "errors": ["", "timeout"]}
    found = read_requests(written(tmp_path, {**SGLANG, **MEANS, **arrays, "completed": 1}, {**SGLANG, **MEANS}))
    assert found.counts == {"ok": 1, "cancelled": 0, "failed": 1}
    assert found.clock == "per_request"
    assert found.frame["tpot_s"].to_list() == [pytest.approx(0.015), None]
    assert list(found.aside.values()) == [1]


def test_sglang_averages_are_refused_as_requests_and_read_as_a_curve(tmp_path: Path) -> None:
    slow = {**MEANS, "median_e2e_latency_ms": 2090.0, "mean_e2e_latency_ms": 2100.0}
    file = written(tmp_path, {**SGLANG, **MEANS, "mean_tpot_ms": 19.0}, {**SGLANG, **slow, "request_rate": 4.0})
    assert "averages per rate (2 of them) and no single request" in refused(read_requests, file)
    curve = aggregates(file)
    assert curve["concurrency"].to_list() == pytest.approx([20 / 10 * 2.0, 20 / 10 * 2.1])
    assert curve["tpot_s"].to_list() == pytest.approx([0.019, (2.090 - 0.100) / 99])
    assert curve["tpot_from"].to_list() == ["mean_tpot", "median_times"]
    trace = read_trace(file)
    assert trace.reader == "client_aggregates"
    lacks = ("decode_kv_tokens", "prefill_tokens", "prefill_pairs", "prefill_requests")
    assert TRACE_READERS["client_aggregates"].read(Opened(str(file))).missing == lacks
    assert any("decode_kv_tokens is estimated" in said for said in trace.warnings)
    assert trace.frame["decode_kv_tokens"].to_list() == pytest.approx([4.0 * (64 + 50), 4.2 * (64 + 50)])
    lacking = written(tmp_path, {**SGLANG, **MEANS, "duration": None}, name="g")
    assert "column duration" in refused(aggregates, lacking)


def test_vllm_without_details_or_start_times(tmp_path: Path) -> None:
    result = {"num_prompts": 2, "total_input_tokens": 5, "request_throughput": 1.0, "completed": 2}
    assert "--save-detailed" in refused(read_requests, written(tmp_path, result))
    arrays = {"input_lens": [5, 6], "output_lens": [2, 2], "ttfts": [0.2, 0.3], "itls": [[0.04], [0.05]]}
    file = written(tmp_path, {**result, **arrays}, name="old")
    found = read_requests(file)
    assert found.clock == "per_request"
    assert found.frame["tpot_s"].to_list() == pytest.approx([0.04, 0.05])
    assert "share no clock" in refused(read_trace, file)
    short = {**result, **arrays, "itls": [[0.04]]}
    assert "column itls: expected an array of 2 entries" in refused(read_requests, written(tmp_path, short, name="short"))


def test_a_file_that_broke_off_keeps_what_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "cut.jsonl"
    file.write_text(json.dumps(aiperf_record()) + "\n" + json.dumps(aiperf_record())[:200])
    found = read_requests(file)
    assert len(found) == 1
    assert list(found.aside.values()) == [1]
    file.write_text(json.dumps(aiperf_record())[:200] + "\n" + json.dumps(aiperf_record()) + "\n")
    assert "row 1" in refused(read_requests, file, "aiperf")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "found an empty file"),
        ("Metric,avg,min,max,p1\nTime,1,2,3,4\n", "AIPerf's summary"),
        ('{\n  "records": {"ttft": {"avg": 1}}}', "AIPerf's summary"),
        ("# HELP vllm:x y\n", "Prometheus"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "a workload"),
        ("step,step_time_s\n1,0.01\n", "headway fit reads it"),
        ("hello\n", "text that begins with 'hello' is of no known format: give what a load generator"),
        (
            '{"request_id": "a", "queued_at": 1.0, "first_token_at": 2.0}\n',
            "(engine_requests), of which it lacks first_token_ts (here first_token_at?) and",
        ),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "GET /"}]}]}]}', "1 other spans"),
    ],
)
def test_what_holds_no_request_is_refused_by_name(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text(text)
    assert says in refused(read_requests, file)


def test_how_files_are_given() -> None:
    with pytest.raises(ValueError, match="at least one file"):
        read_requests([])
    with pytest.raises(ValueError, match="given twice"):
        read_requests(["a", "a"])
    with pytest.raises(ValueError, match="unknown format"):
        read_requests("a", "excel")
    assert "there is none of this name" in refused(read_requests, "nope.json")


@pytest.mark.parametrize(
    ("file", "reader", "counts", "measured"),
    [
        ("client/vllm_bench/bench_serve_result.json", "vllm_bench", (60, 0, 0), 60),
        (GUIDELLM, "guidellm", (200, 0, 0), 195),
        ("client/aiperf/profile_export.jsonl", "aiperf", (89, 11, 0), 89),
        (OTEL, "otel", (200, 0, 0), 0),
        ("steps/llmservingsim/RTXPRO6000_Llama-3.1-8B/vllm_run/requests.jsonl", "engine_requests", (300, 0, 0), 0),
        ("steps/llmservingsim/RTXPRO6000_Qwen3-32B/vllm_run/requests.jsonl", "engine_requests", (300, 0, 0), 0),
    ],
)
def test_measured_files_are_read_whole(file: str, reader: str, counts: tuple[int, ...], measured: int, shared_data: Path) -> None:
    found = read_requests(shared_data / file)
    assert found.reader == reader in REQUEST_READERS
    assert tuple(found.counts.values()) == counts
    assert sum(counts) == len(found)
    assert found.tpot_counts["measured"] == measured
    assert not found.aside


@pytest.mark.parametrize(
    ("file", "says", "of_fit"),
    [
        (
            "guidellm/format_only_mock_guidellm_report_v2.json",
            "version 2; this one counts 4 in 2 benchmarks and lists none",
            "headway transport",
        ),
        ("aiperf/profile_export_aiperf.csv", "AIPerf's summary", "AIPerf's summary"),
        ("aiperf/profile_export_aiperf.json", "AIPerf's summary", "AIPerf's summary"),
        ("sglang_bench/llama_3_3_70b_online_output.jsonl", "averages per rate (7 of them) and no single request", None),
        ("sglang_bench/llama_3_3_70b_offline_output.jsonl", "averages per rate (7 of them) and no single request", None),
        ("sglang_bench/llama_405b_online_output.jsonl", "averages per rate (6 of them) and no single request", None),
        ("sglang_bench/deepseek_dp_mla_output.jsonl", "averages per rate (1 of them) and no single request", None),
    ],
)
def test_measured_files_without_requests_are_refused_by_name(file: str, says: str, of_fit: str | None, shared_data: Path) -> None:
    path = shared_data / "client" / file
    assert says in refused(read_requests, path)
    if of_fit is None:
        assert read_trace(path).reader == "client_aggregates"
    else:
        assert of_fit in refused(read_trace, path)


@pytest.mark.parametrize("file", [GUIDELLM, OTEL, "steps/llmservingsim/RTXPRO6000_Qwen3-32B/vllm_run/requests.jsonl"])
def test_fit_points_to_transport_where_no_step_is_told(file: str, shared_data: Path) -> None:
    assert "headway transport reads" in refused(read_trace, shared_data / file)


def test_guidellm_itl_is_the_canonical_tpot_and_its_tpot_is_not(shared_data: Path) -> None:
    frame = read_requests(shared_data / GUIDELLM).frame.drop_nulls("tpot_s")
    tpot = frame["tpot_s"].to_numpy()
    assert np.allclose(frame["guidellm_inter_token_latency_s"].to_numpy(), tpot, rtol=1e-6)
    whole = (frame["e2e_s"] / frame["output_tokens"]).to_numpy()
    assert np.allclose(frame["guidellm_time_per_output_token_s"].to_numpy(), whole, rtol=1e-6)
    assert np.median(frame["guidellm_time_per_output_token_s"].to_numpy()) > 2 * np.median(tpot)


def test_the_curve_of_measured_averages_rises_with_concurrency(shared_data: Path) -> None:
    curve = aggregates(shared_data / "client" / "sglang_bench" / "llama_3_3_70b_online_output.jsonl")
    same = curve.filter(pl.col("input_tokens") > 400).sort("concurrency")
    assert same["concurrency"].to_list() == pytest.approx([7.88, 16.39, 52.13, 360.3, 1245.0], rel=1e-3)
    assert np.all(np.diff(same["tpot_s"].to_numpy()) > 0)
