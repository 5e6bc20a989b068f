"""The upper bound on real plants: how far the best policies stay below it, whether any exceeds it, and what it costs to compute.

A part of `python -m benchmarks.tuning`; `python -m benchmarks.bound` measures it alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.table import Row, at_most, informs, run, shared_data
from headway.controllers.default import default_candidate
from headway.controllers.feedforward import FeedforwardLaw
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, draw, evaluate
from headway.experiments.baseline import EARLY, static_grid
from headway.experiments.bound import upper_bound
from headway.experiments.capacity import capacity_factor
from headway.experiments.feasibility import feasibility
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ATTAINMENT, CLEAN
from headway.models.signals import Limits, Target
from headway.workloads import workload_source

PLANTS = {
    "TP4": (("fpm_vllm0201_b300", "qwen3-32b_tp4.fpm_detail.csv"), Target(1.0, 0.025)),
    "MoE": (("fpm_vllm0201_b300", "qwen3.6-35b-a3b_tp4.fpm_detail.csv"), Target(1.0, 0.025)),
    "8B": (("llmservingsim", "RTXPRO6000_Llama-3.1-8B", "tp1", "attention.csv"), Target(2.0, 0.06)),
}
"""Files of the steps, and the target."""
LIMITS = Limits(kv_tokens=200_000, max_tokens=8192)
REQUESTS, FACTORS = 600, (1.0, 1.6, 2.5)
"""Requests of a workload, and loads as factors on the knee: the highest rate at which the best start-up setting attains 99 %."""
START_RPS = 10.0
MARGINS, TOLERANCES = (0.05, 0.1, 0.15), (-0.2, -0.1, 0.0)


def bound() -> Iterator[Row]:
    """Three plants under one conversation load at three rates: the bound, and everybody below it."""
    azure = str(shared_data("workloads", "AzureLLMInferenceTrace_conv.csv"))
    for name, (parts, target) in PLANTS.items():
        identified = fit(read_trace(shared_data("steps", *parts)))
        drawn = draw(workload_source(azure, rate_rps=START_RPS), identified, 0, REQUESTS)
        grid = [s.candidate() for s in static_grid(LIMITS)]
        knee_rps = START_RPS * float(capacity_factor(identified, grid, [drawn], (target,), LIMITS).max())
        for factor in FACTORS:
            yield from _cell(f"{name}, Azure x{factor:g}", identified, target, azure, factor * knee_rps)
        source = workload_source(azure, rate_rps=FACTORS[-1] * knee_rps)
        began = time.perf_counter()
        verdict = feasibility(identified, draw(source, identified, 0, REQUESTS // 3).workload, (target,), LIMITS)[0]
        yield informs(f"{name}, x{FACTORS[-1]:g}, {REQUESTS // 3} requests: promise", f"{verdict} ({time.perf_counter() - began:.0f} s)")


def contenders(identified: IdentifiedPlant, targets: tuple[Target, ...]) -> dict[str, list[Candidate]]:
    """Policies that a bound is held against, by kind.

    Args:
        identified: the plant.
        targets: one per class.

    Returns:
        Start-up settings, the same with an early queue timeout, the default, and a small box of controllers.
    """
    laws = [FeedforwardLaw(identified.plant, margin=m, most_tokens=float(LIMITS.max_tokens)) for m in MARGINS]
    policies = [Policy(order=o, triage=t, tolerance=v) for o in ("edf", "slack") for t in ("reject", "defer") for v in TOLERANCES]
    return {
        "static": [s.candidate() for s in static_grid(LIMITS)],
        "static, timeout": [s.candidate() for s in static_grid(LIMITS, EARLY)],
        "default": [default_candidate(identified, targets, LIMITS)],
        "box": [Candidate(law, policy) for law in laws for policy in policies],
    }


def _cell(what: str, identified: IdentifiedPlant, target: Target, azure: str, rate_rps: float) -> Iterator[Row]:
    drawn = draw(workload_source(azure, rate_rps=rate_rps), identified, 0, REQUESTS)
    kinds = contenders(identified, (target,))
    everybody = [c for some in kinds.values() for c in some]
    measures = evaluate(identified, everybody, [drawn], (target,), LIMITS)[:, 0]
    began = time.perf_counter()
    found = upper_bound(identified, drawn.workload, (target,), LIMITS, factors=(drawn.decode, drawn.mixed))
    took_s = time.perf_counter() - began
    at = f"{what} ({rate_rps:.1f} req/s, {drawn.workload.arrival_s[-1]:.0f} s)"
    ends = np.cumsum([len(some) for some in kinds.values()])
    best = [float(part.max()) for part in np.split(measures[:, ATTAINMENT], ends[:-1])]
    line = ", ".join(f"{name} {value:.4f}" for name, value in zip(kinds, best, strict=True))
    yield informs(f"{at}: attainment", f"bound {found.attainment:.4f}; {line}; best {found.share(max(best))}; {took_s:.1f} s")
    clean = float(measures[:, CLEAN].max())
    yield informs(f"{at}: clean requests", f"bound {found.request_attainment:.4f}; best of all {clean:.4f}")
    above = (measures[:, ATTAINMENT] > found.attainment + 1e-9) | (measures[:, CLEAN] > found.request_attainment + 1e-9)
    yield at_most(f"{at}: policies above the bound, of {len(everybody)}", float(above.sum()), 0.0)


if __name__ == "__main__":
    sys.exit(run("bound", {"bound": bound}))
