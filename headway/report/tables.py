"""The tables of the report, as HTML: coefficients, figures side by side, gains, and where everything came from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headway.controllers.record import ADMISSION_UNITS, PART_UNITS, POLICY_UNITS
from headway.identification.rows import REASONS
from headway.report.data import Findings, dig
from headway.report.scheduled import rows_of
from headway.report.tails import class_tails, more_rows
from headway.report.text import NONE, count, digits, escape, number, percent, time
from headway.tails import TAILS, tail

ADMISSION = ("binding", "deferred")
"""Where the share of steps stands that admission bound: only with those who hold anybody back."""

SIDE_ROWS: tuple[tuple[str, tuple[str, ...], Callable[[Any], str]], ...] = (
    ("requests", ("requests",), count),
    ("attainment", ("attainment",), percent),
    ("clean requests", ("request_attainment",), percent),
    ("goodput, tokens/s", ("goodput_tps",), count),
    ("throughput, tokens/s", ("throughput_tps",), count),
    *(
        (f"{label} {word}", (name, q), time)
        for label, name in (("TTFT", "ttft_s"), ("ITL", "itl_s"), ("TPOT", "tpot_s"))
        for q, word in (("p50", "p50"), ("p90", "p90"), ("p99", "p99"), ("p999", "p99.9"))
    ),
    ("longest gap", ("max_gap_s",), time),
    ("requests shed", ("shed",), percent),
    ("preemptions", ("preempted",), count),
    ("steps bound by token budget", ("binding", "budget"), percent),
    ("steps bound by running limit", ("binding", "running"), percent),
    ("steps bound by KV cache", ("binding", "kv"), percent),
    ("steps bound by admission", ADMISSION, percent),
    ("steps bound by nothing", ("binding", "none"), percent),
    ("load", ("load",), lambda value: str(value or NONE)),
)
"""Rows of a comparison: label, where the number stands, how it is written."""

CHOICE = "choice"
"""What stands for the unit of a word."""

ENGINE_UNITS = {
    "kv_tokens": "tokens",
    "block_tokens": "tokens",
    "max_seqs": "requests",
    "max_len": "tokens",
    "max_tokens": "tokens",
    "swap_block_s": "s",
}
"""Unit of an engine's limit, where it has one."""

OWN_UNITS = {
    "token_budget": "tokens",
    "margin": "1",
    "late_rate": "1",
    "kp": "1",
    "ki": "1",
    "least_tokens": "tokens",
    "most_tokens": "tokens",
}
SETTING_UNITS = {**POLICY_UNITS, **ADMISSION_UNITS, **PART_UNITS, **OWN_UNITS, "share": "weight", "priority": "s"}
"""Unit of a setting, also of one of a single class, such as "priority.chat"."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str, groups: Sequence[tuple[str, int]] = (), look: str = "") -> str:
    """A table that scrolls sideways on its own where the page is narrow.

    Args:
        head: column titles; the first column names the rows.
        rows: cells as text.
        caption: what the table holds; empty shows none.
        groups: titles over several columns, with their number of columns, from the second column on.
        look: further classes of the table's box.

    Returns:
        HTML, everything escaped.
    """
    titles = "".join(f'<th scope="col">{escape(h)}</th>' for h in head)
    over = "".join(f'<th scope="colgroup" colspan="{n}">{escape(title)}</th>' for title, n in groups)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>" for row in rows
    )
    top = f'<tr class="groups"><th></th>{over}</tr>' if groups else ""
    inside = f"<caption>{escape(caption)}</caption><thead>{top}<tr>{titles}</tr></thead><tbody>{body}</tbody>"
    classes = " ".join(filter(None, ("table", look)))
    return f'<div class="{classes}" tabindex="0" role="region" aria-label="{escape(caption)}"><table>{inside}</table></div>'


def aside_table(aside: Mapping[str, int]) -> str:
    """Rows of a trace that are set aside, by reason.

    Args:
        aside: number by reason [rows].

    Returns:
        HTML; a sentence where there is none.
    """
    rows = [(name.replace("_", " "), count(n), REASONS.get(name, "as the reader says")) for name, n in aside.items()]
    if not rows:
        return "<p>No row is set aside.</p>"
    return table(("reason", "rows", "what it means"), rows, "Rows set aside, by reason", look="words")


def folded(summary: str, html: str) -> str:
    """What is there, and out of the way until it is asked for.

    Args:
        summary: the line to open it by.
        html: what it holds.

    Returns:
        HTML; open on paper.
    """
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"


def side_table(groups: Mapping[str, Mapping[str, Any]], caption: str) -> str:
    """What became of the promise, contenders side by side.

    Args:
        groups: title to heading to figures, as one side of validation.json.
        caption: of the table.

    Returns:
        HTML.
    """
    headings = [heading for group in groups.values() for heading in group]
    sides = [side for group in groups.values() for side in group.values()]
    held = any(number(dig(side, *ADMISSION)) for side in sides)
    # a quantile's interval on a line of its own: beside it six contenders would not fit the page
    tails = lambda side, place: tail(side, place[0], place[1], time).replace(" [", "\n[")  # noqa: E731
    cell = lambda side, place, show: tails(side, place) if place[0] in TAILS else show(dig(side, *place))  # noqa: E731
    rows = [(label, *(cell(side, place, show) for side in sides)) for label, place, show in SIDE_ROWS if held or place != ADMISSION]
    rows += more_rows(sides)
    names = list(dict.fromkeys(name for side in sides for name in dig(side, "classes") or {}))
    for name in names if len(names) > 1 else []:
        for label, key in (("attainment", "attainment"), ("clean requests", "request_attainment"), ("shed", "shed")):
            rows.append((f"class {name}: {label}", *(percent(dig(side, "classes", name, key)) for side in sides)))
        rows += class_tails(name, sides)
    return table(("", *headings), rows, caption, [(title, len(group)) for title, group in groups.items()])


def settings_table(sides: Mapping[str, Any], follow: str = "") -> str:
    """What each contender was set to.

    Args:
        sides: heading to a side of tuning.
        follow: gains of the controller that follow the load, in words; empty for none.

    Returns:
        HTML.
    """
    sides = {heading: side for heading, side in sides.items() if dig(side, "settings")}
    names = list(dict.fromkeys(name for side in sides.values() for name in side["settings"]))
    show = lambda value: NONE if value is None else digits(value) if number(value) is not None else str(value)  # noqa: E731
    rows = [(name, *(show(dig(side, "settings", name)) for side in sides.values()), _unit(name)) for name in names]
    later = (
        f"<p>The tuned ones are constants; in the controller that was made of them, {escape(follow)} follow the load.</p>" if follow else ""
    )
    return table(("setting", *sides, "unit"), rows, "Settings compared in tuning") + later


def gain_table(controller: Mapping[str, Any]) -> str:
    """The controller's numbers with their units.

    Args:
        controller: content of controller.json.

    Returns:
        HTML.
    """
    rows, names = [], [str(dig(t, "name")) for t in dig(controller, "targets") or []]
    follow = rows_of(controller)
    moves = "law.margin" in follow
    for part, numbers in (("law", dig(controller, "law", "gains") or {}), ("policy", dig(controller, "policy") or {})):
        for name, entry in numbers.items():
            if isinstance(entry, Mapping):
                unit = str(entry.get("unit") or "")
                span = f"{digits(entry.get('low'))} to {digits(entry.get('high'))}" if entry.get("high") is not None else NONE
                value = follow.pop(f"{part}.{name}", "") or _each(entry.get("value"), names)
                rows.append((f"{part}.{name}", value + (_yields(numbers) if name == LEAST else ""), unit or "1", span))
            else:
                rows.append((f"{part}.{name}", str(entry), CHOICE, NONE))
    rows += [(name, value, _unit(name), NONE) for name, value in follow.items()]  # of parts that are off but for the load
    for name, beside in (("budget", ""), ("setpoint", ", in an idle engine" if moves else "")):
        value, _, unit = time(controller.get(f"{name}_s")).partition(" ")
        rows.append((name, value + beside, unit or "s", NONE))
    for name, value in (dig(controller, "engine") or {}).items():
        numeric = number(value) is not None
        rows.append(
            (f"engine.{name}", digits(value, 7) if numeric else str(value), ENGINE_UNITS.get(name, "1") if numeric else CHOICE, NONE)
        )
    return table(
        ("number", "value", "unit", "allowed"),
        rows,
        f"Controller, law {dig(controller, 'law', 'kind')}: its numbers and the engine's limits",
    )


LEAST, MOST = "least_tokens", "most_tokens"


def _yields(gains: Mapping[str, Any]) -> str:
    """Which of a floor and a lower ceiling wins, as `headway.controllers.tracker` has it: the floor gives way."""
    least, most = (number(dig(gains, name, "value")) for name in (LEAST, MOST))
    return f", but {digits(most)} acts: the floor gives way to {MOST}" if least is not None and most is not None and least > most else ""


def _unit(name: str) -> str:
    """Unit of a setting; of one class, or of a part of the controller."""
    return SETTING_UNITS.get(name.removeprefix("law.").removeprefix("policy.").partition(".")[0], "1")


def _each(value: Any, names: Sequence[str]) -> str:
    """One number, or one for each class with the name of the class."""
    if not isinstance(value, list | tuple):
        return digits(value)
    named = names if len(names) == len(value) else [str(k) for k in range(len(value))]
    return ", ".join(f"{name} {digits(x)}" for name, x in zip(named, value, strict=True))


def provenance_table(found: Findings) -> str:
    """Versions, seeds and hashes.

    Args:
        found: the run.

    Returns:
        HTML.
    """
    rows = [(f"version of {name}", str(v)) for name, v in (dig(found.manifest, "versions") or {}).items()]
    for label, seed in (("fit", dig(found.plant, "training", "seed")), ("request", dig(found.manifest, "request", "seed"))):
        rows += [(f"seed of {label}", str(seed))] if seed is not None else []
    rows += [(f"effort: {name}", str(v)) for name, v in (dig(found.controller, "tuning", "effort") or {}).items()]
    for source in filter(None, dig(found.plant, "sources") or []):
        rows.append((f"sha256 of {str(source.get('file')).rsplit('/', 1)[-1]}", str(source.get("sha256"))))
    for stage in (dig(found.manifest, "stages") or {}).values():
        if dig(stage, "file") != "report.html":  # it cannot hold its own hash, and an older one would be stale
            rows.append((f"sha256 of {dig(stage, 'file')}", str(dig(stage, "sha256"))))
    if dig(found.controller, "content_sha256"):
        rows.append(("content of controller", str(dig(found.controller, "content_sha256"))))
    return table(("what", "value"), rows, "Versions, seeds, hashes")
