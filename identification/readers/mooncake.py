"""The Mooncake traces: JSON lines with timestamp (ms), input_length, output_length, hash_ids."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Annotated, Any

import msgspec
import polars as pl

from headway.identification.readers.cells import MOST
from headway.identification.readers.errors import TraceError
from headway.identification.readers.requests import RequestTable, shared_prefixes

REQUIRED = ("timestamp", "input_length", "output_length")
"""Keys that every line must have."""


UNIT_TOKENS = 512
"""Prompt tokens that one hash stands for [tokens]; the last of a prompt may stand for fewer, and then for no whole unit."""


class Line(msgspec.Struct):
    """One request.

    Args:
        timestamp: time of arrival [ms].
        input_length: [tokens].
        output_length: [tokens].
        hash_ids: one number per 512-token block of the prompt; equal numbers are equal prefixes.
    """

    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=1, le=MOST)]
    output_length: Annotated[int, msgspec.Meta(ge=0, le=MOST)]
    hash_ids: list[int] = []


EXPECTED: dict[str, tuple[Any, str]] = {
    "timestamp": (Annotated[float, msgspec.Meta(ge=0)], "milliseconds >= 0"),
    "input_length": (Annotated[int, msgspec.Meta(ge=1, le=MOST)], "a whole number >= 1"),
    "output_length": (Annotated[int, msgspec.Meta(ge=0, le=MOST)], "a whole number >= 0"),
    "hash_ids": (list[int], "a list of whole numbers"),
}
"""Each key's type and its name in an error message."""


def read_mooncake(path: str | Path) -> RequestTable:
    """A Mooncake trace. Its stamps lie on a grid of three seconds; they are kept as they are.

    Spreading the requests of one stamp over the three seconds would be easier on a scheduler than what was recorded can
    tell: whoever wants it does it in the open, to the workload.

    Args:
        path: the file, as it was given.

    Returns:
        Its requests.

    Raises:
        TraceError: a line that is no JSON object, lacks a key, or holds a wrong value.

    Source:
        https://github.com/kvcache-ai/Mooncake, FAST25-release/traces.
    """
    decoder = msgspec.json.Decoder(Line)
    rows, lines = [], []
    with Path(path).open("rb") as file:
        for row, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                lines.append(decoder.decode(text.removeprefix(codecs.BOM_UTF8)))
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise _wrong_line(path, row, text) from error
            rows.append(row)
    prompt_tokens, prefix, notes = pl.Series([line.input_length for line in lines], dtype=pl.Int64), None, []
    if any(line.hash_ids for line in lines):
        prefix, said = shared_prefixes(UNIT_TOKENS, [line.hash_ids for line in lines], prompt_tokens)
        notes.append(said)
    return RequestTable(
        row=pl.Series(rows, dtype=pl.Int64),
        arrival_s=pl.Series([line.timestamp / 1e3 for line in lines], dtype=pl.Float64),
        prompt_tokens=prompt_tokens,
        output_tokens=pl.Series([line.output_length for line in lines], dtype=pl.Int64),
        class_name=None,
        notes=notes,
        prefix=prefix,
    )


def _wrong_line(path: str | Path, row: int, text: bytes) -> TraceError:
    """Which key of a refused line is to blame."""
    shown = text.decode("utf-8", "replace").strip()
    try:
        given = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return TraceError(path, "one JSON object on the line", row=row, found=shown)
    if not isinstance(given, dict):
        return TraceError(path, "one JSON object on the line", row=row, found=shown)
    for key, (kind, expected) in EXPECTED.items():
        if key not in given and key in REQUIRED:
            return TraceError(path, f"a key {key}", row=row, found=shown)
        try:
            msgspec.convert(given.get(key, []), kind)
        except msgspec.ValidationError:
            return TraceError(path, expected, row=row, column=key, found=given[key])
    return TraceError(path, f"the keys {', '.join(EXPECTED)}", row=row, found=shown)
