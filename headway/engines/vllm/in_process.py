"""A vLLM without a server, driven through a recording: runs in vLLM's environment, as a script, and imports nothing of Headway's.

PYTHON_OF_VLLM in_process.py job.json
"""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path
from typing import Any

FIRST_TOKEN = 10
"""Smallest token id in a prompt: those before it may be special."""


def drive(job: dict[str, Any]) -> int:
    """Keep requests on their way until so many steps were made.

    Args:
        job: as `headway.engines.vllm.recording` writes it.

    Returns:
        Steps made.
    """
    vllm = importlib.import_module("vllm")
    flags = {name: value for name, value in job["flags"].items() if value is not None}
    llm = vllm.LLM(model=job["model"], additional_config=job["additional"], disable_log_stats=True, seed=job["seed"], **flags)
    engine, chance = llm.llm_engine, random.Random(job["seed"])
    sizes = list(zip(job["prompt_tokens"], job["output_tokens"], strict=True))
    steps = sent = 0
    while steps < job["steps"]:
        while engine.get_num_unfinished_requests() < job["outstanding"]:
            prompt, output = sizes[sent % len(sizes)]
            tokens = chance.choices(range(FIRST_TOKEN, job["vocab"]), k=prompt)
            engine.add_request(
                str(sent), {"prompt_token_ids": tokens}, vllm.SamplingParams(max_tokens=output, ignore_eos=True, temperature=0)
            )
            sent += 1
        engine.step()
        steps += 1
    return steps


if __name__ == "__main__":
    made = drive(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    print(f"{made} steps", flush=True)  # noqa: T201  # its log
