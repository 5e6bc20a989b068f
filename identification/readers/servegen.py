"""ServeGen's client pools: per client the rate and burstiness of each window, and tables of its lengths."""

from __future__ import annotations

import ast
import gzip
import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from headway.identification.readers.errors import TraceError
from headway.models.clients import GAMMA, SILENT, WEIBULL, Client, ClientPool, LengthTable

FORM = "a ServeGen pool: a folder of chunk-N-trace.csv and chunk-N-dataset.json, packed or not"
NAME = re.compile(r"chunk-(\d+)-(trace\.csv|dataset\.json)(\.gz)?")
COLUMNS = ("start", "rate", "cv", "distribution", "shape", "scale")
"""What the six cells of a line are; the file has no header."""
FAMILIES = {"": SILENT, "Gamma": GAMMA, "Weibull": WEIBULL}
SHAPES = (0.02, 100.0)
"""Shapes that are believed: below, the mean of a Weibull overflows; above, gaps are all the same."""


def claims(path: Path) -> bool:
    """Whether a path is such a folder, or one of its files.

    Args:
        path: as it was given.

    Returns:
        True if names in it, or its own, are ServeGen's.
    """
    if path.is_dir():
        return any(NAME.fullmatch(inside.name) for inside in path.iterdir())
    return path.is_file() and NAME.fullmatch(path.name) is not None


def read(path: Path, rate_rps: float | None, shares: Sequence[float]) -> tuple[ClientPool, list[str]]:
    """The clients of a folder, or of one of its files the one client.

    Args:
        path: a folder, or a file in it.
        rate_rps: mean rate of every draw; None for the pool's own [requests/s].
        shares: part of the requests in each class, shape (classes,).

    Returns:
        The source, and a sentence each on what was assumed.

    Raises:
        TraceError: a file of a pair missing or broken, a cell that is not what it should be, clients of different windows.
    """
    folder = path if path.is_dir() else path.parent
    match = NAME.fullmatch(path.name)
    wanted = None if path.is_dir() or match is None else match[1]
    files: dict[str, dict[str, Path]] = {}
    for inside in sorted(folder.iterdir()):
        found = NAME.fullmatch(inside.name)
        if found and wanted in (None, found[1]):
            files.setdefault(found[1], {}).setdefault(found[2], inside)
    clients, starts, first = [], None, None
    for number in sorted(files, key=int):
        for kind in ("trace.csv", "dataset.json"):
            if kind not in files[number]:
                raise TraceError(folder, f"chunk-{number}-{kind} beside {next(iter(files[number].values())).name} ({FORM})")
        start_s, rates = _windows(files[number]["trace.csv"])
        if starts is not None and not np.array_equal(starts, start_s):
            raise TraceError(files[number]["trace.csv"], f"the same windows as {first}")
        starts, first = start_s, files[number]["trace.csv"].name
        clients.append(Client(*rates, _tables(files[number]["dataset.json"])))
    if starts is None:
        raise TraceError(path, FORM)
    window_s = float(starts[1] - starts[0])
    pool = ClientPool(tuple(clients), window_s, tuple(shares), rate_rps, path.name)
    try:
        pool.check()
    except ValueError as error:
        raise TraceError(path, f"{FORM} ({error})") from None
    shown = f"{len(clients)} client{'s' * (len(clients) > 1)} of {len(starts):,} windows of {window_s:g} s"
    notes = [f"{shown}, {pool.pool_rate_rps:.3g} requests/s together; every draw is another stretch of that time, drawn anew"]
    if rate_rps is not None:
        notes.append(f"arrivals rescaled from {pool.pool_rate_rps:.3g}/s to {rate_rps:g}/s")
        pool = ClientPool(pool.clients, window_s, pool.shares, rate_rps, f"{path.name} at {rate_rps:g}/s")
    return pool, notes


def _content(file: Path) -> str:
    try:
        data = file.read_bytes()
        return (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(file, "a whole file of text", found=str(error)) from None


def _windows(file: Path) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Starts of the windows, shape (w,) [s], and their rates, families and shapes."""
    start_s, rates, families, shapes = [], [], [], []
    for row, line in enumerate(_content(file).splitlines(), 1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(COLUMNS):
            raise TraceError(file, f"{len(COLUMNS)} cells, {', '.join(COLUMNS)}", row=row, found=line)
        if cells[3] not in FAMILIES:
            raise TraceError(file, "Gamma, Weibull or nothing", row=row, column="distribution", found=cells[3])
        start_s.append(_number(file, row, "start", cells[0]))
        rates.append(_number(file, row, "rate", cells[1]))
        shapes.append(_number(file, row, "shape", cells[4]))
        families.append(FAMILIES[cells[3]])
        if (rates[-1] > 0) != (families[-1] != SILENT):
            raise TraceError(
                file, "a distribution where the rate is above zero, none where it is zero", row=row, column="rate", found=cells[1]
            )
        if families[-1] != SILENT and not SHAPES[0] <= shapes[-1] <= SHAPES[1]:
            raise TraceError(file, f"a shape from {SHAPES[0]:g} to {SHAPES[1]:g}", row=row, column="shape", found=cells[4])
        if (len(start_s) > 2 and start_s[-1] - start_s[-2] != start_s[1] - start_s[0]) or (len(start_s) == 2 and start_s[1] <= start_s[0]):
            raise TraceError(file, "windows of equal length, one after the other", row=row, column="start", found=cells[0])
    if len(start_s) < 3:
        raise TraceError(file, "at least three windows, so that a third of them can be held back", found=len(start_s))
    return np.array(start_s), (np.array(rates), np.array(families), np.array(shapes))


def _number(file: Path, row: int, column: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise TraceError(file, "a number that is not negative", row=row, column=column, found=cell)
    return value


def _tables(file: Path) -> tuple[LengthTable, ...]:
    """Tables of lengths in order of time; a window in which nothing was seen has none, and the one before it goes on."""
    try:
        content = msgspec.json.decode(_content(file), type=dict[str, dict[str, str]])
    except msgspec.DecodeError as error:
        raise TraceError(file, "an object of windows, each with input_tokens and output_tokens as text", found=str(error)) from None
    tables = []
    for window, given in content.items():
        start_s = _number(file, 1, window, window)
        for name in ("input_tokens", "output_tokens"):
            if name not in given:
                raise TraceError(file, "this key", column=f"{window}.{name}", found=", ".join(given))
        prompt, output = (_shares(file, f"{window}.{name}", given[name]) for name in ("input_tokens", "output_tokens"))
        if len(prompt[0]) and len(output[0]):
            tables.append(LengthTable(start_s, *prompt, *output))
    if not tables:
        raise TraceError(file, "at least one window with lengths, found none")
    return tuple(sorted(tables, key=lambda table: table.start_s))


def _shares(file: Path, key: str, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Lengths and the share of requests up to each; lengths of zero are left out."""
    wrong = TraceError(file, "lengths and their shares, such as {34: 0.25, 35: 0.75}", column=key, found=text[:60])
    try:
        given = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise wrong from None
    if not isinstance(given, dict) or not all(type(k) is int and 0 <= k < 10**9 and isinstance(v, int | float) for k, v in given.items()):
        raise wrong
    tokens = np.array(sorted(k for k, v in given.items() if k > 0 and v > 0), dtype=np.int64)
    share = np.array([float(given[k]) for k in tokens.tolist()])
    if not np.isfinite(share).all() or min(given.values(), default=0) < 0 or (len(given) > 0 and abs(sum(given.values()) - 1) > 0.01):
        raise TraceError(file, "shares that are not negative and sum to 1", column=key, found=text[:60])
    if not len(tokens):
        return tokens, share
    upto = np.cumsum(share) / share.sum()
    upto[-1] = 1.0
    return tokens, upto
