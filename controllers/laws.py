"""The laws in compiled form: one call that looks up the law by its code, for the scheduler's inner loop."""

from __future__ import annotations

from headway.controllers.balanced import BALANCED, balanced_step
from headway.controllers.feedforward import FEEDFORWARD, feedforward_step
from headway.controllers.pi import PI, pi_step
from headway.controllers.quantum import NONE
from headway.controllers.static import STATIC, static_step
from headway.controllers.tracker import TRACKER, tracker_step
from headway.controllers.updown import UPDOWN, updown_step
from headway.models.compiled import compiled, compiled_inline
from headway.models.state import LAW_STATE

STATE_SIZE = LAW_STATE
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
        state[0] = min(law[7], law[8])
        state[1], state[2] = state[0], NONE
    elif law[0] == BALANCED:
        state[0] = min(law[3], law[4])
    elif law[0] == FEEDFORWARD:
        state[1] = NONE
    elif law[0] == TRACKER:
        state[1], state[2], state[3] = law[5], law[6], NONE


@compiled_inline
def law_step(law, state, signals, budget_s):
    """One step of whichever law is packed.

    Args:
        law: packed, shape (LAW_SIZE,).
        state: changed in place, shape (STATE_SIZE,).
        signals: as `Measurement`, shape (SIGNALS,).
        budget_s: longest step that keeps the ITL promise [s].

    Returns:
        Token budget of the next step [tokens].
    """
    if law[0] == STATIC:
        return static_step(law, state, signals, budget_s)
    if law[0] == UPDOWN:
        return updown_step(law, state, signals, budget_s)
    if law[0] == PI:
        return pi_step(law, state, signals, budget_s)
    return _later(law, state, signals, budget_s)


@compiled
def _later(law, state, signals, budget_s):
    """The laws whose step is long: their body stays out of the scheduler's."""
    if law[0] == BALANCED:
        return balanced_step(law, state, signals, budget_s)
    if law[0] == FEEDFORWARD:
        return feedforward_step(law, state, signals, budget_s)
    return tracker_step(law, state, signals, budget_s)
