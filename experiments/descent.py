"""Following slopes: Adam on the fluid's gradient or on exact differences, inside a box, on a fresh part of the draws each time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import jax
import numpy as np
import optax

from headway.controllers.simulator import Draw
from headway.experiments.checkpoint import Ledger
from headway.experiments.problem import Problem
from headway.experiments.selection import paid
from headway.experiments.space import Space

HALF = 0.5
"""Half width of a difference, in units: a smaller one measures the noise of single runs and points nowhere (cosine to the
truth 0.5 at a fiftieth of a unit, 0.97 at a half)."""


class Slopes(Protocol):
    """A gradient at a point, over some of the draws."""

    def __call__(self, point: np.ndarray, part: np.ndarray) -> np.ndarray:
        """The gradient.

        Args:
            point: in units, shape (d,).
            part: indices of draws, shape (m,).

        Returns:
            Per unit, upwards, shape (d,).
        """
        ...


class Course(NamedTuple):
    """How slopes are followed.

    Args:
        iterations: of Adam.
        rate: of Adam, in units.
        batch: draws per gradient; 0 for half of them.
        every: iterates that are scored: each, or one in so many, their average beside them.
        last: rate at the end, as a share of the rate: many numbers near their optimum would else go astray by their noise.
    """

    iterations: int
    rate: float = 0.6
    batch: int = 0
    every: int = 1
    last: float = 1.0


FLUID = Course(24, 0.7, 4, 4)
"""Along the fluid's slopes, which hardly differ from draw to draw: many short looks."""

POLISH = Course(4, 0.35)
"""Along exact differences after it: the fluid's direction is right, its optimum a little off."""


def descend(
    start: np.ndarray,
    slopes: Slopes,
    box: tuple[np.ndarray, np.ndarray],
    course: Course,
    draws: int,
    rng: np.random.Generator,
    tell: Callable[[float], None] | None = None,
) -> Iterator[np.ndarray]:
    """Follow slopes upwards from a point.

    Args:
        start: in units, shape (d,).
        slopes: gives a gradient.
        box: least and greatest value of each number, in units.
        course: how far, how fast.
        draws: that there are.
        rng: chooses the draws of each gradient.
        tell: called with the share that is done; None for nobody.

    Yields:
        Iterates, each with the running average after it: what is to be scored, as it comes.
    """
    low, high = box
    batch = min(course.batch or max(2, draws // 2), draws)
    rate = course.rate if course.last == 1.0 else optax.exponential_decay(course.rate, course.iterations, course.last)
    adam = optax.adam(rate, b1=0.8, b2=0.95, eps=1e-4)
    point, average = start.copy(), start.copy()
    state = adam.init(point)
    for k in range(1, course.iterations + 1):
        gradient = slopes(point, rng.choice(draws, batch, replace=False))
        with jax.numpy_dtype_promotion("standard"):  # optax itself promotes its step count
            move, state = adam.update(-gradient, state)
        point = np.clip(point + np.asarray(move, float), low, high)
        average = 0.7 * average + 0.3 * point
        if tell:
            tell(k / course.iterations)
        if k % course.every == 0:
            yield point.copy()
            yield average.copy()


def exact_slopes(problem: Problem, space: Space, draws: list[Draw], ledger: Ledger) -> Slopes:
    """Central differences of the simulator over a unit, on common random numbers, all ends in one call.

    Args:
        problem: what is tuned for; requirements missed are paid for.
        space: the free numbers.
        draws: of the training.
        ledger: what is known already.

    Returns:
        Slopes.
    """

    def gradient(point: np.ndarray, part: np.ndarray) -> np.ndarray:
        step = HALF * np.eye(len(point))
        sides = np.clip(np.concatenate([point + step, point - step]), space.low, space.high)
        values = paid(ledger.scores(problem, [space.candidate(p) for p in sides], [draws[i] for i in part]))
        width = np.maximum(np.diag(sides[: len(point)] - sides[len(point) :]), 1e-9)
        return (values[: len(point)] - values[len(point) :]) / width

    return gradient
