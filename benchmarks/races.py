"""Headway's search against other people's: the same objective, the same training seeds, the same CPU time, judged on held-out seeds.

python -m benchmarks.tuning --only race

The protocol is the prototypes': 48 training seeds of 600 requests at 10.5/s, 256 held-out seeds, 30 CPU-seconds a search,
compilation not counted, all started at .149 of the tokens on time. Headway's own searches are made of the parts that `tune` is made
of: a first look over the box, Adam on slopes, exact selection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import qmc

from benchmarks.prototypes import HIGH, LOW, START, UNIT, Case, case_of, fluid_of, grid_of, truth_of
from benchmarks.table import Missing, Row, at_least, at_most, informs, shared_data
from headway.controllers.exact_gradient import Differences
from headway.experiments.descent import Course, descend
from headway.experiments.tune import Effort, Problem, tune
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.targets import parse_target
from headway.workloads import workload_source

BUDGET_S, REPETITIONS, TRAIN, HELDOUT, RATE_RPS = 30.0, 3, 48, 256, 10.5
SOBOL, ROUGH = 24, 8
"""Points of the first look, and the seeds it is taken on."""
FLUID_SHARE = 0.4
"""Part of the budget that goes along the fluid's slopes, the rest along exact differences."""
LONG = 100_000
"""Iterations that no budget reaches."""


class Ground(NamedTuple):
    """What is raced on: the six numbers, or a schedule of each.

    Args:
        truth: the exact engine of a case, cut to the box.
        knots: places of the load at which each number may have a value of its own.
    """

    truth: Callable[[Case], Differences]
    knots: int = 1

    def spread(self, numbers: np.ndarray) -> np.ndarray:
        """The same numbers at every load.

        Args:
            numbers: shape (..., 6).

        Returns:
            Shape (..., 6 knots).
        """
        return np.repeat(numbers, self.knots, axis=-1)

    def inside(self, unit: Any) -> np.ndarray:
        """A point of the box.

        Args:
            unit: in the unit cube, shape (..., 6 knots).

        Returns:
            In the parameters' own scale, same shape.
        """
        low, high = self.spread(LOW), self.spread(HIGH)
        return low + np.clip(np.asarray(unit, float), 0, 1) * (high - low)


SIX = Ground(lambda case: truth_of(case, bounded=True))


class Run:
    """One search: what it tries, its training value, and the CPU time at which it knew.

    Args:
        case: training workloads.
        budget_s: CPU time [s].
        ground: what is raced on.
    """

    def __init__(self, case: Case, budget_s: float, ground: Ground = SIX) -> None:
        """Start the clock."""
        self.case, self.budget_s, self.ground, self.exact = case, budget_s, ground, ground.truth(case)
        self.start, self.unit = ground.spread(START), ground.spread(UNIT)
        self.best, self.value, self.known = self.start, -1.0, [(0.0, self.start)]
        self.began = time.process_time()

    @property
    def begin(self) -> np.ndarray:
        """The start as a point of the unit cube."""
        low, high = self.ground.spread(LOW), self.ground.spread(HIGH)
        return (self.start - low) / (high - low)

    @property
    def spent_s(self) -> float:
        """CPU time used [s]."""
        return time.process_time() - self.began

    def left(self, share: float = 1.0) -> bool:
        """Whether there is time left, of a share of the budget.

        Args:
            share: in (0, 1].

        Returns:
            True if so.
        """
        return self.spent_s < share * self.budget_s

    def scores(self, points: np.ndarray) -> np.ndarray:
        """Training values; the best point is kept.

        Args:
            points: in the parameters' own scale, shape (k, 6 knots).

        Returns:
            Values, shape (k,).
        """
        values = self.exact.values(np.atleast_2d(points)).mean(1)
        k = int(values.argmax())
        if values[k] > self.value:
            self.value, self.best = float(values[k]), np.atleast_2d(points)[k].copy()
        self.known.append((self.spent_s, self.best))
        return values

    def at(self, share: float) -> np.ndarray:
        """The point known best when a share of the budget was used up.

        Args:
            share: in (0, 1].

        Returns:
            Point.
        """
        return [point for spent, point in self.known if spent <= share * self.budget_s * 1.02][-1]


def first_look(run: Run, seed: int) -> None:
    """The start and Sobol points, the same at every load, on a few seeds, the best of them on all.

    Args:
        run: the search's books.
        seed: of everything that is drawn.
    """
    sobol = qmc.Sobol(len(START), rng=np.random.default_rng(seed)).random_base2(5)[:SOBOL]
    points = np.vstack([run.start, run.ground.spread(SIX.inside(sobol))])
    few = run.ground.truth(Case([m[:ROUGH] for m in run.case.made], run.case.plant, run.case.spec))
    run.scores(points[few.values(points).mean(1).argmax()])


def follow(run: Run, slopes: Callable[..., np.ndarray], course: Course, rng: np.random.Generator, share: float) -> None:
    """Adam from the best point, every iterate's average scored, until a share of the budget is used up.

    Args:
        run: the search's books.
        slopes: at a point in units, on some of the training seeds, per unit.
        course: how far, how fast.
        rng: chooses the seeds.
        share: in (0, 1].
    """
    box = (run.ground.spread(LOW) / run.unit, run.ground.spread(HIGH) / run.unit)
    for k, point in enumerate(descend(run.best / run.unit, slopes, box, course, TRAIN, rng)):
        if k % 2:  # the average; the iterate itself is rougher
            run.scores(point * run.unit)
        if not run.left(share):
            return


def smooth_slopes(run: Run, fluid: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Callable[..., np.ndarray]:
    """The fluid's slopes on some of the training seeds.

    Args:
        run: the search's books.
        fluid: values and derivatives per seed.

    Returns:
        Slopes per unit.
    """
    return lambda point, part: fluid(point * run.unit, [m[part] for m in run.case.made])[1].mean(0) * run.unit


def _exact_slopes(run: Run) -> Callable[..., np.ndarray]:
    def slopes(point: np.ndarray, part: np.ndarray) -> np.ndarray:
        some = Case([m[part] for m in run.case.made], run.case.plant, run.case.spec)
        return run.ground.truth(some).at(point * run.unit)[1].mean(0) * run.unit

    return slopes


def with_fluid(fluid: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Callable[[Run, int], None]:
    """Headway's search with the fluid's slopes first.

    Args:
        fluid: values and derivatives per seed, compiled for 4 of them.

    Returns:
        Search.
    """

    def search(run: Run, seed: int) -> None:
        rng = np.random.default_rng(seed)
        first_look(run, seed)
        follow(run, smooth_slopes(run, fluid), Course(LONG, 0.7, 4, 4), rng, FLUID_SHARE)
        follow(run, _exact_slopes(run), Course(LONG, 0.35, 8, 2), rng, 1.0)

    return search


def with_differences(run: Run, seed: int) -> None:
    """Headway's search on exact differences alone.

    Args:
        run: the search's books.
        seed: of everything that is drawn.
    """
    rng = np.random.default_rng(seed)
    first_look(run, seed)
    follow(run, _exact_slopes(run), Course(LONG, 0.6, 4, 4), rng, FLUID_SHARE)
    follow(run, _exact_slopes(run), Course(LONG, 0.35, 8, 2), rng, 1.0)


def tpe(run: Run, seed: int) -> None:
    """Tree-structured Parzen estimator, as the prototypes set it: of a schedule each axis on its own.

    Args:
        run: the search's books.
        seed: of everything that is drawn.
    """
    import optuna  # pyright: ignore[reportMissingImports]  # the extra bench

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, multivariate=run.ground.knots == 1))
    study.enqueue_trial({f"x{i}": float(x) for i, x in enumerate(run.begin)})
    axes: dict[str, Any] = {f"x{i}": optuna.distributions.FloatDistribution(0, 1) for i in range(len(run.start))}
    while run.left():
        trial = study.ask(axes)
        study.tell(trial, float(run.scores(run.ground.inside([trial.params[name] for name in axes]))[0]))


def cma_es(run: Run, seed: int) -> None:
    """CMA-ES, as the prototypes set it: a population of 10, of a schedule its own choice; begun anew around the best where it converged.

    Args:
        run: the search's books.
        seed: of everything that is drawn.
    """
    import cma  # pyright: ignore[reportMissingImports]  # the extra bench

    options = {"bounds": [0, 1], "verbose": -9, "seed": seed + 1} | ({"popsize": 10} if run.ground.knots == 1 else {})
    low, high = run.ground.spread(LOW), run.ground.spread(HIGH)
    search = cma.CMAEvolutionStrategy(run.begin, 0.25, options)
    while run.left():
        asked = search.ask()
        search.tell(asked, list(-run.scores(np.array([run.ground.inside(x) for x in asked]))))
        if search.stop():
            search = cma.CMAEvolutionStrategy((run.best - low) / (high - low), 0.1, options)


def at_random(run: Run, seed: int) -> None:
    """Points at random.

    Args:
        run: the search's books.
        seed: of everything that is drawn.
    """
    rng = np.random.default_rng(seed)
    while run.left():
        run.scores(run.ground.inside(rng.random(len(run.start))))


def race(budget_s: float = BUDGET_S, repetitions: int = REPETITIONS) -> Iterator[Row]:
    """Six parameters, 30 CPU-seconds each.

    Args:
        budget_s: CPU time of each search [s].
        repetitions: with other training seeds.

    Yields:
        Rows.

    Raises:
        Missing: a search that is raced against is not installed.
    """
    searches, compiled_s = _searches()
    judge = truth_of(case_of(RATE_RPS, 777_000, seeds=HELDOUT))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in searches}
    for repetition in range(repetitions):
        case = case_of(RATE_RPS, 1000 * repetition, seeds=TRAIN)
        for name, search in searches.items():
            run = Run(case, budget_s)
            search(run, repetition)
            third, full = judge.values(np.stack([run.at(1 / 3), run.best])).mean(1)
            found[name].append((float(third), float(full)))
    means = {name: np.mean(values, axis=0) for name, values in found.items()}
    for name, values in found.items():
        each = ", ".join(f"{third:.4f} > {full:.4f}" for third, full in values)
        third, full = means[name]
        yield informs(f"race, {name}: held out at a third > at full budget, mean and each", f"{third:.4f} > {full:.4f} ({each})")
    others = [n for n in searches if not n.startswith("Headway")]
    best = max(means[n][1] for n in others)
    for name in (n for n in searches if n.startswith("Headway")):
        third, full = means[name]
        yield at_least(f"race, {name}: full budget, against the best of {', '.join(others)} less .003", full, best - 0.003)
        for other in others:
            yield at_least(f"race, {name}: a third of the budget, against {other} at its third", third, means[other][0])
    yield informs("race: compiling the fluid, not counted above", f"{compiled_s:.1f} CPU-s")


def need_peers() -> None:
    """Find the searches that are raced against.

    Raises:
        Missing: one is not installed.
    """
    try:
        import cma  # noqa: F401  # pyright: ignore[reportMissingImports]
        import optuna  # noqa: F401  # pyright: ignore[reportMissingImports]
    except ImportError as gap:
        raise Missing(f"{gap.name} is not installed: pip install 'headway[bench]'") from None


def _searches() -> tuple[dict[str, Callable[[Run, int], None]], float]:
    """All that race, compiled, and the CPU time that the fluid's compilation took [s]."""
    need_peers()
    small = case_of(RATE_RPS, 5, seeds=4)
    truth_of(small).values(START[None])
    fluid, began = fluid_of(small, grid_of(slot_s=0.1, width_s=0.3, admission=False)), time.process_time()
    fluid(START)
    compiled_s = time.process_time() - began
    searches = {"Headway with the fluid": with_fluid(fluid), "Headway on differences": with_differences}
    return {**searches, "TPE": tpe, "CMA-ES": cma_es, "random": at_random}, compiled_s


NAMES = ("aging_rate", "chunk_tokens", "running_limit", "tolerance", "estimate")
"""Free beside the margin in the row of the wall time: six in all."""


def wall_time() -> Iterator[Row]:
    """Tuning as a user meets it: six numbers, 1,000 requests, a process that has compiled no fluid, exact re-scoring included.

    Yields:
        Rows.
    """
    trace = read_trace(shared_data("steps", "fpm_vllm0201_b300", "qwen3-32b_tp4.fpm_detail.csv"))
    identified = fit(trace, limits={"kv_tokens": 200_000})
    source = workload_source(str(shared_data("workloads", "AzureLLMInferenceTrace_conv.csv")), rate_rps=13.0)
    targets, _ = parse_target("ttft=1s,itl=25ms")
    problem = Problem(identified, source, targets, identified.limits)
    for gradient, bar in (("auto", True), ("fluid", False)):
        began, used = time.perf_counter(), time.process_time()
        found = tune(problem, Effort(requests=1000, gradient=gradient), free=NAMES)
        took, cpu = time.perf_counter() - began, time.process_time() - used
        what = f"tune, 6 numbers, 1,000 requests, slopes {gradient}"
        yield at_most(f"{what}: wall time", took, 45.0, "s") if bar else informs(f"{what}: wall time", f"{took:.0f} s")
        share = found.tuned.to_json()["attainment"]
        yield informs(f"{what}: CPU time, attained, gain", f"{cpu:.0f} s, {100 * share:.2f} %, {100 * found.gain.value:+.2f} %")
        yield informs(f"{what}: said of the slopes", "; ".join(dict.fromkeys(found.slopes)))
