"""Workloads as people name them: a file, `servegen:FOLDER@8/s`, or what to draw, such as `poisson:rate=5/s,prompt=600,output=200`."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headway import units
from headway.identification.readers.errors import TraceError
from headway.identification.readers.workload_sources import SOURCE_READERS
from headway.identification.readers.workloads import WORKLOAD_READERS, read_workload
from headway.models.signals import Target
from headway.models.workload import Replay, Workload, WorkloadSource
from headway.specs import ARRIVALS, EXAMPLE, synthetic


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
        text: path of a workload file or folder, alone or as `FORMAT:PATH` or `FORMAT:PATH@RATE`, or a generator spec.
        rate_rps: mean rate to rescale the arrivals to, in place of one in the text [requests/s]; None leaves it.
        rows: which requests of a file, from `headway.units.row_range`; None takes all.
        classes: the targets, one per class; None is one class.

    Returns:
        A `Replay` of the file, what is drawn from it where it holds no requests, or a `Synthetic`.

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
        text: path of a workload file or folder, alone or as `FORMAT:PATH` or `FORMAT:PATH@RATE`, or a generator spec.
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
    if named is None and _is_spec(text):
        if rows is not None:
            raise ValueError(f"rows select from a file, and {text!r} is drawn; leave --rows out")
        return LoadedWorkload(synthetic(text, rate_rps=rate_rps, classes=names, shares=shares), [])
    format, path, asked = named or ("auto", text, None)
    rate_rps = asked if rate_rps is None else rate_rps
    if not os.path.exists(path):
        raise TraceError(path, f"a file that exists, or what to draw, such as {EXAMPLE}")
    drawn = format if format in SOURCE_READERS else None
    if format == "auto":
        drawn = next((name for name, reader in SOURCE_READERS.items() if reader.claims(Path(path))), None)
    if drawn is not None:
        if rows is not None:
            raise ValueError(f"rows select from a file of requests, and from {path} they are drawn; leave --rows out")
        return LoadedWorkload(*SOURCE_READERS[drawn].read(Path(path), rate_rps, shares))
    workload, notes = read_workload(path, format, classes=names if classes else None, shares=shares)
    if rows is not None:
        workload = _selected(workload, rows, notes)
    if rate_rps is not None:
        notes.append(f"arrivals rescaled from {workload.rate_rps:.3g}/s to {rate_rps:.3g}/s")
        # The source names what was done to the file: two reports on one file at two rates must not look alike.
        workload = dataclasses.replace(workload.rescaled(rate_rps), source=f"{workload.source} at {rate_rps:g}/s")
    return LoadedWorkload(Replay(workload), notes)


def located(text: str) -> str:
    """The same name of a workload, good from any folder.

    Args:
        text: as for `load_workload`.

    Returns:
        The text with the whole path of its file; a spec as it is.
    """
    named = _named(text)
    if named is None:
        return str(Path(text).resolve()) if os.path.exists(text) else text
    format, path, rate_rps = named
    return f"{format}:{Path(path).resolve()}" + ("" if rate_rps is None else f"@{rate_rps!r}/s")


def _named(text: str) -> tuple[str, str, float | None] | None:
    """Format, path and rate of `FORMAT:PATH@RATE`; None for any other text. An @ that no rate follows belongs to the path."""
    format, colon, path = (part.strip() for part in text.partition(":"))
    if os.path.exists(text) or not colon or format not in {*WORKLOAD_READERS, *SOURCE_READERS}:
        return None
    before, at, rate = path.rpartition("@")
    if not at or os.path.exists(path):
        return format, path, None
    return format, before.strip(), units.rate_rps(rate.strip())


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
