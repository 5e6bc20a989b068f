"""The upper bound, the estimate and clairvoyant shedding on the cells of the gain table: who stays how far below, and whether anybody exceeds.

python -m benchmarks.bound

Loads are factors on the knee, the highest rate at which the best start-up setting attains 99 % of that very window.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import sys
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.cell_loads import BEGIN, BEGIN_RPS, limits_of, plants, source_of, targets_of
from benchmarks.table import Row, at_most, informs, run
from headway.controllers.default import default_candidate
from headway.controllers.feedforward import FeedforwardLaw
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw, draw, evaluate
from headway.experiments.baseline import EARLY, static_grid
from headway.experiments.bound import upper_bound
from headway.experiments.capacity import capacity_factor
from headway.experiments.estimate import estimate
from headway.experiments.feasibility import feasibility
from headway.experiments.shedding import clairvoyant_shedding, lesson
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ATTAINMENT, CLEAN
from headway.models.signals import Limits, Target

CELLS = {"tp4": ("azure", "two classes", "mooncake", "bursty", "diurnal"), "moe": ("azure",), "8b": ("azure", "two classes")}
"""Loads of each plant."""
KV_TOKENS, FACTORS = 200_000, (1.15, 1.3, 1.6)
REQUESTS = {"azure": 300, "mooncake": 100}
"""Requests of a window, 200 where nothing is said."""
MARGINS, TOLERANCES, ESTIMATES = (0.05, 0.1, 0.15), (-0.2, 0.0), (1.0, 3.0)
RESERVES = (1.15,)
"""Step times, as factors, with which is chosen whom to shed."""
TIMED, TIME_S = 1000, 20.0
"""Requests of the program that is timed, and the CPU seconds that it may take."""
HOPELESS_RPS, FEW = {"tp4": 60.0, "moe": 600.0, "8b": 30.0}, 300
"""Rates at which the promise cannot be kept, three times the knee and more, and the requests."""


@functools.cache
def _plant(name: str) -> IdentifiedPlant:
    return plants(name).truth


def contenders(identified: IdentifiedPlant, targets: tuple[Target, ...], limits: Limits) -> dict[str, list[Candidate]]:
    """Policies that a bound is held against, by kind.

    Args:
        identified: the plant.
        targets: one per class.
        limits: of the engine.

    Returns:
        Start-up settings, the same with an early queue timeout, the default, and a small box of controllers, its part on the plain estimate first.
    """
    parts = [("edf", "defer", 1.0, 0.0), ("slack", "defer", 1.0, 0.0)]
    parts += [(o, "reject", e, v) for o in ("edf", "slack") for e in ESTIMATES for v in TOLERANCES]
    policies = [Policy(order=o, triage=t, estimate=e, tolerance=v) for o, t, e, v in parts]
    return {
        "static": [s.candidate() for s in static_grid(limits)],
        "timeout": [s.candidate() for s in static_grid(limits, EARLY)],
        "default": [default_candidate(identified, targets, limits)],
        "plain": [Candidate(law, policy) for law in _laws(identified, limits) for policy in policies if policy.estimate == 1.0],
        "box": [Candidate(law, policy) for law in _laws(identified, limits) for policy in policies],
    }


def _laws(identified: IdentifiedPlant, limits: Limits) -> list[FeedforwardLaw]:
    return [FeedforwardLaw(identified.plant, margin=m, most_tokens=float(limits.max_tokens)) for m in MARGINS]


def bound() -> Iterator[Row]:
    """Every plant under its loads at three factors on the knee."""
    limits, closed, gained = limits_of(KV_TOKENS), [], []
    for name, loads in CELLS.items():
        identified = _plant(name)
        for load in loads:
            targets, begin_rps, requests = targets_of(name, load), BEGIN_RPS[load] * BEGIN[name], REQUESTS.get(load, 200)
            drawn = draw(source_of(load, begin_rps), identified, 0, requests)
            grid = [s.candidate() for s in static_grid(limits)]
            knee = float(capacity_factor(identified, grid, [drawn], targets, limits).max())
            for factor in FACTORS:
                faster = dataclasses.replace(drawn.workload, arrival_s=drawn.workload.arrival_s / (factor * knee))
                what = f"{name}, {load} x{factor:g}, {faster.rate_rps:.2g}/s for {faster.arrival_s[-1]:.0f} s"
                rows, shares = _cell(what, identified, drawn._replace(workload=faster), targets, limits)
                yield from rows
                closed.append(shares[0])
                gained.append(shares[1])
    for what, gain in zip(
        ("instead of the box", "beside the box", "beside the part of the box on the plain estimate"), np.array(gained).T, strict=True
    ):
        yield informs(
            f"lesson of the estimate {what}: gain, mean, median, least, most",
            ", ".join(f"{f(gain):+.4f}" for f in (np.mean, np.median, np.min, np.max)),
        )
    some = [c for c in closed if math.isfinite(c)]
    line = f"median {np.median(some):.2f}, least {min(some):.2f}, of {len(some)} cells" if some else "no such cell"
    yield informs("gap from the best static setting to clairvoyant shedding that the best policy closes, where it is .05 or more", line)


def _cell(
    what: str, identified: IdentifiedPlant, drawn: Draw, targets: tuple[Target, ...], limits: Limits
) -> tuple[list[Row], tuple[float, tuple[float, float, float]]]:
    """Its rows; (share of the gap to clairvoyant shedding that is closed, gains by the lesson)."""
    kinds, factors, times = contenders(identified, targets, limits), (drawn.decode, drawn.mixed), [time.process_time()]
    found = upper_bound(identified, drawn.workload, targets, limits, factors=factors)
    times.append(time.process_time())
    guess = estimate(identified, drawn.workload, targets, limits, factors=factors)
    times.append(time.process_time())
    shed = clairvoyant_shedding(identified, [c for some in kinds.values() for c in some], drawn, targets, limits, slower=RESERVES)
    times.append(time.process_time())
    learnt = lesson(identified, drawn.workload, targets, limits, shed.choice)
    starts = [p for order in ("edf", "slack") for p in learnt.policies(Policy(order=order))]
    kinds["lesson"] = [Candidate(law, policy) for law in _laws(identified, limits) for policy in starts]
    everybody = [c for some in kinds.values() for c in some]
    measures = evaluate(identified, everybody, [drawn], targets, limits)[:, 0]
    ends = np.cumsum([len(some) for some in kinds.values()])
    best = dict(zip(kinds, (float(part.max()) for part in np.split(measures[:, ATTAINMENT], ends[:-1])), strict=True))
    top = max(best.values())
    took = "/".join(f"{b - a:.1f}" for a, b in itertools.pairwise(times))
    line = ", ".join(f"{kind} {value:.3f}" for kind, value in best.items())
    above = (measures[:, ATTAINMENT] > found.attainment + 1e-9) | (measures[:, CLEAN] > found.request_attainment + 1e-9)
    over = int(above.sum()) + (shed.attainment > found.attainment + 1e-9) + (shed.request_attainment > found.request_attainment + 1e-9)
    rows = [
        informs(f"{what}: bound | estimate | shed beforehand", f"{found.attainment:.4f} | {guess.attainment:.4f} | {shed.attainment:.4f}"),
        informs(f"{what}: best of each kind", f"{line}; best {found.share(top)}; {took} CPU s"),
        informs(f"{what}: lesson", f"{learnt.said}, estimates {', '.join(f'{e:.1f}' for e in learnt.estimates)}"),
        at_most(f"{what}: above the bound, of {len(everybody) + 1}", float(over), 0.0),
    ]
    gap = shed.attainment - best["static"]
    box, plain = max(best["box"], best["default"]), max(best["plain"], best["default"])
    gains = (best["lesson"] - box, max(best["lesson"] - box, 0.0), max(best["lesson"] - plain, 0.0))
    return rows, ((top - best["static"]) / gap if gap >= 0.05 else math.nan, gains)


def promises() -> Iterator[Row]:
    """Three real plants at a rate that none carries: the verdict, and the changes that it names."""
    limits = limits_of(KV_TOKENS)
    for name in CELLS:
        identified, targets = _plant(name), targets_of(name, "azure")
        drawn = draw(source_of("azure", HOPELESS_RPS[name]), identified, 0, FEW)
        began = time.process_time()
        verdict = feasibility(identified, drawn.workload, targets, limits)[0]
        what = f"{name}, azure, {drawn.workload.rate_rps:.3g}/s, {FEW} requests: promise"
        yield Row(what, "is called infeasible", f"{verdict} ({time.process_time() - began:.0f} CPU s)", verdict.startswith("no policy"))


def speed() -> Iterator[Row]:
    """The bound of a long window."""
    identified, targets, limits = _plant("tp4"), targets_of("tp4", "azure"), limits_of(KV_TOKENS)
    drawn = draw(source_of("azure", 24.0), identified, 0, TIMED)
    began = time.process_time()
    found = upper_bound(identified, drawn.workload, targets, limits, factors=(drawn.decode, drawn.mixed))
    took = time.process_time() - began
    yield at_most(f"tp4, azure, 24/s, {TIMED} requests: CPU time of the bound ({found.attainment:.4f})", took, TIME_S, "s")


if __name__ == "__main__":
    sys.exit(run("bound", {"speed": speed, "bound": bound, "promises": promises}))
