"""What is required beside the objective, as people write it: `class.chat>=95%,shed<=2%,ttft_p99<=2s`; and how robust it is to be."""

from __future__ import annotations

import re

from headway import units
from headway.experiments.constraints import CEILINGS, CLASS, FLOORS, TERCILE, TIMES, Requirement
from headway.experiments.robust import KINDS, Robust

EXAMPLE = "class.chat>=95%,shed<=2%,ttft_p99<=2s"
"""What requirements look like, for error messages."""

NAMED = {TERCILE: "tercile.long>=80%", "shed": "shed.chat<=2%", **{name: f"{name}.chat<=2s" for name in TIMES}}
"""What a name with a part behind its dot looks like, for error messages, where that is not a class with a floor."""

PART = re.compile(r"\s*([A-Za-z_0-9]+)(?:(\.)([^<>=]*?))?\s*(>=|<=|=<|=>|>|<|=)\s*(.+?)\s*")


def parse_requirements(text: str) -> tuple[Requirement, ...]:
    """What a candidate has to keep.

    Args:
        text: `name>=bound` or `name<=bound` by comma. attainment, clean, fair (worst class), class.NAME and tercile.short, .middle or
            .long (a third of the requests by their prompts) are floors; shed, ttft_p99 and itl_p99, also as shed.NAME of one class,
            are ceilings. Shares are written 95% or .95, times 2s or 30ms.

    Returns:
        Requirements in order; classes are checked by `Requirement.check`.

    Raises:
        ValueError: nothing between commas, an unknown name, a dot without a name behind it, a bound that is none, the wrong
            direction, or one thing required twice.

    Example:
        >>> [(r.label, r.bound) for r in parse_requirements("class.chat>=95%, itl_p99<=30ms")]
        [('class.chat', 0.95), ('itl_p99', 0.03)]
    """
    found: list[Requirement] = []
    for part in filter(str.strip, text.split(",")):
        match = PART.fullmatch(part)
        if match is None:
            raise ValueError(f"require {text!r}: expected name>=bound or name<=bound, found {part.strip()!r}; write for example {EXAMPLE}")
        name, of, sign, bound = match[1], match[3] or "", match[4], match[5]
        known = [*FLOORS, *CEILINGS, CLASS, TERCILE]
        if name not in known:
            raise ValueError(
                f"require {text!r}: unknown name {name!r}; {units.nearest(name, [*FLOORS, *CEILINGS, 'class.NAME', 'tercile.long'])}"
            )
        if match[2] and not of:
            raise ValueError(
                f"require {text!r}: {name}. ends without the name of a class; write for example {NAMED.get(name, 'class.chat>=95%')}"
            )
        requirement = Requirement(name, _bound(text, name, bound), of)
        wanted = ">=" if requirement.floor else "<="
        if sign != wanted:
            raise ValueError(
                f"require {text!r}: {requirement.label} is bounded by {wanted}, got {sign}; write {requirement.label}{wanted}{bound}"
            )
        if requirement.label in [r.label for r in found]:
            raise ValueError(f"require {text!r}: {requirement.label} is required twice; write it once")
        found.append(requirement)
    if text and not found:
        raise ValueError(f"require {text!r}: nothing is required; leave it out, or write for example {EXAMPLE}")
    return tuple(found)


def parse_robust(text: str, seed: int = 0) -> Robust:
    """How plants that the trace allows as well are to count.

    Args:
        text: "mean", "cvar", or "cvar:25%" with the share of the worst runs.
        seed: of the plants.

    Returns:
        Robust.

    Raises:
        ValueError: neither, or a share that is none.

    Example:
        >>> parse_robust("cvar:10%").tail
        0.1
    """
    kind, colon, tail = (piece.strip() for piece in text.partition(":"))
    if kind not in KINDS or (colon and kind != "cvar"):
        raise ValueError(f"robust must be mean, cvar or cvar:25%, got {text!r}")
    return Robust(kind, units.share(tail), seed=seed) if colon else Robust(kind, seed=seed)


def _bound(text: str, name: str, bound: str) -> float:
    try:
        return units.duration_s(bound) if name in TIMES else units.share(bound)
    except ValueError as error:
        raise ValueError(f"require {text!r}: {name}: {error}") from None
