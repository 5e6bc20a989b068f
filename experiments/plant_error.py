"""What is left of a lead when the plant is not the one that was fitted: the controller believes the fit, the steps do otherwise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headway.controllers.simulator import Candidate, Draw
from headway.experiments.promises import promised_runs
from headway.experiments.robust import WORDS, Robust, drawn_how, worlds
from headway.experiments.scaleout import map_runs
from headway.experiments.statistics import Estimate, mean_interval
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ATTAINMENT
from headway.models.plant import Plant
from headway.models.signals import Limits, Target

SCHEMA = "headway/plant-error/1"

ERRORS = (-0.10, -0.03, 0.03, 0.10)
"""Errors of floor and slopes, as shares of what was fitted; positive is slower than fitted."""

SLOWER = (-0.10, -0.03, 0.0, 0.03, 0.05, 0.10, 0.15, 0.20, 0.30, 0.40)
"""Errors of all times together: among them the lead is followed upwards until it is lost."""

DRAWN = 16
"""Plants drawn from the intervals of the coefficients, see `headway.experiments.robust.worlds`."""

Progress = Callable[[str, float], None]


class Off(NamedTuple):
    """A plant that is off, and what both contenders attain on it.

    Args:
        part: "floor", "slopes", "all", or "drawn" of the intervals.
        error: of that part, as a share of what was fitted; NaN where it was drawn.
        controller: held-out attainment.
        static: of the best static setting.
        lead: controller less static, paired over the draws [1].
    """

    part: str
    error: float
    controller: Estimate
    static: Estimate
    lead: Estimate


@dataclasses.dataclass(frozen=True)
class PlantError:
    """The lead of a controller under plant error.

    Args:
        rows: one per plant.
        holds_to: greatest of SLOWER up to which the lead is above 0 with its interval; None where it is not even as fitted.
        lost_at: the next one; None where the lead holds at all of them.
        drawn_held: share of the drawn plants on which the lead is above 0 with its interval; NaN where none was drawn.
        notes: what else should be known.
        rival: what the lead is over, in words.
    """

    rows: list[Off]
    holds_to: float | None
    lost_at: float | None
    drawn_held: float
    notes: list[str]
    rival: str = "the best static setting"

    def sentence(self) -> str:
        """How much error the lead bears.

        Returns:
            One sentence.
        """
        at = lambda error: next(r.lead for r in self.rows if r.part == "all" and r.error == error)  # noqa: E731
        if self.holds_to is None:
            return f"on the plant as fitted the controller has no lead over {self.rival} to hold: {at(0.0).in_percent()}"
        drawn = "" if math.isnan(self.drawn_held) else f"; on {self.drawn_held:.0%} of the plants drawn from the fit's intervals it leads"
        if self.lost_at is None:
            return f"the controller holds its lead over {self.rival} at every error tried, steps {SLOWER[-1]:.0%} slower than fitted included{drawn}"
        until = f"until steps are {self.holds_to:.0%} slower than fitted" if self.holds_to > 0 else "only as long as steps are as fitted"
        return f"the controller holds its lead over {self.rival} {until}; at {self.lost_at:.0%} slower it is {at(self.lost_at).in_percent()}{drawn}"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            {"schema", "rows": [...], "holds_to", "lost_at", "drawn_held", "notes", "sentence"}.
        """
        pair = lambda e: {"value": e.value, "ci95": [e.low, e.high]}  # noqa: E731
        rows = [
            {"part": r.part, "error": r.error, "controller": pair(r.controller), "static": pair(r.static), "lead": pair(r.lead)}
            for r in self.rows
        ]
        plain = {"holds_to": self.holds_to, "lost_at": self.lost_at, "drawn_held": self.drawn_held, "notes": self.notes}
        return {"schema": SCHEMA, "rows": rows, **plain, "sentence": self.sentence()}


def scaled(plant: Plant, floor: float, slopes: float) -> Plant:
    """A plant whose times are off.

    Args:
        plant: as fitted.
        floor: factor on what a step takes whatever it holds: coefficients in seconds.
        slopes: factor on what its contents add: coefficients in seconds per something. Where a curve bends stays.

    Returns:
        Plant of the same structure.

    Example:
        >>> from headway.models.regimes import AffinePlant
        >>> scaled(AffinePlant((0.01, 0.0, 0.0, 1e-5, 0.0, 0.0)), 1.5, 2.0).law
        (0.015, 0.0, 0.0, 2e-05, 0.0, 0.0)
    """
    known = plant.coefficients()
    factor = {name: floor if c.unit == "s" else slopes if c.unit.startswith("s/") else 1.0 for name, c in known.items()}
    return type(plant).from_coefficients({name: c.value * factor[name] for name, c in known.items()})


def plant_error(
    identified: IdentifiedPlant,
    controller: Candidate,
    static: Candidate,
    draws: list[Draw],
    targets: tuple[Target, ...],
    limits: Limits,
    *,
    seed: int = 0,
    rival: str = "the best static setting",
    workers: int | None = None,
    progress: Progress | None = None,
) -> PlantError:
    """Run both contenders on plants that are off, on the same held-out draws, and follow the lead until it is lost.

    Law and policy keep the plant that was fitted: only the steps differ. Errors of the structure, a term that no fit holds, are
    not among them.

    Args:
        identified: the plant as fitted.
        controller: tuned on it.
        static: the best static setting, chosen on it.
        draws: held-out workloads and noise.
        targets: one per class.
        limits: of the engine.
        seed: of the plants that are drawn.
        rival: what `static` is, in words.
        workers: processes; None for one per core.
        progress: called with a label and a fraction.

    Returns:
        PlantError.
    """
    plain = identified.plant
    off = [("floor", e, scaled(plain, 1 + e, 1.0)) for e in ERRORS] + [("slopes", e, scaled(plain, 1.0, 1 + e)) for e in ERRORS]
    off += [("all", e, scaled(plain, 1 + e, 1 + e)) for e in SLOWER]
    if any(low < high for low, high in identified.interval.values()):
        off += [("drawn", math.nan, world.plant) for world in worlds(identified, Robust(plants=DRAWN, seed=seed))]
    job = _Job(identified, [controller, static], draws, targets, limits)
    ran = map_runs(job, [plant for _, _, plant in off], workers=workers, progress=progress, label="plants that are off")
    rows = [
        Off(part, error, mean_interval(runs[0]), mean_interval(runs[1]), mean_interval(runs[0] - runs[1]))
        for (part, error, _), runs in zip(off, ran.results, strict=True)
    ]
    held = [r.lead.low > 0 for r in rows if r.part == "drawn"]
    notes = [f"plants are {WORDS[drawn_how(identified)]}"] if held else ["the plant has no intervals to draw from"]
    ladder = [r for r in rows if r.part == "all" and r.error >= 0]
    kept = next((k for k, r in enumerate(ladder) if not r.lead.low > 0), len(ladder))
    return PlantError(
        rows,
        ladder[kept - 1].error if kept else None,
        ladder[kept].error if kept < len(ladder) else None,
        float(np.mean(held)) if held else math.nan,
        [*notes, *ran.notes],
        rival,
    )


class _Job(NamedTuple):
    """What a worker runs on a plant: sent once."""

    identified: IdentifiedPlant
    candidates: list[Candidate]
    draws: list[Draw]
    targets: tuple[Target, ...]
    limits: Limits

    def __call__(self, plant: Plant) -> np.ndarray:
        """Attainment, shape (candidates, draws)."""
        return promised_runs(*self, truth=plant)[..., ATTAINMENT]
