"""How the second scheduler puts one step together, for the tests alone."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tests.reference_requests import Request

if TYPE_CHECKING:
    from tests.reference import Reference

BLOCKED = 8
"""Newcomers that lacked blocks before a step closes its door."""


class Composition:
    """One step in the making. `takes` says what each request is given: ("decode", 1) or ("chunk", its tokens)."""

    def __init__(self, engine: Reference, budget: int) -> None:
        self.engine, self.order, self.cache, self.policy = engine, engine.order, engine.cache, engine.policy
        self.budget, self.k = budget, len(engine.steps)
        self.preempted_before = engine.preempted
        alone = self.policy.order == "fcfs" and len(engine.running) + len(engine.waiting) == 1
        self.chunk_cap = 10**9 if alone else self.order.chunk_cap
        self.strides = True

    def start(self) -> None:
        """An empty step. Sort keys are taken here, and stand still."""
        engine = self.engine
        self.takes: dict[Request, tuple[str, int]] = {}
        self.limit, self.cut, self.closed, self.in_vain = "none", False, False, 0
        prompts = [r for r in engine.running if not r.decodes] + engine.waiting
        self.pending = {r.kind for r in prompts}
        self.untried = sorted(prompts, key=lambda r: self.order.place(r, engine.now_s))
        self.kept_out: list[Request] = []
        self.reached = False

    def compose(self) -> None:
        engine = self.engine
        while True:
            self.start()
            before = engine.preempted
            if self.policy.order == "fcfs":
                self.stock()
            else:
                self.by_key()
            if self.takes or not engine.running:
                break
            if engine.preempted > before:
                continue  # who gave way was not helped by it, but others may be
            if self.strides and self.policy.stride > 0:
                self.strides = False
                continue
            if engine.ghosts and len(engine.running) == 1:
                break  # what it lacks comes free with the ghosts
            # Nobody who runs can go on: they hold all blocks between them.
            self.preempt()
            engine.jams += 1
        assert self.takes or engine.ghosts, "an engine that could work stands still"
        if self.preempted():
            self.limit = "kv"

    # what a request can be given

    def left(self) -> int:
        """Tokens still to be given: ghosts take theirs first, but never the last."""
        return max(self.budget - len(self.engine.ghosts), 1) - sum(tokens for _, tokens in self.takes.values())

    def preempted(self) -> bool:
        """Somebody was preempted in this step: nobody is admitted."""
        return self.engine.preempted > self.preempted_before

    def preempt(self) -> Request:
        """The victim gives its blocks back and goes to the front of the queue: computed tokens are lost, or swapped out."""
        engine = self.engine
        r = self.order.victim(engine.running)
        engine.running.remove(r)
        self.takes.pop(r, None)
        if self.policy.preemption == "swap" and r.computed > 0:
            r.swapped = self.cache.owned(r)
            engine.moved_blocks += r.swapped
            self.cache.release(r)
        else:
            self.cache.release(r)
            r.computed, r.to_compute = 0, r.prompt + r.emitted
        r.status, r.hit, r.deferred = "waiting", 0, False
        self.order.renew_gains(r)
        engine.waiting.insert(0, r)
        engine.preempted += 1
        return r

    def give_decode(self, r: Request) -> None:
        """One token to decode, preempting for its block if need be, unless it has to give way itself."""
        while not self.cache.take(r, self.cache.blocks_for(r.prompt + r.emitted)):
            if self.preempt() is r:
                return
        self.takes[r] = ("decode", 1)

    def give_chunk(self, r: Request, tokens: int) -> bool:
        if not self.cache.take(r, self.cache.blocks_for(r.computed + tokens)):
            return False
        self.takes[r] = ("chunk", tokens)
        self.cache.enter(r, r.computed + tokens)
        return True

    def let_in(self, r: Request) -> bool:
        """Whether admission, beyond the running limit and the cache of now, lets a request in."""
        if self.policy.admission == "none":
            return True
        engine = self.engine
        engine.outlook.renew(self.k, engine.preempted, [q.stream for q in engine.running])
        return engine.outlook.admits(r.stream, engine.setpoint_s, len(engine.running))

    def admit(self, r: Request, left: int) -> bool:
        """Let a request in with its first chunk, or, swapped out while it decoded, with its next token. False if blocks lack."""
        engine = self.engine
        units = () if r.swapped else self.cache.lookup(r)
        tail = 0 if r.swapped else self.cache.tail(r, len(units))
        start = r.computed + len(units) * self.cache.unit_tokens + tail * engine.limits.block_tokens
        tokens = min(r.to_compute - start, self.chunk_cap, left)
        part = ("chunk", tokens) if tokens > 0 else ("decode", 1)
        reach = start + tokens if tokens > 0 else r.prompt + r.emitted
        blocks = max(self.cache.blocks_for(reach), r.swapped)
        whole = max(self.cache.blocks_for(r.to_compute), blocks)
        if engine.limits.reservation == "full":
            blocks = whole
        keep = math.floor(engine.limits.watermark * (engine.limits.blocks + 1)) if engine.running else 0
        if engine.limits.reservation == "gate" and self.cache.lacks(r, whole, keep, units, tail):
            return False
        if not self.cache.take(r, blocks, keep, units, tail):
            return False
        self.cache.enter(r, start + max(tokens, 0))
        self.cut = self.cut or left == tokens < r.to_compute - start
        r.computed, r.hit = start, 0
        engine.moved_blocks += r.swapped
        r.swapped, r.status, r.begun = 0, "running", True
        engine.waiting.remove(r)
        engine.running.append(r)
        engine.outlook.join(r.stream)
        self.takes[r] = part
        return True

    # stock order

    def stock(self) -> None:
        """Running requests in order of admission, then the queue in order until something does not fit."""
        engine, limit = self.engine, "none"
        for r in list(engine.running):
            if r not in engine.running:
                continue
            if self.left() < 1:
                self.cut = True
                break
            if r.decodes:
                self.give_decode(r)
            else:
                self.stock_chunk(r)
        while engine.waiting and self.left() >= 1 and not self.preempted():
            r = engine.waiting[0]
            if len(engine.running) >= engine.running_limit:
                limit = "running"
                break
            if not self.let_in(r):
                limit = "deferred"
                break
            if not self.admit(r, self.left()):
                limit = "kv"
                break
        self.limit = "budget" if limit == "none" and self.left() < 1 and (self.cut or engine.waiting) else limit

    def stock_chunk(self, r: Request) -> None:
        """A chunk of a running prompt, preempting for its blocks if need be."""
        rest, left = r.to_compute - r.computed, self.left()
        tokens = min(rest, self.chunk_cap, left)
        self.cut = self.cut or left == tokens < rest
        while not self.give_chunk(r, tokens):
            if self.preempt() is r:
                return

    # by key

    def by_key(self) -> None:
        phases, due = self.policy.phases, self.due()
        starved = self.starved()
        if phases == "mixed":
            if starved:
                self.prompts(-(-self.budget // 2))
            self.decodes(due)
            self.prompts(self.left())
        elif phases == "prefill_first":
            if any(self.overdue(r) for r in due):
                self.decodes(due)
            else:
                self.prompts_alone(due)
        elif starved:
            self.prompts_alone(due)
        elif due:
            self.decodes(due)
        else:
            self.prompts(self.left())
        if self.limit in ("none", "deferred") and self.left() < 1 and self.goes_without():
            self.limit = "budget"

    def goes_without(self) -> bool:
        """Whether somebody of the phases tried could have used more tokens."""
        kept_out = any(r in self.engine.running for r in self.kept_out)
        if not self.reached:
            return kept_out
        prompts = [r for r in self.engine.running if not r.decodes and r not in self.takes]
        held_back = 1 if self.limit == "deferred" else 0
        return kept_out or self.cut or bool(prompts) or len(self.engine.waiting) > held_back

    def prompts_alone(self, due: list[Request]) -> None:
        """Prompts only; decodes only where no prompt could be given anything."""
        self.prompts(self.left())
        if not self.takes:
            self.decodes(due)

    def due(self) -> list[Request]:
        """Who may decode in this step: those first that must."""
        ready = [r for r in self.engine.running if r.decodes and (self.engine.due(r) or not self.strides)]
        return [r for r in ready if self.overdue(r)] + [r for r in ready if not self.overdue(r)]

    def overdue(self, r: Request) -> bool:
        every = self.policy.decode_every
        return every > 0 and self.k - r.stepped >= every

    def starved(self) -> bool:
        """A prompt is pending, and none progressed in the last steps."""
        every = int(self.policy.prefill_every)
        lately = self.engine.steps[max(self.k - every + 1, 0) :]
        return every > 0 and bool(self.pending) and not any(s["prefill_tokens"] for s in lately)

    def decodes(self, due: list[Request]) -> None:
        for j, r in enumerate(due):
            if self.left() < 1:
                self.kept_out += due[j:]
                break
            if r in self.engine.running:
                self.give_decode(r)

    def prompts(self, most: int) -> None:
        """Prompts by key, up to so many tokens; goes on where it stopped if it is called again."""
        engine, end, self.reached = self.engine, self.left() - min(most, self.left()), True
        while self.untried and self.left() - end >= 1:
            r = self.untried.pop(0)
            fresh = r in engine.waiting
            if fresh and not self.may_enter(r):
                continue
            left = self.left() - end
            if fresh:
                if not self.admit(r, left):
                    self.limit, self.in_vain = "kv", self.in_vain + 1
                    self.closed = self.closed or self.in_vain >= BLOCKED
                continue
            rest = r.to_compute - r.computed
            tokens = min(rest, self.chunk_cap, left)
            if self.give_chunk(r, tokens):
                self.cut = self.cut or left == tokens < rest
            else:
                self.limit, self.closed = "kv", True

    def may_enter(self, r: Request) -> bool:
        """Whether the door is open to a newcomer."""
        if self.closed or self.preempted():
            return False
        if len(self.engine.running) >= self.engine.running_limit:
            self.limit, self.closed = "running", True
        elif not self.let_in(r):
            self.limit, self.closed = "deferred", True
        return not self.closed
