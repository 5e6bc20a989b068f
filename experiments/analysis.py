"""Is the loop robust? Margins of a law over its plant's hull, its curves for the eye, and the certificate with its deciding number."""

from __future__ import annotations

import contextlib
import dataclasses
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
from headway.experiments.case import case_of, jumps
from headway.experiments.certificate import CERTIFIED, Certificate, certify
from headway.experiments.loops import Loop, gain_ratio, has_loop, loop_of
from headway.experiments.margins import OPEN, Margins, at_frequency, closed_radius, loop_margins
from headway.experiments.points import OperatingPoint, authority
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits, Target

RESPONSE_STEPS = 60
FREQUENCIES = 400
LOWEST = 1e-3
"""Lowest frequency of the curves [rad/step]."""


class Curve(NamedTuple):
    """Frequency response of the loop, opened at the step time: Bode's two curves, and Nyquist's.

    Args:
        omega: frequencies up to half a cycle per step, shape (k,) [rad/step].
        magnitude_db: shape (k,) [dB].
        phase_deg: unwrapped, shape (k,) [deg].
        real: of the loop's value, shape (k,).
        imaginary: shape (k,).
        sensitivity_db: what a disturbance of that frequency comes to, shape (k,) [dB].
    """

    omega: np.ndarray
    magnitude_db: np.ndarray
    phase_deg: np.ndarray
    real: np.ndarray
    imaginary: np.ndarray
    sensitivity_db: np.ndarray


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
        delay: steps from a command to its measurement: the longest of those that the certificate is for.
        points: places in the hull.
        margins: of the loop at each point, at that delay; empty for a law without a linear loop.
        worst: the least of each margin over the points; None without a linear loop.
        certificate: the verdict, over all delays, ends of intervals and gains.
        notes: what else a reader must know: null margins, jumps, places where the budget has no authority.
        curve: at the point with the least gain margin; None without a linear loop.
        response: at the same point; None if unstable or without a linear loop.
    """

    law: str
    delay: int
    points: tuple[OperatingPoint, ...]
    margins: tuple[Margins, ...]
    worst: Margins | None
    certificate: Certificate
    notes: tuple[str, ...]
    curve: Curve | None = None
    response: Response | None = None

    @property
    def certified(self) -> bool:
        """Whether the verdict is "certified"."""
        return self.certificate.verdict == CERTIFIED

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; a margin is null where it is infinite, and `notes` says so.

        Returns:
            Points with their margins, the worst of each, and the certificate; without the curves.
        """
        rows = self.margins or (None,) * len(self.points)
        return {
            "operating_points": [{**dataclasses.asdict(p), **_finite(m)} for p, m in zip(self.points, rows, strict=True)],
            **_finite(self.worst),
            "verdict": self.certificate.verdict,
            "certified": self.certified,
            "reasons": [self.certificate.reason],
            "notes": list(self.notes),
            "law": self.law,
            "delay_steps": self.delay,
            "certificate": self.certificate.to_json(),
        }


def analyse(
    controller: ControllerRecord | Candidate,
    identified: IdentifiedPlant,
    targets: tuple[Target, ...],
    limits: Limits,
    *,
    delay: int | tuple[int, ...] = (1, 2),
) -> Analysis:
    """Margins of a law over the plant's hull, and whether they are enough.

    The loop is linearised in step index about corners and centre of the hull: time constants, margins and delays are in
    engine steps.

    Args:
        controller: the law is what is analysed; order and triage do not act on the step time.
        identified: the plant with its hull, intervals and residuals.
        targets: one per class; the tightest budget gives the setpoint.
        limits: of the engine.
        delay: steps from a command to its measurement: 1, or 2 where the engine composes a step ahead; the margins are
            shown for the longest, the certificate is for all.

    Returns:
        The analysis.

    Raises:
        ValueError: no target, no delay, or one below one step.
    """
    if not targets:
        raise ValueError("targets must hold at least one target, got none")
    candidate = controller.candidate if isinstance(controller, ControllerRecord) else controller
    law, plant, budget_s = candidate.law, identified.plant, min(t.budget_s for t in targets)
    certificate = certify(law, plant, identified.hull, limits, budget_s, delay=delay, interval=identified.interval, noise=identified.noise)
    longest = max(certificate.by_delay)
    case = case_of(law, plant, identified.hull, limits, budget_s, identified.interval, identified.noise)
    ratios = [gain_ratio(law, plant, p) for p in case.points] if has_loop(law) else []
    loops = [loop for ratio in ratios if (loop := loop_of(law, ratio, longest, identified.noise)) is not None]
    margins = tuple(loop_margins(*loop) for loop in loops)
    notes = [*authority(plant, case.points, case.setpoint_s, case.most_tokens)] if has_loop(law) else []
    for place, tokens, before, after in jumps(case):
        past = "feedback alone cannot stay before it" if isinstance(law, PILaw) else "the law passes it only if that pays"
        beside = f"beside {place.decode_requests:,.0f} decoding requests and {place.decode_kv_tokens:,.0f} KV tokens"
        notes.append(f"a step jumps from {before * 1e3:.1f} to {after * 1e3:.1f} ms after {tokens:,.0f} prompt tokens {beside}: {past}")
    if not any(np.any(loop.numerator) for loop in loops):
        return Analysis(law.law, longest, case.points, (), None, certificate, tuple(notes))
    weakest = min(range(len(loops)), key=lambda k: margins[k].gain_margin_db)
    direct = None if isinstance(law, PILaw) else ratios[weakest]
    return Analysis(
        law.law,
        longest,
        case.points,
        margins,
        _worst(margins),
        certificate,
        (*_loop_notes(law, ratios, _worst(margins)), *cross_check(loops[weakest], margins[weakest]), *notes),
        curve(loops[weakest]),
        response(*loops[weakest], longest, direct=direct),
    )


def _worst(margins: tuple[Margins, ...]) -> Margins:
    rows = [m for m in margins if m != OPEN] or [OPEN]
    highest = ("sensitivity_peak", "noise_gain")
    return Margins(**{name: (max if name in highest else min)(getattr(m, name) for m in rows) for name in Margins._fields})


def _loop_notes(law: Controller, ratios: list[float], worst: Margins) -> Iterator[str]:
    assumed = "the law assumes" if isinstance(law, PILaw) else "the law's own plant has"
    yield f"the plant's slope is {min(ratios):.2f} to {max(ratios):.2f} times the one that {assumed}"
    if not all(map(math.isfinite, worst[:3])):
        yield "a margin is null where nothing of its kind makes the loop unstable"
    if isinstance(law, PILaw) and law.ki == 0:
        yield "ki is 0: the law does not settle on its setpoint"


def cross_check(loop: Loop, found: Margins) -> Iterator[str]:
    """Where python-control says otherwise, and why it is not believed.

    It looks for phase crossings below half a cycle per step and misses the one that lies on it, where every loop with
    one delay loses stability; for a loop that integrates twice it takes noise near frequency 0 for a crossing.

    Args:
        loop: as analysed.
        found: its margins, from the poles.

    Yields:
        One sentence if the gain margins differ by more than 0.1 dB.
    """
    with _quiet():
        theirs = float(control.margin(control.tf(*loop, 1))[0])
    theirs_db = 20 * math.log10(theirs) if 0 < theirs < math.inf else math.copysign(math.inf, theirs - 1)
    if not math.isclose(theirs_db, found.gain_margin_db, abs_tol=0.1):
        yield f"python-control says {theirs_db:.1f} dB of gain margin, the poles {found.gain_margin_db:.1f} dB: the poles are right"


def curve(loop: Loop) -> Curve:
    """Frequency response of a loop.

    Args:
        loop: the loop.

    Returns:
        The curve, at frequencies spaced evenly on a logarithmic scale.
    """
    omega = np.geomspace(LOWEST, math.pi, FREQUENCIES)
    values = at_frequency(loop, omega)
    decibels = [20 * np.log10(np.maximum(np.abs(v), 1e-300)) for v in (values, 1 / (1 + values))]
    return Curve(omega, decibels[0], np.degrees(np.unwrap(np.angle(values))), np.real(values), np.imag(values), decibels[1])


def response(numerator: np.ndarray, denominator: np.ndarray, delay: int, *, direct: float | None = None) -> Response | None:
    """Answer of the closed loop to a step of the setpoint and to one of the load.

    The setpoint enters before the delay, the load after it: T = z^delay L / (1 + L), S = 1 / (1 + L). A law that turns
    its plant round passes the setpoint on at once, and only what the plant is off by comes back: T = (direct + L) / (1 + L).

    Args:
        numerator: of the loop, from the highest power down, shape (m,).
        denominator: shape (n,), n >= m.
        delay: steps from a command to its measurement.
        direct: slope of the plant over that of the law's own; None for a law that only feeds back.

    Returns:
        Response, or None if the loop is unstable.
    """
    if closed_radius(numerator, denominator) >= 1.0:
        return None
    closed = np.polyadd(denominator, numerator)
    follows = [*numerator, *[0.0] * delay] if direct is None else np.polyadd(direct * np.asarray(denominator, float), numerator)
    steps = np.arange(RESPONSE_STEPS)
    with _quiet():
        rows = [control.step_response(control.tf(n, closed, 1), steps).y.ravel() for n in (follows, denominator)]
    return Response(steps, *rows)


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
