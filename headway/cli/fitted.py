"""A fitted plant in words: how its structure was found, its coefficients, where a step's time goes."""

from __future__ import annotations

from typing import Any

from headway.cli.terminal import ms, percent, table
from headway.prefixes import acts, scaled
from headway.rungs import rung_name, tells


def structure_lines(data: dict[str, Any]) -> list[str]:
    """The structure of a plant, and what each rung that was taken is worth on steps left out.

    Args:
        data: content of plant.json.

    Returns:
        Lines.
    """
    rungs, shown = data.get("ladder") or [], []
    for rung in rungs:
        if tells(rung):
            change = f"{percent(rung['before'])} to {percent(rung['after'])}"
            shown.append((rung_name(rung, data["coefficients"]), rung["regime"], change))
    left = sum(not rung["taken"] for rung in rungs)
    lines = [f"plant      {data['structure']}" + (", error on steps left out:" if shown else "")]
    lines += table(shown, indent="             ") if shown else []
    return [*lines, *([f"             {left} {'more' if shown else 'others'} tried, none of them surely better"] if left else [])]


def coefficient_lines(coefficients: dict[str, Any]) -> list[str]:
    """Coefficients in units that people read; those that do not act in one line.

    Args:
        coefficients: of plant.json.

    Returns:
        Lines.
    """
    rows, still = [("coefficient", "value", "95 % interval", "unit")], []
    for name, c in coefficients.items():
        if acts(c):
            value, ends, unit = scaled(c)
            rows.append((name, _number(value, 4), f"[{_number(ends[0])}, {_number(ends[1])}]" if ends else "-", unit))
        elif c["ci95"] is not None:
            still.append(name)
    return [*table(rows), *([f"  at zero: {', '.join(still)}"] if still else [])]


def _number(value: float, digits: int = 3) -> str:
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def binding_lines(data: dict[str, Any]) -> list[str]:
    """Where the time of a step goes, and what that says of the machine.

    Args:
        data: content of plant.json.

    Returns:
        Lines.
    """
    lines, beside = [], ""
    for i, point in enumerate(data.get("binding") or []):
        shares = sorted(point["shares"].items(), key=lambda pair: -pair[1])
        parts = ", ".join(f"{name} {percent(share, 0)}" for name, share in shares if share >= 0.005)
        lines.append(f"{'' if i else 'binds':10} {point['point']}, {ms(point['step_time_s'])}: {parts}")
        beside = point["sentence"].partition(" (")[2].removesuffix(")")
    lines += [f"{'':10} {beside}"] if beside else []
    return [*lines, *(f"{'' if i else 'implies':10} {text}" for i, text in enumerate((data.get("implied") or {}).get("sentences") or []))]


def ends_text(ends: list[float] | None, digits: int = 1) -> str:
    """A 95 % interval of a share.

    Args:
        ends: [low, high]; None where it is not known.
        digits: after the point, in percent.

    Returns:
        " [low, high]" in percent; empty where it is not known.
    """
    if not ends or ends[0] is None:
        return ""
    return " [" + ", ".join(percent(x, digits).removesuffix(" %") for x in ends) + "]"
