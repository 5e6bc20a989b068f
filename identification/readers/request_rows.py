"""What a reader of request stamps hands on, and how it takes numbers out of JSON: a missing one is None, never zero."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import polars as pl

from headway.identification.clients.requests import GIVEN, kind_of
from headway.identification.readers.columns import Opened
from headway.identification.readers.errors import TraceError


class RequestRows(NamedTuple):
    """The requests of one file.

    Args:
        frame: columns of `headway.identification.clients.requests.GIVEN` and a tool's own, shape (n,).
        clock: of the client's stamps, one of `headway.identification.clients.requests.REQUEST_CLOCKS`.
        aside: records that hold no request or only part of one, by reason in words [records].
        warnings: what there is to say, one sentence each.
        formulas: by column of a tool's own, the formula it stands for.
    """

    frame: pl.DataFrame
    clock: str = "epoch"
    aside: Mapping[str, int] = {}
    warnings: tuple[str, ...] = ()
    formulas: Mapping[str, str] = {}


def open_file(file: str) -> Opened:
    """Open a file of requests.

    Args:
        file: as it was given.

    Returns:
        The file.

    Raises:
        TraceError: a folder, no such file, or one that cannot be read.
    """
    try:
        return Opened(file)
    except IsADirectoryError:
        raise TraceError(file, "a file, not a folder") from None
    except FileNotFoundError:
        raise TraceError(file, "a file, but there is none of this name") from None
    except OSError as error:
        raise TraceError(file, f"a file that can be read: {error.strerror}") from None


def rows_frame(rows: Sequence[Mapping[str, Any]], own: Sequence[str] = ()) -> pl.DataFrame:
    """Rows as a frame whose columns have their types even where all are None.

    Args:
        rows: one mapping per request.
        own: names of a tool's own figures, all numbers.

    Returns:
        The frame, shape (n,).
    """
    kinds = {**GIVEN, **dict.fromkeys(own, pl.Float64)}
    names = [name for name in kinds if any(name in row for row in rows)]
    return pl.DataFrame([{name: row.get(name) for name in names} for row in rows], schema={name: kinds[name] for name in names})


def whole(opened: Opened, form: str) -> dict[str, Any]:
    """The file as one JSON object.

    Args:
        opened: the file.
        form: what it was taken for, for the message.

    Returns:
        The object.

    Raises:
        TraceError: no JSON, or another value than an object.
    """
    try:
        value = msgspec.json.decode(opened.data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(opened.file, f"{form} as one JSON object ({error})") from None
    if not isinstance(value, dict):
        raise TraceError(opened.file, f"{form} as one JSON object", found=type(value).__name__)
    return value


def lines(opened: Opened, form: str) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """The file as one JSON object per line.

    Args:
        opened: the file.
        form: what it was taken for, for the message.

    Yields:
        (number of the line from 1, the object); None for the object if the file broke off in its last line.

    Raises:
        TraceError: a line that is no JSON object.
    """
    parts = opened.data.split(b"\n")
    for number, line in enumerate(parts, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)  # not msgspec: an unlimited rate is written as Infinity, which is no JSON to it
        except ValueError as error:
            if number == len(parts) and number > 1:
                yield number, None
                return
            raise TraceError(opened.file, f"a JSON object in every line of {form} ({error})", row=number) from None
        if not isinstance(value, dict):
            raise TraceError(opened.file, f"a JSON object in every line of {form}", row=number, found=type(value).__name__)
        yield number, value


CUT = "held in part only by a file that was cut off"
"""Reason for a last line that breaks off."""


def number(value: object, scale: float = 1.0) -> float | None:
    """A number in the unit wanted.

    Args:
        value: of JSON; a text of digits counts (64-bit integers are often written so), a truth value does not.
        scale: factor to the unit wanted.

    Returns:
        The number; None where there is none, or none that is finite.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value) * scale
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def count(value: object) -> int | None:
    """A number of tokens.

    Args:
        value: of JSON.

    Returns:
        The whole number; None where there is none, or none that counts anything (zero or below, or with a fraction).
    """
    found = number(value)
    return None if found is None or found < 1 or found != int(found) else int(found)


def arrivals(first_s: float | None, gaps_s: Sequence[float] | None, output_tokens: int | None) -> dict[str, Any]:
    """Columns for the arrivals of one request.

    Args:
        first_s: instant of the first token; None if none came [s].
        gaps_s: between its arrivals, shape (a - 1,) [s]; None where the tool did not write them.
        output_tokens: how many tokens came; None where unknown [tokens].

    Returns:
        `chunks`, `stamps`, `token_s` and `last_token_s`; empty without a first token or gaps.
    """
    if first_s is None or gaps_s is None:
        return {}
    at = [first_s]
    for gap in gaps_s:
        at.append(at[-1] + gap)
    return {"chunks": len(at), "stamps": kind_of(gaps_s, output_tokens), "token_s": at, "last_token_s": at[-1]}
