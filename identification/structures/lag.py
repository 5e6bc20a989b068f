"""Time booked on the neighbour: under asynchronous scheduling a row holds part of the step before it, or of the one after.

Booking is the recorder's, not the engine's: the plant is fitted to durations from which it is taken out, and a score puts
it back before it compares with what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from headway.identification.structures.crossval import Comparison, compare
from headway.identification.trace import Trace
from headway.models.plant import Batch
from headway.models.regimes import terms

REGIMES = ("decode", "mixed")
BEND = 0.02
"""Log residual from which on a row counts by its size, not its square."""
MOST = 0.5
"""Largest share that may be booked on a neighbour."""
SMALLEST = 0.004
"""Smallest share that is taken out."""
MOST_ROWS = 8_000
"""Rows that a share is estimated from at most, evenly spread."""
LEAST = 0.01
"""Share of the predicted duration that a row is taken for at least."""
ROUNDS = 15
"""Rounds of reweighting at most."""
FEWEST = 100
"""Rows of a regime below which nothing is said of its booking."""


class Neighbours(NamedTuple):
    """The rows beside each row.

    Args:
        before: whether the row before is the step before, of the same stream, shape (k,), bool.
        after: whether the row after is the next step, shape (k,), bool.
        mixed: whether the step has prefill, shape (k,), bool.
    """

    before: np.ndarray
    after: np.ndarray
    mixed: np.ndarray


class Lag(NamedTuple):
    """Shares of time booked on neighbours.

    y_k = (1 - a - b) t_k + a t_(k-1) + b t_(k+1), with a and b of the regime of step k

    Args:
        late: a by regime: the row holds this share of the step before.
        early: b by regime: the row holds this share of the step after.
    """

    late: dict[str, float]
    early: dict[str, float]

    @staticmethod
    def none() -> Lag:
        """Nothing booked on neighbours.

        Returns:
            Zero shares.
        """
        return Lag(dict.fromkeys(REGIMES, 0.0), dict.fromkeys(REGIMES, 0.0))

    @property
    def any(self) -> bool:
        """Whether any share is above zero."""
        return any(x > 0 for x in (*self.late.values(), *self.early.values()))

    def factor(self, predicted_s: np.ndarray, neighbours: Neighbours) -> np.ndarray:
        """What a row holds, over what its own step takes.

        Args:
            predicted_s: durations of all steps by the plant, shape (k,) [s].
            neighbours: of the same rows.

        Returns:
            Factors above zero, shape (k,).
        """
        factor = np.ones(len(predicted_s))
        beside = _beside(predicted_s, neighbours)
        for regime, own in _regimes(neighbours):
            factor[own] += beside[own] @ np.array([self.late[regime], self.early[regime]])
        return np.maximum(factor, 1e-3)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; `from_json` is the inverse.

        Returns:
            The fields by name.
        """
        return {"late": dict(self.late), "early": dict(self.early)}

    @staticmethod
    def from_json(data: Any) -> Lag:
        """Read what `to_json` wrote.

        Args:
            data: its result; None, or anything else, means no lag.

        Returns:
            The lag.
        """
        if not isinstance(data, dict):
            return Lag.none()
        none = Lag.none()
        parts = [{r: float(data.get(name, {}).get(r, 0.0)) for r in REGIMES} for name in none._fields]
        return Lag(*parts)


def neighbours_of(trace: Trace) -> Neighbours:
    """Find the rows beside each row that are the steps beside it.

    Args:
        trace: all rows, shape (k,).

    Returns:
        The neighbours.
    """
    step, stream = trace.frame["step"].to_numpy(), trace.stream
    busy = trace.step_time_s > 0
    follows = np.zeros(len(trace), bool)
    follows[1:] = (np.diff(step) == 1) & (np.diff(stream) == 0) & busy[1:] & busy[:-1]
    return Neighbours(follows, np.append(follows[1:], False), trace.frame["prefill_tokens"].to_numpy() > 0)


def estimate(
    step_time_s: np.ndarray, predicted_s: np.ndarray, batch: Batch, neighbours: Neighbours, rows: np.ndarray, fold: np.ndarray
) -> tuple[Lag, list[tuple[str, str, Comparison]]]:
    """Estimate the shares, and keep those without which unseen rows are surely told worse.

    A plant that was fitted with the booking left in has part of it in its own terms: with a mean neighbour in its floor it
    leaves only what neighbours differ by. So a share is told beside all that the linear terms can take up:

        y_k / t_k = (1, terms_k / t_k) . c + a (t_(k-1) / t_k - 1) + b (t_(k+1) / t_k - 1)

    Args:
        step_time_s: measured durations of all rows, shape (k,) [s].
        predicted_s: by a plant that was fitted without a lag, shape (k,) [s].
        batch: sums of the same rows.
        neighbours: of the same rows.
        rows: which are used, shape (k,), bool.
        fold: number of each row's fold, shape (k,), int64.

    Returns:
        (the lag; per regime and direction that was tried how it compares).

    Source:
        Frisch and Waugh, Partial Time Regressions as Compared with Individual Trends, Econometrica 1933.
    """
    lag, tried = Lag.none(), []
    for regime, at, ratio, own, beside in _equations(step_time_s, predicted_s, batch, neighbours, rows):
        for name, column in (("late", 0), ("early", 1)):
            if not (np.abs(beside[:, column]) > 0.1).sum() >= 5:
                continue
            one, many = (_apart(part, beside[:, column], ratio, fold[at]) for part in (own[:, :1], own))
            compared = max(one, many, key=lambda c: c.errors)
            tried.append((name, regime, compared))
            if compared.errors >= 2.5 and compared.after < compared.before:
                getattr(lag, name)[regime] = _bounded(_regression(np.column_stack([own, beside[:, column]]), ratio)[-1])
    return lag, tried


def refined(lag: Lag, step_time_s: np.ndarray, predicted_s: np.ndarray, batch: Batch, neighbours: Neighbours, rows: np.ndarray) -> Lag:
    """The shares that were kept, told anew, together, by a plant from whose durations they were taken out.

    Args:
        lag: as estimated.
        step_time_s: measured durations of all rows, shape (k,) [s].
        predicted_s: by that plant, shape (k,) [s].
        batch: sums of the same rows.
        neighbours: of the same rows.
        rows: which are used, shape (k,), bool.

    Returns:
        The lag; a share of zero stays zero.
    """
    better = Lag(dict(lag.late), dict(lag.early))
    for regime, _, ratio, own, beside in _equations(step_time_s, predicted_s, batch, neighbours, rows):
        kept = [name for name in Lag._fields if getattr(lag, name)[regime] > 0]
        if kept:
            columns = beside[:, [Lag._fields.index(name) for name in kept]]
            found = _regression(np.column_stack([own, columns]), ratio)[-len(kept) :]
            for name, share in zip(kept, found.tolist(), strict=True):
                getattr(better, name)[regime] = _bounded(share)
    return better


def sentences(lag: Lag) -> list[str]:
    """What a lag means for people.

    Args:
        lag: as estimated.

    Returns:
        One sentence for each share above zero.
    """
    said = []
    for name, where in (("late", "the step before"), ("early", "the step after")):
        for regime, share in getattr(lag, name).items():
            if share > 0:
                said.append(
                    f"{regime}: a row holds {share:.1%} of the difference to {where} (asynchronous scheduling, or time booked on the "
                    "neighbour); taken out before the fit. Durations from one step's end to the next one's end would not need it"
                )
    return said


def _regimes(neighbours: Neighbours) -> list[tuple[str, np.ndarray]]:
    return [("decode", ~neighbours.mixed), ("mixed", neighbours.mixed)]


def _beside(predicted_s: np.ndarray, neighbours: Neighbours) -> np.ndarray:
    """Relative difference of the step before, and of the step after, shape (k, 2); zero where there is none."""
    safe = np.maximum(predicted_s, 1e-12)
    before = np.where(neighbours.before, np.roll(safe, 1) / safe - 1, 0.0)
    after = np.where(neighbours.after, np.roll(safe, -1) / safe - 1, 0.0)
    return np.stack([before, after], axis=1)


def _bounded(share: float) -> float:
    """A share that can be; zero for one that is not worth a word."""
    return float(min(share, MOST)) if share >= SMALLEST else 0.0


def _apart(own: np.ndarray, beside: np.ndarray, ratio: np.ndarray, fold: np.ndarray) -> Comparison:
    """What the neighbour is worth on rows left out, beside these terms."""
    columns, residuals = np.column_stack([own, beside]), []
    for width in (own.shape[1], own.shape[1] + 1):
        residual = np.empty(len(ratio))
        for number in np.unique(fold):
            here = fold == number
            found = _regression(columns[~here, :width], ratio[~here])
            residual[here] = np.log(ratio[here]) - np.log(np.maximum(columns[here, :width] @ found, LEAST))
        residuals.append(residual)
    return compare(*residuals)


def _equations(
    step_time_s: np.ndarray, predicted_s: np.ndarray, batch: Batch, neighbours: Neighbours, rows: np.ndarray
) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Per regime: its name, its rows, measured over predicted, the terms that the plant may have, and the neighbours' columns."""
    beside, safe = _beside(predicted_s, neighbours), np.maximum(predicted_s, 1e-12)
    for regime, mask in _regimes(neighbours):
        at = np.flatnonzero(rows & mask)
        if len(at) < FEWEST:
            continue
        at = at[:: max(len(at) // MOST_ROWS, 1)]
        own = np.column_stack([np.ones(len(at)), np.asarray(terms(Batch(*(np.asarray(c)[at] for c in batch))), float) / safe[at, None]])
        yield regime, at, np.maximum(step_time_s[at] / safe[at], LEAST), own[:, np.abs(own).max(axis=0) > 0], beside[at]


def _regression(columns: np.ndarray, ratio: np.ndarray) -> np.ndarray:
    """Coefficients that leave the smallest relative residual; from BEND on a row counts by its size, not its square."""
    found, fitted = np.zeros(columns.shape[1]), np.ones(len(ratio))
    for _ in range(ROUNDS):
        weight = 1 / (np.sqrt(1 + ((ratio / fitted - 1) / BEND) ** 2) * fitted**2)
        gram = columns.T @ (columns * weight[:, None])
        size = np.sqrt(np.maximum(np.diag(gram), 1e-300))
        before = found
        found = np.linalg.pinv(gram / size / size[:, None], rcond=1e-9, hermitian=True) @ (columns.T @ (weight * ratio) / size) / size
        fitted = np.maximum(columns @ found, LEAST)
        if np.abs(found[-1] - before[-1]) < 1e-4:
            break
    return found
