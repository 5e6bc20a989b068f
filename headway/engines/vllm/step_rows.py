"""The adapter's trace of steps as columns: for a step table that can be fitted, and for the log of a validation."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headway.controllers.simulator import LOG_COLUMNS
from headway.models.state import BOUND_BY_BUDGET, BOUND_BY_KV, BOUND_BY_NONE, BOUND_BY_RUNNING

IDLE_S = 0.02
"""A step that is composed so long after the last one ended had to wait for work: the time between belongs to neither [s]."""
NUMBERS = (
    "step",
    "clock_s",
    "schedule_s",
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
    "worker_cpu_s",
    "preempted",
    "shed",
)
"""Columns that are taken from the adapter's trace; what it leaves out is NaN."""


@dataclass(frozen=True)
class StepRows:
    """Steps as the adapter wrote them.

    Args:
        header: of the last start of the server.
        columns: by name, shape (k,): NUMBERS, and `binding` (1 where the budget was used up while prompts waited), `period_s`.
        torn: lines that were no JSON, such as the last of a server that was killed.
    """

    header: dict[str, Any]
    columns: dict[str, np.ndarray]
    torn: int

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.columns["step"])

    def between(self, start_s: float, stop_s: float) -> StepRows:
        """The steps that were composed in a span of time.

        Args:
            start_s: on the machine's monotonic clock [s].
            stop_s: likewise [s].

        Returns:
            Those steps.
        """
        inside = (self.columns["clock_s"] >= start_s) & (self.columns["clock_s"] < stop_s)
        return replace(self, columns={name: rows[inside] for name, rows in self.columns.items()})

    def table(self) -> dict[str, np.ndarray]:
        """As Headway's own step table.

        Returns:
            Columns of `headway.experiments.excite.record_trace`, then `period_s`, from start to start, and `worker_cpu_s`.
        """
        c = self.columns
        whole = {"step": np.arange(len(self), dtype=np.int64)}
        names = ("step_time_s", "decode_requests", "decode_kv_tokens", "prefill_tokens", "prefill_pairs", "prefill_requests")
        rest = {name: c[name] for name in (*names, "token_budget", "running_limit", "period_s", "worker_cpu_s")}
        return whole | {name: rows for name, rows in rest.items() if np.isfinite(rows).all()} | {"start_s": c["clock_s"] - c["clock_s"][:1]}

    def log(self, zero_s: float, blocks: int) -> np.ndarray:
        """As the simulator logs steps, durations from start to start.

        Args:
            zero_s: of the run, on the machine's monotonic clock [s].
            blocks: of the cache.

        Returns:
            Shape (k, LOG_COLUMNS).
        """
        c = self.columns
        bound = np.full(len(self), float(BOUND_BY_NONE))
        stuck = c["waiting"] > 0
        bound[stuck] = BOUND_BY_KV
        bound[stuck & (c["running"] >= c["running_limit"])] = BOUND_BY_RUNNING
        bound[c["binding"] > 0] = BOUND_BY_BUDGET
        known = {**c, "end_s": c["clock_s"] + c["period_s"] - zero_s, "step_time_s": c["period_s"], "binding": bound}
        known["free_blocks"] = np.round((1 - c["kv_usage"]) * blocks)
        return np.stack([known[name] for name in LOG_COLUMNS], axis=1) if len(self) else np.zeros((0, len(LOG_COLUMNS)))


def read_rows(path: Path) -> StepRows:
    """Read a trace that the adapter wrote, of its last start.

    Args:
        path: the file.

    Returns:
        Its steps.

    Raises:
        ValueError: no such file, or one without a header or a step.
    """
    header: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    torn = 0
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    torn += 1
                    continue
                if "headway_trace" in row:
                    header, rows = row, []
                else:
                    rows.append(row)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror or error}); the server writes it once it runs its first step") from None
    if not header:
        raise ValueError(f"{path}: no trace of the vLLM adapter: its first line should hold headway_trace")
    number = lambda value: np.nan if value is None else float(value)  # noqa: E731
    columns = {name: np.array([number(row.get(name)) for row in rows], float) for name in (*NUMBERS, "binding")}
    return StepRows(header, {**columns, "period_s": periods(columns)}, torn)


def periods(columns: dict[str, np.ndarray]) -> np.ndarray:
    """How long each step takes from its start to the next one's: the host's own time between two steps is in it.

    period_k = done_k + gap_k - start_k, with start_k = max(clock_k, done_(k-1)), gap_k = max(clock_(k+1) - done_k, 0)

    A step after which the engine had nothing to do, or whose follower is unknown, gets the median gap.

    Args:
        columns: `clock_s`, `schedule_s` and `step_time_s`, shape (k,) [s].

    Returns:
        Shape (k,) [s].
    """
    clock, took = columns["clock_s"], columns["step_time_s"]
    if not len(clock):
        return np.zeros(0)
    sched_end = clock + columns["schedule_s"]
    done = np.empty(len(clock))
    before = -np.inf
    for k in range(len(clock)):  # done_k = max(sched_end_k, done_(k-1)) + step_time_k, each needs the one before
        before = done[k] = max(sched_end[k], before) + took[k]
    ahead = np.concatenate([[False], clock[1:] < done[:-1]])  # composed while the one before ran: nothing of the host's is seen
    start = np.where(ahead, np.concatenate([[0.0], done[:-1]]), clock)
    gap = np.concatenate([clock[1:] - done[:-1], [np.nan]])
    gap[:-1][ahead[1:]] = 0.0
    idle = ~(gap <= IDLE_S)
    usual = float(np.median(gap[~idle])) if (~idle).any() else 0.0
    return done - start + np.where(idle, usual, gap)
