"""Is the loop robust? Gain, phase and delay margins of a law over the plant's hull, and a verdict with its deciding number."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import control
import numpy as np

from headway.controllers.controller import Controller
from headway.controllers.pi import PILaw
from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import Candidate
from headway.controllers.updown import UpDownLaw
from headway.experiments.margins import (
    OperatingPoint,
    at_point,
    authority,
    closed_radius,
    gain_limit,
    loop_transfer,
    operating_points,
    step_time_s,
)
from headway.models.identified import IdentifiedPlant
from headway.models.plant import Plant
from headway.models.signals import Limits, Target

LEAST_GAIN_MARGIN_DB = 6.0
"""The slope may double before the loop is lost."""

LEAST_PHASE_MARGIN_DEG = 45.0
"""Below it a disturbance rings."""

NO_FEEDBACK = "no feedback: nothing to certify"

RESPONSE_STEPS = 60
FREQUENCIES = 400


class Margins(NamedTuple):
    """How far one loop is from instability. Infinity where nothing of that kind makes it unstable.

    Args:
        gain_margin_db: factor on the gain that it bears [dB]; negative if it is unstable.
        phase_margin_deg: phase lag that it bears [deg]; 0 if it is unstable.
        delay_margin_steps: further delay that it bears [steps]; 0 if it is unstable.
        sensitivity_peak: most that feedback amplifies a disturbance, at the worst frequency; infinity if unstable.
    """

    gain_margin_db: float
    phase_margin_deg: float
    delay_margin_steps: float
    sensitivity_peak: float

    @property
    def enough(self) -> bool:
        """Whether both limits of the certificate are kept."""
        return self.gain_margin_db >= LEAST_GAIN_MARGIN_DB and self.phase_margin_deg >= LEAST_PHASE_MARGIN_DEG


class Bode(NamedTuple):
    """Frequency response of the loop, opened at the step time.

    Args:
        omega: frequencies up to half a cycle per step, shape (k,) [rad/step].
        magnitude_db: shape (k,) [dB].
        phase_deg: unwrapped, shape (k,) [deg].
    """

    omega: np.ndarray
    magnitude_db: np.ndarray
    phase_deg: np.ndarray


class Response(NamedTuple):
    """How the closed loop answers a step, as shares of the step, without limits or rounding.

    Args:
        steps: engine steps since the change, shape (k,).
        setpoint: step time after the setpoint rose by one, shape (k,).
        disturbance: step time after the load made steps longer by one, shape (k,).
    """

    steps: np.ndarray
    setpoint: np.ndarray
    disturbance: np.ndarray


@dataclasses.dataclass(frozen=True)
class Analysis:
    """What can be said of a law on a plant before it runs.

    Args:
        law: kind of the law.
        delay: steps from a command to its measurement.
        points: places in the hull.
        margins: of the loop at each point; empty for a law without a linear loop.
        worst: the least of each margin over the points; None without a linear loop.
        certified: enough gain and phase margin at every point, or no feedback at all.
        reasons: sentences behind the verdict, the deciding number in each.
        notes: what else a reader must know: null margins, places where the budget has no authority.
        bode: at the point with the least gain margin; None without a linear loop.
        response: at the same point; None if unstable or without a linear loop.
    """

    law: str
    delay: int
    points: tuple[OperatingPoint, ...]
    margins: tuple[Margins, ...]
    worst: Margins | None
    certified: bool
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    bode: Bode | None = None
    response: Response | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; a margin is null where it is infinite, and `notes` says so.

        Returns:
            Points with their margins, the worst of each, the verdict and its reasons; without the curves.
        """
        rows = self.margins or (None,) * len(self.points)
        return {
            "operating_points": [{**dataclasses.asdict(p), **_finite(m)} for p, m in zip(self.points, rows, strict=True)],
            **_finite(self.worst),
            "certified": self.certified,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "law": self.law,
            "delay_steps": self.delay,
        }


def analyse(
    controller: ControllerRecord | Candidate,
    identified: IdentifiedPlant,
    targets: tuple[Target, ...],
    limits: Limits,
    *,
    delay: int = 1,
) -> Analysis:
    """Margins of a law over the plant's hull, and whether they are enough: 6 dB of gain and 45 degrees of phase everywhere.

    The loop is linearised in step index about corners and centre of the hull: time constants, margins and delays are in
    engine steps. The certificate holds for slow changes of the slope; noise, rounding to tokens and limits are not in
    it, the exact simulator has them.

    Args:
        controller: the law is what is analysed; order and triage do not act on the step time.
        identified: the plant with its hull.
        targets: one per class; the tightest budget gives the setpoint.
        limits: of the engine.
        delay: steps from a command to its measurement: 1, or 2 where the engine composes a step ahead.

    Returns:
        The analysis.

    Raises:
        ValueError: no target, or a delay below one step.
    """
    if not targets:
        raise ValueError("targets must hold at least one target, got none")
    if delay < 1:
        raise ValueError(f"delay must be at least 1 step, got {delay}; a step is measured when it has ended")
    candidate = controller.candidate if isinstance(controller, ControllerRecord) else controller
    law, plant = candidate.law, identified.plant
    most = float(getattr(law, "most_tokens", limits.max_tokens))
    points = tuple(operating_points(plant, identified.hull, limits, most))
    budget_s = min(t.budget_s for t in targets)
    if isinstance(law, PILaw):
        return _of_pi(law, plant, points, (1 - law.setpoint_margin) * budget_s, delay)
    if isinstance(law, UpDownLaw):
        return Analysis(law.law, delay, points, (), None, False, (_cycle(law, plant, points[0], budget_s, delay),), ())
    return _without_loop(law, points, delay)


def _without_loop(law: Controller, points: tuple[OperatingPoint, ...], delay: int) -> Analysis:
    if law.law == "static":
        return Analysis(law.law, delay, points, (), None, True, (NO_FEEDBACK,), ())
    return Analysis(law.law, delay, points, (), None, False, (f"no linear loop is known for law {law.law!r}: nothing was certified",), ())


def _of_pi(law: PILaw, plant: Plant, points: tuple[OperatingPoint, ...], setpoint_s: float, delay: int) -> Analysis:
    loops = [loop_transfer(law, p.slope_s_per_token, delay) for p in points]
    margins = tuple(loop_margins(*loop) for loop in loops)
    gain_db, phase_deg, delay_steps, _ = map(min, zip(*margins, strict=True))
    worst = Margins(gain_db, phase_deg, delay_steps, max(m.sensitivity_peak for m in margins))
    weakest = loops[min(range(len(points)), key=lambda k: margins[k].gain_margin_db)]
    fed_back = law.kp > 0 or law.ki > 0
    return Analysis(
        law.law,
        delay,
        points,
        margins,
        worst,
        all(m.enough for m in margins),
        tuple(_faults(points, margins)) if fed_back else (NO_FEEDBACK,),
        (*_notes(law, points, worst), *authority(plant, points, setpoint_s, float(law.most_tokens))),
        bode(*weakest) if fed_back else None,
        response(*weakest, delay) if fed_back else None,
    )


def _notes(law: PILaw, points: tuple[OperatingPoint, ...], worst: Margins) -> Iterator[str]:
    ratios = [p.slope_s_per_token / float(law.slope_s_per_token) for p in points]
    yield f"the plant's slope is {min(ratios):.2f} to {max(ratios):.2f} times the one that the law assumes"
    if not all(map(math.isfinite, worst[:3])):
        yield "a margin is null where nothing of its kind makes the loop unstable"
    if law.ki == 0:
        yield "ki is 0: the law does not settle on its setpoint"


@functools.lru_cache(maxsize=256)
def _margins(numerator: tuple[float, ...], denominator: tuple[float, ...]) -> Margins:
    if not any(numerator):
        return Margins(math.inf, math.inf, math.inf, 1.0)
    limit = gain_limit(np.array(numerator), np.array(denominator))
    gain_db = 20 * math.log10(limit) if 0 < limit < math.inf else math.copysign(math.inf, limit - 1)
    if limit <= 1.0:
        return Margins(gain_db, 0.0, 0.0, math.inf)
    with _quiet():
        found = control.stability_margins(control.tf(numerator, denominator, 1), returnall=True)
    phases, crossings = (np.asarray(found[k], float) for k in (1, 4))
    delays = np.radians(phases % 360.0) / crossings
    _, values = _frequency_response(np.array(numerator), np.array(denominator))
    return Margins(gain_db, float(phases.min(initial=math.inf)), float(delays.min(initial=math.inf)), 1 / float(np.abs(1 + values).min()))


def _frequency_response(numerator: np.ndarray, denominator: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    omega = np.geomspace(1e-3, math.pi, FREQUENCIES)
    z = np.exp(1j * omega)
    return omega, np.polyval(numerator, z) / np.polyval(denominator, z)


def loop_margins(numerator: np.ndarray, denominator: np.ndarray) -> Margins:
    """Margins of one loop: phase and delay where its gain crosses one, the gain from the poles.

    `control` gives the phase; its gain margin misses a crossing at half a cycle per step and calls an unstable loop
    whose gain never crosses one infinitely robust, so the root test of `gain_limit` has the word on both.

    Args:
        numerator: of the loop, from the highest power down, shape (m,).
        denominator: shape (n,), n >= m.

    Returns:
        Margins.
    """
    return _margins(tuple(map(float, numerator)), tuple(map(float, denominator)))


def bode(numerator: np.ndarray, denominator: np.ndarray) -> Bode:
    """Frequency response of a loop.

    Args:
        numerator: from the highest power down, shape (m,).
        denominator: shape (n,), n >= m.

    Returns:
        Bode, at frequencies spaced evenly on a logarithmic scale.
    """
    omega, values = _frequency_response(np.asarray(numerator, float), np.asarray(denominator, float))
    return Bode(omega, 20 * np.log10(np.maximum(np.abs(values), 1e-300)), np.degrees(np.unwrap(np.angle(values))))


def response(numerator: np.ndarray, denominator: np.ndarray, delay: int) -> Response | None:
    """Answer of the closed loop to a step of the setpoint and to one of the load.

    The setpoint enters before the delay, the load after it: T = z^delay L / (1 + L), S = 1 / (1 + L).

    Args:
        numerator: of the loop, from the highest power down, shape (m,).
        denominator: shape (n,), n >= m.
        delay: steps from a command to its measurement.

    Returns:
        Response, or None if the loop is unstable.
    """
    if closed_radius(numerator, denominator) >= 1.0:
        return None
    closed = np.polyadd(denominator, numerator)
    steps = np.arange(RESPONSE_STEPS)
    with _quiet():
        rows = [control.step_response(control.tf(n, closed, 1), steps).y.ravel() for n in ([*numerator, *[0.0] * delay], denominator)]
    return Response(steps, *rows)


def _faults(points: tuple[OperatingPoint, ...], margins: tuple[Margins, ...]) -> Iterator[str]:
    low = min(range(len(points)), key=lambda k: margins[k].gain_margin_db)
    if margins[low].gain_margin_db <= 0:
        yield f"unstable {at_point(points[low])}: gain margin {margins[low].gain_margin_db:.1f} dB, it must be {LEAST_GAIN_MARGIN_DB:g} dB"
        return
    if margins[low].gain_margin_db < LEAST_GAIN_MARGIN_DB:
        yield f"gain margin {margins[low].gain_margin_db:.1f} dB {at_point(points[low])}, it must be {LEAST_GAIN_MARGIN_DB:g} dB"
    low = min(range(len(points)), key=lambda k: margins[k].phase_margin_deg)
    if margins[low].phase_margin_deg < LEAST_PHASE_MARGIN_DEG:
        yield f"phase margin {margins[low].phase_margin_deg:.1f} degrees {at_point(points[low])}, it must be {LEAST_PHASE_MARGIN_DEG:g}"


def _cycle(law: UpDownLaw, plant: Plant, point: OperatingPoint, budget_s: float, delay: int) -> str:
    """The cycle of the up/down law in numbers, about the prefill that just keeps the target in the middle of the hull."""
    tokens = np.arange(1.0, float(law.most_tokens) + 1)
    times = step_time_s(plant, point.decode_requests, point.decode_kv_tokens, tokens)
    fits = tokens[times <= budget_s]
    head = "the up/down law cycles by design and has no gain or phase margin"
    if len(fits) == 0:
        return f"{head}; in the middle of the hull no prefill fits into {budget_s * 1e3:.1f} ms"
    u, slope = float(fits[-1]), point.slope_s_per_token
    over, cut = float(law.up_tokens) * delay, (1 - float(law.down)) * u
    regained = f"regained in {math.ceil(cut / law.up_tokens)} good steps" if law.up_tokens > 0 else "never regained"
    late = law.up_tokens / (law.up_tokens + cut) if law.up_tokens + cut > 0 else 0.0
    rest = float(law.margin) * budget_s
    calm = f"; without noise it rests in its dead zone of {rest * 1e3:.1f} ms" if over * slope < rest else ""
    return (
        f"{head}: at {u:,.0f} tokens it overshoots by up to {over:,.0f} tokens ({over * slope * 1e3:.2f} ms), a late step cuts {cut:,.0f} "
        f"({cut * slope * 1e3:.2f} ms), {regained}; without a dead zone {late:.1%} of its steps would be late{calm}"
    )


def _finite(margins: Margins | None) -> dict[str, float | None]:
    """The margins by name, null where infinite or unknown."""
    values = margins or (None,) * len(Margins._fields)
    return {name: v if v is not None and math.isfinite(v) else None for name, v in zip(Margins._fields, values, strict=True)}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A loop with an integrator is infinite at frequency 0, and `control` divides there: expected, not worth a warning."""
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        warnings.simplefilter("ignore")
        yield
