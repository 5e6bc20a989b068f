"""What a workload asks of the engine at least, request by request: the numbers that the relaxation of the bound is made of."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import numpy as np

from headway.experiments.envelope import EXTRA, FLOOR, PER_DECODE, PER_KV, PER_PREFILL, Envelope
from headway.models.mechanics import EXACT
from headway.models.signals import Limits, Target
from headway.models.workload import Workload


@dataclasses.dataclass(frozen=True)
class Demand:
    """Requests that the bound counts, shapes (n,), and how many it gives away.

    Args:
        rows: of the workload.
        arrival_s: [s].
        due_s: last moment of the first token at the engine [s].
        budget_s: longest gap at the engine that is on time [s].
        itl_s: target [s].
        lag_s: added to `due_s` where the run is cut [s].
        relief: tokens by which one late-owed token may put a request behind.
        prompt: T [tokens].
        tokens: of the prompt that must be computed [tokens].
        extra_s: what the prompt costs beside its tokens [s].
        output: L [tokens].
        first_s: least time from the start of its prompt to its first token [s].
        step_s: least time of a step in which it decodes [s].
        stream_s: least time from its first token to its last [s].
        steady: whether each of its later tokens costs at least one decode.
        given: tokens of requests that count as served at no cost [tokens].
        given_requests: their number.
        lost: tokens of requests that no policy can serve [tokens].
        lost_requests: their number.
        earliest_s: least end of each request of the workload, the lost left out, shape (k,) [s].
        earliest_tokens: their tokens, shape (k,) [tokens].
    """

    rows: np.ndarray
    arrival_s: np.ndarray
    due_s: np.ndarray
    budget_s: np.ndarray
    itl_s: np.ndarray
    lag_s: np.ndarray
    relief: np.ndarray
    prompt: np.ndarray
    tokens: np.ndarray
    extra_s: np.ndarray
    output: np.ndarray
    first_s: np.ndarray
    step_s: np.ndarray
    stream_s: np.ndarray
    steady: np.ndarray
    given: float
    given_requests: int
    lost: float
    lost_requests: int
    earliest_s: np.ndarray
    earliest_tokens: np.ndarray

    @property
    def asked(self) -> float:
        """Tokens that the counted requests, and those that no policy can serve, owe at least [tokens]."""
        return float(self.output.sum()) + self.lost

    def of(self, part: np.ndarray) -> Demand:
        """Some of the counted requests alone.

        Args:
            part: their places among the counted, shape (k,).

        Returns:
            Demand, with nobody given away or lost.
        """
        rows = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if not f.name.startswith("earliest")}
        counted = {name: row[part] for name, row in rows.items() if isinstance(row, np.ndarray)}
        return dataclasses.replace(self, **counted, given=0.0, given_requests=0, lost=0.0, lost_requests=0)


def demand_of(
    workload: Workload,
    targets: tuple[Target, ...],
    limits: Limits,
    below: Envelope,
    least: dict[bool, float],
    cut_s: float,
    factors: dict[bool, np.ndarray] | None = None,
) -> Demand:
    """Sort the requests of a workload, and take down what each needs at least.

    Counted: those whose client waits, who wait for nobody, and who are due whole before the cut. Given away, all tokens on
    time at no cost: the others; a request that costs nothing can only raise the share. Lost: what can never fit, or whose first token
    cannot come in time even alone.

    Args:
        workload: requests.
        targets: one per class.
        limits: of the engine.
        below: planes below the plant.
        least: smallest noise factor of decode-only steps (False) and of steps with prefill (True).
        cut_s: end of a run of fixed length; 0 for none [s].
        factors: noise of every step, by regime, shape (k,); None where only the smallest is known.

    Returns:
        Demand.
    """
    a, T, L = workload.arrival_s.astype(float), workload.prompt_tokens.astype(float), workload.output_tokens.astype(float)
    of = lambda name: np.array([getattr(t, name) for t in targets])[workload.class_id]  # noqa: E731
    budget, ttft, itl, transport = (of(n) for n in ("budget_s", "first_token_s", "itl_s", "transport_s"))
    hit, cached = hits(workload, limits)
    extra = below.extra_s(T, hit)
    first, step, work, steady = _least_times(T, L, T - hit, extra, cached, limits, below, least)
    due = a + ttft * EXACT
    lag = np.where(cut_s > 0, transport, 0.0)
    follows = np.zeros(len(a), bool) if workload.after is None else workload.after >= 0
    leaves = _finite(workload.patience_s, len(a)) | _finite(workload.cancel_s, len(a))
    absent = (a > cut_s) & ~follows if cut_s > 0 else np.zeros(len(a), bool)
    late_cut = due + lag + (L - 1) * np.maximum(budget * EXACT, itl) > cut_s if cut_s > 0 else np.zeros(len(a), bool)
    never = (limits.max_len < T + L) | (np.ceil((T + L) / limits.block_tokens) > limits.blocks)
    hopeless = (a + first > due) & ~leaves if cut_s == 0 else np.zeros(len(a), bool)
    lost = (never | hopeless) & ~follows & ~absent
    given = (follows | leaves | late_cut) & ~absent & ~lost
    i = np.flatnonzero(~given & ~lost & ~absent)
    stream = (L - 1) * step if factors is None else _stream_s(L - 1, work, below, factors)
    soonest = earliest_arrivals(workload) + first + np.where(given, 0.0, stream)
    there = ~lost & ~absent
    relief = np.where(transport > 0, itl / budget + 1.0, 1.0)
    return Demand(
        rows=i,
        arrival_s=a[i],
        due_s=due[i],
        budget_s=budget[i] * EXACT,
        itl_s=itl[i],
        lag_s=lag[i],
        relief=relief[i],
        prompt=T[i],
        tokens=(T - hit)[i],
        extra_s=extra[i],
        output=L[i],
        first_s=first[i],
        step_s=step[i],
        stream_s=stream[i],
        steady=steady[i],
        given=float(L[given].sum()),
        given_requests=int(given.sum()),
        lost=float(L[lost].sum()),
        lost_requests=int(lost.sum()),
        earliest_s=soonest[there],
        earliest_tokens=L[there],
    )


def hits(workload: Workload, limits: Limits) -> tuple[np.ndarray, bool]:
    """Prompt tokens that a prefix cache may spare each request, at most: leading units that others begin with as well.

    Args:
        workload: requests.
        limits: of the engine.

    Returns:
        (shape (n,) [tokens], whether the cache may hold a request's own prompt when it comes back after a preemption).
    """
    T = workload.prompt_tokens.astype(float)
    if workload.prefix is None or limits.prefix_cache != "on" or not len(workload.prefix.ids):
        return np.zeros(len(T)), False
    start, ids = workload.prefix.start, workload.prefix.ids
    shared = np.bincount(ids)[ids] > 1
    units = np.array([int(np.argmin(np.append(shared[a:b], False))) for a, b in pairwise(start)])
    return np.minimum(units * float(workload.prefix.unit_tokens), T - 1), True


def earliest_arrivals(workload: Workload) -> np.ndarray:
    """When each request can come at the earliest: one that waits for another's end, once that one came.

    Args:
        workload: requests.

    Returns:
        Shape (n,) [s].
    """
    come = workload.arrival_s.astype(float).copy()
    if workload.after is not None and workload.think_s is not None:
        for i in np.flatnonzero(workload.after >= 0):
            come[i] = come[workload.after[i]] + workload.think_s[i]
    return come


def _stream_s(steps: np.ndarray, work_s: np.ndarray, below: Envelope, factors: dict[bool, np.ndarray]) -> np.ndarray:
    """Least time of so many steps in a row: the quickest run of floors that the factors hold, and in each step the work of one decode."""
    floors = {kind.mixed: math.inf for kind in below.kinds}
    for kind in below.kinds:
        floors[kind.mixed] = min(floors[kind.mixed], float(kind.planes[:, FLOOR].min()))
    quickest = np.min([floor * factors[mixed] for mixed, floor in floors.items()], axis=0)
    rounds = int(steps.max(initial=0.0)) // len(quickest) + 2
    total = np.concatenate([[0.0], np.cumsum(np.tile(quickest, rounds))])
    found = {k: float(np.min(total[k : k + len(quickest)] - total[: len(quickest)])) for k in np.unique(steps.astype(int)).tolist()}
    return np.array([found[int(k)] for k in steps]) + steps * work_s


def _finite(times_s: np.ndarray | None, n: int) -> np.ndarray:
    return np.zeros(n, bool) if times_s is None else np.isfinite(times_s)


def _least_times(
    T: np.ndarray,
    L: np.ndarray,
    tokens: np.ndarray,
    extra: np.ndarray,
    cached: bool,
    limits: Limits,
    below: Envelope,
    least: dict[bool, float],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Least time to a first token, of a step that decodes, and of the decode in it; whether a later token costs at least one decode.

    After a preemption a token comes out at the end of recomputing all before it. That is the dearer way unless a prompt
    token costs less than a decode, or the prefix cache holds what was computed.
    """
    planes = [(k.mixed, least[k.mixed] * row) for k in below.kinds for row in k.planes]
    prompts = np.array([row for mixed, row in planes if mixed])
    floor, per_token, factor = (prompts[:, c].min() for c in (FLOOR, PER_PREFILL, EXTRA))
    first = np.ceil(tokens / limits.max_tokens) * floor + per_token * tokens + factor * extra
    steady = np.ones(len(T), bool)
    for row in prompts:
        again = row[PER_PREFILL] * (1.0 if cached else 1.0 + T) + row[EXTRA] * below.per_prompt_s
        steady &= again >= row[PER_DECODE] + row[PER_KV] * (T + (L if cached else 1.0))
        steady &= cached | (row[PER_PREFILL] >= row[PER_KV])
    step, work = np.full(len(T), math.inf), np.full(len(T), math.inf)
    for _, row in planes:
        decode = np.where(steady, row[PER_DECODE] + row[PER_KV] * T, 0.0)
        step, work = np.minimum(step, row[FLOOR] + decode), np.minimum(work, decode)
    return first, np.maximum(step, 1e-7), work, steady
