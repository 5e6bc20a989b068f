"""The trade between first tokens and gaps: settings of which none is worse on both, with intervals.

A start-up flag or a gain that shortens gaps lets prompts wait, and the other way round. One number hides where on that
curve a setting stands; here both promises are kept apart, as in `headway.experiments.promises`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headway.controllers.simulator import Candidate
from headway.experiments.promises import ITL_MET, TTFT_MET, Runs
from headway.experiments.scaleout import map_runs
from headway.experiments.statistics import Estimate, mean_interval
from headway.models.measures import ATTAINMENT, CLEAN

BOTH = [TTFT_MET, ITL_MET]
"""Columns of the two promises."""

KINDS = ("controller", "static")


BLOCK = 4
"""Candidates that a worker runs at a time."""

Setting = tuple[str, dict[str, Any], Candidate]


class Tried(NamedTuple):
    """A setting with its runs.

    Args:
        kind: one of KINDS.
        settings: what a person would set.
        candidate: law and policy.
        runs: as of `promised_runs`, shape (draws, COLUMNS).
    """

    kind: str
    settings: dict[str, Any]
    candidate: Candidate
    runs: np.ndarray


@dataclasses.dataclass(frozen=True)
class Point:
    """One setting of a front, on held-out draws.

    Args:
        kind: one of KINDS.
        settings: what a person would set.
        ttft: share of requests whose first token was on time.
        itl: of the tokens that those owe, the share that was on time.
        attainment: both together.
        clean: share of clean requests.
        beaten: another of its front is better on both held-out promises, with intervals above 0: luck had put it there.
    """

    kind: str
    settings: dict[str, Any]
    ttft: Estimate
    itl: Estimate
    attainment: Estimate
    clean: float
    beaten: bool

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            Mapping by field name; estimates as {"value", "ci95"}.
        """
        shown = {k: {"value": e.value, "ci95": [e.low, e.high]} for k, e in vars(self).items() if isinstance(e, Estimate)}
        return {"kind": self.kind, "settings": self.settings, **shown, "clean": self.clean, "beaten": self.beaten}


class Ahead(NamedTuple):
    """The controller beside the best balanced static setting, both chosen in training, on held-out draws.

    Args:
        ours: settings of the controller's point: gaps at least as good in training, then most first tokens.
        theirs: of the static one: the greatest of its lesser promise.
        ttft: share of first tokens in time, ours less theirs, paired.
        itl: likewise of tokens.
    """

    ours: dict[str, Any]
    theirs: dict[str, Any]
    ttft: Estimate
    itl: Estimate


@dataclasses.dataclass(frozen=True)
class Front:
    """What can be had of both promises.

    Args:
        points: of the controller, by rising ttft in training, where none is worse on both than another.
        static: of the static settings, with and without a queue timeout, likewise.
        ahead: one beside the other; None where no setting of the controller keeps gaps as well as that static one in training.
        tried: settings of each kind that were compared in training.
        unserved: of them those under which no first token was on time in some draw: they have no itl, and are left out.
        notes: sentences on how it was run.
    """

    points: list[Point]
    static: list[Point]
    ahead: Ahead | None
    tried: dict[str, int]
    unserved: int
    notes: list[str]

    def sentence(self) -> str:
        """What the two fronts say beside each other.

        Returns:
            One sentence, or two.
        """
        if not self.points or not self.static:
            return "no setting of one kind served a first token in time in every draw, so there is nothing to trade"
        first, last = _percent(self.points[0]), _percent(self.points[-1])
        many = len(self.points)
        said = f"the controller trades over {many} settings from {first} to {last}" if many > 1 else f"one setting is best on both: {first}"
        if self.ahead is None:
            return f"{said}. None of it kept gaps as well in training as the best balanced static setting"
        return (
            f"{said}. Beside the best balanced static setting, gaps kept no worse in training, first tokens in time are "
            f"{self.ahead.ttft.in_percent()} and tokens {self.ahead.itl.in_percent()}"
        )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            Mapping by field name, and the sentence.
        """
        pair = lambda e: {"value": e.value, "ci95": [e.low, e.high]}  # noqa: E731
        ahead = self.ahead and {**self.ahead._asdict(), "ttft": pair(self.ahead.ttft), "itl": pair(self.ahead.itl)}
        points, static = ([p.to_json() for p in side] for side in (self.points, self.static))
        plain = {"tried": self.tried, "unserved": self.unserved, "notes": self.notes, "sentence": self.sentence()}
        return {"schema": "headway/pareto/1", "points": points, "static": static, "ahead": ahead, **plain}


def non_dominated(values: np.ndarray) -> np.ndarray:
    """Rows that no other row matches or exceeds in every column and exceeds in one; of equal rows the first.

    Args:
        values: more is better, shape (k, m).

    Returns:
        Indices by rising first column, shape (f,).

    Example:
        >>> non_dominated(np.array([[0.9, 0.5], [0.5, 0.9], [0.4, 0.8], [0.9, 0.5]])).tolist()
        [1, 0]
    """
    values = np.asarray(values, float)
    at_least = (values[:, None] >= values[None]).all(axis=2)
    better = at_least & (values[:, None] > values[None]).any(axis=2)
    first = np.array([not (values[:i] == values[i]).all(axis=1).any() for i in range(len(values))], bool)
    kept = np.flatnonzero(~better.any(axis=0) & first)
    return kept[np.argsort(values[kept, 0], kind="stable")]


def on_front(side: list[Tried]) -> list[Tried]:
    """The settings that no other of their kind dominates, by their means over the draws.

    Args:
        side: settings of one kind, each with first tokens in time in every draw.

    Returns:
        By rising share of first tokens in time.
    """
    return [side[i] for i in non_dominated(both_of(side))] if side else []


def both_of(side: list[Tried]) -> np.ndarray:
    """Means of both promises over the draws.

    Args:
        side: settings.

    Returns:
        Shape (settings, 2); NaN where a draw has no first token in time.
    """
    return np.array([t.runs[:, BOTH].mean(axis=0) for t in side]).reshape(-1, 2)


def point_of(mine: Tried, front: list[Tried]) -> Point:
    """A setting as a point of its front.

    Args:
        mine: on held-out draws.
        front: everyone of it, on the same draws.

    Returns:
        Point.
    """
    beaten = any(all(mean_interval(o.runs[:, k] - mine.runs[:, k]).low > 0 for k in BOTH) for o in front if o is not mine)
    ttft, itl, attainment = (mean_interval(mine.runs[:, k]) for k in (*BOTH, ATTAINMENT))
    return Point(mine.kind, mine.settings, ttft, itl, attainment, float(mine.runs[:, CLEAN].mean()), beaten)


def ahead_of(ours: tuple[list[Tried], list[Tried]], theirs: tuple[list[Tried], list[Tried]]) -> Ahead | None:
    """The controller beside the best balanced static setting.

    Args:
        ours: its front on training draws, and the same settings on held-out ones.
        theirs: of the static settings.

    Returns:
        Ahead; None where there is no such pair.
    """
    if not ours[0] or not theirs[0]:
        return None
    own, other = both_of(ours[0]), both_of(theirs[0])
    j = int(np.argmax(other.min(axis=1)))
    fine = np.flatnonzero(own[:, 1] >= other[j, 1])
    if not len(fine):
        return None
    i = int(fine[np.argmax(own[fine, 0])])
    a, b = ours[1][i], theirs[1][j]
    return Ahead(a.settings, b.settings, *(mean_interval(a.runs[:, k] - b.runs[:, k]) for k in BOTH))


def tried_on(job: Runs, settings: list[Setting], **spread: Any) -> tuple[list[Tried], list[str]]:
    """Run settings, spread over workers.

    Args:
        job: plant, draws, targets and limits.
        settings: kind, what a person would set, law with policy.
        spread: where, address and workers of `headway.experiments.scaleout.map_runs`.

    Returns:
        (the settings with their runs, sentences on how it went).
    """
    blocks = [[c for _, _, c in settings[i : i + BLOCK]] for i in range(0, len(settings), BLOCK)]
    ran = map_runs(job, blocks, **spread)
    rows = [row for block in ran.results for row in block]
    return [Tried(kind, words, c, row) for (kind, words, c), row in zip(settings, rows, strict=True)], ran.notes


def front_of(tried: list[Tried], again: Callable[[list[Tried]], list[Tried]], notes: list[str]) -> Front:
    """The fronts of both kinds: who is on them by the training draws, what they attain on held-out ones.

    Args:
        tried: settings on training draws.
        again: runs settings on held-out draws, in their order.
        notes: sentences on how it was run.

    Returns:
        Front.
    """
    sides = [[t for t in tried if t.kind == kind] for kind in KINDS]
    served = [[t for t in side if np.isfinite(t.runs[:, ITL_MET]).all()] for side in sides]
    fronts = [on_front(side) for side in served]
    heldout = again([t for front in fronts for t in front])
    shown = (heldout[: len(fronts[0])], heldout[len(fronts[0]) :])
    ours, theirs = ([point_of(t, side) for t in side] for side in shown)
    ahead = ahead_of((fronts[0], shown[0]), (fronts[1], shown[1]))
    counted = {kind: len(side) for kind, side in zip(KINDS, sides, strict=True)}
    return Front(ours, theirs, ahead, counted, len(tried) - sum(map(len, served)), notes)


def _percent(p: Point) -> str:
    return f"{100 * p.ttft.value:.1f} % of first tokens with {100 * p.itl.value:.1f} % of their tokens in time"
