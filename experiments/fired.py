"""What of a controller ever acted: every part counted where it acts, and switched off to see what that changes.

A part that never fired decided nothing, whatever its numbers: it was not tested, and what it is set to was not tuned.
`headway.experiments.sensitivity` asks the same of single numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.controllers.static import StaticLaw
from headway.experiments.outcomes import outcomes_of
from headway.experiments.statistics import Estimate, mean_interval
from headway.models.goodput import EXPIRED, REJECTED, Outcome
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ATTAINMENT, CLEAN
from headway.models.signals import Limits, Target

SCHEMA = "headway/fired/1"

WATCHDOG = "the watchdog and its fallback guard a live engine: simulated runs have no fault that calls them (headway.engines.storm does)"
"""What is not among the parts, and why."""


class Part(NamedTuple):
    """A part of the controller, or a mechanism of the engine that it works with.

    Args:
        name: of the part.
        on: whether it is switched on.
        times: it acted, all runs together; None where nothing counts them, and switching it off must tell.
        unit: what was counted.
        changed: share of the runs in which switching it off changes any figure; None where it cannot be switched off.
        brings: attainment that it brings, with less without, paired over the runs [1]; None where it cannot be switched off.
        brings_clean: likewise of the share of clean requests.
    """

    name: str
    on: bool
    times: int | None
    unit: str
    changed: float | None
    brings: Estimate | None
    brings_clean: Estimate | None

    @property
    def fired(self) -> bool:
        """Whether it ever acted."""
        return bool(self.times) or bool(self.changed)


class _Row(NamedTuple):
    """How a part is recognised, counted and switched off."""

    name: str
    on: Callable[[Candidate, Limits], bool]
    times: Callable[[list[Outcome]], int] | None
    unit: str
    off: dict[str, Any]


def _numbers(outcomes: list[Outcome], status: int) -> int:
    return sum(int((o.status == status).sum()) for o in outcomes)


def _bound(outcomes: list[Outcome], place: int) -> int:
    return sum(int(o.binding[place]) for o in outcomes)


def _shed(outcomes: list[Outcome]) -> int:
    return _numbers(outcomes, REJECTED) + _numbers(outcomes, EXPIRED)


def _degraded(outcomes: list[Outcome]) -> int:
    return sum(int(np.sum(o.degraded)) for o in outcomes if o.degraded is not None)


def _spared(outcomes: list[Outcome]) -> int:
    return sum(int(np.sum(o.spared)) for o in outcomes if o.spared is not None)


def _set(name: str) -> Callable[[Candidate, Limits], bool]:
    return lambda c, _: bool(np.any(np.asarray(getattr(c.policy, name)) != 0))


ROWS = (
    _Row("triage by timeout", lambda c, _: c.policy.triage == "timeout", _shed, "requests shed", {"triage": "none"}),
    _Row("triage by slack", lambda c, _: c.policy.triage == "reject", _shed, "requests shed", {"triage": "none"}),
    _Row("cap on shedding", lambda c, _: c.policy.shed_cap < 1, _spared, "requests spared", {"shed_cap": 1.0}),
    _Row("deferring", lambda c, _: c.policy.triage == "defer", None, "", {"triage": "none"}),
    _Row("degrading", lambda c, _: c.policy.triage == "degrade", _degraded, "requests degraded", {"triage": "none"}),
    _Row("admission", lambda c, _: c.policy.admission != "none", lambda o: _bound(o, 4), "steps held back", {"admission": "none"}),
    _Row("aging", lambda c, _: c.policy.order == "slack" and c.policy.aging_rate > 0, None, "", {"aging_rate": 0.0}),
    _Row("chunk cap", lambda c, limits: 0 < c.policy.chunk_tokens < limits.max_tokens, None, "", {"chunk_tokens": 0.0}),
    _Row(
        "running limit",
        lambda c, limits: c.policy.running_limit < limits.max_seqs,
        lambda o: _bound(o, 2),
        "steps bound",
        {"running_limit": 1e6},
    ),
    _Row("phases", lambda c, _: c.policy.phases != "mixed", None, "", {"phases": "mixed"}),
    _Row("prefill turn", _set("prefill_every"), None, "", {"prefill_every": 0.0}),
    _Row("decode turn", _set("decode_every"), None, "", {"decode_every": 0.0}),
    _Row("stride", _set("stride"), None, "", {"stride": 0.0}),
    _Row("class shares", _set("class_shares"), None, "", {"class_shares": ()}),
    _Row("priorities", _set("priority_s"), None, "", {"priority_s": ()}),
    _Row("memory price", _set("memory_price_s"), None, "", {"memory_price_s": 0.0}),
    _Row(
        "swapping",
        lambda c, _: c.policy.preemption == "swap",
        lambda o: int(sum(x.swapped_blocks for x in o)),
        "blocks moved",
        {"preemption": "recompute"},
    ),
)
"""Parts of a policy that can be switched off alone."""


FOLLOWED = {"class_shares": "share"}
"""Fields of the policy whose schedule has another name."""

ENGINE = ("preemption", "full cache", "prefix cache")
"""What the engine does beside them."""


@dataclasses.dataclass(frozen=True)
class Fired:
    """What acted and what did not.

    Args:
        parts: those of the policy and of the law, then what the engine did.
        runs: draws that were looked at.
    """

    parts: list[Part]
    runs: int

    def sentence(self) -> str:
        """What never fired, of what is switched on.

        Returns:
            One sentence.
        """
        idle = [p.name for p in self.parts if p.on and not p.fired]
        ours, engine = (", ".join(n for n in idle if (n in ENGINE) == of) for of in (False, True))
        runs = f"{self.runs} run{'s' * (self.runs != 1)}"
        said = f"never fired in {runs}, so untested there: {ours}" if ours else f"every part that is switched on acted in {runs}"
        return said + (f"; nor did the engine come to {engine}" if engine else "")

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            {"schema", "parts": [...], "runs", "sentence", "left_out"}.
        """
        pair = lambda e: None if e is None else {"value": e.value, "ci95": [e.low, e.high]}  # noqa: E731
        rows = [{**p._asdict(), "brings": pair(p.brings), "brings_clean": pair(p.brings_clean), "fired": p.fired} for p in self.parts]
        return {"schema": SCHEMA, "parts": rows, "runs": self.runs, "sentence": self.sentence(), "left_out": WATCHDOG}


def fired(identified: IdentifiedPlant, candidate: Candidate, draws: list[Draw], targets: tuple[Target, ...], limits: Limits) -> Fired:
    """Count what acted, and run the same draws with each part switched off.

    Arrivals and noise are the same with and without, so a part that did nothing changes no figure in any digit. What parts bring
    does not add up: without one the others do more.

    Args:
        identified: the plant.
        candidate: law and policy.
        draws: workloads with noise.
        targets: one per class.
        limits: of the engine.

    Returns:
        Fired.
    """
    outcomes = outcomes_of([(identified, candidate, d) for d in draws], targets, limits)
    rows = [row for row in ROWS if row.on(candidate, limits) or any(_scheduled(candidate, field) for field in row.off)]
    without = [_cleared(candidate, *row.off)._replace(policy=_without(candidate.policy, row.off)) for row in rows]
    # the engine as it starts up, with the rest of the controller on it
    without.append(_cleared(candidate, "margin")._replace(law=StaticLaw(float(limits.max_tokens))))
    ordered = candidate.policy.order != "fcfs"
    if ordered:
        without.append(_cleared(candidate, "aging_rate", "class_shares")._replace(policy=_stock_order(candidate.policy)))
    measures = evaluate(identified, [candidate, *without], draws, targets, limits)
    effect = lambda k: _effect(measures[0], measures[k])  # noqa: E731
    parts = [
        Part(row.name, True, None if row.times is None else row.times(outcomes), row.unit, *effect(1 + k)) for k, row in enumerate(rows)
    ]
    acts = not (isinstance(candidate.law, StaticLaw) and float(candidate.law.token_budget) >= limits.max_tokens)
    parts.append(Part("budget law", acts, _bound(outcomes, 3), "steps bound by the token budget", *effect(1 + len(rows))))
    if ordered:
        parts.append(Part(f"order {candidate.policy.order}", True, None, "", *effect(2 + len(rows))))
    parts += [Part(row.name, False, None, "", None, None, None) for row in ROWS if row not in rows]
    return Fired([*parts, *_of_engine(outcomes, draws, limits)], len(draws))


def _of_engine(outcomes: list[Outcome], draws: list[Draw], limits: Limits) -> list[Part]:
    cached = limits.prefix_cache == "on" and any(d.workload.prefix is not None for d in draws)
    spared = int(sum(np.sum(o.hit_tokens) for o in outcomes if o.hit_tokens is not None))
    counts = (
        (True, sum(o.preempted for o in outcomes), "preemptions"),
        (True, _bound(outcomes, 1), "steps bound by the KV cache"),
        (cached, spared, "prompt tokens spared"),
    )
    return [Part(name, on, int(times), unit, None, None, None) for name, (on, times, unit) in zip(ENGINE, counts, strict=True)]


def _scheduled(candidate: Candidate, field: str) -> bool:
    """Whether a number follows the load."""
    return candidate.gains is not None and any(name.partition(".")[0] == FOLLOWED.get(field, field) for name in candidate.gains.names)


def _cleared(candidate: Candidate, *fields: str) -> Candidate:
    """The candidate without the schedules of some numbers, which would go before what these are switched off to."""
    named = [FOLLOWED.get(field, field) for field in fields if _scheduled(candidate, field)]
    return candidate._replace(gains=candidate.gains.without(*named)) if candidate.gains is not None and named else candidate


def _without(policy: Policy, off: dict[str, Any]) -> Policy:
    return dataclasses.replace(policy, **off)  # pyright: ignore[reportArgumentType]  # a dataclass by @pytree


def _stock_order(policy: Policy) -> Policy:
    """First come first served: what needs a key goes with it."""
    keyed = {
        "phases": "mixed",
        "prefill_every": 0.0,
        "decode_every": 0.0,
        "stride": 0.0,
        "memory_price_s": 0.0,
        "class_shares": (),
        "priority_s": (),
    }
    triage = "none" if policy.triage in ("defer", "degrade") else policy.triage
    return _without(policy, {"order": "fcfs", "triage": triage, **keyed})


def _effect(whole: np.ndarray, without: np.ndarray) -> tuple[float, Estimate, Estimate]:
    same = [np.array_equal(a, b, equal_nan=True) for a, b in zip(whole, without, strict=True)]
    attainment, clean = (mean_interval(whole[:, k] - without[:, k]) for k in (ATTAINMENT, CLEAN))
    return 1 - float(np.mean(same)), attainment, clean
