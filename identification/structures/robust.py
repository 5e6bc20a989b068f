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
from scipy.linalg import solve_triangular
from scipy.optimize import nnls

HUBER = 1.345
"""Residual, in robust standard deviations, from which on a step counts by its size, not its square: 95 % efficient."""
LEAST_SPREAD = 1e-4
"""Standard deviation assumed at least, so that steps without noise do not divide by zero."""
MOST = 3.0
"""Largest logarithmic residual that enters: one step cannot count for more."""
ROUNDS = 60
ALIKE = 1e-12
"""Share of the largest eigenvalue below which a direction of alike columns is told by nothing."""
CHANGE = 1e-6
"""Change of any term's largest share of the median duration below which the fit has converged, within at most ROUNDS."""

WELL = 1e-5
"""Smallest eigenvalue of the Gram matrix of unit columns from which on it stands for them: condition numbers below some 700."""


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


def fit_law(terms: np.ndarray, step_time_s: np.ndarray, *, rounds: int = ROUNDS) -> Law:
    """Fit one law.

    A term that stood still is told apart from a constant by nothing, and left to the constant: given to the term, it
    would grow with it wherever the law is used.

    Args:
        terms: regressors, the first of them constant, shape (k, m); not negative.
        step_time_s: measured durations, above zero, shape (k,) [s].
        rounds: at most this many; a search over many structures needs few.

    Returns:
        The law.

    Source:
        Huber, Robust Estimation of a Location Parameter, 1964; Lawson and Hanson, Solving Least Squares Problems,
        1974, chapter 23 (non-negative least squares).
    """
    still = np.ptp(terms, axis=0) <= 1e-9 * terms.max(axis=0)
    still[0] = False
    if still.any():
        terms = np.where(still, 0.0, terms)
    log_time = np.log(step_time_s)
    exact = rounds >= ROUNDS
    coefficients = nonnegative(terms / step_time_s[:, None], np.ones(len(step_time_s)), exact=exact)
    size = terms.max(axis=0) / np.median(step_time_s)
    for _ in range(rounds):
        residual, weight = _residual(terms, log_time, coefficients)
        root = np.sqrt(weight)
        found = nonnegative(terms * (root * np.exp(residual) / step_time_s)[:, None], (1.0 + residual) * root, exact=exact)
        change = np.abs((found - coefficients) * size).max()
        coefficients = found
        if change <= CHANGE:
            break
    residual, weight = _residual(terms, log_time, coefficients)
    return Law(coefficients, terms * (np.exp(residual) / step_time_s)[:, None], residual, weight)


def _residual(terms: np.ndarray, log_time: np.ndarray, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logarithmic residuals at these coefficients, and Huber's weights."""
    predicted = np.maximum(terms @ coefficients, np.finfo(float).tiny)
    residual = np.clip(log_time - np.log(predicted), -MOST, MOST)
    size = np.abs(residual)
    bend = HUBER * max(1.4826 * float(np.median(size)), LEAST_SPREAD)
    return residual, bend / np.maximum(size, bend)


def equations(law: Law) -> tuple[np.ndarray, np.ndarray]:
    """The weighted equations whose least-squares solution is the next round's law, and at the solution the law itself.

    Args:
        law: of this round.

    Returns:
        (rows, shape (k, m); right-hand side, shape (k,)).
    """
    root = np.sqrt(law.weight)
    return law.rows * root[:, None], (1.0 + law.residual) * root


def nonnegative(rows: np.ndarray, right: np.ndarray, *, exact: bool = True) -> np.ndarray:
    """Least squares under c >= 0, over columns of very different size.

    Args:
        rows: shape (k, m).
        right: shape (k,).
        exact: as in `reduce`.

    Returns:
        Coefficients, shape (m,); zero for a column that is zero throughout.
    """
    factor, reduced, size = reduce(rows, right, exact=exact)
    return nnls(factor, reduced, maxiter=100 * rows.shape[1])[0] / size


def reduce(rows: np.ndarray, right: np.ndarray, *, exact: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Equations of m rows instead of k with the same least-squares solutions, over columns of unit size.

    Cholesky's factor of the Gram matrix, one pass over the rows; it squares the condition number, so where columns are
    so alike that this would cost more than six digits, the QR factor, several times slower.

    Args:
        rows: shape (k, m).
        right: shape (k,).
        exact: False where six digits are enough (a search over many structures): alike columns then cost no QR either.

    Returns:
        (factor, shape (m, m), or (k, m) for fewer rows than that; right-hand side, as many; size of each column of
        `rows`, 1 for one of zeros, shape (m,): a solution times it is one of the factor's).
    """
    gram = rows.T @ rows
    size = np.sqrt(np.diag(gram))
    size[size == 0] = 1.0
    gram /= size[:, None] * size
    live: np.ndarray = np.flatnonzero(np.diag(gram))
    if len(rows) > rows.shape[1] and np.linalg.eigvalsh(gram[live[:, None], live])[:1].min(initial=1.0) > WELL:
        factor, reduced = np.zeros(gram.shape), np.zeros(len(gram))
        factor[live[:, None], live] = own = np.linalg.cholesky(gram[live[:, None], live]).T
        reduced[live] = solve_triangular(own, (right @ rows)[live] / size[live], trans=1)
        return factor, reduced, size
    if len(rows) <= rows.shape[1]:
        return rows / size, right, size
    if not exact:
        values, vectors = np.linalg.eigh(gram)
        root = np.sqrt(np.maximum(values, values[-1] * ALIKE))
        return root[:, None] * vectors.T, (vectors.T @ ((right @ rows) / size)) / root, size
    q, r = np.linalg.qr(rows / size)
    return r, q.T @ right, size


def plain(law: Law) -> np.ndarray:
    """What least squares on the same equations would say if coefficients could be negative.

    Args:
        law: the fitted law.

    Returns:
        Coefficients, shape (m,); a negative one means that the data do not support its term.
    """
    factor, reduced, size = reduce(*equations(law))
    return np.linalg.lstsq(factor, reduced, rcond=1e-10)[0] / size


def condition(law: Law) -> float:
    """Condition number of the equations with columns of equal size, columns of zeros left out.

    Args:
        law: the fitted law.

    Returns:
        Largest over smallest singular value, at most 1e15.
    """
    factor, _, _ = reduce(*equations(law))
    values = np.linalg.svd(factor[:, np.abs(factor).max(axis=0) > 0], compute_uv=False)
    return float(values[0] / max(values[-1], values[0] * 1e-15))
