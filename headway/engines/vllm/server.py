"""A vLLM server as a process of ours: started, waited for, read back, and stopped whatever happens to us."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.engines.vllm.environment import QUIET, environment
from headway.engines.vllm.machine import Cores, alive, divide, family, name_of, pin
from headway.engines.vllm.service import Service

Progress = Callable[[str, float], None]

START_S, USUAL_START_S = 300.0, 40.0
"""A server that has not answered after the first is given up; the second is what one takes on a quiet machine [s]."""
STOP_S = 15.0
"""From being asked to end until being killed [s]."""
NAME = "headway"
"""What the served model is called."""
GUARD = 'cat >/dev/null; kill -TERM -"$0" 2>/dev/null; sleep 10; kill -KILL -"$0" 2>/dev/null'
"""Waits until its input closes, which it does when we are gone, however that came about; then ends the server's process group."""
WORKER = ("Worker", "worker")
"""How the process that runs the model calls itself."""
RAISED = re.compile(r"\b\w*(?:Error|Exception): .")
"""A line that ends a traceback."""


@dataclass(frozen=True)
class Serving:
    """How a server is started.

    Args:
        model: folder of the model.
        flags: of `vllm serve`, by name with dashes or underscores; True for a flag without a value.
        folders: put on the server's PYTHONPATH: an adapter, a simulated device.
        additional: content of --additional-config.
        variables: environment variables for the server alone.
        log: file that takes what the server prints.
        place: environment of vLLM; None to look for it.
        cores: how they are divided; None divides those of this process, with the last for everything but the model.
        start_s: longest wait for an answer [s].
    """

    model: Path
    log: Path
    flags: Mapping[str, Any] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()
    additional: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    place: Path | None = None
    cores: Cores | None = None
    start_s: float = START_S

    def command(self, port: int) -> list[str]:
        """The command line.

        Args:
            port: to listen on, at the loopback address only.

        Returns:
            Words.
        """
        words = [str(environment(self.place) / "bin" / "vllm"), "serve", str(self.model)]
        words += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", NAME]
        for name, value in self.flags.items():
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True else [] if value is None or value is False else [flag, str(value)]
        if self.additional:
            words += ["--additional-config", json.dumps(self.additional, separators=(",", ":"))]
        return words


@dataclass
class Server:
    """A server that answers.

    Args:
        service: what it answers at.
        pid: of its first process; 0 where it is not ours.
        log: what it prints.
        pinned: whether model and rest were put on cores of their own.
        started_s: how long it took to answer [s].
    """

    service: Service
    pid: int
    log: Path | None
    pinned: bool
    started_s: float

    @property
    def alive(self) -> bool:
        """Whether its first process still runs."""
        return self.pid == 0 or alive(self.pid)


def free_port() -> int:
    """A port that nothing listens on now.

    Returns:
        Port.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(how: Serving, progress: Progress | None = None) -> Iterator[Server]:
    """A server for as long as the block runs. It ends with the block, with an error in it, and with this process if that is killed.

    Args:
        how: to start it.
        progress: called with a label and a fraction while it starts.

    Yields:
        The server, once it answers.

    Raises:
        ValueError: it does not start; the message holds the end of its log.
    """
    cores, port = how.cores or divide(), free_port()
    process = _start(how, cores, port)
    guard = subprocess.Popen(["sh", "-c", GUARD, str(process.pid)], stdin=subprocess.PIPE, start_new_session=True)
    try:
        service = Service(f"http://127.0.0.1:{port}")
        began = time.monotonic()
        _wait(process, service, how, progress)
        pinned = _divide(process.pid, cores)
        yield Server(service, process.pid, how.log, pinned, time.monotonic() - began)
    finally:
        stop(process)
        guard.kill()
        guard.communicate()


def _start(how: Serving, cores: Cores, port: int) -> subprocess.Popen[bytes]:
    names = ",".join(map(str, cores.engine))
    variables = {**os.environ, **QUIET, "VLLM_CPU_OMP_THREADS_BIND": names, "OMP_NUM_THREADS": str(len(cores.engine))}
    # the adapter's folder and no more: what this process has on its own path must not reach into vLLM's environment
    variables["PYTHONPATH"] = os.pathsep.join(str(folder.resolve()) for folder in how.folders)
    variables.pop("VIRTUAL_ENV", None)
    how.log.parent.mkdir(parents=True, exist_ok=True)
    with how.log.open("wb") as log:
        return subprocess.Popen(
            how.command(port),
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**variables, **how.variables},
            start_new_session=True,  # a group of its own: an interrupt at the terminal reaches us, and we stop it in order
        )


def _wait(process: subprocess.Popen[bytes], service: Service, how: Serving, progress: Progress | None) -> None:
    """Until it answers, ends, or takes too long."""
    began = time.monotonic()
    while not service.healthy():
        waited = time.monotonic() - began
        if process.poll() is not None:
            raise ValueError(f"vllm serve ended with {process.returncode} before it answered; {log_end(how.log)}")
        if waited > how.start_s:
            raise ValueError(f"vllm serve did not answer within {how.start_s:.0f} s; {log_end(how.log)}")
        if progress:
            progress("starting vLLM", min(waited / USUAL_START_S, 0.99))
        time.sleep(0.25)


def log_end(log: Path) -> str:
    """What a log says of why a server ended.

    Args:
        log: the file.

    Returns:
        The first error that it names, or its last line, and where to read on.
    """
    try:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    # the first error is the cause, those after it are what came of it
    errors = [line for line in lines if RAISED.search(line) and "WARNING" not in line]
    said = errors[0][RAISED.search(errors[0]).start() :] if errors else (lines or ["it printed nothing"])[-1]  # pyright: ignore[reportOptionalMemberAccess]
    return f"its log says: {said[:300]} (all of it: {log})"


def _divide(pid: int, cores: Cores) -> bool:
    """Keep what runs the model off the core of everything else; False where there is one core, or no worker of its own."""
    members = family(pid)
    workers = [p for p in members if any(word in name_of(p) for word in WORKER)]
    if cores.shared:
        return False
    pin((p for p in members if p not in workers), cores.rest)
    pin(workers, cores.engine)
    return bool(workers)


def stop(process: subprocess.Popen[bytes], patience_s: float = STOP_S) -> bool:
    """End a server and everything it started.

    Args:
        process: its first process, leader of its group.
        patience_s: from asking to killing [s].

    Returns:
        Whether it ended when asked; False if it had to be killed.
    """
    members = family(process.pid)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    asked, end = True, time.monotonic() + patience_s
    while time.monotonic() < end and (process.poll() is None or _left(members)):
        time.sleep(0.05)
    if process.poll() is None or _left(members):
        asked = False
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pid in _left(members):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()
    return asked


def _left(members: list[int]) -> list[int]:
    """Those of some processes that still run."""
    return [pid for pid in members if alive(pid)]
