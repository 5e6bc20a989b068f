"""What a notebook gives, understood as the command line understands it: a number where an option has text."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from typing import Any, TypedDict

from headway.cli.options import epsilon_given, limits_given, rate_given
from headway.models.arrivals import MOST_REQUESTS

Source = str | os.PathLike[str]
"""A file, or text that the command line takes in its place."""


class EngineLimits(TypedDict, total=False):
    """The engine's limits as the options of the command line name them; a size may be text, such as "200k"."""

    kv_tokens: int | str
    block: int
    max_seqs: int
    max_len: int | str
    max_tokens: int | str


def text_of(given: Source | None) -> str | None:
    """A file or a text as text.

    Args:
        given: None where it was not given.

    Returns:
        The text; None likewise.
    """
    return None if given is None else str(given)


def file_of(given: Any, what: str, example: str) -> Source:
    """A file, or text in its place.

    Args:
        given: as it was given.
        what: is expected, for the message.
        example: of a right call.

    Returns:
        The same.

    Raises:
        ValueError: neither text nor a path.

    Example:
        >>> file_of([], "a trace file", 'headway.fit("steps.csv")')
        Traceback (most recent call last):
        ValueError: expected a trace file, got []; write for example headway.fit("steps.csv")
    """
    if not isinstance(given, str | os.PathLike) or not str(given).strip():
        raise ValueError(f"expected {what}, got {_shown(given)}; write for example {example}")
    return given


def count_of(name: str, given: Any, *, least: int = 1, most: int = MOST_REQUESTS) -> int | None:
    """A number of things.

    Args:
        name: of the option.
        given: a whole number, of NumPy as well; None where it was not given.
        least: smallest allowed.
        most: largest allowed.

    Returns:
        The number; None likewise.

    Raises:
        ValueError: no whole number, or one out of range.

    Example:
        >>> count_of("runs", 0)
        Traceback (most recent call last):
        ValueError: runs must be a whole number in [1, 10000000], got 0
    """
    if given is None:
        return None
    try:
        number = operator.index(given)
    except TypeError:
        number = least - 1
    if isinstance(given, bool) or not least <= number <= most:
        raise ValueError(f"{name} must be a whole number in [{least}, {most}], got {_shown(given)}")
    return number


def words_of(example: str, **given: Any) -> None:
    """Refuse what is no text where the command line has text.

    Args:
        example: of a right one, by name.
        **given: by name of the option; None where it was not given.

    Raises:
        ValueError: one that is no text.
    """
    for name, value in given.items():
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{name} must be text, as the command line takes it, got {_shown(value)}; write for example {example}")


def effort_of(given: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """How much is to be spent otherwise.

    Args:
        given: by field; None where it was not given.
        known: default by field.

    Returns:
        The same; empty likewise.

    Raises:
        ValueError: no mapping, a field that is unknown, or a value of another kind than its default.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(f'effort must be a mapping by field, got {_shown(given)}; write for example effort={{"starts": 1}}')
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"effort has no {name!r}; known: {', '.join(known)}")
        if isinstance(known[name], int):
            count_of(f"effort {name}", value, least=0)
        elif isinstance(known[name], float) and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1):
            raise ValueError(f"effort {name} must be a number in [0, 1], got {_shown(value)}")
    return dict(given)


def _shown(given: Any) -> str:
    text = " ".join(repr(given).split())
    return text if len(text) <= 60 else f"{text[:56]} ..."


def rate_of(given: str | float | None) -> float | None:
    """A rate of arrivals.

    Args:
        given: text such as "12/s", or a number in requests a second; None where it was not given.

    Returns:
        Rate [requests/s]; None likewise.

    Example:
        >>> rate_of("300/min"), rate_of(12), rate_of(None)
        (5.0, 12.0, None)
    """
    return rate_given(given) if given is None or isinstance(given, str) else rate_given(f"{given}/s")


def epsilon_of(given: str | float | None) -> float | None:
    """A share that may be late.

    Args:
        given: text such as "1%", or a number in (0, 1); None where it was not given.

    Returns:
        The share; None likewise.
    """
    return epsilon_given(None if given is None else str(given))


def limits_of(
    *,
    kv_tokens: int | str | None = None,
    block: int | None = None,
    max_seqs: int | None = None,
    max_len: int | str | None = None,
    max_tokens: int | str | None = None,
) -> dict[str, int]:
    """Engine limits.

    Args:
        kv_tokens: size of the KV cache, a number or text such as "200k" [tokens].
        block: of the cache [tokens].
        max_seqs: running at once [requests].
        max_len: of a prompt and its output together [tokens].
        max_tokens: in one step [tokens].

    Returns:
        Those that were given, by field of `Limits`.

    Raises:
        ValueError: one that is no size, or no number above zero.
    """
    block, max_seqs = count_of("block", block), count_of("max_seqs", max_seqs)
    sizes = [None if size is None else str(size) for size in (kv_tokens, max_len, max_tokens)]
    return limits_given(sizes[0], block, max_seqs, sizes[1], sizes[2])
