"""What a step could take by the steps of nearest shape: the bounds that the row rules hold every row against."""

from __future__ import annotations

import numpy as np
from scipy.spatial import KDTree

from headway.identification.trace import BLOCK_ROWS

NEIGHBOURS = 64
"""Rows of the nearest shapes that a row is held against."""
FEWEST = 3
"""Comparable rows below which nothing is said of a row: it stays."""
STRETCH = 2.0
"""Most times the work, in any sum, over which a row is still held against another: s times the work, at most s times the time."""
MANY_TIMES = 3.0
"""Ratio to comparable rows from which on a row is too long (or, inverted, too short) to be a step like them."""
SPREADS = 8.0
"""The same in robust standard deviations of the logarithm: a noisy trace keeps its tail, whatever the ratio."""
TIME_SHARE = 0.001
"""How far apart in shape (in logarithms) the first and the last row of a stream count, for equal sums."""
CHUNK = 4_000
"""Rows that are held against their neighbours at once, to bound memory [rows]."""
MOST_REFERENCES = 30_000
"""Rows of a trace that its rows are held against; in a trace of no more, all. Of a larger one: whole blocks, evenly spread."""
FEWEST_REFERENCES = 4_000
"""The same of one stream and regime at least, however many streams there are."""
CLEAR = 0.5
"""Part of the factor by which a row of a large trace may miss the bounds of its nearest reference before it is looked at closely."""


class Neighbours:
    """Rows of one stream and regime, and the bounds that the rows of nearest shape set to each.

    Of two steps, if one has at most s >= 1 times the work of the other in every sum, it takes at most s times as long:
    so says every plant that is linear or flatter in its sums, whatever its coefficients. Medians over the neighbours.

    Args:
        log_time: logarithm of the durations, in time order, shape (k,).
        work: sums of the steps, shape (k, 5).
        most: rows that the others are held against; if there are no more, all are [rows].
    """

    def __init__(self, log_time: np.ndarray, work: np.ndarray, most: int = MOST_REFERENCES) -> None:
        self.log_time, self.shape = log_time, _shape(work)
        self.references = spread(len(work), most)
        self.tree = KDTree(self.shape[self.references])
        self.factor = _factor(log_time[self.references], self.shape[self.references], self.tree)

    def suspects(self) -> np.ndarray:
        """Rows that must be looked at closely: all, or in a large trace those that their nearest reference does not clear.

        A row is cleared within half the factor of that reference's own bounds, shifted against it by the difference in
        work. Cleared and aside it could be only where the bounds of two nearest rows are more than the other half apart,
        a ratio of 1.7, while medians over 64 rows move by some percent.

        Returns:
            Mask of shape (k,), bool.
        """
        k = len(self.shape)
        if len(self.references) == k:
            return np.ones(k, bool)
        nearest = np.asarray(self.tree.query(self.shape, workers=-1)[1])
        upper, lower = (bound[nearest] for bound in self.bounds(self.references))
        more, less = _stretches(self.shape, self.shape, self.references[nearest])
        slack = CLEAR * self.factor
        within = (self.log_time <= upper - less + slack) & (self.log_time >= lower + more - slack)
        return ~(within & (np.maximum(more, less) <= np.log(STRETCH)))

    def bounds(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The longest, and the shortest, that steps could take. Rows that too few references are like count as such themselves.

        Args:
            rows: row numbers, shape (n,).

        Returns:
            Logarithms, shape (n,) each; NaN where fewer than `FEWEST` rows are comparable.
        """
        upper, lower = self._held(rows, self.references, self.tree)
        strange = rows[np.isnan(upper) | np.isnan(lower)]
        if len(strange) and len(self.references) < len(self.shape):
            more = np.union1d(self.references, strange[spread(len(strange), MOST_REFERENCES)])
            alone = np.isin(rows, strange)
            upper[alone], lower[alone] = self._held(strange, more, KDTree(self.shape[more]))
        return upper, lower

    def _held(self, rows: np.ndarray, references: np.ndarray, tree: KDTree) -> tuple[np.ndarray, np.ndarray]:
        found = np.full((2, len(rows)), np.nan)
        for start in range(0, len(rows), CHUNK):
            some = rows[start : start + CHUNK]
            nearest = references[tree.query(self.shape[some], k=min(NEIGHBOURS + 1, len(references)), workers=-1)[1]]
            other, times = nearest != some[:, None], self.log_time[nearest]
            for k, (sign, stretch) in enumerate(zip((1.0, -1.0), _stretches(self.shape[some], self.shape, nearest), strict=True)):
                comparable = (stretch <= np.log(STRETCH)) & other
                values = np.sort(np.where(comparable, times + sign * stretch, np.inf), axis=1)
                count = comparable.sum(axis=1)
                middle = values[np.arange(len(some)), np.maximum(count - 1, 0) // 2]
                found[k, start : start + CHUNK] = np.where(count >= FEWEST, middle, np.nan)
        return found[0], found[1]


def spread(n: int, most: int, block: int = BLOCK_ROWS) -> np.ndarray:
    """Numbers of at most `most` of n rows: all of them, or whole blocks of consecutive ones, evenly spread.

    Args:
        n: rows there are.
        most: rows wanted at most; at least one block is taken.
        block: rows of a block.

    Returns:
        Ascending row numbers, int64.

    Example:
        >>> spread(10, 4, block=2)
        array([0, 1, 8, 9])
    """
    if n <= max(most, block):
        return np.arange(n)
    starts = np.linspace(0, n - block, max(most // block, 1)).round().astype(np.int64)
    return (starts[:, None] + np.arange(block)).ravel()


def _shape(work: np.ndarray) -> np.ndarray:
    """Where a row lies among the others: logarithms of its sums, and a trace of its time, which tells equal shapes apart."""
    return np.column_stack([np.log1p(work), np.linspace(0.0, TIME_SHARE, len(work))])


def _factor(log_time: np.ndarray, shape: np.ndarray, tree: KDTree) -> float:
    """Log ratio from which on a row is no step like the others: MANY_TIMES, or more where steps of one shape scatter more."""
    nearest = np.asarray(tree.query(shape, k=2, workers=-1)[1])
    other = np.where(nearest[:, 0] == np.arange(len(shape)), nearest[:, 1], nearest[:, 0])
    deviation = 1.4826 * float(np.median(np.abs(log_time - log_time[other]))) / np.sqrt(2.0)
    return max(float(np.log(MANY_TIMES)), SPREADS * deviation)


def _stretches(own: np.ndarray, shape: np.ndarray, nearest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log of how many times the work a row has of each neighbour in any sum, and of how many times the neighbour has of it."""
    more, less = np.zeros(nearest.shape), np.zeros(nearest.shape)
    for column in range(shape.shape[1] - 1):
        ahead = own[:, column].reshape(-1, *[1] * (nearest.ndim - 1)) - shape[nearest, column]
        np.maximum(more, ahead, out=more)
        np.minimum(less, ahead, out=less)
    return more, -less
