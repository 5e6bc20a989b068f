"""The time line for Perfetto: the rules of the trace event format, and that nothing of the validation is lost or bent."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cli import main
from headway.experiments.run import MANIFEST
from headway.experiments.whole_files import write_json
from headway.report.perfetto import COUNTERS, SIDES, trace_events, write_perfetto
from tests.small_run import validation_json, write_run

NUMBERS = (int, float)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "a run"
    folder.mkdir()
    write_run(folder)
    return folder


def refused(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def keeps_the_format(events: list[dict[str, Any]]) -> None:
    """What the Trace Event Format asks of complete, counter and metadata events, and Perfetto of slices of one thread."""
    for event in events:
        assert {"ph", "ts", "pid", "tid", "name", "args"} <= event.keys()
        assert event["ph"] in "XCM"
        assert isinstance(event["pid"], int)
        assert isinstance(event["ts"], NUMBERS)
        assert math.isfinite(event["ts"])
        assert event["ts"] >= 0
        assert ("dur" in event) == (event["ph"] == "X")
        if event["ph"] == "C":
            assert event["args"]
            assert all(isinstance(value, NUMBERS) and math.isfinite(value) for value in event["args"].values())
    assert [e["ph"] == "M" for e in events] == sorted((e["ph"] == "M" for e in events), reverse=True)
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
    named = {e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert named == {e["pid"] for e in events}
    for pid in named:
        slices = [e for e in events if e["ph"] == "X" and e["pid"] == pid]
        assert all(e["dur"] >= 0 for e in slices)
        assert all(b["ts"] >= round(a["ts"] + a["dur"], 3) for a, b in itertools.pairwise(slices))


def test_a_run_is_written_as_the_format_asks(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "steps.json"
    assert write_perfetto(run, out) == {"tuned controller": 600, "best static setting": 600}
    content = json.loads(out.read_text(), parse_constant=refused)
    assert set(content) <= {"traceEvents", "displayTimeUnit", "otherData"}  # the format's own names
    assert content["displayTimeUnit"] == "ms"
    keeps_the_format(content["traceEvents"])


def test_every_step_is_there_as_it_was_recorded() -> None:
    validation = validation_json()
    events = trace_events(validation, budget_s=0.02)
    for pid, side in enumerate(SIDES, start=1):
        timeline = validation[side]["timeline"]
        slices = [e for e in events if e["ph"] == "X" and e["pid"] == pid]
        assert [e["dur"] for e in slices] == pytest.approx([1e6 * x for x in timeline["step_time_s"]], abs=1e-3)
        assert [e["ts"] + e["dur"] for e in slices] == pytest.approx([1e6 * x for x in timeline["end_s"]], abs=1.0)
        assert [e["cat"] == "late" for e in slices] == [x > 0.02 for x in timeline["step_time_s"]]
        assert [e["args"]["bound by"] == "the token budget" for e in slices] == [x == 3 for x in timeline["binding"]]
        for name, title in COUNTERS.items():
            counted = [e["args"]["value"] for e in events if e["ph"] == "C" and e["pid"] == pid and e["name"] == title]
            assert counted == timeline[name]


def test_a_slice_is_named_after_what_was_in_the_step() -> None:
    columns = {"end_s": [1.0, 2.0, 3.0], "step_time_s": [0.5] * 3, "prefill_tokens": [0, 9, 9], "decode_requests": [4, 4, 0]}
    events = trace_events({"controller": {"timeline": columns}})
    assert [e["name"] for e in events if e["ph"] == "X"] == ["decode", "mixed", "prompts"]


@given(
    st.lists(st.tuples(st.floats(1e-4, 0.5), st.floats(0, 0.2)), min_size=1, max_size=60),
    st.floats(0, 5000),
    st.sampled_from(list(SIDES)),
)
def test_rounding_of_the_clock_makes_no_slices_overlap(steps: list[tuple[float, float]], began_s: float, side: str) -> None:
    """Clocks with six digits, as a validation keeps them, of a run that is long under way; idle gaps between some steps."""
    end_s = list(itertools.accumulate((duration + idle for duration, idle in steps), initial=began_s))[1:]
    kept = {"end_s": [float(f"{x:.6g}") for x in end_s], "step_time_s": [float(f"{x[0]:.6g}") for x in steps]}
    events = trace_events({side: {"timeline": kept}})
    keeps_the_format(events)
    slices = [e for e in events if e["ph"] == "X"]
    assert [e["dur"] for e in slices] == pytest.approx([1e6 * x for x in kept["step_time_s"]], abs=1e-3)
    # a start is moved by rounding alone: six digits of the clock, for this step and those that touch it
    assert all(abs(e["ts"] + e["dur"] - 1e6 * x) <= 1e6 * 1e-5 * max(x, 1) + 1 for e, x in zip(slices, end_s, strict=True))


def test_a_side_without_steps_is_left_out() -> None:
    validation = validation_json()
    validation["best_static"]["timeline"] = {}
    assert {e["pid"] for e in trace_events(validation)} == {1}
    validation["controller"]["timeline"]["end_s"][3] = None
    assert trace_events(validation) == []


def test_the_report_command_writes_it_too(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "steps.json"
    assert main(["report", str(run), "--perfetto", str(out)]) == 0
    said = capsys.readouterr().out
    assert "600 steps of the tuned controller, 600 steps of the best static setting" in said
    assert out.exists()
    assert (run / "report.html").exists()
    assert main(["report", str(run), "--perfetto", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == {"tuned controller": 600, "best static setting": 600}


def test_what_cannot_be_written_is_said_in_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "validation.json").read_bytes()
    trace, validation = tmp_path / "raw.csv", run / "validation.json"
    trace.write_text("rows", encoding="utf-8")
    write_json(run / MANIFEST, {"request": {"traces": [str(trace)]}, "stages": {}, "inputs": {}})
    for read in (trace, run / MANIFEST):
        assert main(["report", str(run), "--perfetto", str(read)]) == 2
        assert "would be written over" in capsys.readouterr().err
    (run / MANIFEST).unlink()
    assert main(["report", str(run), "--perfetto", str(validation)]) == 2
    assert "would be written over" in capsys.readouterr().err
    assert (run / "validation.json").read_bytes() == before
    write_json(run / "validation.json", {**validation_json(), "controller": {}, "best_static": {}})
    assert main(["report", str(run), "--perfetto", str(tmp_path / "x.json")]) == 2
    assert "no steps were recorded" in capsys.readouterr().err
    (run / "validation.json").unlink()
    assert main(["report", str(run), "--perfetto", str(tmp_path / "x.json")]) == 2
    assert "headway validate" in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()
    assert not (run / "report.html").exists()
