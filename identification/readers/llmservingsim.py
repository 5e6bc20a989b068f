"""Kernel tables of LLMServingSim's profiler: attention on a grid of compositions, the other layers by tokens, composed to steps.

attention.csv holds one layer's attention for one chunk of `prefill_chunk` tokens after `kv_prefill` in the cache, beside
`n_decode` requests with `kv_decode` tokens of cache each. dense.csv holds the other kernels by tokens in the step,
per_sequence.csv those that run once for each sequence that gets a token. They were taken from an llm cut to one layer.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl

from headway.identification.hardware.compose import (
    COLLECTIVES,
    Curve,
    checkerboard,
    compose_s,
    grid_index,
    missing_collective,
    on_plane,
)
from headway.identification.hardware.layers import layers_of
from headway.identification.readers.columns import Opened, Table, numbers, seconds, text_table
from headway.identification.readers.errors import TraceError
from headway.identification.readers.serving_run import read_serving_run

FORM = "LLMServingSim's kernel tables (attention.csv, with dense.csv and per_sequence.csv beside it)"
GRID = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
DENSE = ("layer", "tokens", "time_us")
PER_SEQUENCE = ("layer", "sequences", "time_us")
ONCE = ("embedding", "final_layernorm")
"""Kernels of dense.csv that run once a step; all others run in every layer."""
TWICE = ("layernorm",)
"""Kernels that run twice in a layer, as the profiler's own catalogue of these llms lists them: before attention and after."""
MICRO = 1e6


class _Kernels(NamedTuple):
    """What lies beside attention.csv."""

    in_layer: list[Curve]
    once: list[Curve]
    per_sequence: list[Curve]
    layers: int
    llm: str
    tp: int

    def compose(self, attention_s: np.ndarray, tokens: np.ndarray, sequences: np.ndarray) -> np.ndarray:
        curves = {"in_layer": self.in_layer, "once": self.once, "per_sequence": self.per_sequence}
        return compose_s(attention_s, tokens, sequences, layers=self.layers, **curves)


def claims(opened: Opened) -> bool:
    """Whether the file's own content says that it is one of these tables.

    Args:
        opened: the file.

    Returns:
        True if its header is that of attention.csv, or of a table beside it (which is then refused in a sentence).
    """
    return set(GRID) <= set(opened.header) or opened.header in (DENSE, PER_SEQUENCE)


def table_of(path: str) -> str:
    """The table to read where a folder of tables was given.

    Args:
        path: as it was given.

    Returns:
        Its attention.csv, if it is a folder that holds one; else the path itself.
    """
    table = Path(path) / "attention.csv"
    return str(table) if table.is_file() else path


def read(opened: Opened) -> Table:
    """Compose one step for each grid point of attention.csv.

    Args:
        opened: attention.csv; dense.csv and per_sequence.csv beside it, meta.yaml beside it or one folder up.

    Returns:
        The trace's columns on the device's clock; `grid_*`, the number of each coordinate on its axis, and
        `checkerboard`, 0 or 1, which differs between neighbours on the grid.

    Raises:
        TraceError: a table, a column or the number of layers is missing, or a cell is no number or negative.
    """
    if opened.header in (DENSE, PER_SEQUENCE):
        raise TraceError(
            opened.file,
            "LLMServingSim's attention.csv of this folder, or the folder; this table holds one part of a step and is read with it",
        )
    frame, cut = text_table(opened, (*GRID, "time_us"), FORM)
    frame = numbers(frame, opened.file, (*GRID, "time_us"))
    kernels = _beside(Path(opened.file))
    chunk, context, decodes, cache = (frame[name].to_numpy() for name in GRID)
    attention_s, tokens = seconds(frame["time_us"], MICRO).to_numpy(), chunk + decodes
    step_s = kernels.compose(attention_s, tokens, decodes + (chunk > 0))
    index = {f"grid_{name}": grid_index(frame[name].to_numpy()) for name in GRID}
    warnings = _warnings(kernels, tokens)
    decode_only = chunk == 0
    warnings += _against_run(Path(opened.file), kernels, decodes[decode_only], cache[decode_only], attention_s[decode_only])
    columns = {
        "step": 2 * np.arange(len(step_s)),  # no two rows ran one after the other: none is another's neighbour
        "step_time_s": step_s,
        "decode_requests": decodes,
        "decode_kv_tokens": decodes * cache,
        "prefill_tokens": chunk,
        "prefill_pairs": chunk * (context + chunk / 2),
        "prefill_requests": (chunk > 0).astype(float),
        **index,
        "checkerboard": checkerboard(*index.values()),
    }
    if kernels.tp:
        columns["tensor_parallel"] = np.full(len(step_s), kernels.tp)
    return Table(pl.DataFrame(columns), {"unreadable": cut}, tuple(warnings), clock="device")


def _beside(attention: Path) -> _Kernels:
    """The tables beside attention.csv, and what is said of the llm."""
    dense = _curves(attention.with_name("dense.csv"), DENSE)
    once = [curve for name, curve in dense.items() if name in ONCE]
    in_layer = [curve._replace(times=2 if name in TWICE else 1) for name, curve in dense.items() if name not in ONCE]
    sequences = list(_curves(attention.with_name("per_sequence.csv"), PER_SEQUENCE).values())
    tp = re.fullmatch(r"tp(\d+)", attention.resolve().parent.name)
    llm, layers = _llm(attention)
    return _Kernels(in_layer, once, sequences, layers, llm, int(tp[1]) if tp else 0)


def _curves(path: Path, columns: tuple[str, str, str]) -> dict[str, Curve]:
    """Each kernel of a table by name, in file order."""
    if not path.is_file():
        raise TraceError(path, "this table beside attention.csv: without it a step lacks its other kernels")
    frame, _ = text_table(Opened(str(path)), columns, FORM)
    frame = numbers(frame, str(path), columns[1:])
    curves = {}
    for (name,), rows in frame.group_by(columns[0], maintain_order=True):
        rows = rows.sort(columns[1])
        at = rows[columns[1]].to_numpy()
        twice = at[1:][np.diff(at) <= 0]
        if len(twice):
            raise TraceError(path, f"each number of {columns[1]} once", column=columns[1], found=f"{name} twice at {twice[0]:g}")
        curves[str(name)] = Curve(at, seconds(rows["time_us"], MICRO).to_numpy())
    return curves


def _llm(attention: Path) -> tuple[str, int]:
    """The llm and its layers: from a config.json beside the tables, else by the name in meta.yaml."""
    folders = (attention.parent, attention.resolve().parent.parent)
    meta = next((folder / "meta.yaml" for folder in folders if (folder / "meta.yaml").is_file()), None)
    text = meta.read_text(encoding="utf-8", errors="replace") if meta else ""
    named = re.search(r"^model:\s*['\"]?([^'\"\s]+)", text, re.MULTILINE)
    name = named[1] if named else "an llm without a name"
    for config in (folder / "config.json" for folder in folders):
        if config.is_file():
            try:
                layers = msgspec.json.decode(config.read_bytes()).get("num_hidden_layers")
            except (msgspec.DecodeError, UnicodeDecodeError, AttributeError) as error:
                raise TraceError(config, "the llm's configuration, a JSON object", found=str(error)) from None
            if isinstance(layers, bool) or not isinstance(layers, int) or layers < 1:
                raise TraceError(config, "a whole number above zero", column="num_hidden_layers", found=layers)
            return name, layers
    layers = layers_of(name)
    if layers is None:
        ask = "the number of layers of the llm: put its config.json (num_hidden_layers) beside meta.yaml"
        raise TraceError(meta or attention, f"{ask}; the tables hold one layer", found=name)
    return name, layers


def _warnings(kernels: _Kernels, tokens: np.ndarray) -> list[str]:
    said = [f"steps composed from kernel times of {kernels.llm}, {kernels.layers} layers: no gap between kernels, no host time"]
    if kernels.tp > 1:
        count = COLLECTIVES * kernels.layers
        said.append(f"no collective in these tables: at TP {kernels.tp} a step lacks its {count} all-reduces, and an engine takes longer")
    elif kernels.tp == 0:
        said.append("the folder's name gives no TP (tp1, tp2): if it is above 1, a step lacks its all-reduces")
    largest = max(curve.at[-1] for curve in [*kernels.in_layer, *kernels.once])
    if beyond := int((tokens > largest).sum()):
        most = f"{tokens.max():.0f}"
        said.append(
            f"{beyond} steps hold up to {most} tokens, beyond the {largest:.0f} of dense.csv: its times were continued in proportion"
        )
    return said


def _against_run(attention: Path, kernels: _Kernels, decodes: np.ndarray, cache: np.ndarray, attention_s: np.ndarray) -> list[str]:
    """Hold composed decode steps against a run of the same TP that lies beside the tables."""
    folder = attention.resolve().parent.parent / "vllm_run"
    if not folder.is_dir() or len(np.unique(decodes)) * len(np.unique(cache)) != len(decodes) or not len(decodes):
        return []
    try:
        run = read_serving_run(folder)
    except TraceError as error:  # the tables are whole without it
        return [f"the run beside these tables was not held against them: {error}"]
    if run.tp != kernels.tp or not len(run.step_time_s):
        return []
    one_layer_s = on_plane(decodes, cache, attention_s, run.decode_requests, run.context_tokens)
    composed_s = kernels.compose(one_layer_s, run.decode_requests, run.decode_requests)
    inside = np.isfinite(composed_s)
    if not inside.any():
        return []
    ratio = float(np.median(run.step_time_s[inside] / composed_s[inside]))
    said = [
        f"held against {int(inside.sum())} decode-only seconds of {folder.name}: measured steps take {ratio:.2f} times the composed ones"
    ]
    lacking = missing_collective(composed_s[inside], run.step_time_s[inside], kernels.tp)
    return said + ([lacking] if lacking else [])
