"""TPOT against concurrency: a concave law for curves of a few points, and how well it predicts a point that it has not seen."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.identification.structures.families import CurveFamily, Told
from headway.identification.structures.robust import Law, fit_law

FEWEST = 3
"""Points that three coefficients need."""
FORMS = ("sqrt", "linear")
FEWEST_LEFT_OUT = 4
"""Points of a curve from which on one can be left out."""


class ConcurrencyLaw(NamedTuple):
    """A fitted curve, t = floor + per_request * c + per_root * sqrt(c).

    Args:
        floor: at no concurrency [s].
        per_request: of a request in service [s/request].
        per_root: of the root of their number [s/sqrt(request)].
    """

    floor: float
    per_request: float
    per_root: float

    def tpot_s(self, concurrency: np.ndarray) -> np.ndarray:
        """Time per output token.

        Args:
            concurrency: requests in service, shape (k,) [requests].

        Returns:
            Shape (k,) [s].
        """
        count = np.asarray(concurrency, float)
        return self.floor + self.per_request * count + self.per_root * np.sqrt(count)


class LeftOut(NamedTuple):
    """How far each point of a curve lies from the law fitted to the others.

    Args:
        error: |predicted / measured - 1|, in order of concurrency, shape (k,).
        inside: whether other points lie on both sides; a point at an end is extrapolated to, shape (k,), bool.
    """

    error: np.ndarray
    inside: np.ndarray


def curve_law(concurrency: np.ndarray, tpot_s: np.ndarray, *, form: str = "sqrt", told: Told | None = None) -> Law:
    """The fit behind `fit_concurrency`, with its residuals.

    Args:
        concurrency: requests in service, above zero, shape (k,) [requests].
        tpot_s: mean time per output token, above zero, shape (k,) [s].
        form: "sqrt", or "linear" for d = 0.
        told: points that other curves tell, each counted as one that was measured; None for the curve alone.

    Returns:
        The law; rows, residuals and weights are of the points measured alone.
    """
    count, time_s = np.asarray(concurrency, float), np.asarray(tpot_s, float)
    measured = len(count)
    if told is not None:
        count, time_s = np.concatenate([count, told.concurrency]), np.concatenate([time_s, told.tpot_s])
    terms = np.column_stack([np.ones_like(count), count, np.sqrt(count)])
    law = fit_law(terms if form == "sqrt" else terms[:, :2], time_s)
    return Law(law.coefficients, law.rows[:measured], law.residual[:measured], law.weight[:measured])


def fit_concurrency(concurrency: np.ndarray, tpot_s: np.ndarray, *, form: str = "sqrt", told: Told | None = None) -> ConcurrencyLaw:
    """Fit one curve, robustly, in relative terms, with no coefficient below zero.

    t = a + b c + d sqrt(c)

    The root stands for what saturates: experts that are touched, waves of blocks on the card. A straight line misses
    measured curves at both ends; a free exponent is not told from it by five points.

    Args:
        concurrency: requests in service, above zero, shape (k,) [requests].
        tpot_s: mean time per output token, above zero, shape (k,) [s].
        form: "sqrt", or "linear" for d = 0.
        told: points that other curves tell, see `CurveFamily.told`; None for the curve alone.

    Returns:
        The law.

    Raises:
        ValueError: too few points, shapes that differ, or a value that is not above zero.

    Example:
        >>> law = fit_concurrency(np.array([1.0, 4.0, 16.0, 64.0]), np.array([0.011, 0.014, 0.026, 0.074]), form="linear")
        >>> round(law.per_request, 4)
        0.001
    """
    count, time_s = np.asarray(concurrency, float), np.asarray(tpot_s, float)
    if form not in FORMS:
        raise ValueError(f"form must be one of {list(FORMS)}, got {form!r}")
    if count.shape != time_s.shape or count.ndim != 1:
        raise ValueError(f"expected as many concurrencies as times, got shapes {count.shape} and {time_s.shape}")
    if len(np.unique(count)) < FEWEST:
        raise ValueError(f"a curve needs points at {FEWEST} concurrencies at least, got {len(np.unique(count))}")
    if not (np.all(np.isfinite(count) & (count > 0)) and np.all(np.isfinite(time_s) & (time_s > 0))):
        raise ValueError("concurrencies and times must be finite and above zero")
    law = curve_law(count, time_s, form=form, told=told).coefficients
    return ConcurrencyLaw(float(law[0]), float(law[1]), float(law[2]) if form == "sqrt" else 0.0)


def leave_one_out(
    concurrency: np.ndarray, tpot_s: np.ndarray, *, form: str = "sqrt", family: CurveFamily | None = None, name: str = ""
) -> LeftOut:
    """Leave out each point in turn, fit the others, and predict it.

    With a family the law is fitted to the others and to what the other curves tell, from them, of this one.

    Args:
        concurrency: requests in service, above zero, each once, shape (k,) [requests].
        tpot_s: mean time per output token, above zero, shape (k,) [s].
        form: "sqrt" or "linear".
        family: curves that tell of each other; None for the curve alone.
        name: of this curve in the family.

    Returns:
        Errors in order of concurrency.

    Raises:
        ValueError: fewer than 4 points, a concurrency that comes twice (it would predict itself), a name that the family lacks, or as
            `fit_concurrency`.
    """
    count, time_s = np.asarray(concurrency, float), np.asarray(tpot_s, float)
    if len(count) < FEWEST_LEFT_OUT or len(np.unique(count)) < len(count):
        raise ValueError(f"needs {FEWEST_LEFT_OUT} points at least, each at its own concurrency, got {sorted(count.tolist())}")
    order = np.argsort(count)
    count, time_s = count[order], time_s[order]
    error = np.empty(len(count))
    for i in range(len(count)):
        others = np.arange(len(count)) != i
        told = family.told(name, count[others], time_s[others]) if family is not None else None
        law = fit_concurrency(count[others], time_s[others], form=form, told=told)
        error[i] = abs(float(law.tpot_s(count[i : i + 1])[0]) / time_s[i] - 1.0)
    inside = np.ones(len(count), bool)
    inside[[0, -1]] = False
    return LeftOut(error, inside)
