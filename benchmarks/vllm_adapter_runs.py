"""What `benchmarks.vllm_adapter` runs where vLLM is: the adapter's cost, the loop with two batches in flight, a storm of faults.

    PYTHON_OF_VLLM -m benchmarks.vllm_adapter_runs job.json result.json

It runs with the python of `scripts/vllm-env`, from the root of the repository; of Headway's it loads the exported file alone.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import math
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.vllm_scheduler import Settings, answered
from benchmarks.vllm_virtual import Virtual, adapter_of, scheduler_of

STEPS, BLOCKS, PAIRS = 40, 6, 6
"""Steps of one scheduler in a row, blocks of each that are timed, in turn, one before not; and pairs of schedulers."""
PATIENT_MS = 1e8
"""A TTFT target under which nobody who waits is refused while the cost is measured [ms]."""


def cost(job: dict[str, Any]) -> dict[str, Any]:
    """Stock vLLM's schedule() and the same with the adapter, blocks of steps in turn, in processor time.

    Args:
        job: {"adapter": folder, "loads": [[running, waiting], ...], "mode", "trace": file or ""}.

    Returns:
        By "running/waiting": {"stock", "ours", "stock_update", "ours_update"}, the median of every pair [s].
    """
    adapter, device = adapter_of(job["adapter"]), Pause(job["plant"])
    adapter.monotonic_s, adapter.wall_s = device.monotonic_s, device.wall_s
    logging.disable(logging.WARNING)
    found = {}
    for running, waiting in job["loads"]:
        pairs = [_pair(adapter, device, running, waiting, job, swapped=bool(k % 2)) for k in range(PAIRS)]
        found[f"{running}/{waiting}"] = {name: [pair[name] for pair in pairs] for name in pairs[0]}
    return found


def _pair(adapter: Any, device: Pause, running: int, waiting: int, job: dict[str, Any], *, swapped: bool) -> dict[str, float]:
    """Medians of one pair of schedulers, made in either order: where their memory lies decides as much as what they do."""
    settings = Settings(
        max_num_batched_tokens=8192, max_num_seqs=max(running, 8), max_model_len=8192, block_size=16, blocks=2000 + 100 * running
    )
    additional = {"headway": {"mode": job["mode"], "trace": job["trace"]}}
    sides = {}
    for name in ("ours", "stock") if swapped else ("stock", "ours"):
        make = adapter.make_scheduler if name == "ours" else None
        sides[name] = scheduler_of(settings, make, additional=additional if make else None)
        filled(sides[name], running, waiting, device)
    times: dict[str, list[float]] = {name: [] for name in ("stock", "ours", "stock_update", "ours_update")}
    gc.collect()
    gc.freeze()  # as vLLM's own engine process does once it has started
    for k in range(2 * (BLOCKS + 1)):
        name = ("stock", "ours")[k % 2]
        for _ in range(STEPS):
            schedule_s, update_s = timed(sides[name], device)
            if k >= 2:
                times[name].append(schedule_s)
                times[f"{name}_update"].append(update_s)
    for side in sides.values():
        assert len(side.running) == running, "every request still decodes"
        assert len(side.waiting) == waiting, "everybody still waits"
    pilot = sides["ours"].headway
    assert pilot.failed is None
    assert pilot.loop is None or pilot.loop.law.faults == 0, "every reading is a good one"
    gc.unfreeze()
    return {name: statistics.median(values) for name, values in times.items()}


class Pause:
    """A device that takes no time and moves the adapter's clocks on by what it would take: a law wants steps that can be.

    Args:
        plant: floor [s], then seconds per request and per prompt token.
    """

    def __init__(self, plant: list[float]) -> None:
        """Nothing has run."""
        self.plant, self.passed_s = plant, 0.0

    def run(self, output: Any) -> None:
        """Let a step pass, noise of 3 % and all."""
        floor, per_request, per_token = self.plant
        requests = len(output.num_scheduled_tokens)
        took_s = floor + per_request * requests + per_token * (output.total_num_scheduled_tokens - requests)
        self.passed_s += took_s * random.lognormvariate(0.0, 0.03)

    def monotonic_s(self) -> float:
        """For the adapter."""
        return time.monotonic() + self.passed_s

    def wall_s(self) -> float:
        """For the adapter."""
        return time.time() + self.passed_s


def filled(scheduler: Any, running: int, waiting: int, device: Pause) -> None:
    """Requests until so many decode and so many wait.

    Args:
        scheduler: empty.
        running: requests.
        waiting: requests.
        device: that passes the time.
    """
    request, sampling = importlib.import_module("vllm.v1.request"), importlib.import_module("vllm.sampling_params")
    for k in range(running + waiting):
        parameters = sampling.SamplingParams(max_tokens=8000, ignore_eos=True, extra_args={"headway_ttft_ms": PATIENT_MS})
        scheduler.add_request(request.Request(str(k), [7] * 64, parameters, None, arrival_time=device.wall_s()))
        if k == running - 1:
            while scheduler.waiting or any(r.num_computed_tokens < r.num_prompt_tokens for r in scheduler.running):
                timed(scheduler, device)


def timed(scheduler: Any, device: Pause) -> tuple[float, float]:
    """One step of the engine, its device taking no time.

    Args:
        scheduler: with requests.
        device: that passes the time.

    Returns:
        Processor time inside `schedule()` and inside `update_from_output()` [s].
    """
    began = time.thread_time()
    output = scheduler.schedule()
    scheduled = time.thread_time()
    answer = answered(scheduler, output)
    device.run(output)
    composed = time.thread_time()
    scheduler.update_from_output(output, answer)
    return scheduled - began, time.thread_time() - composed


def loop(job: dict[str, Any]) -> dict[str, Any]:
    """The same arrivals under stock vLLM and under the adapter, two batches in flight, in virtual time.

    Args:
        job: {"adapter", "plant": as in a gains file, "settings", "runs": [{"arrival_s", "prompt_tokens", "output_tokens", "decode",
            "mixed": noise factors}], "ttft_s", "budget_s"}.

    Returns:
        By side, one entry a run: requests with their first token in time, refused ones, late steps, steps with decodes, the same
        of those with prompts, and the trace's measured step times over the true ones.
    """
    logging.disable(logging.WARNING)
    found: dict[str, list[dict[str, Any]]] = {"stock": [], "ours": []}
    for run in job["runs"]:
        for side, rows in found.items():
            rows.append(_one(job, run, steered=side == "ours"))
    return found


def _one(job: dict[str, Any], run: dict[str, Any], *, steered: bool) -> dict[str, Any]:
    adapter = adapter_of(job["adapter"])
    plant = adapter.read_plant(job["plant"], lambda rows, name: float(rows[name]["value"]))
    drawn = {"decode": 0, "mixed": 0}
    counts = {"late": 0, "steps": 0, "late_mixed": 0, "mixed": 0}

    def step_time(n: float, kv: float, p: float, pairs: float, r: float) -> float:
        regime = "mixed" if p else "decode"
        factors, drawn[regime] = run[regime], drawn[regime] + 1
        took_s = plant.step_time(n, kv, p, pairs, r) * factors[drawn[regime] % len(factors)]
        if n:
            late = took_s > job["budget_s"]
            counts["late"], counts["steps"] = counts["late"] + late, counts["steps"] + 1
            counts["late_mixed"], counts["mixed"] = counts["late_mixed"] + (late and p > 0), counts["mixed"] + (p > 0)
        return took_s

    virtual = Virtual(step_time, asynchronous=True, adapter=adapter)
    additional = {"headway": {"mode": "control", "trace": ""}}
    make = adapter.make_scheduler if steered else None
    virtual.scheduler = scheduler_of(Settings(**job["settings"]), make, asynchronous=True, additional=additional)
    first: dict[str, float] = {}
    virtual.on_token = lambda name, _, now_s: first.setdefault(name, now_s)
    coming = list(zip(run["arrival_s"], run["prompt_tokens"], run["output_tokens"], strict=True))
    play(virtual, coming)
    in_time = sum(first.get(str(k), math.inf) - row[0] <= job["ttft_s"] for k, row in enumerate(coming))
    pilot = getattr(virtual.scheduler, "headway", None)
    shed = sum(pilot.desk.shed.values()) if pilot else 0
    assert pilot is None or pilot.failed is None, pilot.failed
    assert virtual.over_tokens == virtual.over_running == 0
    return {"in_time": in_time, "requests": len(coming), "shed": shed, "preempted": pilot.meter.preempted if pilot else 0, **counts}


def play(virtual: Virtual, coming: list[tuple[float, int, int]]) -> None:
    """Hand requests over when the clock has passed their arrival, and step until all have ended.

    Args:
        virtual: the engine.
        coming: (arrival [s], prompt, output) of each, in order of arrival.
    """
    arrived = 0
    while True:
        while arrived < len(coming) and coming[arrived][0] <= virtual.now_s:
            arrival_s, prompt, output = coming[arrived]
            virtual.add(str(arrived), prompt, output, arrival_s)
            arrived += 1
        if not virtual.turn():
            if arrived == len(coming):
                return
            virtual.now_s = max(virtual.now_s, coming[arrived][0])


class Storm:
    """Short requests, few at a time, on a small cache, and a fault every few dozen steps; the engine is started again now and then.

    Args:
        job: {"adapter": folder with its controller.json, "steps", "restart_steps", "seed"}.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        """Nothing has run."""
        self.job, self.rng = job, random.Random(job["seed"])
        self.path = Path(job["adapter"]) / "controller.json"
        self.good = self.path.read_text(encoding="utf-8")
        self.injected: dict[str, int] = {}
        self.sums = {"steps": 0, "over": 0, "added": 0, "ended": 0, "refused": 0, "gave_up": 0, "restarts": 0, "preempted": 0, "reloads": 0}
        self.names = 0
        self.virtual: Virtual | None = None

    def run(self) -> dict[str, Any]:
        """Storm on until there are enough steps.

        Returns:
            Sums of what happened, and the faults put in by name; an exception that leaves vLLM's scheduler is not caught.
        """
        began = time.perf_counter()
        while self.sums["steps"] < self.job["steps"]:
            self.once()
        return {**self.sums, "injected": self.injected, "took_s": time.perf_counter() - began}

    def once(self) -> None:
        """From a start of the engine to its last request; a fault of our own law comes near the end of it, and stays."""
        sums, rng, restart = self.sums, self.rng, self.job["restart_steps"]
        asynchronous = bool(sums["restarts"] % 2)
        self.write(self.good)
        adapter = adapter_of(self.job["adapter"])
        self.virtual = virtual = Virtual(self.step_time, asynchronous=asynchronous, adapter=adapter)
        settings = Settings(max_num_batched_tokens=512, max_num_seqs=8, max_model_len=1024, block_size=16, blocks=80)
        virtual.scheduler = scheduler_of(
            settings, adapter.make_scheduler, asynchronous=asynchronous, additional={"headway": {"mode": "control"}}
        )
        pilot, turns = virtual.scheduler.headway, 0
        started = pilot.knobs.started_tokens, pilot.knobs.started_seqs
        knob = "max_num_active_reqs" if pilot.knobs.has_active else "max_num_running_reqs"
        while True:
            if virtual.steps < restart and len(virtual.scheduler.requests) < 3:
                self.add(rng.randint(1, 3))
            if virtual.steps < 0.98 * restart and rng.random() < 0.02:
                self.fault()
            if virtual.steps >= 0.98 * restart and pilot.failed is None:
                pilot.loop.law.update = None
                self.injected["law"] = self.injected.get("law", 0) + 1
            turns += 1
            if not virtual.turn():
                break
            virtual.over_tokens += virtual.scheduler.max_num_scheduled_tokens > started[0]
            virtual.over_running += getattr(virtual.scheduler, knob) > started[1]
        sums["restarts"] += 1
        sums["steps"] += virtual.steps
        sums["over"] += virtual.over_tokens + virtual.over_running
        sums["ended"] += len({name for name, _, _ in virtual.ended})
        sums["refused"] += sum(pilot.desk.shed.values())
        sums["gave_up"] += pilot.failed is not None
        sums["preempted"] += pilot.meter.preempted
        sums["reloads"] += pilot.loop.reloads

    def step_time(self, n: float, kv: float, p: float, pairs: float, r: float) -> float:
        """The plant, with a step now and then that takes as long as a hundred."""
        took_s = 0.006 + 6e-5 * n + 5e-9 * kv + 2e-5 * p + 5e-10 * pairs + 5e-4 * r
        return took_s * self.rng.lognormvariate(0.0, 0.05) * (100.0 if self.rng.random() < 1e-3 else 1.0)

    def add(self, count: int, xargs: Any = None) -> None:
        """Requests that arrive now."""
        assert self.virtual is not None
        for _ in range(count):
            self.names += 1
            prompt = 16 * self.rng.randint(1, 30)
            self.virtual.add(f"r{self.names}", prompt, self.rng.randint(1, 60), self.virtual.now_s, xargs)
        self.sums["added"] += count

    def write(self, text: str) -> None:
        """Other gains in place of what is there."""
        self.path.write_text(text, encoding="utf-8")

    def fault(self) -> None:
        """One fault, drawn."""
        virtual, rng = self.virtual, self.rng
        assert virtual is not None
        name = rng.choice(("truncated", "nan", "absent", "replaced", "wall", "timer", "flood", "strangers", "abort", "rubbish"))
        self.injected[name] = self.injected.get(name, 0) + 1
        if name == "truncated":
            self.write(self.good[: rng.randrange(len(self.good))])
        elif name == "nan":
            self.write(self.good.replace('"value": ', '"value": NaN, "was": ', rng.randint(1, 9)))
        elif name == "absent":
            self.path.unlink(missing_ok=True)
        elif name == "replaced":
            self.write(self.good + " " * rng.randint(0, 50))
        elif name == "wall":
            virtual.wall_offset_s += rng.uniform(-7200.0, 7200.0)
        elif name == "timer":
            virtual.skew_s += rng.choice((5.0, 120.0))
        elif name == "flood":
            self.add(40)
        elif name == "abort" and virtual.scheduler.requests:
            status = importlib.import_module("vllm.v1.request").RequestStatus.FINISHED_ABORTED
            victim = rng.choice(list(virtual.scheduler.requests))
            virtual.scheduler.finish_requests([victim], status)
            virtual.ended.append((victim, "aborted by its client", virtual.now_s))
        else:
            value = rng.choice(("gold", -1, 1e300, [], "", "nan", None))
            self.add(2, {rng.choice(("headway_class", "headway_ttft_ms", "headway_itl_ms")): value})


def storm(job: dict[str, Any]) -> dict[str, Any]:
    """Faults for so many steps of vLLM's own scheduler.

    Args:
        job: as `Storm` takes it.

    Returns:
        As from `Storm.run`.
    """
    logging.disable(logging.CRITICAL)
    return Storm(job).run()


def main(job: Path, result: Path) -> None:
    """Run what a job asks for.

    Args:
        job: {"part": name of a function here, and what it takes}.
        result: file to write.
    """
    asked = json.loads(job.read_text(encoding="utf-8"))
    found = {"cost": cost, "loop": loop, "storm": storm}[asked["part"]](asked)
    result.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
