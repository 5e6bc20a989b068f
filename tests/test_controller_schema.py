"""The published JSON Schema: it lets through what is written, and nothing that a reader would refuse or that lacks a unit."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from headway.controllers.policy import Policy
from headway.controllers.record import ControllerRecord
from headway.engines.export import export_json, export_python
from headway.engines.schema import FILE, controller_schema, text
from headway.models.signals import Limits
from tests.guarded_loops import PLANTS, laws, record

jsonschema = pytest.importorskip("jsonschema", reason="the schema is tried with jsonschema, which the developer's extra brings")
CHECK = jsonschema.Draft202012Validator(json.loads(FILE.read_text()))
WHOLE = Policy(
    triage="degrade",
    degrade=3.0,
    admission="lookahead",
    lookahead_z=1.0,
    priority_s=(0.5, -2.0),
    class_shares=(3.0, 1.0),
    memory_price_s=0.002,
    phases="decode_first",
    prefill_every=6.0,
    decode_every=2.0,
    stride=0.5,
    preemption="swap",
)
"""Every part of a policy on."""


def written() -> dict[str, Any]:
    """A controller.json."""
    return json.loads(json.dumps(record(laws(PLANTS["regimes"])["pi"]).to_json()))


def test_the_file_in_the_wheel_is_the_schema_of_today() -> None:
    CHECK.check_schema(controller_schema())
    assert FILE.read_text() == text(), "write it anew: python -m headway.engines.schema"


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("law", ["static", "updown", "pi", "balanced", "feedforward", "tracker", "pi in quanta"])
def test_every_law_on_every_plant_is_valid(law: str, plant: str) -> None:
    CHECK.validate(json.loads(json.dumps(record(laws(PLANTS[plant])[law], PLANTS[plant]).to_json())))


@pytest.mark.parametrize("law", ["static", "pi", "tracker"])
def test_exports_are_valid(law: str, tmp_path: Path) -> None:
    held = record(laws(PLANTS["curved"])[law], PLANTS["curved"])
    CHECK.validate(json.loads((export_json(held, tmp_path / "a").folder / "controller.json").read_text()))
    gains = json.loads((export_python(held, tmp_path / "b").folder / "gains.json").read_text())
    assert {"guard", "certificate", "prefill_rate_tps", "drift"} <= set(gains)
    CHECK.validate(gains)


def test_every_part_of_a_policy_and_every_habit_is_valid_and_reads_back() -> None:
    limits = Limits(kv_tokens=400_000, reservation="full", scheduling="async", prefix_cache="off", swap_block_s=3e-4)
    data = json.loads(json.dumps(record(laws(PLANTS["regimes"])["tracker"], policy=WHOLE, limits=limits).to_json()))
    CHECK.validate(data)
    assert set(data["policy"]) <= set(controller_schema()["properties"]["policy"]["properties"])
    assert ControllerRecord.from_json(data).candidate.policy == WHOLE


def test_every_field_of_a_policy_is_in_the_schema() -> None:
    assert set(controller_schema()["properties"]["policy"]["properties"]) == {f.name for f in dataclasses.fields(Policy)}  # pyright: ignore[reportArgumentType]


def test_every_number_has_a_unit() -> None:
    """Beside it in the file, or in the schema; a `value` without a unit beside it is not let through."""

    def walk(at: dict[str, Any], path: str) -> int:
        if at.get("type") in ("number", "integer"):
            assert at.get("unit"), f"{path} has no unit"
            return 1
        rows = at.get("properties", {})
        if "value" in rows:
            assert "unit" in at["required"], f"{path} may lack its unit"
            return 1
        parts = [*rows.items(), *(("[]", at[k]) for k in ("items", "additionalProperties") if isinstance(at.get(k), dict))]
        return sum(walk(x, f"{path}.{name}") for name, x in [*parts, *((str(k), x) for k, x in enumerate(at.get("oneOf", [])))])

    assert walk(controller_schema(), "") > 60


def removed(*path: str) -> Any:
    def change(data: dict[str, Any]) -> None:
        at = data
        for name in path[:-1]:
            at = at[name]
        del at[path[-1]]

    return change


def put(value: Any, *path: Any) -> Any:
    def change(data: dict[str, Any]) -> None:
        at: Any = data
        for name in path[:-1]:
            at = at[name]
        at[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        removed("law", "gains", "kp", "unit"),
        removed("law", "gains", "kp"),
        removed("plant", "coefficients"),
        removed("content_sha256"),
        removed("setpoint_s"),
        put("headway/controller/2", "schema"),
        put("fuzzy", "law", "kind"),
        put(1.5, "law", "gains", "kp"),
        put({"value": "0.1", "unit": "1"}, "law", "gains", "kp"),
        put({"value": 0.1, "unit": "1"}, "law", "gains", "kq"),
        put({"value": 0.1, "unit": "ms"}, "policy", "aging_rate"),
        put("random", "policy", "order"),
        put({"value": 1.0, "unit": "1"}, "policy", "boost"),
        put([], "targets"),
        put(-0.1, "targets", 0, "itl_s"),
        put("often", "engine", "scheduling"),
        put(64.5, "engine", "max_seqs"),
        put(7, "engine", "gpus"),
        put("x", "content_sha256"),
    ],
)
def test_what_a_reader_would_refuse_is_not_valid(change: Any) -> None:
    data = written()
    CHECK.validate(data)
    before = copy.deepcopy(data)
    change(data)
    assert data != before
    assert not CHECK.is_valid(data)


def test_a_field_of_a_later_version_at_the_top_is_let_through() -> None:
    data = {**written(), "seen_in_production": True}
    CHECK.validate(data)
    assert not ControllerRecord.from_json(data).edited
