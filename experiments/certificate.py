"""A law's certificate: enough margin and no limit cycle wherever its plant was seen, or the number that says no."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from headway.controllers.controller import Controller
from headway.controllers.pi import PILaw
from headway.experiments.case import Case, case_of, setpoint_in_jump, settles_past
from headway.experiments.cycles import Cycle
from headway.experiments.found import cycle_numbers, measured, own_step, still_numbers, worst_cycle
from headway.experiments.loops import Loop, circle_limit, gain_ratio, has_loop, loop_of
from headway.experiments.margins import GREATEST, OPEN, Margins, circle_margin_db, loop_margins
from headway.experiments.points import OperatingPoint, Place, at_point, places, sectors, slope_ends
from headway.experiments.signs import Sign, loop_sign
from headway.models.identified import Hull
from headway.models.noise import Noise
from headway.models.plant import Plant
from headway.models.signals import Limits

CERTIFIED, REFUSED, MEASURED = "certified", "refused", "measured"
"""Verdicts. A law without a linear loop is measured: static has none, the up/down laws cycle by design."""

LEAST_GAIN_MARGIN_DB = 6.0
"""The slope may double before the loop is lost."""
LEAST_PHASE_MARGIN_DEG = 45.0
"""Below it a disturbance rings."""


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The verdict on a law, with the number that decides.

    Args:
        verdict: "certified", "refused" or "measured".
        reason: one sentence, with that number and where it was found.
        numbers: by name; the worst over the delays.
        by_delay: for each delay its own verdict, reason and numbers.
    """

    verdict: str
    reason: str
    numbers: dict[str, Any]
    by_delay: dict[int, dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; a number is null where it is infinite or not known.

        Returns:
            The fields by name.
        """
        return _finite(dataclasses.asdict(self))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value


def certify(
    law: Controller,
    plant: Plant,
    hull: Hull,
    limits: Limits,
    budget_s: float,
    *,
    delay: int | tuple[int, ...] = (1, 2),
    interval: Mapping[str, tuple[float, float]] | None = None,
    noise: Noise | None = None,
) -> Certificate:
    """Judge a law on a plant over its hull, its coefficients' intervals and every delay.

    A feedback law is certified if, at every place and at both ends of the slope's interval, its gain margin is 6 dB
    and its phase margin 45 degrees, and if its command, run without noise at 0.8, 1 and 1.2 times the plant's gain,
    swings by no more than a quantum. Refused is what misses one of these, has the wrong sign, or is held by feedback
    alone at a setpoint that lies inside a jump of the plant. It is a statement about the plant as it was fitted and
    about slow changes; noise, limits and prompts that are missing are the simulator's part.

    Args:
        law: any.
        plant: the true one, as far as it is known; a law that predicts has its own.
        hull: what the plant's trace held.
        limits: of the engine.
        budget_s: longest step that keeps the ITL promise [s].
        delay: steps from a command to its measurement; all must hold.
        interval: 95 % interval of each coefficient, by name.
        noise: residuals of the plant; without them noise is +-10 %, and the tracker's spread is the one it starts with.

    Returns:
        The certificate.

    Raises:
        ValueError: no delay, or one below one step.
    """
    delays = (delay,) if isinstance(delay, int) else tuple(delay)
    if not delays or min(delays) < 1:
        raise ValueError(f"delay must be at least 1 step, got {delay}; a step is measured when it has ended")
    case = case_of(law, plant, hull, limits, budget_s, interval, noise)
    sign = loop_sign(law, plant, places(hull)[0], budget_s, max(1.0, min(256.0, case.most_tokens)))
    rows = {d: _judged(case, d, sign) for d in delays}
    order = {REFUSED: 0, MEASURED: 1, CERTIFIED: 2}
    worst = min(rows, key=lambda d: (order[rows[d]["verdict"]], rows[d]["slack"]))
    row = rows[worst]
    numbers = {**row["numbers"], "delay_steps": worst}
    return Certificate(row["verdict"], row["reason"], numbers, {d: {k: v for k, v in r.items() if k != "slack"} for d, r in rows.items()})


def _judged(case: Case, delay: int, sign: Sign) -> dict[str, Any]:
    """Verdict, reason, numbers and slack (how far the nearest limit is, as a share of it) at one delay."""
    after = f"with a delay of {delay} step{'s' if delay > 1 else ''}"
    if not sign.right:
        reason = f"wrong sign: after a late step it asks for {sign.law:+,.0f} tokens more than after a short one, which makes steps longer"
        return {"verdict": REFUSED, "reason": reason, "numbers": {"loop_sign": 1.0}, "slack": -math.inf}
    loops = _loops(case, delay)
    if not has_loop(case.law) or not any(np.any(loop.numerator) for _, loop in loops):
        reason, numbers = measured(case, delay)
        return {"verdict": MEASURED, "reason": f"{reason}, {after}", "numbers": numbers, "slack": -numbers["noise_late_rate"]}
    if not case.places:
        reason = (
            f"no place of the hull has room for one prompt token within the setpoint of {case.setpoint_s * 1e3:.1f} ms: nothing to control"
        )
        return {"verdict": REFUSED, "reason": reason, "numbers": {}, "slack": -math.inf}
    margins, cycle = [(p, loop_margins(*loop)) for p, loop in loops], worst_cycle(case, delay)
    gain, phase = (min(margins, key=lambda row: row[1][k]) for k in (0, 1))
    allowed = max(case.quantum_tokens, own_step(case))
    checks = [
        (gain[1].gain_margin_db / LEAST_GAIN_MARGIN_DB - 1, _gain_words(gain)),
        (phase[1].phase_margin_deg / LEAST_PHASE_MARGIN_DEG - 1, _phase_words(phase)),
        (1 - cycle[0].amplitude_tokens / allowed, _cycle_words(cycle, allowed)),
    ]
    if isinstance(case.law, PILaw) and (inside := setpoint_in_jump(case)):
        checks.insert(0, (-1.0, inside))
    failed = [words for slack, words in checks if slack < 0]
    verdict, reason = (REFUSED, f"{failed[0]}, {after}") if failed else (CERTIFIED, f"{min(checks)[1]}, {after}")
    numbers = {
        **_worst(margins),
        **_sector_numbers(case, delay),
        **cycle_numbers(case, cycle, allowed, delay),
        **still_numbers(case, delay),
    }
    return {"verdict": verdict, "reason": reason, "numbers": {**numbers, "loop_sign": -1.0}, "slack": min(checks)[0]}


def _loops(case: Case, delay: int) -> list[tuple[OperatingPoint, Loop]]:
    """The loop at every point, with the slope itself and at both ends of its interval."""
    found = []
    for point in case.points if has_loop(case.law) else ():
        for steepness in dict.fromkeys((point.slope_s_per_token, *slope_ends(case.plant, point, case.interval))):
            # a law whose own plant sees no cost where there is one has no gain to speak of: beyond every limit
            ratio = min(gain_ratio(case.law, case.plant, point, steepness), GREATEST)
            loop = loop_of(case.law, ratio, delay, case.noise)
            if loop is not None:
                found.append((dataclasses.replace(point, slope_s_per_token=steepness), loop))
    return found


def _worst(margins: list[tuple[OperatingPoint, Margins]]) -> dict[str, Any]:
    rows = [m for _, m in margins if m != OPEN] or [OPEN]
    least = {name: min(getattr(m, name) for m in rows) for name in Margins._fields if name not in ("sensitivity_peak", "noise_gain")}
    most = {name: max(getattr(m, name) for m in rows) for name in ("sensitivity_peak", "noise_gain")}
    return {**least, **most, "response_steps": max(m.response_steps for m in rows)}


def _gain_words(row: tuple[OperatingPoint, Margins]) -> str:
    point, found = row
    head = "unstable" if found.gain_margin_db <= 0 else "the least margin is of the gain"
    if 0 < found.gain_margin_db < LEAST_GAIN_MARGIN_DB:
        head = "the gain is too near to its limit"
    return f"{head}: gain margin {found.gain_margin_db:.1f} dB {at_point(point)}, it must be {LEAST_GAIN_MARGIN_DB:g} dB"


def _phase_words(row: tuple[OperatingPoint, Margins]) -> str:
    point, found = row
    return f"phase margin {found.phase_margin_deg:.1f} degrees {at_point(point)}, it must be {LEAST_PHASE_MARGIN_DEG:g}"


def _cycle_words(found: tuple[Cycle, Place, float], allowed: float) -> str:
    cycle, place, factor = found
    where = (
        f"at {place.decode_requests:,.0f} decoding requests and {place.decode_kv_tokens:,.0f} KV tokens, {factor:g} times the plant's gain"
    )
    period = f" in {cycle.period_steps:.0f} steps" if math.isfinite(cycle.period_steps) else ""
    return f"limit cycle of {cycle.amplitude_tokens:,.0f} tokens{period} {where}, it may be {allowed:,.0f}"


def _sector_numbers(case: Case, delay: int) -> dict[str, Any]:
    """Slopes on each side of the plant's jumps, and what the circle criterion says of the widest."""
    sides: dict[int, list[tuple[float, float]]] = {}
    for point in case.points:
        place, context = Place(point.decode_requests, point.decode_kv_tokens), point.context_tokens
        for side, sector in enumerate(sectors(case.plant, place, case.most_tokens, context)):
            ends = [gain_ratio(case.law, case.plant, point, s) for s in (sector.low_s_per_token, sector.high_s_per_token)]
            if not isinstance(case.law, PILaw):  # what it predicts is in its command already: only its error is left in the loop
                ends = [gain_ratio(case.law, case.plant, point, s) for s in slope_ends(case.plant, point, case.interval)]
            if all(map(math.isfinite, ends)):
                sides.setdefault(side, []).append((ends[0], ends[1]))
            if sector.jump_s > 0 and not settles_past(case.plant, place, sector, case.setpoint_s):
                break
    spans = [(min(low for low, _ in rows), max(high for _, high in rows)) for rows in sides.values()]
    spans = [span for span in spans if span[1] > 0]
    if not spans:
        return {}
    margins = [
        circle_margin_db(loop, low / high) for low, high in spans if (loop := loop_of(case.law, high, delay, case.noise)) is not None
    ]
    return {
        "gain_ratio_low": min(low for low, _ in spans),
        "gain_ratio_high": max(high for _, high in spans),
        "circle_margin_db": min(margins),
        "circle_limit": circle_limit(delay),
    }
