"""A sweep: every combination of some values of some numbers on the same draws, and what the best of them attain on others."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from headway.controllers.simulator import Candidate
from headway.experiments.baseline import EARLY, Static, best_static, static_grid
from headway.experiments.checkpoint import Ledger
from headway.experiments.pareto import BLOCK, KINDS, Front, Tried, front_of, tried_on
from headway.experiments.problem import Effort, Problem
from headway.experiments.promises import COLUMNS, NAMES, Runs
from headway.experiments.scaleout import map_runs
from headway.experiments.space import Space
from headway.experiments.statistics import Estimate, gain_interval, mean_interval
from headway.models.measures import ATTAINMENT, CLEAN, GOODPUT_TPS

OBJECTIVES = {"attainment": ATTAINMENT, "requests": CLEAN}
"""What the best are the best of."""

SHOWN = 10
"""Best candidates that are run on held-out draws."""

FIGURES = ("attainment", "request_attainment", "goodput_tps", "itl_p99_s", "shed", "ttft_met", "itl_met")
"""What is told of them, of `headway.experiments.promises.NAMES`."""

MOST = 100_000
"""Combinations at most."""

Progress = Callable[[str, float], None]


class Axis(NamedTuple):
    """A number with the values that it takes.

    Args:
        name: of `headway.experiments.free.free_parameters`.
        values: in its own unit.
    """

    name: str
    values: tuple[float, ...]


class Ranked(NamedTuple):
    """One of the best combinations.

    Args:
        at: value by name.
        trained: objective on the training draws, by which it was ranked.
        heldout: objective on held-out draws.
        gain: over the best static setting, relative, paired on the held-out draws.
        figures: means of FIGURES on held-out draws.
    """

    at: dict[str, float]
    trained: float
    heldout: Estimate
    gain: Estimate
    figures: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            Mapping by field name, intervals beside their values.
        """
        ends = {"heldout_ci95": [self.heldout.low, self.heldout.high], "gain_ci95": [self.gain.low, self.gain.high]}
        return {**self._asdict(), "heldout": self.heldout.value, "gain": self.gain.value, **ends}


@dataclasses.dataclass(frozen=True)
class Swept:
    """What a sweep found.

    Args:
        points: value by name, one per combination.
        runs: on the training draws, shape (points, draws, COLUMNS).
        best: the best of them, by the training draws.
        static: the best static setting of the training draws.
        static_heldout: its objective on held-out draws.
        dead: numbers of which no value changed any figure of any run.
        notes: sentences on how it was run.
        front: first tokens against gaps, of these combinations and of the static settings; None where it was not asked for.
    """

    points: list[dict[str, float]]
    runs: np.ndarray
    best: list[Ranked]
    static: Static
    static_heldout: Estimate
    dead: list[str]
    notes: list[str]
    front: Front | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, without the single runs.

        Returns:
            The best, the static setting, what is dead, the notes, and the front if there is one.
        """
        ends = [self.static_heldout.low, self.static_heldout.high]
        static = {"settings": self.static.to_json(), "heldout": self.static_heldout.value, "heldout_ci95": ends}
        plain = {"combinations": len(self.points), "dead": self.dead, "notes": self.notes}
        return {**plain, "best": [r.to_json() for r in self.best], "best_static": static, "front": self.front and self.front.to_json()}


def combinations(space: Space, axes: list[Axis]) -> list[dict[str, float]]:
    """Every combination of the values, each once.

    Args:
        space: with the numbers of the axes free.
        axes: at least one; sizes in tokens and requests are rounded to whole ones.

    Returns:
        Value by name.

    Raises:
        ValueError: a value outside the range of its number, or too many combinations.
    """
    free = {f.name: f for f in space.free}
    placed = []
    for name, values in axes:
        f = free[name]
        ends = (f.value(f.low), f.value(f.high if not f.off_at_high else f.high - 1e-9))
        for value in values:
            off = value == 0 and (f.off_at_high or name == "chunk_tokens")
            if not off and not f.low - 1e-9 <= f.place(value) <= f.high + 1e-9:
                raise ValueError(f"{name} must be in [{min(ends):g}, {max(ends):g}], got {value:g}")
        own = (f.value(min(max(f.place(v), f.low), f.high)) for v in values)
        placed.append(list(dict.fromkeys(float(f"{v:.12g}") for v in own)))
    count = int(np.prod([len(values) for values in placed]))
    if count > MOST:
        raise ValueError(f"a sweep of {count:,} combinations is more than {MOST:,}; give fewer values, or tune instead")
    return [dict(zip([a.name for a in axes], values, strict=True)) for values in itertools.product(*placed)]


def candidate_at(space: Space, at: Mapping[str, float]) -> Candidate:
    """The candidate of one combination.

    Args:
        space: with its numbers free.
        at: value by name; the others stay as they are.

    Returns:
        Candidate.
    """
    point = space.point(space.base)
    for i, f in enumerate(space.free):
        if f.name in at:
            point[i] = f.place(at[f.name]) / f.unit
    return space.candidate(np.clip(point, space.low, space.high))


def key_of(at: Mapping[str, float]) -> str:
    """A name for a combination, the same in every sweep that holds it.

    Args:
        at: value by name.

    Returns:
        JSON text.
    """
    return json.dumps(dict(sorted(at.items())))


def sweep(
    problem: Problem,
    effort: Effort,
    space: Space,
    axes: list[Axis],
    *,
    known: Mapping[str, np.ndarray] | None = None,
    keep: Callable[[dict[str, float], np.ndarray], None] | None = None,
    front: bool = False,
    where: str = "processes",
    address: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Swept:
    """Run every combination on the training draws, and the best of them on held-out ones beside the best static setting.

    Args:
        problem: what is swept for; its objective is one of OBJECTIVES.
        effort: draws and requests.
        space: with the numbers of the axes free.
        axes: at least one.
        known: runs by `key_of`, shape (draws, COLUMNS) each: what an earlier sweep kept is not run again.
        keep: called with each combination and its runs as they end.
        front: look at first tokens against gaps as well.
        where: "processes" or "ray", as in `headway.experiments.scaleout.map_runs`.
        address: of a Ray cluster.
        workers: processes; None for one per core.
        progress: called with a label and a fraction.

    Returns:
        Swept.

    Raises:
        ValueError: another objective, or a value outside its range.
    """
    if problem.objective not in OBJECTIVES:
        raise ValueError(f"a sweep's objective must be one of {', '.join(OBJECTIVES)}, got {problem.objective!r}")
    points, say = combinations(space, axes), progress or (lambda _label, _fraction: None)
    found = {key_of(at): (known or {})[key_of(at)] for at in points if key_of(at) in (known or {})}
    missing = [at for at in points if key_of(at) not in found]
    train, heldout = (problem.draws(effort, heldout=h) for h in (False, True))
    blocks = [missing[i : i + BLOCK] for i in range(0, len(missing), BLOCK)]

    def done(place: int, rows: np.ndarray) -> None:
        for at, runs in zip(blocks[place], rows, strict=True):
            found[key_of(at)] = runs
            if keep:
                keep(at, runs)

    job = Runs(problem.identified, train, problem.targets, problem.limits)
    items = [[candidate_at(space, at) for at in block] for block in blocks]
    tell = lambda label, share: say(label, 0.85 * share)  # noqa: E731
    spread: dict[str, Any] = {"where": where, "address": address, "workers": workers}
    ran = map_runs(job, items, **spread, done=done, progress=tell, label=f"{len(missing)} combinations")
    say("best on held-out seeds", 0.85)
    runs = np.array([found[key_of(at)] for at in points]).reshape(len(points), len(train), COLUMNS)
    notes = [
        *ran.notes,
        *([f"{len(points) - len(missing)} of {len(points)} combinations were known already"] if len(missing) < len(points) else []),
    ]
    dead, judged = dead_axes(axes, points, runs), _judged(problem, space, points, runs, train, heldout)
    traded = _front(space, points, runs, job, job._replace(draws=heldout), spread) if front else None
    return Swept(points, runs, *judged, dead, notes, traded)


def _front(space: Space, points: list[dict[str, float]], runs: np.ndarray, train: Runs, heldout: Runs, spread: dict[str, Any]) -> Front:
    """The fronts of the combinations and of the static settings."""
    ours = [Tried(KINDS[0], dict(at), candidate_at(space, at), mine) for at, mine in zip(points, runs, strict=True)]
    grid = [s for timeout in (None, EARLY) for s in static_grid(train.limits, timeout)]
    static, said = tried_on(train, [(KINDS[1], s.to_json(), s.candidate()) for s in grid], **spread)
    again = lambda chosen: tried_on(heldout, [(t.kind, t.settings, t.candidate) for t in chosen], **spread)[0]  # noqa: E731
    return front_of([*ours, *static], again, said)


def _judged(
    problem: Problem, space: Space, points: list[dict[str, float]], runs: np.ndarray, train: list[Any], heldout: list[Any]
) -> tuple[list[Ranked], Static, Estimate]:
    """The best combinations and the best static setting, chosen on the training draws, on held-out ones."""
    column = OBJECTIVES[problem.objective]
    trained = runs[..., column].mean(axis=1)
    order = np.lexsort([-runs[..., GOODPUT_TPS].mean(axis=1), -np.round(trained, 12)])[:SHOWN]
    static = best_static(problem, train, (None,), Ledger()).setting
    job = Runs(problem.identified, heldout, problem.targets, problem.limits)
    rows = job([static.candidate(), *(candidate_at(space, points[i]) for i in order)])
    ranked = [
        Ranked(
            points[i],
            float(trained[i]),
            mean_interval(mine[:, column]),
            gain_interval(rows[0][:, column], mine[:, column]),
            {name: float(mine[:, NAMES.index(name)].mean()) for name in FIGURES},
        )
        for i, mine in zip(order, rows[1:], strict=True)
    ]
    return ranked, static, mean_interval(rows[0][:, column])


def dead_axes(axes: list[Axis], points: list[dict[str, float]], runs: np.ndarray) -> list[str]:
    """Numbers of which no value changed anything: with the others fixed, every figure of every run is the same to the last digit.

    Args:
        axes: swept.
        points: combinations.
        runs: shape (points, draws, COLUMNS).

    Returns:
        Names of axes with more than one value.
    """
    dead = []
    for name, _ in axes:
        groups: dict[str, list[int]] = {}
        for i, at in enumerate(points):
            groups.setdefault(key_of({k: v for k, v in at.items() if k != name}), []).append(i)
        several = [rows for rows in groups.values() if len(rows) > 1]
        if several and all(np.array_equal(runs[rows[0]], runs[i], equal_nan=True) for rows in several for i in rows[1:]):
            dead.append(name)
    return dead
