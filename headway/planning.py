"""The planning stage: from what is known of an engine to the settings to record next, as one file."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.experiments.planning import plan_recording
from headway.experiments.whole_files import write_json
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.loads import read_plant, with_limits

Progress = Callable[[str, float], None]


def plan_stage(
    out: Path | None,
    *,
    plant: Path | None,
    traces: Sequence[Path],
    preset: str,
    limits: Mapping[str, int],
    steps: int | None,
    margin_width: float,
    epsilon: float,
    seed: int,
    format: str = "auto",  # the option's own name
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Plan a recording.

    Args:
        out: plan.json to write; None writes nothing.
        plant: plant.json of `headway fit`; None fits the traces, or assumes a plant where there are none.
        traces: files that the plant was fitted to; what they told counts as known.
        preset: size of the llm, whose limits hold where neither plant nor traces are given.
        limits: of the engine, by field [tokens, requests]; they count before all others.
        steps: of the plan; None takes as many as the margin asks for [steps].
        margin_width: of the margin's 95 % interval, in (0, 1).
        epsilon: share of late steps that the margin allows, in (0, 1).
        seed: of the draws.
        format: of the traces, or "auto".
        progress: called with a label and a fraction.

    Returns:
        The content of plan.json, and next: the commands that run it.

    Raises:
        ValueError: a file that cannot be read, limits under which nothing can be held, an argument out of range.
    """
    from headway.experiments.kernels import LIMITS

    trace = read_trace(list(traces), format) if traces else None
    known = read_plant(plant) if plant is not None else None
    if known is None and trace is not None:
        known = fit(trace, epsilon=epsilon, limits=limits, seed=seed, progress=progress)
    if known is None and preset not in LIMITS:
        raise ValueError(f"unknown preset {preset!r}; this version knows {', '.join(LIMITS)}")
    engine = with_limits(known.limits if known else LIMITS[preset], limits)
    plan = plan_recording(
        known, engine, trace=trace, steps=steps, margin_width=margin_width, epsilon=epsilon, seed=seed, progress=progress
    ).to_json()
    if out is not None:
        write_json(out, plan)
    return {**plan, "out": str(out) if out else None, "next": _next(out, preset, traces, seed)}


def _next(out: Path | None, preset: str, traces: Sequence[Path], seed: int) -> list[str]:
    """The commands that run the plan and fit all there is."""
    place, trace = str(out or "plan.json"), "planned.parquet"
    record = ["headway", "record", "--design", place, "--preset", preset, *(["--seed", str(seed)] if seed else []), "--out", trace]
    return [shlex.join(record), shlex.join(["headway", "fit", *map(str, traces), trace, "--out", "plant.json"])]
