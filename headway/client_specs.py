"""What a spec says of the clients of a workload: how long they think and wait, whether they leave, what their prompts share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headway import units
from headway.models.durations import Durations, ExponentialTime, FixedTime, LogNormalTime
from headway.models.impatience import Impatient, Leaving
from headway.models.shared_prefixes import UNIT_TOKENS, Shared, SharedPrefixes
from headway.models.workload import WorkloadSource
from headway.spec_forms import Form, member, wrong

EXAMPLE = "poisson:rate=5/s,prompt=600,output=geometric(200),patience=exponential(5s),prefix=1024,prefixes=8"
"""A whole spec, for error messages."""

DURATIONS: dict[str, Form[Durations]] = {
    "exponential": Form(ExponentialTime, {"mean": ("mean_s", units.duration_s)}, ("mean",)),
    "lognormal": Form(LogNormalTime, {"median": ("median_s", units.duration_s), "sigma": ("sigma", units.number)}, ("median", "sigma")),
    "constant": Form(FixedTime, {"value": ("value_s", units.duration_s)}, ("value",)),
}
"""Distributions of times by name."""

OF_CLASS = ("patience", "patience_share", "cancel", "cancel_share", "prefix", "prefixes")
"""What may be said of the clients of one class, `NAME.CLASS=`, or of all."""

CLIENT_NAMES = (*OF_CLASS, "prefix_unit")
"""What may be said of clients, in specs and behind the names of files."""


def durations(where: str, value: str, example: str = EXAMPLE) -> Durations:
    """A distribution of times from its text.

    Args:
        where: `name=value`, for error messages.
        value: such as `2s`, `exponential(2s)`, `lognormal(2s,0.8)`.
        example: of a whole spec, for error messages.

    Returns:
        A checked distribution.

    Raises:
        ValueError: a text that is not understood, or a parameter out of range.

    Example:
        >>> durations("think=2s", "2s")
        FixedTime(value_s=2.0)
    """
    return member(where, value, DURATIONS, "a time such as 2s", "times", example)


def behind(text: str) -> tuple[str, str]:
    """A name of a workload file, and what is said of its clients behind it.

    Args:
        text: such as `azure.csv,patience=2s`.

    Returns:
        (the name, `patience=2s` or nothing).

    Example:
        >>> behind("azure:logs/a,b.csv@8/s,patience.chat=2s,cancel=1min")
        ('azure:logs/a,b.csv@8/s', 'patience.chat=2s,cancel=1min')
    """
    found = re.search(rf",\s*(?=(?:{'|'.join(CLIENT_NAMES)})(?:\.[\w-]+)?\s*=)", text)
    return (text, "") if found is None else (text[: found.start()].strip(), text[found.end() :])


class _Said(NamedTuple):
    """Texts by name, and the classes they may speak of."""

    given: Mapping[str, str]
    classes: Sequence[str]

    def of(self, name: str, one: str) -> tuple[str, str] | None:
        """(`name=value`, value) of a class: its own, else that of all."""
        key = f"{name}.{one}" if f"{name}.{one}" in self.given else name
        return (f"{key}={self.given[key]}", self.given[key]) if key in self.given else None


def with_clients(source: WorkloadSource, given: Mapping[str, str], classes: Sequence[str], text: str) -> WorkloadSource:
    """A workload with what is said of its clients.

    Args:
        source: the workload without.
        given: texts by name, `CLIENT_NAMES` and those with `.CLASS`.
        classes: names of the classes.
        text: what the workload is called with all of it.

    Returns:
        The source as it is where nothing is said.

    Raises:
        ValueError: a name, a class or a value that is not understood, or a share of what is not given.
    """
    said = _Said(given, classes)
    for name, value in given.items():
        what, dot, one = name.partition(".")
        if what not in CLIENT_NAMES or (dot and what not in OF_CLASS):
            raise wrong(f"{name}={value}", f"unknown name {name!r}; {units.nearest(name, CLIENT_NAMES)}", EXAMPLE)
        if dot and one not in classes:
            raise wrong(f"{name}={value}", f"unknown class {one!r}; {units.nearest(one, classes)}", EXAMPLE)
    for part, whole in (("patience_share", "patience"), ("cancel_share", "cancel"), ("prefixes", "prefix"), ("prefix_unit", "prefix")):
        named = {name.split(".")[0] for name in given}
        if part in named and whole not in named:
            raise wrong(f"{part}=...", f"{part} needs {whole}", EXAMPLE)
    shared = tuple(_shared(said, one) for one in classes)
    if any(shared):
        unit = _value("prefix_unit", said.of("prefix_unit", ""), units.tokens) or UNIT_TOKENS
        source = _checked(SharedPrefixes(source, shared, unit, text), given)
    patience, cancel = (tuple(_leaving(said, name, one) for one in classes) for name in ("patience", "cancel"))
    if any(patience) or any(cancel):
        source = _checked(Impatient(source, patience, cancel, text), given)
    return source


def _leaving(said: _Said, name: str, one: str) -> Leaving | None:
    found = said.of(name, one)
    if found is None:
        return None
    share = _value(f"{name}_share", said.of(f"{name}_share", one), units.share)
    return Leaving(durations(*found), 1.0 if share is None else share)


def _shared(said: _Said, one: str) -> Shared | None:
    tokens = _value("prefix", said.of("prefix", one), units.tokens)
    return None if tokens is None else Shared(tokens, _value("prefixes", said.of("prefixes", one), units.whole) or 1)


def _value(name: str, found, read):
    """What stands at a name, None where nothing does."""
    if found is None:
        return None
    try:
        return read(found[1])
    except ValueError as error:
        raise wrong(found[0], f"{name}: {error}", EXAMPLE) from error


def _checked(source, given: Mapping[str, str]):
    try:
        source.check()
    except ValueError as error:
        raise wrong(",".join(f"{name}={value}" for name, value in given.items()), str(error), EXAMPLE) from error
    return source
