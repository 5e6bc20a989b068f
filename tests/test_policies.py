"""Policies from the command line: what is understood, what is refused in one line, and that it reaches tuning and simulation."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.cli import main
from headway.controllers.policy import ADMISSIONS, ORDERS, Policy
from headway.experiments.tune import Effort, Problem, tune
from headway.experiments.whole_files import write_json
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.signals import Limits, Target
from headway.policies import parse_policy
from headway.report.commands import commands
from headway.specs import synthetic
from tests.synthetic_steps import TRUTH, noise

LIMITS = Limits(kv_tokens=20_000, max_seqs=64)
LOAD, TARGET = "poisson:rate=30/s,prompt=400,output=120", "ttft=1s,itl=13ms"


def identified() -> IdentifiedPlant:
    residual = noise(500, 0.03, 5)
    return IdentifiedPlant(TRUTH, Noise(residual, residual), Hull(64, 4e5, 4000, 1e8), {"decode": 0.1, "mixed": 0.1}, {}, LIMITS, {})


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policies") / "plant.json"
    write_json(path, identified().to_json())
    return path


@given(st.sampled_from(ORDERS), st.sampled_from(ADMISSIONS), st.floats(0, 100), st.integers(1, 9999))
def test_every_field_of_the_policy_can_be_written(order: str, admission: str, aging: float, running: int) -> None:
    text = f" order={order}, admission = {admission},aging_rate={aging!r},running_limit={running}"
    assert parse_policy(text) == {"order": order, "admission": admission, "aging_rate": aging, "running_limit": running}


def test_a_name_for_each_field_and_sizes_in_tokens() -> None:
    fields = {f.name: getattr(Policy(), f.name) for f in dataclasses.fields(Policy)}  # pyright: ignore[reportArgumentType]
    for name, value in fields.items():
        if not isinstance(value, tuple):
            assert parse_policy(f"{name}={value}") == {name: value}
    assert parse_policy("prior_output_tokens=2k") == {"prior_output_tokens": 2000.0}
    assert parse_policy("priority_s=500ms:-1:0s, memory_price_s=2ms") == {"priority_s": (0.5, -1.0, 0.0), "memory_price_s": 0.002}
    assert parse_policy("class_shares=3:1") == {"class_shares": (3.0, 1.0)}
    assert parse_policy("priority_s=2") == {"priority_s": (2.0,)}
    assert parse_policy("") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lookahead", "expected name=value, found 'lookahead'; write for example order=slack"),
        ("admision=none", "unknown name 'admision'; did you mean admission?"),
        ("order=edf,order=fcfs", "order is given twice"),
        ("order=lifo", "order must be one of"),
        ("aging_rate=fast", "aging_rate must be a number, got 'fast'"),
        ("running_limit=0", "running_limit must be in [1, 1e+06], got 0"),
        ("order=fcfs,triage=defer", "needs order 'edf' or 'slack'"),
        ("chunk_tokens=2q", "chunk_tokens must be a number, got '2q'"),
        ("class_shares=3:x", "class_shares must be numbers joined by colons, one per class, as in class_shares=3:1, got '3:x'"),
        ("priority_s=1:", "priority_s must be numbers joined by colons, one per class, as in priority_s=500ms:0s, got '1:'"),
        ("class_shares=0:0", "class_shares must not all be 0"),
        ("memory_price_s=2tokens", "memory_price_s must be a number, got '2tokens'"),
        ("degrade=0.5", "degrade must be in [1, 100], got 0.5"),
        ("stride=2", "stride must be in [0, 1], got 2"),
        ("phases=decode", "phases must be one of ('mixed', 'prefill_first', 'decode_first'), got 'decode'"),
        ("preemption=move", "preemption must be one of ('recompute', 'swap'), got 'move'"),
        ("order=fcfs,prefill_every=4", "prefill_every needs order 'edf' or 'slack'"),
    ],
)
def test_what_no_policy_can_be_is_refused_in_one_line(plant: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"^policy '") as caught:
        parse_policy(text)
    assert said in str(caught.value)
    assert main(["simulate", str(plant), "--workload", LOAD, "--target", TARGET, "--policy", text]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err


def test_a_simulation_takes_the_policy(plant: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {}
    for admission in ADMISSIONS:
        words = ["simulate", str(plant), "--workload", LOAD, "--target", TARGET, "--requests", "200", "--runs", "1", "--json"]
        assert main([*words, "--policy", f"admission={admission}"]) == 0
        found[admission] = json.loads(capsys.readouterr().out)
    assert "deferred" not in found["none"]["binding"]
    assert all(found[admission]["binding"]["deferred"] > 0 for admission in ADMISSIONS[1:])
    assert main(["simulate", str(plant), "--workload", LOAD, "--target", TARGET, "--runs", "1", "--policy", "triage=defer"]) == 2
    assert "needs order" in capsys.readouterr().err, "the stock engine serves first come first"


PARTS = "order=slack,triage=degrade,degrade=3,phases=decode_first,prefill_every=6,stride=0.5,memory_price_s=1ms,preemption=swap"


def test_a_simulation_takes_every_part_and_says_where_the_classes_do_not_fit(plant: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", str(plant), "--workload", LOAD, "--target", TARGET, "--requests", "100", "--runs", "1", "--json"]
    found = []
    for policy in ("order=slack", PARTS, f"{PARTS},class_shares=1,priority_s=200ms"):
        assert main([*words, "--policy", policy]) == 0
        found.append(json.loads(capsys.readouterr().out)["attainment"])
    assert found[0] != found[1], "the parts act"
    assert main([*words, "--policy", "order=slack,class_shares=3:1"]) == 2
    err = capsys.readouterr().err
    assert "class_shares must have one number per class, got 2 for 1 classes" in err
    assert err.count("\n") == 1


def test_tuning_keeps_what_the_policy_was_given() -> None:
    problem = Problem(identified(), synthetic(LOAD), (Target(1.0, 0.013),), LIMITS)
    effort = Effort(train_seeds=2, heldout_seeds=2, requests=60, sobol=2, starts=1, iterations=1)
    changed = {"order": "edf", "triage": "defer", "admission": "lookahead"}
    found = tune(problem, effort, policy=changed)
    assert {name: getattr(found.default.candidate.policy, name) for name in changed} == changed
    if found.outcome == "better":
        assert {name: getattr(found.tuned.candidate.policy, name) for name in changed} == changed
    with pytest.raises(ValueError, match="order must be one of"):
        tune(problem, effort, policy={"order": "lifo"})


def test_the_command_of_a_run_names_the_policy() -> None:
    made = commands(Path("runs/x"), {"request": {"traces": ["t.csv"], "policy": "admission=lookahead"}})
    assert "--policy admission=lookahead" in made["run"]
    assert "--policy admission=lookahead" in made["tune"]


@pytest.mark.parametrize("option", ["tune", "validate"])
def test_an_input_is_never_written_over(plant: Path, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.json"
    mine.write_bytes(plant.read_bytes())
    words = {
        "tune": ["tune", str(mine), "--workload", LOAD, "--target", TARGET],
        "validate": ["validate", str(mine)],
    }[option]
    assert main([*words, "--out", str(mine)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "would be written over" in err
    assert mine.read_bytes() == plant.read_bytes()
