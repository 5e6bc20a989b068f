"""The requests on the live kernels: which cache blocks each holds, and which tokens. The engine's side of the accounting."""

from __future__ import annotations

import dataclasses

import numpy as np

from headway.models.engine import Step
from headway.models.signals import Limits


@dataclasses.dataclass
class Sequence:
    """One request as the engine knows it.

    Args:
        line: its line of the block table; -1 while it holds no cache.
        blocks: cache blocks that it holds.
        cached: tokens in them [tokens].
        prompt: length of its prompt, known from its first decode on [tokens].
        emitted: tokens sampled; before the first decode only the one that follows the last chunk.
    """

    line: int = -1
    blocks: list[int] = dataclasses.field(default_factory=list)
    cached: int = 0
    prompt: int | None = None
    emitted: list[int] = dataclasses.field(default_factory=list)


def prompt_ids(request: int, start: int, stop: int, vocab: int) -> np.ndarray:
    """The tokens of a request's prompt: a hash of request and position, so that a recomputed prompt is the same.

    Args:
        request: index of the request.
        start: first position [tokens].
        stop: position behind the last [tokens].
        vocab: token ids.

    Returns:
        Token ids, shape (stop - start,), int32.

    Source:
        Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014: the finalizer of SplitMix.
    """
    x = np.arange(start, stop, dtype=np.uint64) + np.uint64((request + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) % np.uint64(vocab)).astype(np.int32)


class Sequences:
    """All requests, the free blocks, and the block table that the attention reads.

    Args:
        limits: size of the cache, its blocks, and how many requests may hold some at once.
        line_blocks: length of a line of the table [blocks].
        vocab: token ids.
    """

    def __init__(self, limits: Limits, line_blocks: int, vocab: int) -> None:
        self.limits = limits
        self.vocab = vocab
        # What a line holds behind its sequence's own blocks is read and masked, so it need only be a valid block.
        self.table = np.full((limits.max_seqs, line_blocks), limits.blocks, np.int32)
        self._known: dict[int, Sequence] = {}
        self._free = list(range(limits.blocks))
        self._lines = list(range(limits.max_seqs))

    @property
    def free_blocks(self) -> int:
        """Cache blocks that nobody holds."""
        return len(self._free)

    def emitted(self, request: int) -> list[int]:
        """What a request has emitted, in order.

        Args:
            request: its index.

        Returns:
            Token ids.

        Raises:
            ValueError: a request that never ran.
        """
        if request not in self._known:
            raise ValueError(f"request {request} never ran on this engine, {len(self._known)} others did")
        return list(self._known[request].emitted)

    def check(self, step: Step) -> None:
        """Refuse a step that contradicts what is held, before anything has changed.

        Args:
            step: the step.

        Raises:
            ValueError: a context that is not what the cache holds, a row that is neither chunk nor decode, two rows for
                one request, a request longer than max_len, more requests or blocks than there are.
        """
        gone = {r for r in step.released.tolist() if self._holds(r)}
        blocks = len(self._free) + sum(len(self._known[r].blocks) for r in gone)
        lines = len(self._lines) + len(gone)
        if len(set(step.request.tolist())) < len(step.request):
            raise ValueError("a request has two rows in one step; give it one")
        for request, tokens, context, decode in zip(*(column.tolist() for column in step[:4]), strict=True):
            held = self._known[request] if self._holds(request) and request not in gone else Sequence()
            if context != held.cached:
                raise ValueError(
                    f"request {request} has {held.cached} tokens in the cache, the step says {context}; execute every step, in order"
                )
            if tokens < 1 or (decode and (tokens != 1 or not context)):
                raise ValueError(f"request {request}: a chunk has at least 1 token, a decode exactly 1 behind a context; got {tokens}")
            if context + tokens > self.limits.max_len:
                raise ValueError(f"request {request} would have {context + tokens} tokens, max_len is {self.limits.max_len}")
            blocks -= -(-(context + tokens) // self.limits.block_tokens) - len(held.blocks)
            lines -= held.line < 0
        if blocks < 0:
            raise ValueError(f"the step needs {-blocks} cache blocks more than are free; release a request first")
        if lines < 0:
            raise ValueError(f"more than max_seqs = {self.limits.max_seqs} requests would hold cache; release one first")

    def release(self, requests: np.ndarray) -> None:
        """Take the cache of finished or preempted requests back; their tokens stay known.

        Args:
            requests: indices, shape (q,); those that hold nothing are passed over.
        """
        for request in requests.tolist():
            if self._holds(request):
                sequence = self._known[request]
                self._free += sequence.blocks
                self._lines.append(sequence.line)
                sequence.line, sequence.blocks, sequence.cached = -1, [], 0

    def grow(self, request: int, tokens: int) -> int:
        """Give a request cache blocks for `tokens` tokens in all: one for every `block_tokens` begun, as the scheduler counts.

        Args:
            request: its index.
            tokens: context and what is computed now [tokens].

        Returns:
            Its line of the table.
        """
        sequence = self._known.setdefault(request, Sequence())
        if sequence.line < 0:
            sequence.line = self._lines.pop()
        while len(sequence.blocks) * self.limits.block_tokens < tokens:
            block = self._free.pop()
            self.table[sequence.line, len(sequence.blocks)] = block
            sequence.blocks.append(block)
        sequence.cached = tokens
        return sequence.line

    def chunk(self, request: int, start: int, stop: int) -> np.ndarray:
        """Tokens of a chunk: of the prompt, or, in what is computed anew after a preemption, those emitted since.

        Args:
            request: its index.
            start: first position [tokens].
            stop: position behind the last [tokens].

        Returns:
            Token ids, shape (stop - start,), int32.
        """
        ids, sequence = prompt_ids(request, start, stop, self.vocab), self._known[request]
        if sequence.prompt is not None and stop > sequence.prompt:
            first = max(start, sequence.prompt)
            again = sequence.emitted[first - sequence.prompt : stop - sequence.prompt]
            ids[first - start : first - start + len(again)] = again
        return ids

    def last(self, request: int, context: int) -> int:
        """The token that a decode feeds back: the one sampled for the position behind its context.

        Args:
            request: its index.
            context: tokens in the cache before it [tokens].

        Returns:
            Token id.
        """
        sequence = self._known[request]
        if sequence.prompt is None:
            sequence.prompt = context
        return sequence.emitted[context - sequence.prompt]

    def keep(self, request: int, stop: int, token: int) -> None:
        """Note what a row sampled. Every chunk samples; what follows one counts only if the prompt ends there.

        Args:
            request: its index.
            stop: position of the token [tokens].
            token: its id.
        """
        sequence = self._known[request]
        if sequence.prompt is None or stop > sequence.prompt + len(sequence.emitted):
            sequence.prompt, sequence.emitted = None, [token]
        elif stop == sequence.prompt + len(sequence.emitted):
            sequence.emitted.append(token)

    def _holds(self, request: int) -> bool:
        return request in self._known and self._known[request].line >= 0
