"""The bars of tuning: how true the gradients are that it descends along.

python -m benchmarks.tuning

The gradient rows use the policy, the workload and the gap form of on-time of the prototypes, so that figures compare; the
truth are central differences of half a unit on the prototypes' exact engine, stored (A, B, C) or taken here.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.spine import _prototype
from benchmarks.table import Row, at_least, at_most, informs, run, shared_data
from headway.controllers.exact_gradient import STEP, Differences
from headway.controllers.fluid.gate import cosine, fluid_gate, noise_ceiling
from headway.controllers.fluid.noise import StepNoise
from headway.controllers.fluid.state import Knobs, Seen
from headway.controllers.fluid.value import FluidLoad, Forms, Grid, fluid_value, setting
from headway.models.regimes import AffinePlant
from headway.models.signals import Limits, Target

UNIT = np.array([0.05, 0.5, 0.5, 0.05, 0.1, 0.2])
LOW, HIGH = np.array([-0.1, 0.0, 5.0, 0.0, 0.02, 0.0]), np.array([0.6, 3.0, 11.0, 0.5, 0.98, 1.5])
"""Units and box of margin, aging rate, log2 chunk, ki, share of class 0, boost."""
POINTS = {
    "A": (np.array([0.20, 0.10, 9.0, 0.05, 0.5, 0.2]), 10.0),
    "B": (np.array([0.35, 1.0, 7.5, 0.08, 0.35, 0.5]), 9.0),
    "C": (np.array([0.12, 0.3, 10.0, 0.10, 0.6, 0.1]), 11.0),
}
SEEDS, REQUESTS, SLOTS_S = 32, 600, 90.0
NOISE = StepNoise(-(0.06**2) / 2, 0.06, 0.02, 2.5, 0.15)
SIGNIFICANT = 3.0
"""Standard errors from 0 at which a component of the truth has a sign."""


class Case(NamedTuple):
    """One set of workloads with its engine.

    Args:
        made: arrivals, prompts, outputs, classes and noise, each shape (seeds, k).
        plant: as the prototypes pack it.
        spec: targets and limits by name, as the prototypes write them.
    """

    made: list[np.ndarray]
    plant: dict[str, float]
    spec: dict[str, Any]


def _case(rate_rps: float, first: int, seeds: int = SEEDS, steps: int = 5000, **spec: Any) -> Case:
    workload = _prototype("workload")
    drawn = [workload.make(REQUESTS, rate_rps, first + m, n_noise=steps) for m in range(seeds)]
    return Case([np.array([d[i] for d in drawn]) for i in range(5)], workload.PLANT, {**workload.SPEC, **spec})


def _truth(case: Case, bounded: bool = False) -> Differences:
    """The prototypes' exact engine."""
    engine = _prototype("hard_numba")
    plant, spec, steps = engine.packp(case.plant), engine.pack(case.spec), case.made[4].shape[1]

    def values(points: np.ndarray) -> np.ndarray:
        return engine.batch(*case.made, np.ascontiguousarray(points), plant, spec, 256, steps, 1e-3)[:, :, 0]

    wide = np.full(len(UNIT), np.inf)
    return Differences(values, UNIT, LOW if bounded else -wide, HIGH if bounded else wide, STEP)


def _knobs(parameters: Any, seen: Seen) -> Knobs:
    del seen  # the same at every load
    margin, aging, chunk, trim, share, boost = (parameters[i] for i in range(6))
    return Knobs(margin, aging, 2.0**chunk, trim, share, boost, running_limit=128.0)


def _fluid(case: Case, grid: Grid) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Values and derivatives per seed, compiled once for all points."""
    p, spec = case.plant, case.spec
    targets = tuple(Target(ttft, spec["itl"]) for ttft in spec["ttft"])
    limits = Limits(spec["pool"] * spec["block"], max_seqs=spec["rmax"], max_tokens=int(spec["umax"]), watermark=spec["watermark"])
    held = setting(AffinePlant((p["w"], p["a"], p["d"], p["c"], 0.0, 0.0)), (NOISE, NOISE), targets, limits)

    def load_of(made: list[np.ndarray]) -> FluidLoad:
        arrival_s, prompt, output = (jnp.asarray(x, grid.dtype) for x in made[:3])
        return FluidLoad(arrival_s, prompt, output, jnp.asarray(made[3], jnp.int32))

    def one(load: FluidLoad, parameters: Any) -> tuple[Any, Any]:
        def share(x: Any) -> Any:
            return fluid_value(x, load, held, targets, grid, forms=Forms("slack", "defer"), schedule=_knobs).gap_share

        return jax.vmap(lambda v: jax.jvp(share, (parameters,), (v,)), out_axes=(None, 0))(jnp.eye(6, dtype=grid.dtype))

    compiled = jax.jit(lambda load, parameters: jax.lax.map(lambda r: one(r, parameters), load))

    def at(point: np.ndarray, made: list[np.ndarray] | None = None) -> tuple[np.ndarray, np.ndarray]:
        value, slopes = compiled(load_of(made or case.made), jnp.asarray(point, grid.dtype))
        return np.asarray(value, float), np.asarray(slopes, float)

    return at


def _signs(ours: np.ndarray, truth: np.ndarray) -> tuple[int, int]:
    """Signs that are right, and components whose sign is known: 3 standard errors from 0 and a tenth of the gradient."""
    mean, error = truth.mean(0), truth.std(0, ddof=1) / np.sqrt(len(truth))
    known = (abs(mean) > SIGNIFICANT * error) & (abs(mean) > 0.1 * np.linalg.norm(mean))
    return int((np.sign(ours) == np.sign(mean))[known].sum()), int(known.sum())


def _grid(**options: Any) -> Grid:
    slot_s = options.pop("slot_s", 0.05)
    return Grid(int(np.ceil(SLOTS_S / slot_s / 50)) * 50, slot_s, **options)


def gradient() -> Iterator[Row]:
    """A, B and C against the stored truth, 15 random points of the box against differences taken here."""
    stored = np.load(shared_data().parent / "prototypes" / "euler" / "gradtruth.npz")
    cases = {rate: _case(rate, 10_000) for rate in (10.0, 9.0, 11.0)}
    fluid = _fluid(cases[10.0], _grid(admission=False))
    for name, (point, rate) in POINTS.items():
        case, truth = cases[rate], stored[f"{name}:hard:0.5"]
        fluid(point, case.made)
        began = time.process_time()
        values, slopes = fluid(point, case.made)
        took = 1e3 * (time.process_time() - began) / SEEDS
        ours, exact = slopes.mean(0) * UNIT, _truth(case).values(point[None])[0]
        yield at_least(f"{name}: cosine to the stored truth, {SEEDS} seeds", cosine(ours, truth.mean(0)), 0.97)
        yield at_least(f"{name}: correlation of values over the seeds", float(np.corrcoef(values, exact)[0, 1]), 0.97)
        right, known = _signs(ours, truth)
        yield Row(f"{name}: significant signs right", f"{known} of {known}", f"{right} of {known}", right == known)
        yield at_most(f"{name}: CPU time per seed, value and 6 derivatives", took, 120.0, "ms")
        yield informs(f"{name}: value fluid / exact", f"{values.mean():.4f} / {exact.mean():.4f}")
    yield from _random(fluid)


def _random(fluid: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Iterator[Row]:
    rng, angles, correlations, signs = np.random.default_rng(5), [], [], []
    for k in range(15):
        rate = (9.0, 10.5, 11.5)[k % 3]
        point = np.clip(LOW + rng.random(6) * (HIGH - LOW), LOW + 1.001 * STEP * UNIT, HIGH)
        case = _case(rate, 20_000)
        exact, truth = _truth(case).at(point)
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
        "cache of 2,500 blocks, 10/s": (_case(10.0, 30_000, steps=16_000, pool=2500), {}),
        "TTFT .3 s at steps of 30 ms, 12/s": (_case(12.0, 30_000, steps=16_000, itl=0.04, ttft=(0.3, 1.5)), {"admission": False}),
    }
    for name, (case, options) in cases.items():
        point = POINTS["A"][0]
        exact = _truth(case).at(point)
        found = _fluid(case, _grid(**options))(point)
        verdict = fluid_gate(*found, *exact, UNIT)
        within = abs(verdict.bias) <= 0.05 and verdict.cosine >= 0.9
        figures = f"bias {verdict.bias:+.3f}, cosine {verdict.cosine:.3f}, correlation {verdict.correlation:.3f}"
        answer = "used" if verdict.passed else "refused"
        yield Row(f"{name}: within bias .05 and cosine .9, or refused", "either", f"{answer}: {figures}", within or not verdict.passed)
        yield informs(f"{name}: the gate says", verdict.said)


if __name__ == "__main__":
    sys.exit(run("tuning", {"gradient": gradient, "refused": refused}))
