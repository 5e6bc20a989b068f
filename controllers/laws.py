"""The laws in compiled form: one call that looks up the law by its code, for the scheduler's inner loop."""

from __future__ import annotations

from headway.controllers.pi import PI, pi_step
from headway.controllers.static import STATIC, static_step
from headway.controllers.updown import UPDOWN, updown_step
from headway.models.compiled import compiled_inline

STATE_SIZE = 4
"""Numbers of state that any law may keep."""


@compiled_inline
def law_init(law, state):
    """State before the first step.

    Args:
        law: packed, shape (LAW_SIZE,).
        state: changed in place, shape (STATE_SIZE,).
    """
    state[:] = 0.0
    if law[0] == UPDOWN:
        state[0] = min(law[4], law[5])
    elif law[0] == PI:
        state[0] = min(law[6], law[7])
        state[1] = state[0]


@compiled_inline
def law_step(law, state, signals, budget_s):
    """One step of whichever law is packed.

    Args:
        law: packed, shape (LAW_SIZE,).
        state: changed in place, shape (STATE_SIZE,).
        signals: as `Measurement`, shape (5,).
        budget_s: longest step that keeps the ITL promise [s].

    Returns:
        Token budget of the next step [tokens].
    """
    if law[0] == STATIC:
        return static_step(law, state, signals, budget_s)
    if law[0] == UPDOWN:
        return updown_step(law, state, signals, budget_s)
    return pi_step(law, state, signals, budget_s)
