"""A device that is only a plant: a real vLLM server, scheduler and all, waits as long as each step would take, and computes nothing.

This file is written beside the adapter as `headway_device.py` and runs in the server's process, with its plant:

    vllm serve MODEL --distributed-executor-backend headway_device.PlantExecutor
        --additional-config '{"headway_device": {"plant": "device.json"}}'

It imports vLLM when its class is asked for and nothing else but the standard library. What it is not: a device with several
workers, speculative decoding or structured output.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import random
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from headway.engines.runtime_plants import read_plant

CLASS = "PlantExecutor"
ASYNC = "HEADWAY_DEVICE_ASYNC"
"""Environment variable: 1 keeps asynchronous scheduling, which vLLM's CPU platform switches off."""
MEMORY_BYTES = 64 * 2**30
"""What the device claims to have for its cache; nothing is allocated, and the size in blocks is given at start [bytes]."""
SPIN_S = 2e-4
"""The last part of a wait is spent awake: sleeping longer than asked would make every step late [s]."""


class Device:
    """Steps one after the other, each as long as the plant says times a noise factor.

    Args:
        path: JSON with structure, coefficients by name, noise factors by regime, and a seed.
    """

    def __init__(self, path: str | Path) -> None:
        """Read the plant and start the thread that is the device."""
        about = json.loads(Path(path).read_text(encoding="utf-8"))
        plant = read_plant(about, lambda numbers, name: float(numbers[name]))
        if plant is None:
            raise ValueError(f"{path}: structure {about['structure']!r} is none that the device knows; fit another with --structure")
        self.step_time = plant.step_time
        self.noise = {name: [float(x) for x in about["noise"][name]] or [1.0] for name in ("decode", "mixed")}
        self.chance = random.Random(int(about["seed"]))
        self.lengths: dict[str, int] = {}
        self.free_s = 0.0
        self.queue: queue.Queue[tuple[Future[Any], Any, float]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True, name="headway-device").start()

    def submit(self, result: Any, duration_s: float) -> Future[Any]:
        """Queue a step behind those that run.

        Args:
            result: handed over when it ends.
            duration_s: it takes [s].

        Returns:
            Future of the result.
        """
        self.free_s = max(time.perf_counter(), self.free_s) + duration_s
        future: Future[Any] = Future()
        self.queue.put((future, result, self.free_s))
        return future

    def _run(self) -> None:
        while True:
            future, result, end_s = self.queue.get()
            left_s = end_s - time.perf_counter()
            if left_s > SPIN_S:
                time.sleep(left_s - SPIN_S)
            while time.perf_counter() < end_s:
                pass
            future.set_result(result)

    def step(self, output: Any) -> tuple[list[str], list[list[int]], float]:
        """What a composed step emits, and how long it takes.

        Args:
            output: vLLM's SchedulerOutput.

        Returns:
            (request ids, tokens of each: one where its prompt is done, none before; duration [s]).
        """
        for name in output.finished_req_ids:
            self.lengths.pop(name, None)
        start: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            known = getattr(new, "prefill_token_ids", None) or new.prompt_token_ids
            self.lengths.setdefault(new.req_id, len(known))
            start[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        start.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        decodes = kv = prefill = pairs = prompts = 0.0
        names, tokens = [], []
        for name, count in output.num_scheduled_tokens.items():
            at, length = start[name], self.lengths[name]
            names.append(name)
            if count == 1 and at + 1 >= length:
                decodes, kv = decodes + 1, kv + at + 1
            else:
                prefill, pairs, prompts = prefill + count, pairs + count * (at + count / 2), prompts + 1
            done = at + count >= length
            self.lengths[name] += done
            tokens.append([self.chance.randrange(100, 1000)] if done else [])
        factor = self.chance.choice(self.noise["mixed" if prefill else "decode"])
        return names, tokens, self.step_time(decodes, kv, prefill, pairs, prompts) * factor


def __getattr__(name: str) -> Any:
    """The executor, made when vLLM asks for it: to import this file takes no vLLM."""
    if name != CLASS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if os.environ.get(ASYNC) == "1":
        _keep_async()
    globals()[name] = made = _executor()
    return made


def _keep_async() -> None:
    """Undo what vLLM's CPU platform does to the scheduling that was asked for."""
    platform = importlib.import_module("vllm.platforms.cpu").CpuPlatform
    check = platform.check_and_update_config.__func__

    def keeping(cls: Any, vllm_config: Any) -> None:
        wanted = vllm_config.scheduler_config.async_scheduling
        check(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = wanted

    platform.check_and_update_config = classmethod(keeping)


def _executor() -> type:
    """The executor's class, on vLLM's own."""
    named = importlib.import_module
    torch, cache, outputs = named("torch"), named("vllm.v1.kv_cache_interface"), named("vllm.v1.outputs")
    parent: Any = named("vllm.v1.executor.abstract").Executor

    def get_kv_cache_specs(self: Any) -> list[dict[str, Any]]:
        llm, parallel = self.vllm_config.model_config, self.vllm_config.parallel_config
        heads, size, block = llm.get_num_kv_heads(parallel), llm.get_head_size(), self.cache_config.block_size
        one = cache.FullAttentionSpec(block_size=block, num_kv_heads=heads, head_size=size, dtype=torch.bfloat16)
        return [{f"model.layers.{k}.self_attn.attn": one for k in range(llm.get_num_layers(parallel))}]

    def execute_model(self: Any, scheduler_output: Any, non_block: bool = False) -> Any:
        names, tokens, duration_s = self.device.step(scheduler_output)
        self.pending, result = None, outputs.EMPTY_MODEL_RUNNER_OUTPUT
        if names:
            rows = {name: k for k, name in enumerate(names)}
            self.pending = outputs.ModelRunnerOutput(req_ids=names, req_id_to_index=rows, sampled_token_ids=tokens), duration_s
            result = None  # vLLM then asks for the tokens by sample_tokens
        return _done(result) if non_block else result

    members = {**_members(), "get_kv_cache_specs": get_kv_cache_specs, "execute_model": execute_model}
    return type(CLASS, (parent,), {**members, "__module__": __name__, "__doc__": "An executor without workers: `Device` is the device."})


def _done(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


def _members() -> dict[str, Any]:
    """What an executor answers without knowing vLLM: there is nothing to load, to lay out or to ask of workers."""

    def start(self: Any) -> None:
        self.device = Device(self.vllm_config.additional_config["headway_device"]["plant"])
        self.pending = None

    def collective_rpc(
        self: Any, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None, non_block: bool = False, **others: Any
    ) -> Any:
        del self, timeout, args, kwargs, others
        found = [("generate",)] if method == "get_supported_tasks" else [None]
        return _done(found) if non_block else found

    def sample_tokens(self: Any, grammar_output: Any, non_block: bool = False) -> Any:
        del grammar_output
        assert self.pending is not None, "sample_tokens follows a step that computes something"
        future = self.device.submit(*self.pending)
        return future if non_block else future.result()

    nothing = dict.fromkeys(
        ("set_kv_cache_layout", "initialize_from_config", "compile_or_warm_up_model", "check_health", "shutdown"), lambda *_: None
    )
    return {
        **nothing,
        "_init_executor": start,
        "supports_async_scheduling": classmethod(lambda _: True),
        "determine_available_memory": lambda _: [MEMORY_BYTES],
        "get_supported_kv_cache_layouts": lambda _: [["LBHNC"]],
        "get_kv_connector_handshake_metadata": lambda _: [None],
        "collective_rpc": collective_rpc,
        "sample_tokens": sample_tokens,
    }
