"""What a live run is made of: the made model, the load generator against a server of the test's own, judging, starting and stopping."""

from __future__ import annotations

import dataclasses
import http.server
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cli import main
from headway.controllers.simulator import LOG_COLUMNS
from headway.engines.vllm.clients import ClientRun, request_rows, run_clients
from headway.engines.vllm.outcomes import outcome_of
from headway.engines.vllm.sender import first_in_line
from headway.engines.vllm.server import Server
from headway.engines.vllm.service import Service, read_back
from headway.engines.vllm.stages import serve_flags
from headway.engines.vllm.step_rows import periods, read_rows
from headway.engines.vllm.trial import Arm, Run, keep_run, kept_run, turns
from headway.engines.vllm.validation import client_gates
from headway.experiments.baseline import Static
from headway.models.goodput import EXPIRED, FAILED, FINISHED, REJECTED, RUNNING, WAITING, summarise, tokens_owed
from headway.models.signals import Limits, Target
from headway.models.workload import Workload

TARGETS = (Target(ttft_s=1.0, itl_s=0.1, transport_s=0.01),)


class Streams(http.server.BaseHTTPRequestHandler):
    """A server of streams: a request's number of prompt tokens says what becomes of it."""

    protocol_version = "HTTP/1.1"
    counted = 0

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        page = {
            "/v1/models": json.dumps({"data": [{"id": "m", "max_model_len": 512}]}),
            "/metrics": f'vllm:generation_tokens_total{{engine="0"}} {Streams.counted}\nvllm:num_requests_running 0.0\n'
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="33"} 1.0\n',
            "/version": '{"version": "0.32.0"}',
            "/health": "",
        }[self.path].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt, output = len(asked["prompt"]), asked["max_tokens"]
        if prompt == 3:
            self.send_response(503)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"full")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if prompt == 5:
            time.sleep(1.5)
        try:
            for k in range(output if prompt != 4 else output - 1):
                if k:
                    time.sleep(0.05)
                self._event(json.dumps({"choices": [{"token_ids": [7], "text": "x", "finish_reason": None}]}))
                Streams.counted += 1
            self._event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def _event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    pytest.importorskip("aiohttp", reason="live runs need headway[live]")
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Streams)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield Server(Service(f"127.0.0.1:{httpd.server_port}"), 0, None, False, 0.0)
    httpd.shutdown()
    httpd.server_close()


def workload(prompts: list[int], outputs: list[int], at_s: list[float], **more: Any) -> Workload:
    n = len(prompts)
    return Workload(np.array(at_s), np.array(prompts), np.array(outputs), np.zeros(n, np.int64), **more)


def test_every_request_is_sent_at_its_time_and_every_token_is_stamped(server: Server) -> None:
    asked = workload([20, 5, 20, 3, 4, 20], [4, 2, 1, 4, 4, 8], [0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    run = run_clients(server, asked, targets=TARGETS, vocab=100)
    assert run.status.tolist() == ["finished", "finished", "finished", "refused", "shed", "finished"]
    assert [len(x) for x in run.token_s] == [4, 2, 1, 0, 3, 8]
    # open loop: the stream that waits 1.5 s for its first token holds nobody up
    assert run.sent_s[2:].max() < 1.0 < run.token_s[1][0]
    assert np.all(run.late_s >= 0)
    assert np.median(np.diff(run.token_s[5])) == pytest.approx(0.05, abs=0.03)
    assert run.tokens == run.server_tokens == 18
    assert "503 full" in run.errors[3]
    assert "after 3 tokens" in run.errors[4]


def test_the_load_generator_goes_before_its_server_as_far_as_the_system_lets_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_clients(server, workload([20], [2], [0.0]), targets=TARGETS, vocab=100)
    assert run.priority in ("real time", "nicer", "ordinary")
    assert ClientRun.from_json(json.loads(json.dumps(run.to_json()))).priority == run.priority
    asked: list[Any] = []
    refuse = lambda *given: asked.append(given) or (_ for _ in ()).throw(PermissionError())  # noqa: E731
    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    monkeypatch.setattr(os, "nice", asked.append)
    assert first_in_line() == "nicer"
    assert asked[-1] < 0
    monkeypatch.setattr(os, "nice", refuse)
    assert first_in_line() == "ordinary"
    monkeypatch.setattr(os, "sched_setscheduler", lambda *given: asked.append(given), raising=False)
    assert first_in_line() == "real time"
    assert asked[-1][1] == os.SCHED_RR


def test_clients_give_up_leave_and_are_cut_off(server: Server) -> None:
    never = np.inf
    asked = workload([5, 5, 20, 5], [2, 2, 40, 2], [0.0, 0.0, 0.0, 0.9], cancel_s=np.array([never, never, 0.3, never]))
    patient = dataclasses.replace(asked, patience_s=np.array([0.2, never, never, never]))
    run = run_clients(server, patient, targets=(Target(ttft_s=10.0, itl_s=1.0),), vocab=100, limit_s=1.2)
    assert run.status.tolist() == ["gave up", "running", "left", "running"]
    assert run.end_s[0] == pytest.approx(0.2, abs=0.15)
    assert 2 <= len(run.token_s[2]) < 10
    assert run_clients(server, asked, targets=(Target(ttft_s=0.5, itl_s=0.1),), patience=0.4, vocab=100).counts["gave up"] == 3


def test_a_backlog_keeps_so_many_on_their_way(server: Server) -> None:
    run = run_clients(server, workload([20] * 6, [4] * 6, [0.0] * 6), outstanding=2, vocab=100)
    assert run.counts == {"finished": 6}
    for t in run.sent_s:
        assert ((run.sent_s <= t) & (run.end_s > t + 1e-6)).sum() <= 2


def test_enough_ends_the_run(server: Server) -> None:
    run = run_clients(server, workload([20] * 400, [40] * 400, [0.0] * 400), outstanding=2, vocab=100, enough=lambda: True)
    assert run.counts["future"] > 300


def test_requests_that_wait_for_others_are_refused() -> None:
    asked = workload([20, 20], [1, 1], [0.0, 1.0]).with_thinking(np.array([-1, 0]), 1.0)
    with pytest.raises(ValueError, match="open loop"):
        request_rows(asked, TARGETS)


def test_limits_are_read_from_what_the_server_says(server: Server, tmp_path: Path) -> None:
    assert read_back(server.service).unknown == ("max_seqs", "max_tokens")
    log = tmp_path / "log"
    log.write_text(
        "INFO non-default args: {'max_num_seqs': 64, 'max_num_batched_tokens': 4096}\nenabled with max_num_batched_tokens=2048\n"
    )
    found = read_back(server.service, log)
    assert found.as_limits() == Limits(kv_tokens=32 * 16, block_tokens=16, max_seqs=64, max_len=512, max_tokens=2048)
    with pytest.raises(ValueError, match="does not answer"):
        Service("127.0.0.1:1").model()


def client_run(tokens: list[list[float]], status: list[str], arrival: list[float], outputs: list[int], end: list[float]) -> ClientRun:
    n = len(tokens)
    stamps, at = [np.array(x, float) for x in tokens], np.array(arrival, float)
    whole = np.array(outputs)
    return ClientRun(
        np.array(status),
        at,
        at,
        stamps,
        np.array(end),
        whole * 0 + 10,
        whole,
        np.zeros(n, np.int64),
        {},
        np.zeros(5),
        0.0,
        0.0,
        None,
        0.0,
        0.0,
    )


def test_what_clients_saw_is_judged_as_the_simulator_judges() -> None:
    run = client_run(
        [[0.5, 0.55, 0.85], [1.5, 1.55], [], [], [0.2], []],
        ["finished", "finished", "gave up", "running", "failed", "shed"],
        [0.0, 0.0, 0.0, 1.9, 0.0, 0.0],
        [3, 2, 7, 5, 4, 6],
        [0.9, 1.6, 0.8, 2.0, 0.3, 0.1],
    )
    found = outcome_of(run, TARGETS, np.zeros((0, len(LOG_COLUMNS))))
    assert found.status.tolist() == [FINISHED, FINISHED, EXPIRED, WAITING, FAILED, REJECTED]
    # a gap of 0.3 s at 0.1 s owes three tokens, one came, late; a late first token makes all late; the lost owe all
    assert found.on_time.tolist() == [2, 0, 0, 0, 1, 0]
    assert found.owed.tolist() == [5, 2, 7, 0, 4, 6]
    assert found.ttft_s[0] == pytest.approx(0.49)
    assert summarise([found], TARGETS).attainment == pytest.approx(3 / 24)
    assert summarise([found], TARGETS).ttft_s["p50"] is None or found.end_s == 1.55


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=30), st.floats(0.01, 2.0))
def test_owed_and_on_time_add_up_for_any_gaps(gaps: list[float], first: float) -> None:
    stamps = (first + np.concatenate([[0.0], np.cumsum(gaps)])).tolist()
    found = outcome_of(client_run([stamps], ["finished"], [0.0], [len(stamps)], [stamps[-1]]), TARGETS, np.zeros((0, 12)))
    between = np.diff(stamps)
    owed = 1 + sum(1.0 if g <= 0.1 * (1 + 1e-9) else tokens_owed(g, 0.1) for g in between)
    assert found.owed[0] == owed
    assert found.on_time[0] == ((1 + (between <= 0.1 * (1 + 1e-9)).sum()) if first <= 1.0 + 1e-9 else 0)
    assert found.gaps.sum() == len(gaps)


def test_a_running_request_owes_what_was_due_at_the_cut() -> None:
    run = client_run([[0.5, 0.55]], ["running"], [0.0], [50], [1.0])
    found = outcome_of(run, TARGETS, np.zeros((0, 12)))
    assert found.status[0] == RUNNING
    assert found.owed[0] == 2 + 4


def trace(path: Path, clock: list[float], took: list[float], schedule_s: float = 0.001) -> Path:
    head = {"headway_trace": 1, "engine": "vllm", "mode": "observe", "limits": {"max_seqs": 4}}
    rows = [
        {"step": k, "clock_s": c, "schedule_s": schedule_s, "step_time_s": y, "prefill_tokens": 0, "binding": k == 1, "running": 4}
        | {
            "prefill_pairs": 0,
            "prefill_requests": 0,
            "decode_requests": 4,
            "decode_kv_tokens": 400,
            "waiting": 2 * (k > 0),
            "kv_usage": 0.25,
        }
        | {"token_budget": 64, "running_limit": 4, "worker_cpu_s": None, "preempted": 0, "shed": 0, "chunk_tokens": 0, "mode": "observe"}
        for k, (c, y) in enumerate(zip(clock, took, strict=True))
    ]
    old = {**rows[0], "clock_s": 1.0}
    path.write_text("\n".join(map(json.dumps, (head, old, head, *rows))) + '\n{"torn": 1')
    return path


def test_a_trace_is_read_from_its_last_start_and_a_torn_line_is_counted(tmp_path: Path) -> None:
    rows = read_rows(trace(tmp_path / "t.jsonl", [10.0, 10.02, 10.04], [0.018, 0.018, 0.018]))
    assert (len(rows), rows.torn) == (3, 1)
    assert len(rows.between(10.01, 10.03)) == 1
    log = rows.log(10.0, 100)
    assert log.shape == (3, len(LOG_COLUMNS))
    assert log[:, 10].tolist() == [0, 3, 2]
    assert log[:, 11].tolist() == [75, 75, 75]
    assert "worker_cpu_s" not in rows.table()
    (tmp_path / "other").write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match="headway_trace"):
        read_rows(tmp_path / "other")


def test_periods_reach_from_start_to_start_and_hold_no_idle_time() -> None:
    columns = {"clock_s": np.array([0.0, 0.02, 0.041, 5.0]), "schedule_s": np.full(4, 0.001), "step_time_s": np.full(4, 0.018)}
    found = periods(columns)
    assert found == pytest.approx([0.02, 0.021, 0.019 + 0.0015, 0.019 + 0.0015])


def test_steps_composed_ahead_follow_each_other_without_a_gap() -> None:
    # the second and third are composed while the one before runs: each begins when that ends
    columns = {"clock_s": np.array([0.0, 0.005, 0.022]), "schedule_s": np.full(3, 0.001), "step_time_s": np.full(3, 0.02)}
    assert periods(columns)[1:] == pytest.approx([0.02, 0.02])


def test_every_arm_comes_first_equally_often() -> None:
    arms = [Arm(name, Static(64, 8).candidate(), {}) for name in "abc"]
    first = [turns(arms, k)[0].name for k in range(6)]
    assert sorted(first) == sorted("aabbcc")
    assert all(sorted(a.name for a in turns(arms, k)) == list("abc") for k in range(6))


def test_a_kept_run_is_read_back_as_it_was(tmp_path: Path) -> None:
    run = client_run([[0.5, 0.55, 0.85], []], ["finished", "future"], [0.0, 3.0], [3, 4], [0.9, np.nan])
    run = dataclasses.replace(run, sent_s=np.array([0.01, np.nan]), server_tokens=3)
    kept = Run(run, np.arange(24.0).reshape(2, 12), 0.97, Limits(kv_tokens=512))
    keep_run(tmp_path, "0-a", kept)
    again = kept_run(tmp_path, "0-a")
    assert (again.limits, again.cpu_share) == (kept.limits, 0.97)
    assert again.log.tolist() == kept.log.tolist()
    assert again.clients.counts == run.counts
    assert again.clients.token_s[0] == pytest.approx(run.token_s[0])
    for a, b in zip(again.outcome(TARGETS), kept.outcome(TARGETS), strict=True):
        assert a is None if b is None else np.allclose(a, b, equal_nan=True)  # pyright: ignore[reportArgumentType]


def test_gates_see_a_late_generator_a_busy_machine_and_lost_tokens() -> None:
    fine = client_run([[0.5, 0.55]], ["finished"], [0.0], [2], [0.6])
    fine = dataclasses.replace(fine, server_tokens=2)
    quiet = lambda run: [g.ok for g in client_gates([Run(run, np.zeros((0, 12)), 1.0, Limits(kv_tokens=512))], TARGETS)]  # noqa: E731
    assert quiet(fine) == [True] * 4
    assert quiet(dataclasses.replace(fine, sent_s=np.array([0.2]))) == [False, True, True, True]
    assert quiet(dataclasses.replace(fine, lags_s=np.full(9, 0.05))) == [True, False, True, True]
    assert quiet(dataclasses.replace(fine, server_tokens=3)) == [True, True, False, True]
    assert quiet(dataclasses.replace(fine, others=0.3)) == [True, True, True, False]


def test_flags_of_the_server_from_the_command_line() -> None:
    assert serve_flags(["dtype=bfloat16", "--enforce-eager"]) == {"dtype": "bfloat16", "enforce_eager": True}
    with pytest.raises(ValueError, match="--serve"):
        serve_flags(["a=1", "a=2"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["record", "--engine", "vllm-sim"], "--device"),
        (["record", "--engine", "kernels", "--model", "x"], "--engine vllm"),
        (["record", "--engine", "vllm", "--url", "http://127.0.0.1:1"], "--steps-file"),
        (["record", "--engine", "vlm"], "unknown engine"),
        (["verify", "nothing"], "--url"),
        (["make-model", "--size", "1T", "--out", "x"], "--size"),
    ],
)
def test_commands_say_what_is_missing(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
