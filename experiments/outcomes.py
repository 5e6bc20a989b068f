"""Whole runs on all cores: what `evaluate` leaves out of its figures, such as every class and every request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numba

from headway.controllers.simulator import Candidate, Draw, simulate
from headway.models.goodput import Outcome
from headway.models.identified import IdentifiedPlant
from headway.models.signals import Limits, Target


def outcomes_of(runs: Sequence[tuple[IdentifiedPlant, Candidate, Draw]], targets: tuple[Target, ...], limits: Limits) -> list[Outcome]:
    """`simulate` for each of some runs, as many at a time as kernels may use threads: a compiled run holds no lock.

    Args:
        runs: plant, candidate and draw each.
        targets: one per class.
        limits: of the engine.

    Returns:
        One outcome per run, in order: the same as one after the other.

    Raises:
        RuntimeError: the scheduler stalled with work to do: a fault of Headway's.
    """
    one: Callable[[tuple[IdentifiedPlant, Candidate, Draw]], Outcome] = lambda run: simulate(*run, targets, limits)  # noqa: E731
    threads = min(numba.get_num_threads(), len(runs))
    if threads < 2:
        return list(map(one, runs))
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(one, runs))
