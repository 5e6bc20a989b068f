"""What curves of other deployments tell of a curve of a few points: its time per token where it was not measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from headway.identification.structures.robust import HUBER

FAMILY = ("model_path", "system", "backend", "mode")
"""Columns whose values curves of one family share: their kernels and captured sizes, so they bend at the same concurrencies."""
WORKLOAD = {"tp_size": 1.5, "isl": 2.0, "osl": 2.0}
"""Columns that move within a family, and the difference of their logarithms at which two curves are hardly alike any more."""
FEWEST_CURVES = 15
"""Other curves, with points at all concurrencies in question, below which nothing is told."""
FEWEST_KNOWN = 3
"""Points of a curve below which its shape is not known."""
SAME = 0.01
"""Curves that are all within this of each other are one measurement told twice: neither tells of the other."""
STRAIGHT, SHAPED, SHAPE_WIDTH, KIN, LEVEL, SCATTER = 1.0, 0.1, 0.5, 0.05, 0.01, 0.02
"""Prior of a log ratio: deviations by slope, by shape, over what distance of shapes, by kinship, of the mean; scatter of a point."""
ROUNDS = 3
"""Rounds of reweighting: a curve that broke down tells little of others."""


class Curve(NamedTuple):
    """One measured curve.

    Args:
        concurrency: requests in service, each once, ascending, shape (k,) [requests].
        tpot_s: mean time per output token, shape (k,) [s].
        family: what its kin share.
        workload: log of what moves within a family over its width, shape (3,); NaN where it was not recorded.
    """

    concurrency: np.ndarray
    tpot_s: np.ndarray
    family: tuple[str, ...]
    workload: np.ndarray


class Told(NamedTuple):
    """Points of a curve that other curves tell.

    Args:
        concurrency: where it was not measured, shape (m,) [requests].
        tpot_s: predicted mean time per output token, shape (m,) [s].
        curves: that tell each, shape (m,).
    """

    concurrency: np.ndarray
    tpot_s: np.ndarray
    curves: np.ndarray


class CurveFamily(NamedTuple):
    """Curves that tell of each other.

    Args:
        curves: by name.
    """

    curves: dict[str, Curve]

    def told(self, name: str, concurrency: np.ndarray, tpot_s: np.ndarray) -> Told:
        """Points that the other curves tell of one, between the points known of it and the nearest beyond either end.

        log t(c) - log t(nearest known) ~ Gaussian process over the steps of log t between known points, and kinship

        No point of the curve itself is used but those given, and no curve that is the same measurement.

        Args:
            name: of the curve, for what it is of; its own points in the family are not used.
            concurrency: known points of it, each once, shape (k,) [requests].
            tpot_s: their times, shape (k,) [s].

        Returns:
            The points; none where fewer than 3 are known or fewer than 15 other curves have all those concurrencies.

        Raises:
            ValueError: a name that no curve has.

        Source:
            Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapter 2.
        """
        if name not in self.curves:
            raise ValueError(f"no curve {name!r} among {len(self.curves)}; its family and workload are needed to know its kin")
        order = np.argsort(concurrency)
        count, log_time = np.asarray(concurrency, float)[order], np.log(np.asarray(tpot_s, float)[order])
        others = [curve for other, curve in self.curves.items() if other != name and np.isin(count, curve.concurrency).all()]
        apart = [c for c in others if np.abs(_logs(c, count) - log_time).max() >= SAME] if len(count) >= FEWEST_KNOWN else []
        found = []
        for wanted in _lacking(count, apart):
            telling = [c for c in apart if wanted in c.concurrency]
            found.append((wanted, np.exp(_predicted(self.curves[name], telling, count, log_time, wanted)), len(telling)))
        columns = np.array(found, float).reshape(-1, 3).T
        return Told(columns[0], columns[1], columns[2].astype(int))


def _lacking(count: np.ndarray, others: list[Curve]) -> list[float]:
    """Concurrencies that enough of the others have and this one lacks: farther beyond an end the law alone must do."""
    if not others:
        return []
    values, curves = np.unique(np.concatenate([c.concurrency for c in others]), return_counts=True)
    new = np.setdiff1d(values[curves >= FEWEST_CURVES], count)
    below, above = new[new < count[0]], new[new > count[-1]]
    inside = new[(new > count[0]) & (new < count[-1])]
    return [*below[-1:].tolist(), *inside.tolist(), *above[:1].tolist()]


def _logs(curve: Curve, count: np.ndarray) -> np.ndarray:
    return np.log(curve.tpot_s[np.searchsorted(curve.concurrency, count)])


def _predicted(own: Curve, others: list[Curve], count: np.ndarray, log_time: np.ndarray, wanted: float) -> float:
    """Log of the time at the wanted concurrency: the mean of the process, robust against curves that broke down."""
    nearest = int(np.argmin(np.abs(np.log(count / wanted))))
    known = np.array([_logs(c, count) for c in others])
    ratio = np.array([_logs(c, np.array([wanted]))[0] for c in others]) - known[:, nearest]
    steps = np.diff(np.vstack([known, log_time]), axis=1)
    covariance = _covariance(steps - steps[:-1].mean(axis=0), [*others, own])
    many, mean = len(others), ratio.mean()
    scatter, weights = np.full(many, SCATTER**2), np.zeros(many)
    for _ in range(ROUNDS):
        weights = np.linalg.solve(covariance[:many, :many] + np.diag(scatter), ratio - mean)
        size = np.abs(weights * scatter)  # what the process leaves unexplained of each
        bend = HUBER * max(1.4826 * float(np.median(size)), SAME / 10)
        scatter = SCATTER**2 * np.maximum(size, bend) / bend
    return float(log_time[nearest] + mean + covariance[many, :many] @ weights)


def _covariance(steps: np.ndarray, curves: list[Curve]) -> np.ndarray:
    """Prior covariance of the log ratios of curves, shape (k, k)."""
    shapes = np.square(steps[:, None] - steps[None]).sum(axis=-1)
    families = {family: i for i, family in enumerate(dict.fromkeys(c.family for c in curves))}
    family = np.array([families[c.family] for c in curves])
    workload = np.array([c.workload for c in curves])
    silent = np.isnan(workload)
    gap = np.square(np.where(silent, 0.0, workload)[:, None] - np.where(silent, 0.0, workload)[None])
    gap = np.where(silent[:, None] ^ silent[None], np.inf, gap).sum(axis=-1)
    kin = (family[:, None] == family[None]) * np.exp(-gap / 2)
    return STRAIGHT**2 * steps @ steps.T + SHAPED**2 * np.exp(-shapes / 2 / SHAPE_WIDTH**2) + KIN**2 * kin + LEVEL**2


def curve_column(frame: pl.DataFrame) -> str:
    """The column that tells curves apart.

    Args:
        frame: of a trace of averages.

    Returns:
        "curve", or "source" in a trace that has no curves of its own.
    """
    return "curve" if "curve" in frame.columns else "source"


def curves_of(frame: pl.DataFrame) -> CurveFamily:
    """All curves of a trace that measured no concurrency twice.

    Args:
        frame: its columns; rows at no concurrency or without a duration are left out.

    Returns:
        The curves by their value of `curve_column`, as text.
    """
    found = {}
    timed = frame.filter((pl.col("decode_requests") > 0) & (pl.col("step_time_s") > 0))
    for (name,), rows in timed.group_by(curve_column(timed), maintain_order=True):
        curve = rows.sort("decode_requests")
        if curve["decode_requests"].n_unique() == curve.height:
            family = tuple(str(curve[column][0]) for column in FAMILY if column in frame.columns)
            count, time_s = (curve[column].cast(pl.Float64).to_numpy() for column in ("decode_requests", "step_time_s"))
            found[str(name)] = Curve(count, time_s, family, _workload(curve.row(0, named=True)))
    return CurveFamily(found)


def told_by_others(frame: pl.DataFrame, rows: np.ndarray) -> Told | None:
    """What the other curves of a trace tell of the one that some rows are of.

    Args:
        frame: columns of the whole trace, shape (k, columns).
        rows: the known points, shape (k,), bool.

    Returns:
        The points; None where the rows are of several curves, or measured a concurrency twice.
    """
    known, family = frame.filter(pl.Series(rows)), curves_of(frame)
    names = known[curve_column(frame)].cast(pl.String).unique()
    if len(names) != 1 or names[0] not in family.curves:
        return None
    return family.told(names[0], known["decode_requests"].cast(pl.Float64).to_numpy(), known["step_time_s"].to_numpy())


def _workload(row: Mapping[str, object]) -> np.ndarray:
    values = np.array([_number(row.get(column)) for column in WORKLOAD])
    return np.log(np.where(values > 0, values, np.nan)) / np.array([*WORKLOAD.values()])


def _number(cell: object) -> float:
    try:
        return float(str(cell))
    except ValueError:
        return float("nan")
