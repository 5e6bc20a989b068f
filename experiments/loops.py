"""The laws as linear loops: opened at the step time, in engine steps, at one place of the plant."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from headway.controllers.controller import Controller
from headway.controllers.feedforward import FeedforwardLaw
from headway.controllers.pi import PILaw
from headway.controllers.tracker import TrackerLaw
from headway.experiments.points import OperatingPoint, Place, slope, step_time_s
from headway.models.noise import Noise
from headway.models.plant import Plant

NO_GAIN = 1e-9
"""Gain below which a part of a law does not act: it would need more steps than an engine lives for."""


class Loop(NamedTuple):
    """A transfer function in z, from an error of the step time to the step time that answers it.

    Args:
        numerator: coefficients from the highest power down; 0 where nothing is fed back.
        denominator: the same, at least as many.
    """

    numerator: np.ndarray
    denominator: np.ndarray


def loop_transfer(law: PILaw, slope_s_per_token: float, delay: int = 1) -> Loop:
    """The loop of a PI law.

    L(z) = (slope / law's slope) (kp + ki z / (z - 1)) z^-delay

    The law adds ki e to its integrator before it adds kp e, so the integrator acts without a delay of its own; its
    command shapes the next step, which is measured when it ends: one delay in all where the engine composes a step
    after the last has ended, two where it composes one step ahead. Factors common to both polynomials are removed: a
    pole at 1 that no gain moves would look like an unstable one.

    Args:
        law: its kp, ki and slope.
        slope_s_per_token: the plant's where it operates [s/token].
        delay: steps from a command to its measurement; 1 or more.

    Returns:
        The loop.
    """
    ratio = slope_s_per_token / float(law.slope_s_per_token)
    kp, ki = float(law.kp) * ratio, float(law.ki) * ratio
    if ki < NO_GAIN:
        return Loop(np.array([kp if kp >= NO_GAIN else 0.0]), np.array([1.0] + [0.0] * delay))
    if kp < NO_GAIN:
        return Loop(np.array([ki]), np.array([1.0, -1.0] + [0.0] * (delay - 1)))
    return Loop(np.array([kp + ki, -kp]), np.array([1.0, -1.0] + [0.0] * delay))


def predicted_transfer(bias: float, quantile: float, ratio: float, delay: int = 1) -> Loop:
    """The loop of a law that corrects its own prediction: an offset or a bias b, and a quantile q on top of it.

    b_k = b_k-1 + kb (v_k-d - b_k-1),  q_k = q_k-1 + g (v_k-d - b_k-1 - q_k-1),  v = y - F(u)
    F(u_k) = -b_k - q_k,  y = ratio F(u)
    H = z^-d (kb (1 - (1 - g) z^-1) + g (1 - z^-1)) / ((1 - (1 - kb) z^-1) (1 - (1 - g) z^-1)),  L = ratio H / (1 - H)

    What is learned from is the step against its own prediction, not against the setpoint, so that with a true plant
    (ratio 1) nothing the law does comes back to it: with one delay and no quantile L is an integrator of gain kb, with
    two it is one that knows of the command under way (a Smith predictor). With both, L integrates twice below g.

    Args:
        bias: kb, gain of the offset.
        quantile: g, gain of the quantile in the linear range; 0 for a law without one.
        ratio: slope of the plant relative to that of the law's own prediction.
        delay: steps from a command to its measurement; 1 or more.

    Returns:
        The loop.
    """
    kb, g = (x if x >= NO_GAIN else 0.0 for x in (bias, quantile))
    if (kb == 0.0 and g == 0.0) or ratio < NO_GAIN:
        return Loop(np.array([0.0]), np.array([1.0]))
    ahead = np.array([0.0] * delay + [1.0])  # z^-delay, coefficients of rising powers of z^-1
    if kb == 0.0 or g == 0.0:
        gain = kb + g
        top, bottom = gain * ahead, np.array([1.0, gain - 1.0])
    else:
        top = np.convolve(ahead, kb * np.array([1.0, g - 1.0]) + g * np.array([1.0, -1.0]))
        bottom = np.convolve([1.0, kb - 1.0], [1.0, g - 1.0])
    size = max(len(top), len(bottom))
    top, bottom = np.pad(top, (0, size - len(top))), np.pad(bottom, (0, size - len(bottom)))
    return Loop(np.trim_zeros(ratio * top, "f"), bottom - top)


def quantile_gain(law: TrackerLaw, noise: Noise | None = None) -> float:
    """Gain of the tracker's quantile loop where it is in equilibrium: eta f(q), f the density of the scores at the quantile.

    q moves by eta (P(score > q) - eps) on average, and the probability falls by f(q) per unit of q. The density is read
    off the plant's residuals of steps with prefill where there are enough of them, else off the bell curve whose
    quantile the law starts with: f = phi(z) z / q.

    Args:
        law: its eta, late_rate and start_mixed.
        noise: residuals of the plant.

    Returns:
        Dimensionless gain.
    """
    rate, residual = float(law.late_rate), np.zeros(0) if noise is None else np.asarray(noise.mixed, float)
    beyond = rate * len(residual)
    if beyond >= 10:  # rows enough on both sides of the quantile for a difference of two of them
        low, high = np.quantile(residual, [1 - 1.5 * rate, 1 - 0.5 * rate])
        return float(law.eta) * rate / max(float(high - low), 1e-6)
    z = NormalDist().inv_cdf(1 - rate)
    return float(law.eta) * NormalDist().pdf(z) * z / max(float(law.start_mixed), 1e-3)


def gain_ratio(law: Controller, plant: Plant, point: OperatingPoint, slope_s_per_token: float | None = None) -> float:
    """Slope of the plant at a point, relative to what the law takes it for.

    The tracker works on logarithms: there it is the share by which a step grows for a share more of prompt tokens.

    Args:
        law: a law with a linear loop.
        plant: the true one.
        point: where.
        slope_s_per_token: the plant's there, if it is another than the point's [s/token].

    Returns:
        1 where the law's own prediction is right; 0 where neither has a slope.
    """
    true = point.slope_s_per_token if slope_s_per_token is None else slope_s_per_token
    if isinstance(law, PILaw):
        return true / float(law.slope_s_per_token)
    place, chunk = Place(point.decode_requests, point.decode_kv_tokens), (point.prefill_tokens, point.context_tokens)
    own: Plant = law.plant  # pyright: ignore[reportAttributeAccessIssue]  # the other two predict
    assumed = slope(own, place, *chunk)
    if assumed <= 0.0:
        return 0.0 if true <= 0.0 else math.inf
    if isinstance(law, FeedforwardLaw):
        return true / assumed
    times = [float(step_time_s(p, *place, np.array([chunk[0]]), chunk[1])[0]) for p in (plant, own)]
    return true / assumed * times[1] / times[0]


def loop_of(law: Controller, ratio: float, delay: int, noise: Noise | None = None) -> Loop | None:
    """The loop of any law.

    Args:
        law: the law.
        ratio: of `gain_ratio`.
        delay: steps from a command to its measurement; 1 or more.
        noise: residuals of the plant, for the tracker's quantile.

    Returns:
        The loop; None for a law without a linear one.
    """
    if isinstance(law, PILaw):
        return loop_transfer(law, ratio * float(law.slope_s_per_token), delay)
    if isinstance(law, FeedforwardLaw):
        return predicted_transfer(float(law.ki), 0.0, ratio, delay)
    if isinstance(law, TrackerLaw):
        return predicted_transfer(float(law.kb), quantile_gain(law, noise), ratio, delay)
    return None


def has_loop(law: Controller) -> bool:
    """Whether a law has a linear loop to certify.

    Args:
        law: any.

    Returns:
        True for PI, feedforward with trim and the tracker.
    """
    return isinstance(law, PILaw | FeedforwardLaw | TrackerLaw)


def integrator_limit(delay: int) -> float:
    """Gain below which an integrator with a delay is stable, on a plant whose slope stays what it is.

    K < 2 sin(pi / (2 (2 d - 1)))

    Args:
        delay: d, steps; 1 or more.

    Returns:
        Loop gain: 2, 1, 0.618 at one, two and three steps.
    """
    return 2 * math.sin(math.pi / (2 * (2 * delay - 1)))


def circle_limit(delay: int) -> float:
    """Gain below which it stays stable while the slope moves at will between 0 and the slope that K was reckoned with.

    K < 1 / (d - 1/2)

    Args:
        delay: d, steps; 1 or more.

    Returns:
        Loop gain: 2, 0.667, 0.4 at one, two and three steps.

    Source:
        Tsypkin, On the stability in the large of nonlinear sampled-data systems, 1962; Jury and Lee, 1964 (circle).
    """
    return 1 / (delay - 0.5)
