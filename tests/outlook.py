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

    def __init__(self, policy: Policy, limits: Limits, decode_time_s: Callable[[float, float], float]) -> None:
        self.policy, self.decode_time_s, self.block = policy, decode_time_s, limits.block_tokens
        self.usable = limits.blocks - math.ceil(limits.watermark * limits.blocks)
        self.horizon = [policy.lookahead_steps * k / 7 for k in range(8)] if policy.admission == "lookahead" else [0.0]
        self.ended: dict[int, list[int]] = {}
        self.survival: dict[int, list[float]] = {}
        self.streams: list[Stream] = []
        self.made_at, self.preempted, self.ended_since = -math.inf, 0, 0

    def end(self, output: int, kind: int) -> None:
        self.ended.setdefault(kind, []).append(output)
        self.ended_since += 1

    def renew(self, step: int, preempted: int, running: list[Stream]) -> None:
        age = step - self.made_at
        if age >= 16 or preempted != self.preempted or (self.ended_since and age >= len(running) / 64):
            self.made_at, self.preempted, self.ended_since = step, preempted, 0
            self.streams = running
            self.survival = {kind: self.estimate(kind) for kind in range(8)}

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
        everybody = [*self.streams, stream]
        for h in self.horizon:
            stays = [self.reach(s.kind, s.emitted + 1 + h) / self.reach(s.kind, s.emitted + 1) for s in everybody]
            read = [s.context + h for s in everybody]
            mean = sum(p * c for p, c in zip(stays, read, strict=True))
            deviation = math.sqrt(sum(p * (1 - p) * c * c for p, c in zip(stays, read, strict=True)))
            cache = min(mean + self.policy.lookahead_z * deviation, sum(read))
            if (cache + sum(stays) * (self.block - 1)) / self.block > self.usable or self.decode_time_s(sum(stays), cache) > limit_s:
                return False
        return True

    def join(self, stream: Stream) -> None:
        self.streams.append(stream)
