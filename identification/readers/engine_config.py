"""The engine's limits, from the configuration that lies beside a trace; the rows are believed where they say otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from headway.identification.readers.errors import TraceError

KEYS = {
    "cache_config.block_size": "block_tokens",
    "scheduler_config.max_num_seqs": "max_seqs",
    "model_config.max_model_len": "max_len",
    "scheduler_config.max_num_batched_tokens": "max_tokens",
    **{f"headway.{field}": field for field in ("kv_tokens", "block_tokens", "max_seqs", "max_len", "max_tokens")},
}
"""vLLM's names, and Headway's own beside a trace it recorded, by the field of `Limits` that they are. Each is read without its
section as well, as an engine's own flags are written."""
TENSOR_PARALLEL = "parallel_config.tensor_parallel_size"
"""vLLM's name for the number of devices that share each layer."""
MOST = 10**9
"""Largest limit that is believed: larger than any engine's cache, and what the readers believe of a step."""


def engine_limits(files: Iterable[str], frame: pl.DataFrame) -> tuple[dict[str, int], list[str]]:
    """Read `NAME.engine_config.json` beside each file `NAME.*`, if there is one.

    Args:
        files: the traces.
        frame: their rows, the columns of a trace, shape (k,).

    Returns:
        (limits by field of `Limits` [tokens, requests]; what there is to say, one sentence each).

    Raises:
        TraceError: a configuration that is no JSON object, a limit in it that is no whole number above zero, or one that it
            gives under two names that differ.
    """
    engine: dict[str, int] = {}
    said: list[str] = []
    for file in files:
        found, unknown = _beside(Path(file))
        said.extend(line for line in unknown if line not in said)
        for field, value in found.items():
            if engine.setdefault(field, value) != value:
                said.append(f"the engines of these files differ in {field} ({engine[field]} and {value}); the larger is taken")
                engine[field] = max(engine[field], value)
    tokens, seqs = frame.select((pl.col("prefill_tokens") + pl.col("decode_requests")).max(), pl.col("decode_requests").max()).row(0)
    for field, seen, what in (("max_tokens", tokens, "tokens in a step"), ("max_seqs", seqs, "requests decoding in a step")):
        if field in engine and seen > engine[field]:
            said.append(f"the engine's configuration says {field} {engine[field]}, the rows hold up to {seen:.0f} {what}: the rows count")
            engine[field] = int(seen)
    return engine, said


def tensor_parallel(files: Iterable[str]) -> list[int | None]:
    """Number of devices that share each layer, from `NAME.engine_config.json` beside each file `NAME.*`.

    Args:
        files: the traces.

    Returns:
        One size for each file; None where no configuration lies beside it, or none that says so.

    Raises:
        TraceError: a configuration that is no JSON object, a size in it that is no whole number above zero, or two that differ.
    """
    configs = [_config_of(Path(file)) for file in files]
    return [None if config is None else _whole(config, _content(config), [TENSOR_PARALLEL]) for config in configs]


def _config_of(trace: Path) -> Path | None:
    """The configuration beside this trace; its name may itself hold dots, so every shorter name is tried."""
    parts = trace.name.split(".")
    tried = (trace.with_name(".".join(parts[:n]) + ".engine_config.json") for n in range(len(parts), 0, -1))
    return next((config for config in tried if config.is_file()), None)


def _beside(trace: Path) -> tuple[dict[str, int], list[str]]:
    """The limits in the configuration of this trace, and a sentence where there is one that says none of them."""
    config = _config_of(trace)
    if config is None:
        return {}, []
    content = _content(config)
    found = ((field, _whole(config, content, [key for key in KEYS if KEYS[key] == field])) for field in dict.fromkeys(KEYS.values()))
    limits = {field: value for field, value in found if value is not None}
    if limits or _whole(config, content, [TENSOR_PARALLEL]):
        return limits, []
    known = ", ".join(dict.fromkeys(key.partition(".")[2] for key in KEYS))
    return {}, [f"{config.name} holds no limit of the engine that Headway knows, so none was taken from it; known are {known}"]


def _content(config: Path) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(config.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise TraceError(config, "the engine's configuration, a JSON object", found=str(error)) from None
    if not isinstance(content, dict):
        raise TraceError(config, "the engine's configuration, a JSON object", found=type(content).__name__)
    return content


def _whole(config: Path, content: dict[str, Any], keys: Sequence[str]) -> int | None:
    """A whole number above zero, under the dotted name of a key, in its section or alone; None where none of them is there."""
    given: dict[str, Any] = {}
    for key in keys:
        section, name = key.split(".")
        nested = content.get(section)
        given |= {key: content.get(key, nested.get(name) if isinstance(nested, dict) else None), name: content.get(name)}
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TraceError(config, "a whole number above zero", column=name, found=value)
        if value > MOST:
            raise TraceError(config, f"a whole number of at most {MOST:.0e}", column=name, found=value)
    if len(set(given.values())) > 1:
        raise TraceError(config, "one number under all names of a limit", column=", ".join(given), found=list(given.values()))
    return next(iter(given.values()), None)
