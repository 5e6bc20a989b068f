"""The BurstGPT traces: Timestamp, Model, Request tokens, Response tokens, Total tokens, Log Type."""

from __future__ import annotations

from pathlib import Path

from headway.identification.readers.cells import seconds, text_table, whole_numbers
from headway.identification.readers.requests import RequestTable

REQUIRED = ("Timestamp", "Request tokens", "Response tokens")
"""Columns that the file must have."""

OPTIONAL = ("Model", "Log Type")
"""Columns that it may have. Later releases also hold Session ID and Elapsed time, which nothing reads."""


def read_burstgpt(path: str | Path) -> RequestTable:
    """A BurstGPT trace. Requests that failed hold no response token, and are set aside like all that ask for none.

    Args:
        path: the file, as it was given.

    Returns:
        Its requests, with seconds as they stand in the file.

    Raises:
        TraceError: a column is missing, or a cell is not what it should be.

    Source:
        Wang et al., BurstGPT: A Real-world Workload Dataset to Optimize LLM Serving Systems, 2024, and the schema in
        its repository.
    """
    table, _ = text_table(path, REQUIRED, OPTIONAL)
    prompt = whole_numbers(path, table, "Request tokens", least=0)
    requests = RequestTable(
        row=table["row"],
        arrival_s=seconds(path, table, "Timestamp"),
        prompt_tokens=prompt,
        output_tokens=whole_numbers(path, table, "Response tokens", least=0),
        class_name=None,
        notes=[],
    )
    for name in OPTIONAL:
        if name in table.columns and table[name].n_unique() > 1:
            shares = table[name].value_counts(sort=True, normalize=True).head(4).rows()
            said = ", ".join(f"{value or 'none'} {share:.0%}" for value, share in shares)
            requests.notes.append(f"{name} in the file: {said}; all are taken as one kind of request")
    empty = prompt == 0
    if not empty.any():
        return requests
    requests.notes.append(f"{empty.sum():,} of {len(empty):,} rows hold no request token; set aside")
    row, arrival_s, prompt, output = (column.filter(~empty) for column in requests[:4])
    return RequestTable(row, arrival_s, prompt, output, None, requests.notes)
