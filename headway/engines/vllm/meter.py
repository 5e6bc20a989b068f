"""What each step of vLLM held and how long it took, from outside its scheduler: nothing is copied, every sum is taken once a step."""

from __future__ import annotations

import importlib
import os
import time
from collections import deque
from operator import attrgetter
from typing import Any

COMPUTED = attrgetter("num_computed_tokens")
RECOUNT_STEPS = 32
"""Between two counts of the cache tokens over all requests; in between each decode is known to add its own [steps]."""


class Step:
    """One step that was composed: its sums, the command in force, and, once it has ended, its duration."""

    __slots__ = (
        "admitted",
        "binding",
        "chunk_tokens",
        "clock_s",
        "decode_kv_tokens",
        "decode_requests",
        "end_cpu_s",
        "end_s",
        "kv_usage",
        "mode",
        "out",
        "preempted",
        "prefill_pairs",
        "prefill_requests",
        "prefill_tokens",
        "running",
        "running_limit",
        "shed",
        "step",
        "step_time_s",
        "token_budget",
        "waiting",
        "worker_cpu_s",
        "would_running",
        "would_tokens",
    )

    def __init__(self, step: int, out: Any, clock_s: float, end_s: float) -> None:
        """Only the number, vLLM's own output and the clocks around `schedule` are known at first."""
        self.step, self.out, self.clock_s, self.end_s = step, out, clock_s, end_s
        self.prefill_requests = self.prefill_tokens = 0
        self.prefill_pairs = 0.0
        self.worker_cpu_s: float | None = None


class Meter:
    """Requests by phase, steps in flight, and the one that ended last.

    step_time(k) = done(k) - max(sched_end(k), done(k-1))

    It is right with one batch in flight and with two: the second waits for the first, and the wait is no part of it.

    Args:
        cpu_clock: returns the CPU time of the process that runs the llm [s]; None where it tells nothing.
        exact: count cache tokens anew in every step: where tokens may be taken back, as by speculative decoding.
    """

    def __init__(self, cpu_clock: Any = None, *, exact: bool = False) -> None:
        """Start with an idle engine."""
        self._exact = self._stale = exact
        self.prefilling: dict[str, tuple[Any, int]] = {}
        self.decoding: dict[str, Any] = {}
        self.kv_tokens = 0
        self.pending: deque[Step] = deque()
        self.done_s, self.done_cpu_s, self.steps = float("-inf"), 0.0, 0
        self.lost = self.resyncs = self.preempted = 0
        self.last: Step | None = None
        self.cpu_clock = cpu_clock

    def forget(self, request_ids: Any) -> list[Any]:
        """Drop requests that ended since the last step.

        Args:
            request_ids: their names.

        Returns:
            Those that had decoded.
        """
        gone = []
        for name in request_ids:
            self.prefilling.pop(name, None)
            request = self.decoding.pop(name, None)
            if request is not None:
                self.kv_tokens -= request.num_computed_tokens
                gone.append(request)
        return gone

    def composed(self, out: Any, requests: dict[str, Any], running: list[Any], began_s: float, ended_s: float) -> Step | None:
        """Sum up a step that `schedule` has just returned.

        Args:
            out: vLLM's SchedulerOutput.
            requests: the scheduler's, by name.
            running: the scheduler's, after the step was composed.
            began_s: monotonic clock before `schedule` [s].
            ended_s: and after it [s].

        Returns:
            The step; None for an empty one, which takes no time.
        """
        tokens, total, new = out.num_scheduled_tokens, out.total_num_scheduled_tokens, out.scheduled_new_reqs
        preempted, resumed = out.preempted_req_ids, out.scheduled_cached_reqs.resumed_req_ids
        if preempted or resumed or new:
            self._came(new, resumed or (), preempted or (), requests)
        if not total:
            return None
        self.steps += 1
        step = Step(self.steps, out, began_s, ended_s)
        n = len(tokens)
        if self.prefilling:
            done = self._chunks(step, tokens)
            n, total = n - step.prefill_requests, total - step.prefill_tokens
        else:
            done = ()
        step.decode_requests = n
        decoding = self.decoding
        if n == len(decoding) and not self._stale and self.steps % RECOUNT_STEPS:
            step.decode_kv_tokens = kv = self.kv_tokens
            self.kv_tokens = kv + total
        else:
            self._recount(step, tokens, n, total, running)
        for name in done:
            request, _ = self.prefilling.pop(name)
            decoding[name] = request
            self.kv_tokens += request.num_computed_tokens
        step.admitted = len(new)
        step.preempted = len(preempted) if preempted else 0
        if self.cpu_clock:
            step.end_cpu_s = self.cpu_clock()
        self.pending.append(step)
        return step

    def _came(self, new: Any, resumed: Any, preempted: Any, requests: dict[str, Any]) -> None:
        """Who came in with this step, for the first time or again, and who had to leave for it."""
        self.preempted += len(preempted)
        for name in preempted:
            self.prefilling.pop(name, None)
            if self.decoding.pop(name, None) is not None:
                self._stale = True  # what it read is gone with it
        for name in [*(one.req_id for one in new), *resumed]:
            request = requests[name]
            self.decoding.pop(name, None)
            self.prefilling[name] = request, request.num_tokens

    def _chunks(self, step: Step, tokens: dict[str, int]) -> list[str]:
        """Sums over the prompts in a step, and whose last chunk it was."""
        done, p, pairs, r = [], 0, 0.0, 0
        for name, (request, goal) in self.prefilling.items():
            n = tokens.get(name)
            if n:
                # vLLM has counted this step's tokens as computed already
                after = request.num_computed_tokens
                p, r = p + n, r + 1
                pairs += n * (after - 0.5 * n)
                if after >= goal:
                    done.append(name)
        step.prefill_tokens, step.prefill_pairs, step.prefill_requests = p, pairs, r
        return done

    def _recount(self, step: Step, tokens: dict[str, int], n: int, decoded: int, running: list[Any]) -> None:
        """Cache tokens that the decodes of a step read, from the requests themselves: it costs as much as there are."""
        decoding, self._stale = self.decoding, self._exact
        if n > len(decoding):
            self._resync(running, tokens)
        self.kv_tokens = kv = sum(map(COMPUTED, decoding.values()))
        if n < len(decoding):
            kv -= sum(decoding[name].num_computed_tokens for name in decoding.keys() - tokens.keys())
        step.decode_kv_tokens = max(kv - decoded, n)

    def _resync(self, running: list[Any], tokens: dict[str, int]) -> None:
        """Somebody decodes who was never seen to come in, as a session that goes on does: look through all that run."""
        self.resyncs += 1
        for request in running:
            name = request.request_id
            if name in tokens and name not in self.prefilling:
                self.decoding[name] = request

    def ended(self, out: Any, now_s: float) -> Step | None:
        """A step's results are here.

        Args:
            out: the SchedulerOutput that they belong to.
            now_s: monotonic clock before vLLM looks at them [s].

        Returns:
            The step with its duration; None for an empty one.
        """
        pending = self.pending
        if not pending or (pending[0].out is not out and all(step.out is not out for step in pending)):
            return None
        step = pending.popleft()
        while step.out is not out:
            self.lost += 1
            step = pending.popleft()
        queued = step.end_s > self.done_s
        step.step_time_s = now_s - (step.end_s if queued else self.done_s)
        if self.cpu_clock:
            cpu_s = self.cpu_clock()
            step.worker_cpu_s = cpu_s - (step.end_cpu_s if queued else self.done_cpu_s)
            self.done_cpu_s = cpu_s
        self.done_s, self.last, step.out = now_s, step, None
        return step


def worker_cpu_clock() -> Any:
    """A clock of the CPU time of the process that runs the llm: a child named Worker, else this one.

    Returns:
        A function without arguments [s]; None where the system has no such clock.
    """
    pid = os.getpid()
    try:
        psutil = importlib.import_module("psutil")
        workers = [child.pid for child in psutil.Process().children() if "Worker" in " ".join(child.cmdline()) + child.name()]
        pid = min(workers, default=pid)
    except Exception:  # noqa: BLE001  # a trace without this column is still a trace
        return None
    if pid == os.getpid():
        return time.process_time
    # the kernel's own number for "CPU time of this process": all its threads, in nanoseconds, for one system call
    clock = (~pid << 3) | 2

    def cpu_s() -> float:
        return time.clock_gettime(clock)

    try:
        cpu_s()
    except OSError:
        return None
    return cpu_s
