"""What others fit to the same steps: least squares with one affine law, Huber's estimator, and Vidur's random forest.

Each gets the five sums of the fitted rows and predicts all rows. scikit-learn and statsmodels are in the extra `bench`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.held_out import Split
from benchmarks.table import Missing

TREES = 250
"""The fewest of Vidur's grid (250, 500, 750): more trees average over more chance and take three times as long."""
GRID = {"n_estimators": [TREES], "max_depth": [8, 16, 32], "min_samples_split": [2, 5, 10]}
FOLDS = 10


def least_squares(split: Split) -> np.ndarray:
    """One affine law of the five sums by ordinary least squares, in seconds."""
    return _affine(split, lambda columns, time_s: np.linalg.lstsq(columns, time_s, rcond=None)[0])


def relative_least_squares(split: Split) -> np.ndarray:
    """One affine law of the five sums by least squares weighted 1/t: in shares of the duration, as MAPE counts."""
    return _affine(split, lambda columns, time_s: np.linalg.lstsq(columns / time_s[:, None], np.ones(len(time_s)), rcond=None)[0])


def huber(split: Split) -> np.ndarray:
    """One affine law of the five sums by statsmodels' robust linear model with Huber's norm."""
    robust, norms = peer("statsmodels.robust.robust_linear_model"), peer("statsmodels.robust.norms")
    return _affine(split, lambda columns, time_s: robust.RLM(time_s, columns, M=norms.HuberT()).fit().params)


def forest(split: Split) -> np.ndarray:
    """A random forest on the five sums, its depth and splits searched by cross-validated MAPE over Vidur's grid.

    Vidur fits such forests to kernels, one each; here one is fitted to whole steps.
    """
    ensemble, selection = peer("sklearn.ensemble"), peer("sklearn.model_selection")
    search = selection.GridSearchCV(
        ensemble.RandomForestRegressor(random_state=0), GRID, scoring="neg_mean_absolute_percentage_error", cv=FOLDS, n_jobs=-1
    )
    search.fit(split.sums[split.fitted], split.trace.step_time_s[split.fitted])
    return search.predict(split.sums)


PEERS: dict[str, Callable[[Split], np.ndarray]] = {
    "statsmodels RLM, Huber, affine": huber,
    f"random forest, Vidur's grid with {TREES} trees": forest,
}


def peer(name: str) -> Any:
    """A module of an optional package, by its dotted name.

    Raises:
        Missing: the package is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise Missing(f"{error.name} is not installed: pip install 'headway[bench]', or pip install -e '.[bench]' in a checkout") from None


def _affine(split: Split, solve: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """Fit a constant and the five sums, each scaled to a size of one, and predict all rows."""
    columns = np.column_stack([np.ones(len(split.sums)), split.sums])
    size = np.sqrt((columns[split.fitted] ** 2).mean(axis=0))
    columns = columns / np.where(size > 0, size, 1.0)
    return columns @ np.asarray(solve(columns[split.fitted], split.trace.step_time_s[split.fitted]))
