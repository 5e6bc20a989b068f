"""A controller inside SGLang's scheduler, by its plugin hooks: the token budget of each step, and the order of the queue.

SGLang calls `register` in each of its processes (entry point group `sglang.srt.plugins`, since 0.5.11). Three functions of
its scheduler are hooked, none is replaced: before prompts are chosen the chunk size is set and the queue is put in order,
before a batch runs its sums are taken, after its result it is timed. With --enable-mixed-chunk, SGLang takes the decodes
that ride along off the chunk size: it then is the token budget of a step.

Where it does not act, and says so once: without --enable-mixed-chunk, as decodes then wait while prompts run; with more
than one rank, as every rank composes the same step by itself and a time that each measures for itself would part them;
with speculative decoding, whose steps are not those of the plant. The running limit stays SGLang's own, and nobody is turned away.

Written from the source of 0.5.12, 0.5.14, 0.5.18 and 0.5.23 and tried on a stand-in with their attributes; no SGLang ran
with it, as there was no device for one. Any fault of it is logged once, and SGLang schedules alone from then on.

Source: docs.sglang.io, hardware platforms, plugin; sglang/srt/managers/scheduler.py and schedule_policy.py (PrefillAdder).
"""

from __future__ import annotations

import importlib
import json
import math
import os
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from headway.engines.runtime import Runtime, log

SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
SGLANG_GAINS = ""
"""Content of gains.json, as the export writes it here; "" where there is none."""


class SglangStep(NamedTuple):
    """Sums of one batch, and when it was handed over.

    Args:
        prefill_tokens: prompt tokens [tokens].
        prefill_pairs: attention work of the chunks [tokens^2].
        prefill_requests: requests with a chunk.
        decode_requests: requests that decode.
        decode_kv_tokens: cache tokens that they read [tokens].
        binding: the budget was used up while prompt work was left.
        begun_s: monotonic clock [s].
    """

    prefill_tokens: int
    prefill_pairs: float
    prefill_requests: int
    decode_requests: int
    decode_kv_tokens: int
    binding: bool
    begun_s: float


class SglangLoop:
    """The loop around a law inside one SGLang scheduler.

    step_time(k) = done(k) - max(begun(k), done(k-1)),  right with one batch in flight and with two.

    Args:
        law: the controller in its initial state.
        clock: monotonic [s].
    """

    def __init__(self, law: Runtime, clock: Any = time.monotonic) -> None:
        """Nothing was measured yet."""
        self.law, self.clock = law, clock
        self.pending: deque[SglangStep] = deque()
        self.done_s = float("-inf")
        self.fresh: tuple[SglangStep, float] | None = None
        self.most, self.budget, self.asked = 0, 0, False

    def unfit(self, scheduler: Any) -> str:
        """Why nothing can be done here.

        Args:
            scheduler: SGLang's.

        Returns:
            One sentence; "" where it can.
        """
        args = scheduler.server_args
        told = [getattr(args, name, None) for name in ("tp_size", "pp_size", "dp_size")]
        ranks = [n for n in told if isinstance(n, int)]
        if len(ranks) < len(told):
            return "this version does not say how many ranks compose a step"
        if max(ranks) > 1:
            return f"{max(ranks)} ranks compose the same step each by itself, times that each measures would part them"
        if not scheduler.is_mixed_chunk:
            return "without --enable-mixed-chunk the chunk size is no token budget of a step"
        if getattr(args, "speculative_algorithm", None):
            return "with speculative decoding a step is not what the plant was fitted on"
        return ""

    def before_prefill(self, scheduler: Any, running_batch: Any) -> None:
        """Set the chunk size of the step to come, and put who waits in order.

        Args:
            scheduler: SGLang's.
            running_batch: its requests that decode.
        """
        if not self.most:
            self.most = int(scheduler.chunked_prefill_size)
        now_s, running = self.clock(), list(running_batch.reqs)
        n, kv = len(running), sum(int(r.seqlen) for r in running)
        context = float(len(scheduler.chunked_req.prefix_indices)) if scheduler.chunked_req is not None else 0.0
        asked = self._ask(float(n), float(max(kv, n)), context)
        page = max(1, int(scheduler.page_size))
        # the adder takes the decodes off what it gets, and cannot bear less than one page of what is left
        budget = max(asked, n + page)
        self.budget = scheduler.chunked_prefill_size = max(page, min(budget, self.most) // page * page)
        if self.law.order != "fcfs" and len(scheduler.waiting_queue) > 1:
            scheduler.waiting_queue.sort(key=lambda r: self._urgency(r, now_s))

    def _urgency(self, request: Any, now_s: float) -> float:
        """Key of a waiting request. SGLang's own stamps differ by version: it arrived when it was first seen here."""
        arrived_s = getattr(request, "headway_seen_s", None)
        if arrived_s is None:
            request.headway_seen_s = arrived_s = now_s
        told = (getattr(request.sampling_params, "custom_params", None) or {}).get("headway_class")
        class_id = self.law.classes.index(told) if told in self.law.classes else 0
        tokens = float(len(request.origin_input_ids))
        blocks = math.ceil(tokens / self.law.block_tokens) if self.law.memory_price_s else 0.0
        return self.law.key(tokens, arrived_s, now_s, class_id, started=bool(request.output_ids), blocks=blocks)

    def _ask(self, ready: float, ready_kv: float, context: float) -> int:
        law, fresh, self.fresh = self.law, self.fresh, None
        if fresh is None:
            if not self.asked:
                self.asked = True
                return law.update(None, 0, 0, False, ready, ready_kv_tokens=ready_kv, context_tokens=context)
            # two in flight: the law as it stands, for who is ready now
            law.guard.ready = ready
            return law._command(0.0, 0.0, ready, ready_kv, context)
        s, y = fresh
        sums = (s.decode_kv_tokens, s.prefill_pairs, s.prefill_requests)
        return law.update(y, s.prefill_tokens, s.decode_requests, s.binding, ready, *sums, ready_kv, context)

    def before_run(self, scheduler: Any, batch: Any) -> None:
        """Take the sums of a batch that is about to run.

        Args:
            scheduler: SGLang's.
            batch: its ScheduleBatch.
        """
        mode = batch.forward_mode
        chunks: list[tuple[int, int]] = []
        decodes = [int(r.seqlen) for r in batch.reqs] if mode.is_decode() else []
        if mode.is_extend():
            rows = list(zip(batch.extend_lens, batch.prefix_lens, strict=True))
            # the decodes of a mixed batch stand behind its chunks
            mixed = len(batch.decoding_reqs or ()) if mode.is_mixed() else 0
            chunks, decodes = rows[: len(rows) - mixed], [int(c) for _, c in rows[len(rows) - mixed :]]
        tokens = sum(p for p, _ in chunks)
        left = bool(scheduler.waiting_queue or scheduler.chunked_req is not None)
        binding = left and tokens + len(decodes) > self.budget - max(1, int(scheduler.page_size))
        pairs = float(sum(p * (c + 0.5 * p) for p, c in chunks))
        self.pending.append(SglangStep(tokens, pairs, len(chunks), len(decodes), sum(decodes), binding, self.clock()))

    def after_result(self) -> None:
        """Time the batch whose result is here; results come in the order in which batches ran."""
        if not self.pending:
            return
        now_s, step = self.clock(), self.pending.popleft()
        y, self.done_s = now_s - max(step.begun_s, self.done_s), now_s
        if step.prefill_tokens or step.decode_requests:
            self.fresh = step, y


def guarded(loops: dict[int, SglangLoop | None], law_of: Any, scheduler: Any, act: Any) -> None:
    """Do something in a scheduler's loop, and never fail it.

    Args:
        loops: of this process, by scheduler; None where it is out of use.
        law_of: makes a controller in its initial state.
        scheduler: SGLang's.
        act: what to do with the loop.
    """
    most = 0
    try:
        if id(scheduler) not in loops:
            loops[id(scheduler)] = None
            loop = SglangLoop(law_of())
            if why := loop.unfit(scheduler):
                log.warning("headway does not act in this SGLang: %s", why)
                return
            loops[id(scheduler)] = loop
        loop = loops[id(scheduler)]
        if loop is not None:
            most = loop.most
            act(loop)
    except Exception as error:  # noqa: BLE001  # serving never stops on our account
        loops[id(scheduler)] = None
        if most:
            scheduler.chunked_prefill_size = most
        log.error("headway gives up, SGLang schedules alone from here on: %s: %s", type(error).__name__, error, exc_info=error)


def register() -> None:
    """Entry point of the plugin: hook the scheduler. HEADWAY_GAINS names another gains.json than the one inside."""
    registry = importlib.import_module("sglang.srt.plugins.hook_registry")
    hooks, kinds = registry.HookRegistry, registry.HookType
    loops: dict[int, SglangLoop | None] = {}

    def law_of() -> Runtime:
        named = os.environ.get("HEADWAY_GAINS", "")
        return Runtime.from_json(Path(named) if named else json.loads(SGLANG_GAINS))

    def before_prefill(scheduler: Any, *given: Any, **named: Any) -> None:
        # handed over since the versions that keep it in the plan of a step
        running = named.get("running_batch") or (given[0] if given else scheduler.running_batch)
        guarded(loops, law_of, scheduler, lambda loop: loop.before_prefill(scheduler, running))

    def before_run(scheduler: Any, batch: Any, *_: Any, **__: Any) -> None:
        guarded(loops, law_of, scheduler, lambda loop: loop.before_run(scheduler, batch))

    def after_result(_result: Any, scheduler: Any, *_: Any, **__: Any) -> None:
        guarded(loops, law_of, scheduler, lambda loop: loop.after_result())

    hooks.register(f"{SCHEDULER}.get_new_batch_prefill", before_prefill, kinds.BEFORE)
    hooks.register(f"{SCHEDULER}.run_batch", before_run, kinds.BEFORE)
    hooks.register(f"{SCHEDULER}.process_batch_result", after_result, kinds.AFTER)
