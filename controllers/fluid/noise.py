"""The noise of step times in closed form: how likely a gap keeps its target, and how many tokens it owes on average."""

from __future__ import annotations

from typing import Any, final

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from headway.models.pytree import pytree

MOST_OWED = 4
"""Largest number of tokens that one step's gap is counted to owe: longer ones hardly come from noise alone."""
CORE = 2.5
"""Standard deviations within which residuals belong to the core; above them lies the tail."""


@final
@pytree
class StepNoise:
    """Step times are y z: z is lognormal, and with a small probability times a spike 1 + scale * Pareto(power).

    Args:
        shift: mean of log z without the spike.
        sigma: standard deviation of log z without the spike.
        tail_share: probability of a spike, in [0, 1].
        tail_power: of the Pareto law.
        tail_scale: of the spike.

    Example:
        >>> round(float(StepNoise(0.0, 0.06, 0.0, 2.5, 0.15).on_time(0.025, 0.025)), 3)
        0.5
    """

    shift: Any = 0.0
    sigma: Any = 1e-3
    tail_share: Any = 0.0
    tail_power: Any = 2.5
    tail_scale: Any = 0.15

    def on_time(self, step_time_s: Any, itl_s: Any, trim: Any = 0.0) -> Any:
        """Probability that a step is no longer than a target.

        P = Phi((log r - shift) / s) (1 - tail_share + tail_share (1 - (1 + max(r - 1, 0) / scale)^-power)),
        r = target / y, s = sigma sqrt(1 + ki / (2 - ki))

        Core and spike are judged apart, so that P is off by less than tail_share; their product has no closed form.
        The integral gain answers noise with noise: its trim is an autoregressive process driven by the residuals.

        Args:
            step_time_s: predicted, without noise [s].
            itl_s: target [s].
            trim: integral gain ki of the law, in [0, 2).

        Returns:
            Probability, of the shape of step_time_s and itl_s together.
        """
        ratio = itl_s / step_time_s
        spread = self.sigma * jnp.sqrt(1.0 + trim / (2.0 - trim))
        core = ndtr((jnp.log(ratio) - self.shift) / spread)
        spike = 1.0 - (1.0 + jnp.maximum(ratio - 1.0, 0.0) / self.tail_scale) ** (-self.tail_power)
        return core * (1.0 - self.tail_share + self.tail_share * spike)

    def owed(self, step_time_s: Any, itl_s: Any, trim: Any = 0.0) -> Any:
        """Tokens that one gap owes on average.

        E max(1, floor(y z / itl)) = 1 + sum over j = 2 .. 4 of P(y z > j itl)

        Args:
            step_time_s: predicted, without noise [s].
            itl_s: target [s].
            trim: integral gain of the law.

        Returns:
            Tokens per gap, at least 1.
        """
        more = [1.0 - self.on_time(step_time_s, j * itl_s, trim) for j in range(2, MOST_OWED + 1)]
        return 1.0 + sum(more)


def step_noise(residuals: np.ndarray) -> StepNoise:
    """The closed form that is nearest to a plant's residuals: core from the quartiles, tail from what lies above it.

    The tail's power is Hill's estimate over the excess exp(residual) - 1, in units of the scale.

    Args:
        residuals: log(measured / predicted), shape (k,); empty for none.

    Returns:
        Its noise.
    """
    found = np.asarray(residuals, float)
    if not len(found):
        return StepNoise()
    low, middle, high = np.quantile(found, [0.25, 0.5, 0.75])
    sigma = max((high - low) / 1.349, 1e-3)
    tail = np.expm1(found[found > middle + CORE * sigma] - middle)
    expected = 0.00621 * len(found)  # that a normal law alone would put above CORE
    if len(tail) <= max(2.0 * expected, 5.0):
        return StepNoise(float(middle), float(sigma))
    scale = float(np.expm1(CORE * sigma))
    power = float(np.clip(1.0 / max(np.mean(np.log1p(tail / scale)), 1e-3), 0.5, 20.0))
    return StepNoise(float(middle), float(sigma), float(len(tail) / len(found)), power, scale)
