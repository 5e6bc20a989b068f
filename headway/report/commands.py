"""The commands that make a run, in full and stage by stage, from what its manifest, or else its files, say was asked for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.report.asked import asked_of_fit, asked_of_run, asked_of_tune, asked_of_validate, target_lines
from headway.report.data import Findings, traces_of
from headway.units import duration_text

LIMIT_OPTIONS = {"block_tokens": "block"}
"""Engine limits whose option has another name."""

STAGE_OPTIONS = {
    "fit": ("where", "limits", "epsilon", "seed"),
    "tune": ("workload", "target", "objective", "policy", "rate", "rate_rps", "rows", "requests", "epsilon", "seed"),
    "validate": ("engine", "runs", "live_s"),
}
"""Entries of a request that a stage's command takes as options."""

WITHOUT_OPTION = ("effort", "runs", "live_s")
"""Entries that `headway run` has no option for: a run that sets them was begun from Python."""


NESTED = "whole"
"""Folder for a run with all of its files, inside one that holds files of single stages: a run wants a new one."""


def commands_of(found: Findings) -> dict[str, str]:
    """The command that makes each stage's file.

    Args:
        found: the run.

    Returns:
        As `commands`.
    """
    return commands(found.run, found.manifest, {"fit": found.plant, "tune": found.controller, "validate": found.validation})


def commands(run: Path, manifest: Mapping[str, Any], files: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The command that makes each stage's file, with what is known of the request filled in.

    Args:
        run: the folder.
        manifest: its content; empty if there is none.
        files: content of plant.json, controller.json and validation.json by stage: they are asked where there is no manifest.

    Returns:
        Command line by stage, and the whole under "run"; words in capitals stand for what is not known.
    """
    request, known = manifest.get("request") or {}, files or {}
    folder = shlex.quote(str(run))
    asked = {stage: {name: request.get(name) for name in names} for stage, names in STAGE_OPTIONS.items()}
    given = _listed(request.get("trace") or request.get("traces"))
    if not request:
        plant, given = known.get("fit"), traces_of(known.get("fit"))
        asked = {
            "fit": asked_of_fit(plant),
            "tune": asked_of_tune(known.get("tune"), plant),
            "validate": asked_of_validate(known.get("validate")),
        }
    part = lambda stage: [w for k, v in asked[stage].items() for w in _options(k, v)]  # noqa: E731
    traces = [shlex.quote(str(t)) for t in given] or ["TRACE"]
    every = request or asked_of_run(asked["fit"], asked["tune"], asked["validate"], given)
    whole = ["headway run", *(w for k, v in every.items() if k not in WITHOUT_OPTION for w in _options(k, v))]
    if manifest.get("demo"):
        whole = ["headway demo", *_options("engine", request.get("engine"))]
    made = {
        "run": [*whole, f"--out {folder}"],
        "trace": ["headway run --resume", folder] if request else [*whole, f"--out {folder}/{NESTED}"],
        "fit": ["headway fit", *traces, *part("fit"), f"--out {folder}/plant.json"],
        "tune": [
            f"headway tune {folder}/plant.json",
            *(f"--{name} {name.upper()}" for name in ("workload", "target") if not asked["tune"].get(name)),
            *part("tune"),
            f"--out {folder}/controller.json",
        ],
        "validate": [f"headway validate {folder}/controller.json", *part("validate"), f"--out {folder}/validation.json"],
        "report": ["headway report", folder],
    }
    return {stage: " ".join(words) for stage, words in made.items()}


def beyond_options(manifest: Mapping[str, Any]) -> str:
    """What a run was asked for that its command line cannot say.

    Args:
        manifest: content of manifest.json.

    Returns:
        One line; empty if the command line says it all.
    """
    request = manifest.get("request") or {}
    effort = request.get("effort")
    if manifest.get("demo") or not isinstance(effort, Mapping) or not effort:
        return ""
    return "begun from Python, with effort " + ", ".join(f"{k}={v}" for k, v in effort.items())


def target_file(found: Findings) -> list[str]:
    """The file of several classes that the commands name, where it is not kept and has to be written again.

    Args:
        found: the run.

    Returns:
        Lines of TOML; none where the request is kept, or one line says it all.
    """
    return [] if found.manifest.get("request") else target_lines(found.controller)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _options(name: Any, value: Any) -> list[str]:
    """An entry of a request as command-line options."""
    if value is None or value is False or value in ([], {}, ""):
        return []
    if name == "limits" and isinstance(value, Mapping):
        return [word for k, v in value.items() for word in _options(LIMIT_OPTIONS.get(k, k), v)]
    if name == "where" and isinstance(value, Mapping):
        return [f"--where {shlex.quote(f'{k}={v}')}" for k, v in value.items()]
    if isinstance(value, Mapping):
        return []
    if name in ("trace", "traces"):
        return [f"--trace {shlex.quote(str(v))}" for v in _listed(value)]
    if name == "rate_rps":
        return [f"--rate {float(value):.10g}/s"]
    if name == "live_s":
        return [f"--length {duration_text(float(value))}"]
    if name == "rows" and isinstance(value, list):
        return [f"--rows {':'.join('' if x is None else str(x) for x in value)}"]
    return [f"--{name.replace('_', '-')}" + ("" if value is True else f" {shlex.quote(str(value))}")]
