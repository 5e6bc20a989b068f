"""From the text of a table to checked numbers: the first wrong cell is named by row and column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import polars as pl

from headway.identification.readers.errors import TraceError
from headway.identification.readers.opened import Opened


class Table(NamedTuple):
    """What a reader hands on.

    Args:
        frame: the columns of `headway.identification.trace.COLUMNS` and others, in file order, shape (k,). A column that
            the format does not record stands at zero, or at an estimate that a warning names, and is in `missing`.
        aside: rows or lines that hold no step, by reason, a key of `headway.identification.trace.READ_ASIDE` [rows].
        warnings: what there is to say, one sentence each.
        missing: columns of `COLUMNS` that the format does not record.
        clock: what the durations were taken on, one of `headway.identification.trace.CLOCKS`.
        engine: limits of the engine that the file itself names, by field of `Limits` [tokens, requests].
    """

    frame: pl.DataFrame
    aside: Mapping[str, int] = {}
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    clock: str = "wall"
    engine: Mapping[str, int] = {}


def seconds(cells: pl.Series, per_second: float) -> pl.Series:
    """Durations in seconds, as numpy divides: polars may multiply by the reciprocal, and differ in the last bit.

    Args:
        cells: float64, shape (k,).
        per_second: how many of their unit make a second.

    Returns:
        The same [s].
    """
    return pl.Series(cells.name, cells.to_numpy() / per_second)


MOST = 1e15
"""Greatest number that a cell may hold: above it squares of sums are no longer exact, and no engine gets there."""


class Cells(NamedTuple):
    """Some rows of a CSV.

    Args:
        frame: cells as text, shape (k, columns).
        before: rows of the file before them [rows].
        cut: rows that the file broke off in, 0 or 1 [rows].
    """

    frame: pl.DataFrame
    before: int
    cut: int


def text_pieces(opened: Opened, required: Iterable[str], form: str) -> Iterator[Cells]:
    """The cells of a CSV as text, piece by piece. A last row that the file broke off in is set aside.

    Args:
        opened: the file.
        required: names of the columns that must be there.
        form: what the file was taken for, for the message.

    Returns:
        The rows in file order; at least one piece.

    Raises:
        TraceError: no row, a column missing, or rows that are no table.
    """
    required, rows, lines, header = tuple(required), 0, 0, b""
    for text in opened.pieces():
        try:
            frame = pl.read_csv(header + text, infer_schema=False, truncate_ragged_lines=False)
        except (pl.exceptions.PolarsError, UnicodeDecodeError) as error:
            raise _no_table(opened, text, lines + bool(header), form, str(error).splitlines()[0]) from None
        frame = frame.rename({name: name.strip() for name in frame.columns})
        if not header:
            need_columns(frame, opened.file, required, form)
            twice = next((name for name in required if opened.header.count(name) > 1), None)
            if twice is not None:
                raise TraceError(opened.file, f"one column {twice} in {form}", column=twice, found="two")
            header, lines = text.lstrip().split(b"\n", 1)[0].rstrip(b"\r") + b"\n", -1
        lines, cut = lines + text.count(b"\n"), 0
        frame = frame.filter(~pl.all_horizontal(pl.all().is_null()))
        if frame.height and not text.endswith(b"\n") and text.rsplit(b"\n", 1)[-1].count(b",") < len(frame.columns) - 1:
            frame, cut = frame.head(-1), 1
        if frame.height or cut:
            yield Cells(frame, rows, cut)
        rows += frame.height
    if rows == 0:
        raise TraceError(opened.file, f"at least one step in {form}, found none")


def text_table(opened: Opened, required: Iterable[str], form: str) -> tuple[pl.DataFrame, int]:
    """The cells of a CSV as text, all at once. A last row that the file broke off in is set aside.

    Args:
        opened: the file.
        required: names of the columns that must be there.
        form: what the file was taken for, for the message.

    Returns:
        (cells as text, shape (k, columns); number of rows set aside, 0 or 1 [rows]).

    Raises:
        TraceError: no row, a column missing, or rows that are no table.
    """
    found = list(text_pieces(opened, required, form))
    return pl.concat([cells.frame for cells in found]), sum(cells.cut for cells in found)


def need_columns(frame: pl.DataFrame, file: str, required: Iterable[str], form: str) -> None:
    """Refuse a table that lacks a column.

    Args:
        frame: the table, shape (k, columns).
        file: for the message.
        required: names of the columns that must be there.
        form: what the file was taken for, for the message.

    Raises:
        TraceError: the first column that is missing.
    """
    for name in required:
        if name not in frame.columns:
            raise TraceError(file, f"this column in {form}", column=name, found=", ".join(frame.columns))


def _no_table(opened: Opened, text: bytes, row: int, form: str, reason: str) -> TraceError:
    """The first row with more cells than the header, or the parser's own reason. The first line is row `row`, 0 the header."""
    cells = len(opened.header)
    for number, line in enumerate(text.split(b"\n"), row):
        if number and line.count(b",") >= cells:
            return TraceError(opened.file, f"{cells} cells, as in the header of {form}", row=number, found=line.count(b",") + 1)
    return TraceError(opened.file, f"{form} ({reason})")


def numbers(frame: pl.DataFrame, file: str, names: Iterable[str], *, negative: Iterable[str] = (), before: int = 0) -> pl.DataFrame:
    """Turn columns of text or numbers into checked numbers.

    Args:
        frame: a table in file order, shape (k, columns).
        file: for the message.
        names: the columns to check.
        negative: those among them that may be below zero.
        before: rows of the file before these [rows].

    Returns:
        The table with these columns as float64.

    Raises:
        TraceError: the first cell that is no number, not finite, or negative; rows are counted from 1.
    """
    free = set(negative)
    for name in names:
        cells = frame[name]
        text = cells.dtype == pl.String
        try:
            values = (cells.str.strip_chars() if text else cells).cast(pl.Float64, strict=False)
        except pl.exceptions.PolarsError:
            raise TraceError(file, "numbers", column=name, found=str(cells.dtype)) from None
        want = "a number" if name in free else "a number that is not negative"
        good = (values.abs() <= MOST) if name in free else (values >= 0) & (values <= MOST)
        good = good & values.is_finite()
        wrong = (~good.fill_null(False)).arg_true()
        if len(wrong):
            row = int(wrong[0])
            found = cells[row]
            if values[row] is not None and abs(values[row]) > MOST:
                want = f"a number of at most {MOST:.0e}"
            raise TraceError(file, want, row=before + row + 1, column=name, found="" if found is None else found)
        frame = frame.with_columns(values.alias(name))
    return frame


def apart(row: pl.Expr) -> pl.Expr:
    """Step numbers for the rows of a table that did not run one after the other: no two follow each other.

    Steps of consecutive numbers are taken for neighbours in time, and a table's order tells nothing of time.

    Args:
        row: number of the row.

    Returns:
        An expression.
    """
    return 2 * row.cast(pl.Int64)


def requests(tokens: str, counted: str) -> pl.Expr:
    """Requests with a chunk: at least one in a step with prompt tokens, none in another, whatever was counted.

    Args:
        tokens: name of the column of prompt tokens in the step [tokens].
        counted: name of the column of requests [requests].

    Returns:
        An expression [requests].
    """
    return pl.when(pl.col(tokens) > 0).then(pl.max_horizontal(pl.col(counted), pl.lit(1.0))).otherwise(0.0)


def pairs(tokens: str, context: str, requests: str) -> pl.Expr:
    """Attention work of the chunks, where only their sums were recorded: all chunks of a step taken as equal.

    sum over chunks of p_i (c_i + p_i / 2), with p_i = p / r and c_i = c / r, gives p (c / r + p / r / 2)

    Args:
        tokens: name of the column of p, prompt tokens in the step [tokens].
        context: name of the column of c, their tokens computed before it [tokens].
        requests: name of the column of r, the requests that they belong to [requests].

    Returns:
        An expression [tokens^2].
    """
    share = pl.max_horizontal(pl.col(requests), pl.lit(1.0))
    return pl.col(tokens) * (pl.col(context) + pl.col(tokens) / 2) / share
