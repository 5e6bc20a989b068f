"""Several searches from different seeds, each a whole tuning of its own, spread over processes or a Ray cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from headway.experiments.scaleout import map_runs
from headway.experiments.tune import Effort, Problem, Tuned, choose, tune

Progress = Callable[[str, float], None]


class Started(NamedTuple):
    """The best of several searches.

    Args:
        tuned: its result; what is held out was seen by no choice.
        seeds: of the searches.
        trained: objective of each search's candidate on the training draws, shape (searches,).
        chosen: index of the one that was kept.
        notes: sentences on how it was run.
    """

    tuned: Tuned
    seeds: tuple[int, ...]
    trained: np.ndarray
    chosen: int
    notes: list[str]

    def sentence(self) -> str:
        """How far the searches agree.

        Returns:
            One sentence.
        """
        low, high = 100 * self.trained.min(), 100 * self.trained.max()
        return f"{len(self.seeds)} searches ended between {low:.2f} and {high:.2f} % in training; that of seed {self.seeds[self.chosen]} is kept"


def tune_from(
    problem: Problem,
    effort: Effort,
    searches: int,
    *,
    free: tuple[str, ...] | None = None,
    policy: Mapping[str, Any] | None = None,
    where: str = "processes",
    address: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Started:
    """Tune from several seeds at once, and keep the result that is best on the training draws, which are the same for all.

    Args:
        problem: what is tuned for.
        effort: of each search; its seed is that of the first, the others follow.
        searches: how many, at least 1.
        free: as `headway.experiments.tune.tune` takes it.
        policy: likewise.
        where: "processes" or "ray", as in `headway.experiments.scaleout.map_runs`.
        address: of a Ray cluster.
        workers: processes; None for one per core.
        progress: called with a label and a fraction.

    Returns:
        Started; the same for any number of workers.

    Raises:
        ValueError: no search, or what `tune` refuses.
    """
    if searches < 1:
        raise ValueError(f"searches must be at least 1, got {searches}")
    seeds = tuple(range(effort.seed, effort.seed + searches))
    spread: dict[str, Any] = {"where": where, "address": address, "workers": workers}
    ran = map_runs(_Search(problem, effort, free, policy), seeds, **spread, progress=progress, label=f"{searches} searches")
    found: list[Tuned] = ran.results
    scores = problem.scores([t.tuned.candidate for t in found], problem.draws(effort, heldout=False))
    chosen = choose([np.zeros(1)] * searches, scores, problem.objective)
    return Started(found[chosen], seeds, scores[:, 0], chosen, ran.notes)


class _Search(NamedTuple):
    """One search as a function of its seed: sent to a worker once."""

    problem: Problem
    effort: Effort
    free: tuple[str, ...] | None
    policy: Mapping[str, Any] | None

    def __call__(self, seed: int) -> Tuned:
        return tune(self.problem, dataclasses.replace(self.effort, seed=seed), free=self.free, policy=self.policy)
