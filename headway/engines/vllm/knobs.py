"""The members of vLLM's scheduler that are written: within what it was started with, and put back as they were."""

from __future__ import annotations

from typing import Any

from headway.engines.runtime import log


class Knobs:
    """Token budget, running limit and chunk cap of a scheduler.

    Args:
        scheduler: vLLM's, as it was started.
    """

    def __init__(self, scheduler: Any) -> None:
        """Note the limits it was started with: no command goes above them."""
        self._scheduler, self._config = scheduler, scheduler.scheduler_config
        self.started_tokens = int(scheduler.max_num_scheduled_tokens)
        # since 0.30 the flag itself is a second cap, which sizes the worker's buffers
        self.max_tokens = min(self.started_tokens, int(getattr(self._config, "max_num_batched_tokens", self.started_tokens)))
        self.has_active = hasattr(scheduler, "max_num_active_reqs")
        self.started_seqs = int(scheduler.max_num_active_reqs if self.has_active else scheduler.max_num_running_reqs)
        self.max_seqs = min(self.started_seqs, int(scheduler.max_num_running_reqs))
        self.started_chunk = getattr(self._config, "long_prefill_token_threshold", None)
        self.tokens, self.running, self.chunk = self.started_tokens, self.started_seqs, int(self.started_chunk or 0)
        self.asked = self.asked_running = -1
        self.chunkless = False
        if not self.has_active:
            log.info("this vLLM has no max_num_active_reqs: the running limit is written to max_num_running_reqs, never below who runs")

    def write(self, tokens: int, running: int, chunk: int) -> None:
        """Put a command in force for the step that is composed next. A lowered running limit drains.

        Args:
            tokens: token budget [tokens].
            running: running limit [requests].
            chunk: most prompt tokens of one request in a step; 0 is no cap [tokens].
        """
        scheduler = self._scheduler
        self.asked, self.asked_running = tokens, running
        most = self.max_tokens
        self.tokens = scheduler.max_num_scheduled_tokens = most if tokens > most else tokens if tokens > 1 else 1
        most = self.max_seqs
        self.running = most if running > most else running if running > 1 else 1
        if self.has_active:
            scheduler.max_num_active_reqs = self.running
        else:
            # vLLM asserts that no more run than this
            scheduler.max_num_running_reqs = max(self.running, len(scheduler.running))
        if chunk != self.chunk:
            self._write_chunk(chunk)

    def _write_chunk(self, chunk: int) -> None:
        self.chunk = chunk
        if self.started_chunk is None:
            if not self.chunkless:
                log.warning("this vLLM has no long_prefill_token_threshold: chunk_tokens of %d is not applied", chunk)
            self.chunkless = True
            return
        self._config.long_prefill_token_threshold = min(chunk, self.max_tokens)

    def restore(self) -> None:
        """Put back what vLLM was started with."""
        scheduler = self._scheduler
        scheduler.max_num_scheduled_tokens = self.started_tokens
        if self.has_active:
            scheduler.max_num_active_reqs = self.started_seqs
        else:
            scheduler.max_num_running_reqs = self.started_seqs
        if self.started_chunk is not None:
            self._config.long_prefill_token_threshold = self.started_chunk
        self.tokens, self.running, self.chunk = self.started_tokens, self.started_seqs, int(self.started_chunk or 0)
