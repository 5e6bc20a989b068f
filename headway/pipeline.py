"""The stages: each takes files, calls one function of the library, and leaves one file. The commands are these functions."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.beside import looked, partly, share_of_tuning
from headway.checkpoints import CheckpointFile, Held, checkpoint_of, looks_of, training_of
from headway.controllers.policy import Policy
from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import Candidate, draw, simulate
from headway.controllers.static import StaticLaw
from headway.experiments.baseline import Static
from headway.experiments.beside import Beside
from headway.experiments.certificate import certify
from headway.experiments.constraints import Requirement, asked_again
from headway.experiments.contest import hull_warnings
from headway.experiments.gain_forms import check_kind
from headway.experiments.load import load_curve
from headway.experiments.robust import Robust
from headway.experiments.saturation import figures_of
from headway.experiments.tune import Effort, Problem, Tuned, tune
from headway.experiments.validate import Validation, requiring, validate_on_engine, validate_on_plant
from headway.experiments.whole_files import sha256_of, write_json, write_whole
from headway.identification.fit import AUTO, fit
from headway.identification.hardware.points import Hardware
from headway.identification.readers import read_trace
from headway.identification.score import Score, score
from headway.identification.trace import Trace
from headway.loads import Load, read_plant
from headway.models.engine import Engine
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits
from headway.tuning import tuning_json, with_schedule

Progress = Callable[[str, float], None]


def fit_stage(
    traces: Sequence[Path],
    out: Path | None,
    *,
    format: str = "auto",  # the option's own name
    blocks: str = "all",
    where: Mapping[str, str] | None = None,
    epsilon: float = 0.01,
    limits: Mapping[str, int] | None = None,
    structure: str = AUTO,
    hardware: Hardware | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[IdentifiedPlant, Trace]:
    """Identify a plant from trace files.

    Args:
        traces: files.
        out: plant.json to write; None writes nothing.
        format: of the files, or "auto".
        blocks: "all", "even" or "odd".
        where: wanted value by column.
        epsilon: share of late steps that the margins allow, in (0, 1).
        limits: of the engine, by field [tokens, requests].
        structure: of the plant, or "auto".
        hardware: what the engine ran, and on what; None where nobody said.
        seed: of the bootstrap.
        progress: called with a label and a fraction.

    Returns:
        (the plant, the trace).

    Raises:
        ValueError: a trace that cannot be read or fitted.
    """
    trace = read_trace(list(traces), format, progress)
    plant = fit(
        trace,
        blocks=blocks,
        where=where,
        epsilon=epsilon,
        limits=limits,
        structure=structure,
        hardware=hardware,
        seed=seed,
        progress=progress,
    )
    if out is not None:
        write_json(out, plant.to_json())
    return plant, trace


def score_stage(
    plant: Path,
    traces: Sequence[Path],
    *,
    format: str = "auto",
    blocks: str = "all",
    where: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Score:
    """Score a plant on trace files.

    Args:
        plant: plant.json.
        traces: files.
        format: of the files, or "auto".
        blocks: "all", "even" or "odd".
        where: wanted value by column.
        progress: called with a label and a fraction.

    Returns:
        Score.

    Raises:
        ValueError: a file that cannot be read.
    """
    return score(read_plant(plant), read_trace(list(traces), format, progress), blocks=blocks, where=where, progress=progress)


def simulate_stage(
    identified: IdentifiedPlant,
    load: Load,
    candidate: Candidate | None,
    limits: Limits,
    *,
    requests: int,
    runs: int,
    seed: int,
    policy: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Simulate a controller, or the stock engine, on held-out workloads.

    Args:
        identified: the plant.
        load: workload and targets.
        candidate: controller; None is the engine's start-up limits, first come first served.
        limits: of the engine.
        requests: per run.
        runs: seeds.
        seed: of the first.
        policy: what its policy is to have otherwise, by field.
        progress: called with a label and a fraction.

    Returns:
        Figures by name, as `headway simulate --json` shows them.

    Raises:
        ValueError: a policy that cannot be.
    """
    stock = Candidate(StaticLaw(float(limits.max_tokens)), Policy(order="fcfs", triage="none", running_limit=float(limits.max_seqs)))
    candidate, outcomes = candidate or stock, []
    candidate = candidate._replace(policy=dataclasses.replace(candidate.policy, **(policy or {})))  # pyright: ignore[reportArgumentType]
    candidate.policy.check()
    for k in range(runs):
        drawn = draw(load.source, identified, seed + k, requests, heldout=True)
        outcomes.append(simulate(identified, candidate, drawn, load.targets, limits, record_steps=0 if k else 3000))
        if progress:
            progress("simulating", (k + 1) / runs)
    figures = figures_of(identified, candidate, load.source, load.targets, limits, outcomes)
    return {**figures, "runs": runs, "warnings": [*figures["notes"], *hull_warnings(identified, outcomes), *load.notes]}


def tune_stage(
    plant_path: Path,
    identified: IdentifiedPlant,
    load: Load,
    limits: Limits,
    out: Path | None,
    *,
    objective: str = "attainment",
    effort: Effort,
    free: tuple[str, ...] | None = None,
    policy: Mapping[str, Any] | None = None,
    require: tuple[Requirement, ...] = (),
    robust: Robust | None = None,
    curve: bool = True,
    wanted: Beside = Beside(),  # noqa: B008  # immutable
    schedule: str | None = None,
    progress: Progress | None = None,
) -> tuple[Tuned, ControllerRecord]:
    """Tune a controller and write it down with what is known of it.

    Args:
        plant_path: plant.json that `identified` was read from.
        identified: the plant.
        load: workload and targets.
        limits: of the engine.
        out: controller.json to write; None writes nothing.
        objective: "attainment", "requests" or "capacity".
        effort: how much is spent.
        free: names of the numbers that may move; None for all.
        policy: what the policy is to have otherwise than the default, by field.
        require: what the controller has to keep beside the objective.
        robust: how plants that the trace allows as well count; None for the fitted one alone.
        curve: compute goodput against load as well.
        wanted: what to look at beside the result: its distance to the bound, what each part brings, and more.
        schedule: kind of gain schedule to train from the tuned constants; None for none.
        progress: called with a label and a fraction.

    Returns:
        (result, record).

    Raises:
        ValueError: an unknown objective, free number, look or schedule, a requirement or a policy that cannot be.
    """
    wanted.check()
    if schedule is not None:
        check_kind(schedule)
    problem = Problem(identified, load.source, load.targets, limits, objective, require, robust)
    store = CheckpointFile(checkpoint_of(out)) if out is not None else None
    tell = partly(progress, 0.0, share_of_tuning(wanted))
    tuned = tune(problem, effort, free=free, policy=policy, progress=tell, store=None if store is None else Held(store))
    done = share_of_tuning(wanted)
    middle = (1 + done) / 2 if schedule is not None else done
    kept = Held(CheckpointFile(training_of(out))) if out is not None else None
    tuned, followed = with_schedule(tuned, schedule, free=free, progress=partly(progress, done, middle), store=kept)
    candidate = tuned.tuned.candidate
    sides = looked(problem, effort, tuned, wanted, free, out, partly(progress, middle, 1.0))
    shown = None
    if curve:
        contenders = {"controller": candidate, "best_static": tuned.static.candidate, "best_timeout": tuned.early.candidate}
        draws = problem.draws(effort, heldout=True)[:12]
        shown = load_curve(identified, contenders, draws, load.targets, limits)
    file = {"file": plant_path.name, "sha256": sha256_of(plant_path) if plant_path.exists() else None}
    file["clock"] = identified.about.get("clock", "wall")
    workload = {"spec": load.spec, "rate_rps": load.rate_rps, "rows": load.rows, "requests": effort.requests}
    record = ControllerRecord(
        candidate,
        load.targets,
        limits,
        identified.plant,
        identified.hull,
        file,
        workload,
        {**tuning_json(tuned, shown, load.notes, sides | followed), "certificate": _certificate(tuned, identified, load, limits)},
    )
    if out is not None:
        write_json(out, record.to_json())
        opened = (training_of(out),) if schedule is not None else ()
        for file in (checkpoint_of(out), looks_of(out), *opened):
            CheckpointFile(file).clear()
    return tuned, record


def _certificate(tuned: Tuned, identified: IdentifiedPlant, load: Load, limits: Limits) -> dict[str, Any]:
    """What analysis says of the law that was tuned: written down beside it, so that an export need not work it out again."""
    budget_s = min(target.budget_s for target in load.targets)
    law = tuned.tuned.candidate.law
    return certify(law, identified.plant, identified.hull, limits, budget_s, interval=identified.interval, noise=identified.noise).to_json()


def plant_of(record: ControllerRecord, controller: Path, given: Path | None) -> tuple[IdentifiedPlant, IdentifiedPlant, list[str]]:
    """The plant that a controller was tuned on, and the one to measure on.

    Args:
        record: the controller.
        controller: its file: its plant.json is looked for beside it.
        given: another plant to measure on; None for its own.

    Returns:
        (plant that predicts, plant to measure on, sentences on what was found).

    Raises:
        ValueError: neither can be found.
    """
    beside = controller.parent / str(record.plant_file.get("file") or "plant.json")
    truth = read_plant(given) if given is not None else None
    if not beside.exists():
        if truth is None:
            raise ValueError(f"{beside}: no such file, and its residuals are needed; give the plant with --plant")
        return truth, truth, [f"{beside.name} of the controller was not found; the plant given predicts as well"]
    own = read_plant(beside)
    notes = []
    if record.plant_file.get("sha256") not in (None, sha256_of(beside)):
        notes.append(f"{beside.name} has changed since the controller was tuned")
    return own, truth or own, notes


def static_of(record: ControllerRecord) -> Static:
    """The best static setting that the controller was tuned against.

    Args:
        record: the controller.

    Returns:
        The setting; the engine's own limits where the record names none.
    """
    settings = (record.tuning.get("best_static") or {}).get("settings") or {}
    return Static(
        int(settings.get("token_budget", record.limits.max_tokens)),
        int(settings.get("running_limit", record.limits.max_seqs)),
        settings.get("timeout"),
    )


def validate_stage(
    controller: Path,
    out: Path | None,
    *,
    engine: Engine | None,
    plant: Path | None = None,
    load: Load,
    record: ControllerRecord,
    limits: Limits,
    requests: int,
    cut_s: float,
    runs: int,
    progress: Progress | None = None,
) -> Validation:
    """Validate a controller against the best static setting, on the simulator or on a live engine.

    Args:
        controller: controller.json.
        out: validation.json to write; None writes nothing.
        engine: live; None for the exact simulator.
        plant: another plant to measure on; None for the controller's own.
        load: workload and targets.
        record: the controller.
        limits: of the engine.
        requests: per run.
        cut_s: length of a live run [s].
        runs: repetitions.
        progress: called with a label and a fraction.

    Returns:
        Validation.

    Raises:
        ValueError: a plant that is missing or cannot be read.
    """
    own, truth, notes = plant_of(record, controller, plant)
    contenders = (record.candidate, static_of(record).candidate())
    if engine is None:
        result = validate_on_plant(
            contenders, own, truth, load.source, load.targets, limits, requests=requests, runs=runs, progress=progress
        )
    else:
        result = validate_on_engine(
            contenders, own, engine, load.source, load.targets, requests=requests, cut_s=cut_s, runs=runs, progress=progress
        )
    result = requiring(result, asked_again(record.tuning.get("required") or []))
    result = dataclasses.replace(result, notes=[*result.notes, *notes, *load.notes])
    if out is not None:
        write_json(out, result.to_json())
    return result


def write_trace(trace: Trace, out: Path) -> None:
    """Write a trace as Headway's own step table.

    Args:
        trace: the steps.
        out: parquet file to write.
    """
    buffer = io.BytesIO()
    trace.frame.write_parquet(buffer)
    write_whole(out, buffer.getvalue())


def export_stage(
    record: ControllerRecord, engine: str, out: Path, *, force: bool = False, uncertified: bool = False, version: str | None = None
) -> dict[str, Any]:
    """Write a controller for use outside Headway.

    Args:
        record: the controller.
        engine: a key of `headway.engines.export.EXPORTERS`.
        out: folder to make.
        force: write into a folder that holds something.
        uncertified: write a controller whose certificate is refused, and say so in what is written.
        version: of the engine that will run, where the export depends on it; None for the newest known.

    Returns:
        {"folder", "files", "warnings"}.

    Raises:
        ValueError: an unknown engine, a version where none matters, a folder that holds something, a loop that is refused, or a plant
            of device durations.
    """
    from headway.engines.export import EXPORTERS
    from headway.engines.flags import ENGINES as FLAGS

    if engine not in EXPORTERS:
        raise ValueError(f"cannot export for {engine!r}; this version knows {', '.join(EXPORTERS)}")
    if record.plant_file.get("clock") == "device":
        raise ValueError(
            "the plant was fitted to durations of the device alone: its margin and budget are not on the clock that clients see, "
            "and are not exported; record start-to-start step times and fit again"
        )
    if version is not None and engine not in FLAGS:
        raise ValueError(f"--engine-version is for {', '.join(FLAGS)}: what --engine {engine} writes is the same for every version")
    asked = {"version": version} if version is not None else {}
    written = EXPORTERS[engine](record, out, force=force, uncertified=uncertified, **asked)
    return {"folder": str(written.folder), "files": list(written.files), "warnings": list(written.warnings)}
