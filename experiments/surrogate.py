"""The fluid in place of the simulator: slopes of a whole search space at the price of a few runs, where the gate lets it.

What the fluid does not know is said by name before it is compiled; what it knows, but gets wrong at some point, the gate
finds out there.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headway.controllers.fluid.state import Knobs
from headway.controllers.fluid.value import FluidLoad, Forms, Grid, fluid_load, fluid_value, setting_of, slots_for
from headway.controllers.simulator import Draw
from headway.experiments.problem import Effort, Problem
from headway.experiments.space import Space

WORTH = 100_000
"""Free numbers times requests of a workload from which on the fluid is worth its compilation: see docs/design.md."""

ALIKE = ("aging_rate", "tolerance", "estimate", "timeout", "running_limit", "most_tokens", "least_tokens")
"""Numbers that the fluid has under the same name."""

KNOWN = ("margin", "late_rate", "chunk_tokens", "ki", "memory_price_s", *ALIKE)
"""Free numbers that the fluid has a knob for."""

FORWARD = 8
"""Free numbers up to which derivatives are taken forward; more are taken backward, at a cost that does not grow with them."""

TAIL_S = 10.0
"""After the last arrival [s]."""

LATE_RATES = 2.0 ** np.linspace(-10.0, -1.0, 37)
"""At which the margin that a tracker finds is looked up."""


def asked_for(effort: Effort, space: Space) -> str:
    """Whether the fluid is to be tried, and if not, why.

    Args:
        effort: how much is spent, and whose slopes are wanted.
        space: the free numbers.

    Returns:
        "" if it is; else a sentence.
    """
    size = len(space.free) * effort.requests
    if effort.gradient == "exact":
        return "exact differences, as asked"
    if effort.gradient == "auto" and size < WORTH:
        return f"exact differences: for {len(space.free)} numbers and {effort.requests:,} requests they cost less than compiling the fluid"
    return ""


def beyond(problem: Problem, space: Space, draws: list[Draw]) -> list[str]:
    """What the fluid does not know of a problem.

    Args:
        problem: what is tuned for.
        space: the free numbers.
        draws: of the training.

    Returns:
        One phrase each; empty if it knows all.
    """
    policy, limits = space.base.policy, problem.limits
    workloads = [d.workload for d in draws]
    none = lambda x: not np.any(np.asarray(x) != 0)  # noqa: E731
    parts = {
        f"the objective {problem.objective}": problem.objective != "attainment",
        "requirements": bool(problem.require),
        "several plants": problem.robust is not None,
        f"the law {space.base.law.law}": not {"margin", "most_tokens"} <= space.law_fields,
        f"triage {policy.triage}": policy.triage not in ("none", "defer", "reject", "timeout"),
        f"admission {policy.admission}": policy.admission != "none",
        f"phases {policy.phases}": policy.phases != "mixed",
        "class shares": len(policy.class_shares) > 0 and not none(policy.class_shares),
        "priorities": len(policy.priority_s) > 0 and not none(policy.priority_s),
        "strides": not none(policy.stride),
        "promised progress": not none(policy.prefill_every) or not none(policy.decode_every),
        "a number per class": any(np.ndim(getattr(policy, name)) for name in ("tolerance", "estimate")),
        "a cap on shedding": float(getattr(policy, "shed_cap", 1.0)) < 1.0,
        "prefix caches": limits.prefix_cache == "on" and any(w.prefix is not None for w in workloads),
        "clients that leave or follow": any(x is not None for w in workloads for x in (w.patience_s, w.cancel_s, w.after)),
        "steps composed ahead": limits.scheduling == "async",
        "first tokens a step later": limits.first_token == "next_step",
    }
    strange = [f.name for f in space.free if f.name not in KNOWN]
    return [name for name, there in parts.items() if there] + strange


class Surrogate:
    """The fluid of a search space, compiled once for all points and all training draws.

    Cache and running limit are left out: what follows them costs more than twice as much, and where they bind the gate finds
    the value too high and shuts.

    Args:
        problem: what is tuned for; `beyond` finds nothing in it.
        space: the free numbers.
        draws: of the training.
    """

    def __init__(self, problem: Problem, space: Space, draws: list[Draw]) -> None:
        """Lay out the grid; nothing is compiled yet."""
        workloads = [d.workload for d in draws]
        shortest_s = min(t.first_token_s for t in problem.targets)
        width_s = float(np.clip(shortest_s / 5.0, 0.02, 0.3))
        slot_s = float(np.clip(width_s / 3.0, 0.01, 0.1))
        self.grid = Grid(
            slots_for(workloads, slot_s, TAIL_S),
            slot_s,
            width_s,
            triage_s=min(0.1, width_s),
            rows=rows_for(draws),
            admission=False,
            checkpoint=len(space.free) > FORWARD,
        )
        self.problem, self.space = problem, space
        self.loads = [fluid_load(w) for w in workloads]
        self.law = space.base.law
        self.margins = margins_of(problem)
        self._run: Callable[[FluidLoad, Any], tuple[Any, Any]] | None = None

    def at(self, point: np.ndarray, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Attainment and its derivatives, one draw at a time.

        Args:
            point: in units, shape (d,).
            part: indices of draws, shape (m,).

        Returns:
            Values, shape (m,), and derivatives, shape (m, d), per unit.
        """
        run, x = self._compiled(), jnp.asarray(point, self.grid.dtype)
        # a run is one long chain of small operations, which XLA keeps on one core; it lets go of the interpreter meanwhile
        with ThreadPoolExecutor(max_workers=2) as pool:
            found = list(pool.map(lambda k: run(self.loads[k], x), part))
        return np.array([float(v) for v, _ in found]), np.array([np.asarray(s, float) for _, s in found])

    def knobs(self, point: Any) -> Knobs:
        """The numbers of the fluid at a point.

        A tracker keeps free what its own residuals call for: margin = 1 - (1 - margin) exp(-q(late rate)), q the quantile
        of the mixed steps' residuals.

        Args:
            point: in units, traced, shape (d,).

        Returns:
            Knobs.
        """
        values = {f.name: _value(f.log2, point[i] * f.unit) for i, f in enumerate(self.space.free)}
        law, policy = self.law, self.space.base.policy
        here = lambda name: values.get(name, getattr(law if name in self.space.law_fields else policy, name, 0.0))  # noqa: E731
        margin = here("margin")
        if "late_rate" in self.space.law_fields:
            rates, quantiles = (jnp.asarray(x, self.grid.dtype) for x in (np.log2(LATE_RATES), self.margins))
            late = jnp.log2(jnp.asarray(here("late_rate"), self.grid.dtype))
            margin = 1.0 - (1.0 - margin) * jnp.exp(-jnp.interp(late, rates, quantiles))
        chunk = here("chunk_tokens")
        chunk = chunk if "chunk_tokens" in values else chunk or float(self.problem.limits.max_tokens)
        price_s = here("memory_price_s") / self.problem.limits.block_tokens
        return Knobs(margin=margin, chunk_tokens=chunk, trim=here("ki"), price_s=price_s, **{n: here(n) for n in ALIKE})

    def _compiled(self) -> Callable[[FluidLoad, Any], tuple[Any, Any]]:
        if self._run is None:
            held = setting_of(self.problem.identified, self.problem.targets, self.problem.limits)
            policy = self.space.base.policy
            forms = Forms(policy.order, policy.triage)

            def value(x: Any, load: FluidLoad) -> Any:
                return fluid_value(self.knobs(x), load, held, self.problem.targets, self.grid, forms=forms).attainment

            def forward(load: FluidLoad, x: Any) -> tuple[Any, Any]:
                along = lambda v: jax.jvp(lambda y: value(y, load), (x,), (v,))  # noqa: E731
                return jax.vmap(along, out_axes=(None, 0))(jnp.eye(len(self.space.free), dtype=x.dtype))

            backward = lambda load, x: jax.value_and_grad(value)(x, load)  # noqa: E731
            self._run = jax.jit(backward if self.grid.checkpoint else forward)
        return self._run


def rows_for(draws: list[Draw]) -> int:
    """Requests that the fluid follows at once: enough for those that arrive in a quarter of a minute.

    Args:
        draws: of the training.

    Returns:
        Rows, a multiple of 64 from 128 to 512.
    """
    rate_rps = max(d.workload.rate_rps for d in draws)
    return int(np.clip(64 * np.ceil(15.0 * rate_rps / 64), 128, 512))


def margins_of(problem: Problem) -> np.ndarray:
    """What a tracker keeps free beside its fixed margin, at LATE_RATES.

    Args:
        problem: with the plant's residuals.

    Returns:
        Quantiles of the residuals of mixed steps, in [0, 1]; 0 where there are none.
    """
    residuals = problem.identified.noise.mixed
    if not len(residuals):
        return np.zeros(len(LATE_RATES))
    return np.clip(np.quantile(residuals, 1.0 - LATE_RATES), 0.0, 1.0)


def _value(log2: bool, place: Any) -> Any:
    """The number at a place of its axis, not rounded: slopes are taken of it."""
    return 2.0**place if log2 else place
