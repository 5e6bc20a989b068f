"""The stock scheduler of a real vLLM, driven in virtual time by a plant: what it puts into every step.

    PYTHON_OF_VLLM -m benchmarks.vllm_scheduler job.json result.json

It runs with the python of `scripts/vllm-env`, from the root of the repository, and imports nothing of Headway's. No worker, no
kernel, no sleeping: a step takes as long as the plant says, times a noise factor, and every request whose prompt is computed
emits one token. Requests are added when the clock has passed their arrival, as an engine's front end does.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

QUIET = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
"""What the environment must say before vLLM is imported: one process, nothing over the network."""

LLM = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 1_048_576,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}
"""A configuration that vLLM accepts; no weights are ever made, the scheduler only counts tokens and blocks."""


class Settings(NamedTuple):
    """Start-up flags of the engine, by vLLM's own names.

    Args:
        max_num_batched_tokens: most tokens in a step [tokens].
        max_num_seqs: most requests running at once [requests].
        max_model_len: longest prompt and output [tokens].
        block_size: tokens in a cache block [tokens].
        blocks: cache blocks that requests may use; vLLM's own null block comes on top [blocks].
        long_prefill_token_threshold: most prompt tokens of one request in a step; 0 is no cap [tokens].
        scheduler_reserve_full_isl: admit a request only if its whole prompt fits into what is free now.
        enable_prefix_caching: reuse blocks of equal prompts.
        watermark: share of the cache kept free when a request is admitted beside others.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    block_size: int
    blocks: int
    long_prefill_token_threshold: int = 0
    scheduler_reserve_full_isl: bool = True
    enable_prefix_caching: bool = False
    watermark: float = 0.0


def stock_scheduler(settings: Settings) -> Any:
    """The scheduler that vLLM starts by default where scheduling is synchronous, on a cache of a given size.

    Args:
        settings: of the engine.

    Returns:
        `vllm.v1.core.sched.scheduler.Scheduler`.
    """
    os.environ.update(QUIET)
    named = importlib.import_module
    arguments, torch = named("vllm.engine.arg_utils"), named("torch")
    interface, structured = named("vllm.v1.kv_cache_interface"), named("vllm.v1.structured_output")
    flags = settings._asdict()
    blocks = flags.pop("blocks") + 1
    with tempfile.TemporaryDirectory(prefix="headway-vllm-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LLM), encoding="utf-8")
        config = arguments.EngineArgs(
            model=folder, skip_tokenizer_init=True, load_format="dummy", enforce_eager=True, async_scheduling=False, **flags
        ).create_engine_config()
        config.cache_config.num_gpu_blocks = blocks
        heads = interface.FullAttentionSpec(block_size=settings.block_size, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
        cache = interface.KVCacheConfig(blocks, [], [interface.KVCacheGroupSpec(["layer"], heads)])
        scheduler = named("vllm.v1.core.sched.scheduler").Scheduler(
            vllm_config=config,
            kv_cache_config=cache,
            structured_output_manager=structured.StructuredOutputManager(config),
            block_size=settings.block_size,
        )
    assert not config.scheduler_config.async_scheduling, "the comparison is of synchronous scheduling"
    return scheduler


def add(scheduler: Any, name: str, prompt: list[int], output_tokens: int) -> None:
    """Hand a request to the scheduler; it ends after so many tokens, whatever they are.

    Args:
        scheduler: as from `stock_scheduler`.
        name: of the request.
        prompt: its token ids.
        output_tokens: it emits [tokens].
    """
    request, sampling = importlib.import_module("vllm.v1.request"), importlib.import_module("vllm.sampling_params")
    hasher = None
    if scheduler.cache_config.enable_prefix_caching:
        blocks, hashing = importlib.import_module("vllm.v1.core.kv_cache_utils"), importlib.import_module("vllm.utils.hashing")
        blocks.init_none_hash(hashing.sha256)
        hasher = blocks.get_request_block_hasher(scheduler.block_size, hashing.sha256)
    parameters = sampling.SamplingParams(max_tokens=output_tokens, ignore_eos=True)
    scheduler.add_request(request.Request(name, prompt, parameters, None, arrival_time=time.time(), block_hasher=hasher))


def contexts(output: Any) -> dict[str, int]:
    """Tokens in the cache before the step, of every request in it.

    Args:
        output: what `schedule` returned.

    Returns:
        By request [tokens].
    """
    known = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    return known | dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))


def answered(scheduler: Any, output: Any) -> Any:
    """What a model runner would return: one token from every request whose known tokens are all computed now.

    Args:
        scheduler: whose output it is.
        output: what `schedule` returned.

    Returns:
        `vllm.v1.outputs.ModelRunnerOutput`.
    """
    names = list(output.num_scheduled_tokens)
    # schedule() has counted this step's tokens as computed already
    done = [scheduler.requests[name].num_computed_tokens >= scheduler.requests[name].num_tokens for name in names]
    runner = importlib.import_module("vllm.v1.outputs").ModelRunnerOutput
    return runner(req_ids=names, req_id_to_index={n: k for k, n in enumerate(names)}, sampled_token_ids=[[7] if d else [] for d in done])


class Sums(NamedTuple):
    """What the duration of a step depends on.

    Args:
        decode_requests: that decode [requests].
        decode_kv_tokens: cache tokens that they read, their own new one included [tokens].
        prefill_tokens: of all chunks [tokens].
        prefill_pairs: sum of p (context + p / 2) [tokens^2].
        prefill_requests: with a chunk [requests].
    """

    decode_requests: float
    decode_kv_tokens: float
    prefill_tokens: float
    prefill_pairs: float
    prefill_requests: float


def step_time_s(plant: list[float], sums: Sums) -> float:
    """Duration of a step without noise: a floor, and a price for each sum.

    Args:
        plant: floor [s], then seconds per request, token, token, token^2 and request, shape (6,).
        sums: of the step.

    Returns:
        Duration [s].
    """
    took = plant[0]
    for price, amount in zip(plant[1:], sums, strict=True):
        took += price * amount
    return took


class Drive:
    """A run in virtual time: the clock, the requests that are still to come, and what every step held.

    Args:
        job: {"settings", "arrival_s", "prompt_tokens", "output_tokens", "shared_tokens", "plant", "noise", "steps"}; requests
            in order of arrival, the first "shared_tokens" of all prompts are the same.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        """Start a scheduler."""
        self.job, self.scheduler = job, stock_scheduler(Settings(**job["settings"]))
        self.now_s, self.arrived = 0.0, 0
        self.goal: dict[str, int] = {}
        self.steps: list[list[list[int]]] = []
        self.preempted = 0

    def run(self) -> dict[str, Any]:
        """Step until there are enough, or nothing is left to do.

        Returns:
            {"steps": [[request, tokens], ...] of every step in scheduling order, "preempted": how often, "now_s": at the end}.
        """
        while len(self.steps) < self.job["steps"]:
            if not self.scheduler.has_unfinished_requests():
                if self.arrived == len(self.job["arrival_s"]):
                    break
                self.now_s = max(self.now_s, self.job["arrival_s"][self.arrived])
            self.arrive()
            output = self.scheduler.schedule()
            self.preempted += len(output.preempted_req_ids or ())
            if output.total_num_scheduled_tokens:
                took = step_time_s(self.job["plant"], self.sums(output))
                self.now_s += took * self.job["noise"][len(self.steps) % len(self.job["noise"])]
                self.steps.append([[int(name), tokens] for name, tokens in output.num_scheduled_tokens.items()])
            self.scheduler.update_from_output(output, answered(self.scheduler, output))
        return {"steps": self.steps, "preempted": self.preempted, "now_s": self.now_s}

    def arrive(self) -> None:
        """Hand over who has come by now."""
        job = self.job
        while self.arrived < len(job["arrival_s"]) and job["arrival_s"][self.arrived] <= self.now_s:
            k = self.arrived
            shared = job["shared_tokens"]
            # a block's hash is of all tokens up to its end: one token of its own makes all that follows a prompt's own
            prompt = [5] * shared + [1_000_000 + k] + [7] * (job["prompt_tokens"][k] - shared - 1)
            add(self.scheduler, str(k), prompt, job["output_tokens"][k])
            self.arrived += 1

    def sums(self, output: Any) -> Sums:
        """The sums of a step: a request decodes once all that it had when it was admitted is computed.

        Args:
            output: what `schedule` returned.

        Returns:
            The sums.
        """
        known = contexts(output)
        for name in [*(r.req_id for r in output.scheduled_new_reqs), *output.scheduled_cached_reqs.resumed_req_ids]:
            self.goal[name] = self.scheduler.requests[name].num_tokens
        n = kv = p = pairs = r = 0.0
        for name, tokens in output.num_scheduled_tokens.items():
            if known[name] >= self.goal[name]:
                n, kv = n + 1, kv + known[name] + 1
            else:
                p, r, pairs = p + tokens, r + 1, pairs + tokens * (known[name] + 0.5 * tokens)
        return Sums(n, kv, p, pairs, r)


def main(jobs: Path, result: Path) -> None:
    """Run every job.

    Args:
        jobs: by name, as `Drive` takes them.
        result: file to write, by name, as `Drive.run` returns them.
    """
    found = {name: Drive(job).run() for name, job in json.loads(jobs.read_text(encoding="utf-8")).items()}
    result.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
