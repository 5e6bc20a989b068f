"""Several engines of the tests side by side in time, as docs/engine.md, section 6 has them: for sessions, and for runs that are cut."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from headway.controllers.pools import Pools
from headway.controllers.simulator import Candidate
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits
from headway.models.workload import GOLDEN, Workload
from tests.reference import Reference
from tests.reference_requests import Request
from tests.reference_schedule import Load


class Replica(Reference):
    """An engine to which requests come when the others say so."""

    def __init__(self, fleet: Side, engine: tuple[IdentifiedPlant, Candidate, Limits], workload: Workload, factors: tuple) -> None:
        identified, candidate, limits = engine
        super().__init__(identified, candidate, dataclasses.replace(workload, after=None, think_s=None), fleet.targets, limits)
        self.fleet, self.factors = fleet, factors
        self.ends: list[tuple[Request, float]] = []
        self.comes_s: dict[int, float] = {}
        for r in self.requests:
            r.arrival_s = math.inf

    def clock_s(self) -> float:
        """When its next step begins."""
        if self.waiting or self.running:
            return self.now_s
        return max(self.now_s, min((r.arrival_s for r in self.requests if r.status == "future"), default=math.inf))

    def end(self, r: Request, status: str, *, ghost: bool = False) -> None:
        super().end(r, status, ghost=ghost)
        self.ends.append((r, self.now_s))

    def arrive(self, seen_s: float) -> None:
        while True:
            super().arrive(seen_s)
            for number, client_s in self.comes_s.items():
                if self.requests[number].status != "future":
                    self.requests[number].arrival_s = client_s
            self.fleet.hear(self)
            if not self.fleet.send(self.now_s):
                break


class Side:
    """The fleet: what is to come is a list of (time, 0 for an arrival and 1 for a prompt that is ready, number)."""

    def __init__(self, problem: Any, pools: Pools) -> None:
        identified, candidate, drawn, self.targets, limits = problem
        self.w, self.pools = drawn.workload, pools
        w = self.w
        decodes = candidate._replace(policy=dataclasses.replace(candidate.policy, phases="mixed"))
        noise = [self.noise(drawn, k) for k in range(pools.replicas)]
        self.prefill = [Replica(self, (identified, candidate, limits), w, noise[k]) for k in range(pools.prefill)]
        alone = dataclasses.replace(w, prefix=None)
        self.decode = [Replica(self, (identified, decodes, limits), alone, noise[pools.prefill + k]) for k in range(pools.decode)]
        if pools.decode:
            for engine in self.prefill:
                for r, output in zip(engine.requests, w.output_tokens, strict=True):
                    length = r.prompt + int(output)
                    never = length > limits.max_len or (output > 1 and engine.cache.blocks_for(length) > limits.blocks)
                    r.output = 10**9 if never else 1
        self.after = [-1] * len(w) if w.after is None else [int(a) for a in w.after]
        self.coming = [(float(w.arrival_s[i]), 0, i) for i in range(len(w)) if self.after[i] < 0]
        self.prompt_at: dict[int, int] = {}
        self.cache_at: dict[int, int] = {}
        self.link_s = [0.0] * pools.prefill
        self.rate_tps = self.prefill[0].order.rate_tps
        self.left, self.before_s = [0.0] * pools.prefill, 0.0
        self.prompts_sent, self.caches_sent = [0.0] * pools.prefill, [0.0] * pools.decode
        self.stays: list[tuple[float, int, int]] = []

    def noise(self, drawn: Any, k: int) -> tuple:
        part = (k * GOLDEN) % 1.0
        return tuple(np.roll(f, -int(part * len(f))) for f in (drawn.decode, drawn.mixed))

    def hear(self, engine: Replica) -> None:
        """What follows from the ends on an engine."""
        for r, ended_s in engine.ends:
            if engine in self.prefill and self.pools.decode and r.status == "finished" and self.w.output_tokens[r.number] > 1:
                self.coming.append((r.token_times_s[-1], 1, r.number))
                continue
            for j in range(len(self.w)):
                if self.after[j] == r.number:
                    think_s = 0.0 if self.w.think_s is None else float(self.w.think_s[j])
                    self.coming.append((ended_s + think_s, 0, j))
        engine.ends = []

    def send(self, until_s: float) -> bool:
        """Send what has come by then, in order."""
        sent = False
        while self.coming and min(self.coming)[0] <= until_s:
            at_s, ready, number = min(self.coming)
            self.coming.remove((at_s, ready, number))
            if ready:
                self.send_cache(at_s, number)
            else:
                self.send_prompt(at_s, number)
            sent = True
        return sent

    def fewest(self, have: list[float], in_all: list[float]) -> int:
        return min(range(len(have)), key=lambda k: (have[k], in_all[k], k))

    def send_prompt(self, at_s: float, number: int) -> None:
        tokens = int(self.w.prompt_tokens[number])
        k = len(self.prompt_at) % self.pools.prefill
        if self.pools.dispatch == "least_loaded":
            self.left = [max(left - self.rate_tps * (at_s - self.before_s), 0.0) for left in self.left]
            self.before_s = at_s
            k = self.fewest(self.left, self.prompts_sent)
            self.left[k] += tokens
            self.prompts_sent[k] += tokens
        self.prompt_at[number] = k
        self.prefill[k].requests[number].arrival_s = at_s

    def send_cache(self, ready_s: float, number: int) -> None:
        tokens, p = int(self.w.prompt_tokens[number]), self.prompt_at[number]
        d = len(self.cache_at) % self.pools.decode
        if self.pools.dispatch == "least_loaded":
            self.stays = [s for s in self.stays if s[0] > ready_s]
            here = [float(sum(t for _, k, t in self.stays if k == d)) for d in range(self.pools.decode)]
            d = self.fewest(here, self.caches_sent)
            engine = self.decode[0]
            self.stays.append((ready_s + engine.policy.prior_output_tokens * engine.schedule.at(Load()).setpoint_s, d, tokens))
            self.caches_sent[d] += tokens
        self.cache_at[number] = d
        self.link_s[p] = max(ready_s, self.link_s[p]) + tokens * self.pools.transfer_s_per_token
        before, r = self.prefill[p].requests[number], self.decode[d].requests[number]
        r.computed, r.begun, r.degraded, r.token_times_s = r.prompt, True, before.degraded, list(before.token_times_s)
        r.arrival_s = self.link_s[p] + self.pools.transfer_latency_s
        self.decode[d].comes_s[number] = before.arrival_s

    def run(self, cut_s: float = math.inf) -> list[tuple[Request, Replica]]:
        """Each request where it was last, with the engine that had it."""
        engines = [*self.prefill, *self.decode]
        while True:
            clock_s, k = min((e.clock_s(), k) for k, e in enumerate(engines))
            if self.coming and min(self.coming)[0] <= clock_s and min(self.coming)[0] < cut_s:
                self.send(min(self.coming)[0])
                continue
            if clock_s >= cut_s or clock_s == math.inf:
                break
            engines[k].advance(engines[k].factors, cut_s)
            self.hear(engines[k])
        if self.coming or any(e.clock_s() < math.inf for e in engines):
            self.cut_off(engines, cut_s)
        return [self.last_of(i) for i in range(len(self.w))]

    def cut_off(self, engines: list[Replica], cut_s: float) -> None:
        for e in engines:
            e.now_s = max(e.now_s, cut_s)
        latest_s, come = max(e.now_s for e in engines), True
        while come:
            come = self.send(latest_s)
            for e in engines:
                e.arrive(e.now_s)
            come = come or any(r.status == "future" and r.arrival_s <= e.now_s for e in engines for r in e.requests)

    def last_of(self, i: int) -> tuple[Request, Replica]:
        """A request that is on its way to where it decodes waits."""
        engine = self.decode[self.cache_at[i]] if i in self.cache_at else self.prefill[self.prompt_at.get(i, 0)]
        r = engine.requests[i]
        r.output = int(self.w.output_tokens[i])
        if i in self.cache_at and r.status == "future":
            r.status, r.arrival_s = "waiting", engine.comes_s[i]
        return r, engine
