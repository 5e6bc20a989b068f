"""Tuning for more than the fitted plant: plants drawn from its intervals, and what counts of what they make of a candidate."""

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
            ValueError: an unknown kind, a tail outside (0, 1], fewer than two plants, or a plant without intervals.
        """
        if self.kind not in KINDS:
            raise ValueError(f"robust must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if not 0 < self.tail <= 1:
            raise ValueError(f"the tail of cvar must be in (0, 1], got {self.tail:g}; write cvar:25%")
        if self.plants < 2:
            raise ValueError(f"robust tuning needs at least 2 plants, got {self.plants}")
        if not any(_moves(ends) for ends in identified.interval.values()):
            raise ValueError("robust tuning draws plants from the intervals of plant.json, and this one has none; fit it to a longer trace")


def worlds(identified: IdentifiedPlant, robust: Robust) -> list[IdentifiedPlant]:
    """Plants that the trace allows, drawn from the interval of each coefficient.

    c' = c + z s, z standard normal, s = (high - c) / 1.96 above and (c - low) / 1.96 below, cut at 0; the halves of the
    draws mirror each other

    plant.json holds an interval for each coefficient and not how they go together. Fitted ones lean against each other (a
    higher floor, a lower slope), so that plants drawn one coefficient at a time lie further apart than the trace allows:
    what is tuned on them is on the cautious side. Limits of graphs and caches are not drawn.

    Args:
        identified: the fitted plant with its intervals.
        robust: how many, from which seed.

    Returns:
        Plants with the noise, the hull and the limits of the fitted one.

    Source:
        Hammersley and Morton, A new Monte Carlo technique: antithetic variates, 1956: the mirrored halves.
    """
    fitted = {name: c.value for name, c in identified.plant.coefficients().items()}
    names = [n for n in fitted if n in identified.interval and _moves(identified.interval[n]) and not n.startswith("shape.")]
    half = math.ceil(robust.plants / 2)
    z = np.random.default_rng([STREAM, robust.seed]).standard_normal((half, len(names)))
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
