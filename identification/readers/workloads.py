"""Workload files: which format a file is in, and its requests as a Workload. A new format is one row of the table and one file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

import headway.identification.readers.azure as azure
import headway.identification.readers.burstgpt as burstgpt
import headway.identification.readers.mooncake as mooncake
import headway.identification.readers.requests as requests
from headway.identification.readers.client_workloads import claimed, read_client
from headway.identification.readers.errors import TraceError
from headway.identification.readers.opened import Opened
from headway.identification.readers.requests import RequestTable
from headway.identification.readers.requests_table import REQUEST_READERS
from headway.identification.readers.unknown import Format, names_in, nearest, unknown
from headway.models.generators import draw_classes
from headway.models.workload import Workload

INSTEAD, LISTED = "write a CSV with arrival_s, prompt_tokens and output_tokens", 'docs/commands.md, "A workload",'
"""What to do with a file of no known format, and where the formats stand."""

CLASS_SEED = 0
"""Seed of the classes that are drawn for a file without any: the same in every run, whatever the run's own seed."""


class WorkloadReader(NamedTuple):
    """One format of workload files.

    Args:
        form: "csv" or "jsonl".
        required: columns or keys that it must have; by them a file is recognised.
        read: from a path to its requests.
    """

    form: str
    required: tuple[str, ...]
    read: Callable[[str | Path], RequestTable]


WORKLOAD_READERS: dict[str, WorkloadReader] = {
    "headway": WorkloadReader("csv", requests.REQUIRED, requests.read_requests),
    "azure": WorkloadReader("csv", azure.REQUIRED, azure.read_azure),
    "burstgpt": WorkloadReader("csv", burstgpt.REQUIRED, burstgpt.read_burstgpt),
    "mooncake": WorkloadReader("jsonl", mooncake.REQUIRED, mooncake.read_mooncake),
}
"""Formats by name; `tests/test_workloads.py` holds each to the same contract."""


def read_workload(
    path: str | Path, format: str = "auto", classes: Sequence[str] | None = None, shares: Sequence[float] | None = None
) -> tuple[Workload, list[str]]:
    """The requests of a file, sorted by arrival, the clock starting at the first.

    Requests that ask for no output token are set aside: nothing could be late in them. Whatever was changed is said.

    Args:
        path: the file, as it was given.
        format: a name from `WORKLOAD_READERS`, or from `REQUEST_READERS` for what a client or an engine wrote of the requests it
            saw; "auto" looks at what the file holds, never at its name.
        classes: names of the classes that the file may speak of, in the order of their numbers. None numbers the names
            as they come, and leaves numbers as they are. The single name "default" takes requests of every class.
        shares: part of the requests in each class, shape (classes,): used to draw classes, always the same, where the
            file names none. None leaves all in the first.

    Returns:
        The workload, and notes: a sentence each on what was set aside, sorted, ignored or looks odd.

    Raises:
        TraceError: no such file, none of the formats, or a cell or key that is not what it should be.
        ValueError: `format` is not a known one.
    """
    if format not in {"auto", *WORKLOAD_READERS, *REQUEST_READERS}:
        raise ValueError(f"format must be auto or one of {', '.join((*WORKLOAD_READERS, *REQUEST_READERS))}, got {format!r}")
    table = _table(path, format)
    notes = list(table.notes)
    if table.class_name is None:
        class_id = _drawn_classes(len(table.row), classes, shares, notes)
    else:
        class_id = _class_ids(path, table.row, table.class_name, classes, notes)
    arrival_s = table.arrival_s.to_numpy()
    kept = table.output_tokens.to_numpy() > 0
    if not kept.any():
        raise TraceError(path, "at least one request that asks for an output token")
    if not kept.all():
        notes.append(f"{len(kept) - kept.sum():,} of {len(kept):,} rows ask for no output token; set aside")
    if (np.diff(arrival_s) < 0).any():
        notes.append(f"{(np.diff(arrival_s) < 0).sum():,} rows came before the row above them; sorted by arrival")
    order = np.argsort(arrival_s, kind="stable")
    order = order[kept[order]]
    arrival_s = arrival_s[order] - arrival_s[order[0]]
    notes += _shared_stamps(arrival_s)
    prompt, output = table.prompt_tokens.to_numpy()[order], table.output_tokens.to_numpy()[order]
    prefix = None if table.prefix is None else table.prefix.rows(order)
    workload = Workload(arrival_s, prompt, output, class_id[order], source=Path(path).name, prefix=prefix)
    workload.check()
    return workload, notes


def _table(path: str | Path, format: str) -> RequestTable:
    """The requests of a file by its format, or by what it holds."""
    first = _first_line(path)
    if format in REQUEST_READERS or (format == "auto" and first.startswith("{") and (claimed(path) is not None)):
        return read_client(path, format)
    return WORKLOAD_READERS[_recognised(path, first) if format == "auto" else format].read(path)


def _first_line(path: str | Path) -> str:
    """What stands first in a file, or why there is none."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(1 << 16)
    except FileNotFoundError:
        raise TraceError(path, "a file that exists") from None
    except IsADirectoryError:
        raise TraceError(path, "a file, not a folder") from None
    except OSError as error:
        raise TraceError(path, f"a file that can be read ({error.strerror})") from error
    lines = head.decode("utf-8-sig", "replace").split("\n")
    first = next((line.strip() for line in lines if line.strip()), "")
    if not first:
        raise TraceError(path, "at least one request, and the file is empty")
    if head.startswith(b"\x1f\x8b") or "\0" in first:
        raise TraceError(path, "text, and the file is compressed or binary; unpack it first")
    return first


def _recognised(path: str | Path, first: str) -> str:
    """The format with the most of its columns in the first line: the one whose missing column is worth naming."""
    form = "jsonl" if first.startswith("{") else "csv"
    if form == "jsonl":
        try:
            names = set(json.loads(first))
        except ValueError:
            return "mooncake"
    else:
        names = {cell.strip().strip('"').lower() for cell in first.split(",")}
    found = {
        name: sum((column if form == "jsonl" else column.lower()) in names for column in reader.required)
        for name, reader in WORKLOAD_READERS.items()
        if reader.form == form
    }
    best = max(found, key=found.__getitem__)
    if not found[best]:
        file = Opened(str(path))
        readers = {name: reader for name, reader in WORKLOAD_READERS.items() if reader.form == form}
        formats = {name: Format(f"a {reader.form} of requests", reader.required) for name, reader in readers.items()}
        raise TraceError(path, unknown(file, "a workload", nearest(names_in(file), formats), INSTEAD, LISTED))
    return best


def _class_ids(path: str | Path, row: pl.Series, given: pl.Series, classes: Sequence[str] | None, notes: list[str]) -> np.ndarray:
    """Numbers of the classes: by name first, then by number."""
    names = given.unique(maintain_order=True).to_list()
    if classes is not None and list(classes) == ["default"]:
        notes.append(f"the one target holds for requests of every class in the file: {', '.join(map(repr, names))}")
        return np.zeros(len(given), dtype=np.int64)
    number = {name: int(name) for name in names if name.isascii() and name.isdigit() and int(name) < 10**6}
    if classes is None:
        ids = number if len(number) == len(names) else {name: i for i, name in enumerate(names)}
        if ids is not number:
            notes.append(f"classes are numbered as they come: {', '.join(f'{name} = {i}' for name, i in ids.items())}")
    else:
        ids = {name: i for name, i in number.items() if i < len(classes)} | {name: i for i, name in enumerate(classes)}
    for name in names:
        if name not in ids:
            known = f"one of the classes {', '.join(classes or names)}, or a number from 0 to {len(classes or names) - 1}"
            raise TraceError(path, known, row=int(row[int((given == name).arg_true()[0])]), column="class", found=name)
    return given.replace_strict(ids, return_dtype=pl.Int64).to_numpy()


def _drawn_classes(n: int, classes: Sequence[str] | None, shares: Sequence[float] | None, notes: list[str]) -> np.ndarray:
    """Numbers of the classes where the file names none: by the shares, from one fixed seed, so that a row keeps its class."""
    if shares is None or len(shares) < 2:
        return np.zeros(n, dtype=np.int64)
    names = classes or [str(i) for i in range(len(shares))]
    said = ", ".join(f"{name} {part:.3g}" for name, part in zip(names, shares, strict=True))
    notes.append(f"the file names no classes; each request was given one at random, by the shares {said}")
    return draw_classes(tuple(shares), np.random.default_rng(CLASS_SEED), n)


def _shared_stamps(arrival_s: np.ndarray) -> list[str]:
    """A word on clocks too coarse for what they recorded."""
    gaps_s = np.diff(arrival_s)
    shared = float((gaps_s == 0).mean()) if len(gaps_s) else 0.0
    if shared <= 0.5 or not (gaps_s > 0).any():
        return []
    grid_s = float(np.median(gaps_s[gaps_s > 0]))
    return [f"{shared:.0%} of the requests share the time stamp of the one before, stamps are {grid_s:.3g} s apart; kept as they are"]
