"""How a coefficient reads best: which act at all, and the prefix that makes 1.5e-08 s/token the 15 ns/token of a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PREFIXES = ((1.0, ""), (1e3, "m"), (1e6, "µ"), (1e9, "n"), (1e12, "p"))
"""What to multiply a time in seconds by, and its unit's prefix."""


def readable(unit: str, size: float) -> tuple[float, str]:
    """The prefix with which a time reads best.

    Args:
        unit: "s", "s/token", ...; others stay as they are.
        size: in that unit.

    Returns:
        (what to multiply by, the unit with its prefix).

    Example:
        >>> readable("s/token", 1.46e-5), readable("s/token^2", 5e-10)
        ((1000000.0, 'µs/token'), (1000000000000.0, 'ps/token²'))
    """
    if unit != "s" and not unit.startswith("s/"):
        return 1.0, unit
    scale, prefix = next(((s, p) for s, p in PREFIXES if abs(size) * s >= 1), PREFIXES[-1])
    return scale, prefix + unit.replace("^2", "²")


def acts(coefficient: Mapping[str, Any]) -> bool:
    """Whether a term of a plant does anything: a structure with many terms lists those as well that it did not take.

    Args:
        coefficient: {"value", "ci95"} of plant.json.

    Returns:
        False for a value of zero whose interval is zero as well, or was never asked for.
    """
    ends = coefficient.get("ci95")
    return coefficient.get("value") != 0 or (isinstance(ends, list | tuple) and any(ends))


NEGLIGIBLE = 1e-6
"""Share of its interval's upper end below which a value is nothing: it does not choose the prefix."""


def scaled(coefficient: Mapping[str, Any]) -> tuple[float, tuple[float, float] | None, str]:
    """A coefficient with the prefix in which it reads best.

    Args:
        coefficient: {"value", "ci95", "unit"} of plant.json.

    Returns:
        (value, ends of its 95 % interval or None, unit).

    Example:
        >>> scaled({"value": 0.5, "ci95": [0.25, 1.0], "unit": "s"})
        (500.0, (250.0, 1000.0), 'ms')
    """
    value, ends = float(coefficient["value"]), coefficient.get("ci95")
    most = float(ends[1]) if ends else value
    if abs(value) < NEGLIGIBLE * most:
        value = 0.0
    scale, unit = readable(str(coefficient["unit"]), value or most)
    return scale * value, (scale * float(ends[0]), scale * float(ends[1])) if ends else None, unit
