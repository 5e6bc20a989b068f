"""The tables of an identified plant: the ladder to its structure, its coefficients, where a step's time goes, and the diagnostics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headway.notes import gravity
from headway.prefixes import acts, scaled
from headway.report.data import dig
from headway.report.tables import folded, table
from headway.report.text import MINUS, NONE, digits, escape, number, percent, time
from headway.rungs import rung_name, tells

SHOWN = 10
"""Rows of the diagnostics before the others are folded."""

DIAGNOSTICS: dict[str, tuple[str, str]] = {
    "whiteness": ("neighbouring residuals", "a step's residual hardly resembles that of the one before it"),
    "independence": ("residual against inputs", "it follows no input, of the step itself or of the steps beside it"),
    "lack_of_fit": ("shape along tokens", "no bend or jump that the plant does not hold"),
    "variance": ("scatter", "a regime's margin holds over all of its steps, and both scatter alike"),
    "drift": ("drift", "neither a slope nor a change of level"),
    "outliers": ("rows set aside", "none"),
    "actuator": ("commands", "they act at once, and the batches obey them"),
    "closed_loop": ("closed loop", "no command follows the step times"),
    "clock": ("clock", "durations span the time from start to start"),
    "host_gap": ("host", "what it takes between steps is in the durations"),
}
"""Diagnostics by name in plant.json: what is looked at, and what silence means."""

FOUND, CLEAR, UNTOLD = "finding", "clear", "cannot be told"
"""Verdicts."""

TOGETHER = 10.0
"""Variance inflation factor from which on inputs are listed as moved together."""

RESOURCES = ("bandwidth", "arithmetic", "interconnect", "launch")


def ladder_table(plant: Mapping[str, Any]) -> str:
    """Every rung that was tried, with what it is worth on steps left out; those that changed nothing are folded.

    Args:
        plant: content of plant.json.

    Returns:
        HTML; empty where no structure was chosen.
    """
    rungs = [rung for rung in dig(plant, "ladder") or [] if isinstance(rung, Mapping)]
    head = ("rung", "steps", "without", "with", "surely")
    named = dig(plant, "coefficients") or {}
    shown = [_rung(rung, named) for rung in rungs if tells(rung)]
    left = [_rung(rung, named) for rung in rungs if not tells(rung)]
    html = table(head, shown, "Error on steps left out, without and with each rung taken") if shown else ""
    caption = "Not taken, or worth nothing on its own"
    more = folded(f"{len(left)} more rungs were tried", table(head, left, caption)) if left else ""
    said = "<p>Surely: by so many standard errors, over groups of neighbouring steps.</p>" if shown else ""
    return html + said + more


def _rung(rung: Mapping[str, Any], coefficients: Mapping[str, Any]) -> tuple[str, ...]:
    errors = number(rung.get("errors"))
    surely = NONE if errors is None else f"{errors:.1f}".replace("-", MINUS)
    return rung_name(rung, coefficients), str(rung.get("regime")), percent(rung.get("before")), percent(rung.get("after")), surely


def coefficient_table(plant: Mapping[str, Any]) -> str:
    """The coefficients that act, with their intervals, in units that people read.

    Args:
        plant: content of plant.json.

    Returns:
        HTML.
    """
    rows, still = [], []
    for name, c in (dig(plant, "coefficients") or {}).items():
        if acts(c):
            value, ends, unit = scaled(c)
            rows.append((name, digits(value), f"{digits(ends[0], 3)} to {digits(ends[1], 3)}" if ends else NONE, unit))
        else:
            still.append(name)
    title = f"Coefficients of the plant, structure {dig(plant, 'structure')}"
    beside = f"<p>{len(still)} terms of this structure do not act in this plant.</p>" if still else ""
    return table(("coefficient", "value", "95 % interval", "unit"), rows, title) + beside


def binding_table(plant: Mapping[str, Any]) -> str:
    """Where a step's time goes at a few operating points, and what that says of the machine.

    Args:
        plant: content of plant.json.

    Returns:
        HTML; empty where it was not looked at.
    """
    points = [point for point in dig(plant, "binding") or [] if isinstance(point, Mapping)]
    if not points:
        return ""
    used = [name for name in RESOURCES if any(number(dig(point, "shares", name)) for point in points)]
    rows = [(str(p.get("point")), time(p.get("step_time_s")), *(percent(dig(p, "shares", name), 0) for name in used)) for p in points]
    beside = str(points[0].get("sentence")).partition(" (")[2].removesuffix(")").capitalize()
    html = table(("step", "takes", *used), rows, "Where a step's time goes") + (f"<p>{escape(beside)}.</p>" if beside else "")
    rates = [rate for rate in dig(plant, "implied", "rates") or [] if number(dig(rate, "value")) is not None]
    told = [(str(r["what"]), _rate(r), percent(r.get("share"), 0), _span(r)) for r in rates]
    return html + (table(("work", "rate", "of the peak", "95 % interval"), told, "What the plant implies of one device") if told else "")


def _rate(rate: Mapping[str, Any]) -> str:
    return digits(rate["value"] / 1e12) + (" TB/s" if rate.get("unit") == "bytes/s" else " TFLOP/s")


def _span(rate: Mapping[str, Any]) -> str:
    ends, peak = rate.get("ci95"), number(rate.get("peak"))
    if not isinstance(ends, list) or not peak:
        return NONE
    return " to ".join(percent(None if number(x) is None else x / peak, 0) for x in ends)


def diagnostic_table(plant: Mapping[str, Any]) -> str:
    """What every diagnostic found, those first that can change a decision; beyond ten rows the others are folded.

    Args:
        plant: content of plant.json.

    Returns:
        HTML; empty where none ran.
    """
    found = dig(plant, "diagnostics")
    if not isinstance(found, Mapping) or not isinstance(found.get("sentences"), Mapping):
        return ""
    rows = [*_excitation(dig(plant, "excitation") or {}, [str(text) for text in dig(plant, "warnings") or []]), *_diagnosed(found)]
    rank = {FOUND: 0, CLEAR: 1, UNTOLD: 2}
    rows.sort(key=lambda row: (rank[row[1]], gravity(row[2])))
    head, look = ("looked at", "verdict", "in words"), "words"
    html = table(head, rows[:SHOWN], "Diagnostics of the fit", look=look)
    left = rows[SHOWN:]
    return html + (folded(f"{len(left)} more", table(head, left, "Diagnostics, continued", look=look)) if left else "")


def _diagnosed(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name, (label, clear) in DIAGNOSTICS.items():
        if name not in found:
            continue
        said, result = dig(found, "sentences", name) or [], found[name]
        yield from ((label, FOUND, str(text)) for text in said)
        untold = isinstance(result, Mapping) and result and all(part is None for part in result.values())
        if not said:
            yield (label, UNTOLD, "too few steps, or not in the trace") if untold else (label, CLEAR, clear)


def _excitation(found: Mapping[str, Any], warnings: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Which inputs did not move, or only together, and which terms plain least squares wants negative; pairs in the fit's own words."""
    for regime, row in found.items():
        terms = dig(row, "terms") or {}
        still = [name for name, term in terms.items() if not dig(term, "moved")]
        both = [text.removeprefix(f"{regime}: ") for text in warnings if text.startswith(f"{regime}: ") and "moved together" in text]
        both = both or _together({name: vif for name, term in terms.items() if (vif := number(dig(term, "vif")) or 0.0) > TOGETHER})
        said = [f"{_listed(still)} did not move: their terms cannot be told"] if still else []
        said += both
        negative = list(dig(row, "negative") or {})
        said += [f"plain least squares wants {_listed(negative)} negative: held at zero or above"] if negative else []
        yield (
            ("excitation", FOUND, f"{regime}: {'; '.join(said)}")
            if said
            else ("excitation", CLEAR, f"{regime}: every input moved on its own")
        )


def _together(factors: Mapping[str, float]) -> list[str]:
    """The same of a plant whose fit left no words: one input alone moved with a sum of others."""
    if not factors:
        return []
    who = _listed([*factors]) if len(factors) > 1 else f"{_listed([*factors])} and other inputs"
    return [f"{who} moved together (VIF {max(factors.values()):,.0f}): trust the sum of their terms, not each"]


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
