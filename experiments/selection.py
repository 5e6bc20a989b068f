"""Which of the candidates that were scored is kept, and what decides between near ties."""

from __future__ import annotations

import numpy as np

from headway.experiments.contest import NEAR

VALUE, ATTAINED, CLEANED, GOOD_TPS, P99_S, MISSED, SCORES = range(7)
"""Columns of a score: objective, attainment, share of clean requests, goodput [tokens/s], p99 ITL [s], requirements missed by."""

KEPT = 1e-9
"""Requirements missed by no more than this are kept."""

LEAD = 0.005
"""By so much at least a near tie stays above the static settings, as far as any candidate does."""

WEIGHT = 5.0
"""What a descent pays for requirements missed: more than any attainment that missing them could bring."""


def choose(points: list[np.ndarray], scores: np.ndarray, objective: str, floor: float = 0.0) -> int:
    """The candidate to keep: the best by the objective; for attainment, the one with most clean requests among near ties.

    Only candidates that keep all requirements are looked at; where none does, the one that misses them least is kept. Of
    several that are equal, the one with more goodput, then with the lower p99 ITL: at a load that is met all over, the
    promise alone does not tell a fast setting from a slow one.

    Args:
        points: tried, in units.
        scores: as `Problem.scores`, shape (points, SCORES).
        objective: "attainment", "requests" or "capacity".
        floor: attainment in [0, 1] that a near tie does not give up, as far as any candidate has it: that of the static settings, and LEAD
            above.

    Returns:
        Index into points.
    """
    scores = scores[: len(points)]
    allowed = np.flatnonzero(scores[:, MISSED] <= KEPT)
    if not len(allowed):
        return int(ranked(scores, VALUE)[0])
    kept = scores[allowed]
    if objective != "attainment":
        return int(allowed[ranked(kept, VALUE)[0]])
    value = kept[:, VALUE]
    near = np.flatnonzero(value >= max(value.max() - NEAR, min(floor, value.max())))
    return int(allowed[near[ranked(kept[near], CLEANED, VALUE)[0]]])


def steady(scores: np.ndarray, heavier: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Candidates that attain no less than certain others, at the load and at heavier ones.

    At a load that nearly everybody carries, the cleanest of many near ties is often one that holds back, and falls over on windows that
    ask a little more.

    Args:
        scores: of the candidates, shape (candidates, SCORES).
        heavier: what they attain at heavier loads, shape (candidates, loads).
        others: value, and attained at the heavier loads, of those that it is held to, shape (others, 1 + loads).

    Returns:
        Indices; where nobody is so, the one that is least below all of them together.
    """
    margins = np.column_stack([scores[:, VALUE], heavier]) - others.max(axis=0)
    fit = np.flatnonzero((margins >= -KEPT).all(axis=1))
    return fit if len(fit) else np.array([int(np.argmax(np.minimum(margins, 0.0).sum(axis=1)))])


def ranked(scores: np.ndarray, *first: int) -> np.ndarray:
    """Rows of a score, the best first.

    Args:
        scores: shape (points, SCORES).
        first: columns that decide, greater is better; before them comes what is missed, after them goodput and p99 ITL.

    Returns:
        Indices; exact ties stay as they came.
    """
    decide = [-np.round(scores[:, k], 12) for k in reversed(first)]
    return np.lexsort([scores[:, P99_S], -scores[:, GOOD_TPS], *decide, np.round(scores[:, MISSED], 12)])


def paid(scores: np.ndarray) -> np.ndarray:
    """The objective less what is paid for requirements missed: what slopes are taken of.

    Args:
        scores: shape (points, SCORES).

    Returns:
        Values, shape (points,).
    """
    return scores[:, VALUE] - WEIGHT * scores[:, MISSED]
