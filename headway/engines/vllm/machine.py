"""The machine that a live run shares: who gets which core, and who used how much of them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
"""Unit of the kernel's CPU times [s]."""
BUSY = (0, 1, 2, 5, 6)
"""Fields of /proc/stat's first line that are work: user, nice, system, interrupts."""
PROC = Path("/proc")


class Cores(NamedTuple):
    """How the cores are divided.

    Args:
        engine: of the process that runs the model.
        rest: of everything else of the server, and of the load generator.
        shared: there is one core only, for all.
    """

    engine: tuple[int, ...]
    rest: tuple[int, ...]
    shared: bool

    def sentence(self) -> str:
        """Who runs where.

        Returns:
            One sentence.
        """
        if self.shared:
            return f"one core ({self.rest[0]}) for model, server and load generator: they disturb each other, times are too long"
        names = ", ".join(map(str, self.engine))
        return f"the model runs on core {names}, the rest of the server and the load generator on core {', '.join(map(str, self.rest))}"


def divide(cores: Iterable[int] | None = None) -> Cores:
    """Give the model every core but the last, which serves requests and makes them.

    Args:
        cores: that may be used; None for those of this process.

    Returns:
        The division.
    """
    have = sorted(os.sched_getaffinity(0) if cores is None else cores)
    return Cores(tuple(have[:-1] or have), (have[-1],), len(have) == 1)


def family(*roots: int) -> list[int]:
    """Processes and all that came of them.

    Args:
        *roots: process ids.

    Returns:
        Process ids, those that still run, each once.
    """
    children: dict[int, list[int]] = {}
    alive = set()
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) is not None:
            alive.add(int(entry.name))
            children.setdefault(int(stat[1]), []).append(int(entry.name))
    found: list[int] = []
    new = [pid for pid in dict.fromkeys(roots) if pid in alive]
    while new:
        found += new
        new = [child for parent in new for child in children.get(parent, []) if child not in found]
    return found


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat behind the name, from the state on; None where there is no such process, or one that has ended."""
    try:
        fields = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not.

    Args:
        pid: process id.

    Returns:
        True if so.
    """
    return _stat(pid) is not None


def name_of(pid: int) -> str:
    """What a process calls itself.

    Args:
        pid: process id.

    Returns:
        Its command line; "" where it is gone.
    """
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def pin(pids: Iterable[int], cores: tuple[int, ...]) -> int:
    """Keep processes, with all their threads, on some cores.

    Args:
        pids: process ids.
        cores: they may run on.

    Returns:
        Threads that were moved; those that ended meanwhile are left out.
    """
    moved = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in (PROC / str(pid) / "task").iterdir():
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(task.name), cores)
                    moved += 1
    return moved


class Usage(NamedTuple):
    """CPU time at an instant.

    Args:
        at_s: instant, monotonic [s].
        busy_s: of the whole machine since it started [s].
        ours_s: of the processes asked for since they started [s].
    """

    at_s: float
    busy_s: float
    ours_s: float


def usage(roots: Iterable[int]) -> Usage:
    """CPU time of the machine and of some processes with all that came of them, children that ended included.

    Args:
        roots: process ids.

    Returns:
        Usage.
    """
    ours = 0.0
    for pid in family(*roots):
        stat = _stat(pid)
        ours += sum(int(x) for x in stat[11:15]) * TICK_S if stat is not None else 0.0
    first = (PROC / "stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    return Usage(time.monotonic(), sum(int(first[k]) for k in BUSY) * TICK_S, ours)


def share_of_others(before: Usage, after: Usage, cores: int) -> float:
    """How much of the machine other programs took in between.

    Args:
        before: first.
        after: later, of the same processes.
        cores: of the machine.

    Returns:
        Share of all cores' time, in [0, 1].
    """
    span_s = max(after.at_s - before.at_s, 1e-9) * cores
    return min(max((after.busy_s - before.busy_s) - (after.ours_s - before.ours_s), 0.0) / span_s, 1.0)
