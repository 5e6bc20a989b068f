"""The language in which a synthetic workload is asked for: `arrivals:rate=...,prompt=...,output=...`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from headway import units
from headway.models.generators import Arrivals, Gamma, Poisson, Synthetic, Uniform
from headway.models.lengths import Constant, Geometric, Lengths, LogNormal, UniformLengths

EXAMPLE = "poisson:rate=5/s,prompt=lognormal(median=600,sigma=0.8),output=geometric(200)"
"""A whole spec, for error messages."""

Family = TypeVar("Family", Arrivals, Lengths)


def _rate(text: str) -> float:
    return units.rate_rps(text, bare=True)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"a number is expected, got {text!r}") from None


def _size(text: str) -> float:
    """A mean or median: tokens, but not necessarily whole."""
    return float(units.tokens(text)) if text.endswith(("k", "K", "M", "m")) else _number(text)


class Form(NamedTuple, Generic[Family]):
    """One member of a family, as it is written.

    Args:
        make: builds it from its fields.
        reads: for each name in the text, the field it fills and how its value is read; in order, for values without a name.
        needed: names that cannot be left out.
    """

    make: Callable[..., Family]
    reads: dict[str, tuple[str, Callable[[str], float]]]
    needed: tuple[str, ...]


ARRIVALS: dict[str, Form[Arrivals]] = {
    "poisson": Form(Poisson, {"rate": ("rate_rps", _rate)}, ("rate",)),
    "gamma": Form(Gamma, {"rate": ("rate_rps", _rate), "cv": ("cv", _number)}, ("rate", "cv")),
    "uniform": Form(Uniform, {"rate": ("rate_rps", _rate)}, ("rate",)),
}
"""Processes of arrivals by name."""

BOUNDS: dict[str, tuple[str, Callable[[str], float]]] = {"min": ("low", units.tokens), "max": ("high", units.tokens)}

LENGTHS: dict[str, Form[Lengths]] = {
    "lognormal": Form(LogNormal, {"median": ("median", _size), "sigma": ("sigma", _number), **BOUNDS}, ("median", "sigma")),
    "uniform": Form(UniformLengths, BOUNDS, ("min", "max")),
    "geometric": Form(Geometric, {"mean": ("mean", _size)}, ("mean",)),
    "constant": Form(Constant, {"value": ("value", units.tokens)}, ("value",)),
}
"""Distributions of lengths by name."""


def synthetic(
    text: str, *, rate_rps: float | None = None, classes: Sequence[str] = ("default",), shares: Sequence[float] = (1.0,)
) -> Synthetic:
    """The source that a spec describes.

    Args:
        text: `arrivals:name=value,...` with the parameters of the arrivals, `prompt` and `output`, and for a class that
            differs `prompt.NAME` and `output.NAME`.
        rate_rps: in place of the rate in the text [requests/s]; None takes that.
        classes: names of the classes.
        shares: part of the requests in each class, shape (classes,); sums to 1.

    Returns:
        A checked source, whose `source` is the text.

    Raises:
        ValueError: anything in the text that is not understood: what, where, what was expected, an example.

    Example:
        >>> synthetic("gamma:rate=5/s,cv=4,prompt=uniform(16,512),output=64").arrivals
        Gamma(rate_rps=5.0, cv=4.0)
    """
    kind, _, rest = text.partition(":")
    kind = kind.strip()
    if kind not in ARRIVALS:
        raise _wrong(text, f"unknown arrivals {kind!r}; {units.nearest(kind, ARRIVALS)}")
    if not rest.strip():
        raise _wrong(text, f"{kind} needs {', '.join(ARRIVALS[kind].needed)}, prompt and output")
    given = _items(rest)
    timing = {name: value for name, value in given.items() if name.partition(".")[0] not in ("prompt", "output")}
    known = (*ARRIVALS[kind].reads, "prompt", "output")
    for name, value in given.items():
        what, dot, one = name.partition(".")
        if what not in known or (dot and name in timing):
            raise _wrong(f"{name}={value}", f"unknown name {name!r}; {units.nearest(name, known)}")
        if dot and one not in classes:
            raise _wrong(f"{name}={value}", f"unknown class {one!r}; {units.nearest(one, classes)}")
    if rate_rps is not None:
        timing["rate"] = f"{float(rate_rps)!r}/s"
    prompt, output = (tuple(_lengths(text, given, what, one) for one in classes) for what in ("prompt", "output"))
    source = text.strip() if rate_rps is None else f"{text.strip()} at {rate_rps:g}/s"
    where = f"{kind}:{','.join(f'{name}={value}' for name, value in timing.items())}"
    made = Synthetic(_made(where, kind, ARRIVALS[kind], timing), prompt, output, tuple(shares), source)
    made.check()
    return made


def _items(rest: str) -> dict[str, str]:
    """Names and values between the commas that stand outside of brackets."""
    given: dict[str, str] = {}
    for item in re.split(r",(?![^(]*\))", rest):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not name or not value:
            raise _wrong(item, f"expected name=value, found {item.strip()!r}")
        if name in given:
            raise _wrong(item, f"{name} is given twice; write it once")
        given[name] = value
    return given


def _lengths(text: str, given: dict[str, str], what: str, one: str) -> Lengths:
    """The lengths of one class: its own if it has some, else those of all."""
    key = f"{what}.{one}" if f"{what}.{one}" in given else what
    if key not in given:
        every = f"{what}=..." if one == "default" else f"{what}=... for all or {what}.{one}=..."
        raise _wrong(text, f"no {what} lengths{'' if one == 'default' else f' for class {one!r}'}; add {every}")
    value, where = given[key], f"{key}={given[key]}"
    if re.fullmatch(r"[+-]?[\d.][\w.]*", value):
        value = f"constant({value})"
    match = re.fullmatch(r"(\w+)\s*\(([^()]*)\)", value)
    if match is None:
        raise _wrong(where, f"expected a number of tokens or one of {', '.join(LENGTHS)} with its (...)")
    kind, inside = match[1], match[2]
    if kind not in LENGTHS:
        raise _wrong(where, f"unknown lengths {kind!r}; {units.nearest(kind, LENGTHS)}")
    return _made(where, kind, LENGTHS[kind], _arguments(where, kind, inside))


def _arguments(where: str, kind: str, inside: str) -> dict[str, str]:
    """What stands in the brackets: values with names, or without in the family's own order."""
    names = list(LENGTHS[kind].reads)
    given: dict[str, str] = {}
    for place, item in enumerate(inside.split(",")):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            name, value = (names[place] if place < len(names) else ""), name
        if name not in names or not value or name in given:
            raise _wrong(where, f"{kind} takes {', '.join(names)}, each once, found {item.strip()!r}")
        given[name] = value
    return given


def _made(where: str, kind: str, form: Form[Family], given: dict[str, str]) -> Family:
    """A member of a family from the texts of its parameters."""
    for name in form.needed:
        if name not in given:
            raise _wrong(where, f"{kind} needs {name}")
    fields = {}
    for name, value in given.items():
        try:
            fields[form.reads[name][0]] = form.reads[name][1](value)
        except ValueError as error:
            raise _wrong(where, f"{name} of {kind}: {error}") from error
    made = form.make(**fields)
    try:
        made.check()
    except ValueError as error:
        raise _wrong(where, str(error)) from error
    return made


def _wrong(where: str, what: str) -> ValueError:
    """One line: where in the spec, what is wrong, and what a right one looks like, unless that is said already."""
    where = " ".join(where.split())
    where = where if len(where) <= 120 else where[:117] + "..."
    example = "" if "; write " in what else f"; write for example {EXAMPLE}"
    return ValueError(f"workload {where}: {what}{example}")
