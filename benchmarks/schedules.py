"""Gain schedules: how true the fluid's gradient is over 48 numbers, how fast a search along it is, and what a schedule gains.

python -m benchmarks.tuning --only schedule --only schedule_race
python -m benchmarks.schedules

Gradient and race are the prototypes' problem with each of its six numbers a function of the queued prompt tokens, eight knots each.
What a schedule gains over tuned constants is measured on Headway's own simulator, over loads that change and loads that do not, on two
plants: both are trained from the same tuned constants on the same windows, and held against each other on windows neither has seen.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.cell_loads import limits_of, plants
from benchmarks.prototypes import KNOTS, POINTS, SEEDS, case_of, grid_of, schedule_fluid_of, schedule_truth_of, truth_of
from benchmarks.races import BUDGET_S, HELDOUT, RATE_RPS, TRAIN, Ground, Run, cma_es, first_look, follow, need_peers, smooth_slopes, tpe
from benchmarks.table import Row, at_least, at_most, informs, run
from headway.controllers.exact_gradient import STEP, Differences
from headway.controllers.fluid.gate import cosine, noise_ceiling
from headway.controllers.fluid.value import Grid
from headway.experiments.descent import Course
from headway.experiments.gain_training import Scheduled, train_schedule
from headway.experiments.problem import Effort, Problem
from headway.experiments.tune import tune
from headway.models.signals import Target
from headway.workloads import workload_source

FAR = 3.0
"""Standard errors from 0 at which a component of the truth has a sign."""

REPETITIONS = 2

AGING = 1
"""Place of the aging rate among the six numbers."""

SCHEDULES = Ground(lambda case: schedule_truth_of(case, bounded=True), KNOTS)


def _grid() -> Grid:
    return grid_of(slot_s=0.1, width_s=0.3, admission=False, checkpoint=True)


def schedule_gradient() -> Iterator[Row]:
    """48 derivatives by reverse mode at A, B and C, against differences of half a unit taken on the prototypes' exact engine.

    Yields:
        Rows.
    """
    fluid = None
    for name, (point, rate_rps) in POINTS.items():
        case, table = case_of(rate_rps, 10_000), np.repeat(point, KNOTS)
        plain = truth_of(case).values(point[None])[0]
        truth = schedule_truth_of(case)
        same = bool(np.allclose(truth.values(table[None])[0], plain))
        yield Row(f"schedule, {name}: the same at every load is the plain engine", "equal", "equal" if same else "another value", same)
        began = time.process_time()
        exact = Differences(truth.values, truth.unit, truth.low, truth.high, STEP).at(table)[1] * truth.unit
        differences_ms = 1e3 * (time.process_time() - began) / SEEDS
        if fluid is None:
            fluid = schedule_fluid_of(case, _grid())
        fluid(table, case.made)
        began = time.process_time()
        values, slopes = fluid(table, case.made)
        took_ms = 1e3 * (time.process_time() - began) / SEEDS
        ours, mean = slopes.mean(0) * truth.unit, exact.mean(0)
        error = exact.std(0, ddof=1) / np.sqrt(len(exact))
        known = abs(mean) > FAR * error
        right = int((np.sign(ours) == np.sign(mean))[known].sum())
        ceiling = noise_ceiling(exact)
        yield at_least(
            f"schedule, {name}: cosine to 48 exact differences, noise ceiling {ceiling:.3f} less .02", cosine(ours, mean), ceiling - 0.02
        )
        yield at_most(f"schedule, {name}: CPU time per seed, value and 48 derivatives", took_ms, 80.0, "ms")
        yield informs(f"schedule, {name}: CPU time per seed, 96 exact runs", f"{differences_ms:.0f} ms")
        ratio = float(np.linalg.norm(ours) / np.linalg.norm(mean))
        yield informs(f"schedule, {name}: signs right, length over the truth's", f"{right} of {int(known.sum())}, {ratio:.2f}")
        yield informs(f"schedule, {name}: value fluid / exact", f"{values.mean():.4f} / {plain.mean():.4f}")


def schedule_race(budget_s: float = BUDGET_S, repetitions: int = REPETITIONS) -> Iterator[Row]:
    """48 numbers, 30 CPU-seconds each.

    Args:
        budget_s: CPU time of each search [s].
        repetitions: with other training seeds.

    Yields:
        Rows.

    Raises:
        Missing: a search that is raced against is not installed.
    """
    need_peers()
    small = case_of(RATE_RPS, 5, seeds=4)
    SCHEDULES.truth(small).values(SCHEDULES.spread(POINTS["A"][0])[None])
    fluid, began = schedule_fluid_of(small, _grid()), time.process_time()
    fluid(SCHEDULES.spread(POINTS["A"][0]))
    compiled_s = time.process_time() - began

    def descent(run: Run, seed: int, still: int | None = None) -> None:
        slopes = smooth_slopes(run, fluid) if still is None else _held(smooth_slopes(run, fluid), still)
        follow(run, slopes, Course(10**6, 0.5, 4, 4), np.random.default_rng(seed), 1.0)

    def constants_first(run: Run, seed: int) -> None:
        first_look(run, seed)
        descent(run, seed)

    def one_aging_rate(run: Run, seed: int) -> None:
        first_look(run, seed)
        descent(run, seed, AGING)

    searches = {"Headway from the start": descent, "Headway, constants looked at first": constants_first, "TPE": tpe, "CMA-ES": cma_es}
    searches["the second, with one aging rate for all loads"] = one_aging_rate
    judge, found = SCHEDULES.truth(case_of(RATE_RPS, 777_000, seeds=HELDOUT)), {name: [] for name in searches}
    for repetition in range(repetitions):
        case = case_of(RATE_RPS, 1000 * repetition, seeds=TRAIN)
        for name, search in searches.items():
            books = Run(case, budget_s, SCHEDULES)
            search(books, repetition)
            found[name].append(judge.values(np.stack([books.at(1 / 5), books.at(1 / 3), books.best])).mean(1))
    means = {name: np.mean(values, axis=0) for name, values in found.items()}
    for name, values in found.items():
        each = ", ".join(" > ".join(f"{x:.4f}" for x in row) for row in values)
        yield informs(f"schedule race, {name}: held out at a fifth > at a third > at full budget", each)
    for name in (n for n in searches if n.startswith("Headway")):
        yield at_least(f"schedule race, {name}: held out at full budget, mean", float(means[name][2]), 0.96)
        for other in ("TPE", "CMA-ES"):
            yield at_least(f"schedule race, {name}: full budget, against {other}", float(means[name][2]), float(means[other][2]))
    yield informs("schedule race: compiling the fluid, not counted above", f"{compiled_s:.1f} CPU-s")


def _held(slopes: Callable[..., np.ndarray], number: int) -> Callable[..., np.ndarray]:
    """Slopes along which all knots of one number move alike."""

    def gradient(point: np.ndarray, part: np.ndarray) -> np.ndarray:
        found = slopes(point, part).reshape(-1, KNOTS).copy()
        found[number] = found[number].mean()
        return found.ravel()

    return gradient


LENGTHS = "prompt=lognormal(median=1000,sigma=1),output=geometric(mean=200)"
LOADS = {
    "steady": "poisson:rate={rate}/s",
    "bursty": "gamma:rate={rate}/s,cv=4",
    "a day in 80 s": "diurnal:rate={rate}/s,amplitude=0.7,period=80s",
    "two states": "mmpp:rates={low}/s;{high}/s,dwell=20s;10s",
    "step up and back": "step:rate={low}/s,to={high}/s,at=25s,until=45s",
}
"""Loads, in words of a workload spec: two that do not change but by chance, three whose rate does."""
LOW_PART, HIGH_PART = 0.6, 1.8
"""Rates of the loads with two, over the mean rate."""
PLANTS = {"tp4": (11.0, Target(1.0, 0.025)), "8b": (7.0, Target(2.0, 0.060))}
"""Mean rate at which the engine is full at times [requests/s], and what clients were promised."""
EFFORT = Effort(train_seeds=8, heldout_seeds=40, requests=800, sobol=48, starts=1, iterations=6, gradient="fluid")
KINDS = ("queued", "load", "network")


def spec_of(load: str, rate_rps: float) -> str:
    """A load as a workload spec.

    Args:
        load: one of LOADS.
        rate_rps: mean rate [requests/s].

    Returns:
        Spec.
    """
    timing = LOADS[load].format(rate=f"{rate_rps:g}", low=f"{LOW_PART * rate_rps:g}", high=f"{HIGH_PART * rate_rps:g}")
    return f"{timing},{LENGTHS}"


def trained(plant: str, load: str, kinds: tuple[str, ...] = KINDS, effort: Effort = EFFORT) -> list[Scheduled]:
    """Schedules of each kind from one set of tuned constants.

    Args:
        plant: one of PLANTS.
        load: one of LOADS.
        kinds: of schedules.
        effort: how much is spent.

    Returns:
        One for each kind.

    Raises:
        Missing: the measured steps are not there.
    """
    rate_rps, target = PLANTS[plant]
    identified, limits = plants(plant).fitted, limits_of(200_000)
    problem = Problem(identified, workload_source(spec_of(load, rate_rps)), (target,), limits)
    constant = tune(problem, dataclasses.replace(effort, heldout_seeds=2, gradient="exact")).tuned.candidate
    return [train_schedule(problem, constant, kind=kind, effort=effort) for kind in kinds]


def gained(plant: str) -> Callable[[], Iterator[Row]]:
    """A part that measures all loads on a plant.

    Args:
        plant: one of PLANTS.

    Returns:
        The part.
    """

    def part() -> Iterator[Row]:
        for load in LOADS:
            for found in trained(plant, load):
                yield row_of(plant, load, found)

    return part


def row_of(plant: str, load: str, found: Scheduled) -> Row:
    """One schedule in one line.

    Args:
        plant: one of PLANTS.
        load: one of LOADS.
        found: the schedule.

    Returns:
        A row that informs.
    """
    figures = found.to_json()
    gain, (low, high) = figures["gain"], figures["gain_ci95"]
    text = (
        f"{100 * figures['constant']:.2f} > {100 * figures['schedule']:.2f} % ({100 * gain:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]), "
        f"{figures['verdict']}; {figures['slopes']}"
    )
    return informs(f"{plant}, {load}, {found.kind}: constants > schedule, held out", text)


if __name__ == "__main__":
    sys.exit(run("schedules", {plant: gained(plant) for plant in PLANTS}))
