"""What to say of a file of no known format, in one line: what it is, which known format it is nearest to, and what it lacks of that."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import NamedTuple

from headway.identification.readers.opened import Opened

ALIKE = 0.75
"""Likeness of two names from which on one may be meant for the other."""
FEWEST, SHARE = 2, 0.25
"""Names that a file must have of a format to be near it: so many, and this share of all."""
MOST_NAMED, MOST_SHOWN = 3, 60
"""Names that are written out, and characters that are shown of a file."""


class Format(NamedTuple):
    """A known format, as far as its names go.

    Args:
        says: the format in words.
        names: columns of a CSV, or keys of the first JSON object, that it must have.
    """

    says: str
    names: tuple[str, ...]


class Near(NamedTuple):
    """The format that a file is nearest to.

    Args:
        name: of the format.
        says: the format in words.
        lacks: its names that the file does not have, with the file's own name beside one that may be meant for it.
    """

    name: str
    says: str
    lacks: tuple[str, ...]


def names_in(found: Opened) -> tuple[str, ...]:
    """The names by which a format could be told: columns of a CSV, or keys of the first JSON object.

    Args:
        found: the file.

    Returns:
        Names; empty for text without any.
    """
    if found.first is not None:
        return tuple(map(str, found.first))
    first, _, rest = found.start.lstrip().partition(b"\n")
    second = rest.lstrip().partition(b"\n")[0]
    named = [name for name in found.header if re.fullmatch(r"[A-Za-z_][\w .()/%-]{0,60}", name)]
    table = not second or second.count(b",") >= first.count(b",")  # a sentence may have a comma as well
    return tuple(named) if table and len(named) == len(found.header) else ()


def kind_of(found: Opened) -> str:
    """What a file is, as far as its start tells.

    Args:
        found: the file, not empty.

    Returns:
        A few words.
    """
    names = names_in(found)
    if names:
        shown = _line(", ".join(names))
        shown = shown if len(shown) <= MOST_SHOWN else f"{shown[: MOST_SHOWN - 3]}..."
        return f"{'a JSON object' if found.first is not None else 'a CSV'} with {shown}"
    if b"\0" in found.start:
        return "a binary file"
    return f"text that begins with {found.text.lstrip().split(chr(10), 1)[0].strip()[:MOST_SHOWN]!r}"


def nearest(names: tuple[str, ...], formats: Mapping[str, Format]) -> Near | None:
    """The format whose names a file has most of.

    Args:
        names: of the file.
        formats: known ones by name; those without names are never near.

    Returns:
        Near; None where no format is.

    Example:
        >>> nearest(("step", "step_time_ms", "batch"), {"steps": Format("a step table", ("step", "step_time_s", "tokens"))})
        Near(name='steps', says='a step table', lacks=('step_time_s (here step_time_ms?)', 'tokens'))
    """
    best, most = None, 0.0
    plain = {_plain(name): name for name in names}
    for key, known in formats.items():
        have = {name for name in known.names if name in names}
        free = [name for name in plain if plain[name] not in have]
        meant = {name: plain[like[0]] for name in known.names if name not in have and (like := _like(name, free))}
        near = len(have) + len(meant) / 2
        if len(have) + len(meant) >= FEWEST and len(have) + len(meant) >= SHARE * len(known.names) and near / len(known.names) > most:
            lacks = tuple(f"{name} (here {_line(meant[name])}?)" if name in meant else name for name in known.names if name not in have)
            best, most = Near(key, known.says, lacks), near / len(known.names)
    return best


def _line(text: str) -> str:
    """Text on one line: a key may hold a line break."""
    return repr(text)[1:-1]


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _like(name: str, free: list[str]) -> list[str]:
    return difflib.get_close_matches(_plain(name), free, 1, ALIKE)


def unknown(found: Opened, wanted: str, near: Near | None, instead: str, listed: str) -> str:
    """What to say of a file that no reader claims.

    Args:
        found: the file.
        wanted: what was expected, in a few words.
        near: the format that it is nearest to; None where there is none.
        instead: what to do where none is near.
        listed: where the formats are listed.

    Returns:
        One line, as a `TraceError` says what it expected.
    """
    what = instead
    if near is not None:
        named = near.lacks if len(near.lacks) <= MOST_NAMED + 1 else (*near.lacks[:MOST_NAMED], f"{len(near.lacks) - MOST_NAMED} more")
        what = f"nearest is {near.says} ({near.name}), of which it lacks {', '.join(named[:-1])}{' and ' * (len(named) > 1)}{named[-1]}"
    return f"{wanted}; {kind_of(found)} is of no known format: {what}; {listed} lists what is read"
