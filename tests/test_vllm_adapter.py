"""The adapter as it is exported, beside a scheduler that stands in for vLLM's: what it does, and that it never stands in the way."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.controllers.record import ControllerRecord
from headway.controllers.static import StaticLaw
from headway.engines import EXPORTERS
from headway.engines.vllm.adapter import ADAPTER_PARTS, write_adapter
from headway.engines.vllm.settings import VllmSettings, vllm_settings
from headway.identification.readers import read_trace
from tests.fake_vllm import FakeOldScheduler, FakeQueue, FakeRequest, FakeScheduler
from tests.test_export import record
from tests.vllm_bench import OPEN, SLACK, TRACKER, Bench, loaded, loaded_steps, put


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().pilot.close()


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="headway_runtime")
    return caplog


def test_the_file_needs_nothing_but_the_standard_library_to_be_imported(tmp_path: Path) -> None:
    for k, written in enumerate((record(TRACKER, SLACK), None)):
        out = write_adapter(tmp_path / str(k), written)
        assert out.files == (("headway_vllm.py", "controller.json", "README.md") if written else ("headway_vllm.py", "README.md"))
        code = "import sys; import headway_vllm as h; print(h.make_scheduler.__name__, bool(h.INLINED_GAINS), 'headway' in sys.modules)"
        command = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = ['.']; {code}"]
        done = subprocess.run(command, cwd=out.folder, capture_output=True, text=True, check=False, timeout=60)
        assert done.stdout.split() == ["make_scheduler", str(bool(written)), "False"], done.stderr


def test_the_export_is_in_the_table_and_its_readme_has_the_line_to_start_with(tmp_path: Path) -> None:
    out = EXPORTERS["vllm"](record(TRACKER, SLACK), tmp_path / "out")
    text = (out.folder / "README.md").read_text()
    assert "--scheduler-cls headway_vllm.make_scheduler" in text
    assert "--max-num-batched-tokens 8192 --max-num-seqs 64" in text
    data = json.loads((out.folder / "controller.json").read_text())
    assert ControllerRecord.from_json(data).to_json()["content_sha256"] == data["content_sha256"]
    source = (out.folder / "headway_vllm.py").read_text()
    assert source.count("\nclass Runtime(") == source.count("\nclass Pilot:") == 1
    here = Path(EXPORTERS["vllm"].__code__.co_filename).parent
    assert {p.split("/")[1] for p in ADAPTER_PARTS} <= {p.stem for p in (here / "vllm").glob("*.py")}


def test_settings_are_read_and_wrong_ones_named() -> None:
    given = {"headway": {"mode": "excite", "trace": "a.jsonl", "seed": 3, "excite": {"tokens": [64, 128], "hold_steps": [2, 5]}}}
    assert vllm_settings(given, has_gains=False, environment={}) == VllmSettings("excite", "", "a.jsonl", 3, (64, 128), (), (2, 5))
    assert vllm_settings({}, has_gains=True, environment={}) == VllmSettings("control", None or "")
    assert vllm_settings(None, has_gains=False, environment={}).trace == "steps.jsonl"
    over = {"HEADWAY_MODE": "shadow", "HEADWAY_TRACE": "b.jsonl", "HEADWAY_GAINS": "g.json"}
    assert vllm_settings(given, has_gains=True, environment=over)[:3] == ("shadow", "g.json", "b.jsonl")
    for wrong, says in (
        ({"mode": "contrl"}, "mode must be one of observe, excite, shadow, control, got 'contrl'"),
        ({"token": 3}, "no setting is named token"),
        ({"excite": {"tokens": [0]}}, "tokens must be whole numbers of at least 1"),
        ({"excite": {"hold_steps": [9, 3]}}, "hold_steps must be the least and the most"),
        ({"clock": "sun"}, "clock must be one of wall, cpu"),
    ):
        with pytest.raises(ValueError, match=says):
            vllm_settings({"headway": wrong}, has_gains=True, environment={})


def test_observing_changes_nothing_and_writes_what_fit_reads(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    bench, plain = Bench(tmp_path, None, mode="observe", trace=str(file)), FakeScheduler()
    for k in range(12):
        bench.add(300 + 700 * (k % 3), 20)
        plain.add_request(FakeRequest(f"q{k + 1}", 300 + 700 * (k % 3), 20))
    for k in range(60):
        out = plain.schedule()
        assert bench.step(0.01 + 1e-4 * (k % 7)).num_scheduled_tokens == out.num_scheduled_tokens
        plain.update_from_output(out, None)
    bench.scheduler.shutdown()
    assert bench.scheduler.closed
    trace = read_trace(file)
    assert trace.reader == "vllm_adapter"
    assert trace.engine == {"max_tokens": 2048, "max_seqs": 16, "block_tokens": 16, "max_len": 8192}
    first = trace.frame.row(0, named=True)
    assert first["prefill_tokens"] == first["token_budget"] == 2048
    assert first["binding"] is True
    assert first["prefill_pairs"] == 300**2 / 2 + 1000**2 / 2 + 748**2 / 2
    # the chunk that was left began behind 748 tokens
    second = trace.frame.row(1, named=True)
    assert (second["decode_requests"], second["decode_kv_tokens"]) == (2, 1300)
    assert trace.frame["step_time_s"].to_list()[:3] == pytest.approx([0.01, 0.0101, 0.0102], abs=1e-9)
    assert (trace.frame["mode"] == "observe").all()


def test_two_batches_in_flight_are_timed_by_what_the_device_did(tmp_path: Path) -> None:
    bench = Bench(tmp_path, None, mode="observe", trace=str(tmp_path / "t.jsonl"))
    bench.add(10, 50)
    clock, scheduler = bench.clock, bench.scheduler
    first = scheduler.schedule()
    clock.now_s += 0.001
    for k in range(20):
        second = scheduler.schedule() if k else first  # the next is composed while the one before runs
        clock.now_s += 0.019 if k else 0.0
        scheduler.update_from_output(first, None)
        assert bench.pilot.meter.last.step == max(k, 1)
        first = second
        if k > 2:
            assert bench.pilot.meter.last.step_time_s == pytest.approx(0.019)
        clock.now_s += 0.0
    assert not bench.pilot.failed


def test_excitation_stays_within_the_limits_holds_its_levels_and_is_the_same_for_a_seed(tmp_path: Path) -> None:
    def drawn(seed: int) -> list[tuple[int, int]]:
        bench = Bench(tmp_path, None, mode="excite", seed=seed, trace=str(tmp_path / "e.jsonl"), excite={"hold_steps": [3, 6]})
        found = []
        for k in range(200):
            if k % 2 == 0:
                bench.add(400, 12)
            bench.step()
            found.append((bench.scheduler.max_num_scheduled_tokens, bench.scheduler.max_num_active_reqs))
        assert not bench.pilot.failed
        return found

    one = drawn(1)
    assert one == drawn(1) != drawn(2)
    assert all(1 <= tokens <= 2048 and 1 <= running <= 16 for tokens, running in one)
    assert len({tokens for tokens, _ in one}) > 4
    assert len({running for _, running in one}) > 3


@pytest.mark.parametrize("base", [FakeScheduler, FakeOldScheduler])
def test_a_running_limit_is_never_above_the_start_up_limit_and_a_lowered_one_drains(base: type, tmp_path: Path) -> None:
    written = record(StaticLaw(100_000.0), dataclasses.replace(SLACK, running_limit=4.0))  # pyright: ignore[reportCallIssue]
    bench = Bench(tmp_path, written, base)
    bench.pilot.mode = "observe"  # as if it had run without a limit before
    bench.pilot.loop = None
    for _ in range(9):
        bench.add(50, 30)
    bench.step()
    assert len(bench.scheduler.running) == 9
    fresh = Bench(tmp_path, written, base)
    bench.pilot.loop, bench.pilot.desk, bench.pilot.mode = fresh.pilot.loop, fresh.pilot.desk, "control"
    bench.pilot.loop._meter = bench.pilot.meter
    for _ in range(4):
        bench.add(50, 5)
    counts = []
    for _ in range(80):
        bench.step()
        counts.append(len(bench.scheduler.running))
        assert bench.scheduler.max_num_scheduled_tokens <= 2048
    assert not bench.pilot.failed
    assert counts[0] == 9
    assert max(counts[40:]) <= 4
    assert len(bench.ended) == 13


def test_who_cannot_be_served_in_time_is_refused_and_told_and_the_most_urgent_goes_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path, record(TRACKER, SLACK))
    bench.step()
    late = bench.add(500, 5, {"headway_class": "chat"}, age_s=1.5)
    loose = bench.add(500, 5, {"headway_class": "batch"})
    tight = bench.add(500, 5, {"headway_class": "batch", "headway_ttft_ms": 700})
    out = bench.step()
    assert bench.ended == {late: "abort"}
    assert bench.pilot.desk.shed == {"chat": 1}
    assert next(iter(out.num_scheduled_tokens)) == tight
    while bench.scheduler.requests:
        bench.step()
    assert set(bench.ended) == {late, loose, tight}


def test_classes_without_targets_and_numbers_that_are_none_are_counted_and_served(tmp_path: Path, heard) -> None:
    bench = Bench(tmp_path, record(TRACKER, SLACK))
    for wanted in (
        {"headway_class": "gold"},
        {"headway_class": 7},
        {"headway_ttft_ms": "soon"},
        {"headway_itl_ms": 0.5},
        {"headway_class": []},
    ):
        bench.add(40, 3, wanted)
    bench.add(40, 3, {"headway_class": 1})
    while bench.scheduler.requests:
        bench.step()
    assert bench.pilot.desk.promises.counts == {"unknown_class": 3, "wrong_target": 1, "tighter_itl": 1}
    assert len(bench.ended) == 6
    assert "class 'gold' has no targets in these gains: its requests get those of 'chat'" in heard.text


def test_the_same_gains_written_again_change_nothing_and_others_take_over_from_the_command_in_force(tmp_path: Path, heard) -> None:
    calm = loaded_steps(Bench(tmp_path / "calm", record(TRACKER, SLACK)), 300)
    bench = Bench(tmp_path / "again", record(TRACKER, SLACK))
    budgets = loaded_steps(bench, 100)
    path = bench.folder / "controller.json"
    path.write_text(path.read_text() + "\n")
    budgets += loaded_steps(bench, 200)
    assert bench.pilot.loop.reloads == 1
    assert budgets == calm
    other = dataclasses.replace(TRACKER, late_rate=0.05, margin=0.1)  # pyright: ignore[reportCallIssue]
    put(tmp_path / "other", record(other, SLACK))
    before = budgets[-1]
    path.write_text((tmp_path / "other" / "controller.json").read_text())
    after = loaded_steps(bench, 60)
    assert bench.pilot.loop.reloads == 2
    assert "take over from" in heard.text
    jump = max(abs(b - a) for a, b in zip([before, *after], after, strict=False))
    calm_jump = max(abs(b - a) for a, b in itertools.pairwise(calm[100:]))
    assert jump <= max(2 * calm_jump, 32)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"schema": "headway/contr', "JSONDecodeError"),
        ("", "JSONDecodeError"),
        ("[1, 2]", "expected schema"),
        ("NAN", "NaN is no number"),
        (None, "FileNotFoundError"),
    ],
)
def test_gains_that_cannot_be_used_are_refused_once_and_what_was_in_force_stays(text: str | None, says: str, tmp_path: Path, heard) -> None:
    calm = loaded_steps(Bench(tmp_path / "calm", record(TRACKER, SLACK)), 200)
    bench = Bench(tmp_path / "broken", record(TRACKER, SLACK))
    budgets = loaded_steps(bench, 80)
    path = bench.folder / "controller.json"
    if text is None:
        path.unlink()
    else:
        path.write_text(path.read_text().replace('"value": ', '"value": NaN, "was": ', 1) if text == "NAN" else text)
    budgets += loaded_steps(bench, 120)
    assert budgets == calm
    assert not bench.pilot.failed
    refused = [line for line in heard.messages if "are refused" in line]
    assert len(refused) == 1
    assert says in refused[0]


def test_a_broken_file_at_the_start_leaves_the_gains_inside_the_adapter(tmp_path: Path, heard) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    bench = Bench(tmp_path, record(TRACKER, SLACK), gains=str(bad))
    assert len(loaded_steps(bench, 50)) == 50
    assert bench.pilot.loop is not None
    assert not bench.pilot.failed
    assert "are refused" in heard.text


def test_without_any_gains_control_is_stock_vllm(tmp_path: Path, heard) -> None:
    bench = Bench(tmp_path, None, mode="control")
    assert isinstance(bench.pilot.failed, ValueError)
    loaded_steps(bench, 30)
    assert type(bench.scheduler.waiting) is FakeQueue
    assert bench.scheduler.max_num_scheduled_tokens == 2048
    assert heard.text.count("headway gives up") == 1


@pytest.mark.parametrize(
    "thing", ["law.update", "law.key", "meter.composed", "meter.ended", "desk.order_running", "knobs.write", "loop.command"]
)
def test_any_exception_of_ours_is_said_once_and_stock_vllm_goes_on(thing: str, tmp_path: Path, heard) -> None:
    bench = Bench(tmp_path, record(TRACKER, SLACK))
    loaded_steps(bench, 21)

    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("injected")

    name, member = thing.split(".")
    setattr(bench.pilot.loop.law if name == "law" else getattr(bench.pilot, name), member, broken)
    loaded_steps(bench, 120)
    assert isinstance(bench.pilot.failed, ZeroDivisionError)
    assert sum("headway gives up" in line for line in heard.messages) == 1
    assert type(bench.scheduler.waiting) is FakeQueue
    assert (bench.scheduler.max_num_scheduled_tokens, bench.scheduler.max_num_active_reqs) == (2048, 16)
    assert bench.scheduler.scheduler_config.long_prefill_token_threshold == 0
    while bench.scheduler.requests:
        bench.step()
    assert len(bench.ended) == bench.count


def test_a_step_of_the_wall_clock_is_said_and_refuses_nobody(tmp_path: Path, heard) -> None:
    bench = Bench(tmp_path, record(TRACKER, SLACK))
    for apart_s in (3600.0, -7200.0):
        bench.clock.apart_s += apart_s
        for _ in range(60):
            bench.add(60, 4, {"headway_class": "chat"})
            bench.step()
    while bench.scheduler.requests:
        bench.step()
    assert bench.pilot.desk.shed == {}
    assert bench.pilot.clocks.stepped == 2
    assert "the wall clock was set by +3600.000 s" in heard.text


def test_shadow_sends_no_command_and_says_what_it_would_have_done(tmp_path: Path, heard) -> None:
    file = tmp_path / "shadow.jsonl"
    bench = Bench(tmp_path, record(TRACKER, SLACK), mode="shadow", trace=str(file))
    budgets = loaded_steps(bench, 80)
    bench.scheduler.shutdown()
    assert set(budgets) == {2048}
    assert type(bench.scheduler.waiting) is FakeQueue
    rows = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    assert {row["mode"] for row in rows} == {"shadow"}
    assert min(row["would_tokens"] for row in rows) < 2048
    assert all(row["would_running"] == 16 for row in rows)
    assert "shadow: of " in heard.text


def test_a_trace_that_cannot_be_written_costs_the_trace_alone(tmp_path: Path, heard) -> None:
    bench = Bench(tmp_path, record(TRACKER, SLACK), trace=str(tmp_path / "no" / "folder" / "steps.jsonl"))
    loaded_steps(bench, 20)
    assert not bench.pilot.failed
    assert "the trace of steps ends here" in heard.text


def test_a_server_that_was_killed_and_started_again_continues_its_trace(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    for _ in range(2):
        bench = Bench(tmp_path, None, mode="observe", trace=str(file))
        loaded_steps(bench, 30)
        bench.scheduler.shutdown()
        with file.open("a") as stream:
            stream.write('{"step": 31, "clock_s": 10')  # half a line, as a kill leaves it
    trace = read_trace(file)
    assert trace.frame["source"].n_unique() == 2
    assert trace.aside["unreadable"] == 2
    assert len(trace) == 60


def test_the_gauges_of_a_process_without_prometheus_are_one_line_of_the_log(tmp_path: Path, heard) -> None:
    if importlib.util.find_spec("prometheus_client"):
        pytest.skip("prometheus_client is here")
    Bench(tmp_path, record(TRACKER, SLACK))
    assert "no metrics of the adapter" in heard.text


def test_a_file_is_looked_at_every_half_second_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, record(TRACKER, SLACK))
    looked = []
    stat = Path.stat
    monkeypatch.setattr(Path, "stat", lambda self, **kw: looked.append(self) or stat(self, **kw))
    loaded_steps(bench, 300)
    taken_s = bench.clock.now_s - 1000.0
    assert taken_s / 0.5 - 2 <= sum(path.name == "controller.json" for path in looked) <= taken_s / 0.5 + 2


def test_time_is_told_by_the_monotonic_clock(tmp_path: Path) -> None:
    put(tmp_path / "out", None)
    module = loaded(tmp_path / "out")
    assert module.monotonic_s is time.monotonic
    assert module.worker_cpu_clock() is None or module.worker_cpu_clock()() > 0.0
    assert os.getpid() > 0
