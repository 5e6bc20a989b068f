"""Quantiles as they are shown: each with its interval, or a dash and, once for all, why there is none."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

TAILS = {"ttft_s": "TTFT", "itl_s": "ITL", "tpot_s": "TPOT"}
"""What quantiles are shown of."""

QUANTILE_WORDS = {"p50": "p50", "p90": "p90", "p99": "p99", "p999": "p99.9"}
"""The quantiles, by name."""


def tail(side: Any, name: str, q: str, show: Callable[[Any], str]) -> str:
    """One quantile.

    Args:
        side: figures by name.
        name: a key of TAILS.
        q: a key of QUANTILE_WORDS.
        show: writes a time.

    Returns:
        Such as "1.20 s [1.10 s, 1.40 s]", or "[1.10 s, open]"; a dash where it was refused, with the interval where there is one.

    Example:
        >>> tail({"ttft_s": {"p99": 1.2}, "ci95": {"ttft_s": {"p99": [1.1, 1.4]}}}, "ttft_s", "p99", "{} s".format)
        '1.2 s [1.1 s, 1.4 s]'
    """
    value, ends = _under(side, name, q), _under(side, "ci95", name, q)
    known = isinstance(ends, list | tuple) and len(ends) == 2 and ends[0] is not None
    return show(value) + (f" [{show(ends[0])}, {'open' if ends[1] is None else show(ends[1])}]" if known else "")


def refusals(sides: Mapping[str, Any], of_class: Container[str] | None = None) -> list[str]:
    """Why quantiles are not given, those with the same reason in one sentence; of a class, where the reason is its own.

    Args:
        sides: heading to figures.
        of_class: quantiles that are shown of a class, such as "ttft_s.p99"; None for all.

    Returns:
        Such as "no TTFT p99.9: needs 2,995 requests, has 400 (controller)", or "no TTFT p99 of batch: needs ...".
    """
    found: dict[tuple[str, str], list[str]] = {}
    for heading, side in sides.items():
        whole, classes = _under(side, "refused") or {}, _under(side, "classes") or {}
        refused = {("", place): why for place, why in whole.items()}
        for name in classes if len(classes) > 1 else ():
            for place, why in (_under(classes, name, "refused") or {}).items():
                if why != whole.get(place) and (of_class is None or place in of_class):
                    refused[f" of {name}", place] = why
        reasons: dict[tuple[str, str], list[str]] = {}
        for (of, place), why in refused.items():
            name, _, q = place.partition(".")
            reasons.setdefault((of, why), []).append(f"{TAILS.get(name, name)} {QUANTILE_WORDS.get(q, q)}")
        for (of, why), places in reasons.items():
            found.setdefault((", ".join(places) + of, why), []).append(heading.strip())
    return [f"no {places}: {why}" + (f" ({', '.join(who)})" if "" not in who else "") for (places, why), who in found.items()]


def _under(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
