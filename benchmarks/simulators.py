"""Other simulators beside ours: one llm, one card, one load; requests simulated per second, and the whole process.

Llama 8B on an RTX PRO 6000, 10,000 requests of 1,024 prompt and 256 output tokens at 6 requests/s, Poisson. AISimulate brings its
own tables of that card; ours and Vidur's steps come from one set of kernel tables. Each peer runs in its own environment
(`scripts/peer-env`), in turn with ours.
"""

from __future__ import annotations

import json
import os
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
        simulating_s: of it, the simulation by its own account; NaN where the process does not say [s].
        ttft_s: mean it found; NaN where it does not say [s].
        tpot_s: mean it found [s].
    """

    process_s: float
    simulating_s: float
    ttft_s: float
    tpot_s: float


def peers() -> Iterator[Row]:
    """AISimulate in turn with ours, then Vidur once."""
    plant, _ = fitted("8B")
    simulating, ttft_s, tpot_s = _ours(plant)
    rate = REQUESTS / float(np.median(simulating))
    about = f"{REQUESTS:,} requests, 8B"
    yield informs(f"{about}: ours, simulated requests/s, median of {ROUNDS}; mean TTFT, TPOT", _shown(rate, ttft_s, tpot_s))
    theirs: list[Run] = []
    processes: list[float] = []
    python = environment_python("peer-env", "aisimulate")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plant.json").write_text(json.dumps(plant.to_json()), encoding="utf-8")
        for k in range(ROUNDS + 1):
            one, peer = _our_process(folder), _aisimulate(python, folder / f"run{k}")
            if k:  # the first reads everything from disk
                processes.append(one)
                theirs.append(peer)
    peer_rate = REQUESTS / float(np.median([r.simulating_s for r in theirs]))
    yield informs(f"{about}: AISimulate, the same", _shown(peer_rate, theirs[0].ttft_s, theirs[0].tpot_s))
    yield at_least(f"{about}: simulated requests/s, times AISimulate's", rate / peer_rate, 5.0)
    process_s, peer_s = float(np.median(processes)), float(np.median([r.process_s for r in theirs]))
    yield at_most(
        f"{about}: whole process, headway simulate ({process_s:.2f} s), times AISimulate's ({peer_s:.2f} s)", process_s / peer_s, 1.0
    )
    slow = _vidur(environment_python("peer-env", "vidur"))
    slow_rate = REQUESTS / slow.simulating_s
    yield informs(f"{about}: Vidur, once, what it writes switched off: the same", _shown(slow_rate, slow.ttft_s, slow.tpot_s))
    yield at_least(f"{about}: simulated requests/s, times Vidur's", rate / slow_rate, 100.0)


def _shown(rate: float, ttft_s: float, tpot_s: float) -> str:
    return f"{rate:,.0f}/s; {1e3 * ttft_s:.1f} ms, {1e3 * tpot_s:.2f} ms"


def _ours(plant: IdentifiedPlant) -> tuple[list[float], float, float]:
    """Seconds of the simulation alone, on the stock engine, and its mean TTFT and TPOT."""
    limits = Limits(kv_tokens=KV_TOKENS, max_seqs=MOST_SEQS, max_tokens=MOST_TOKENS)
    stock = Candidate(StaticLaw(float(MOST_TOKENS)), Policy(order="fcfs", triage="none", running_limit=float(MOST_SEQS)))
    drawn = draw(workload_source(LOAD), plant, 0, REQUESTS)
    took, out = [], None
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        out = simulate(plant, stock, drawn, TARGETS, limits)
        took.append(time.perf_counter() - began)
    assert out is not None
    return took[1:], float(out.ttft_s.mean()), float(((out.last_s - out.arrival_s - out.ttft_s) / (OUTPUT - 1)).mean())


def _our_process(folder: Path) -> float:
    """Seconds of `headway simulate` as one calls it for one run of the stock engine."""
    command = [sys.executable, "-m", "headway", "simulate", "plant.json", "--workload", LOAD, "--requests", str(REQUESTS), "--runs", "1"]
    command += ["--target", "ttft=1s,itl=50ms", "--kv-tokens", str(KV_TOKENS), "--max-seqs", str(MOST_SEQS)]
    return _timed([*command, "--max-tokens", str(MOST_TOKENS), "--json"], folder, {"PYTHONPATH": str(ROOT)})[0]


def _aisimulate(python: Path, folder: Path) -> Run:
    """`aisimulate predict`, and what its report says."""
    folder.mkdir()
    (folder / "prediction.yaml").write_text(json.dumps(AISIMULATE), encoding="utf-8")  # JSON is YAML
    command = [str(python.parent / "aisimulate"), "predict", "--config", "prediction.yaml", "--output-dir", "out"]
    took, _ = _timed(command, folder)
    said = json.loads((folder / "out" / "prediction.json").read_text(encoding="utf-8"))
    return Run(took, *(1e-3 * said[name] for name in ("wall_time_ms", "mean_ttft_ms", "mean_tpot_ms")))


def _vidur(python: Path) -> Run:
    """Vidur by its own Python, with the kernel tables that our plant was fitted to."""
    script = Path(__file__).parent / "peers" / "run_vidur.py"
    sizes = (REQUESTS, RATE_RPS, PROMPT, OUTPUT, MOST_TOKENS, MOST_SEQS, KV_TOKENS)
    with tempfile.TemporaryDirectory() as folder:
        took, text = _timed([str(python), str(script), str(folder_of("8B") / "tp1"), *map(str, sizes)], Path(folder))
    said = json.loads(text.strip().splitlines()[-1])
    return Run(took, *(said[name] for name in ("simulating_s", "ttft_s", "tpot_s")))


def _timed(command: list[str], folder: Path, extra: dict[str, str] | None = None) -> tuple[float, str]:
    """Wall seconds of a process, and what it printed."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | (extra or {})
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    took = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return took, done.stdout
