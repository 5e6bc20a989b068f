"""The stages on a real vLLM, as the commands call them: record a trace, validate a controller."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headway.controllers.record import ControllerRecord
from headway.engines.vllm.recording import attached, host_share, record_served, write_recording
from headway.engines.vllm.starting import Start
from headway.engines.vllm.step_rows import StepRows
from headway.engines.vllm.trial import arms_of
from headway.engines.vllm.validation import validate_served
from headway.experiments.validate import Validation
from headway.experiments.whole_files import write_json
from headway.loads import Load, read_plant
from headway.models.signals import Limits
from headway.pipeline import plant_of, static_of

Progress = Callable[[str, float], None]

STEPS = 3000
"""Length of a recording where none is given [steps]."""


def serve_flags(texts: list[str] | None) -> dict[str, Any]:
    """Flags of `vllm serve` from the command line.

    Args:
        texts: each "name=value", or "name" for a flag without a value.

    Returns:
        By name.

    Raises:
        ValueError: a name given twice, or none.
    """
    found: dict[str, Any] = {}
    for text in texts or []:
        name, equal, value = text.strip().lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not name or name in found:
            raise ValueError(f"--serve takes one name=value each, got {text!r}; write for example --serve dtype=bfloat16")
        found[name] = value if equal else True
    return found


def limit_fields(limits: Limits) -> dict[str, int]:
    """The numbers among an engine's limits.

    Args:
        limits: of the engine.

    Returns:
        By field [tokens, requests].
    """
    return {name: getattr(limits, name) for name in ("kv_tokens", "block_tokens", "max_seqs", "max_len", "max_tokens")}


def record_vllm(
    engine: str,
    out: Path,
    *,
    model: Path | None = None,
    place: Path | None = None,
    plant: Path | None = None,
    url: str | None = None,
    steps_file: Path | None = None,
    steps: int | None = None,
    limits: Mapping[str, int] | None = None,
    flags: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Record an excited trace of a vLLM server that is started for it, or of one that runs with the adapter in mode excite.

    Args:
        engine: one of `headway.engines.live.SERVED`.
        out: parquet file; the server's files are kept in the folder beside it that ends in .vllm.
        model: folder of the model; None makes a small one with random weights.
        place: environment of vLLM; None to look for it.
        plant: of the simulated device.
        url: of a server that runs already; None starts one.
        steps_file: the trace that its adapter writes.
        steps: to record; None takes STEPS [steps].
        limits: asked for, by field of `Limits` [tokens, requests].
        flags: of `vllm serve` besides.
        seed: of excitation and load.
        progress: called with a label and a fraction.

    Returns:
        {"steps", "steps_mixed", "engine", "device", "step_time_s", "host_share", "limits", "requests", "clients_agree", "out",
        "clients", "folder", "notes"}.

    Raises:
        ValueError: what is needed is missing, or the server does not start.
    """
    if engine == "vllm-sim" and plant is None:
        raise ValueError("--engine vllm-sim needs the plant that its device is; give it with --device plant.json")
    if engine != "vllm-sim" and plant is not None:
        raise ValueError(f"--device {plant} is the device of vllm-sim, and --engine {engine} has its own; leave one of them out")
    wanted = steps or STEPS
    if url is not None:
        if steps_file is None:
            raise ValueError("--url needs --steps-file: the trace that the server's adapter writes (its `trace` setting)")
        rows, run, found, version = attached(url, steps_file, model, steps=wanted, seed=seed, progress=progress)
        start, notes = None, ["the server stays as it is: in mode excite it goes on to draw budgets at random; start it anew to serve"]
    else:
        device = None if plant is None else read_plant(plant)
        start = Start.of(model, out.with_suffix(".vllm"), place=place, limits=limits, extra=flags, device=device)
        rows, run, found, version = record_served(start, steps=wanted, seed=seed, progress=progress)
        notes = [start.cores.sentence()]
    written = write_recording(out, rows, limit_fields(found), run)
    notes += [run.token_words(), *([f"{rows.torn} lines of the trace were torn and left out"] if rows.torn else [])]
    if start is not None and start.device is None and run.others > 0.05:
        notes.append(f"other programs took {100 * run.others:.0f} % of the machine: wall times are too long, record on a quiet one")
    return {**recorded_json(engine, version, rows, found), "requests": run.counts, "clients_agree": run.tokens == run.server_tokens} | {
        **written,
        "folder": None if start is None else str(start.folder),
        "notes": notes,
    }


def recorded_json(engine: str, version: str, rows: StepRows, limits: Limits) -> dict[str, Any]:
    """A recording in figures.

    Args:
        engine: its name.
        version: of vLLM.
        rows: the steps.
        limits: of the engine.

    Returns:
        Plain JSON values.
    """
    y = rows.columns["period_s"]
    return {
        "steps": len(rows),
        "steps_mixed": int((rows.columns["prefill_tokens"] > 0).sum()),
        "engine": engine,
        "device": f"vLLM {version}",
        "step_time_s": {"p50": float(np.median(y)), "p99": float(np.quantile(y, 0.99))},
        "host_share": host_share(rows),
        "limits": dataclasses.asdict(limits),
    }


def validate_vllm(
    engine: str,
    controller: Path,
    out: Path | None,
    *,
    record: ControllerRecord,
    load: Load,
    limits: Limits,
    model: Path | None = None,
    place: Path | None = None,
    plant: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    keep: Path | None = None,
    early: bool = False,
    uncertified: bool = False,
    seconds: float,
    runs: int,
    progress: Progress | None = None,
) -> Validation:
    """Validate a controller against the best static and the default flags on a vLLM server.

    Args:
        engine: one of `headway.engines.live.SERVED`.
        controller: controller.json.
        out: validation.json to write; None writes nothing.
        record: the controller.
        load: workload and targets.
        limits: the servers' start-up limits.
        model: folder of the model; None makes a small one with random weights.
        place: environment of vLLM; None to look for it.
        plant: device of vllm-sim, where it is another than the controller's own plant.
        flags: of `vllm serve` besides.
        keep: folder of the runs; None puts it beside `out`, or beside the controller.
        early: also run the best static setting with clients who give up early.
        uncertified: run a law whose certificate is refused.
        seconds: of arrivals in a run [s].
        runs: repetitions.
        progress: called with a label and a fraction.

    Returns:
        Validation.

    Raises:
        ValueError: what is needed is missing, or a server does not start.
    """
    own, device, notes = plant_of(record, controller, plant)
    folder = (out or controller).with_suffix(".vllm")
    simulated = device if engine == "vllm-sim" else None
    asked = limit_fields(limits)
    start = Start.of(model, folder, place=place, limits=asked, extra=flags, device=simulated, scheduling=limits.scheduling)
    shown = dataclasses.replace(record, targets=load.targets, limits=limits)
    arms = arms_of(shown, static_of(record), early=early)
    result = validate_served(
        start,
        arms,
        own,
        load,
        seconds=seconds,
        repetitions=runs,
        keep=keep or folder / "runs",
        uncertified=uncertified,
        progress=progress,
    )
    result = dataclasses.replace(result, notes=[*result.notes, *notes, *load.notes])
    if out is not None:
        write_json(out, result.to_json())
    return result
