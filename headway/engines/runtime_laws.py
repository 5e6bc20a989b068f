"""Laws inside an engine's process: what each does to its state after a step, and the prefill budget that follows.

A state is a list of floats and changes in place. `tests/test_runtime.py` holds each law to Headway's compiled one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

LAWS = {
    "static": ("token_budget",),
    "updown": ("margin", "up_tokens", "down", "initial_tokens", "most_tokens"),
    "pi": ("margin", "kp", "ki", "kt", "slope_s_per_token", "slew_tokens", "initial_tokens", "most_tokens", "quantum_tokens"),
    "balanced": ("late_rate", "gain", "initial_tokens", "most_tokens"),
    "feedforward": ("margin", "ki", "most_tokens", "quantum_tokens"),
    "tracker": ("late_rate", "kb", "eta", "margin", "start_decode", "start_mixed", "least_tokens", "most_tokens", "quantum_tokens"),
}
"""Gains of each law, in the order in which its step reads them."""
ADDED = {"least_tokens": 0.0}
"""Gains that files from before them lack, with the value at which a law acts as it did."""
PREDICTS = ("feedforward", "tracker")
"""Laws that turn the plant round: they need the sums of a step."""
HOLDS = ("pi", "feedforward", "tracker")
"""Laws that command in quanta, and keep the last command as the last number of their state."""
HOLD, NONE = 0.5, -1.0
"""Quanta that a budget may stray beyond the rounding before the command follows, and the last command before the first."""
WORTH, OVERSTAY = 1.1, 1.05
"""Rate of prompt tokens past a jump of the plant, relative to that just below it, that is worth the jump; and how much longer
than the budget of the moment would a command that is held may make the step."""

LEAST_TOKENS = 20.0
"""Of the balanced law: prefill budget from which on a rise is a share of it [tokens]."""
REACH = 0.4
"""Of the feedforward law: most of the budget that its trim may add or take."""
CLIP, QUANTILE_MOST, LEAST_S = 0.15, 1.0, 1e-12
"""Of the tracker: log residual beyond which one step moves the bias no further, largest quantile, least prediction [s]."""

Gains = tuple[float, ...]
Move = Callable[[Gains, list[float], float, float, bool, float, float], None]


def start_state(law: str, gains: Gains) -> list[float]:
    """State of a law before the first step.

    Args:
        law: one of LAWS.
        gains: its gains in the order of LAWS.

    Returns:
        The state.
    """
    if law == "tracker":
        return [0.0, gains[4], gains[5], NONE]
    if law == "feedforward":
        return [0.0, NONE]
    if law == "pi":
        return [min(gains[6:8])] * 2 + [NONE]
    return [min(gains[-2:])] if law in ("updown", "balanced") else [0.0]


def resume(law: str, gains: Gains, state: list[float], prefill_tokens: float) -> None:
    """Let a state go on from a command in force, without a bump.

    Args:
        law: one of LAWS.
        gains: its gains in the order of LAWS.
        state: changed in place.
        prefill_tokens: prefill budget in force [tokens].
    """
    if law in PREDICTS:
        state[-1] = min(max(prefill_tokens, 0.0), gains[-2])
    elif law == "pi":
        state[:] = [min(max(prefill_tokens, 0.0), gains[-2])] * len(state)
    elif law != "static":
        state[:] = [min(max(prefill_tokens, 1.0), gains[-1])]


def held(u: float, last: float, quantum: float, most: float) -> float:
    """The command for a budget: a multiple of the quantum, the last one as long as it will do.

    Args:
        u: budget that the law asks for [tokens].
        last: command in force; negative before the first [tokens].
        quantum: 1 or less is plain rounding down [tokens].
        most: upper limit of the budget [tokens].

    Returns:
        Command, a whole number [tokens].
    """
    q = quantum // 1.0
    if q <= 1.0 or u < q:
        return u // 1.0
    if last < 0.0:
        return (u / q) // 1.0 * q
    low = (max(u - HOLD * q, q) / q) // 1.0 * q
    high = (min(u + HOLD * q, max(most, u)) / q) // 1.0 * q
    return min(max(last, low), high)


def settled(u: float, at: Callable[[float], float], edge: float, past: bool, last: float, quantum: float, most: float) -> float:
    """The command for the largest budget that fits: not past a jump that is not worth it, in quanta that are held.

    Args:
        u: largest prefill budget that fits [tokens].
        at: duration of the step with a chunk of so many tokens [s].
        edge: last budget before the plant's jump; infinite for one without [tokens].
        past: the last step was past it.
        last: command in force; negative before the first [tokens].
        quantum: of the command [tokens].
        most: upper limit of the budget [tokens].

    Returns:
        Command [tokens].
    """
    if 1.0 <= edge < u and u / at(u) < (1.0 if past else WORTH) * edge / at(edge):
        u = edge
    command = held(u, last, quantum, most)
    if command > u and at(command) > OVERSTAY * at(u):
        command = held(u, NONE, quantum, most)
    return command


def target_s(law: str, gains: Gains, state: list[float], budget_s: float) -> float:
    """Duration at which a law that predicts turns its plant round.

    Args:
        law: one of PREDICTS.
        gains: its gains in the order of LAWS.
        state: as it stands.
        budget_s: longest step that keeps the ITL promise [s].

    Returns:
        Duration [s].
    """
    if law == "tracker":
        return (1.0 - gains[3]) * budget_s * math.exp(-state[2] - state[0])
    return (1.0 - gains[0]) * budget_s + state[0]


def least_tokens(law: str, gains: Gains) -> float:
    """Prefill budget that a law does not go below.

    Args:
        law: one of LAWS.
        gains: its gains in the order of LAWS.

    Returns:
        A whole number; 0 for a law without such a limit [tokens].
    """
    return min(gains[6], gains[7]) // 1.0 if law == "tracker" else 0.0


def _static(
    _gains: Gains, _state: list[float], _step_time_s: float, _prefill: float, _bound: bool, _budget_s: float, _predicted_s: float
) -> None:
    """A budget that never moves."""


def _updown(
    gains: Gains, state: list[float], step_time_s: float, _prefill: float, bound: bool, budget_s: float, _predicted_s: float
) -> None:
    """Some tokens more after a good step, a cut after a late one."""
    margin, up, down, _, most = gains
    u = state[0]
    if step_time_s > budget_s:
        u = max(u * down, 1.0)
    elif bound and step_time_s < (1.0 - margin) * budget_s:
        u = u + up
    state[0] = min(u, most)


def _pi(gains: Gains, state: list[float], step_time_s: float, _prefill: float, bound: bool, budget_s: float, _predicted_s: float) -> None:
    """PI with back-calculation; it integrates only while the budget binds or the step is above its setpoint."""
    margin, kp, ki, kt, slope, slew, _, most, quantum = gains
    setpoint_s = (1.0 - margin) * budget_s
    if bound or step_time_s > setpoint_s:
        error = (setpoint_s - step_time_s) / slope
        withheld = state[1] - state[2] if quantum >= 2.0 and state[2] >= 0.0 else 0.0
        integral = state[0] + ki * (error - withheld)
        wanted = integral + kp * error
        u = min(max(wanted, state[1] - slew, 0.0), state[1] + slew, most)
        state[0] = integral + kt * (u - wanted)
        state[1] = u


def _balanced(
    gains: Gains, state: list[float], step_time_s: float, _prefill: float, bound: bool, budget_s: float, _predicted_s: float
) -> None:
    """Up and down in the ratio of the late rate that is wanted."""
    late_rate, gain, _, most = gains
    u = state[0]
    if step_time_s > budget_s:
        u = max(u - gain * (1.0 - late_rate) * u, 1.0)
    elif bound:
        u = u + gain * late_rate * max(u, LEAST_TOKENS)
    state[0] = min(u, most)


def _feedforward(
    gains: Gains, state: list[float], step_time_s: float, _prefill: float, bound: bool, budget_s: float, predicted_s: float
) -> None:
    """An integral of what the plant is off by trims the target of the inverse plant."""
    margin, ki, _, _ = gains
    setpoint_s = (1.0 - margin) * budget_s
    if bound or step_time_s > setpoint_s:
        state[0] = min(max(state[0] + ki * (predicted_s - step_time_s - state[0]), -REACH * budget_s), REACH * budget_s)


def _tracker(
    gains: Gains, state: list[float], step_time_s: float, prefill: float, bound: bool, budget_s: float, predicted_s: float
) -> None:
    """A slow robust bias, and the quantile of its score for the regime that the step was in."""
    late, mixed, predicted_s = step_time_s > budget_s, prefill > 0.0, max(predicted_s, LEAST_S)
    if mixed:
        if not (late or bound):
            return
    elif late and predicted_s * math.exp(state[0]) > budget_s:
        return
    late_rate, kb, eta = gains[:3]
    r = 2 if mixed else 1
    score, q = math.log(step_time_s) - math.log(predicted_s) - state[0], state[r]
    state[0] += kb * min(max(score, -CLIP), CLIP)
    state[r] = min(max(q + eta * ((1.0 if score > q else 0.0) - late_rate), 0.0), QUANTILE_MOST)


MOVES: dict[str, Move] = {
    "static": _static,
    "updown": _updown,
    "pi": _pi,
    "balanced": _balanced,
    "feedforward": _feedforward,
    "tracker": _tracker,
}
"""What each law does to its state after a step with decodes."""
