"""A loop analysis in words: the verdict, the number that decides, and the margins behind it."""

from __future__ import annotations

from typing import Any

from headway.cli.terminal import percent, table, warning_lines


def analyse_lines(data: dict[str, Any]) -> list[str]:
    """A loop analysis.

    Args:
        data: as `headway analyse --json`.

    Returns:
        Lines.
    """
    delays = data["certificate"]["by_delay"]
    lines = [
        f"loop       {data['verdict']}, law {data['law']}, for a delay of {' and of '.join(delays)} step{'s' if list(delays) != ['1'] else ''}",
        f"{'decides' if data['verdict'] != 'measured' else 'found':10} {data['reasons'][0]}",
    ]
    if data["verdict"] == "measured":
        lines += table([MEASURED_HEADING, *(_measured(d, row["numbers"]) for d, row in delays.items())])
    elif all("gain_margin_db" in row["numbers"] for row in delays.values()):
        lines += table([DELAY_HEADING, *(_delay(d, row) for d, row in delays.items())])
        lines += table([POINT_HEADING, *(_point(p) for p in data["operating_points"])])
        lines += _stillness(data["certificate"]["numbers"])
    return [*lines, *warning_lines(data["notes"])]


DELAY_HEADING = ("delay", "", "gain margin", "phase", "disk", "response", "noise", "swings by", "in")
POINT_HEADING = ("decode requests", "KV tokens", "prefill tokens", "context", "us/token", "gain margin", "phase margin", "delay margin")
MEASURED_HEADING = ("delay", "swings by", "in", "predicted", "late", "late under noise")


def _figure(value: float | None, unit: str, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}{unit}"


def _delay(delay: str, row: dict[str, Any]) -> tuple[str, ...]:
    n = row["numbers"]
    return (
        f"{delay} steps" if delay != "1" else "1 step",
        row["verdict"],
        _figure(n["gain_margin_db"], " dB"),
        _figure(n["phase_margin_deg"], " deg", 0),
        _figure(n["disk_margin_db"], " dB"),
        _figure(n["response_steps"], " steps", 0),
        _figure(n["noise_gain"], "x", 2),
        f"{_figure(n['cycle_tokens'], '', 0)} of {_figure(n['cycle_allowed_tokens'], '', 0)} tokens",
        _figure(n["cycle_steps"], " steps", 0),
    )


def _point(p: dict[str, Any]) -> tuple[str, ...]:
    load = tuple(f"{p[name]:,.0f}" for name in ("decode_requests", "decode_kv_tokens", "prefill_tokens", "context_tokens"))
    return (
        *load,
        f"{p['slope_s_per_token'] * 1e6:.1f}",
        _figure(p["gain_margin_db"], " dB"),
        _figure(p["phase_margin_deg"], " deg"),
        _figure(p["delay_margin_steps"], " steps"),
    )


def _measured(delay: str, n: dict[str, Any]) -> tuple[str, ...]:
    predicted = "-"
    if n.get("predicted_cycle_tokens") is not None and n["cycle_tokens"]:
        predicted = f"{n['predicted_cycle_tokens']:,.0f} tokens in {_figure(n['predicted_cycle_steps'], ' steps')}"
    return (
        f"{delay} steps" if delay != "1" else "1 step",
        _figure(n["cycle_tokens"], " tokens", 0),
        _figure(n["cycle_steps"], " steps"),
        predicted,
        percent(n["late_rate"]),
        percent(n["noise_late_rate"]),
    )


def _stillness(n: dict[str, Any]) -> list[str]:
    """How still the command is under noise, and the sector of slopes that the circle criterion covers."""
    if n.get("noise_swing_tokens") is None:
        return []
    lines = [_under_noise(n)]
    if n.get("circle_margin_db") is not None:
        span = f"{n['gain_ratio_low']:.2f} to {n['gain_ratio_high']:.2f} times"
        lines.append(
            f"sector     slopes of {span} what the law assumes, moving at will: {n['circle_margin_db']:.1f} dB left (circle criterion)"
        )
    return lines


def _under_noise(n: dict[str, Any]) -> str:
    """How far and how often noise moves the budget, and the quantum that would hold it, where it is not still already."""
    if n["noise_swing_tokens"] < 0.5:
        return "noise      under +-10 % the budget does not move"
    moved = f"within {n['noise_swing_tokens']:,.0f} tokens, {n['noise_changes_per_50_steps']:.1f} times in 50 steps"
    return f"noise      under +-10 % the budget moves {moved}; a quantum of {_figure(n['still_quantum_tokens'], '', 0)} tokens would hold it still"
