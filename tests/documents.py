"""Reads the documentation as a reader does: commands in blocks, run in order in one shell, and what each is said to print."""

from __future__ import annotations

import itertools
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

BLOCK = re.compile(r"(?:^<!-- (?P<mark>[^\n]*?) -->\n+)?^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"([+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)( ?%)?")
SHARE = 0.05
"""How far a number may be from the one in the text.

Seeds are the same, so on one kind of machine the numbers are equal. numba compiles for the processor at hand, and another one rounds
otherwise in the last bit; a step at the edge of the budget may then carry a token more or less, and from there on a run goes its own
way, as with another seed. Runs of 400 requests in 5 to 40 seeds leave an attainment, a quantile or a goodput within some per cent of
itself; 5 % is about the half width of the intervals that the commands print beside them.
"""
POINTS = 1.0
"""Likewise for a percentage, in points: 2.1 % of the requests shed is no other finding than 1.6 %."""


class Said(NamedTuple):
    """A block of commands, and what it is said to print.

    Args:
        commands: of a block.
        output: of the text block behind it; None where there is none.
        mark: words of the comment before either block, such as "exit 1" or "not compared: a date".
        line: of the document.
        place: where the output's text stands in the document, as (first, after last) characters; None likewise.
    """

    commands: str
    output: str | None
    mark: str
    line: int
    place: tuple[int, int] | None


def blocks(text: str) -> list[Said]:
    """The blocks of commands of a document, those marked "not run" left out.

    Args:
        text: of the document.

    Returns:
        In order.
    """
    found, matches = [], list(BLOCK.finditer(text))
    for this, after in itertools.zip_longest(matches, matches[1:]):
        if this["kind"] != "sh" or (this["mark"] or "").startswith("not run"):
            continue
        line = text.count("\n", 0, this.start()) + 1
        if after is None or after["kind"] != "text" or text[this.end() : after.start()].strip():
            found.append(Said(this["body"], None, this["mark"] or "", line, None))
        else:
            marks = "; ".join(filter(None, (this["mark"], after["mark"])))
            found.append(Said(this["body"], after["body"], marks, line, after.span("body")))
    return found


class Ran(NamedTuple):
    """What became of a block.

    Args:
        output: on standard output.
        errors: on standard error.
        status: exit status of its last command that failed, else 0.
    """

    output: str
    errors: str
    status: int


def run(said: list[Said], folder: Path) -> list[Ran]:
    """Run blocks in one shell, in order.

    Args:
        said: the blocks.
        folder: to run them in.

    Returns:
        One for each block.
    """
    kept = folder / ".output"
    kept.mkdir(exist_ok=True)
    parts = ["set -E\ntrap 'bad=$?' ERR\n"]
    for k, one in enumerate(said):
        parts.append(f"bad=0\n{{\n{one.commands}}} >'{kept}/{k}.out' 2>'{kept}/{k}.err'\necho $bad >'{kept}/{k}.rc'\n")
    script = kept / "script.sh"
    script.write_text("".join(parts))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    subprocess.run(["bash", str(script)], cwd=folder, check=True, env={**os.environ, "PATH": path, "COLUMNS": "200"})
    return [
        Ran((kept / f"{k}.out").read_text(), (kept / f"{k}.err").read_text(), int((kept / f"{k}.rc").read_text())) for k in range(len(said))
    ]


def difference(told: str, found: str) -> str | None:
    """Where a printed text departs from the one in the document: the words must be the same, the numbers close.

    Args:
        told: in the document; a line "..." stands for any number of lines.
        found: what was printed.

    Returns:
        A sentence; None where they agree.
    """
    lines, at = found.splitlines(), 0
    for free, part in _parts(told):
        starts = range(at, len(lines) - len(part) + 1) if free else range(at, at + 1)
        nearest, hit = "", None
        for start in starts:
            bad = _first_bad(part, lines[start : start + len(part)])
            if bad is None:
                hit = start
                break
            nearest = nearest or bad
        if hit is None:
            return nearest or f"nothing is printed like {part[0]!r}"
        at = hit + len(part)
    if at < len(lines) and not told.rstrip().endswith("..."):
        return f"more is printed: {lines[at]!r}"
    return None


def _parts(told: str) -> list[tuple[bool, list[str]]]:
    """Runs of lines, each with whether any lines may stand before it."""
    parts: list[tuple[bool, list[str]]] = [(False, [])]
    for line in told.splitlines():
        if line.strip() == "...":
            parts.append((True, []))
        else:
            parts[-1][1].append(line)
    return [part for part in parts if part[1]]


def _first_bad(told: list[str], found: list[str]) -> str | None:
    for one, other in itertools.zip_longest(told, found):
        if one is None or other is None or not alike(one, other):
            return f"told {one!r}, printed {other!r}"
    return None


def alike(told: str, found: str) -> bool:
    """Whether two lines say the same.

    Args:
        told: in the document; its end may be cut, marked by " ...".
        found: printed.

    Returns:
        The words are equal, and each number is within SHARE of the other, or within a unit of its last digit, a percentage within POINTS.
    """
    if told.endswith(" ..."):
        words = len(told[:-4].split())
        told, found = told[:-4], " ".join(found.split()[:words])
    words = [" ".join(NUMBER.sub(r"#\2", line).split()) for line in (told, found)]
    if words[0] != words[1]:
        return False
    return all(_close(a, b, bool(unit)) for (a, unit), (b, _) in zip(NUMBER.findall(told), NUMBER.findall(found), strict=True))


def _close(told: str, found: str, percentage: bool) -> bool:
    a, b = (float(text.replace(",", "")) for text in (told, found))
    last = 10.0 ** -len(told.partition(".")[2].partition("e")[0])
    return math.isclose(a, b, rel_tol=SHARE, abs_tol=max(last, POINTS) if percentage else last)


def refreshed(told: str, found: str) -> str:
    """The text for the document, with the numbers of today: for whoever has seen why they moved.

    Args:
        told: in the document.
        found: printed.

    Returns:
        Every line whose words were printed, as they were printed, and the others as they stand.
    """
    left, lines = found.splitlines(), []
    for line in told.splitlines():
        words = lambda text: " ".join(NUMBER.sub(r"#\2", text).split())  # noqa: E731
        hit = next((k for k, other in enumerate(left) if words(other) == words(line)), None)
        lines.append(line if hit is None else left[hit])
        left = left if hit is None else left[hit + 1 :]
    return "".join(f"{line}\n" for line in lines)
