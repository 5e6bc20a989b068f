"""The bars of the controllers: the disturbance scenario, real step traces replayed, admission, drift, cost, faults.

python -m benchmarks.control
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import jax
import numpy as np
from scipy.stats import binomtest

from benchmarks.admission import admission
from benchmarks.drift import alarms
from benchmarks.law_cost import cost as law_cost
from benchmarks.table import Missing, Row, at_least, at_most, informs, run, shared_data
from headway.controllers import BalancedLaw, FeedforwardLaw, PILaw, TrackerLaw
from headway.controllers.controller import Controller
from headway.controllers.default import default_candidate
from headway.controllers.laws import STATE_SIZE, law_init, law_step
from headway.controllers.record import ControllerRecord
from headway.controllers.steploop import Disturbance, respond
from headway.engines.storm import storm as faults_storm
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.identification.rows import KEPT, judge
from headway.identification.structures.roof import fit_roof
from headway.identification.trace import Trace
from headway.models.identified import IdentifiedPlant
from headway.models.plant import Batch
from headway.models.roofline import RooflinePlant
from headway.models.signals import SIGNALS, Target

SEEDS, WARM, MOST_TOKENS = 12, 500, 4096.0
"""Runs of the scenario, steps before which nothing is counted, and its actuator's limit [tokens]."""
TRACES = ("qwen3-32b_tp1", "qwen3-32b_tp2", "qwen3-32b_tp4", "qwen3.6-35b-a3b_tp2", "qwen3.6-35b-a3b_tp4")
WINDOW = 500
LULL, AFTER_LULL, DRIFT, AFTER_DRIFT = 4000, 100, 16_000, 300
"""Period of the lulls and steps counted after each; step of the slowdown and steps counted after it."""


def _prototype() -> ModuleType:
    """The scenario, its own plant and its own laws, as they were first measured."""
    path = shared_data().parent / "prototypes" / "ctl.py"
    if not path.exists():
        raise Missing(f"{path} is not there")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    return importlib.import_module("ctl")


class Scenario:
    """Twelve runs of the disturbance, and what a law makes of them."""

    def __init__(self) -> None:
        """Draw the runs, and fit a plant to an excited recording of the scenario's own."""
        self.own = _prototype()
        self.runs = [self.own.scenario(seed) for seed in range(SEEDS)]
        # its memory side grows with n as well: that much cache stands for it, so that the true plant is ours
        self.per_request = self.own.A / self.own.DKV
        self.truth = RooflinePlant((0.0, 0.0, 0.0, 0.0, self.own.W, self.own.DKV, self.own.C, 0.0, self.own.P))
        self.fitted = self._fitted()

    def _fitted(self) -> RooflinePlant:
        rng, k = np.random.default_rng(99), 3000
        prefill, decode = rng.uniform(0, 700, k), rng.integers(10, 130, k).astype(float)
        cache = decode * rng.uniform(500, 2600, k)
        noise = np.exp(0.05 * rng.standard_normal(k))
        took = np.array([self.own.plant(p, n, kv, 1.0) for p, n, kv in zip(prefill, decode, cache, strict=True)]) * noise
        return fit_roof(Batch(decode, cache + self.per_request * decode, prefill, prefill**2 / 2, (prefill > 0).astype(float)), took)[0]

    def figures(self, steps: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
        """Shares of late steps [%] and prompt tokens per second, means over the runs.

        Args:
            steps: durations and prompt tokens of each run.

        Returns:
            By name.
        """
        rows = []
        for (took, tokens), (_, _, _, _, available) in zip(steps, self.runs, strict=True):
            late, busy = (took > self.own.D).astype(float), available >= MOST_TOKENS
            after = np.zeros(len(took), bool)
            for start in range(LULL, len(took), LULL):
                after[start : start + AFTER_LULL] = True
            counted = busy[WARM:]
            rows.append(
                {
                    "late": 100 * late[WARM:].mean(),
                    "worst": 100 * np.convolve(late[WARM:], np.ones(WINDOW) / WINDOW, "valid").max(),
                    "rate": tokens[WARM:][counted].sum() / took[WARM:][counted].sum(),
                    "lull": 100 * late[after].mean(),
                    "drift": 100 * late[DRIFT : DRIFT + AFTER_DRIFT].mean(),
                }
            )
        return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}

    def of(self, law: Controller, delay: int) -> dict[str, float]:
        """Our law on all runs.

        Args:
            law: any.
            delay: of the measurement [steps].

        Returns:
            As `figures`.
        """
        steps = []
        for decode, cache, drift, noise, available in self.runs:
            disturbance = Disturbance(decode, cache + self.per_request * decode, available, drift * noise)
            found = respond(law, self.truth, disturbance, self.own.D, delay=delay, most_tokens=MOST_TOKENS)
            steps.append((found.step_time_s, found.prefill_tokens))
        return self.figures(steps)

    def first_measured(self, delay: int) -> dict[str, float]:
        """The prototype's own PI with back-calculation at a margin of 25 %.

        Args:
            delay: of the measurement [steps].

        Returns:
            As `figures`.
        """
        theta, _, roof, _ = self.own.identify()
        out = [self.own.run(2, 0.25, 0.01, 0.15, 0.1, delay, *run, theta, roof, 1000)[:2] for run in self.runs]
        return self.figures(out)


def scenario() -> Iterator[Row]:
    """The table of the laws, after the scenario itself was reproduced."""
    s = Scenario()
    first = s.first_measured(2)
    yield at_most("reproduced: PI at 25 %, prompt tokens/s off 14,830", 100 * abs(first["rate"] / 14_830 - 1), 1.0, "%")
    yield at_most("reproduced: PI at 25 %, late steps off .12", abs(first["late"] - 0.12), 0.02, "%")
    for delay in (1, 2):
        found = s.of(TrackerLaw(s.fitted, most_tokens=MOST_TOKENS), delay)
        pi = s.of(PILaw(margin=0.25, most_tokens=MOST_TOKENS), delay)
        tag = f"tracker, late rate 1 %, delay {delay}"
        yield at_least(f"{tag}: late steps", found["late"], 0.7, "%")
        yield at_most(f"{tag}: late steps", found["late"], 1.3, "%")
        yield at_most(f"{tag}: worst {WINDOW} steps", found["worst"], 3.0, "%")
        yield at_most(f"{tag}: {AFTER_LULL} steps after a lull", found["lull"], 2.0, "%")
        yield at_most(f"{tag}: {AFTER_DRIFT} steps after the slowdown", found["drift"], 2.0, "%")
        yield at_least(f"{tag}: prompt tokens/s over PI at 25 %", 100 * (found["rate"] / pi["rate"] - 1), 22.0, "%")
        rare = s.of(TrackerLaw(s.fitted, late_rate=0.001, most_tokens=MOST_TOKENS), delay)
        yield at_least(f"tracker, late rate .1 %, delay {delay}: late steps", rare["late"], 0.05, "%")
        yield at_most(f"tracker, late rate .1 %, delay {delay}: late steps", rare["late"], 0.2, "%")
        others: dict[str, Controller] = {
            "PI, margin 25 %": PILaw(margin=0.25, most_tokens=MOST_TOKENS),
            "feedforward + trim, margin 25 %": FeedforwardLaw(s.fitted, margin=0.25, most_tokens=MOST_TOKENS),
            "up/down in balance, 1 %": BalancedLaw(most_tokens=MOST_TOKENS),
        }
        for name, law in others.items():
            yield informs(f"{name}, delay {delay}: late / worst / lull / slowdown / tokens/s", _line(s.of(law, delay)))


def _line(found: dict[str, float]) -> str:
    return f"{found['late']:.2f} / {found['worst']:.1f} / {found['lull']:.1f} / {found['drift']:.1f} % / {found['rate']:,.0f}"


def replay() -> Iterator[Row]:
    """The tracker on the scores of real steps: plants from the even blocks, all kept steps in the order they ran."""
    pooled: list[bool] = []
    for name in TRACES:
        trace = read_trace(shared_data("steps", "fpm_vllm0201_b300", f"{name}.fpm_detail.csv"))
        late, mixed = replayed(fit(trace, blocks="even"), trace)
        share = 100 * late.mean()
        yield at_least(f"{name}: late steps", share, 0.5, "%")
        yield at_most(f"{name}: late steps", share, 1.5, "%")
        yield informs(f"{name}: decode / {int(mixed.sum())} mixed", f"{100 * late[~mixed].mean():.2f} / {100 * late[mixed].mean():.2f} %")
        pooled += late[mixed].tolist()
    ends = binomtest(sum(pooled), len(pooled)).proportion_ci(0.95)
    yield at_most(f"{len(pooled)} mixed steps of all: lower end of the late rate", 100 * ends.low, 1.0, "%")
    yield at_least(f"{len(pooled)} mixed steps of all: upper end of the late rate", 100 * ends.high, 1.0, "%")


def replayed(plant: IdentifiedPlant, trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Which steps lie above the tracked quantile of their regime, the state being of the steps before.

    Args:
        plant: fitted.
        trace: measured steps, shape (k,).

    Returns:
        (late, mixed) of the kept steps, bool.
    """
    starts = {r: -np.log1p(-(0.15 if (margin := plant.margin[r]) is None else margin)) for r in ("decode", "mixed")}
    law = TrackerLaw(plant.plant, start_decode=float(starts["decode"]), start_mixed=float(starts["mixed"])).pack()
    state, signals = np.zeros(STATE_SIZE), np.zeros(SIGNALS)
    law_init(law, state)
    batch, took, late, mixed = trace.batch(), trace.step_time_s, [], []
    predicted = np.asarray(plant.plant.step_time_s(batch), float)
    for k in np.flatnonzero(judge(trace) == KEPT):
        regime = 2 if batch.prefill_tokens[k] > 0 else 1
        late.append(bool(np.log(took[k] / predicted[k]) - state[0] > state[regime]))
        mixed.append(regime == 2)
        n, kv, p, pairs, r = (float(column[k]) for column in batch)
        signals[:8] = took[k], p, max(n, 1e-9), 1.0, 0.0, kv, pairs, r  # a step without decodes teaches as well: it has a score
        law_step(law, state, signals, np.inf)
    return np.array(late), np.array(mixed)


def storm() -> Iterator[Row]:
    """A million steps of the runtime that ships, with every fault of the sensor injected at random."""
    found = faults_storm(_record(), 1_000_000, 1)
    yield at_most("fault storm, 1,000,000 steps: exceptions", float(found.raised), 0.0)
    yield at_most("fault storm: commands outside their limits", float(found.outside), 0.0)
    yield at_most("fault storm: rises on bad data", float(found.risen), 0.0)
    yield informs(
        "fault storm: faults injected / told by the runtime", f"{sum(found.injected.values()):,} / {sum(found.faults.values()):,}"
    )


def cost() -> Iterator[Row]:
    """What the default law costs a step, on a plant whose steps bend."""
    yield from law_cost(_record())


def _record() -> ControllerRecord:
    """The default law on the mixture-of-experts plant, whose steps bend."""
    trace = read_trace(shared_data("steps", "fpm_vllm0201_b300", f"{TRACES[-1]}.fpm_detail.csv"))
    identified = fit(trace, limits={"kv_tokens": 200_000})
    targets = (Target(1.0, 0.025),)
    candidate = default_candidate(identified, targets, identified.limits)
    file = {"file": "plant.json", "sha256": None}
    return ControllerRecord(candidate, targets, identified.limits, identified.plant, identified.hull, file, {"spec": "made"}, {})


def drift() -> Iterator[Row]:
    """The drift alarm in the scenario's closed loop."""
    yield from alarms(Scenario())


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    parts = {"scenario": scenario, "replay": replay, "admission": admission, "drift": drift, "cost": cost, "storm": storm}
    sys.exit(run("control", parts))
