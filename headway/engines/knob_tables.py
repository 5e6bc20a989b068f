"""The flags that set a token budget and a running limit, engine by engine. Every row names where its facts stand."""

from __future__ import annotations

from headway.engines.knobs import Knob

VERSIONS: dict[str, tuple[str, ...]] = {
    "vllm": ("0.16.0", "0.20.2", "0.25.1", "0.30.0", "0.31.0", "0.32.0"),
    "sglang": ("0.4.10", "0.5.3", "0.5.6", "0.5.9", "0.5.12", "0.5.14", "0.5.18", "0.5.23"),
    "trtllm": ("0.18.2", "1.2.0"),
}
"""Versions whose flags were read, oldest first. `since` and `until` of a knob are among them: the first and the last that has it."""

_VLLM, _ARGS = "vllm/config/scheduler.py", "vllm/engine/arg_utils.py"
_SGLANG, _SGLANG_DOCS = "sglang/srt/server_args.py", "docs.sglang.io, server arguments"
_TRTLLM, _TRTLLM_DOCS = "tensorrt_llm/llmapi/llm_args.py", "nvidia.github.io/TensorRT-LLM, trtllm-serve"

KNOBS: tuple[Knob, ...] = (
    Knob(
        "vllm", "--max-num-batched-tokens", "max_num_batched_tokens", "token_budget", "tokens", "0.16.0", None,
        "by device, 2048 to 16384 (serve); 2048 a device on a CPU",
        "most tokens in one step, decodes included; sizes the worker's buffers too",
        "below --max-num-seqs the engine does not start",
        f"{_ARGS} (get_batch_defaults), {_VLLM} (verify_max_model_len), 0.16.0 to 0.32.0",
    ),
    Knob(
        "vllm", "--max-num-seqs", "max_num_seqs", "running_limit", "requests", "0.16.0", None,
        "by device, 256 or 1024; 128 a device on a CPU",
        "most requests running at once; sizes captured graphs and the runner's buffers too",
        "never",
        f"{_ARGS} (get_batch_defaults), 0.16.0 to 0.32.0",
    ),
    Knob(
        "vllm", "--long-prefill-token-threshold", "long_prefill_token_threshold", "chunk_tokens", "tokens", "0.16.0", None,
        "0, which is off",
        "most prompt tokens of one request in one step",
        "at or above the token budget; from 0.31.0 on also while only one request is there",
        "vllm/v1/core/sched/scheduler.py (schedule), 0.16.0 to 0.32.0",
    ),
    Knob(
        "vllm", "--max-num-active-seqs", "max_num_active_seqs", "", "requests", "0.31.0", None,
        "none: --max-num-seqs",
        "lowers the running limit alone, without smaller graphs; what a scheduler class moves at run time",
        "at or above --max-num-seqs, which is an error above it",
        f"{_VLLM}, 0.31.0",
    ),
    Knob(
        "vllm", "--max-num-scheduled-tokens", "max_num_scheduled_tokens", "", "tokens", "0.30.0", None,
        "none: --max-num-batched-tokens",
        "lowers the token budget alone, without smaller buffers",
        "in 0.20.2 and 0.25.1 it is a field of the configuration without a flag",
        f"{_ARGS}, 0.30.0",
    ),
    Knob(
        "vllm", "--max-num-queued-tokens", "max_num_queued_tokens", "", "tokens", "0.30.0", None,
        "none",
        "turns requests away with HTTP 503 while more prompt tokens than this are in prefill",
        "counts a prompt whole until its first token: it turns away too early, not too late",
        f"{_VLLM}, 0.30.0",
    ),
    Knob(
        "vllm", "--max-num-partial-prefills", "max_num_partial_prefills", "", "requests", "0.16.0", "0.25.1",
        "1",
        "nothing: the engine refuses to start with any other value, and 0.30.0 has it no more",
        "always",
        f"{_ARGS} (_raise_unsupported_error), 0.16.0 to 0.25.1; vllm-project/vllm#49244",
    ),
    Knob(
        "sglang", "--chunked-prefill-size", "chunked_prefill_size", "token_budget", "tokens", "0.4.10", None,
        "by GPU memory, 2048 to 16384",
        "most prompt tokens in one step; with --enable-mixed-chunk the decodes that ride along are taken off it",
        "-1 turns it off; a size that is no multiple of --page-size (1 by default) stops the start",
        f"{_SGLANG}; sglang/srt/managers/schedule_policy.py (PrefillAdder), 0.4.10 to 0.5.18; arg_groups/validation_hook.py, 0.5.23",
    ),
    Knob(
        "sglang", "--enable-mixed-chunk", "enable_mixed_chunk", "mixed", "1", "0.4.10", None,
        "off: a step carries prompts or decodes, and decodes stand still while prompts go on",
        "steps carry prompts and decodes together, as the plant of a controller has them",
        "speculative decoding: the engine turns it off again or does not start; 0.5.23 bears both for some algorithms",
        f"{_SGLANG}, 0.4.10 to 0.5.18; arg_groups/speculative_hook.py and validation_hook.py, 0.5.23; sgl-project/sglang#29811",
    ),
    Knob(
        "sglang", "--max-running-requests", "max_running_requests", "running_limit", "requests", "0.4.10", None,
        "by memory",
        "most requests running at once",
        "never",
        f"{_SGLANG_DOCS}; {_SGLANG}, 0.4.10 to 0.5.18",
    ),
    Knob(
        "sglang", "--max-prefill-tokens", "max_prefill_tokens", "", "tokens", "0.4.10", None,
        "16384",
        "most prompt tokens in a prefill batch",
        "at or above --chunked-prefill-size, and never below the longest context: no token budget",
        _SGLANG_DOCS,
    ),
    Knob(
        "sglang", "--max-queued-requests", "max_queued_requests", "", "requests", "0.4.10", None,
        "none",
        "turns requests away while more than this wait",
        "with disaggregation",
        _SGLANG_DOCS,
    ),
    Knob(
        "trtllm", "--max_num_tokens", "max_num_tokens", "token_budget", "tokens", "0.18.2", None,
        "8192",
        "most tokens in one step, decodes included",
        "a value in the --extra_llm_api_options file counts before the flag",
        f"{_TRTLLM_DOCS}, 0.18.2; docs, paged attention and scheduling",
    ),
    Knob(
        "trtllm", "--max_batch_size", "max_batch_size", "running_limit", "requests", "0.18.2", None,
        "the engine's own",
        "most requests in one step",
        "never above what a built engine was built with",
        f"{_TRTLLM_DOCS}, 0.18.2",
    ),
    Knob(
        "trtllm", "enable_chunked_prefill", "enable_chunked_prefill", "chunked", "1", "0.18.2", None,
        "off: a prompt longer than the token budget is not served",
        "prompts are computed in chunks, each but the last of whole cache blocks",
        "never",
        "tensorrt_llm/commands/serve.py; docs, paged attention and scheduling",
    ),
    Knob(
        "trtllm", "scheduler_config.dynamic_batch_config", "dynamic_batch_config", "", "1", "0.18.2", None,
        "none",
        "moves batch size and token budget with the mean lengths, without a latency target",
        "with the PyTorch backend, which is the default",
        _TRTLLM,
    ),
)  # fmt: skip
"""One row per flag."""


def knobs(engine: str, version: str) -> tuple[Knob, ...]:
    """The flags that a known version of an engine has.

    Args:
        engine: a key of VERSIONS.
        version: one of its known versions.

    Returns:
        In the order of the table.
    """
    return tuple(k for k in KNOBS if k.engine == engine and k.there(version))
