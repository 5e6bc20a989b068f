"""Numbers of a gains file, each refused by name where it is none, and what follows from them before the first step."""

from __future__ import annotations

import math
from typing import Any

from headway.engines.runtime_plants import PlantTwin


def finite(value: Any, name: str, low: float = -math.inf, high: float = math.inf) -> float:
    """A number within a range.

    Args:
        value: as read.
        name: for the message.
        low: least.
        high: greatest.

    Returns:
        The number.

    Raises:
        ValueError: no number, not finite or out of range.
    """
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not (math.isfinite(found) and low <= found <= high):
        raise ValueError(f"{name} must be a number in [{low:g}, {high:g}], got {value!r}")
    return found


def number(rows: dict[str, Any], name: str) -> float:
    """A number by name, within the range that the file itself states for it.

    Args:
        rows: by name, each with its `value`, and `low` and `high` where it has a range.
        name: wanted.

    Returns:
        The number.
    """
    row = rows[name]
    return finite(row["value"], name, row.get("low", -math.inf), row.get("high", math.inf))


def reading(value: Any) -> float:
    """Whatever an engine hands over, as a number.

    Args:
        value: anything.

    Returns:
        The number; NaN where it is none.
    """
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def initial_rate_tps(data: dict[str, Any], plant: PlantTwin | None, setpoint_s: float, max_tokens: float) -> float:
    """Prompt tokens per second of the largest prefill-only step within the setpoint: assumed until one was measured.

    Args:
        data: content of the gains file; a rate that it states counts before the plant's.
        plant: its plant, if this runtime knows the structure.
        setpoint_s: duration of a step that the law aims at [s].
        max_tokens: most tokens in a step [tokens].

    Returns:
        Rate [tokens/s].

    Raises:
        ValueError: neither a rate nor a plant.
    """
    if data.get("prefill_rate_tps") is not None:
        return number(data, "prefill_rate_tps")
    if plant is None:
        raise ValueError(f"unknown plant structure {data['plant']['structure']!r}, and the gains state no prefill_rate_tps")
    fits, fastest, span = 0.0, 0.0, math.log10(max_tokens) / 399.0
    for k in range(400):
        p = float(round(10.0 ** (span * k)))
        took = plant.step_time(0.0, 0.0, p, p * p / 2.0, 1.0)
        fastest = max(fastest, p / took) if took > 0.0 else fastest
        if took <= setpoint_s:
            fits = p
    return fits / setpoint_s if fits else fastest
