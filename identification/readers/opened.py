"""A file as the readers get it: looked at by its start, read whole or in pieces, unpacked on the way."""

from __future__ import annotations

import functools
import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from headway.identification.readers.errors import TraceError
from headway.identification.readers.thinning import MOST_ROWS

LOOK = 65536
"""Bytes of a file that are looked at to tell its format [bytes]."""
PIECE = 1 << 24
"""Bytes that are read at once of a file that is read in pieces, unpacked [bytes]."""
GZIP = b"\x1f\x8b"


class Opened:
    """A file as the readers get it: its start is looked at, its whole read only by a reader that asks for it.

    A gzip-compressed file is unpacked on the way; a reader never sees the difference.

    Args:
        file: as it was given; it must exist and be readable.
        most_rows: rows that a reader which can thin a trace hands on at most [rows].
        progress: called with the share of the file that was read.

    Raises:
        TraceError: a compressed file that is broken, or a pipe.
    """

    def __init__(self, file: str, most_rows: int = MOST_ROWS, progress: Callable[[float], None] | None = None) -> None:
        self.file, self.most_rows, self.progress = file, most_rows, progress or _silent
        if os.path.exists(file) and not (os.path.isfile(file) or os.path.isdir(file)):
            raise TraceError(file, "a file: a pipe can be read only once, but is looked at before it is read; save it first")
        with open(file, "rb") as stream:
            self.packed = stream.read(2) == GZIP
        with gzip.open(file, "rb") if self.packed else open(file, "rb") as stream:
            try:
                start = stream.read(LOOK)
            except (OSError, EOFError, zlib.error) as error:
                raise TraceError(file, "a whole gzip file", found=str(error)) from None
        self.start: bytes = start.removeprefix(b"\xef\xbb\xbf")

    @functools.cached_property
    def data(self) -> bytes:
        """The whole content, unpacked [bytes]. Ask for it only where the file is small or cannot be streamed.

        Raises:
            TraceError: a compressed file that is broken.
        """
        data = Path(self.file).read_bytes()
        if self.packed:
            try:
                data = gzip.decompress(data)
            except (OSError, EOFError, zlib.error) as error:
                raise TraceError(self.file, "a whole gzip file", found=str(error)) from None
        return data.removeprefix(b"\xef\xbb\xbf")

    @functools.cached_property
    def header(self) -> tuple[str, ...]:
        """Names in the first line, if that is a line of comma-separated names; else empty."""
        line = self.start.split(b"\n", 1)[0].strip()
        if b"," not in line or line.startswith(b"{"):
            return ()
        return tuple(name.strip().strip('"') for name in line.decode(errors="replace").split(","))

    @functools.cached_property
    def first(self) -> dict[str, Any] | None:
        """The first line, if that is a JSON object; else None."""
        line = self.start.split(b"\n", 1)[0].strip()
        try:
            value = msgspec.json.decode(line) if line.startswith(b"{") else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return value if isinstance(value, dict) else None

    @functools.cached_property
    def text(self) -> str:
        """The start as text, whatever its encoding: for patterns of a log line."""
        return self.start.decode("latin-1")

    def pieces(self, *, quoted: bool = True) -> Iterator[bytes]:
        """The content in pieces of whole lines, the last of which may lack its end: however large the file, little of it is held.

        Args:
            quoted: a line break between quotes ends no line, as in a CSV.

        Returns:
            Pieces of some `PIECE` bytes, unpacked, without a byte order mark; at least one.

        Raises:
            TraceError: a compressed file that is broken.
        """
        size, rest = max(os.path.getsize(self.file), 1), None
        with open(self.file, "rb") as raw, gzip.open(raw, "rb") if self.packed else raw as stream:
            while True:
                try:
                    read = stream.read(PIECE)
                except (OSError, EOFError, zlib.error) as error:
                    raise TraceError(self.file, "a whole gzip file", found=str(error)) from None
                self.progress(min(raw.tell() / size, 1.0))
                text = read.removeprefix(b"\xef\xbb\xbf") if rest is None else rest + read
                if len(read) < PIECE:
                    yield text
                    return
                end = text.rfind(b"\n") + 1
                if quoted and len(text) < 4 * PIECE and text.count(b'"', 0, end) % 2:
                    end = 0  # within a quoted cell
                rest = text[end:]
                if end:
                    yield text[:end]


def _silent(_share: float) -> None:
    """No one watches."""
