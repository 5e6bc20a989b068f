"""The sweep of the command line: axes as people write them, the stage that runs them, and its folder."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headway import units
from headway.experiments.free import Free, free_parameters
from headway.experiments.problem import Effort, Problem
from headway.experiments.space import Space
from headway.experiments.sweep import Axis, sweep
from headway.experiments.whole_files import sha256_of
from headway.loads import Load
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits
from headway.sweep_folder import SweepFolder

EXAMPLE = "margin=0:0.4:9,chunk_tokens=128,512,2048"
"""What axes look like, for error messages."""

Progress = Callable[[str, float], None]


def parse_axes(text: str, known: Mapping[str, Free]) -> list[Axis]:
    """Axes of a sweep.

    Args:
        text: `name=values` by comma. Values are listed by comma, or given as `low:high:count`, which lie evenly on the scale that
            tuning searches: by equal steps, for sizes in tokens and requests and for rates by equal factors.
        known: numbers that can be swept, by name.

    Returns:
        One axis per name, its values in the order they were given.

    Raises:
        ValueError: an unknown name, one given twice, no values, or a text that is no value: what, where, what was expected.

    Example:
        >>> from headway.models.signals import Limits
        >>> parse_axes("margin=0:0.4:3,chunk_tokens=128,2k", free_parameters(Limits(100_000)))
        [Axis(name='margin', values=(0.0, 0.2, 0.4)), Axis(name='chunk_tokens', values=(128.0, 2000.0))]
    """
    found: dict[str, list[float]] = {}
    name = ""
    for part in filter(str.strip, text.split(",")):
        head, equals, rest = (piece.strip() for piece in part.partition("="))
        if equals:
            name = head
            if name not in known:
                raise ValueError(f"--free {text!r}: unknown name {name!r}; {units.nearest(name, known)}")
            if name in found:
                raise ValueError(f"--free {text!r}: {name} is given twice; give its values together")
            found[name] = []
        if not name:
            raise ValueError(f"--free {text!r}: expected name=values, found {part.strip()!r}; write for example {EXAMPLE}")
        found[name] += _values(text, known[name], rest if equals else part.strip())
    if not found:
        raise ValueError(f"--free is empty: a sweep needs a number with its values; write for example {EXAMPLE}")
    return [Axis(n, tuple(values)) for n, values in found.items()]


def _values(text: str, free: Free, given: str) -> list[float]:
    pieces = given.split(":")
    try:
        if len(pieces) == 1:
            return [_number(free.name, given)]
        if len(pieces) == 3 and re.fullmatch(r"\s*\d+\s*", pieces[2]) and int(pieces[2]) >= 2:
            low, high = (_number(free.name, piece) for piece in pieces[:2])
            if low < high and (low > 0 or not free.log2):
                spaced = np.geomspace if free.log2 else np.linspace
                return [float(f"{x:.6g}") for x in spaced(low, high, int(pieces[2]))]
    except ValueError:
        pass
    above = " above 0" if free.log2 else ""
    raise ValueError(
        f"--free {text!r}: {free.name} takes numbers, or low:high:count with low below high{above} and a count of at least 2, "
        f"got {given!r}; write for example {EXAMPLE}"
    )


def _number(name: str, text: str) -> float:
    """One number; with a unit where the number has one that people write."""
    text = text.strip()
    if text[-1:].isalpha() and name.endswith("_tokens"):
        return float(units.tokens(text))
    return units.duration_s(text) if text[-1:].isalpha() and name.endswith("_s") else units.number(text)


def sweep_stage(
    plant_path: Path,
    identified: IdentifiedPlant,
    load: Load,
    limits: Limits,
    out: Path,
    free: str,
    *,
    objective: str = "attainment",
    effort: Effort,
    policy: Mapping[str, Any] | None = None,
    front: bool = False,
    where: str = "processes",
    address: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Sweep numbers of the controller straight from the fit, and leave a folder with every run and the best.

    Args:
        plant_path: plant.json that `identified` was read from.
        identified: the plant.
        load: workload and targets.
        limits: of the engine.
        out: folder of the sweep; one that was killed goes on, one that is finished takes in further combinations.
        free: axes, as `parse_axes` reads them.
        objective: "attainment" or "requests".
        effort: draws and requests.
        policy: what the policy is to have otherwise than the default, by field.
        front: look at first tokens against gaps as well.
        where: "processes" or "ray".
        address: of a Ray cluster; None starts one here.
        workers: processes; None for one per core.
        progress: called with a label and a fraction.

    Returns:
        The content of sweep.json.

    Raises:
        ValueError: axes that cannot be read or cannot act, or a folder of something else.
    """
    axes = parse_axes(free, free_parameters(limits, load.targets))
    problem = Problem(identified, load.source, load.targets, limits, objective)
    base = problem.untuned(problem.draws(effort, heldout=False), policy)
    space = Space(base, limits, tuple(axis.name for axis in axes), load.targets)
    request = {
        "plant": sha256_of(plant_path) if plant_path.exists() else None,
        "workload": [load.spec, load.rate_rps, load.rows],
        "workload_file": sha256_of(Path(load.spec)) if Path(load.spec).is_file() else None,
        "targets": [dataclasses.asdict(t) for t in load.targets],
        "limits": dataclasses.asdict(limits),
        "policy": dict(policy or {}),
        "seeds": [effort.train_seeds, effort.heldout_seeds, effort.seed],
        "requests": effort.requests,
    }
    folder = SweepFolder(out, request, effort.train_seeds)
    try:
        spread: dict[str, Any] = {"where": where, "address": address, "workers": workers}
        swept = sweep(problem, effort, space, axes, known=folder.known, keep=folder.keep, front=front, **spread, progress=progress)
        said = "1 row of an interrupted sweep was" if folder.cut == 1 else f"{folder.cut} rows of an interrupted sweep were"
        cut = [f"{said} cut off, and run again"] if folder.cut else []
        more = {
            "objective": objective,
            "axes": {a.name: list(a.values) for a in axes},
            "notes": [*swept.notes, *cut, *space.notes, *load.notes],
        }
        folder.finish(swept, more)
        return {"schema": "headway/sweep/1", **swept.to_json(), **more}
    finally:
        folder.close()
