"""Rows that were never measured: copies of other rows, times a constant."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

EXACT = 1e-6
"""How far the ratio of two groups may vary, relative to itself, and still be one constant: no measurement repeats so."""
FEWEST = 8
"""Rows in common below which nothing is said: a few rounded numbers may well be in one ratio."""
ROUND = 3
"""Decimals of a factor that someone typed."""


class Copies(NamedTuple):
    """What `scaled_copies` found.

    Args:
        rows: True for a row that is a copy, shape (k,), bool.
        said: one sentence for each pair of groups.
    """

    rows: np.ndarray
    said: tuple[str, ...]


def scaled_copies(frame: pl.DataFrame, keys: Sequence[str], values: Sequence[str]) -> Copies:
    """Find groups of rows whose values are those of another group, times one constant for each column.

    A group is the rows with one value in one column of text; it is held against the group of another value in that
    column, row by row at the same keys and the same other columns of text, in file order where a configuration was
    repeated. Of two such groups the copy is the one whose factors are round (x1.3, not x0.769); else the later one.

    Args:
        frame: any table, shape (k, columns).
        keys: columns that name the configuration of a row.
        values: columns that were measured, above zero.

    Returns:
        Which rows are copies, and of what.

    Raises:
        ValueError: a column that is not there.
    """
    if absent := [name for name in (*keys, *values) if name not in frame.columns]:
        raise ValueError(f"the table has no columns {absent}; it has {frame.columns}")
    texts = [name for name in frame.columns if frame[name].dtype == pl.String and name not in values]
    rows, said = np.zeros(frame.height, bool), []
    numbered = frame.select(*dict.fromkeys([*keys, *texts, *values])).with_row_index("row")
    for column in texts:
        same = [name for name in dict.fromkeys([*keys, *texts]) if name != column]
        counted = numbered.with_columns(nth=pl.int_range(pl.len()).over([*same, column]))
        groups = {key[0]: group for key, group in counted.group_by(column, maintain_order=True)}
        for first, second in itertools.combinations(groups, 2):
            both = groups[first].join(groups[second], on=[*same, "nth"], suffix="_other", nulls_equal=True)
            factors = _factors(both, values)
            if factors is None:
                continue
            forward = _is_round(factors) or not _is_round(1 / factors)
            copy, origin = (second, first) if forward else (first, second)
            rows[both["row_other" if forward else "row"].to_numpy()] = True
            by = ", ".join(f"{name} x{f:.6g}" for name, f in zip(values, factors if forward else 1 / factors, strict=True))
            said.append(f"{both.height} rows of {column} {copy!r} are those of {origin!r} times a constant ({by}): not measured")
    return Copies(rows, tuple(said))


def _factors(both: pl.DataFrame, values: Sequence[str]) -> np.ndarray | None:
    """The constant of each column by which the second group exceeds the first; None if it is not one, or the values stand still."""
    if both.height < FEWEST:
        return None
    first, second = (np.column_stack([both[name + end].to_numpy() for name in values]) for end in ("", "_other"))
    if not (np.all(first > 0) and np.all(second > 0)) or np.any(np.ptp(first, axis=0) <= EXACT * first.max(axis=0)):
        return None
    ratio = second / first
    middle = np.median(ratio, axis=0)
    return middle if np.all(np.abs(ratio / middle - 1.0) <= EXACT) else None


def _is_round(factors: np.ndarray) -> bool:
    return bool(np.all(np.abs(factors - np.round(factors, ROUND)) <= EXACT * factors))


def repeated_rows(frame: pl.DataFrame, values: Sequence[str]) -> np.ndarray:
    """Rows whose measured values stand in an earlier row to the last digit: one measurement, listed under two names.

    Args:
        frame: any table, shape (k, columns).
        values: columns that were measured; two at least, or chance repeats a rounded number.

    Returns:
        True for every row but the first of its kind, shape (k,), bool.

    Raises:
        ValueError: fewer than two columns.

    Example:
        >>> repeated_rows(pl.DataFrame({"a": [1.5, 2.5, 1.5], "b": [3.5, 3.5, 3.5]}), ["a", "b"]).tolist()
        [False, False, True]
    """
    if len(values) < 2:
        raise ValueError(f"needs two columns of measured values at least, got {list(values)}")
    return ~frame.select(pl.struct(values).is_first_distinct()).to_series().to_numpy()
