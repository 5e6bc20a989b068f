"""Vidur's kernel tables: the compute side of a step by tokens, without attention; and its table of collectives, which holds no step."""

from __future__ import annotations

import numpy as np
import polars as pl

from headway.identification.hardware.compose import COLLECTIVES
from headway.identification.hardware.layers import SHAPES, Shape
from headway.identification.readers.columns import Opened, Table, numbers, text_table
from headway.identification.readers.errors import TraceError

FORM = "Vidur's kernel times by tokens (its mlp.csv)"
SHAPE = ("n_embd", "n_head", "n_kv_head", "n_expanded_embd")
IN_LAYER = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
"""Kernels of a layer, each once, as Vidur's own simulator adds them up."""
ONCE = ("emb",)
MEDIAN = "time_stats.{}.median"
TOKENS, TP = "num_tokens", "num_tensor_parallel_workers"
MISSING = ("decode_kv_tokens", "prefill_pairs")
"""Columns of a trace on which attention alone depends, and attention is not in these tables."""


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it is a table of Vidur's.

    Args:
        opened: the file.

    Returns:
        True for the kernel table, and for the table of collectives (which is then refused in a sentence).
    """
    return MEDIAN.format("mlp_up_proj") in opened.header or _collectives(opened)


def _collectives(opened: Opened) -> bool:
    return "collective" in opened.header and any(name.startswith("time_stats.") for name in opened.header)


def read(opened: Opened) -> Table:
    """Compose the compute side of a step for each row: all layers at its tokens, without attention.

    t = L * sum_j median_j(tokens) + embedding(tokens), one stream for each TP

    A kernel of these takes no notice of which tokens are prompts and which are decoded: all are booked as prompt tokens.

    Args:
        opened: the file.

    Returns:
        The trace's columns on the device's clock, and `tensor_parallel`.

    Raises:
        TraceError: a table of collectives, an llm whose layers are not known, a column missing or a cell that is no number.
    """
    if _collectives(opened):
        raise TraceError(
            opened.file,
            "a trace of engine steps; this is a table of collectives by size (Vidur's), one part of a step; give mlp.csv",
        )
    times = [MEDIAN.format(name) for name in (*IN_LAYER, *ONCE)]
    names = (*times, *SHAPE, TOKENS, TP)
    frame, cut = text_table(opened, names, FORM)
    frame = numbers(frame, opened.file, names)
    llm, layers = _llm(frame, opened.file)
    one_layer_ms = np.sum([frame[MEDIAN.format(name)].to_numpy() for name in IN_LAYER], axis=0)
    step_s = (layers * one_layer_ms + np.sum([frame[MEDIAN.format(name)].to_numpy() for name in ONCE], axis=0)) / 1e3
    tokens, tp = frame[TOKENS].to_numpy(), frame[TP].cast(pl.Int64)
    said = [
        f"compute side of {llm}, {layers} layers, from kernel times: no attention, no head, no gap between kernels; every token counts as a prompt's"
    ]
    if (most := tp.max()) is not None and int(str(most)) > 1:
        said.append(f"no collective in this table: above TP 1 a step lacks its {COLLECTIVES * layers} all-reduces")
    zero = np.zeros(len(tokens))
    columns = {
        "step": 2 * np.arange(len(tokens)),  # no two rows ran one after the other: none is another's neighbour
        "source": ("tp" + tp.cast(pl.String)).to_list(),
        "step_time_s": step_s,
        "decode_requests": zero,
        "decode_kv_tokens": zero,
        "prefill_tokens": tokens,
        "prefill_pairs": zero,
        "prefill_requests": (tokens > 0).astype(float),
        "tensor_parallel": tp.to_list(),
    }
    return Table(pl.DataFrame(columns), {"unreadable": cut}, tuple(said), missing=MISSING, clock="device")


def _llm(frame: pl.DataFrame, file: str) -> tuple[str, int]:
    """The llm by its shape: the table holds no name, and no number of layers."""
    shapes = frame.select(SHAPE).unique(maintain_order=True)
    if shapes.height > 1:
        raise TraceError(file, "kernels of one llm", column=SHAPE[0], found=shapes[SHAPE[0]].to_list())
    shape = Shape(*(int(value) for value in shapes.row(0)))
    if shape not in SHAPES:
        known = ", ".join(name for name, _ in SHAPES.values())
        raise TraceError(
            file, f"an llm whose layers are known by its shape ({known}); the table does not hold their number", found=str(shape)
        )
    return SHAPES[shape]
