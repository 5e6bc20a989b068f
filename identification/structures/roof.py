"""The roofline fitted: projected Gauss-Newton on log durations, with the Jacobian that JAX derives."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headway.identification.structures.robust import HUBER, LEAST_SPREAD, MOST, Law, fit_law, nonnegative
from headway.models.plant import Batch
from headway.models.roofline import NUMBERS, RooflinePlant

ROUNDS = 40
CHANGE = 1e-6
"""Relative fall of the loss below which the fit has converged, within at most ROUNDS."""
STARTS = (1.5, 3.0, 8.0)
"""Powers of the norm that the fit is started from; the best end is kept."""
POWER_MOST = 32.0
"""Above this power the norm is the maximum to a few percent of a percent."""
DAMPING = 1e-3


def fit_roof(batch: Batch, step_time_s: np.ndarray) -> tuple[RooflinePlant, Law]:
    """Fit the roofline to steps.

    Minimises the sum of Huber's rho(log y - log t(theta)) over theta >= 0. Each round solves, for the step's end, the
    linearised problem under theta >= 0, with Levenberg's damping.

    Args:
        batch: sums of the steps, shape (k,).
        step_time_s: durations, shape (k,) [s].

    Returns:
        (the plant, the law linearised at it, for its intervals).

    Source:
        Nocedal and Wright, Numerical Optimization, 2006, chapter 10.
    """
    columns = np.stack([np.asarray(c, float) for c in batch], axis=1)
    best: tuple[float, np.ndarray] | None = None
    for power in STARTS:
        theta = _descend(_start(columns, step_time_s, power), columns, step_time_s)
        loss = _loss(_residual(theta, columns, step_time_s))
        if best is None or loss < best[0]:
            best = (loss, theta)
    assert best is not None  # STARTS is not empty
    theta = best[1]
    return RooflinePlant(tuple(theta.tolist())), _linearised(theta, columns, step_time_s)


def _start(columns: np.ndarray, step_time_s: np.ndarray, power: float) -> np.ndarray:
    """From the sum of both sides, which is the roofline with power 1: half of the floor is taken for the weights."""
    n, kv, p, pairs, r = columns.T
    mixed = (p > 0).astype(float)
    law = fit_law(np.stack([np.ones_like(n), mixed, n, r, kv, n + p, pairs], axis=1), step_time_s).coefficients
    floor, more, per_n, per_r, per_kv, per_token, per_pair = law
    small = 1e-6 * float(np.median(step_time_s))
    largest = np.maximum(columns.max(axis=0), 1.0)
    least = [small, small, small / largest[0], small / largest[4], small, small / largest[1]]
    least += [small / (largest[0] + largest[2]), small / largest[3], 1.0]
    start = [floor / 2, floor / 2 + more, per_n, per_r, floor / 2, per_kv, per_token, per_pair, power]
    return np.maximum(start, least)


def _descend(theta: np.ndarray, columns: np.ndarray, step_time_s: np.ndarray) -> np.ndarray:
    loss, damping = _loss(_residual(theta, columns, step_time_s)), DAMPING
    for _ in range(ROUNDS):
        law = _linearised(theta, columns, step_time_s)
        size = np.maximum(theta, 1e-300)
        root = np.sqrt(law.weight)[:, None]
        rows = np.concatenate([law.rows * size * root, np.sqrt(damping * len(columns)) * np.eye(len(theta))])
        right = np.concatenate([((law.rows @ theta + law.residual) * root[:, 0]), np.sqrt(damping * len(columns)) * np.ones(len(theta))])
        found = _bounded(nonnegative(rows, right) * size)
        lower = _loss(_residual(found, columns, step_time_s))
        if lower < loss:
            done = loss - lower < CHANGE * loss
            theta, loss, damping = found, lower, damping / 4
            if done:
                break
        else:
            damping *= 8
            if damping > 1e6:
                break
    return theta


def _bounded(theta: np.ndarray) -> np.ndarray:
    theta[-1] = min(max(theta[-1], 1.0), POWER_MOST)
    return theta


def _residual(theta: np.ndarray, columns: np.ndarray, step_time_s: np.ndarray) -> np.ndarray:
    predicted = np.asarray(RooflinePlant(tuple(theta.tolist())).step_time_s(Batch(*columns.T)))
    return np.clip(np.log(step_time_s) - np.log(np.maximum(predicted, np.finfo(float).tiny)), -MOST, MOST)


def _loss(residual: np.ndarray) -> float:
    return float(np.abs(residual).mean())


def _linearised(theta: np.ndarray, columns: np.ndarray, step_time_s: np.ndarray) -> Law:
    residual = _residual(theta, columns, step_time_s)
    bend = HUBER * max(1.4826 * float(np.median(np.abs(residual))), LEAST_SPREAD)
    return Law(theta, jacobian(theta, columns), residual, bend / np.maximum(np.abs(residual), bend))


def jacobian(theta: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Derivative of the log of the predicted durations.

    Args:
        theta: numbers of the plant, in the order of `headway.models.roofline.NUMBERS`, shape (9,).
        columns: sums of the steps, in the order of `Batch`, shape (k, 5).

    Returns:
        d log t / d theta, shape (k, 9).
    """
    size = 1 << max(int(np.ceil(np.log2(len(columns)))), 6)  # few shapes, few compilations
    wide = np.concatenate([columns, np.repeat(columns[-1:], size - len(columns), axis=0)])
    return np.asarray(_compiled()(jnp.asarray(theta), jnp.asarray(wide)))[: len(columns)]


@functools.cache
def _compiled() -> Any:
    def logarithm(theta: jax.Array, columns: jax.Array) -> jax.Array:
        law = tuple(theta[i] for i in range(len(NUMBERS)))
        return jnp.log(RooflinePlant(law).step_time_s(Batch(*(columns[:, i] for i in range(5)))))

    return jax.jit(jax.jacfwd(logarithm))
