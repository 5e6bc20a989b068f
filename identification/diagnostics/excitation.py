"""Did the trace move what the plant depends on? A term that stood still, or moved only with another, cannot be told."""

from __future__ import annotations

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


def excitation(regime: str, terms: np.ndarray, law: Law) -> tuple[dict[str, Any], list[str]]:
    """Check one regime's rows.

    VIF_j = 1 / (1 - R_j^2), R_j^2 the share of sum j's variance that the others explain

    Args:
        regime: "decode", "mixed" or "all".
        terms: regressors of the used rows, the first of them constant, shape (k, m).
        law: fitted to them.

    Returns:
        (for plant.json: rows, condition number of the scaled equations, and per term moved, range, variation and VIF;
        what there is to say, one sentence each).

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
                said.append(f"{both}: what {regime}.{term} and its partner take apart is not trustworthy, their sum is")
    return {"rows": len(terms), "condition": condition(law), "terms": rows}, said + _negative(regime, terms, law)


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


def _negative(regime: str, terms: np.ndarray, law: Law) -> list[str]:
    """Say where plain least squares wants less time for more work: the term, not the sign, is what the data lack."""
    bare = plain(law)
    scale = np.median(terms @ law.coefficients)
    said = []
    for j, (term, unit) in enumerate(TERMS[: terms.shape[1]]):
        if bare[j] * terms[:, j].max() < -NOTICED * scale:
            said.append(f"{regime}: plain least squares wants {regime}.{term} negative ({bare[j]:.3g} {unit}); it is held at zero or above")
    return said
