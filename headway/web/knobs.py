"""The sliders of a law and its policy: where they stand for a controller, and the controller for where they stand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from headway.controllers.feedforward import FeedforwardLaw
from headway.controllers.pi import PILaw
from headway.controllers.simulator import Candidate
from headway.controllers.tracker import TrackerLaw
from headway.experiments.sliders import pi_gains, trim_gain, tuning_of_pi
from headway.gains import following, gains_text, rounded, with_gains
from headway.models.signals import Limits

QUICKEST, SLOWEST = 0.6, 2.4
"""Decimal logarithm of the response, in steps, at the ends of its slider."""

NEAR = 6e-5
"""How far a slider may stand from where its controller put it and count as not moved: an address rounds to four places."""


class Knob(NamedTuple):
    """One slider.

    Args:
        name: in the URL and in the controller.
        label: for people.
        low: least place of the slider.
        high: greatest.
        place: where it stands for the controller.
        says: what moving it does.
        log: base of the logarithm that the slider runs on; 0 for none.
        unit: of the value.
    """

    name: str
    label: str
    low: float
    high: float
    place: float
    says: str
    log: int = 0
    unit: str = ""

    def value(self, place: float) -> float:
        """The number behind a place.

        Args:
            place: of the slider.

        Returns:
            In `unit`.
        """
        return float(self.log**place) if self.log else place

    def shown(self, place: float) -> str:
        """The number behind a place, for people.

        Args:
            place: of the slider.

        Returns:
            With its unit.
        """
        value = self.value(place)
        if self.name == "chunk_tokens" and place >= self.high:
            return "no cap"
        if value == 1 and self.unit == "steps":
            return "1 step"
        if self.unit == "%":
            return f"{100 * value:.3g} %"
        return f"{value:,.0f} {self.unit}".strip() if value >= 100 else f"{value:.3g} {self.unit}".strip()


def knobs_of(candidate: Candidate, limits: Limits) -> list[Knob]:
    """The sliders of a controller.

    Args:
        candidate: law and policy.
        limits: of the engine.

    Returns:
        Those that its law and policy have, but for the numbers that follow the load.
    """
    law, policy = candidate.law, candidate.policy
    rows: list[Knob] = []
    if isinstance(law, TrackerLaw):
        rate = math.log10(max(float(law.late_rate), 1e-4))
        rows.append(Knob("late_rate", "late rate", -3.0, -0.7, rate, "share of steps over the budget that it steers to", 10, "%"))
    if hasattr(law, "margin"):
        margin = float(law.margin)  # pyright: ignore[reportAttributeAccessIssue]
        rows.append(Knob("margin", "margin", 0.0, 0.6, margin, "share of the step budget kept free", unit="%"))
    answer = _response(law)
    if answer is not None:
        place = min(max(math.log10(answer), QUICKEST), SLOWEST)
        rows.append(Knob("response", "response", QUICKEST, SLOWEST, place, "steps in which a change is answered", 10, "steps"))
    if isinstance(law, PILaw):
        phase = min(max(tuning_of_pi(float(law.kp), float(law.ki)).phase_margin_deg, 20.0), 85.0)
        rows.append(Knob("robustness", "robustness", 20.0, 85.0, phase, "phase margin: what it bears before it swings", unit="deg"))
    elif isinstance(law, TrackerLaw):
        place = -math.log10(max(float(law.eta), 1e-4))
        rows.append(Knob("robustness", "robustness", 1.0, 4.0, place, "how calmly the margin is learned: one over eta", 10, ""))
    if policy.order == "slack":
        rows.append(
            Knob("aging_rate", "aging rate", 0.0, 3.0, float(policy.aging_rate), "slack that a second of waiting is worth", unit="s/s")
        )
    most = math.log2(limits.max_tokens)
    chunk = math.log2(policy.chunk_tokens) if float(policy.chunk_tokens) > 0 else most
    rows.append(Knob("chunk_tokens", "chunk", 4.0, most, min(chunk, most), "most prompt tokens of one request in a step", 2, "tokens"))
    return [row for row in rows if row.name not in following(candidate)]


def _response(law: Any) -> float | None:
    if isinstance(law, PILaw):
        found = tuning_of_pi(float(law.kp), float(law.ki)).response_steps
        return found if math.isfinite(found) and found > 0 else None
    gain = law.kb if isinstance(law, TrackerLaw) else law.ki if isinstance(law, FeedforwardLaw) else 0.0
    return -1 / math.log1p(-float(gain)) if 0 < float(gain) < 1 else None


class Moved(NamedTuple):
    """A controller whose sliders were moved.

    Args:
        candidate: law and policy.
        gains: of the law that differ from the tuned ones, by name.
        policy: of the policy that differ, by field.
        said: what could not be done; empty if all could.
    """

    candidate: Candidate
    gains: dict[str, float]
    policy: dict[str, float]
    said: str

    def options(self) -> str:
        """What moved, as options of `headway analyse`.

        Returns:
            Such as " --gains margin=0.2 --policy chunk_tokens=512"; empty if nothing did.
        """
        told = {"--gains": gains_text(self.gains), "--policy": gains_text(self.policy)}
        return "".join(f" {option} {text}" for option, text in told.items() if text)


def moved(candidate: Candidate, knobs: list[Knob], places: Mapping[str, float]) -> Moved:
    """The controller with its sliders where the reader has put them, its numbers as a command would write them.

    Args:
        candidate: law and policy as tuned.
        knobs: its sliders.
        places: of the sliders, by name; one that did not move keeps the number it stands for.

    Returns:
        Moved.
    """
    values = {k.name: k.value(places[k.name]) for k in knobs if k.name in places and abs(places[k.name] - k.place) > NEAR}
    law = candidate.law
    said, gains = "", {name: values[name] for name in ("late_rate", "margin") if name in values}
    if isinstance(law, PILaw) and values.keys() & {"response", "robustness"}:
        at = {k.name: k.value(places.get(k.name, k.place)) for k in knobs}
        try:
            found = pi_gains(at.get("response", 10.0), at["robustness"])
            gains |= {"kp": found.kp, "ki": found.ki}
        except ValueError as refused:
            said = str(refused)
    elif "response" in values:
        gains["kb" if isinstance(law, TrackerLaw) else "ki"] = trim_gain(values["response"])
    if isinstance(law, TrackerLaw) and "robustness" in values:
        gains["eta"] = 1 / values["robustness"]
    served = {"aging_rate": values["aging_rate"]} if "aging_rate" in values else {}
    if "chunk_tokens" in values:
        top = next(k.high for k in knobs if k.name == "chunk_tokens")
        served["chunk_tokens"] = 0.0 if places["chunk_tokens"] >= top - NEAR else float(round(values["chunk_tokens"]))
    gains, served = ({name: rounded(value) for name, value in part.items()} for part in (gains, served))
    return Moved(with_gains(candidate, gains, served), gains, served, said)
