"""The one error of every reader: which file, where in it, what stood there, and what was expected."""

from __future__ import annotations

from pathlib import Path


class TraceError(ValueError):
    """A file that cannot be read as what it was given for.

    Args:
        file: the file, as it was given.
        expected: what should have been there, in words.
        row: data row, counted from 1 without the header; None if the whole file is meant.
        column: name of the column or key; None if the whole row is meant.
        found: what stood there instead; None if that adds nothing.

    Example:
        >>> print(TraceError("run/steps.csv", "a number that is not negative", row=3, column="exec_ms", found=-2.0))
        run/steps.csv: row 3, column exec_ms: expected a number that is not negative, found -2.0
    """

    def __init__(self, file: str | Path, expected: str, *, row: int | None = None, column: str | None = None, found: object = None) -> None:
        self.file, self.row, self.column, self.found, self.expected = str(file), row, column, found, expected
        place = ", ".join([f"row {row}"] * (row is not None) + [f"column {column}"] * (column is not None))
        what = f"expected {expected}" + ("" if found is None else f", found {_short(found)}")
        super().__init__(": ".join([self.file, place, what] if place else [self.file, what]))


def _short(value: object, most: int = 160) -> str:
    """One line, however long or broken the value is."""
    text = repr(value)
    return text if len(text) <= most else text[: most - 4] + "...'"
