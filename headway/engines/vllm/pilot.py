"""What stands beside vLLM's scheduler: called before and after each of its steps, and never the reason that one fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from headway.engines.runtime import log
from headway.engines.vllm.clocks import Clocks, monotonic_s
from headway.engines.vllm.excitation import Excitation
from headway.engines.vllm.gains_file import GainsFile, LoadedGains
from headway.engines.vllm.gauges import Gauges
from headway.engines.vllm.knobs import Knobs
from headway.engines.vllm.loop import Loop
from headway.engines.vllm.meter import Meter, Step, worker_cpu_clock
from headway.engines.vllm.prompts_desk import PromptsDesk
from headway.engines.vllm.settings import VllmSettings
from headway.engines.vllm.trace_file import TraceFile

LOOK_S = 0.5
"""Between two looks at the gains file, the clocks and the gauges [s]."""
TOLD_S = 10.0
"""Between two lines of the log on who was refused and who was preempted, where there is news [s]."""
SAID_S = 60.0
"""Between two lines of the log on what "shadow" would have done [s]."""


class VllmNames(NamedTuple):
    """What the adapter uses of vLLM beside the scheduler itself.

    Args:
        output: EngineCoreOutput.
        outputs: EngineCoreOutputs.
        aborted: RequestStatus.FINISHED_ABORTED.
        stock_queue: makes the waiting queue that a scheduler starts with, as a function of the scheduler.
        queue_members: what vLLM asks of a waiting queue, by name.
        version: of vLLM.
        cpu: it runs the llm on CPUs, where the time of its process says more than the wall clock.
    """

    output: Any
    outputs: Any
    aborted: Any
    stock_queue: Any
    queue_members: frozenset[str]
    version: str
    cpu: bool


class Pilot:
    """One a scheduler. After any fault of its own it is silent, and vLLM schedules as it would without it.

    Args:
        scheduler: vLLM's.
        names: of vLLM.
        settings: how to run.
        inlined: gains that were written into the adapter; None without.
    """

    def __init__(self, scheduler: Any, names: VllmNames, settings: VllmSettings, inlined: LoadedGains | None) -> None:
        """Take everything in hand; what can fail is in `start`."""
        self.scheduler, self.names, self.settings, self.mode = scheduler, names, settings, settings.mode
        self._inlined = inlined
        self.failed: BaseException | None = None
        self.knobs: Knobs | None = None
        self.loop: Loop | None = None
        self.desk: PromptsDesk | None = None
        self._excitation: Excitation | None = None
        self._trace: TraceFile | None = None
        self._gauges: Gauges | None = None
        self._file: GainsFile | None = None
        self._look_at = self._say_at = 0.0
        self._began_s = 0.0
        self._would = (0, 0)
        self._told_at, self._told = 0.0, (0, dict[str, int]())
        self._shadow = [0, 0, 0]
        self.meter, self.clocks = Meter(exact=bool(getattr(scheduler, "num_spec_tokens", 0))), Clocks()

    def start(self, gains_beside: Path) -> None:
        """Read the gains, open the trace, take the queue's place.

        Args:
            gains_beside: controller.json beside the adapter, which is watched where the settings name no other.
        """
        try:
            self._start(Path(self.settings.gains) if self.settings.gains else gains_beside)
        except Exception as error:  # noqa: BLE001  # serving never stops on our account
            self.fail(error)

    def _start(self, path: Path) -> None:
        scheduler, settings = self.scheduler, self.settings
        self.knobs = knobs = Knobs(scheduler)
        self._gauges = Gauges(settings.metrics_port)
        gains: LoadedGains | None = None
        if self.mode in ("shadow", "control"):
            if settings.gains or path.exists():
                self._file = GainsFile(path)
                gains = self._file.changed()
            gains = gains or self._inlined
            if gains is None:
                raise ValueError(f"mode {self.mode} needs gains, and {path} has none that can be used")
            self.loop = Loop(gains, self.meter, obeyed=self.mode == "control")
            self.desk = PromptsDesk(scheduler, self.names, gains, self.clocks, acts=self.mode == "control")
        elif self.mode == "excite":
            self._excitation = Excitation(settings, knobs.max_tokens, knobs.max_seqs)
        header = self._header(gains)
        if settings.trace:
            self.meter.cpu_clock = worker_cpu_clock() if self.names.cpu else None
            rank = int(getattr(getattr(scheduler.vllm_config, "parallel_config", None), "data_parallel_rank", 0) or 0)
            self._trace = TraceFile(settings.trace + (f".{rank}" if rank else ""), header)
        law = f"law {gains.law.law}, content {gains.law.content[:12]}" if gains else "no gains"
        log.info(
            "headway: mode %s, %s, vLLM %s, %s, trace %s", self.mode, law, self.names.version, header["limits"], settings.trace or "off"
        )

    def _header(self, gains: LoadedGains | None) -> dict[str, Any]:
        scheduler, knobs = self.scheduler, self.knobs
        assert knobs is not None
        cache = getattr(scheduler, "cache_config", None)
        block = int(getattr(scheduler, "block_size", 0) or 0)
        limits = {"max_tokens": knobs.max_tokens, "max_seqs": knobs.max_seqs, "block_tokens": block}
        limits["kv_tokens"] = int(getattr(cache, "num_gpu_blocks", 0) or 0) * block
        limits["max_len"] = int(getattr(scheduler, "max_model_len", 0) or 0)
        return {
            "version": self.names.version,
            "async": bool(getattr(scheduler.scheduler_config, "async_scheduling", False)),
            "limits": {name: value for name, value in limits.items() if value > 0},
            "mode": self.mode,
            "clock": self.settings.clock,
            "seed": self.settings.seed,
            "controller": gains.law.content if gains else "",
        }

    def before(self) -> None:
        """Call it before vLLM composes a step."""
        if self.failed is None:
            try:
                self._before()
            except Exception as error:  # noqa: BLE001
                self.fail(error)

    def after(self, out: Any) -> None:
        """Call it with what vLLM has composed.

        Args:
            out: its SchedulerOutput.
        """
        if self.failed is None:
            try:
                self._after(out, monotonic_s())
            except Exception as error:  # noqa: BLE001
                self.fail(error)

    def ended(self, out: Any) -> None:
        """Call it when a step's results are here, before vLLM looks at them.

        Args:
            out: the SchedulerOutput that they belong to.
        """
        if self.failed is None:
            try:
                step = self.meter.ended(out, monotonic_s())
                if step is not None and self._trace is not None:
                    self._trace.write(step)
            except Exception as error:  # noqa: BLE001
                self.fail(error)

    def outputs(self, found: Any) -> Any:
        """Call it with what vLLM makes of a step's results.

        Args:
            found: its EngineCoreOutputs by client.

        Returns:
            The same, and in it the end of every request that was refused since.
        """
        if self.desk is not None and self.desk.refused:
            try:
                self.desk.tell(found)
            except Exception as error:  # noqa: BLE001
                self.fail(error)
        if self._trace is not None and not self.scheduler.running:
            self._trace.flush()
        return found

    def close(self) -> None:
        """Write out what is left."""
        if self._trace is not None:
            self._trace.close()

    def _before(self) -> None:
        scheduler, meter, desk = self.scheduler, self.meter, self.desk
        self._began_s = now_s = monotonic_s()
        finished = scheduler.finished_req_ids
        if finished:
            gone = meter.forget(finished)
            if desk is not None:
                desk.ended(finished, gone)
        if now_s >= self._look_at:
            self._look(now_s)
        knobs, loop = self.knobs, self.loop
        assert knobs is not None
        if loop is not None:
            assert desk is not None
            self._steer(knobs, loop, desk, now_s)
        elif self._excitation is not None:
            tokens, running = self._excitation.step(len(meter.decoding))
            knobs.write(tokens, running, knobs.chunk)

    def _steer(self, knobs: Knobs, loop: Loop, desk: PromptsDesk, now_s: float) -> None:
        """One step of the loop: who is refused, how much comes into the step, and in which order."""
        scheduler, prefilling = self.scheduler, self.meter.prefilling
        queue, limit = desk.queue, loop.law.running_limit
        if loop.follows:
            desk.follow(loop.follow(scheduler.kv_cache_manager.usage))
        if self.mode != "control":
            waiting = len(scheduler.waiting)
            prompts = bool(prefilling) or waiting > 0
            self._would = min(max(loop.command(waiting, prompts=prompts), 1), knobs.max_tokens), min(limit, knobs.max_seqs)
            return
        if queue is None:
            waiting = len(scheduler.waiting)
        else:
            if queue.stirs(now_s):
                desk.triage(now_s)
            waiting = len(queue.waiters)
        prompts = bool(prefilling) or (waiting > 0 and len(scheduler.running) < limit)
        tokens = loop.command(waiting, prompts=prompts)
        if tokens != knobs.asked or limit != knobs.asked_running or loop.chunk_tokens != knobs.chunk or not knobs.has_active:
            knobs.write(tokens, limit, loop.chunk_tokens)
        if prefilling:
            desk.order_running(self.meter)
        if desk.gated:
            desk.open()

    def _after(self, out: Any, ended_s: float) -> None:
        scheduler, meter, knobs, desk = self.scheduler, self.meter, self.knobs, self.desk
        assert knobs is not None
        step = meter.composed(out, scheduler.requests, scheduler.running, self._began_s, ended_s)
        if self.loop is not None and self.loop.follows and desk is not None:
            self.loop.queued_tokens = desk.queued_tokens(meter)
        if step is None:
            if desk is not None and desk.books:
                desk.shut(None, meter)
            return
        budget = knobs.tokens
        step.token_budget = budget
        step.binding = out.total_num_scheduled_tokens >= budget and bool(meter.prefilling or scheduler.waiting)
        if desk is not None and desk.books:
            desk.shut(step, meter)
        if self._trace is not None:
            step.running, step.waiting = scheduler.get_request_counts()
            step.kv_usage, step.running_limit, step.chunk_tokens = scheduler.kv_cache_manager.usage, knobs.running, knobs.chunk
            step.mode, step.shed = self.mode, desk.shed_since() if desk is not None else 0
        if self.mode == "shadow" and desk is not None:
            self._compare(step, desk)

    def _compare(self, step: Step, desk: PromptsDesk) -> None:
        """Shadow: what would have been done, beside what was."""
        step.would_tokens, step.would_running = self._would
        seen = self._shadow
        seen[0] += 1
        seen[1] += step.would_tokens < step.decode_requests + step.prefill_tokens
        seen[2] += desk.would_shed(step.out)
        if self._began_s >= self._say_at:
            self._say_at = self._began_s + SAID_S
            log.info("shadow: of %d steps %d would have been smaller; %d requests served too late would have been refused", *seen)

    def _look(self, now_s: float) -> None:
        """What need not be looked at in every step."""
        self._look_at = now_s + LOOK_S
        self.clocks.look()
        if self._file is not None and self.loop is not None and self.desk is not None:
            gains = self._file.changed()
            if gains is not None:
                before = self.loop.law.content
                self.loop.replace(gains)
                self.desk.use(gains)
                log.info("gains with content %s take over from %s", gains.law.content[:12], before[:12])
        if self.desk is not None and now_s >= self._told_at and (self.meter.preempted, self.desk.shed) != self._told:
            self._told_at, self._told = now_s + TOLD_S, (self.meter.preempted, dict(self.desk.shed))
            shed = ", ".join(f"{count} of {name}" for name, count in self.desk.shed.items()) or "none"
            log.info("so far: requests refused: %s; preempted for want of cache blocks: %d", shed, self.meter.preempted)
        if self._trace is not None:
            self._trace.flush()
        self._show()

    def _show(self) -> None:
        if self._gauges is None or self.knobs is None:
            return
        values = {"fallback": float(self.failed is not None), "token_budget": self.knobs.tokens, "running_limit": self.knobs.running}
        if self.meter.last is not None:
            values["step_time_seconds"] = self.meter.last.step_time_s
        loop = self.loop
        if loop is not None:
            law = loop.law
            drift = float(law.drift.alarm) if law.drift else 0.0
            values |= {"setpoint_seconds": law.setpoint_s, "margin": loop.margin, "late_rate": loop.late_rate, "drift": drift}
            values |= {"reverted": float(law.reverted), "faults": float(law.faults), "reloads": float(loop.reloads)}
            values["refused_gains"] = float(self._file.refused if self._file else 0)
        self._gauges.show(values, "stock" if self.failed else self.mode, self.desk.shed if self.desk else {})

    def fail(self, error: BaseException) -> None:
        """A fault of the adapter: said once, and vLLM goes on as if it were not there.

        Args:
            error: what went wrong.
        """
        if self.failed is not None:
            return
        self.failed = error
        log.error("headway gives up, vLLM schedules alone from here on: %s: %s", type(error).__name__, error, exc_info=error)
        for undo in (self.knobs and self.knobs.restore, self.desk and self.desk.retire, self.close, self._show):
            try:
                if undo:
                    undo()
            except Exception as second:  # noqa: BLE001
                log.error("and putting things back met %s: %s", type(second).__name__, second)
