"""The plan of a recording: which settings to hold, for how many steps, and what they will tell. What plan.json holds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from headway.identification.design.sample_size import Need, width_of
from headway.identification.design.settings import Setting
from headway.models.signals import Limits

SCHEMA = "headway/plan/1"


class PlannedSetting(NamedTuple):
    """A setting of the plan.

    Args:
        setting: held.
        steps: of the plan [steps].
        purpose: "tell" the numbers apart, or "check" the law between the corners.
        mixed: share of its steps that have prefill.
    """

    setting: Setting
    steps: int
    purpose: str
    mixed: float


class Told(NamedTuple):
    """One number of the plant, and how well it is known.

    Args:
        name: as in plant.json.
        unit: of all that follows.
        value: known so far, or assumed.
        now: its standard error; None where it cannot be told.
        after: the same once the plan was recorded.
        staircase: the same after as many steps of the plain staircase.
    """

    name: str
    unit: str
    value: float
    now: float | None
    after: float | None
    staircase: float | None


@dataclasses.dataclass(frozen=True)
class RecordingPlan:
    """What `headway record --plan` proposes, and what plan.json holds.

    Args:
        settings: to hold, with their steps.
        numbers: of the plant, before and after.
        need: steps that each regime's margin asks for, by regime.
        epsilon: of the margin, in (0, 1).
        width: of its interval that was asked for.
        efficiency: share of the plan's steps that "staircase" and "grid" are worth: (det / det)^(1 / numbers).
        mixed: share of steps with prefill, simulated.
        step_time_s: mean, simulated; None where no plant was given [s].
        limits: of the engine.
        seed: of the draws.
        said: what was assumed, and what there is to say.
    """

    settings: tuple[PlannedSetting, ...]
    numbers: tuple[Told, ...]
    need: dict[str, Need]
    epsilon: float
    width: float
    efficiency: dict[str, float]
    mixed: float
    step_time_s: float | None
    limits: Limits
    seed: int
    said: tuple[str, ...]

    @property
    def steps(self) -> int:
        """Steps of the whole plan."""
        return sum(row.steps for row in self.settings)

    @property
    def steps_needed(self) -> int:
        """Steps until both margins are as narrow as asked, at the plan's share of steps with prefill."""
        return total_steps(self.need, self.mixed)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            The content of plan.json.
        """
        return {
            "schema": SCHEMA,
            "steps": self.steps,
            "steps_mixed": round(self.steps * self.mixed),
            "time_s": None if self.step_time_s is None else self.steps * self.step_time_s,
            "settings": [
                {**row.setting._asdict(), "steps": row.steps, "purpose": row.purpose, "mixed": row.mixed} for row in self.settings
            ],
            "numbers": {t.name: {k: v for k, v in t._asdict().items() if k != "name"} for t in self.numbers},
            "margin": {
                "epsilon": self.epsilon,
                "asked_width": self.width,
                "steps_needed": self.steps_needed,
                **{
                    regime: {
                        "steps": n.steps,
                        "margin": n.margin,
                        "residuals": n.tail.measured,
                        "width": width_of(n.tail, self.steps * share, self.epsilon, 0.5),
                    }
                    for (regime, n), share in zip(self.need.items(), (1 - self.mixed, self.mixed), strict=True)
                },
            },
            "efficiency": self.efficiency,
            "engine": dataclasses.asdict(self.limits),
            "seed": self.seed,
            "warnings": list(self.said),
        }


def settings_of(data: Any) -> tuple[list[tuple[Setting, int]], Limits, int]:
    """What a recording needs of a plan.json.

    Args:
        data: its content.

    Returns:
        (settings with their steps [steps], limits of the engine it was planned for, seed).

    Raises:
        ValueError: another schema, or a missing or wrong value; the message names it.
    """
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise ValueError(f"expected schema {SCHEMA!r}, found {found!r}; is this the plan.json of `headway record --plan`?")
    try:
        rows = [(Setting(*(_whole(row[name]) for name in Setting._fields)), _whole(row["steps"])) for row in data["settings"]]
        limits, seed = Limits(**data["engine"]), _whole(data["seed"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"plan.json lacks or misstates {error}; write it anew with `headway record --plan`") from None
    if not rows or min(steps for _, steps in rows) < 1:
        raise ValueError("plan.json holds no setting, or one without steps; write it anew with `headway record --plan`")
    limits.check()
    for setting, _ in rows:
        setting.check()
    return rows, limits, seed


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        raise ValueError(f"a whole number, got {value!r}")
    return int(value)


def total_steps(need: Mapping[str, Need], mixed: float) -> int:
    """Steps in all, so that each regime gets those it needs.

    Args:
        need: of each regime, "decode" and "mixed".
        mixed: share of steps with prefill, in [0, 1].

    Returns:
        Steps [steps].
    """
    share = {"decode": max(1 - mixed, 1e-3), "mixed": max(mixed, 1e-3)}
    return max(math.ceil(need[regime].steps / share[regime]) for regime in share)
