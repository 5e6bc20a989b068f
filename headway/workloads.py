"""Workloads as people name them: a file, `azure:FILE@8/s,patience=2s`, or what to draw, such as `poisson:rate=5/s,prompt=600,output=200`."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headway import units
from headway.client_specs import behind, with_clients
from headway.identification.readers.errors import TraceError
from headway.identification.readers.requests_table import REQUEST_READERS
from headway.identification.readers.servegen import NAME as CHUNK
from headway.identification.readers.workload_sources import SOURCE_READERS
from headway.identification.readers.workloads import WORKLOAD_READERS, read_workload
from headway.models.signals import Target
from headway.models.workload import Replay, Workload, WorkloadSource
from headway.spec_forms import EXAMPLE, items
from headway.specs import ARRIVALS, drawn

LENGTHS_FILE = re.compile(r"([:,]\s*lengths\s*=\s*)((?:[^,]|,(?=[^(]*\)))+)")
"""The file of lengths in a spec; a comma in brackets belongs to its name, as in `headway.spec_forms.items`."""


class LoadedWorkload(NamedTuple):
    """A workload as it was named, and what to know of it.

    Args:
        source: what seeds draw from.
        notes: a sentence each on what was set aside, sorted, assumed or looks odd.
    """

    source: WorkloadSource
    notes: list[str]


def workload_source(
    text: str, rate_rps: float | None = None, rows: slice | None = None, classes: Sequence[Target] | None = None
) -> WorkloadSource:
    """The source of workloads that a text names; `load_workload` says what there is to say of it.

    Args:
        text: path of a workload file or folder, alone or as `FORMAT:PATH@RATE`, perhaps with `,patience=2s` and the like behind it, or
            a generator spec.
        rate_rps: mean rate to rescale the arrivals to, in place of one in the text [requests/s]; None leaves it.
        rows: which requests of a file, from `headway.units.row_range`; None takes all.
        classes: the targets, one per class; None is one class.

    Returns:
        A `Replay` of the file, what is drawn from it where it holds no requests, or a `Synthetic`; around it what is said of clients.

    Raises:
        TraceError: a file that cannot be read as a workload.
        ValueError: a spec that cannot be understood, rows that hold no request, a rate that is not positive.

    Example:
        >>> source = workload_source("poisson:rate=5/s,prompt=600,output=geometric(200)")
        >>> source.draw(seed=0, requests=2, heldout=False).prompt_tokens
        array([600, 600])
    """
    return load_workload(text, rate_rps, rows, classes).source


def load_workload(
    text: str, rate_rps: float | None = None, rows: slice | None = None, classes: Sequence[Target] | None = None
) -> LoadedWorkload:
    """The source of workloads that a text names, with notes.

    Args:
        text: path of a workload file or folder, alone or as `FORMAT:PATH@RATE`, perhaps with `,patience=2s` and the like behind it, or
            a generator spec.
        rate_rps: mean rate to rescale the arrivals to, in place of one in the text [requests/s]; None leaves it.
        rows: which requests of a file, from `headway.units.row_range`; None takes all.
        classes: the targets, one per class; None is one class.

    Returns:
        The source and the notes.

    Raises:
        TraceError: a file that cannot be read as a workload.
        ValueError: a spec that cannot be understood, rows that hold no request, a rate that is not positive.
    """
    names = tuple(target.name for target in classes) if classes else ("default",)
    shares = tuple(target.share for target in classes) if classes else (1.0,)
    named = _named(text)
    if named is None:
        if _is_spec(text):
            if rows is not None:
                raise ValueError(f"rows select from a file, and {text!r} is drawn; leave --rows out")
            return LoadedWorkload(*drawn(text, rate_rps=rate_rps, classes=names, shares=shares))
        named = Named("auto", text, None, "")
    if not os.path.exists(named.path):
        raise TraceError(named.path, f"a file that exists, or what to draw, such as {EXAMPLE}")
    rate_rps = named.rate_rps if rate_rps is None else rate_rps
    source, notes = _of_file(named, rate_rps, rows, names if classes else None, shares)
    if not named.clients:
        return LoadedWorkload(source, notes)
    clients = items(named.clients)
    if isinstance(source, Replay) and source.workload.prefix is not None and "prefix" in {name.partition(".")[0] for name in clients}:
        raise ValueError(f"{source.source} has prefixes of its own; leave prefix= out")
    return LoadedWorkload(with_clients(source, clients, names, f"{source.source}, {named.clients.strip()}"), notes)


def _of_file(
    named: Named, rate_rps: float | None, rows: slice | None, classes: Sequence[str] | None, shares: tuple[float, ...]
) -> tuple[WorkloadSource, list[str]]:
    """What is replayed from a file, or drawn where it holds no requests; and the notes."""
    from_file = named.format if named.format in SOURCE_READERS else None
    if from_file is None and (named.format == "auto" or named.format in REQUEST_READERS):
        from_file = next((name for name, reader in SOURCE_READERS.items() if reader.claims(Path(named.path))), None)
    if from_file is not None:
        if rows is not None:
            raise ValueError(f"rows select from a file of requests, and from {named.path} they are drawn; leave --rows out")
        return SOURCE_READERS[from_file].read(Path(named.path), rate_rps, shares)
    workload, notes = read_workload(named.path, named.format, classes=classes, shares=shares)
    if rows is not None:
        workload = _selected(workload, rows, notes)
    if rate_rps is not None:
        notes.append(f"arrivals rescaled from {workload.rate_rps:.3g}/s to {rate_rps:.3g}/s")
        # The source names what was done to the file: two reports on one file at two rates must not look alike.
        workload = dataclasses.replace(workload.rescaled(rate_rps), source=f"{workload.source} at {rate_rps:g}/s")
    return Replay(workload), notes


def located(text: str) -> str:
    """The same name of a workload, good from any folder.

    Args:
        text: as for `load_workload`.

    Returns:
        The text with the whole path of its file; a spec as it is, but for the file of its lengths.
    """
    named = _named(text)
    if named is None:
        if os.path.exists(text):
            return str(Path(text).resolve())
        return LENGTHS_FILE.sub(lambda found: found[1] + str(Path(found[2].strip()).resolve()), text)
    path, at = Path(named.path).resolve(), "" if named.rate_rps is None else f"@{named.rate_rps!r}/s"
    return f"{'' if named.format == 'auto' else f'{named.format}:'}{path}{at}{f',{named.clients}' if named.clients else ''}"


def files_of(text: str) -> list[Path]:
    """The files that a workload is read from, for whoever must not write over one of them.

    Args:
        text: as for `load_workload`.

    Returns:
        The file that it names, the files of a folder that are read, or the file of a spec's lengths; none where all is drawn.

    Raises:
        ValueError: no rate stands behind an @.

    Example:
        >>> files_of("poisson:rate=5/s,lengths=lengths.csv"), files_of("poisson:rate=5/s,prompt=600,output=200")
        ([PosixPath('lengths.csv')], [])
    """
    named = _named(text)
    if named is None and not os.path.exists(text):
        return [Path(found[2].strip()) for found in LENGTHS_FILE.finditer(text)]
    path = Path(text if named is None else named.path)
    # os.path, because a Path raises where a text is too long for a file name
    one = CHUNK.fullmatch(path.name)
    folder = path if os.path.isdir(path) else path.parent if one else None
    held = sorted(folder.iterdir()) if folder is not None and os.path.isdir(folder) else []
    # a folder of ServeGen's is all pairs in it; one of its files is read with the other of its pair
    chunks = [file for file in held if (match := CHUNK.fullmatch(file.name)) and (one is None or match[1] == one[1])]
    return list(dict.fromkeys([path, *chunks]))


class Named(NamedTuple):
    """A workload file as it was named.

    Args:
        format: of the file, or "auto".
        path: of the file.
        rate_rps: behind an @; None where there is none [requests/s].
        clients: what is said of them behind a comma, or nothing.
    """

    format: str
    path: str
    rate_rps: float | None
    clients: str


def _named(text: str) -> Named | None:
    """The parts of `FORMAT:PATH@RATE,patience=...`; None for any other text. An @ that no rate follows belongs to the path."""
    if os.path.exists(text):
        return None
    head, clients = behind(text)
    format, colon, path = (part.strip() for part in head.partition(":"))
    if not colon or format not in {*WORKLOAD_READERS, *REQUEST_READERS, *SOURCE_READERS}:
        return Named("auto", head, None, clients) if clients and os.path.exists(head) else None
    before, at, rate = path.rpartition("@")
    if not at or os.path.exists(path):
        return Named(format, path, None, clients)
    return Named(format, before.strip(), units.rate_rps(rate.strip()), clients)


def _is_spec(text: str) -> bool:
    """A file of that name comes first, then whatever starts as a spec does. Not Path: it raises where a spec is too long for a name."""
    if not text.strip():
        raise ValueError(f"no workload named; name a file, or write for example {EXAMPLE}")
    return not os.path.exists(text) and (re.match(r"\s*\w+\s*:", text) is not None or text.strip() in ARRIVALS)


def _selected(workload: Workload, rows: slice, notes: list[str]) -> Workload:
    """The requests of a range, counted from 0 in order of arrival, the clock starting at the first of them."""
    n = len(workload)
    start, stop, _ = rows.indices(n)
    asked = f"{rows.start or 0}:{'' if rows.stop is None else rows.stop}"
    if stop <= start:
        raise ValueError(f"rows {asked} hold no request: {workload.source} has {n:,}, counted from 0")
    if rows.stop is not None and rows.stop > n:
        notes.append(f"rows {asked} reach past the end: the file has {n:,} requests, {stop - start:,} are taken")
    part = workload.window(start, stop)
    return dataclasses.replace(part, source=f"{part.source} rows {start}:{stop}")
