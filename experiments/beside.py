"""What stands beside a result of tuning: its distance to the bound, what each part brings, and whatever else is asked for.

Each look is a function of the problem and the result alone. What one has found is kept as it ends, so that a kill costs the look
that was under way and no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from headway.controllers.static import StaticLaw
from headway.experiments.ablation import ablation
from headway.experiments.baseline import Static, static_grid
from headway.experiments.checkpoint import Store, digest, problem_key
from headway.experiments.distance import FULL, SHORT, distance
from headway.experiments.fired import fired
from headway.experiments.knee import knee
from headway.experiments.pareto import Front
from headway.experiments.plant_error import plant_error
from headway.experiments.problem import Effort, Problem
from headway.experiments.shift import shift
from headway.experiments.space import Space
from headway.experiments.tune import Tuned
from headway.experiments.weights import weighted_front
from headway.experiments.whole_files import without_nan

SCHEMA = "headway/beside/1"

LOOKS = {"bound": 0.3, "ablation": 0.1, "knee": 1.0, "pareto": 1.0, "plant-error": 0.7, "shift": 0.7, "parts": 0.1}
"""What can be looked at, in order, with about the time that each takes against the others."""

USUAL = ("bound", "ablation")
"""Looked at unless something else is asked for: about 10 s on two cores."""

KNEE_SEEDS = 12
"""Held-out seeds that the knees rest on."""

SHIFT_SEEDS = 8
"""Held-out seeds that other traffic is tried on."""

KNEES = {
    "controller": "the controller",
    "best_static": "the best static setting",
    "best_timeout": "the best static setting with a queue timeout",
    "any_static": "the static setting that is best at each load",
}
"""Whose knee is looked for, and what they are called."""

Progress = Callable[[str, float], None]


class Facts:
    """What looks have found, by name.

    Args:
        key: of the problem and the result: what was found of another one is of no use.
        store: where it is kept; None keeps nothing.
    """

    def __init__(self, key: str = "", store: Store | None = None) -> None:
        """Take over what is known."""
        self.key, self.store = key, store
        content = store.load() if store is not None else None
        content = content if isinstance(content, dict) else {}
        known = content.get("facts") if content.get("schema") == SCHEMA and content.get("problem") == key else None
        self.known: dict[str, Any] = dict(known) if isinstance(known, dict) else {}

    def fact(self, name: str, work: Callable[[], Any]) -> Any:
        """What is known under a name; worked out if nothing is.

        Args:
            name: of the fact.
            work: gives it, as plain JSON values.

        Returns:
            Plain JSON values, without NaN.
        """
        if name not in self.known:
            self.known[name] = without_nan(work())
            if self.store is not None:
                self.store.save({"schema": SCHEMA, "problem": self.key, "facts": self.known})
        return self.known[name]

    def close(self) -> None:
        """All is found: nothing is left to go on with."""
        if self.store is not None:
            self.store.clear()


class Beside(NamedTuple):
    """What is wanted beside a result.

    Args:
        looks: of LOOKS.
        full: the bound on longer and more windows, with the smallest change of a promise that nobody can keep.
        workers: processes; None for one per core.
    """

    looks: tuple[str, ...] = USUAL
    full: bool = False
    workers: int | None = None

    def check(self) -> None:
        """Refuse what cannot be looked at.

        Raises:
            ValueError: an unknown look.
        """
        for name in self.looks:
            if name not in LOOKS:
                raise ValueError(f"cannot look at {name!r}; this version knows {', '.join(LOOKS)}")


def facts_of(problem: Problem, effort: Effort, tuned: Tuned, wanted: Beside, free: tuple[str, ...] | None, store: Store | None) -> Facts:
    """What earlier looks at the same result have found, those of one that was killed.

    Args:
        problem: what was tuned for.
        effort: what was spent.
        tuned: the result.
        wanted: what is looked at.
        free: names of the numbers that were free.
        store: where it is kept; None keeps nothing.

    Returns:
        Facts.
    """
    if store is None:
        return Facts()
    sides = [
        repr((c.law.law, c.law.pack().tolist(), c.policy, c.gains)) for c in (s.candidate for s in (tuned.tuned, tuned.static, tuned.early))
    ]
    return Facts(digest(problem_key(problem, effort, free, wanted.full), *sides), store)


def beside(
    problem: Problem,
    effort: Effort,
    tuned: Tuned,
    wanted: Beside = Beside(),  # noqa: B008  # immutable
    *,
    free: tuple[str, ...] | None = None,
    facts: Facts | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Look at a result of tuning from the sides that are asked for.

    Args:
        problem: what was tuned for.
        effort: what was spent; the same held-out seeds are used.
        tuned: the result.
        wanted: what to look at.
        free: names of the numbers that were free, as `headway.experiments.tune.tune` takes them.
        facts: what is known already; None for nothing.
        progress: called with a label and a fraction.

    Returns:
        Plain JSON values by name: bound, ablation, knees, pareto, plant_error, shift, fired; None for what was not looked at.

    Raises:
        ValueError: an unknown look.
    """
    wanted.check()
    say, looker = progress or (lambda _label, _fraction: None), _Looker(problem, effort, tuned, wanted, free, facts or Facts())
    total, done = sum(LOOKS[name] for name in wanted.looks), 0.0
    found: dict[str, Any] = {}
    for name in [n for n in LOOKS if n in wanted.looks]:
        tell = lambda label, part, done=done, name=name: say(label, (done + LOOKS[name] * part) / total)  # noqa: E731
        tell(name, 0.0)
        found |= looker.look(name, tell)
        done += LOOKS[name]
    return {key: found.get(key) for key in ("bound", "ablation", "knees", "pareto", "plant_error", "shift", "fired")}


class _Looker(NamedTuple):
    """Who looks."""

    problem: Problem
    effort: Effort
    tuned: Tuned
    wanted: Beside
    free: tuple[str, ...] | None
    facts: Facts

    def look(self, name: str, tell: Progress) -> dict[str, Any]:
        """One look, by the key under which it is shown."""
        problem, effort, tuned, fact = self.problem, self.effort, self.tuned, self.facts.fact
        identified, world = problem.identified, (problem.targets, problem.limits)
        ours, static, untuned = (side.candidate for side in (tuned.tuned, tuned.static, tuned.default))
        if name == "bound":
            depth = FULL if self.wanted.full else SHORT
            spread: dict[str, Any] = {"workers": self.wanted.workers, "progress": tell}
            return {"bound": fact("bound", lambda: distance(problem, effort, ours, untuned, depth, **spread).to_json())}
        if name == "knee":
            return {"knees": self._knees(tell)}
        if name == "pareto":
            return {"pareto": fact("pareto", lambda: self._front(tell).to_json())}
        draws = problem.draws(effort, heldout=True)
        if name == "ablation":
            setting = Static(**tuned.static.settings)
            return {"ablation": fact("ablation", lambda: ablation(identified, ours, setting, draws, *world).to_json())}
        if name == "parts":
            return {"fired": fact("fired", lambda: fired(identified, ours, draws, *world).to_json())}
        if name == "shift":
            return {"shift": fact("shift", lambda: shift(identified, ours, static, draws[:SHIFT_SEEDS], *world, progress=tell).to_json())}
        options: dict[str, Any] = {"seed": effort.seed, "workers": self.wanted.workers, "progress": tell}
        work = lambda: plant_error(identified, ours, static, draws, *world, **options).to_json()  # noqa: E731
        return {"plant_error": fact("plant_error", work)}

    def _front(self, tell: Progress) -> Front:
        problem, mine = self.problem, self.tuned.tuned
        space = Space(self.tuned.default.candidate, problem.limits, self.free, problem.targets)
        known = [] if isinstance(mine.candidate.law, StaticLaw) else [(mine.candidate, mine.settings)]
        return weighted_front(problem, self.effort, space, known=known, workers=self.wanted.workers, progress=tell)

    def _knees(self, tell: Progress) -> dict[str, Any]:
        """The knee of each contender, each kept by itself."""
        problem, tuned = self.problem, self.tuned
        settings = {name: [side.candidate] for name, side in zip(KNEES, (tuned.tuned, tuned.static, tuned.early), strict=False)}
        settings["any_static"] = [s.candidate() for s in static_grid(problem.limits)]
        draws, found = problem.draws(self.effort, heldout=True)[:KNEE_SEEDS], {}
        for k, (name, said) in enumerate(KNEES.items()):
            tell("knees", k / len(KNEES))

            def work(name: str = name, said: str = said) -> dict[str, Any]:
                one = knee(problem.identified, settings[name], draws, problem.targets, problem.limits)
                return {**one.to_json(), "sentence": one.sentence(said)}

            found[name] = self.facts.fact(f"knee of {name}", work)
        return {"schema": "headway/knees/1", "seeds": len(draws), "of": found}
