"""The gains record: a tuned controller with its units, limits, hull and provenance, as controller.json holds it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import numpy as np

from headway.controllers.gain_schedule import GainSchedule
from headway.controllers.policy import EITHER, Policy
from headway.controllers.scheduled import at_rest, check_gains
from headway.controllers.simulator import Candidate
from headway.models.identified import Hull, finite
from headway.models.plant import Plant
from headway.models.signals import HABITS, MOST, Limits, Target

SCHEMA = "headway/controller/1"

POLICY_UNITS = {
    "tolerance": "share of ttft",
    "estimate": "1",
    "timeout": "share of ttft",
    "aging_rate": "s/s",
    "chunk_tokens": "tokens",
    "running_limit": "requests",
}
"""Unit of each number of a policy."""

ADMISSION_UNITS = {
    "lookahead_steps": "steps",
    "lookahead_z": "standard deviations",
    "prior_output_tokens": "tokens",
    "prior_requests": "requests",
}
"""Unit of each number of admission; a record without admission has none of them."""

PART_UNITS = {
    "degrade": "times both targets",
    "prefill_every": "steps",
    "decode_every": "steps",
    "stride": "share of the ITL budget",
    "class_shares": "weight, per class",
    "priority_s": "s, per class",
    "memory_price_s": "s/block",
    "shed_cap": "share of arrivals",
}
"""Unit of each number of the other parts that can be off; a record has those that are on or were changed."""


@dataclasses.dataclass(frozen=True)
class ControllerRecord:
    """Everything that a loop needs to run a controller, and what is known of it.

    Args:
        candidate: law, policy and gains.
        targets: one per class.
        limits: of the engine.
        plant: structure and coefficients that it was tuned on.
        hull: operating points that the plant was fitted on.
        plant_file: {"file", "sha256"} of the plant.json beside it.
        workload: {"spec", "rate_rps", "rows", "requests"}: where the workloads came from.
        tuning: what `headway tune` found, as its own --json shows it, without the controller.
        edited: it was read from a file whose content hash does not fit: changed by hand since it was tuned.
    """

    candidate: Candidate
    targets: tuple[Target, ...]
    limits: Limits
    plant: Plant
    hull: Hull
    plant_file: dict[str, Any]
    workload: dict[str, Any]
    tuning: dict[str, Any]
    edited: bool = False

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, with a hash of everything that decides how the loop acts.

        Returns:
            The content of controller.json; `from_json` is the inverse.
        """
        acting = self._acting()
        return {"schema": SCHEMA, "content_sha256": content_hash(acting), **acting, "workload": self.workload, "tuning": self.tuning}

    def _acting(self) -> dict[str, Any]:
        """Everything that decides how the loop acts."""
        law, policy, gains = self.candidate
        budget_s = min(t.budget_s for t in self.targets)
        followed = {} if gains is None else {"schedule": gains.to_json()}
        return {
            **followed,
            "law": {
                "kind": law.law,
                "gains": {n: {"value": float(g.value), "unit": g.unit, "low": g.low, "high": g.high} for n, g in law.gains().items()},
            },
            "policy": policy_json(policy),
            "targets": [dataclasses.asdict(t) for t in self.targets],
            "budget_s": budget_s,
            "setpoint_s": (1 - at_rest(law, policy, gains)[0].setpoint_margin) * budget_s,
            "engine": dataclasses.asdict(self.limits),
            "hull": dataclasses.asdict(self.hull),
            "plant": {
                **self.plant_file,
                "structure": self.plant.structure,
                "coefficients": {n: {"value": c.value, "unit": c.unit} for n, c in self.plant.coefficients().items()},
            },
        }

    def _fits(self, data: dict[str, Any]) -> bool:
        """Whether a file's hash is that of what was read from it. One from before the engine had a habit, or the law a gain, is hashed without."""
        acting = self._acting()
        acting["engine"] = {n: v for n, v in acting["engine"].items() if n in data["engine"]}
        acting["law"]["gains"] = {n: v for n, v in acting["law"]["gains"].items() if n in data["law"]["gains"]}
        return content_hash(acting) == data.get("content_sha256")

    @staticmethod
    def from_json(data: dict[str, Any]) -> ControllerRecord:
        """Read what `to_json` wrote.

        Args:
            data: the content of controller.json.

        Returns:
            The record.

        Raises:
            ValueError: another schema, an unknown law, a missing or wrong value; the message names it.
        """
        from headway.controllers import CONTROLLERS
        from headway.models import PLANTS

        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            found = data.get("schema") if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"expected schema {SCHEMA!r}, found {found!r}; is this the controller.json of `headway tune`?")
        try:
            _check_values(data)
            kind = data["law"]["kind"]
            if kind not in CONTROLLERS:
                raise ValueError(f"unknown law {kind!r}; this version knows {', '.join(CONTROLLERS)}")
            policy = policy_from(data["policy"])
            targets = tuple(Target(**t) for t in data["targets"])
            limits = Limits(**data["engine"])
            structure = data["plant"]["structure"]
            if structure not in PLANTS:
                raise ValueError(f"unknown structure {structure!r}; this version knows {', '.join(PLANTS)}")
            plant = PLANTS[structure].from_coefficients({n: float(c["value"]) for n, c in data["plant"]["coefficients"].items()})
            hull = Hull.from_json(data["hull"])
            fitted = {"plant": plant} if CONTROLLERS[kind].predicts else {}
            law = CONTROLLERS[kind](**fitted, **{n: float(g["value"]) for n, g in data["law"]["gains"].items()})
            plant_file = {k: data["plant"].get(k) for k in ("file", "sha256", "clock") if k in data["plant"]}
            gains = GainSchedule.from_json(data["schedule"]) if "schedule" in data else None
            candidate = Candidate(law, policy, gains)
            record = ControllerRecord(candidate, targets, limits, plant, hull, plant_file, data["workload"], data["tuning"])
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise ValueError(f"controller.json lacks or misstates {error}; write it anew with `headway tune`") from None
        if not targets:
            raise ValueError("controller.json names no target; write it anew with `headway tune`")
        law.check()
        policy.check()
        limits.check()
        for target in targets:
            target.check()
        if gains is not None:
            check_gains(law, policy, gains, len(targets))
        return record if record._fits(data) else dataclasses.replace(record, edited=True)


def _check_values(data: dict[str, Any]) -> None:
    """Refuse values of another kind than `to_json` writes, each by its place: they would only fail where they are used."""
    if not isinstance(data["workload"], dict) or not isinstance(data["workload"].get("spec"), str) or not isinstance(data["tuning"], dict):
        raise ValueError("controller.json lacks or misstates 'workload' or 'tuning'; write it anew with `headway tune`")
    try:
        for name, gain in data["law"]["gains"].items():
            finite(f"law.gains.{name}.value", gain["value"])
        for name, coefficient in data["plant"]["coefficients"].items():
            finite(f"plant.coefficients.{name}.value", coefficient["value"])
        for name, value in data["engine"].items():
            if name not in HABITS:
                finite(f"engine.{name}", value)
        for number, target in enumerate(data["targets"]):
            for name, value in target.items():
                if name not in ("name", "level"):
                    finite(f"targets[{number}].{name}", value)
        Hull.from_json(data["hull"])
        _check_workload(data["workload"])
        _check_static(data["tuning"])
    except ValueError as error:
        raise ValueError(f"{error}; mend controller.json, or write it anew with `headway tune`") from None


def _check_workload(workload: dict[str, Any]) -> None:
    rate, rows = workload.get("rate_rps"), workload.get("rows")
    if rate is not None and not finite("workload.rate_rps", rate) > 0:
        raise ValueError(f"workload.rate_rps must be above 0, got {rate:g}")
    if rows is None:
        return
    if not isinstance(rows, list | tuple) or len(rows) != 2:
        raise ValueError(f"workload.rows must be [first, end] or null, got {rows!r}")
    for row in rows:
        if row is not None:
            _whole("workload.rows", row, 0, MOST)


def _check_static(tuning: dict[str, Any]) -> None:
    """The best static setting, which every measurement is held against."""
    found: Any = tuning
    for place, name in (("tuning.best_static", "best_static"), ("tuning.best_static.settings", "settings")):
        found = found.get(name)
        if found is None:
            return
        if not isinstance(found, dict):
            raise ValueError(f"{place} must be a mapping of names, got {found!r}")
    for name, most in (("token_budget", MOST), ("running_limit", 10**6)):
        if name in found:
            _whole(f"tuning.best_static.settings.{name}", found[name], 1, most)
    if found.get("timeout") is not None and not 0 < finite("tuning.best_static.settings.timeout", found["timeout"]) <= 100:
        raise ValueError(f"tuning.best_static.settings.timeout must be in (0, 100] times the TTFT target, got {found['timeout']:g}")


def _whole(name: str, value: Any, least: int, most: int) -> None:
    number = finite(name, value)
    if not (number.is_integer() and least <= number <= most):
        raise ValueError(f"{name} must be a whole number in [{least}, {most:g}], got {number:g}")


def policy_json(policy: Policy) -> dict[str, Any]:
    """A policy as controller.json holds it: choices by name, numbers with their units, without parts that are off.

    Args:
        policy: the policy.

    Returns:
        Plain JSON values; one number per class is a list.
    """
    plain, shown = Policy(), {"order": policy.order, "triage": policy.triage, **_numbers(policy, POLICY_UNITS)}
    changed = [n for n in (*ADMISSION_UNITS, *PART_UNITS) if _value(getattr(policy, n)) != _value(getattr(plain, n))]
    on = {*changed, *(ADMISSION_UNITS if policy.admission != "none" else ()), *(("degrade",) if policy.triage == "degrade" else ())}
    for choice in ("admission", "phases", "preemption"):
        if getattr(policy, choice) != getattr(plain, choice):
            shown[choice] = getattr(policy, choice)
    return {**shown, **_numbers(policy, {n: unit for n, unit in (ADMISSION_UNITS | PART_UNITS).items() if n in on})}


def policy_from(given: dict[str, Any]) -> Policy:
    """Read what `policy_json` wrote; what a file does not name is off.

    Args:
        given: choices by name, numbers as {"value", "unit"}.

    Returns:
        The policy.

    Raises:
        ValueError: a name that no policy has, or a value that is no finite number.
    """
    plain: dict[str, Any] = vars(Policy())
    if unknown := [n for n in given if n not in plain]:
        raise ValueError(f"controller.json has policy.{unknown[0]}, which this version does not know; update Headway, or tune anew")
    rows = {n: given[n] for n in ("order", "triage", *POLICY_UNITS)} | given
    return Policy(**{n: _read(n, rows[n], like) for n, like in plain.items() if n in rows})


def _read(name: str, found: Any, like: Any) -> Any:
    """A choice, one number, or one for each class, as the field has it; of some either."""
    if isinstance(like, str):
        return str(found)
    value, place = found["value"], f"policy.{name}.value"
    several = isinstance(like, tuple) or (name in EITHER and isinstance(value, list))
    try:
        return tuple(finite(place, one) for one in value) if several else finite(place, value)
    except ValueError as error:
        raise ValueError(f"controller.json lacks or misstates a number: {error}; write it anew with `headway tune`") from None


def _numbers(policy: Policy, units: dict[str, str]) -> dict[str, dict[str, Any]]:
    return {n: {"value": _value(getattr(policy, n)), "unit": unit} for n, unit in units.items()}


def _value(number: Any) -> Any:
    """A number of a policy as JSON has it: one for all, or a list with one per class."""
    return [float(x) for x in number] if np.ndim(number) else float(number)


def content_hash(acting: dict[str, Any]) -> str:
    """Hash of plain JSON values, the same on every machine.

    Args:
        acting: what is hashed.

    Returns:
        sha256 in hexadecimal digits.
    """
    return hashlib.sha256(json.dumps(acting, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
