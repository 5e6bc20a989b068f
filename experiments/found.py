"""What a law does when it is run under a constant load: its limit cycle, its stillness under noise, its late rate."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from headway.controllers.balanced import BalancedLaw
from headway.controllers.pi import PILaw
from headway.controllers.tracker import TrackerLaw
from headway.controllers.updown import UpDownLaw
from headway.experiments.case import Case, jumps, slope_at_setpoint
from headway.experiments.cycles import NOISE, Cycle, across_jump, at_the_budget, balance, even_noise, found_cycle, sawtooth
from headway.experiments.loops import loop_of, quantile_gain
from headway.experiments.margins import loop_margins
from headway.experiments.points import Place, powerless, with_gain

GAINS = (0.8, 1.0, 1.2)
"""Times the plant's gain, at which no limit cycle may exceed a quantum."""
GENTLE = 0.02
"""Share of the budget up to which the step of a tracker's quantile is its design: without noise it cycles by that much."""
STILL = 4.0
"""Standard deviations of a budget, to either side, that it keeps within over some thousand steps."""


def worst_cycle(case: Case, delay: int) -> tuple[Cycle, Place, float]:
    """The largest limit cycle that simulation finds over the places and the plant's gains, without noise.

    Args:
        case: with at least one place.
        delay: steps from a command to its measurement.

    Returns:
        (cycle, where, times the plant's gain).
    """
    plants = {factor: with_gain(case.plant, factor, case.points) if factor != 1 else case.plant for factor in GAINS}
    runs = [
        (found_cycle(case.law, plant, place, case.budget_s, delay), place, factor)
        for place in case.places
        for factor, plant in plants.items()
        if not powerless(plant, place, case.setpoint_s)
    ]
    return max(runs, key=lambda run: run[0].amplitude_tokens)


def own_step(case: Case) -> float:
    """What the tracker's quantile moves the budget by at one late step: without noise, a sawtooth of that size is its design.

    Args:
        case: with at least one place.

    Returns:
        Tokens, counted up to 2 % of the budget; 0 for other laws.
    """
    if not isinstance(case.law, TrackerLaw):
        return 0.0
    least = min((s for p in case.places if (s := slope_at_setpoint(case, p)) > 0), default=math.inf)
    return min(float(case.law.eta), GENTLE) * case.budget_s / least


def cycle_numbers(case: Case, found: tuple[Cycle, Place, float], allowed_tokens: float, delay: int) -> dict[str, float]:
    """The limit cycle that was found, and the one that a jump of the plant predicts for an integrator.

    Args:
        case: the case.
        found: of `worst_cycle`.
        allowed_tokens: that it may have, peak to peak [tokens].
        delay: steps from a command to its measurement.

    Returns:
        Numbers by name; those of the jump only where the setpoint lies inside it at one of the places.
    """
    cycle, _, factor = found
    numbers = {
        "cycle_tokens": cycle.amplitude_tokens,
        "cycle_steps": cycle.period_steps,
        "cycle_gain": factor,
        "cycle_allowed_tokens": allowed_tokens,
    }
    law = case.law
    inside = [(before, after) for _, _, before, after in jumps(case) if before < case.setpoint_s < after]
    if isinstance(law, PILaw) and inside and law.ki > 0:
        ki = float(law.ki) / float(law.slope_s_per_token)
        rows = [across_jump(ki * (case.setpoint_s - before), ki * (after - case.setpoint_s), delay) for before, after in inside]
        numbers["jump_cycle_tokens"], numbers["jump_cycle_steps"] = max(rows)
    return numbers


def still_numbers(case: Case, delay: int) -> dict[str, float]:
    """How the command behaves under noise of +-10 %, and the quantum that would hold it still.

    Args:
        case: with at least one place.
        delay: steps from a command to its measurement.

    Returns:
        Peak to peak, changes in fifty steps, late rate, and the least quantum: 4 standard deviations of the budget to
        either side, as a held command has room for two quanta.
    """
    place, factors = case.places[0], even_noise(0)
    held, free = (
        found_cycle(law, case.plant, place, case.budget_s, delay, noise=factors)
        for law in (case.law, dataclasses.replace(case.law, quantum_tokens=1.0))  # pyright: ignore[reportArgumentType,reportCallIssue]
    )
    return {
        "noise_swing_tokens": held.peak_to_peak_tokens,
        "noise_swing_unheld_tokens": free.peak_to_peak_tokens,
        "noise_changes_per_50_steps": 50 * held.changes_per_step,
        "noise_late_rate": held.late_rate,
        "still_quantum_tokens": still_quantum(case, place, delay),
    }


def still_quantum(case: Case, place: Place, delay: int) -> float:
    """The least quantum that a command holds still with under noise of +-10 % without memory.

    4 sd(u),  var(u) s^2 = (var(y) / var(e) - 1) var(e) of the loop, + eta eps (1 - eps) / (2 f) D^2 of a quantile's own steps

    Args:
        case: the case.
        place: the decodes.
        delay: steps from a command to its measurement.

    Returns:
        Whole tokens; infinity for an unstable loop, or one whose budget does nothing.
    """
    steepness, law = slope_at_setpoint(case, place), case.law
    loop = loop_of(law, steepness / float(law.slope_s_per_token) if isinstance(law, PILaw) else 1.0, delay, case.noise)
    if loop is None or steepness <= 0 or (gain := loop_margins(*loop).noise_gain) == math.inf:
        return math.inf
    spread = math.sqrt(max(gain - 1, 0.0)) * NOISE / math.sqrt(3) * case.setpoint_s
    if isinstance(law, TrackerLaw) and law.eta > 0:
        rate, eta = float(law.late_rate), float(law.eta)
        spread = math.hypot(spread, eta * math.sqrt(rate * (1 - rate) / (2 * quantile_gain(law, case.noise))) * case.setpoint_s)
    return float(math.ceil(STILL * spread / steepness))


def measured(case: Case, delay: int) -> tuple[str, dict[str, Any]]:
    """What a law without a linear loop does: static has none, the up/down laws cycle by design.

    Args:
        case: the case.
        delay: steps from a command to its measurement.

    Returns:
        (a sentence, the numbers in it and beside it).
    """
    where = case.places or (Place(case.points[0].decode_requests, case.points[0].decode_kv_tokens),)
    factors, width = even_noise(0), f"of +-{NOISE:.0%}"
    residual = np.log(factors)
    if case.noise is not None and len(case.noise.mixed):
        factors, residual, width = case.noise.draw(0, len(factors))[1], np.asarray(case.noise.mixed, float), "of the plant's own residuals"
    calm = [(found_cycle(case.law, case.plant, p, case.budget_s, delay), p) for p in where]
    noisy = [found_cycle(case.law, case.plant, p, case.budget_s, delay, noise=factors) for p in where]
    cycle, place = max(calm, key=lambda run: run[0].amplitude_tokens)
    numbers: dict[str, Any] = {
        "cycle_tokens": cycle.amplitude_tokens,
        "cycle_steps": cycle.period_steps,
        "late_rate": max(run.late_rate for run, _ in calm),
        "noise_swing_tokens": max(run.peak_to_peak_tokens for run in noisy),
        "noise_late_rate": max(run.late_rate for run in noisy),
    }
    at = f"at {place.decode_requests:,.0f} decoding requests and {place.decode_kv_tokens:,.0f} KV tokens"
    if isinstance(case.law, UpDownLaw | BalancedLaw):
        numbers |= _predicted(case.law, case, place, delay, residual)
        head = f"cycles by design and has no gain or phase margin: {cycle.amplitude_tokens:,.0f} tokens peak to peak {at}"
        head += f", {numbers['late_rate']:.1%} of steps late without noise" if cycle.amplitude_tokens else ", as it rests in its dead zone"
    else:
        head = f"no feedback: nothing to certify; {numbers['late_rate']:.1%} of steps late without noise at the worst place"
    return f"{head}, {numbers['noise_late_rate']:.1%} under noise {width}", numbers


def _predicted(law: UpDownLaw | BalancedLaw, case: Case, place: Place, delay: int, residual: np.ndarray) -> dict[str, float]:
    edge = at_the_budget(case.plant, place, case.budget_s, case.most_tokens)
    saw = sawtooth(law, max(edge, 1.0), delay)
    tokens, late = balance(law, case.plant, place, case.budget_s, residual)
    return {
        "edge_tokens": edge,
        "overshoot_tokens": saw.overshoot_tokens,
        "predicted_cycle_tokens": saw.cut_tokens,
        "predicted_cycle_steps": saw.period_steps,
        "predicted_late_rate": saw.late_rate,
        "balance_tokens": tokens,
        "balance_late_rate": late,
    }
