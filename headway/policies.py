"""Policies as people write them: `order=edf,triage=defer,admission=lookahead`, by the names of the policy's own fields."""

from __future__ import annotations

import dataclasses
from typing import Any

from headway import units
from headway.controllers.policy import Policy

EXAMPLE = "order=slack,triage=reject,admission=lookahead"
"""What a policy looks like, for error messages."""


def parse_policy(text: str) -> dict[str, Any]:
    """What a policy is to have otherwise than it has.

    Args:
        text: `name=value,...` with names of `headway.controllers.policy.Policy`; sizes in tokens may be written 2k, and one
            number for each class is joined by colons, as in `class_shares=3:1`.

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
        if isinstance(like, tuple):
            return tuple(float(part) for part in value.split(":"))
        return float(units.tokens(value)) if name.endswith("_tokens") and value[-1].isalpha() else float(value)
    except ValueError:
        raise ValueError(f"policy {text!r}: {name} must be a number, got {value!r}") from None
