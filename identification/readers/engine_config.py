"""The engine's limits, from the configuration that lies beside a trace; the rows are believed where they say otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

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
"""vLLM's names, and Headway's own beside a trace it recorded, by the field of `Limits` that they are."""


def engine_limits(files: Iterable[str], frame: pl.DataFrame) -> tuple[dict[str, int], list[str]]:
    """Read `NAME.engine_config.json` beside each file `NAME.*`, if there is one.

    Args:
        files: the traces.
        frame: their rows, the columns of a trace, shape (k,).

    Returns:
        (limits by field of `Limits` [tokens, requests]; what there is to say, one sentence each).

    Raises:
        TraceError: a configuration that is no JSON object, or a limit in it that is no whole number above zero.
    """
    engine: dict[str, int] = {}
    said = []
    for file in files:
        for field, value in _beside(Path(file)).items():
            if engine.setdefault(field, value) != value:
                said.append(f"the engines of these files differ in {field} ({engine[field]} and {value}); the larger is taken")
                engine[field] = max(engine[field], value)
    tokens, seqs = frame.select((pl.col("prefill_tokens") + pl.col("decode_requests")).max(), pl.col("decode_requests").max()).row(0)
    for field, seen, what in (("max_tokens", tokens, "tokens in a step"), ("max_seqs", seqs, "requests decoding in a step")):
        if field in engine and seen > engine[field]:
            said.append(f"the engine's configuration says {field} {engine[field]}, the rows hold up to {seen:.0f} {what}: the rows count")
            engine[field] = int(seen)
    return engine, said


def _beside(trace: Path) -> dict[str, int]:
    """The limits in the configuration of this trace; its name may itself hold dots, so every shorter name is tried."""
    parts = trace.name.split(".")
    for n in range(len(parts), 0, -1):
        config = trace.with_name(".".join(parts[:n]) + ".engine_config.json")
        if config.is_file():
            return _limits(config)
    return {}


def _limits(config: Path) -> dict[str, int]:
    try:
        content = msgspec.json.decode(config.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise TraceError(config, "the engine's configuration, a JSON object", found=str(error)) from None
    if not isinstance(content, dict):
        raise TraceError(config, "the engine's configuration, a JSON object", found=type(content).__name__)
    limits = {}
    for key, field in KEYS.items():
        section, name = key.split(".")
        nested = content.get(section)
        value = content.get(key, nested.get(name) if isinstance(nested, dict) else None)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TraceError(config, "a whole number above zero", column=key, found=value)
        limits[field] = value
    return limits
