"""The runtime that ships against the laws, the order and the simulator it must equal; and what bad readings do to it."""

from __future__ import annotations

import ast
import dataclasses
import json
import logging
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.controllers.admission import admission_limit_s
from headway.controllers.laws import STATE_SIZE
from headway.controllers.pi import PILaw
from headway.controllers.policy import Policy, pack_policy, prefill_rate_tps
from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import LOG_COLUMNS, Candidate, Draw, simulate
from headway.controllers.static import StaticLaw
from headway.controllers.updown import UpDownLaw
from headway.engines.bundle import runtime_source
from headway.engines.export import gains_json
from headway.engines.runtime import Runtime
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.regimes import AffinePlant, RegimePlant
from headway.models.signals import Limits, Target
from headway.models.state import BOUND_BY_BUDGET
from headway.models.steptime import step_time
from headway.models.workload import Workload
from tests.guarded_loops import BUDGET_S, OPEN, PLANTS, Loop, laws
from tests.guarded_loops import gains as gains_of
from tests.guarded_loops import readings as steps_of
from tests.guarded_loops import record as guarded

PLANT = RegimePlant((0.006, 6e-5, 5e-9, 0.0, 0.0, 0.0), (0.007, 1e-4, 0.0, 2e-5, 5e-10, 5e-4))
HULL = Hull(32.0, 200_000.0, 8192.0, 9e7)
LIMITS = Limits(kv_tokens=200_000, max_seqs=64)
TARGETS = (Target(1.0, 0.025, 0.002, name="chat"), Target(10.0, 0.05, name="batch"))
LAWS = (StaticLaw(2048.0), UpDownLaw(), PILaw(slope_s_per_token=2e-5), PILaw(margin=0.3, kp=0.4, ki=0.02, kt=0.1, most_tokens=700.0))


def record(law: Any = LAWS[2], policy: Policy = Policy(), limits: Limits = LIMITS, plant=PLANT) -> ControllerRecord:  # noqa: B008
    return ControllerRecord(Candidate(law, policy), TARGETS, limits, plant, HULL, {"file": "plant.json", "sha256": "0"}, {}, {})


def readings(n: int, seed: int = 0) -> np.ndarray:
    """Random steps: early, late, idle, bound or not; shape (n, 5)."""
    rng = np.random.default_rng(seed)
    ready = np.where(rng.random(n) < 0.05, 0, rng.integers(1, 65, n))
    rows = np.stack([rng.gamma(8.0, 0.0025, n), rng.integers(0, 4096, n), np.roll(ready, 1), rng.random(n) < 0.7, ready], axis=1)
    rows[0, :4] = np.nan, 0, 0, 0
    return rows.astype(float)


def test_it_equals_the_scheduler_inside_a_simulated_run() -> None:
    """The budgets that the exact simulator logged, from what it measured: rates, setpoint and binding are the same signals."""
    rng = np.random.default_rng(3)
    n = 400
    workload = Workload(np.cumsum(rng.exponential(0.08, n)), rng.integers(50, 3000, n), rng.integers(5, 200, n), np.zeros(n, np.int64))
    noise = np.exp(rng.normal(0, 0.05, 8192))
    candidate = Candidate(LAWS[2], Policy(running_limit=64.0))
    identified = IdentifiedPlant(PLANT, Noise(np.zeros(1), np.zeros(1)), HULL, {}, {}, LIMITS, {})
    targets = TARGETS[:1]
    out = simulate(identified, candidate, Draw(workload, noise, noise), targets, LIMITS, record_steps=100_000)
    assert out.preempted == 0
    log = {name: out.log[:, k] for k, name in enumerate(LOG_COLUMNS)}
    run = Runtime.from_json(dataclasses.replace(record(), candidate=candidate, targets=targets).to_json())
    last: tuple[Any, ...] = (None, 0, 0, False)
    assert len(out.log) > 1000
    for k in range(len(out.log)):
        assert run.update(*last, ready_requests=log["decode_requests"][k]) == log["token_budget"][k]
        last = (log["step_time_s"][k], log["prefill_tokens"][k], log["decode_requests"][k], log["binding"][k] == BOUND_BY_BUDGET)


@pytest.mark.parametrize("plant", [PLANT, AffinePlant((0.004, 1e-4, 1e-8, 3e-5, 1e-9, 1e-4)), AffinePlant((0.9, 0, 0, 1e-5, 0, 0))])
@pytest.mark.parametrize("max_tokens", [1, 512, 8192, 10_000])
def test_the_first_rate_is_the_policys(plant, max_tokens: int) -> None:
    limits = dataclasses.replace(LIMITS, max_tokens=max_tokens)
    run = Runtime.from_json(record(limits=limits, plant=plant).to_json())
    assert run.rate_tps == pytest.approx(prefill_rate_tps(plant, run.setpoint_s, max_tokens), rel=1e-12)


BAD = (None, math.nan, math.inf, -math.inf, -1.0, "late", [], 0.0)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.law)
@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_case_e14_a_sensor_outage_holds_the_command_and_returns_without_a_bump(law, bad, caplog) -> None:
    run, witness = (Runtime.from_json(gains_of(law, guard=OPEN)) for _ in range(2))
    for row in readings(300, 2):
        assert run.update(*row) == witness.update(*row)
    good = (0.012, 400.0, 20.0, True, 20.0)
    before = run.update(*good), witness.update(*good)
    state, rate = list(run.state), run.rate_tps
    with caplog.at_level(logging.INFO, "headway_runtime"):
        for _ in range(1500):
            assert run.update(bad, 400.0, 20.0, True, 20.0) <= before[0]
        assert run.state == state
        assert run.rate_tps == rate
        assert run.faults == 1500
        assert "step_time_s=" in run.last_fault
        assert run.update(*good) == witness.update(*good)
    assert run.state == witness.state
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"]


@given(
    st.sampled_from(LAWS),
    st.lists(
        st.tuples(*[st.one_of(st.sampled_from(BAD), st.floats(allow_nan=True), st.integers(), st.booleans(), st.text(max_size=3))] * 5),
        max_size=40,
    ),
)
def test_whatever_is_read_the_limit_holds_and_nothing_is_raised(law, rows) -> None:
    run = Runtime.from_json(record(law).to_json())
    for row in rows:
        budget = run.update(*row)
        assert isinstance(budget, int)
        assert 0 <= budget <= LIMITS.max_tokens
        assert all(math.isfinite(x) for x in run.state)


@settings(max_examples=50)
@given(st.sampled_from(LAWS), st.integers(0, 10_000), st.data())
def test_an_outage_never_raises_the_limit_but_for_those_who_decode(law, seed: int, data) -> None:
    run, rows = Runtime.from_json(record(law).to_json()), readings(60, seed)
    held = LIMITS.max_tokens
    for row in rows:
        broken = data.draw(st.integers(0, 8), label="broken")
        ready = int(row[4])
        if broken < 5:
            values = [*row]
            values[broken] = data.draw(st.sampled_from((None, math.nan, -2.0)))
            budget = run.update(*values)
            if run.faults:
                assert budget <= max(held, ready, int(rows[:, 4].max()))
                assert broken == 4 or law.law == "static" or budget >= ready
        else:
            held = run.update(*row)


def test_no_measurement_before_the_first_step_is_no_fault_but_a_dead_sensor_is() -> None:
    run = Runtime.from_json(record().to_json())
    assert run.update(None, 0, 0, False, 3) == 256 + 3
    assert run.faults == 0
    assert run.update(None, 0, 0, False, 3) == 256 + 3
    assert run.faults == 1
    blind = Runtime.from_json(record().to_json())
    assert blind.update(None, None, None, None, None) == 256
    assert blind.faults == 1


def test_an_outage_after_an_idle_step_does_not_keep_the_idle_budget_and_does_not_read_zeros_as_idle() -> None:
    run = Runtime.from_json(record().to_json())
    assert run.update(None, 0, 0, False, 0) == LIMITS.max_tokens
    assert run.update(None, 0, 0, False, 10) == 256 + 10
    assert run.update(math.nan, 0, 0, False, 0) == 256 + 10
    assert run.update(0.0, 0, 0, False, 0) == 256 + 10
    assert run.update(0.01, 20, 0, False, 0) == LIMITS.max_tokens


def test_caps_are_the_engines() -> None:
    run = Runtime.from_json(record(StaticLaw(1e6), Policy(running_limit=500.0, chunk_tokens=99.9)).to_json())
    assert run.update(0.01, 1, 1, True, 1) == 8192
    assert run.running_limit == 64
    assert run.chunk_tokens == 99.0
    assert run.classes == ("chat", "batch")
    assert run.first_token_s == (0.998, 10.0)


def _without(path: str) -> dict[str, Any]:
    data = json.loads(json.dumps(record().to_json()))
    *parents, last = path.split(".")
    inner = data
    for name in parents:
        inner = inner[name]
    del inner[last]
    return data


def _with(path: str, value: Any) -> dict[str, Any]:
    data = json.loads(json.dumps(record().to_json()))
    *parents, last = path.split(".")
    inner = data
    for name in parents:
        inner = inner[int(name) if isinstance(inner, list) else name]
    inner[last] = value
    return data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "expected schema 'headway/controller/1', found None; is this the gains.json of `headway export`?"),
        ([], "found 'list'"),
        (_without("law"), "gains lack or misstate 'law'"),
        (_without("law.gains.kp"), "gains lack or misstate 'kp'"),
        (_without("targets"), "gains lack or misstate 'targets'"),
        (_with("targets", []), "targets must leave a positive time"),
        (_with("law.kind", "mpc"), "unknown law 'mpc'; this runtime knows static, updown, pi, balanced, feedforward, tracker"),
        (_with("law.gains.kp.value", "much"), "kp must be a number in [0, 10], got 'much'"),
        (_with("law.gains.margin.value", 25), "margin must be a number in [0, 0.95], got 25"),
        (_with("law.gains.ki.value", math.nan), "ki must be a number in [0, 10], got nan"),
        (_with("law.gains.slope_s_per_token", {"value": 0.0}), "slope_s_per_token must be above 0"),
        (_with("policy.order", "random"), "unknown order 'random'"),
        (_with("engine.max_tokens", 0), "max_tokens must be a number in [1, inf], got 0"),
        (_with("targets.0.itl_s", None), "itl_s must be a number"),
        (_with("plant.structure", "cliff"), "unknown plant structure 'cliff', and the gains state no prefill_rate_tps"),
        (_with("policy", []), "gains lack or misstate"),
    ],
)
def test_wrong_gains_are_refused_in_one_line(data, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        Runtime(data)
    assert "\n" not in str(caught.value)


def test_a_stated_rate_counts_before_the_plant() -> None:
    data = {**_with("plant.structure", "cliff"), "prefill_rate_tps": {"value": 12_345.0, "unit": "tokens/s"}}
    assert Runtime(data).rate_tps == 12_345.0


def test_it_reads_files_and_says_what_is_no_json(tmp_path: Path) -> None:
    file = tmp_path / "gains.json"
    file.write_text(json.dumps(record().to_json()))
    assert Runtime.from_json(file).law == Runtime.from_json(str(file)).law == "pi"
    file.write_text("{")
    with pytest.raises(ValueError, match=r"gains\.json: not JSON"):
        Runtime.from_json(file)


def test_what_ships_needs_the_standard_library_only() -> None:
    tree = ast.parse(runtime_source("0"))
    names = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= set(sys.stdlib_module_names)


def test_the_drift_monitor_sees_every_prediction_with_its_measurement_and_speaks_once(caplog) -> None:
    law = laws(PLANTS["regimes"])["tracker"]
    loop = Loop(law, watched=gains_json(guarded(law), {"verdict": "certified", "reason": ""}))
    assert loop.run.drift is not None
    rng = np.random.default_rng(0)
    for _ in range(600):
        loop.step(slow=float(np.exp(rng.normal(0, 0.04))))
    assert (loop.run.drift.alarm, loop.run.drift.raised) == (0, 0)
    with caplog.at_level(logging.WARNING, "headway_runtime"):
        after = [k for k in range(300) if loop.step(slow=1.12 * float(np.exp(rng.normal(0, 0.04)))) and loop.run.drift.alarm > 0]
    assert after[0] <= 100, "an alarm within 100 steps of a 12 % slowdown"
    assert loop.run.drift.raised == len([r for r in caplog.records if "longer than the plant says" in r.getMessage()]) == 1
    assert Runtime(gains_of(law)).drift is None, "a file that asks for none gets none"


@pytest.mark.parametrize("name", ["pi", "tracker", "feedforward"])
def test_admission_is_read_and_its_limit_is_the_compiled_one(name: str) -> None:
    law = laws(PLANTS["curved"])[name]
    policy = Policy(admission="lookahead", lookahead_steps=500.0)
    run = Runtime(guarded(law, PLANTS["curved"], policy).to_json())
    for row in steps_of("curved", 300, 1).tolist():
        run.update(*row)
    packed, state = pack_policy(policy, law, TARGETS, LIMITS, PLANTS["curved"]), np.zeros(STATE_SIZE)
    state[: len(run.state)] = run.state
    assert run.admit_limit_s == pytest.approx(admission_limit_s(law.pack(), state, packed, BUDGET_S), rel=1e-12)
    assert run.admission.horizon[-1] == 500.0
    assert run.admission.decode_time_s(20.0, 2e4) == step_time(PLANTS["curved"].pack(), 20.0, 2e4, 0.0, 0.0, 0.0)
    assert Runtime(gains_of(law)).admission.mode == "none"
    data = json.loads(json.dumps(guarded(laws(PLANTS["curved"])["pi"], policy=policy).to_json()))
    data["plant"]["structure"] = "cliff"
    with pytest.raises(ValueError, match="unknown plant structure 'cliff', which admission would predict with"):
        Runtime(data)
