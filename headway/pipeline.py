"""The stages: each takes files, calls one function of the library, and leaves one file. The commands are these functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.controllers.policy import Policy
from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import Candidate, draw, simulate
from headway.controllers.static import StaticLaw
from headway.experiments.baseline import Static
from headway.experiments.load import load_curve
from headway.experiments.run import read_json, sha256_of, write_json, write_whole
from headway.experiments.tune import Effort, Problem, Tuned, hull_warnings, tune
from headway.experiments.validate import Validation, validate_on_engine, validate_on_plant
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.identification.score import Score, score
from headway.identification.trace import Trace
from headway.models.engine import Engine
from headway.models.goodput import summarise
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits, Target
from headway.models.workload import WorkloadSource
from headway.targets import parse_target
from headway.workloads import load_workload

Progress = Callable[[str, float], None]

RUN_S = 120.0
"""Default length of one simulated run [s]: shorter ones flatter a queue that is filling up."""

REQUESTS = (200, 2000)
"""A run's number of requests is kept in this range."""


@dataclasses.dataclass(frozen=True)
class Load:
    """What is served and what was promised, as given at a door.

    Args:
        spec: workload file or generator spec.
        rate_rps: to rescale the arrivals to; None leaves them [requests/s].
        rows: selected rows of a file; None for all.
        source: where seeds draw from.
        targets: one per class.
        notes: sentences on what was assumed or set aside.
    """

    spec: str
    rate_rps: float | None
    rows: tuple[int, int | None] | None
    source: WorkloadSource
    targets: tuple[Target, ...]
    notes: list[str]

    def requests(self, wanted: int | None) -> int:
        """Requests per run.

        Args:
            wanted: as asked for; None for about RUN_S seconds of arrivals.

        Returns:
            Number of requests.
        """
        if wanted is not None:
            return wanted
        rate = self.source.draw(0, 1000, heldout=False).rate_rps
        low, high = REQUESTS
        return low if not math.isfinite(rate) else int(min(max(math.ceil(rate * RUN_S), low), high))


def open_load(workload: str, target: str, *, rate_rps: float | None, rows: slice | None, epsilon: float | None) -> Load:
    """Resolve a workload and a target.

    Args:
        workload: path of a file, or a generator spec.
        target: target string, or path of a TOML file of classes.
        rate_rps: to rescale to [requests/s].
        rows: of a file.
        epsilon: in place of every class's own, in (0, 1).

    Returns:
        Load.

    Raises:
        ValueError: one of them cannot be understood; the message says what and where.
    """
    targets, notes = parse_target(target, epsilon=epsilon)
    loaded = load_workload(workload, rate_rps, rows, targets)
    spec = str(Path(workload).resolve()) if Path(workload).exists() else workload
    span = None if rows is None else (int(rows.start or 0), None if rows.stop is None else int(rows.stop))
    return Load(spec, rate_rps, span, loaded.source, targets, [*notes, *loaded.notes])


def load_of(record: ControllerRecord, *, workload: str | None, rate_rps: float | None, target: str | None) -> Load:
    """The load that a controller was tuned for, with what the caller overrides.

    Args:
        record: the controller.
        workload: another workload; None keeps its own.
        rate_rps: another rate [requests/s]; None keeps its own.
        target: another target; None keeps its own.

    Returns:
        Load.

    Raises:
        ValueError: the workload or the target cannot be read.
    """
    spec = workload or record.workload["spec"]
    rate = rate_rps if rate_rps is not None or workload is not None else record.workload.get("rate_rps")
    rows = None if workload is not None or not record.workload.get("rows") else slice(*record.workload["rows"])
    targets, notes = parse_target(target) if target else (record.targets, [])
    loaded = load_workload(spec, rate, rows, targets)
    span = None if rows is None else (int(rows.start or 0), None if rows.stop is None else int(rows.stop))
    return Load(spec, rate, span, loaded.source, targets, [*notes, *loaded.notes])


def read_plant(path: Path) -> IdentifiedPlant:
    """Read a plant.json.

    Args:
        path: of the file.

    Returns:
        The plant.

    Raises:
        ValueError: names the file and what is wrong with it.
    """
    return _named(path, IdentifiedPlant.from_json)


def read_controller(path: Path) -> ControllerRecord:
    """Read a controller.json.

    Args:
        path: of the file.

    Returns:
        The record.

    Raises:
        ValueError: names the file and what is wrong with it.
    """
    return _named(path, ControllerRecord.from_json)


def _named(path: Path, read: Callable[[Any], Any]) -> Any:
    data = read_json(path)
    try:
        return read(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def with_limits(limits: Limits, given: Mapping[str, int]) -> Limits:
    """Engine limits with what the caller overrides.

    Args:
        limits: known so far.
        given: overriding values by field [tokens, requests].

    Returns:
        Limits.

    Raises:
        ValueError: limits under which nothing could run.
    """
    changed = dataclasses.replace(limits, **given)
    changed.check()
    return changed


def fit_stage(
    traces: Sequence[Path],
    out: Path | None,
    *,
    format: str = "auto",  # noqa: A002  # the option's own name
    blocks: str = "all",
    where: Mapping[str, str] | None = None,
    epsilon: float = 0.01,
    limits: Mapping[str, int] | None = None,
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
        seed: of the bootstrap.
        progress: called with a label and a fraction.

    Returns:
        (the plant, the trace).

    Raises:
        ValueError: a trace that cannot be read or fitted.
    """
    trace = read_trace(list(traces), format)
    plant = fit(trace, blocks=blocks, where=where, epsilon=epsilon, limits=limits, seed=seed, progress=progress)
    if out is not None:
        write_json(out, plant.to_json())
    return plant, trace


def score_stage(
    plant: Path,
    traces: Sequence[Path],
    *,
    format: str = "auto",  # noqa: A002
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
    return score(read_plant(plant), read_trace(list(traces), format), blocks=blocks, where=where, progress=progress)


def simulate_stage(
    identified: IdentifiedPlant, load: Load, candidate: Candidate | None, limits: Limits, *, requests: int, runs: int, seed: int, progress: Progress | None = None
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
        progress: called with a label and a fraction.

    Returns:
        Figures by name, as `headway simulate --json` shows them.
    """
    stock = Candidate(StaticLaw(float(limits.max_tokens)), Policy(order="fcfs", triage="none", running_limit=float(limits.max_seqs)))
    outcomes = []
    for k in range(runs):
        drawn = draw(load.source, identified, seed + k, requests, heldout=True)
        outcomes.append(simulate(identified, candidate or stock, drawn, load.targets, limits))
        if progress:
            progress("simulating", (k + 1) / runs)
    return {**summarise(outcomes, load.targets).to_json(), "runs": runs, "warnings": [*hull_warnings(identified, outcomes), *load.notes]}


def tuning_json(tuned: Tuned, curve: dict[str, Any] | None, notes: Sequence[str]) -> dict[str, Any]:
    """The result of tuning as plain JSON values, without the controller itself.

    Args:
        tuned: the result.
        curve: goodput against load; None where it was not computed.
        notes: sentences on the load.

    Returns:
        Fields by name, as `headway tune --json` shows them.
    """
    side = lambda s: s.to_json()  # noqa: E731
    return {
        "objective": tuned.problem.objective,
        "heldout": side(tuned.tuned),
        "best_static": side(tuned.static),
        "best_timeout": side(tuned.early),
        "untuned": side(tuned.default),
        "gain": tuned.gain.value,
        "gain_ci95": [tuned.gain.low, tuned.gain.high],
        "gain_over_timeout": tuned.gain_early.value,
        "gain_over_timeout_ci95": [tuned.gain_early.low, tuned.gain_early.high],
        "bound": None,
        "capacity_rps": tuned.capacity_rps,
        "outcome": tuned.outcome,
        "load_curve": curve,
        "tried": tuned.tried,
        "effort": dataclasses.asdict(tuned.effort),
        "warnings": [*tuned.warnings, *notes],
    }


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
    curve: bool = True,
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
        curve: compute goodput against load as well.
        progress: called with a label and a fraction.

    Returns:
        (result, record).

    Raises:
        ValueError: an unknown objective or free number.
    """
    problem = Problem(identified, load.source, load.targets, limits, objective)
    tuned = tune(problem, effort, free=free, progress=progress)
    shown = None
    if curve:
        contenders = {"controller": tuned.tuned.candidate, "best_static": tuned.static.candidate, "best_timeout": tuned.early.candidate}
        draws = problem.draws(effort, heldout=True)[:12]
        shown = load_curve(identified, contenders, draws, load.targets, limits)
    file = {"file": plant_path.name, "sha256": sha256_of(plant_path) if plant_path.exists() else None}
    workload = {"spec": load.spec, "rate_rps": load.rate_rps, "rows": load.rows, "requests": effort.requests}
    record = ControllerRecord(
        tuned.tuned.candidate, load.targets, limits, identified.plant, identified.hull, file, workload, tuning_json(tuned, shown, load.notes)
    )
    if out is not None:
        write_json(out, record.to_json())
    return tuned, record


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
        int(settings.get("token_budget", record.limits.max_tokens)), int(settings.get("running_limit", record.limits.max_seqs)), settings.get("timeout")
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
        result = validate_on_plant(contenders, own, truth, load.source, load.targets, limits, requests=requests, runs=runs, progress=progress)
    else:
        result = validate_on_engine(contenders, own, engine, load.source, load.targets, requests=requests, cut_s=cut_s, runs=runs, progress=progress)
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
    import io

    buffer = io.BytesIO()
    trace.frame.write_parquet(buffer)
    write_whole(out, buffer.getvalue())




ENGINES = ("sim", "kernels")
"""Engines that this version knows by name."""


def live_engine(name: str, *, preset: str, limits: Limits | None, progress: Progress | None = None, probe: bool = False) -> Engine | None:
    """The engine behind a name.

    Args:
        name: one of ENGINES.
        preset: size of the llm behind live kernels.
        limits: of the engine; None for the preset's own.
        progress: called with a label and a fraction.
        probe: only check the name.

    Returns:
        A live engine, None for the exact simulator.

    Raises:
        ValueError: an unknown name or preset.
    """
    if name not in ENGINES:
        raise ValueError(f"unknown engine {name!r}; this version knows {', '.join(ENGINES)}")
    if name == "sim" or probe:
        return None
    from headway.experiments.kernels import KernelEngine

    if progress:
        progress("starting the kernels", 0.0)
    return KernelEngine(preset, limits)


def record_stage(
    engine: str, out: Path | None, *, preset: str, steps: int, limits: Mapping[str, int], seed: int, progress: Progress | None = None
) -> dict[str, Any]:
    """Record an excited trace of a live engine.

    Args:
        engine: name of a live engine.
        out: parquet file to write; None writes nothing.
        preset: size of the llm.
        steps: to record [steps].
        limits: of the engine, by field [tokens, requests].
        seed: of the excitation.
        progress: called with a label and a fraction.

    Returns:
        {"steps", "steps_mixed", "engine", "device", "step_time_s", "limits"}.

    Raises:
        ValueError: an engine that is not live, an unknown preset, limits that cannot work.
    """
    import io

    import numpy as np
    import polars as pl

    from headway.experiments.excite import record_trace
    from headway.experiments.kernels import LIMITS

    if engine == "sim":
        raise ValueError("engine sim has no kernels to record; give --engine kernels")
    live = live_engine(engine, preset=preset, limits=with_limits(LIMITS.get(preset, LIMITS["tiny"]), limits) if limits else None)
    assert live is not None
    columns = record_trace(live, steps=steps, seed=seed, progress=(lambda part: progress("recording", part)) if progress else None)
    if out is not None:
        buffer = io.BytesIO()
        pl.DataFrame(columns).write_parquet(buffer)
        write_whole(out, buffer.getvalue())
    y = columns["step_time_s"]
    return {
        "steps": len(y),
        "steps_mixed": int((columns["prefill_tokens"] > 0).sum()),
        "engine": engine,
        "device": str(getattr(live, "device", "cpu")),
        "step_time_s": {"p50": float(np.median(y)), "p99": float(np.quantile(y, 0.99))},
        "limits": dataclasses.asdict(live.limits),
        "out": str(out) if out else None,
    }
