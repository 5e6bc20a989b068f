"""The trace: what was measured, one row per engine step, in the same columns whatever log it came from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from headway.identification.row_filter import chosen
from headway.models.plant import Batch

BLOCK_ROWS = 200
"""Rows of one block. Training and test rows alternate by block, not by row: neighbouring steps share their residual."""

COLUMNS: dict[str, type[pl.DataType]] = {
    "step": pl.Int64,
    "source": pl.String,
    "step_time_s": pl.Float64,
    "decode_requests": pl.Float64,
    "decode_kv_tokens": pl.Float64,
    "prefill_tokens": pl.Float64,
    "prefill_pairs": pl.Float64,
    "prefill_requests": pl.Float64,
}
"""The columns of every trace, in order. Others may follow, to choose rows by; `block` is one of them."""

BLOCKS = ("all", "even", "odd")
"""Which blocks of rows a fit or a score may use."""


READ_ASIDE: dict[str, str] = {
    "unreadable": "held in part only by a file that was cut off",
    "dummy": "a step of an idle data-parallel rank, which computes on nothing",
    "incomplete": "a record that lacks the duration of its step, or what was in it",
    "not_a_step": "a record of waiting or summing up, in which no batch ran",
    "averaged_over_idle": "an average over steps and the idle time between them",
    "merged_at_client": "beside two tokens of one request that reached the client at once: not to be cut into steps",
    "first_of_stream": "the first record of a stream, whose start was not recorded",
    "dropped_to_fit": "not read: of a trace larger than memory whole blocks were taken, evenly spread",
    "scaled_copy": "a copy of other rows, times a constant: never measured",
    "not_one_batch": "its own times contradict each other: the requests did not run as one batch",
}
"""Reasons for which a reader sets rows aside: what each means. Lines of other content (access logs) are not counted."""

CLOCKS = ("wall", "device")
"""What durations may be taken on: from start to start of steps, or on the device alone, without the host's gaps."""


class Source(NamedTuple):
    """One file that a trace came from.

    Args:
        file: as it was given.
        sha256: of its content, hexadecimal.
        reader: name of the format, a key of `TRACE_READERS`.
    """

    file: str
    sha256: str
    reader: str


@dataclasses.dataclass(frozen=True)
class Trace:
    """Measured steps. Build one with `Trace.of` or `headway.identification.readers.read_trace`.

    Args:
        frame: one row per step, the columns of `COLUMNS`, then others; in order of step within each source, shape (k,).
            Rows of consecutive steps ran one after the other; those of a table, which have no order in time, never are.
        sources: the files it came from.
        engine: limits found in the engine configuration beside it, by field of `Limits` [tokens, requests].
        aside: rows that the readers set aside, by reason, a key of `READ_ASIDE` [rows].
        warnings: what the reader has to say, one sentence each.
        missing: columns that the format does not record; they stand at zero, or at an estimate that a warning names.
        clock: what the durations were taken on, one of `CLOCKS`.
    """

    frame: pl.DataFrame
    sources: tuple[Source, ...] = ()
    engine: Mapping[str, int] = dataclasses.field(default_factory=dict)
    aside: Mapping[str, int] = dataclasses.field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    clock: str = "wall"

    @staticmethod
    def of(
        frame: pl.DataFrame,
        *,
        sources: Sequence[Source] = (),
        engine: Mapping[str, int] | None = None,
        aside: Mapping[str, int] | None = None,
        warnings: Sequence[str] = (),
        missing: Sequence[str] = (),
        clock: str = "wall",
    ) -> Trace:
        """Put rows in order and cut them into blocks. Blocks are cut here, before any row is set aside or chosen.

        Args:
            frame: the columns of `COLUMNS` (`source` may be left out: one stream), and any others, shape (k,).
            sources: the files.
            engine: limits of the engine, by field of `Limits` [tokens, requests].
            aside: rows that the readers set aside, by reason [rows].
            warnings: what the reader has to say.
            missing: columns that the format does not record.
            clock: one of `CLOCKS`.

        Returns:
            The trace.

        Raises:
            ValueError: a column is missing, there is no row, a number is negative or not finite, or an unknown clock.
        """
        if clock not in CLOCKS:
            raise ValueError(f"clock must be one of {list(CLOCKS)}, got {clock!r}")
        if "source" not in frame.columns:
            frame = frame.with_columns(source=pl.lit("trace"))
        lacking = [name for name in COLUMNS if name not in frame.columns]
        if lacking:
            raise ValueError(f"a trace needs the columns {list(COLUMNS)}; missing: {lacking}")
        if frame.height == 0:
            raise ValueError("a trace needs at least one step, got none")
        others = [name for name in frame.columns if name not in COLUMNS and name != "block"]
        whole = frame["step"].cast(pl.Float64, strict=False)
        if not ((whole == whole.round()) & (whole.abs() <= 2.0**53)).fill_null(False).all():
            raise ValueError("step of a trace must be a whole number in every row")
        frame = frame.select([pl.col(name).cast(kind) for name, kind in COLUMNS.items()] + [pl.col(name) for name in others])
        for name in list(COLUMNS)[2:]:
            if not frame.select((pl.col(name).is_finite() & (pl.col(name) >= 0)).fill_null(False).all()).item():
                raise ValueError(f"{name} of a trace must be finite and not negative in every row")
        order = frame["source"].unique(maintain_order=True).to_list()
        frame = frame.sort(pl.col("source").replace_strict(order, range(len(order))), "step", maintain_order=True)
        return Trace(_blocked(frame), tuple(sources), dict(engine or {}), dict(aside or {}), tuple(warnings), tuple(missing), clock)

    @property
    def reader(self) -> str:
        """Name of the format, or of several joined by "+"."""
        return "+".join(dict.fromkeys(source.reader for source in self.sources))

    @property
    def files(self) -> tuple[str, ...]:
        """The files, as they were given."""
        return tuple(source.file for source in self.sources)

    def __len__(self) -> int:
        """Number of steps."""
        return self.frame.height

    @property
    def step_time_s(self) -> np.ndarray:
        """Measured durations, shape (k,) [s]."""
        return self.frame["step_time_s"].to_numpy()

    @property
    def stream(self) -> np.ndarray:
        """Number of the source of each row, from 0, shape (k,), int64. Neighbours and blocks never cross streams."""
        return self.frame["source"].rle_id().to_numpy().astype(np.int64)

    def batch(self) -> Batch:
        """What the scheduler put into the steps.

        Returns:
            Sums as float64 arrays of shape (k,) [requests, tokens, tokens, tokens^2, requests].
        """
        return Batch(*(self.frame[name].to_numpy() for name in Batch._fields))

    def in_blocks(self, blocks: str) -> np.ndarray:
        """Which rows lie in the blocks asked for.

        Args:
            blocks: "all", "even" (training) or "odd" (test).

        Returns:
            Mask of shape (k,), bool.

        Raises:
            ValueError: another word.
        """
        if blocks not in BLOCKS:
            raise ValueError(f"blocks must be one of {list(BLOCKS)}, got {blocks!r}")
        number = self.frame["block"].to_numpy()
        return np.ones(len(self), bool) if blocks == "all" else number % 2 == (0 if blocks == "even" else 1)

    def matching(self, where: Mapping[str, object] | None) -> np.ndarray:
        """Which rows hold the values asked for.

        Args:
            where: wanted value by column, or, of a column of numbers, a range "low:high" with both ends in it, one of which
                may be left out; all must hold. None takes every row.

        Returns:
            Mask of shape (k,), bool.

        Raises:
            ValueError: no such column, no row with these values, or what is no range.
        """
        mask = np.ones(len(self), bool)
        for column, value in (where or {}).items():
            if column not in self.frame.columns:
                raise ValueError(f"the trace has no column {column!r} to choose rows by; it has {self.frame.columns}")
            mask &= chosen(self.frame[column], value)
        if not mask.any():
            raise ValueError(f"no row has all of {', '.join(f'{k}={v}' for k, v in (where or {}).items())}")
        return mask

    def where(self, where: Mapping[str, object]) -> Trace:
        """The rows that hold the values asked for; they stay in the blocks that they were cut into.

        Args:
            where: wanted value, or range low:high, by column.

        Returns:
            A trace of these rows. Give `where` to `fit` or `score` instead to judge rows by all their neighbours.

        Raises:
            ValueError: no such column, or no row with these values.
        """
        return dataclasses.replace(self, frame=self.frame.filter(self.matching(where)))


def _blocked(frame: pl.DataFrame) -> pl.DataFrame:
    """Number of each row's block within its own source: rows // 200."""
    row = pl.int_range(pl.len(), dtype=pl.Int64).over("source")
    return frame.with_columns(block=row // BLOCK_ROWS)
