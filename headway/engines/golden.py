"""Golden steps of an exported controller: a made-up engine under the law's reference form, for every port to replay."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from headway.controllers.guard import COUNTS, MEMORY, Guard, guard_for, guard_init, guard_step
from headway.controllers.laws import STATE_SIZE
from headway.controllers.record import ControllerRecord
from headway.controllers.scheduled import at_rest
from headway.engines.c99 import STATE
from headway.engines.runtime import READINGS, Runtime
from headway.engines.runtime_guard import NUMBERS
from headway.models.plant import Batch

GOLDEN_ROWS = 500
GOLDEN_SEED = 500
GOLDEN_COLUMNS = (*READINGS, "token_budget", *(f"state_{k}" for k in range(STATE)))
SLOW = 5.0
"""Factor on the step time in the golden steps' slow spells, of 25 steps in 250: enough to call the watchdog."""


F = TypeVar("F", bound=Callable[..., Any])


def _quietly(function: F) -> F:
    """The recorded steps hold faults on purpose: what the runtime would log of them is nobody's news."""

    @functools.wraps(function)
    def quiet(*arguments: Any, **named: Any) -> Any:
        log = logging.getLogger("headway_runtime")
        level = log.level
        log.setLevel(logging.CRITICAL + 1)
        try:
            return function(*arguments, **named)
        finally:
            log.setLevel(level)

    return quiet  # pyright: ignore[reportReturnType]  # the same signature, by functools.wraps


def guard_of(record: ControllerRecord) -> Guard:
    """The guard of a controller, with the best static setting that its tuning found as the fallback.

    Args:
        record: the controller.

    Returns:
        The guard.
    """
    best = (record.tuning.get("best_static") or {}).get("settings") or {}
    budget_s = min(t.budget_s for t in record.targets)
    return guard_for(record.candidate.law, record.plant, record.hull, budget_s, float(best.get("token_budget") or 0.0))


def guard_json(guard: Guard) -> dict[str, dict[str, Any]]:
    """A guard as gains.json holds it.

    Args:
        guard: the guard.

    Returns:
        Value and unit by name.
    """
    return {name: {"value": float(value), "unit": NUMBERS[name][1]} for name, value in dataclasses.asdict(guard).items()}


def golden(record: ControllerRecord, rows: int = GOLDEN_ROWS, seed: int = GOLDEN_SEED) -> list[tuple[str, ...]]:
    """Steps of a made-up engine: load that wanders over the hull, lulls, spikes, slow spells and a sensor that fails.

    Args:
        record: the controller.
        rows: number of steps.
        seed: of the load and the noise.

    Returns:
        One row per step in the order of GOLDEN_COLUMNS: step time and state in hexadecimal, the rest in decimal.
    """
    rng, law, hull, limits = np.random.default_rng(seed), at_rest(*record.candidate)[0], record.hull, record.limits
    packed, plant, guard = law.pack(), record.plant.pack(), guard_of(record).pack(record.limits, record.hull)
    memory, counts, state = np.zeros(MEMORY), np.zeros(COUNTS), np.zeros(STATE_SIZE)
    budget_s, stamps = min(t.budget_s for t in record.targets), np.full(2, np.nan)
    guard_init(guard, memory, counts, packed, state, plant, budget_s)
    most = max(2, min(int(hull.decode_requests), limits.max_seqs))
    last, n, found = (np.nan, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), 1, []
    for k in range(rows):
        n = 0 if k % 97 == 96 else int(np.clip(max(n, 1) + rng.integers(-3, 4), 1, most))
        kv = float(round(max(hull.decode_kv_tokens, most) * n / most * rng.uniform(0.5, 1.0))) if n else 0.0
        kv, context = max(kv, float(n)), float(rng.integers(0, 2000)) if rng.random() < 0.3 else 0.0
        step_time_s = np.nan if k % 167 >= 160 else last[0]
        row = (step_time_s, *last[1:4], float(n), *last[4:], kv, context)
        budget = int(guard_step(guard, memory, counts, packed, state, plant, np.array(row), stamps, budget_s))
        found.append((float(row[0]).hex(), *(f"{x:.17g}" for x in row[1:]), str(budget), *(float(x).hex() for x in state[:STATE])))
        waiting = rng.random() < 0.8
        decodes = float(min(n, budget))
        room = max(0, budget - n)
        p = float(room if waiting else int(rng.integers(0, max(1, room) + 1) * (rng.random() < 0.5)))
        batch = Batch(decodes, kv * decodes / n if n else 0.0, p, p * (context + p / 2), float(p > 0))
        y = float(record.plant.step_time_s(batch)) * (SLOW if 200 <= k % 250 < 225 else 1.0)
        last = (y * float(np.exp(rng.normal(0, 0.1))) + 1e-9, p, decodes, float(waiting), *(float(x) for x in (batch[1], *batch[3:])))
    return found


@_quietly
def check_golden(gains: dict[str, Any], rows: list[tuple[str, ...]]) -> None:
    """Read back what will be written, and replay it.

    Args:
        gains: content of gains.json.
        rows: as from `golden`.

    Raises:
        RuntimeError: the runtime does not act as the law does: a fault of Headway's.
    """
    shipped = Runtime.from_json(json.loads(json.dumps(gains)))
    size = len(READINGS)
    for k, row in enumerate(rows):
        budget = shipped.update(float.fromhex(row[0]), *map(float, row[1:size]))
        states = [float.fromhex(x) for x in row[size + 1 : size + 1 + len(shipped.state)]]
        if budget != int(row[size]) or not all(
            math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12) for a, b in zip(shipped.state, states, strict=True)
        ):
            raise RuntimeError(f"the runtime answers {budget} in golden row {k}, the law {row[size]}; please report this controller.json")
