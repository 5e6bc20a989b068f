"""Splitwise's table of prompt and token times: each row is a prefill step and a decode step of one batch."""

from __future__ import annotations

import numpy as np
import polars as pl

from headway.identification.copies import scaled_copies
from headway.identification.readers.columns import Opened, Table, apart, numbers, text_table
from headway.identification.readers.errors import TraceError

FORM = "Splitwise's table of prompt and token times"
TIMES = ("prompt_time", "token_time", "e2e_time")
SIZES = ("prompt_size", "batch_size", "token_size", "tensor_parallel")
NAMES = ("model", "hardware")
LONGER = 1.05
"""Ratio of e2e_time to the sum of its parts from which on the batch did not run as one: elsewhere it is below 1.01."""


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it is this table.

    Args:
        opened: the file.

    Returns:
        True if its header names its times and sizes.
    """
    return {*TIMES, "prompt_size", "token_size", "batch_size"} <= set(opened.header)


def read(opened: Opened) -> Table:
    """Read each row as two steps: the prompts of the batch, and its mean decode step.

    prefill: p = batch * prompt, pairs = batch * prompt^2 / 2
    decode:  n = batch, kv = batch * (prompt + out / 2), out = min(token_size, 1 + (e2e - prompt_time) / token_time)

    token_size is what was asked for; a request that ended early is known from e2e_time.

    Args:
        opened: the file.

    Returns:
        The trace's columns, one stream for each llm, card and TP, `steps_averaged` (of a decode step those of its batch), and
        `model`, `hardware`, `tensor_parallel`, `phase`.

    Raises:
        TraceError: a column missing, a cell that is no number or not above zero, or no row left.
    """
    frame, cut = text_table(opened, (*NAMES, *SIZES, *TIMES), FORM)
    frame = numbers(frame, opened.file, (*SIZES, *TIMES))
    for name in (*SIZES, *TIMES):
        wrong = (frame[name] <= 0).arg_true()
        if len(wrong):
            raise TraceError(opened.file, "a number above zero", row=int(wrong[0]) + 1, column=name, found=frame[name][int(wrong[0])])
    copies = scaled_copies(frame, SIZES, TIMES[:2])
    parts = pl.col("prompt_time") + pl.col("token_time") * (pl.col("token_size") - 1)
    apart = frame.select(pl.col("e2e_time") > LONGER * parts).to_series().to_numpy() & ~copies.rows
    said = [*copies.said, *_apart(frame.filter(pl.Series(apart)))]
    kept = frame.with_row_index("row").filter(pl.Series(~copies.rows & ~apart))
    if kept.height == 0:
        raise TraceError(opened.file, f"at least one row that was measured in {FORM}, found none")
    early = int(kept.select((_outputs() < 0.99 * pl.col("token_size")).sum()).item())
    if early:
        said.append(f"{early} rows ended before their token_size by their e2e_time; their cache is taken by what came")
    said.append("token_time is the mean over a batch's decode steps, whose cache grows: taken at half its output")
    aside = {"unreadable": cut, "scaled_copy": 2 * int(copies.rows.sum()), "not_one_batch": 2 * int(apart.sum())}
    return Table(_steps(kept), aside, tuple(said))


def _outputs() -> pl.Expr:
    """Tokens that came, by the end-to-end time."""
    return pl.min_horizontal("token_size", 1 + (pl.col("e2e_time") - pl.col("prompt_time")).clip(0) / pl.col("token_time"))


def _steps(kept: pl.DataFrame) -> pl.DataFrame:
    tp = pl.col("tensor_parallel").cast(pl.Int64)
    batch, prompt, none = pl.col("batch_size"), pl.col("prompt_size"), pl.lit(0.0)
    about = [
        (pl.col("model") + "/" + pl.col("hardware") + "/tp" + tp.cast(pl.String)).alias("source"),
        *(pl.col(name) for name in NAMES),
        tp.alias("tensor_parallel"),
    ]
    works = {
        "prefill": ("prompt_time", none, none, batch * prompt, batch * prompt**2 / 2, batch),
        "decode": ("token_time", batch, batch * (prompt + _outputs() / 2), none, none, none),
    }
    names = ("decode_requests", "decode_kv_tokens", "prefill_tokens", "prefill_pairs", "prefill_requests")
    parts = []
    for nth, (phase, (time, *work)) in enumerate(works.items()):
        step_s = pl.Series("step_time_s", kept[time].to_numpy() / 1e3)
        sums = [value.alias(name) for name, value in zip(names, work, strict=True)]
        step = apart(pl.col("row").cast(pl.Int64) * 2 + nth).alias("step")
        averaged = (pl.lit(1.0) if phase == "prefill" else pl.max_horizontal(_outputs() - 1, 1.0)).alias("steps_averaged")
        parts.append(kept.select(step, step_s, *sums, averaged, *about, pl.lit(phase).alias("phase")))
    return pl.concat(parts).sort("step")


def _apart(rows: pl.DataFrame) -> list[str]:
    """Say which rows took longer than their parts, in whose phases, and by how much."""
    said = []
    for (model, hardware, tp, batch), group in rows.group_by(*NAMES, "tensor_parallel", "batch_size", maintain_order=True):
        parts = group["prompt_time"].to_numpy() + group["token_time"].to_numpy() * (group["token_size"].to_numpy() - 1)
        ratio = float(np.median(group["e2e_time"].to_numpy() / parts))
        said.append(
            f"{group.height} rows of {model} on {hardware} at TP {tp:g}, batch {batch:g}, took {ratio:.1f} times the sum of their prompt and token "
            "times: the batch did not fit and ran in turns; set aside"
        )
    return said
