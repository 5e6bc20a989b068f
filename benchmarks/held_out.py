"""Steps that a plant or a peer was not fitted to: its errors on them with intervals, its worst ones, and its coverage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headway.identification.rows import KEPT, judge
from headway.identification.structures.intervals import band
from headway.identification.structures.lag import Lag, neighbours_of
from headway.identification.trace import Trace
from headway.models.identified import IdentifiedPlant

DRAWS = 2000
"""Bootstrap draws of whole blocks."""


class Errors(NamedTuple):
    """Absolute percentage errors of some steps.

    Args:
        steps: how many.
        mean: their mean [%].
        ci95: interval of the mean over whole blocks [%].
        worst_decile: where the worst tenth begins [%].
        most: the largest [%].
    """

    steps: int
    mean: float
    ci95: tuple[float, float]
    worst_decile: float
    most: float

    def tail(self) -> str:
        """What the mean hides, for a cell of the table."""
        return f"[{self.ci95[0]:.2f}, {self.ci95[1]:.2f}] %, {self.worst_decile:.1f} %, {self.most:.0f} %"


class Held(NamedTuple):
    """Steps that were not fitted to, and what was predicted for them.

    Args:
        measured_s: durations, shape (k,) [s].
        predicted_s: by a plant or a peer, shape (k,) [s].
        mixed: whether a step has prefill, shape (k,), bool.
        block: number of the block that a step lies in, shape (k,).
    """

    measured_s: np.ndarray
    predicted_s: np.ndarray
    mixed: np.ndarray
    block: np.ndarray

    @property
    def residual(self) -> np.ndarray:
        """log(measured / predicted), shape (k,)."""
        return np.log(self.measured_s / self.predicted_s)

    def of(self, rows: np.ndarray) -> Held:
        """Some of the steps, by a mask of shape (k,)."""
        return Held(*(column[rows] for column in self))

    @property
    def ape(self) -> np.ndarray:
        """Absolute percentage errors, shape (k,) [%]."""
        return 100 * np.abs(self.predicted_s / self.measured_s - 1)

    def errors(self) -> Errors:
        """Of all these steps."""
        ape = self.ape
        return Errors(len(ape), float(ape.mean()), share(ape, self.block)[1], float(np.quantile(ape, 0.9)), float(ape.max()))


class Split:
    """The kept rows of a trace, some to fit to and others to score; for a plant and its peers alike.

    Args:
        trace: the trace.
        fitted: rows to fit to, shape (k,), bool; even blocks if None.
        scored: rows to score, shape (k,), bool; odd blocks if None.
    """

    def __init__(self, trace: Trace, fitted: np.ndarray | None = None, scored: np.ndarray | None = None) -> None:
        kept = judge(trace) == KEPT
        self.trace = trace
        self.fitted = kept & (trace.in_blocks("even") if fitted is None else fitted)
        self.scored = kept & (trace.in_blocks("odd") if scored is None else scored)
        self.sums = np.stack(trace.batch(), axis=1)

    def held(self, predicted_s: np.ndarray) -> Held:
        """The scored rows beside what was predicted for all rows, shape (k,) [s]."""
        return held(self.trace, predicted_s, self.scored)


def held(trace: Trace, predicted_s: np.ndarray, rows: np.ndarray) -> Held:
    """Some rows of a trace beside what was predicted for all of them, shape (k,) [s]."""
    columns = (trace.step_time_s, predicted_s, trace.frame["prefill_tokens"].to_numpy() > 0, trace.frame["block"].to_numpy())
    return Held(*columns).of(rows)


def predicted_s(identified: IdentifiedPlant, trace: Trace) -> np.ndarray:
    """What the rows of a trace should read by a plant, what the recorder books on neighbours included, as `score` does it."""
    time_s = np.asarray(identified.plant.step_time_s(trace.batch()), float)
    lag = Lag.from_json(identified.about.get("lag"))
    return time_s * lag.factor(time_s, neighbours_of(trace)) if lag.any else time_s


def share(values: np.ndarray, block: np.ndarray) -> tuple[float, tuple[float, float]]:
    """The mean of some values, and its 95 % interval by drawing whole blocks."""
    numbers = np.unique(block, return_inverse=True)[1]
    total, size = np.bincount(numbers, values), np.bincount(numbers)
    drawn = np.random.default_rng(0).integers(0, len(size), (DRAWS, len(size)))
    low, high = np.quantile(total[drawn].sum(axis=1) / size[drawn].sum(axis=1), [0.025, 0.975])
    return float(np.mean(values)), (float(low), float(high))


def pooled_coverage(runs: Sequence[tuple[Held, np.ndarray]]) -> tuple[float, tuple[float, float]]:
    """Share of new residuals within the 90 % band of each run's own plant, with its interval over the blocks of all runs.

    Args:
        runs: steps of one regime that were not fitted to, and the residuals that the plant carries for that regime.

    Returns:
        (share, interval).
    """
    hits, blocks = [], []
    for number, (steps, stored) in enumerate(runs):
        low, high = band(stored, 0.9)
        hits.append((steps.residual >= low) & (steps.residual <= high))
        blocks.append(steps.block + 1_000_000 * number)
    return share(np.concatenate(hits).astype(float), np.concatenate(blocks))
