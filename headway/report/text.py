"""Numbers as the report writes them: shares, times, counts and intervals, with a dash for what cannot be said."""

from __future__ import annotations

import html
import math
import re
from typing import Any

from headway.cli.terminal import unsigned_zero

NONE = "–"  # noqa: RUF001
"""What stands where there is no number."""

MINUS = "−"  # noqa: RUF001


def number(value: Any) -> float | None:
    """A number, if there is one.

    Args:
        value: from a JSON file.

    Returns:
        The number; None for null, NaN, infinity and anything that is no number.
    """
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None


def percent(value: Any, digits: int = 1) -> str:
    """A share in percent. What is not quite all is not rounded to all, and what is not quite nothing not to nothing.

    Args:
        value: share; None where unknown.
        digits: after the point, at least; one more below 1 %.

    Returns:
        The text.

    Example:
        >>> percent(0.0123), percent(0.0025), percent(0.99962), percent(1.0), percent(0), percent(None)
        ('1.2 %', '0.25 %', '99.96 %', '100 %', '0 %', '–')
    """
    share = number(value)
    if share is None:
        return NONE
    if share in (0.0, 1.0):
        return f"{100 * abs(share):.0f} %"
    digits += digits > 0 and abs(share) < 0.01
    while digits < 5 and abs(float(f"{100 * share:.{digits}f}")) in (0.0, 100.0):
        digits += 1
    return f"{signed(100 * share, f'.{digits}f')} %"


def change(value: Any, digits: int = 1) -> str:
    """A relative change in percent, with its sign.

    Args:
        value: ratio minus 1; None where unknown.
        digits: after the point, at least.

    Returns:
        The text.

    Example:
        >>> change(0.0735), change(-0.0005)
        ('+7.3 %', '−0.05 %')
    """
    share = number(value)
    text = percent(share, digits)
    return text if share is None or share <= 0 or not text.strip("0. %") else f"+{text}"


def signed(value: float, form: str = "+.1f") -> str:
    """A number in a form, with a minus of its own width; one that is rounded to zero has no sign.

    Args:
        value: number.
        form: of Python's format.

    Returns:
        The text.

    Example:
        >>> signed(-0.04), signed(1.26), signed(-2.0)
        ('0.0', '+1.3', '−2.0')
    """
    return unsigned_zero(f"{value:{form}}").replace("-", MINUS)


def between(ends: Any, show: Any = change) -> str:
    """A 95 % interval.

    Args:
        ends: [low, high]; None, or None inside, where unknown.
        show: writes one end.

    Returns:
        "(low to high)" with a space before it; empty where unknown.
    """
    if not isinstance(ends, list | tuple) or len(ends) != 2 or any(number(x) is None for x in ends):
        return ""
    return f" ({show(ends[0])} to {show(ends[1])})"


def time(value_s: Any) -> str:
    """A duration in milliseconds, or in seconds from one second on, to three digits.

    Args:
        value_s: [s]; None where unknown.

    Returns:
        The text.

    Example:
        >>> time(0.0220045), time(0.4107), time(1.0), time(12.34)
        ('22.0 ms', '411 ms', '1.00 s', '12.3 s')
    """
    known = number(value_s)
    if known is None:
        return NONE
    scaled, unit = (known, "s") if abs(known) >= 0.9995 else (1e3 * known, "ms")
    size = abs(scaled)
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{unsigned_zero(f'{scaled:.{digits}f}')} {unit}"


def given(value_s: Any) -> str:
    """A duration that a person gave, no more exact than it was given.

    Args:
        value_s: [s]; None where unknown.

    Returns:
        The text.

    Example:
        >>> given(0.025), given(1.0), given(0.0125)
        ('25 ms', '1 s', '12.5 ms')
    """
    known = number(value_s)
    return NONE if known is None else f"{known:.6g} s" if known >= 1 else f"{1e3 * known:.6g} ms"


def count(value: Any) -> str:
    """A whole number with its thousands apart.

    Args:
        value: number; None where unknown.

    Returns:
        The text.
    """
    known = number(value)
    return NONE if known is None else unsigned_zero(f"{known:,.0f}")


def digits(value: Any, significant: int = 4) -> str:
    """A number to so many significant digits.

    Args:
        value: number; None where unknown.
        significant: digits.

    Returns:
        The text.

    Example:
        >>> digits(-0.40742), digits(200000), digits(3.0e-8)
        ('−0.4074', '200,000', '3e-08')
    """
    known = number(value)
    if known is None:
        return NONE
    text = unsigned_zero(f"{known:,.0f}" if abs(known) >= 10**significant else f"{known:,.{significant}g}")
    return text.replace("-", MINUS) if abs(known) >= 1e-4 else text


def sentence(text: Any) -> str:
    """Words as a sentence.

    Args:
        text: without its capital, and with or without its full stop.

    Returns:
        The sentence; empty for no words.

    Example:
        >>> sentence("two are left"), sentence("One is left.")
        ('Two are left.', 'One is left.')
    """
    words = str(text or "")
    return words and f"{words[:1].upper()}{words[1:]}" + ("" if words.endswith((".", "?", "!")) else ".")


def escape(text: Any) -> str:
    """Text as HTML: escaped, and with units kept on the line of their numbers.

    Args:
        text: anything a person may have written.

    Returns:
        HTML.
    """
    return held(html.escape(str(text)))


def held(text: str) -> str:
    """Text whose units stay on the line of their numbers.

    Args:
        text: plain, or HTML.

    Returns:
        The same with spaces that do not break.
    """
    return re.sub(r"(?<=\d) (?=%|(?:ms|s|s/s|tokens|requests)\b)", "\N{NO-BREAK SPACE}", text)
