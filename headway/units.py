"""Numbers as people write them: durations, rates, shares, sizes, row ranges. Each is refused with value, rule and fix, or understood."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable

DURATION_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
"""Seconds in one unit of time."""

RATE_RPS = {"/s": 1.0, "rps": 1.0, "req/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600}
"""Requests per second in one unit of rate."""

SIZE_TOKENS = {"": 1.0, "k": 1e3, "M": 1e6}
"""Tokens in one unit of size. k is 1,000: 1,024 is a habit of memory sizes, not of counting tokens."""

SPAN_S, SPAN_RPS, MOST_TOKENS = (1e-15, 1e10), (1e-12, 1e9), 10**12
"""Least and most that is read, 0 apart: beyond it lies no clock, no traffic and no cache, and sums of it lose their digits."""

QUANTITY = re.compile(r"([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s._]\S*)?", re.ASCII)
"""A number and, perhaps, its unit."""


def duration_s(text: str, *, bare: str | None = None) -> float:
    """A length of time, in seconds.

    Args:
        text: number and unit, one of ns, us, ms, s, min, h.
        bare: unit of a number without one; None refuses it, because a bare 25 may be seconds or milliseconds. A bare 0
            is 0 in any unit.

    Returns:
        The duration [s]; 0, or in SPAN_S.

    Raises:
        ValueError: no number, no unit or an unknown one, negative, not finite or beyond SPAN_S.

    Example:
        >>> duration_s("25ms"), duration_s("1.5 min"), duration_s("2", bare="s")
        (0.025, 90.0, 2.0)
        >>> duration_s("25")
        Traceback (most recent call last):
        ValueError: a duration needs a unit, got '25'; write 25ms or 25s
    """
    number, unit = _quantity(text, "a duration is a number and a unit", "25ms or 1.5s")
    unit = unit or bare or ("s" if float(number) == 0 else "")
    if not unit:
        raise ValueError(f"a duration needs a unit, got {text!r}; write {number}ms or {number}s")
    value = _scaled(text, number, unit, DURATION_S, "a duration", "25ms or 1.5s")
    return _within(text, value, SPAN_S, "a duration must be 0 or from 1e-15 to 1e+10 s", "25ms or 1.5s")


def rate_rps(text: str, *, bare: bool = False, zero: bool = False) -> float:
    """A rate of arrivals, in requests per second.

    Args:
        text: number and unit, one of /s, rps, req/s, /min, /h.
        bare: take a number without a unit as requests per second; refused otherwise.
        zero: take 0 as well, a time in which none arrives; refused otherwise.

    Returns:
        The rate [requests/s]; in SPAN_RPS, or 0 where that is taken.

    Raises:
        ValueError: no number, no unit or an unknown one, not positive, not finite or beyond SPAN_RPS.

    Example:
        >>> rate_rps("12/s"), rate_rps("300/min"), rate_rps("5", bare=True)
        (12.0, 5.0, 5.0)
    """
    number, unit = _quantity(text, "a rate is a number and a unit", "12/s or 300/min")
    if not unit and not bare:
        raise ValueError(f"a rate needs a unit, got {text!r}; write {number}/s or {number}/min")
    value = _scaled(text, number, unit or "/s", RATE_RPS, "a rate", "12/s or 300/min")
    if value == 0 and not zero:
        raise ValueError(f"a rate must be above 0, got {text!r}; write for example 12/s")
    return _within(text, value, SPAN_RPS, "a rate must be from 1e-12 to 1e+09 a second", "12/s or 300/min")


def share(text: str) -> float:
    """A part of a whole, as a fraction.

    Args:
        text: a percentage, or a fraction from 0 to 1.

    Returns:
        The fraction, in [0, 1].

    Raises:
        ValueError: no number, an unknown unit, or outside 0 to 1.

    Example:
        >>> share("20%"), share("0.2")
        (0.2, 0.2)
        >>> share("20")
        Traceback (most recent call last):
        ValueError: a share must be in 0 to 1, got '20'; write 20% or 0.2
    """
    number, unit = _quantity(text, "a share is a percentage or a fraction", "20% or 0.2")
    if unit not in ("", "%"):
        raise ValueError(f"a share has the unit % or none, got {text!r}; write 20% or 0.2")
    value = float(number) / 100 if unit else float(number)
    if not 0 <= value <= 1:
        fix = f"{number}% or {float(number) / 100:g}" if not unit and 1 < value <= 100 else "20% or 0.2"
        raise ValueError(f"a share must be in 0 to 1, got {text!r}; write {fix}")
    return value


def tokens(text: str) -> int:
    """A number of tokens.

    Args:
        text: number, alone or with k (1,000) or M (1,000,000).

    Returns:
        The number [tokens]; from 1 to MOST_TOKENS.

    Raises:
        ValueError: no number, an unknown unit, not whole, below 1, above MOST_TOKENS or not finite.

    Example:
        >>> tokens("200k"), tokens("1.5M"), tokens("4096")
        (200000, 1500000, 4096)
    """
    number, unit = _quantity(text, "a number of tokens is a whole number, alone or with k or M", "4096 or 200k")
    unit = {"K": "k", "m": "M"}.get(unit, unit)
    value = _scaled(text, number, unit, SIZE_TOKENS, "a number of tokens", "4096 or 200k")
    if abs(value - round(value)) > 1e-9 * max(value, 1.0) or round(value) < 1:
        raise ValueError(f"a number of tokens must be whole and at least 1, got {_short(text)}; write 4096 or 200k")
    return round(_within(text, value, (1.0, MOST_TOKENS), "a number of tokens must be from 1 to 1e+12", "4096 or 200k"))


def whole(text: str) -> int:
    """A number of things.

    Args:
        text: digits.

    Returns:
        The number; at least 1.

    Raises:
        ValueError: no whole number, or one below 1.

    Example:
        >>> whole("64")
        64
    """
    if not re.fullmatch(r"\s*\+?\d{1,9}\s*", text, flags=re.ASCII) or int(text) < 1:
        raise ValueError(f"a whole number of at least 1 is expected, got {_short(text)}; write for example 64")
    return int(text)


def number(text: str) -> float:
    """A number without a unit.

    Args:
        text: digits, perhaps with a point and an exponent.

    Returns:
        The number.

    Raises:
        ValueError: no number.

    Example:
        >>> number("0.6")
        0.6
    """
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"a number is expected, got {text!r}") from None


def row_range(text: str) -> slice:
    """A range of rows as Python slices them: counted from 0, the end left out.

    Args:
        text: `a:b`; either may be missing, for the first row and the last.

    Returns:
        A slice without a step.

    Raises:
        ValueError: no colon, not whole numbers, negative, or no row between them.

    Example:
        >>> row_range("100:500"), row_range(":500")
        (slice(100, 500, None), slice(0, 500, None))
    """
    match = re.fullmatch(r"\s*([\d_]*)\s*:\s*([\d_]*)\s*", text, flags=re.ASCII)
    if match is None:
        raise ValueError(f"rows are a range of whole numbers from 0, got {text!r}; write for example 100:500")
    try:
        low, high = (int(part) if part else None for part in match.groups())
    except ValueError:
        raise ValueError(f"rows are a range of whole numbers from 0, got {text!r}; write for example 100:500") from None
    if high is not None and high <= (low or 0):
        raise ValueError(f"rows {text.strip()} hold none: the end is left out and must lie after the start; write for example 100:500")
    return slice(low or 0, high)


def duration_text(value_s: float) -> str:
    """A duration as `duration_s` reads it, in the unit that suits its size.

    Args:
        value_s: the duration [s]; not negative.

    Returns:
        Up to six digits and a unit.

    Example:
        >>> duration_text(0.025), duration_text(90.0), duration_text(3504.0)
        ('25ms', '90s', '58.4min')
    """
    least_s = {"h": 7200.0, "min": 120.0, "s": 1.0, "ms": 1e-3, "us": 1e-300}
    unit = next((name for name, least in least_s.items() if value_s >= least), "s")
    return f"{value_s / DURATION_S[unit]:.6g}{unit}"


def nearest(word: str, known: Iterable[str]) -> str:
    """What to say of a word that is not known: the nearest known one first, then all of them.

    Args:
        word: as written.
        known: the words that would have been understood.

    Returns:
        The end of an error message.

    Example:
        >>> nearest("poison", ["gamma", "poisson", "uniform"])
        'did you mean poisson? known: gamma, poisson, uniform'
    """
    words = list(known)
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.65)
    return (f"did you mean {near[0]}? " if near else "") + f"known: {', '.join(words)}"


def _quantity(text: str, rule: str, example: str) -> tuple[str, str]:
    match = QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{rule}, got {text!r}; write {example}")
    return match[1], match[2] or ""


def _within(text: str, value: float, span: tuple[float, float], rule: str, example: str) -> float:
    if value and not span[0] <= value <= span[1]:
        raise ValueError(f"{rule}, got {_short(text)}; write {example}")
    return value


def _short(text: str) -> str:
    """One line of a message, however long the text is."""
    shown = repr(text)
    return shown if len(shown) <= 60 else f"{shown[:56]}...'"


def _scaled(text: str, number: str, unit: str, units: dict[str, float], what: str, example: str) -> float:
    unit = unit.replace("µ", "u").replace("μ", "u")
    if unit not in units:
        known = ", ".join(name for name in units if name)
        raise ValueError(f"{what} in an unknown unit {unit!r}, got {text!r}; units: {known}; write {example}")
    value = float(number) * units[unit]
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{what} must be finite and not negative, got {_short(text)}; write {example}")
    return value
