"""Live engines by name, and the recording of a trace on one."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from headway.experiments.excite import record_design, record_trace
from headway.experiments.plan import settings_of
from headway.experiments.whole_files import read_json, write_json, write_whole
from headway.identification.design.settings import Setting
from headway.loads import with_limits
from headway.models.compiled import cache_folder
from headway.models.engine import Engine
from headway.models.signals import Limits

Progress = Callable[[str, float], None]


def kernels(preset: str, limits: Limits | None) -> Engine:
    """Live kernels of the llm that comes with Headway, on whatever device JAX has.

    Args:
        preset: size of the llm.
        limits: of the engine; None for the preset's own.

    Returns:
        The engine.

    Raises:
        ValueError: an unknown preset, or one that does not fit into memory.
    """
    from headway.experiments.kernels import KernelEngine

    keep_programs()
    return KernelEngine(preset, limits)


SIMULATOR = "sim"
"""The exact simulator: no engine to start, it runs inside compiled code."""

ENGINES: dict[str, Callable[[str, Limits | None], Engine]] = {"kernels": kernels}
"""Live engines by name: one row, one factory; `tests/test_engines.py` holds what they make to the same contract."""


SERVED = ("vllm", "vllm-sim")
"""Engines that are servers of their own: `headway.engines.vllm.stages` records and validates them, no step of theirs is composed here."""


def check_engine(name: str) -> None:
    """Refuse a name that is no engine.

    Args:
        name: as given.

    Raises:
        ValueError: unknown.
    """
    if name not in (SIMULATOR, *ENGINES, *SERVED):
        raise ValueError(f"unknown engine {name!r}; this version knows {', '.join((SIMULATOR, *ENGINES, *SERVED))}")


def live_engine(name: str, *, preset: str, limits: Limits | None, progress: Progress | None = None) -> Engine | None:
    """The engine behind a name.

    Args:
        name: SIMULATOR or one of ENGINES.
        preset: size of the llm behind live kernels.
        limits: of the engine; None for the preset's own.
        progress: called with a label and a fraction.

    Returns:
        A live engine, None for the exact simulator.

    Raises:
        ValueError: an unknown name or preset.
    """
    check_engine(name)
    if name == SIMULATOR:
        return None
    if name in SERVED:
        raise ValueError(f"engine {name} is a server, which composes its own steps; use it with headway record and headway validate")
    if progress:
        progress(f"starting {name}", 0.0)
    return ENGINES[name](preset, limits)


def keep_programs() -> None:
    """Let JAX keep compiled kernels between processes, unless the user has told it where: compiling takes far longer than running."""
    import jax

    if jax.config.jax_compilation_cache_dir is None:  # pyright: ignore[reportAttributeAccessIssue]  # jax fills its config at run time
        folder = cache_folder(f"jax-{jax.__version__}")
        if folder:
            jax.config.update("jax_compilation_cache_dir", folder)
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
            jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


RECORD_STEPS = 2000
"""Length of a recording where neither steps nor a design are given [steps]."""


def record_stage(
    engine: str,
    out: Path | None,
    *,
    preset: str,
    steps: int | None,
    limits: Mapping[str, int],
    seed: int,
    design: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Record an excited trace of a live engine: a random staircase, or the settings of a design.

    Args:
        engine: name of a live engine.
        out: parquet file to write; None writes nothing.
        preset: size of the llm.
        steps: to record; None takes the design's, or RECORD_STEPS [steps].
        limits: of the engine, by field [tokens, requests]; they count before the design's.
        seed: of the excitation.
        design: plan.json of `headway record --plan`; None takes the staircase.
        progress: called with a label and a fraction.

    Returns:
        {"steps", "steps_mixed", "engine", "device", "step_time_s", "limits", "settings", "out"}.

    Raises:
        ValueError: an engine that is not live, an unknown preset, limits that cannot work, a design that cannot be read or held.
    """
    import jax

    from headway.experiments.kernels import LIMITS

    if engine == "sim":
        raise ValueError("engine sim has no kernels to record; give --engine kernels")
    planned, known = [], LIMITS.get(preset, LIMITS["tiny"])
    if design is not None:
        try:
            planned, known, _ = settings_of(read_json(design))
        except ValueError as error:
            raise ValueError(str(error) if str(error).startswith(str(design)) else f"{design}: {error}") from None
        planned = _stretched(planned, steps)
    live = live_engine(engine, preset=preset, limits=with_limits(known, limits) if limits or planned else None)
    assert live is not None
    told = (lambda part: progress("recording", part)) if progress else None
    if planned:
        columns = record_design(live, planned, seed=seed, progress=told)
    else:
        columns = record_trace(live, steps=steps or RECORD_STEPS, seed=seed, progress=told)
    if out is not None:
        buffer = io.BytesIO()
        pl.DataFrame(columns).write_parquet(buffer)
        write_whole(out, buffer.getvalue())
        # the trace's reader looks for the engine's limits here
        known = {k: v for k, v in dataclasses.asdict(live.limits).items() if isinstance(v, int)}
        write_json(out.with_suffix(".engine_config.json"), {"headway": known})
    y = columns["step_time_s"]
    return {
        "steps": len(y),
        "steps_mixed": int((columns["prefill_tokens"] > 0).sum()),
        "engine": engine,
        "device": jax.devices()[0].device_kind,
        "step_time_s": {"p50": float(np.median(y)), "p99": float(np.quantile(y, 0.99))},
        "limits": dataclasses.asdict(live.limits),
        "settings": len(planned),
        "out": str(out) if out else None,
    }


def _stretched(planned: list[tuple[Setting, int]], steps: int | None) -> list[tuple[Setting, int]]:
    """The settings of a design over another number of steps, in the same shares."""
    total = sum(count for _, count in planned)
    if steps is None or steps == total:
        return planned
    edges = np.rint(np.cumsum([0, *(count for _, count in planned)]) * steps / total).astype(int)
    return [(setting, int(n)) for (setting, _), n in zip(planned, np.diff(edges), strict=True) if n > 0]
