"""A run as the pages read it: its files, read once and again when one of them changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from headway.controllers.record import ControllerRecord
from headway.experiments.run import STAGES
from headway.experiments.whole_files import read_json
from headway.loads import read_controller, read_plant
from headway.models.identified import IdentifiedPlant
from headway.report.data import Findings, collect
from headway.report.opened import Opened, opened
from headway.report.recorded import Recorded, recorded
from headway.report.run_trace import trace_of_run

MOST_KEPT = 24
"""Results that are remembered; the one longest unused goes first."""


class _Making(NamedTuple):
    """A result that somebody makes or waits for.

    Args:
        lock: held by who makes it; whoever asks for the same meanwhile waits for it, and for nothing else.
        asking: one entry for each of them.
    """

    lock: threading.Lock
    asking: list[None]


_lock = threading.Lock()
"""Of the two tables below; never held while something is made."""
_kept: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
_making: dict[tuple[Any, ...], _Making] = {}


def remembered(key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    """A result that is made once as long as its key stays the same. Results of different keys are made at the same time.

    Args:
        key: what it depends on.
        make: makes it; an error is not remembered.

    Returns:
        The result.
    """
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
        making = _making.setdefault(key, _Making(threading.Lock(), []))
        making.asking.append(None)
    try:
        with making.lock:
            with _lock:
                if key in _kept:
                    return _kept[key]
            found = make()
            with _lock:
                _kept[key] = found
                while len(_kept) > MOST_KEPT:
                    _kept.popitem(last=False)
            return found
    finally:
        with _lock:
            making.asking.pop()
            if not making.asking:
                del _making[key]


class View(NamedTuple):
    """One run.

    Args:
        name: relative to the root.
        path: of its folder.
    """

    name: str
    path: Path

    def stamp(self, *stages: str) -> tuple[Any, ...]:
        """What tells one state of files from the next.

        Args:
            *stages: whose files.

        Returns:
            Path, times of change and sizes.
        """
        found: list[Any] = [str(self.path)]
        for stage in stages:
            file = self.path / STAGES[stage]
            found += [stage, *((s.st_mtime_ns, s.st_size) if (s := _stat(file)) else (None, None))]
        return tuple(found)

    def has(self, stage: str) -> bool:
        """Whether a stage has left its file.

        Args:
            stage: one of STAGES.

        Returns:
            True if so.
        """
        return (self.path / STAGES[stage]).exists()

    def findings(self) -> Findings:
        """All that the report knows.

        Returns:
            Findings.

        Raises:
            ValueError: there is no plant, or a file cannot be read.
        """
        return remembered(("findings", *self.stamp("trace", "fit", "tune", "validate", "export")), lambda: collect(self.path))

    def recording(self) -> Recorded:
        """The trace as its figures need it.

        Returns:
            Recorded.

        Raises:
            ValueError: there is no trace, or it cannot be read.
        """
        found = self.findings().recorded if self.has("fit") else None  # read once for both
        return found or remembered(("recording", *self.stamp("trace")), lambda: recorded(trace_of_run(self.path / STAGES["trace"])))

    def identified(self) -> IdentifiedPlant:
        """The plant.

        Returns:
            IdentifiedPlant.

        Raises:
            ValueError: it is missing or cannot be read.
        """
        return remembered(("plant", *self.stamp("fit")), lambda: read_plant(self.path / STAGES["fit"]))

    def record(self) -> ControllerRecord:
        """The tuned controller.

        Returns:
            ControllerRecord.

        Raises:
            ValueError: it is missing or cannot be read.
        """
        return remembered(("record", *self.stamp("tune")), lambda: read_controller(self.path / STAGES["tune"]))

    def opened(self) -> Opened:
        """Plant and controller with short held-out loads to try sliders on.

        Returns:
            Opened.

        Raises:
            ValueError: a file is missing or cannot be read.
        """
        read = lambda: opened(*(read_json(self.path / STAGES[stage]) for stage in ("fit", "tune")))  # noqa: E731
        return remembered(("opened", *self.stamp("fit", "tune")), read)


def _stat(path: Path) -> Any:
    try:
        return path.stat()
    except OSError:
        return None
