"""The knee: the highest load at which a setting, or the best of a grid of them, still attains what was promised."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.experiments.baseline import static_grid
from headway.experiments.statistics import Estimate, resampled_interval
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ON_TIME, OWED
from headway.models.signals import Limits, Target

SHARE = 0.99
"""Attainment at the knee."""

LOWEST, HIGHEST = 1 / 8, 8.0
"""Loads searched, as factors on the workload's own."""

STRIDE = 1.5
"""The search goes out from the workload's own load by this factor: far beyond the knee runs are long, and few are needed there."""

HALVINGS = 7
"""Bisections of a stride: the knee is exact to 0.3 %."""

OFFSETS = (0.003, 0.006, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.11, 0.15, 0.2, 0.25, 0.3)
"""Logarithmic distances from the knee, on both sides, at which attainment is read for its interval: up to 35 % more, 26 % less."""

BEYOND = 0.7
"""Logarithmic distance above the knee, twice its load, up to which it is looked whether the share is attained again."""

SURELY = 0.02
"""Logarithmic distance above the knee from which on attaining the share again is more than the search's own grain."""

FOUND, BELOW, ABOVE = "found", "below", "above"


@dataclasses.dataclass(frozen=True)
class Knee:
    """Where attainment falls below what was promised.

    Args:
        outcome: "found"; "below" or "above" where the knee lies outside the loads that were searched.
        share: attainment asked for, in (0, 1).
        rate_rps: the knee with its 95 % interval over seeds [requests/s]; an end that lies beyond the loads about the knee is
            NaN; where it was not found, the end of the search that it lies beyond, without an interval.
        searched_rps: least and greatest load searched [requests/s].
        setting: index of the setting that carries it; None where none carries the least load.
        again: loads above the knee at which the same setting attains the share again, where there are any [requests/s].
        seeds: draws that it rests on.
    """

    outcome: str
    share: float
    rate_rps: Estimate
    searched_rps: tuple[float, float]
    setting: int | None
    again: tuple[float, ...]
    seeds: int

    def sentence(self, name: str) -> str:
        """The knee in words.

        Args:
            name: of what has it, such as "the best static setting".

        Returns:
            One sentence.
        """
        low, high = self.searched_rps
        promise = f"{100 * self.share:.4g} % of the tokens on time"
        if self.outcome == BELOW:
            return f"{name} does not keep {promise} at any load searched: its knee lies below {low:.3g} req/s"
        if self.outcome == ABOVE:
            return f"{name} keeps {promise} at every load searched: its knee lies above {high:.3g} req/s"
        ends = [f"{end:.3g}" if np.isfinite(end) else "?" for end in (self.rate_rps.low, self.rate_rps.high)]
        known = f" [{', '.join(ends)}]" if self.seeds > 1 else " (one seed: no interval)"
        more = f"; above it, it attains that again at {', '.join(f'{r:.3g}' for r in self.again)} req/s" if self.again else ""
        return f"{name} keeps {promise} up to {self.rate_rps.value:.3g} req/s{known}{more}"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            Mapping by field name.
        """
        ends = [self.rate_rps.low, self.rate_rps.high]
        return {**dataclasses.asdict(self), "rate_rps": self.rate_rps.value, "ci95_rps": ends}


def knee(
    identified: IdentifiedPlant,
    settings: list[Candidate],
    draws: list[Draw],
    targets: tuple[Target, ...],
    limits: Limits,
    *,
    share: float = SHARE,
    lowest: float = LOWEST,
    highest: float = HIGHEST,
) -> Knee:
    """Highest load at which the best of the settings attains the share, all draws taken together.

    max {f: max_s sum on time (s, f) / sum owed (s, f) >= share}

    Bisection over the logarithm of the load, on the same requests and noise with arrivals drawn together or apart. Each
    setting's attainment is taken to fall as the load rises: one that fails at a load is not asked again at a higher one while
    others pass. The interval resamples the seeds, with the setting that won fixed: it says how far the knee of that setting
    is known, and not how the choice of the setting would move. Where one seed alone decides, resamples cannot say how much worse a
    seed not drawn may be: the low end then lies close to the knee.

    Args:
        identified: the plant.
        settings: the best of them is meant, chosen at each load anew; one for a setting that is given.
        draws: workloads and noise; loads are factors on their own rate.
        targets: one per class.
        limits: of the engine.
        share: attainment asked for, in (0, 1).
        lowest: least load searched, as a factor.
        highest: greatest.

    Returns:
        Knee.

    Raises:
        ValueError: no setting, a share outside (0, 1), or bounds that are not 0 < lowest < highest.
    """
    if not settings or not 0 < share < 1 or not 0 < lowest < highest:
        raise ValueError(
            f"knee needs a setting, 0 < share < 1 and 0 < lowest < highest, got {len(settings)} settings, share {share:g}, "
            f"lowest {lowest:g}, highest {highest:g}"
        )
    rate = float(np.mean([d.workload.rate_rps for d in draws]))
    reach = lambda chosen, at: _reached(identified, settings, chosen, draws, targets, limits, at, share)  # noqa: E731
    searched = (rate * lowest, rate * highest)
    low, high, alive = _bracket(reach, len(settings), float(np.log(lowest)), float(np.log(highest)))
    if low is None:
        return Knee(BELOW, share, Estimate(searched[0], np.nan, np.nan), searched, None, (), len(draws))
    if high is None:
        return Knee(ABOVE, share, Estimate(searched[1], np.nan, np.nan), searched, alive[0], (), len(draws))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        passing = reach(alive, middle)
        low, high, alive = (middle, high, passing) if passing else (low, middle, alive)
    value, again = _interval(identified, settings[alive[0]], draws, targets, limits, share, low, float(np.log(highest)))
    scaled = Estimate(*(rate * x for x in value))
    return Knee(FOUND, share, scaled, searched, alive[0], tuple(rate * f for f in again), len(draws))


def _bracket(
    reach: Callable[[list[int], float], list[int]], settings: int, lowest: float, highest: float
) -> tuple[float | None, float | None, list[int]]:
    """A load that some setting carries and the next that none does, going out from the workload's own by strides.

    Returns:
        (carried, None if none is; not carried, None if all are; who carries the former, the best first), logarithms.
    """
    at = min(max(0.0, lowest), highest)
    passing = reach(list(range(settings)), at)
    low, high = (at, None) if passing else (None, at)
    while low is not None and high is None and low < highest:
        at = min(low + np.log(STRIDE), highest)
        found = reach(passing, at)
        low, high, passing = (at, None, found) if found else (low, at, passing)
    while low is None and high is not None and high > lowest:
        at = max(high - np.log(STRIDE), lowest)
        passing = reach(list(range(settings)), at)
        low, high = (at, high) if passing else (None, at)
    return low, high, passing


def knees(
    identified: IdentifiedPlant,
    contenders: dict[str, Candidate],
    draws: list[Draw],
    targets: tuple[Target, ...],
    limits: Limits,
    *,
    share: float = SHARE,
) -> dict[str, Knee]:
    """The knee of each contender as it is set, and of the best static setting at each load.

    Args:
        identified: the plant.
        contenders: by name, as `headway.experiments.load.load_curve` takes them.
        draws: held-out workloads and noise.
        targets: one per class.
        limits: of the engine.
        share: attainment asked for, in (0, 1).

    Returns:
        Knees by name; "any_static" is that of the whole grid of start-up settings: what nobody can exceed with flags alone.
    """
    found = {name: knee(identified, [c], draws, targets, limits, share=share) for name, c in contenders.items()}
    found["any_static"] = knee(identified, [s.candidate() for s in static_grid(limits)], draws, targets, limits, share=share)
    return found


def _reached(
    identified: IdentifiedPlant,
    settings: list[Candidate],
    chosen: list[int],
    draws: list[Draw],
    targets: tuple[Target, ...],
    limits: Limits,
    at: float,
    share: float,
) -> list[int]:
    """Which of the chosen settings attain the share at exp(at) times the draws' own rate; the best first."""
    candidates = [settings[i] for i in chosen]
    measures = evaluate(identified, candidates, draws, targets, limits, stretch=np.full(len(chosen), np.exp(-at)))
    attained = measures[..., ON_TIME].sum(axis=1) / np.maximum(measures[..., OWED].sum(axis=1), 1e-9)
    order = np.argsort(-attained, kind="stable")
    return [chosen[i] for i in order if attained[i] >= share]


def _interval(
    identified: IdentifiedPlant,
    setting: Candidate,
    draws: list[Draw],
    targets: tuple[Target, ...],
    limits: Limits,
    share: float,
    at: float,
    most: float,
) -> tuple[Estimate, list[float]]:
    """The factor at the knee with its interval over seeds, and factors above the knee at which the share is attained again."""
    grid = at + np.array([*(-x for x in reversed(OFFSETS)), 0.0, *OFFSETS])
    most = min(most, at + BEYOND)
    above = np.linspace(grid[-1], most, 6)[1:] if most > grid[-1] else np.zeros(0)
    places = np.concatenate([grid, above])
    measures = evaluate(identified, [setting] * len(places), draws, targets, limits, stretch=np.exp(-places))
    on_time, owed = measures[: len(grid), :, ON_TIME].T, measures[: len(grid), :, OWED].T
    crossing = lambda rows: _crossing(grid, on_time[rows].sum(axis=0) / owed[rows].sum(axis=0), share)  # noqa: E731
    found = resampled_interval(crossing, len(draws), value=at)
    whole = measures[..., ON_TIME].sum(axis=1) / np.maximum(measures[..., OWED].sum(axis=1), 1e-9)
    again = [float(np.exp(x)) for x, a in zip(places, whole, strict=True) if a >= share and x > at + SURELY]
    return Estimate(*(float(np.exp(x)) for x in found)), again


def _crossing(grid: np.ndarray, attained: np.ndarray, share: float) -> float:
    """Where attainment, made to fall, crosses the share; infinite where it does not within the grid."""
    falling = np.minimum.accumulate(attained)
    if falling[0] < share:
        return -np.inf
    if falling[-1] >= share:
        return np.inf
    k = int(np.argmax(falling < share))
    part = (falling[k - 1] - share) / max(falling[k - 1] - falling[k], 1e-12)
    return float(grid[k - 1] + part * (grid[k] - grid[k - 1]))
