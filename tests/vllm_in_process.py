"""What the tests of the adapter run where vLLM is, in one process: faults in virtual time, an engine on a plant, real kernels.

PYTHON_OF_VLLM tests/vllm_in_process.py PART job.json result.json
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.vllm_scheduler import QUIET, Settings
from benchmarks.vllm_virtual import Virtual, adapter_of, scheduler_of

AT_STEP = 120
"""Step at which a drill does its harm."""


class Lines(logging.Handler):
    """What the adapter says."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


class Drill:
    """A run with one fault in it."""

    def __init__(self, folder: str, *, asynchronous: bool, blocks: int = 20_000, requests: int = 200, rate_rps: float = 12.0) -> None:
        self.adapter = adapter_of(folder)
        rng = self.rng = random.Random(7)
        self.run = Virtual(self.step_time, asynchronous=asynchronous, adapter=self.adapter)
        settings = Settings(max_num_batched_tokens=4096, max_num_seqs=48, max_model_len=16_384, block_size=16, blocks=blocks)
        additional = {"headway": {"mode": "control", "gains": f"{folder}/controller.json"}}
        self.handler = Lines()
        logging.getLogger("headway_runtime").addHandler(self.handler)
        logging.getLogger("headway_runtime").setLevel(logging.INFO)
        self.run.scheduler = scheduler_of(settings, self.adapter.make_scheduler, asynchronous=asynchronous, additional=additional)
        self.pilot = self.run.scheduler.headway
        arrival, self.coming = 0.0, []
        for k in range(requests):
            arrival += rng.expovariate(rate_rps)
            prompt = min(int(rng.lognormvariate(6.3, 1.0)) + 20, 6000)
            self.coming.append((str(k), prompt, min(int(rng.lognormvariate(4.0, 0.6)) + 2, 400), arrival, {"headway_class": "chat"}))
        self.total = requests
        self.budgets: list[int] = []
        self.run.on_step = lambda sums, took_s: self.budgets.append(self.run.scheduler.max_num_scheduled_tokens)

    def step_time(self, n: float, kv: float, p: float, pairs: float, r: float) -> float:
        base = 0.007 + 6e-5 * n + 5e-9 * kv + 2e-5 * p + 5e-10 * pairs + 5e-4 * r if p else 0.006 + 6e-5 * n + 5e-9 * kv
        return base * self.rng.lognormvariate(0.0, 0.04)

    def go(self, harm: Callable[[Drill], None] | None, at: int = AT_STEP) -> dict[str, Any]:
        run, coming = self.run, self.coming
        while True:
            while coming and coming[0][3] <= run.now_s:
                run.add(*coming.pop(0))
            if harm is not None and run.steps >= at:
                harm, done = None, harm
                done(self)
            if not run.turn():
                if not coming:
                    break
                run.now_s = max(run.now_s, coming[0][3])
        reasons: dict[str, int] = {}
        for _, reason, _ in run.ended:
            reasons[str(reason)] = reasons.get(str(reason), 0) + 1
        pilot, scheduler = self.pilot, run.scheduler
        logging.getLogger("headway_runtime").removeHandler(self.handler)
        return {
            "ended": len(run.ended),
            "requests": self.total,
            "distinct": len({name for name, _, _ in run.ended}),
            "reasons": reasons,
            "steps": run.steps,
            "over": run.over_tokens + run.over_running,
            "failed": type(pilot.failed).__name__ if pilot.failed else "",
            "lines": self.handler.lines,
            "reloads": pilot.loop.reloads,
            "refused_gains": pilot._file.refused,
            "content": pilot.loop.law.content,
            "counts": pilot.desk.promises.counts,
            "clock": [pilot.clocks.stepped, pilot.clocks.implausible],
            "shed": pilot.desk.shed,
            "faults": pilot.loop.law.faults,
            "preempted": self.preempted,
            "stock_queue": type(scheduler.waiting).__name__,
            "limits": [scheduler.max_num_scheduled_tokens, getattr(scheduler, "max_num_active_reqs", scheduler.max_num_running_reqs)],
            "budgets": self.budgets,
            "left": len(scheduler.requests),
        }

    @property
    def preempted(self) -> int:
        return self.pilot.meter.preempted


def write(text: str | None) -> Callable[[Drill], None]:
    def harm(drill: Drill) -> None:
        path = drill.pilot._file.path
        if text is None:
            path.unlink()
        else:
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(1, time.time_ns()))

    return harm


def stepped(drill: Drill) -> None:
    drill.run.wall_offset_s += 3600.0


def raising(thing: str, name: str) -> Callable[[Drill], None]:
    def harm(drill: Drill) -> None:
        def broken(*_: Any, **__: Any) -> Any:
            raise ZeroDivisionError(f"injected into {name}")

        owner = {"law": drill.pilot.loop.law, "meter": drill.pilot.meter, "desk": drill.pilot.desk}[thing]
        setattr(owner, name, broken)

    return harm


def flooded(drill: Drill) -> None:
    for k in range(1500):
        drill.run.add(f"flood{k}", 400, 40, drill.run.now_s)
    drill.total += 1500


def strangers(drill: Drill) -> None:
    xargs = [
        {"headway_class": "gold"},
        {"headway_class": 99},
        {"headway_ttft_ms": "soon"},
        {"headway_itl_ms": 1},
        {"headway_class": []},
        None,
    ]
    for k in range(60):
        drill.run.add(f"stranger{k}", 100, 10, drill.run.now_s, xargs[k % len(xargs)])
    drill.total += 60


def drills(job: dict[str, Any]) -> dict[str, Any]:
    """Every drill in turn, each on a folder of its own."""
    good = Path(job["folder"], "controller.json").read_text(encoding="utf-8")
    other = Path(job["other"]).read_text(encoding="utf-8")
    harms: dict[str, tuple[Callable[[Drill], None] | None, dict[str, Any]]] = {
        "none": (None, {}),
        "truncated": (write(good[: len(good) // 2]), {}),
        "nan": (write(good.replace('"aging_rate": {', '"aging_rate": {"x": NaN, ', 1)), {}),
        "absent": (write(None), {}),
        "replaced": (write(other), {}),
        "clock": (stepped, {}),
        "flood": (flooded, {}),
        "strangers": (strangers, {}),
        "cache": (None, {"blocks": 500}),
        "law": (raising("law", "update"), {}),
        "key": (raising("law", "key"), {}),
        "meter": (raising("meter", "composed"), {}),
    }
    found = {}
    for asynchronous in (False, True):
        for name, (harm, about) in harms.items():
            if job.get("only") and name not in job["only"]:
                continue
            Path(job["folder"], "controller.json").write_text(good, encoding="utf-8")
            os.utime(Path(job["folder"], "controller.json"), ns=(1, 1))
            drill = Drill(job["folder"], asynchronous=asynchronous, **about)
            found[f"{name}/{'async' if asynchronous else 'sync'}"] = drill.go(harm)
    return found


def kernels(job: dict[str, Any]) -> dict[str, Any]:
    """A llm of random weights under real kernels, greedy: excited by the adapter, then stock."""
    os.environ.update(QUIET)
    sys.path.insert(0, job["folder"])
    vllm = importlib.import_module("vllm")
    prompts = [{"prompt_token_ids": [(17 * i * j) % 15_000 + 10 for j in range(1, 60 + 5 * i)]} for i in range(1, 41)]
    found = {}
    for side in ("ours", "stock"):
        excite = {"tokens": [48, 96, 256, 2048], "running": [2, 8, 40], "hold_steps": [2, 6]}
        about = {"mode": "excite", "trace": "steps.jsonl", "seed": 3, "excite": excite}
        more = {"scheduler_cls": "headway_vllm.make_scheduler", "additional_config": {"headway": about}} if side == "ours" else {}
        llm = vllm.LLM(
            model=job["llm"], load_format="dummy", dtype="bfloat16", max_model_len=4096, enforce_eager=True, max_num_seqs=64,
            max_num_batched_tokens=2048, kv_cache_memory_bytes=1 << 29, seed=1, enable_prefix_caching=False, **more,
        )  # fmt: skip
        out = llm.generate(prompts, vllm.SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.0), use_tqdm=False)
        ids = [list(o.outputs[0].token_ids) for o in out]
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        scheduler.shutdown()
        if side == "ours":
            assert scheduler.headway.failed is None, scheduler.headway.failed
        sums = {"tokens": sum(map(len, ids)), "prompt_tokens": sum(len(p["prompt_token_ids"]) for p in prompts)}
        found[side] = {**sums, "md5": hashlib.md5(str(ids).encode()).hexdigest()}
        del llm
    return found


def main() -> None:
    part, job, result = sys.argv[1:4]
    asked = json.loads(Path(job).read_text(encoding="utf-8"))
    logging.getLogger("vllm").setLevel(logging.ERROR)
    Path(result).write_text(json.dumps({"drills": drills, "kernels": kernels}[part](asked)), encoding="utf-8")


if __name__ == "__main__":
    main()
