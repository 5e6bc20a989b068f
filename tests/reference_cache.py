"""The second scheduler's cache, for the tests alone: blocks that one request holds, units of prompts that several hold together, and
what nobody holds, block by block, in the order in which it is to be evicted."""

from __future__ import annotations

from headway.models.signals import Limits
from headway.models.workload import Prefix
from tests.reference_requests import Request

UNIT, TAIL = "unit", "tail"


class Cache:
    """A pool of blocks. `holders` are the requests that hold each unit that is cached whole; `idle` has an entry for every cached block
    that nobody holds, the longest idle first: (UNIT, its id), or (TAIL, the number of the request that left it)."""

    def __init__(self, requests: list[Request], limits: Limits, prefix: Prefix | None) -> None:
        self.requests, self.limits = requests, limits
        self.caching = limits.prefix_cache == "on"
        self.on = prefix is not None and self.caching
        self.unit_tokens = prefix.unit_tokens if prefix is not None else 0
        self.unit_blocks = self.unit_tokens // limits.block_tokens
        self.holders: dict[int, list[Request]] = {}
        self.idle: list[tuple[str, int]] = []

    def held_blocks(self) -> int:
        """Blocks of requests, alone or together."""
        return sum(r.blocks for r in self.requests) + sum(self.unit_blocks for by in self.holders.values() if by)

    def free_blocks(self) -> int:
        """Blocks that nobody holds, idle ones among them."""
        return self.limits.blocks - self.held_blocks()

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens)

    def owned(self, r: Request) -> int:
        """Blocks under a request's tokens."""
        return r.blocks + len(r.held) * self.unit_blocks

    def lacks(self, r: Request, blocks: int, keep: int, units: tuple[int, ...], tail: int) -> bool:
        """Whether the pool lacks so many blocks in all for a request, these units and its own tail a part of them, if some are kept free."""
        more = max(blocks - self.owned(r) - len(units) * self.unit_blocks - tail, 0)
        woken = sum(self.unit_blocks for u in units if not self.holders[u])
        return more + woken + tail > self.free_blocks() - keep

    def take(self, r: Request, blocks: int, keep: int = 0, units: tuple[int, ...] = (), tail: int = 0) -> bool:
        """So many blocks in all for a request, and hold these units and its tail for a part of them, unless the pool lacks them."""
        if self.lacks(r, blocks, keep, units, tail):
            return False
        more = max(blocks - self.owned(r) - len(units) * self.unit_blocks - tail, 0)
        for unit in units:
            self.hold(r, unit)
        if not r.held or units:  # it comes in: its tail is taken, or of no use any more
            self.forget(TAIL, r.number)
        r.blocks += tail
        while self.limits.blocks - self.held_blocks() - len(self.idle) < more:
            kind, number = self.idle.pop(0)
            if kind == UNIT:
                self.holders.pop(number, None)
        r.blocks += more
        return True

    def forget(self, kind: str, number: int) -> None:
        """No block of this is idle any more."""
        self.idle = [entry for entry in self.idle if entry != (kind, number)]

    def hold(self, r: Request, unit: int) -> None:
        if not self.holders.get(unit):
            self.forget(UNIT, unit)
        self.holders.setdefault(unit, []).append(r)
        r.held.append(unit)

    def release(self, r: Request) -> None:
        """Everything that a request holds is given back. What is full and computed goes idle, the deepest first: its own, then its units."""
        if self.caching and self.owned(r) and not r.swapped:
            r.tail_at = len(r.held)
            tail = r.cached // self.limits.block_tokens - self.owned(r) + r.blocks
            self.idle += [(TAIL, r.number)] * tail
        for unit in reversed(r.held):
            self.holders[unit].remove(r)
            if not self.holders[unit]:
                self.idle += [(UNIT, unit)] * self.unit_blocks
        r.held, r.blocks = [], 0

    def lookup(self, r: Request) -> tuple[int, ...]:
        """The longest run of a request's leading units that are cached, one token at least left to compute."""
        run: list[int] = []
        for unit in r.units if self.on else []:
            if unit not in self.holders or (len(run) + 1) * self.unit_tokens > r.to_compute - 1:
                break
            run.append(unit)
        return tuple(run)

    def tail(self, r: Request, units: int) -> int:
        """Blocks of its own that a request finds again after so many units."""
        if not r.begun or r.tail_at != units:
            return 0
        most = (r.to_compute - 1) // self.limits.block_tokens - units * self.unit_blocks
        return min(self.idle.count((TAIL, r.number)), most)

    def enter(self, r: Request, upto: int) -> None:
        """Units that are computed after this step are cached; one that is there already is held with the others, and its copy is freed."""
        while self.on and len(r.held) < len(r.units) and (len(r.held) + 1) * self.unit_tokens <= upto:
            r.blocks -= self.unit_blocks
            self.hold(r, r.units[len(r.held)])

    def check(self) -> None:
        """The books balance: held, idle and empty blocks are the pool; every unit knows who holds it; no chain is broken."""
        empty = self.limits.blocks - self.held_blocks() - len(self.idle)
        assert empty >= 0, "more blocks are used than there are"
        assert all(r.blocks >= 0 for r in self.requests)
        for unit, by in self.holders.items():
            assert self.idle.count((UNIT, unit)) == (0 if by else self.unit_blocks), "a unit that is cached whole is held or idle"
            assert by == [r for r in by if unit in r.held], "a unit is held by one who does not know of it"
        for r in self.requests:
            assert r.held == r.units[: len(r.held)], "the units held are not the leading ones"
            assert all(r in self.holders[u] for u in r.held)
            present = [u in self.holders for u in r.units] if self.on else []
            assert present == sorted(present, reverse=True), "a unit was evicted before a deeper one"
