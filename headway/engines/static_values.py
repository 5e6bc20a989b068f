"""The numbers that flags can hold: what stays of a controller when nothing runs beside the engine."""

from __future__ import annotations

import math
from typing import NamedTuple

from headway.controllers.inverse import largest_prefill
from headway.controllers.record import ControllerRecord
from headway.controllers.static import StaticLaw


class StaticValues(NamedTuple):
    """A static setting, and why it is this one.

    Args:
        token_budget: most tokens in a step, decodes included [tokens].
        running_limit: most requests running at once [requests].
        chunk_tokens: most prompt tokens of one request in a step; 0 is no cap [tokens].
        origin: one sentence.
    """

    token_budget: int
    running_limit: int
    chunk_tokens: int
    origin: str


def static_values(record: ControllerRecord) -> StaticValues:
    """The best static setting that tuning found beside the controller; without a tuning, the controller's own operating point.

    Tuning judged the first as what it is, a setting that never moves, under the same arrivals. The operating point was
    judged by nobody: with every request that the plant was fitted on decoding, as many prompt tokens as end by the setpoint.

    Args:
        record: the controller.

    Returns:
        The values, within the engine's start-up limits.
    """
    limits, (law, policy, _) = record.limits, record.candidate
    best = (record.tuning.get("best_static") or {}).get("settings") or {}
    running = max(1, min(math.floor(policy.running_limit), limits.max_seqs))
    chunk = max(0, math.floor(policy.chunk_tokens))
    if isinstance(law, StaticLaw):
        budget = _within(law.token_budget, limits.max_tokens)
        return StaticValues(budget, running, chunk, "the controller is itself a static setting")
    if best.get("token_budget") and best.get("running_limit"):
        budget, running = _within(best["token_budget"], limits.max_tokens), _within(best["running_limit"], limits.max_seqs)
        return StaticValues(budget, running, 0, "the best static setting that tuning found beside the controller")
    n = max(1, min(int(record.hull.decode_requests), running))
    kv = record.hull.decode_kv_tokens * n / max(record.hull.decode_requests, 1.0)
    setpoint_s = (1 - law.setpoint_margin) * min(t.budget_s for t in record.targets)
    prefill = float(largest_prefill(record.plant.pack(), float(n), max(kv, float(n)), 0.0, setpoint_s, float(limits.max_tokens)))
    origin = (
        f"no static setting was tuned: the budget is the controller's operating point, {prefill:,.0f} prompt tokens beside {n} decodes "
        f"of {kv / n:,.0f} tokens each end by its setpoint of {setpoint_s * 1e3:.2f} ms"
    )
    return StaticValues(_within(n + prefill, limits.max_tokens), running, chunk, origin)


def _within(value: float, most: int) -> int:
    return max(1, min(int(value), most))
