"""What tuning may move: the box of the free numbers, and the way from a point in it to a candidate."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from headway.controllers.policy import BY_CLASS, EITHER, Policy
from headway.controllers.simulator import Candidate
from headway.experiments.free import PER_CLASS, Free, free_parameters, is_off, needs
from headway.models.signals import Limits, Target

ALWAYS = ("margin", "aging_rate")
"""Always among the free numbers."""

CHOICES = ("order", "triage", "admission", "phases", "preemption")
"""Fields of a policy that are no numbers."""

EVERY = "all"
"""Stands for every number that can act, those of parts that are off included."""


def followed(candidate: Candidate, targets: tuple[Target, ...] = ()) -> tuple[str, ...]:
    """Free numbers that a gain schedule stands in the place of: whatever they are set to, no value of them acts.

    Args:
        candidate: law, policy and gains.
        targets: one per class, for the shares.

    Returns:
        Names, as those of the free numbers; empty without a schedule.
    """
    names = candidate.gains.names if candidate.gains is not None else ()
    shares = {f"share.{k}": f"share.{t.name}" for k, t in enumerate(targets)}
    return tuple(shares.get(name, name) for name in names)


class Space:
    """The box that is searched. Points are arrays in units, so that a step of one means the same along every axis.

    Without names, every number is free that can act and whose part is on. A part that is off is switched on by naming its
    number; the shares of the classes start equal then, all other parts start as they are. What follows the load in the base is
    not free.

    Args:
        base: values of everything that is not free.
        limits: of the engine.
        names: of the free numbers; None for all that are on, "all" among them for all that can act.
        targets: one per class, for the numbers that each class has of its own.

    Raises:
        ValueError: an unknown name, or one that cannot act: what it needs.
    """

    def __init__(self, base: Candidate, limits: Limits, names: tuple[str, ...] | None = None, targets: tuple[Target, ...] = ()) -> None:
        """Choose what is free."""
        known = free_parameters(limits, targets, float(base.policy.memory_price_s))
        self.law_fields = frozenset(base.law.gains())
        tables = followed(base, targets)
        lacking = {n: needs(n, base) for n in known}
        named = [n for n in names or () if n != EVERY]
        _check(named, known, lacking, targets, tables)
        if names is None:
            named = [n for n in known if not lacking[n] and not is_off(n, base)]
        elif EVERY in names:
            named = [n for n in known if not lacking[n] and (n not in EITHER or len(targets) < 2)]
        always = [n for n in ALWAYS if n in self.law_fields or hasattr(base.policy, n)]
        chosen = [n for n in known if n in (*named, *always) and n not in tables]
        self.base, self.limits, self.targets, self.free = base, limits, targets, [known[n] for n in chosen]
        self.notes = [f"{n} is searched, but cannot act without {lacking[n]}" for n in chosen if lacking[n]]
        self.low = np.array([f.low / f.unit for f in self.free])
        self.high = np.array([f.high / f.unit for f in self.free])

    def values(self, point: np.ndarray) -> dict[str, float]:
        """The free numbers at a point.

        Args:
            point: in units, shape (d,).

        Returns:
            Mapping from name to value in its own unit.
        """
        point = np.clip(point, self.low, self.high)
        # the last digit of high / unit * unit may be below high, where an axis ends in "off"
        return {f.name: f.value(f.high if x == high else float(x * f.unit)) for f, x, high in zip(self.free, point, self.high, strict=True)}

    def candidate(self, point: np.ndarray) -> Candidate:
        """The candidate at a point.

        Args:
            point: in units, shape (d,).

        Returns:
            Candidate: the base with the free numbers put in.
        """
        values = self.values(point)
        law = dataclasses.replace(self.base.law, **{k: v for k, v in values.items() if k in self.law_fields})  # pyright: ignore[reportArgumentType]
        fields: dict[str, Any] = {k: v for k, v in values.items() if k not in self.law_fields and "." not in k}
        for part, (field, start) in PER_CLASS.items():
            if any(k.startswith(f"{part}.") for k in values):
                old = self._each(fields.get(field, getattr(self.base.policy, field)), start)
                found = tuple(values.get(f"{part}.{t.name}", x) for t, x in zip(self.targets, old, strict=True))
                # one number where it is the same for all: what was not split reads as it did
                fields[field] = found[0] if field in EITHER and len({*found}) == 1 else found
        policy: Policy = dataclasses.replace(self.base.policy, **fields)  # pyright: ignore[reportArgumentType]
        return self.base._replace(law=law, policy=policy)

    def point(self, candidate: Candidate) -> np.ndarray:
        """The point of a candidate, cut to the box.

        Args:
            candidate: law and policy.

        Returns:
            In units, shape (d,).
        """
        return np.clip([f.place(self._value(f, candidate)) / f.unit for f in self.free], self.low, self.high)

    def holds(self, candidate: Candidate) -> bool:
        """Whether a candidate differs from the base in numbers alone: no choice is another, nothing is split by class that is not here.

        Args:
            candidate: law and policy.

        Returns:
            True if so; its numbers may lie outside of the box.
        """
        same = lambda name: getattr(candidate.policy, name) == getattr(self.base.policy, name)  # noqa: E731
        split = lambda name: np.shape(getattr(candidate.policy, name)) == np.shape(getattr(self.base.policy, name))  # noqa: E731
        return candidate.law.law == self.base.law.law and all(map(same, CHOICES)) and all(map(split, (*BY_CLASS, *EITHER)))

    def _value(self, free: Free, candidate: Candidate) -> float:
        part, _, name = free.name.partition(".")
        if not name:
            value = getattr(candidate.law if part in self.law_fields else candidate.policy, part)
            named = {f.name for f in self.free}
            own = [f"{part}.{t.name}" in named for t in self.targets]
            return float(value[own.index(False)]) if np.ndim(value) else float(value)
        field, start = PER_CLASS[part]
        return self._each(getattr(candidate.policy, field), start)[[t.name for t in self.targets].index(name)]

    def _each(self, value: Any, start: float) -> tuple[float, ...]:
        """The number of each class: its own, or one for all; `start` where there is none."""
        return tuple(map(float, value if np.ndim(value) and len(value) else [start if np.ndim(value) else value] * len(self.targets)))


class Place(NamedTuple):
    """A point with the space that it lies in.

    Args:
        space: the space.
        point: in its units, shape (d,).
    """

    space: Space
    point: np.ndarray

    def candidate(self) -> Candidate:
        """Law and policy there.

        Returns:
            Candidate.
        """
        return self.space.candidate(self.point)


def places(space: Space, names: tuple[str, ...] | None, candidates: Sequence[Candidate]) -> list[Place]:
    """Where candidates lie, each place once, without that of the space's base.

    One whose choices are not those of the base, such as another triage, lies in a space of its own, which it shares with those like
    it. Where the free numbers were named everything else is to stay: such a one is left out then, and of the others what is not
    free is cut off.

    Args:
        space: that is searched.
        names: of the free numbers, as it was made with.
        candidates: law and policy each.

    Returns:
        Places.
    """
    spaces, found = [space], []
    seen = {(0, space.point(space.base).tobytes())}
    for candidate in candidates:
        own = next((k for k, s in enumerate(spaces) if s.holds(candidate)), None)
        if own is None:
            if names is not None and EVERY not in names:
                continue
            own = len(spaces)
            spaces.append(Space(candidate, space.limits, names, space.targets))
        point = spaces[own].point(candidate)
        if (own, point.tobytes()) not in seen:
            seen.add((own, point.tobytes()))
            found.append(Place(spaces[own], point))
    return found


def _check(named: list[str], known: dict[str, Free], lacking: dict[str, str], targets: tuple[Target, ...], tables: tuple[str, ...]) -> None:
    """Refuse names that are unknown, and numbers that no value of would change anything."""
    unknown = [n for n in named if n not in known]
    alone = [n for n in unknown if n.partition(".")[0] in PER_CLASS] if len(targets) < 2 else []
    if alone:
        raise ValueError(f"cannot tune {alone[0]}: numbers per class act between classes; give --target a file with two or more")
    if unknown:
        raise ValueError(f"cannot tune {unknown}; known: {', '.join(known)}")
    for n in named:
        if n in tables:
            raise ValueError(f"cannot tune {n}: it follows the load in this controller, as a table of numbers; leave it out")
        if lacking[n] == "another law":
            raise ValueError(f"cannot tune {n}: the law that is tuned has no {n}; leave it out")
        if lacking[n] and n not in ALWAYS:
            raise ValueError(f"cannot tune {n}: it acts only with {lacking[n]}; switch that on with --policy, or leave {n} out")
        if n in EITHER and targets and all(f"{n}.{t.name}" in named for t in targets):
            raise ValueError(f"cannot tune {n}: every class's own is tuned already; leave {n} out")
