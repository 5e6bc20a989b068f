"""The prototypes' own problem: their workload, plant, policy and exact engine, and the same problem for Headway's fluid.

Figures compare only on the same problem. The prototypes are not ours to ship: a part that needs them says so where they are not there.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.table import Missing, shared_data
from headway.controllers.exact_gradient import STEP, Differences
from headway.controllers.fluid.noise import StepNoise
from headway.controllers.fluid.state import Knobs, Seen
from headway.controllers.fluid.value import FluidLoad, Forms, Grid, Schedule, fluid_value, setting
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

START = np.array([0.40, 2.0, 6.5, 0.30, 0.15, 1.0])
"""Where the race begins: .149 of the tokens on time."""

KNOTS = 8
"""Of a gain schedule: each of the six numbers at log2(1 + queued prompt tokens / 500) = 0 .. 7, straight lines between."""


def prototype(name: str, folder: str = "") -> ModuleType:
    """One of the prototypes' modules.

    Args:
        name: of its file.
        folder: below the prototypes' own; "" for that.

    Returns:
        The module.

    Raises:
        Missing: it is not there.
    """
    path = shared_data().parent.joinpath("prototypes", folder, f"{name}.py")
    if not path.exists():
        raise Missing(f"{path} is not there")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # numba's cache looks the module up by its plain name
    return importlib.import_module(name)


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


def case_of(rate_rps: float, first: int, seeds: int = SEEDS, steps: int = 5000, **spec: Any) -> Case:
    """Workloads of the prototypes.

    Args:
        rate_rps: arrivals [requests/s].
        first: seed of the first.
        seeds: how many.
        steps: noise factors of each.
        **spec: what is otherwise than the prototypes have it.

    Returns:
        Case.
    """
    workload = prototype("workload")
    drawn = [workload.make(REQUESTS, rate_rps, first + m, n_noise=steps) for m in range(seeds)]
    return Case([np.array([d[i] for d in drawn]) for i in range(5)], workload.PLANT, {**workload.SPEC, **spec})


def truth_of(case: Case, bounded: bool = False) -> Differences:
    """The prototypes' exact engine.

    Args:
        case: workloads.
        bounded: cut the ends of differences to the box.

    Returns:
        Its values and differences.
    """
    engine = prototype("hard_numba")
    plant, spec, steps = engine.packp(case.plant), engine.pack(case.spec), case.made[4].shape[1]

    def values(points: np.ndarray) -> np.ndarray:
        return engine.batch(*case.made, np.ascontiguousarray(points), plant, spec, 256, steps, 1e-3)[:, :, 0]

    wide = np.full(len(UNIT), np.inf)
    return Differences(values, UNIT, LOW if bounded else -wide, HIGH if bounded else wide, STEP)


def schedule_truth_of(case: Case, bounded: bool = False) -> Differences:
    """The prototypes' exact engine with a gain schedule.

    Args:
        case: workloads.
        bounded: cut the ends of differences to the box.

    Returns:
        Its values and differences; points have shape (6 KNOTS,), the knots of one number beside each other.
    """
    engine, plain = prototype("hard_pol", "euler"), truth_of(case, bounded)
    plant, spec, steps = engine.packp(case.plant), engine.pack(case.spec), case.made[4].shape[1]

    def values(points: np.ndarray) -> np.ndarray:
        tables = np.ascontiguousarray(np.atleast_2d(points).reshape(-1, len(UNIT), KNOTS))
        return engine.batch(*case.made, tables, plant, spec, 256, steps, 1e-3)[:, :, 0]

    unit, low, high = (np.repeat(x, KNOTS) for x in (plain.unit, plain.low, plain.high))
    return Differences(values, unit, low, high, STEP)


def _knobs(parameters: Any, seen: Seen) -> Knobs:
    del seen  # the same at every load
    margin, aging, chunk, trim, share, boost = (parameters[i] for i in range(6))
    return Knobs(margin, aging, 2.0**chunk, trim, share, boost, running_limit=128.0)


def fluid_of(case: Case, grid: Grid) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Headway's fluid on a case, compiled once for all points.

    Args:
        case: workloads.
        grid: how finely.

    Returns:
        Function of a point, and of other workloads of the same size, to values and derivatives per seed.
    """
    share = _share(case, grid, _knobs)

    def one(load: FluidLoad, parameters: Any) -> tuple[Any, Any]:
        along = lambda v: jax.jvp(lambda x: share(x, load), (parameters,), (v,))  # noqa: E731
        return jax.vmap(along, out_axes=(None, 0))(jnp.eye(6, dtype=grid.dtype))

    return _compiled(case, grid, one)


def schedule_fluid_of(case: Case, grid: Grid) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Headway's fluid on a case with a gain schedule, by reverse mode.

    Args:
        case: workloads.
        grid: how finely; with `checkpoint`.

    Returns:
        As `fluid_of`, for points of shape (6 KNOTS,).
    """
    share = _share(case, grid, _scheduled)
    return _compiled(case, grid, lambda load, parameters: jax.value_and_grad(share)(parameters, load))


def _scheduled(parameters: Any, seen: Seen) -> Knobs:
    place = jnp.clip(jnp.log2(1.0 + seen.queued_tokens / 500.0), 0.0, KNOTS - 1.0)
    hats = jnp.maximum(1.0 - jnp.abs(place - jnp.arange(KNOTS, dtype=parameters.dtype)), 0.0)
    return _knobs(parameters.reshape(len(UNIT), KNOTS) @ hats, seen)


def _share(case: Case, grid: Grid, schedule: Schedule) -> Callable[[Any, FluidLoad], Any]:
    """Share of the tokens in time, as the prototypes count them, from parameters and load."""
    p, spec = case.plant, case.spec
    targets = tuple(Target(ttft, spec["itl"]) for ttft in spec["ttft"])
    limits = Limits(spec["pool"] * spec["block"], max_seqs=spec["rmax"], max_tokens=int(spec["umax"]), watermark=spec["watermark"])
    held = setting(AffinePlant((p["w"], p["a"], p["d"], p["c"], 0.0, 0.0)), (NOISE, NOISE), targets, limits)
    forms = Forms("slack", "defer", carried=False)
    return lambda x, load: fluid_value(x, load, held, targets, grid, forms=forms, schedule=schedule).gap_share


def _compiled(case: Case, grid: Grid, one: Callable[[FluidLoad, Any], tuple[Any, Any]]) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Values and derivatives of one load, over all seeds of a case."""
    compiled = jax.jit(lambda load, parameters: jax.lax.map(lambda r: one(r, parameters), load))

    def load_of(made: list[np.ndarray]) -> FluidLoad:
        arrival_s, prompt, output = (jnp.asarray(x, grid.dtype) for x in made[:3])
        return FluidLoad(arrival_s, prompt, output, jnp.asarray(made[3], jnp.int32))

    def at(point: np.ndarray, made: list[np.ndarray] | None = None) -> tuple[np.ndarray, np.ndarray]:
        value, slopes = compiled(load_of(made or case.made), jnp.asarray(point, grid.dtype))
        return np.asarray(value, float), np.asarray(slopes, float)

    return at


def grid_of(**options: Any) -> Grid:
    """A grid that holds a run.

    Args:
        **options: of `Grid`.

    Returns:
        Grid.
    """
    slot_s = options.pop("slot_s", 0.05)
    return Grid(int(np.ceil(SLOTS_S / slot_s / 50)) * 50, slot_s, **options)
