"""Whether runs at several tensor-parallel sizes are of one model, engine and unit: a law across them holds for nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
from scipy.optimize import nnls

from headway.identification.rows import KEPT, judge
from headway.identification.trace import Trace
from headway.models.regimes import terms

ALIKE = ("model", "hardware")
"""Columns of a table that must hold one value in all runs."""
DOUBT, ABSURD = 1.25, 3.0
"""Factors beyond what more devices can do, no change to all costs divided: from the first on it is said, from the second refused."""
FEWEST = 20
"""Steps of a regime in each of two runs from which on they are compared [steps]."""


def likeness(traces: Mapping[int, Trace]) -> list[str]:
    """Compare runs at neighbouring sizes at equal composition, and what their tables say of themselves.

    The steps of one run are predicted by a non-negative fit to the other's. With more devices a step takes between its
    whole time divided by how many more there are, and all of it; the median ratio of a regime lies in between.

    Args:
        traces: by tensor-parallel size.

    Returns:
        One sentence for each pair of sizes that is doubtful.

    Raises:
        ValueError: columns that name different models or devices, or steps so far apart that they are of no one engine.
    """
    for name in ALIKE:
        values = {
            tp: sorted(map(str, t.frame[name].drop_nulls().unique().to_list())) for tp, t in traces.items() if name in t.frame.columns
        }
        if len({value for found in values.values() for value in found}) > 1:
            named = "; ".join(f"tp {tp}: {', '.join(found)}" for tp, found in sorted(values.items()))
            raise ValueError(f"column {name} differs between the traces ({named}); a law across sizes needs one {name} at all of them")
    parts = {tp: _kept(trace) for tp, trace in traces.items()}
    said = []
    for few, many in itertools.pairwise(sorted(traces)):
        for regime in ("decode", "mixed"):
            ratio = _ratio(parts[few], parts[many], regime == "mixed")
            low = few / many
            if ratio is None or low / DOUBT <= ratio <= DOUBT:
                continue
            text = (
                f"{regime} steps at tp {many} take {ratio:.3g} times what those at tp {few} take at equal composition, where between {low:.2g} "
                "and 1 is possible"
            )
            if not low / ABSURD <= ratio <= ABSURD:
                raise ValueError(f"{text}: these traces are of different models or engines, or in different units; give runs of one")
            said.append(f"{text}: check that these are runs of one model and engine in one unit, and that the size of each is right")
    return said


def _kept(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    rows = judge(trace) == KEPT
    return terms(trace.batch())[rows], trace.step_time_s[rows]


def _ratio(few: tuple[np.ndarray, np.ndarray], many: tuple[np.ndarray, np.ndarray], mixed: bool) -> float | None:
    """Median of measured over predicted; None where one of the runs has too few such steps."""
    (known, took_s), (asked, other_s) = (
        (inputs[rows], seconds[rows]) for inputs, seconds in (few, many) for rows in [(inputs[:, 3] > 0) == mixed]
    )
    if min(len(took_s), len(other_s)) < FEWEST:
        return None
    size = np.maximum(np.max(known, axis=0), 1e-300)
    law, _ = nnls(known / size / took_s[:, None], np.ones(len(took_s)))
    return float(np.median(other_s / np.maximum(asked / size @ law, 1e-300)))
