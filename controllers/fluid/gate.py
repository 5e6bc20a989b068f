"""The gate: whether the fluid's gradient may be used here, by what the exact engine says at the same point."""

from __future__ import annotations

import dataclasses

import numpy as np

LEAST_CORRELATION, MOST_BIAS, LEAST_COSINE = 0.95, 0.05, 0.9
LEAST_SPREAD = 1e-3
"""Standard deviation of the exact values over the seeds below which a correlation says nothing."""


@dataclasses.dataclass(frozen=True)
class GateVerdict:
    """What the gate found.

    Args:
        passed: whether the fluid's gradient may be used.
        correlation: of the values over the seeds; NaN where they hardly differ.
        bias: fluid's mean value less the exact one.
        cosine: between the fluid's gradient and the exact differences, in units of the parameters.
        ceiling: cosine that the exact differences' own noise would leave to a perfect gradient.
        seeds: compared.
        said: the sentence to show.
    """

    passed: bool
    correlation: float
    bias: float
    cosine: float
    ceiling: float
    seeds: int
    said: str


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of the angle between two gradients.

    Args:
        a: shape (parameters,).
        b: shape (parameters,).

    Returns:
        In [-1, 1]; 0 where one of them is 0, NaN where one is not finite.
    """
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.dot(a, b)) / length if length != 0.0 else 0.0


def noise_ceiling(slopes: np.ndarray) -> float:
    """Cosine that a mean of noisy gradients has to the truth, at best.

    1 / sqrt(1 + sum of se^2 / |mean|^2)

    Args:
        slopes: per seed, shape (seeds, parameters), in units of the parameters.

    Returns:
        In [0, 1].
    """
    mean = slopes.mean(0)
    noise = float((slopes.var(0, ddof=1) / len(slopes)).sum()) if len(slopes) > 1 else np.inf
    size = float(mean @ mean)
    return float(1.0 / np.sqrt(1.0 + noise / size)) if size > 0 else 0.0


def fluid_gate(
    fluid_values: np.ndarray,
    fluid_slopes: np.ndarray,
    exact_values: np.ndarray,
    exact_slopes: np.ndarray,
    unit: np.ndarray,
    *,
    least_correlation: float = LEAST_CORRELATION,
    most_bias: float = MOST_BIAS,
    least_cosine: float = LEAST_COSINE,
) -> GateVerdict:
    """Compare fluid and exact engine at one point, seed by seed.

    Args:
        fluid_values: shape (seeds,).
        fluid_slopes: derivatives, shape (seeds, parameters).
        exact_values: of the same seeds, shape (seeds,).
        exact_slopes: their large-step differences, shape (seeds, parameters).
        unit: of each parameter, shape (parameters,).
        least_correlation: of the values over the seeds.
        most_bias: of the mean value, either way.
        least_cosine: of the gradients. Where the exact differences are too noisy to show it, the gate stays shut.

    Returns:
        Verdict; shut as soon as one of the three falls short or is not finite.

    Raises:
        ValueError: fewer than 3 seeds, or unequal shapes.
    """
    if len(exact_values) < 3 or fluid_values.shape != exact_values.shape or fluid_slopes.shape != exact_slopes.shape:
        raise ValueError(
            f"the gate needs at least 3 seeds, the same for both engines, got {fluid_values.shape} and {exact_values.shape} values, "
            f"{fluid_slopes.shape} and {exact_slopes.shape} derivatives"
        )
    bias = float(fluid_values.mean() - exact_values.mean())
    flat = bool(exact_values.std() < LEAST_SPREAD)
    correlation = float("nan")
    if not flat and fluid_values.std() > 0:
        correlation = float(np.corrcoef(fluid_values, exact_values)[0, 1])
    ours, theirs = fluid_slopes.mean(0) * unit, exact_slopes.mean(0) * unit
    angle, ceiling = cosine(ours, theirs), noise_ceiling(exact_slopes * unit)
    short = []
    if not flat and not correlation >= least_correlation:
        short.append(f"its values follow the exact ones over the seeds at {correlation:.3f}, below {least_correlation:g}")
    if not abs(bias) <= most_bias:
        short.append(f"its value is off by {bias:+.3f}, more than {most_bias:g}")
    if not angle >= least_cosine:
        short.append(
            f"its gradient has cosine {angle:.3f} to the exact differences, below {least_cosine:g} (their own noise allows {ceiling:.2f})"
        )
    figures = f"correlation {correlation:.3f}, bias {bias:+.3f}, cosine {angle:.3f} over {len(exact_values)} seeds"
    said = f"fluid gradient used: {figures}"
    if short:
        said = f"fluid gradient not used here, exact differences take over: {'; '.join(short)}"
    return GateVerdict(not short, correlation, bias, angle, ceiling, len(exact_values), said)
