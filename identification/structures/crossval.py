"""Blocked cross-validation: what a structure is worth on steps that it was not fitted to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.identification.structures.learn import FEWEST, learn, rows_of
from headway.identification.structures.robust import ROUNDS
from headway.identification.structures.terms import Structure
from headway.models.plant import Batch

FOLDS = 5
"""Folds: whole blocks of rows, dealt in turn."""
GROUPS = 40
"""Groups of neighbouring rows that errors are compared over: differences of groups are nearly independent, of rows not."""
SURE = 2.5
"""Standard errors by which an improvement must differ from none: about a dozen candidates are tried at a time."""
WORTH = 0.02
"""Share of the error below which an improvement is not worth a term."""


RUNS = 25
"""Runs of a regime's rows that are dealt to the folds at least, of `SHORTEST` to `LONGEST` rows."""
SHORTEST, LONGEST = 5, 200


def folds(rows: np.ndarray, mixed: np.ndarray) -> np.ndarray:
    """Deal the rows of each regime to the folds, by runs of neighbours.

    Steps with prefill are few and far apart: blocks of all rows would leave whole kinds of them out at a time, and judge
    how a structure extrapolates instead of how it predicts.

    Args:
        rows: which are used, shape (k,), bool.
        mixed: which have prefill, shape (k,), bool.

    Returns:
        Number of each row's fold, from 0, shape (k,), int64.
    """
    fold = np.zeros(len(rows), np.int64)
    for regime in (False, True):
        own = np.flatnonzero(rows & (mixed == regime))
        run = int(np.clip(len(own) // RUNS, SHORTEST, LONGEST))
        fold[own] = np.arange(len(own)) // run % FOLDS
    return fold


class Comparison(NamedTuple):
    """Two structures on the same held-out rows of one regime.

    Args:
        before: mean absolute log residual of the simpler.
        after: of the other.
        errors: standard errors by which it is better; negative if it is worse.
    """

    before: float
    after: float
    errors: float

    @property
    def better(self) -> bool:
        """Whether the other is surely better, and worth it."""
        return self.errors >= SURE and self.after <= (1 - WORTH) * self.before

    @property
    def worse(self) -> bool:
        """Whether the other is surely worse."""
        return self.errors <= -SURE


def out_of_fold(
    structure: Structure,
    batch: Batch,
    step_time_s: np.ndarray,
    rows: np.ndarray,
    fold: np.ndarray,
    *,
    rounds: int = ROUNDS,
    only: str | None = None,
) -> np.ndarray:
    """Residuals of steps by laws that were not fitted to their fold.

    Args:
        structure: what is fitted.
        batch: sums of all steps, shape (k,).
        step_time_s: durations, shape (k,) [s].
        rows: which are used, shape (k,), bool.
        fold: number of each row's fold, shape (k,), int64.
        rounds: of reweighting at most, in each fit.
        only: the one regime that the rows are of; None for both.

    Returns:
        log(measured / predicted), shape (k,); NaN for rows that are not used, and where the others are too few to fit.
    """
    residual = np.full(len(step_time_s), np.nan)
    for number in np.unique(fold[rows]):
        here, others = rows & (fold == number), rows & (fold != number)
        if int(others.sum()) < FEWEST:
            continue
        plant = learn(structure, batch, step_time_s, others, rounds=rounds, only=only).plant
        predicted = np.asarray(plant.step_time_s(rows_of(batch, here)), float)
        residual[here] = np.log(step_time_s[here]) - np.log(np.maximum(predicted, np.finfo(float).tiny))
    return residual


def compare(before: np.ndarray, after: np.ndarray) -> Comparison:
    """Hold two sets of out-of-fold residuals against each other.

    Args:
        before: of the simpler structure, in time order, shape (k,).
        after: of the other, of the same rows, shape (k,).

    Returns:
        The comparison; no difference where a residual is missing in all rows.
    """
    both = np.isfinite(before) & np.isfinite(after)
    one, two = np.abs(before[both]), np.abs(after[both])
    if not len(one):
        return Comparison(np.nan, np.nan, 0.0)
    gain = np.array([part.mean() for part in np.array_split(one - two, min(GROUPS, len(one)))])
    spread = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else np.inf
    return Comparison(float(one.mean()), float(two.mean()), float(gain.mean() / max(spread, 1e-12)))
