"""docs/theory.md against the code: every module and name that it gives is there, and every module that cites a source is on the page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "theory.md"
if not PAGE.is_file():
    pytest.skip("the documentation lies in the checkout; these tests run from a copy", allow_module_level=True)

FOLDERS = ("models", "controllers", "identification", "experiments")
ELSEWHERE = ("identification/readers/",)
"""What cites formats and not equations."""
NAMED = re.compile(r"`((?:models|controllers|identification|experiments|headway|tests)/[\w/]+\.py)(?:: (\w+))?`")


def faults(text: str) -> list[str]:
    """What a page names and the code does not have.

    Args:
        text: of the page.

    Returns:
        Sentences.
    """
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        for file, name in NAMED.findall(line):
            if not (ROOT / file).is_file():
                found.append(f"line {number}: there is no {file}")
            elif name and name not in top_level(ROOT / file):
                found.append(f"line {number}: {file} has no {name}")
    return found


def top_level(file: Path) -> set[str]:
    """Names of a module's functions and classes."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def cites(file: Path) -> bool:
    """Whether a docstring of a module has a section Source."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = (n for n in ast.walk(tree) if isinstance(n, (ast.Module, ast.FunctionDef, ast.ClassDef)))
    return any(re.search(r"^Source:$", ast.get_docstring(node) or "", re.MULTILINE) for node in nodes)


def test_what_the_page_names_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(NAMED.findall(text)) > 80
    assert not (found := faults(text)), "\n" + "\n".join(found)


def test_a_name_that_is_not_there_is_seen() -> None:
    assert faults("`models/nothing.py`") == ["line 1: there is no models/nothing.py"]
    assert faults("x\n`models/regimes.py: Nobody`") == ["line 2: models/regimes.py has no Nobody"]
    assert faults("`models/regimes.py: RegimePlant`") == []


def test_every_module_that_cites_a_source_is_on_the_page() -> None:
    named = {file for file, _ in NAMED.findall(PAGE.read_text(encoding="utf-8"))}
    files = [p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*.py"))]
    citing = {p.relative_to(ROOT).as_posix() for p in files if cites(p)}
    assert len(citing) > 40
    missing = {file for file in citing - named if not file.startswith(ELSEWHERE)}
    assert not missing


def test_the_rows_of_a_table_have_the_cells_of_its_head() -> None:
    for block in re.findall(r"(?:^\|.*\|\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        assert len({line.count("|") for line in block.splitlines()}) == 1, block[:300]
