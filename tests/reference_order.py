"""Who goes first in the second scheduler, and who is turned away, for the tests alone: the rate, the keys, the shares."""

from __future__ import annotations

import math
from collections import Counter

from headway.controllers.policy import Policy
from headway.models.signals import Limits
from tests.reference_cache import Cache
from tests.reference_requests import Request


class Order:
    """Keys and verdicts under one policy. `rate_tps` is measured, `used_tps` is what estimates are made with."""

    def __init__(self, policy: Policy, limits: Limits, cache: Cache, setpoint_s: float, rate_tps: float) -> None:
        self.policy, self.limits, self.cache, self.setpoint_s = policy, limits, cache, setpoint_s
        self.rate_tps = self.used_tps = rate_tps
        self.renewed_at = 0
        self.chunk_cap = math.floor(policy.chunk_tokens) or 10**9
        self.weights = [float(w) for w in policy.class_shares]
        self.deficit = [0.0] * len(self.weights)
        self.arrivals: Counter[int] = Counter()
        self.shed: Counter[int] = Counter()

    def renew_rate(self, waiting: list[Request], step: int) -> None:
        """The measured rate is used once it is more than 5 % off, but not soon again; who waits is then looked up anew."""
        off = abs(self.rate_tps - self.used_tps) > 0.05 * self.used_tps
        if off and step - self.renewed_at >= max(32, len(waiting)):
            self.used_tps, self.renewed_at = self.rate_tps, step
            for r in waiting:
                self.look_up(r)

    def look_up(self, r: Request) -> None:
        """What a request's key counts on to be cached: nothing once it was begun."""
        r.hit = 0 if r.begun else len(self.cache.lookup(r)) * self.cache.unit_tokens

    def measure(self, prompt_tokens: int, step_time_s: float) -> None:
        if prompt_tokens >= 64:
            self.rate_tps += 0.02 * (prompt_tokens / step_time_s - self.rate_tps)

    def ttft_s(self, r: Request) -> float:
        return r.target.first_token_s * (self.policy.degrade if r.degraded else 1.0)

    def estimate_s(self, r: Request) -> float:
        """Expected time to the first token from now on."""
        carried = max(1.0, min(self.used_tps * self.setpoint_s, self.limits.max_tokens, self.chunk_cap))
        steps = math.ceil((r.to_compute - r.computed - r.hit) / carried) + (self.limits.first_token == "next_step")
        return self.own(self.policy.estimate, r) * steps * self.setpoint_s

    def own(self, numbers: float | tuple[float, ...], r: Request) -> float:
        """The number of a request's class, where each has its own."""
        return float(numbers[r.kind]) if isinstance(numbers, tuple) else float(numbers)

    def infeasible_from_s(self, r: Request) -> float:
        return r.arrival_s + self.ttft_s(r) * (1 + self.own(self.policy.tolerance, r)) - self.estimate_s(r)

    def infeasible(self, r: Request, now_s: float) -> bool:
        return now_s > self.infeasible_from_s(r)

    def over_s(self, r: Request, now_s: float) -> float:
        """When the wait of one that was never begun was over, so that triage sheds it; infinite where it is not. Degrades on the way."""
        if self.policy.triage == "timeout":
            expired_s = r.arrival_s + self.policy.timeout * r.target.first_token_s
            return expired_s if now_s > expired_s else math.inf
        if self.policy.triage not in ("reject", "degrade") or not self.infeasible(r, now_s):
            return math.inf
        if self.policy.triage == "degrade":
            r.degraded = True
        return self.infeasible_from_s(r) if self.infeasible(r, now_s) else math.inf

    def triage(self, waiting: list[Request], now_s: float) -> list[tuple[Request, str]]:
        """Who of those that were never begun is shed, with its status. Who would exceed the cap of its class is spared, for good."""
        shed: list[tuple[Request, str]] = []
        open_to_it = [(self.over_s(r, now_s), r.number, r) for r in waiting if not r.begun and not r.spared]
        for over_s, _, r in sorted(open_to_it, key=lambda one: one[:2]):
            if over_s == math.inf:
                continue
            if self.shed[r.kind] + 1 <= self.policy.shed_cap * self.arrivals[r.kind]:
                self.shed[r.kind] += 1
                shed.append((r, "expired" if self.policy.triage == "timeout" else "rejected"))
            else:
                r.spared = True
        return shed

    def key_s(self, r: Request) -> float:
        key = r.arrival_s + self.ttft_s(r)
        if self.policy.order == "slack":
            key = (1 + self.policy.aging_rate) * r.arrival_s + self.ttft_s(r) - self.estimate_s(r)
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
        last = r.degraded or r.spared or (self.policy.triage == "defer" and self.infeasible(r, now_s))
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
        return max(1, math.floor(self.policy.stride * r.target.budget_s / self.setpoint_s))
