"""Gains that follow the load where they ship: the runtime step by step beside the engine, what is exported, and vLLM's adapter."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.controllers.controller import Controller
from headway.controllers.gain_schedule import GainSchedule
from headway.controllers.policy import AGING, AGING_NEXT, CHUNK, RUNNING, SETPOINT_S, Policy
from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import Candidate, Draw
from headway.engines import EXPORTERS
from headway.engines.certified import certificate_of
from headway.engines.export import export_json, export_python, gains_json
from headway.engines.runtime import Runtime
from headway.engines.runtime_schedule import Schedule
from headway.engines.schema import controller_schema
from headway.engines.vllm.gains_file import gains_of
from headway.models.signals import Limits
from headway.models.state import BOUND_BY_BUDGET
from headway.models.workload import Workload
from tests.followed import blocks_of, steps_of
from tests.guarded_loops import BUDGET_S, LIMITS, PLANTS, TARGETS, laws
from tests.guarded_loops import record as guarded
from tests.small_problems import KNOTS, Problem, known
from tests.test_export import isolated
from tests.test_export import record as exported
from tests.vllm_bench import OPEN, TRACKER, Bench, put

PLANT = PLANTS["regimes"]
CERTIFICATE = {"verdict": "certified", "reason": ""}
SOFT = {"margin": (0.05, 0.45), "aging_rate": (0.0, 2.0), "chunk_tokens": (6.0, 11.0), "share.0": (0.1, 4.0), "share.1": (0.1, 4.0)}


def tables(*names: str, shape: tuple[int, int, int] = (5, 3, 2), seed: int = 0) -> GainSchedule:
    rng = np.random.default_rng(seed)
    return GainSchedule(names, np.array([rng.uniform(*SOFT[name], shape) for name in names]))


def scheduled(law: Controller, gains: GainSchedule, policy: Policy = Policy(), limits: Limits = LIMITS) -> ControllerRecord:  # noqa: B008
    record = guarded(law, PLANT, policy, limits=limits)
    return dataclasses.replace(record, candidate=record.candidate._replace(gains=gains))


def shipped(record: ControllerRecord) -> Runtime:
    return Runtime(json.loads(json.dumps(gains_json(record, CERTIFICATE))))


@given(st.sampled_from(KNOTS), st.floats(0, 1e7), st.floats(0, 2), st.floats(0, 1))
def test_the_runtime_reads_a_table_as_the_engine_does(shape: tuple[int, int, int], queued: float, running: float, kv: float) -> None:
    gains = tables("margin", "aging_rate", "chunk_tokens", shape=shape)
    found = Schedule(json.loads(json.dumps(gains.to_json()))).at(queued, running, kv)
    wanted = dict(zip(gains.names, gains.at(queued, min(running, 1.0), kv), strict=True))
    assert found["margin"] == pytest.approx(wanted["margin"], rel=1e-12)
    assert found["aging_rate"] == pytest.approx(wanted["aging_rate"], rel=1e-12)
    assert found["chunk_tokens"] == math.floor(2 ** wanted["chunk_tokens"] * (1 + 1e-9))


def crowd(n: int = 260) -> Draw:
    rng = np.random.default_rng(3)
    workload = Workload(np.cumsum(rng.exponential(0.045, n)), rng.integers(50, 3000, n), rng.integers(5, 120, n), np.arange(n) % 2)
    noise = np.exp(rng.normal(0, 0.03, 8192))
    return Draw(workload, noise, noise)


@pytest.mark.parametrize("law", ["updown", "pi", "feedforward", "tracker", "balanced", "static"])
def test_it_follows_the_load_step_by_step_as_the_engine_does(law: str) -> None:
    made = laws(PLANT)[law]
    names = ("aging_rate", "chunk_tokens", *(("margin",) if "margin" in made.gains() else ()))
    record = scheduled(made, tables(*names), Policy(running_limit=40.0, triage="none"))
    of = Problem(known(PLANT, LIMITS), record.candidate, crowd(), TARGETS, LIMITS)
    run, seen, used, before = Runtime(record.to_json()), set(), set(), 0
    assert run.setpoint_s == pytest.approx(record.to_json()["setpoint_s"], rel=1e-12)
    for s, p, composed in steps_of(of):
        e = s.books[0]
        if not composed:
            run.follow_load(e["queued"], e["ready"], (blocks_of(p) - e["free"]) / blocks_of(p))
            assert run.setpoint_s == p.policy[SETPOINT_S]
            assert (run.aging_next, run.chunk_tokens, run.running_limit) == (p.policy[AGING_NEXT], p.policy[CHUNK], p.policy[RUNNING])
            assert run.gains == tuple(p.law[1 : 1 + len(run.gains)])
            seen.add((run.aging_next, run.chunk_tokens))
            before = e["n_waiting"] - e["arrived"]
            continue
        last = (e["last_step_s"], e["last_prefill"], e["last_decodes"], e["last_bound"] == BOUND_BY_BUDGET)
        ready = (e["ready"], e["last_kv"], e["last_pairs"], e["last_chunks"], e["ready_kv"], e["context"] if e["prompts"] else 0.0)
        run.waiting_requests = int(before + e["arrived"])
        assert run.update(*(last if e["step"] else (None, 0, 0, False)), *ready) == e["token_budget"]
        assert run.aging_rate == p.policy[AGING]
        used.add(run.aging_rate)
    assert run.faults == run.unfollowed == 0
    assert not run.reverted
    assert len(seen) > 100
    assert 2 <= len(used) == run.renewals + 1


@pytest.mark.parametrize("bad", [(None, 3, 0.5), (-1.0, 3, 0.5), (100.0, math.nan, 0.5), (100.0, 3, math.inf), ("many", 3, 0.5)])
def test_a_load_that_is_none_keeps_the_gains_and_is_counted(bad: tuple, caplog: pytest.LogCaptureFixture) -> None:
    run = shipped(scheduled(laws(PLANT)["pi"], tables("margin", "chunk_tokens")))
    rest = run.setpoint_s, run.chunk_tokens, run.gains
    run.follow_load(5000.0, 20.0, 0.7)
    before = run.setpoint_s, run.chunk_tokens, run.gains
    assert before != rest
    run.update(None, 0, 0, False, 0)
    assert run.unfollowed == 0
    with caplog.at_level(logging.WARNING, "headway_runtime"):
        for _ in range(3):
            run.follow_load(*bad)
            run.update(0.012, 0.0, 4.0, False, 4.0)
    assert (run.setpoint_s, run.chunk_tokens, run.gains) == before
    assert run.unfollowed == 3
    assert [r.message for r in caplog.records] == [
        "gains follow the load, and this step came without one that can be read: they stay as they are"
    ]
    run.reset()
    assert (run.setpoint_s, run.chunk_tokens, run.gains, run.unfollowed) == (*rest, 0)


def test_without_a_schedule_a_load_changes_nothing() -> None:
    run = shipped(guarded(laws(PLANT)["pi"], PLANT))
    before = run.gains, run.setpoint_s, run.chunk_tokens
    run.follow_load(1e6, 30, 0.9)
    run.update(None, 0, 0, False, 0)
    assert (run.gains, run.setpoint_s, run.chunk_tokens, run.unfollowed) == (*before, 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.pop("knots"), "lacks or misstates 'knots'"),
        (lambda s: s["gains"].clear(), "no gain or an axis without a knot"),
        (lambda s: s["gains"].update(kp=s["gains"]["margin"]), "no gain 'kp' can be scheduled"),
        (lambda s: s["gains"]["margin"]["table"][0].pop(), "a value at each of its (5, 3, 2) knots"),
        (lambda s: s["gains"]["margin"]["table"][0][0].__setitem__(0, 2.0), "schedule of margin must be a number in [0, 0.95], got 2.0"),
        (lambda s: s["gains"].update({"share.0": s["gains"]["margin"]}), "share.0 is for the engine's own scheduler"),
    ],
)
def test_a_schedule_that_is_damaged_is_refused_in_one_line(change: Any, says: str) -> None:
    data = json.loads(json.dumps(scheduled(laws(PLANT)["pi"], tables("margin")).to_json()))
    change(data["schedule"])
    with pytest.raises(ValueError, match=re.escape(says)) as refused:
        Runtime(data)
    assert "\n" not in str(refused.value)


def test_a_margin_that_the_law_has_not_is_refused() -> None:
    data = scheduled(laws(PLANT)["balanced"], tables("aging_rate")).to_json()
    data["schedule"]["gains"] = {"margin": data["schedule"]["gains"].pop("aging_rate") | {"table": np.zeros((5, 3, 2)).tolist()}}
    with pytest.raises(ValueError, match="law 'balanced' has none"):
        Runtime(data)


# exports


def test_the_exported_runtime_carries_its_tables_and_its_golden_steps_are_those_of_an_idle_engine(tmp_path: Path) -> None:
    record = scheduled(laws(PLANT)["tracker"], tables("margin", "aging_rate", "chunk_tokens"))
    out = export_python(record, tmp_path / "out")
    done = isolated(out.folder, "headway_runtime.py", "gains.json", "golden.csv")
    assert done.returncode == 0, done.stderr + done.stdout
    code = (
        "import sys; sys.path.insert(0, '.'); from headway_runtime import Runtime\n"
        "run = Runtime.from_json('gains.json'); run.follow_load(3500, 20, 0.5); print(run.setpoint_s.hex(), run.chunk_tokens)"
    )
    told = isolated(out.folder, "-c", code).stdout.split()
    run = shipped(record)
    run.follow_load(3500, 20, 0.5)
    assert told == [run.setpoint_s.hex(), str(run.chunk_tokens)]
    text = (out.folder / "README.md").read_text()
    assert "controller.follow_load(queued_tokens, decoding_requests, kv_share)" in text
    assert "margin, aging_rate, chunk_tokens follow the load" in text
    plain = export_python(guarded(laws(PLANT)["tracker"], PLANT), tmp_path / "plain")
    assert "follow_load" not in (plain.folder / "README.md").read_text()


@pytest.mark.parametrize("engine", sorted(set(EXPORTERS) - {"json", "python", "vllm"}))
def test_what_cannot_follow_the_load_is_refused_in_one_line(engine: str, tmp_path: Path) -> None:
    record = scheduled(laws(PLANT)["pi"], tables("margin", "chunk_tokens"))
    with pytest.raises(
        ValueError, match="cannot follow the load, and margin, chunk_tokens do; export this controller as python"
    ) as refused:
        EXPORTERS[engine](record, tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_schedule_of_shares_needs_a_scheduler_that_has_shares(tmp_path: Path) -> None:
    record = scheduled(laws(PLANT)["pi"], tables("share.0", "share.1"))
    with pytest.raises(ValueError, match=r"the schedule of share.0 is for the engine's own scheduler, no runtime carries it"):
        export_python(record, tmp_path / "out")
    assert json.loads((export_json(record, tmp_path / "json").folder / "controller.json").read_text())["schedule"]["gains"]["share.1"]
    assert EXPORTERS["vllm"](record, tmp_path / "vllm").files[1] == "controller.json"


def test_a_margin_that_moves_is_certified_at_both_of_its_ends() -> None:
    gains = GainSchedule(("margin",), np.linspace(0.1, 0.5, 4).reshape(1, 4, 1, 1))
    record = dataclasses.replace(scheduled(laws(PLANT)["updown"], gains), tuning={})
    ends = [
        certificate_of(dataclasses.replace(record, candidate=Candidate(dataclasses.replace(record.candidate.law, margin=m), Policy())))  # pyright: ignore[reportArgumentType]
        for m in (0.1, 0.5)
    ]
    assert certificate_of(record) in ends
    wild = dataclasses.replace(laws(PLANT)["pi"], ki=9.0)  # pyright: ignore[reportArgumentType]
    assert certificate_of(dataclasses.replace(scheduled(wild, gains), tuning={}))["verdict"] == "refused"


def test_the_schema_knows_schedules() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the schema is tried with jsonschema, which the developer's extra brings")
    check = jsonschema.Draft202012Validator(controller_schema())
    data = json.loads(json.dumps(scheduled(laws(PLANT)["pi"], tables(*SOFT)).to_json()))
    check.validate(data)
    for change in (
        lambda s: s.pop("knots"),
        lambda s: s["gains"]["margin"].update(unit="%"),
        lambda s: s["gains"].update(kp=s["gains"]["margin"]),
        lambda s: s["gains"].clear(),
        lambda s: s["gains"]["margin"].update(table=0.3),
    ):
        wrong = json.loads(json.dumps(data))
        change(wrong["schedule"])
        assert not check.is_valid(wrong)


# vLLM


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().pilot.close()


def of_vllm(*names: str, **policy: Any) -> ControllerRecord:
    record = exported(TRACKER, Policy(order="slack", triage="none", **policy))
    return dataclasses.replace(record, candidate=record.candidate._replace(gains=tables(*names)))


def test_the_adapter_follows_the_load_of_its_scheduler(tmp_path: Path) -> None:
    record = of_vllm("margin", "aging_rate", "chunk_tokens")
    bench, seen = Bench(tmp_path, record), set()
    gains = record.candidate.gains
    assert gains is not None
    for k in range(120):
        if k < 60 and k % 2 == 0:
            bench.add(200 + 37 * (k % 11), 8)
        law, scheduler, meter = bench.pilot.loop.law, bench.scheduler, bench.pilot.meter
        left, decoding = bench.pilot.loop.queued_tokens, sum(r.num_output_tokens > 0 for r in bench.scheduler.running)
        bench.step(0.012)
        assert not bench.pilot.failed
        found = dict(zip(gains.names, gains.at(left, decoding / law.running_limit, 0.25), strict=True))
        assert law.aging_next == pytest.approx(found["aging_rate"], rel=1e-9)
        assert scheduler.scheduler_config.long_prefill_token_threshold == math.floor(2 ** found["chunk_tokens"] * (1 + 1e-9))
        waiting = sum(r.num_tokens - r.num_computed_tokens for r in scheduler.waiting)
        running = sum(goal - r.num_computed_tokens for r, goal in meter.prefilling.values())
        assert bench.pilot.loop.queued_tokens == waiting + running
        seen.add(law.chunk_tokens)
    assert bench.pilot.loop.law.unfollowed == 0
    assert len(seen) > 10


def test_shares_that_follow_the_load_keep_what_a_class_is_behind(tmp_path: Path) -> None:
    bench = Bench(tmp_path, of_vllm("share.0", "share.1"))
    queue = bench.pilot.desk.queue
    first = queue.shares
    for k in range(12):
        bench.add(900, 5, {"headway_class": k % 2})
    seen = set()
    for _ in range(12):
        bench.step(0.01)
        seen.add(queue.shares)
    assert not bench.pilot.failed
    assert first in {gains_of(json.loads((bench.folder / "controller.json").read_text())).shares}
    assert len(seen) > 3
    assert any(queue.deficits)


def test_other_gains_are_taken_over_while_it_serves_without_a_bump(tmp_path: Path) -> None:
    bench, witness = (Bench(tmp_path / name, of_vllm("margin", "chunk_tokens")) for name in ("a", "b"))

    def serve(steps: int) -> list[tuple[int, int]]:
        found = []
        for _ in range(steps):
            for each in (bench, witness):
                each.add(700, 30)
                each.step(0.012)
                found.append((each.scheduler.max_num_scheduled_tokens, each.scheduler.scheduler_config.long_prefill_token_threshold))
        return found

    def exchange(record: ControllerRecord) -> None:
        put(tmp_path / "other", record)
        (tmp_path / "other" / "controller.json").replace(bench.folder / "controller.json")
        for each in (bench, witness):
            each.clock.now_s += 1.0

    serve(6)
    exchange(of_vllm("margin", "chunk_tokens", tolerance=0.5))  # the same tables
    found = serve(6)
    loop = bench.pilot.loop
    assert loop.reloads == 1
    assert found[::2] == found[1::2]
    assert len(set(found)) > 3
    exchange(of_vllm("chunk_tokens"))
    serve(3)
    assert loop.reloads == 2
    assert set(loop.law.schedule.tables) == {"chunk_tokens"}
    assert not bench.pilot.failed
    assert loop.law.unfollowed == witness.pilot.loop.law.unfollowed == 0


@pytest.mark.parametrize(
    ("gains", "says"),
    [
        ({"share.2": 1.0}, "a schedule of shares must name each of the 2 classes, or some beside class_shares"),
        ({"share.0": 1.0}, "a schedule of shares must name each of the 2 classes"),
        ({"share.0": 0.0, "share.1": 0.0}, "not all 0"),
    ],
)
def test_shares_that_fit_no_class_are_refused(gains: dict[str, float], says: str) -> None:
    data = gains_json(of_vllm("share.0", "share.1"), CERTIFICATE, carried=("class_shares",))
    rows = {name: {"unit": "weight", "table": np.full((5, 3, 2), value).tolist()} for name, value in gains.items()}
    with pytest.raises(ValueError, match=says):
        gains_of({**data, "schedule": {**data["schedule"], "gains": rows}})


def test_margins_stay_within_the_budget() -> None:
    run = shipped(scheduled(laws(PLANT)["updown"], tables("margin")))
    for queued in (0.0, 1e3, 1e9):
        run.follow_load(queued, 10, 0.5)
        assert 0.05 * BUDGET_S < run.setpoint_s <= 0.95 * BUDGET_S
