"""CSV files as tables of text, and their columns as numbers: every cell that is not what it should be is named by file, row and column."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from headway.identification.readers.errors import TraceError

MOST = 10**9
"""Largest whole number that is believed in a cell; anything above it is a time stamp in the wrong column."""

INDEX = "\0row"
"""The number of the row while the file's own columns are still there, one of which may be called row."""


def text_table(path: str | Path, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> tuple[pl.DataFrame, list[str]]:
    """A CSV file, every cell as trimmed text: what a cell means is decided where it can be named in an error.

    Names of columns are compared without regard to case and surrounding blanks. Blank lines are left out, but counted.

    Args:
        path: the file, as it was given.
        required: columns that must be there.
        optional: columns that may be.

    Returns:
        The table, one row per data row: those of the named columns that are there, under these names, and `row`, counted
        from 1; and the names of the columns that were left aside.

    Raises:
        TraceError: no CSV, a column that is missing or there twice, a row with more cells than the header, no row.
    """
    try:
        cells = pl.read_csv(path, infer_schema=False, row_index_name=INDEX, row_index_offset=1)
    except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from error
    given = [name for name in cells.columns if name != INDEX]
    shown = re.sub(r"_duplicated_\d+", "", ",".join(given))  # as polars renames a name that comes twice
    keys = [name.strip().lower() for name in given]
    for name in required:
        if name.lower() not in keys:
            raise TraceError(path, f"a column {name}", found=shown)
    wanted = [name for name in (*required, *optional) if name.lower() in keys]
    for name in wanted:
        if keys.count(name.lower()) > 1 or f"{name.lower()}_duplicated_0" in keys:
            raise TraceError(path, f"one column {name}", found=shown)
    trimmed = [pl.col(given[keys.index(name.lower())]).str.strip_chars().fill_null("").alias(name) for name in wanted]
    table = cells.filter(~pl.all_horizontal(pl.col(given).is_null())).select(pl.col(INDEX).alias("row"), *trimmed)
    if not len(table):
        raise TraceError(path, "at least one row below the header")
    return table, [name for name, key in zip(given, keys, strict=True) if key not in {name.lower() for name in wanted}]


def whole_numbers(path: str | Path, table: pl.DataFrame, column: str, least: int) -> pl.Series:
    """A column of whole numbers; 374.0, as spreadsheets write it, is one.

    Args:
        path: the file, as it was given.
        table: from `text_table`.
        column: name of the column.
        least: smallest number allowed.

    Returns:
        The numbers, shape (rows,), Int64.

    Raises:
        TraceError: a cell that is not a whole number, or out of range.
    """
    number = table[column].cast(pl.Float64, strict=False).fill_null(float("nan"))
    bad = ~(number.is_finite() & (number == number.floor()) & (number >= least))
    refuse(path, table, column, bad, f"a whole number >= {least}")
    refuse(path, table, column, number > MOST, f"a whole number <= {MOST}")
    return number.cast(pl.Int64)


def seconds(path: str | Path, table: pl.DataFrame, column: str) -> pl.Series:
    """A column of times in seconds.

    Args:
        path: the file, as it was given.
        table: from `text_table`.
        column: name of the column.

    Returns:
        The times, shape (rows,), Float64 [s].

    Raises:
        TraceError: a cell that is not a number, not finite or negative.
    """
    number = table[column].cast(pl.Float64, strict=False).fill_null(float("nan"))
    refuse(path, table, column, ~(number.is_finite() & (number >= 0)), "seconds >= 0")
    return number


def refuse(path: str | Path, table: pl.DataFrame, column: str, bad: pl.Series, expected: str) -> None:
    """Name the first bad cell, if there is one.

    Args:
        path: the file, as it was given.
        table: from `text_table`.
        column: name of the column.
        bad: True where the cell is not what it should be, shape (rows,).
        expected: what it should be, in words.

    Raises:
        TraceError: there is one.
    """
    if bad.any():
        at = int(bad.arg_true()[0])
        raise TraceError(path, expected, row=int(table["row"][at]), column=column, found=table[column][at])


def _unreadable(path: str | Path, reason: str) -> TraceError:
    """The line at which a file stops being CSV: polars names none."""
    width = 0
    for row, line in enumerate(Path(path).read_bytes().splitlines()):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError:
            return TraceError(path, "UTF-8 text", row=row or None, found=line[:40])
        if text.count('"') % 2:
            return TraceError(path, "quotes in pairs", row=row or None, found=text)
        width = width or text.count(",") + 1
        if '"' not in text and text.count(",") >= width:
            return TraceError(path, f"{width} cells, as in the header", row=row, found=text)
    return TraceError(path, f"CSV text ({reason.splitlines()[0]})")
