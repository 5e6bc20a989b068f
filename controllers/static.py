"""The static setting: what an engine does with its start-up flags. The baseline that every law must beat."""

from __future__ import annotations

from typing import Any, ClassVar, final

import numpy as np

from headway.controllers.controller import Controller, Gain
from headway.models.compiled import compiled_inline
from headway.models.pytree import pytree
from headway.models.signals import Measurement

STATIC = 0


@final
@pytree
class StaticLaw(Controller):
    """A token budget that never moves.

    Args:
        token_budget: of every step, decoding requests' tokens included [tokens].

    Example:
        >>> StaticLaw(2048.0).update(None, Measurement(0.02, 512, 8, 1.0, 9), 0.025)[1]
        2048.0
    """

    law: ClassVar[str] = "static"
    code: ClassVar[int] = STATIC
    token_budget: float

    def init(self) -> Any:  # noqa: D102
        return np.zeros(1)

    def update(self, state: Any, signals: Measurement, budget_s: float) -> tuple[Any, Any]:  # noqa: D102
        return state, self.token_budget

    def resume(self, state: Any, prefill_tokens: Any) -> Any:  # noqa: D102
        return state

    def gains(self) -> dict[str, Gain]:  # noqa: D102
        return {"token_budget": Gain(self.token_budget, "tokens", 1.0, 1e6)}


@compiled_inline
def static_step(law, state, signals, budget_s):
    """Compiled form of `StaticLaw.update`.

    Args:
        law: packed, shape (LAW_SIZE,).
        state: changed in place, shape (s,).
        signals: as `Measurement`, shape (SIGNALS,).
        budget_s: [s].

    Returns:
        Token budget [tokens].
    """
    return law[1]
