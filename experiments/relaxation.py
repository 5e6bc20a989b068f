"""The linear program that every run of every policy satisfies; docs/theory.md, "The bound", proves it row by row.

Time is cut into bins. What a step does is spread evenly over its duration, so that a bin holds no more than its own length of
work. A request is served, x in [0, 1], or not; a served one has its prompt computed between arrival and due time, and goes on by
at least a token per ITL target, or owes tokens late.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, final

import numpy as np

from headway.experiments.certified import Program
from headway.experiments.demand import Demand
from headway.experiments.drawn import KILO, Steps, hold_floors, hold_work
from headway.experiments.envelope import EXTRA, FLOOR, PER_DECODE, PER_KV, PER_PREFILL, Envelope, StepKind
from headway.models.signals import Limits

BINS, WINDOW_BINS = 240, 2
"""Bins of a run, at most about; and of the time that a prompt has. Twice as many move the bound by .002, at three times the cost."""
SURE = 1e-6
"""Windows are widened by this part of a bin, against rounding."""


class Best(NamedTuple):
    """Where the best relaxed schedule ends.

    Args:
        value: no run exceeds it.
        served: share of each counted request that is served, shape (n,), in [0, 1].
        owed: tokens owed beside those that everybody owes in any case [tokens].
    """

    value: float
    served: np.ndarray
    owed: float


@final
class Relaxation:
    """The program of one workload, to be asked for several objectives."""

    def __init__(
        self,
        demand: Demand,
        below: Envelope,
        limits: Limits,
        least: dict[bool, float],
        cut_s: float,
        *,
        factors: dict[bool, np.ndarray] | None = None,
        shared: bool = False,
        apart: bool = False,
        bin_s: float | None = None,
    ) -> None:
        """Put the program together.

        Args:
            demand: what the requests need.
            below: planes below the plant.
            limits: of the engine.
            least: smallest noise factor, by whether the step has prefill.
            cut_s: end of a run of fixed length; 0 for none [s].
            factors: noise of every step of this very run, by regime, shape (k,); None where only the smallest is known.
            shared: whether cache blocks are shared between requests.
            apart: whether prompts have an engine of their own.
            bin_s: width of a bin; None chooses it [s].
        """
        self.demand, self.below, self.limits, self.least, self.cut_s = demand, below, limits, least, cut_s
        d, n = demand, len(demand.rows)
        self.begin_s = float(d.arrival_s.min()) if n else 0.0
        end_s = cut_s if cut_s > 0 else float((d.due_s + d.output * d.budget_s).max()) if n else 1.0
        span_s = max(end_s - self.begin_s, 1e-6)
        window_s = float(np.quantile(d.due_s - d.arrival_s, 0.1)) if n else span_s
        wanted_s = bin_s if bin_s is not None else max(span_s / BINS, min(window_s / WINDOW_BINS, span_s / 16))
        self.bins = max(1, math.ceil(span_s / wanted_s - 1e-9))
        self.bin_s = span_s / self.bins
        self.program = Program()
        # late-owed tokens above these limits are never needed: every row that holds them is met there
        self.most_owed = np.maximum(d.output * np.ceil(d.step_s / d.itl_s), span_s / d.itl_s)
        self.served = self.program.variables(n, np.where(d.arrival_s + d.first_s > d.due_s, 0.0, 1.0))
        self.owed = self.program.variables(n, self.most_owed)
        self.late_first = self.program.variables(n if cut_s > 0 else 0, 1.0)
        self._steps(shared, apart)
        self._prompts()
        self._pace()
        self._work()
        self._stalls()
        if factors is not None:
            longest, span_s = float(d.prompt.max(initial=1.0)), self.bins * self.bin_s
            steps = Steps(self.program, self.kinds, least, self.total_steps, self.most_steps, span_s, below, limits, longest)
            hold_floors(steps, factors)
            hold_work(steps, factors)

    def tokens(self, price: float) -> Best:
        """The most of: tokens of served requests, less a price on all that is owed.

        Args:
            price: of an owed token.

        Returns:
            Best; its value includes the tokens that served and lost requests owe in any case.
        """
        worth, spared = np.zeros(self.program.size), (self.demand.output - 1)[: len(self.late_first)]
        worth[self.served] = self.demand.output
        worth[self.owed] = -price
        worth[self.late_first] = price * spared
        found = self.program.largest(worth)
        owed = float(found.point[self.owed].sum() - found.point[self.late_first] @ spared)
        return Best(found.value - price * self.demand.asked, found.point[self.served], owed)

    def requests(self, late_share: float) -> float:
        """The most requests that are served and owe no more late than a share of their tokens.

        Args:
            late_share: of the owed tokens that may be late.

        Returns:
            Their number.
        """
        worth = np.zeros(self.program.size)
        worth[self.served] = 1.0
        most = np.floor(late_share * self.demand.output / (1 - late_share) + 1e-9)
        return self.program.largest(worth, dict(zip(self.owed.tolist(), most.tolist(), strict=True))).value

    def _bin(self, time_s: np.ndarray, *, up: bool = False) -> np.ndarray:
        """Bin edges around a time, outward: the last one not after it, or the first one not before it."""
        place = (time_s - self.begin_s) / self.bin_s
        edge = np.ceil(place - SURE) if up else np.floor(place + SURE)
        edge = edge + (1 if up else -1) * (np.abs(place - np.round(place)) < SURE)
        return np.clip(edge.astype(int), 0, self.bins)

    def _steps(self, shared: bool, apart: bool) -> None:
        """Steps by kind and bin: their number, decodes, cache reads, prompt tokens and seconds, within what a step can hold."""
        program, b, at = self.program, self.bins, np.arange(self.bins)
        self.kinds: list[tuple[StepKind, dict[str, np.ndarray]]] = []
        time: list[list[Any]] = [[], []]
        for kind, decodes, prompts in self._engines(apart):
            z, floor = self.least[kind.mixed], float(kind.planes[:, FLOOR].min())
            most = self.bin_s / max(z * floor, 1e-6)
            v = {"steps": program.variables(b, most), "decodes": program.variables(b, most * kind.most_decodes * decodes)}
            v["reads"] = program.variables(b, most * self.limits.kv_tokens / KILO if not shared else 0.0)
            v["prefill"] = program.variables(b, most * kind.most_tokens * prompts)
            v["extra"] = program.variables(b, self.bin_s / z * prompts)
            v["seconds"], v["floors"] = program.variables(b, self.bin_s), program.variables(b, z * most)
            program.rows([(at, v["decodes"], 1.0), (at, v["steps"], -kind.most_decodes)], 0.0, b)
            program.rows([(at, v["decodes"], 1.0), (at, v["prefill"], 1.0), (at, v["steps"], -kind.most_tokens)], 0.0, b)
            if not shared:
                program.rows([(at, v["reads"], 1.0), (at, v["steps"], -self.limits.kv_tokens / KILO)], 0.0, b)
            program.rows([(at, v["steps"], z), (at, v["floors"], -1.0)], 0.0, b)
            for row in kind.planes:
                terms = [(at, v["floors"], row[FLOOR]), (at, v["decodes"], z * row[PER_DECODE]), (at, v["reads"], z * row[PER_KV] * KILO)]
                terms += [(at, v["prefill"], z * row[PER_PREFILL]), (at, v["extra"], z * row[EXTRA]), (at, v["seconds"], -1.0)]
                program.rows(terms, 0.0, b)
            time[0 if decodes else 1].append((at, v["seconds"], 1.0))
            self.kinds.append((kind, v))
            self.streams += [v] if decodes else []
        self.spare = program.variables(b if self.cut_s > 0 else 0, self.bin_s)
        if self.cut_s > 0:
            time[-1 if apart else 0].append((at, self.spare, 1.0))
        for engine in time:
            if engine:
                program.rows(engine, self.bin_s, b)

    def _engines(self, apart: bool) -> Iterator[tuple[StepKind, bool, bool]]:
        """Kinds of steps, and whether streams and whether prompts are in them."""
        self.streams: list[dict[str, np.ndarray]] = []
        plain = any(not kind.mixed for kind in self.below.kinds)
        for kind in self.below.kinds:
            if not apart:
                yield kind, True, kind.mixed
            else:
                if not (kind.mixed and plain):
                    yield kind, True, False
                if kind.mixed:
                    yield kind, False, True

    def _prompts(self) -> None:
        """The prompt of a served request is computed between its arrival and its due time."""
        d, program, n = self.demand, self.program, len(self.demand.rows)
        first, last = self._bin(d.arrival_s), np.maximum(self._bin(d.due_s, up=True), self._bin(d.arrival_s) + 1)
        last = np.minimum(last, self.bins)
        width = last - first
        row = np.repeat(np.arange(n), width)
        at = np.arange(len(row)) - np.repeat(np.cumsum(width) - width, width) + first[row]
        bins = np.arange(self.bins)
        for need, name in ((d.tokens, "prefill"), (d.extra_s, "extra")):
            if need.max(initial=0.0) <= 0:
                continue
            part = program.variables(len(row), need[row])
            program.rows([(row, part, -1.0), (np.arange(n), self.served, need)], 0.0, n)
            of_steps = [(bins, v[name], -1.0) for _, v in self.kinds]
            program.rows([(at, part, 1.0), *of_steps], 0.0, self.bins)
        if self.cut_s > 0:  # a first token just before the cut, too late, leaves its request owing less than all
            planes = [self.least[k.mixed] * row for k in self.below.kinds if k.mixed for row in k.planes]
            cheap = [min(float(row[c]) for row in planes) for c in (PER_PREFILL, EXTRA)]
            cost = cheap[0] * d.tokens + cheap[1] * d.extra_s
            none = np.zeros(n, int)
            program.rows([(none, self.late_first, cost), (np.zeros(self.bins, int), self.spare, -1.0)], 0.0, 1)
            rows = np.arange(n)
            program.rows([(rows, self.late_first, 1.0), (rows, self.served, 1.0)], 1.0, n)

    def _sum(self, name: str, most: float) -> np.ndarray:
        """Running sum over the bins of what the steps of the streams' engine hold."""
        at, total = np.arange(self.bins), self.program.variables(self.bins, most)
        terms: list[Any] = [(at, v[name], 1.0) for v in self.streams]
        terms += [(at, total, -1.0), (at[1:], total[:-1], 1.0)]
        self.program.rows(terms, 0.0, self.bins, equal=True)
        return total

    def _due(self, time_s: np.ndarray) -> np.ndarray:
        """Tokens after the first that each request must have by a time, one row per request, times as columns."""
        d = self.demand
        passed = np.floor((time_s - (d.due_s + d.lag_s)[:, None]) / d.budget_s[:, None] * (1 - 1e-9))
        return np.clip(passed, 0.0, np.maximum(d.output - 1, 0.0)[:, None])

    def _pace(self) -> None:
        """A served request needs its steps in time, whatever they hold: K(arrival + e, t) >= due tokens x - relief O."""
        d = self.demand
        quickest = min(self.least[k.mixed] * float(k.planes[:, FLOOR].min()) for k in self.below.kinds)
        self.most_steps = self.bins * self.bin_s / max(quickest, 1e-6)
        self.total_steps = total = self._sum("steps", self.most_steps)
        length = np.maximum(d.output - 1, 0.0)
        before = np.ceil(np.maximum(d.due_s - d.arrival_s - d.first_s, 0.0) / d.step_s) + 1
        for start_s, wanted, less in (
            (d.arrival_s + d.first_s, length, 0.0),
            (d.arrival_s + d.first_s, np.ceil(length / 2), 0.0),
            (d.due_s, length - before, 1.0),
            (d.due_s, np.ceil((length - before) / 2), 1.0),
        ):
            end_s = np.minimum(d.due_s + d.lag_s + np.maximum(wanted, 0.0) * d.budget_s, self.begin_s + self.bins * self.bin_s)
            due = np.floor((end_s - d.due_s - d.lag_s) / d.budget_s + 1e-9)
            need = np.minimum(np.maximum(due, 0.0), wanted) - less
            i = np.flatnonzero(need >= 1)
            first, last = self._bin(start_s[i]), self._bin(end_s[i] * (1 + 1e-12), up=True)
            rows, some = np.arange(len(i)), first > 0
            terms = [(rows, self.served[i], need[i]), (rows, self.owed[i], -d.relief[i]), (rows, total[last - 1], -1.0)]
            terms.append((rows[some], total[first[some] - 1], 1.0))
            self.program.rows(terms, 0.0, len(i))

    def _stalls(self) -> None:
        """A step longer than the promise makes everybody late who is a stream meanwhile, decoded in it or not.

        O >= sum of (y - B) / D over the steps of [due, arrival + e + least length of the stream]
        """
        d, program, at = self.demand, self.program, np.arange(self.bins)
        if self.cut_s > 0:  # what is owed of a stream that stalls until the cut is capped, so the rows would not hold
            return
        hurried = np.where(d.step_s > d.budget_s, np.floor((d.step_s + d.itl_s) / d.itl_s - d.budget_s / d.itl_s), 0.0)
        i = np.flatnonzero((hurried > 0) & (d.output > 1))  # not one gap of theirs can be on time
        rows = np.arange(len(i))
        program.rows([(rows, self.served[i], hurried[i] * (d.output[i] - 1)), (rows, self.owed[i], -1.0)], 0.0, len(i))
        for budget_s, itl_s in sorted(set(zip(d.budget_s.tolist(), d.itl_s.tolist(), strict=True))):
            mine = (d.budget_s == budget_s) & (d.itl_s == itl_s)
            end_s = np.minimum(d.arrival_s + d.first_s + d.stream_s, self.begin_s + self.bins * self.bin_s)
            first = np.ceil((d.due_s - self.begin_s) / self.bin_s + SURE).astype(int)
            last = np.floor((end_s - self.begin_s) / self.bin_s - SURE).astype(int)
            i = np.flatnonzero(mine & (first >= 0) & (last > first))
            if not len(i):
                continue
            total, terms = program.variables(self.bins, self.bins * self.bin_s / itl_s), []
            for v in self.streams:
                over = program.variables(self.bins, self.bin_s / itl_s)
                program.rows([(at, v["seconds"], 1 / itl_s), (at, v["steps"], -budget_s / itl_s), (at, over, -1.0)], 0.0, self.bins)
                terms.append((at, over, 1.0))
            program.rows([*terms, (at, total, -1.0), (at[1:], total[:-1], 1.0)], 0.0, self.bins, equal=True)
            rows, some, most = np.arange(len(i)), first[i] > 0, (last[i] - first[i]) * self.bin_s / itl_s
            terms = [(rows, total[last[i] - 1], 1.0), (rows, self.owed[i], -1.0), (rows, self.served[i], most)]
            terms.append((rows[some], total[first[i][some] - 1], -1.0))
            program.rows(terms, most, len(i))

    def _work(self) -> None:
        """Decodes and their cache reads come no later than the promise wants them, and no earlier than the request can."""
        d = self.demand
        edges = self.begin_s + self.bin_s * np.arange(1, self.bins + 1)
        low = self._due(edges[None, :] * (1 - 1e-12)) * d.steady[:, None]
        can = np.floor((edges[None, :] * (1 + 1e-12) - (d.arrival_s + d.first_s)[:, None]) / d.step_s[:, None]) + 1
        high = np.clip(can, 0.0, np.maximum(d.output - 1, 0.0)[:, None]) * d.steady[:, None]
        reads = lambda m: (d.prompt[:, None] * m + m * (m + 1) / 2) / KILO  # noqa: E731
        relief = d.relief * d.steady
        self._between("decodes", low, high, relief)
        if any(kind.planes[:, PER_KV].max() > 0 for kind in self.below.kinds) or self.limits.kv_tokens < 1e6:
            self._between("reads", reads(low), reads(high), relief * (d.prompt + d.output) / KILO)

    def _between(self, name: str, low: np.ndarray, high: np.ndarray, relief: np.ndarray) -> None:
        """Keep a running sum between what the served must and what they can have had, both as running sums themselves."""
        if any(self._fixed(v[name]) for v in self.streams):
            return
        program, at, most = self.program, np.arange(self.bins), float(np.maximum(high, low)[:, -1].sum()) + 1.0
        total = self._sum(name, 2 * most)
        must, can = program.variables(self.bins, most), program.variables(self.bins, most)
        eased = program.variables(self.bins, float((relief * self.most_owed).sum()) + 1.0)
        for of, rows in ((must, low), (can, high)):
            rise = np.diff(rows, axis=1, prepend=0.0)
            i, b = np.nonzero(rise)
            program.rows([(b, self.served[i], rise[i, b]), (at, of, -1.0), (at[1:], of[:-1], 1.0)], 0.0, self.bins, equal=True)
        i = np.flatnonzero(low[:, -1] > 0)
        b = np.argmax(low[i] > 0, axis=1)
        program.rows([(b, self.owed[i], relief[i]), (at, eased, -1.0), (at[1:], eased[:-1], 1.0)], 0.0, self.bins, equal=True)
        program.rows([(at, must, 1.0), (at, eased, -1.0), (at, total, -1.0)], 0.0, self.bins)
        program.rows([(at, total, 1.0), (at, can, -1.0)], 0.0, self.bins)

    def _fixed(self, variables: np.ndarray) -> bool:
        """Whether variables may be nothing but 0, as reads of shared blocks."""
        return self.program.top(variables) <= 0.0
