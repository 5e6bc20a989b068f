"""The demonstration: the main job on a trace that Headway recorded, ending in a closed loop on the kernels of this machine."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from headway.engines.live import live_engine, record_stage
from headway.experiments.excite import record_trace
from headway.experiments.run import RunFolder
from headway.experiments.whole_files import write_json
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.loads import with_limits
from headway.models.plant import Batch, Plant
from headway.pipeline import Progress
from headway.whole import Request, run_all

TRACE = "demo_trace.parquet"
"""3,000 steps of the tiny llm on a CPU, recorded with `headway record --steps 3000 --max-tokens 512`."""

MAX_TOKENS = 512
RATE_RPS, TTFT_S, ITL_S = 45.0, 0.4, 0.012
"""Load and promise on the machine that recorded the trace; where the choice of policy matters: the best static setting
keeps between half and 95 % of it."""

WORKLOAD = "gamma:rate={rate:.3g}/s,cv=2,prompt=lognormal(median=160,sigma=0.9,min=16,max=1024),output=lognormal(median=60,sigma=0.6,min=4,max=200)"

STEPS = 3000
"""Length of a recording [steps]."""

CHECK_STEPS, SETTLED_STEPS = 400, 160
"""Steps run before anything else, to see whether this machine is the one the trace tells of; the first of them only settle."""

SAME = 0.10
"""A median step within this of the plant counts as the same machine."""


def run_demo(out: Path, engine: str, *, progress: Progress | None = None) -> dict[str, Any]:
    """Fit, tune, validate and report on the embedded trace.

    If the kernels here are faster or slower than the trace says, a fresh trace is recorded, and load and promise are
    scaled by the same factor: the same problem on another clock.

    Args:
        out: run folder; an earlier demo in it is replaced, anything else is refused.
        engine: "kernels" or "sim".
        progress: called with a label and a fraction.

    Returns:
        As `headway run`.

    Raises:
        ValueError: the folder holds something that is no demo.
    """
    folder = RunFolder(out)
    if out.exists() and any(out.iterdir()) if out.is_dir() else out.exists():
        if not folder.manifest().get("demo"):
            raise ValueError(f"{out} is not empty and holds no demo; give a new folder with --out")
        shutil.rmtree(out)
    live = live_engine(engine, preset="tiny", limits=_limits(), progress=progress)
    with resources.as_file(resources.files("headway").joinpath("assets", TRACE)) as embedded:
        known = fit(read_trace([embedded]), limits=_limits()).plant
        factor = 1.0
        if live is not None:
            look = record_trace(live, steps=CHECK_STEPS, seed=7)
            factor = pace(known, {name: column[SETTLED_STEPS:] for name, column in look.items()})
        same = abs(math.log(factor)) <= math.log(1 + SAME)
        trace = embedded
        if not same:
            trace = out.with_name(f"{out.name}-trace") / TRACE
            record_stage("kernels", trace, preset="tiny", steps=STEPS, limits={"max_tokens": MAX_TOKENS}, seed=0, progress=progress)
            # over the whole recording, not the short look: a machine with other work on it changes its pace from minute to minute
            fresh = read_trace([trace])
            factor = pace(known, {"step_time_s": fresh.step_time_s, **fresh.batch()._asdict()})
        scale = 1.0 if same else factor
        request = Request(
            traces=(str(trace),),
            workload=WORKLOAD.format(rate=RATE_RPS / scale),
            target=f"ttft={TTFT_S * scale * 1e3:.0f}ms,itl={ITL_S * scale * 1e3:.1f}ms",
            engine=engine,
            limits={k: v for k, v in dataclasses.asdict(_limits()).items() if isinstance(v, int)},
            requests=500,
            live_s=9.0 * scale,
            runs=2 if live is not None else 12,
            effort={"train_seeds": 6, "heldout_seeds": 16, "sobol": 32, "starts": 1, "iterations": 6},
        )
        notes = (
            ()
            if same
            else (f"these kernels take {factor:.2f} times what the embedded trace says: recorded anew, load and target scaled by it",)
        )
        data = run_all(out, request, resume=False, progress=progress, live=live, notes=notes)
    known = folder.manifest()
    write_json(folder.path / "manifest.json", {**known, "demo": True, "pace": factor})
    return data


def _limits() -> Any:
    from headway.experiments.kernels import LIMITS

    return with_limits(LIMITS["tiny"], {"max_tokens": MAX_TOKENS})


def pace(plant: Plant, columns: Mapping[str, np.ndarray]) -> float:
    """How long steps take here, against a plant.

    Args:
        plant: of the same llm on another machine.
        columns: of a step table, each of shape (k,).

    Returns:
        Median of measured over predicted; 1 is the same pace.
    """
    expected = np.asarray(plant.step_time_s(Batch(*(columns[name] for name in Batch._fields))))
    return float(np.median(columns["step_time_s"] / np.maximum(expected, 1e-9)))
