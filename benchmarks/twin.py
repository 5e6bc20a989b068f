"""What a sweep costs: the JAX twin, all candidates and seeds in one compiled call, beside the exact simulator's `evaluate`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from benchmarks.table import Row, informs
from headway.controllers import PILaw
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.controllers.twin.run import sweep
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.measures import ITL_P99_S, STEPS
from headway.models.noise import Noise
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload

PLANT = RegimePlant((6e-3, 1e-4, 1e-6, 0.0, 0.0, 0.0), (7e-3, 1e-4, 1e-6, 4e-5, 1e-8, 5e-4))
LIMITS = Limits(kv_tokens=40_000, max_seqs=64, max_tokens=2048)
TARGET = Target(ttft_s=1.0, itl_s=0.03)
CANDIDATES, SEEDS, REQUESTS = 32, 8, 64
REPETITIONS = 3


def drawn(seed: int) -> Draw:
    """Poisson arrivals, prompts and outputs of exponential length, and 10 % noise."""
    rng = np.random.default_rng(seed)
    arrival_s = np.concatenate([[0.0], np.cumsum(rng.exponential(0.05, REQUESTS - 1))])
    prompts, outputs = (1 + np.floor(rng.exponential(mean, REQUESTS)) for mean in (300.0, 40.0))
    workload = Workload(arrival_s, prompts, outputs, np.zeros(REQUESTS, np.int64))
    return Draw(workload, *np.exp(rng.normal(0.0, 0.1, (2, 1024))))


def timed_s(run: Callable[[], Any]) -> tuple[float, Any]:
    """Median time of a call that was made once before, and what it gave."""
    run()
    times, found = [], None
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        found = run()
        times.append(time.perf_counter() - began)
    return statistics.median(times), found


def twin() -> Iterator[Row]:
    """Candidates times seeds per second of both engines, on the same runs.

    Yields:
        Rows.

    Raises:
        RuntimeError: the two do not give the same figures: a fault of Headway's.
    """
    jax.config.update("jax_enable_x64", True)
    noise = Noise(np.zeros(0), np.zeros(0))
    identified = IdentifiedPlant(PLANT, noise, Hull(64.0, 1e5, 8192.0, 1e7), {"decode": 0.05, "mixed": 0.1}, {}, LIMITS, {})
    margins, agings = np.linspace(0.05, 0.4, CANDIDATES), np.linspace(0.0, 1.0, CANDIDATES)
    candidates = [Candidate(PILaw(margin=m), Policy(aging_rate=a)) for m, a in zip(margins.tolist(), agings.tolist(), strict=True)]
    arguments = identified, candidates, [drawn(seed) for seed in range(SEEDS)], (TARGET,), LIMITS
    exact_s, exact = timed_s(lambda: evaluate(*arguments))
    began = time.perf_counter()
    sweep(*arguments)
    first_s = time.perf_counter() - began
    twin_s, found = timed_s(lambda: sweep(*arguments))
    shown = [k for k in range(exact.shape[2]) if k != ITL_P99_S]
    if not np.allclose(found[..., shown], exact[..., shown], rtol=1e-9):
        raise RuntimeError("twin and exact simulator give different figures for the same runs")
    runs = CANDIDATES * SEEDS
    tag = f"{CANDIDATES} candidates on {SEEDS} seeds of {REQUESTS} requests, {exact[..., STEPS].sum():,.0f} steps"
    device = f"{jax.default_backend()}, {jax.devices()[0].device_kind}"
    yield informs(f"{tag}: exact simulator (numba)", f"{runs / exact_s:,.0f} runs/s")
    yield informs(f"{tag}: twin (JAX, {device}), figures equal", f"{runs / twin_s:,.0f} runs/s")
    yield informs("twin: first call, compilation included", f"{first_s:.1f} s")
