"""The commands that make a run, in full and stage by stage, from what its manifest says was asked for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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


def commands(run: Path, manifest: Mapping[str, Any]) -> dict[str, str]:
    """The command that makes each stage's file, with what is known of the request filled in.

    Args:
        run: the folder.
        manifest: its content; empty if there is none.

    Returns:
        Command line by stage, and the whole under "run"; words in capitals stand for what is not known.
    """
    request = manifest.get("request") or {}
    folder = shlex.quote(str(run))
    part = lambda stage: [w for k in STAGE_OPTIONS[stage] for w in _options(k, request.get(k))]  # noqa: E731
    traces = [shlex.quote(str(t)) for t in _listed(request.get("trace") or request.get("traces"))] or ["TRACE"]
    whole = ["headway run", *(w for k, v in request.items() if k not in WITHOUT_OPTION for w in _options(k, v))]
    if not request:
        whole += ["--trace TRACE", "--workload WORKLOAD", "--target TARGET"]
    if manifest.get("demo"):
        whole = ["headway demo", *_options("engine", request.get("engine"))]
    made = {
        "run": [*whole, f"--out {folder}"],
        "trace": ["headway run --resume", folder] if request else [*whole, f"--out {folder}"],
        "fit": ["headway fit", *traces, *part("fit"), f"--out {folder}/plant.json"],
        "tune": [
            f"headway tune {folder}/plant.json",
            *(part("tune") or ["--workload WORKLOAD", "--target TARGET"]),
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


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _options(name: Any, value: Any) -> list[str]:
    """An entry of a request as command-line options."""
    if value is None or value is False or value in ([], {}):
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
        return [f"--seconds {float(value):.10g}"]
    if name == "rows" and isinstance(value, list):
        return [f"--rows {':'.join('' if x is None else str(x) for x in value)}"]
    return [f"--{name.replace('_', '-')}" + ("" if value is True else f" {shlex.quote(str(value))}")]
