"""The plant: how long an engine step takes, as a function of what the scheduler put into it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np


class Batch(NamedTuple):
    """The sums of one step's composition that its duration depends on. Scalars, or arrays of one shape (k,).

    Args:
        decode_requests: requests that decode [requests].
        decode_kv_tokens: tokens of cache that they read [tokens].
        prefill_tokens: prompt tokens computed [tokens].
        prefill_pairs: attention work of the chunks, sum over chunks of p * (context + p / 2) [tokens^2].
        prefill_requests: requests with a chunk in the step [requests].
    """

    decode_requests: Any
    decode_kv_tokens: Any
    prefill_tokens: Any
    prefill_pairs: Any
    prefill_requests: Any


class Coefficient(NamedTuple):
    """One number of a plant, as shown to people.

    Args:
        value: in `unit`.
        unit: such as "s", "s/token".
    """

    value: float
    unit: str


class Plant(ABC):
    """Base of all step-time structures: frozen pytrees (`headway.models.pytree`), one file each, listed in `PLANTS`."""

    structure: ClassVar[str]

    @abstractmethod
    def step_time_s(self, batch: Batch) -> Any:
        """Predicted duration of steps.

        Args:
            batch: scalars or arrays of shape (k,), numpy or JAX.

        Returns:
            Durations of the same shape [s].
        """

    @abstractmethod
    def pack(self) -> np.ndarray:
        """The numbers in the order that the compiled `headway.models.steptime.step_time` reads.

        Returns:
            float64 array of shape (PACKED,).
        """

    @abstractmethod
    def coefficients(self) -> dict[str, Coefficient]:
        """Every number by name, with its unit.

        Returns:
            Mapping from "regime.term" to value and unit; the inverse is `from_coefficients`.
        """

    @classmethod
    @abstractmethod
    def from_coefficients(cls, values: dict[str, float]) -> Plant:
        """Build the plant from numbers by name.

        Args:
            values: as in `coefficients`, values alone.

        Returns:
            The plant.

        Raises:
            ValueError: a missing or unknown name, or a value that is negative or not finite.
        """
