"""The adapter beside a real vLLM scheduler: what it costs, whether its loop holds with two batches in flight, a million steps of faults.

Rows for `python -m benchmarks.live`; `python -m benchmarks.vllm_adapter` measures them alone. vLLM runs in the environment of
scripts/vllm-env, in one process and in virtual time: no kernel, no sleeping.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.table import ROOT, Row, at_least, at_most, environment_python, informs, run, shared_data
from headway.controllers.policy import Policy
from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import Candidate, draw
from headway.controllers.tracker import TrackerLaw
from headway.engines.vllm.adapter import write_adapter
from headway.experiments.statistics import mean_interval
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.targets import parse_target
from headway.workloads import workload_source

COSTS = {"64/0": 6.0, "256/1000": 4.0}
"""Most that the adapter may add to stock vLLM's schedule(), by requests running and waiting [%]."""
PAUSE = (0.006, 6e-5, 2e-5)
"""Of the device that the cost is measured beside: floor [s], per request and per prompt token [s]."""
PLANT = RegimePlant((PAUSE[0], PAUSE[1], 5e-9, 0.0, 0.0, 0.0), (0.007, PAUSE[1], 5e-9, PAUSE[2], 5e-10, 5e-4))
LATE_RATE, RATE_RPS, SEEDS, REQUESTS = 0.02, 26.0, 5, 2000
"""Share of late steps that the law steers to; arrivals of the Azure load, which is well above capacity [requests/s]; runs."""
STEPS, RESTART_STEPS, SEED = 1_000_000, 100_000, 20
PROCESSES = 2


def cost() -> Iterator[Row]:
    """What the adapter adds to schedule(), blocks of steps with and without it in turn.

    Yields:
        Rows.
    """
    target = Target(1.0, 0.1)
    limits = Limits(kv_tokens=2_000_000, max_seqs=1024)
    policy = Policy(order="slack", triage="reject", aging_rate=0.5, chunk_tokens=512.0, running_limit=1024.0)
    for trace in ("", "steps.jsonl"):
        with tempfile.TemporaryDirectory(prefix="headway-adapter-") as folder:
            _written(folder, PLANT, TrackerLaw(PLANT), policy, (target,), limits)
            loads = [[int(x) for x in name.split("/")] for name in COSTS]
            job = {"part": "cost", "loads": loads, "mode": "control", "plant": PAUSE, "trace": trace and f"{folder}/{trace}"}
            found = _in_vllm(folder, [job])[0]
        for name, times in found.items():
            stock, ours, stock_update, ours_update = (np.array(times[k]) for k in ("stock", "ours", "stock_update", "ours_update"))
            ratios = 100 * (ours / stock - 1)
            added = float(np.median(ratios))
            tag = f"added to schedule() at {name} running/waiting{', with a trace' if trace else ''}"
            yield informs(tag, f"{added:.1f} %") if trace else at_most(tag, added, COSTS[name], "%")
            whole = float(np.median(100 * ((ours + ours_update) / (stock + stock_update) - 1)))
            figures = f"{1e6 * np.median(stock):.0f} us, {1e6 * np.median(ours):.0f} us, {ratios.min():.1f} to {ratios.max():.1f} %, {whole:.1f} %"
            yield informs(f"{tag}: stock, with the adapter, range over pairs, and of both calls", figures)


def loop() -> Iterator[Row]:
    """The plant of Qwen3-32B TP4 under vLLM's asynchronous scheduler: late steps as told, and who gets a first token in time.

    Yields:
        Rows.
    """
    trace = read_trace(shared_data("steps", "fpm_vllm0201_b300", "qwen3-32b_tp4.fpm_detail.csv"))
    identified = fit(trace, limits={"kv_tokens": 200_000})
    source = workload_source(str(shared_data("workloads", "AzureLLMInferenceTrace_conv.csv")), rate_rps=RATE_RPS)
    targets, _ = parse_target("ttft=1s,itl=25ms")
    limits = identified.limits
    assert limits is not None
    law = TrackerLaw(identified.plant, late_rate=LATE_RATE, most_tokens=float(limits.max_tokens))
    with tempfile.TemporaryDirectory(prefix="headway-adapter-") as folder:
        record = _written(
            folder, identified.plant, law, Policy(order="slack", triage="reject", aging_rate=0.05), targets, limits, identified
        )
        settings = {"max_num_batched_tokens": limits.max_tokens, "max_num_seqs": limits.max_seqs, "max_model_len": limits.max_len}
        settings |= {"block_size": limits.block_tokens, "blocks": limits.blocks}
        job = {"part": "loop", "plant": record.to_json()["plant"], "settings": settings, "ttft_s": targets[0].ttft_s}
        runs = [_drawn(source, identified, seed) for seed in range(SEEDS)]
        jobs = [{**job, "budget_s": targets[0].budget_s, "runs": [one]} for one in runs]
        found = _in_vllm(folder, jobs)
    ours = [rows["ours"][0] for rows in found]
    stock = [rows["stock"][0] for rows in found]
    late = sum(r["late"] for r in ours) / sum(r["steps"] for r in ours)
    mixed = sum(r["late_mixed"] for r in ours) / sum(r["mixed"] for r in ours)
    tag = f"TP4 plant, two batches in flight, {SEEDS} runs of {REQUESTS:,} requests at {RATE_RPS:g}/s"
    yield Row(f"{tag}: late steps over the late rate", "in [0.5, 1.5]", f"{late / LATE_RATE:.2f}", 0.5 <= late / LATE_RATE <= 1.5)
    yield informs(f"{tag}: the same of steps with prompts", f"{mixed / LATE_RATE:.2f}")
    without = sum(r["late"] for r in stock) / sum(r["steps"] for r in stock)
    yield informs(f"{tag}: late steps, stock", f"{100 * without:.1f} %")
    share = [np.array([r["in_time"] / r["requests"] for r in side]) for side in (ours, stock)]
    gain = mean_interval(share[0] - share[1])
    yield at_least(f"{tag}: TTFT kept beyond stock, lower end", 100 * gain.low, 0.0, "%")
    yield informs(
        f"{tag}: TTFT kept, ours and stock", f"{100 * share[0].mean():.1f} %, {100 * share[1].mean():.1f} %, {100 * gain.value:+.1f} %"
    )
    yield informs(f"{tag}: refused", f"{100 * sum(r['shed'] for r in ours) / (SEEDS * REQUESTS):.1f} %")


def storm() -> Iterator[Row]:
    """A million steps of vLLM's scheduler under faults, both ways of scheduling in turn.

    Yields:
        Rows.
    """
    policy = Policy(order="slack", triage="reject", aging_rate=0.5)
    with tempfile.TemporaryDirectory(prefix="headway-adapter-") as folder:
        jobs = []
        for k in range(PROCESSES):
            place = f"{folder}/{k}"
            _written(place, PLANT, TrackerLaw(PLANT), policy, (Target(1.0, 0.025),), Limits(kv_tokens=200_000, max_seqs=64))
            steps = STEPS // PROCESSES
            jobs.append({"part": "storm", "adapter": place, "steps": steps, "restart_steps": RESTART_STEPS, "seed": SEED + k})
        found = _in_vllm(folder, jobs)
    sums = {name: sum(rows[name] for rows in found) for name in found[0] if name not in ("injected", "took_s")}
    faults = sum(sum(rows["injected"].values()) for rows in found)
    tag = f"{sums['steps']:,} steps, {faults:,} faults of {len(found[0]['injected'])} kinds"
    yield Row(f"{tag}: engine never stops", ">= 1,000,000 steps", f"{sums['steps']:,}", sums["steps"] >= STEPS)
    yield Row(f"{tag}: limits exceeded", "0", f"{sums['over']}", sums["over"] == 0)
    yield Row(f"{tag}: requests ended", f"all {sums['added']:,}", f"{sums['ended']:,}", sums["ended"] == sums["added"])
    figures = f"{sums['gave_up']} of {sums['restarts']}, {sums['refused']:,}, {sums['preempted']:,}, {sums['reloads']:,}"
    yield informs(f"{tag}: runs in which the law was broken on purpose, refused, preempted, gains taken over", figures)
    yield informs(f"{tag}: took", f"{max(rows['took_s'] for rows in found):.0f} s in {PROCESSES} processes")


def _written(
    folder: str, plant: Any, law: Any, policy: Policy, targets: Any, limits: Limits, identified: IdentifiedPlant | None = None
) -> ControllerRecord:
    hull = identified.hull if identified else Hull(64.0, 500_000.0, 8192.0, 9e7)
    record = ControllerRecord(
        Candidate(law, policy), tuple(targets), limits, plant, hull, {"file": "plant.json", "sha256": "0"}, {"spec": "benchmark"}, {}
    )
    write_adapter(folder, record, force=True, uncertified=True)
    return record


def _drawn(source: Any, identified: IdentifiedPlant, seed: int) -> dict[str, Any]:
    drawn = draw(source, identified, seed, REQUESTS)
    load = drawn.workload
    lengths = {"prompt_tokens": [int(x) for x in load.prompt_tokens], "output_tokens": [int(x) for x in load.output_tokens]}
    noise = {"decode": drawn.decode[:20_000].tolist(), "mixed": drawn.mixed[:20_000].tolist()}
    return {"arrival_s": np.asarray(load.arrival_s).tolist(), **lengths, **noise}


def _in_vllm(folder: str, jobs: list[dict[str, Any]]) -> list[Any]:
    """Results of jobs, two processes at a time."""
    python, results = environment_python("vllm-env"), []
    for first in range(0, len(jobs), PROCESSES):
        waiting = []
        for k, job in enumerate(jobs[first : first + PROCESSES], first):
            job_file, result = Path(folder, f"job{k}.json"), Path(folder, f"result{k}.json")
            job_file.write_text(json.dumps({"adapter": folder, **job}), encoding="utf-8")
            command = [str(python), "-m", "benchmarks.vllm_adapter_runs", str(job_file), str(result)]
            waiting.append((subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True), result))
        for process, result in waiting:
            said = process.communicate()[1]
            if process.returncode:
                raise RuntimeError(f"benchmarks.vllm_adapter_runs ended with {process.returncode}: {said.strip().splitlines()[-1:]}")
            results.append(json.loads(result.read_text(encoding="utf-8")))
    return results


PARTS: dict[str, Callable[[], Iterable[Row]]] = {"adapter cost": cost, "adapter loop": loop, "adapter storm": storm}
"""Parts by name, for `benchmarks.live`."""

if __name__ == "__main__":
    sys.exit(run("vllm_adapter", PARTS))
