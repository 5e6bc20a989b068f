"""Who goes first in the second scheduler, and who is turned away, for the tests alone: the rate, the keys, the shares."""

from __future__ import annotations

import math
from collections import Counter

from headway.controllers.policy import Policy
from headway.models.signals import Limits
from tests.reference_cache import Cache
from tests.reference_requests import Request
from tests.reference_schedule import Gains


class Order:
    """Keys and verdicts under one policy. `rate_tps` is measured, `used_tps` is what estimates are made with, `gains` are in force,
    but for the aging rate, which is that of all keys until all are made anew."""

    def __init__(self, policy: Policy, limits: Limits, cache: Cache, gains: Gains, rate_tps: float) -> None:
        self.policy, self.limits, self.cache, self.gains = policy, limits, cache, gains
        self.rate_tps = self.used_tps = rate_tps
        self.aging_rate = gains.aging_rate
        self.renewed_at = 0
        self.deficit = [0.0] * len(gains.weights)
        self.arrivals: Counter[int] = Counter()
        self.shed: Counter[int] = Counter()

    @property
    def chunk_cap(self) -> int:
        return self.gains.chunk_cap

    @property
    def weights(self) -> tuple[float, ...]:
        return self.gains.weights

    def renew_gains(self, r: Request) -> None:
        """The key of one that waits goes by the gains of now."""
        r.gains = self.gains

    def gains_of(self, r: Request) -> Gains:
        """Of one that waits those of when its key was taken, else those in force."""
        return r.gains if r.status == "waiting" and r.gains is not None else self.gains

    def renew_rate(self, waiting: list[Request], step: int) -> None:
        """The measured rate is used once it is more than 5 % off, and the aging rate of the load once it is .01 off, but not soon
        again; who waits is then looked up anew."""
        off = abs(self.rate_tps - self.used_tps) > 0.05 * self.used_tps or abs(self.gains.aging_rate - self.aging_rate) > 0.01
        if off and step - self.renewed_at >= max(32, len(waiting)):
            self.used_tps, self.renewed_at = self.rate_tps, step
            self.aging_rate = self.gains.aging_rate
            for r in waiting:
                self.look_up(r)

    def look_up(self, r: Request) -> None:
        """What a request's key counts on to be cached: nothing once it was begun."""
        r.hit = 0 if r.begun else len(self.cache.lookup(r)) * self.cache.unit_tokens
        r.deferred = False
        self.renew_gains(r)

    def measure(self, prompt_tokens: int, step_time_s: float) -> None:
        if prompt_tokens >= 64:
            self.rate_tps += 0.02 * (prompt_tokens / step_time_s - self.rate_tps)

    def ttft_s(self, r: Request) -> float:
        return r.target.first_token_s * (self.policy.degrade if r.degraded else 1.0)

    def estimate_s(self, r: Request) -> float:
        """Expected time to the first token from now on."""
        setpoint_s, chunk_cap = self.gains_of(r).setpoint_s, self.gains_of(r).chunk_cap
        carried = max(1.0, min(self.used_tps * setpoint_s, self.limits.max_tokens, chunk_cap))
        steps = math.ceil((r.to_compute - r.computed - r.hit) / carried) + (self.limits.first_token == "next_step")
        return self.own(self.policy.estimate, r) * steps * setpoint_s

    def own(self, numbers: float | tuple[float, ...], r: Request) -> float:
        """The number of a request's class, where each has its own."""
        return float(numbers[r.kind]) if isinstance(numbers, tuple) else float(numbers)

    def infeasible_from_s(self, r: Request) -> float:
        return r.arrival_s + self.ttft_s(r) * (1 + self.own(self.policy.tolerance, r)) - self.estimate_s(r)

    def infeasible(self, r: Request, now_s: float) -> bool:
        return now_s > self.infeasible_from_s(r)

    def over_s(self, r: Request) -> float:
        """When the wait of one that was never begun is over, by its own targets if it was degraded; infinite where triage does not act."""
        if self.policy.triage == "timeout":
            return r.arrival_s + self.policy.timeout * r.target.first_token_s
        return self.infeasible_from_s(r) if self.policy.triage in ("reject", "degrade") else math.inf

    def triage(self, waiting: list[Request], now_s: float) -> list[tuple[Request, str]]:
        """Who of those that were never begun is shed, with its status, the longest overdue first. Who would exceed the cap of its class
        is spared, for good; who is infeasible for the first time is degraded instead, or, begun or not, deferred."""
        shed: list[tuple[Request, str]] = []
        left = [r for r in waiting if not r.begun and not r.spared]
        while over := [r for r in left if now_s > self.over_s(r)]:
            r = min(over, key=lambda r: (self.over_s(r), r.number))
            if self.policy.triage == "degrade" and not r.degraded:
                r.degraded = True
                self.renew_gains(r)
                continue
            left.remove(r)
            if self.shed[r.kind] + 1 <= self.policy.shed_cap * self.arrivals[r.kind]:
                self.shed[r.kind] += 1
                shed.append((r, "expired" if self.policy.triage == "timeout" else "rejected"))
            else:
                r.spared = True
                self.renew_gains(r)
        if self.policy.triage == "defer":
            for r in waiting:
                if not r.emitted and not r.deferred and self.infeasible(r, now_s):
                    r.deferred = True
                    self.renew_gains(r)
        return shed

    def key_s(self, r: Request) -> float:
        key = r.arrival_s + self.ttft_s(r)
        if self.policy.order == "slack":
            key = (1 + self.aging_rate) * r.arrival_s + self.ttft_s(r) - self.estimate_s(r)
        if r.status == "waiting":
            key += self.policy.memory_price_s * (self.cache.blocks_for(r.to_compute) - r.hit // self.limits.block_tokens)
        return key - self.priority_s(r)

    def priority_s(self, r: Request) -> float:
        return float(self.policy.priority_s[r.kind]) if len(self.policy.priority_s) else 0.0

    def place(self, r: Request, now_s: float) -> tuple:
        """Sorts first who goes first."""
        if r.emitted:
            return (0, 0, r.arrival_s, r.number)
        behind = bool(self.weights) and self.deficit[r.kind] > 1e-6
        deferred = r.deferred if r.status == "waiting" else self.policy.triage == "defer" and self.infeasible(r, now_s)
        last = r.degraded or r.spared or deferred
        return (1 if behind else 2, last, self.key_s(r), r.number)

    def victim(self, running: list[Request]) -> Request:
        """Who gives way: of those of the lowest priority the one admitted last."""
        lowest = min(self.priority_s(r) for r in running)
        return [r for r in running if self.priority_s(r) == lowest][-1]

    def book(self, pending: set[int], tokens: dict[int, int]) -> None:
        """What each class was due of a step's prompt tokens, and what it got."""
        total, weight = sum(tokens.values()), sum(self.weights[c] for c in pending) if self.weights else 0.0
        most = 2.0 * self.limits.max_tokens
        for c in range(len(self.weights)):
            due = self.weights[c] / weight * total if weight > 0 else 0.0
            deficit = self.deficit[c] + due - tokens.get(c, 0)
            self.deficit[c] = min(max(deficit, -most), most) if c in pending else 0.0

    def stride(self, r: Request) -> int:
        """Steps from one token of a request to the next."""
        return max(1, math.floor(self.policy.stride * r.target.budget_s / self.gains.setpoint_s))
