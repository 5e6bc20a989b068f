"""vLLM's waiting queue by slack: aging, classes behind their share, triage. A heap of keys that stand still: nothing is sorted in a step."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headway.engines.runtime import Runtime

DUE = 1e-6
"""A class is behind its share above this deficit, which rounding does not reach [tokens]."""


class Waiter:
    """A request as the queue knows it: when it came on our own clock, its class, and its own target where it names one."""

    __slots__ = ("arrival_s", "class_id", "counted", "degraded", "queued", "request", "shift_s", "spared", "stamp", "tokens")

    def __init__(self, request: Any, arrival_s: float, class_id: int, shift_s: float) -> None:
        """Not queued yet."""
        self.request, self.arrival_s, self.class_id, self.shift_s = request, arrival_s, class_id, shift_s
        self.degraded = self.spared = self.queued = self.counted = False
        self.stamp = self.tokens = 0


class PromptQueue:
    """What stands in the place of vLLM's `waiting`: its RequestQueue, by a controller's key.

    Args:
        law: the controller that keys and times come from; replaced as a whole when gains are.
        waiter: a request as a `Waiter`.
        now: monotonic clock [s].
        shares: prompt tokens that each class is due, as weights; () for none.
        max_tokens: the engine's own limit, which bounds what a class may be behind [tokens].
    """

    def __init__(
        self, law: Runtime, waiter: Callable[[Any], Waiter], now: Callable[[], float], shares: tuple[float, ...], max_tokens: float
    ) -> None:
        """Empty."""
        self.law: Runtime | None = law
        self._waiter, self._now = waiter, now
        self.max_tokens = max_tokens
        self.waiters: dict[str, Waiter] = {}
        self.tokens = 0
        self._expiry: list[tuple[float, int, Waiter]] = []
        self._stamp, self._renewals = 0, law.renewals
        self.fault: Exception | None = None
        self.gate: Callable[[Waiter], bool] | None = None
        self.joined: Callable[[Waiter], None] | None = None
        self.share(shares)

    def share(self, shares: tuple[float, ...]) -> None:
        """Begin with these shares; who waits is put in order anew.

        Args:
            shares: weights by class; () for none.
        """
        self.shares = shares
        self.deficits = [0.0] * len(shares)
        self._heaps: list[list[tuple[float, int, Waiter]]] = [[] for _ in range(max(len(shares), 1))]
        self.renew()

    def renew(self) -> None:
        """Take every key anew: after the rate that estimates are made with has changed, the aging rate, or the gains."""
        for heap in self._heaps:
            heap.clear()
        self._expiry.clear()
        for waiter in self.waiters.values():
            self._push(waiter, rebuild=True)
        for heap in (*self._heaps, self._expiry):
            heapq.heapify(heap)
        if self.law is not None:
            self._renewals = self.law.renewals

    def _push(self, waiter: Waiter, *, rebuild: bool = False) -> None:
        self._stamp += 1
        waiter.stamp = self._stamp
        try:
            key, leaves_s = self._key(waiter)
        except Exception as error:  # noqa: BLE001  # this runs inside vLLM's own calls: by arrival, and whoever owns the queue is told
            self.fault, key, leaves_s = error, waiter.arrival_s, math.inf
        heap = self._heaps[waiter.class_id if self.shares else 0]
        rows = ((heap, key),) if leaves_s == math.inf else ((heap, key), (self._expiry, leaves_s))
        for place, value in rows:
            if rebuild:
                place.append((value, self._stamp, waiter))
            else:
                heapq.heappush(place, (value, self._stamp, waiter))

    def _key(self, waiter: Waiter) -> tuple[float, float]:
        """(key, when triage acts on it) of a waiting request."""
        law, request = self.law, waiter.request
        if law is None:
            return waiter.arrival_s, math.inf
        tokens = request.num_tokens - request.num_computed_tokens
        stream, begun = request.num_output_tokens > 0, request.num_preemptions > 0
        blocks = math.ceil(request.num_tokens / law.block_tokens) if law.memory_price_s else 0.0
        given = (tokens, waiter.arrival_s, self._now(), waiter.class_id)
        key = law.key(*given, started=stream, degraded=waiter.degraded, spared=waiter.spared, blocks=blocks)
        if not stream and law.order != "fcfs":
            key += waiter.shift_s * (law.degrade if waiter.degraded else 1.0)
        if law.triage == "none" or stream or waiter.spared or (begun and law.triage != "defer"):
            return key, math.inf
        if law.triage == "timeout":
            return key, waiter.arrival_s + law.timeout * (law.first_token_s[waiter.class_id] + waiter.shift_s)
        leaves_s = law.infeasible_from_s(tokens, waiter.arrival_s, waiter.class_id, degraded=waiter.degraded)
        leaves_s += waiter.shift_s * (1.0 + law.tolerance[waiter.class_id]) * (law.degrade if waiter.degraded else 1.0)
        return key, leaves_s if law.triage != "defer" or leaves_s >= given[2] else math.inf

    def stirs(self, now_s: float) -> bool:
        """Whether there is anything for triage to do: somebody's time is up, keys are to be taken anew, or something went wrong.

        Args:
            now_s: monotonic clock [s].

        Returns:
            True if so.
        """
        law, expiry = self.law, self._expiry
        return bool(expiry and expiry[0][0] < now_s) or (law is not None and law.renewals != self._renewals) or self.fault is not None

    def due(self, now_s: float) -> list[Any]:
        """Triage: who must be shed now. Who is deferred, degraded, or spared for the cap of its class changes its place on the way.

        Args:
            now_s: monotonic clock [s].

        Returns:
            Requests to refuse; they are out of the queue once vLLM has finished them.
        """
        law, expiry, gone = self.law, self._expiry, []
        if law is None:
            return gone
        if law.renewals != self._renewals:
            self.renew()
        while expiry and expiry[0][0] < now_s:
            _, stamp, waiter = heapq.heappop(expiry)
            if stamp != waiter.stamp or not waiter.queued:
                continue
            if law.triage == "defer":
                self._push(waiter)
            elif law.triage == "degrade" and not waiter.degraded:
                waiter.degraded = True
                self._push(waiter)
            elif law._may_shed(waiter.class_id):
                law.count_shed(waiter.class_id)
                gone.append(waiter.request)
            else:
                waiter.spared = True
                self._push(waiter)
        return gone

    def book(self, chunks: Iterable[tuple[int, int]], pending: set[int]) -> None:
        """Shares: what each class got in a step of what it was due.

        deficit_c += w_c / sum_A(w) P - P_c over the classes A with prompts pending, within two budgets

        Args:
            chunks: (class, prompt tokens in the step) of every request in it.
            pending: classes with a prompt that waits or is being computed.
        """
        got = [0.0] * len(self.shares)
        for class_id, tokens in chunks:
            got[class_id] += tokens
        total, due = sum(got), sum(self.shares[c] for c in pending)
        for c in range(len(self.shares)):
            if c not in pending:
                self.deficits[c] = 0.0
            elif due > 0.0:
                moved = self.deficits[c] + self.shares[c] / due * total - got[c]
                self.deficits[c] = min(max(moved, -2.0 * self.max_tokens), 2.0 * self.max_tokens)

    def classes(self) -> set[int]:
        """Classes that somebody waits in."""
        return {waiter.class_id for waiter in self.waiters.values()}

    def _first(self) -> tuple[list[tuple[float, int, Waiter]], Waiter] | None:
        """The heap with whoever is next, and who that is. What was taken out or put elsewhere is dropped on the way."""
        found, best = None, (3, math.inf)
        for c, heap in enumerate(self._heaps):
            while heap and (heap[0][1] != heap[0][2].stamp or not heap[0][2].queued):
                heapq.heappop(heap)
            if heap:
                key, _, waiter = heap[0]
                behind = bool(self.shares) and self.deficits[c] > DUE
                rank = (0 if waiter.request.num_output_tokens > 0 else 1 if behind else 2, key)
                if rank < best:
                    found, best = (heap, waiter), rank
        return found

    def add_request(self, request: Any) -> None:
        """Put a request in its place.

        Args:
            request: vLLM's.
        """
        waiter = self._waiter(request)
        waiter.queued, waiter.tokens = True, request.num_tokens - request.num_computed_tokens
        self.tokens += waiter.tokens
        self.waiters[request.request_id] = waiter
        if self.law is not None and not waiter.counted:
            waiter.counted = True
            self.law.count_arrival(waiter.class_id)
        self._push(waiter)
        if sum(map(len, self._heaps)) > 2 * len(self.waiters) + 64:
            self.renew()

    def peek_request(self) -> Any:
        """Who is next.

        Returns:
            vLLM's request.

        Raises:
            IndexError: nobody waits.
        """
        found = self._first()
        if found is None:
            raise IndexError("peek from an empty queue")
        return found[1].request

    def pop_request(self) -> Any:
        """Take out who is next.

        Returns:
            vLLM's request.

        Raises:
            IndexError: nobody waits.
        """
        found = self._first()
        if found is None:
            raise IndexError("pop from an empty queue")
        heap, waiter = found
        heapq.heappop(heap)
        self._take(waiter)
        if self.joined is not None:
            self.joined(waiter)
        return waiter.request

    def _take(self, waiter: Waiter) -> None:
        waiter.queued = False
        self.tokens -= waiter.tokens
        del self.waiters[waiter.request.request_id]

    def prepend_request(self, request: Any) -> None:
        """Take back a request that was preempted or skipped: its key puts it in its place, a stream in front.

        Args:
            request: vLLM's.
        """
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        """Likewise, for several.

        Args:
            requests: vLLM's.
        """
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Any) -> None:
        """Take a request out, wherever it stands.

        Args:
            request: vLLM's.

        Raises:
            ValueError: it does not wait.
        """
        waiter = self.waiters.get(request.request_id)
        if waiter is None:
            raise ValueError("the request is not in the queue")
        self._take(waiter)

    def remove_requests(self, requests: Iterable[Any]) -> None:
        """Take out those of these requests that wait.

        Args:
            requests: vLLM's.
        """
        for request in requests:
            waiter = self.waiters.get(request.request_id)
            if waiter is not None:
                self._take(waiter)

    def __bool__(self) -> bool:
        if not self.waiters:
            return False
        if self.gate is None:
            return True
        found = self._first()
        return found is not None and self.gate(found[1])

    def __len__(self) -> int:
        return len(self.waiters)

    def __iter__(self) -> Iterator[Any]:
        rows = [row for heap in self._heaps for row in heap if row[1] == row[2].stamp and row[2].queued]
        return iter([waiter.request for _, _, waiter in sorted(rows, key=lambda row: row[:2])])
