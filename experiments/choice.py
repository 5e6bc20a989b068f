"""Which candidate of a search becomes the controller, and what is to be said of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headway.controllers.simulator import Candidate, Draw
from headway.experiments.baseline import HEAVIER, Trained, under_more
from headway.experiments.checkpoint import Ledger
from headway.experiments.constraints import Requirement
from headway.experiments.contest import NEAR
from headway.experiments.floors import Held, floors_of, held_to, raised, seen_by, worth_a_look
from headway.experiments.problem import Effort, Problem
from headway.experiments.search import Found, climb
from headway.experiments.selection import ATTAINED, CLEANED, GOOD_TPS, KEPT, LEAD, MISSED, VALUE, choose, steady
from headway.experiments.sensitivity import dead_sentence, sensitivities
from headway.experiments.space import Space

LOADS = (HEAVIER, 1.3)
"""Loads, as multiples of the one that is tuned for, at which a controller has to bear as much as whoever is not tuned."""

FASTER = 0.97
"""Goodput of the untuned controller, as a share of the best, below which speed alone is a reason to leave it."""

CLEANER = 0.02
"""Share of clean requests by which the best of a search is worth more than the untuned controller, though it attains about the same."""

DEARLY = 0.1
"""Share of clean requests that the floors may cost without a word."""

DEAD_DRAWS = 2
"""Training draws on which a free number has to change something."""


class Chosen(NamedTuple):
    """The controller.

    Args:
        candidate: law and policy.
        settings: what a person would set.
        notes: sentences to be said of it.
        found: all that was compared, with what a search for the floors of a static setting added.
    """

    candidate: Candidate
    settings: dict[str, Any]
    notes: list[str]
    found: Found


def chosen(problem: Problem, found: Found, statics: tuple[Trained, Trained], draws: list[Draw], effort: Effort, ledger: Ledger) -> Chosen:
    """Choose among what a search found.

    Where nothing beat the static settings even on the training seeds, the better of them is handed on; of equals, which attain the same
    because nobody has waited long enough to be shed, the one that bears heavier loads. Of what did, whoever keeps
    every class and each third of the prompts at what the best static setting gives them goes first; where nobody does, slopes are
    followed from the best with that as a requirement, and where that helps nothing either it is said. Of those, whoever bears a
    heavier load as well as the static settings, and nearly as well as the untuned controller; of near ties the one with most clean
    requests.

    Args:
        problem: what is tuned for.
        found: of the search, the untuned controller first.
        statics: best setting without and with a timeout.
        draws: of the training.
        effort: how much is spent.
        ledger: what is known already.

    Returns:
        Chosen.
    """
    allowed = [s for s in statics if s.score[MISSED] <= KEPT]
    better = [s for s in statics if _ahead(s.score, found.scores)]
    missed = min([float(found.scores[:, MISSED].min()), *(float(s.score[MISSED]) for s in better)])
    notes = [] if missed <= KEPT else [_infeasible(problem, missed)]
    if better:
        candidates = [s.setting.candidate() for s in better]
        heavier = np.sum([under_more(problem, candidates, draws, ledger, load) for load in LOADS], axis=0)
        worth = lambda k: (-float(better[k].score[MISSED]), float(better[k].score[VALUE]), float(heavier[k]))  # noqa: E731
        setting = better[max(range(len(better)), key=worth)].setting
        return Chosen(setting.candidate(), setting.to_json(), notes, found)
    best = max((float(s.score[VALUE]) for s in allowed), default=0.0)
    floors = floors_of(problem, statics[0].setting.candidate(), draws) if missed <= KEPT else ()
    among: list[int] | None = None
    said: list[str] = []
    if floors:
        among, found, said = _fair(problem, floors, found, best, draws, effort, ledger)
        notes += said
    k = _steadiest(problem, found, among if among is not None else worth_a_look(found.scores, best), statics, draws, ledger)
    space = found.spaces[k]
    candidate = space.candidate(found.points[k])
    if among is not None and not said:
        notes += _price(problem, floors, found, k, best, draws)
    return Chosen(candidate, space.values(found.points[k]), [*notes, *dead_notes(problem, space, candidate, draws)], found)


def _fair(
    problem: Problem,
    floors: tuple[Requirement, ...],
    found: Found,
    best: float,
    draws: list[Draw],
    effort: Effort,
    ledger: Ledger,
) -> tuple[list[int] | None, Found, list[str]]:
    """(candidates to choose among, None for all; with what was looked at to find them, and what is to be said)."""
    hold = lambda which: held_to(problem, floors, found.candidates(), found.scores, draws, which)  # noqa: E731
    held = hold(worth_a_look(found.scores, best))
    if held is None:
        return None, found, []
    if not held.keep:
        known = len(found.points)
        found = climb(problem, raised(floors), found, held.best, draws, effort, ledger)
        more = hold(worth_a_look(found.scores, best, known))
        held = more if more is not None and (more.keep or more.worth > held.worth) else held
    if held.keep:
        return held.keep, found, []
    return [held.best], found, [_unfair(problem, floors, found.candidates()[held.best], held, draws)]


def _price(problem: Problem, floors: tuple[Requirement, ...], found: Found, k: int, best: float, draws: list[Draw]) -> list[str]:
    """What keeping the floors costs, where it costs more than a near tie or many clean requests: the best that does not keep them."""
    free = worth_a_look(found.scores, best)
    if not free:
        return []
    ours, theirs = found.scores[k], found.scores[free[0]]
    if theirs[VALUE] <= ours[VALUE] + NEAR and theirs[CLEANED] <= ours[CLEANED] + DEARLY:
        return []
    seen = seen_by(problem, floors, found.candidates()[free[0]], draws)
    below = ", ".join(r.words(seen[r]) for r in floors if r.missed(seen[r]) > 0)
    if not below:
        return []
    figures = [f"{100 * row[ATTAINED]:.1f} % with {100 * row[CLEANED]:.0f} % clean requests" for row in (ours, theirs)]
    return [
        f"attained are {figures[0]} on the training seeds, and every class and each third of the prompts is kept at what the best static "
        f"setting gives them; without that it would be {figures[1]}, and {below}"
    ]


def _steadiest(
    problem: Problem, found: Found, among: list[int], statics: tuple[Trained, Trained], draws: list[Draw], ledger: Ledger
) -> int:
    """Of candidates that bear a heavier load as well as the static settings, and nearly as well as the untuned one, the one to keep."""
    points, scores = [found.points[i] for i in among], found.scores[among]
    if problem.objective != "attainment" or len(among) < 2:
        return among[choose(points, scores, problem.objective)] if among else choose(found.points, found.scores, problem.objective)
    candidates = found.candidates()
    rivals = [candidates[0], *(s.setting.candidate() for s in statics)]
    everybody = [*(candidates[i] for i in among), *rivals]
    heavier = np.stack([under_more(problem, everybody, draws, ledger, load) for load in LOADS], axis=1)
    values = np.array([found.scores[0, VALUE], *(s.score[VALUE] for s in statics)])
    others = np.column_stack([values, heavier[len(among) :]])
    others[0] -= NEAR  # the untuned one is a near tie as others are: it may be given up for more clean requests
    fit = steady(scores, heavier[: len(among)], others)
    k = choose([points[i] for i in fit], scores[fit], problem.objective, floor=float(values[1:].max()) + LEAD)
    best = among[int(fit[k])]
    return 0 if 0 in [among[i] for i in fit] and _hardly(found.scores[0], found.scores[best]) else best


def _hardly(untuned: np.ndarray, best: np.ndarray) -> bool:
    """Whether too little speaks for the best of a search: less than a near tie in what it attains, hardly more goodput or clean requests.

    The untuned controller fits nothing to the training windows, nor to what the plant has wrong. Where all is met in training every number
    ties, and one that would shed what training did not hold looks as good as any.
    """
    near = untuned[VALUE] > best[VALUE] - NEAR and untuned[CLEANED] > best[CLEANED] - CLEANER
    return bool(near and untuned[GOOD_TPS] >= FASTER * best[GOOD_TPS])


def _unfair(problem: Problem, floors: tuple[Requirement, ...], candidate: Candidate, held: Held, draws: list[Draw]) -> str:
    """Who is worse off than under the best static setting, where nothing that attains as much keeps all where they are."""
    seen = seen_by(problem, floors, candidate, draws)
    below = ", ".join(r.words(seen[r]) for r in floors if r.missed(seen[r]) > 0)
    return (
        f"no candidate that attains as much keeps every class and each third of the prompts at what the best static setting gives them; "
        f"taken is the one that misses it least for what it attains, by {100 * held.missed:.1f} points in all, on the training seeds: {below}"
    )


def _ahead(score: np.ndarray, others: np.ndarray) -> bool:
    """Whether a score beats all others: by what it misses, then by the objective."""
    missed = round(float(score[MISSED]), 12), np.round(others[:, MISSED], 12)
    if missed[0] != missed[1].min():
        return bool(missed[0] < missed[1].min())
    return bool(score[VALUE] > others[missed[1] == missed[0], VALUE].max())


def _infeasible(problem: Problem, missed: float) -> str:
    """What no candidate could do."""
    asked = ", ".join(r.label for r in problem.require)
    return (
        f"infeasible: no candidate keeps all that is required ({asked}) on the training seeds; taken is the one that misses it least, "
        f"by {missed:.3g} in all"
    )


def dead_notes(problem: Problem, space: Space, candidate: Candidate, draws: list[Draw]) -> list[str]:
    """Free numbers whose value means nothing, each once: those that cannot act, and those that never did.

    Args:
        problem: what is tuned for.
        space: the free numbers.
        candidate: the controller.
        draws: of the training.

    Returns:
        Sentences.
    """
    known = {note.partition(" ")[0] for note in space.notes}
    found = sensitivities(problem.identified, space, candidate, draws[:DEAD_DRAWS], problem.targets)
    return [*space.notes, *filter(None, [dead_sentence([s for s in found if s.name not in known])])]
