"""How many layers an llm has: a table of one layer's kernels says nothing of it, and a step runs them all."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """What a kernel table may hold instead of the llm's name.

    Args:
        width: of the hidden state.
        heads: of the queries.
        kv_heads: of keys and values.
        inner: width inside the feed-forward layers.
    """

    width: int
    heads: int
    kv_heads: int
    inner: int


LAYERS: dict[str, int] = {
    "llama-2-7b": 32,
    "llama-2-13b": 40,
    "llama-2-70b": 80,
    "llama-3-8b": 32,
    "llama-3-70b": 80,
    "llama-3.1-8b": 32,
    "llama-3.1-70b": 80,
    "llama-3.1-405b": 126,
    "llama-3.3-70b": 80,
    "mistral-7b-v0.3": 32,
    "qwen3-8b": 36,
    "qwen3-14b": 40,
    "qwen3-32b": 64,
}
"""Layers by the llm's name, in lower case, without its owner and endings such as -instruct or -hf."""

SHAPES: dict[Shape, tuple[str, int]] = {
    Shape(4096, 32, 32, 11008): ("Llama 2 7B", 32),
    Shape(5120, 40, 40, 13824): ("Llama 2 13B", 40),
    Shape(8192, 64, 8, 28672): ("Llama 2 or 3 70B", 80),
    Shape(4096, 32, 8, 14336): ("Llama 3 8B", 32),
    Shape(5120, 64, 8, 25600): ("Qwen3 32B", 64),
}
"""The llm and its layers, by shape."""

ENDINGS = ("-instruct", "-chat", "-base", "-hf", "-fp8")


def layers_of(name: str) -> int | None:
    """Layers of an llm by its name.

    Args:
        name: as hubs write it, with its owner or without.

    Returns:
        The number of layers; None if it is not in `LAYERS`.

    Example:
        >>> layers_of("meta-llama/Llama-3.1-8B-Instruct")
        32
    """
    short = name.strip().lower().rsplit("/", 1)[-1]
    while short not in LAYERS and (end := next((e for e in ENDINGS if short.endswith(e)), None)):
        short = short.removesuffix(end)
    return LAYERS.get(short)
