"""The run folder: one file per stage, written whole or not at all, and a manifest with versions, seeds and hashes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import platform
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from headway.experiments.whole_files import ENDING, read_json, sha256_of, without_nan, write_json

MANIFEST = "manifest.json"
STAGES = {
    "trace": "trace.parquet",
    "fit": "plant.json",
    "tune": "controller.json",
    "validate": "validation.json",
    "export": "export",
    "report": "report.html",
}
"""File or folder that each stage leaves."""

PACKAGES = ("headway", "numpy", "scipy", "jax", "numba", "polars", "control", "plotly")


def versions() -> dict[str, str]:
    """What the figures were computed with.

    Returns:
        Version by name, Python and Headway included.
    """
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in PACKAGES:
        found[name] = metadata.version(name)
    return found


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _at_least(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _between(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and low < value < high


def _or_null(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


def _rows(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _at_least(0)(value[0]) and _or_null(_at_least(0))(value[1])


Rule = tuple[str, Callable[[Any], bool]]
ANY: Rule = ("anything", lambda _: True)
MAPPING: Rule = ("values by name", lambda value: isinstance(value, dict))
FIELDS: dict[str, Rule] = {
    "traces": ("a list of file names", lambda value: isinstance(value, list) and bool(value) and all(map(_text, value))),
    **dict.fromkeys(("workload", "target", "engine", "objective"), ("text", _text)),
    "where": ("texts by column", lambda value: isinstance(value, dict) and all(map(_text, value.values()))),
    "rate_rps": ("a number above 0, or null", _or_null(_between(0.0, math.inf))),
    "rows": ("two whole numbers from 0, such as [0, 500], the second perhaps null; or null", _or_null(_rows)),
    **dict.fromkeys(("requests", "runs"), ("a whole number above 0, or null", _or_null(_at_least(1)))),
    **dict.fromkeys(("limits", "effort"), MAPPING),
    "epsilon": ("a number between 0 and 1, or null", _or_null(_between(0.0, 1.0))),
    "seed": ("a whole number from 0", _at_least(0)),
    "live_s": ("a number above 0", _between(0.0, math.inf)),
    "policy": ("text, or null", _or_null(_text)),
}
"""What the fields of a request in a manifest hold, in words and as a test."""

ENTRIES: dict[str, Rule] = {
    "stages": (
        "what a finished stage noted, with its sha256 as text",
        lambda value: isinstance(value, dict) and _text(value.get("sha256", "")),
    ),
    "inputs": ("the sha256 of that file, as text", _text),
}
"""The same of what else a manifest holds by name."""


class RunFolder:
    """A folder with one file per stage.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        """Remember the place; nothing is written yet."""
        self.path = path

    def file(self, stage: str) -> Path:
        """Where a stage's file is or will be.

        Args:
            stage: one of STAGES.

        Returns:
            Its path.
        """
        return self.path / STAGES[stage]

    def manifest(self) -> dict[str, Any]:
        """What the folder says of itself.

        Returns:
            The manifest; empty if there is none yet.

        Raises:
            ValueError: the file is no manifest.
        """
        path = self.path / MANIFEST
        known = read_json(path) if path.exists() else {}
        if not isinstance(known, dict):
            raise ValueError(f"{path}: not the manifest of a run; start a new run in another folder")
        for part in ("request", "stages", "versions", "inputs"):
            given = known.get(part, {})
            entries = given.items() if isinstance(given, dict) else ()
            rules = [(f"{part}.{k}", (FIELDS.get(k) if part == "request" else ENTRIES.get(part)) or ANY, v) for k, v in entries]
            for field, (expected, fits), value in [(part, MAPPING, given), *rules]:
                if not fits(value):
                    raise ValueError(
                        f"{path}: {field} must be {expected}, got {json.dumps(value)[:60]}; put it back, or begin a new run elsewhere"
                    )
        return known

    @contextlib.contextmanager
    def alone(self, *, resume: bool) -> Iterator[None]:
        """Write to the folder as the only run that does; it is free again when the process ends, however it ends.

        The folder itself is locked, which leaves no file in it. Where a folder cannot be locked, as on NFS, a hidden file in it is.

        Args:
            resume: the folder has to be there; else it is made.

        Yields:
            Nothing.

        Raises:
            ValueError: another run writes to the folder, or it is none, or cannot be made or locked.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; give a folder")
        if resume and not self.path.exists():
            raise ValueError(f"{self.path} holds no run to resume; leave --resume out")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            held = self._locked()
        except BlockingIOError:
            raise ValueError(f"{self.path}: another run writes to this folder now; wait for it, or give a new folder") from None
        except OSError as error:
            raise ValueError(f"{self.path}: cannot be written or locked ({error.strerror or error}); give another folder") from None
        try:
            yield
        finally:
            os.close(held)

    def _locked(self) -> int:
        for place, how in ((self.path, os.O_RDONLY), (self.path / f".lock{ENDING}", os.O_RDWR | os.O_CREAT)):
            held = os.open(place, how, 0o644)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return held
            except OSError as error:
                os.close(held)
                if isinstance(error, BlockingIOError) or place != self.path:
                    raise
        raise AssertionError("the second place is locked, or says why not")

    def open(self, request: dict[str, Any], *, resume: bool, inputs: dict[str, str] | None = None) -> None:
        """Begin a run, or go on with one that was interrupted.

        Args:
            request: what was asked for; a resumed run must ask for the same.
            resume: go on in a folder that holds a run.
            inputs: sha256 by path of the files that a new run reads; None keeps none.

        Raises:
            ValueError: the folder holds something else, or a run of another request, or resume found none.
        """
        known = self.manifest()
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; give a folder")
        if not known and self.path.exists() and any(not p.name.endswith(ENDING) for p in self.path.iterdir()):
            raise ValueError(f"{self.path} is not empty and holds no run; give a new folder")
        if known and not resume:
            raise ValueError(f"{self.path} already holds a run; add --resume to go on with it, or give a new folder")
        if resume and not known:
            raise ValueError(f"{self.path} holds no run to resume; leave --resume out")
        if known and known.get("request") != without_nan(request):
            differing = sorted(k for k in request if known.get("request", {}).get(k) != without_nan(request[k]))
            raise ValueError(f"{self.path} was begun with another {', '.join(differing) or 'request'}; give a new folder")
        if not known:
            begun = {"schema": "headway/run/1", "request": request, "versions": versions(), "stages": {}}
            write_json(self.path / MANIFEST, begun if inputs is None else {**begun, "inputs": inputs})

    def done(self, stage: str) -> bool:
        """Whether a stage is finished and its file is still the one it wrote.

        Args:
            stage: one of STAGES.

        Returns:
            True if so.
        """
        entry = self.manifest().get("stages", {}).get(stage)
        return bool(entry) and self.file(stage).exists() and sha256_of(self.file(stage)) == entry.get("sha256")

    def finish(self, stage: str, seconds: float, **facts: Any) -> None:
        """Note that a stage is finished, with the hash of its file.

        Args:
            stage: one of STAGES, its file written.
            seconds: that it took [s].
            facts: more to remember, such as seeds.

        Raises:
            ValueError: the stage left no file.
        """
        if not self.file(stage).exists():
            raise ValueError(f"{self.file(stage)}: stage {stage} left no file")
        known = self.manifest()
        entry = {"file": STAGES[stage], "sha256": sha256_of(self.file(stage)), "seconds": round(seconds, 3), **facts}
        known.setdefault("stages", {})[stage] = entry
        write_json(self.path / MANIFEST, known)
