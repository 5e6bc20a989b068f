"""What a law costs beside the scheduler that it would steer: stock vLLM's `schedule()` and an exported runtime in one process.

    PYTHON_OF_VLLM -m benchmarks.vllm_steps job.json result.json

It runs with the python of `scripts/vllm-env`, from the root of the repository; of Headway's it loads the exported file alone.
Blocks of steps and blocks of updates alternate, so that both see the same noise of the machine; every call is timed by itself,
in processor time: on a busy machine the longer call would be interrupted more often and the law look the cheaper.
"""

from __future__ import annotations

import gc
import importlib.util
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.vllm_scheduler import Settings, add, answered, stock_scheduler

PROMPT_TOKENS, WARM_STEPS, STEPS = 64, 30, 40
"""Of every request [tokens]; steps before anything is timed; steps in a block."""


MEMORY = bytes(64 * 2**20)
"""Read through before a call whose code and data are to be out of the caches, as after a step of a real model."""


def step(scheduler: Any, *, cold: bool = False) -> float:
    """One step of the engine, its device taking no time.

    Args:
        scheduler: stock.
        cold: empty the caches first.

    Returns:
        Processor time inside `schedule()` [s].
    """
    if cold:
        MEMORY.count(1)
    began = time.thread_time()
    output = scheduler.schedule()
    took = time.thread_time() - began
    scheduler.update_from_output(output, answered(scheduler, output))
    return took


def update(law: Any, reading: list[Any], *, cold: bool = False) -> float:
    """One update of the law.

    Args:
        law: exported runtime.
        reading: in the order of its arguments.
        cold: empty the caches first.

    Returns:
        Processor time inside `update()` [s].
    """
    if cold:
        MEMORY.count(1)
    began = time.thread_time()
    law.update(*reading)
    return time.thread_time() - began


def measured(running: int, law: Any, readings: list[list[Any]], repetitions: int) -> dict[str, Any]:
    """Blocks of steps and of updates in turn; then single ones in turn, as they are and with the caches emptied before each.

    Args:
        running: requests that decode in every step.
        law: exported runtime.
        readings: of one closed loop, in order; each is read once.
        repetitions: blocks of each.

    Returns:
        Medians of every block, "stock" and "law", and the law's means, "law_mean"; medians of updates between two steps,
        "law_between", and of both with cold caches, "stock_cold" and "law_cold" [s].
    """
    settings = Settings(max_num_batched_tokens=8192, max_num_seqs=1024, max_model_len=8192, block_size=16, blocks=2000 + 100 * running)
    scheduler = stock_scheduler(settings)
    for k in range(running):
        add(scheduler, str(k), [7] * PROMPT_TOKENS, 8000)
    while scheduler.waiting or any(r.num_computed_tokens < r.num_prompt_tokens for r in scheduler.running):
        step(scheduler)
    each, coming = (len(readings) - WARM_STEPS - 6 * STEPS) // repetitions, iter(readings)
    for _ in range(WARM_STEPS):
        step(scheduler)
        update(law, next(coming))
    gc.collect()
    gc.freeze()  # as vLLM's own engine process does once it has started
    stock, ours, means = [], [], []
    for _ in range(repetitions):
        stock.append(statistics.median(step(scheduler) for _ in range(STEPS)))
        times = [update(law, reading) for reading in itertools.islice(coming, each)]
        ours.append(statistics.median(times))
        means.append(statistics.fmean(times))
    single: dict[str, list[float]] = {"law_between": [], "stock_cold": [], "law_cold": []}
    for _ in range(3 * STEPS):
        step(scheduler)
        single["law_between"].append(update(law, next(coming)))
    for _ in range(3 * STEPS):
        single["stock_cold"].append(step(scheduler, cold=True))
        single["law_cold"].append(update(law, next(coming), cold=True))
    assert len(scheduler.running) == running, "every request still decodes"
    assert law.faults == 0, "every update is one of a good reading"
    return {"stock": stock, "law": ours, "law_mean": means} | {name: statistics.median(times) for name, times in single.items()}


def main(job: Path, result: Path) -> None:
    """Measure what a job asks for.

    Args:
        job: {"runtime": headway_runtime.py, "gains": gains.json, "repetitions", "readings": {requests running: rows}}.
        result: file to write, {requests running: as from `measured`}.
    """
    asked = json.loads(job.read_text(encoding="utf-8"))
    spec = importlib.util.spec_from_file_location("headway_runtime", asked["runtime"])
    assert spec is not None
    assert spec.loader is not None
    runtime = importlib.util.module_from_spec(spec)
    sys.modules["headway_runtime"] = runtime
    spec.loader.exec_module(runtime)
    found = {}
    for running, readings in asked["readings"].items():
        law = runtime.Runtime.from_json(asked["gains"])
        found[running] = measured(int(running), law, readings, asked["repetitions"])
    assert not any(name == "headway" or name.startswith("headway.") for name in sys.modules), "the exported file stands alone"
    result.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
