"""About what a scheduler that knows the workload, but not the noise, can attain: an estimate, never a bound.

The relaxation of the bound lets giant prefill steps and decodes take turns, because it does not know how many streams are alive when
a step is late. Here that number is given, as what comes out if each served stream goes on at its promised pace, and every
late step is charged to all of them: n held streams owe n f(y) late tokens for a step of y, f(y) = E floor(y z / D). It is the
steady state of a mix of step types, bin by bin. A policy that holds fewer streams at the right moments may beat it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headway.experiments.bound import relaxation_of
from headway.experiments.drawn import KILO
from headway.experiments.relaxation import Relaxation
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload

ROUNDS = 2
"""Programs solved at least: the streams held are those that the one before serves."""
MOST_ROUNDS, SETTLED = 6, 2e-3
"""Programs solved at most, until the value moves by less than this share."""
LINES = 5
"""Lines below the lateness of a step, per kind and class."""
GRID = 400
"""Step lengths at which that lateness is evaluated."""
SPARE = 1.05
"""Streams beyond those held that a step may decode, as a factor: their number is itself a mean over a bin."""
MOST_TARGETS = 4.0
"""Step lengths are looked at up to so many ITL targets; the last line goes on beyond."""


class Estimate(NamedTuple):
    """What a clairvoyant scheduler is taken to attain.

    Args:
        attainment: tokens on time / tokens owed, in [0, 1].
        served: share of each request that it serves, shape (n,): 1, 0 or between; NaN for those not counted.
        streams: alive at once at most, a mean over a bin.
        said: what it takes for granted, in sentences.
    """

    attainment: float
    served: np.ndarray
    streams: float
    said: tuple[str, ...]


def estimate(
    identified: IdentifiedPlant,
    workload: Workload,
    targets: tuple[Target, ...],
    limits: Limits,
    *,
    factors: tuple[np.ndarray, np.ndarray] | None = None,
    slower: float = 1.0,
    bin_s: float | None = None,
) -> Estimate:
    """The attainment of the best mix of steps with the streams that it holds, for a run until every request has ended.

    max (sum L x - O) / sum L over the relaxation, with O >= sum over bins of streams held times f; a late token is taken to owe one

    Args:
        identified: the plant with its residuals.
        workload: requests.
        targets: one per class.
        limits: of the engine.
        factors: noise of the run's steps, decode-only and with prefill, each of shape (k,); None for the residuals themselves. Only
            its distribution counts.
        slower: factor on all step times: a reserve, with which those who are served are served more surely.
        bin_s: width of a time bin; None chooses it [s].

    Returns:
        Estimate.

    Not a bound: it takes streams to go on at the promised pace, and a policy may do otherwise.

    Source:
        Headway's own; docs/theory.md, "The estimate".
    """
    noise = _noise(identified, factors, slower)
    mean = tuple(np.array([z.mean()]) for z in noise)
    demand, blocks = relaxation_of(identified, workload, targets, limits, factors=(mean[0], mean[1]), bin_s=bin_s, drawn=False)
    served, owed, streams = np.ones(len(demand.rows)), 0.0, 0.0
    start = 0
    for block in blocks.programs:
        held = _Held(block, noise)
        mine = slice(start, start + len(block.demand.rows))
        served[mine], late, most = held.settle()
        owed, streams, start = owed + late, max(streams, most), mine.stop
    on = float(served @ demand.output) + demand.given
    everyone = np.full(len(workload), np.nan)
    everyone[demand.rows] = served
    owing = demand.asked + demand.given
    said = ["served streams go on at their promised pace, and a late step is late for all of them; unproved, a policy may beat it"]
    if slower != 1.0:
        said.append(f"all steps take {slower:g} times as long")
    if demand.given_requests:
        said.append(f"{demand.given_requests} of {len(workload)} requests count as on time at no cost")
    return Estimate(float(np.clip((on - owed) / owing, 0.0, 1.0)) if owing > 0 else 1.0, everyone, streams, tuple(said))


def _noise(identified: IdentifiedPlant, factors: tuple[np.ndarray, np.ndarray] | None, slower: float) -> tuple[np.ndarray, np.ndarray]:
    """Factors of decode-only steps and of those with prefill, as a distribution."""
    if factors is None:
        residuals = (identified.noise.decode, identified.noise.mixed)
        factors = tuple(np.exp(r) if len(r) else np.ones(1) for r in residuals)  # pyright: ignore[reportAssignmentType]  # two of them
    assert factors is not None
    return slower * np.asarray(factors[0], float), slower * np.asarray(factors[1], float)


def lateness_lines(factors: np.ndarray, itl_s: float, budget_s: float) -> np.ndarray:
    """Lines below what a step makes each stream owe late, by its mean length y: f(y) = E [y z' > B] floor((y z' + D - B) / D), z' = z / E z.

    Args:
        factors: z, shape (k,).
        itl_s: D, target at the client [s].
        budget_s: B, longest gap at the engine that is on time [s].

    Returns:
        Edges of its lower convex hull, (slope [1/s], what is taken off), shape (m, 2); the last has slope 1/D at least.
    """
    z = np.sort(factors / factors.mean())
    if len(z) > GRID:
        z = np.quantile(z, (np.arange(GRID) + 0.5) / GRID)
    y = np.concatenate([[0.0], np.linspace(0.4 * budget_s, MOST_TARGETS * itl_s, GRID)])
    times = y[:, None] * z
    f = np.where(times > budget_s * (1 + 1e-9), np.floor((times + itl_s - budget_s) / itl_s + 1e-9), 0.0).mean(axis=1)
    hull: list[int] = []
    for i in range(len(y)):
        while len(hull) > 1 and (f[hull[-1]] - f[hull[-2]]) * (y[i] - y[hull[-2]]) >= (f[i] - f[hull[-2]]) * (y[hull[-1]] - y[hull[-2]]):
            hull.pop()
        hull.append(i)
    slope = np.diff(f[hull]) / np.diff(y[hull])
    lines = np.column_stack([slope, slope * y[hull[:-1]] - f[hull[:-1]]])[slope > 1e-6]
    if len(lines) > LINES:
        lines = lines[np.unique(np.linspace(0, len(lines) - 1, LINES).astype(int))]
    return lines


class _Held:
    """One program with the streams held, solved a few times over."""

    def __init__(self, relaxed: Relaxation, noise: tuple[np.ndarray, np.ndarray]) -> None:
        self.relaxed, self.demand = relaxed, relaxed.demand
        d, program = self.demand, relaxed.program
        n = len(d.rows)
        edges = relaxed.begin_s + relaxed.bin_s * np.arange(relaxed.bins + 1)
        first = (d.due_s + d.arrival_s + d.first_s) / 2
        last = first + (d.output - 1) * d.budget_s
        overlap = np.minimum(last[:, None], edges[None, 1:]) - np.maximum(first[:, None], edges[None, :-1])
        self.alive = np.clip(overlap / relaxed.bin_s, 0.0, 1.0)
        self._pool(edges, first)
        self.classes = sorted(set(zip(d.budget_s.tolist(), d.itl_s.tolist(), strict=True)))
        self.late = [self._lateness(budget_s, itl_s, noise) for budget_s, itl_s in self.classes]
        self.total = program.variables(1, float(relaxed.most_owed.sum()) + 1.0)
        program.rows([(np.zeros(n, int), relaxed.owed, 1.0), (np.zeros(1, int), self.total, -1.0)], 0.0, 1)

    def _pool(self, edges: np.ndarray, first: np.ndarray) -> None:
        """The cache holds the prompts and tokens of all who are alive: sum of x_i (T_i + so far) <= pool."""
        d, relaxed = self.demand, self.relaxed
        if relaxed.program.top(relaxed.streams[0]["reads"]) <= 0:
            return  # blocks are shared
        middle = (edges[:-1] + edges[1:]) / 2
        so_far = np.clip((middle[None, :] - first[:, None]) / d.budget_s[:, None], 0.0, d.output[:, None])
        i, b = np.nonzero(self.alive)
        kept = (self.alive * (d.prompt[:, None] + so_far))[i, b] / KILO
        relaxed.program.rows([(b, relaxed.served[i], kept)], relaxed.limits.kv_tokens / KILO, relaxed.bins)

    def _lateness(self, budget_s: float, itl_s: float, noise: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """What each stream of a class owes late, per bin: of its steps, or of the time in which there were none."""
        relaxed, program, at = self.relaxed, self.relaxed.program, np.arange(self.relaxed.bins)
        most = relaxed.bin_s / itl_s * MOST_TARGETS
        late = program.variables(relaxed.bins, most)
        terms: list[Any] = [(at, late, -1.0)]
        for kind, v in relaxed.kinds:
            part = program.variables(relaxed.bins, most)
            for slope, less in lateness_lines(noise[int(kind.mixed)], itl_s, budget_s):
                program.rows([(at, v["seconds"], slope), (at, v["steps"], -less), (at, part, -1.0)], 0.0, relaxed.bins)
            terms.append((at, part, 1.0))
        program.rows(terms, 0.0, relaxed.bins)
        steps: list[Any] = [(at, v["steps"], -budget_s / itl_s) for _, v in relaxed.kinds]
        program.rows([*steps, (at, late, -1.0)], -relaxed.bin_s / itl_s, relaxed.bins)
        return late

    def settle(self) -> tuple[np.ndarray, float, float]:
        """(share of each request served, tokens owed late, most streams held)."""
        d, program = self.demand, self.relaxed.program
        served, held = np.ones(len(d.rows)), None
        owed, most, worth, values = 0.0, 0.0, np.zeros(program.size), [np.inf]
        worth[self.relaxed.served], worth[self.total] = d.output, -1.0
        while len(d.rows) and len(values) <= MOST_ROUNDS:
            now = [served @ (self.alive * ((d.budget_s == b) & (d.itl_s == D))[:, None]) for b, D in self.classes]
            held = now if held is None else [(a + b) / 2 for a, b in zip(held, now, strict=True)]
            mark = program.mark()
            self._hold(held)
            found = program.largest(worth)
            program.forget(mark)
            served, owed, most = found.point[self.relaxed.served], float(found.point[self.total[0]]), float(np.sum(held, axis=0).max())
            values.append(found.value)
            if len(values) > ROUNDS and abs(values[-1] - values[-2]) <= SETTLED * d.asked:
                break
        return served, owed, most

    def _hold(self, held: list[np.ndarray]) -> None:
        """Rows that charge every late step to the streams held, and let steps decode no more than these."""
        relaxed, program, at = self.relaxed, self.relaxed.program, np.arange(self.relaxed.bins)
        none = np.zeros(relaxed.bins, int)
        terms: list[Any] = [(none, late, streams) for late, streams in zip(self.late, held, strict=True)]
        program.rows([*terms, (np.zeros(1, int), self.total, -1.0)], 0.0, 1)
        most = np.minimum(SPARE * np.sum(held, axis=0) + 1.0, relaxed.limits.max_seqs)
        for v in relaxed.streams:
            program.rows([(at, v["decodes"], 1.0), (at, v["steps"], -most)], 0.0, relaxed.bins)
