"""Tables of lengths alone, as ShareGPT's: input_length, output_length, and no arrivals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headway.identification.readers.cells import text_table, whole_numbers
from headway.identification.readers.errors import TraceError
from headway.models.generators import Poisson
from headway.models.recorded_lengths import RecordedLengths

REQUIRED = ("input_length", "output_length")
"""Columns that the file must have."""

FORM = "a table of lengths, input_length,output_length, without arrivals"


def claims(path: Path) -> bool:
    """Whether a file holds lengths and nothing that tells when requests arrived.

    Args:
        path: as it was given.

    Returns:
        True for a CSV whose header is these two columns.
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        first = file.readline(4096).decode("utf-8-sig", "replace")
    return {name.strip().strip('"').lower() for name in first.split(",")} == set(REQUIRED)


def read(path: Path, rate_rps: float | None, shares: Sequence[float]) -> tuple[RecordedLengths, list[str]]:
    """Requests of these lengths, arriving as a Poisson process of the rate given.

    Args:
        path: the file.
        rate_rps: mean rate of arrivals; the file holds none [requests/s].
        shares: part of the requests in each class, shape (classes,).

    Returns:
        The source, and a sentence each on what was assumed or set aside.

    Raises:
        TraceError: no rate given, a column missing, or a cell that is no whole number.
    """
    table, ignored = text_table(path, REQUIRED)
    prompt = whole_numbers(path, table, "input_length", least=0).to_numpy()
    output = whole_numbers(path, table, "output_length", least=0).to_numpy()
    if rate_rps is None:
        raise TraceError(path, f"a rate beside {FORM}: write for example --rate 8/s")
    kept = (prompt > 0) & (output > 0)
    notes = [f"the file holds lengths only: arrivals are drawn as a Poisson process of {rate_rps:g}/s"]
    if not kept.all():
        notes.append(f"{(~kept).sum():,} of {len(kept):,} rows hold no prompt or no output token; set aside")
    if ignored:
        notes.append(f"columns that nothing reads: {', '.join(ignored)}")
    source = RecordedLengths(Poisson(rate_rps), prompt[kept], output[kept], tuple(shares), f"{path.name} at {rate_rps:g}/s")
    try:
        source.check()
    except ValueError as error:
        raise TraceError(path, f"{FORM} ({error})") from None
    return source, notes
