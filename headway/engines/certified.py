"""The certificate that an exported controller carries: what its tuning or an analysis found, and what is refused without one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from headway.controllers.controller import Controller
from headway.controllers.pi import PILaw
from headway.controllers.record import ControllerRecord

REFUSED = "refused"
VERDICTS = (REFUSED, "measured", "certified")
"""From the worst on."""


def certificate_of(record: ControllerRecord) -> dict[str, Any]:
    """Verdict on a controller: its tuning's, or where that has none or the file was changed by hand since, a new one.

    Where a schedule moves the margin, the worse one of those at its least and at its greatest.

    Args:
        record: the controller.

    Returns:
        {"verdict": "certified", "refused" or "measured", "reason": one sentence, "numbers": by name}.
    """
    from headway.experiments.certificate import certify
    from headway.experiments.margins import instability

    laws, budget_s = _laws(record), min(t.budget_s for t in record.targets)
    for law in laws:
        unstable = instability(law, record.plant, record.hull, record.limits) if isinstance(law, PILaw) else None
        if unstable:
            return {"verdict": REFUSED, "reason": unstable, "numbers": {}}
    found = None if record.edited or len(laws) > 1 else record.tuning.get("certificate")
    if not found:
        every = [certify(law, record.plant, record.hull, record.limits, budget_s).to_json() for law in laws]
        found = min(every, key=lambda one: VERDICTS.index(one["verdict"]))
    return {name: found.get(name) for name in ("verdict", "reason", "numbers")}


def _laws(record: ControllerRecord) -> list[Controller]:
    """The law, or where its margin follows the load, that with the ends of the margin."""
    law, gains = record.candidate.law, record.candidate.gains
    if gains is None or "margin" not in gains.names:
        return [law]
    margins = np.asarray(gains.table)[gains.names.index("margin")]
    return [dataclasses.replace(law, margin=float(m)) for m in (margins.min(), margins.max())]  # pyright: ignore[reportArgumentType]


def granted(record: ControllerRecord, *, uncertified: bool) -> dict[str, Any]:
    """The certificate to write into an artefact.

    Args:
        record: the controller.
        uncertified: write a refused law all the same; the artefact says so.

    Returns:
        As `certificate_of`, and {"uncertified": True} for a refused law.

    Raises:
        ValueError: the law is refused.
    """
    found = certificate_of(record)
    if found["verdict"] != REFUSED:
        return found
    if not uncertified:
        raise ValueError(f"refused: {found['reason']}; --uncertified writes it all the same and says so in what is written")
    return {**found, "uncertified": True}


def said(certificate: dict[str, Any]) -> str:
    """A certificate in one line.

    Args:
        certificate: as from `granted`.

    Returns:
        Verdict and reason.
    """
    verdict = "refused, and exported all the same" if certificate.get("uncertified") else certificate["verdict"]
    return f"{verdict}: {certificate['reason']}"
