"""The controller: from the measurement of a step to the command for the next. Gains are its fields."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from headway.models.signals import Measurement
from headway.models.steptime import PACKED

PLANT_AT = 16
"""Where the packed plant begins in a packed law, after its code and its numbers."""
LAW_SIZE = PLANT_AT + PACKED
"""Length of a packed law: its code, its numbers, and the plant that it predicts with; zeros for a law without one."""


class Gain(NamedTuple):
    """One number of a law, as shown to people and as exported.

    Args:
        value: in `unit`.
        unit: such as "1", "tokens", "s/token".
        low: least value that makes sense.
        high: greatest.
    """

    value: float
    unit: str
    low: float
    high: float


class Controller(ABC):
    """Base of all laws: frozen pytrees, one file each, listed in `CONTROLLERS`.

    `init` gives the state, `update` takes a state and a measurement and returns the next state and the token budget of
    the step to be composed. Both are pure. `pack` gives the same law to the compiled `headway.controllers.laws`.
    """

    law: ClassVar[str]
    code: ClassVar[int]
    predicts: ClassVar[bool] = False
    """Whether the law has a field `plant`, which it predicts steps with. It is no gain: gains are tuned, a plant is fitted."""

    @abstractmethod
    def init(self) -> Any:
        """State before the first step.

        Returns:
            An array of shape (s,).
        """

    @abstractmethod
    def update(self, state: Any, signals: Measurement, budget_s: float) -> tuple[Any, Any]:
        """One step of the law.

        Args:
            state: as from `init` or the last `update`, shape (s,).
            signals: of the step that ended, and of the one to be composed.
            budget_s: longest step that keeps the ITL promise [s].

        Returns:
            (state, token budget of the next step [tokens], the decoding requests' own included).
        """

    @abstractmethod
    def gains(self) -> dict[str, Gain]:
        """Every number of the law by name.

        Returns:
            Mapping from field name to value, unit and sensible range.
        """

    @property
    def setpoint_margin(self) -> float:
        """Share of the budget kept as safety margin, in [0, 1): setpoint = (1 - margin) * budget. 0 where the law has none."""
        return 0.0

    def check(self) -> None:
        """Refuse gains outside their range.

        Raises:
            ValueError: names the gain, its value and its range.
        """
        for name, gain in self.gains().items():
            if not gain.low <= gain.value <= gain.high:
                hint = "; write 0.25 for 25 %" if name == "margin" and gain.value >= 1 else ""
                raise ValueError(f"{name} must be in [{gain.low:g}, {gain.high:g}], got {gain.value:g}{hint}")

    def pack(self) -> np.ndarray:
        """The law as the compiled form reads it: its code, then its gains in order.

        Returns:
            float64 array of shape (LAW_SIZE,).
        """
        packed = np.zeros(LAW_SIZE)
        numbers = [gain.value for gain in self.gains().values()]
        packed[0], packed[1 : 1 + len(numbers)] = self.code, numbers
        if self.predicts:
            packed[PLANT_AT:] = self.plant.pack()  # pyright: ignore[reportAttributeAccessIssue]  # what `predicts` says
        return packed

    @abstractmethod
    def resume(self, state: Any, prefill_tokens: Any) -> Any:
        """State that goes on from a command in force, without a bump: after a fallback, or from another law.

        Args:
            state: as it was left, shape (s,).
            prefill_tokens: prefill budget of the command in force [tokens].

        Returns:
            A state whose next command, at no error, is that one. A law without memory returns the state.
        """
