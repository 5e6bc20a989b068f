"""Gains that follow the load, as controller.json holds them: what is shown of each, in its unit, beside the constant that it replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headway.controllers.gain_schedule import QUEUED_TOKENS, WHOLE, GainSchedule, knots_of
from headway.report.data import dig
from headway.report.text import count, digits, number, percent

LABELS = {"margin": "margin", "aging_rate": "aging rate", "chunk_tokens": "chunk", "share": "share"}
"""What people call each kind of gain."""

UNITS = {"margin": "%", "aging_rate": "s/s", "chunk_tokens": "tokens", "share": "%"}
"""Unit in which each kind is shown: a chunk in tokens, not in their logarithm; of shares what they come to beside each other."""

ROWS = {"margin": "law.margin", "aging_rate": "policy.aging_rate", "chunk_tokens": "policy.chunk_tokens", "share": "policy.class_shares"}
"""Row of the table of gains that each kind stands in."""


class Following(NamedTuple):
    """One gain that follows the load.

    Args:
        name: in the schedule.
        label: for people.
        unit: as it is shown.
        constant: that the table replaced, as it is shown; None where there was none: no cap, no shares.
    """

    name: str
    label: str
    unit: str
    constant: float | None

    @property
    def kind(self) -> str:
        """Which of LABELS it is."""
        return self.name.partition(".")[0]

    def worded(self, value: float | None) -> str:
        """A value for people.

        Args:
            value: as it is shown; None for none.

        Returns:
            With its unit.
        """
        if value is None:
            return "no cap" if self.kind == "chunk_tokens" else "none"
        if self.unit == "%":
            return percent(value / 100)
        return f"{count(value)} tokens" if self.unit == "tokens" else f"{digits(value, 3)} {self.unit}"


def schedule_of(controller: Any) -> GainSchedule | None:
    """The schedule in force.

    Args:
        controller: content of controller.json; None before tuning.

    Returns:
        The schedule; None where all gains are constants, or where it cannot be read.
    """
    data = dig(controller, "schedule")
    try:
        return None if data is None else GainSchedule.from_json(data)
    except (ValueError, TypeError):
        return None


def following(controller: Any) -> list[Following]:
    """The gains that follow the load.

    Args:
        controller: content of controller.json; None before tuning.

    Returns:
        One each, in the order of the schedule.
    """
    schedule = schedule_of(controller)
    names = [str(dig(t, "name")) for t in dig(controller, "targets") or []]
    found = []
    for name in schedule.names if schedule else ():
        kind, _, place = name.partition(".")
        of_class = f" of {names[int(place)] if int(place) < len(names) else place}" if place else ""
        found.append(Following(name, LABELS[kind] + of_class, UNITS[kind], _constant(controller, kind, int(place or 0))))
    return found


def _constant(controller: Any, kind: str, place: int) -> float | None:
    if kind == "margin":
        value = number(dig(controller, "law", "gains", "margin", "value"))
        return None if value is None else 100 * value
    if kind == "share":
        weights = _weights(controller)
        return 100 * weights[place] / sum(weights) if place < len(weights) and sum(weights) > 0 else None
    value = number(dig(controller, "policy", kind, "value"))
    return None if kind == "chunk_tokens" and value == 0 else value


def _weights(controller: Any) -> list[float]:
    given = dig(controller, "policy", "class_shares", "value")
    return [number(w) or 0.0 for w in given] if isinstance(given, list) else []


def shown_at(controller: Any, schedule: GainSchedule, queued_tokens: Any, running_share: Any, kv_share: Any) -> np.ndarray:
    """Every gain under a load, as it is shown.

    Args:
        controller: content of controller.json, for the weights of classes whose share stays.
        schedule: in force.
        queued_tokens: any shape S [tokens].
        running_share: a shape that broadcasts with S.
        kv_share: a shape that broadcasts with S.

    Returns:
        In UNITS, shape (names, *S).
    """
    found = np.array(schedule.at(queued_tokens, running_share, kv_share), float)
    weights: dict[int, Any] = dict(enumerate(_weights(controller)))
    weights |= {int(name.partition(".")[2]): found[k].copy() for k, name in enumerate(schedule.names) if name.startswith("share.")}
    for k, name in enumerate(schedule.names):
        kind = name.partition(".")[0]
        if kind == "margin":
            found[k] *= 100
        elif kind == "chunk_tokens":
            found[k] = np.floor(2.0 ** found[k] * WHOLE)
        elif kind == "share":
            found[k] *= 100 / np.maximum(sum(weights.values()), 1e-12)
    return found


def ranges(controller: Any, schedule: GainSchedule) -> list[tuple[float, float]]:
    """Least and greatest of each gain over its table, as they are shown.

    Args:
        controller: content of controller.json.
        schedule: in force.

    Returns:
        (least, greatest) by gain.
    """
    values = shown_at(controller, schedule, *np.meshgrid(*knots_of(schedule.shape), indexing="ij"))
    return [(float(v.min()), float(v.max())) for v in values]


def rows_of(controller: Mapping[str, Any]) -> dict[str, str]:
    """What the table of gains says of those that follow the load.

    Args:
        controller: content of controller.json.

    Returns:
        Cell by row, in the row's own unit; empty where all are constants.
    """
    schedule, cells = schedule_of(controller), {}
    if schedule is None:
        return {}
    gains, shares = following(controller), []
    for gain, table in zip(gains, np.asarray(schedule.table, float), strict=True):
        if gain.kind == "chunk_tokens":
            table = np.floor(2.0**table * WHOLE)
        ends = " to ".join(dict.fromkeys(digits(float(x)) for x in (table.min(), table.max())))
        if gain.kind == "share":
            shares.append(f"{gain.label.partition(' of ')[2]} {ends}")
        else:
            cells[ROWS[gain.kind]] = f"{ends}, follows the load"
    return cells | ({ROWS["share"]: f"{', '.join(shares)}, follow the load"} if shares else {})


def names_of(controller: Any) -> str:
    """The gains that follow the load, in words.

    Args:
        controller: content of controller.json; None before tuning.

    Returns:
        Such as "margin, aging rate and chunk"; empty where all are constants.
    """
    return listed([gain.label for gain in following(controller)])


def listed(words: Sequence[str]) -> str:
    """Words in a row.

    Args:
        words: any number.

    Returns:
        With commas, and "and" before the last.

    Example:
        >>> listed(["margin", "chunk"]), listed(["margin"]), listed([])
        ('margin and chunk', 'margin', '')
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def short(tokens: float) -> str:
    """A number of tokens that fits under an axis.

    Args:
        tokens: [tokens].

    Returns:
        In thousands or millions from there on.

    Example:
        >>> short(500), short(1500), short(63500), short(2047500)
        ('500', '1.5k', '63.5k', '2.05M')
    """
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if tokens >= size:
            return f"{tokens / size:.3g}{unit}"
    return f"{tokens:g}"


def queued_at(places: np.ndarray) -> np.ndarray:
    """Queued tokens at places of the first axis: the inverse of log2(1 + queued / 500).

    Args:
        places: any shape.

    Returns:
        Same shape [tokens].
    """
    return QUEUED_TOKENS * (2.0**places - 1.0)


def setpoint_of(controller: Any) -> float | None:
    """The one setpoint of a controller.

    Args:
        controller: content of controller.json; None before tuning.

    Returns:
        [s]; None where it follows the load, or is not known.
    """
    schedule = schedule_of(controller)
    return None if schedule is not None and "margin" in schedule.names else number(dig(controller, "setpoint_s"))


SETPOINT = " The setpoint follows the load, so there is no one line for it."
"""What is said of a closed loop whose margin follows the load."""
