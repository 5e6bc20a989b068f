"""The exact simulator as a JAX function with a gradient: differences of a large step, on common random numbers.

A small step measures the noise of single runs and points nowhere; half a practical unit of each parameter smooths over
the jumps of a scheduler as often as it runs. All parameters and seeds go in one parallel call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ATTAINMENT
from headway.models.signals import Limits, Target

STEP = 0.5
"""Half width of a difference, in units of its parameter."""


@dataclasses.dataclass(frozen=True)
class Differences:
    """Values of an exact engine, and central differences of them.

    Args:
        values: from points, shape (points, parameters), to values per point and seed, shape (points, seeds), with the same
            seeds at every point.
        unit: of each parameter, a practical step, shape (parameters,).
        low: least value of each, shape (parameters,).
        high: greatest, shape (parameters,).
        step: half width in units.

    Example:
        >>> square = Differences(lambda x: (x**2).sum(1)[:, None], np.ones(2), np.full(2, -9.0), np.full(2, 9.0))
        >>> square.at(np.array([1.0, 3.0]))[1].mean(0)
        array([2., 6.])
    """

    values: Callable[[np.ndarray], np.ndarray]
    unit: np.ndarray
    low: np.ndarray
    high: np.ndarray
    step: float = STEP

    def at(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Value and differences per seed, all runs in one call.

        (v(x + h) - v(x - h)) / (2 h), both ends cut to the bounds and divided by what is left between them

        Args:
            point: shape (parameters,).

        Returns:
            Values, shape (seeds,), and derivatives, shape (seeds, parameters); 0 where the bounds leave no room.
        """
        point = np.asarray(point, float)
        moves = np.diag(self.step * np.asarray(self.unit, float))
        ends = np.clip(np.concatenate([point[None], point + moves, point - moves]), self.low, self.high)
        ends[0] = point
        found = np.asarray(self.values(ends), float)
        count = len(point)
        gap = np.diag(ends[1 : 1 + count] - ends[1 + count :])
        slopes = (found[1 : 1 + count] - found[1 + count :]).T / np.where(gap > 0, gap, np.inf)
        return found[0], slopes


def simulator_values(
    identified: IdentifiedPlant,
    draws: list[Draw],
    targets: tuple[Target, ...],
    limits: Limits,
    candidate_at: Callable[[np.ndarray], Candidate],
    *,
    measure: int = ATTAINMENT,
) -> Callable[[np.ndarray], np.ndarray]:
    """What `Differences` asks of an engine, from the exact simulator.

    Args:
        identified: the plant.
        draws: workloads and noise, common to all points.
        targets: one per class.
        limits: of the engine.
        candidate_at: from parameters, shape (parameters,), to law and policy.
        measure: place in the measures of a run.

    Returns:
        Function from points to values per point and draw.
    """

    def values(points: np.ndarray) -> np.ndarray:
        candidates = [candidate_at(point) for point in points]
        return evaluate(identified, candidates, draws, targets, limits)[:, :, measure]

    return values


def exact_objective(differences: Differences) -> Callable[[Any], Any]:
    """The mean over the seeds as a function for `jax.grad` and for whatever stands above it.

    Args:
        differences: values and differences of the engine.

    Returns:
        Function of parameters, shape (parameters,), to a number; reverse mode alone. The differences are taken when a
        gradient is asked for, together with the value.
    """

    def value(point: Any) -> np.ndarray:
        return np.asarray(differences.values(np.asarray(point, float)[None]).mean(), point.dtype)

    def both(point: Any) -> tuple[np.ndarray, np.ndarray]:
        found, slopes = differences.at(np.asarray(point, float))
        return np.asarray(found.mean(), point.dtype), np.asarray(slopes.mean(0), point.dtype)

    @jax.custom_vjp
    def objective(parameters: Any) -> Any:
        return jax.pure_callback(value, jax.ShapeDtypeStruct((), parameters.dtype), parameters, vmap_method="sequential")

    def forward(parameters: Any) -> tuple[Any, Any]:
        like = (jax.ShapeDtypeStruct((), parameters.dtype), jax.ShapeDtypeStruct(parameters.shape, parameters.dtype))
        return jax.pure_callback(both, like, parameters, vmap_method="sequential")

    def backward(slopes: Any, cotangent: Any) -> tuple[Any]:
        return (cotangent * slopes,)

    objective.defvjp(forward, backward)
    return lambda parameters: objective(jnp.asarray(parameters))
