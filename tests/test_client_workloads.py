"""Workloads from what load generators and engines wrote of their requests: when each was sent, with which lengths."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headway.identification.readers.errors import TraceError
from headway.identification.readers.workload_sources import SOURCE_READERS
from headway.identification.readers.workloads import read_workload
from headway.models.recorded_lengths import RecordedLengths
from headway.models.workload import Replay
from headway.workloads import load_workload

N = 24


def bench(tmp_path: Path, *, starts: bool = True, detailed: bool = True, ends_s: float = 0.5, gap_s: float = 1.0) -> Path:
    """A result of `vllm bench serve`: requests `gap_s` apart, the fourth of them failed."""
    ok = [k != 3 for k in range(N)]
    result = {"num_prompts": N, "total_input_tokens": 99, "request_throughput": 1.0, "completed": N - 1}
    if detailed:
        result |= {"input_lens": [100 + k for k in range(N)], "output_lens": [10 + k if ok[k] else 0 for k in range(N)]}
        result |= {"ttfts": [0.1 if one else 0.0 for one in ok], "itls": [[ends_s - 0.1] if one else [] for one in ok]}
        result |= {"errors": ["" if one else "refused" for one in ok]}
    if starts:
        result["start_times"] = [7.0 + gap_s * k for k in range(N)]
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(result))
    return file


def aiperf(tmp_path: Path) -> Path:
    """AIPerf's records: the second was cancelled after four tokens, the third before it had any."""
    lines = []
    for k in range(8):
        about = {"x_request_id": f"r{k}", "request_start_ns": int(1e18 + (8 - k) * 1e9), "benchmark_phase": "profiling"}
        metrics = {"input_sequence_length": {"value": 50 + k, "unit": "tokens"}, "output_sequence_length": {"value": 4, "unit": "tokens"}}
        error = None
        if k in (1, 2):
            about["was_cancelled"], error = True, {"code": 499, "type": "RequestCancellationError"}
        lines.append({"metadata": about, "metrics": {} if k == 2 else metrics, "error": error})
    file = tmp_path / "profile_export.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_a_benchmark_is_replayed_by_its_start_times(tmp_path: Path) -> None:
    source, notes = load_workload(str(bench(tmp_path)))
    assert isinstance(source, Replay)
    workload = source.workload
    workload.check()
    assert workload.arrival_s.tolist() == [float(k) for k in range(N) if k != 3]
    assert workload.prompt_tokens.tolist() == [100 + k for k in range(N) if k != 3]
    assert workload.output_tokens.tolist() == [10 + k for k in range(N) if k != 3]
    assert workload.source == "bench.json"
    assert notes == [
        "1 of 24 requests were failed, none of them with its lengths",
        "1 of 24 requests lack their sending, prompt or output tokens; set aside",
    ]
    faster, notes = load_workload(f"vllm_bench:{bench(tmp_path)}@4/s,patience=2s")
    assert faster.draw(0, 12, heldout=False).rate_rps == pytest.approx(4.0)
    assert notes[-1].startswith("arrivals rescaled from ")


def test_a_client_that_waited_for_answers_is_named(tmp_path: Path) -> None:
    """Each request is sent as one ends, three seconds after it was sent: three are in flight."""
    _, notes = load_workload(str(bench(tmp_path, ends_s=3.0)))
    assert notes[-1].startswith("at 83% of the sendings exactly 3 requests were in flight: the client waited for answers.")
    assert "closed:clients=3" in notes[-1]


def test_requests_without_a_time_are_drawn_at_a_rate(tmp_path: Path) -> None:
    file = bench(tmp_path, starts=False)
    said = f"{file}: expected a rate beside a benchmark's file of requests that does not say when each was sent: write for example "
    for text in (str(file), f"vllm_bench:{file}"):
        with pytest.raises(TraceError) as caught:
            load_workload(text)
        assert str(caught.value) == said + "vllm_bench:bench.json@8/s"
    with pytest.raises(TraceError, match="expected a rate beside"):
        read_workload(file)
    source, notes = load_workload(f"vllm_bench:{file}@8/s")
    assert isinstance(source, RecordedLengths)
    assert len(source.prompt_tokens) == N - 1
    assert notes[0] == "the file does not say when requests were sent: arrivals are drawn as a Poisson process of 8/s"
    assert source.draw(0, 2_000, heldout=True).rate_rps == pytest.approx(8.0, rel=0.15)


def test_averages_are_no_workload(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="this one holds averages only: record it with --save-result --save-detailed"):
        load_workload(str(bench(tmp_path, detailed=False)), 5.0)


def test_cancelled_requests_are_counted(tmp_path: Path) -> None:
    workload, notes = read_workload(aiperf(tmp_path))
    assert workload.arrival_s.tolist() == [0, 1, 2, 3, 4, 6, 7]
    assert workload.prompt_tokens.tolist() == [57, 56, 55, 54, 53, 51, 50]
    assert notes == [
        "2 of 8 requests were cancelled, 1 of them replayed with the tokens they got",
        "1 of 8 requests lack their sending, prompt or output tokens; set aside",
        "6 rows came before the row above them; sorted by arrival",
    ]


def test_the_readers_of_drawn_workloads_leave_other_files_alone(tmp_path: Path) -> None:
    assert not SOURCE_READERS["client_lengths"].claims(aiperf(tmp_path))
    assert not SOURCE_READERS["client_lengths"].claims(bench(tmp_path))
    assert not SOURCE_READERS["client_lengths"].claims(tmp_path)


FILES = {
    "client/aiperf/profile_export.jsonl": (89, "11 of 100 requests were cancelled, none of them with its lengths"),
    "client/guidellm/codellama34b_h100_chunk64.guidellm-results.notext.json": (200, "the file holds 5 runs"),
    "client/otel/codellama34b_h100_chunk64.vllm_traces.json": (200, "rows came before the row above them"),
    "client/vllm_bench/bench_serve_result.json": (60, ""),
    "steps/llmservingsim/RTXPRO6000_Llama-3.1-8B/vllm_run/requests.jsonl": (300, ""),
}


@pytest.mark.parametrize("name", FILES)
def test_the_recorded_files_are_workloads(name: str, shared_data: Path) -> None:
    workload, notes = read_workload(shared_data / name)
    workload.check()
    requests, said = FILES[name]
    assert len(workload) == requests
    assert any(said in note for note in notes) or not said
    assert np.isfinite(workload.rate_rps)


def test_client_and_server_saw_the_same_requests(shared_data: Path) -> None:
    """The spans of the server and the report of the client are of one experiment: same lengths, nearly the same arrivals."""
    client = read_workload(shared_data / "client/guidellm/codellama34b_h100_chunk64.guidellm-results.notext.json")[0]
    server = read_workload(shared_data / "client/otel/codellama34b_h100_chunk64.vllm_traces.json")[0]
    assert np.abs(client.arrival_s - server.arrival_s).max() < 0.2
    assert client.rate_rps == pytest.approx(server.rate_rps, rel=1e-3)
