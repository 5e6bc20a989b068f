"""The bars of tuning: how true the gradients are that it descends along.

python -m benchmarks.tuning

The gradient rows use the policy, the workload and the gap form of on-time of the prototypes, so that figures compare; the
truth are central differences of half a unit on the prototypes' exact engine, stored (A, B, C) or taken here.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from benchmarks.prototypes import HIGH, LOW, POINTS, SEEDS, UNIT, case_of, fluid_of, grid_of, truth_of
from benchmarks.races import race, wall_time
from benchmarks.schedules import schedule_gradient, schedule_race
from benchmarks.table import Row, at_least, at_most, informs, run, shared_data
from headway.controllers.exact_gradient import STEP
from headway.controllers.fluid.gate import cosine, fluid_gate, noise_ceiling
from headway.engines.vllm.machine import pin

STEPS = 16_000
"""Noise factors of a run at the random points: short chunks take up to 6,000 steps, and a truth that is cut off counts as lost what was
only not yet served."""
SIGNIFICANT = 3.0
"""Standard errors from 0 at which a component of the truth has a sign."""


def _signs(ours: np.ndarray, truth: np.ndarray) -> tuple[int, int]:
    """Signs that are right, and components whose sign is known: 3 standard errors from 0 and a tenth of the gradient."""
    mean, error = truth.mean(0), truth.std(0, ddof=1) / np.sqrt(len(truth))
    known = (abs(mean) > SIGNIFICANT * error) & (abs(mean) > 0.1 * np.linalg.norm(mean))
    return int((np.sign(ours) == np.sign(mean))[known].sum()), int(known.sum())


@contextmanager
def one_core() -> Iterator[None]:
    """Hold this process to one core meanwhile: threads that wait for each other on several would count as work."""
    here, before = [os.getpid()], tuple(os.sched_getaffinity(0))
    pin(here, before[:1])
    try:
        yield
    finally:
        pin(here, before)


def gradient() -> Iterator[Row]:
    """A, B and C against the stored truth, 15 random points of the box against differences taken here."""
    stored = np.load(shared_data().parent / "prototypes" / "euler" / "gradtruth.npz")
    cases = {rate: case_of(rate, 10_000) for rate in (10.0, 9.0, 11.0)}
    fluid = fluid_of(cases[10.0], grid_of(admission=False))
    for name, (point, rate) in POINTS.items():
        case, truth = cases[rate], stored[f"{name}:hard:0.5"]
        fluid(point, case.made)
        with one_core():
            began = time.process_time()
            values, slopes = fluid(point, case.made)
            took = 1e3 * (time.process_time() - began) / SEEDS
        ours, exact = slopes.mean(0) * UNIT, truth_of(case).values(point[None])[0]
        yield at_least(f"{name}: cosine to the stored truth, {SEEDS} seeds", cosine(ours, truth.mean(0)), 0.97)
        yield at_least(f"{name}: correlation of values over the seeds", float(np.corrcoef(values, exact)[0, 1]), 0.97)
        right, known = _signs(ours, truth)
        yield Row(f"{name}: significant signs right", f"{known} of {known}", f"{right} of {known}", right == known)
        yield at_most(f"{name}: CPU time per seed on one core, value and 6 derivatives", took, 120.0, "ms")
        yield informs(f"{name}: value fluid / exact", f"{values.mean():.4f} / {exact.mean():.4f}")
    yield from _random(fluid)


def _random(fluid: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Iterator[Row]:
    rng, angles, correlations, signs = np.random.default_rng(5), [], [], []
    for k in range(15):
        rate = (9.0, 10.5, 11.5)[k % 3]
        point = np.clip(LOW + rng.random(6) * (HIGH - LOW), LOW + 1.001 * STEP * UNIT, HIGH)
        case = case_of(rate, 20_000, steps=STEPS)
        exact, truth = truth_of(case).at(point)
        values, slopes = fluid(point, case.made)
        ours, truth = slopes.mean(0) * UNIT, truth * UNIT
        angles.append(cosine(ours, truth.mean(0)))
        correlations.append(float(np.corrcoef(values, exact)[0, 1]))
        right, known = _signs(ours, truth)
        signs.append((right, known))
        yield informs(
            f"random {k}, {rate:g}/s: cosine, its ceiling, correlation, value fluid / exact, signs",
            f"{angles[-1]:.3f}, {noise_ceiling(truth):.2f}, {correlations[-1]:.3f}, {values.mean():.3f} / {exact.mean():.3f}, {right}/{known}",
        )
    right, known = (sum(s[i] for s in signs) for i in (0, 1))
    yield at_least("15 random points: median cosine", float(np.median(angles)), 0.99)
    yield at_least("15 random points: worst cosine", min(angles), 0.88)
    yield Row("15 random points: significant signs right", f"{known} of {known}", f"{right} of {known}", right == known)
    yield at_least("15 random points: least correlation of values over the seeds", min(correlations), 0.97)


def refused() -> Iterator[Row]:
    """Where the prototype failed: a cache that binds, and a TTFT of ten steps. Within the bars, or refused by the gate."""
    cases = {
        "cache of 2,500 blocks, 10/s": (case_of(10.0, 30_000, steps=16_000, pool=2500), {}),
        "TTFT .3 s at steps of 30 ms, 12/s": (case_of(12.0, 30_000, steps=16_000, itl=0.04, ttft=(0.3, 1.5)), {"admission": False}),
    }
    for name, (case, options) in cases.items():
        point = POINTS["A"][0]
        exact = truth_of(case).at(point)
        found = fluid_of(case, grid_of(**options))(point)
        verdict = fluid_gate(*found, *exact, UNIT)
        within = abs(verdict.bias) <= 0.05 and verdict.cosine >= 0.9
        figures = f"bias {verdict.bias:+.3f}, cosine {verdict.cosine:.3f}, correlation {verdict.correlation:.3f}"
        answer = "used" if verdict.passed else "refused"
        yield Row(f"{name}: within bias .05 and cosine .9, or refused", "either", f"{answer}: {figures}", within or not verdict.passed)
        yield informs(f"{name}: the gate says", verdict.said)


if __name__ == "__main__":
    parts = {"gradient": gradient, "refused": refused, "race": race, "wall": wall_time}
    sys.exit(run("tuning", {**parts, "schedule": schedule_gradient, "schedule_race": schedule_race}))
