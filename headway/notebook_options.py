"""What a notebook gives, understood as the command line understands it: a number where an option has text."""

from __future__ import annotations

import os
from typing import TypedDict

from headway.cli.options import epsilon_given, limits_given, rate_given

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
    """
    sizes = [None if size is None else str(size) for size in (kv_tokens, max_len, max_tokens)]
    return limits_given(sizes[0], block, max_seqs, sizes[1], sizes[2])
