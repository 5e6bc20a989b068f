"""The gains record: a tuned controller with its units, limits, hull and provenance, as controller.json holds it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate
from headway.models.identified import Hull, finite
from headway.models.plant import Plant
from headway.models.signals import Limits, Target

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


@dataclasses.dataclass(frozen=True)
class ControllerRecord:
    """Everything that a loop needs to run a controller, and what is known of it.

    Args:
        candidate: law and policy.
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
        law, policy = self.candidate
        budget_s = min(t.budget_s for t in self.targets)
        acting = {
            "law": {
                "kind": law.law,
                "gains": {n: {"value": float(g.value), "unit": g.unit, "low": g.low, "high": g.high} for n, g in law.gains().items()},
            },
            "policy": {
                "order": policy.order,
                "triage": policy.triage,
                **{n: {"value": float(getattr(policy, n)), "unit": unit} for n, unit in POLICY_UNITS.items()},
                **_admission(policy),
            },
            "targets": [dataclasses.asdict(t) for t in self.targets],
            "budget_s": budget_s,
            "setpoint_s": (1 - law.setpoint_margin) * budget_s,
            "engine": dataclasses.asdict(self.limits),
            "hull": dataclasses.asdict(self.hull),
            "plant": {
                **self.plant_file,
                "structure": self.plant.structure,
                "coefficients": {n: {"value": c.value, "unit": c.unit} for n, c in self.plant.coefficients().items()},
            },
        }
        return {"schema": SCHEMA, "content_sha256": content_hash(acting), **acting, "workload": self.workload, "tuning": self.tuning}

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
            kind = data["law"]["kind"]
            if kind not in CONTROLLERS:
                raise ValueError(f"unknown law {kind!r}; this version knows {', '.join(CONTROLLERS)}")
            given = data["policy"]
            names = (*POLICY_UNITS, *(ADMISSION_UNITS if "admission" in given else ()))
            choices = given["order"], given["triage"]
            policy = Policy(*choices, admission=given.get("admission", "none"), **{n: float(given[n]["value"]) for n in names})
            targets = tuple(Target(**t) for t in data["targets"])
            limits = Limits(**data["engine"])
            structure = data["plant"]["structure"]
            if structure not in PLANTS:
                raise ValueError(f"unknown structure {structure!r}; this version knows {', '.join(PLANTS)}")
            plant = PLANTS[structure].from_coefficients({n: float(c["value"]) for n, c in data["plant"]["coefficients"].items()})
            hull = Hull(**{k: finite(k, v) for k, v in data["hull"].items()})
            fitted = {"plant": plant} if CONTROLLERS[kind].predicts else {}
            law = CONTROLLERS[kind](**fitted, **{n: float(g["value"]) for n, g in data["law"]["gains"].items()})
            plant_file = {k: data["plant"].get(k) for k in ("file", "sha256", "clock") if k in data["plant"]}
            record = ControllerRecord(Candidate(law, policy), targets, limits, plant, hull, plant_file, data["workload"], data["tuning"])
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError(f"controller.json lacks or misstates {error}; write it anew with `headway tune`") from None
        if (
            not isinstance(data["workload"], dict)
            or not isinstance(data["workload"].get("spec"), str)
            or not isinstance(data["tuning"], dict)
        ):
            raise ValueError("controller.json lacks or misstates 'workload' or 'tuning'; write it anew with `headway tune`")
        if not targets:
            raise ValueError("controller.json names no target; write it anew with `headway tune`")
        law.check()
        policy.check()
        limits.check()
        for target in targets:
            target.check()
        if record.to_json()["content_sha256"] != data.get("content_sha256"):
            return dataclasses.replace(record, edited=True)
        return record


def _admission(policy: Policy) -> dict[str, Any]:
    """How it admits; nothing where it does not hold anybody back."""
    if policy.admission == "none":
        return {}
    numbers = {n: {"value": float(getattr(policy, n)), "unit": unit} for n, unit in ADMISSION_UNITS.items()}
    return {"admission": policy.admission, **numbers}


def content_hash(acting: dict[str, Any]) -> str:
    """Hash of plain JSON values, the same on every machine.

    Args:
        acting: what is hashed.

    Returns:
        sha256 in hexadecimal digits.
    """
    return hashlib.sha256(json.dumps(acting, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
