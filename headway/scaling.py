"""The stage that predicts a plant at another tensor-parallel size from traces at two or more."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headway.experiments.whole_files import write_json
from headway.identification.hardware.likeness import likeness
from headway.identification.hardware.tp import TpLaw, fit_tp
from headway.identification.readers import read_trace
from headway.identification.readers.engine_config import tensor_parallel
from headway.models.identified import IdentifiedPlant


def scale_stage(
    traces: Sequence[Path],
    to: int,
    out: Path | None,
    *,
    tps: Sequence[int] | None = None,
    format: str = "auto",  # the option's own name
    epsilon: float = 0.01,
    limits: Mapping[str, int] | None = None,
    kv_heads: int | None = None,
    seed: int = 0,
    progress: Callable[[str, float], None] | None = None,
) -> tuple[IdentifiedPlant, TpLaw]:
    """Fit one law to traces at several tensor-parallel sizes and write the plant that it gives at another.

    Args:
        traces: files; several of one size are read as one trace.
        to: size to predict.
        out: plant.json to write; None writes nothing.
        tps: size of each file; None takes it from the engine's configuration beside the file.
        format: of the files, or "auto".
        epsilon: share of late steps that the margins allow, in (0, 1).
        limits: of the engine, by field [tokens, requests].
        kv_heads: heads of the cache; None divides it among any number of devices.
        seed: of the bootstrap.
        progress: called with a label and a fraction.

    Returns:
        (the plant, the law).

    Raises:
        ValueError: a trace that cannot be read, a size that is not known, runs that are not of one model and unit, or runs
            that no law can be fitted to.
    """
    if to < 1:
        raise ValueError(f"--to must be at least 1, got {to}; it is the number of devices that share each layer")
    files: dict[int, list[Path]] = {}
    for trace, tp in zip(traces, _sizes(traces, tps), strict=True):
        files.setdefault(tp, []).append(trace)
    runs = {tp: read_trace(list(paths), format) for tp, paths in files.items()}
    doubts = likeness(runs)
    law = fit_tp(
        runs,
        epsilon=epsilon,
        limits=limits,
        kv_heads=kv_heads,
        seed=seed,
        progress=progress,
    )
    plant = law.identified(to)
    plant = dataclasses.replace(plant, about={**plant.about, "warnings": [*doubts, *plant.about["warnings"]]})
    if out is not None:
        write_json(out, plant.to_json())
    return plant, law


def _sizes(traces: Sequence[Path], given: Sequence[int] | None) -> list[int]:
    """The size of each file. One given against the engine's own word is a mistake in one of them: refused."""
    found = tensor_parallel(str(trace) for trace in traces)
    if given is not None and len(given) != len(traces):
        raise ValueError(f"--tp must name one size for each of the {len(traces)} traces, got {len(given)}")
    sizes = []
    for i, (trace, own) in enumerate(zip(traces, found, strict=True)):
        if given is None:
            if own is None:
                raise ValueError(f"{trace}: no engine configuration beside it says its tensor-parallel size; give --tp, one for each trace")
            sizes.append(own)
        else:
            if own not in (None, given[i]):
                raise ValueError(f"{trace}: --tp says {given[i]}, the engine's configuration beside it {own}")
            sizes.append(given[i])
    return sizes
