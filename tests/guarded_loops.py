"""Records and readings that the tests of the runtime, its guard and its exports share: every law, every structure."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from headway.controllers.balanced import BalancedLaw
from headway.controllers.controller import Controller
from headway.controllers.feedforward import FeedforwardLaw
from headway.controllers.guard import Guard
from headway.controllers.pi import PILaw
from headway.controllers.policy import Policy
from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import Candidate
from headway.controllers.static import StaticLaw
from headway.controllers.tracker import TrackerLaw
from headway.controllers.updown import UpDownLaw
from headway.engines.golden import guard_json
from headway.engines.runtime import READINGS, Runtime
from headway.models.concurrency import ConcurrencyPlant
from headway.models.curved import CurvedPlant
from headway.models.identified import Hull
from headway.models.plant import Batch, Plant
from headway.models.regimes import AffinePlant, RegimePlant
from headway.models.roofline import RooflinePlant
from headway.models.signals import Limits, Target

DECODE, MIXED = (0.006, 6e-5, 5e-9, 0.0, 0.0, 0.0), (0.007, 1e-4, 3e-9, 1.5e-5, 5e-10, 5e-4)
BENT = (0.0, 1e-9, 1e-6, 2e-3, 4e-6, 1e-3, 1e-6, 1e-9), (1e-8, 2e-9, 2e-6, 2e-3, 4e-6, 2e-3, 1e-6, 1e-9)
PLANTS: dict[str, Plant] = {
    "affine": AffinePlant(MIXED),
    "regimes": RegimePlant(DECODE, MIXED),
    "curved": CurvedPlant(DECODE, MIXED, *BENT, (64.0, 3.0, 40.0, 64.0, 512.0, 16.0, 5e4)),
    "roofline": RooflinePlant((1e-3, 1.5e-3, 1e-5, 2e-4, 5e-3, 5e-9, 2e-5, 5e-10, 4.0)),
    "concurrency": ConcurrencyPlant((6e-3, 1e-4, 5e-4)),
}
"""One plant of each structure; of the curved one every term acts."""
HULL = Hull(64.0, 200_000.0, 8192.0, 9e7)
LIMITS = Limits(kv_tokens=400_000, max_seqs=64)
TARGETS = (Target(1.0, 0.025, 0.002, name="chat"), Target(10.0, 0.05, name="batch"))
BUDGET_S = 0.023
OPEN = Guard(late_steps=50.0, over_steps=1e12, most_s=1e12)
"""A guard that lets every sound reading through, so that the law behind it can be seen alone."""


def laws(plant: Plant) -> dict[str, Controller]:
    """Every law, and those that command in quanta once more with some."""
    return {
        "static": StaticLaw(2048.0),
        "updown": UpDownLaw(),
        "pi": PILaw(slope_s_per_token=2e-5),
        "balanced": BalancedLaw(),
        "feedforward": FeedforwardLaw(plant),
        "tracker": TrackerLaw(plant),
        "pi in quanta": PILaw(
            0.3, kp=0.4, ki=0.02, kt=0.1, slope_s_per_token=2e-5, slew_tokens=90.5, most_tokens=700.0, quantum_tokens=32.0
        ),
        "feedforward in quanta": FeedforwardLaw(plant, quantum_tokens=48.0),
        "tracker in quanta": TrackerLaw(plant, quantum_tokens=64.7, margin=0.1),
        "tracker with a floor": TrackerLaw(plant, quantum_tokens=48.0, most_tokens=4096.0, least_tokens=130.5),
    }


PAIRS = [(law, name) for name in PLANTS for law in laws(PLANTS[name]) if name == "curved" or law.startswith(("feedforward", "tracker"))]
"""Names of law and structure: laws that do not predict need one structure only."""


def record(law: Controller, plant: Plant = PLANTS["regimes"], policy: Policy = Policy(), **changed: Any) -> ControllerRecord:  # noqa: B008
    """A controller that was tuned and certified, over the hull above."""
    tuning = {"outcome": "better", "certificate": {"verdict": "certified", "reason": "in the test", "numbers": {}}}
    whole = ControllerRecord(Candidate(law, policy), TARGETS, LIMITS, plant, HULL, {"file": "plant.json"}, {"spec": "poisson"}, tuning)
    return dataclasses.replace(whole, **changed)


def gains(law: Controller, plant: Plant = PLANTS["regimes"], guard: Guard | None = None) -> dict[str, Any]:
    """What a runtime is made from; no guard leaves it its own numbers."""
    data = record(law, plant).to_json()
    return data if guard is None else {**data, "guard": guard_json(guard)}


@functools.cache
def readings(plant_name: str, steps: int, seed: int) -> np.ndarray:
    """Steps of an engine that nobody commands: idle ones, slow spells, chunks over long contexts; shape (steps, 10)."""
    plant, rng, rows = PLANTS[plant_name], np.random.default_rng(seed), np.zeros((steps, 10))
    ready = np.where(rng.random(steps) < 0.03, 0, rng.integers(1, 65, steps)).astype(float)
    last, slow = (np.nan, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), 1.0
    for k, n in enumerate(ready):
        slow = float(rng.choice((0.4, 1.0, 1.3, 2.0, 3.0))) if rng.random() < 0.01 else slow
        kv, context = float(n * rng.integers(100, 3000)), float(rng.integers(0, 4000) * (rng.random() < 0.5))
        rows[k] = (*last[:4], n, *last[4:], kv, context)
        p = float(rng.integers(0, 1500) * (rng.random() < 0.7))
        r = float(rng.integers(1, 4)) if p else 0.0
        pairs = p * (context + p / 2)
        y = float(plant.step_time_s(Batch(n, kv, p, pairs, r))) * slow * float(np.exp(rng.normal(0, 0.08)))
        last = (y, p, n, float(rng.random() < 0.7), kv, pairs, r)
    return rows


def broken(rows: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The same with faults in it, and with step numbers in every second thousand; shapes (steps, 10) and (steps, 2)."""
    rng, rows = np.random.default_rng(seed), rows.copy()
    stamps, step, turn = np.full((len(rows), 2), np.nan), 0.0, [False, False]
    for k in range(len(rows)):
        if k // 500 % 5 == 4:
            regime = int(rows[k, 1] > 0)
            turn[regime] = not turn[regime]
            rows[k, 0] *= 2.0 if turn[regime] else 1.0
        if rng.random() < 0.03:
            rows[k, rng.integers(10)] = rng.choice((np.nan, -1.0, 0.0, np.inf, 1e9, -np.inf))
        if k // 700 % 4 == 3 and k % 700 < 120:
            rows[k, 0] = np.nan
        if rng.random() < 0.01 and k:
            rows[k] = rows[k - 1]
        if k // 1000 % 2:
            step += 1.0 if rng.random() > 0.03 else float(rng.choice((0.0, 2.0, -3.0)))
            stamps[k] = step, np.nan if k // 250 % 2 else step * 0.02
    return rows, stamps


class Loop:
    """A runtime on a noise-free engine that does as it is told; `step` returns the command for the next one."""

    def __init__(
        self, law: Any, guard: Guard | None = None, plant: Plant = PLANTS["regimes"], *, watched: Any = None, **stamps: Any
    ) -> None:
        self.run, self.plant, self.stamps = Runtime(watched or gains(law, plant, guard)), plant, stamps
        self.k, self.n, self.kv_each = 0, 20.0, 1000.0
        self.reading: dict[str, Any] = dict.fromkeys(READINGS, 0.0) | {"step_time_s": None}
        self.budget = self.ask()

    def ask(self, **changed: Any) -> int:
        self.reading |= {"ready_requests": self.n, "ready_kv_tokens": self.n * self.kv_each + self.k}
        given = {**self.reading, **{name: stamp + self.k for name, stamp in self.stamps.items()}, **changed}
        self.budget = self.run.update(**given)
        return self.budget

    def execute(self, slow: float = 1.0, tokens: float | None = None) -> None:
        """The engine runs the command, or `tokens` of prompts."""
        p = max(self.budget - self.n, 0.0) if tokens is None else tokens
        kv, pairs = self.reading["ready_kv_tokens"], p * p / 2
        y = slow * float(self.plant.step_time_s(Batch(self.n, kv, p, pairs, float(p > 0))))
        sums = {"decode_kv_tokens": kv, "prefill_pairs": pairs, "prefill_requests": float(p > 0)}
        self.reading |= {"step_time_s": y, "prefill_tokens": p, "decode_requests": self.n, "binding": True, **sums}
        self.k += 1

    def step(self, slow: float = 1.0, tokens: float | None = None, **changed: Any) -> int:
        self.execute(slow, tokens)
        return self.ask(**changed)

    def frozen(self) -> tuple[Any, ...]:
        return tuple(self.run.state), self.run.rate_tps
