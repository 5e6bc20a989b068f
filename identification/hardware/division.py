"""How a step's time divides among devices: each term's line in 1/TP, fitted to runs at several tensor-parallel sizes.

A coefficient is c(TP) = alone / TP + limit (1 - 1/TP): `alone` on one device, `limit` on endlessly many. A ring
all-reduce, (TP - 1)/TP of a term's work, lies on that line and needs no term of its own: from times alone it cannot be
told from work that every device repeats, and for a prediction it need not be. A cost that comes with the second device
and then stays (TP > 1) does not lie on it; two sizes cannot tell it from the line, so it is left out, and with three or
more the error of leaving a size out says what that costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from headway.identification.structures.intervals import coefficient_interval
from headway.identification.structures.robust import fit_law
from headway.models.regimes import TERMS

NAMES = tuple(name for name, _ in TERMS)
ACTING = {"decode": 3, "mixed": 6}
"""Leading terms of `TERMS` that act in each regime."""
FEWEST = 20
"""Used steps that each run must hold in each regime."""
FORMS: dict[str, tuple[str, ...]] = {
    "attention divides": ("floor", "per_decode_request", "per_prefill_token", "per_prefill_request"),
    "only floor and prompt tokens do not divide": ("floor", "per_prefill_token"),
    "nothing divides fully": NAMES,
}
"""Terms that have a limit, by form, the form by argument first: attention runs by heads, each on one device, with nothing to
exchange; what surrounds it (norms, sampling, all-reduces, launch) does not divide."""
BETTER = 0.95
"""Another form must bring the cross-validated error below this share of the first form's: the difference of two forms that
fit alike is chance, and argument is not."""
MOVED = 1e-9
"""Spread of a sum within a run, over its largest value, below which it stood still."""


class Terms(NamedTuple):
    """The law of one regime.

    Args:
        alone: coefficients on one device, in the order of `TERMS`, shape (6,).
        limit: what is left of them on endlessly many, shape (6,).
        alone_ci95: intervals, shape (6, 2).
        limit_ci95: intervals, shape (6, 2).
        form: a key of `FORMS`.
        errors: cross-validated mean APE by form.
    """

    alone: np.ndarray
    limit: np.ndarray
    alone_ci95: np.ndarray
    limit_ci95: np.ndarray
    form: str
    errors: Mapping[str, float]


class Run(NamedTuple):
    """The used steps of the runs at one size.

    Args:
        tp: tensor-parallel size.
        terms: regressors, shape (k, 6).
        step_time_s: measured, shape (k,) [s].
        block: number of each step's block of 200, shape (k,).
    """

    tp: int
    terms: np.ndarray
    step_time_s: np.ndarray
    block: np.ndarray

    def regime(self, name: str) -> Run:
        """The steps of one regime.

        Args:
            name: "decode" or "mixed".

        Returns:
            A run of these alone.
        """
        mask = (self.terms[:, 3] > 0) == (name == "mixed")
        return self.where(mask)

    def where(self, mask: np.ndarray) -> Run:
        """Some of the steps.

        Args:
            mask: shape (k,), bool.

        Returns:
            A run of these alone.
        """
        return Run(self.tp, self.terms[mask], self.step_time_s[mask], self.block[mask])


def shares_of(tp: int, kv_heads: int | None) -> np.ndarray:
    """Share of each term's work that falls to one device.

    Args:
        tp: tensor-parallel size.
        kv_heads: heads of the cache; None divides it without end.

    Returns:
        Shares in (0, 1], in the order of `TERMS`, shape (6,).

    Raises:
        ValueError: a size below 1.
    """
    if tp < 1:
        raise ValueError(f"the tensor-parallel size must be at least 1, got {tp}")
    shares = np.full(len(TERMS), 1.0 / tp)
    shares[NAMES.index("per_kv_token")] = 1.0 / min(tp, kv_heads or tp)
    return shares


def at_size(alone: np.ndarray, limit: np.ndarray, tp: int, kv_heads: int | None) -> np.ndarray:
    """Coefficients at one size.

    Args:
        alone: on one device, shape (6,).
        limit: on endlessly many, shape (6,).
        tp: tensor-parallel size.
        kv_heads: heads of the cache; None divides it without end.

    Returns:
        Coefficients in the order of `TERMS`, shape (6,).
    """
    shares = shares_of(tp, kv_heads)
    return alone * shares + limit * (1 - shares)


def _stacked(runs: list[Run], count: int, form: str, kv_heads: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Regressors of all runs: for each term its share on one device, then for those with a limit the rest."""
    still = np.all([np.ptp(r.terms[:, :count], axis=0) <= MOVED * r.terms[:, :count].max(axis=0) for r in runs], axis=0)
    still[0] = False  # a term that stood still in every run is the floor's, as in a fit at one size
    limited = [j for j in range(count) if NAMES[j] in FORMS[form]]
    rows = []
    for run in runs:
        x, shares = np.where(still, 0.0, run.terms[:, :count]), shares_of(run.tp, kv_heads)[:count]
        rows.append(np.concatenate([x * shares, (x * (1 - shares))[:, limited]], axis=1))
    return np.concatenate(rows), np.array(limited, int)


def _coefficients(runs: list[Run], count: int, form: str, kv_heads: int | None) -> tuple[np.ndarray, np.ndarray]:
    rows, limited = _stacked(runs, count, form, kv_heads)
    found = fit_law(rows, np.concatenate([run.step_time_s for run in runs])).coefficients
    return _spread(found, count, limited)


def _spread(values: np.ndarray, count: int, limited: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(alone, limit), each of the six terms along the first axis, from one value per column."""
    alone, limit = np.zeros((len(TERMS), *values.shape[1:])), np.zeros((len(TERMS), *values.shape[1:]))
    alone[:count], limit[limited] = values[:count], values[count:]
    return alone, limit


def _error(alone: np.ndarray, limit: np.ndarray, run: Run, kv_heads: int | None) -> float:
    return float(np.mean(np.abs(run.terms @ at_size(alone, limit, run.tp, kv_heads) / run.step_time_s - 1)))


def _validated(runs: list[Run], count: int, form: str, kv_heads: int | None) -> float:
    """Mean APE on steps not fitted to: a size left out where two or more are left, else the other blocks."""
    errors = []
    if len(runs) > 2:
        for out in runs:
            rest = _coefficients([run for run in runs if run is not out], count, form, kv_heads)
            errors.append(_error(*rest, out, kv_heads))
        return float(np.mean(errors))
    for half in (0, 1):
        learn, test = ([run.where(run.block % 2 == side) for run in runs] for side in (half, 1 - half))
        if min(len(run.step_time_s) for run in (*learn, *test)) < FEWEST // 2:
            return float("nan")
        found = _coefficients(learn, count, form, kv_heads)
        errors += [_error(*found, run, kv_heads) for run in test]
    return float(np.mean(errors))


def fit_regime(runs: list[Run], count: int, kv_heads: int | None, rng: np.random.Generator) -> Terms:
    """Choose the form of one regime and fit it to all runs at once.

    Args:
        runs: steps of this regime, one run for each size.
        count: leading terms that act.
        kv_heads: heads of the cache; None divides it without end.
        rng: random numbers of the bootstrap.

    Returns:
        The law.
    """
    errors = {form: _validated(runs, count, form, kv_heads) for form in FORMS}
    form = next(iter(FORMS))
    best = min(errors, key=lambda name: errors[name] if np.isfinite(errors[name]) else np.inf)
    if errors[best] < BETTER * errors[form]:
        form = best
    rows, limited = _stacked(runs, count, form, kv_heads)
    law = fit_law(rows, np.concatenate([run.step_time_s for run in runs]))
    ends = _spread(coefficient_interval(law, rng), count, limited)
    return Terms(*_spread(law.coefficients, count, limited), *ends, form, errors)
