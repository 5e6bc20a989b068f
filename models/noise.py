"""The plant's residual as a process: the part of a step's duration that its composition does not explain."""

from __future__ import annotations

import dataclasses

import numpy as np

BLOCK = 50
"""Steps in one bootstrap block: long enough to carry the residual's own correlation over some steps."""


@dataclasses.dataclass(frozen=True)
class Noise:
    """Logarithmic residuals of the kept steps, per regime, in the order they were measured.

    A drawn factor multiplies the predicted duration: y = exp(residual) * predicted.

    Args:
        decode: log(measured / predicted) of decode-only steps, shape (a,); empty means no noise.
        mixed: the same of steps with prefill, shape (b,); empty means no noise.
    """

    decode: np.ndarray
    mixed: np.ndarray

    def draw(self, seed: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Factors for a run, by block bootstrap: blocks of consecutive residuals keep their correlation.

        Args:
            seed: of this run.
            length: factors per regime; a longer run goes round.

        Returns:
            (decode, mixed) factors, each of shape (length,).

        Source:
            Kuensch, The jackknife and the bootstrap for general stationary observations, 1989.
        """
        rng = np.random.default_rng([seed, 0x5E1D])
        return _blocks(self.decode, rng, length), _blocks(self.mixed, rng, length)

    @staticmethod
    def none() -> Noise:
        """No noise: every factor is one.

        Returns:
            Empty residuals.
        """
        return Noise(np.zeros(0), np.zeros(0))


def _blocks(residual: np.ndarray, rng: np.random.Generator, length: int) -> np.ndarray:
    size = len(residual)
    if size == 0:
        return np.ones(length)
    block = min(BLOCK, max(1, size // 10))
    starts = rng.integers(0, size, -(-length // block))
    index = (starts[:, None] + np.arange(block)).ravel()[:length] % size
    return np.exp(residual[index])
