"""What is looked at beside a result of tuning: as people ask for it, and where it is kept until it is written down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway import units
from headway.checkpoints import CheckpointFile, looks_of
from headway.experiments.beside import LOOKS, USUAL, Beside, beside, facts_of
from headway.experiments.problem import Effort, Problem
from headway.experiments.tune import Tuned

ASKED = tuple(name for name in LOOKS if name not in USUAL)
"""Looked at only if they are asked for."""

TUNING = 2.0
"""About the time that tuning takes, against that of `headway.experiments.beside.LOOKS`."""

Progress = Callable[[str, float], None]


def parse_looks(analyse: str | None, bound: bool | None) -> Beside:
    """What to look at beside the result.

    Args:
        analyse: names by comma, or "all"; None for none but the usual ones.
        bound: True for the bound on more and longer windows, False for none, None for the usual few.

    Returns:
        Beside.

    Raises:
        ValueError: an unknown name.

    Example:
        >>> parse_looks("pareto,knee", False).looks
        ('ablation', 'knee', 'pareto')
    """
    named = [name.strip() for name in (analyse or "").split(",") if name.strip()]
    for name in named:
        if name not in (*ASKED, "all"):
            raise ValueError(f"--analyse {analyse!r}: unknown name {name!r}; {units.nearest(name, [*ASKED, 'all'])}")
    chosen = {*ASKED} if "all" in named else {*named}
    chosen |= {name for name in USUAL if name != "bound" or bound is not False}
    return Beside(tuple(name for name in LOOKS if name in chosen), full=bound is True)


def partly(progress: Progress | None, low: float, high: float) -> Progress:
    """Progress of a part of the work.

    Args:
        progress: of the whole; None for nobody.
        low: share of the whole that is done when the part begins.
        high: when it has ended.

    Returns:
        Called with a label and a fraction of the part.
    """
    return lambda label, part: progress(label, low + (high - low) * part) if progress else None


def share_of_tuning(wanted: Beside) -> float:
    """The part of the work that is done when a search has ended, and the looks begin.

    Args:
        wanted: what is looked at.

    Returns:
        In (0, 1].
    """
    return TUNING / (TUNING + sum(LOOKS[name] for name in wanted.looks))


def looked(
    problem: Problem, effort: Effort, tuned: Tuned, wanted: Beside, free: tuple[str, ...] | None, out: Path | None, progress: Progress
) -> dict[str, Any]:
    """Look, and keep what is found in a hidden file beside the output, until the output is written.

    Args:
        problem: what was tuned for.
        effort: what was spent.
        tuned: the result.
        wanted: what to look at.
        free: names of the numbers that were free.
        out: the output; None keeps nothing.
        progress: called with a label and a fraction.

    Returns:
        As `headway.experiments.beside.beside`.
    """
    store = CheckpointFile(looks_of(out)) if out is not None else None
    facts = facts_of(problem, effort, tuned, wanted, free, store)
    return beside(problem, effort, tuned, wanted, free=free, facts=facts, progress=progress)
