"""Notes: sentences on what was found, those first that can change a decision, and as few as say the same."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

GRAVITY: tuple[tuple[str, ...], ...] = (
    ("may not ship", "impossible:", "terms explain nothing", "is step_time_s", "no held-out error"),
    ("ms are promised", "a longer run attains less", "no candidate that attains", "without that it would be"),
    (
        "extrapolation",
        "beyond the sizes measured",
        "one law over all",
        "does better",
        "not the best of its grid",
        "times what the embedded",
    ),
    ("should: they scatter", "too few steps for a margin", "so there is no margin", "no margin for", "no margin on"),
    ("closed loop", "does not obey", "scheduler's or host's own time", "spans two loops", "records overlap", "at that delay"),
    ("is booked", "difference to the step", "booked on a neighbour"),
    ("at equal composition", "wanders"),
    ("is a guess", "cannot be told", "cannot be fitted", "hardly tells", "wall-clock", "must not be read alone"),
    ("lack of fit", "than the plant says"),
    ("moved together", "exceed a margin", "never one for both"),
)
"""Words by which a note is known, the gravest first; a note with none of them comes last."""

DOUBTS = 2
"""Ranks up to this one put a result in question."""

SHARED = 30
"""Characters of an ending from which on two notes that share it become one."""

ENDINGS = ("; ", ": ", " (")
"""What an ending may begin with."""

REGIMES = ("decode", "mixed", "all")
"""What a note may begin with, before a colon."""


def gravity(note: str) -> int:
    """How grave a note is.

    Args:
        note: a sentence.

    Returns:
        Rank, 0 the gravest; the number of ranks where no word is known.
    """
    return next((rank for rank, words in enumerate(GRAVITY) if any(word in note for word in words)), len(GRAVITY))


def ordered(notes: Sequence[str]) -> list[str]:
    """Notes once each, merged where they end alike, the gravest first; equals stay in order.

    Args:
        notes: sentences.

    Returns:
        As many, or fewer.

    Example:
        >>> ordered(["a went: look at what ran in that time", "b, an extrapolation", "c went: look at what ran in that time"])
        ['b, an extrapolation', 'a went; c went: look at what ran in that time']
    """
    return sorted(merged(notes), key=gravity)


def merged(notes: Sequence[str]) -> list[str]:
    """Notes once each; those that share a long ending become one, with the ending said once.

    Args:
        notes: sentences.

    Returns:
        As many, or fewer, each where the first of its kind stood.
    """
    once = list(dict.fromkeys(notes))
    shared = Counter(ending for note in once for ending in _endings(note))
    groups: dict[str, list[str]] = {}
    for note in once:
        ending = next((e for e in _endings(note) if shared[e] > 1), "")
        groups.setdefault(ending or note, []).append(note)
    lines = []
    for ending, alike in groups.items():
        if len(alike) == 1:
            lines += alike
        else:
            lines.append(_joined([note.removesuffix(ending) for note in alike]) + ending)
    return lines


def _joined(heads: list[str]) -> str:
    """Beginnings of notes as one; what all say behind their regime is said once."""
    parts = [head.partition(": ") for head in heads]
    if not all(regime in REGIMES for regime, _, _ in parts):
        return "; ".join(heads)
    if not any(text for _, _, text in parts):
        return " and ".join(heads)
    texts = [text for _, _, text in parts]
    alike = list(itertools.takewhile(lambda i: len({text[:i] for text in texts}) == 1, range(min(map(len, texts)) + 1)))
    cut = max((i for i in alike if texts[0][:i].endswith(" ") and texts[0][:i].count("(") == texts[0][:i].count(")")), default=0)
    return "; ".join([heads[0], *(f"{regime}: {text[cut:]}" for regime, _, text in parts[1:])])


def _endings(note: str) -> list[str]:
    """Endings of a note that could be another's as well, the longest first."""
    places = sorted({i for mark in ENDINGS for i in _places(note, mark)})
    return [note[i:] for i in places if len(note) - i >= SHARED]


def _places(note: str, mark: str) -> list[int]:
    return [i for i in range(1, len(note)) if note.startswith(mark, i)]
