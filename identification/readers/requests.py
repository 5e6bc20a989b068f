"""Requests as Headway writes them: a CSV with a row per request. Other formats are brought into the same table."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import polars as pl

from headway.identification.readers.cells import refuse, seconds, text_table, whole_numbers

REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
"""Columns that Headway's own request file must have."""

OPTIONAL = ("class", "prefix_hashes")
"""Columns that it may have."""


class RequestTable(NamedTuple):
    """The requests of a file, in the order of its rows, nothing set aside yet.

    Args:
        row: number of the data row, from 1, shape (n,).
        arrival_s: time of arrival from any origin, shape (n,), Float64 [s].
        prompt_tokens: shape (n,), Int64, at least 1 [tokens].
        output_tokens: shape (n,), Int64, at least 0 [tokens].
        class_name: name or number of the class as it stands in the file, shape (n,), String; None if the file has no classes.
        notes: what a reader of the figures should know.
    """

    row: pl.Series
    arrival_s: pl.Series
    prompt_tokens: pl.Series
    output_tokens: pl.Series
    class_name: pl.Series | None
    notes: list[str]


def read_requests(path: str | Path) -> RequestTable:
    """Headway's own request file: CSV with arrival_s, prompt_tokens, output_tokens, and perhaps class and prefix_hashes.

    Args:
        path: the file, as it was given.

    Returns:
        Its requests.

    Raises:
        TraceError: a column is missing, or a cell is not what it should be.
    """
    table, ignored = text_table(path, REQUIRED, OPTIONAL)
    class_name = None
    if "class" in table.columns:
        class_name = table["class"]
        refuse(path, table, "class", class_name == "", "the name or number of a class")
    notes = [f"columns that nothing reads: {', '.join(ignored)}"] if ignored else []
    if "prefix_hashes" in table.columns:
        blocks = table["prefix_hashes"].str.extract_all(r"[^\s;,\[\]]+").explode(empty_as_null=False)
        notes.append(prefix_note(len(blocks), blocks.n_unique()))
    return RequestTable(
        row=table["row"],
        arrival_s=seconds(path, table, "arrival_s"),
        prompt_tokens=whole_numbers(path, table, "prompt_tokens", least=1),
        output_tokens=whole_numbers(path, table, "output_tokens", least=0),
        class_name=class_name,
        notes=notes,
    )


def prefix_note(blocks: int, unique: int) -> str:
    """What to say of prefix hashes that a file carries.

    Args:
        blocks: hashed blocks in all prompts.
        unique: different ones among them.

    Returns:
        One sentence.

    Example:
        >>> prefix_note(288_500, 182_790)
        '288,500 hashed blocks of prompts, 37% repeat an earlier one; prefixes are not shared here, every prompt counts in full'
    """
    repeated = 1 - unique / blocks if blocks else 0.0
    found = f"{blocks:,} hashed blocks of prompts, {repeated:.0%} repeat an earlier one"
    return f"{found}; prefixes are not shared here, every prompt counts in full"
