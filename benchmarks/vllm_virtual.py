"""A real vLLM scheduler in virtual time, stock or with Headway's adapter beside it, one or two batches in flight.

It runs with the python of `scripts/vllm-env`, from the root of the repository; of Headway's it loads the exported file alone. A step
takes as long as a plant says times a noise factor; the adapter's clocks are the run's own. As in vLLM's engine, an asynchronous
scheduler composes a step while the one before it runs, and a step waits for the device.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import json
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.vllm_scheduler import LLM, QUIET, Settings, answered, contexts

EPOCH_S = 1.7e9
"""What the wall clock says when a run begins [s]."""


def adapter_of(folder: str) -> Any:
    """Load an exported adapter, whatever others are loaded.

    Args:
        folder: that holds headway_vllm.py.

    Returns:
        The module.
    """
    spec = importlib.util.spec_from_file_location("headway_vllm", Path(folder) / "headway_vllm.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["headway_vllm"] = module
    spec.loader.exec_module(module)
    return module


def scheduler_of(
    settings: Settings, make: Callable[..., Any] | None = None, *, asynchronous: bool = False, additional: dict[str, Any] | None = None
) -> Any:
    """A scheduler as vLLM starts it, on a cache of a given size; flags that this version lacks are left out.

    Args:
        settings: of the engine.
        make: the adapter's factory; None for vLLM's own class.
        asynchronous: two batches in flight.
        additional: vLLM's additional_config.

    Returns:
        The scheduler.
    """
    os.environ.update(QUIET)
    named = importlib.import_module
    arguments, torch = named("vllm.engine.arg_utils"), named("torch")
    interface, structured = named("vllm.v1.kv_cache_interface"), named("vllm.v1.structured_output")
    flags = settings._asdict()
    blocks = flags.pop("blocks") + 1
    known = {field.name for field in dataclasses.fields(arguments.EngineArgs)}
    flags = {name: value for name, value in flags.items() if name in known}
    with tempfile.TemporaryDirectory(prefix="headway-vllm-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LLM), encoding="utf-8")
        config = arguments.EngineArgs(
            model=folder, skip_tokenizer_init=True, load_format="dummy", enforce_eager=True, additional_config=additional or {}, **flags
        ).create_engine_config()
        config.scheduler_config.async_scheduling = asynchronous
        config.cache_config.num_gpu_blocks = blocks
        heads = interface.FullAttentionSpec(block_size=settings.block_size, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
        cache = interface.KVCacheConfig(blocks, [], [interface.KVCacheGroupSpec(["layer"], heads)])
        if make is None:
            where = "vllm.v1.core.sched."
            make = named(f"{where}async_scheduler").AsyncScheduler if asynchronous else named(f"{where}scheduler").Scheduler
        assert make is not None
        return make(
            vllm_config=config,
            kv_cache_config=cache,
            structured_output_manager=structured.StructuredOutputManager(config),
            block_size=settings.block_size,
        )


class Virtual:
    """A scheduler, a device that is a plant, and a clock that both agree on.

    Args:
        step_time: duration of a step from its sums (decodes, their cache tokens, prompt tokens, pairs, prompts) [s].
        asynchronous: two batches in flight.
        adapter: module of the adapter, whose clocks become this run's; None for stock.
    """

    def __init__(self, step_time: Callable[..., float], *, asynchronous: bool, adapter: Any = None) -> None:
        """At time 0; the scheduler is set before the first step, as its clocks must be this run's from the start."""
        self.step_time, self.depth = step_time, 2 if asynchronous else 1
        self.now_s = self.free_s = 0.0
        self.wall_offset_s = self.skew_s = 0.0
        self.scheduler: Any = None
        self.flying: deque[tuple[Any, Any, float]] = deque()
        self.goal: dict[str, int] = {}
        self.steps = self.over_tokens = self.over_running = 0
        self.ended: list[tuple[str, Any, float]] = []
        self.on_step: Callable[[dict[str, float], float], None] | None = None
        self.on_token: Callable[[str, int, float], Any] | None = None
        if adapter is not None:
            adapter.monotonic_s = lambda: self.now_s + self.skew_s
            adapter.wall_s = self.wall_s

    def wall_s(self) -> float:
        """The wall clock, which a drill may step."""
        return EPOCH_S + self.now_s + self.wall_offset_s

    def add(self, name: str, prompt_tokens: int, output_tokens: int, arrival_s: float, xargs: dict[str, Any] | None = None) -> None:
        """Hand over a request; it ends after so many tokens, whatever they are."""
        request, sampling = importlib.import_module("vllm.v1.request"), importlib.import_module("vllm.sampling_params")
        parameters = sampling.SamplingParams(max_tokens=output_tokens, ignore_eos=True, extra_args=xargs)
        stamp = EPOCH_S + arrival_s + self.wall_offset_s
        # 0.16 wants to be told the token that ends an output; later versions have it among the sampling parameters
        eos = {"eos_token_id": None} if "eos_token_id" in inspect.signature(request.Request).parameters else {}
        self.scheduler.add_request(request.Request(name, [7] * prompt_tokens, parameters, None, arrival_time=stamp, **eos))

    def turn(self) -> bool:
        """One turn of vLLM's engine loop: compose, or take in the oldest results.

        Returns:
            False if there was nothing to do.
        """
        scheduler, flying = self.scheduler, self.flying
        executed = False
        if scheduler.has_requests():
            out = scheduler.schedule()
            executed = out.total_num_scheduled_tokens > 0
            flying.append((out, *self._executed(out)))
            if len(flying) < self.depth and (executed or scheduler.has_requests()):
                return True
        elif not flying:
            return False
        out, answer, end_s = flying.popleft()
        self.now_s = max(self.now_s, end_s)
        if not executed and not out.total_num_scheduled_tokens:
            self.now_s += 1e-3  # vLLM's loop sleeps after a step without tokens
        self._delivered(scheduler.update_from_output(out, answer))
        return True

    def _executed(self, out: Any) -> tuple[Any, float]:
        scheduler = self.scheduler
        self.over_tokens += out.total_num_scheduled_tokens > scheduler.scheduler_config.max_num_batched_tokens
        self.over_running += len(scheduler.running) > scheduler.scheduler_config.max_num_seqs
        if not out.total_num_scheduled_tokens:
            return answered(scheduler, out), self.now_s
        sums = self._sums(out)
        took_s = self.step_time(**sums)
        self.free_s = max(self.now_s, self.free_s) + took_s
        self.steps += 1
        if self.on_step is not None:
            self.on_step(sums, took_s)
        return answered(scheduler, out), self.free_s

    def _sums(self, out: Any) -> dict[str, float]:
        known, goal = contexts(out), self.goal
        for name in [*(r.req_id for r in out.scheduled_new_reqs), *(out.scheduled_cached_reqs.resumed_req_ids or ())]:
            goal[name] = self.scheduler.requests[name].num_tokens
        n = kv = p = pairs = r = 0.0
        for name, tokens in out.num_scheduled_tokens.items():
            before = known[name]
            if before >= goal[name]:
                n, kv = n + 1, kv + before
            else:
                p, r, pairs = p + tokens, r + 1, pairs + tokens * (before + 0.5 * tokens)
        for name in out.finished_req_ids:
            goal.pop(name, None)
        return {"n": n, "kv": kv, "p": p, "pairs": pairs, "r": r}

    def _delivered(self, found: dict[int, Any]) -> None:
        for outputs in found.values():
            for output in outputs.outputs:
                if output.new_token_ids and self.on_token is not None:
                    self.on_token(output.request_id, len(output.new_token_ids), self.now_s)
                if output.finish_reason is not None:
                    self.ended.append((output.request_id, output.finish_reason, self.now_s))
