"""Rungs of the ladder to a plant's structure, for people: which to show, and in what words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PLAIN = {
    "jump at a number of tokens": "a jump past {limit} tokens",
    "saturation in tokens": "saturation over {saturation} tokens",
    "time booked late on a neighbour": "time of the step before, taken out",
    "time booked early on a neighbour": "time of the step after, taken out",
}
"""Rungs whose name says more with their number, or in other words."""

LEAST = 5e-4
"""Fall of the error below which a rung changes nothing that one would see."""


def tells(rung: Mapping[str, Any]) -> bool:
    """Whether a rung was taken and made the error fall.

    Args:
        rung: of plant.json's ladder.

    Returns:
        False as well for a rung that came with another one and is worth nothing itself.
    """
    return bool(rung.get("taken")) and (rung.get("before") or 0.0) - (rung.get("after") or 0.0) >= LEAST


def rung_name(rung: Mapping[str, Any], coefficients: Mapping[str, Any]) -> str:
    """A rung in plain words.

    Args:
        rung: of plant.json's ladder.
        coefficients: of plant.json, by name.

    Returns:
        A phrase; with its number where it was taken and the number is known.
    """
    name = str(rung.get("name"))
    words = PLAIN.get(name, name) if rung.get("taken") else name
    numbers = {}
    for key, shape in (("limit", f"{rung.get('regime')}_limit"), ("saturation", "saturation")):
        value = (coefficients.get(f"shape.{shape}_tokens") or {}).get("value")
        if f"{{{key}}}" in words and not value:
            return name
        numbers[key] = f"{value or 0.0:,.0f}"
    return words.format(**numbers) if words != name else name
