"""Which steps to record next: the information that steps hold of a plant's numbers, and the mixture that holds the most."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.models.identified import IdentifiedPlant
from headway.models.noise import Noise
from headway.models.plant import Batch, Plant
from headway.models.regimes import TERMS

ASSUMED_SD, ASSUMED_CORRELATION = 0.1, 0.5
"""Standard deviation and first-order correlation of the logarithmic residual, where none were measured."""
FEWEST_RESIDUALS = 40
"""Residuals of a regime below which its spread is assumed, not taken from them."""
HUBER = 1.345
"""Bend of the fit's loss in robust standard deviations: `headway.identification.structures.robust` counts a step by it."""
TOLD = 1e-9
"""Share of a number's information that the others must leave over, or it cannot be told from them."""
ROUNDS = 20_000
CLOSE = 5e-5
"""Excess of the sensitivity over its bound, as a share of it, at which the design counts as optimal, within at most ROUNDS."""


class Precision(NamedTuple):
    """What one step tells, per regime: 1 over the variance of its residual, less what it repeats of the step before.

    Args:
        decode: of a decode-only step.
        mixed: of a step with prefill.
        said: what was assumed, one sentence each.
    """

    decode: float
    mixed: float
    said: tuple[str, ...] = ()

    def of(self, batch: Batch) -> np.ndarray:
        """Per step.

        Args:
            batch: sums of the steps, arrays of shape (k,).

        Returns:
            Precision of each, shape (k,).
        """
        return np.where(np.asarray(batch.prefill_tokens) > 0, self.mixed, self.decode)


class Optimum(NamedTuple):
    """A D-optimal mixture, with the proof.

    Args:
        weight: share of each candidate, summing to one, shape (c,).
        sensitivity: trace(M^-1 M_i) of each candidate, M what is known afterwards, shape (c,).
        bound: what no candidate exceeds at the optimum: the number of parameters, less what the prior accounts for.
        rounds: of the algorithm.
    """

    weight: np.ndarray
    sensitivity: np.ndarray
    bound: float
    rounds: int


def correlation(residual: np.ndarray) -> float:
    """First-order correlation of residuals, outliers bounded.

    Args:
        residual: in time order, shape (k,).

    Returns:
        In [0, 0.97]; 0 for fewer than three.
    """
    if len(residual) < 3:
        return 0.0
    centred = residual - np.median(residual)
    centred = np.clip(centred, *np.quantile(centred, [0.01, 0.99]))
    power = float((centred**2).sum())
    return min(max(float((centred[1:] * centred[:-1]).sum()) / power, 0.0), 0.97) if power > 0 else 0.0


def precision_of(noise: Noise | None) -> Precision:
    """How much one step tells, from the residuals of an earlier trace.

    (1 - rho) / (1 + rho) / V,  V = mean psi^2 / (share within the bend)^2, Huber's variance of a fitted number

    Args:
        noise: residuals per regime in time order; None for none.

    Returns:
        Precision; `said` names what was assumed for want of residuals.
    """
    found, said = [], []
    for regime in ("decode", "mixed"):
        residual = np.zeros(0) if noise is None else np.asarray(getattr(noise, regime), float)
        rho, variance = ASSUMED_CORRELATION, ASSUMED_SD**2
        if len(residual) >= FEWEST_RESIDUALS:
            centred = residual - np.median(residual)
            bend = HUBER * max(1.4826 * float(np.median(np.abs(centred))), 1e-4)
            inside = max(float((np.abs(centred) <= bend).mean()), 0.1)
            rho, variance = correlation(residual), max(float((np.clip(centred, -bend, bend) ** 2).mean()) / inside**2, 1e-8)
        else:
            said.append(
                f"{regime}: {len(residual)} residuals, fewer than {FEWEST_RESIDUALS}; "
                f"a log-sd of {ASSUMED_SD:g} and a correlation of {ASSUMED_CORRELATION:g} are assumed"
            )
        found.append((1 - rho) / (1 + rho) / variance)
    return Precision(found[0], found[1], tuple(said))


def numbers_of(plant: Plant) -> list[str]:
    """The numbers that a design is for: times per something. A bend's place and a power are taken as known.

    Args:
        plant: any structure.

    Returns:
        Names as in `coefficients`: the linear terms all, others where they are above zero.
    """
    linear = {name for name, _ in TERMS}
    rows = plant.coefficients().items()
    return [name for name, c in rows if c.unit.split("/")[0] == "s" and (name.split(".")[1] in linear or c.value > 0)]


def sensitivity(plant: Plant, names: list[str], batch: Batch) -> np.ndarray:
    """How the logarithm of a step's duration moves with each number: d log t / d c.

    Args:
        plant: any structure.
        names: of the numbers, shape (m,).
        batch: sums of the steps, arrays of shape (k,).

    Returns:
        Derivatives, shape (k, m) [1 / unit of the number]; exact for linear structures.
    """
    values = {name: c.value for name, c in plant.coefficients().items()}
    at = np.asarray(plant.step_time_s(batch), float)

    def moved(name: str, by: float) -> np.ndarray:
        return np.asarray(plant.from_coefficients({**values, name: values[name] + by}).step_time_s(batch), float)

    columns = []
    for name in names:
        steepest = float(np.abs(moved(name, 1.0) - at).max())
        # moves no duration by more than a tenth of a thousandth: large enough for rounding, small enough where it bends
        by = 1e-4 * float(np.median(at)) / max(steepest, np.finfo(float).tiny)
        down = min(by, values[name])
        columns.append((moved(name, by) - moved(name, -down)) / (by + down) if steepest > 0 else np.zeros_like(at))
    return np.stack(columns, axis=1) / at[:, None]


def information(rows: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Fisher information: sum of w x x'.

    Args:
        rows: of `sensitivity`, shape (k, m).
        weight: precision of each step, times how many there are of it, shape (k,).

    Returns:
        Shape (m, m).
    """
    return (rows * weight[:, None]).T @ rows


def known_from_intervals(identified: IdentifiedPlant, names: list[str]) -> np.ndarray:
    """What a plant.json knows of its own numbers, where its trace is not at hand: their intervals, as if independent.

    Numbers that lean on each other are known better together than this says: det diag(S) >= det S. A number without
    an interval, or that the trace did not move, counts as unknown.

    Args:
        identified: the plant.
        names: of the numbers, shape (m,).

    Returns:
        Information, shape (m, m).
    """
    known = np.zeros(len(names))
    still = unmoved(identified)
    for j, name in enumerate(names):
        low, high = identified.interval.get(name, (0.0, 0.0))
        if high > low and name not in still:
            known[j] = (2 * 1.959964 / (high - low)) ** 2
    return np.diag(known)


def unmoved(identified: IdentifiedPlant) -> list[str]:
    """Numbers whose input stood still in the trace that the plant was fitted to.

    Args:
        identified: the plant, with what `excitation` found.

    Returns:
        Names.
    """
    found = []
    for regime, row in (identified.about.get("excitation") or {}).items():
        for sum_name, term in zip(Batch._fields, TERMS[1:], strict=True):
            if not (row.get("terms", {}).get(sum_name) or {"moved": True})["moved"]:
                found.append(f"{regime}.{term[0]}")
    return found


def tellable(total: np.ndarray) -> np.ndarray:
    """Which numbers can be told at all, each against those before it.

    Args:
        total: all information that could be had, shape (m, m).

    Returns:
        Mask, shape (m,): the numbers whose information the others do not use up.
    """
    scaled, size = _scaled(total)
    keep: list[int] = []
    for j in np.flatnonzero(size > 0).tolist():
        rest = 1.0 - float(scaled[j, keep] @ np.linalg.solve(scaled[np.ix_(keep, keep)], scaled[keep, j])) if keep else 1.0
        if rest > TOLD:
            keep.append(j)
    return np.isin(np.arange(len(total)), keep)


def standard_errors(known: np.ndarray) -> np.ndarray:
    """Standard error of each number.

    Args:
        known: information, shape (m, m); may be singular.

    Returns:
        Errors, shape (m,) [unit of the number]; infinite for a number that cannot be told.
    """
    scaled, size = _scaled(known)
    error, live = np.full(len(known), np.inf), size > 0
    told = np.flatnonzero(live)
    if live.any():
        values, vectors = np.linalg.eigh(scaled[told[:, None], told])
        lost = values < TOLD * values[-1]
        variance = (vectors[:, ~lost] ** 2 / values[~lost]).sum(axis=1)
        variance[(vectors[:, lost] ** 2).sum(axis=1) > 1e-6] = np.inf
        error[live] = np.sqrt(variance) / size[live]
    return error


def _scaled(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The matrix with a diagonal of ones, and the roots of its own; a number without information stays at zero."""
    size = np.sqrt(np.diag(matrix))
    safe = np.where(size > 0, size, 1.0)
    return matrix / np.outer(safe, safe), size


def efficiency(one: np.ndarray, other: np.ndarray) -> float:
    """D-efficiency: (det one / det other)^(1/m), the share of `other`'s steps that would tell as much.

    Args:
        one: information, shape (m, m).
        other: information, not singular, shape (m, m).

    Returns:
        Ratio; 0 if `one` is singular.
    """
    size = np.sqrt(np.diag(other))
    scaled = [matrix / np.outer(size, size) for matrix in (one, other)]
    (sign, log), (_, reference) = np.linalg.slogdet(scaled[0]), np.linalg.slogdet(scaled[1])
    return float(np.exp((log - reference) / len(one))) if sign > 0 else 0.0


def optimal(candidates: np.ndarray, prior: np.ndarray | None = None) -> Optimum:
    """The mixture of candidates that makes det(prior + sum w_i M_i) largest.

    Each round moves weight by w_i <- w_i d_i / sum w d, which never lowers the determinant, and then exchanges weight
    between the most and the least wanted candidate as far as pays. At the optimum d_i <= sum w d for all i.

    Args:
        candidates: information of one step of each, shape (c, m, m).
        prior: information at hand, per step that is to be recorded, shape (m, m); None for none.

    Returns:
        The optimum.

    Raises:
        ValueError: no mixture tells all numbers apart; `tellable` says which can be.

    Source:
        Yu, D-optimal designs via a cocktail algorithm, 2011; Kiefer and Wolfowitz, The equivalence of two extremum
        problems, 1960.
    """
    count, m = len(candidates), candidates.shape[1]
    prior = np.zeros((m, m)) if prior is None else prior
    size = np.sqrt(np.diag(prior + candidates.mean(axis=0)))
    if not tellable(prior + candidates.mean(axis=0)).all():
        raise ValueError("no mixture of these settings tells all numbers apart; leave out those that `tellable` does not name")
    scale = np.outer(size, size)
    flat, known = (candidates / scale).reshape(count, -1), prior / scale
    weight, bound, wanted, rounds = np.full(count, 1.0 / count), 0.0, np.zeros(count), 0
    while rounds < ROUNDS:
        rounds += 1
        wanted = flat @ np.linalg.inv(known + (weight @ flat).reshape(m, m)).ravel()
        bound = float(weight @ wanted)
        if wanted.max() <= bound * (1 + CLOSE):
            break
        weight *= wanted / bound
        weight = _exchanged(weight, flat, known)
    return Optimum(weight / weight.sum(), wanted, bound, rounds)


def _exchanged(weight: np.ndarray, flat: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Move weight from the least wanted candidate that has some to the most wanted, as far as the determinant grows."""
    m = len(known)
    inverse = np.linalg.inv(known + (weight @ flat).reshape(m, m))
    wanted = flat @ inverse.ravel()
    held = np.flatnonzero(weight > 0)
    to, out = int(np.argmax(wanted)), int(held[np.argmin(wanted[held])])
    if to == out:
        return weight
    change = (flat[to] - flat[out]).reshape(m, m)
    root = np.linalg.cholesky(inverse)
    slope = np.linalg.eigvalsh(root.T @ change @ root)
    low, high = 0.0, float(weight[out])
    for _ in range(40):  # the derivative of log det falls in the amount moved: halve to its zero
        middle = (low + high) / 2
        if float((slope / (1 + middle * slope)).sum()) > 0:
            low = middle
        else:
            high = middle
    moved = weight[out] if high == weight[out] and float((slope / (1 + high * slope + 1e-300)).sum()) > 0 else low
    weight = weight.copy()
    weight[to] += moved
    weight[out] = 0.0 if weight[out] - moved < 1e-9 else weight[out] - moved
    return weight / weight.sum()
