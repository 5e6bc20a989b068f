"""Tuning: margin, aging rate, chunk, gains and the rest, for goodput on the exact simulator, against the best static setting.

Sobol points first, then common-random-number differences with a large step and Adam, then exact selection, then a
held-out value with its interval. A small step measures the noise of single runs and points nowhere (cosine to the truth
0.5 at a fiftieth of a unit, 0.97 at a half); differentiating through the scheduler points the wrong way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import optax
from scipy.stats import qmc

from headway.controllers.default import default_candidate
from headway.controllers.simulator import Candidate, Draw, draw, evaluate, simulate
from headway.experiments.baseline import EARLY, Static, best, static_grid
from headway.experiments.capacity import capacity_factor, class_capacity_factors
from headway.experiments.contest import NEAR, Side, hull_warnings, rivals
from headway.experiments.sensitivity import dead_sentence, sensitivities
from headway.experiments.space import Space
from headway.experiments.statistics import Estimate, gain_interval
from headway.models.goodput import summarise
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ATTAINMENT, CLEAN, GOODPUT_TPS, ITL_P99_S
from headway.models.signals import Limits, Target
from headway.models.workload import WorkloadSource

OBJECTIVES = ("attainment", "requests", "capacity")

Progress = Callable[[str, float], None]

TIED, HEAVIER = 0.001, 1.15
"""Static settings within TIED of the best are told apart by what they attain at a load HEAVIER times as high."""

DEAD_DRAWS = 2
"""Training draws on which a free number has to change something."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is spent.

    Args:
        train_seeds: workloads that candidates are compared on.
        heldout_seeds: workloads that only the result sees.
        requests: per workload.
        sobol: points of the first look.
        starts: points from which differences descend.
        iterations: of Adam, per start.
        seed: of the search itself.
    """

    train_seeds: int = 8
    heldout_seeds: int = 20
    requests: int = 1000
    sobol: int = 64
    starts: int = 2
    iterations: int = 10
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is tuned for.

    Args:
        identified: the plant.
        source: of the workloads.
        targets: one per class.
        limits: of the engine.
        objective: one of OBJECTIVES.
    """

    identified: IdentifiedPlant
    source: WorkloadSource
    targets: tuple[Target, ...]
    limits: Limits
    objective: str = "attainment"

    def draws(self, effort: Effort, *, heldout: bool) -> list[Draw]:
        """Workloads and noise, one per seed.

        Args:
            effort: how many, how long.
            heldout: what tuning never sees.

        Returns:
            Draws, all with the same number of requests.
        """
        seeds = effort.heldout_seeds if heldout else effort.train_seeds
        return [draw(self.source, self.identified, seed, effort.requests, heldout=heldout) for seed in range(seeds)]

    def scores(self, candidates: list[Candidate], draws: list[Draw]) -> np.ndarray:
        """The objective with what decides between near ties.

        Args:
            candidates: to compare.
            draws: to compare them on.

        Returns:
            Per candidate: objective, attainment, share of clean requests, goodput [tokens/s], p99 ITL [s], infinite where there
            is no gap; means over the draws, shape (candidates, 5).
        """
        measures = evaluate(self.identified, candidates, draws, self.targets, self.limits)
        attainment, clean = measures[..., ATTAINMENT].mean(axis=1), measures[..., CLEAN].mean(axis=1)
        if self.objective == "capacity":
            value = capacity_factor(self.identified, candidates, draws, self.targets, self.limits)
        else:
            value = clean if self.objective == "requests" else attainment
        goodput_tps, itl_p99_s = measures[..., GOODPUT_TPS].mean(axis=1), measures[..., ITL_P99_S].mean(axis=1)
        return np.stack([value, attainment, clean, goodput_tps, np.nan_to_num(itl_p99_s, nan=np.inf)], axis=1)


@dataclasses.dataclass(frozen=True)
class Tuned:
    """The result of tuning.

    Args:
        tuned: the controller found, or the static setting where nothing better was found.
        static: best static setting, chosen on the training seeds.
        early: the same with an early queue timeout.
        hindsight: the static setting that does best on the held-out seeds themselves, which nobody can choose beforehand.
        default: the controller straight from the fit.
        gain: of the objective over the best static setting, paired, held-out.
        gain_early: over the static setting with a timeout.
        outcome: "better" or "no better".
        capacity_rps: where the objective is capacity: of the tuned, the static, the timeout setting; where there are classes, the
            rate of all together at which each class still keeps its promise under the tuned one [requests/s].
        warnings: sentences, among them what lies outside the trace's hull.
        tried: candidates compared on the training seeds.
        problem: what was tuned for.
        effort: what was spent.
    """

    tuned: Side
    static: Side
    early: Side
    hindsight: Side
    default: Side
    gain: Estimate
    gain_early: Estimate
    outcome: str
    capacity_rps: dict[str, float] | None
    warnings: list[str]
    tried: int
    problem: Problem
    effort: Effort


def tune(
    problem: Problem,
    effort: Effort = Effort(),
    *,
    free: tuple[str, ...] | None = None,
    policy: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Tuned:
    """Find the best controller for a plant, a workload and a target, and say by how much it beats the best static setting.

    Args:
        problem: what is tuned for.
        effort: how much is spent.
        free: names of the numbers that may move; None for all whose part is on, "all" among them for every one that can act.
            Margin and aging rate are always among them.
        policy: what the policy is to have otherwise than `default_candidate`, by field; a number that is free starts there.
        progress: called with a label and a fraction in [0, 1].

    Returns:
        Tuned.

    Raises:
        ValueError: an unknown objective, a free number that is unknown or cannot act, or a policy that cannot be.
    """
    if problem.objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, got {problem.objective!r}")
    say = progress or _silent
    base = default_candidate(problem.identified, problem.targets, problem.limits)
    base = base._replace(policy=dataclasses.replace(base.policy, **(policy or {})))  # pyright: ignore[reportArgumentType]  # by @pytree
    base.policy.check()
    space = Space(base, problem.limits, free, problem.targets)
    train = problem.draws(effort, heldout=False)
    say("static settings", 0.0)
    static, static_score = _best_static(problem, train, None)
    early, early_score = _best_static(problem, train, EARLY)
    say("Sobol points", 0.15)
    points, scores = _search(problem, space, train, effort, say)
    say("held-out seeds", 0.9)
    chosen = choose(points, scores, problem.objective, floor=max(static_score, early_score))
    candidate, settings = space.candidate(points[chosen]), space.values(points[chosen])
    notes = _dead(problem, space, candidate, train)
    if max(static_score, early_score) > scores[:, 0].max():
        # Nothing beat the static settings even on the training seeds: hand the better of them on, and say so.
        setting = static if static_score >= early_score else early
        candidate, settings, notes = setting.candidate(), setting.to_json(), []
    return _judge(problem, effort, (candidate, settings), (static, early, base), len(points), notes)


def _silent(_label: str, _fraction: float) -> None:
    """Nobody listens."""


def choose(points: list[np.ndarray], scores: np.ndarray, objective: str, floor: float = 0.0) -> int:
    """The candidate to keep: the best by the objective; for attainment, the one with most clean requests among near ties.

    Of several that are equal in that too, the one with more goodput, then with the lower p99 ITL: at a load that is met all
    over, the promise alone does not tell a fast setting from a slow one.

    Args:
        points: tried, in units.
        scores: as `Problem.scores`, shape (points, 5).
        objective: one of OBJECTIVES.
        floor: attainment of the best static setting, in [0, 1]: a near tie does not give up the lead over it.

    Returns:
        Index into points.
    """
    scores = scores[: len(points)]
    value = scores[:, 0]
    if objective != "attainment":
        return int(_ranked(scores, 0)[0])
    near = np.flatnonzero(value >= max(value.max() - NEAR, min(floor, value.max())))
    return int(near[_ranked(scores[near], 2, 0)[0]])


def _ranked(scores: np.ndarray, *first: int) -> np.ndarray:
    """Rows of `Problem.scores`, the best first: by these columns, exact ties by goodput, then by p99 ITL, then as they came."""
    return np.lexsort([scores[:, 4], -scores[:, 3], *(-np.round(scores[:, k], 12) for k in reversed(first))])


def _best_static(problem: Problem, draws: list[Draw], timeout: float | None) -> tuple[Static, float]:
    """The best setting of the grid; of several that tie, as below the knee many do, the one that bears a heavier load best.

    A setting at its very edge in training would fall over on held-out seeds, and any controller would seem to beat it.
    """
    grid = static_grid(problem.limits, timeout)
    scores = problem.scores([s.candidate() for s in grid], draws)[:, 0]
    tied = np.flatnonzero(scores >= scores.max() - TIED)
    heavier = np.full(len(tied), 1 / HEAVIER)
    candidates = [grid[i].candidate() for i in tied]
    measures = evaluate(problem.identified, candidates, draws, problem.targets, problem.limits, stretch=heavier)
    i = int(tied[best([grid[k] for k in tied], measures, ATTAINMENT)])
    return grid[i], float(scores[i])


def _search(problem: Problem, space: Space, draws: list[Draw], effort: Effort, say: Progress) -> tuple[list[np.ndarray], np.ndarray]:
    sobol = qmc.Sobol(len(space.free), rng=np.random.default_rng(effort.seed)).random(effort.sobol)
    points = [space.point(space.base), *(space.low + sobol * (space.high - space.low))]
    rough = problem.scores([space.candidate(p) for p in points], draws[: max(2, len(draws) // 3)])
    order = _ranked(rough, 0)[: max(8, 4 * effort.starts)]
    points = [points[i] for i in order]
    scores = problem.scores([space.candidate(p) for p in points], draws)
    rng = np.random.default_rng(effort.seed)
    for k, i in enumerate(_ranked(scores, 0)[: effort.starts].tolist()):
        tell = lambda part, k=k: say("descending", 0.3 + 0.6 * (k + part) / effort.starts)  # noqa: E731
        found, values = _descend(problem, space, draws, points[i], effort, rng, tell)
        points, scores = points + found, np.concatenate([scores, values])
    return points, scores


def _descend(
    problem: Problem,
    space: Space,
    draws: list[Draw],
    start: np.ndarray,
    effort: Effort,
    rng: np.random.Generator,
    tell: Callable[[float], None],
) -> tuple[list[np.ndarray], np.ndarray]:
    """Adam on central differences of half a unit, on a fresh half of the seeds each time; every iterate is scored on all."""
    d, point = len(start), start.copy()
    adam = optax.adam(0.6, b1=0.8, b2=0.95, eps=1e-4)
    state = adam.init(point)
    average = point.copy()
    tried: list[np.ndarray] = []
    for k in range(1, effort.iterations + 1):
        part = [draws[i] for i in rng.choice(len(draws), max(2, len(draws) // 2), replace=False)]
        step = 0.5 * np.eye(d)
        sides = np.clip(np.concatenate([point + step, point - step]), space.low, space.high)
        values = problem.scores([space.candidate(p) for p in sides], part)[:, 0]
        width = np.maximum(np.diag(sides[:d] - sides[d:]), 1e-9)
        gradient = (values[:d] - values[d:]) / width
        with jax.numpy_dtype_promotion("standard"):  # optax itself promotes its step count
            move, state = adam.update(-gradient, state)
        point = point + np.asarray(move, float)
        point = np.clip(point, space.low, space.high)
        average = 0.7 * average + 0.3 * point
        tried += [point.copy(), average.copy()]
        tell(k / effort.iterations)
    return tried, problem.scores([space.candidate(p) for p in tried], draws)


def _dead(problem: Problem, space: Space, candidate: Candidate, draws: list[Draw]) -> list[str]:
    """Free numbers whose value means nothing, each once: those that cannot act, and those that never did."""
    known = {note.partition(" ")[0] for note in space.notes}
    found = sensitivities(problem.identified, space, candidate, draws[:DEAD_DRAWS], problem.targets)
    return [*space.notes, *filter(None, [dead_sentence([s for s in found if s.name not in known])])]


def _judge(
    problem: Problem,
    effort: Effort,
    chosen: tuple[Candidate, dict[str, Any]],
    others: tuple[Static, Static, Candidate],
    tried: int,
    notes: list[str],
) -> Tuned:
    static, early, base = others
    draws = problem.draws(effort, heldout=True)
    grid = static_grid(problem.limits)
    seen = evaluate(problem.identified, [s.candidate() for s in grid], draws, problem.targets, problem.limits)
    hindsight = grid[best(grid, seen, CLEAN if problem.objective == "requests" else ATTAINMENT)]
    settings = (static, early, hindsight)
    contenders = [chosen, *((s.candidate(), s.to_json()) for s in settings), (base, {})]
    measures = evaluate(problem.identified, [c for c, _ in contenders], draws, problem.targets, problem.limits)
    sides, outcomes = [], []
    for (candidate, settings), rows in zip(contenders, measures, strict=True):
        runs = [simulate(problem.identified, candidate, d, problem.targets, problem.limits) for d in draws]
        sides.append(Side(candidate, settings, rows, summarise(runs, problem.targets)))
        outcomes.append(runs)
    capacity = None
    measure = CLEAN if problem.objective == "requests" else ATTAINMENT
    values = [s.measures[:, measure] for s in sides[:3]]
    if problem.objective == "capacity":
        per_draw = [
            [capacity_factor(problem.identified, [s.candidate], [d], problem.targets, problem.limits)[0] for d in draws] for s in sides[:3]
        ]
        values = [np.array(v) * d_rate(draws) for v in per_draw]
        capacity = {name: float(v.mean()) for name, v in zip(("controller", "best_static", "best_timeout"), values, strict=True)}
        if len(problem.targets) > 1:
            apart = class_capacity_factors(problem.identified, sides[0].candidate, draws, problem.targets, problem.limits)
            rate_rps = float(d_rate(draws).mean())
            capacity |= {f"controller, {t.name}": float(f) * rate_rps for t, f in zip(problem.targets, apart, strict=True)}
    gain, gain_early = gain_interval(values[1], values[0]), gain_interval(values[2], values[0])
    outcome = "better" if gain.low > 0 else "no better"
    best_found, static_side, early_side, hindsight_side, default_side = sides
    rivalry = rivals(sides, measure) if problem.objective != "capacity" else []
    warnings = [*rivalry, *notes, *hull_warnings(problem.identified, outcomes[0])]
    return Tuned(
        best_found,
        static_side,
        early_side,
        hindsight_side,
        default_side,
        gain,
        gain_early,
        outcome,
        capacity,
        warnings,
        tried,
        problem,
        effort,
    )


def d_rate(draws: list[Draw]) -> np.ndarray:
    """Arrival rates of the draws.

    Args:
        draws: one per seed.

    Returns:
        Rates, shape (draws,) [requests/s].
    """
    return np.array([d.workload.rate_rps for d in draws])
