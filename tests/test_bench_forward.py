"""The reader of vllm bench forward: sums from exact batches, a row per replay, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.identification.fit import fit
from headway.identification.readers import TraceError, read_trace

CASES: list[dict[str, Any]] = [
    {"case": "decode", "requests": [{"query_len": 1, "kv_len": 1000, "num_draft_tokens": 0, "chunked": False}] * 3},
    {"case": "mix", "requests": [{"query_len": 512, "kv_len": 768, "chunked": True}, {"query_len": 1, "kv_len": 300}]},
    {"case": "fresh", "requests": [{"query_len": 256, "kv_len": 256}]},
]


def written(path: Path, cases: list[dict[str, Any]], samples: int = 4) -> Path:
    rows = []
    for k, case in enumerate(cases):
        times = [1000.0 * (k + 1) + j for j in range(samples)]
        latency = {"median": 1000.0 * (k + 1), "sample_spread_pct": 0.1 + k, "count": 20, "samples_us": times, "timer": "graph_events"}
        rows.append({**case, "median_us": latency["median"], "ranks": [{"num_tokens": 3, "latency_us": latency}]})
    path.write_text(json.dumps(rows, indent=2))
    return path


def test_each_replay_is_a_step_of_its_batch(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "forward.json", CASES))
    assert trace.reader == "bench_forward"
    assert trace.clock == "device"
    assert len(trace) == 12
    assert trace.step_time_s[:5] == pytest.approx([1e-3, 1.001e-3, 1.002e-3, 1.003e-3, 2e-3])
    batch = trace.batch()
    assert [c[0] for c in batch] == [3, 3000, 0, 0, 0]
    assert [c[4] for c in batch] == [1, 300, 512, 512 * (256 + 256), 1]
    assert [c[8] for c in batch] == [0, 0, 256, 256 * 128, 1]  # without a prefix it is a prompt, not a decode
    assert "2 of 3 cases were timed while the device was not steady (mix, fresh)" in trace.warnings[0]


def test_medians_alone_are_averages(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "forward.json", CASES, samples=0))
    assert len(trace) == 3
    assert trace.frame["steps_averaged"].to_list() == [20, 20, 20]


def test_a_plant_comes_out_and_no_wall_clock_margin(tmp_path: Path) -> None:
    cases = [
        {"case": f"d{n}-{kv}", "requests": [{"query_len": 1, "kv_len": kv}] * n} for n in (1, 4, 16, 64) for kv in (200, 1000, 4000)
    ] + [{"case": f"p{q}", "requests": [{"query_len": q, "kv_len": q}]} for q in (64, 128, 256, 512, 1024)]
    found = fit(read_trace(written(tmp_path / "forward.json", cases, samples=10)))
    assert found.about["clock"] == "device"
    assert found.margin == {"decode": None, "mixed": None}
    assert any("of the device alone" in w or "the device" in w for w in found.about["warnings"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"requests": []}, "row 1, column requests: expected at least one request in a case"),
        ({"requests": [{"query_len": 9, "kv_len": 4}]}, "row 1, column requests: expected 1 <= query_len <= kv_len"),
        ({"requests": [{"query_len": "x", "kv_len": 4}]}, "expected timed forward passes of vllm bench forward"),
    ],
)
def test_what_cannot_be_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    file = written(tmp_path / "forward.json", [{**CASES[0], **change}])
    with pytest.raises(TraceError) as caught:
        read_trace(file, "bench_forward")
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_cut_off_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "forward.json", CASES)
    file.write_text(file.read_text()[:-40])
    with pytest.raises(TraceError, match="a whole JSON list"):
        read_trace(file)
