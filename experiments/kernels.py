"""Live kernels: an engine that really runs a small llm on the device at hand, and says how long every step took."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headway.experiments.attention import Batch, Tiling
from headway.experiments.llm import Architecture, architecture, draw_weights, forward
from headway.experiments.sequences import Sequences
from headway.models.engine import Engine, Step
from headway.models.signals import Limits

LIMITS: dict[str, Limits] = {
    "tiny": Limits(kv_tokens=65536, max_seqs=64, max_len=4096, max_tokens=1024),
    "small": Limits(kv_tokens=65536, max_seqs=128, max_len=8192, max_tokens=2048),
    "1b": Limits(kv_tokens=262144, max_seqs=256, max_len=8192, max_tokens=8192),
    "8b": Limits(kv_tokens=262144, max_seqs=256, max_len=8192, max_tokens=8192),
}
"""Limits by preset, where none are given."""

TILINGS: dict[str, Tiling] = {
    "cpu": Tiling(reads=16, pages=8, queries=64, samples=8),
    "gpu": Tiling(reads=64, pages=16, queries=256, samples=64),
}
"""Grain of the loops by platform: on a GPU a pass must be large enough to hide its launch."""


class Shape(NamedTuple):
    """What a program is compiled for.

    Args:
        tokens: rows of the batch, padding included [tokens].
        mixed: whether it has chunks to prefill.
    """

    tokens: int
    mixed: bool


def bucket(count: int, mixed: bool) -> int:
    """Smallest size of a ladder of batches that holds a count.

    Decoding: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, ... Mixed: 16, 32, 48, ..., 128, 144, ... Both rise in steps of an
    eighth of an octave once that is more: 12 % of padding at worst, a staircase that a linear plant hardly sees.

    Args:
        count: at least 1 [tokens].
        mixed: whether the batch has chunks to prefill.

    Returns:
        Padded size [tokens].
    """
    octave = 1 << max(count - 1, 1).bit_length() - 1
    step = max(octave // 8, 16 if mixed else min(octave // 2, 8), 1)
    return -(-count // step) * step


def check_memory(llm: Architecture, limits: Limits, itemsize: int, have: int) -> None:
    """Refuse an llm and a cache that do not fit.

    Args:
        llm: the sizes.
        limits: with the size of the cache.
        itemsize: of a weight [bytes].
        have: memory of the device [bytes].

    Raises:
        ValueError: weights and cache need more than nine tenths of it; the message names both.
    """
    weights = llm.parameters * itemsize
    cache = (limits.blocks + 1) * limits.block_tokens * llm.kv_values * itemsize
    if weights + cache > 0.9 * have:
        raise ValueError(
            f"the llm needs {(weights + cache) / 1e9:.1f} GB ({weights / 1e9:.1f} for weights, {cache / 1e9:.1f} for the KV cache), "
            f"the device has {have / 1e9:.1f} GB and a tenth must stay free; take a smaller preset or fewer kv_tokens"
        )


def memory_bytes(device: Any) -> int:
    """Memory that a device has for arrays.

    Args:
        device: a JAX device.

    Returns:
        What its allocator may still take, or the machine's memory where the device has none of its own [bytes].
    """
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class KernelEngine(Engine):
    """An engine of its own: a random llm, a paged KV cache, decode rows and prefill chunks in one compiled call.

    Compiling never enters a step's time: a program is compiled, and run once on padding, before the clock starts.
    `last_cpu_s` is the CPU time of the process in the last step: on a CPU, where its ratio to the step's time falls
    below what is usual, another load takes the cores. The token after a prompt counts from the first decode on: a
    request that is preempted before it starts anew as if it had emitted nothing. What this is not: a fast serving
    engine. Its attention is loops of plain matrix products.

    Args:
        preset: a key of `PRESETS`, or sizes of your own.
        limits: None takes those of the preset, or of "tiny" for sizes of your own.
        seed: of the weights.

    Raises:
        ValueError: an unknown preset, limits under which nothing runs, or not enough memory.
    """

    def __init__(self, preset: str | Architecture = "tiny", limits: Limits | None = None, seed: int = 0) -> None:
        name = preset if isinstance(preset, str) else "custom"
        self.llm = architecture(preset) if isinstance(preset, str) else preset
        self.limits = limits or LIMITS.get(name, LIMITS["tiny"])
        self.limits.check()
        device = jax.devices()[0]
        dtype = jnp.dtype(jnp.float32 if device.platform == "cpu" else jnp.bfloat16)
        check_memory(self.llm, self.limits, dtype.itemsize, memory_bytes(device))
        self.name = f"kernels {name} on {device.device_kind}"
        self.last_cpu_s = 0.0
        self._tiling = TILINGS.get(device.platform, TILINGS["gpu"])
        self._weights = draw_weights(self.llm, seed, dtype)
        pool = (self.llm.layers, self.limits.blocks + 1, 2 * self.llm.kv_heads, self.limits.block_tokens, self.llm.head_dim)
        # Filled, not zeros: memory that was never written costs page faults in the first steps, and reads too fast before.
        self._cache = jnp.full(pool, 0.5, dtype)
        self._programs: dict[Shape, Any] = {}
        self.reset()

    @property
    def compiled_shapes(self) -> int:
        """Programs compiled so far."""
        return len(self._programs)

    @property
    def free_blocks(self) -> int:
        """Cache blocks that no request holds."""
        return self._sequences.free_blocks

    def reset(self) -> None:
        """Forget all requests; what is compiled stays."""
        stretches = -(-self.limits.max_len // (self.limits.block_tokens * self._tiling.pages))
        self._sequences = Sequences(self.limits, stretches * self._tiling.pages, self.llm.vocab)

    def tokens(self, request: int) -> list[int]:
        """What a request has emitted, in order.

        Args:
            request: its index.

        Returns:
            Token ids; kept after the request is released, until `reset`.

        Raises:
            ValueError: a request that never ran.
        """
        return self._sequences.emitted(request)

    def warm_up(
        self,
        max_decode: int | None = None,
        max_prefill_tokens: int | None = None,
        max_context: int | None = None,
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        """Compile ahead all that a session can need, and run each program once.

        Args:
            max_decode: most requests that decode in a step; None is the limit [requests].
            max_prefill_tokens: most prompt tokens in a step, 0 for none; None is the limit [tokens].
            max_context: context that the runs read; it is no compiled shape; None is one token [tokens].
            progress: called before each shape with what is done now and the fraction done so far, at the end with 1.
        """
        decode = self.limits.max_seqs if max_decode is None else max_decode
        prefill = self.limits.max_tokens if max_prefill_tokens is None else max_prefill_tokens
        shapes = {Shape(bucket(n, False), False) for n in range(1, decode + 1)}
        most = min(prefill + decode, self.limits.max_tokens) if prefill else 0
        shapes |= {Shape(bucket(n, True), True) for n in range(1, most + 1)}
        for done, shape in enumerate(sorted(shapes)):
            if progress:
                progress(f"compiling {shape.tokens} tokens, {'mixed' if shape.mixed else 'decode only'}", done / len(shapes))
            self._program(shape, 1 if max_context is None else max_context)
        if progress:
            progress("ready", 1.0)

    def execute(self, step: Step) -> float:
        """Run one step to its end.

        Args:
            step: what to run; never empty.

        Returns:
            Time from laying the batch out until the sampled tokens are back on the host, without compiling [s].

        Raises:
            ValueError: a step that contradicts what the engine holds, or needs more cache than is free; nothing has run.
        """
        self._sequences.check(step)
        mixed = not bool(step.decode.all())
        shape = Shape(bucket(int(step.tokens.sum()), mixed), mixed)
        program = self._program(shape)
        cpu_s, start_s = time.process_time(), time.perf_counter()
        self._sequences.release(step.released)
        order = np.argsort(~step.decode, kind="stable")
        rows = list(zip(*(column[order].tolist() for column in step[:4]), strict=True))
        batch = self._lay_out(rows, shape)
        self._cache, fresh = program(self._weights, self._cache, batch)
        ids = np.asarray(fresh).tolist()
        took_s, self.last_cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_s
        for (request, tokens, context, _), token in zip(rows, ids, strict=False):
            self._sequences.keep(request, context + tokens, token)
        return took_s

    def _blank(self, shape: Shape) -> Batch:
        """A batch of padding: nothing to read, and all that it writes goes to the spare block."""
        tiling, table, seqs = self._tiling, self._sequences.table, min(shape.tokens, self.limits.max_seqs)
        tokens = np.zeros((4, shape.tokens), np.int32)
        tokens[2] = self.limits.blocks
        most = min(self.limits.blocks // tiling.pages + seqs, seqs * (table.shape[1] // tiling.pages))
        reads = np.zeros((3, -(-most // tiling.reads) * tiling.reads), np.int32)
        reads[0] = -1
        tiles = np.zeros((4, shape.tokens // tiling.queries + seqs if shape.mixed else 0), np.int32)
        sample = np.zeros(-(-self.limits.max_seqs // tiling.samples) * tiling.samples if shape.mixed else 0, np.int32)
        return Batch(tokens, reads, tiles, sample, np.zeros(3, np.int32), table)

    def _lay_out(self, rows: list[tuple[int, int, int, bool]], shape: Shape) -> Batch:
        """The rows, decodes first, as the program reads them."""
        batch, sampled, tiles, lines, at = self._blank(shape), [], [], [], 0
        held, size, queries = self._sequences, self.limits.block_tokens, self._tiling.queries
        for request, count, start, decode in rows:
            stop = start + count
            line = held.grow(request, stop)
            if decode:
                batch.tokens[:, at] = held.last(request, start), start, held.table[line, start // size], start % size
                lines.append(line)
            else:
                positions = np.arange(start, stop)
                block, offset = np.divmod(positions, size)
                batch.tokens[:, at : at + count] = held.chunk(request, start, stop), positions, held.table[line, block], offset
                tiles += [(at + q, start + q, stop, line) for q in range(0, count, queries)]
            at += count
            sampled.append(at - 1)
        if lines:
            reads = batch.tokens[1, : len(lines)] // (size * self._tiling.pages) + 1
            row, total = np.repeat(np.arange(len(lines)), reads), int(reads.sum())
            batch.reads[:, :total] = row, np.array(lines)[row], np.arange(total) - (np.cumsum(reads) - reads)[row]
            batch.loops[0] = -(-total // self._tiling.reads)
        if tiles:
            batch.tiles[:, : len(tiles)] = np.array(tiles).T
            batch.sample[: len(sampled)] = sampled
            batch.loops[1:] = len(tiles), -(-len(sampled) // self._tiling.samples)
        return batch

    def _program(self, shape: Shape, context: int = 1) -> Any:
        """The program of a shape; a new one is compiled, and runs once on padding so that nothing is left to load later."""
        if shape not in self._programs:
            batch, tiling = self._blank(shape), self._tiling
            program = jax.jit(partial(forward, self.llm, tiling), donate_argnums=(1,))
            compiled = program.lower(self._weights, self._cache, batch).compile()
            reads = -(-context // (self.limits.block_tokens * tiling.pages)) * (1 if shape.mixed else shape.tokens)
            batch.loops[0] = -(-min(reads, batch.reads.shape[1]) // tiling.reads)
            if shape.mixed:
                batch.tiles[2] = min(context, self.limits.max_len)
                batch.loops[1:] = -(-shape.tokens // tiling.queries), 1
            self._cache, fresh = compiled(self._weights, self._cache, batch)
            jax.block_until_ready(fresh)
            self._programs[shape] = compiled
        return self._programs[shape]
