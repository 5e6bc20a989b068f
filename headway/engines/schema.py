"""The JSON Schema of controller.json and gains.json: every number with its unit, made from what reads and writes them.

`python -m headway.engines.schema` writes assets/controller.schema.json anew, which the wheel carries.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from headway.controllers import CONTROLLERS
from headway.controllers.gain_schedule import AXES, MOST_KNOTS, NAMES
from headway.controllers.gain_schedule import UNITS as SCHEDULED_UNITS
from headway.controllers.policy import ADMISSIONS, ORDERS, PHASES, PREEMPTIONS, TRIAGES, Policy
from headway.controllers.record import ADMISSION_UNITS, PART_UNITS, POLICY_UNITS, SCHEMA
from headway.engines.runtime_drift import DRIFT_NUMBERS
from headway.engines.runtime_guard import NUMBERS
from headway.engines.runtime_laws import ADDED, LAWS
from headway.models import PLANTS
from headway.models.identified import Hull
from headway.models.signals import HABITS, LEVELS, Limits, Target

FILE = Path(__file__).parent / "assets" / "controller.schema.json"
UNITS = {"s": "s", "tokens": "tokens", "tps": "tokens/s", "requests": "requests", "pairs": "tokens^2"}
"""Unit of a number by the last part of its name."""
NAMED = {
    "max_seqs": "requests",
    "max_len": "tokens",
    "watermark": "share of the cache",
    "swap_block_s": "s/block",
    "epsilon": "share of owed tokens, requests or gaps, by level",
    "share": "share of the requests",
}
"""Units of the numbers whose names do not end in theirs."""
CHOICES: dict[str, tuple[str, ...]] = {
    "order": ORDERS,
    "triage": TRIAGES,
    "admission": ADMISSIONS,
    "phases": PHASES,
    "preemption": PREEMPTIONS,
    "level": LEVELS,
    **HABITS,
}
"""What a choice is one of."""
HASH = {"type": "string", "pattern": "^[0-9a-f]{64}$"}


def controller_schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12, of controller.json, of the export that is made of it, and of gains.json.

    A number is an object with value and unit, or its unit stands beside it here under "unit". Unknown fields: at the top
    they are allowed, as exports add some and later versions may; below it, where every field decides how a loop acts,
    they are refused as `ControllerRecord.from_json` refuses them. What tuning and workload tell is free.

    Returns:
        Plain JSON values.

    Example:
        >>> controller_schema()["properties"]["budget_s"]["unit"]
        's'
    """
    units = POLICY_UNITS | ADMISSION_UNITS | PART_UNITS
    policy = {n: _choice(n) if n in CHOICES else _quantity(units[n], several=True) for n in vars(Policy()) if n in CHOICES or n in units}
    plant = _object(
        {
            "file": {"type": ["string", "null"]},
            "sha256": {"type": ["string", "null"]},
            "clock": {"type": ["string", "null"]},
            "structure": {"enum": list(PLANTS)},
            "coefficients": {"type": "object", "minProperties": 1, "additionalProperties": _quantity()},
        },
        ["structure", "coefficients"],
    )
    properties = {
        "schema": {"const": SCHEMA, "description": "The number at its end changes when what is here becomes wrong."},
        "content_sha256": {**HASH, "description": "Of everything that decides how the loop acts."},
        "law": {"oneOf": [_law(kind) for kind in CONTROLLERS]},
        "policy": _object(policy, ["order", "triage", *POLICY_UNITS]),
        "targets": {"type": "array", "minItems": 1, "items": _fields(Target)},
        "budget_s": _positive("s", "Longest step that keeps the tightest ITL target."),
        "setpoint_s": _positive("s", "What the law holds a step to."),
        "engine": _fields(Limits, "Limits and habits of the engine."),
        "hull": _fields(Hull, "The operating points that the plant was fitted on."),
        "plant": plant,
        "workload": {"type": "object", "required": ["spec"], "properties": {"spec": {"type": "string"}}},
        "tuning": {"type": "object", "description": "What tuning found; empty where nothing was tuned."},
        "schedule": _schedule(),
        **_exported(),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA.replace('/', ':')}",
        "title": "A Headway controller: controller.json and gains.json",
        "type": "object",
        "required": [n for n in properties if n not in ("schedule", *_exported())],
        "properties": properties,
    }


def _schedule() -> dict[str, Any]:
    """Gains that follow the load; a file without them has none."""

    def numbers(items: dict[str, Any]) -> dict[str, Any]:
        return {"type": "array", "minItems": 1, "maxItems": MOST_KNOTS, "items": items}

    def gain(unit: str) -> dict[str, Any]:
        table = numbers(numbers(numbers({"type": "number", "unit": unit})))
        return _object({"unit": {"const": unit}, "table": table}, ["unit", "table"])

    knots = {axis: numbers({"type": "number", "unit": "tokens" if axis == AXES[0] else "1"}) for axis in AXES}
    rows = {name: gain(SCHEDULED_UNITS[name.partition(".")[0]]) for name in NAMES}
    return {
        **_object({"knots": _object(knots, list(AXES)), "gains": {**_object(rows, []), "minProperties": 1}}, ["knots", "gains"]),
        "description": "Tables over the load, in place of the numbers of law and policy that they are named after.",
    }


def _exported() -> dict[str, Any]:
    """What an export adds."""
    return {
        "certificate": {
            "type": "object",
            "required": ["verdict", "reason"],
            "properties": {
                "verdict": {"enum": ["certified", "refused", "measured"]},
                "reason": {"type": "string"},
                "numbers": {"type": ["object", "null"]},
                "uncertified": {"const": True},
            },
        },
        "prefill_rate_tps": _quantity("tokens/s"),
        "guard": _object({n: _quantity(unit) for n, (_, unit) in NUMBERS.items()}, list(NUMBERS)),
        "drift": _object({n: _quantity("1") for n in DRIFT_NUMBERS}, list(DRIFT_NUMBERS)),
    }


def _law(kind: str) -> dict[str, Any]:
    gains = LAWS.get(kind)
    asked = [n for n in gains or () if n not in ADDED]  # a file that is older than a gain has none
    known = _object({n: _quantity(ranged=True) for n in gains}, asked) if gains else {"type": "object"}
    return _object({"kind": {"const": kind}, "gains": known}, ["kind", "gains"])


def _fields(cls: type, description: str = "") -> dict[str, Any]:
    """A dataclass of plain fields. One that has a default may be missing: a file that is older than the field has none."""
    rows = {f.name: _choice(f.name) if f.name in CHOICES else _plain(f) for f in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]
    asked = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]  # pyright: ignore[reportArgumentType]
    return _object(rows, asked) | ({"description": description} if description else {})


def _plain(field: dataclasses.Field) -> dict[str, Any]:
    if field.type == "str":
        return {"type": "string"}
    unit = NAMED.get(field.name) or UNITS[field.name.rsplit("_", 1)[-1]]
    return {"type": "integer" if field.type == "int" else "number", "minimum": 0, "unit": unit}


def _choice(name: str) -> dict[str, Any]:
    return {"enum": list(CHOICES[name])}


def _positive(unit: str, description: str) -> dict[str, Any]:
    return {"type": "number", "exclusiveMinimum": 0, "unit": unit, "description": description}


def _quantity(unit: str | None = None, *, several: bool = False, ranged: bool = False) -> dict[str, Any]:
    """A number with its unit; with `several` it may be one per class, with `ranged` it says what it may be."""
    one = {"type": "number"}
    value = {"oneOf": [one, {"type": "array", "items": one}]} if several else one
    rows = {"value": value, "unit": {"const": unit} if unit else {"type": "string", "minLength": 1}}
    return _object(rows | ({"low": one, "high": one} if ranged else {}), ["value", "unit"])


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def text() -> str:
    """The schema as its file holds it.

    Returns:
        JSON.
    """
    return json.dumps(controller_schema(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8", newline="\n")
