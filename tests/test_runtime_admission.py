"""Admission in an engine's process: equal to the compiled form to the last bit, and read from the record of a controller."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.controllers import StaticLaw
from headway.controllers.admission import admits, ended, joined
from headway.controllers.policy import Policy, pack_policy
from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import Candidate
from headway.engines.runtime_admission import Admission
from headway.models.goodput import FINISHED
from headway.models.identified import Hull
from headway.models.mechanics import give_way
from headway.models.plant import Plant
from headway.models.signals import Limits
from headway.models.state import ALIVE, ALL_STAY, EXPECTED, EXPECTED_KV, RELEASED_IDS, RUNNING_IDS, SEEN, VARIANCE, new_state
from headway.models.steptime import step_time
from headway.models.workload import Workload
from tests.test_admission import LINEAR, ROOF, TARGET


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["myopic", "lookahead"]), st.sampled_from([LINEAR, ROOF]), st.booleans())
def test_the_twin_of_the_standard_library_decides_the_same(seed: int, mode: str, plant: Plant, coarse: bool) -> None:
    """Random comings and goings: the same answers, and the same sums and survival to the last bit."""
    rng = np.random.default_rng(seed)
    n, limits = 40, Limits(int(rng.integers(2000, 40_000)), 16 if coarse else 1, watermark=0.01)
    policy = Policy(admission=mode, lookahead_steps=float(rng.choice([50.0, 1000.0])), lookahead_z=1.64, prior_output_tokens=100.0)
    packed, law = pack_policy(policy, StaticLaw(512.0), (TARGET,) * 3, limits, plant), plant.pack()
    w = Workload(np.arange(n) * 1.0, rng.integers(1, 2000, n), np.full(n, 1), rng.integers(0, 3, n))
    s = new_state(w, 3, blocks=limits.blocks, block_tokens=limits.block_tokens)
    twin = Admission(
        lambda n, kv: step_time(law, n, kv, 0.0, 0.0, 0.0),
        limits.blocks,
        limits.block_tokens,
        limits.watermark,
        mode=mode,
        lookahead_steps=policy.lookahead_steps,
        prior_output_tokens=100.0,
    )
    e, waiting, answers = s.books[0], list(range(n)), []
    for _ in range(60):
        e["n_released"], gone = 0, []
        for i in rng.permutation(s.ids[RUNNING_IDS, : e["n_running"]])[: rng.integers(0, 2)]:
            s.req[i]["status"], s.ids[RELEASED_IDS, e["n_released"]] = FINISHED, i
            kept = s.ids[RUNNING_IDS, : e["n_running"]]
            s.ids[RUNNING_IDS, : e["n_running"] - 1] = kept[kept != i]
            e["n_released"] += 1
            e["n_running"] -= 1
            gone.append((float(s.req["prompt"][i]), float(s.req["emitted"][i]), int(s.req["class_id"][i])))
        e["step"] += 1
        twin.step()
        ended(s.req, e, s.ids, packed)
        for output in gone:
            twin.ended(*output)
        if e["n_running"] > 1 and rng.random() < 0.1:
            waiting.insert(0, give_way(e["n_running"] - 1, s.req, e, s.ids, False, s.units, s.unit_ids))
            twin.preempted()
        e["admit_s"] = rng.uniform(0.005, 0.05)
        for _ in range(3):
            rows = s.req[s.ids[RUNNING_IDS, : e["n_running"]]]
            running = [(float(r["prompt"] + r["emitted"]), float(r["emitted"]), int(r["class_id"])) for r in rows]
            r = s.req[waiting[0]] if waiting else None
            if r is None:
                break
            wanted = admits(s.req[waiting[0]], s.req, e, s.ids, packed)
            mine = float(r["prompt"] + r["emitted"]), float(r["emitted"]), int(r["class_id"])
            assert twin.admits(float(e["admit_s"]), running, len(running), *mine) == wanted
            answers.append(wanted)
            if not wanted:
                break
            s.ids[RUNNING_IDS, e["n_running"]] = waiting[0]
            e["n_running"] += 1
            joined(s.req[waiting[0]], e, packed)
            twin.joined(*mine)
            waiting.pop(0)
            points = len(twin.horizon)
            assert e["outlook"][[EXPECTED, EXPECTED_KV, VARIANCE, ALL_STAY], :points].tolist() == twin.sums
            assert e["outlook"][ALIVE::2].tolist() == twin.alive
            assert e["outlook"][SEEN::2].tolist() == twin.seen
        for i in s.ids[RUNNING_IDS, : e["n_running"]]:
            s.req[i]["emitted"] += rng.integers(0, 40)
    assert len(answers) > 10


def record_of(policy: Policy) -> ControllerRecord:
    plant = LINEAR
    limits, hull = Limits(50_000, 16, watermark=0.01), Hull(64.0, 1e5, 8192.0, 1e7)
    workload = {"spec": "given", "rate_rps": None, "rows": None, "requests": 1}
    return ControllerRecord(
        Candidate(StaticLaw(512.0), policy), (TARGET,), limits, plant, hull, {"file": "plant.json", "sha256": "0"}, workload, {}
    )


def test_the_record_keeps_admission_and_says_nothing_where_there_is_none() -> None:
    policy = Policy(admission="lookahead", lookahead_steps=500.0, lookahead_z=2.0, prior_output_tokens=300.0, prior_requests=4.0)
    data = json.loads(json.dumps(record_of(policy).to_json()))
    again = ControllerRecord.from_json(data)
    assert again.candidate.policy == policy
    assert not again.edited
    twin = Admission.from_gains(data, lambda n, kv: 0.0)
    assert (twin.mode, twin.z, twin.median, twin.weight, twin.horizon[-1]) == ("lookahead", 2.0, 300.0, 4.0, 500.0)
    assert (twin.block, twin.pool) == (16.0, 3125 - 32)
    data["policy"]["lookahead_z"]["value"] = 3.0
    assert ControllerRecord.from_json(data).edited
    without = record_of(Policy()).to_json()
    assert not set(without["policy"]) & {"admission", "lookahead_steps"}
    assert ControllerRecord.from_json(without).candidate.policy == Policy()
    free = Admission.from_gains(without, lambda n, kv: 9.0)
    assert free.mode == "none"
    assert free.admits(0.0, [], 99, 1e9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "always"}, "admission must be one of"),
        ({"watermark": 2.0}, "watermark must be in"),
        ({"lookahead_z": float("nan")}, "lookahead_z must be in"),
        ({"prior_requests": 0.0}, "prior_requests must be in"),
    ],
)
def test_the_twin_refuses_what_is_out_of_range(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Admission(lambda n, kv: 0.0, 100, **change)


def test_the_twin_says_which_number_is_missing_and_counts_steps_held_back() -> None:
    data = record_of(Policy(admission="lookahead")).to_json()
    del data["policy"]["lookahead_z"]
    with pytest.raises(ValueError, match="lookahead_z"):
        Admission.from_gains(data, lambda n, kv: 0.0)
    twin = Admission(lambda n, kv: n, 1000)
    running = [(10.0, 1.0, 0)] * 5
    assert twin.admits(0.0, [], 0, 10.0)
    for context, emitted, class_id in running:
        twin.joined(context, emitted, class_id)
    assert not any(twin.admits(5.5, running, 5, 10.0) for _ in range(3))
    twin.step()
    assert not twin.admits(5.5, running, 5, 10.0)
    assert twin.held == 2
    twin.reset()
    assert (twin.held, twin.steps) == (0, 0)
