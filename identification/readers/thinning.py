"""A trace larger than memory: whole blocks of it, evenly spread, and always those that hold the largest sums."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import polars as pl

from headway.identification.trace import BLOCK_ROWS

MOST_ROWS = 1_250_000
"""Rows of a trace that are kept at most: a law is known far better by then than any engine repeats itself."""

LARGEST: dict[str, pl.Expr] = {
    **{n: pl.col(n) for n in ("decode_requests", "decode_kv_tokens", "prefill_tokens", "prefill_pairs", "prefill_requests")},
    "tokens": pl.col("prefill_tokens") + pl.col("decode_requests"),
    "cache": pl.col("decode_kv_tokens") + pl.col("prefill_tokens") + pl.col("decode_requests"),
}
"""Sums whose largest value bounds what the plant knows, or what the engine can bear."""


class Taken(NamedTuple):
    """What of a trace was taken.

    Args:
        frame: rows in file order, shape (k, columns).
        aside: {"dropped_to_fit": rows} if any were left out [rows].
        said: a sentence on it, if so.
    """

    frame: pl.DataFrame
    aside: dict[str, int]
    said: tuple[str, ...]


def take(frames: Iterable[pl.DataFrame], most: int) -> Taken:
    """Take all rows, or whole blocks of 200 rows of one stream, so that about `most` stay at most.

    Every second block is given up whenever too many are held: what stays is every 2nd, 4th, 8th ... block of each
    stream, between half of `most` and all of it. A block that holds the largest value of one of `LARGEST` stays as well:
    the operating points that a plant was fitted on, and the limits that its rows show, are those of all rows.

    Args:
        frames: pieces of the trace in file order, the columns of `headway.identification.trace.COLUMNS` (`source` may be
            left out: one stream) and others, alike in every piece.
        most: rows to keep at most, the blocks of largest values apart [rows].

    Returns:
        The rows that were taken.
    """
    sieve = _Sieve(most)
    for frame in frames:
        sieve.add(frame)
    return sieve.taken()


class _Sieve:
    """Rows that were taken so far, and the last block of every stream, which more rows may belong to."""

    def __init__(self, most: int) -> None:
        self.most, self.stride, self.seen, self.height = most, 1, 0, 0
        self.rows: dict[str, int] = {}
        self.kept: list[pl.DataFrame] = []
        self.open: pl.DataFrame | None = None
        self.largest: dict[str, tuple[float, int, int]] = {}

    def add(self, frame: pl.DataFrame) -> None:
        """Number the blocks of each stream, and keep those that are complete and wanted."""
        name = pl.col("source") if "source" in frame.columns else pl.lit("")
        counts = frame.group_by(name.alias("source"), maintain_order=True).len()
        before = {source: self.rows.get(source, 0) for source in counts["source"]}
        for source, count in counts.iter_rows():
            self.rows[source] = before[source] + count
        order = {source: number for number, source in enumerate(self.rows) if source in before}
        row = pl.int_range(pl.len(), dtype=pl.Int64)
        if len(before) == 1:
            (only,) = before
            frame = frame.with_columns(stream_=pl.lit(order[only]), block_=(row + before[only]) // BLOCK_ROWS)
        else:
            frame = frame.with_columns(stream_=name.replace_strict(order, return_dtype=pl.Int32))
            number = row.over("stream_") + name.replace_strict(before, return_dtype=pl.Int64)
            frame = frame.with_columns(block_=number // BLOCK_ROWS)
        frame = frame.with_columns(row_=pl.int_range(self.seen, self.seen + frame.height, dtype=pl.Int64))
        self.seen += frame.height
        frame = frame if self.open is None else pl.concat([self.open, frame])
        last = pl.col("block_") == pl.col("block_").max().over("stream_")
        self.open = frame.filter(last)
        self._settle(frame.filter(~last))

    def taken(self) -> Taken:
        """All rows that stay."""
        if self.open is not None:
            self._settle(self.open)
        frame = pl.concat(self.kept)
        frame = (self._wanted(frame) if self.stride > 1 else frame).sort("row_").drop("stream_", "block_", "row_")
        if self.stride == 1:
            return Taken(frame, {}, ())
        said = (
            f"{frame.height:,} of {self.seen:,} rows were taken to fit into memory: one block of {BLOCK_ROWS} in {self.stride} "
            f"of each stream, and the blocks that hold the largest sums"
        )
        return Taken(frame, {"dropped_to_fit": self.seen - frame.height}, (said,))

    def _settle(self, frame: pl.DataFrame) -> None:
        if not frame.height:
            return
        for name, sums in LARGEST.items():
            values = frame.select(sums).to_series()
            at = values.arg_max()
            if at is not None and values[at] > self.largest.get(name, (-1.0, 0, 0))[0]:
                self.largest[name] = (values[at], frame["stream_"][at], frame["block_"][at])
        self.kept.append(self._wanted(frame) if self.stride > 1 else frame)
        self.height += self.kept[-1].height
        while self.height > self.most and self.stride < self.seen:
            self.stride *= 2
            self.kept = [self._wanted(pl.concat(self.kept))]
            self.height = self.kept[0].height

    def _wanted(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Every stride-th block, counted from another one in each stream, and the blocks of the largest sums."""
        wanted = (pl.col("block_") + pl.col("stream_")) % self.stride == 0
        for _, stream, block in set(self.largest.values()):
            wanted |= (pl.col("stream_") == stream) & (pl.col("block_") == block)
        # by way of categories: text that is only filtered keeps hold of all the text it was cut from
        return frame.filter(wanted).with_columns(pl.col(pl.String).cast(pl.Categorical).cast(pl.String)).rechunk()
