"""Who waits and who is refused, inside vLLM: its queue by slack, triage that the client sees, admission, the order of prompts that run."""

from __future__ import annotations

import math
from typing import Any

from headway.engines.runtime import log
from headway.engines.vllm.clocks import Clocks, monotonic_s
from headway.engines.vllm.gains_file import LoadedGains
from headway.engines.vllm.meter import Meter, Step
from headway.engines.vllm.promises import Promises
from headway.engines.vllm.prompt_queue import PromptQueue, Waiter


class PromptsDesk:
    """The waiting side of a scheduler.

    Args:
        scheduler: vLLM's.
        names: of vLLM, as a `VllmNames`.
        gains: controller, classes, shares.
        clocks: of arrivals.
        acts: the queue takes vLLM's place; in "shadow" it does not.
    """

    def __init__(self, scheduler: Any, names: Any, gains: LoadedGains, clocks: Clocks, *, acts: bool) -> None:
        """Take the place of the queue where the policy asks for more than first come, first served."""
        self._scheduler, self._names, self._gains, self._acts = scheduler, names, gains, acts
        self.promises = Promises(gains, clocks)
        self.queue: PromptQueue | None = None
        self.refused: list[Any] = []
        self.shed: dict[str, int] = {}
        self._shed_since = 0
        self._install()

    def _install(self) -> None:
        law, scheduler = self._gains.law, self._scheduler
        self.gated = self._acts and law.admission.mode != "none"
        self.books = self.gated or bool(self._gains.shares)
        plain = law.order == "fcfs" and law.triage == "none" and not self.books
        if not self._acts or plain or self.queue is not None:
            return
        lacking = sorted(name for name in self._names.queue_members if not hasattr(PromptQueue, name))
        if lacking:
            log.warning("this vLLM asks a waiting queue for %s: order and triage are not applied", ", ".join(lacking))
            return
        queue = PromptQueue(law, self.promises.waiter, monotonic_s, self._gains.shares, law.max_tokens)
        waiting = scheduler.waiting
        while waiting:
            queue.add_request(waiting.pop_request())
        scheduler.waiting = self.queue = queue

    def use(self, gains: LoadedGains) -> None:
        """Go over to other gains.

        Args:
            gains: their controller has taken over already.
        """
        self._gains = gains
        self.promises.use(gains)
        self._install()
        if self.queue is not None:
            self.queue.law = gains.law
            self.queue.share(gains.shares)

    def ended(self, request_ids: Any, decoded: list[Any]) -> None:
        """Requests are gone.

        Args:
            request_ids: names of all of them.
            decoded: those that had decoded.
        """
        admission = self._gains.law.admission
        if admission.mode != "none":
            for request in decoded:
                admission.ended(request.num_prompt_tokens, request.num_output_tokens, self.promises.waiter(request).class_id)
        self.promises.forget(request_ids)

    def triage(self, now_s: float) -> None:
        """Refuse who cannot be served in time any more: vLLM finishes the request, and its client is told so.

        Args:
            now_s: monotonic clock [s].
        """
        queue = self.queue
        assert queue is not None
        if queue.fault is not None:
            raise queue.fault
        gone = queue.due(now_s)
        if not gone:
            return
        for request in gone:
            name = self.promises.name(self.promises.waiter(request))
            self.shed[name] = self.shed.get(name, 0) + 1
        names = [request.request_id for request in gone]
        self._scheduler.finish_requests(names, self._names.aborted)
        self.promises.forget(names)
        self.refused += gone
        self._shed_since += len(gone)

    def tell(self, found: Any) -> None:
        """Put the end of every refused request into what vLLM sends to its clients.

        Args:
            found: EngineCoreOutputs by client; changed in place.
        """
        refused, self.refused = self.refused, []
        for request in refused:
            output = self._names.output(request_id=request.request_id, new_token_ids=[], finish_reason=request.get_finished_reason())
            of_client = found.get(request.client_index)
            if of_client is None:
                of_client = found[request.client_index] = self._names.outputs(outputs=[])
            of_client.outputs.append(output)

    def order_running(self, meter: Meter) -> None:
        """Decodes first, then prompts by key: vLLM hands out a step's tokens in this order, and preempts from the end.

        Args:
            meter: knows which requests still compute their prompt.
        """
        prefilling, running = meter.prefilling, self._scheduler.running
        m = len(prefilling)
        law, rank = self._gains.law, {}
        if m > 1 and law.order != "fcfs":
            now_s = monotonic_s()
            for name, (request, goal) in prefilling.items():
                waiter = self.promises.waiter(request)
                left = goal - request.num_computed_tokens
                started = request.num_output_tokens > 0
                key = law.key(left, waiter.arrival_s, now_s, waiter.class_id, started=started, degraded=waiter.degraded)
                rank[name] = key if started else key + waiter.shift_s
        tail = running[-m:]
        if all(request.request_id in prefilling for request in tail):
            if rank:
                running[-m:] = sorted(tail, key=lambda request: rank[request.request_id])
            return
        running.sort(key=lambda request: rank.get(request.request_id, 0.0) if request.request_id in prefilling else -math.inf)

    def queued_tokens(self, meter: Meter) -> int:
        """What is to be computed of the prompts of all who wait or run.

        Args:
            meter: knows which requests still compute their prompt.

        Returns:
            Prompt tokens [tokens].
        """
        left = sum(goal - request.num_computed_tokens for request, goal in meter.prefilling.values())
        if self.queue is not None:
            return left + self.queue.tokens
        return left + sum(request.num_tokens - request.num_computed_tokens for request in self._scheduler.waiting)

    def follow(self, shares: tuple[float, ...]) -> None:
        """Put the shares of a load in force; what a class is behind stays.

        Args:
            shares: weights by class; () for none.
        """
        if self.queue is not None and len(shares) == len(self.queue.shares):
            self.queue.shares = shares

    def open(self) -> None:
        """The queue is about to be asked: from here on admission has its say."""
        if self.queue is not None:
            self.queue.gate, self.queue.joined = self._admits, self._joined

    def _admits(self, waiter: Waiter) -> bool:
        law, running, request = self._gains.law, self._scheduler.running, waiter.request
        known = ((r.num_tokens, r.num_output_tokens, self.promises.waiter(r).class_id) for r in running)
        limit_s = law.admit_limit_s
        try:
            return law.admission.admits(limit_s, known, len(running), request.num_tokens, request.num_output_tokens, waiter.class_id)
        except Exception as error:  # noqa: BLE001  # this runs inside vLLM's own step
            assert self.queue is not None
            self.queue.fault = error
            return True

    def _joined(self, waiter: Waiter) -> None:
        self._gains.law.admission.joined(waiter.request.num_tokens, waiter.request.num_output_tokens, waiter.class_id)

    def shut(self, step: Step | None, meter: Meter) -> None:
        """The step was composed: books shares and admission.

        Args:
            step: that was composed; None for an empty one.
            meter: with the prompts that are not done.
        """
        queue, law = self.queue, self._gains.law
        if queue is not None:
            queue.gate = queue.joined = None
        if step is None:
            return
        if law.admission.mode != "none":
            law.admission.step()
            if step.preempted:
                law.admission.preempted()
        if queue is not None and queue.shares and step.prefill_tokens:
            self._book(queue, step, meter)

    def shed_since(self) -> int:
        """Requests refused since it was last asked."""
        shed, self._shed_since = self._shed_since, 0
        return shed

    def _book(self, queue: PromptQueue, step: Step, meter: Meter) -> None:
        tokens, requests = step.out.num_scheduled_tokens, self._scheduler.requests
        of = self.promises.waiter
        decoding = meter.decoding
        chunks = []
        for name, n in tokens.items():
            # who was done with this very step decodes from now on, and is no longer told from the others but by its count
            if name not in decoding or decoding[name].num_computed_tokens <= decoding[name].num_prompt_tokens:
                chunks.append((of(requests[name]).class_id, n))
        pending = (
            queue.classes() | {class_id for class_id, _ in chunks} | {of(request).class_id for request, _ in meter.prefilling.values()}
        )
        queue.book(chunks, pending)

    def would_shed(self, out: Any) -> int:
        """Shadow: how many of those that came in now were so late that triage would have refused them.

        Args:
            out: vLLM's SchedulerOutput.

        Returns:
            Their number.
        """
        law, now_s, count = self._gains.law, monotonic_s(), 0
        for new in out.scheduled_new_reqs:
            request = self._scheduler.requests[new.req_id]
            waiter = self.promises.waiter(request)
            count += law.turn_away(request.num_prompt_tokens, waiter.arrival_s, now_s - waiter.shift_s, waiter.class_id)
        return count

    def retire(self) -> None:
        """Put vLLM's own queue back, with all who wait in order of arrival."""
        queue = self.queue
        if queue is None:
            return
        queue.law, queue.gate, queue.joined = None, None, None
        stock = self._names.stock_queue(self._scheduler)
        for request in sorted(queue, key=lambda request: (request.num_output_tokens == 0, request.arrival_time)):
            stock.add_request(request)
        self._scheduler.waiting, self.queue = stock, None
