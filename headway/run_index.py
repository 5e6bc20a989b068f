"""The runs of a folder: what is there, how far each got and what came of it; a run renamed or removed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

from headway.experiments.run import MANIFEST, STAGES, RunFolder
from headway.experiments.whole_files import read_json

DEEPEST = 2
"""Folders below the one that is looked through: runs/NAME is two below the folder that one works in."""


class RunRow(NamedTuple):
    """One run.

    Args:
        path: of its folder.
        changed_s: when a stage last ended, as seconds since 1970 [s].
        done: stages that are finished, in order.
        asked: what it was asked for, in a few words.
        outcome: of the validation; None before it.
        attainment: of the controller there, in [0, 1]; None before it.
        fault: why the folder cannot be read; None where it can.
    """

    path: Path
    changed_s: float
    done: tuple[str, ...]
    asked: str
    outcome: str | None
    attainment: float | None
    fault: str | None = None

    @property
    def next_stage(self) -> str | None:
        """The first stage that is not finished.

        Returns:
            One of STAGES; None where all are.
        """
        return next((stage for stage in STAGES if stage not in self.done), None)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            Mapping by field name.
        """
        return {**self._asdict(), "path": str(self.path), "done": list(self.done), "next_stage": self.next_stage}


def runs_in(root: Path) -> list[RunRow]:
    """The runs in a folder and in those below it, the latest first.

    Args:
        root: folder to look through, DEEPEST deep.

    Returns:
        One row each; a folder whose files cannot be read has its fault in its row.

    Raises:
        ValueError: there is no such folder.
    """
    if not root.is_dir():
        raise ValueError(f"{root}: no such folder; give the one that holds the runs, such as runs")
    found = {p.parent for depth in range(DEEPEST + 1) for p in root.glob("/".join(["*"] * depth + [MANIFEST]))}
    return sorted((row_of(path) for path in found), key=lambda row: (-row.changed_s, str(row.path)))


def row_of(path: Path) -> RunRow:
    """One run as a row.

    Args:
        path: of its folder.

    Returns:
        Row.
    """
    folder, changed_s = RunFolder(path), (path / MANIFEST).stat().st_mtime
    try:
        known = folder.manifest()
        done = tuple(stage for stage in STAGES if stage in known.get("stages", {}))
        check = read_json(folder.file("validate")) if "validate" in done and folder.file("validate").exists() else {}
        attained = check.get("controller", {}).get("attainment")
        return RunRow(path, changed_s, done, _asked(known.get("request", {})), check.get("outcome"), attained)
    except (ValueError, AttributeError) as error:
        return RunRow(path, changed_s, (), "", None, None, str(error))


def _asked(request: dict[str, Any]) -> str:
    text = str(request.get("workload") or "")
    # a file by its name, a recipe by how it begins: both in full are in the manifest
    load = text.rpartition("/")[2] if text.startswith("/") else text.partition(",")[0]
    rate = request.get("rate_rps")
    target = str(request.get("target") or "")
    asked = target.rpartition("/")[2] if target.startswith("/") else target
    return f"{load}{f' at {rate:g}/s' if rate else ''}, {asked}"


def rename_run(path: Path, name: str) -> Path:
    """Give a run another name, in the folder where it stands.

    Args:
        path: of its folder.
        name: new name, without a folder.

    Returns:
        Where it is now.

    Raises:
        ValueError: no run stands there, the name is none, or it is taken.
    """
    _must_be_run(path)
    if not name or Path(name).name != name or name in (".", ".."):
        raise ValueError(f"{name!r} is no name for a run; write one without a folder, such as friday")
    target = path.resolve().parent / name
    if target.exists():
        raise ValueError(f"{target.name} is taken; choose another name, or remove that run first: headway runs remove {target.name}")
    try:
        path.resolve().rename(target)
    except OSError as error:
        raise ValueError(f"{path}: cannot be renamed ({error.strerror or error})") from None
    return path.parent / name


def remove_run(path: Path) -> None:
    """Delete a run and all that lies in its folder.

    Args:
        path: of its folder.

    Raises:
        ValueError: no run stands there, or it is a link or cannot be deleted.
    """
    _must_be_run(path)
    if path.is_symlink():
        raise ValueError(f"{path} is a link; remove the link itself, or name the folder it leads to")
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be removed whole ({error.strerror or error})") from None


def _must_be_run(path: Path) -> None:
    if not (path / MANIFEST).is_file():
        raise ValueError(f"{path}: no run stands there; `headway runs` lists those that do")
    if not str(RunFolder(path).manifest().get("schema", "")).startswith("headway/run/"):
        raise ValueError(f"{path / MANIFEST}: not the manifest of a run; nothing was touched")
