"""What the reader picked, as the URL holds it: which run, which other, and where sliders stand. A link shows the same page again."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode


def picks_of(search: str | None) -> dict[str, str]:
    """Read the query of a URL.

    Args:
        search: such as "?run=demo&margin=0.1".

    Returns:
        Text by name; the last of several.

    Example:
        >>> picks_of("?run=a%20b&margin=0.1")
        {'run': 'a b', 'margin': '0.1'}
    """
    return dict(parse_qsl((search or "").lstrip("?"), keep_blank_values=False, max_num_fields=64))


def search_of(picks: Mapping[str, object]) -> str:
    """The query of a URL for these picks.

    Args:
        picks: by name; None is left out.

    Returns:
        Query with its question mark; empty without picks.

    Example:
        >>> search_of({"run": "a b", "margin": 0.1, "other": None})
        '?run=a+b&margin=0.1'
    """
    text = urlencode({name: value for name, value in picks.items() if value is not None})
    return f"?{text}" if text else ""


def number_of(picks: Mapping[str, str], name: str, default: float) -> float:
    """A number from the URL.

    Args:
        picks: from `picks_of`.
        name: which.
        default: where it is missing or no finite number.

    Returns:
        Number.
    """
    try:
        value = float(picks[name])
    except (KeyError, ValueError):
        return default
    return value if abs(value) < 1e12 else default
