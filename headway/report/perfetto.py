"""The recorded steps of a validation as Chrome trace events, which Perfetto and chrome://tracing open: one process a side.

Every step is a slice with what was in it; token budget, running and waiting requests are counters. Times are microseconds on the
engine's clock, from the start of the run.

Source:
    Trace Event Format, Google, 2016: complete events ("X"), counters ("C"), metadata ("M").
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headway.experiments.run import RunFolder
from headway.experiments.whole_files import read_json, write_whole
from headway.models.bottleneck import LIMITS
from headway.models.outcome import BOUNDS
from headway.report.data import dig, timeline_of

SIDES = {"controller": "tuned controller", "best_static": "best static setting"}
"""Sides of validation.json, in the order of their processes."""

COUNTERS = {"token_budget": "token budget", "running": "running requests", "waiting": "waiting requests"}
"""Columns of a time line that are drawn as counters."""

INSIDE = ("decode_requests", "decode_kv_tokens", "prefill_requests", "prefill_tokens", "prefill_pairs", "free_blocks")
"""Columns that stand beside a slice."""

STEPS_THREAD = 1
"""Thread of the slices."""


def trace_events(validation: Mapping[str, Any], budget_s: float | None = None) -> list[dict[str, Any]]:
    """The recorded steps of both sides as trace events.

        ts_k = max(end_k - step_time_k, ts_(k-1) + dur_(k-1)),   dur_k = step_time_k

    A recorded clock has six digits, and slices of one thread may not overlap: a start that rounding put before the end of the step
    before is that end.

    Args:
        validation: content of validation.json.
        budget_s: longest step that keeps the ITL promise; None where it is not known, and no step is marked late [s].

    Returns:
        Events in the order of their times, metadata first; empty where no step was recorded.
    """
    names, events = [], []
    for pid, (side, title) in enumerate(SIDES.items(), start=1):
        timeline = timeline_of(dig(validation, side))
        if timeline:
            names += _names(pid, title)
            events += _steps(pid, timeline, budget_s)
    return [*names, *sorted(events, key=lambda event: event["ts"])]


def write_perfetto(run: Path, out: Path) -> dict[str, int]:
    """Write the time line of a run for Perfetto, whole or not at all.

    Args:
        run: the folder; it holds a validation.
        out: file to write.

    Returns:
        Steps written by side.

    Raises:
        ValueError: there is no validation, one that cannot be read, or one without recorded steps.
    """
    folder = RunFolder(run)
    path = folder.file("validate")
    if not path.exists():
        raise ValueError(
            f"{path}: no such file, and the time line is in it; `headway validate {folder.file('tune')} --out {path}` makes it"
        )
    budget_s = dig(read_json(folder.file("tune")), "budget_s") if folder.file("tune").exists() else None
    events = trace_events(read_json(path), budget_s)
    if not events:
        raise ValueError(f"{path}: no steps were recorded; validate anew with this version of Headway")
    content = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"run": run.resolve().name, "clock": "of the engine, from 0"}}
    write_whole(out, json.dumps(content, allow_nan=False) + "\n")
    counts = {title: sum(e["ph"] == "X" and e["pid"] == pid for e in events) for pid, title in enumerate(SIDES.values(), start=1)}
    return {title: count for title, count in counts.items() if count}


def _names(pid: int, title: str) -> list[dict[str, Any]]:
    """What a viewer writes beside a process and its thread, and their order."""
    named = {"process_name": {"name": title}, "process_sort_index": {"sort_index": pid}, "thread_name": {"name": "steps"}}
    return [{"ph": "M", "name": name, "pid": pid, "tid": STEPS_THREAD, "ts": 0, "args": args} for name, args in named.items()]


def _steps(pid: int, timeline: Mapping[str, list[float]], budget_s: float | None) -> Iterator[dict[str, Any]]:
    """Slices and counters of one side."""
    free_us = 0.0
    for k, (end_s, step_s) in enumerate(zip(timeline["end_s"], timeline["step_time_s"], strict=True)):
        row = {name: column[k] for name, column in timeline.items()}
        dur_us = _microseconds(max(step_s, 0.0))
        ts_us = max(_microseconds(end_s - step_s), free_us)
        free_us = round(ts_us + dur_us, 3)
        late = budget_s is not None and step_s > budget_s
        args = {"step": k, **{name: row[name] for name in INSIDE if name in row}}
        if "binding" in row:
            args["bound by"] = LIMITS[BOUNDS[int(row["binding"])]]
        yield {
            "ph": "X",
            "name": _regime(row) + (", over the budget" if late else ""),
            "cat": "late" if late else "step",
            "pid": pid,
            "tid": STEPS_THREAD,
            "ts": ts_us,
            "dur": dur_us,
            "args": args,
        }
        for name, title in COUNTERS.items():
            if name in row:
                yield {"ph": "C", "name": title, "pid": pid, "tid": 0, "ts": ts_us, "args": {"value": row[name]}}


def _regime(row: Mapping[str, float]) -> str:
    if not row.get("prefill_tokens"):
        return "decode"
    return "mixed" if row.get("decode_requests") else "prompts"


def _microseconds(time_s: float) -> float:
    """To the nanosecond: what is finer is the arithmetic's, not the clock's."""
    return round(time_s * 1e6, 3)
