"""The sign of a loop: what a law does to a signal must push the signal back, or it makes worse what it reacts to.

A step that is too long is shortened by fewer prompt tokens; a wait in the queue is not shortened by fewer running
requests. A law that cuts concurrency because of latency as a whole, waits included, answers a queue by lengthening it.
So the token budget answers to the step time, and waits are answered by order, triage and admission.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headway.controllers import CONTROLLERS
from headway.controllers.controller import Controller
from headway.controllers.laws import STATE_SIZE, law_init, law_step
from headway.experiments.points import Place, step_time_s
from headway.models.plant import Plant
from headway.models.signals import SIGNALS, Measurement

REPEATS = 3
"""Equal readings in a row, so that a slow law shows which way it moves."""
SHORT, LONG = 0.5, 2.0
"""Of the budget: a step that leaves room for more, and one that is late."""


class Sign(NamedTuple):
    """Both halves of a loop, each by what one more of its input does to its output.

    Args:
        plant: change of the signal when the command rises.
        law: change of the command when the signal rises.
    """

    plant: float
    law: float

    @property
    def right(self) -> bool:
        """Whether the loop pushes back: a rise comes round as a fall, or does not come round."""
        return self.plant * self.law <= 0


def loop_sign(law: Controller, plant: Plant, place: Place, budget_s: float, tokens: float) -> Sign:
    """The sign of a law's loop from its step time to its token budget.

    Args:
        law: any.
        plant: the plant.
        place: the decodes.
        budget_s: longest step that keeps the ITL promise [s].
        tokens: of prompts in the step that is measured, at least 1 [tokens].

    Returns:
        Change of the step time over twice the tokens [s], and of the command between a short and a late step [tokens].
    """
    few, many = step_time_s(plant, *place, np.array([tokens, 2 * tokens]))
    short, late = (_command(law, place, share * budget_s, budget_s, tokens) for share in (SHORT, LONG))
    return Sign(float(many - few), late - short)


def _command(law: Controller, place: Place, step_time: float, budget_s: float, tokens: float) -> float:
    """What a law asks for after some equal readings."""
    n, kv = place
    row = np.array([step_time, tokens, n, 1.0, n, kv, 0.5 * tokens**2, 1.0, kv, 0.0])
    assert len(row) == SIGNALS
    if type(law) not in CONTROLLERS.values():
        state, budget = law.init(), 0.0
        for _ in range(REPEATS):
            state, budget = law.update(state, Measurement(*row.tolist()), budget_s)
        return float(budget)
    packed, memory, asked = law.pack(), np.zeros(STATE_SIZE), 0.0
    law_init(packed, memory)
    for _ in range(REPEATS):
        asked = float(law_step(packed, memory, row, budget_s))
    return asked
