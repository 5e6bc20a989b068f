"""Who got how much of what was promised: the worst class, and Jain's index over classes and over requests."""

from __future__ import annotations

from typing import Any

import numpy as np


def jain(shares: Any) -> float | None:
    """Jain's index of fairness.

    (sum x)^2 / (n sum x^2): 1 if all get the same, 1 / n if one gets all

    Args:
        shares: what each one got of what was due, not negative, shape (n,).

    Returns:
        In (0, 1]; None where there is nobody, 1 where nobody got anything.

    Source:
        Jain, Chiu and Hawe, A Quantitative Measure of Fairness and Discrimination, DEC TR-301, 1984.

    Example:
        >>> jain([1.0, 1.0, 1.0]), jain([1.0, 0.0])
        (1.0, 0.5)
    """
    x = np.asarray(shares, float)
    if len(x) == 0:
        return None
    squares = float((x * x).sum())
    return float(x.sum() ** 2 / (len(x) * squares)) if squares > 0 else 1.0


def fairness(classes: dict[str, float | None], on_time: np.ndarray, owed: np.ndarray) -> dict[str, Any]:
    """How evenly the promise was kept.

    Workloads name no clients, so every request stands for its own: its service is the share of its owed tokens on time.

    Args:
        classes: attainment by class; None where nothing was owed.
        on_time: tokens on time of each request, shape (n,) [tokens].
        owed: tokens owed, shape (n,) [tokens].

    Returns:
        {"worst_class", "worst_attainment", "jain_classes", "jain_requests"}; None where nothing was owed.
    """
    known = {name: value for name, value in classes.items() if value is not None}
    worst = min(known, key=lambda name: known[name]) if known else None
    due = owed > 0
    return {
        "worst_class": worst,
        "worst_attainment": known[worst] if worst is not None else None,
        "jain_classes": jain(list(known.values())),
        "jain_requests": jain(on_time[due] / owed[due]),
    }
