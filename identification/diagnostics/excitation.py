"""Did the trace move what the plant depends on? A term that stood still, or moved only with another, cannot be told."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from headway.identification.structures.robust import Law, condition, plain
from headway.models.plant import Batch
from headway.models.regimes import TERMS

STILL = 0.05
"""Standard deviation over mean below which a sum is said not to have moved."""
TOGETHER = 10.0
"""Variance inflation factor from which on a coefficient is said not to be trustworthy."""
NOTICED = 0.002
"""Share of the median duration below which a negative coefficient of plain least squares is rounding, not a finding."""


def excitation(regime: str, terms: np.ndarray, law: Law, *, acting: Collection[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """Check one regime's rows.

    VIF_j = 1 / (1 - R_j^2), R_j^2 the share of sum j's variance that the others explain

    Args:
        regime: "decode", "mixed" or "all".
        terms: regressors of the used rows, the first of them constant, shape (k, m).
        law: fitted to them.
        acting: those of these terms that act in a plant which bends: what straight lines alone want of them is no finding.

    Returns:
        (for plant.json: rows, condition number of the scaled equations, terms that plain least squares wants negative, and
        per term moved, range, variation and VIF; what there is to say, one sentence each).

    Source:
        Belsley, Kuh and Welsch, Regression Diagnostics, 1980, chapter 3.
    """
    names = Batch._fields[: terms.shape[1] - 1]
    factors = _inflation(terms[:, 1:])
    rows: dict[str, Any] = {}
    said = []
    for j, (name, (term, _)) in enumerate(zip(names, TERMS[1:], strict=False)):
        column = terms[:, j + 1]
        mean = float(column.mean())
        variation = float(column.std() / mean) if mean > 0 else 0.0
        moved = variation >= STILL
        factor = float(factors[j]) if moved else None
        rows[name] = {"moved": moved, "range": [float(column.min()), float(column.max())], "variation": variation, "vif": factor}
        if not moved:
            held = f"stayed at {mean:,.0f}" if mean > 0 else "was never above zero"
            said.append(f"{regime}: {name} {held}, so {regime}.{term} cannot be told from this trace")
        elif factor is not None and factor > TOGETHER:
            other = names[_partner(terms[:, 1:], j)]
            if not any(text.startswith(f"{regime}: {other} and {name} moved together") for text in said):
                both = f"{regime}: {name} and {other} moved together (VIF {factor:,.0f})"
                said.append(f"{both}: what either term takes alone is not trustworthy, their sum is")
    negative = _negative(terms, law)
    if still := [term for term in negative if term not in acting]:
        said.append(f"{regime}: plain least squares wants {', '.join(still)} negative; held at zero or above")
    return {"rows": len(terms), "condition": condition(law), "negative": negative, "terms": rows}, said


def _inflation(columns: np.ndarray) -> np.ndarray:
    """VIF of each column; 1 for one that stands still, at most 1e9."""
    centred = columns - columns.mean(axis=0)
    size = np.sqrt((centred**2).sum(axis=0))
    live = np.flatnonzero(size > 1e-12 * np.maximum(np.abs(columns).max(axis=0), 1.0))
    found = np.ones(columns.shape[1])
    if len(live) > 1:
        unit = centred[:, live] / size[live]
        values, vectors = np.linalg.eigh(unit.T @ unit)
        found[live] = (vectors**2 / np.maximum(values, 1e-9)).sum(axis=1)
    return np.clip(found, 1.0, 1e9)


def _partner(columns: np.ndarray, j: int) -> int:
    """The column that column j is most correlated with."""
    centred = columns - columns.mean(axis=0)
    size = np.sqrt((centred**2).sum(axis=0))
    size[size == 0] = np.inf
    alike = np.abs(centred.T @ centred[:, j]) / size
    alike[j] = -1.0
    return int(np.argmax(alike))


def _negative(terms: np.ndarray, law: Law) -> dict[str, float]:
    """Where plain least squares wants less time for more work: the term, not the sign, is what the data lack."""
    bare = plain(law)
    scale = np.median(terms @ law.coefficients)
    wanted = zip(TERMS[: terms.shape[1]], bare.tolist(), terms.max(axis=0).tolist(), strict=True)
    return {term: value for (term, _), value, most in wanted if value * most < -NOTICED * scale}
