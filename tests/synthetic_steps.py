"""Steps made by a known plant, for the tests of identification."""

from __future__ import annotations

import numpy as np
import polars as pl

from headway.identification.trace import Trace
from headway.models.plant import Batch
from headway.models.regimes import RegimePlant

TRUTH = RegimePlant((6e-3, 7e-5, 5e-9, 0.0, 0.0, 0.0), (6.5e-3, 1e-4, 6e-9, 1.5e-5, 5e-10, 5e-4))
"""About a 32B dense model on four large GPUs."""


def composed(k: int, seed: int = 0, mixed: float = 0.25) -> Batch:
    """Steps that move every sum by itself."""
    rng = np.random.default_rng([seed, 1])
    decoding = rng.integers(1, 64, k).astype(float)
    prefill = rng.random(k) < mixed
    requests = np.where(prefill, rng.integers(1, 4, k), 0).astype(float)
    tokens = np.where(prefill, rng.integers(16, 2000, k), 0).astype(float)
    context = np.where(prefill, rng.integers(0, 3000, k), 0)
    pairs = tokens * (context + tokens / 2) / np.maximum(requests, 1)
    return Batch(decoding, np.round(decoding * rng.integers(200, 4000, k)), tokens, pairs, requests)


def noise(k: int, sd: float, seed: int = 0, correlation: float = 0.0) -> np.ndarray:
    """Logarithmic residuals of a first-order process with this standard deviation."""
    drawn = np.random.default_rng([seed, 2]).normal(size=k) * sd
    for i in range(1, k):
        drawn[i] = correlation * drawn[i - 1] + np.sqrt(1 - correlation**2) * drawn[i]
    return drawn


def durations(batch: Batch, sd: float = 0.0, seed: int = 0, correlation: float = 0.0) -> np.ndarray:
    """What the plant takes for these steps, times noise."""
    return TRUTH.step_time_s(batch) * np.exp(noise(len(batch.decode_requests), sd, seed, correlation))


def traced(batch: Batch, step_time_s: np.ndarray, **others: object) -> Trace:
    """The trace that a recorder would have written."""
    return Trace.of(pl.DataFrame({"step": np.arange(len(step_time_s)), "step_time_s": step_time_s, **batch._asdict(), **others}))


def coefficients(plant: object) -> dict[str, float]:
    """Values by name."""
    return {name: c.value for name, c in plant.coefficients().items()}  # pyright: ignore[reportAttributeAccessIssue]
