"""Two sliders for a feedback law: how fast it answers, in engine steps, and how much it bears; both ways between them and the gains."""

from __future__ import annotations

import math
from typing import NamedTuple

from headway.controllers.pi import PILaw
from headway.experiments.loops import Loop, loop_transfer, predicted_transfer
from headway.experiments.margins import Margins, loop_margins


class PIGains(NamedTuple):
    """Gains of a PI law, as it assumes the plant's slope to be what it is.

    Args:
        kp: dimensionless.
        ki: dimensionless.
    """

    kp: float
    ki: float


class Tuning(NamedTuple):
    """A position of the sliders and what it stands for.

    Args:
        response_steps: two over the bandwidth [steps].
        phase_margin_deg: [deg].
        gain_margin_db: [dB].
        noise_gain: variance of the step time over that of white noise in it.
        share_of_limit: of the gain at which a constant slope loses stability.
    """

    response_steps: float
    phase_margin_deg: float
    gain_margin_db: float
    noise_gain: float
    share_of_limit: float


def pi_gains(response_steps: float, phase_margin_deg: float, delay: int = 1) -> PIGains:
    """Gains of PI from the two sliders: the loop crosses a gain of one at 2 / response, with at least that phase margin.

    theta = -pi + margin + d w,  w = 2 / response:  ki = -2 sin(theta) tan(w / 2),  kp = cos(theta) - ki / 2
    kp = 0,  ki = 2 sin(w / 2)   below w = (pi / 2 - margin) / (d - 1/2), where an integrator alone has more margin than that

    A phase margin says nothing of the gain margin, which is what a quick PI law runs out of: look at `tuning_of_pi`.

    Args:
        response_steps: steps in which a change is answered [steps].
        phase_margin_deg: in (0, 90) [deg].
        delay: d, steps from a command to its measurement.

    Returns:
        The gains.

    Raises:
        ValueError: a phase margin outside its range, or a response so quick that no gains give the pair, with the quickest.

    Source:
        Astrom and Hagglund, Advanced PID Control, 2006, section 6.3 (phase margin designs), here in discrete time.
    """
    if not 0 < phase_margin_deg < 90:
        raise ValueError(f"phase_margin_deg must be in (0, 90), got {phase_margin_deg:g}")
    margin = math.radians(phase_margin_deg)
    quickest = 2 / min((math.pi - margin) / delay, math.pi)
    if not response_steps > quickest:
        raise ValueError(
            f"no PI gains answer in {response_steps:g} steps with a phase margin of {phase_margin_deg:g} degrees at a delay of {delay}: "
            f"it takes more than {quickest:.2f} steps"
        )
    w = 2 / response_steps
    if w <= (math.pi / 2 - margin) / (delay - 0.5):
        return PIGains(0.0, 2 * math.sin(w / 2))
    theta = -math.pi + margin + delay * w
    ki = -2 * math.sin(theta) * math.tan(w / 2)
    return PIGains(max(math.cos(theta) - ki / 2, 0.0), ki)


def trim_gain(response_steps: float) -> float:
    """Gain of a trim or a bias from its slider: an offset has gone to 1/e of itself in that many steps.

    k = 1 - exp(-1 / steps)

    Args:
        response_steps: above 0 [steps].

    Returns:
        ki of the feedforward law, or kb of the tracker.

    Raises:
        ValueError: no steps.
    """
    if not response_steps > 0:
        raise ValueError(f"response_steps must be above 0, got {response_steps:g}")
    return -math.expm1(-1 / response_steps)


def tuning_of_pi(kp: float, ki: float, delay: int = 1, ratio: float = 1.0) -> Tuning:
    """What gains of PI stand for.

    Args:
        kp: dimensionless.
        ki: dimensionless.
        delay: steps from a command to its measurement.
        ratio: the plant's slope over the one that the law assumes.

    Returns:
        The position of the sliders.
    """
    return _tuning(loop_transfer(PILaw(kp=kp, ki=ki, slope_s_per_token=1.0), ratio, delay))


def tuning_of_trim(gain: float, delay: int = 1, ratio: float = 1.0, quantile: float = 0.0) -> Tuning:
    """What the gain of a trim or of a bias stands for.

    Args:
        gain: ki of the feedforward law, kb of the tracker.
        delay: steps from a command to its measurement.
        ratio: the plant's slope over the one that the law predicts.
        quantile: gain of the quantile loop, `headway.experiments.loops.quantile_gain`.

    Returns:
        The position of the sliders.
    """
    return _tuning(predicted_transfer(gain, quantile, ratio, delay))


def _tuning(loop: Loop) -> Tuning:
    found: Margins = loop_margins(*loop)
    share = 10 ** (-found.gain_margin_db / 20) if math.isfinite(found.gain_margin_db) else 0.0
    return Tuning(found.response_steps, found.phase_margin_deg, found.gain_margin_db, found.noise_gain, share)
