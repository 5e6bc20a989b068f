"""The largest value of a sparse linear program, with a certificate: what is reported holds even where the solver is imprecise.

Weak duality: for any prices y (those of inequalities not negative) and any x within its limits

    c x <= b y + sum_j max over [l_j, u_j] of (c - A' y)_j x_j

so the right-hand side, evaluated at the prices the solver came to, is a bound whatever the solver's tolerance.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

LARGE = 2000
"""Rows from which the interior-point method, with its crossover, is the quicker one by two or three times."""


class Largest(NamedTuple):
    """What a program came to.

    Args:
        value: no point of the program exceeds it.
        point: where the solver ended, shape (variables,); its value is below `value`.
    """

    value: float
    point: np.ndarray


class Program:
    """Variables within limits, and rows `a x <= b` or `a x = b`, put together block by block."""

    def __init__(self) -> None:
        """Without variables."""
        self._low: list[np.ndarray] = []
        self._high: list[np.ndarray] = []
        self._parts: dict[bool, tuple[list, list, list, list]] = {False: ([], [], [], []), True: ([], [], [], [])}
        self._rows = {False: 0, True: 0}
        self._terms: list[int] = []
        self._made: tuple | None = None
        self.size = 0

    def variables(self, count: int, high: np.ndarray | float, low: np.ndarray | float = 0.0) -> np.ndarray:
        """New variables.

        Args:
            count: how many.
            high: upper limits, finite, shape (count,) or one for all.
            low: lower limits, finite, the same.

        Returns:
            Their numbers, shape (count,).
        """
        self._low.append(np.broadcast_to(np.asarray(low, float), count))
        self._high.append(np.broadcast_to(np.asarray(high, float), count))
        self.size += count
        return np.arange(self.size - count, self.size)

    def top(self, variables: np.ndarray) -> float:
        """The largest upper limit among some variables.

        Args:
            variables: their numbers, shape (k,).

        Returns:
            The limit.
        """
        return float(np.concatenate(self._high)[variables].max(initial=0.0))

    def rows(
        self, terms: list[tuple[np.ndarray, np.ndarray, np.ndarray | float]], right: np.ndarray | float, count: int, *, equal: bool = False
    ) -> None:
        """New rows.

        Args:
            terms: (row from 0, variable, coefficient), shapes (k,); equal places add up.
            right: right-hand sides, shape (count,) or one for all.
            count: of rows.
            equal: `=` instead of `<=`.
        """
        rows, columns, values, rights = self._parts[equal]
        if not equal:
            self._terms.append(len(rows))
        for row, column, value in terms:
            rows.append(np.asarray(row) + self._rows[equal])
            columns.append(np.asarray(column))
            values.append(np.broadcast_to(np.asarray(value, float), len(rows[-1])))
        rights.append(np.broadcast_to(np.asarray(right, float), count))
        self._rows[equal] += count
        self._made = None

    def mark(self) -> tuple[int, int]:
        """Where the rows `a x <= b` end, to come back to with `forget`.

        Returns:
            (their parts, their number).
        """
        return len(self._parts[False][3]), self._rows[False]

    def forget(self, mark: tuple[int, int]) -> None:
        """Take back the rows `a x <= b` that came after a mark.

        Args:
            mark: from `mark`.
        """
        rights, self._rows[False] = mark
        rows, columns, values, right = self._parts[False]
        terms = self._terms[rights]
        del rows[terms:], columns[terms:], values[terms:], right[rights:], self._terms[rights:]
        self._made = None

    def _matrix(self, equal: bool) -> tuple[sp.csr_matrix, np.ndarray]:
        rows, columns, values, right = self._parts[equal]
        joined = lambda parts: np.concatenate(parts) if parts else np.zeros(0)  # noqa: E731
        shape = (self._rows[equal], self.size)
        return sp.csr_matrix((joined(values), (joined(rows).astype(int), joined(columns).astype(int))), shape=shape), joined(right)

    def largest(self, worth: np.ndarray, high: dict[int, float] | None = None) -> Largest:
        """The largest value of `worth x`, certified.

        Args:
            worth: of each variable, shape (variables,).
            high: upper limits that replace those of some variables, by their number.

        Returns:
            Largest; where the solver gave up, the value that the limits alone allow.
        """
        if self._made is None:
            self._made = (*self._matrix(False), *self._matrix(True))
        less, most, same, right = self._made
        low, top = np.concatenate(self._low), np.concatenate(self._high).copy()
        for j, value in (high or {}).items():
            top[j] = value
        for method in ("highs-ipm", "highs-ds") if self._rows[False] > LARGE else ("highs-ds",):
            found = linprog(-worth, less, most, same, right, np.column_stack([low, top]), method=method)
            if found.x is not None and found.ineqlin is not None:
                break
        else:
            return Largest(float(np.maximum(worth * low, worth * top).sum()), top)
        prices, free = np.maximum(-found.ineqlin.marginals, 0.0), -found.eqlin.marginals
        reduced = worth - less.T @ prices - same.T @ free
        value = most @ prices + right @ free + np.maximum(reduced * low, reduced * top).sum()
        return Largest(float(value), found.x)
