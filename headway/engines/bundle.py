"""The runtime as one file: its parts joined, for a process that has nothing of Headway's."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import headway

PARTS = (
    "runtime_plants",
    "runtime_gains",
    "runtime_laws",
    "runtime_guard",
    "runtime_drift",
    "runtime_prompts",
    "runtime_schedule",
    "runtime_admission",
    "runtime",
    "runtime_replay",
)
"""Files of the runtime, each after those that it needs: what ships is these and the standard library."""


def runtime_source(content_sha256: str) -> str:
    """The runtime's parts in one file.

    Args:
        content_sha256: hash of the controller that it is written for.

    Returns:
        Python source.
    """
    return joined_source(
        PARTS,
        f"for the controller with content {content_sha256}",
        "A tuned controller inside an engine's process: this file and gains.json are all it needs. Standard library only.\n\n"
        "Run as a script, it replays recorded steps and compares: `python headway_runtime.py gains.json golden.csv`.\n",
    )


def joined_source(parts: Sequence[str], written: str, says: str) -> str:
    """Parts in one file: one list of imports, then every part under its own heading.

    Args:
        parts: files of this folder without their ending, each after those that it needs.
        written: what it is written for, for the first line.
        says: docstring of the file.

    Returns:
        Python source.

    Raises:
        RuntimeError: two parts give one name to two things: a fault of Headway's.
    """
    imports: set[str] = set()
    owner: dict[str, tuple[str, str]] = {}
    bodies: list[str] = []
    for part in parts:
        text = (Path(__file__).parent / f"{part}.py").read_text(encoding="utf-8")
        tree, lines = ast.parse(text), text.splitlines()
        heading = ast.get_docstring(tree) or ""
        first = 0
        for node in tree.body[1:]:
            source = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                if not source.startswith(("from headway.", "from __future__")):
                    imports.add(source)
                first = node.end_lineno or 0
            for name in _names(node):
                if owner.setdefault(name, (part, source))[1] != source:
                    raise RuntimeError(f"{part}.py and {owner[name][0]}.py both name something {name}; please report this")
        comment = "\n".join(f"# {line}".rstrip() for line in heading.splitlines())
        bodies.append(f"{comment}\n\n" + "\n".join(lines[first:]).strip("\n"))
    opening = f'# Written by headway {headway.__version__} {written}; do not edit.\n"""{says}"""\n\nfrom __future__ import annotations\n'
    plain = sorted(line for line in imports if line.startswith("import "))
    named = sorted(imports - set(plain))
    return "\n".join([opening, *plain, *named, "\n", "\n\n\n".join(bodies)]) + "\n"


def _names(node: ast.stmt) -> list[str]:
    """Names that a statement at the top of a file binds."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []
