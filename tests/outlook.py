"""A second model-predictive admission, for the tests alone: written from what the documentation of the first says.

Every figure is a sum over a list, taken anew from the lengths that ended and the requests that run.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise

from headway.controllers.policy import Policy
from headway.models.signals import Limits

STARTS = [*range(16), *(2**k + m * 2 ** (k - 3) for k in range(4, 20) for m in range(8))]
"""Where the bins of output lengths begin: every token up to 16, then eighths of a doubling, up to a million."""

REMEMBERED = 0.9995


@dataclasses.dataclass
class Stream:
    """A request as admission sees it."""

    context: int
    emitted: int
    kind: int


class Outlook:
    """What admission expects of those who run, and knows of how long outputs are."""

    def __init__(self, policy: Policy, limits: Limits, kinds: int, decode_time_s: Callable[[float, float], float]) -> None:
        self.policy, self.decode_time_s, self.block = policy, decode_time_s, limits.block_tokens
        self.kinds = kinds
        self.usable = limits.blocks - math.ceil(limits.watermark * limits.blocks)
        self.horizon = [policy.lookahead_steps * k / 7 for k in range(8)] if policy.admission == "lookahead" else [0.0]
        self.ended: dict[int, list[int]] = {}
        self.survival: dict[int, list[float]] = {}
        self.streams: list[Stream] = []
        self.gone: list[Stream] = []
        self.made_at, self.preempted = -math.inf, 0

    def end(self, stream: Stream, step: int, *, learned: bool) -> None:
        """An output ended with the step before `step`, or its client left: it leaves as it stood when the outlook was made."""
        if learned:
            self.ended.setdefault(stream.kind, []).append(stream.emitted)
        if self.survival:
            since = min(step - int(self.made_at), stream.emitted)
            self.gone.append(Stream(stream.context - since, stream.emitted - since, stream.kind))

    def renew(self, step: int, preempted: int, running: list[Stream]) -> None:
        if step - self.made_at >= 16 or preempted != self.preempted or not running:
            self.made_at, self.preempted = step, preempted
            self.streams, self.gone = running, []
            self.survival = {kind: self.estimate(kind) for kind in range(self.kinds)}

    def assumed(self, tokens: int) -> float:
        return 1 / (1 + (max(tokens - 1, 0) / self.policy.prior_output_tokens) ** 2)

    def estimate(self, kind: int) -> list[float]:
        """Probability to reach the start of each bin: the product of one less the share of those watched that ended."""
        ended = self.ended.get(kind, [])
        weighed = [(output, REMEMBERED ** (len(ended) - 1 - k)) for k, output in enumerate(ended)]
        going = [s.emitted + 1 for s in self.streams if s.kind == kind]
        alive = [1.0]
        for low, high in pairwise(STARTS):
            stop = sum(w for output, w in weighed if low <= output < high)
            watched = sum(w for output, w in weighed if output >= low)
            watched += sum(min((tokens - low) / (high - low), 1) for tokens in going if tokens >= low)
            prior = self.policy.prior_requests
            stop += prior * (self.assumed(low) - self.assumed(high))
            alive.append(alive[-1] * (1 - stop / (prior * self.assumed(low) + watched)))
        return alive

    def reach(self, kind: int, tokens: float) -> float:
        alive = self.survival[kind]
        j = min(bisect_right(STARTS, tokens) - 1, len(STARTS) - 2)
        return alive[j] + (tokens - STARTS[j]) / (STARTS[j + 1] - STARTS[j]) * (alive[j + 1] - alive[j])

    def admits(self, stream: Stream, limit_s: float, running: int) -> bool:
        if running == 0:
            return True
        everybody = [(1, s) for s in (*self.streams, stream)] + [(-1, s) for s in self.gone]
        for h in self.horizon:
            terms = [
                (sign, self.reach(s.kind, s.emitted + 1 + h) / self.reach(s.kind, s.emitted + 1), s.context + h) for sign, s in everybody
            ]
            number = sum(sign * p for sign, p, _ in terms)
            mean = sum(sign * p * c for sign, p, c in terms)
            deviation = math.sqrt(max(sum(sign * p * (1 - p) * c * c for sign, p, c in terms), 0))
            cache = min(mean + self.policy.lookahead_z * deviation, sum(sign * c for sign, _, c in terms))
            if (cache + number * (self.block - 1)) / self.block > self.usable or self.decode_time_s(number, cache) > limit_s:
                return False
        return True

    def join(self, stream: Stream) -> None:
        self.streams.append(stream)
