"""A controller as C99: one header of constants and a fixed body, and the program that replays the golden steps through it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path

import headway
from headway.controllers.guard import Guard
from headway.controllers.record import ControllerRecord
from headway.engines.runtime_laws import HOLDS, LAWS, least_tokens, start_state
from headway.models.steptime import KIND

ASSETS = Path(__file__).parent / "assets"
STATE = 4
"""Numbers of state that any law keeps."""


def header(record: ControllerRecord, guard: Guard, content_sha256: str, said: str) -> str:
    """The law, its plant and its guard as a header: constants in hexadecimal, so that no digit is lost, and the body.

    Args:
        record: the controller.
        guard: its guard.
        content_sha256: hash of the controller.
        said: its certificate in one line.

    Returns:
        C99 source of headway_law.h.
    """
    law, limits, hull = record.candidate.law, record.limits, record.hull
    gains = [float(law.gains()[name].value) for name in LAWS[law.law]]
    holds = law.law in HOLDS
    state = start_state(law.law, tuple(gains))
    numbers = dataclasses.asdict(guard)
    window = int(numbers.pop("window_steps"))
    numbers["fallback_tokens"] = numbers["fallback_tokens"] or math.inf
    constants = {
        "BUDGET_S": min(t.budget_s for t in record.targets),
        "MOST_TOKENS": gains[-2] if holds else gains[-1],
        "QUANTUM_TOKENS": gains[-1] if holds else 1.0,
        "LEAST_TOKENS": least_tokens(law.law, tuple(gains)),
        "MAX_TOKENS": limits.max_tokens,
        "MAX_SEQS": limits.max_seqs,
        "HULL_REQUESTS": max(hull.decode_requests, 1.0),
        "HULL_KV_TOKENS": hull.decode_kv_tokens,
        **{name.upper(): value for name, value in numbers.items()},
    }
    plant = record.plant.pack()
    lines = [
        f"/* Written by headway {headway.__version__} for the controller with content {content_sha256}; do not edit. */",
        f"/* Law {law.law}, plant {record.plant.structure}; certificate: {said.replace('*/', '* /')} */",
        "#ifndef HEADWAY_LAW_H",
        "#define HEADWAY_LAW_H",
        f"#define HEADWAY_LAW {law.code}",
        f"#define HEADWAY_STRUCTURE {int(plant[KIND])}",
        f"#define HEADWAY_WINDOW_STEPS {window}",
        *(f"#define HEADWAY_{name} {_hex(value)}" for name, value in constants.items()),
        f"static const double HEADWAY_GAINS[{max(len(gains), 8)}] = {_row(gains)};",
        f"static const double HEADWAY_STATE[{STATE}] = {_row(state)};",
        f"static const double HEADWAY_PLANT[{len(plant)}] = {_row(plant)};",
        "",
    ]
    return "\n".join(lines) + (ASSETS / "law.h").read_text(encoding="utf-8") + "#endif\n"


def checker() -> str:
    """The program that replays golden.csv through the header.

    Returns:
        C99 source of check.c.
    """
    return (ASSETS / "check.c").read_text(encoding="utf-8")


def _hex(value: float) -> str:
    return "INFINITY" if math.isinf(value) else float(value).hex()


def _row(values: Iterable[float]) -> str:
    return "{" + ", ".join(_hex(float(x)) for x in values) + "}"
