"""Requests as Headway writes them: a CSV with a row per request. Other formats are brought into the same table."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from headway.identification.readers.cells import refuse, seconds, text_table, whole_numbers
from headway.models.prefix import Prefix, prefix_of

REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens")
"""Columns that Headway's own request file must have."""

OPTIONAL = ("class", "prefix_hashes", "prefix_unit_tokens")
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
        prefix: which prompts begin alike, shape (n,); None if the file does not say.
    """

    row: pl.Series
    arrival_s: pl.Series
    prompt_tokens: pl.Series
    output_tokens: pl.Series
    class_name: pl.Series | None
    notes: list[str]
    prefix: Prefix | None = None


def read_requests(path: str | Path) -> RequestTable:
    """Headway's own request file: CSV with arrival_s, prompt_tokens, output_tokens, and perhaps class and prefix_hashes.

    A hash stands for prefix_unit_tokens tokens of its prompt, one number for the whole file; without it the hashes are not used.

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
    prompt_tokens, prefix = whole_numbers(path, table, "prompt_tokens", least=1), None
    if "prefix_hashes" in table.columns:
        hashes = table["prefix_hashes"].str.extract_all(r"[^\s;,\[\]]+").to_list()
        if "prefix_unit_tokens" in table.columns:
            units = whole_numbers(path, table, "prefix_unit_tokens", least=1)
            refuse(path, table, "prefix_unit_tokens", units != units[0], f"{units[0]}, the same in every row")
            prefix, said = shared_prefixes(int(units[0]), hashes, prompt_tokens)
            notes.append(said)
        else:
            found = sum(len(row) for row in hashes)
            notes.append(f"{found:,} hashes of prompts are not used: no column prefix_unit_tokens says how many tokens each stands for")
    return RequestTable(
        row=table["row"],
        arrival_s=seconds(path, table, "arrival_s"),
        prompt_tokens=prompt_tokens,
        output_tokens=whole_numbers(path, table, "output_tokens", least=0),
        class_name=class_name,
        notes=notes,
        prefix=prefix,
    )


def shared_prefixes(unit_tokens: int, hashes: Sequence[Sequence[Hashable]], prompt_tokens: pl.Series) -> tuple[Prefix, str]:
    """The prefixes that a file's hashes tell, and what to say of them.

    Args:
        unit_tokens: prompt tokens that one hash stands for [tokens].
        hashes: of each prompt's units in order, n of them.
        prompt_tokens: shape (n,) [tokens].

    Returns:
        (the prefixes, one sentence).

    Example:
        >>> shared_prefixes(512, [[7, 8], [7]], pl.Series([1000, 600]))[1]
        '2 units of 512 prompt tokens, 50% of them as in an earlier prompt: computed once while cached; 1 hashes of no whole unit left out'
    """
    prefix = prefix_of(unit_tokens, hashes, prompt_tokens.to_numpy())
    whole, given = len(prefix.ids), sum(len(row) for row in hashes)
    repeated = 1 - len(set(prefix.ids.tolist())) / whole if whole else 0.0
    said = f"{whole:,} units of {unit_tokens} prompt tokens, {repeated:.0%} of them as in an earlier prompt: computed once while cached"
    return prefix, said + (f"; {given - whole:,} hashes of no whole unit left out" if given > whole else "")
