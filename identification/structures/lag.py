"""Time booked on the neighbour: under asynchronous scheduling a row holds part of the step before it, or of the one after.

Booking is the recorder's, not the engine's: the plant is fitted to durations from which it is taken out, and a score puts
it back before it compares with what was measured.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

from headway.identification.structures.crossval import Comparison, compare
from headway.identification.trace import Trace

REGIMES = ("decode", "mixed")
BEND = 0.02
"""Log residual from which on a row counts by its size, not its square."""
MOST = 0.5
"""Largest share that may be booked on a neighbour."""
MOST_ROWS = 20_000
"""Rows that a share is estimated from at most, evenly spread."""
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
    step_time_s: np.ndarray, predicted_s: np.ndarray, neighbours: Neighbours, rows: np.ndarray, fold: np.ndarray
) -> tuple[Lag, list[tuple[str, str, Comparison]]]:
    """Estimate the shares, and keep those without which unseen rows are surely told worse.

    Args:
        step_time_s: measured durations of all rows, shape (k,) [s].
        predicted_s: by a plant that was fitted without a lag, shape (k,) [s].
        neighbours: of the same rows.
        rows: which are used, shape (k,), bool.
        fold: number of each row's fold, shape (k,), int64.

    Returns:
        (the lag; per regime and direction that was tried how it compares).
    """
    lag, tried = Lag.none(), []
    beside = _beside(predicted_s, neighbours)
    log_ratio = np.log(np.maximum(step_time_s, 1e-12)) - np.log(np.maximum(predicted_s, 1e-12))
    for regime, own in _regimes(neighbours):
        at = np.flatnonzero(rows & own)
        if len(at) < FEWEST:
            continue
        at = at[:: max(len(at) // MOST_ROWS, 1)]
        for name, column in (("late", 0), ("early", 1)):
            columns = beside[at][:, [column]]
            if not (np.abs(columns) > 0.1).sum() >= 5:
                continue
            after = np.empty(len(at))
            for number in np.unique(fold[at]):
                here = fold[at] == number
                share = _share(columns[~here], log_ratio[at][~here])
                after[here] = log_ratio[at][here] - np.log1p(columns[here, 0] * share)
            found = compare(log_ratio[at], after)
            tried.append((name, regime, found))
            if found.errors >= 2.5 and found.after < found.before:
                getattr(lag, name)[regime] = _share(columns, log_ratio[at])
    return lag, tried


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


def _share(columns: np.ndarray, log_ratio: np.ndarray) -> float:
    """The share that leaves the smallest residual, by a loss that bends from a square to a slope."""
    centre, slope = float(np.median(log_ratio)), columns[:, 0]

    def loss(share: float) -> float:
        residual = (log_ratio - centre - np.log1p(np.maximum(slope * share, -0.95))) / BEND
        return float(np.sqrt(1 + residual**2).sum())

    found: Any = minimize_scalar(loss, bounds=(0.0, MOST), method="bounded", options={"xatol": 1e-5})
    return float(found.x) if loss(float(found.x)) < loss(0.0) else 0.0
