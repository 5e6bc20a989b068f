"""What was asked for, as far as the files of single stages know it: where no manifest holds the request of a whole run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.controllers.policy import Policy
from headway.models.signals import Target
from headway.report.data import dig
from headway.report.goodput_panels import LOOKS
from headway.report.text import number
from headway.units import duration_text

LIMITS = ("kv_tokens", "block_tokens", "max_seqs", "max_len", "max_tokens")
"""Limits of an engine that commands take as options."""

USUAL_EPSILON = Target(1.0, 1.0).epsilon
CHOICES = ("order", "triage", "admission", "phases", "preemption")
"""What of a policy is a choice: its numbers may have been found by tuning, a choice was made by a person."""

TARGET_FILE = "target.toml"
"""What the file of several classes is called: its own name is not kept."""


def asked_of_fit(plant: Any) -> dict[str, Any]:
    """What a plant was fitted with.

    Args:
        plant: content of plant.json; None where there is none.

    Returns:
        Value by option of `headway fit`, those that differ from its own and all limits that it has an option for.
    """
    training, engine = dig(plant, "training") or {}, dig(plant, "engine") or {}
    found: dict[str, Any] = {"where": training.get("where")}
    if training.get("blocks") != "all":
        found["blocks"] = training.get("blocks")
    if plant is not None and not plant.get("ladder"):  # nothing was compared: the structure was given
        found["structure"] = plant.get("structure")
    found["limits"] = {name: engine[name] for name in LIMITS if name in engine}
    if training.get("epsilon") != USUAL_EPSILON:
        found["epsilon"] = training.get("epsilon")
    return found | {"seed": training.get("seed") or None}


def asked_of_tune(controller: Any, plant: Any) -> dict[str, Any]:
    """What a controller was tuned for.

    Args:
        controller: content of controller.json; None before tuning.
        plant: content of plant.json, whose limits need not be given again.

    Returns:
        Value by option of `headway tune`; workload and target are None where no file knows them.
    """
    load, tuning, engine = (dig(controller, key) or {} for key in ("workload", "tuning", "engine"))
    effort = dig(tuning, "effort") or {}
    found: dict[str, Any] = {"workload": load.get("spec"), "target": target_text(controller)}
    if tuning.get("objective") != "attainment":
        found["objective"] = tuning.get("objective")
    found |= {"policy": _policy(controller), "rate_rps": load.get("rate_rps"), "rows": load.get("rows"), "requests": load.get("requests")}
    found["limits"] = {name: engine[name] for name in LIMITS if engine.get(name) not in (None, dig(plant, "engine", name))}
    found["require"] = ",".join(_required(one) for one in tuning.get("required") or [] if isinstance(one, Mapping))
    robust = tuning.get("robust")
    if isinstance(robust, Mapping):
        found["robust"] = "mean" if number(robust.get("tail")) is None else f"cvar:{100 * robust['tail']:g}%"
    found |= {"schedule": dig(tuning, "schedule", "kind"), "bound": dig(tuning, "bound", "changes") is not None}
    found["no_bound"] = "bound" in tuning and tuning["bound"] is None
    found["analyse"] = ",".join(name for field, (_, option, name) in LOOKS.items() if option == "--analyse" and tuning.get(field))
    if effort.get("gradient") != "auto":
        found["gradient"] = effort.get("gradient")
    return found | {"seed": effort.get("seed") or None}


def asked_of_validate(validation: Any) -> dict[str, Any]:
    """What a validation ran on.

    Args:
        validation: content of validation.json; None where there is none.

    Returns:
        Value by option of `headway validate`.
    """
    return {name: dig(validation, name) for name in ("engine", "runs")}


def asked_of_run(fit: Mapping[str, Any], tune: Mapping[str, Any], validate: Mapping[str, Any], traces: list[str]) -> dict[str, Any]:
    """The same asked of a whole run, which has fewer options than its stages.

    Args:
        fit: of `asked_of_fit`.
        tune: of `asked_of_tune`.
        validate: of `asked_of_validate`.
        traces: files.

    Returns:
        Value by option of `headway run`.
    """
    limits = {**(fit.get("limits") or {}), **(tune.get("limits") or {})}
    same = {name: tune.get(name) for name in ("objective", "policy", "rate_rps", "rows", "requests", "seed")}
    first = {"traces": traces or ["TRACE"], "workload": tune.get("workload") or "WORKLOAD", "target": tune.get("target") or "TARGET"}
    return {**first, "engine": validate.get("engine"), "where": fit.get("where"), **same, "limits": limits}


def target_text(controller: Any) -> str | None:
    """What clients were promised, as `--target` takes it.

    Args:
        controller: content of controller.json; None before tuning.

    Returns:
        Such as "ttft=1s,itl=25ms"; the name of a file where there are several classes; None where nothing is known.
    """
    targets = [t for t in dig(controller, "targets") or [] if isinstance(t, Mapping)]
    if len(targets) != 1 or targets[0].get("name") != "default":
        return TARGET_FILE if targets else None
    return ",".join(f"{name}={value}" for name, value in _promise(targets[0]).items())


def target_lines(controller: Any) -> list[str]:
    """The file of several classes, as `--target` takes it.

    Args:
        controller: content of controller.json; None before tuning.

    Returns:
        Lines of TOML; none where one line on the command line says it all.
    """
    lines = []
    for t in dig(controller, "targets") or [] if target_text(controller) == TARGET_FILE else []:
        lines += ["[[class]]", f'name = "{t.get("name")}"', f"share = {t.get('share')}"]
        lines += [f'{name} = "{value}"' for name, value in _promise(t).items()]
    return lines


def _promise(target: Mapping[str, Any]) -> dict[str, str]:
    """Value by name of a class, without those that need not be said."""
    times = {name: number(target.get(f"{name}_s")) for name in ("ttft", "itl", "transport")}
    found = {name: duration_text(value) for name, value in times.items() if value}
    epsilon, level = number(target.get("epsilon")), target.get("level")
    if epsilon is not None and epsilon != USUAL_EPSILON:
        found["epsilon"] = f"{100 * epsilon:g}%"
    return found | ({"level": str(level)} if level not in (None, "token") else {})


def _policy(controller: Any) -> str:
    """Choices that differ from the usual; of a static setting that won, nothing is known of what was asked."""
    if dig(controller, "law", "kind") == "static":
        return ""
    usual, chosen = Policy(), {name: dig(controller, "policy", name) for name in CHOICES}
    return ",".join(f"{name}={value}" for name, value in chosen.items() if value not in (None, getattr(usual, name)))


def _required(one: Mapping[str, Any]) -> str:
    name, bound = str(one.get("name")), number(one.get("bound")) or 0.0
    sign = ">=" if one.get("at") == "least" else "<="
    return f"{name}{sign}{duration_text(bound) if name.partition('.')[0].endswith('_p99') else f'{100 * bound:g}%'}"
