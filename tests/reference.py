"""A second scheduler and a second goodput, for the tests alone: written from what the documentation says, not from the kernels.

Lists, dictionaries and plain numbers; every queue is walked, every sum is taken anew; a request's tokens are kept as a list of
times and judged at the end. It is slow and means to be obvious. Shared with the kernels are only the values of policies,
targets, limits and laws, and `prefill_rate_tps`, the estimate from which a run starts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from headway.controllers.policy import prefill_rate_tps
from headway.controllers.simulator import Candidate
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload
from tests.outlook import Outlook, Stream
from tests.plain_laws import Law

STATUS = ("future", "waiting", "running", "finished", "rejected", "expired", "failed")
"""In the order of the numbers in headway.models.goodput."""


@dataclasses.dataclass(eq=False)
class Request:
    """One request. `to_compute` is the prompt, and after a preemption also what it had emitted."""

    number: int
    arrival_s: float
    prompt: int
    output: int
    target: Target
    kind: int
    to_compute: int
    computed: int = 0
    blocks: int = 0
    begun: bool = False
    status: str = "future"
    token_times_s: list[float] = dataclasses.field(default_factory=list)

    @property
    def emitted(self) -> int:
        return len(self.token_times_s)

    @property
    def stream(self) -> Stream:
        return Stream(self.prompt + self.emitted, self.emitted, self.kind)

    @property
    def decodes(self) -> bool:
        return self.computed >= self.to_compute


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
        rows = zip(workload.arrival_s, workload.prompt_tokens, workload.output_tokens, workload.class_id, strict=True)
        self.requests = [Request(i, float(a), int(p), int(o), targets[c], int(c), int(p)) for i, (a, p, o, c) in enumerate(rows)]
        self.coefficients = {name: c.value for name, c in identified.plant.coefficients().items()}
        self.policy, self.law, self.limits = candidate.policy, Law(candidate.law), limits
        self.budget_s = min(t.budget_s for t in targets)
        self.setpoint_s = (1 - candidate.law.setpoint_margin) * self.budget_s
        self.rate_tps = prefill_rate_tps(identified.plant, self.setpoint_s, limits.max_tokens)
        self.chunk_cap = math.floor(self.policy.chunk_tokens) or 10**9
        self.running_limit = min(math.floor(self.policy.running_limit), limits.max_seqs)
        self.kept_free = math.ceil(limits.watermark * limits.blocks)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.takes: dict[Request, tuple[str, int]] = {}
        self.steps: list[dict] = []
        self.now_s, self.preempted, self.jams = 0.0, 0, 0
        self.outlook = Outlook(self.policy, limits, self.decode_time_s)

    # cache

    def free_blocks(self) -> int:
        free = self.limits.blocks - sum(r.blocks for r in self.requests)
        assert free >= 0
        return free

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens)

    def take_blocks(self, r: Request, tokens: int, keep: int = 0) -> bool:
        """Blocks for the first `tokens` tokens of a request, unless the pool lacks them."""
        more = max(self.blocks_for(tokens) - r.blocks, 0)
        if more > self.free_blocks() - keep:
            return False
        r.blocks += more
        return True

    def preempt_last(self) -> Request:
        """The request admitted last gives everything back and goes to the front of the queue."""
        r = self.running.pop()
        self.takes.pop(r, None)
        r.blocks, r.computed, r.to_compute, r.status = 0, 0, r.prompt + r.emitted, "waiting"
        self.waiting.insert(0, r)
        self.preempted += 1
        return r

    def give_or_preempt(self, r: Request, give: Callable[[], bool]) -> bool:
        """Give a running request its part, preempting from the back until the blocks are there; False if it went itself."""
        while not give():
            if self.preempt_last() is r:
                return False
        return True

    # what a request can be given

    def give_decode(self, r: Request) -> bool:
        if not self.take_blocks(r, r.prompt + r.emitted):
            return False
        self.takes[r] = ("decode", 1)
        return True

    def give_chunk(self, r: Request, tokens: int) -> bool:
        if not self.take_blocks(r, r.computed + tokens):
            return False
        self.takes[r] = ("chunk", tokens)
        return True

    def let_in(self, r: Request) -> bool:
        """Whether admission, beyond the running limit and the cache of now, lets a request in."""
        if self.policy.admission == "none":
            return True
        self.outlook.renew(len(self.steps), self.preempted, [q.stream for q in self.running])
        return self.outlook.admits(r.stream, self.setpoint_s, len(self.running))

    def admit(self, r: Request, tokens: int) -> bool:
        in_full = self.limits.reservation == "full"
        if not self.take_blocks(r, r.to_compute if in_full else tokens, self.kept_free):
            return False
        self.waiting.remove(r)
        self.running.append(r)
        r.status, r.begun = "running", True
        self.outlook.join(r.stream)
        self.takes[r] = ("chunk", tokens)
        return True

    def end(self, r: Request, status: str) -> None:
        r.status, r.blocks = status, 0

    # one step

    def arrive(self) -> None:
        for r in self.requests:
            if r.status == "future" and r.arrival_s <= self.now_s:
                most = self.blocks_for(r.prompt + r.output)
                if r.prompt + r.output > self.limits.max_len or most > self.limits.blocks - self.kept_free:
                    self.end(r, "failed")
                else:
                    r.status = "waiting"
                    self.waiting.append(r)

    def shed(self) -> None:
        for r in list(self.waiting):
            if r.begun:
                continue
            if self.policy.triage == "reject" and self.infeasible(r):
                self.waiting.remove(r)
                self.end(r, "rejected")
            elif self.policy.triage == "timeout" and self.now_s - r.arrival_s > self.policy.timeout * r.target.first_token_s:
                self.waiting.remove(r)
                self.end(r, "expired")

    def slack_s(self, r: Request) -> float:
        carried = max(1, min(self.chunk_cap, self.rate_tps * self.setpoint_s, self.limits.max_tokens))
        steps = math.ceil((r.to_compute - r.computed) / carried) + (self.limits.first_token == "next_step")
        deadline_s = r.arrival_s + r.target.first_token_s
        return deadline_s - (self.now_s + self.policy.estimate * steps * self.setpoint_s)

    def infeasible(self, r: Request) -> bool:
        return self.slack_s(r) < -self.policy.tolerance * r.target.first_token_s

    def key(self, r: Request) -> tuple:
        """Sorts first who goes first: streams that broke off, then the feasible, then the deferred; ties by arrival."""
        if r.emitted:
            return (0, r.arrival_s, r.number)
        rank = 2 if self.policy.triage == "defer" and self.infeasible(r) else 1
        if self.policy.order == "edf":
            return (rank, r.arrival_s + r.target.first_token_s, r.number)
        return (rank, self.slack_s(r) - self.policy.aging_rate * (self.now_s - r.arrival_s), r.number)

    def compose(self) -> None:
        ready = sum(r.decodes for r in self.running)
        asked = self.law.budget(self.steps[-1] if self.steps else None, ready, self.budget_s)
        self.token_budget = min(math.floor(asked), self.limits.max_tokens)
        before = self.preempted
        while True:
            self.takes = {}
            if self.policy.order == "fcfs":
                self.compose_stock(before)
            else:
                self.compose_by_key(before)
            if self.takes:
                return
            # Unfinished prompts hold all blocks between them and none can go on: the last of them gives way to the others.
            assert len(self.running) > 1, "an engine that could work stands still"
            self.preempt_last()
            self.jams += 1

    def left(self) -> int:
        return self.token_budget - sum(tokens for _, tokens in self.takes.values())

    def compose_stock(self, before: int) -> None:
        """Running requests in order of admission, then the queue in order until something does not fit.

        A step in which somebody was preempted (more preemptions than `before` it) admits nobody.
        """
        cut, limit = False, "none"
        for r in list(self.running):
            if r not in self.running:
                break
            if self.left() < 1:
                cut = True
                break
            if r.decodes:
                alive = self.give_or_preempt(r, lambda r=r: self.give_decode(r))
            else:
                tokens = min(r.to_compute - r.computed, self.chunk_cap, self.left())
                cut = cut or self.left() == tokens < r.to_compute - r.computed
                alive = self.give_or_preempt(r, lambda r=r, tokens=tokens: self.give_chunk(r, tokens))
            if not alive:
                break
        if self.preempted > before:
            self.limit = "kv"
            return
        while self.waiting and self.left() >= 1:
            if len(self.running) >= self.running_limit:
                limit = "running"
                break
            r, left = self.waiting[0], self.left()
            if not self.let_in(r):
                limit = "deferred"
                break
            tokens = min(r.to_compute, self.chunk_cap, left)
            if not self.admit(r, tokens):
                limit = "kv"
                break
            cut = cut or left == tokens < r.to_compute
        self.limit = "budget" if limit == "none" and self.left() < 1 and (cut or self.waiting) else limit

    def compose_by_key(self, before: int) -> None:
        """Decodes first, then prompts by key; a step in which somebody was preempted admits nobody."""
        for r in list(self.running):
            if r not in self.running or self.left() < 1:
                break
            if r.decodes and not self.give_or_preempt(r, lambda r=r: self.give_decode(r)):
                break
        preempted = self.preempted > before
        prompts = [r for r in self.running if not r.decodes]
        prompts = sorted(prompts + ([] if preempted else self.waiting), key=self.key)
        limit, cut, in_vain, closed, untried = "none", False, 0, False, list(prompts)
        while untried and self.left() >= 1:
            r, left = untried.pop(0), self.left()
            fresh = r in self.waiting
            if fresh and len(self.running) >= self.running_limit:
                limit = "running"
                continue
            if fresh and not closed and not self.let_in(r):
                limit, closed = "deferred", True
            if fresh and closed:  # a prompt that was begun lacks blocks, or one was held back: nobody new comes in
                continue
            rest = r.to_compute - r.computed
            tokens = min(rest, self.chunk_cap, left)
            if self.admit(r, tokens) if fresh else self.give_chunk(r, tokens):
                cut = cut or left == tokens < rest
                continue
            limit, in_vain, closed = "kv", in_vain + 1, closed or not fresh
            if in_vain >= 8 and all(q in self.waiting for q in untried):
                break
        unserved = any(r.decodes and r not in self.takes for r in self.running)
        full = limit in ("none", "deferred") and self.left() < 1
        self.limit = "budget" if full and (cut or untried or unserved) else limit
        if preempted:
            self.limit = "kv"

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

    def step(self, factors: tuple) -> None:
        chunks = [(r, n) for r, (kind, n) in self.takes.items() if kind == "chunk"]
        decodes = [r for r, (kind, _) in self.takes.items() if kind == "decode"]
        sums = {
            "decode_requests": len(decodes),
            "decode_kv_tokens": sum(r.prompt + r.emitted for r in decodes),
            "prefill_tokens": sum(n for _, n in chunks),
            "prefill_pairs": sum(n * (r.computed + n / 2) for r, n in chunks),
            "prefill_requests": len(chunks),
        }
        y = self.duration_s(sums, factors, len(self.steps))
        self.now_s += y
        if sums["prefill_tokens"] >= 64:
            self.rate_tps += 0.02 * (sums["prefill_tokens"] / y - self.rate_tps)
        for r, n in chunks:
            r.computed += n
            later = self.limits.first_token == "next_step" and not r.emitted
            if r.decodes and not later:
                r.token_times_s.append(self.now_s)
        for r in decodes:
            r.token_times_s.append(self.now_s)
        for r in list(self.running):
            if r.emitted >= r.output:
                self.running.remove(r)
                self.end(r, "finished")
                self.outlook.end(r.stream, len(self.steps) + 1)
        facts = {"end_s": self.now_s, "step_time_s": y, "token_budget": self.token_budget, "binding": self.limit}
        queues = {"running": len(self.running), "waiting": len(self.waiting), "free_blocks": self.free_blocks()}
        self.steps.append({**facts, **sums, **queues})

    def run(self, decode_factors: Any, mixed_factors: Any, cut_s: float = math.inf) -> Verdict:
        while not all_ended(self.requests):
            if not self.waiting and not self.running:
                self.now_s = max(self.now_s, min(cut_s, *(r.arrival_s for r in self.requests if r.status == "future")))
            if self.now_s >= cut_s:
                self.arrive()  # who came during the last step is there, though no step was composed since
                break
            self.arrive()
            self.shed()
            if self.waiting or self.running:
                self.compose()
                self.step((decode_factors, mixed_factors))
        judged = [judge(r.status, r.arrival_s, r.token_times_s, r.output, r.target, self.now_s) for r in self.requests]
        end_s = max(self.steps[-1]["end_s"], 0.0 if all_ended(self.requests) else cut_s) if self.steps else 0.0
        on_time, owed = [on for on, _ in judged], [owed for _, owed in judged]
        return Verdict(self.requests, on_time, owed, self.steps, self.preempted, self.jams, end_s)


def all_ended(requests: list[Request]) -> bool:
    return all(r.status in ("finished", "rejected", "expired", "failed") for r in requests)


def judge(status: str, arrival_s: float, token_times_s: list[float], output: int, target: Target, end_s: float) -> tuple[int, int]:
    """Tokens on time and tokens owed of one request, from the times of its tokens: section 5 of the words of the field.

    A token is on time iff its request's TTFT was met and its gap is at most the ITL target, all at the client. A gap g owes
    max(1, floor(g / itl)). Who was turned away owes every token; who was cut off owes what was due by the end of the run.
    """
    if status == "future":
        return 0, 0
    on_time = owed = 0
    if token_times_s:
        met = token_times_s[0] - arrival_s + target.transport_s <= target.ttft_s
        on_time, owed = int(met), 1
        for before, after in pairwise(token_times_s):
            gap_s = after - before + target.transport_s
            owed += max(1, math.floor(gap_s / target.itl_s))
            on_time += met and gap_s <= target.itl_s
    if status in ("rejected", "expired", "failed"):
        return on_time, max(owed, output)
    if status != "finished":
        missing = output - len(token_times_s)
        if token_times_s:
            due = math.floor((end_s - token_times_s[-1]) / target.itl_s)
        else:
            late_s = end_s - (arrival_s + target.first_token_s)
            due = 0 if late_s < 0 else 1 + math.floor(late_s / target.itl_s)
        owed += min(missing, max(due, 0))
    return on_time, owed
