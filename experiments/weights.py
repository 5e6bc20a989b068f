"""The search for the trade between first tokens and gaps: the best setting under each of several weights of the two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.stats import qmc

from headway.controllers.simulator import Candidate, Draw
from headway.experiments.baseline import EARLY, static_grid
from headway.experiments.pareto import KINDS, Front, Setting, Tried, both_of, front_of, tried_on
from headway.experiments.problem import Effort, Problem
from headway.experiments.promises import Runs
from headway.experiments.space import Space

WEIGHTS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Weights of the first-token promise under which the search goes on from the best point so far."""

AROUND = 8
"""Points tried about the best one of each weight in each round."""

SPREADS = (2.0, 0.7)
"""Practical units in each number by which they lie apart from it, one round each."""

Progress = Callable[[str, float], None]


def weighted_front(
    problem: Problem,
    effort: Effort,
    space: Space,
    *,
    known: list[tuple[Candidate, dict[str, Any]]] | None = None,
    where: str = "processes",
    address: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Front:
    """Search the trade between both promises, and show it on held-out draws, beside that of the static settings.

    maximise  w ttft + (1 - w) itl  for each w of WEIGHTS, from Sobol points and the settings already known

    Who is on a front is decided on the training draws, what they attain is of the held-out ones.

    Args:
        problem: plant, workload, targets, limits; its objective is not used.
        effort: draws, requests, Sobol points, seed.
        space: the free numbers.
        known: candidates tried already, with their settings, such as the tuned one.
        where: "processes" or "ray", as in `headway.experiments.scaleout.map_runs`.
        address: of a Ray cluster.
        workers: processes; None for one per core.
        progress: called with a label and a fraction.

    Returns:
        Front.
    """
    say = progress or (lambda _label, _fraction: None)
    notes: list[str] = []

    def ran(settings: list[Setting], draws: list[Draw]) -> list[Tried]:
        job = Runs(problem.identified, draws, problem.targets, problem.limits)
        found, said = tried_on(job, settings, where=where, address=address, workers=workers)
        notes.extend(said)
        return found

    train = problem.draws(effort, heldout=False)
    say("both promises", 0.0)
    start = [(KINDS[1], s.to_json(), s.candidate()) for timeout in (None, EARLY) for s in static_grid(problem.limits, timeout)]
    start += [(KINDS[0], words, c) for c, words in known or []]
    sobol = qmc.Sobol(len(space.free), rng=np.random.default_rng(effort.seed)).random(effort.sobol)
    tried = ran([*start, *_named(space, [space.point(space.base), *(space.low + sobol * (space.high - space.low))])], train)
    rng = np.random.default_rng(effort.seed)
    for k, spread in enumerate(SPREADS):
        say("both promises", 0.4 + 0.2 * k)
        best = best_by_weight([t for t in tried if t.kind == KINDS[0]])
        near = [space.point(t.candidate) + spread * rng.normal(size=len(space.free)) for t in best for _ in range(AROUND)]
        tried += ran(_named(space, [np.clip(p, space.low, space.high) for p in near]), train)
    say("both promises, held out", 0.8)
    heldout = problem.draws(effort, heldout=True)
    return front_of(tried, lambda chosen: ran([(t.kind, t.settings, t.candidate) for t in chosen], heldout), list(dict.fromkeys(notes)))


def best_by_weight(side: list[Tried]) -> list[Tried]:
    """The best setting under each weight, each once.

    Args:
        side: settings on training draws; one without a first token in time counts as keeping no gap.

    Returns:
        At most as many as there are weights.
    """
    both = np.nan_to_num(both_of(side), nan=0.0)
    return [side[i] for i in dict.fromkeys(int(np.argmax(w * both[:, 0] + (1 - w) * both[:, 1])) for w in WEIGHTS)]


def _named(space: Space, points: list[np.ndarray]) -> list[Setting]:
    return [(KINDS[0], space.values(p), space.candidate(p)) for p in points]
