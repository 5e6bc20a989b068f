"""Files that requests are drawn from instead of replayed: client pools, and lengths without arrivals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import headway.identification.readers.client_workloads as client_workloads
import headway.identification.readers.length_pairs as length_pairs
import headway.identification.readers.servegen as servegen
from headway.models.workload import WorkloadSource


class SourceReader(NamedTuple):
    """One format of files to draw from.

    Args:
        form: the format in words.
        claims: whether a path's own names and content say that it is this format.
        read: from a path, a rate of arrivals [requests/s] or None, and the shares of the classes, to the source and what
            there is to say, one sentence each.
    """

    form: str
    claims: Callable[[Path], bool]
    read: Callable[[Path, float | None, Sequence[float]], tuple[WorkloadSource, list[str]]]


SOURCE_READERS: dict[str, SourceReader] = {
    "servegen": SourceReader(servegen.FORM, servegen.claims, servegen.read),
    "sharegpt": SourceReader(length_pairs.FORM, length_pairs.claims, length_pairs.read),
    "client_lengths": SourceReader(client_workloads.FORM, client_workloads.claims_lengths, client_workloads.read_lengths),
}
"""Formats by name; the first that claims a path gets it."""
