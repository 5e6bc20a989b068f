"""Processes of this machine that run items, one at a time each: a lost one is replaced, and what it worked on is known.

Of the standard library's pools one gives every running item up when a worker dies, and the other waits for ever.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing import connection
from typing import Any, NamedTuple

GRACE_S = 5.0
"""Time that idle workers have to end by themselves [s]."""


class Lost(NamedTuple):
    """A worker went before it answered.

    Args:
        why: how it ended.
    """

    why: str


class Workers:
    """A pool of processes, started anew and not forked: JAX's and numba's threads do not survive a fork.

    Args:
        answered: of function and item: what is sent back.
        function: sent to each worker once.
        count: of workers.
        settings: for `headway.experiments.scaleout.settled`.
    """

    def __init__(self, answered: Callable[[Any, Any], Any], function: Any, count: int, settings: dict[str, Any]) -> None:
        """Start the workers."""
        self.start = (answered, function, settings)
        self.context = multiprocessing.get_context("spawn")
        self.idle: list[tuple[Any, Any]] = []
        self.busy: dict[Any, tuple[Any, int]] = {}
        try:
            self.idle.extend(self._worker() for _ in range(count))
        except BaseException:
            self.close(at_once=True)
            raise

    def room(self) -> int:  # noqa: D102
        return len(self.idle) + len(self.busy)

    def give(self, place: int, item: Any) -> None:  # noqa: D102
        process, pipe = self.idle.pop()
        if not process.is_alive():  # killed while it had nothing to do
            pipe.close()
            process, pipe = self._worker()
        self.busy[pipe] = (process, place)
        try:
            pipe.send(item)
        except OSError:  # it has just gone; `take` finds that out
            return

    def take(self) -> list[tuple[int, Any]]:  # noqa: D102
        found = []
        ready: list[Any] = connection.wait(list(self.busy))
        for pipe in ready:
            process, place = self.busy.pop(pipe)
            try:
                found.append((place, pipe.recv()))
                self.idle.append((process, pipe))
            except (EOFError, OSError):
                process.join(GRACE_S)
                pipe.close()
                code = process.exitcode
                found.append((place, Lost(f"ended by signal {-code}" if code is not None and code < 0 else f"ended with status {code}")))
                self.idle.append(self._worker())
        return found

    def close(self, *, at_once: bool) -> None:  # noqa: D102
        everyone = [*self.idle, *((process, pipe) for pipe, (process, _) in self.busy.items())]
        self.idle, self.busy = [], {}
        for process, pipe in everyone:
            pipe.close()
            if at_once:
                process.terminate()
        for process, _ in everyone:
            process.join(GRACE_S)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()

    def _worker(self) -> tuple[Any, Any]:
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_serve, args=(theirs, *self.start), daemon=True)
        process.start()
        theirs.close()  # else the end of the worker would not end the pipe
        return process, ours


def _serve(pipe: Any, answered: Callable[[Any, Any], Any], function: Any, settings: dict[str, Any]) -> None:
    """Answer items until nobody asks any more."""
    from headway.experiments.scaleout import settled

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt goes to the whole group; who started this ends it
    settled(settings)
    while True:
        try:
            item = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(answered(function, item))
