"""The settings a stock engine can be started with: the grid that a controller has to beat, with and without a queue timeout."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw
from headway.controllers.static import StaticLaw
from headway.experiments.checkpoint import Ledger
from headway.experiments.problem import Problem
from headway.experiments.selection import ATTAINED, MISSED, VALUE
from headway.models.signals import Limits

BUDGET_SHARES = (1 / 64, 1 / 32, 1 / 16, 3 / 32, 1 / 8, 1 / 4, 1 / 2, 1)
RUNNING_SHARES = (1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 1)
"""Grid as shares of the engine's start-up limits: at 8192 tokens and 256 requests 128 ... 8192 and 8 ... 256."""

EARLY = 0.8
"""Queue timeout where one is named, as a share of the TTFT target."""

TIMEOUTS = (1.0, 0.8, 0.6)
"""Queue timeouts of the second baseline, as shares of the TTFT target: whoever sets one would try some."""

LOOKS, KEPT = 3, 24
"""Draws on which a large grid is looked at first, one in so many but no fewer; settings of it that are then scored on all."""

TIED, HEAVIER = 0.001, 1.15
"""Static settings within TIED of the best are told apart by what they attain at a load HEAVIER times as high."""


class Static(NamedTuple):
    """One start-up setting.

    Args:
        token_budget: most tokens in a step [tokens].
        running_limit: most requests running [requests].
        timeout: share of the TTFT target after which the queue gives a request up; None for never.
    """

    token_budget: int
    running_limit: int
    timeout: float | None = None

    def candidate(self) -> Candidate:
        """The setting as the simulator takes it: stock order, nothing else.

        Returns:
            Candidate.
        """
        triage = "none" if self.timeout is None else "timeout"
        policy = Policy(order="fcfs", triage=triage, timeout=self.timeout or 1.0, running_limit=float(self.running_limit))
        return Candidate(StaticLaw(float(self.token_budget)), policy)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            Mapping by field name.
        """
        return dict(self._asdict())


def static_grid(limits: Limits, timeout: float | None = None) -> list[Static]:
    """Eight token budgets times eight running limits.

    Args:
        limits: the engine's start-up limits.
        timeout: share of the TTFT target; None for no timeout.

    Returns:
        At most 64 settings, fewer where the limits are so small that neighbours coincide.
    """
    budgets = sorted({max(1, round(share * limits.max_tokens)) for share in BUDGET_SHARES})
    running = sorted({max(1, round(share * limits.max_seqs)) for share in RUNNING_SHARES})
    return [Static(b, n, timeout) for b in budgets for n in running]


def best(settings: list[Static], measures: np.ndarray, objective: int) -> int:
    """The setting with the highest mean over the seeds, the smaller budget and limit where two tie.

    Args:
        settings: in ascending order.
        measures: shape (settings, seeds, MEASURES).
        objective: which measure.

    Returns:
        Index of the best setting.
    """
    return int(np.argmax(np.round(measures[: len(settings), :, objective].mean(axis=1), 12)))


class Trained(NamedTuple):
    """A static setting chosen on the training draws.

    Args:
        setting: the setting.
        score: of it, as `Problem.scores`, shape (SCORES,).
    """

    setting: Static
    score: np.ndarray


def best_static(problem: Problem, draws: list[Draw], timeouts: tuple[float | None, ...], ledger: Ledger) -> Trained:
    """The best setting of the grid; of several that tie, as below the knee many do, the one that bears a heavier load best.

    A setting at its very edge in training would fall over on held-out seeds, and any controller would seem to beat it. Where
    something is required, only settings that keep it are looked at; where none does, those that miss it least. Of several
    timeouts all settings are looked at on some of the draws, and the best of them scored on all.

    Args:
        problem: what is tuned for.
        draws: of the training.
        timeouts: shares of the TTFT target; None for no timeout.
        ledger: what is known already.

    Returns:
        The setting with its score.
    """
    grid = [s for timeout in timeouts for s in static_grid(problem.limits, timeout)]
    looks = draws[: max(LOOKS, len(draws) // LOOKS)]
    if len(timeouts) > 1 and len(looks) < len(draws):
        grid = _looked_at(problem, grid, looks, ledger)
    i, score = bears_most(problem, [s.candidate() for s in grid], draws, ledger)
    return Trained(grid[i], score)


def bears_most(problem: Problem, candidates: list[Candidate], draws: list[Draw], ledger: Ledger) -> tuple[int, np.ndarray]:
    """The best candidate; of several that tie, the one that bears a heavier load best, then the first.

    Args:
        problem: what is tuned for; candidates that miss a requirement more than others do are left out.
        candidates: to choose from.
        draws: of the training.
        ledger: what is known already.

    Returns:
        Its index, and its score as `Problem.scores`, shape (SCORES,).
    """
    scores = ledger.scores(problem, candidates, draws)
    least = scores[:, MISSED] <= scores[:, MISSED].min() + 1e-12
    value = np.where(least, scores[:, VALUE], -np.inf)
    tied = np.flatnonzero(value >= value.max() - TIED)
    heavier = under_more(problem, [candidates[i] for i in tied], draws, ledger)
    i = int(tied[np.argmax(np.round(heavier, 12))])
    return i, scores[i]


def _looked_at(problem: Problem, grid: list[Static], looks: list[Draw], ledger: Ledger) -> list[Static]:
    """The KEPT best of a grid on a few draws, in its order; what ties, by a heavier load."""
    scores = ledger.scores(problem, [s.candidate() for s in grid], looks)
    heavier = under_more(problem, [s.candidate() for s in grid], looks, ledger)
    order = np.lexsort([-heavier, -np.round(scores[:, VALUE] / TIED), np.round(scores[:, MISSED], 12)])
    return [grid[i] for i in sorted(order[:KEPT].tolist())]


def under_more(problem: Problem, candidates: list[Candidate], draws: list[Draw], ledger: Ledger, heavier: float = HEAVIER) -> np.ndarray:
    """What candidates attain at a heavier load.

    Args:
        problem: what is tuned for.
        candidates: to compare.
        draws: of the training.
        ledger: what is known already.
        heavier: factor on the rate.

    Returns:
        Attainment, shape (candidates,).
    """
    plain = dataclasses.replace(problem, objective="attainment", require=())
    return ledger.scores(plain, candidates, draws, 1 / heavier)[:, ATTAINED]
