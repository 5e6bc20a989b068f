"""The second scheduler's cache, for the tests alone: blocks that one request holds, and units of prompts that several hold together."""

from __future__ import annotations

from headway.models.signals import Limits
from headway.models.workload import Prefix
from tests.reference_requests import Request


class Cache:
    """A pool of blocks. `holders` are the requests that hold each cached unit; `idle` the units that nobody holds, longest first."""

    def __init__(self, requests: list[Request], limits: Limits, prefix: Prefix | None) -> None:
        self.requests, self.limits = requests, limits
        self.on = prefix is not None and limits.prefix_cache == "on"
        self.unit_tokens = prefix.unit_tokens if prefix is not None else 0
        self.unit_blocks = self.unit_tokens // limits.block_tokens
        self.holders: dict[int, list[Request]] = {}
        self.idle: list[int] = []

    def held_blocks(self) -> int:
        """Blocks of requests, alone or together."""
        return sum(r.blocks for r in self.requests) + sum(self.unit_blocks for by in self.holders.values() if by)

    def free_blocks(self) -> int:
        """Blocks that nobody holds, idle units among them."""
        return self.limits.blocks - self.held_blocks()

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens)

    def owned(self, r: Request) -> int:
        """Blocks under a request's tokens."""
        return r.blocks + len(r.held) * self.unit_blocks

    def lacks(self, r: Request, blocks: int, keep: int, units: tuple[int, ...]) -> bool:
        """Whether the pool lacks so many blocks in all for a request, these units a part of them, if some are kept free."""
        more = max(blocks - self.owned(r) - len(units) * self.unit_blocks, 0)
        woken = sum(self.unit_blocks for u in units if u in self.idle)
        return more + woken > self.free_blocks() - keep

    def take(self, r: Request, blocks: int, keep: int = 0, units: tuple[int, ...] = ()) -> bool:
        """So many blocks in all for a request, and hold these units for a part of them, unless the pool lacks them."""
        if self.lacks(r, blocks, keep, units):
            return False
        more = max(blocks - self.owned(r) - len(units) * self.unit_blocks, 0)
        for unit in units:
            self.hold(r, unit)
        while self.limits.blocks - self.held_blocks() - len(self.idle) * self.unit_blocks < more:
            del self.holders[self.idle.pop(0)]
        r.blocks += more
        return True

    def hold(self, r: Request, unit: int) -> None:
        if unit in self.idle:
            self.idle.remove(unit)
        self.holders.setdefault(unit, []).append(r)
        r.held.append(unit)

    def release(self, r: Request) -> None:
        """Everything that a request holds is given back; what nobody holds any more goes idle, its deepest unit first."""
        for unit in reversed(r.held):
            self.holders[unit].remove(r)
            if not self.holders[unit]:
                self.idle.append(unit)
        r.held, r.blocks = [], 0

    def lookup(self, r: Request) -> tuple[int, ...]:
        """The longest run of a request's leading units that are cached, one token at least left to compute."""
        run: list[int] = []
        for unit in r.units if self.on else []:
            if unit not in self.holders or (len(run) + 1) * self.unit_tokens > r.to_compute - 1:
                break
            run.append(unit)
        return tuple(run)

    def enter(self, r: Request) -> None:
        """Units whose last token is computed are cached; one that is there already is held with the others, and its copy is freed."""
        while self.on and len(r.held) < len(r.units) and (len(r.held) + 1) * self.unit_tokens <= r.computed:
            r.blocks -= self.unit_blocks
            self.hold(r, r.units[len(r.held)])

    def check(self) -> None:
        """The books balance: held, idle and empty blocks are the pool; every unit knows who holds it; no chain is broken."""
        idle = len(self.idle) * self.unit_blocks
        empty = self.limits.blocks - self.held_blocks() - idle
        assert empty >= 0, "more blocks are used than there are"
        assert all(r.blocks >= 0 for r in self.requests)
        assert len(set(self.idle)) == len(self.idle)
        assert {u for u, by in self.holders.items() if not by} == set(self.idle)
        for unit, by in self.holders.items():
            assert by == [r for r in by if unit in r.held], "a unit is held by one who does not know of it"
        for r in self.requests:
            assert r.held == r.units[: len(r.held)], "the units held are not the leading ones"
            assert all(r in self.holders[u] for u in r.held)
            present = [u in self.holders for u in r.units] if self.on else []
            assert present == sorted(present, reverse=True), "a unit was evicted before a deeper one"
