"""Policies as people write them: `order=edf,triage=defer,admission=lookahead`, by the names of the policy's own fields."""

from __future__ import annotations

import dataclasses
from typing import Any

from headway import units
from headway.controllers.policy import EITHER, Policy

EXAMPLE = "order=slack,triage=reject,admission=lookahead"
"""What a policy looks like, for error messages."""

EACH = {"class_shares": "3:1", "priority_s": "500ms:0s", "tolerance": "-0.2:0.1", "estimate": "0.8:1.2"}
"""How one number per class is written, for error messages."""


def parse_policy(text: str) -> dict[str, Any]:
    """What a policy is to have otherwise than it has.

    Args:
        text: `name=value,...` with names of `headway.controllers.policy.Policy`. Sizes in tokens may be written 2k, times 200ms;
            one number for each class, in the order of the targets, is joined by colons, as in `class_shares=3:1`; `tolerance` and
            `estimate` take one number for all classes or one for each.

    Returns:
        Value by field; empty for an empty text.

    Raises:
        ValueError: a name or a value that no policy has: what, where, what was expected.

    Example:
        >>> parse_policy("order=edf,chunk_tokens=2k")
        {'order': 'edf', 'chunk_tokens': 2000.0}
    """
    start = Policy()
    fields = [field.name for field in dataclasses.fields(start)]  # pyright: ignore[reportArgumentType]  # a dataclass by @pytree
    given: dict[str, Any] = {}
    for part in filter(str.strip, text.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise ValueError(f"policy {text!r}: expected name=value, found {part.strip()!r}; write for example {EXAMPLE}")
        if name not in fields:
            raise ValueError(f"policy {text!r}: unknown name {name!r}; {units.nearest(name, fields)}")
        if name in given:
            raise ValueError(f"policy {text!r}: {name} is given twice; write it once")
        given[name] = _value(text, name, value, getattr(start, name))
    try:
        dataclasses.replace(start, **given).check()  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        raise ValueError(f"policy {text!r}: {error}") from None
    return given


def _value(text: str, name: str, value: str, like: Any) -> Any:
    """A value of the kind that the field has: a choice, one number, or one for each class."""
    if isinstance(like, str):
        return value
    try:
        if isinstance(like, tuple) or (name in EITHER and ":" in value):
            return tuple(_number(name, part.strip()) for part in value.split(":"))
        return _number(name, value)
    except ValueError:
        each = f"numbers joined by colons, one per class, as in {name}={EACH[name]}" if name in EACH else ""
        kind = each if isinstance(like, tuple) else f"a number, or {each}" if each else "a number"
        raise ValueError(f"policy {text!r}: {name} must be {kind}, got {value!r}") from None


def _number(name: str, text: str) -> float:
    """One number; with a unit where the field has one that people write."""
    if text[-1:].isalpha() and name.endswith("_tokens"):
        return float(units.tokens(text))
    if text[-1:].isalpha() and name.endswith("_s"):
        return units.duration_s(text)
    return float(text)
