"""Model-predictive admission inside an engine's process. Standard library only.

    admit while, at h_k = k H / 7, k = 0 ... 7:  F_decode(N(h), R(h)) <= limit
                                                (R(h) + N(h) (block - 1)) / block <= pool - watermark

N and R are the requests and the cache tokens expected in h steps, R with z standard deviations more, given how long
outputs were and how far the running ones are. What each symbol is: `headway.controllers.admission`, which this equals
to the last bit.

Once per step, in this order: `step` when one was executed, `ended` for every output that ended with it, `preempted` if
somebody was, and then for waiting requests in their order `admits` until one is refused, each followed by `joined` if
the engine did take it in.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from typing import Any

POINTS, AGE, MEMORY = 8, 16, 0.9995
FINE, BINS, CLASSES = 8, 144, 8
WIDTHS = [2.0 ** max(j // FINE - 1, 0) for j in range(BINS)]
EDGES = list(accumulate(WIDTHS[:-1], initial=0.0))
"""Bins of output lengths: where each begins, and how wide it is [tokens]."""
MODES = ("none", "myopic", "lookahead")


class Admission:
    """Whether a waiting request may come in now: one per engine, called from one thread.

    Args:
        decode_time_s: predicted duration of a step of n decodes that read kv cache tokens, as a function of the two [s].
        blocks: cache blocks in all.
        block_tokens: tokens in a cache block [tokens].
        watermark: share of the cache kept free when a request is admitted, in [0, 1).
        mode: "none" admits everybody, "myopic" looks at now, "lookahead" at the growth to come.
        lookahead_steps: horizon [steps].
        lookahead_z: standard deviations of cache growth that are left room for.
        prior_output_tokens: median output length assumed until outputs were seen [tokens].
        prior_requests: number of outputs seen that the assumption weighs as much as [requests].
        classes: of requests, whose outputs are learned apart; any from the eighth on count as the eighth.

    Raises:
        ValueError: an unknown mode, or a number out of its range; the message names it.
    """

    def __init__(
        self,
        decode_time_s: Callable[[float, float], float],
        blocks: int,
        block_tokens: int = 16,
        watermark: float = 0.0,
        *,
        mode: str = "lookahead",
        lookahead_steps: float = 1000.0,
        lookahead_z: float = 1.64,
        prior_output_tokens: float = 256.0,
        prior_requests: float = 8.0,
        classes: int = CLASSES,
    ) -> None:
        """Take the numbers."""
        if mode not in MODES:
            raise ValueError(f"admission must be one of {MODES}, got {mode!r}")
        for name, value, low, high in (
            ("blocks", blocks, 1.0, math.inf),
            ("block_tokens", block_tokens, 1.0, math.inf),
            ("watermark", watermark, 0.0, 1.0),
            ("lookahead_steps", lookahead_steps, 0.0, 1e5),
            ("lookahead_z", lookahead_z, 0.0, 10.0),
            ("prior_output_tokens", prior_output_tokens, 1.0, 1e6),
            ("prior_requests", prior_requests, 0.1, 1e6),
            ("classes", classes, 1.0, math.inf),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name} must be in [{low:g}, {high:g}], got {value!r}")
        self.mode, self.decode_time_s = mode, decode_time_s
        self.block, self.pool = float(block_tokens), float(blocks - math.ceil(watermark * blocks))
        self.z, self.weight, self.median = float(lookahead_z), float(prior_requests), float(prior_output_tokens)
        self.horizon = [float(lookahead_steps) * k / (POINTS - 1) for k in range(1 if mode == "myopic" else POINTS)]
        self.classes = min(classes, CLASSES)
        self.prior = [1.0 / (1.0 + (r := max(edge - 1.0, 0.0) / self.median) * r) for edge in EDGES]
        self.reset()

    @classmethod
    def from_gains(cls, data: dict[str, Any], decode_time_s: Callable[[float, float], float]) -> Admission:
        """Read the numbers from controller.json or gains.json.

        Args:
            data: its content.
            decode_time_s: predicted duration of a step of n decodes that read kv cache tokens [s].

        Returns:
            An admission that has seen nothing; mode "none" where the file names no admission.

        Raises:
            ValueError: a missing or wrong value; the message names it.
        """
        try:
            engine, given = data["engine"], data["policy"]
            blocks = int(engine["kv_tokens"]) // int(engine["block_tokens"])
            cache = blocks, int(engine["block_tokens"]), float(engine["watermark"])
            if "admission" not in given:
                return cls(decode_time_s, *cache, mode="none")
            names = ("lookahead_steps", "lookahead_z", "prior_output_tokens", "prior_requests")
            numbers = {name: float(given[name]["value"]) for name in names}
            return cls(decode_time_s, *cache, mode=given["admission"], classes=len(data["targets"]), **numbers)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"gains lack or misstate {error}; write them anew with `headway export`") from None

    def reset(self) -> None:
        """Back to an engine that has served nobody."""
        self.steps, self.until, self.broken, self.held = 0, 0, False, 0
        self._held_at = -1
        self.seen = [[0.0] * BINS for _ in range(self.classes)]
        self.alive = [[1.0] * BINS for _ in range(self.classes)]
        self.sums = [[0.0] * len(self.horizon) for _ in range(4)]

    def ended(self, prompt_tokens: float, output_tokens: float, class_id: int = 0) -> None:
        """An output ended with the last step.

        Args:
            prompt_tokens: of its request [tokens].
            output_tokens: its length [tokens].
            class_id: index into the targets.
        """
        if self.mode == "none":
            return
        row = min(class_id, self.classes - 1)
        seen = [x * MEMORY for x in self.seen[row]]
        seen[_bin(output_tokens)] += 1.0
        self.seen[row] = seen
        # taken out as it stood when the outlook was made: one token shorter for every step since
        then = max(output_tokens - (self.steps - (self.until - AGE)), 0.0)
        self._count_in(row, then, prompt_tokens + then, -1.0)

    def preempted(self) -> None:
        """Somebody was preempted: what was expected of the running requests holds no more."""
        self.broken = True

    def step(self) -> None:
        """A step was executed."""
        self.steps += 1

    def admits(
        self,
        limit_s: float,
        running: Iterable[tuple[float, float, int]],
        n_running: int,
        context_tokens: float,
        emitted_tokens: float = 0.0,
        class_id: int = 0,
    ) -> bool:
        """Whether a waiting request may come in. Where nobody runs it may: what never fits must not wait for ever.

        Args:
            limit_s: longest decode-only step that admission may lead to, budget exp(-q_decode - b) [s].
            running: (context, emitted, class) of every request that runs, read only when the outlook is made anew [tokens].
            n_running: their number.
            context_tokens: prompt of the candidate and what it emitted before it was preempted, if it was [tokens].
            emitted_tokens: the latter alone [tokens].
            class_id: index into the targets.

        Returns:
            True if so. A refusal is counted in `held`, once per step.
        """
        if self.mode == "none":
            return True
        if self.steps >= self.until or self.broken or n_running == 0:
            self._look(list(running))
        if n_running == 0 or self._fits(limit_s, context_tokens, emitted_tokens, self.alive[min(class_id, self.classes - 1)]):
            return True
        if self._held_at != self.steps:
            self._held_at, self.held = self.steps, self.held + 1
        return False

    def joined(self, context_tokens: float, emitted_tokens: float = 0.0, class_id: int = 0) -> None:
        """A request came in.

        Args:
            context_tokens: as in `admits` [tokens].
            emitted_tokens: as in `admits` [tokens].
            class_id: index into the targets.
        """
        if self.mode != "none":
            self._count_in(min(class_id, self.classes - 1), emitted_tokens, context_tokens, 1.0)

    def _count_in(self, row: int, emitted: float, context: float, sign: float) -> None:
        alive, (expected, cache, variance, stay) = self.alive[row], self.sums
        start = emitted + 1.0
        here = _reached(alive, start)
        for k, h in enumerate(self.horizon):
            s = _reached(alive, start + h) / here if here > 0.0 else 1.0
            c = context + h
            expected[k] += sign * s
            cache[k] += sign * (s * c)
            variance[k] += sign * (s * (1.0 - s) * c * c)
            stay[k] += sign * c

    def _fits(self, limit_s: float, context: float, emitted: float, alive: list[float]) -> bool:
        start = emitted + 1.0
        here = _reached(alive, start)
        for h, n, kv, variance, stay in zip(self.horizon, *self.sums, strict=True):
            s = _reached(alive, start + h) / here if here > 0.0 else 1.0
            c = context + h
            n, kv, variance = n + s, kv + s * c, variance + s * (1.0 - s) * c * c
            kv = min(kv + self.z * math.sqrt(max(variance, 0.0)), stay + c)
            if (kv + n * (self.block - 1.0)) / self.block > self.pool or self.decode_time_s(n, kv) > limit_s:
                return False
        return True

    def _look(self, running: list[tuple[float, float, int]]) -> None:
        """Survival from all that was seen, then the sums over the running requests."""
        self.until, self.broken = self.steps + AGE, False
        for row in range(self.classes):
            censored, exposed = [0.0] * BINS, [0.0] * BINS
            for _, emitted, class_id in running:
                if min(class_id, self.classes - 1) == row:
                    j = _bin(emitted + 1.0)
                    censored[j] += 1.0
                    exposed[j] += min((emitted + 1.0 - EDGES[j]) / WIDTHS[j], 1.0)
            self._survive(row, censored, exposed)
        curves = [(alive, [b - a for a, b in pairwise(alive)]) for alive in self.alive]
        rows = []
        for context, emitted, class_id in running:
            alive, rise = curves[min(class_id, self.classes - 1)]
            rows.append((context, emitted + 1.0, alive, rise, _reached(alive, emitted + 1.0)))
        self.sums = [list(column) for column in zip(*(_expected(rows, h) for h in self.horizon), strict=True)]

    def _survive(self, row: int, censored: list[float], exposed: list[float]) -> None:
        """Product over the bins of one less the share of those watched that ended."""
        seen, prior, beyond = self.seen[row], self.prior, 0.0
        for j in range(BINS - 1, -1, -1):
            exposed[j] += beyond + seen[j]
            beyond += seen[j] + censored[j]
        alive, here = [1.0], 1.0
        for j in range(BINS - 1):
            ended = (self.weight * (prior[j] - prior[j + 1]) + seen[j]) / (self.weight * prior[j] + exposed[j])
            here = here * (1.0 - ended)
            alive.append(here)
        self.alive[row] = alive


def _expected(rows: list[tuple[float, float, list[float], list[float], float]], h: float) -> tuple[float, float, float, float]:
    """Requests, cache tokens, their variance and their most in h steps. What `joined` adds, for many and without a call each."""
    n = kv = variance = stay = 0.0
    edges, widths, last, find = EDGES, WIDTHS, BINS - 2, bisect_right
    for context, start, alive, rise, here in rows:
        x = start + h
        j = find(edges, x) - 1
        into = (x - edges[j]) / widths[j]
        if j > last:
            j, into = last, 1.0
        elif into > 1.0:
            into = 1.0
        s = (alive[j] + into * rise[j]) / here if here > 0.0 else 1.0
        c = context + h
        n += s
        kv += s * c
        variance += s * (1.0 - s) * c * c
        stay += c
    return n, kv, variance, stay


def _bin(tokens: float) -> int:
    return min(bisect_right(EDGES, tokens) - 1, BINS - 2)


def _reached(alive: list[float], tokens: float) -> float:
    """Probability that an output is at least so long, linear within a bin."""
    j = min(bisect_right(EDGES, tokens) - 1, BINS - 2)
    into = min((tokens - EDGES[j]) / WIDTHS[j], 1.0)
    return alive[j] + into * (alive[j + 1] - alive[j])
