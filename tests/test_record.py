"""The gains record: what is saved reads back equal, what was saved before a part existed still reads, a hand's edit shows."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.controllers.pi import PILaw
from headway.controllers.policy import ADMISSIONS, ORDERS, PHASES, PREEMPTIONS, TRIAGES, Policy
from headway.controllers.record import (
    ADMISSION_UNITS,
    PART_UNITS,
    POLICY_UNITS,
    ControllerRecord,
    content_hash,
    policy_from,
    policy_json,
)
from headway.controllers.simulator import Candidate
from headway.experiments.whole_files import read_json, write_json
from headway.models.identified import Hull
from headway.models.regimes import RegimePlant
from headway.models.signals import HABITS, Limits, Target

PLANT = RegimePlant((0.006, 6e-5, 5e-9, 0.0, 0.0, 0.0), (0.007, 1e-4, 0.0, 2e-5, 5e-10, 5e-4))
TARGETS = (Target(1.0, 0.025, name="chat"), Target(10.0, 0.05, name="batch"))
CHOICES = {"order": ORDERS, "triage": TRIAGES, "admission": ADMISSIONS, "phases": PHASES, "preemption": PREEMPTIONS}
NEW_HABITS = ("scheduling", "prefix_cache", "swap_block_s")


def held(policy: Policy = Policy(), limits: Limits = Limits(kv_tokens=200_000, max_seqs=64)) -> ControllerRecord:  # noqa: B008
    file, load = {"file": "plant.json", "sha256": "0"}, {"spec": "poisson:rate=5"}
    return ControllerRecord(
        Candidate(PILaw(), policy), TARGETS, limits, PLANT, Hull(32.0, 200_000.0, 8192.0, 9e7), file, load, {"outcome": "better"}
    )


@st.composite
def policies(draw):
    two = st.one_of(st.just(()), st.tuples(st.floats(0.01, 10), st.floats(0, 10)))
    choices = {name: draw(st.sampled_from(forms)) for name, forms in CHOICES.items()}
    numbers = {
        "degrade": draw(st.floats(1, 100)),
        "prefill_every": float(draw(st.integers(0, 100))),
        "decode_every": float(draw(st.integers(0, 100))),
        "stride": draw(st.floats(0, 1)),
        "memory_price_s": draw(st.floats(0, 1)),
        "class_shares": draw(two),
        "priority_s": draw(two),
        "lookahead_z": draw(st.floats(0, 10)),
        "aging_rate": draw(st.floats(0, 100)),
        "tolerance": draw(st.floats(-1, 10) | st.tuples(st.floats(-1, 10), st.floats(-1, 10))),
        "estimate": draw(st.floats(0, 100) | st.tuples(st.floats(0, 100), st.floats(0, 100))),
        "shed_cap": draw(st.sampled_from((1.0, 0.0, 0.05))),
    }
    if choices["order"] == "fcfs":
        keep = ("degrade", "lookahead_z", "aging_rate")
        choices |= {"phases": "mixed", "triage": draw(st.sampled_from(("none", "reject", "timeout")))}
        numbers = {n: numbers[n] for n in keep}
    return Policy(**choices, **numbers)


@st.composite
def engines(draw):
    return Limits(200_000, swap_block_s=draw(st.floats(0, 1)), **{name: draw(st.sampled_from(forms)) for name, forms in HABITS.items()})


@given(policies(), engines())
def test_what_is_saved_reads_back_equal(tmp_path_factory: pytest.TempPathFactory, policy: Policy, limits: Limits) -> None:
    path, record = tmp_path_factory.getbasetemp() / "controller.json", held(policy, limits)
    write_json(path, record.to_json())
    back = ControllerRecord.from_json(read_json(path))
    assert back == record
    assert not back.edited
    assert back.to_json() == record.to_json()


def test_every_number_of_a_policy_has_a_unit_and_parts_that_are_off_are_left_out() -> None:
    numbers = {f.name for f in dataclasses.fields(Policy) if not isinstance(getattr(Policy(), f.name), str)}  # pyright: ignore[reportArgumentType]
    assert set(POLICY_UNITS) | set(ADMISSION_UNITS) | set(PART_UNITS) == numbers
    assert set(policy_json(Policy())) == {"order", "triage", *POLICY_UNITS}
    on = policy_json(Policy(triage="degrade", admission="myopic", class_shares=(3.0, 1.0)))
    assert set(on) - set(policy_json(Policy())) == {"admission", *ADMISSION_UNITS, "degrade", "class_shares"}
    assert on["class_shares"] == {"value": [3.0, 1.0], "unit": "weight, per class"}
    assert policy_from(policy_json(Policy())) == Policy()


def before(policy: Policy = Policy()) -> dict[str, Any]:  # noqa: B008
    """As it was written before the engine had these habits and the policy these parts."""
    data = held(policy, Limits(200_000, reservation="chunk")).to_json()
    for name in NEW_HABITS:
        del data["engine"][name]
    acting = {name: part for name, part in data.items() if name not in ("schema", "content_sha256", "workload", "tuning")}
    return json.loads(json.dumps({**data, "content_sha256": content_hash(acting)}))


@pytest.mark.parametrize("policy", [Policy(), Policy(order="edf", triage="defer", admission="lookahead", lookahead_z=1.0)])
def test_a_file_from_before_these_parts_reads_as_it_was_and_is_not_called_edited(policy: Policy) -> None:
    record = ControllerRecord.from_json(before(policy))
    assert not record.edited
    assert record.candidate.policy == policy
    assert record.limits == Limits(200_000, reservation="chunk")
    again = ControllerRecord.from_json(json.loads(json.dumps(record.to_json())))
    assert again == record, "written anew it says what was assumed"


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["policy"]["class_shares"].update(value=[1.0, 1.0]),
        lambda data: data["policy"].pop("class_shares"),
        lambda data: data["policy"].update(phases="prefill_first"),
        lambda data: data["policy"].update(stride={"value": 0.1, "unit": "share of the ITL budget"}),
        lambda data: data["policy"]["degrade"].update(value=9.0),
        lambda data: data["engine"].update(scheduling="sync"),
        lambda data: data["engine"].pop("scheduling"),
        lambda data: data["engine"].update(reservation="chunk"),
    ],
)
def test_a_part_that_was_changed_by_hand_shows(change: Any) -> None:
    policy = Policy(triage="degrade", class_shares=(3.0, 1.0))
    data = json.loads(json.dumps(held(policy, Limits(200_000, scheduling="async")).to_json()))
    assert not ControllerRecord.from_json(data).edited
    change(data)
    assert ControllerRecord.from_json(data).edited


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: p.update(speed={"value": 1}), "policy.speed, which this version does not know"),
        (lambda p: p.update(class_shares={"value": 3.0}), "lacks or misstates"),
        (lambda p: p.update(stride={"value": [0.5]}), "lacks or misstates"),
        (lambda p: p.update(stride={"value": 2.0}), "stride must be in [0, 1], got 2"),
        (lambda p: p.update(phases="both"), "phases must be one of"),
        (lambda p: p.pop("estimate"), "lacks or misstates 'estimate'"),
    ],
)
def test_a_part_that_is_misstated_is_named_in_one_line(change: Any, words: str) -> None:
    data = json.loads(json.dumps(held().to_json()))
    change(data["policy"])
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        ControllerRecord.from_json(data)
    assert "\n" not in str(caught.value)


def test_lists_of_classes_stand_on_one_line_of_the_file(tmp_path: Path) -> None:
    write_json(tmp_path / "controller.json", held(Policy(class_shares=(3.0, 1.0))).to_json())
    assert '"value": [ 3.0, 1.0 ]' in (tmp_path / "controller.json").read_text()
