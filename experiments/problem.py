"""What is tuned for, and how much is spent on it: the problem, its workloads, and the score of a candidate."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from headway.controllers.default import default_candidate
from headway.controllers.simulator import Candidate, Draw, draw, evaluate
from headway.experiments.capacity import capacity_factor
from headway.experiments.constraints import Requirement, seen_of, violation
from headway.experiments.robust import Robust, pooled, worlds
from headway.experiments.selection import SCORES
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ATTAINMENT, CLEAN, GOODPUT_TPS, ITL_P99_S
from headway.models.signals import Limits, Target
from headway.models.workload import WorkloadSource

OBJECTIVES = ("attainment", "requests", "capacity")

GRADIENTS = ("auto", "fluid", "exact")
"""Where the slopes of a descent come from; "auto" asks the fluid where that is worth its compilation."""


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is spent.

    Args:
        train_seeds: workloads that candidates are compared on.
        heldout_seeds: workloads that only the result sees, at first.
        requests: per workload.
        sobol: points of the first look.
        starts: points from which slopes are followed.
        iterations: of Adam on exact differences, per start.
        seed: of the search itself.
        heldout_most: held-out workloads at most: more are looked at while the gain is not known well enough; 0 for none more.
        tight: half width of the gain's interval at which it is known well enough, as a share.
        gradient: one of GRADIENTS.
    """

    train_seeds: int = 8
    heldout_seeds: int = 20
    requests: int = 1000
    sobol: int = 64
    starts: int = 2
    iterations: int = 10
    seed: int = 0
    heldout_most: int = 0
    tight: float = 0.01
    gradient: str = "auto"

    def check(self) -> None:
        """Refuse what cannot be spent.

        Raises:
            ValueError: an unknown source of gradients.
        """
        if self.gradient not in GRADIENTS:
            raise ValueError(f"gradient must be one of {', '.join(GRADIENTS)}, got {self.gradient!r}")


@dataclasses.dataclass(frozen=True)
class Problem:
    """What is tuned for.

    Args:
        identified: the plant.
        source: of the workloads.
        targets: one per class.
        limits: of the engine.
        objective: one of OBJECTIVES.
        require: what a candidate has to keep beside it.
        robust: how plants that the trace allows as well count; None tunes for the fitted one alone.
    """

    identified: IdentifiedPlant
    source: WorkloadSource
    targets: tuple[Target, ...]
    limits: Limits
    objective: str = "attainment"
    require: tuple[Requirement, ...] = ()
    robust: Robust | None = None

    def check(self) -> None:
        """Refuse what cannot be tuned for.

        Raises:
            ValueError: an unknown objective, a requirement that cannot be kept or names no class, a robustness that cannot be.
        """
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective must be one of {', '.join(OBJECTIVES)}, got {self.objective!r}")
        for requirement in self.require:
            requirement.check(self.targets)
        if self.robust is not None:
            self.robust.check(self.identified)

    def draws(self, effort: Effort, *, heldout: bool, first: int = 0, count: int | None = None) -> list[Draw]:
        """Workloads and noise, one per seed.

        Args:
            effort: how many, how long.
            heldout: what tuning never sees.
            first: seed of the first.
            count: of seeds; None for as many as the effort says.

        Returns:
            Draws, all with the same number of requests.
        """
        count = count if count is not None else effort.heldout_seeds if heldout else effort.train_seeds
        seeds = range(first, first + count)
        return [draw(self.source, self.identified, seed, effort.requests, heldout=heldout) for seed in seeds]

    def untuned(self, draws: list[Draw], policy: Mapping[str, Any] | None = None) -> Candidate:
        """The controller straight from the fit, for prompts as long as those of some workloads.

        Args:
            draws: workloads.
            policy: what the policy is to have otherwise, by field.

        Returns:
            Candidate.

        Raises:
            ValueError: a policy that cannot be.
        """
        prompts = prompts_of(draws, len(self.targets))
        return default_candidate(self.identified, self.targets, self.limits, policy=policy, prompt_tokens=prompts)

    def plants(self) -> list[IdentifiedPlant]:
        """The plants that a candidate is scored on.

        Returns:
            The fitted one; where the problem is robust, those drawn from its intervals.
        """
        return [self.identified] if self.robust is None else worlds(self.identified, self.robust)

    def scores(self, candidates: list[Candidate], draws: list[Draw], stretch: float = 1.0) -> np.ndarray:
        """The objective with what decides between near ties.

        Args:
            candidates: to compare.
            draws: to compare them on.
            stretch: factor on all arrival times.

        Returns:
            Per candidate the columns of `headway.experiments.selection`: objective, attainment, share of clean requests,
            goodput [tokens/s], p99 ITL [s], infinite where there is no gap, and by how much requirements are missed; shape
            (candidates, SCORES). Over draws, and over plants where the problem is robust.
        """
        plants, factors = self.plants(), np.full(len(candidates), stretch)
        runs = [evaluate(plant, candidates, draws, self.targets, self.limits, stretch=factors) for plant in plants]
        measures = np.concatenate(runs, axis=1)
        attainment, clean = (pooled(measures[..., k], self.robust) for k in (ATTAINMENT, CLEAN))
        if self.objective == "capacity":
            found = [capacity_factor(plant, candidates, draws, self.targets, self.limits) for plant in plants]
            value = pooled(np.stack(found, axis=1), self.robust)
        else:
            value = clean if self.objective == "requests" else attainment
        goodput_tps, itl_p99_s = measures[..., GOODPUT_TPS].mean(axis=1), measures[..., ITL_P99_S].mean(axis=1)
        missed = self._missed(candidates, draws, plants, measures) if self.require else np.zeros(len(candidates))
        columns = (value, attainment, clean, goodput_tps, np.nan_to_num(itl_p99_s, nan=np.inf), missed)
        assert len(columns) == SCORES
        return np.stack(columns, axis=1)

    def _missed(self, candidates: list[Candidate], draws: list[Draw], plants: list[IdentifiedPlant], measures: np.ndarray) -> np.ndarray:
        """By how much each candidate misses what is required, all of its runs taken together."""
        found = []
        for k, candidate in enumerate(candidates):
            seen = seen_of(self.require, candidate, draws, plants, self.targets, self.limits, measures[k])
            found.append(violation(self.require, seen))
        return np.array(found)


def prompts_of(draws: list[Draw], classes: int) -> list[np.ndarray]:
    """Prompt lengths of all workloads, by class.

    Args:
        draws: workloads.
        classes: their number.

    Returns:
        One array per class [tokens].
    """
    prompt, mine = (np.concatenate([getattr(d.workload, name) for d in draws]) for name in ("prompt_tokens", "class_id"))
    return [prompt[mine == c] for c in range(classes)]
