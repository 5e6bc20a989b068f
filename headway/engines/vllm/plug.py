"""Where vLLM takes hold of the adapter: `--scheduler-cls headway_vllm.make_scheduler`."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

from headway.engines.runtime import log
from headway.engines.vllm.gains_file import LoadedGains, gains_from_text
from headway.engines.vllm.pilot import Pilot, VllmNames
from headway.engines.vllm.settings import VllmSettings, vllm_settings

INLINED_GAINS = ""
"""Content of controller.json, as the export writes it here; "" where there is none."""


def steered(base: type, names: VllmNames, settings: VllmSettings, inlined: LoadedGains | None, beside: Path) -> type:
    """A scheduler class that runs as its base does, with a pilot beside it.

    Args:
        base: vLLM's Scheduler or AsyncScheduler.
        names: what the pilot uses of vLLM.
        settings: how it runs.
        inlined: gains in the adapter; None without.
        beside: controller.json beside it.

    Returns:
        The class.
    """

    class HeadwayScheduler(base):
        """Whatever it is asked, its base answers; the pilot is told before and after each step."""

        def __init__(self, *args: Any, **kw: Any) -> None:
            super().__init__(*args, **kw)
            self.headway = Pilot(self, names, settings, inlined)
            self.headway.start(beside)

        def schedule(self, *args: Any, **kw: Any) -> Any:
            """Compose a step."""
            self.headway.before()
            out = super().schedule(*args, **kw)
            self.headway.after(out)
            return out

        def update_from_output(self, scheduler_output: Any, *args: Any, **kw: Any) -> Any:
            """Take in the results of a step."""
            self.headway.ended(scheduler_output)
            return self.headway.outputs(super().update_from_output(scheduler_output, *args, **kw))

        def shutdown(self) -> None:
            """End."""
            self.headway.close()
            super().shutdown()

    HeadwayScheduler.__name__ = HeadwayScheduler.__qualname__ = f"Headway{base.__name__}"
    return HeadwayScheduler


def make_scheduler(vllm_config: Any, *args: Any, **kw: Any) -> Any:
    """What vLLM calls in the place of a scheduler class: the base is the one that fits how it schedules.

    Under asynchronous scheduling a subclass of Scheduler would let each request decode in every second step only.

    Args:
        vllm_config: vLLM's.
        *args: for its scheduler.
        **kw: likewise.

    Returns:
        The scheduler.
    """
    _join_log()
    inlined = gains_from_text(INLINED_GAINS) if INLINED_GAINS else None
    settings = vllm_settings(vllm_config.additional_config, has_gains=inlined is not None)
    where = "vllm.v1.core.sched."
    asynchronous = bool(getattr(vllm_config.scheduler_config, "async_scheduling", False))
    module, name = (f"{where}async_scheduler", "AsyncScheduler") if asynchronous else (f"{where}scheduler", "Scheduler")
    base = getattr(importlib.import_module(module), name)
    beside = Path(__file__).with_name("controller.json")
    return steered(base, vllm_names(), settings, inlined, beside)(vllm_config, *args, **kw)


def vllm_names() -> VllmNames:
    """What the adapter uses of the vLLM that is installed.

    Returns:
        The names.
    """
    engine, request = importlib.import_module("vllm.v1.engine"), importlib.import_module("vllm.v1.request")
    queues, platforms = importlib.import_module("vllm.v1.core.sched.request_queue"), importlib.import_module("vllm.platforms")
    return VllmNames(
        output=engine.EngineCoreOutput,
        outputs=engine.EngineCoreOutputs,
        aborted=request.RequestStatus.FINISHED_ABORTED,
        stock_queue=lambda scheduler: queues.create_request_queue(scheduler.policy),
        queue_members=frozenset(queues.RequestQueue.__abstractmethods__),
        version=str(importlib.import_module("vllm").__version__),
        cpu=bool(platforms.current_platform.is_cpu()),
    )


def _join_log() -> None:
    """Let what we say go where vLLM's own lines go."""
    logger = logging.getLogger("vllm")
    if logger.handlers:
        log.parent = logger
