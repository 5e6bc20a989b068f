"""The adapter's trace: a header, then one JSON object a step, written behind vLLM's back and never at the cost of serving."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.engines.runtime import log
from headway.engines.vllm.meter import Step

TRACE_VERSION = 1
TRACE_FIELDS = (  # and schedule_s, and would_tokens and would_running in "shadow"
    "step",
    "clock_s",
    "step_time_s",
    "prefill_tokens",
    "prefill_pairs",
    "prefill_requests",
    "decode_requests",
    "decode_kv_tokens",
    "waiting",
    "running",
    "kv_usage",
    "token_budget",
    "running_limit",
    "chunk_tokens",
    "binding",
    "worker_cpu_s",
    "admitted",
    "preempted",
    "shed",
    "mode",
)


class TraceFile:
    """A file of steps. A write that fails ends the trace, with one line in the log, and nothing else.

    Args:
        path: to append to: a server that was started again writes a header of its own.
        header: what the steps are of.
    """

    def __init__(self, path: str, header: dict[str, Any]) -> None:
        """Open the file and say what comes."""
        self.rows = 0
        self._file: Any = None
        try:
            self._file = Path(path).open("a", buffering=1 << 16, encoding="utf-8")  # noqa: SIM115  # it stays open as long as vLLM runs
            self._file.write(json.dumps({"headway_trace": TRACE_VERSION, "engine": "vllm", **header}) + "\n")
            self._file.flush()
        except OSError as error:
            self._broken(error)

    def write(self, step: Step) -> None:
        """Append a step that has ended.

        Args:
            step: with its duration.
        """
        if self._file is None:
            return
        row = {name: getattr(step, name) for name in TRACE_FIELDS}
        row["schedule_s"] = step.end_s - step.clock_s
        if step.mode == "shadow":
            row["would_tokens"], row["would_running"] = step.would_tokens, step.would_running
        try:
            self._file.write(json.dumps(row) + "\n")
        except (OSError, ValueError) as error:
            self._broken(error)
        self.rows += 1

    def flush(self) -> None:
        """Hand over what was written, so that a server that is killed loses half a second of it."""
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._broken(error)

    def close(self) -> None:
        """End it; what is written from then on is dropped."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _broken(self, error: Exception) -> None:
        log.error("the trace of steps ends here: %s", error)
        self._file = None
