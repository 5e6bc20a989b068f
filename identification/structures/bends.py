"""Intervals of all of a plant's numbers: of its terms by the bootstrap, of where they bend by its Jacobian and by the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize_scalar

from headway.identification.structures.crossval import compare
from headway.identification.structures.intervals import coefficient_draws, ends_of
from headway.identification.structures.ladder import thinned
from headway.identification.structures.learn import Learned, Part, learn, rows_of
from headway.identification.structures.robust import HUBER, LEAST_SPREAD, Law
from headway.identification.structures.shapes import BENDS, shapes_of
from headway.identification.structures.terms import Structure
from headway.models.curved import SHAPES, CurvedPlant
from headway.models.plant import Batch

SEARCH_ROUNDS = 8
"""Rounds of reweighting in each fit of a search."""
NEARBY = 0.5
"""How far, in its logarithm, a shape number is moved from where the ladder left it."""
TOLD = 1.96
"""Standard errors by which the steps tell one threshold from another."""
SMOOTH = ("saturation_tokens", "knee_tokens")
"""Shape numbers that the predicted duration is a smooth function of; a threshold is not, and lies between two measured values."""


def polished(structure: Structure, batch: Batch, step_time_s: np.ndarray, rows: np.ndarray) -> Structure:
    """Move the smooth shape numbers to where the fit itself has least loss, so that its intervals lie around it.

    Args:
        structure: as chosen.
        batch: sums of all steps, shape (k,).
        step_time_s: durations, shape (k,) [s].
        rows: that are fitted to, shape (k,), bool.

    Returns:
        The structure with other shape numbers; itself where nothing smooth acts.
    """
    acting = [name for name in SMOOTH if any(name in _used(structure, regime) for regime in ("decode", "mixed"))]
    if structure.name != "curved" or not acting:
        return structure
    some = thinned(rows, np.asarray(batch.prefill_tokens) > 0)
    few, y, everything = rows_of(batch, some), step_time_s[some], np.ones(int(some.sum()), bool)
    bends = [_bend(law) for law in learn(structure, few, y, everything).laws]

    def loss(candidate: Structure) -> float:
        laws = learn(candidate, few, y, everything, rounds=SEARCH_ROUNDS).laws
        return sum(float(_huber(law.residual, bend).sum()) for law, bend in zip(laws, bends, strict=True))

    for name in acting:
        structure = _moved(structure, name, loss)
    return structure


def _moved(structure: Structure, name: str, loss: Callable[[Structure], float]) -> Structure:
    """The structure with one shape number moved to the least loss nearby."""
    at = np.log(structure.shapes()[name])

    def moved(x: float) -> Structure:
        return structure.with_shape(**{name: float(np.exp(x))})

    found: Any = minimize_scalar(lambda x: loss(moved(x)), bounds=(at - NEARBY, at + NEARBY), method="bounded", options={"maxiter": 14})
    return moved(found.x) if loss(moved(found.x)) < loss(structure) else structure


def _bend(law: Law) -> float:
    return HUBER * max(1.4826 * float(np.median(np.abs(law.residual))), LEAST_SPREAD)


def _huber(residual: np.ndarray, bend: float) -> np.ndarray:
    size = np.abs(residual)
    return np.where(size <= bend, size**2 / 2, bend * (size - bend / 2))


def _used(structure: Structure, regime: str) -> set[str]:
    return {name for bend in BENDS if set(bend.terms) & set(getattr(structure, regime)) for name in shapes_of(bend, regime)}


class Sure(NamedTuple):
    """How sure a fit is of its coefficients.

    Args:
        interval: 95 % interval by name, (lower, upper), each holding the value itself [the coefficient's unit].
        correlation: of the coefficients of each law among each other, {"names": [...], "matrix": [[...]]}, as plain JSON values:
            of those that the draws move, where there are two or more.
    """

    interval: dict[str, tuple[float, float]]
    correlation: list[dict[str, Any]]


def sureness(learned: Learned, structure: Structure, batch: Batch, step_time_s: np.ndarray, rng: np.random.Generator) -> Sure:
    """95 % intervals by name of coefficient, none for a term that never occurred, and how the coefficients go together.

    Args:
        learned: the fit.
        structure: that was fitted.
        batch: sums of all steps of the trace, shape (k,).
        step_time_s: durations, shape (k,) [s].
        rng: random numbers of this run.

    Returns:
        Sure.
    """
    found = learned.plant.coefficients()
    interval: dict[str, tuple[float, float]] = {}
    correlation = []
    for part, law in zip(learned.parts, learned.laws, strict=True):
        names, wide = _with_shapes(learned, structure, part, law, batch)
        draws = coefficient_draws(wide, rng)
        ends = ends_of(draws)
        live = np.abs(wide.rows).max(axis=0) > 0
        for name, (low, high), here in zip(names, ends, live, strict=True):
            if here and name in found and np.isfinite(low):
                value = found[name].value
                new = (min(float(low), value), max(float(high), value))
                old = interval.get(name)
                if old is None or new[1] - new[0] < old[1] - old[0]:  # a shape that two regimes tell: the surer of them
                    interval[name] = new
        correlation += _together(names, [here and name in found for name, here in zip(names, live, strict=True)], draws)
    return Sure(interval | _thresholds(structure, learned, batch, step_time_s), correlation)


def _together(names: list[str], told: list[bool], draws: np.ndarray) -> list[dict[str, Any]]:
    """The correlation of the coefficients of one law; shapes, which two laws may share, are left out."""
    moving = draws.std(axis=0) > 1e-9 * np.abs(draws).max(axis=0, initial=0.0) if len(draws) else np.zeros(len(names), bool)
    mine = [i for i, name in enumerate(names) if told[i] and moving[i] and not name.startswith("shape.")]
    if len(mine) < 2:
        return []
    matrix = np.corrcoef(draws[:, mine].T)
    return [{"names": [names[i] for i in mine], "matrix": [[round(float(x), 4) for x in row] for row in matrix]}]


def _with_shapes(learned: Learned, structure: Structure, part: Part, law: Law, batch: Batch) -> tuple[list[str], Law]:
    """The law with a column for each smooth shape number that its regime's terms use."""
    if not isinstance(learned.plant, CurvedPlant) or part.regime not in ("decode", "mixed"):
        return list(part.names), law
    names = [name for name in SMOOTH if name in _used(structure, part.regime)]
    if not names:
        return list(part.names), law
    at = [[name for name, _ in SHAPES].index(name) for name in names]
    slopes = shape_jacobian(learned.plant, rows_of(batch, part.rows))[:, at]
    values = [structure.shapes()[name] for name in names]
    wide = Law(np.append(law.coefficients, values), np.concatenate([law.rows, slopes], axis=1), law.residual, law.weight)
    return [*part.names, *(f"shape.{name}" for name in names)], wide


def shape_jacobian(plant: CurvedPlant, batch: Batch) -> np.ndarray:
    """Derivative of the log of the predicted durations with respect to where the terms bend.

    Args:
        plant: the plant.
        batch: sums of the steps, shape (k,).

    Returns:
        d log t / d shape, shape (k, 7).
    """

    def logarithm(shape: Any, rows: Batch) -> Any:
        bent = CurvedPlant(plant.decode, plant.mixed, plant.decode_bent, plant.mixed_bent, tuple(shape[i] for i in range(len(SHAPES))))
        return jnp.log(bent.step_time_s(rows))

    rows = Batch(*(jnp.asarray(np.asarray(column, float)) for column in batch))
    return np.asarray(jax.jacfwd(logarithm)(jnp.asarray(plant.shape, dtype=float), rows))


def _thresholds(structure: Structure, learned: Learned, batch: Batch, step_time_s: np.ndarray) -> dict[str, tuple[float, float]]:
    """A jump lies between the last step before it and the first past it, or further off as far as the steps do not surely tell it apart."""
    found = {}
    tokens, mixed = batch.decode_requests + batch.prefill_tokens, np.asarray(batch.prefill_tokens) > 0
    for part in learned.parts:
        if part.regime in ("decode", "mixed") and 5 in getattr(structure, part.regime):
            own = np.zeros(len(mixed), bool)
            own[part.rows] = True
            rows = np.flatnonzero(thinned(own & (mixed == (part.regime == "mixed")), mixed))
            name = f"{part.regime}_limit_tokens"
            refit = _Refit(structure, name, part.regime, rows_of(batch, rows), step_time_s[rows])
            ends = _untold(tokens[rows], structure.shapes()[name], refit)
            if ends is not None:
                found[f"shape.{name}"] = ends
    return found


class _Refit(NamedTuple):
    """The law of one regime with its threshold elsewhere."""

    structure: Structure
    name: str
    regime: str
    batch: Batch
    step_time_s: np.ndarray

    def __call__(self, limit: float) -> np.ndarray:
        """Log residuals, shape (k,)."""
        moved, rows = self.structure.with_shape(**{self.name: limit}), np.ones(len(self.step_time_s), bool)
        return learn(moved, self.batch, self.step_time_s, rows, rounds=SEARCH_ROUNDS, only=self.regime).laws[0].residual


def _untold(tokens: np.ndarray, limit: float, told: Callable[[float], np.ndarray]) -> tuple[float, float] | None:
    """The smallest and the largest size between which a threshold cannot be told from another.

    Args:
        tokens: of the rows of the regime, shape (k,) [tokens].
        limit: where the threshold was found [tokens].
        told: log residuals of the fit with a threshold, shape (k,).

    Returns:
        Lower and upper end [tokens]; None where all sizes lie on one side.
    """
    sizes, least = np.unique(tokens), told(limit)
    at = int(np.searchsorted(sizes, limit, side="right")) - 1  # the last size before it
    if at < 0 or at + 1 >= len(sizes):
        return None

    def alike(step: int) -> int:
        """Sizes to go, downwards or upwards, until the fit is surely worse: by doubling, then by halving."""
        most = at if step < 0 else len(sizes) - 2 - at
        bad = lambda k: compare(least, told(float(sizes[at + step * k]))).errors <= -TOLD  # noqa: E731
        good, k = 0, 1
        while k <= most and not bad(k):
            good, k = k, 2 * k
        worse = min(k, most + 1)
        while worse - good > 1:
            middle = (good + worse) // 2
            good, worse = (good, middle) if bad(middle) else (middle, worse)
        return good

    return float(sizes[at - alike(-1)]), float(sizes[at + 1 + alike(1)])
