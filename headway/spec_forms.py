"""How specs are written: `kind:name=value,...` and `family(value,...)`, and how a wrong one is refused in one line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from headway import units

EXAMPLE = "poisson:rate=5/s,prompt=lognormal(median=600,sigma=0.8),output=geometric(200)"
"""A whole spec, for error messages."""


class Checked(Protocol):
    """What can refuse its own parameters."""

    def check(self) -> None:
        """Refuse parameters out of range."""


Family = TypeVar("Family", bound=Checked)


class Form(NamedTuple, Generic[Family]):
    """One member of a family, as it is written.

    Args:
        make: builds it from its fields.
        reads: for each name in the text, the field it fills and how its value is read; in order, for values without a name.
        needed: names that cannot be left out.
        example: of a whole spec with it, for error messages.
    """

    make: Callable[..., Family]
    reads: dict[str, tuple[str, Callable[[str], Any]]]
    needed: tuple[str, ...]
    example: str = EXAMPLE


class SpecError(ValueError):
    """A spec that is not understood, said in full: nothing is to be put around it."""


def items(rest: str) -> dict[str, str]:
    """Names and values between the commas that stand outside of brackets.

    Args:
        rest: `name=value,...`.

    Returns:
        Values by name.

    Raises:
        ValueError: no name or no value, or a name that is given twice.

    Example:
        >>> items("rate=5/s,prompt=uniform(16,512)")
        {'rate': '5/s', 'prompt': 'uniform(16,512)'}
    """
    given: dict[str, str] = {}
    for item in re.split(r",(?![^(]*\))", rest):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not name or not value:
            raise wrong(item, f"expected name=value, found {item.strip()!r}")
        if name in given:
            raise wrong(item, f"{name} is given twice; write it once")
        given[name] = value
    return given


def member(where: str, value: str, forms: Mapping[str, Form[Family]], bare: str, what: str, example: str = EXAMPLE) -> Family:
    """A member of a family from its text: `family(value,...)`, or a bare number for the constant one.

    Args:
        where: `name=value`, for error messages.
        value: the text.
        forms: the family, "constant" among it.
        bare: what a text without brackets is, for error messages.
        what: the family in words, for error messages.
        example: of a whole spec with one, for error messages.

    Returns:
        A checked member.

    Raises:
        ValueError: a text that is not understood, or a parameter out of range.
    """
    if re.fullmatch(r"[+-]?[\d.][\w.]*", value):
        value = f"constant({value})"
    match = re.fullmatch(r"(\w+)\s*\(([^()]*)\)", value)
    if match is None:
        raise wrong(where, f"expected {bare} or one of {', '.join(forms)} with its (...)", example)
    kind, inside = match[1], match[2]
    if kind not in forms:
        raise wrong(where, f"unknown {what} {kind!r}; {units.nearest(kind, forms)}", example)
    form = forms[kind]._replace(example=example)
    return made(where, kind, form, _arguments(where, kind, form, inside))


def _arguments(where: str, kind: str, form: Form[Any], inside: str) -> dict[str, str]:
    """What stands in the brackets: values with names, or without in the family's own order."""
    names = list(form.reads)
    given: dict[str, str] = {}
    for place, item in enumerate(inside.split(",")):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            name, value = (names[place] if place < len(names) else ""), name
        if name not in names or not value or name in given:
            raise wrong(where, f"{kind} takes {', '.join(names)}, each once, found {item.strip()!r}", form.example)
        given[name] = value
    return given


def made(where: str, kind: str, form: Form[Family], given: Mapping[str, str]) -> Family:
    """A member of a family from the texts of its parameters.

    Args:
        where: for error messages.
        kind: its name.
        form: how it is written.
        given: texts by name.

    Returns:
        A checked member.

    Raises:
        ValueError: a parameter that is missing, is not understood or is out of range.
    """
    for name in form.needed:
        if name not in given:
            raise wrong(where, f"{kind} needs {name}", form.example)
    fields = {}
    for name, value in given.items():
        try:
            fields[form.reads[name][0]] = form.reads[name][1](value)
        except SpecError:
            raise
        except ValueError as error:
            raise wrong(where, f"{name} of {kind}: {error}", form.example) from error
    found = form.make(**fields)
    try:
        found.check()
    except ValueError as error:
        raise wrong(where, str(error), form.example) from error
    return found


def wrong(where: str, what: str, example: str = EXAMPLE) -> SpecError:
    """One line: where in the spec, what is wrong, and what a right one looks like, unless that is said already.

    Args:
        where: the part of the spec.
        what: is wrong with it.
        example: of a right one.

    Returns:
        The error to raise.
    """
    where = " ".join(where.split())
    where = where if len(where) <= 120 else where[:117] + "..."
    shown = "" if "; write " in what else f"; write for example {example}"
    return SpecError(f"workload {where}: {what}{shown}")
