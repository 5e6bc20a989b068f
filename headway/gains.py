"""Gains as people write them, `margin=20%,ki=0.1`, and a controller that was tuned with some of its numbers set by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from headway.controllers.controller import Controller
from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import Candidate
from headway.experiments.certificate import certify
from headway.models.identified import IdentifiedPlant
from headway.units import nearest, share

EXAMPLE = "margin=20%,ki=0.1"
"""What gains look like, for error messages."""

DIGITS = 6
"""Significant digits of a gain that is set by hand: more than any engine tells apart, and the command that sets it stays readable."""


def rounded(value: float) -> float:
    """A gain as it is written.

    Args:
        value: in its own unit.

    Returns:
        The value to DIGITS significant digits.

    Example:
        >>> rounded(0.123456789)
        0.123457
    """
    return float(f"{value:.{DIGITS}g}")


def gains_text(gains: Mapping[str, float]) -> str:
    """Gains as `parse_gains` reads them.

    Args:
        gains: value by name.

    Returns:
        Text.

    Example:
        >>> gains_text({"margin": 0.2, "ki": 0.1})
        'margin=0.2,ki=0.1'
    """
    return ",".join(f"{name}={value:.{DIGITS}g}" for name, value in gains.items())


def parse_gains(text: str, law: Controller) -> dict[str, float]:
    """Numbers of a law as people write them.

    Args:
        text: `name=value,...`; a share may be written in percent.
        law: whose they are.

    Returns:
        Value by name; empty for an empty text.

    Raises:
        ValueError: a name that the law does not have, or a value outside its range: what, where, what was expected.

    Example:
        >>> from headway.controllers.pi import PILaw
        >>> parse_gains("margin=20%,ki=.1", PILaw())
        {'margin': 0.2, 'ki': 0.1}
    """
    known, given = law.gains(), {}
    for part in filter(str.strip, text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise ValueError(f"--gains must be name=value by comma, got {part.strip()!r}; write for example {EXAMPLE}")
        if name not in known:
            raise ValueError(f"--gains: law {law.law} has no {name!r}; {nearest(name, known)}")
        if name in given:
            raise ValueError(f"--gains names {name!r} twice; one value per gain")
        try:
            given[name] = share(value) if value.endswith("%") else float(value)
        except ValueError:
            raise ValueError(f"--gains: {name} must be a number, got {value!r}; write for example {EXAMPLE}") from None
        low, high = known[name].low, known[name].high
        if not low <= given[name] <= high:
            raise ValueError(f"--gains: {name} must be in [{low:g}, {high:g}], got {value}")
    return given


def following(candidate: Candidate) -> tuple[str, ...]:
    """Numbers of a controller that follow the load.

    Args:
        candidate: any.

    Returns:
        Their names; empty where it has no schedule.
    """
    return candidate.gains.names if candidate.gains is not None else ()


def with_gains(candidate: Candidate, gains: Mapping[str, float], policy: Mapping[str, Any]) -> Candidate:
    """A law and a policy with some of their numbers set.

    Args:
        candidate: as tuned.
        gains: of the law, by name.
        policy: of the policy, by field.

    Returns:
        Candidate.

    Raises:
        ValueError: one of them cannot be, or follows the load; the message says which.
    """
    for name in {*gains, *policy} & set(following(candidate)):
        raise ValueError(f"{name} follows the load in this controller: it is a table of numbers, and no one number can be set in its place")
    law, served = dataclasses.replace(candidate.law, **gains), dataclasses.replace(candidate.policy, **policy)  # pyright: ignore[reportArgumentType]  # by @pytree
    law.check()
    served.check()
    return candidate._replace(law=law, policy=served)


def by_hand(
    record: ControllerRecord, identified: IdentifiedPlant, gains: Mapping[str, float], policy: Mapping[str, Any], *, delays: tuple[int, ...]
) -> ControllerRecord:
    """A tuned controller with numbers set by hand, its certificate made anew.

    What tuning found stays in the record, and a warning says that it is about the controller before.

    Args:
        record: as tuned.
        identified: the plant.
        gains: of the law, by name.
        policy: of the policy, by field.
        delays: steps from a command to its measurement; all must hold for the certificate.

    Returns:
        The record.

    Raises:
        ValueError: a number that cannot be; the message says which.
    """
    candidate = with_gains(record.candidate, gains, policy)
    budget_s = min(target.budget_s for target in record.targets)
    on = (identified.plant, identified.hull, record.limits, budget_s)
    certificate = certify(candidate.law, *on, delay=delays, interval=identified.interval, noise=identified.noise).to_json()
    numbers = ", ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}" for name, value in {**gains, **policy}.items()
    )
    warning = f"set by hand after tuning: {numbers}; what tuning says of gain and attainment is about the controller before"
    tuning = {**record.tuning, "certificate": certificate, "warnings": [*(record.tuning.get("warnings") or []), warning]}
    return dataclasses.replace(record, candidate=candidate, tuning=tuning, edited=False)
