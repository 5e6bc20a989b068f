"""The whole way through: fit, tune, validate, export, report, in one run folder that can be resumed after a kill."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.cli.decide import HELDOUT_MOST
from headway.client_specs import behind
from headway.controllers.record import ControllerRecord
from headway.engines.live import check_engine, live_engine
from headway.experiments.run import MANIFEST, RunFolder
from headway.experiments.tune import Effort
from headway.experiments.whole_files import read_json, sha256_of, write_json, write_whole
from headway.identification.trace import Trace
from headway.loads import Load, load_of, open_load, read_controller, read_plant
from headway.models.engine import Engine
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits
from headway.pipeline import Progress, export_stage, fit_stage, tune_stage, validate_stage, write_trace
from headway.policies import parse_policy
from headway.report import write_report
from headway.workloads import files_of, located

SHARES = {
    "trace": (0.0, 0.02),
    "fit": (0.02, 0.06),
    "tune": (0.06, 0.75),
    "validate": (0.75, 0.95),
    "export": (0.95, 0.96),
    "report": (0.96, 1.0),
}
"""Part of the bar that each stage takes."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What a run was asked for: with it, its files follow.

    Args:
        traces: trace files.
        workload: file or generator spec.
        target: target string or TOML file.
        engine: what to validate on.
        objective: of tuning.
        where: row filter by column.
        rate_rps: to rescale the arrivals to [requests/s].
        rows: [first, after last] of the workload file; None for all.
        requests: per run; None for about two minutes of arrivals.
        limits: of the engine, by field [tokens, requests].
        epsilon: share that may be late, in (0, 1); None for 1 %.
        seed: of everything that is drawn.
        live_s: length of a live run [s].
        runs: of the validation; None for the engine's default.
        effort: fields of `Effort` that differ from its defaults, and from HELDOUT_MOST held-out seeds at most.
        policy: what the policy is to have otherwise than the default, as `headway tune --policy` takes it; None for nothing.
    """

    traces: tuple[str, ...]
    workload: str
    target: str
    engine: str = "sim"
    objective: str = "attainment"
    where: dict[str, str] = dataclasses.field(default_factory=dict)
    rate_rps: float | None = None
    rows: tuple[int, int | None] | None = None
    requests: int | None = None
    limits: dict[str, int] = dataclasses.field(default_factory=dict)
    epsilon: float | None = None
    seed: int = 0
    live_s: float = 20.0
    runs: int | None = None
    effort: dict[str, int] = dataclasses.field(default_factory=dict)
    policy: str | None = None

    @staticmethod
    def of_folder(folder: RunFolder) -> Request:
        """What a run that was begun earlier was asked for.

        Args:
            folder: of the run.

        Returns:
            The request.

        Raises:
            ValueError: the folder holds no run, or one of another version, or its manifest is damaged.
        """
        known = folder.manifest().get("request")
        if not known:
            raise ValueError(f"{folder.path} holds no run to resume; start one with `headway run --out {folder.path} --trace ...`")
        differing = {f.name for f in dataclasses.fields(Request)} ^ set(known)
        if differing:
            said = "; ".join(f"request.{name} is {'not known here' if name in known else 'missing'}" for name in sorted(differing))
            raise ValueError(
                f"{folder.path / MANIFEST}: {said}: it was changed, or {folder.path} was begun by another version of Headway; start a new run"
            )
        for part, kind in (("limits", Limits), ("effort", Effort)):
            kinds = {f.name: str(f.type) for f in dataclasses.fields(kind)}
            for name, value in known[part].items():
                expected, types = KINDS.get(kinds.get(name, ""), (f"left out: it is none of {', '.join(kinds)}", ()))
                if not isinstance(value, types) or isinstance(value, bool):
                    place = f"{folder.path / MANIFEST}: request.{part}.{name}"
                    raise ValueError(f"{place} must be {expected}, got {value!r}; put it back, or begin a new run elsewhere")
        return Request(**{**known, "traces": tuple(known["traces"]), "rows": tuple(known["rows"]) if known["rows"] else None})

    def located(self) -> Request:
        """The same, good from any folder.

        Returns:
            The request with whole paths of all files that it names.
        """
        return dataclasses.replace(
            self,
            traces=tuple(str(Path(t).resolve()) for t in self.traces),
            workload=located(self.workload),
            target=str(Path(self.target).resolve()) if os.path.isfile(self.target) else self.target,
        )

    def files(self) -> list[str]:
        """The files that are read for it.

        Returns:
            Their paths as the request names them, of those that are there: traces, target, workload and what its recipe names.
        """
        found = [*self.traces, self.target, *map(str, files_of(self.workload))]
        return [name for name in dict.fromkeys(found) if os.path.isfile(name)]


KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "int": ("a whole number", (int,)),
    "float": ("a number", (int, float)),
    "str": ("text", (str,)),
}
"""What fields of limits and effort hold, by the kind that they were declared as."""


def same_inputs(folder: RunFolder, request: Request) -> list[str]:
    """See that the files which a run was begun with are still the same.

    Args:
        folder: of the run.
        request: what it was asked for.

    Returns:
        Sentences to keep: what cannot be known of a run that kept no hashes.

    Raises:
        ValueError: a file has changed, is gone or is new. A trace may be gone once it is fitted: the run folder holds its rows.
    """
    known = folder.manifest()
    kept: dict[str, str] | None = known.get("inputs")
    if not known or kept is None:
        return _without_hashes(request) if known else []
    fix = "or begin a new run in another folder"
    needed = {*kept} if not (folder.done("trace") and folder.done("fit")) else {*kept} - {*request.traces}
    for name in dict.fromkeys([*kept, *request.files()]):
        if name not in kept:
            raise ValueError(f"{name} is not among the files that the run in {folder.path} was begun with; take it away, {fix}")
        if not os.path.isfile(name):
            if name in needed:
                raise ValueError(f"{name} is gone since the run in {folder.path} was begun; put it back, {fix}")
        elif sha256_of(Path(name)) != kept[name]:
            raise ValueError(f"{name} has changed since the run in {folder.path} was begun; put it back, {fix}")
    return []


def _without_hashes(request: Request) -> list[str]:
    """Of a run that was begun before hashes were kept, with names that may be good from one folder only."""
    head = behind(request.workload)[0].strip()
    named = {"target": request.target if "=" not in request.target else "", "workload": head if ":" not in head else ""}
    for what, name in named.items():
        if name.rpartition("/")[2].count(".") and not os.path.exists(name):
            raise ValueError(
                f"{name}, the {what} file of the run, is not there, seen from {Path.cwd()}; resume from where the run was begun"
            )
    near = [name for name in request.files() if not os.path.isabs(name)]
    where = f"; {', '.join(near)} {'is' if len(near) == 1 else 'are'} read from {Path.cwd()}" if near else ""
    return [f"the run was begun by a Headway that kept no hashes of its files: whether they have changed since is not known{where}"]


def run_all(
    out: Path, request: Request, *, resume: bool, progress: Progress | None = None, live: Engine | None = None, notes: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Do every stage that is not done yet.

    Args:
        out: run folder.
        request: what is asked for.
        resume: go on with a run that was interrupted.
        progress: called with a label and a fraction.
        live: the engine to validate on, where the caller has started one already.
        notes: sentences to keep with the validation.

    Returns:
        {"run", "plant", "tuning", "validation", "report", "stages"}: the stages' own JSON, as `headway run --json` shows it.

    Raises:
        ValueError: something given cannot be read or used; nothing is left behind if it shows before the first stage.
    """
    folder, inputs = RunFolder(out), None
    if resume:
        notes = (*notes, *same_inputs(folder, request))
    else:
        request = request.located()
        # before they are read: one that changes meanwhile is then seen when the run is resumed
        inputs = {name: sha256_of(Path(name)) for name in request.files()}
    # workload and trace are read before the folder is made: a wrong one leaves nothing behind
    policy = parse_policy(request.policy or "")
    rows = slice(*request.rows) if request.rows else None
    load = open_load(request.workload, request.target, rate_rps=request.rate_rps, rows=rows, epsilon=request.epsilon)
    found = [] if resume else [_identify(request, None)]
    check_engine(request.engine)
    with folder.alone(resume=resume):
        folder.open(dataclasses.asdict(request), resume=resume, inputs=inputs)
        _stages(folder, request, load, policy, found, live, notes, progress)
        return collected(folder)


def _stages(
    folder: RunFolder,
    request: Request,
    load: Load,
    policy: dict[str, Any],
    found: list[tuple[IdentifiedPlant, Trace]],
    live: Engine | None,
    notes: tuple[str, ...],
    progress: Progress | None,
) -> None:
    """Every stage that is not done yet; what was fitted already is in `found`."""

    def identified(tell: Progress) -> tuple[IdentifiedPlant, Trace]:
        if not found:
            found.append(_identify(request, tell))
        return found[0]

    _stage(folder, "trace", progress, lambda tell: write_trace(identified(tell)[1], folder.file("trace")))
    _stage(folder, "fit", progress, lambda tell: write_json(folder.file("fit"), identified(tell)[0].to_json()))
    plant = read_plant(folder.file("fit"))
    given: dict[str, Any] = {"heldout_most": HELDOUT_MOST, **request.effort}
    effort = Effort(requests=load.requests(request.requests), seed=request.seed, **given)
    _stage(
        folder,
        "tune",
        progress,
        lambda tell: tune_stage(
            folder.file("fit"),
            plant,
            load,
            plant.limits,
            folder.file("tune"),
            objective=request.objective,
            effort=effort,
            policy=policy,
            progress=tell,
        ),
    )
    _stage(folder, "validate", progress, lambda tell: _validate(folder, request, live, notes, tell))
    record = read_controller(folder.file("tune"))
    _stage(folder, "export", progress, lambda _: _export(folder, record))
    _stage(folder, "report", progress, lambda _: write_report(folder.path))


def _identify(request: Request, tell: Progress | None) -> tuple[IdentifiedPlant, Trace]:
    return fit_stage(
        [Path(t) for t in request.traces],
        None,
        where=request.where,
        epsilon=request.epsilon or 0.01,
        limits=request.limits,
        seed=request.seed,
        progress=tell,
    )


def _validate(folder: RunFolder, request: Request, live: Engine | None, notes: tuple[str, ...], tell: Progress) -> None:
    record = read_controller(folder.file("tune"))
    load = load_of(record, workload=None, rate_rps=None, target=None)
    load = dataclasses.replace(load, notes=[*notes, *load.notes])
    engine = live or live_engine(request.engine, preset="tiny", limits=record.limits, progress=tell)
    runs = request.runs or (20 if engine is None else 3)
    requests = int(record.workload["requests"])
    validate_stage(
        folder.file("tune"),
        folder.file("validate"),
        engine=engine,
        load=load,
        record=record,
        limits=record.limits,
        requests=requests,
        cut_s=request.live_s,
        runs=runs,
        progress=tell,
    )


def _export(folder: RunFolder, record: ControllerRecord) -> None:
    place = folder.file("export")
    try:
        for kind in ("json", "python"):
            export_stage(record, kind, place / kind, force=True)
    except ValueError as refusal:
        # a run is not lost because its controller may not ship: the folder says why
        write_whole(place / "refused.txt", f"{refusal}\n")


def _stage(folder: RunFolder, name: str, progress: Progress | None, work: Callable[[Progress], Any]) -> None:
    low, high = SHARES[name]
    tell: Progress = lambda label, part: progress(label, low + (high - low) * part) if progress else None  # noqa: E731
    if folder.done(name):
        tell(name, 1.0)
        return
    began = time.monotonic()
    tell(name, 0.0)
    work(tell)
    folder.finish(name, time.monotonic() - began)


def collected(folder: RunFolder) -> dict[str, Any]:
    """What a finished run holds, as one JSON object.

    Args:
        folder: of the run.

    Returns:
        {"run", "plant", "tuning", "validation", "report", "stages"}; the long lists (residuals, timelines) stay in the files.
    """
    plant = {k: v for k, v in read_json(folder.file("fit")).items() if k != "residuals"}
    controller = read_json(folder.file("tune"))
    validation = read_json(folder.file("validate"))
    for side in ("controller", "best_static"):
        validation[side].pop("timeline", None)
    return {
        "run": str(folder.path),
        "plant": plant,
        "tuning": controller["tuning"],
        "gains": controller["law"]["gains"],
        "targets": controller["targets"],
        "budget_s": controller["budget_s"],
        "setpoint_s": controller["setpoint_s"],
        "policy": controller["policy"],
        "validation": validation,
        "export": [p.relative_to(folder.path).as_posix() for p in sorted(folder.file("export").rglob("*")) if p.is_file()],
        "report": str(folder.file("report")),
        "stages": folder.manifest()["stages"],
    }
