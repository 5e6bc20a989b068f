"""The scheduler as a fluid of masses, in JAX: attainment with a gradient that is true.

A grid in time, no events, no sort. Every request is a divisible mass; a threshold that is solved for says how much of it
is served in a slot, the shares of the classes are balanced within the slot, and a token is on time with a probability in
closed form. So every map is continuous, and the derivative of the run is the derivative of what it computes. A scheduler
that is differentiated step by step is not: its gradient points the wrong way. `headway.controllers.fluid.gate` says
where this one may be used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from headway.controllers.fluid.budget import Make
from headway.controllers.fluid.noise import StepNoise, step_noise
from headway.controllers.fluid.slot import SHEDS, completed, slot_of
from headway.controllers.fluid.state import Flow, Knobs, Masses, Rows, Seen, Setting
from headway.controllers.fluid.threshold import SEARCHED
from headway.models.identified import IdentifiedPlant
from headway.models.plant import Plant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload

NEVER_S = 1e9
"""Arrival of the rows that fill up a window [s]."""
GONE, LEAST_PART = 3.0, 0.02
"""TTFT targets after its arrival from which a request takes a row only for what of it has begun, and the part of it that is nothing."""


class Grid(NamedTuple):
    """How finely a run is looked at. All of it is fixed when a run is compiled.

    A width of the order up to a third of the shortest TTFT target, and a slot up to half a width, were enough where
    tried; `headway.controllers.fluid.gate` finds out.

    Args:
        slots: of the run.
        slot_s: length of one [s].
        width_s: of the order's ramp [s].
        gate_s: width of the ramp where cache or running limit hold back who is new: a place is taken whole, so it is narrow [s].
        triage_s: width of the split between what can be on time and what cannot [s].
        deadline_s: width of the deadline [s].
        power: how late in its prompt a mass completes.
        whole: with admission, how much less than a half it is worth to let half a request in; 6 where a cache binds,
            3 was nearest where none did, as was `power` alone without admission.
        rows: requests that may be live at once; the oldest are kept.
        segment: slots between two gatherings of the live requests.
        admission: whether cache and running limit can hold back who is new.
        checkpoint: compute each slot anew on the way back instead of remembering it: for reverse mode.
        dtype: of the requests.
    """

    slots: int
    slot_s: float = 0.05
    width_s: float = 0.2
    gate_s: float = 0.03
    triage_s: float = 0.1
    deadline_s: float = 0.05
    power: float = 4.0
    whole: float = 6.0
    rows: int = 192
    segment: int = 50
    admission: bool = True
    checkpoint: bool = False
    dtype: Any = jnp.float32


class Forms(NamedTuple):
    """The choices of the scheduler that are no numbers.

    Args:
        order: "slack", "edf" or "fcfs".
        triage: "none", "defer", "reject" or "timeout".
        defer_s: by how much "defer" puts back who is late [s].
        carried: whether a prompt's time is reckoned by what a step carries, as the engine does, or by chunks alone.
    """

    order: str = "slack"
    triage: str = "reject"
    defer_s: float = 10.0
    carried: bool = True


class FluidLoad(NamedTuple):
    """Requests as the fluid reads them, shapes (n,).

    Args:
        arrival_s: [s].
        prompt: [tokens].
        output: [tokens].
        class_id: index into the targets.
    """

    arrival_s: Any
    prompt: Any
    output: Any
    class_id: Any


class FluidResult(NamedTuple):
    """What became of a load.

    Args:
        gap_share: tokens in time, each judged by its own gap, over all tokens of the load.
        attainment: tokens on time over tokens owed: a long gap owes several.
        good: tokens on time [tokens].
        owed: [tokens].
        served: prompt tokens computed [tokens].
        progress: share of each prompt computed, shape (n,).
        emitted: tokens of each request, shape (n,) [tokens].
        excess: largest share by which a slot's prompt tokens exceeded its budget: the accuracy of the solved threshold.
    """

    gap_share: Any
    attainment: Any
    good: Any
    owed: Any
    served: Any
    progress: Any
    emitted: Any
    excess: Any


Schedule = Callable[[Any, Seen], Knobs]


def fluid_load(workload: Workload, dtype: Any = jnp.float32) -> FluidLoad:
    """Requests of a workload.

    Args:
        workload: arrivals and lengths; prefixes, patience and order among requests are left aside.
        dtype: of the arrays.

    Returns:
        Load.
    """
    columns = (workload.arrival_s, workload.prompt_tokens, workload.output_tokens)
    arrival_s, prompt, output = (jnp.asarray(np.asarray(c, float), dtype) for c in columns)
    return FluidLoad(arrival_s, prompt, output, jnp.asarray(workload.class_id, jnp.int32))


def slots_for(workloads: list[Workload], slot_s: float, tail_s: float, segment: int = 50) -> int:
    """Slots that hold all arrivals and what follows them.

    Args:
        workloads: all that are run with one compiled grid.
        slot_s: length of a slot [s].
        tail_s: after the last arrival [s].
        segment: the number is a multiple of it.

    Returns:
        Slots.
    """
    last_s = max(float(w.arrival_s[-1]) for w in workloads) + tail_s
    return int(np.ceil(last_s / slot_s / segment)) * segment


def constant(parameters: Any, seen: Seen) -> Knobs:
    """The schedule that follows no load.

    Args:
        parameters: the knobs themselves.
        seen: not read.

    Returns:
        Knobs.
    """
    return parameters


def setting_of(identified: IdentifiedPlant, targets: tuple[Target, ...], limits: Limits) -> Setting:
    """What holds during a run: plant, noise in closed form, targets and limits.

    Args:
        identified: the plant.
        targets: one per class.
        limits: of the engine.

    Returns:
        Setting.
    """
    noise = identified.noise
    return setting(identified.plant, (step_noise(noise.decode), step_noise(noise.mixed)), targets, limits)


def setting(plant: Plant, noise: tuple[StepNoise, StepNoise], targets: tuple[Target, ...], limits: Limits) -> Setting:
    """As `setting_of`, from a plant that may be traced.

    Args:
        plant: the plant.
        noise: of steps without and with prompts.
        targets: one per class.
        limits: of the engine.

    Returns:
        Setting.
    """
    values = tuple(sorted({t.budget_s for t in targets}))
    places = tuple(values.index(t.budget_s) for t in targets)
    pool = float(limits.blocks * limits.block_tokens)
    sizes = (pool, limits.watermark, float(limits.block_tokens), float(limits.max_tokens), float(limits.max_seqs))
    return Setting(plant, noise[0], noise[1], (values, places), min(values), *sizes)


def fluid_value(
    parameters: Any,
    load: FluidLoad,
    setting: Setting,
    targets: tuple[Target, ...],
    grid: Grid,
    *,
    forms: Forms = Forms(),  # noqa: B008  # an immutable tuple
    schedule: Schedule = constant,
) -> FluidResult:
    """Run a load through the fluid.

    Differentiable in `parameters` (any pytree that `schedule` understands), in the plant and in the load's numbers;
    composes with `jit`, `vmap`, `grad` and `jacfwd`. For many parameters take reverse mode with `grid.checkpoint`.

    Args:
        parameters: of the schedule; `Knobs` for the constant one.
        load: requests.
        setting: plant, noise, limits.
        targets: one per class.
        grid: how finely.
        forms: order and triage.
        schedule: from parameters and load to the knobs of a slot.

    Returns:
        Result. What is not finished at the end of the grid is credited as if it went on as it was.

    Source:
        Cassandras, Wardi, Melamed, Sun and Panayiotou, Perturbation analysis for online control and optimization of
        stochastic fluid models, IEEE TAC 47(8), 2002: why a fluid's gradient is unbiased where the queue's is not.
    """
    table = _table(load, targets, grid.dtype)

    def at(seen: Seen) -> Knobs:
        found = schedule(parameters, seen)
        return jax.tree.map(lambda x: jnp.asarray(x, grid.dtype), found)

    run = lambda rows, state, slot: slot_of(forms, grid, setting, at, rows, state, slot)  # noqa: E731
    if grid.checkpoint:
        run = jax.checkpoint(run, policy=jax.checkpoint_policies.save_only_these_names(SEARCHED))  # pyright: ignore[reportAssignmentType]

    def segment(state: Any, start: Any) -> tuple[Any, None]:
        return _segment(grid, run, table, state, start, forms.triage in SHEDS), None

    starts = jnp.arange(grid.slots // grid.segment, dtype=jnp.int32) * grid.segment
    (masses, flow), _ = lax.scan(segment, _start(grid, len(table.prompt)), starts)
    return _result(load, masses, flow, grid)


def _table(load: FluidLoad, targets: tuple[Target, ...], dtype: Any) -> Rows:
    """Requests with one row behind them that fills up windows."""
    ttft = jnp.asarray([t.first_token_s for t in targets], dtype)[load.class_id]
    columns = (load.arrival_s, load.prompt, load.output)
    fill = (NEVER_S, 1.0, 0.0)
    made = [jnp.concatenate([jnp.asarray(c, dtype), jnp.full((1,), f, dtype)]) for c, f in zip(columns, fill, strict=True)]
    classes = jnp.concatenate([load.class_id.astype(jnp.int32), jnp.zeros(1, jnp.int32)])
    return Rows(made[0], made[1], made[2], classes, jnp.concatenate([ttft, jnp.ones(1, dtype)]))


def _start(grid: Grid, rows: int) -> Any:
    """An idle engine."""
    zero = jnp.zeros((), grid.dtype)
    none = jnp.zeros(rows, grid.dtype)
    make = Make(zero, zero + 512.0)
    flow = Flow(zero, zero + 0.02, zero, zero, make, zero, zero, zero, zero)
    return Masses(none, none, none, none), flow


def _segment(grid: Grid, run: Any, table: Rows, state: Any, start: Any, sheds: bool) -> Any:
    """Gather the live requests, oldest first, run some slots on them, and put them back. Who was shed is not live for ever."""
    masses, flow = state
    last = len(table.prompt) - 1
    begin = start.astype(grid.dtype)
    live = (table.arrival_s < (begin + grid.segment) * grid.slot_s) & (masses.emitted < table.output - 0.05)
    if sheds:
        gone = begin * grid.slot_s > table.arrival_s + GONE * table.ttft_s
        done, _ = completed(grid, masses.progress, masses.begun)
        entered = masses.begun if grid.admission else jnp.where(masses.progress > LEAST_PART, 1.0, 0.0)
        going_on = (entered - masses.progress > LEAST_PART) | (table.output * done - masses.emitted > 0.05)
        live = live & (~gone | going_on)
    live = lax.stop_gradient(live)
    place = jnp.where(live, jnp.cumsum(live.astype(jnp.int32)) - 1, grid.rows)
    index = jnp.full(grid.rows, last, jnp.int32).at[place].set(jnp.arange(last + 1, dtype=jnp.int32), mode="drop")
    rows = Rows(*(column[index] for column in table))
    mine = Masses(*(m[index] for m in masses))
    slots = begin + jnp.arange(grid.segment).astype(grid.dtype)
    (mine, flow), _ = lax.scan(lambda s, k: (run(rows, s, k), None), (mine, flow), slots)
    return Masses(*(m.at[index].set(new) for m, new in zip(masses, mine, strict=True))), flow


def _result(load: FluidLoad, masses: Masses, flow: Flow, grid: Grid) -> FluidResult:
    """Close the books."""
    progress, emitted, in_time, begun = (m[:-1] for m in masses)
    done = completed(grid, progress, begun)[0]
    rest = jnp.maximum(load.output * done - emitted, 0.0)
    good = flow.good + jnp.sum(rest * in_time / jnp.maximum(done, 1e-3))
    tokens = jnp.sum(load.output)
    owed = tokens + flow.owed_more
    return FluidResult(good / tokens, good / owed, good, owed, flow.served, progress, emitted, flow.excess)
