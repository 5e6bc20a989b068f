"""A second engine in silico and a second goodput, for the tests alone: written from docs/engine.md, not from the kernels.

Lists, dictionaries and plain numbers; every queue is walked, every sum is taken anew. It is slow and means to be obvious. Shared
with the kernels are only the values of policies, targets, limits and laws, and `prefill_rate_tps`, the estimate from which a run
starts. The requests are in reference_requests, the cache in reference_cache, keys and shares in reference_order, gains that follow
the load in reference_schedule, and how one step is put together in reference_composition.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from headway.controllers.policy import prefill_rate_tps
from headway.controllers.simulator import Candidate
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload
from tests.outlook import Outlook
from tests.plain_laws import Law
from tests.reference_cache import Cache
from tests.reference_composition import Composition
from tests.reference_order import Order
from tests.reference_requests import STATUS, Request, judge, requests_of
from tests.reference_schedule import Load, Schedule

__all__ = ["STATUS", "Reference", "Request", "Verdict", "judge"]


@dataclasses.dataclass
class Verdict:
    """What a run did, per request and in all; `steps` holds one dictionary per step, named as the simulator's log names it."""

    requests: list[Request]
    on_time: list[int]
    owed: list[int]
    steps: list[dict]
    preempted: int
    jams: int
    end_s: float


class Reference:
    """One engine under one law and one policy."""

    def __init__(
        self, identified: IdentifiedPlant, candidate: Candidate, workload: Workload, targets: tuple[Target, ...], limits: Limits
    ) -> None:
        self.requests = requests_of(workload, targets)
        self.coefficients = {name: c.value for name, c in identified.plant.coefficients().items()}
        self.policy, self.law, self.limits = candidate.policy, Law(candidate.law), limits
        self.budget_s = min(t.budget_s for t in targets)
        self.schedule = Schedule(candidate, self.budget_s)
        rest = self.schedule.at(Load())
        self.running_limit = min(math.floor(self.policy.running_limit), limits.max_seqs)
        self.cache = Cache(self.requests, limits, workload.prefix)
        rate_tps = prefill_rate_tps(identified.plant, rest.setpoint_s, limits.max_tokens)
        self.order = Order(self.policy, limits, self.cache, rest, rate_tps)
        self.outlook = Outlook(self.policy, limits, len(targets), self.decode_time_s)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.ghosts: list[Request] = []
        self.steps: list[dict] = []
        self.started_s = 0.0
        self.now_s, self.preempted, self.jams, self.moved_blocks = 0.0, 0, 0, 0

    @property
    def asynchronous(self) -> bool:
        return self.limits.scheduling == "async"

    @property
    def setpoint_s(self) -> float:
        return self.order.gains.setpoint_s

    def load(self) -> Load:
        """What the last step left behind."""
        queued = sum(r.to_compute - r.computed for r in self.waiting + self.running if not r.decodes)
        decoding = sum(r.decodes for r in self.running)
        blocks = self.limits.blocks
        return Load(queued, decoding / self.running_limit, (blocks - self.cache.free_blocks()) / blocks)

    def follow_load(self) -> None:
        """The gains of the load are in force from now on."""
        self.order.gains = self.schedule.at(self.load())
        self.law.margin = self.order.gains.margin

    def end(self, r: Request, status: str, *, ghost: bool = False) -> None:
        """A request ends; whoever follows it knows now when to arrive. A ghost keeps its blocks for a step."""
        r.status, r.ended_s = status, self.now_s
        for follower in self.requests:
            if follower.after == r.number:
                follower.arrival_s = self.now_s + follower.think_s
        if ghost:
            self.ghosts.append(r)
        else:
            self.cache.release(r)

    def bury(self) -> None:
        """The ghosts of the last step give their blocks back."""
        for r in self.ghosts:
            self.cache.release(r)
        self.ghosts = []

    # one step

    def arrive(self, seen_s: float) -> None:
        """Everyone who has arrived by `seen_s`, in order of arrival, ties by number."""
        while come := [r for r in self.requests if r.status == "future" and r.arrival_s <= seen_s]:
            r = min(come, key=lambda r: (r.arrival_s, r.number))
            self.order.arrivals[r.kind] += 1
            length = r.prompt + r.output
            if length > self.limits.max_len or self.cache.blocks_for(length) > self.limits.blocks:
                self.end(r, "failed")
                continue
            r.status = "waiting"
            self.order.look_up(r)
            self.waiting.append(r)

    def leave(self) -> None:
        """Clients whose time has run out leave the queue; triage acts on those that were never begun."""
        for r in list(self.waiting):
            if r.has_left(self.now_s):
                self.waiting.remove(r)
                self.end(r, r.leaves(self.now_s))
        for r, status in self.order.triage(self.waiting, self.now_s):
            self.waiting.remove(r)
            self.end(r, status)

    def seen_step(self) -> dict | None:
        """The step whose measurement the law has: the last, or with asynchronous scheduling the one before it."""
        lag = 2 if self.asynchronous else 1
        return self.steps[-lag] if len(self.steps) >= lag else None

    def due(self, r: Request) -> bool:
        """Whether its stride has passed."""
        return len(self.steps) - r.stepped >= self.order.stride(r)

    def compose(self) -> Composition:
        ready = sum(r.decodes and self.due(r) for r in self.running) + len(self.ghosts)
        asked = self.law.budget(self.seen_step(), ready, self.budget_s)
        step = Composition(self, min(math.floor(asked), self.limits.max_tokens))
        step.compose()
        return step

    def decode_time_s(self, n: float, kv: float) -> float:
        none = dict.fromkeys(("prefill_tokens", "prefill_pairs", "prefill_requests"), 0)
        return self.duration_s({"decode_requests": n, "decode_kv_tokens": kv, **none}, ([1.0], [1.0]), 0)

    def duration_s(self, sums: dict, factors: tuple, k: int) -> float:
        mixed = sums["prefill_tokens"] > 0
        c = {
            name.split(".")[1]: v for name, v in self.coefficients.items() if name.split(".")[0] in ("all", "mixed" if mixed else "decode")
        }
        y = c["floor"] + c["per_decode_request"] * sums["decode_requests"] + c["per_kv_token"] * sums["decode_kv_tokens"]
        if mixed:
            y += c["per_prefill_token"] * sums["prefill_tokens"] + c["per_prefill_pair"] * sums["prefill_pairs"]
            y += c["per_prefill_request"] * sums["prefill_requests"]
        noise = factors[1] if mixed else factors[0]
        return y * float(noise[k % len(noise)])

    def execute(self, step: Composition, factors: tuple) -> None:
        """The step takes its time, ghosts and swaps included, and is settled."""
        chunks = {r: n for r, (kind, n) in step.takes.items() if kind == "chunk"}
        decodes = [r for r, (kind, _) in step.takes.items() if kind == "decode"]
        sums = {
            "decode_requests": len(decodes) + len(self.ghosts),
            "decode_kv_tokens": sum(r.prompt + r.emitted for r in decodes)
            + sum(r.prompt + r.emitted if r.decodes else r.computed for r in self.ghosts),
            "prefill_tokens": sum(chunks.values()),
            "prefill_pairs": sum(n * (r.computed + n / 2) for r, n in chunks.items()),
            "prefill_requests": len(chunks),
        }
        y = self.duration_s(sums, factors, len(self.steps)) + self.limits.swap_block_s * self.moved_blocks
        self.started_s = self.now_s
        self.now_s += y
        self.moved_blocks = 0
        self.settle(chunks, decodes)
        by_class = {c: sum(n for r, n in chunks.items() if r.kind == c) for c in {r.kind for r in chunks}}
        self.order.book(step.pending, by_class)
        self.order.measure(sums["prefill_tokens"], y)
        facts = {"end_s": self.now_s, "step_time_s": y, "token_budget": step.budget, "binding": step.limit}
        queues = {"running": len(self.running), "waiting": len(self.waiting), "free_blocks": self.cache.free_blocks()}
        self.steps.append({**facts, **sums, **queues})

    def settle(self, chunks: dict[Request, int], decodes: list[Request]) -> None:
        """Chunks are computed, units cached, tokens come out, requests end, clients leave."""
        self.bury()
        for r in self.running:
            if r in chunks:
                r.computed += chunks[r]
            later = self.limits.first_token == "next_step" and not r.emitted
            if r in decodes or (r in chunks and r.decodes and not later):
                r.token_times_s.append(self.now_s)
            if r in decodes or r in chunks:
                r.stepped = len(self.steps)
        for r in list(self.running):
            if r.emitted >= r.output:
                self.end_running(r, "finished")
            elif r.has_left(self.now_s):
                self.end_running(r, r.leaves(self.now_s))

    def end_running(self, r: Request, status: str) -> None:
        self.running.remove(r)
        self.end(r, status, ghost=self.asynchronous)
        self.outlook.end(r.stream, len(self.steps) + 1, learned=status == "finished")

    def advance(self, factors: tuple, cut_s: float) -> bool:
        """One turn of the engine; False once the cut is reached."""
        idle, seen_s = not self.waiting and not self.running, self.now_s
        self.follow_load()
        if idle:
            self.bury()
            next_s = min((r.arrival_s for r in self.requests if r.status == "future"), default=math.inf)
            seen_s = self.now_s = max(self.now_s, min(cut_s, next_s))
        elif self.asynchronous:
            seen_s = self.started_s
        if self.now_s >= cut_s:
            self.arrive(self.now_s)  # who came during the last step is there, though no step was composed since
            return False
        self.arrive(seen_s)
        self.order.renew_rate(self.waiting, len(self.steps))
        self.leave()
        if self.waiting or self.running:
            self.execute(self.compose(), factors)
        return True

    def run(self, decode_factors: Any, mixed_factors: Any, cut_s: float = math.inf) -> Verdict:
        while not all(r.ended for r in self.requests):
            if not self.advance((decode_factors, mixed_factors), cut_s):
                break
        judged = [r.verdict(self.now_s) for r in self.requests]
        end_s = max(self.steps[-1]["end_s"], 0.0 if all(r.ended for r in self.requests) else cut_s) if self.steps else 0.0
        on_time, owed = [on for on, _ in judged], [owed for _, owed in judged]
        return Verdict(self.requests, on_time, owed, self.steps, self.preempted, self.jams, end_s)
