"""A scheduler with the members of vLLM's that the adapter touches, and no more: first come, first served, chunks, no cache to run out of."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Iterable
from typing import Any


class FakeQueue(deque):
    """vLLM's first come, first served."""

    def add_request(self, request: FakeRequest) -> None:
        self.append(request)

    def pop_request(self) -> FakeRequest:
        return self.popleft()

    def peek_request(self) -> FakeRequest:
        return self[0]

    def remove_requests(self, requests: Iterable[FakeRequest]) -> None:
        gone = {id(r) for r in requests}
        kept = [r for r in self if id(r) not in gone]
        self.clear()
        self.extend(kept)


@dataclasses.dataclass(eq=False)
class Sampling:
    extra_args: Any = None


@dataclasses.dataclass(eq=False)
class FakeRequest:
    request_id: str
    num_prompt_tokens: int
    max_tokens: int
    arrival_time: float = dataclasses.field(default_factory=time.time)
    sampling_params: Sampling = dataclasses.field(default_factory=Sampling)
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    client_index: int = 0
    reason: str | None = None

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    def get_finished_reason(self) -> str | None:
        return self.reason


@dataclasses.dataclass
class New:
    req_id: str
    num_computed_tokens: int = 0


@dataclasses.dataclass
class Cached:
    resumed_req_ids: set = dataclasses.field(default_factory=set)


@dataclasses.dataclass
class Out:
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    scheduled_new_reqs: list[New]
    finished_req_ids: set
    scheduled_cached_reqs: Cached = dataclasses.field(default_factory=Cached)
    preempted_req_ids: set | None = None


@dataclasses.dataclass
class Outputs:
    outputs: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Output:
    request_id: str
    new_token_ids: list
    finish_reason: str | None = None


@dataclasses.dataclass
class Config:
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    async_scheduling: bool = False


class Cache:
    usage = 0.25


class FakeScheduler:
    """Composes, counts, ends. `max_num_active_reqs` is there or not, as in vLLM from 0.31 on and before."""

    active = True

    def __init__(self, max_seqs: int = 16, max_tokens: int = 2048) -> None:
        self.scheduler_config = Config(max_tokens)
        self.max_num_scheduled_tokens, self.max_num_running_reqs = max_tokens, max_seqs
        if self.active:
            self.max_num_active_reqs = max_seqs
        self.vllm_config = self.cache_config = None
        self.block_size, self.max_model_len = 16, 8192
        self.waiting: Any = FakeQueue()
        self.running: list[FakeRequest] = []
        self.requests: dict[str, FakeRequest] = {}
        self.finished_req_ids: set[str] = set()
        self.kv_cache_manager = Cache()
        self.closed = False

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    def add_request(self, request: FakeRequest) -> None:
        self.requests[request.request_id] = request
        self.waiting.add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> Out:
        budget, given, new = self.max_num_scheduled_tokens, {}, []
        limit = self.max_num_active_reqs if self.active else self.max_num_running_reqs
        cap = self.scheduler_config.long_prefill_token_threshold or budget
        for request in self.running:
            if n := min(request.num_tokens - request.num_computed_tokens, budget, cap):
                given[request.request_id] = n
                budget -= n
        while self.waiting and budget > 0 and len(self.running) < limit:
            assert self.waiting.peek_request() is not None
            request = self.waiting.pop_request()
            self.running.append(request)
            new.append(New(request.request_id))
            given[request.request_id] = n = min(request.num_tokens, budget, cap)
            budget -= n
        assert len(self.running) <= self.max_num_running_reqs
        out = Out(given, sum(given.values()), new, self.finished_req_ids)
        for name, n in given.items():
            self.requests[name].num_computed_tokens += n
        self.finished_req_ids = set()
        return out

    def update_from_output(self, scheduler_output: Out, model_runner_output: Any) -> dict[int, Outputs]:
        found: dict[int, Outputs] = {}
        for name in scheduler_output.num_scheduled_tokens:
            request = self.requests.get(name)
            if request is None or request.num_computed_tokens < request.num_tokens:
                continue
            request.num_output_tokens += 1
            done = request.num_output_tokens >= request.max_tokens
            found.setdefault(request.client_index, Outputs()).outputs.append(Output(name, [7], "length" if done else None))
            if done:
                self.finish_requests([name], "length")
        return found

    def finish_requests(self, request_ids: Iterable[str], finished_status: str) -> None:
        gone = [self.requests.pop(name) for name in request_ids]
        self.waiting.remove_requests(gone)
        self.running = [r for r in self.running if r not in gone]
        for request in gone:
            request.reason = finished_status
            self.finished_req_ids.add(request.request_id)

    def shutdown(self) -> None:
        self.closed = True


class FakeOldScheduler(FakeScheduler):
    active = False
