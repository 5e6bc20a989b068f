"""A storm of faults over the runtime: every fault of sensor and actuator, at random, against what must hold whatever comes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from headway.controllers.record import ControllerRecord
from headway.engines.export import gains_json
from headway.engines.runtime import Runtime, log
from headway.engines.runtime_gains import number
from headway.engines.runtime_plants import read_plant

FAULT_SHARE, SPELL_SHARE, SPELL_STEPS = 0.15, 0.002, 400
"""Share of single steps with a fault, share of steps at which a spell of one kind begins, and the longest spell [steps]."""
RUBBISH = (None, math.nan, math.inf, -math.inf, -1.0, -1e300, 1e300, 0.0, "", "late", [], {}, b"7", True)
"""What stands in for a reading."""


class Storm(NamedTuple):
    """What came of a storm.

    Args:
        steps: updates.
        raised: exceptions.
        outside: commands that were no whole number within the engine's limit.
        risen: commands after a bad reading that were above the last one and above what the decodes need.
        faults: bad readings that the runtime counted, by kind, and its reversions to the fallback.
        injected: faults put in, by name.
    """

    steps: int
    raised: int
    outside: int
    risen: int
    faults: dict[str, int]
    injected: dict[str, int]


class _Engine:
    """A made-up engine on the plant of a gains file: it runs what it is told, or not."""

    def __init__(self, gains: dict[str, Any], rng: random.Random) -> None:
        self.plant, self.rng = read_plant(gains["plant"], number), rng
        self.most = max(2, int(min(gains["hull"]["decode_requests"], gains["engine"]["max_seqs"])))
        self.kv_each = max(gains["hull"]["decode_kv_tokens"] / self.most, 1.0)
        self.n, self.step, self.clock_s, self.slow = 1, 0, 0.0, 1.0
        self.budget_tokens, self.context = 0.0, 0.0
        self.last: dict[str, Any] = {}

    def compose(self) -> dict[str, float]:
        """Who wants to decode next."""
        self.n = 0 if self.rng.random() < 0.02 else min(max(self.n + self.rng.randint(-3, 3), 1), self.most)
        self.context = float(self.rng.randint(0, 4000)) if self.rng.random() < 0.3 else 0.0
        if self.rng.random() < 0.002:
            self.slow = self.rng.choice((1.0, 1.0, 1.12, 1.5, 4.0))
        kv = float(round(self.n * self.kv_each * self.rng.uniform(0.3, 1.0)))
        return {"ready_requests": float(self.n), "ready_kv_tokens": max(kv, float(self.n)), "context_tokens": self.context}

    def execute(self, ready: dict[str, float], budget: int, *, obeys: bool) -> dict[str, Any]:
        """Run a step and read it."""
        assert self.plant is not None
        n, waiting = float(min(self.n, budget)), self.rng.random() < 0.8
        room = max(0, budget - self.n) if obeys else self.rng.randint(0, 16_384)
        p = float(room if waiting else self.rng.randint(0, room) * (self.rng.random() < 0.5))
        kv, pairs = ready["ready_kv_tokens"] * (n / self.n if self.n else 0.0), p * (self.context + p / 2.0)
        y = self.plant.step_time(n, kv, p, pairs, float(p > 0.0)) * self.slow * math.exp(self.rng.gauss(0.0, 0.1)) + 1e-9
        self.step, self.clock_s = self.step + 1, self.clock_s + y
        step = {"step_time_s": y, "prefill_tokens": p, "decode_requests": n, "binding": waiting, "decode_kv_tokens": kv}
        return {**step, "prefill_pairs": pairs, "prefill_requests": float(p > 0.0), "step_number": self.step, "clock_s": self.clock_s}


def _missing(reading: dict[str, Any], rng: random.Random, _last: dict[str, Any]) -> None:
    for name in rng.sample([*reading], rng.randint(1, 3)):
        reading[name] = rng.choice(RUBBISH)


def _outage(reading: dict[str, Any], rng: random.Random, _last: dict[str, Any]) -> None:
    value = rng.choice((None, math.nan, 0.0))
    reading.update(dict.fromkeys(reading, value))


def _empty(reading: dict[str, Any], _rng: random.Random, _last: dict[str, Any]) -> None:
    reading.update(step_time_s=0.0, prefill_tokens=0, decode_requests=0, decode_kv_tokens=0, prefill_pairs=0, prefill_requests=0)


def _negative(reading: dict[str, Any], rng: random.Random, _last: dict[str, Any]) -> None:
    name = rng.choice([*reading])
    reading[name] = -abs(reading[name]) - 1.0


def _stale(reading: dict[str, Any], _rng: random.Random, last: dict[str, Any]) -> None:
    reading.update(last)


def _clock(reading: dict[str, Any], rng: random.Random, _last: dict[str, Any]) -> None:
    factor = rng.choice((1e-6, 1e3, 1e6))
    reading.update(step_time_s=reading["step_time_s"] * factor, clock_s=reading["clock_s"] - rng.choice((0.0, 3600.0)))


def _skipped(reading: dict[str, Any], rng: random.Random, _last: dict[str, Any]) -> None:
    reading["step_number"] += rng.randint(1, 50)


def _sums(reading: dict[str, Any], _rng: random.Random, _last: dict[str, Any]) -> None:
    for name in ("decode_kv_tokens", "prefill_pairs", "prefill_requests", "ready_kv_tokens"):
        reading[name] = 0.0


class _Double:
    """Two loops in one reading, every other time in each regime."""

    def __init__(self) -> None:
        self.turn = [False, False]

    def __call__(self, reading: dict[str, Any], _rng: random.Random, _last: dict[str, Any]) -> None:
        regime = int(reading["prefill_tokens"] > 0)
        self.turn[regime] = not self.turn[regime]
        reading["step_time_s"] *= 2.0 if self.turn[regime] else 1.0


def _unstamped(reading: dict[str, Any], _rng: random.Random, _last: dict[str, Any]) -> None:
    reading.update(step_number=None, clock_s=None)


FAULTS: dict[str, Callable[[dict[str, Any], random.Random, dict[str, Any]], None]] = {
    "missing": _missing,
    "outage": _outage,
    "empty": _empty,
    "negative": _negative,
    "stale": _stale,
    "clock": _clock,
    "skipped": _skipped,
    "sums": _sums,
    "unstamped": _unstamped,
}
"""Faults of the sensor by name: what each does to a reading. Besides, "double" doubles every other step time, and under
"disobeyed", the actuator's, the engine runs what it likes."""


def storm(record: ControllerRecord, steps: int, seed: int = 0) -> Storm:
    """Run a controller against a made-up engine whose sensor and actuator fail in every way, alone and in long spells.

    Args:
        record: the controller.
        steps: updates.
        seed: of everything.

    Returns:
        What came of it; `raised`, `outside` and `risen` must be 0.
    """
    rng, gains = random.Random(seed), gains_json(record, {"verdict": "measured", "reason": "storm", "numbers": {}})
    run, engine = Runtime(gains), _Engine(gains, rng)
    faults = {**FAULTS, "double": _Double()}
    injected = dict.fromkeys((*faults, "disobeyed"), 0)
    raised = outside = risen = 0
    held, spell, left = run.max_tokens, "", 0
    reading: dict[str, Any] = {"step_time_s": None, "prefill_tokens": 0, "decode_requests": 0, "binding": False}
    last: dict[str, Any] = {}
    silent, log.disabled = log.disabled, True
    try:
        for _ in range(steps):
            ready = engine.compose()
            given = {**reading, **ready}
            left -= 1
            if left < 0 and rng.random() < SPELL_SHARE:
                spell, left = rng.choice([*injected]), rng.randint(2, SPELL_STEPS)
            name = spell if left > 0 else rng.choice([*faults]) if rng.random() < FAULT_SHARE else ""
            if name in faults and len(given) == 12:
                faults[name](given, rng, last)
                injected[name] += 1
            before = run.faults
            try:
                budget = run.update(**given)
            except Exception:  # noqa: BLE001  # what is counted here is that there is none
                raised, budget = raised + 1, 0
            outside += not (isinstance(budget, int) and 0 <= budget <= run.max_tokens)
            if run.faults > before:
                risen += budget > max(held, min(run.guard.ready, record.limits.max_seqs, run.max_tokens))
            held, last = budget, given
            injected["disobeyed"] += name == "disobeyed"
            reading = engine.execute(ready, budget, obeys=name != "disobeyed")
    finally:
        log.disabled = silent
    return Storm(steps, raised, outside, risen, run.counts, injected)
