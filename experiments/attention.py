"""Attention over a paged KV cache, in JAX, for decode rows and for chunks: loops whose length is data, not a compiled shape.

Padding every row to the longest context, the usual way in JAX, was refused: it makes a step's duration depend on the
longest row instead of the tokens read, and multiplies the shapes to compile. Here a step reads what its requests have,
rounded up to one stretch of cache each, and one compiled program serves every context.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

FLOOR = -1e30
"""Score of what must not be attended to: finite, so that a row of nothing else gives no NaN."""

slice_of = partial(jax.lax.dynamic_slice_in_dim, allow_negative_indices=False)


class Tiling(NamedTuple):
    """How much one pass of each loop takes: the grain of a step's duration against the overhead of a pass.

    Args:
        reads: stretches of decode rows in one pass.
        pages: cache blocks in a stretch.
        queries: tokens of a chunk in one pass.
        samples: tokens continued in one pass.
    """

    reads: int
    pages: int
    queries: int
    samples: int


class Batch(NamedTuple):
    """What one forward pass computes, padded; decode rows first, then the chunks one after the other. All int32.

    Args:
        tokens: per token its id, its position, and its block and offset in the cache, shape (4, n). Padding writes to
            the spare block.
        reads: per stretch of cache that a decode row reads: its row (-1 is padding), its line of the table, the
            stretch's index, shape (3, m).
        tiles: per tile of a chunk: where it starts in the batch, its first position, tokens of its request in the cache
            once the chunk is, its line of the table, shape (4, k).
        sample: index in the batch of the tokens to be continued, shape (s,).
        loops: passes over `reads`, over `tiles` and over `sample` that hold anything, shape (3,).
        table: cache blocks of every request, shape (lines, blocks).
    """

    tokens: Any
    reads: Any
    tiles: Any
    sample: Any
    loops: Any
    table: Any


def write(cache: Any, layer: Any, fresh: Any, batch: Batch) -> Any:
    """Put the keys and values of a batch into the cache.

    Args:
        cache: one pool for all layers and requests, shape (layers, blocks, 2 kv_heads, block_tokens, head_dim): keys in
            the first half of the heads, values in the second.
        layer: index, scalar.
        fresh: keys and values, shape (n, 2 kv_heads, head_dim).
        batch: the batch.

    Returns:
        The cache, updated.
    """
    heads = jnp.arange(cache.shape[2], dtype=jnp.int32)[None, :]
    block, offset = batch.tokens[2][:, None], batch.tokens[3][:, None]
    return cache.at[layer, block, heads, offset].set(fresh, mode="promise_in_bounds")


def read(cache: Any, layer: Any, blocks: Any) -> tuple[Any, Any]:
    """Gather stretches of cache.

    Args:
        cache: the pool.
        layer: index, scalar.
        blocks: shape (r, pages).

    Returns:
        Keys and values, each of shape (r, kv_heads, pages * block_tokens, head_dim).
    """
    half = cache.shape[2] // 2

    def gather(first: int) -> Any:
        heads = jnp.arange(first, first + half, dtype=jnp.int32)[None, :, None]
        found = cache.at[layer, blocks[:, None, :], heads].get(mode="promise_in_bounds")
        return found.reshape(blocks.shape[0], half, -1, cache.shape[4])

    return gather(0), gather(half)


def attend_reads(q: Any, cache: Any, layer: Any, batch: Batch, tiling: Tiling) -> Any:
    """Attention of the decode rows, over the stretches of all rows in one list: the work is the tokens read.

    Args:
        q: scaled queries, shape (rows, kv_heads, group, head_dim).
        cache: the pool, with the rows' own tokens already written.
        layer: index, scalar.
        batch: the batch.
        tiling: the grain.

    Returns:
        float32 array of the shape of `q`; meaningless in rows that do not decode.

    Source:
        Online softmax: Milakov and Gimelshein, arXiv:1805.02867; split over the cache as in Flash-Decoding.
    """
    rows, length = jnp.arange(q.shape[0], dtype=jnp.int32)[None, :], tiling.pages * cache.shape[3]
    pages = batch.table.reshape(batch.table.shape[0], -1, tiling.pages)
    offsets = jnp.arange(length, dtype=jnp.int32)[None, :]

    def one_pass(i: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        high, mixed = state
        row, line, stretch = slice_of(batch.reads, i * tiling.reads, tiling.reads, axis=1)
        own = jnp.maximum(row, 0)
        keys, values = read(cache, layer, pages.at[line, stretch].get(mode="promise_in_bounds"))
        scores = jnp.einsum("rkgd,rktd->rkgt", take(q, own), keys, preferred_element_type=jnp.float32)
        limit = jnp.where(row < 0, -1, take(batch.tokens[1], own))
        seen = stretch[:, None] * jnp.int32(length) + offsets <= limit[:, None]
        scores = jnp.where(seen[:, None, None, :], scores, FLOOR)
        member = row[:, None] == rows
        tops = jnp.where(member[:, :, None, None], scores.max(-1)[:, None], FLOOR).max(0)
        higher = jnp.maximum(high, tops)
        shares = jnp.exp(scores - take(higher, own)[..., None])
        part = jnp.einsum("rn,rkgd->nkgd", member.astype(jnp.float32), weigh(shares, values))
        return higher, mixed * jnp.exp(high - higher)[..., None] + part

    return finish(jax.lax.fori_loop(jnp.int32(0), batch.loops[0], one_pass, begin(q.shape)))


def attend_tile(q: Any, cache: Any, layer: Any, tile: Any, batch: Batch, tiling: Tiling) -> Any:
    """Causal attention of one tile of a chunk over all that its request has in the cache.

    Args:
        q: scaled queries, shape (queries, kv_heads, group, head_dim).
        cache: the pool, with the chunk's own tokens already written.
        layer: index, scalar.
        tile: column of `batch.tiles`, shape (4,).
        batch: the batch.
        tiling: the grain.

    Returns:
        float32 array of the shape of `q`; meaningless beyond the end of the chunk.

    Source:
        Dao et al., FlashAttention, arXiv:2205.14135.
    """
    _, first, cached, line = tile
    length = tiling.pages * cache.shape[3]
    own = first + jnp.arange(q.shape[0], dtype=jnp.int32)[:, None]
    offsets = jnp.arange(length, dtype=jnp.int32)[None, :]
    blocks = take(batch.table, line)
    q = q.transpose(1, 2, 0, 3)[None]

    def one_pass(j: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        high, mixed = state
        keys, values = read(cache, layer, slice_of(blocks, j * tiling.pages, tiling.pages)[None])
        scores = jnp.einsum("rkgqd,rktd->rkgqt", q, keys, preferred_element_type=jnp.float32)
        scores = jnp.where((j * length + offsets <= own)[None, None, None], scores, FLOOR)
        higher = jnp.maximum(high, scores.max(-1))
        shares = jnp.exp(scores - higher[..., None])
        return higher, mixed * jnp.exp(high - higher)[..., None] + weigh(shares, values)

    stretches = (jnp.minimum(first + q.shape[3], cached) + (length - 1)) // length
    out = finish(jax.lax.fori_loop(jnp.int32(0), stretches, one_pass, begin(q.shape)))
    return out[0].transpose(2, 0, 1, 3)


def attend(q: Any, cache: Any, layer: Any, batch: Batch, tiling: Tiling) -> Any:
    """Attention of the whole batch.

    Args:
        q: scaled queries, shape (n, kv_heads, group, head_dim).
        cache: the pool, with the batch's own tokens already written.
        layer: index, scalar.
        batch: the batch.
        tiling: the grain.

    Returns:
        float32 array of the shape of `q`.
    """
    decoding = min(q.shape[0], batch.table.shape[0])
    out = attend_reads(q[:decoding], cache, layer, batch, tiling)
    if not batch.tiles.shape[1]:
        return out
    # Tiles are written whole, in the order of the batch: what one leaves beyond its chunk, and what the decode rows leave
    # in rows that do not decode, the next one overwrites. The last needs room behind the batch.
    longer = ((0, tiling.queries), (0, 0), (0, 0), (0, 0))
    q, out = jnp.pad(q, longer), jnp.pad(out, ((0, q.shape[0] + tiling.queries - decoding), *longer[1:]))

    def one_tile(i: Any, out: Any) -> Any:
        tile = slice_of(batch.tiles, i, 1, axis=1)[:, 0]
        own = attend_tile(slice_of(q, tile[0], tiling.queries), cache, layer, tile, batch, tiling)
        return jax.lax.dynamic_update_slice_in_dim(out, own, tile[0], axis=0, allow_negative_indices=False)

    return jax.lax.fori_loop(jnp.int32(0), batch.loops[1], one_tile, out)[: -tiling.queries]


def take(array: Any, rows: Any) -> Any:
    """Rows of an array, by indices known to be in range.

    Args:
        array: shape (n, ...).
        rows: indices, any shape.

    Returns:
        Array of shape (*rows.shape, ...).
    """
    return array.at[rows].get(mode="promise_in_bounds")


def begin(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """State of an online softmax before the first pass: highest score, and the values mixed so far, their weight behind.

    Args:
        shape: of the queries, (..., head_dim).

    Returns:
        float32 arrays of shape (...) and (..., head_dim + 1).
    """
    return jnp.full(shape[:-1], FLOOR, jnp.float32), jnp.zeros((*shape[:-1], shape[-1] + 1), jnp.float32)


def weigh(shares: Any, values: Any) -> Any:
    """Values mixed by their shares, and behind them the sum of the shares.

    Args:
        shares: shape (r, kv_heads, group, ..., t).
        values: shape (r, kv_heads, t, head_dim).

    Returns:
        float32 array of shape (r, kv_heads, group, ..., head_dim + 1).
    """
    mixed = jnp.einsum("rk...t,rktd->rk...d", shares.astype(values.dtype), values, preferred_element_type=jnp.float32)
    return jnp.concatenate([mixed, shares.sum(-1, keepdims=True)], axis=-1)


def finish(state: tuple[Any, Any]) -> Any:
    """Result of an online softmax.

    Args:
        state: as `begin` made it, after the last pass.

    Returns:
        float32 array of shape (..., head_dim); zeros where nothing was attended to.
    """
    return state[1][..., :-1] / jnp.maximum(state[1][..., -1:], 1e-30)
