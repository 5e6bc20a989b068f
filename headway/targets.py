"""Targets as people write them: `ttft=1s,itl=25ms` for one class, a TOML file for several."""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from pathlib import Path
from typing import Any

from headway import units
from headway.identification.readers.errors import TraceError
from headway.models.signals import LEVELS, Target

EXAMPLE = "ttft=1s,itl=25ms,transport=2ms"
"""What a target looks like, for error messages."""

NAMES = ("ttft", "itl", "transport", "epsilon", "level")
"""What a target string may hold."""

CLASS_NAMES = ("name", "share", *NAMES)
"""What a class in a TOML file may hold."""


def parse_target(text: str, *, epsilon: float | None = None) -> tuple[tuple[Target, ...], list[str]]:
    """What clients were promised: one class from a string, or one or several from a TOML file.

    Args:
        text: `ttft=1s,itl=25ms`, with `transport=2ms`, `epsilon=1%` and `level=request` if wanted; or the path of a TOML file with a
            `[[class]]` for each: name, share, ttft, itl, transport, epsilon, level.
        epsilon: in place of every epsilon in the text; in (0, 1). None leaves them.

    Returns:
        The targets, one per class, checked; and notes: a sentence on each thing that was taken for granted.

    Raises:
        TraceError: a TOML file that is missing, no TOML, or holds a name or value that is not what it should be.
        ValueError: a target string with a name or value that is not what it should be, or a target that cannot be held.

    Example:
        >>> targets, notes = parse_target("ttft=1s,itl=25ms,transport=2ms")
        >>> targets[0].ttft_s, targets[0].itl_s, round(targets[0].budget_s, 6), notes
        (1.0, 0.025, 0.023, [])
    """
    # os.path, because a Path raises where a text is too long for a file name.
    if os.path.isfile(text) or ("=" not in text and text.strip().endswith(".toml")):
        targets, silent = _from_toml(text)
    else:
        targets, silent = _from_string(text)
    if epsilon is not None:
        targets = tuple(dataclasses.replace(target, epsilon=epsilon) for target in targets)
    for target in targets:
        target.check()
    where = f" for {', '.join(silent)}" if len(targets) > 1 else ""
    note = f"transport is 0{where}: the targets hold where the engine emits a token, not where the client receives it"
    return targets, [note] if silent else []


def _from_string(text: str) -> tuple[tuple[Target, ...], list[str]]:
    """The one target, and the names of the classes that say nothing of transport."""
    given: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise ValueError(f"target {text!r}: expected name=value, found {part.strip()!r}; write {EXAMPLE}, or name a TOML file")
        if name not in NAMES:
            raise ValueError(f"target {text!r}: unknown name {name!r}; {units.nearest(name, NAMES)}")
        if name in given:
            raise ValueError(f"target {text!r}: {name} is given twice; write it once")
        given[name] = value
    for name in ("ttft", "itl"):
        if name not in given:
            raise ValueError(f"target {text!r}: {name} is missing; write for example {EXAMPLE}")
    try:
        return (_target(given),), [] if "transport" in given else ["default"]
    except ValueError as error:
        raise ValueError(f"target {text!r}: {error}") from error


def _from_toml(path: str) -> tuple[tuple[Target, ...], list[str]]:
    """The targets, and the names of the classes that say nothing of transport."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise TraceError(path, "a TOML file that exists") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TraceError(path, f"a TOML file ({error})") from error
    classes = table.get("class")
    for name in table:
        if name != "class":
            raise TraceError(path, "nothing but [[class]] tables at the top", found=name)
    if not isinstance(classes, list) or not classes or not all(isinstance(one, dict) for one in classes):
        raise TraceError(path, "a table [[class]] for each class, with name, share, ttft and itl")
    targets = tuple(_class(path, one, number, alone=len(classes) == 1) for number, one in enumerate(classes, start=1))
    names = [target.name for target in targets]
    for name in names:
        if names.count(name) > 1:
            raise TraceError(path, "a name of its own for each class", found=name)
    total = sum(target.share for target in targets)
    if abs(total - 1.0) > 1e-6:
        parts = " + ".join(f"{target.share:g}" for target in targets)
        raise TraceError(path, f"shares that sum to 1, not to {total:.6g} ({parts})")
    return targets, [target.name for target, one in zip(targets, classes, strict=True) if "transport" not in one]


def _class(path: str, given: dict[str, Any], number: int, *, alone: bool) -> Target:
    name = given.get("name", "default" if alone else None)
    where = f"class {number}" + (f" ({name})" if isinstance(name, str) else "")
    if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z][\w-]*", name)):
        raise TraceError(path, f"in {where} a name of letters, digits, - and _, a letter first", found=name)
    for key in given:
        if key not in CLASS_NAMES:
            raise TraceError(path, f"in {where} nothing but {', '.join(CLASS_NAMES)}", found=key)
    for key in ("ttft", "itl") if alone else ("share", "ttft", "itl"):
        if key not in given:
            raise TraceError(path, f"in {where} a line {key} = ...")
    if given.get("level", "token") not in LEVELS:
        raise TraceError(path, f"in {where} a level that this version knows: {', '.join(LEVELS)}", found=given["level"])
    for key in ("ttft", "itl", "transport"):
        if not isinstance(given.get(key, ""), str):
            raise TraceError(path, f'in {where} {key} with its unit and in quotes, such as "25ms"', found=given[key])
    try:
        target = _target(given, name)
        target.check()
    except ValueError as error:
        raise TraceError(path, f"in {where} values that a target can have: {error}") from error
    return target


def _target(given: dict[str, Any], name: str = "default") -> Target:
    """A target from texts; a number stands for a fraction."""
    values = {f"{key}_s": units.duration_s(given[key]) for key in ("ttft", "itl", "transport") if key in given}
    parts = {key: units.share(str(given[key])) for key in ("share", "epsilon") if key in given}
    return Target(**values, **parts, name=name, level=given.get("level", "token"))
