"""Tuning for more than the fitted plant: plants drawn from what its fit leaves open, and what counts of what they make of a candidate."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from headway.models import PLANTS
from headway.models.identified import IdentifiedPlant

KINDS = ("mean", "cvar")

Z95 = 1.959964
"""Standard deviations from the middle of a normal law to the end of its 95 % interval."""

STREAM = 5717
"""Apart from the streams of workloads and noise."""


@dataclasses.dataclass(frozen=True)
class Robust:
    """How plants that the trace allows as well count.

    Args:
        kind: "mean" of all runs, or "cvar", the mean of the worst.
        tail: share of the runs that "cvar" takes, in (0, 1].
        plants: drawn.
        seed: of the drawing.
    """

    kind: str = "cvar"
    tail: float = 0.25
    plants: int = 4
    seed: int = 0

    def check(self, identified: IdentifiedPlant) -> None:
        """Refuse what cannot be.

        Args:
            identified: the plant.

        Raises:
            ValueError: an unknown kind, a tail outside (0, 1], fewer than two plants, a plant without intervals, or with a
                correlation that is none.
        """
        if self.kind not in KINDS:
            raise ValueError(f"robust must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not 0 < self.tail <= 1:
            raise ValueError(f"the tail of cvar must be in (0, 1], got {self.tail:g}; write cvar:25%")
        if self.plants < 2:
            raise ValueError(f"robust tuning needs at least 2 plants, got {self.plants}")
        if not any(_moves(ends) for ends in identified.interval.values()):
            raise ValueError("robust tuning draws plants from the intervals of plant.json, and this one has none; fit it to a longer trace")
        drawn_how(identified)


JOINTLY, APART = "jointly", "apart"
"""How coefficients are drawn: as they lean against each other in the fit's bootstrap, or each by itself."""

WORDS = {
    JOINTLY: "drawn jointly, coefficients leaning against each other as in the fit's bootstrap",
    APART: "drawn one coefficient at a time: plant.json does not say how they go together, so these lie further apart than the trace allows",
}
"""What is said of it."""


def drawn_how(identified: IdentifiedPlant) -> str:
    """How `worlds` draws plants.

    Args:
        identified: the fitted plant.

    Returns:
        JOINTLY where plant.json holds the correlation of some coefficients that are drawn, else APART.

    Raises:
        ValueError: a correlation that is none.
    """
    names = _moving(identified)
    return JOINTLY if any(len(places) > 1 for places, _ in _leaning(identified, names)) else APART


def worlds(identified: IdentifiedPlant, robust: Robust) -> list[IdentifiedPlant]:
    """Plants that the trace allows, drawn from the interval of each coefficient and from how the coefficients go together.

    c' = c + z s, z normal with the correlation of the fit's bootstrap draws, s = (high - c) / 1.96 above and (c - low) / 1.96
    below, cut at 0; the halves of the draws mirror each other

    Fitted coefficients lean against each other (a higher floor, a lower slope). A plant.json that holds no correlation leaves them
    to be drawn one at a time: such plants lie further apart than the trace allows, and what is tuned on them is on the cautious
    side. Coefficients of different regimes were fitted to different steps, and are independent. Limits of graphs and caches are not
    drawn.

    Args:
        identified: the fitted plant with its intervals; `about["correlation"]` is a list of {"names", "matrix"}.
        robust: how many, from which seed.

    Returns:
        Plants with the noise, the hull and the limits of the fitted one.

    Raises:
        ValueError: a correlation that is none.

    Source:
        Hammersley and Morton, A new Monte Carlo technique: antithetic variates, 1956: the mirrored halves.
    """
    fitted = {name: c.value for name, c in identified.plant.coefficients().items()}
    names, half = _moving(identified), math.ceil(robust.plants / 2)
    z = np.random.default_rng([STREAM, robust.seed]).standard_normal((half, len(names)))
    for places, root in _leaning(identified, names):
        z[:, places] = z[:, places] @ root.T
    made = []
    for row in np.concatenate([z, -z])[: robust.plants]:
        moved = dict(fitted)
        for name, step in zip(names, row, strict=True):
            low, high = identified.interval[name]
            spread = (high - fitted[name]) / Z95 if step > 0 else (fitted[name] - low) / Z95
            moved[name] = max(fitted[name] + step * max(spread, 0.0), 0.0)
        plant = PLANTS[identified.plant.structure].from_coefficients(moved)
        made.append(dataclasses.replace(identified, plant=plant))
    return made


def _moving(identified: IdentifiedPlant) -> list[str]:
    """The coefficients that are drawn."""
    known = identified.plant.coefficients()
    return [n for n in known if n in identified.interval and _moves(identified.interval[n]) and not n.startswith("shape.")]


def _leaning(identified: IdentifiedPlant, names: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Places among the names, and a root of the correlation of these: what turns independent normal numbers into theirs."""
    found, seen = [], set()
    for group in identified.about.get("correlation") or []:
        try:
            listed, matrix = [str(name) for name in group["names"]], np.asarray(group["matrix"], float)
        except (TypeError, KeyError, ValueError):
            raise ValueError(_no_correlation("lacks names or matrix")) from None
        if matrix.shape != (len(listed), len(listed)) or not np.isfinite(matrix).all() or (np.abs(matrix) > 1 + 1e-6).any():
            raise ValueError(_no_correlation(f"of {', '.join(listed)} is not square with values in [-1, 1]"))
        mine = [i for i, name in enumerate(listed) if name in names and name not in seen]
        seen.update(listed)
        if len(mine) > 1:
            part = (matrix[np.ix_(mine, mine)] + matrix[np.ix_(mine, mine)].T) / 2
            values, vectors = np.linalg.eigh(part)
            root = vectors * np.sqrt(np.maximum(values, 0.0))  # rounded correlations may have an eigenvalue just below 0
            root = root / np.maximum(np.linalg.norm(root, axis=1, keepdims=True), 1e-12)
            found.append((np.array([names.index(listed[i]) for i in mine]), root))
    return found


def _no_correlation(why: str) -> str:
    return f"plant.json: correlation {why}; write it anew with `headway fit`"


def pooled(values: np.ndarray, robust: Robust | None) -> np.ndarray:
    """What counts of the runs of each candidate.

    Args:
        values: greater is better, shape (candidates, runs).
        robust: how; None for the mean.

    Returns:
        The mean, or the mean of the worst runs, shape (candidates,).

    Source:
        Rockafellar and Uryasev, Optimization of conditional value-at-risk, Journal of Risk 2(3), 2000.

    Example:
        >>> pooled(np.array([[0.5, 0.9, 1.0, 0.7]]), Robust("cvar", 0.5))
        array([0.6])
    """
    if robust is None or robust.kind == "mean":
        return values.mean(axis=1)
    worst = max(1, round(robust.tail * values.shape[1]))
    return np.sort(values, axis=1)[:, :worst].mean(axis=1)


def _moves(ends: tuple[float, float]) -> bool:
    return math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[1] > ends[0]
