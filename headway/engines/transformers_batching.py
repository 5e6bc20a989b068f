"""A scheduler for transformers' continuous batching: it runs as its FIFO scheduler does, under a controller's commands.

`register("gains.json")` once, then `ContinuousBatchingConfig(scheduler_type="headway", ...)`. What it needs is the standard
library and transformers. Every step it measures the last one, start to start; the law then gives the token budget and the
running limit of the next, and the policy the order in which requests come in. It copies nothing of transformers: it calls
the stock scheduler with a smaller budget, and answers who may come in.

Modes: "control" steers; "observe" only records; "excite" draws commands at random, so that a plant can be told apart.

What it does not do: requests that are too late are not turned away, as the caller holds them; one request is not kept to
a chunk of its own. A class is told by the name of a request, "chat/17" for class chat; any other name is class 0.

Source of the plug: `SCHEDULER_MAPPING` in transformers/generation/continuous_batching/scheduler.py (5.19.0), which its
documentation does not name: another version may lack it.
"""

from __future__ import annotations

import importlib
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headway.engines.runtime import Runtime, log
from headway.engines.vllm.excitation import Excitation
from headway.engines.vllm.settings import VllmSettings
from headway.engines.vllm.trace_file import TRACE_FIELDS, TraceFile

TRANSFORMERS_MODES = ("control", "observe", "excite")
SCHEDULER_TYPE = "headway"
"""What ContinuousBatchingConfig calls it."""


class TransformersLoop:
    """The loop around a law inside transformers: what it is told of the last step, and what it answers for the next.

    Args:
        scheduler: transformers' own.
        law: the controller; None where none steers.
        settings: mode, trace and excitation.
        version: of transformers.
    """

    def __init__(self, scheduler: Any, law: Runtime | None, settings: VllmSettings, version: str) -> None:
        """Nothing was measured yet."""
        self.scheduler, self.law, self.mode = scheduler, law, settings.mode
        self.last: Any = None
        self.steps, self.idle, self.failed, self._start_cpu_s = 0, True, False, 0.0
        self._settings, self._version = settings, version
        self._trace: TraceFile | None = None
        self._excitation: Excitation | None = None
        self.running_limit = int(scheduler.max_requests_per_batch)
        self._most = self.running_limit

    def command(self, most_tokens: int, now_s: float) -> int:
        """Close the last step, and ask for the token budget of the next.

        Args:
            most_tokens: the engine's own limit [tokens].
            now_s: monotonic clock [s].

        Returns:
            Budget within the limit; the decodes get their own tokens whatever it says [tokens].
        """
        self._measure(most_tokens, now_s)
        self._start_cpu_s = time.process_time()
        decoding, context = self._active()
        n, kv = float(len(decoding)), float(sum(decoding))
        if self.mode == "excite":
            self._excitation = self._excitation or Excitation(self._settings, most_tokens, self._most)
            budget, self.running_limit = self._excitation.step(int(n))
        elif self.law is not None:
            budget, self.running_limit = self._ask(self.law, n, max(kv, n), context), min(self.law.running_limit, self._most)
        else:
            budget = most_tokens
        return min(max(int(budget), int(n), 1), most_tokens)

    def _ask(self, law: Runtime, ready: float, ready_kv: float, context: float) -> int:
        law.waiting_requests = len(self.scheduler.waiting_requests)
        last = self.last
        if last is None or last.step_time_s is None:
            # idle before, or the first step: the law as it stands, for who is ready now
            if not self.steps:
                return law.update(None, 0, 0, False, ready, ready_kv_tokens=ready_kv, context_tokens=context)
            law.guard.ready = ready
            return law._command(0.0, 0.0, ready, ready_kv, context)
        return law.update(
            last.step_time_s,
            last.prefill_tokens,
            last.decode_requests,
            last.binding,
            ready,
            last.decode_kv_tokens,
            last.prefill_pairs,
            last.prefill_requests,
            ready_kv,
            context,
        )

    def _measure(self, most_tokens: int, now_s: float) -> None:
        """Period from the start of the last step to now; an idle engine between them makes it no measurement."""
        if self._trace is None and self._settings.trace:
            self._trace = TraceFile(self._settings.trace, self._header(most_tokens))
        last, self.idle, idle = self.last, False, self.idle
        if last is None:
            return
        last.step_time_s = None if idle else now_s - last.clock_s
        last.worker_cpu_s = None if idle else time.process_time() - last.start_cpu_s
        if self._trace is not None and last.step_time_s is not None:
            self._trace.write(last)

    def _active(self) -> tuple[list[int], float]:
        """Cache tokens of each request that wants to decode, and of the prompt that goes on first."""
        decoding, context = [], -1.0
        for state in self.scheduler.active_requests.values():
            if state.status.name == "DECODING":
                decoding.append(state.position_offset)
            elif context < 0.0:
                context = float(state.position_offset)
        return decoding, max(context, 0.0)

    def composed(self, found: list[Any], decoding: set[str], budget: int, now_s: float) -> None:
        """Sum up the step that the stock scheduler has composed.

        Args:
            found: its requests with the tokens of each.
            decoding: names of those that were decoding before.
            budget: that was in force [tokens].
            now_s: monotonic clock at its start [s].
        """
        scheduler = self.scheduler
        prompts = [(f.query_length, f.state.position_offset) for f in found if f.state.request_id not in decoding]
        decodes = [f.state.position_offset for f in found if f.state.request_id in decoding]
        tokens = sum(p for p, _ in prompts)
        unfinished = any(f.state.remaining_prefill_tokens for f in found)
        self.steps += 1
        row = dict.fromkeys(TRACE_FIELDS)  # what a trace has a column for and transformers says nothing of
        row |= {
            "step": self.steps,
            "clock_s": now_s,
            "step_time_s": None,
            "prefill_tokens": tokens,
            "prefill_pairs": float(sum(p * (c + 0.5 * p) for p, c in prompts)),
            "prefill_requests": len(prompts),
            "decode_requests": len(decodes),
            "decode_kv_tokens": sum(decodes),
            "waiting": len(scheduler.waiting_requests),
            "running": len(scheduler.active_requests),
            "kv_usage": 1.0 - float(scheduler.cache.compute_free_capacity()),
            "token_budget": budget,
            "running_limit": self.running_limit,
            "chunk_tokens": 0,
            "binding": tokens + len(decodes) >= budget and bool(unfinished or scheduler.waiting_requests),
            "worker_cpu_s": None,
            "start_cpu_s": self._start_cpu_s,
            "end_s": time.perf_counter(),  # of composing it
            "admitted": sum(c == 0 for _, c in prompts),
            "preempted": 0,
            "shed": 0,
            "mode": self.mode,
        }
        self.last = SimpleNamespace(**row)

    def in_order(self, waiting: list[Any]) -> list[Any]:
        """Who may come in now, the most urgent first.

        Args:
            waiting: requests in the stock order.

        Returns:
            As many as the running limit leaves room for.
        """
        law, room = self.law, max(0, self.running_limit - len(self.scheduler.active_requests))
        if law is not None and self.mode == "control" and law.order != "fcfs" and len(waiting) > 1:
            now_s, classes = time.perf_counter(), law.classes

            def urgency(state: Any) -> float:
                name = str(state.request_id).split("/", 1)[0]
                class_id = classes.index(name) if name in classes else 0
                tokens = float(len(state.remaining_prefill_tokens))
                blocks = math.ceil(tokens / law.block_tokens) if law.memory_price_s else 0.0
                return law.key(tokens, state.created_time, now_s, class_id, blocks=blocks)

            waiting = sorted(waiting, key=urgency)
        return waiting[:room]

    def _header(self, most_tokens: int) -> dict[str, Any]:
        cache, law = self.scheduler.cache, self.law
        allocators = list(getattr(cache, "cache_allocators", {}).values())
        block = int(getattr(allocators[0], "tokens_per_page", 0)) if allocators else 0
        limits = {"max_tokens": most_tokens, "max_seqs": self._most, "block_tokens": block}
        limits["kv_tokens"] = int(getattr(cache, "num_blocks", 0) or 0) * block
        return {
            "engine": "transformers",
            "version": self._version,
            "async": False,
            "limits": {name: value for name, value in limits.items() if value > 0},
            "mode": self.mode,
            "clock": "wall",
            "seed": self._settings.seed,
            "controller": law.content if law else "",
        }

    def paused(self) -> None:
        """The engine has nothing to do: the next period is no duration."""
        self.idle = True
        if self._trace is not None:
            self._trace.flush()

    def fail(self, error: Exception) -> None:
        """A fault of ours: said once, and the stock scheduler goes on alone.

        Args:
            error: what went wrong.
        """
        self.failed = True
        log.error("headway gives up, transformers schedules alone from here on: %s: %s", type(error).__name__, error, exc_info=error)


def headway_scheduler(gains: str | Path | dict[str, Any] | None, settings: VllmSettings) -> type:
    """A scheduler class for transformers.

    Args:
        gains: gains.json, or its content; None where nothing steers.
        settings: mode ("control", "observe", "excite"), trace and excitation.

    Returns:
        The class, a FIFOScheduler.

    Raises:
        ValueError: an unknown mode, "control" without gains, or gains that cannot be used.
    """
    if settings.mode not in TRANSFORMERS_MODES:
        raise ValueError(f"mode must be one of {', '.join(TRANSFORMERS_MODES)}, got {settings.mode!r}")
    if settings.mode == "control" and gains is None:
        raise ValueError("mode control needs gains; write them with `headway export --engine transformers`")
    version = str(importlib.import_module("transformers").__version__)
    stock = importlib.import_module("transformers.generation.continuous_batching.scheduler")
    law = Runtime.from_json(gains) if gains is not None and settings.mode == "control" else None

    class HeadwayScheduler(stock.FIFOScheduler):
        """The FIFO scheduler under a controller's commands."""

        def reset(self) -> None:
            super().reset()
            if law is not None:
                law.reset()
            self.headway = TransformersLoop(self, law, settings, version)

        def has_pending_requests(self) -> bool:
            pending = super().has_pending_requests()
            if not pending:
                self.headway.paused()
            return pending

        def _get_waiting_candidates(self) -> list[Any]:
            waiting, loop = super()._get_waiting_candidates(), self.headway
            if loop.failed:
                return waiting
            try:
                return loop.in_order(waiting)
            except Exception as error:  # noqa: BLE001  # generation never stops on our account
                loop.fail(error)
                return waiting

        def schedule_batch(self, token_budget: int, cache_budget: int) -> Any:
            loop = self.headway
            if loop.failed:
                return super().schedule_batch(token_budget, cache_budget)
            now_s, budget, decoding = time.perf_counter(), token_budget, set()
            try:
                decoding = {name for name, state in self.active_requests.items() if state.status.name == "DECODING"}
                budget = loop.command(token_budget, now_s)
            except Exception as error:  # noqa: BLE001
                loop.fail(error)
            found = super().schedule_batch(budget, cache_budget)
            if found[0] and not loop.failed:
                try:
                    loop.composed(found[0], decoding, budget, now_s)
                except Exception as error:  # noqa: BLE001
                    loop.fail(error)
            elif not found[0]:
                loop.last = None  # nothing fitted: what follows is measured from its own start
            return found

    return HeadwayScheduler


def register(gains: str | Path | dict[str, Any] | None = None, *, mode: str = "", trace: str = "", **excite: Any) -> type:
    """Make `scheduler_type="headway"` known to transformers.

    Args:
        gains: gains.json, or its content.
        mode: "control" with gains and "observe" without where it is not said.
        trace: file of steps to write; "" for none.
        excite: `seed`, `tokens`, `running` and `hold_steps` of mode "excite".

    Returns:
        The scheduler class.

    Raises:
        ValueError: as from `headway_scheduler`.
        RuntimeError: a transformers whose continuous batching takes no scheduler.
    """
    settings = VllmSettings(mode=mode or ("control" if gains is not None else "observe"), trace=trace, **excite)
    cls = headway_scheduler(gains, settings)
    stock = importlib.import_module("transformers.generation.continuous_batching.scheduler")
    if not hasattr(stock, "SCHEDULER_MAPPING"):
        raise RuntimeError("this transformers has no SCHEDULER_MAPPING: its continuous batching takes no scheduler; 5.19 has one")
    stock.SCHEDULER_MAPPING[SCHEDULER_TYPE] = cls
    return cls
