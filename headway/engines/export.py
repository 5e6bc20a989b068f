"""From a tuned controller to a folder that an engine's process can use: plain JSON, one Python file, or C, each with its proof."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from headway.controllers.policy import prefill_rate_tps
from headway.controllers.record import SCHEMA, ControllerRecord
from headway.controllers.scheduled import at_rest
from headway.engines import c99, runtime_laws
from headway.engines.bundle import runtime_source
from headway.engines.certified import granted, said
from headway.engines.golden import GOLDEN_COLUMNS, check_golden, golden, guard_json, guard_of
from headway.engines.readme import readme, warnings_of
from headway.engines.runtime_drift import DRIFT_NUMBERS
from headway.engines.runtime_prompts import engines_own
from headway.engines.targets import TARGETS, export_target, refuse_schedule
from headway.experiments.run import MANIFEST
from headway.experiments.whole_files import place_beside, read_json


class Exported(NamedTuple):
    """What was written.

    Args:
        folder: where.
        files: their names.
        warnings: sentences for whoever is about to use it.
    """

    folder: Path
    files: tuple[str, ...]
    warnings: tuple[str, ...]


def export_json(record: ControllerRecord, out: str | Path, *, force: bool = False, uncertified: bool = False) -> Exported:
    """Write controller.json in canonical form: sorted keys, two spaces, one hash for one behaviour; with its certificate.

    Args:
        record: the controller.
        out: folder to make.
        force: write into a folder that holds something; other files in it stay.
        uncertified: write a law whose certificate is refused; the file says so.

    Returns:
        What was written.

    Raises:
        ValueError: the folder holds something, a number is not finite, or the law is refused.
    """
    certificate = granted(record, uncertified=uncertified)
    data = {**record.to_json(), "certificate": certificate}
    return write_folder(out, {"controller.json": canonical(data)}, said_of(record, certificate), force)


def export_python(record: ControllerRecord, out: str | Path, *, force: bool = False, uncertified: bool = False) -> Exported:
    """Write a runtime of one file without dependencies, its gains, recorded steps to check it by, and how to use it.

    Args:
        record: the controller.
        out: folder to make.
        force: write into a folder that holds something; other files in it stay.
        uncertified: write a law whose certificate is refused; gains.json and README.md say so.

    Returns:
        What was written.

    Raises:
        ValueError: the folder holds something, a number is not finite, the law is refused, or it or a part of the policy has
            no runtime.
        RuntimeError: the runtime does not act as the law does: a fault of Headway's.
    """
    certificate = granted(record, uncertified=uncertified)
    gains = gains_json(record, certificate)
    rows, warnings, content = golden(record), said_of(record, certificate), gains["content_sha256"]
    canonical(gains)
    check_golden(gains, rows)
    files = {
        "headway_runtime.py": runtime_source(content),
        "gains.json": canonical(gains),
        "golden.csv": _csv(rows),
        "README.md": readme(record, guard_of(record), content, certificate, warnings, "python"),
    }
    return write_folder(out, files, warnings, force)


def export_c99(record: ControllerRecord, out: str | Path, *, force: bool = False, uncertified: bool = False) -> Exported:
    """Write the law, its plant and its guard as one C header, recorded steps, and the program that replays them.

    Args:
        record: the controller.
        out: folder to make.
        force: write into a folder that holds something; other files in it stay.
        uncertified: write a law whose certificate is refused; the header says so.

    Returns:
        What was written.

    Raises:
        ValueError: the folder holds something, a number is not finite, the law is refused, it or a part of the policy has
            no runtime, or gains follow the load.
        RuntimeError: the runtime does not act as the law does: a fault of Headway's.
    """
    refuse_schedule(record, "a C header")
    certificate = granted(record, uncertified=uncertified)
    gains = gains_json(record, certificate)
    rows, warnings, content = golden(record), said_of(record, certificate), gains["content_sha256"]
    canonical(gains)
    check_golden(gains, rows)
    files = {
        "headway_law.h": c99.header(record, guard_of(record), content, said(certificate)),
        "check.c": c99.checker(),
        "golden.csv": _csv(rows),
        "README.md": readme(record, guard_of(record), content, certificate, warnings, "c99"),
    }
    return write_folder(out, files, warnings, force)


def export_vllm(record: ControllerRecord, out: str | Path, *, force: bool = False, uncertified: bool = False) -> Exported:
    """Write the adapter for vLLM: one file with the gains in it, the gains beside it to be exchanged, and how to start.

    Args:
        record: the controller.
        out: folder to make.
        force: write into a folder that holds something; other files in it stay.
        uncertified: write a law whose certificate is refused; what is written says so.

    Returns:
        What was written.
    """
    from headway.engines.vllm.adapter import write_adapter

    return write_adapter(out, record, force=force, uncertified=uncertified)


EXPORTERS: dict[str, Callable[..., Exported]] = {
    "json": export_json,
    "python": export_python,
    "c99": export_c99,
    "vllm": export_vllm,
    **{name: functools.partial(export_target, name) for name in TARGETS},
}
"""Exporters by the name of what they write for."""

RECORD_FILES = {
    "json": "controller.json",
    "vllm": "controller.json",
    "python": "gains.json",
    "sglang": "gains.json",
    "transformers": "gains.json",
}
"""The file that holds the whole controller, which may be exported again, by exporter; the others write none."""


def gains_json(record: ControllerRecord, certificate: dict[str, Any], *, carried: tuple[str, ...] = ()) -> dict[str, Any]:
    """Content of gains.json: the record, the first estimate of the prefill rate, guard, drift monitor and certificate.

    Args:
        record: the controller.
        certificate: as from `certified.granted`.
        carried: parts of a policy that whoever reads it carries out beside the runtime.

    Returns:
        Plain JSON values.

    Raises:
        ValueError: the law, or a part of the policy, has no runtime.
    """
    law = record.candidate.law
    if law.law not in runtime_laws.LAWS:
        raise ValueError(f"law {law.law!r} has no runtime; export it as json, or choose one of {', '.join(runtime_laws.LAWS)}")
    data = record.to_json()
    if own := engines_own({name: value for name, value in data["policy"].items() if name not in carried}):
        raise ValueError(f"{own}, or export it as json")
    followed = record.candidate.gains.names if record.candidate.gains else ()
    if (shares := [name for name in followed if name.startswith("share.")]) and "class_shares" not in carried:
        raise ValueError(f"the schedule of {shares[0]} is for the engine's own scheduler, no runtime carries it; export it as vllm or json")
    rest_s = (1 - at_rest(*record.candidate)[0].setpoint_margin) * min(t.budget_s for t in record.targets)
    rate_tps = prefill_rate_tps(record.plant, rest_s, record.limits.max_tokens)
    return {
        **data,
        "prefill_rate_tps": {"value": rate_tps, "unit": "tokens/s"},
        "guard": guard_json(guard_of(record)),
        "drift": {name: {"value": value, "unit": "1"} for name, value in drift_numbers(record).items()},
        "certificate": certificate,
    }


def drift_numbers(record: ControllerRecord) -> dict[str, float]:
    """The numbers of the drift monitor: as patient as the noise of the plant wants it, where the tuning wrote that down.

    Args:
        record: the controller.

    Returns:
        Number by name of DRIFT_NUMBERS; the usual one where the record has none.

    Raises:
        ValueError: one that is no positive number.
    """
    known = record.tuning.get("drift_monitor") or {}
    numbers = {**DRIFT_NUMBERS, **known} if isinstance(known, dict) else {"": known}
    for name, value in numbers.items():
        if name not in DRIFT_NUMBERS or isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise ValueError(f"controller.json: tuning.drift_monitor.{name} must be a number above 0, got {value!r}; tune anew")
    return {name: float(value) for name, value in numbers.items()}


def said_of(record: ControllerRecord, certificate: dict[str, Any]) -> tuple[str, ...]:
    """What whoever is about to use an export must know.

    Args:
        record: the controller.
        certificate: as from `certified.granted`.

    Returns:
        Sentences.
    """
    refused = (f"its certificate was refused ({certificate['reason']}) and it was exported all the same",)
    return (refused if certificate.get("uncertified") else ()) + warnings_of(record)


def _csv(rows: list[tuple[str, ...]]) -> str:
    return "\n".join(",".join(row) for row in (GOLDEN_COLUMNS, *rows)) + "\n"


def canonical(data: dict[str, Any]) -> str:
    """A JSON file of which one content has one text: sorted keys, two spaces.

    Args:
        data: plain JSON values.

    Returns:
        Text.

    Raises:
        ValueError: a number is not finite.
    """
    try:
        return json.dumps(data, sort_keys=True, indent=2, allow_nan=False) + "\n"
    except ValueError:
        raise ValueError("controller.json would hold a number that is not finite; tune anew") from None


def write_folder(out: str | Path, files: dict[str, str], warnings: tuple[str, ...], force: bool) -> Exported:
    """All files or none: they are written beside the folder first and moved into place whole.

    Args:
        out: folder to make.
        files: text by name.
        warnings: sentences to hand on.
        force: write into a folder that holds something; other files in it stay.

    Returns:
        What was written.

    Raises:
        ValueError: it is a file, a folder that holds something, a run, or what a file would replace is no export.
    """
    folder = Path(out).resolve()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{out} is a file; name a folder to make")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise ValueError(f"{out} is not empty; name a new folder, or write into it with --force")
    _keep_tuned(folder, Path(out), files)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = place_beside(folder)
    staging.mkdir()
    try:
        for name, text in files.items():
            (staging / name).write_text(text, encoding="utf-8", newline="\n")
        if folder.exists():
            for name in files:
                os.replace(staging / name, folder / name)
        else:
            os.replace(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Exported(folder, tuple(files), warnings)


def _keep_tuned(folder: Path, out: Path, files: dict[str, str]) -> None:
    """Refuse, forced or not, to write among a run's files or over a controller that was tuned: only an export may be replaced."""
    fix = f"name another folder, such as {out / 'exported'}"
    if str(_content(folder / MANIFEST).get("schema")).startswith("headway/run/"):
        raise ValueError(f"{out} is the folder of a run, whose files its {MANIFEST} vouches for; {fix}")
    for name in files:
        held = _content(folder / name)
        # an export says at its top whether its loop is certified; what headway tune wrote says it of the tuning
        if held.get("schema") == SCHEMA and "certificate" not in held:
            raise ValueError(f"{out / name} is a tuned controller, which this export would replace; {fix}")


def _content(file: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none."""
    try:
        found = read_json(file) if file.suffix == ".json" else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
