"""The laws of the second scheduler, for the tests alone: written from their docstrings."""

from __future__ import annotations

import math
from typing import Any


class Law:
    """The three laws as their docstrings have them."""

    def __init__(self, law: Any) -> None:
        self.law, self.kind, self.margin = law, law.law, getattr(law, "margin", 0.0)
        self.u: float = 0.0 if self.kind == "static" else min(law.initial_tokens, law.most_tokens)
        self.integral = self.u

    def budget(self, last: dict | None, ready: int, budget_s: float) -> float:
        law = self.law
        if self.kind == "static":
            return law.token_budget
        if last is not None and last["decode_requests"] > 0:
            (self._updown if self.kind == "updown" else self._pi)(last["step_time_s"], last["binding"] == "budget", budget_s)
        return law.most_tokens if ready == 0 else math.floor(self.u) + ready

    def _updown(self, step_time_s: float, binding: bool, budget_s: float) -> None:
        if step_time_s > budget_s:
            self.u = max(self.u * self.law.down, 1)
        elif step_time_s < (1 - self.margin) * budget_s and binding:
            self.u += self.law.up_tokens
        self.u = min(self.u, self.law.most_tokens)

    def _pi(self, step_time_s: float, binding: bool, budget_s: float) -> None:
        law, setpoint_s = self.law, (1 - self.margin) * budget_s
        if binding or step_time_s > setpoint_s:
            error = (setpoint_s - step_time_s) / law.slope_s_per_token
            self.integral += law.ki * error
            wanted = self.integral + law.kp * error
            self.u = min(max(wanted, self.u - law.slew_tokens, 0), self.u + law.slew_tokens, law.most_tokens)
            self.integral += law.kt * (self.u - wanted)
