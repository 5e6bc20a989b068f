"""Where a search keeps what it needs to go on after a kill: a file beside its output, gone when it has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.experiments.whole_files import clear_beside, read_json, write_json


class CheckpointFile:
    """A `headway.experiments.checkpoint.Store` in a file, written whole or not at all.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        """Remember the place; nothing is written yet."""
        self.path = path

    def load(self) -> Any:
        """What lies there.

        Returns:
            Plain JSON values; None where there is no file, or none that can be read.
        """
        try:
            return read_json(self.path)
        except ValueError:
            return None

    def save(self, content: dict[str, Any]) -> None:
        """Put it there.

        Args:
            content: plain JSON values.
        """
        write_json(self.path, content)

    def clear(self) -> None:
        """Take away what the last problem left, and what a process that was killed while it saved left beside the file.

        The file goes with it, unless it holds answers of other problems: those stay, for the searches that were killed.
        """
        content = self.load()
        others = content.get("others") if isinstance(content, dict) else None
        if isinstance(others, list) and others and isinstance(others[0], dict):
            left = {"others": others[1:]} if others[1:] else {}
            self.save({"schema": content.get("schema"), **others[0], **left})
        else:
            self.path.unlink(missing_ok=True)
        clear_beside(self.path)


class Held:
    """A store that is kept when its search has ended, because more is to be done that a kill must not cost.

    Args:
        store: that is held.
    """

    def __init__(self, store: CheckpointFile) -> None:
        """Hold it."""
        self.load, self.save = store.load, store.save

    def clear(self) -> None:
        """Nothing yet: who holds it clears it."""


def looks_of(output: Path) -> Path:
    """Where what was found beside a result is kept until the output is written.

    Args:
        output: file that will be written at the end.

    Returns:
        A hidden file in the same folder.

    Example:
        >>> str(looks_of(Path("run/controller.json")))
        'run/.controller.json.looks'
    """
    return output.with_name(f".{output.name}.looks")


def training_of(output: Path) -> Path:
    """Where the training of a gain schedule is kept: apart from the search, whose answers it must not write over.

    Args:
        output: file that will be written at the end.

    Returns:
        A hidden file in the same folder.

    Example:
        >>> str(training_of(Path("run/controller.json")))
        'run/.controller.json.training'
    """
    return output.with_name(f".{output.name}.training")


def checkpoint_of(output: Path) -> Path:
    """Where the checkpoint of an output lies.

    Args:
        output: file that will be written at the end.

    Returns:
        A hidden file in the same folder.

    Example:
        >>> str(checkpoint_of(Path("run/controller.json")))
        'run/.controller.json.checkpoint'
    """
    return output.with_name(f".{output.name}.checkpoint")
