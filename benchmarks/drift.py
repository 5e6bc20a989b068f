"""Drift: how soon a slowdown is seen, how often one is seen that is not there, and what the online correction is worth.

python -m benchmarks.drift
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
from scipy.signal import lfilter

from benchmarks.table import Row, at_least, at_most, informs, run, shared_data
from headway.controllers import TrackerLaw
from headway.controllers.correction import PlantCorrection
from headway.controllers.drift import RAISED, DriftMonitor
from headway.controllers.paired import Paired, pair
from headway.controllers.steploop import Disturbance, respond
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.identification.rows import KEPT, judge, select
from headway.models.plant import Batch
from headway.models.regimes import AffinePlant

if TYPE_CHECKING:
    from benchmarks.control import Scenario

SEEDS, DELAY = 60, 2
"""Runs of the scenario, and steps from a command to the first measurement that shows it."""
SLOWER, FROM, UNTIL = 1.12, 16_000, 20_000
"""The slowdown, and the steps between which it lasts."""
WITHIN = 100
"""Steps in which it must be seen."""
LIMITS = (10.0, 12.0, 13.0, 14.0, 16.0)
"""Limits of the CUSUM, for the trade between the two."""
NOISES = (
    (0.04, 0.0, 0.0),
    (0.01, 0.01, 0.95),
    (0.0, 0.05, 0.7),
    (0.02, 0.05, 0.95),
    (0.02, 0.03, 0.98),
    (0.02, 0.03, 0.995),
    (0.08, 0.05, 0.95),
)
"""Standard deviations of a white and of a slow part, and what the latter keeps from step to step."""
TRACES = ("qwen3-32b_tp1", "qwen3-32b_tp2", "qwen3-32b_tp4", "qwen3.6-35b-a3b_tp2", "qwen3.6-35b-a3b_tp4")


class Steps(NamedTuple):
    """One run of the scenario under the default law.

    Args:
        batch: of each step, arrays of shape (k,).
        step_time_s: of each step, shape (k,) [s].
    """

    batch: Batch
    step_time_s: np.ndarray


def drive(scenario: Scenario, seed: int, *, slower: float) -> Steps:
    """The scenario's own loads and noise, with a slowdown that ends, or none.

    Args:
        scenario: with its true and its fitted plant.
        seed: of the run.
        slower: factor on the step time while the slowdown lasts; 1 for none.
    """
    decode, cache, _, noise, available = scenario.own.scenario(seed)
    factor = np.ones(len(noise))
    factor[FROM:UNTIL] = slower
    cache = cache + scenario.per_request * decode
    law = TrackerLaw(scenario.fitted, most_tokens=4096.0)
    found = respond(
        law, scenario.truth, Disturbance(decode, cache, available, factor * noise), scenario.own.D, delay=DELAY, most_tokens=4096.0
    )
    p = found.prefill_tokens
    return Steps(Batch(decode, cache, p, 0.5 * p * p, (p > 0).astype(float)), found.step_time_s)


class Watch(NamedTuple):
    """What monitors of one limit did on all runs.

    Args:
        false: alarms in each run without a slowdown.
        delay: steps from the slowdown to the alarm in each run with one; the run's end where none came.
        clear: steps from its end to the end of the alarm.
    """

    false: np.ndarray
    delay: np.ndarray
    clear: np.ndarray


def watched(scenario: Scenario, monitor: DriftMonitor, steps: list[tuple[Steps, Steps]]) -> Watch:
    """A monitor on runs without and with the slowdown.

    Args:
        scenario: with the plant that it predicts with.
        monitor: to be tried.
        steps: of each seed, without and with.
    """
    rows = []
    for quiet, slowed in steps:
        alone = pair(scenario.fitted, *quiet, monitor=monitor, delay=DELAY)
        both = pair(scenario.fitted, *slowed, monitor=monitor, delay=DELAY)
        seen, gone = both.alarm[FROM:] > 0, both.alarm[UNTIL:] <= 0
        rows.append((alone.drift[RAISED], np.argmax(seen) if seen.any() else len(seen), np.argmax(gone) if gone.any() else len(gone)))
    return Watch(*np.array(rows, float).T)


def alarms(scenario: Scenario) -> Iterator[Row]:
    """False alarms against steps to the alarm, by the limit of the CUSUM; then the bars at the limit that is shipped.

    Args:
        scenario: of `benchmarks.control`.
    """
    steps = [(drive(scenario, seed, slower=1.0), drive(scenario, seed, slower=SLOWER)) for seed in range(SEEDS)]
    for limit in LIMITS:
        found = watched(scenario, DriftMonitor(limit=limit), steps)
        text = (
            f"{found.false.mean():.2f} (most {found.false.max():.0f}) / {found.delay.mean():.0f}, {np.quantile(found.delay, 0.9):.0f}, "
            f"{found.delay.max():.0f} / {found.clear.mean():.0f}, {found.clear.max():.0f}"
        )
        yield informs(f"limit {limit:g}: false alarms per 24,000 steps / steps to the alarm, mean, 90 %, most / to clear, mean, most", text)
    found = watched(scenario, DriftMonitor(), steps)
    yield at_most(f"shipped: false alarms per 24,000 steps, {SEEDS} seeds", float(found.false.mean()), 1.0)
    yield at_least(f"shipped: slowdowns of 12 % seen within {WITHIN} steps", 100 * float((found.delay <= WITHIN).mean()), 98.0, "%")
    yield at_most("shipped: steps from its end until the alarm is gone, most", float(found.clear.max()), 200.0, "steps")


def other_noise() -> Iterator[Row]:
    """The shipped monitor against noise that is not the scenario's: a white part, and a slow part with its correlation."""
    for white, slow, correlation in NOISES:
        found = []
        for seed in range(24):
            rng = np.random.default_rng([seed, 0xD1F7])
            part = lfilter([slow * np.sqrt(1 - correlation**2)], [1.0, -correlation], rng.standard_normal(UNTIL + 4000))
            residual = part + white * rng.standard_normal(len(part))
            shifted = residual + np.log(SLOWER) * ((np.arange(len(part)) >= FROM) & (np.arange(len(part)) < UNTIL))
            alone, both = (_watch(r) for r in (residual, shifted))
            seen = both.alarm[FROM:UNTIL] > 0
            found.append((alone.drift[RAISED], np.argmax(seen) if seen.any() else len(seen)))
        false, delay = np.array(found, float).T
        text = f"{false.mean():.2f} (most {false.max():.0f}) / {delay.mean():.0f}, {delay.max():.0f}"
        yield informs(
            f"noise {white:.1%} white, {slow:.1%} that keeps {correlation:g}: false alarms / steps to the alarm, mean, most", text
        )


def _watch(residual: np.ndarray) -> Paired:
    one = np.ones(len(residual))
    return pair(AffinePlant((0.02, 0.0, 0.0, 0.0, 0.0, 0.0)), Batch(one, one, 0 * one, 0 * one, 0 * one), 0.02 * np.exp(residual))


def slowdown(scenario: Scenario) -> Iterator[Row]:
    """Error of the next step's prediction with and without the correction, before, during and after the slowdown.

    Args:
        scenario: of `benchmarks.control`.
    """
    parts = {
        "before": slice(1000, FROM),
        "first 100 steps": slice(FROM, FROM + 100),
        "rest of it": slice(FROM + 100, UNTIL),
        "after": slice(UNTIL + 100, None),
    }
    runs = [pair(scenario.fitted, *drive(scenario, seed, slower=SLOWER), delay=DELAY) for seed in range(12)]
    for name, rows in parts.items():
        before, after = (100 * float(np.mean([_error(r, which)[rows].mean() for r in runs])) for which in ("fitted_s", "corrected_s"))
        yield informs(f"12 % slowdown, {name}: MAPE of the next step, fitted / corrected", f"{before:.2f} / {after:.2f} %")


def streamed(name: str) -> tuple[Paired, np.ndarray]:
    """A measured trace: fitted to its even blocks, its odd ones run through as a stream.

    Args:
        name: of the trace.

    Returns:
        The pairs of the kept steps of the odd blocks, and which of them held prefill.
    """
    trace = read_trace(shared_data("steps", "fpm_vllm0201_b300", f"{name}.fpm_detail.csv"))
    found = fit(trace, blocks="even")
    rows = select(trace, "odd", None) & (judge(trace) == KEPT)
    batch = Batch(*(np.asarray(column, float)[rows] for column in trace.batch()))
    paired = pair(found.plant, batch, trace.step_time_s[rows], hull=found.hull, correction=PlantCorrection.of(found))
    return paired, batch.prefill_tokens > 0


def real() -> Iterator[Row]:
    """Measured traces: the next step from the fit alone, and from the fit corrected by the steps before."""
    for name in TRACES:
        paired, mixed = streamed(name)
        before, after = (100 * _error(paired, which) for which in ("fitted_s", "corrected_s"))
        yield at_most(
            f"{name}: MAPE of the next step, corrected, against {before.mean():.2f} % of the fit",
            float(after.mean()),
            float(before.mean()),
            "%",
        )
        text = f"{before[~mixed].mean():.2f} -> {after[~mixed].mean():.2f} / {before[mixed].mean():.2f} -> {after[mixed].mean():.2f} %"
        yield informs(f"{name}: {int((~mixed).sum())} decode / {int(mixed.sum())} mixed steps", text)
        yield informs(
            f"{name}: steps outside the hull / alarms and the steps they lasted", f"{int((~paired.inside).sum())} / {_spells(paired)}"
        )


def _error(paired: Paired, which: str) -> np.ndarray:
    return np.abs(getattr(paired, which) / paired.step_time_s - 1)


def _spells(paired: Paired) -> str:
    return ", ".join(f"{'slower' if way > 0 else 'faster'} {end - start}" for start, end, way in paired.alarms) or "none"


def _scenario() -> Scenario:
    from benchmarks.control import Scenario

    return Scenario()


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    sys.exit(
        run("drift", {"alarms": lambda: alarms(_scenario()), "noise": other_noise, "slowdown": lambda: slowdown(_scenario()), "real": real})
    )
