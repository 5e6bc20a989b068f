"""How far a loop is from instability: margins of gain, phase, delay and of both at once, and what feedback does to noise."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.linalg import companion, solve_discrete_lyapunov

from headway.controllers.pi import PILaw
from headway.experiments.loops import Loop, loop_transfer
from headway.experiments.points import at_point, operating_points
from headway.models.identified import Hull
from headway.models.plant import Plant
from headway.models.signals import Limits

GREATEST = 1e9
"""Factor on the gain beyond which a loop counts as stable at any gain."""

FREQUENCIES = 600
"""Spaced evenly, and as many on a logarithmic scale."""
LOWEST = 1e-5
"""Lowest frequency looked at [rad/step]."""

HALF_POWER = 10 ** (-3 / 20)
"""3 dB down: where a bandwidth ends."""


class Margins(NamedTuple):
    """How far one loop is from instability. Infinity where nothing of that kind makes it unstable.

    Args:
        gain_margin_db: factor on the gain that it bears [dB]; negative if it is unstable.
        phase_margin_deg: phase lag that it bears [deg]; 0 if it is unstable.
        delay_margin_steps: further delay that it bears [steps]; 0 if it is unstable.
        sensitivity_peak: most that feedback amplifies a disturbance, at the worst frequency; infinity if unstable.
        disk_margin_db: factor on the gain, up or down, that it bears together with a phase as bad [dB]; 0 if unstable.
        bandwidth_rad_per_step: frequency up to which it follows the setpoint [rad/step]; 0 if it is unstable.
        noise_gain: variance of the step time over that of white noise in it; infinity if unstable.
    """

    gain_margin_db: float
    phase_margin_deg: float
    delay_margin_steps: float
    sensitivity_peak: float
    disk_margin_db: float
    bandwidth_rad_per_step: float
    noise_gain: float

    @property
    def response_steps(self) -> float:
        """Steps in which it answers a change: two over the bandwidth."""
        return 2 / self.bandwidth_rad_per_step if self.bandwidth_rad_per_step > 0 else math.inf


OPEN = Margins(math.inf, math.inf, math.inf, 1.0, math.inf, 0.0, 1.0)
"""Margins of a loop that feeds nothing back."""


def closed_radius(numerator: np.ndarray, denominator: np.ndarray, factor: float = 1.0) -> float:
    """Largest magnitude of the closed loop's poles: below 1 is stable.

    Args:
        numerator: of the loop, from the highest power down, shape (m,).
        denominator: shape (n,), n >= m.
        factor: on the loop's gain.

    Returns:
        Spectral radius; a disturbance shrinks by it in every step, in the long run.
    """
    return float(np.abs(closed_poles(numerator, denominator, factor)).max(initial=0.0))


def closed_poles(numerator: np.ndarray, denominator: np.ndarray, factor: float = 1.0) -> np.ndarray:
    """Poles of the closed loop.

    Args:
        numerator: of the loop, from the highest power down, shape (m,).
        denominator: shape (n,), n >= m.
        factor: on the loop's gain.

    Returns:
        Complex array of shape (n - 1,).
    """
    return np.roots(np.polyadd(denominator, factor * np.asarray(numerator, float)))


def cycle_steps(numerator: np.ndarray, denominator: np.ndarray) -> float:
    """Period of the oscillation that a loop is nearest to: that of the first poles to leave the circle as the gain grows.

    For an integrator it is 2 (2 d - 1) steps: 2, 6, 10.

    Args:
        numerator: of the loop, from the highest power down, shape (m,).
        denominator: shape (n,), n >= m.

    Returns:
        Period [steps]; infinity if no gain makes the loop unstable.
    """
    limit = gain_limit(numerator, denominator)
    if not 0 < limit < math.inf:
        return math.inf
    poles = closed_poles(numerator, denominator, limit)
    angle = abs(float(np.angle(poles[np.argmax(np.abs(poles))])))
    return 2 * math.pi / angle if angle > 0 else math.inf


def gain_limit(numerator: np.ndarray, denominator: np.ndarray) -> float:
    """The factor on the loop's gain at which it stops being stable, found from the poles themselves.

    The phase of these loops falls steadily in the frequency, so all smaller gains are stable and all greater ones are
    not: one bisection finds the edge. `control.margin` looks for phase crossings below the Nyquist frequency
    and misses the one that lies on it, which is where every loop with one delay loses stability: of 0.1 / (z - 1) it
    says infinity, the truth is 20.

    Args:
        numerator: of the loop, from the highest power down, shape (m,).
        denominator: shape (n,), n >= m.

    Returns:
        Factor; below 1 the loop is unstable as it stands, infinity means no gain makes it so.

    Example:
        >>> round(gain_limit(np.array([0.1]), np.array([1.0, -1.0])), 9)
        20.0
    """
    if not np.any(numerator):
        return math.inf
    return _edge(lambda factor: closed_radius(numerator, denominator, factor) < 1.0)


def _edge(holds: Callable[[float], bool]) -> float:
    """The factor at which something that holds on one side of it ends, looked for from 1: upwards if it holds there."""
    low = high = 1.0
    while holds(high):
        low, high = high, 2 * high
        if high > GREATEST:
            return math.inf
    while not holds(low):
        low, high = low / 2, low
        if low < 1 / GREATEST:
            return 0.0
    while high / low - 1 > 1e-13:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return math.sqrt(low * high)


def loop_margins(numerator: np.ndarray, denominator: np.ndarray) -> Margins:
    """Margins of one loop, all from its poles and its values on the unit circle.

    Args:
        numerator: of the loop, from the highest power down, shape (m,).
        denominator: shape (n,), n >= m.

    Returns:
        Margins.
    """
    return _margins(tuple(map(float, numerator)), tuple(map(float, denominator)))


@functools.lru_cache(maxsize=1024)
def _margins(numerator: tuple[float, ...], denominator: tuple[float, ...]) -> Margins:
    if not any(numerator):
        return OPEN
    loop = Loop(np.array(numerator), np.array(denominator))
    limit = gain_limit(*loop)
    gain_db = decibel(limit)
    omega = frequencies()
    values = at_frequency(loop, omega)
    if limit <= 1.0:
        return Margins(gain_db, 0.0, 0.0, math.inf, 0.0, 0.0, math.inf)
    crossings = _crossings(loop, omega, values)
    lags = np.angle(at_frequency(loop, crossings)) % (2 * math.pi) - math.pi
    lags = np.where(lags < 0, lags + 2 * math.pi, lags)
    with np.errstate(divide="ignore"):
        disk = 2 * float((np.abs(1 + values) / np.abs(1 - values)).min())
    return Margins(
        gain_db,
        float(np.degrees(lags).min(initial=math.inf)),
        float((lags / crossings).min(initial=math.inf)),
        1 / float(np.abs(1 + values).min()),
        decibel((2 + disk) / (2 - disk)) if disk < 2 else math.inf,
        _bandwidth(loop, omega, values),
        noise_gain(loop),
    )


def decibel(factor: float) -> float:
    """A factor in decibels.

    Args:
        factor: not negative.

    Returns:
        20 log10(factor); minus infinity for 0.
    """
    if factor <= 0:
        return -math.inf
    return 20 * math.log10(factor) if factor < math.inf else math.inf


def frequencies() -> np.ndarray:
    """Where loops are looked at: dense at both ends.

    Returns:
        Rising, up to half a cycle per step, shape (k,) [rad/step].
    """
    return np.unique(np.concatenate([np.geomspace(LOWEST, math.pi, FREQUENCIES), np.linspace(0.01, math.pi, FREQUENCIES)]))


def circle_margin_db(loop: Loop, share: float) -> float:
    """Factor on the gain that a loop bears if the slope moves at will, from step to step, within a sector.

    Stable for all slopes between share s and s if, at every frequency,  Re (1 + L) conj(1 + share L) > 0,  L at slope s.
    A share of 0 gives 1 / (d - 1/2) over the gain for an integrator. The bound suffices and is not sharp: at two steps
    of delay no periodic slope was found that breaks an integrator below the limit for a constant one; at three it is
    between 0.4, the bound, and 0.6, where a period of six steps does, below the constant limit of 0.618.

    Args:
        loop: at the greatest slope of the sector.
        share: least slope over the greatest, in [0, 1].

    Returns:
        Margin [dB]; negative if the sector is too wide or too high, infinity if no gain makes it so.

    Source:
        Tsypkin, 1962; Jury and Lee, 1964: the circle criterion in discrete time.
    """
    if not np.any(loop.numerator):
        return math.inf
    values = at_frequency(loop, frequencies())

    def holds(factor: float) -> bool:
        far = 1 + factor * values
        return bool((far * np.conj(1 + share * factor * values)).real.min() > 0) and closed_radius(*loop, factor) < 1

    return decibel(_edge(holds))


def at_frequency(loop: Loop, omega: np.ndarray) -> np.ndarray:
    """Values of a loop on the unit circle.

    Args:
        loop: the loop.
        omega: shape (k,) [rad/step].

    Returns:
        Complex array of shape (k,).
    """
    z = np.exp(1j * np.asarray(omega, float))
    return np.polyval(loop.numerator, z) / np.polyval(loop.denominator, z)


def _crossings(loop: Loop, omega: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Frequencies at which the loop's magnitude is one, each found by halving [rad/step]."""
    above = np.abs(values) > 1
    at = np.flatnonzero(above[1:] != above[:-1])
    low, high, falls = omega[at], omega[at + 1], above[at]
    for _ in range(60):
        middle = (low + high) / 2
        left = (np.abs(at_frequency(loop, middle)) > 1) == falls
        low, high = np.where(left, middle, low), np.where(left, high, middle)
    return (low + high) / 2


def _bandwidth(loop: Loop, omega: np.ndarray, values: np.ndarray) -> float:
    """Where L / (1 + L) has fallen by 3 dB from its value at rest; half a cycle per step if it never does."""
    follows = np.abs(values / (1 + values))
    below = np.flatnonzero(follows < HALF_POWER * follows[0])
    if len(below) == 0:
        return math.pi
    low, high = omega[below[0] - 1], omega[below[0]]
    for _ in range(60):
        middle = (low + high) / 2
        value = at_frequency(loop, np.array([middle]))
        low, high = (middle, high) if abs(value / (1 + value))[0] > HALF_POWER * follows[0] else (low, middle)
    return float(low + high) / 2


def noise_gain(loop: Loop) -> float:
    """What feedback on white noise costs: variance of the step time over that of the noise in it.

    |1 / (1 + L)|^2, the mean over all frequencies; 2 / (2 - K) for an integrator with one delay. Feedback on noise that
    one step does not share with the next only adds to it.

    Args:
        loop: stable when closed.

    Returns:
        At least 1.
    """
    if not np.any(loop.numerator):
        return 1.0
    closed = np.polyadd(loop.denominator, loop.numerator)
    # 1 / (1 + L) = 1 - L / (1 + L), the second in controllable form; its states' covariance solves A P A' + b b' = P
    a = companion(closed / closed[0])
    answer = np.zeros(len(a))
    answer[len(a) - len(loop.numerator) :] = np.asarray(loop.numerator) / closed[0]
    drive = np.zeros((len(a), len(a)))
    drive[0, 0] = 1.0
    return 1 + float(answer @ solve_discrete_lyapunov(a, drive) @ answer)


def instability(law: PILaw, plant: Plant, hull: Hull, limits: Limits, delay: int = 1) -> str | None:
    """Where in the hull the law would be unstable: what must not be exported.

    Args:
        law: the law.
        plant: the plant.
        hull: what its trace held.
        limits: of the engine.
        delay: steps from a command to its measurement; 1 or more.

    Returns:
        A sentence about the worst point, or None if all are stable.
    """
    points = operating_points(plant, hull, limits, float(law.most_tokens))
    worst = max(points, key=lambda point: point.slope_s_per_token)
    limit = gain_limit(*loop_transfer(law, worst.slope_s_per_token, delay))
    if limit > 1.0:
        return None
    return (
        f"unstable {at_point(worst)}: the loop's gain is {1 / limit if limit else math.inf:.2f} times what it can bear; "
        f"kp {law.kp:g} and ki {law.ki:g} must come down"
    )
