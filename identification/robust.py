"""One law from many steps: a robust, non-negative fit of linear terms to durations, in relative terms.

Minimises the sum of Huber's rho(log y_i - log(x_i . c)) over c >= 0, by iteratively reweighted non-negative least squares.

The logarithm is taken because the plant's noise multiplies: with residuals 1/y (weights by the measured duration, the
usual form) every step that came out long counts for less, and the law is low by about the noise's variance, 9 % at a
standard deviation of 0.3. Huber's rho rather than a redescending one (Tukey): that has local minima, and on steps that
fall into two groups (a graph limit) it keeps one group and declares the other wrong.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

HUBER = 1.345
"""Residual, in robust standard deviations, from which on a step counts by its size, not its square: 95 % efficient."""
LEAST_SPREAD = 1e-4
"""Standard deviation assumed at least, so that steps without noise do not divide by zero."""
MOST = 3.0
"""Largest logarithmic residual that enters: one step cannot count for more."""
ROUNDS = 60
CHANGE = 1e-6
"""Change of any term's largest share of the median duration below which the fit has converged, within at most ROUNDS."""


class Law(NamedTuple):
    """A fitted law, and the equations linearised at it, which the bootstrap and the excitation check use again.

    Args:
        coefficients: non-negative, shape (m,), in the units of the terms.
        rows: terms over predicted duration, shape (k, m): rows @ coefficients is 1.
        residual: log(measured / predicted), bounded to +-MOST, shape (k,).
        weight: Huber's, in (0, 1]; below 1 where the residual is beyond the bend, shape (k,).
    """

    coefficients: np.ndarray
    rows: np.ndarray
    residual: np.ndarray
    weight: np.ndarray


def fit_law(terms: np.ndarray, step_time_s: np.ndarray) -> Law:
    """Fit one law.

    A term that stood still is told apart from a constant by nothing, and left to the constant: given to the term, it
    would grow with it wherever the law is used.

    Args:
        terms: regressors, the first of them constant, shape (k, m); not negative.
        step_time_s: measured durations, above zero, shape (k,) [s].

    Returns:
        The law.

    Source:
        Huber, Robust Estimation of a Location Parameter, 1964; Lawson and Hanson, Solving Least Squares Problems,
        1974, chapter 23 (non-negative least squares).
    """
    still = np.ptp(terms, axis=0) <= 1e-9 * terms.max(axis=0)
    still[0] = False
    terms = np.where(still, 0.0, terms)
    law = _linearised(terms, step_time_s, nonnegative(terms / step_time_s[:, None], np.ones(len(step_time_s))))
    size = terms.max(axis=0) / np.median(step_time_s)
    for _ in range(ROUNDS):
        found = nonnegative(*equations(law))
        change = np.abs((found - law.coefficients) * size).max()
        law = _linearised(terms, step_time_s, found)
        if change <= CHANGE:
            break
    return law


def equations(law: Law) -> tuple[np.ndarray, np.ndarray]:
    """The weighted equations whose least-squares solution is the next round's law, and at the solution the law itself.

    Args:
        law: of this round.

    Returns:
        (rows, shape (k, m); right-hand side, shape (k,)).
    """
    root = np.sqrt(law.weight)
    return law.rows * root[:, None], (1.0 + law.residual) * root


def _linearised(terms: np.ndarray, step_time_s: np.ndarray, coefficients: np.ndarray) -> Law:
    predicted = np.maximum(terms @ coefficients, np.finfo(float).tiny)
    residual = np.clip(np.log(step_time_s) - np.log(predicted), -MOST, MOST)
    bend = HUBER * max(1.4826 * float(np.median(np.abs(residual))), LEAST_SPREAD)
    weight = bend / np.maximum(np.abs(residual), bend)
    return Law(coefficients, terms * (np.exp(residual) / step_time_s)[:, None], residual, weight)


def nonnegative(rows: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Least squares under c >= 0, over columns of very different size.

    Args:
        rows: shape (k, m).
        right: shape (k,).

    Returns:
        Coefficients, shape (m,); zero for a column that is zero throughout.
    """
    size = np.sqrt((rows**2).sum(axis=0))
    size[size == 0] = 1.0
    # the normal equations' factor has m rows instead of k: the same solution, and hundreds of times cheaper to iterate on
    factor, reduced = _compress(rows / size, right)
    return nnls(factor, reduced, maxiter=100 * rows.shape[1])[0] / size


def _compress(rows: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if len(rows) <= rows.shape[1]:
        return rows, right
    q, r = np.linalg.qr(rows)
    return r, q.T @ right


def plain(law: Law) -> np.ndarray:
    """What least squares on the same equations would say if coefficients could be negative.

    Args:
        law: the fitted law.

    Returns:
        Coefficients, shape (m,); a negative one means that the data do not support its term.
    """
    rows, right = equations(law)
    size = np.sqrt((rows**2).sum(axis=0))
    size[size == 0] = 1.0
    return np.linalg.lstsq(rows / size, right, rcond=1e-10)[0] / size
