"""The Azure LLM inference traces: TIMESTAMP, ContextTokens, GeneratedTokens."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from headway.identification.readers.cells import refuse, text_table, whole_numbers
from headway.identification.readers.requests import RequestTable

REQUIRED = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
"""Columns that the file must have."""

STAMP = r"^(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:[.,](\d+))?\s*(?:Z|([+-])(\d\d):?(\d\d)?)?$"
"""Day, time, fraction, and the offset from UTC, if any."""


def read_azure(path: str | Path) -> RequestTable:
    """An Azure LLM inference trace, of 2023 (fractions of 100 ns, no zone) or 2024 (microseconds, with zone).

    Args:
        path: the file, as it was given.

    Returns:
        Its requests, with seconds counted from the earliest.

    Raises:
        TraceError: a column is missing, or a cell is not what it should be.

    Source:
        https://github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and 2024.
    """
    table, _ = text_table(path, REQUIRED)
    return RequestTable(
        row=table["row"],
        arrival_s=_seconds(path, table),
        prompt_tokens=whole_numbers(path, table, "ContextTokens", least=1),
        output_tokens=whole_numbers(path, table, "GeneratedTokens", least=0),
        class_name=None,
        notes=[],
    )


def _seconds(path: str | Path, table: pl.DataFrame) -> pl.Series:
    """Seconds since the earliest stamp. The fraction is added after the subtraction: 1.7e9 s and 100 ns do not fit one double."""
    group = [pl.col("TIMESTAMP").str.extract(STAMP, n) for n in range(1, 7)]
    whole = pl.concat_str([group[0], group[1]], separator=" ").str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False).dt.epoch("s")
    shift = group[4].cast(pl.Int64) * 3600 + group[5].fill_null("0").cast(pl.Int64) * 60
    shift = pl.when(group[3] == "-").then(-shift).otherwise(shift).fill_null(0)
    stamp = table.select(
        whole=whole - shift, fraction=pl.concat_str([pl.lit("0."), group[2].fill_null("0")]).cast(pl.Float64), bad=whole.is_null()
    )
    refuse(path, table, "TIMESTAMP", stamp["bad"], "a time such as 2023-11-16 18:15:46.6805900")
    seconds = (stamp["whole"] - stamp["whole"].min()).cast(pl.Float64) + stamp["fraction"]
    return (seconds - seconds.min()).alias("arrival_s")
