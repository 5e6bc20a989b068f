"""Admission: long outputs that fill the cache while they run, the lookahead beside every static cap.

A part of `python -m benchmarks.control`; `python -m benchmarks.admission` measures it alone.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from benchmarks.table import Missing, Row, at_least, at_most, informs, run, shared_data
from headway.controllers import FeedforwardLaw, TrackerLaw
from headway.controllers.controller import Controller
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw, simulate
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.regimes import AffinePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload

SEEDS, RATES = 5, (1.6, 2.5)
"""Workloads of 700 requests, at mean rates [requests/s]."""
QUANTILE = 0.13
"""Of the log residuals: what a tracker settles at in this noise."""
CAPS = tuple(range(48, 129, 8))
"""Static caps among which the best is chosen in hindsight [requests]."""
TRAINING = 100
"""Seed of the workload from which the median output is known beforehand."""
LATE_BAR, THROUGHPUT_BAR = 0.6, 0.99
"""Most late tokens [%], and least on-time throughput as a share of the best cap's."""


class Figures(NamedTuple):
    """Means over the seeds.

    Args:
        late: share of late tokens [%].
        on_time_tps: tokens whose step was within the budget, per second [tokens/s].
        ttft_s: mean time to first token [s].
        held: share of steps in which admission held back [%].
    """

    late: float
    on_time_tps: float
    ttft_s: float
    held: float


def _prototype() -> ModuleType:
    """The scenario with its own engine, as it was first measured."""
    path = shared_data().parent / "prototypes" / "mpc_adm.py"
    if not path.exists():
        raise Missing(f"{path} is not there")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # numba's cache looks the module up by its plain name
    return importlib.import_module("mpc_adm")


class Scenario:
    """Bursts of prompts with outputs of 2,000 tokens; a token is on time if its own step was."""

    def __init__(self, rate: float) -> None:
        """Draw the workloads."""
        self.own = _prototype()
        self.drawn = [self.own.wl(seed, rate=rate) for seed in range(SEEDS)]
        self.plant = AffinePlant((self.own.W, self.own.A, self.own.DK, self.own.C, 0.0, 0.0))
        self.limits = Limits(kv_tokens=16_000_000, max_seqs=512)
        self.identified = IdentifiedPlant(self.plant, Noise.none(), Hull(1, 1, 1, 1), {}, {}, self.limits, {})
        self.median = float(np.median(self.own.wl(TRAINING, rate=rate)[2]))
        self.law = FeedforwardLaw(self.plant, margin=1 - math.exp(-QUANTILE), ki=0.0)

    def of(self, law: Controller | None = None, **policy: Any) -> Figures:
        """What a law and a policy make of it."""
        candidate = Candidate(law or self.law, Policy(order="fcfs", triage="none", **policy))
        rows = []
        for arrival_s, prompt, output, noise in self.drawn:
            workload = Workload(arrival_s, prompt.astype(np.int64), output.astype(np.int64), np.zeros(len(arrival_s), np.int64))
            # no target for the first token: it would be late by its wait in the queue, which TTFT shows by itself
            found = simulate(self.identified, candidate, Draw(workload, noise, noise), (Target(1e9, self.own.D),), self.limits)
            tokens, on_time = found.emitted.sum(), found.on_time.sum()
            rows.append((100 * (1 - on_time / tokens), on_time / found.end_s, found.ttft_s.mean(), 100 * found.binding[4] / found.steps))
        return Figures(*np.mean(rows, axis=0))

    def first_measured(self, policy: int, setting: float, z: float) -> Figures:
        """The prototype's own policy in its own engine, which knows how outputs are distributed."""
        rng = np.random.default_rng(1)
        lengths = np.clip(rng.lognormal(np.log(2000), 0.6, 200_000), 50, 8000)
        survival = np.repeat([np.mean(lengths > i) for i in range(0, 8001, 10)], 10)[:8001]
        runs = [self.own.run(policy, setting, QUANTILE, z, *w, survival, 512, 400_000, 1000, 8) for w in self.drawn]
        late, on_time_tps, ttft_s = np.mean([(100 * r[1], r[3], r[4]) for r in runs], axis=0)
        return Figures(late, on_time_tps, ttft_s, math.nan)


def admission() -> Iterator[Row]:
    """Late tokens, on-time throughput and TTFT: the lookahead, every static cap, and what it would be without its parts."""
    for rate in RATES:
        s, at = Scenario(rate), f"admission, {rate:g} req/s"
        first = s.first_measured(4, 1.0, 1.64)
        yield informs(f"{at}: prototype's engine, its lookahead, lengths known", _line(first))
        yield informs(f"{at}: prototype's engine, static cap 80", _line(s.first_measured(0, 80.0, 0.0)))
        caps = {cap: s.of(running_limit=float(cap)) for cap in CAPS}
        best = max(caps, key=lambda cap: caps[cap].on_time_tps)
        found = s.of(running_limit=512.0, admission="lookahead", prior_output_tokens=s.median)
        yield at_most(f"{at}: late tokens with the lookahead", found.late, LATE_BAR, "%")
        yield at_least(
            f"{at}: on-time throughput, share of the best of {len(CAPS)} caps, {best}",
            found.on_time_tps / caps[best].on_time_tps,
            THROUGHPUT_BAR,
        )
        yield informs(f"{at}: lookahead", _line(found))
        yield informs(f"{at}: static cap {best}, best in hindsight", _line(caps[best]))
        for cap in (64, 80, 128):
            yield informs(f"{at}: static cap {cap}", _line(caps[cap]))
        yield informs(f"{at}: lookahead, output length guessed 8 times too short", _line(s.of(running_limit=512.0, admission="lookahead")))
        free: dict[str, Any] = {"running_limit": 512.0, "prior_output_tokens": s.median}
        yield informs(f"{at}: lookahead without its chance margin", _line(s.of(admission="lookahead", lookahead_z=0.0, **free)))
        yield informs(f"{at}: myopic", _line(s.of(admission="myopic", **free)))
        yield informs(f"{at}: lookahead, tracker at a late rate of 1 %", _line(s.of(TrackerLaw(s.plant), admission="lookahead", **free)))


def _line(found: Figures) -> str:
    held = "" if math.isnan(found.held) else f", held back in {found.held:.0f} % of steps"
    return f"late {found.late:.2f} %, on time {found.on_time_tps:,.0f} tok/s, TTFT {found.ttft_s:.1f} s{held}"


if __name__ == "__main__":
    sys.exit(run("admission", {"admission": admission}))
