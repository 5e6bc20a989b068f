"""The prefill budget by a quadratic program over a horizon, beside the explicit inverse of the plant: a reference, no controller.

    minimise over u_0 ... u_{H-1}:  sum_j q_j^2 + rho sum_j (u_j - u_{j-1})^2,   q_j = queue - sum_{i <= j} u_i
    subject to  F(n_j, kv_j, v_j) + g_j (u_j - v_j) <= target,  0 <= u_j <= most,  q_j >= 0

v_j is the explicit answer at step j, around which the plant is made linear, g_j its slope there. Decodes and cache of
all H steps are given to the program exactly, which no controller would know.

A step's constraint holds its own u_j alone and every token sooner is worth more, so that each u_j sits at its bound:
what one evaluation of the inverse gives. A horizon pays only where steps are coupled, as admission couples them, or
where a change of the budget costs something (rho > 0), which it does not in an engine.

Source:
    Stellato, Banjac, Goulart, Bemporad and Boyd, OSQP: an operator splitting solver for quadratic programs, 2020.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from headway.controllers.inverse import largest_prefill
from headway.models.plant import Plant
from headway.models.steptime import step_time

SCALE = 1000.0
"""Tokens in one unit of the program's variables: near one, the solver's tolerances mean what they say."""


class Load(NamedTuple):
    """What the loop cannot choose, one row per step.

    Args:
        decode_requests: shape (k,) [requests].
        decode_kv_tokens: cache tokens that they read, shape (k,) [tokens].
        arriving_tokens: prompt tokens that join the queue before the step, shape (k,) [tokens].
        factor: noise on the predicted duration, shape (k,).
    """

    decode_requests: np.ndarray
    decode_kv_tokens: np.ndarray
    arriving_tokens: np.ndarray
    factor: np.ndarray


class Served(NamedTuple):
    """What one of the two did.

    Args:
        late: share of steps over the budget.
        prefill_tps: prompt tokens per second [tokens/s].
        budgets: prefill budget of each step, shape (k,) [tokens].
        solve_s: median time of one decision [s].
    """

    late: float
    prefill_tps: float
    budgets: np.ndarray
    solve_s: float


class Program:
    """The quadratic program, set up once and solved once per step from where it stood.

    Args:
        horizon: steps.
        most_tokens: largest prefill of a step [tokens].
        move_weight: rho, dimensionless.

    Raises:
        ModuleNotFoundError: osqp is not installed; the message names the extra.
    """

    def __init__(self, horizon: int, most_tokens: float, move_weight: float) -> None:
        """Set the program up."""
        try:
            import osqp  # pyright: ignore[reportMissingImports]  # an extra
        except ImportError:
            raise ModuleNotFoundError("the program needs osqp: pip install 'headway[mpc]'", name="osqp") from None
        self.horizon, self.most = horizon, most_tokens / SCALE
        self.sums = np.tril(np.ones((horizon, horizon)))
        moves = np.eye(horizon) - np.eye(horizon, k=-1)
        hessian = 2 * (self.sums.T @ self.sums + move_weight * moves.T @ moves)
        rows = sparse.vstack([sparse.identity(horizon), sparse.csc_matrix(self.sums)], format="csc")
        self.move_weight, self.solver = move_weight, osqp.OSQP()
        none = np.zeros(2 * horizon)
        tight = {"eps_abs": 1e-6, "eps_rel": 1e-6, "max_iter": 20_000, "verbose": False}
        self.solver.setup(sparse.csc_matrix(np.triu(hessian)), np.zeros(horizon), rows, none, none + 1.0, **tight)

    def solve(self, queue: float, highest: np.ndarray, before: float) -> float:
        """The first step of the plan.

        Args:
            queue: prompt tokens that wait [tokens].
            highest: what the linear plant lets each step take, shape (horizon,) [tokens].
            before: budget in force [tokens].

        Returns:
            Prefill budget [tokens].

        Raises:
            RuntimeError: the solver did not converge.
        """
        towards = -2 * queue / SCALE * self.sums.sum(axis=0)
        towards[0] -= 2 * self.move_weight * before / SCALE
        above = np.concatenate([np.clip(highest / SCALE, 0.0, self.most), np.full(self.horizon, queue / SCALE)])
        self.solver.update(q=towards, l=np.zeros(2 * self.horizon), u=above)
        found = self.solver.solve(raise_error=False)
        if found.info.status != "solved":
            raise RuntimeError(f"the program was not solved: {found.info.status}")
        # a token less than a whole one is the solver's tolerance, not its answer
        return float(np.floor(max(found.x[0] * SCALE, 0.0) + 0.01))


def reach(plant: Any, n: float, kv: float, target_s: float, most_tokens: float) -> tuple[float, float]:
    """What a step may take: by the inverse, and by the plant made linear there.

    Args:
        plant: packed, shape (PACKED,).
        n: decode requests [requests].
        kv: cache tokens that they read [tokens].
        target_s: longest step [s].
        most_tokens: largest prefill of a step, a whole number [tokens].

    Returns:
        (explicit, linear) prefill [tokens]; the linear one is not rounded.
    """
    v = largest_prefill(plant, n, kv, 0.0, target_s, most_tokens)
    if v < 1.0:
        return 0.0, 0.0
    here, more = (step_time(plant, n, kv, u, 0.5 * u * u, 1.0) for u in (v, v + 1.0))
    return v, v + max(target_s - here, 0.0) / max(more - here, 1e-12)


def serve(
    plant: Plant,
    load: Load,
    budget_s: float,
    *,
    margin: float = 0.15,
    horizon: int = 0,
    most_tokens: float = 8192.0,
    move_weight: float = 0.0,
) -> Served:
    """Serve a load with the explicit inverse, or with the program.

    Args:
        plant: predicts, and is the truth but for the noise.
        load: shape (k,).
        budget_s: longest step that keeps the ITL promise [s].
        margin: share of the budget kept free, in [0, 1).
        horizon: steps that the program looks ahead; 0 is the explicit inverse.
        most_tokens: largest prefill of a step [tokens].
        move_weight: rho of the program, dimensionless.

    Returns:
        What became of it.
    """
    packed, steps, target_s = plant.pack(), len(load.factor), (1 - margin) * budget_s
    may = np.array([reach(packed, n, kv, target_s, most_tokens) for n, kv in zip(load.decode_requests, load.decode_kv_tokens, strict=True)])
    program = Program(horizon, most_tokens, move_weight) if horizon else None
    budgets, took, spent = np.zeros(steps), np.zeros(steps), np.zeros(steps)
    queue = before = 0.0
    for k in range(steps):
        queue += load.arriving_tokens[k]
        n, kv = load.decode_requests[k], load.decode_kv_tokens[k]
        began = time.perf_counter()
        if program is None:
            u = min(largest_prefill(packed, n, kv, 0.0, target_s, most_tokens), queue)
        else:
            ahead = np.minimum(np.arange(k, k + horizon), steps - 1)
            u = program.solve(queue, may[ahead, 1], before)
        spent[k] = time.perf_counter() - began
        budgets[k] = before = min(u, queue)
        queue -= budgets[k]
        took[k] = load.factor[k] * step_time(packed, n, kv, budgets[k], 0.5 * budgets[k] ** 2, 1.0 if budgets[k] > 0 else 0.0)
    return Served(float((took > budget_s).mean()), float(budgets.sum() / took.sum()), budgets, float(np.median(spent)))


def sample_load(steps: int, seed: int = 0) -> Load:
    """A load whose decodes jump and whose prompts come in bursts.

    Args:
        steps: its length.
        seed: of the noise and the bursts.

    Returns:
        Load of shape (steps,).
    """
    rng = np.random.default_rng(seed)
    k = np.arange(steps)
    n = np.where(k < steps // 2, 35.0, 80.0) + 5.0 * np.sin(k / 40.0).round()
    kv = n * np.floor(800.0 + 1700.0 * (k % 300) / 300.0)
    arriving = np.where(rng.random(steps) < 0.05, rng.integers(500, 12_000, steps), 0).astype(float)
    return Load(n, kv, arriving, np.exp(0.05 * rng.standard_normal(steps)))
