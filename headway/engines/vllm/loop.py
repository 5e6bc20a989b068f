"""The loop around a law inside vLLM: what it is told of the last step, what it answers for the next, and how well it holds its target."""

from __future__ import annotations

import math

from headway.engines.runtime import Runtime
from headway.engines.vllm.gains_file import LoadedGains, take_over
from headway.engines.vllm.meter import Meter, Step

LATE_GAIN = 0.002
"""Weight of one step in the share of late ones that is shown."""


class Loop:
    """A controller, and the meter that it reads.

    Args:
        gains: the controller in its initial state.
        meter: of the steps.
        obeyed: its commands are carried out; in "shadow" they are not, and a step above the command is no fault.
    """

    def __init__(self, gains: LoadedGains, meter: Meter, *, obeyed: bool) -> None:
        """Nothing was measured yet."""
        self.gains, self.law, self._meter, self._obeyed = gains, gains.law, meter, obeyed
        self._read: Step | None = None
        self._started = False
        self.late_rate = self.margin = 0.0
        self.reloads = self.queued_tokens = 0
        self._load: tuple[float, float, float] = (0.0, 0.0, 0.0)
        self._loosen()

    def _loosen(self) -> None:
        self.chunk_tokens = int(self.law.chunk_tokens)
        self.follows = self.law.schedule is not None or self.gains.share_schedule is not None
        if not self._obeyed:
            self.law.guard.over_steps = math.inf

    def replace(self, gains: LoadedGains) -> None:
        """Go over to other gains at a step boundary, without a bump.

        Args:
            gains: the new controller in its initial state.
        """
        ready, kv, context = self._ready()
        if self.follows:  # the command in force is that of this load, not of an idle engine
            gains.law.follow_load(*self._load)
        take_over(gains.law, self.law, ready, kv, context)
        self.gains, self.law = gains, gains.law
        self.reloads += 1
        self._loosen()

    def _ready(self) -> tuple[float, float, float]:
        meter = self._meter
        context = 0
        for request, _ in meter.prefilling.values():
            context = request.num_computed_tokens
            break
        n = len(meter.decoding)
        return float(n), float(max(meter.kv_tokens, n)), float(context)

    def follow(self, kv_share: float) -> tuple[float, ...]:
        """Put the gains of the load in force, before the command is asked for. `queued_tokens` is what the last step left to be computed.

        Args:
            kv_share: cache blocks in use, of all.

        Returns:
            Shares of the classes under this load; () for none.
        """
        decoding = len(self._meter.decoding)
        self._load = self.queued_tokens, decoding, kv_share
        self.law.follow_load(*self._load)
        self.chunk_tokens = int(self.law.chunk_tokens)
        return self.gains.shares_at(self.queued_tokens, decoding / self.law.running_limit, kv_share)

    def command(self, waiting: int, *, prompts: bool) -> int:
        """Token budget of the step that is composed now.

        Args:
            waiting: requests that wait.
            prompts: a prompt could come into the step. Where none can, no budget is looked for: the decodes get their tokens under
                any, and the law learns from the last step all the same.

        Returns:
            Budget, before it is held to the engine's limits [tokens].
        """
        law, last = self.law, self._meter.last
        ready, kv, context = self._ready() if prompts else (0.0, 0.0, 0.0)
        law.waiting_requests = waiting
        if last is self._read:
            return self._unmeasured(law, ready, kv, context)
        assert last is not None
        self._read, self._started = last, True
        if last.decode_requests:
            late = last.step_time_s > law.budget_s
            self.late_rate += LATE_GAIN * (late - self.late_rate)
            self.margin = 1.0 - last.step_time_s / law.budget_s
        return law.update(
            last.step_time_s,
            last.prefill_tokens,
            last.decode_requests,
            last.binding,
            ready,
            last.decode_kv_tokens,
            last.prefill_pairs,
            last.prefill_requests,
            kv,
            context,
        )

    def _unmeasured(self, law: Runtime, ready: float, kv: float, context: float) -> int:
        """With two batches in flight a step may be composed before the last has ended: the law as it stands, for who is ready now."""
        if not self._started:
            self._started = True
            return law.update(None, 0, 0, False, ready, ready_kv_tokens=kv, context_tokens=context)
        law.guard.ready = ready
        return law._command(0.0, 0.0, ready, kv, context)
