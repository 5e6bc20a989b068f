"""Correlation along a trace: what neighbouring steps share, and how to test beside it what they do not.

A residual that resembles its neighbour makes every slow input look related to it. Filtered by its own autoregression it
is white, the inputs filtered likewise keep their relation to it, and the plain tests hold again: generalised least squares.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_toeplitz
from scipy.stats import f as f_law

CLIP = 4.0
"""Robust standard deviations at which a residual is cut before it is correlated: a spike is an outlier, not a correlation."""
MOST_ORDER = 8
"""Longest autoregression that is tried [steps]."""
MOST_ROWS = 50_000
"""Rows that the diagnostics look at; of more, whole blocks evenly spread [rows]."""
BLOCK_ROWS = 1000
"""Rows of such a block [rows]."""
LEAST_SPREAD = 1e-12


class Sample(NamedTuple):
    """The rows that a diagnostic looks at.

    Args:
        rows: their numbers, ascending, shape (m,), int64.
        stretch: number of the unbroken stretch that each lies in, shape (m,), int64; lags never cross it.
        said: one sentence if rows were left out, else none.
    """

    rows: np.ndarray
    stretch: np.ndarray
    said: list[str]


def sampled(stream: np.ndarray) -> Sample:
    """All rows, or of more than `MOST_ROWS` whole blocks evenly spread, so that the cost of a test stays bounded.

    Args:
        stream: number of the source of each row, shape (k,), ascending.

    Returns:
        The rows.
    """
    k = len(stream)
    if k <= MOST_ROWS:
        return Sample(np.arange(k), np.asarray(stream, np.int64), [])
    starts = np.linspace(0, k - BLOCK_ROWS, MOST_ROWS // BLOCK_ROWS).round().astype(int)
    rows = (starts[:, None] + np.arange(BLOCK_ROWS)).ravel()
    broken = np.concatenate([[0], (np.diff(rows) != 1) | (np.diff(stream[rows]) != 0)])
    return Sample(rows, np.cumsum(broken), [f"diagnostics look at {len(rows):,} of {k:,} steps, in blocks of {BLOCK_ROWS:,} evenly spread"])


def spread(values: np.ndarray) -> float:
    """Robust standard deviation: 1.4826 times the median distance from the median.

    Args:
        values: shape (k,).

    Returns:
        In the unit of the values; the plain one where more than half of them are equal.
    """
    if len(values) == 0:
        return 0.0
    robust = 1.4826 * float(np.median(np.abs(values - np.median(values))))
    return robust if robust > LEAST_SPREAD else float(np.std(values))


def settled(values: np.ndarray, mixed: np.ndarray | None = None) -> np.ndarray:
    """Centred, in robust standard deviations and cut at +-`CLIP`; with regimes, each by its own.

    Args:
        values: shape (k,).
        mixed: whether the step has prefill, shape (k,), bool; None takes all as one regime.

    Returns:
        Shape (k,), mean zero in each regime.
    """
    out = np.zeros(len(values))
    for part in [np.ones(len(values), bool)] if mixed is None else [~mixed, mixed]:
        if part.any():
            size = spread(values[part])
            cut = np.clip((values[part] - np.median(values[part])) / (size if size > LEAST_SPREAD else 1.0), -CLIP, CLIP)
            out[part] = cut - cut.mean()
    return out


def autocorrelation(values: np.ndarray, stretch: np.ndarray, most: int) -> np.ndarray:
    """Correlation of a series with itself some steps before.

    r_h = sum x_k x_(k-h) / sum x_k^2, over pairs in one stretch

    Args:
        values: mean zero, in time order, shape (k,).
        stretch: number of the unbroken stretch of each, shape (k,).
        most: longest lag [steps].

    Returns:
        r_1 .. r_most, shape (most,); zeros for a series that stands still.
    """
    power = float(values @ values)
    found = np.zeros(most)
    if power > 0:
        for h in range(1, min(most, len(values) - 1) + 1):
            found[h - 1] = float((values[h:] * values[:-h])[stretch[h:] == stretch[:-h]].sum()) / power
    return found


def autoregression(values: np.ndarray, stretch: np.ndarray) -> np.ndarray:
    """Coefficients of the autoregression that whitens a series, its order chosen by BIC.

    Args:
        values: mean zero, in time order, shape (k,).
        stretch: number of the unbroken stretch of each, shape (k,).

    Returns:
        phi_1 .. phi_p, shape (p,), p from 0 to `MOST_ORDER`.

    Source:
        Box and Jenkins, Time Series Analysis, 1970, chapter 7 (Yule-Walker).
    """
    n = len(values)
    r = np.concatenate([[1.0], autocorrelation(values, stretch, MOST_ORDER)])
    best, chosen = 0.0, np.zeros(0)
    for order in range(1, min(MOST_ORDER, n // 10) + 1):
        # a breath of white noise keeps the equations regular for a series that hardly moves
        phi = solve_toeplitz(np.concatenate([[1.0 + 1e-9], r[1:order]]), r[1 : order + 1])
        left = 1.0 - float(phi @ r[1 : order + 1])
        value = n * np.log(max(left, 1e-12)) + order * np.log(n)
        if value < best:
            best, chosen = value, phi
    return chosen


def filtered(columns: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """x_k - sum phi_i x_(k-i). The first p rows, and those after the start of a stretch, hold no sense: see `whole`.

    Args:
        columns: shape (k,) or (k, m).
        phi: from `autoregression`, shape (p,).

    Returns:
        The same shape.
    """
    out = np.array(columns, float)
    for i, value in enumerate(phi, 1):
        out[i:] -= value * columns[:-i]
    return out


def whole(stretch: np.ndarray, before: int, after: int = 0) -> np.ndarray:
    """Rows with so many others before and after them in their stretch.

    Args:
        stretch: number of the unbroken stretch of each, shape (k,).
        before: rows [steps].
        after: rows [steps].

    Returns:
        Mask of shape (k,), bool.
    """
    mask = np.zeros(len(stretch), bool)
    last = len(stretch) - after
    if last > before:
        middle = stretch[before:last]
        mask[before:last] = (middle == stretch[: last - before]) & (middle == stretch[before + after :])
    return mask


class Explained(NamedTuple):
    """What further columns explain of a series, beyond others.

    Args:
        share: of the variance that the others left, 0 to 1.
        p: probability of so large a share by chance.
        coefficients: of the further columns, shape (m,).
    """

    share: float
    p: float
    coefficients: np.ndarray


def explained(values: np.ndarray, beside: np.ndarray, further: np.ndarray) -> Explained:
    """F test of nested regressions, over columns of any size; columns that say nothing new are left out.

    Args:
        values: white under the null, shape (k,).
        beside: columns that both regressions have, shape (k, a).
        further: columns that only the larger has, shape (k, m).

    Returns:
        What the further ones add; a share of 0 and p of 1 where there are too few rows, or nothing new in them.
    """
    nothing = Explained(0.0, 1.0, np.zeros(further.shape[1]))
    k = len(values)
    if k < 3 * (beside.shape[1] + further.shape[1] + 1):
        return nothing
    first = _basis(np.column_stack([np.ones(k), beside]))
    rest, new = values - first @ (first.T @ values), further - first @ (first.T @ further)
    size, was = np.sqrt((new**2).sum(axis=0)), np.sqrt((further**2).sum(axis=0))
    live = np.flatnonzero(size > 1e-6 * np.maximum(was, LEAST_SPREAD))
    power = float(rest @ rest)
    if len(live) == 0 or power <= LEAST_SPREAD:
        return nothing
    found = np.linalg.lstsq(new[:, live] / size[live], rest, rcond=1e-8)
    left = k - first.shape[1] - int(found[2])
    error = rest - (new[:, live] / size[live]) @ found[0]
    share = min(max(1.0 - float(error @ error) / power, 0.0), 1.0 - 1e-15)
    coefficients = np.zeros(further.shape[1])
    coefficients[live] = found[0] / size[live]
    return Explained(share, float(f_law.sf(share / (1 - share) * left / int(found[2]), int(found[2]), left)), coefficients)


def _basis(columns: np.ndarray) -> np.ndarray:
    """Orthonormal columns that span the same, shape (k, rank)."""
    size = np.sqrt((columns**2).sum(axis=0))
    left, value, _ = np.linalg.svd(columns / np.where(size > 0, size, 1.0), full_matrices=False)
    return left[:, value > 1e-8 * value[0]]


def chance(p: float) -> str:
    """A probability as words.

    Args:
        p: 0 to 1.

    Returns:
        "p = 0.02", or "p < 1e-6" for any below.
    """
    return "p < 1e-6" if p < 1e-6 else f"p = {p:.2g}"
