"""Other simulators beside ours: one llm, one card, one load; requests simulated per second, and the whole process.

Llama 8B on an RTX PRO 6000, 10,000 requests of 1,024 prompt and 256 output tokens at 6 requests/s, Poisson. AISimulate brings its
own tables of that card; ours and Vidur's steps come from one set of kernel tables. Each peer runs in its own environment
(`scripts/peer-env`), in turn with ours.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.served import fitted, folder_of
from benchmarks.table import ROOT, Row, at_least, at_most, environment_python, informs
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, draw, simulate
from headway.controllers.static import StaticLaw
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits, Target
from headway.workloads import workload_source

REQUESTS, RATE_RPS, PROMPT, OUTPUT = 10_000, 6, 1024, 256
MOST_TOKENS, MOST_SEQS, KV_TOKENS = 8192, 256, 500_000
"""Of every engine that is simulated; the tokens of a step are AISimulate's default, as vLLM's."""
LOAD = f"poisson:rate={RATE_RPS}/s,prompt={PROMPT},output={OUTPUT}"
ROUNDS = 5
TARGETS = (Target(1.0, 0.05),)
AISIMULATE: dict[str, Any] = {
    "traffic": {
        "source": {"type": "synthetic", "input_tokens": PROMPT, "output_tokens": OUTPUT},
        "load": {"type": "poisson", "requests_per_second": RATE_RPS, "seed": 0},
        "stop": {"requests": REQUESTS},
    },
    "engine": {
        "mode": "aggregated",
        "model": "meta-llama/Meta-Llama-3.1-8B",
        "hardware": "rtx_pro_6000_server",
        "backend": "vllm",
        "workers": {"aggregated": {}},
    },
}


class Run(NamedTuple):
    """One simulation by one simulator.

    Args:
        process_s: the whole process, start-up included [s].
        processor_s: the processor time that it took [s].
        simulating_s: the simulation by its own account: by the clock of AISimulate's, by processor time of Vidur's [s].
        ttft_s: mean it found [s].
        tpot_s: mean it found [s].
    """

    process_s: float
    processor_s: float
    simulating_s: float
    ttft_s: float
    tpot_s: float


def peers() -> Iterator[Row]:
    """AISimulate in turn with ours, then Vidur, twice, with ours before and after."""
    plant, _ = fitted("8B")
    about = f"{REQUESTS:,} requests, 8B"
    yield from _beside_aisimulate(plant, about)
    python = environment_python("peer-env", "vidur")
    for how, what in (("default", "as it comes, plots off"), ("lean", "compiled predictor, no metrics")):
        before, slow, after = _ours(plant), _vidur(python, how), _ours(plant)
        rate, peer_rate = 2 * REQUESTS / (before.processor_s + after.processor_s), REQUESTS / slow.simulating_s
        yield informs(f"{about}: Vidur, {what}, by processor time: simulated requests/s; mean TTFT, TPOT", _shown(peer_rate, slow))
        bar = f"{about}: simulated requests/s ({rate:,.0f}), times Vidur's, {what}"
        yield at_least(bar, rate / peer_rate, 100.0) if how == "default" else informs(bar, f"{rate / peer_rate:.0f}")


def _beside_aisimulate(plant: IdentifiedPlant, about: str) -> Iterator[Row]:
    python = environment_python("peer-env", "aisimulate")
    ours: list[Run] = []
    theirs: list[Run] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plant.json").write_text(json.dumps(plant.to_json()), encoding="utf-8")
        for k in range(ROUNDS + 1):
            one = _ours(plant)
            process_s, processor_s, _ = _timed(_command(), folder, {"PYTHONPATH": str(ROOT)})
            peer = _aisimulate(python, folder / f"run{k}")
            if k:  # the first reads everything from disk, and compiles
                ours.append(one._replace(process_s=process_s, processor_s=processor_s))
                theirs.append(peer)
    for who, runs in (("ours", ours), ("AISimulate", theirs)):
        rate = REQUESTS / float(np.median([r.simulating_s for r in runs]))
        yield informs(f"{about}: {who}: simulated requests/s, median of {ROUNDS} in turn; mean TTFT, TPOT", _shown(rate, runs[0]))
    pairs = list(zip(ours, theirs, strict=True))
    times = float(np.median([b.simulating_s / a.simulating_s for a, b in pairs]))
    yield at_least(f"{about}: simulated requests/s, times AISimulate's", times, 5.0)
    for what, of in (("whole process, headway simulate", 0), ("processor time of the same", 1)):
        middles = [float(np.median([r[of] for r in runs])) for runs in (ours, theirs)]
        text = f"{about}: {what} ({middles[0]:.2f} s), times AISimulate's ({middles[1]:.2f} s)"
        ratio = float(np.median([a[of] / b[of] for a, b in pairs]))
        yield informs(text, f"{ratio:.2f}") if of else at_most(text, ratio, 1.0)


def _shown(rate: float, run: Run) -> str:
    return f"{rate:,.0f}/s; {1e3 * run.ttft_s:.1f} ms, {1e3 * run.tpot_s:.2f} ms"


def _ours(plant: IdentifiedPlant) -> Run:
    """The simulation alone, on the stock engine; its process is this one, so that it has no time of its own."""
    limits = Limits(kv_tokens=KV_TOKENS, max_seqs=MOST_SEQS, max_tokens=MOST_TOKENS)
    stock = Candidate(StaticLaw(float(MOST_TOKENS)), Policy(order="fcfs", triage="none", running_limit=float(MOST_SEQS)))
    drawn = draw(workload_source(LOAD), plant, 0, REQUESTS)
    began, busy = time.perf_counter(), time.thread_time()
    out = simulate(plant, stock, drawn, TARGETS, limits)
    took_s, busy_s = time.perf_counter() - began, time.thread_time() - busy
    tpot_s = (out.last_s - out.arrival_s - out.ttft_s) / (OUTPUT - 1)
    return Run(np.nan, busy_s, took_s, float(out.ttft_s.mean()), float(tpot_s.mean()))


def _command() -> list[str]:
    """`headway simulate` as one calls it for one run of the stock engine."""
    command = [sys.executable, "-m", "headway", "simulate", "plant.json", "--workload", LOAD, "--requests", str(REQUESTS), "--runs", "1"]
    command += ["--target", "ttft=1s,itl=50ms", "--kv-tokens", str(KV_TOKENS), "--max-seqs", str(MOST_SEQS)]
    return [*command, "--max-tokens", str(MOST_TOKENS), "--json"]


def _aisimulate(python: Path, folder: Path) -> Run:
    """`aisimulate predict`, and what its report says."""
    folder.mkdir()
    (folder / "prediction.yaml").write_text(json.dumps(AISIMULATE), encoding="utf-8")  # JSON is YAML
    command = [str(python.parent / "aisimulate"), "predict", "--config", "prediction.yaml", "--output-dir", "out"]
    took_s, busy_s, _ = _timed(command, folder)
    said = json.loads((folder / "out" / "prediction.json").read_text(encoding="utf-8"))
    return Run(took_s, busy_s, *(1e-3 * said[name] for name in ("wall_time_ms", "mean_ttft_ms", "mean_tpot_ms")))


def _vidur(python: Path, how: str) -> Run:
    """Vidur by its own Python, with the kernel tables that our plant was fitted to."""
    script = Path(__file__).parent / "peers" / "run_vidur.py"
    sizes = (REQUESTS, RATE_RPS, PROMPT, OUTPUT, MOST_TOKENS, MOST_SEQS, KV_TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        took_s, busy_s, text = _timed([str(python), str(script), str(folder_of("8B") / "tp1"), how, *map(str, sizes)], Path(folder))
    said = json.loads(text.strip().splitlines()[-1])
    return Run(took_s, busy_s, *(said[name] for name in ("simulating_s", "ttft_s", "tpot_s")))


def _timed(command: list[str], folder: Path, extra: dict[str, str] | None = None) -> tuple[float, float, str]:
    """Seconds of a process, its processor time, and what it printed."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | (extra or {})
    began, busy = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    took_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return took_s, after.ru_utime + after.ru_stime - busy.ru_utime - busy.ru_stime, done.stdout
