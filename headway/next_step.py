"""The next sensible step for the folder that one stands in: what `headway` says when it is given nothing to do."""

from __future__ import annotations

import shlex
from pathlib import Path

from headway.experiments.run import MANIFEST, STAGES
from headway.run_index import RunRow, row_of, runs_in

SUFFIXES = (".csv", ".jsonl", ".json", ".log", ".txt", ".parquet", ".gz", ".msgpack")
MOST_FILES, MOST_BYTES = 40, 64 << 20
"""Files of a folder that are looked into, and the largest: the format of a log shows only in the whole of it."""

LOAD = '--workload WORKLOAD --target "ttft=1s,itl=25ms"'
"""What every stage after the fit asks for."""


def next_step(folder: Path) -> list[str]:
    """What lies in a folder, and the command that goes on from there.

    Args:
        folder: to look into; nothing in it is changed.

    Returns:
        Lines: what was found, then one command a line, the most sensible first.

    Raises:
        ValueError: there is no such folder.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    if (folder / MANIFEST).is_file():
        return _in_run(row_of(folder), folder)
    stages = _by_hand(folder)
    if stages:
        return stages
    runs = runs_in(folder)
    if runs:
        return _with_runs(runs)
    traces, others = _traces(folder)
    if traces:
        first = shlex.quote(traces[0])
        kinds = f"are {len(traces)} traces of engine steps" if len(traces) > 1 else "is a trace of engine steps"
        load = f"--workload {shlex.quote(others[0])}" if others else "--workload WORKLOAD"
        return [
            f"here {kinds}: {', '.join(traces[:3])}{', ...' if len(traces) > 3 else ''}",
            _says(f"headway fit {first}", "how long a step takes, and how sure that is"),
            _says(f'headway run --trace {first} {load} --target "ttft=1s,itl=25ms" --out runs/first', "all the way to a report"),
        ]
    load = f"requests ({', '.join(others[:3])}{', ...' if len(others) > 3 else ''}), but no trace of engine steps" if others else None
    return [
        f"here are {load}" if load else "here is no trace, no plant and no run",
        _says("headway demo", "the whole job on a trace that comes with Headway, about two minutes"),
        _says("headway record --engine kernels --out trace.parquet", "a trace of kernels on this machine"),
        _says("headway --help", "all commands; docs/engines.md says how to record on vLLM, SGLang and TensorRT-LLM"),
    ]


def _says(command: str, why: str) -> str:
    return f"  {command}\n      {why}"


def _in_run(row: RunRow, folder: Path) -> list[str]:
    if row.fault:
        return [f"here is a run that cannot be read: {row.fault}", _says("headway runs --in ..", "the runs beside it")]
    if row.next_stage is not None:
        done = f"{', '.join(row.done)} done" if row.done else "nothing done yet"
        return [f"here is a run that was interrupted ({done})", _says("headway run --resume .", f"goes on at {row.next_stage}")]
    attained = "" if row.attainment is None else f", {100 * row.attainment:.1f} % on time"
    lines = [f"here is a finished run: validation {row.outcome or 'without outcome'}{attained}"]
    lines.append(_says("headway report .", f"writes {STAGES['report']} anew; open it in a browser"))
    if (folder / "export" / "refused.txt").exists():
        return [*lines, _says("headway analyse controller.json plant.json", "why the controller may not ship")]
    return [*lines, _says("headway export controller.json --engine python --out ship", "the controller for an engine")]


def _by_hand(folder: Path) -> list[str]:
    """The stages' own files, where somebody runs them one at a time."""
    plant, controller, check = ((folder / STAGES[stage]).is_file() for stage in ("fit", "tune", "validate"))
    if controller and not check:
        return ["here is a tuned controller", _says("headway validate controller.json", "holds it against target and prediction")]
    if controller:
        return [
            "here is a controller that was validated",
            _says("headway export controller.json --engine python --out ship", "the controller for an engine"),
        ]
    if plant:
        return [
            "here is a fitted plant",
            _says(f"headway simulate plant.json {LOAD}", "what the stock engine makes of your promise"),
            _says(f"headway tune plant.json {LOAD}", "a controller, beside the best static setting"),
        ]
    return []


def _with_runs(runs: list[RunRow]) -> list[str]:
    last = runs[0]
    more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    lines = [f"here is the run {last.path}{more}"]
    if last.next_stage is not None and not last.fault:
        lines.append(_says(f"headway run --resume {shlex.quote(str(last.path))}", f"goes on at {last.next_stage}"))
    else:
        lines.append(_says(f"headway report {shlex.quote(str(last.path))}", "writes its report anew; open it in a browser"))
    return [*lines, _says("headway runs", "lists them, with what came of each")]


def _traces(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the files that hold steps, and of those that hold requests."""
    from headway.identification.readers.detect import format_of
    from headway.identification.readers.errors import TraceError
    from headway.identification.readers.opened import Opened
    from headway.identification.readers.traces import TRACE_READERS

    traces, others = [], []
    files = [p for p in sorted(folder.iterdir()) if p.suffix in SUFFIXES and p.is_file() and p.stat().st_size <= MOST_BYTES]
    for path in files[:MOST_FILES]:
        try:
            format_of(Opened(str(path)), TRACE_READERS, "auto")
        except TraceError as refused:
            if "give it as the workload" in str(refused):
                others.append(path.name)
        except OSError:  # it may be unreadable, or gone by now: then it is no next step
            continue
        else:
            traces.append(path.name)
    return traces, others
