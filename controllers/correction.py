"""The plant corrected while the engine runs: each of its terms may take between half and twice what was fitted."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from headway.models.compiled import compiled
from headway.models.concurrency import ConcurrencyPlant
from headway.models.curved import CurvedPlant
from headway.models.identified import IdentifiedPlant
from headway.models.plant import Plant
from headway.models.regimes import TERMS, AffinePlant, RegimePlant
from headway.models.roofline import RooflinePlant
from headway.models.steptime import CONCURRENCY, KIND, ROOFLINE, step_time

PARTS = len(TERMS) + 1
"""Parts of a prediction in one regime: its linear terms, and all that bends."""
FACTORS = 2 * PARTS
"""Factors in all: decode-only steps first, then steps with prefill."""
TAUGHT, OUTSIDE, SKIPPED, CLIPPED = (FACTORS + FACTORS**2 + i for i in range(4))
"""Places in the state behind the factors and their covariance: steps that taught, that lay outside the hull, whose reading was
no number, and after which a factor stood at its bound."""
WORK = FACTORS + FACTORS**2 + 4
"""Where the state has room for the gain of one update."""
CORRECTION_STATE = WORK + FACTORS
"""Numbers of state."""
LOW, HIGH = 0.5, 2.0
"""Bounds of a factor: beyond them the plant is not off, it is another one."""
SPIKE = 3.0
"""Standard deviations of the innovation beyond which a step teaches no more."""


@dataclasses.dataclass(frozen=True)
class PlantCorrection:
    """Recursive least squares on relative residuals, with a forgetting that goes back to the fit.

    step / fitted = sum_j m_j f_j + noise,  f_j the share of the fitted prediction that part j has in this step
    m := 1 + sqrt(keep) (m - 1),  P := keep P + (1 - keep) P_0,  then the usual update, then m := clip(m, 1/2, 2)

    m_j are factors on the fitted coefficients, so none turns negative. P_0 says how a plant goes wrong: `engine` for a factor
    that all parts share (a throttle), `regime` for one of all parts of a regime, `own` for a single term. A slowdown is so
    learned from whatever steps come, and a single term only from steps that tell it apart. Exponential forgetting, P / keep,
    was refused: in a lull it grows without bound in the directions that nobody excites, and the first step after it throws
    the factors anywhere. Here P never exceeds P_0, and what is not excited goes back to the fit. Steps outside the hull do
    not teach: there the plant is an extrapolation, and its error is no drift.

    Args:
        keep: share of what was learned that one step leaves, in (0, 1).
        engine: standard deviation of the factor that all parts share.
        regime: of the factor of a regime.
        own: of the factor of one part.
        decode_noise: of the relative residual in decode-only steps.
        mixed_noise: of the same in steps with prefill.

    Source:
        Kulhavy, Restricted exponential forgetting in real-time identification, 1987 (forgetting where there is excitation);
        Kulhavy and Zarrop, On a general concept of forgetting, 1993 (towards a stated alternative, here the fit).
    """

    keep: float = 0.998
    engine: float = 0.1
    regime: float = 0.05
    own: float = 0.05
    decode_noise: float = 0.05
    mixed_noise: float = 0.05

    @staticmethod
    def of(identified: IdentifiedPlant) -> PlantCorrection:
        """The correction of a plant, with the noise that its residuals show.

        Args:
            identified: the plant with its residuals.

        Returns:
            A correction; its noise is 1.25 times the mean deviation of the residuals, at least 1 %.
        """
        return PlantCorrection(decode_noise=_spread(identified.noise.decode), mixed_noise=_spread(identified.noise.mixed))

    def check(self) -> None:
        """Refuse numbers that no correction could work with.

        Raises:
            ValueError: one that is out of range, with its value.
        """
        for name, low, high in (
            ("keep", 0.0, 1.0),
            ("engine", 0.0, 1.0),
            ("regime", 0.0, 1.0),
            ("own", 0.0, 1.0),
            ("decode_noise", 1e-6, 10.0),
            ("mixed_noise", 1e-6, 10.0),
        ):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} of the correction must be in [{low:g}, {high:g}], got {getattr(self, name)}")

    def pack(self) -> tuple[float, ...]:
        """The numbers as `correction_step` reads them.

        Returns:
            The fields in order.
        """
        return (self.keep, self.engine, self.regime, self.own, self.decode_noise, self.mixed_noise)

    def init(self) -> list[float]:
        """State before the first step: every factor 1, its covariance P_0.

        Returns:
            CORRECTION_STATE numbers.
        """
        prior = [
            self.engine**2 + (self.regime**2 if i // PARTS == j // PARTS else 0.0) + (self.own**2 if i == j else 0.0)
            for i in range(FACTORS)
            for j in range(FACTORS)
        ]
        return [1.0] * FACTORS + prior + [0.0] * (CORRECTION_STATE - FACTORS - FACTORS**2)

    def update(
        self, state: Sequence[float], parts_s: Sequence[float], mixed: bool, step_time_s: float, inside: bool
    ) -> tuple[list[float], float]:
        """Learn from one step. Plain Python; `correction_step` is the compiled form of the same lines.

        Args:
            state: as from `init` or the last `update`; not changed.
            parts_s: what each part of the fitted plant says of the step, as from `parts_of`, shape (PARTS,) [s].
            mixed: whether the step held prefill.
            step_time_s: what the step took [s].
            inside: whether the step lay in the plant's hull.

        Returns:
            (state, what the corrected plant said of the step before it learned from it [s]).
        """
        after = list(state)
        return after, _plain(self.pack(), after, [float(x) for x in parts_s], float(mixed), float(step_time_s), float(inside))

    def sentence(self, state: Sequence[float]) -> str:
        """What an engineer on call is told of the correction in force.

        Args:
            state: of the correction.

        Returns:
            One sentence; empty as long as no step has taught.
        """
        if state[TAUGHT] == 0:
            return ""
        factors = list(state[:FACTORS])
        text = f"predictions are corrected online: the plant's terms count {min(factors):.2f} to {max(factors):.2f} times what was fitted"
        if min(factors) <= LOW or max(factors) >= HIGH:
            return f"{text}, and one stands at its bound: this is another plant; record a trace and run `headway fit` on it"
        return text


def _spread(residual: np.ndarray) -> float:
    # of the mean deviation, not the median one: residuals have long tails, and a step from the tail must not teach as if it were sure
    return max(math.sqrt(math.pi / 2) * float(np.mean(np.abs(residual - np.median(residual)))), 0.01) if len(residual) else 0.05


@compiled
def parts_of(plant, decode_requests, decode_kv_tokens, prefill_tokens, prefill_pairs, prefill_requests, parts_s):
    """What each part of the fitted plant says of a step.

    A plant of one law that is no sum of terms (roofline, concurrency) is one part, and shared by both regimes.

    Args:
        plant: packed, shape (PACKED,).
        decode_requests: [requests].
        decode_kv_tokens: [tokens].
        prefill_tokens: [tokens].
        prefill_pairs: [tokens^2].
        prefill_requests: [requests].
        parts_s: filled, shape (PARTS,) [s].

    Returns:
        1.0 if the factors of steps with prefill apply, else 0.0.
    """
    whole = step_time(plant, decode_requests, decode_kv_tokens, prefill_tokens, prefill_pairs, prefill_requests)
    if plant[KIND] == ROOFLINE or plant[KIND] == CONCURRENCY:
        parts_s[:] = 0.0
        parts_s[PARTS - 1] = whole
        return 0.0
    o = 6 if prefill_tokens > 0.0 else 0
    parts_s[0] = plant[o]
    parts_s[1] = plant[o + 1] * decode_requests
    parts_s[2] = plant[o + 2] * decode_kv_tokens
    parts_s[3] = plant[o + 3] * prefill_tokens
    parts_s[4] = plant[o + 4] * prefill_pairs
    parts_s[5] = plant[o + 5] * prefill_requests
    parts_s[PARTS - 1] = max(whole - (parts_s[0] + parts_s[1] + parts_s[2] + parts_s[3] + parts_s[4] + parts_s[5]), 0.0)
    return 1.0 if prefill_tokens > 0.0 else 0.0


@compiled
def corrected_s(state, parts_s, mixed):
    """What the corrected plant says of a step.

    Args:
        state: of the correction, shape (CORRECTION_STATE,).
        parts_s: as from `parts_of`, shape (PARTS,) [s].
        mixed: 1.0 if the factors of steps with prefill apply, else 0.0.

    Returns:
        Duration [s].
    """
    o = PARTS if mixed > 0.0 else 0
    total = 0.0
    for i in range(PARTS):
        total += state[o + i] * parts_s[i]
    return total


@compiled
def correction_step(numbers, state, parts_s, mixed, step_time_s, inside):
    """Compiled form of `PlantCorrection.update`; `correction_step.py_func` is the same in plain Python and takes lists.

    Args:
        numbers: as from `PlantCorrection.pack`, shape (6,).
        state: changed in place, shape (CORRECTION_STATE,).
        parts_s: as from `parts_of`, shape (PARTS,) [s].
        mixed: 1.0 if the factors of steps with prefill apply, else 0.0.
        step_time_s: what the step took [s].
        inside: 1.0 if the step lay in the hull, else 0.0.

    Returns:
        What the corrected plant said of the step before it learned from it [s].
    """
    keep, common, regime, own = numbers[0], numbers[1] * numbers[1], numbers[2] * numbers[2], numbers[3] * numbers[3]
    o = PARTS if mixed > 0.0 else 0
    fitted, said = 0.0, 0.0
    for i in range(PARTS):
        fitted += parts_s[i]
        said += state[o + i] * parts_s[i]
    if not (0.0 < step_time_s < math.inf and 0.0 < fitted < math.inf):
        state[SKIPPED] += 1.0
        return said
    if inside <= 0.0:
        state[OUTSIDE] += 1.0
        return said
    fade = math.sqrt(keep)
    for i in range(FACTORS):
        state[i] = 1.0 + fade * (state[i] - 1.0)
        for j in range(FACTORS):
            back = common + (regime if i // PARTS == j // PARTS else 0.0) + (own if i == j else 0.0)
            state[FACTORS + FACTORS * i + j] = keep * state[FACTORS + FACTORS * i + j] + (1.0 - keep) * back
    noise = numbers[5] if mixed > 0.0 else numbers[4]
    expected, power = 0.0, noise * noise
    for i in range(PARTS):
        expected += state[o + i] * parts_s[i] / fitted
        for j in range(PARTS):
            power += parts_s[i] * state[FACTORS + FACTORS * (o + i) + o + j] * parts_s[j] / (fitted * fitted)
    most = SPIKE * math.sqrt(power)
    surprise = min(max(step_time_s / fitted - expected, -most), most)
    for i in range(FACTORS):
        # the gain times its divisor: row i of P f, from columns that this update has not reached
        reach = 0.0
        for j in range(PARTS):
            reach += state[FACTORS + FACTORS * i + o + j] * parts_s[j] / fitted
        state[WORK + i] = reach
    bound = 0.0
    for i in range(FACTORS):
        state[i] += state[WORK + i] * surprise / power
        if state[i] < LOW or state[i] > HIGH:
            state[i] = min(max(state[i], LOW), HIGH)
            bound = 1.0
        for j in range(FACTORS):
            state[FACTORS + FACTORS * i + j] -= state[WORK + i] * state[WORK + j] / power
    state[TAUGHT] += 1.0
    state[CLIPPED] += bound
    return said


def corrected(plant: Plant, state: Sequence[float]) -> Plant:
    """The plant with its coefficients times the factors in force.

    Args:
        plant: as fitted, the one that the correction was taught with.
        state: of the correction.

    Returns:
        A plant; an affine one becomes one of two regimes, since what was learned of one need not hold in the other.

    Raises:
        ValueError: a structure that no correction is known for.
    """
    decode, mixed = (np.asarray(state[o : o + PARTS], float) for o in (0, PARTS))
    if isinstance(plant, AffinePlant):
        return RegimePlant(_times(plant.law, decode), _times(plant.law, mixed))
    if isinstance(plant, RegimePlant):
        return RegimePlant(_times(plant.decode, decode), _times(plant.mixed, mixed))
    if isinstance(plant, CurvedPlant):
        bent = [tuple(float(x) * float(m[-1]) for x in law) for law, m in ((plant.decode_bent, decode), (plant.mixed_bent, mixed))]
        return CurvedPlant(_times(plant.decode, decode), _times(plant.mixed, mixed), bent[0], bent[1], plant.shape)
    whole = float(decode[-1])
    if isinstance(plant, RooflinePlant):
        return RooflinePlant((*(float(x) * whole for x in plant.law[:-1]), float(plant.law[-1])))
    if isinstance(plant, ConcurrencyPlant):
        return ConcurrencyPlant(tuple(float(x) * whole for x in plant.law))
    raise ValueError(f"no correction is known for a plant of structure {plant.structure!r}")


def _times(law: Any, factors: np.ndarray) -> tuple[float, ...]:
    return tuple(float(x) * float(m) for x, m in zip(law, factors, strict=False))


_plain: Any = getattr(correction_step, "py_func", correction_step)
