"""A trace that was dropped on the page: kept below the root, and made a run by the same command that a person would give."""

from __future__ import annotations

import base64
import binascii
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from headway.specs import ARRIVALS

MOST_BYTES = 64 << 20
"""Largest trace that the page takes; larger ones go by path: headway run --trace FILE [bytes]."""
MOST_JOBS = 2
NAME = re.compile(r"[^A-Za-z0-9._-]+")
STEP = re.compile(r"headway: (.+) \((\d+)% done, (\d+) s\)")
"""A line of progress as `headway` writes it to a log."""

_jobs: dict[str, Job] = {}
_lock = threading.Lock()


class Job(NamedTuple):
    """A run that is being made.

    Args:
        name: of the run.
        command: as a person would give it.
        process: that makes it.
        lines: what it has said on standard error.
    """

    name: str
    command: str
    process: subprocess.Popen[str]
    lines: list[str]


class Standing(NamedTuple):
    """How far a job is.

    Args:
        name: of the run.
        share: done, in [0, 1].
        label: what it is doing.
        fault: the sentence it ended with; empty while all is well.
        finished: whether the run is there.
    """

    name: str
    share: float
    label: str
    fault: str
    finished: bool


def kept(root: Path, filename: str, content: str) -> Path:
    """Write an upload below the root.

    Args:
        root: folder of the runs.
        filename: as the browser names it; only its plain letters are kept.
        content: a data URL, base64.

    Returns:
        Where it is.

    Raises:
        ValueError: no file, or one that is too large.
    """
    head, comma, body = content.partition(",")
    if not comma or ";base64" not in head:
        raise ValueError("the browser sent no file; drop one file, not a folder or a link")
    if len(body) * 3 // 4 > MOST_BYTES:
        raise ValueError(
            f"the file has more than {MOST_BYTES >> 20} MB; give it by path: headway run --trace FILE --workload ... --out NAME"
        )
    try:
        data = base64.b64decode(body, validate=True)
    except binascii.Error:
        raise ValueError("the upload arrived broken; try again") from None
    name = NAME.sub("-", Path(filename.replace("\\", "/")).name).strip("-.") or "trace.csv"
    place = root / "uploads" / name
    number = 1
    while place.exists() and place.read_bytes() != data:
        number += 1
        place = root / "uploads" / f"{Path(name).stem}-{number}{Path(name).suffix}"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return place


def command_of(trace: Path, workload: str, target: str, out: Path) -> list[str]:
    """The command that makes a run of an upload.

    Args:
        trace: the file.
        workload: a recipe or a file below the root.
        target: what clients were promised.
        out: run folder, new.

    Returns:
        Words.
    """
    return ["run", "--trace", str(trace), "--workload", workload, "--target", target, "--out", str(out)]


def begin(root: Path, trace: Path, workload: str, target: str) -> Job:
    """Start making a run.

    Args:
        root: folder of the runs.
        trace: the upload.
        workload: a recipe.
        target: what clients were promised.

    Returns:
        The job.

    Raises:
        ValueError: too many are being made, or the texts are not plain.
    """
    with _lock:
        if sum(job.process.poll() is None for job in _jobs.values()) >= MOST_JOBS:
            raise ValueError(f"{MOST_JOBS} runs are being made already; wait for one of them")
        for what, text in (("workload", workload), ("target", target)):
            if not text.strip() or text.lstrip().startswith("-") or "\n" in text:
                raise ValueError(f"{what} must be one line and must not begin with a dash, got {text!r}")
        if workload.strip().partition(":")[0] not in ARRIVALS or "lengths=" in workload:
            raise ValueError(
                "workload must be a recipe such as poisson:rate=5/s,prompt=600,output=200; a file is given at the command line"
            )
        if "=" not in target or Path(target).suffix:
            raise ValueError("target must be written out, such as ttft=1s,itl=50ms; a file of classes is given at the command line")
        name, number = trace.stem, 1
        while (root / name).exists() or name in _jobs:
            number += 1
            name = f"{trace.stem}-{number}"
        words = command_of(trace, workload.strip(), target.strip(), root / name)
        process = subprocess.Popen(
            [sys.executable, "-m", "headway", *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, cwd=root,
        )  # fmt: skip
        job = Job(name, shlex.join(["headway", *words]), process, [])
        _jobs[name] = job
    threading.Thread(target=_listen, args=(job,), daemon=True).start()
    return job


def _listen(job: Job) -> None:
    for line in job.process.stderr or []:
        job.lines.append(line.rstrip("\n"))
        del job.lines[:-50]


def standing(name: str) -> Standing | None:
    """How far a job is.

    Args:
        name: of its run.

    Returns:
        Standing; None where there is no such job.
    """
    job = _jobs.get(name)
    if job is None:
        return None
    share, label = 0.0, "reading the trace"
    for line in job.lines:
        found = STEP.fullmatch(line)
        if found:
            label, share = found[1], int(found[2]) / 100
    ended: Any = job.process.poll()
    if ended is None:
        return Standing(name, share, label, "", False)
    if ended in (0, 1):  # 1 is "target not met": the run is whole
        return Standing(name, 1.0, "done", "", True)
    said = [line.removeprefix("headway: ") for line in job.lines if line.startswith("headway: ") and not STEP.fullmatch(line)]
    return Standing(name, share, label, said[-1] if said else f"the command ended with status {ended}", False)


def stop_all() -> None:
    """End what is being made; `headway run --resume` goes on from there."""
    for job in _jobs.values():
        if job.process.poll() is None:
            job.process.terminate()
