"""What stands beside goodput in a comparison: others' goodput, fairness, where steps' time goes, and each class's tails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headway.models.other_goodputs import DEFINITIONS
from headway.report.data import dig
from headway.report.text import count, escape, number, percent, time
from headway.tails import QUANTILE_WORDS, TAILS, refusals, tail

PARTS = {
    "floor": "the floor: weights and launch",
    "decode_requests": "decode requests",
    "decode_kv_tokens": "the reading of the cache",
    "prefill_tokens": "prefill tokens",
    "prefill_pairs": "attention of prompts",
    "prefill_requests": "prompts' own overhead",
}
"""Parts of a step's time in words."""

MORE_ROWS: tuple[tuple[str, tuple[str, ...], Callable[[Any], str]], ...] = (
    ("clients that left with something late", ("abandoned",), percent),
    ("clients that left in time", ("cancelled",), percent),
    ("requests degraded", ("degraded",), percent),
    ("of their tokens on time for the degraded target", ("degraded_attainment",), percent),
    ("tokens computed again", ("recomputed_tokens",), count),
    ("cache blocks moved out or in", ("swapped_blocks",), count),
    ("prompt tokens from the prefix cache", ("hit_share",), percent),
    ("answers of one token, TPOT n/a", ("tpot_none",), count),
    ("worst class", ("fairness", "worst_attainment"), percent),
    ("fairness over classes, Jain", ("fairness", "jain_classes"), percent),
    ("fairness over requests, Jain", ("fairness", "jain_requests"), percent),
    *((f"others' goodput: {name}", ("others", name), percent) for name in DEFINITIONS),
    *((f"steps whose time is most of all {word}", ("resources", "steps", name), percent) for name, word in PARTS.items()),
)
"""Rows that are shown where a side has them, and where any of them says anything."""


def more_rows(sides: Sequence[Any]) -> list[tuple[str, ...]]:
    """Rows beside goodput that have something to say.

    Args:
        sides: figures of each contender.

    Returns:
        Label and cells.
    """
    rows = []
    for label, place, show in MORE_ROWS:
        values = [dig(side, *place) for side in sides]
        if any(number(v) for v in values):
            rows.append((label, *(show(v) for v in values)))
    return rows


def class_tails(name: str, sides: Sequence[Any]) -> list[tuple[str, ...]]:
    """Goodput, tails, longest gap and degraded share of one class, as far as they are known.

    Args:
        name: of the class.
        sides: figures of each contender.

    Returns:
        Label and cells.
    """
    own = [dig(side, "classes", name) or {} for side in sides]
    flat = [{**c, "ci95": {key: c.get(f"{key}_ci95") for key in TAILS}} for c in own]
    rows = [("goodput, tokens/s", "goodput_tps", count), ("longest gap", "max_gap_s", time)]
    rows += [("degraded", "degraded", percent), ("on time for the degraded target", "degraded_attainment", percent)]
    found = [
        (f"class {name}: {label}", *(show(c.get(key)) for c in own)) for label, key, show in rows if any(number(c.get(key)) for c in own)
    ]
    for key, word in TAILS.items():
        for q, text in QUANTILE_WORDS.items():
            if any(dig(c, key) for c in flat):
                found.append((f"class {name}: {word} {text}", *(tail(c, key, q, time) for c in flat)))
    return found


def side_notes(groups: Mapping[str, Mapping[str, Any]]) -> str:
    """What stands below a comparison: verdicts on the load in a sentence, refusals, and how others define their goodput.

    Args:
        groups: title to heading to figures.

    Returns:
        HTML; empty where nothing was refused and nothing of others is shown.
    """
    flat = {f"{heading}, {title}": side for title, group in groups.items() for heading, side in group.items()}
    loads = {heading: dig(side, "load_text") for heading, side in flat.items() if dig(side, "load_text") not in (None, dig(side, "load"))}
    lines = [f"load of {heading}: {text}" for heading, text in loads.items()]
    for title, group in groups.items():  # by title: it is said once for all who share a reason
        lines += [f"{text.removesuffix(')')}; {title})" for text in refusals(group)]
    if any(dig(side, "others") for side in flat.values()):
        lines += [f"{name}: {what}" for name, what in DEFINITIONS.items()]
    return f'<ul class="cautions">{"".join(f"<li>{escape(text)}</li>" for text in lines)}</ul>' if lines else ""
