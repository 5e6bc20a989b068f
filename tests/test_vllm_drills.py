"""Faults beside a real vLLM scheduler, one and two batches in flight, and real kernels: serving goes on and the log says what happened."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headway.controllers.policy import Policy
from headway.engines.vllm.adapter import write_adapter
from headway.engines.vllm.made_model import make_model
from headway.identification.readers import read_trace
from tests.test_export import LAWS, record

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("sync", "async")
SPOILT = {
    "truncated": "JSONDecodeError",
    "nan": "NaN is no number",
    "absent": "FileNotFoundError",
}
"""Drills on the gains file, and what the log says of each."""
BROKEN = ("law", "key", "meter")
"""Drills in which our own code raises."""


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """Python of the environment that scripts/vllm-env makes; a test does not make it, that takes 3 GB."""
    place = Path(os.environ.get("HEADWAY_VLLM") or ROOT / ".venv-vllm")
    if not (place / "headway-vllm").exists():
        pytest.skip(f"no vLLM at {place}; scripts/vllm-env makes it, HEADWAY_VLLM names another place")
    return place / "bin" / "python"


def in_process(python: Path, part: str, job: dict[str, Any], folder: Path) -> Any:
    (folder / "job.json").write_text(json.dumps(job))
    command = [str(python), str(ROOT / "tests" / "vllm_in_process.py"), part, str(folder / "job.json"), str(folder / "result.json")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="session")
def drilled(vllm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("drills")
    write_adapter(folder / "out", record(LAWS[5], Policy(order="slack", triage="reject", aging_rate=0.5)))
    write_adapter(folder / "other", record(LAWS[5], Policy(order="slack", triage="reject", aging_rate=0.2)))
    return in_process(vllm_python, "drills", {"folder": str(folder / "out"), "other": str(folder / "other" / "controller.json")}, folder)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["none", *SPOILT, "replaced", "clock", "flood", "strangers", "cache", *BROKEN])
def test_whatever_happens_every_request_ends_once_and_no_limit_is_exceeded(name: str, way: str, drilled: dict[str, Any]) -> None:
    found = drilled[f"{name}/{way}"]
    assert found["ended"] == found["distinct"] == found["requests"]
    assert found["over"] == found["left"] == 0
    assert found["steps"] > 1000
    assert bool(found["failed"]) == (name in BROKEN)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SPOILT)
def test_spoilt_gains_are_refused_once_and_change_nothing(name: str, way: str, drilled: dict[str, Any]) -> None:
    found, calm = drilled[f"{name}/{way}"], drilled[f"none/{way}"]
    assert found["budgets"] == calm["budgets"]
    assert found["refused_gains"] == 1
    assert sum(SPOILT[name] in line for line in found["lines"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_what_each_other_fault_does_is_in_the_log(way: str, drilled: dict[str, Any]) -> None:
    def said(name: str, words: str) -> bool:
        return any(words in line for line in drilled[f"{name}/{way}"]["lines"])

    assert drilled[f"replaced/{way}"]["reloads"] == 1
    assert drilled[f"replaced/{way}"]["content"] != drilled[f"none/{way}"]["content"]
    assert said("replaced", "take over from")
    assert drilled[f"clock/{way}"]["clock"] == [1, 0]
    assert drilled[f"clock/{way}"]["shed"] == {}
    assert said("clock", "the wall clock was set by +3600.000 s")
    assert drilled[f"flood/{way}"]["reasons"]["abort" if "abort" in drilled[f"flood/{way}"]["reasons"] else "2"] > 1000
    assert said("flood", "requests refused: ")
    assert drilled[f"strangers/{way}"]["counts"] == {"unknown_class": 30, "wrong_target": 10, "tighter_itl": 10}
    assert said("strangers", "class 'gold' has no targets in these gains")
    assert drilled[f"cache/{way}"]["preempted"] > 0
    assert said("cache", "preempted for want of cache blocks: ")


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", BROKEN)
def test_a_fault_of_ours_is_said_once_and_the_start_up_limits_and_queue_are_back(name: str, way: str, drilled: dict[str, Any]) -> None:
    found = drilled[f"{name}/{way}"]
    assert sum("headway gives up" in line for line in found["lines"]) == 1
    assert found["limits"] == [4096, 48]
    assert found["stock_queue"] == "FCFSRequestQueue"


@pytest.mark.slow
def test_real_kernels_give_the_same_tokens_under_excitation_as_stock_and_a_trace_that_fit_reads(vllm_python: Path, tmp_path: Path) -> None:
    make_model(tmp_path / "llm", "17M", max_len=4096)
    write_adapter(tmp_path / "out", None)
    found = in_process(vllm_python, "kernels", {"folder": str(tmp_path / "out"), "llm": str(tmp_path / "llm")}, tmp_path)
    assert found["ours"]["md5"] == found["stock"]["md5"]
    assert found["ours"]["tokens"] == found["stock"]["tokens"] == 40 * 24
    trace = read_trace(tmp_path / "steps.jsonl")
    frame = trace.frame
    assert (trace.reader, trace.engine["max_seqs"]) == ("vllm_adapter", 64)
    assert frame["prefill_tokens"].sum() == found["ours"]["prompt_tokens"]
    assert frame["decode_requests"].sum() == 40 * 23
    assert (frame["prefill_tokens"] + frame["decode_requests"] <= frame["token_budget"]).all()
    assert frame["token_budget"].n_unique() > 2
    cpu = read_trace(tmp_path / "steps.jsonl", "vllm_adapter_cpu")
    assert cpu.clock == "device"
    assert (cpu.frame["step_time_s"] > 0).all()
