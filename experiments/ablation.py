"""What each part of a controller brings: every part switched off by itself, on the same held-out workloads and the same noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from headway.controllers.scheduled import at_rest
from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.controllers.static import StaticLaw
from headway.experiments.baseline import Static
from headway.experiments.statistics import Estimate, mean_interval
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ATTAINMENT, CLEAN
from headway.models.signals import Limits, Target

SCHEMA = "headway/ablation/1"

LEARNING = ("kp", "ki", "kb", "eta", "gain")
"""Gains by which a law follows what it measures: with all of them 0 it stays where it starts."""

KEYED: dict[str, Any] = {
    "phases": "mixed",
    "aging_rate": 0.0,
    "prefill_every": 0.0,
    "decode_every": 0.0,
    "stride": 0.0,
    "memory_price_s": 0.0,
    "class_shares": (),
    "priority_s": (),
}
"""Fields of the policy that are part of the order, and their values in stock order."""

Retune = Callable[[str, Candidate], Candidate]


class Variant(NamedTuple):
    """The controller without one part.

    Args:
        part: that is switched off.
        instead: what does its work then.
        candidate: the rest.
    """

    part: str
    instead: str
    candidate: Candidate


class Worth(NamedTuple):
    """What a part brings.

    Args:
        part: its name.
        instead: what did its work in the comparison.
        without: attainment without it, mean over the draws, in [0, 1].
        attainment: attainment with it less that without, paired.
        clean: the same of the share of clean requests.
    """

    part: str
    instead: str
    without: float
    attainment: Estimate
    clean: Estimate

    def sentence(self) -> str:
        """What it brings, for people.

        Returns:
            One line.
        """
        doubt = "" if self.attainment.low > 0 or self.attainment.high < 0 else ": no difference that these workloads show"
        clean = 100 * self.clean.value
        return (
            f"{self.part}: {self.attainment.in_percent('points of attainment', 2)}, {clean:+.1f} points of clean requests, "
            f"against {self.instead} ({100 * self.without:.1f} %){doubt}"
        )


class Ablation(NamedTuple):
    """What the parts of a controller bring, one at a time.

    Args:
        attainment: of the whole controller, mean over the draws, in [0, 1].
        parts: those that are on, in a fixed order.
        off: names of those that the controller does not use.
        retuned: whether the rest was tuned anew without each part.
        draws: workloads compared on.
    """

    attainment: float
    parts: tuple[Worth, ...]
    off: tuple[str, ...]
    retuned: bool
    draws: int

    def sentences(self) -> list[str]:
        """What a report carries.

        Returns:
            One line for each part, then what to know of them.
        """
        tuned = "tuned anew without it" if self.retuned else "the rest left as it is: another part, tuned anew, could take over some of it"
        said = [worth.sentence() for worth in self.parts]
        said.append(f"each part by itself, on {self.draws} workloads that tuning did not see, {tuned}; the figures do not add up")
        if self.off:
            said.append(f"not in use: {', '.join(self.off)}")
        return said

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            Mapping by field name, estimates as {"value", "ci95"}, and the sentences.
        """
        pair = lambda e: {"value": e.value, "ci95": [e.low, e.high]}  # noqa: E731
        parts = [{**w._asdict(), "attainment": pair(w.attainment), "clean": pair(w.clean)} for w in self.parts]
        plain = {"attainment": self.attainment, "off": list(self.off), "retuned": self.retuned, "draws": self.draws}
        return {"schema": SCHEMA, **plain, "parts": parts, "sentences": self.sentences()}


def ablation(
    identified: IdentifiedPlant,
    candidate: Candidate,
    static: Static,
    draws: list[Draw],
    targets: tuple[Target, ...],
    limits: Limits,
    *,
    retune: Retune | None = None,
) -> Ablation:
    """Switch off triage, order, budget law, admission and load dependence in turn.

    worth = mean over draws of (attainment of all - attainment without the part)

    Args:
        identified: the plant.
        candidate: the controller.
        static: the best static setting: its token budget stands in for the law.
        draws: held-out workloads with noise; at least two for an interval.
        targets: one per class.
        limits: of the engine.
        retune: from a part's name and the rest to the rest tuned anew; None leaves the rest as it is.

    Returns:
        Ablation.

    Not a decomposition: parts stand in for each other, so that their worths add up to less than the gain, or to more.
    """
    variants, off = variants_of(candidate, static, limits)
    if retune is not None:
        variants = [v._replace(candidate=retune(v.part, v.candidate)) for v in variants]
    measures = evaluate(identified, [candidate, *(v.candidate for v in variants)], draws, targets, limits)
    whole = measures[0]
    parts = tuple(
        Worth(
            v.part,
            v.instead,
            float(rows[:, ATTAINMENT].mean()),
            mean_interval(whole[:, ATTAINMENT] - rows[:, ATTAINMENT]),
            mean_interval(whole[:, CLEAN] - rows[:, CLEAN]),
        )
        for v, rows in zip(variants, measures[1:], strict=True)
    )
    return Ablation(float(whole[:, ATTAINMENT].mean()), parts, tuple(off), retune is not None, len(draws))


def variants_of(candidate: Candidate, static: Static, limits: Limits) -> tuple[list[Variant], list[str]]:
    """The controller without each part that it uses.

    Args:
        candidate: the controller.
        static: what a stock engine would be started with.
        limits: of the engine.

    Returns:
        (variants, names of parts that are off already).
    """
    found: dict[str, Variant | None] = {
        "triage": _without_triage(candidate),
        "order": _without_order(candidate),
        "budget law": _without_law(candidate, static),
        "admission": _without_admission(candidate, limits),
        "load dependence": _without_learning(candidate),
    }
    return [v for v in found.values() if v is not None], [part for part, v in found.items() if v is None]


def _without_triage(candidate: Candidate) -> Variant | None:
    if candidate.policy.triage == "none":
        return None
    return Variant("triage", "serving all in their turn", candidate._replace(policy=dataclasses.replace(candidate.policy, triage="none")))


def _without_order(candidate: Candidate) -> Variant | None:
    law, policy, gains = candidate
    if policy.order == "fcfs":
        return None
    triage, instead = policy.triage, "first come, first served"
    if triage in ("defer", "degrade"):  # these rank behind others, which stock order cannot
        triage, instead = "none", f"first come, first served, which cannot {policy.triage}"
    unkeyed = gains.without("aging_rate", "share") if gains else None
    return Variant("order", instead, Candidate(law, dataclasses.replace(policy, order="fcfs", triage=triage, **KEYED), unkeyed))


def _without_law(candidate: Candidate, static: Static) -> Variant | None:
    law, policy, gains = candidate
    if isinstance(law, StaticLaw):
        return None
    stock = Candidate(StaticLaw(float(static.token_budget)), policy, gains.without("margin") if gains else None)
    return Variant("budget law", f"a budget of {static.token_budget:,} tokens", stock)


def _without_admission(candidate: Candidate, limits: Limits) -> Variant | None:
    policy = candidate.policy
    if policy.admission == "none" and float(policy.running_limit) >= limits.max_seqs:
        return None
    free = dataclasses.replace(policy, admission="none", running_limit=float(limits.max_seqs))
    return Variant("admission", f"the engine's own limit of {limits.max_seqs} requests", candidate._replace(policy=free))


def _without_learning(candidate: Candidate) -> Variant | None:
    law, policy = at_rest(*candidate)
    moving = {name: 0.0 for name, gain in law.gains().items() if name in LEARNING and float(gain.value) != 0}
    if not moving and candidate.gains is None:
        return None
    instead = [f"a law that stays where it starts ({', '.join(moving)} 0)"] if moving else []
    instead += ["the gains of an idle engine under every load"] if candidate.gains else []
    still = dataclasses.replace(law, **moving)  # pyright: ignore[reportArgumentType]  # every law is a dataclass
    return Variant("load dependence", " and ".join(instead), Candidate(still, policy))
