"""Slopes of a gain schedule: the fluid's by reverse mode where the gate lets them through, else differences in random directions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from headway.controllers.exact_gradient import Differences, simulator_values
from headway.controllers.fluid.gate import LEAST_COSINE, GateVerdict, fluid_gate
from headway.controllers.fluid.slot import SHEDS
from headway.controllers.fluid.state import Knobs, Seen
from headway.controllers.fluid.value import FluidLoad, Forms, fluid_value, setting_of
from headway.controllers.simulator import Candidate, Draw
from headway.experiments.checkpoint import Ledger, digest
from headway.experiments.descent import Slopes
from headway.experiments.gain_forms import Form, Gain, TableForm, schedule_of
from headway.experiments.problem import Problem
from headway.experiments.selection import paid
from headway.experiments.space import Space
from headway.experiments.statistics import Estimate, mean_interval
from headway.experiments.surrogate import Surrogate, beyond
from headway.models.measures import ATTAINMENT

PAIRS = 10
"""Random directions in a difference, each taken both ways."""

WIDTH = 1.0
"""Standard deviation of a number in a random direction, in units: small steps measure the noise of single runs."""


class ScheduleFluid:
    """Attainment of a schedule and its derivative by every entry of the table, from the fluid, compiled once.

    Args:
        problem: what is trained for; `beyond` finds nothing in it.
        candidate: with constant gains: everything that no gain follows.
        gains: that follow the load, none of them a share.
        draws: of the training.
        ledger: what is known already; None for nothing.
    """

    def __init__(
        self, problem: Problem, candidate: Candidate, gains: tuple[Gain, ...], draws: list[Draw], ledger: Ledger | None = None
    ) -> None:
        """Lay out the grid; nothing is compiled yet."""
        space = Space(candidate, problem.limits, (), problem.targets)
        plain = Surrogate(problem, space, draws)
        self.problem, self.gains, self.loads, self.policy = problem, gains, plain.loads, candidate.policy
        self.ledger = ledger or Ledger()
        # who was shed and who has begun is told apart only where admission is followed: without it the value is off by .1
        self.grid = plain.grid._replace(checkpoint=True, admission=candidate.policy.triage in SHEDS)
        self.still = plain.knobs(jnp.asarray(space.point(candidate), self.grid.dtype))
        # beside its fixed margin a tracker keeps free what residuals call for
        self.kept = (1.0 - self.still.margin) / (1.0 - float(getattr(candidate.law, "margin", 0.0)))
        self._run: Callable[[FluidLoad, Any], tuple[Any, Any]] | None = None

    def at(self, table: np.ndarray, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Attainment and derivatives, one draw at a time.

        Args:
            table: in units of the gains, shape (gains, queued, running, kv).
            part: indices of draws, shape (m,).

        Returns:
            Values, shape (m,), and derivatives, shape (m, gains, queued, running, kv), per unit.
        """
        table = np.asarray(table, float)
        known = self.ledger.answer(digest("fluid", table, part), lambda: self._rows(table, part))
        return known[:, 0], known[:, 1:].reshape(len(part), *table.shape)

    def _rows(self, table: np.ndarray, part: np.ndarray) -> np.ndarray:
        """Value and derivatives, one row per draw."""
        if self._run is None:
            self._run = jax.jit(lambda load, x: jax.value_and_grad(self.value)(x, load))
        run, x = self._run, jnp.asarray(table, self.grid.dtype)
        with ThreadPoolExecutor(max_workers=2) as pool:
            found = list(pool.map(lambda k: run(self.loads[k], x), part))
        return np.array([[float(v), *np.ravel(np.asarray(s, float))] for v, s in found])

    def value(self, table: Any, load: FluidLoad) -> Any:
        """Attainment of one load, traced.

        Args:
            table: in units of the gains.
            load: requests.

        Returns:
            Attainment, in [0, 1].
        """
        held = setting_of(self.problem.identified, self.problem.targets, self.problem.limits)
        forms = Forms(self.policy.order, self.policy.triage)
        return fluid_value(table, load, held, self.problem.targets, self.grid, forms=forms, schedule=self.knobs).attainment

    def knobs(self, table: Any, seen: Seen) -> Knobs:
        """The numbers of a slot.

        Args:
            table: in units of the gains.
            seen: the load.

        Returns:
            Knobs.
        """
        schedule = schedule_of(self.gains, table)
        found = schedule.at(seen.queued_tokens, seen.running_requests / self.still.running_limit, seen.kv_share)
        values = {name: value.astype(self.grid.dtype) for name, value in zip(schedule.names, found, strict=True)}
        if "margin" in values:
            values["margin"] = 1.0 - (1.0 - values["margin"]) * self.kept
        if "chunk_tokens" in values:
            values["chunk_tokens"] = 2.0 ** values["chunk_tokens"]
        return dataclasses.replace(self.still, **values)  # pyright: ignore[reportArgumentType]  # by @pytree


def unknown_to_fluid(problem: Problem, candidate: Candidate, gains: tuple[Gain, ...], draws: list[Draw]) -> list[str]:
    """What the fluid does not know of training a schedule.

    Args:
        problem: what is trained for.
        candidate: with constant gains.
        gains: that follow the load.
        draws: of the training.

    Returns:
        One phrase each; empty if it knows all.
    """
    found = beyond(problem, Space(candidate, problem.limits, (), problem.targets), draws)
    if any(g.name.startswith("share.") for g in gains):
        found.append("scheduled shares")
    if len(draws) < 3:
        found.append("fewer than 3 training draws")
    return found


def fluid_slopes(fluid: ScheduleFluid, form: Form) -> Slopes:
    """The fluid's gradient by the numbers of a form.

    Args:
        fluid: compiled for the gains of the form.
        form: what is trained.

    Returns:
        Slopes.
    """

    def gradient(point: np.ndarray, part: np.ndarray) -> np.ndarray:
        table, pull = jax.vjp(form.table, jnp.asarray(point, fluid.grid.dtype))
        slopes = fluid.at(np.asarray(table, float), part)[1].mean(0)
        return np.asarray(pull(jnp.asarray(slopes, table.dtype))[0], float)

    return gradient


def random_slopes(
    problem: Problem, form: Form, candidate_at: Callable[[np.ndarray], Candidate], draws: list[Draw], seed: int, ledger: Ledger
) -> Slopes:
    """Differences of the simulator along random directions, each both ways, on common random numbers.

    g = mean over pairs of (v(x + w d) - v(x - w d)) / (2 w) d,  d normal, the neighbours of a knot going along with it

    On average it is the gradient of the objective blurred by w, times the correlation of d: uphill, whatever that is.

    Args:
        problem: what is trained for; requirements missed are paid for.
        form: what is trained.
        candidate_at: from its numbers to a candidate.
        draws: of the training.
        seed: of the directions.
        ledger: what is known already.

    Returns:
        Slopes.

    Source:
        Nesterov and Spokoiny, Random gradient-free minimization of convex functions, Foundations of Computational
        Mathematics 17, 2017.
    """
    rng, box = np.random.default_rng([seed, 48]), form.box

    def gradient(point: np.ndarray, part: np.ndarray) -> np.ndarray:
        directions = WIDTH * form.directions(rng, PAIRS)
        sides = np.clip(np.concatenate([point + directions, point - directions]), *box)
        values = paid(ledger.scores(problem, [candidate_at(p) for p in sides], [draws[i] for i in part]))
        return ((values[:PAIRS] - values[PAIRS:])[:, None] * directions).mean(0) / (2 * WIDTH**2)

    return gradient


class Admitted(NamedTuple):
    """Whether the fluid's slopes may train a schedule.

    Args:
        passed: whether they may.
        gate: what the gate said of values and slopes at the constants.
        along: exact gain of a step of one unit along the fluid's slope, over one against it, where that was asked; else None.
        said: the sentence to show.
    """

    passed: bool
    gate: GateVerdict
    along: Estimate | None
    said: str


def admit(problem: Problem, fluid: ScheduleFluid, constant: Candidate, draws: list[Draw], ledger: Ledger) -> Admitted:
    """Ask the gate at the constants, of the slopes by every knot of the queue.

    At tuned constants slopes are small, and the noise of exact differences may hide any of them. Where that is all that the
    gate has against the fluid, a trial decides: a step along its slope must do better in the exact engine than one against it.

    Args:
        problem: what is trained for.
        fluid: of its gains.
        constant: the candidate with constant gains.
        draws: of the training.
        ledger: what is known already.

    Returns:
        Admitted.
    """
    form = TableForm(fluid.gains, (8, 1, 1))
    start, units, box = form.start, np.ones(len(form.start)), form.box

    def candidate_at(point: np.ndarray) -> Candidate:
        return constant._replace(gains=schedule_of(fluid.gains, form.table(point)))

    values = simulator_values(problem.identified, draws, problem.targets, problem.limits, candidate_at, measure=ATTAINMENT)
    found, slopes = fluid.at(form.table(start), np.arange(len(draws)))
    slopes = slopes.reshape(len(draws), -1)
    known = ledger.answer(digest("differences", start), lambda: np.column_stack(Differences(values, units, *box).at(start)))
    exact, differences = known[:, 0], known[:, 1:]
    verdict = fluid_gate(found, slopes, exact, differences, units)
    direction = slopes.mean(0)
    size = float(abs(direction).max())
    if verdict.passed or verdict.ceiling >= LEAST_COSINE or not np.isfinite(size) or size == 0.0:
        return Admitted(verdict.passed, verdict, None, verdict.said)
    if not fluid_gate(found, differences, exact, differences, units, least_cosine=-1.0).passed:  # its values alone
        return Admitted(False, verdict, None, verdict.said)
    both = np.clip([start + direction / size, start - direction / size], *box)
    ends = ledger.answer(digest("along", both), lambda: values(both))
    along = mean_interval(ends[0] - ends[1])
    points = (
        f"a step along it does {100 * along.value:+.2f} points better than one against it [{100 * along.low:+.2f}, {100 * along.high:+.2f}]"
    )
    noisy = f"exact differences are too noisy to tell its cosine (at best {verdict.ceiling:.2f})"
    if along.low > 0:
        figures = f"correlation {verdict.correlation:.3f}, bias {verdict.bias:+.3f}"
        return Admitted(True, verdict, along, f"fluid gradient used: {figures}; {noisy}; {points}")
    return Admitted(False, verdict, along, f"fluid gradient not used here, exact differences take over: {noisy}, and {points}")
