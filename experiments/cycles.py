"""Limit cycles of a law: predicted from its gains, and found by running it against a constant load."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from headway.controllers.balanced import LEAST_TOKENS, BalancedLaw
from headway.controllers.controller import Controller
from headway.controllers.steploop import Disturbance, respond
from headway.controllers.updown import UpDownLaw
from headway.experiments.points import Place, step_time_s
from headway.models.plant import Plant

SETTLE_STEPS, WATCH_STEPS = 3000, 1000
"""Steps that a law gets to settle without noise, slow quantiles included, and steps that it is watched for after them."""

NOISE = 0.1
"""Half-width of the noise of a step's duration that a command must hold still under, as a share of it."""
NOISE_STEPS, NOISE_SETTLE = 2000, 300
"""Steps watched under it, and steps before."""

OFFERED_TOKENS = 1e6
"""Prompt tokens that wait in every step: always more than the budget."""


class Cycle(NamedTuple):
    """How a command moves while nothing else does.

    Args:
        amplitude_tokens: largest swing there and back [tokens].
        peak_to_peak_tokens: greatest command less the least, drift included [tokens].
        period_steps: mean distance of two swings up; infinity if it does not swing [steps].
        changes_per_step: share of steps with another command than the one before.
        late_rate: share of steps over the budget.
        mean_tokens: of the command [tokens].
    """

    amplitude_tokens: float
    peak_to_peak_tokens: float
    period_steps: float
    changes_per_step: float
    late_rate: float
    mean_tokens: float


def cycle_of(command: np.ndarray, late: np.ndarray) -> Cycle:
    """What a recorded command does: a slow drift is no cycle, a swing counts as far as it comes back.

    Args:
        command: prefill budgets, shape (k,) [tokens].
        late: whether each step was over the budget, shape (k,).

    Returns:
        The cycle.
    """
    turns = command[np.flatnonzero(np.concatenate([[True], np.diff(command) != 0]))]
    rises = np.diff(turns)
    at = np.flatnonzero(np.sign(rises[1:]) != np.sign(rises[:-1])) + 1
    peaks = np.concatenate([turns[:1], turns[at], turns[-1:]])
    swings = np.abs(np.diff(peaks))
    amplitude = float(np.minimum(swings[1:], swings[:-1]).max(initial=0.0))
    above = command > (command.max() + command.min()) / 2
    ups = np.flatnonzero(above[1:] & ~above[:-1])
    period = float((ups[-1] - ups[0]) / (len(ups) - 1)) if amplitude > 0 and len(ups) > 1 else math.inf
    return Cycle(
        amplitude, float(np.ptp(command)), period, float((np.diff(command) != 0).mean()), float(np.mean(late)), float(command.mean())
    )


def found_cycle(law: Controller, plant: Plant, place: Place, budget_s: float, delay: int, *, noise: np.ndarray | None = None) -> Cycle:
    """Run a law on a plant under a constant load and watch its command.

    Args:
        law: any of the table.
        plant: the true one.
        place: the decodes, the same in every step.
        budget_s: longest step that keeps the ITL promise [s].
        delay: steps from a command to its measurement; 1 or more.
        noise: factors on the durations, shape (k,), of which all but NOISE_SETTLE are watched; None for none.

    Returns:
        The cycle.
    """
    steps, skip = (SETTLE_STEPS + WATCH_STEPS, SETTLE_STEPS) if noise is None else (len(noise), NOISE_SETTLE)
    factor = np.ones(steps) if noise is None else np.asarray(noise, float)
    load = Disturbance(
        np.full(steps, place.decode_requests), np.full(steps, place.decode_kv_tokens), np.full(steps, OFFERED_TOKENS), factor
    )
    run = respond(law, plant, load, budget_s, delay=delay)
    return cycle_of(run.asked_tokens[skip:], run.step_time_s[skip:] > budget_s)


def even_noise(seed: int, width: float = NOISE, steps: int = NOISE_STEPS + NOISE_SETTLE) -> np.ndarray:
    """Noise without memory: factors spread evenly about one.

    Args:
        seed: of the draw.
        width: half of their spread.
        steps: how many.

    Returns:
        Factors, shape (steps,).
    """
    return 1 + np.random.default_rng([seed, 0xC7C1E]).uniform(-width, width, steps)


def across_jump(rise_tokens: float, fall_tokens: float, delay: int) -> tuple[float, float]:
    """The cycle of an integrator whose setpoint lies inside a jump of the plant: no budget gives it, so it goes to and fro.

    amplitude = d (rise + fall),  period = d (rise + fall)^2 / (rise fall)

    Below the jump it rises by gain times what the step is short of the setpoint, above it it falls by gain times what it
    is too long, and each turn is seen d steps late. To within one rise and one fall, as it goes in steps.

    Args:
        rise_tokens: per step below the jump [tokens].
        fall_tokens: per step above it [tokens].
        delay: d, steps from a command to its measurement.

    Returns:
        (amplitude, peak to peak [tokens]; period [steps]).
    """
    both = rise_tokens + fall_tokens
    return delay * both, delay * both**2 / (rise_tokens * fall_tokens)


def at_the_budget(plant: Plant, place: Place, seconds: float, most_tokens: float) -> float:
    """Largest prefill that the plant itself fits into a duration.

    Args:
        plant: the plant.
        place: the decodes.
        seconds: longest step [s].
        most_tokens: upper limit [tokens].

    Returns:
        Prompt tokens of a fresh prompt; 0 if none fits.
    """
    tokens = np.arange(1.0, most_tokens + 1)
    fits = tokens[step_time_s(plant, *place, tokens) <= seconds]
    return float(fits[-1]) if len(fits) else 0.0


class Sawtooth(NamedTuple):
    """The cycle of a law that steps up and down, from its numbers, about the prefill that just keeps the budget.

    Args:
        overshoot_tokens: most that it goes beyond it [tokens].
        cut_tokens: what its late steps take away in one cycle [tokens].
        period_steps: from one overshoot to the next; infinity if it never rises again [steps].
        late_rate: share of steps over the budget.
    """

    overshoot_tokens: float
    cut_tokens: float
    period_steps: float
    late_rate: float


def sawtooth(law: UpDownLaw | BalancedLaw, edge_tokens: float, delay: int) -> Sawtooth:
    """The cycle without noise and without a dead zone.

    overshoot = d up,  cut = (1 - beta^d) u,  period = rise + 2 d - 1,  late rate = d / period
    rise = cut / up steps, or -d log(beta) / log(1 + gain eps) where the step up is a share of u

    Late steps are seen d steps after the command that made them; it rises d - 1 times more meanwhile, and each of the d
    late steps cuts. A describing function would average the slopes of an asymmetric law and lose its offset; this
    counts.

    Args:
        law: its step up, and the factor of its cut.
        edge_tokens: u, the largest budget that is not late [tokens].
        delay: d, steps from a command to its measurement.

    Returns:
        The cycle.
    """
    up, down = _steps(law, edge_tokens)
    cut = (1 - down**delay) * edge_tokens
    if up <= 0 or cut <= 0:
        return Sawtooth(up * delay, cut, math.inf, 0.0 if up <= 0 else 1.0)
    rise = cut / up if isinstance(law, UpDownLaw) else -delay * math.log(down) / math.log1p(up / edge_tokens)
    period = rise + 2 * delay - 1
    return Sawtooth(up * delay, cut, period, delay / period)


def _steps(law: UpDownLaw | BalancedLaw, u: float) -> tuple[float, float]:
    """(tokens up after a good step, factor after a late one) at a budget."""
    if isinstance(law, UpDownLaw):
        return float(law.up_tokens), float(law.down)
    return float(law.gain) * float(law.late_rate) * max(u, LEAST_TOKENS), 1 - float(law.gain) * (1 - float(law.late_rate))


def balance(law: UpDownLaw | BalancedLaw, plant: Plant, place: Place, budget_s: float, residual: np.ndarray) -> tuple[float, float]:
    """Where noise holds such a law: the budget at which rises and cuts cancel, E[du | u] = 0.

    P(late | u) cut(u) = P(good | u) up(u), good below the dead zone

    Args:
        law: the law.
        plant: the plant.
        place: the decodes.
        budget_s: longest step that keeps the ITL promise [s].
        residual: log(measured / predicted) of steps, shape (k,).

    Returns:
        (budget in balance [tokens], late rate there).
    """
    rest = 1 - (float(law.margin) if isinstance(law, UpDownLaw) else 0.0)
    sorted_s = np.sort(np.exp(residual))

    def shares(u: float) -> tuple[float, float]:
        y = float(step_time_s(plant, *place, np.array([u]))[0])
        good = np.searchsorted(sorted_s, rest * budget_s / y, side="left" if rest < 1 else "right") / len(sorted_s)
        return 1 - np.searchsorted(sorted_s, budget_s / y, side="right") / len(sorted_s), float(good)

    low, high = 1.0, float(law.most_tokens)
    for _ in range(60):
        u = (low + high) / 2
        up, down = _steps(law, u)
        late, good = shares(u)
        low, high = (u, high) if good * up > late * (1 - down) * u else (low, u)
    return low, shares(low)[0]
