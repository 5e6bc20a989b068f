"""The llm of the live kernels: a small decoder-only transformer with random weights and a paged KV cache, in JAX.

Its forward pass serves decode rows and prefill chunks in one call. Only the number of tokens in the batch is a compiled
shape; the attention runs in loops whose length is data, over as much cache as the step really reads. Padding every row
to the longest context, the usual way in JAX, was refused: it makes a step's duration depend on the longest row instead
of the tokens read, and multiplies the shapes to compile.
"""

from __future__ import annotations

import dataclasses
import difflib
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from headway.experiments.attention import Batch, Tiling, attend, slice_of, take, write


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The sizes of a Llama-like transformer: RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied embedding.

    Args:
        layers: transformer layers.
        hidden: width of the residual stream.
        heads: query heads.
        kv_heads: key and value heads; divides `heads`.
        head_dim: width of a head; even.
        ffn: inner width of the feed-forward.
        vocab: token ids.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int

    @property
    def parameters(self) -> int:
        """Number of weights."""
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.ffn) + self.vocab * self.hidden

    @property
    def kv_values(self) -> int:
        """Keys and values that one token leaves in the cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim


PRESETS: dict[str, Architecture] = {
    "tiny": Architecture(layers=3, hidden=256, heads=4, kv_heads=2, head_dim=32, ffn=640, vocab=2048),
    "small": Architecture(layers=12, hidden=768, heads=12, kv_heads=4, head_dim=64, ffn=2560, vocab=32768),
    "1b": Architecture(layers=16, hidden=2048, heads=32, kv_heads=8, head_dim=64, ffn=8192, vocab=128256),
    "8b": Architecture(layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocab=128256),
}
"""Sizes by name: `tiny` steps in milliseconds on two CPU cores, `1b` and `8b` are for a GPU."""


def architecture(name: str) -> Architecture:
    """Look a preset up.

    Args:
        name: a key of `PRESETS`.

    Returns:
        Its sizes.

    Raises:
        ValueError: no such preset; the message names the nearest.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=2, cutoff=0.3) or list(PRESETS)
        raise ValueError(f"unknown preset {name!r}; did you mean {' or '.join(near)}? The presets are {', '.join(PRESETS)}")
    return PRESETS[name]


class Weights(NamedTuple):
    """All weights, layers stacked along the first axis, so that one compiled layer serves them all.

    The norms have no gains of their own: a gain is the same as a factor in the rows of the matrix that follows.

    Args:
        embed: shape (vocab, hidden); its transpose is the output layer.
        qkv: shape (layers, hidden, (heads + 2 kv_heads) head_dim).
        out: shape (layers, heads head_dim, hidden).
        gate_up: shape (layers, hidden, 2 ffn).
        down: shape (layers, ffn, hidden).
    """

    embed: Any
    qkv: Any
    out: Any
    gate_up: Any
    down: Any


def draw_weights(llm: Architecture, seed: int, dtype: Any) -> Weights:
    """Random weights that keep every layer's output near unit size, so that no step works on zeros or infinities.

    The embedding is drawn small against what the layers add: with a tied output layer the next token would otherwise
    always be the last one again, and no test could tell a right cache from a wrong one.

    Args:
        llm: the sizes.
        seed: of the draw.
        dtype: of the weights.

    Returns:
        The weights.
    """

    @partial(jax.jit, static_argnums=(1, 2))
    def draw(keys: Any, rows: int, columns: int) -> Any:
        # Layer by layer: drawn at once, the bits alone of a large llm's feed-forward would take twice its memory.
        return jax.lax.map(lambda key: jax.random.normal(key, (rows, columns), dtype) * rows**-0.5, keys)

    queries, values = llm.heads * llm.head_dim, llm.kv_heads * llm.head_dim
    keys = jax.random.split(jax.random.key(seed), (5, llm.layers))
    return Weights(
        embed=jax.random.normal(keys[0, 0], (llm.vocab, llm.hidden), dtype) * 0.02,
        qkv=draw(keys[1], llm.hidden, queries + 2 * values),
        out=draw(keys[2], queries, llm.hidden),
        gate_up=draw(keys[3], llm.hidden, 2 * llm.ffn),
        down=draw(keys[4], llm.ffn, llm.hidden),
    )


def rms_norm(x: Any) -> Any:
    """Scale rows to unit mean square.

    Args:
        x: shape (n, hidden).

    Returns:
        Array of the shape and dtype of `x`.
    """
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype)


def rotate(x: Any, positions: Any) -> Any:
    """Rotary positions: turn the two halves of every head by angles that grow with the position.

    Args:
        x: shape (n, heads, head_dim).
        positions: shape (n,) [tokens].

    Returns:
        Array of the shape and dtype of `x`.

    Source:
        Su et al., RoFormer, arXiv:2104.09864, in the half-split form of Llama.
    """
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = positions.astype(jnp.float32)[:, None] * rates[None, :]
    cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
    a, b = x[..., :half].astype(jnp.float32), x[..., half:].astype(jnp.float32)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def feed_forward(x: Any, gate_up: Any, down: Any) -> Any:
    """SwiGLU.

    Args:
        x: shape (n, hidden).
        gate_up: shape (hidden, 2 ffn).
        down: shape (ffn, hidden).

    Returns:
        Array of the shape of `x`.
    """
    gate, up = jnp.split(x @ gate_up, 2, axis=-1)
    return (jax.nn.silu(gate) * up) @ down


def sample(x: Any, weights: Weights, batch: Batch, tiling: Tiling) -> Any:
    """The next token of every row that is to be continued: the likeliest.

    Args:
        x: last residual stream, shape (n, hidden).
        weights: the weights.
        batch: the batch.
        tiling: the grain.

    Returns:
        Token ids, int32: shape (n,) for a batch without chunks, (s,) otherwise.
    """

    def likeliest(rows: Any) -> Any:
        logits = jnp.einsum("sh,vh->sv", rms_norm(rows), weights.embed, preferred_element_type=jnp.float32)
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    if not batch.tiles.shape[1]:
        return likeliest(x)
    size = tiling.samples

    def one_pass(i: Any, ids: Any) -> Any:
        fresh = likeliest(take(x, slice_of(batch.sample, i * size, size)))
        return jax.lax.dynamic_update_slice_in_dim(ids, fresh, i * size, axis=0, allow_negative_indices=False)

    return jax.lax.fori_loop(jnp.int32(0), batch.loops[2], one_pass, jnp.zeros(batch.sample.shape, jnp.int32))


def forward(llm: Architecture, tiling: Tiling, weights: Weights, cache: Any, batch: Batch) -> tuple[Any, Any]:
    """One step: write the batch's keys and values to the cache, attend, and continue the rows that ask for it.

    Args:
        llm: the sizes.
        tiling: the grain.
        weights: the weights.
        cache: the pool of keys and values before the step (see `write`); donated by the engine.
        batch: the batch.

    Returns:
        The pool after the step, and the next token ids as from `sample`.
    """
    ids, positions = batch.tokens[0], batch.tokens[1]
    n, turned = ids.shape[0], llm.heads + llm.kv_heads

    def one_layer(state: tuple[Any, Any], inputs: tuple[Any, Weights]) -> tuple[tuple[Any, Any], None]:
        (x, cache), (layer, w) = state, inputs
        qkv = (rms_norm(x) @ w.qkv).reshape(n, turned + llm.kv_heads, llm.head_dim)
        qk = rotate(qkv[:, :turned], positions)
        cache = write(cache, layer, jnp.concatenate([qk[:, llm.heads :], qkv[:, turned:]], axis=1), batch)
        q = qk[:, : llm.heads].reshape(n, llm.kv_heads, -1, llm.head_dim) * llm.head_dim**-0.5
        x = x + attend(q, cache, layer, batch, tiling).reshape(n, -1).astype(x.dtype) @ w.out
        return (x + feed_forward(rms_norm(x), w.gate_up, w.down), cache), None

    layers = (jnp.arange(llm.layers, dtype=jnp.int32), weights._replace(embed=()))
    (x, cache), _ = jax.lax.scan(one_layer, (take(weights.embed, ids), cache), layers)
    return cache, sample(x, weights, batch, tiling)
