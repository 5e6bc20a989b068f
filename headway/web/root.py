"""The folder whose runs the workbench shows. No name leads out of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from headway.experiments.run import MANIFEST, STAGES
from headway.run_index import RunRow, row_of, runs_in


class Root(NamedTuple):
    """Where the runs are.

    Args:
        path: of the folder, absolute.
        first: name of the run to open with, relative to it.
    """

    path: Path
    first: str

    @staticmethod
    def of(given: Path) -> Root:
        """The root for what was given on the command line: a run, or a folder that holds runs.

        Args:
            given: a run folder, or one that holds some.

        Returns:
            Root.

        Raises:
            ValueError: neither.
        """
        if is_run(given):
            whole = given.resolve()
            return Root(whole.parent, whole.name)
        found = runs_in(given)
        if not found:
            raise ValueError(f"{given}: neither a run nor a folder with runs; `headway demo` makes one, `headway run --help` shows how")
        return Root(given.resolve(), str(found[0].path.resolve().relative_to(given.resolve())))

    def run(self, name: str | None) -> Path:
        """The folder of a run.

        Args:
            name: relative to the root, as a URL may have it; None or "" for the first.

        Returns:
            Its path.

        Raises:
            ValueError: the name leads out of the root, or no run is there.
        """
        place = (self.path / (name or self.first)).resolve()
        if not place.is_relative_to(self.path.resolve()):
            raise ValueError("a run's name must stay inside the folder that the workbench was opened on")
        if not is_run(place):
            raise ValueError(f"{name or self.first}: no run of that name here; choose one from the list")
        return place

    def names(self) -> list[str]:
        """Names of the runs, the latest first.

        Returns:
            Relative to the root; the first run is among them even if it has no manifest.
        """
        rows = [str(row.path.resolve().relative_to(self.path.resolve())) for row in self.rows()]
        return rows if self.first in rows else [self.first, *rows]

    def rows(self) -> list[RunRow]:
        """The runs, the latest first.

        Returns:
            One row each.
        """
        return [row for row in runs_in(self.path) if row.path.resolve().is_relative_to(self.path.resolve())]


def is_run(path: Path) -> bool:
    """Whether a folder holds a run, or at least the plant that one begins with.

    Args:
        path: of the folder.

    Returns:
        True if so.
    """
    return path.is_dir() and ((path / MANIFEST).is_file() or (path / STAGES["fit"]).is_file())


def state_of(path: Path) -> str:
    """How far a run is, in a few words.

    Args:
        path: of its folder.

    Returns:
        Such as "finished, met" or "next: tune".
    """
    if not (path / MANIFEST).is_file():
        return "single files"
    row = row_of(path)
    refused = ", not certified" if row.outcome == "met" and (path / STAGES["export"] / "refused.txt").is_file() else ""
    return row.fault or (f"next: {row.next_stage}" if row.next_stage else f"finished, {row.outcome or 'no outcome'}{refused}")
