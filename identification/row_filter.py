"""Which rows of a column are asked for: those that equal a value, or those of a range of numbers."""

from __future__ import annotations

import numpy as np
import polars as pl

SHOWN = 8
"""Values of a column that a refusal lists at most."""


def chosen(column: pl.Series, value: object) -> np.ndarray:
    """Rows of a column that hold a value, or lie in a range.

    A text with one colon is a range where the column holds numbers, and a value like any other where it holds text.

    Args:
        column: of a trace, shape (k,).
        value: wanted; "low:high" is a range with both ends in it, "low:" and ":high" are open.

    Returns:
        Mask of shape (k,), bool; at least one row is in it.

    Raises:
        ValueError: no row, a range of a column of text, or what is no range.

    Example:
        >>> chosen(pl.Series("decode_requests", [1, 8, 16]), "8:").tolist()
        [False, True, True]
    """
    text = str(value)
    if column.dtype.is_numeric() and ":" in text:
        return _between(column, text)
    here = _equal(column, value)
    if not here.any():
        if not column.dtype.is_numeric() and _ends(text) is not None:
            raise ValueError(f"{column.name} holds no numbers, so it has no range {text}; the trace holds {_held(column)}")
        raise ValueError(f"no row has {column.name}={value}; the trace holds {_held(column)}")
    return here


def _between(column: pl.Series, text: str) -> np.ndarray:
    """Rows of a range, both ends in it; a row without a number is in none."""
    name, ends = column.name, _ends(text)
    if ends is None:
        raise ValueError(f"{name}={text} is no range of numbers; write {name}=16:64, {name}=16: or {name}=:64")
    low, high = ends
    if low > high:
        raise ValueError(f"{name}={text} is a range whose low end is above its high one; write {name}={high:.10g}:{low:.10g}")
    values = column.cast(pl.Float64).fill_null(np.nan).to_numpy()
    here = (values >= low) & (values <= high)
    if not here.any():
        known = values[np.isfinite(values)]
        holds = f"{known.min():.10g} to {known.max():.10g}" if len(known) else "no number there"
        raise ValueError(f"no row has {name} in {text}; the trace holds {holds}")
    return here


def _ends(text: str) -> tuple[float, float] | None:
    """Low and high end of a range, an open one infinite; None for what is no range."""
    low, colon, high = (part.strip() for part in text.partition(":"))
    try:
        ends = (float(low) if low else -np.inf, float(high) if high else np.inf)
    except ValueError:
        return None
    written = [end for end, part in zip(ends, (low, high), strict=True) if part]
    return ends if colon and written and np.isfinite(written).all() else None


def _held(column: pl.Series) -> list[object]:
    return column.unique(maintain_order=True).head(SHOWN).to_list()


def _equal(column: pl.Series, value: object) -> np.ndarray:
    """Compare as numbers where the column holds numbers (2 is 2.0), else as text."""
    if column.dtype.is_numeric():
        try:
            return (column == float(str(value))).fill_null(False).to_numpy()
        except ValueError:
            return np.zeros(len(column), bool)
    return (column.cast(pl.String).str.to_lowercase() == str(value).lower()).fill_null(False).to_numpy()


def column_range(name: str, low: float, high: float) -> str:
    """A range as the command line takes it.

    Args:
        name: of the column.
        low: the least value [unit of the column].
        high: the largest; infinite for an open end.

    Returns:
        An option.

    Example:
        >>> column_range("decode_requests", 16.0, float("inf"))
        '--where decode_requests=16:'
    """
    ends = (f"{end:.0f}" if float(end).is_integer() else f"{end:.6g}" if np.isfinite(end) else "" for end in (low, high))
    return f"--where {name}={':'.join(ends)}"
