"""The engine port: anything that executes steps. A closed loop composes a step, an engine runs it and says how long it took."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from headway.models.signals import Limits


class Step(NamedTuple):
    """One step as the scheduler composed it: one row per request that gets tokens, in scheduling order.

    Args:
        request: index of the request in its workload, shape (m,), int64.
        tokens: prompt tokens to prefill, or 1 for a decode, shape (m,), int64.
        context: tokens of the request already in the cache before this step, shape (m,), int64.
        decode: True where the row emits one more token after its prompt, shape (m,), bool.
        released: requests whose cache is free again since the step before (finished or preempted), shape (q,), int64.
    """

    request: np.ndarray
    tokens: np.ndarray
    context: np.ndarray
    decode: np.ndarray
    released: np.ndarray


class Engine(ABC):
    """Anything that executes steps: a plant with noise, timed kernels, a serving engine behind an adapter."""

    name: str
    limits: Limits

    @abstractmethod
    def reset(self) -> None:
        """Forget all requests: an empty cache, as after start-up."""

    @abstractmethod
    def execute(self, step: Step) -> float:
        """Run one step to its end.

        Args:
            step: what to run; never empty.

        Returns:
            How long it took, from its start until its results were there [s].
        """
