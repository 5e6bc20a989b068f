"""Contenders side by side: what became of the promise, tails, each class, and what is said only where it happened."""

from __future__ import annotations

from typing import Any

from headway.cli.terminal import ms, percent, table
from headway.tails import QUANTILE_WORDS, TAILS, refusals, tail

SIDE_ROWS = (
    ("attainment", "attainment", percent),
    ("clean requests", "request_attainment", percent),
    ("goodput, tok/s", "goodput_tps", lambda x: f"{x:,.0f}"),
    ("throughput, tok/s", "throughput_tps", lambda x: f"{x:,.0f}"),
    ("shed", "shed", percent),
)
"""Rows that are always shown."""

EVENT_ROWS = (
    ("clients left late", "abandoned", percent),
    ("clients left in time", "cancelled", percent),
    ("degraded", "degraded", percent),
    ("degraded: on time", "degraded_attainment", percent),
    ("prefix cache hits", "hit_share", percent),
    ("preempted", "preempted", lambda x: f"{x:,.0f}"),
    ("computed again, tok", "recomputed_tokens", lambda x: f"{x:,.0f}"),
    ("KV blocks moved", "swapped_blocks", lambda x: f"{x:,.0f}"),
)
"""Rows that are shown where a side has something to say: who left with something late or with nothing late, what was degraded."""


LEAVING = ("abandoned", "cancelled")
"""Shares that are shown with the number of clients."""

CLASS_TAILS = ("itl_s.p99", "ttft_s.p99")
"""Quantiles that are shown of a class."""


def event_rows(sides: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Who left, what was degraded, cached, preempted and moved: rows in which some side has more than nothing.

    Args:
        sides: each as `headway simulate --json`.

    Returns:
        Rows for `table`; those of clients with their number, those of degraded attainment also at zero.
    """
    rows = []
    for label, name, show in EVENT_ROWS:
        values = [s.get(name) for s in sides]
        if any(v and v == v for v in values) or (name == "degraded_attainment" and any(s.get("degraded") for s in sides)):
            clients = [
                f", {v * s['requests']:,.0f}" if v and v == v and name in LEAVING else "" for v, s in zip(values, sides, strict=True)
            ]
            rows.append((label, *("-" if v is None else show(v) + n for v, n in zip(values, clients, strict=True))))
    return rows


def side_table(sides: dict[str, dict[str, Any]]) -> list[str]:
    """Figures of several contenders side by side.

    Args:
        sides: by heading, each as `headway simulate --json`.

    Returns:
        Lines.
    """
    rows: list[tuple[str, ...]] = [("", *sides)] if any(sides) else []
    rows += [(label, *(show(s[name]) for s in sides.values())) for label, name, show in SIDE_ROWS]
    rows += event_rows(list(sides.values()))
    for name, label in TAILS.items():
        for q in ("p50", "p99", "p999"):
            rows.append((f"{label} {QUANTILE_WORDS[q]}", *(tail(s, name, q, ms) for s in sides.values())))
    rows.append(("longest gap", *(ms(s["max_gap_s"]) for s in sides.values())))
    return [*table([*rows, *class_rows(list(sides.values()))]), *refusals(sides, CLASS_TAILS)]


def class_rows(sides: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Attainment, tails and shed share of each class, where there are several.

    Args:
        sides: each as `headway simulate --json`.

    Returns:
        Rows for `table`; none for a single class.
    """
    names = list(dict.fromkeys(name for s in sides for name in s["classes"]))
    if len(names) < 2:
        return []
    rows = []
    for name in names:
        of = [s["classes"].get(name, {}) for s in sides]
        rows += [
            (f"{name}: attainment", *(percent(c.get("attainment")) for c in of)),
            (f"{name}: clean requests", *(percent(c.get("request_attainment")) for c in of)),
            (f"{name}: p99 ITL", *(ms(c.get("itl_p99_s")) for c in of)),
            (f"{name}: p99 TTFT", *(ms(c.get("ttft_p99_s")) for c in of)),
            (f"{name}: shed", *(percent(c.get("shed")) for c in of)),
        ]
    return rows
