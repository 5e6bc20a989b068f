"""How sure: bootstrap intervals over blocks of consecutive steps, conformal margins, and the coverage of residuals.

Residuals of neighbouring steps are alike (first-order correlation .1 to .97 on measured traces): intervals that take
steps as independent are several times too narrow. Blocks keep the correlation.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import nnls

from headway.identification.structures.robust import Law
from headway.models.noise import BLOCK

DRAWS = 200
"""Bootstrap draws: enough for 95 % intervals to a tenth of their width."""
MOST_RESIDUALS = 4096
"""Residuals that a plant carries per regime."""
MOST_BLOCKS = 500
"""Blocks in one draw at most: on a long trace longer blocks lose nothing, and the cost stays bounded."""
PIECE = 10_000
"""Rows whose running sums are held at once [rows]."""
FEWEST_FOR_INTERVAL = 20
"""Steps below which no interval is given."""


def block_length(residual: np.ndarray) -> int:
    """Steps in a bootstrap block, by the residual's own correlation.

    b = (sqrt(6) rho / (1 - rho^2))^(2/3) n^(1/3), for a first-order correlation rho

    Args:
        residual: in time order, shape (k,).

    Returns:
        Length [steps]: between 1 and a fifth of the rows, and at least a `MOST_BLOCKS`-th of them.

    Source:
        Politis and White, Automatic block-length selection for the dependent bootstrap, 2004, with the spectrum of an
        AR(1) process.
    """
    n = len(residual)
    centred = np.clip(residual - np.median(residual), *np.quantile(residual - np.median(residual), [0.01, 0.99])) if n else residual
    power = float((centred**2).sum())
    rho = float((centred[1:] * centred[:-1]).sum()) / power if n > 2 and power > 0 else 0.0
    rho = min(max(rho, 0.0), 0.97)
    length = (math.sqrt(6) * rho / (1 - rho**2)) ** (2 / 3) * n ** (1 / 3)
    return int(min(max(math.ceil(length), math.ceil(n / MOST_BLOCKS), 1), max(n // 5, 1)))


def _starts(n: int, length: int, rng: np.random.Generator, draws: int) -> np.ndarray:
    return rng.integers(0, n - length + 1, (draws, math.ceil(n / length)))


def coefficient_interval(law: Law, rng: np.random.Generator) -> np.ndarray:
    """95 % intervals of a law's coefficients, by `coefficient_draws`.

    Args:
        law: fitted to rows in time order.
        rng: random numbers of this run.

    Returns:
        Lower and upper ends, shape (m, 2), in the coefficients' units; NaN for fewer than `FEWEST_FOR_INTERVAL` rows.
    """
    return ends_of(coefficient_draws(law, rng))


def ends_of(draws: np.ndarray) -> np.ndarray:
    """The ends that hold 95 % of some draws.

    Args:
        draws: shape (draws, m).

    Returns:
        Shape (m, 2); NaN where there is no draw.
    """
    return np.quantile(draws, [0.025, 0.975], axis=0).T if len(draws) else np.full((draws.shape[1], 2), np.nan)


def coefficient_draws(law: Law, rng: np.random.Generator) -> np.ndarray:
    """A law's coefficients as other stretches of the same trace would have given them, by bootstrap over blocks of steps.

    Each draw weighs the rows by how often the blocks drawn hold them, and takes one Newton step from the full fit:
    it minimises c' H c / 2 - c' (H c0 + g) over c >= 0, H the sum of psi' x x', g that of psi x, which are sums over
    blocks. Weights held fixed in place of psi' would make the intervals a tenth too narrow.

    Args:
        law: fitted to rows in time order.
        rng: random numbers of this run.

    Returns:
        Shape (DRAWS, m), in the coefficients' units; (0, m) for fewer than `FEWEST_FOR_INTERVAL` rows.

    Source:
        Kuensch, The jackknife and the bootstrap for general stationary observations, 1989.
    """
    k, m = law.rows.shape
    if k < FEWEST_FOR_INTERVAL:
        return np.zeros((0, m))
    size = np.sqrt((law.rows**2).mean(axis=0))
    size[size == 0] = 1.0
    length = block_length(law.residual)
    starts = _starts(k, length, rng, DRAWS)
    wanted = np.unique(np.stack([starts, starts + length]))
    sums = _sums_before(wanted, law, size)
    begin, end = np.searchsorted(wanted, starts), np.searchsorted(wanted, starts + length)
    found = []
    for first, last in zip(begin, end, strict=True):
        system = (sums[last] - sums[first]).sum(axis=0)
        found.append(_solve(system[:, :m], system[:, m]))
    return np.array(found) / size


def _sums_before(wanted: np.ndarray, law: Law, size: np.ndarray) -> np.ndarray:
    """Sums of psi' x x' and of psi' x + psi x over all rows before each wanted one, shape (n, m, m + 1).

    Summed piece by piece: over a million rows the running sums of all rows would take half a GiB.
    """
    k, m = law.rows.shape
    sums, carried = np.zeros((len(wanted), m, m + 1)), np.zeros((m, m + 1))
    for start in range(0, k, PIECE):
        part = slice(start, start + PIECE)
        rows, slope = law.rows[part] / size, (law.weight[part] >= 1.0).astype(float)
        running = np.empty((len(rows) + 1, m, m + 1))
        running[0] = carried
        np.multiply(rows[:, :, None], (rows * slope[:, None])[:, None, :], out=running[1:, :, :m])
        linear = slope * (law.rows[part] @ law.coefficients)  # slope itself where the law is linear: its rows add up to 1
        np.multiply(rows, (linear + law.weight[part] * law.residual[part])[:, None], out=running[1:, :, m])
        np.cumsum(running, axis=0, out=running)
        here = slice(*np.searchsorted(wanted, [start, start + len(rows) + 1]))
        sums[here] = running[wanted[here] - start]
        carried = running[-1].copy()
    return sums


def _solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Minimise c' M c / 2 - c' r over c >= 0, M positive semidefinite: as least squares by M's eigenvectors."""
    values, vectors = np.linalg.eigh(matrix)
    root = np.sqrt(np.maximum(values, values[-1] * 1e-13))
    return nnls(root[:, None] * vectors.T, (vectors.T @ right) / root, maxiter=100 * len(right))[0]


FEWEST_GROUPS = 8
"""Blocks of a trace from which on whole ones are drawn: the engine's slow wandering is longer than its correlation tells."""


def share_interval(
    hits: np.ndarray, residual: np.ndarray, rng: np.random.Generator, *, group: np.ndarray | None = None
) -> list[float] | None:
    """95 % interval of a share of steps, by bootstrap over blocks.

    Args:
        hits: whether each step counts, in time order, shape (k,), bool.
        residual: of the same steps, for the length of the blocks, shape (k,).
        rng: random numbers of this run.
        group: block of the trace that each step lies in, shape (k,): drawn as wholes where there are `FEWEST_GROUPS`.

    Returns:
        [lower, upper]; None for fewer than `FEWEST_FOR_INTERVAL` steps.
    """
    n = len(hits)
    if n < FEWEST_FOR_INTERVAL:
        return None
    length = block_length(residual)
    numbers = None if group is None else np.unique(group, return_inverse=True)[1]
    if numbers is not None and numbers.max() + 1 >= FEWEST_GROUPS:
        counted, size = np.bincount(numbers, hits), np.bincount(numbers)
        drawn = rng.integers(0, len(size), (10 * DRAWS, len(size)))
        shares = counted[drawn].sum(axis=1) / size[drawn].sum(axis=1)
        low, high = np.quantile(shares, [0.025, 0.975])
        return [float(low), float(high)]
    sums = np.concatenate([[0], np.cumsum(hits)])
    starts = _starts(n, length, rng, 10 * DRAWS)
    shares = (sums[starts + length] - sums[starts]).sum(axis=1) / (starts.shape[1] * length)
    low, high = np.quantile(shares, [0.025, 0.975])
    return [float(low), float(high)]


def margin(residual: np.ndarray, epsilon: float) -> float | None:
    """Share of the budget to leave free so that at most a share epsilon of steps like these is over it.

    1 - exp(-q), q the ceil((1 - epsilon)(n + 1))-th smallest of n residuals

    Args:
        residual: log(measured / predicted), shape (n,).
        epsilon: share of steps, in (0, 1).

    Returns:
        The margin, below 1 (negative if the plant is too slow almost always); None if n < 1 / epsilon.

    Source:
        Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005: the order statistic of split conformal
        prediction.
    """
    n = len(residual)
    order = math.ceil((1 - epsilon) * (n + 1) - 1e-9)
    if n < 1 / epsilon or order > n:
        return None
    return float(1 - math.exp(-float(np.partition(residual, order - 1)[order - 1])))


def band(residual: np.ndarray, share: float) -> tuple[float, float]:
    """Between what the residuals of new steps should lie with a probability, by the order statistics of split conformal.

    Args:
        residual: log(measured / predicted) of steps that the law had not seen, shape (n,).
        share: probability, in (0, 1).

    Returns:
        (low, high), the floor((1 - share) / 2 (n + 1))-th smallest and its mirror; the ends themselves for few residuals.

    Source:
        Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005.
    """
    n, tail = len(residual), (1 - share) / 2
    order = max(math.floor(tail * (n + 1) + 1e-9), 1)
    ordered = np.partition(residual, [order - 1, n - order])
    return float(ordered[order - 1]), float(ordered[n - order])


def margin_interval(residual: np.ndarray, epsilon: float, rng: np.random.Generator) -> list[float] | None:
    """95 % interval of the margin, by bootstrap over blocks of consecutive residuals.

    Args:
        residual: log(measured / predicted) in time order, shape (n,).
        epsilon: share of steps, in (0, 1).
        rng: random numbers of this run.

    Returns:
        [lower, upper]; None where the margin itself cannot be said.
    """
    n = len(residual)
    if margin(residual, epsilon) is None:
        return None
    length = block_length(residual)
    order = min(math.ceil((1 - epsilon) * (n + 1) - 1e-9), n) - 1
    draws = DRAWS if n <= MOST_RESIDUALS * 10 else DRAWS // 4
    found = []
    for starts in _starts(n, length, rng, draws):
        drawn = residual[(starts[:, None] + np.arange(length)).ravel()[:n]]
        found.append(float(np.partition(drawn, order)[order]))
    low, high = 1 - np.exp(-np.quantile(found, [0.025, 0.975]))
    return [float(low), float(high)]


def kept_residuals(residual: np.ndarray) -> np.ndarray:
    """At most `MOST_RESIDUALS` of them, as whole blocks spread evenly over the trace: their order is their correlation.

    Args:
        residual: in time order, shape (k,).

    Returns:
        All of them, or blocks of `headway.models.noise.BLOCK` consecutive ones.
    """
    if len(residual) <= MOST_RESIDUALS:
        return residual
    starts = np.linspace(0, len(residual) - BLOCK, MOST_RESIDUALS // BLOCK).round().astype(int)
    return residual[(starts[:, None] + np.arange(BLOCK)).ravel()]
