"""What an export says about itself: every argument, its unit, what it raises; and every example runs."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headway

# The package as it is imported: the checkout through its links, or the installed wheel.
PACKAGE = Path(headway.__file__).resolve().parent
UNITS = {  # ending of a name -> what the brackets that state its unit must hold; the first ending that fits counts
    "_per_s": r".+/s",
    "_s": r"s|seconds",
    "_ms": r"ms",
    "_tokens": r"(\w+ )?tokens.*",
    "_bytes": r"bytes.*",
    "_rps": r"(requests|1)/s",
    "_tps": r"tokens/s",
}
SECTIONS = ("Args", "Returns", "Yields", "Raises", "Source", "Example")
"""In the order in which they stand."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def _files() -> list[str]:
    found = []
    for path, below, names in os.walk(PACKAGE, followlinks=True):
        below[:] = sorted(n for n in below if n not in ("__pycache__", "assets"))
        found += [(Path(path) / n).relative_to(PACKAGE).as_posix() for n in sorted(names) if n.endswith(".py")]
    return found


FILES = _files()


@functools.cache
def _source(file: str) -> str:
    return (PACKAGE / file).read_text(encoding="utf-8")


def _decorators(node: Function | ast.ClassDef) -> set[str]:
    return {ast.unparse(d.func if isinstance(d, ast.Call) else d).split(".")[-1] for d in node.decorator_list}


def _sections(text: str) -> dict[str, str]:
    """The sections of a docstring by name, each with its lines, in the order in which they stand."""
    parts = re.split(rf"^({'|'.join(SECTIONS)}):\s*$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _entries(section: str) -> dict[str, str]:
    """The entries of an Args section: name -> text. An entry starts at the indent of the first one."""
    lines = [line for line in section.splitlines() if line.strip()]
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    entries: dict[str, str] = {}
    name = None
    for line in lines:
        head = re.match(r"\*{0,2}(\w+)(?: \(.*?\))?:(.*)", line[indent:])
        if head and len(line) - len(line.lstrip()) == indent:
            name = head[1]
            entries[name] = head[2]
        elif name:
            entries[name] += " " + line.strip()
    return entries


def _unit_fault(name: str, text: str) -> str | None:
    ending = next((e for e in UNITS if name.endswith(e)), None)
    if ending is None or re.search(rf"\[({UNITS[ending]})\]", text):
        return None
    return f"{name}: {ending} promises a unit, and no brackets state it, as in [s], [tokens], [requests/s]"


def _raised(node: Function) -> set[str]:
    """Names of exceptions raised in a function's own body, not in functions inside it."""
    names: set[str] = set()
    left: list[ast.AST] = list(node.body)
    while left:
        child = left.pop()
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(child, ast.Raise) and child.exc is not None:
            names.add(ast.unparse(child.exc.func if isinstance(child.exc, ast.Call) else child.exc).split(".")[-1])
        left += ast.iter_child_nodes(child)
    return names


def _fields(node: ast.ClassDef) -> list[str]:
    """Public fields of a dataclass, pytree, NamedTuple or struct; none for other classes."""
    record = _decorators(node) & {"dataclass", "pytree"} or {ast.unparse(b).split(".")[-1] for b in node.bases} & {"NamedTuple", "Struct"}
    if not record:
        return []
    fields = [s for s in node.body if isinstance(s, ast.AnnAssign) and "ClassVar" not in ast.unparse(s.annotation)]
    return [name for name in (ast.unparse(f.target) for f in fields) if not name.startswith("_")]


def _argument_faults(names: list[str], text: str) -> Iterator[str]:
    entries = _entries(_sections(text).get("Args", ""))
    for name in names:
        if name not in entries:
            yield f"{name}: not under Args"
        elif fault := _unit_fault(name, entries[name]):
            yield fault
    for name in entries:
        if name not in names:
            yield f"{name}: under Args, but no argument"


def _function_faults(node: Function, lines: list[str], method: bool) -> Iterator[str]:
    text = ast.get_docstring(node)
    if text is None:
        head = "\n".join(lines[node.lineno - 1 : node.body[0].lineno])
        if not re.search(r"noqa:[ \w,]*\bD102\b", head) and not _decorators(node) & {"overload", "setter"}:
            yield "no docstring (an override says: # noqa: D102)"
        return
    a = node.args
    every = [*a.posonlyargs, *a.args, *([a.vararg] if a.vararg else []), *a.kwonlyargs, *([a.kwarg] if a.kwarg else [])]
    command = any("typer." in ast.unparse(x.annotation) for x in every if x.annotation) or _decorators(node) & {"command", "callback"}
    if command:  # its docstring is the help text, its options carry their own
        return
    bound = every[:1] if method and "staticmethod" not in _decorators(node) else []
    yield from _argument_faults([x.arg for x in every[len(bound) :] if not x.arg.startswith("_")], text)
    if fault := _unit_fault(node.name, text):
        yield fault
    if _raised(node) & {"ValueError", "TraceError"} and "Raises" not in _sections(text):
        yield f"raises {', '.join(sorted(_raised(node)))} without saying so under Raises"


def faults(source: str) -> Iterator[str]:
    """What is missing in the docstrings of a module's exports."""
    tree, lines = ast.parse(source), source.splitlines()
    if ast.get_docstring(tree) is None:
        yield "1: the module has no docstring"
    left = [(node, "") for node in tree.body]
    while left:
        node, inside = left.pop(0)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or node.name.startswith("_"):
            continue
        where, text = f"{node.lineno}: {inside}{node.name}", ast.get_docstring(node)
        if isinstance(node, ast.ClassDef):
            found = ["no docstring"] if text is None else list(_argument_faults(_fields(node), text)) if _fields(node) else []
            left += [(child, f"{node.name}.") for child in node.body]
        else:
            found = list(_function_faults(node, lines, bool(inside)))
        sections = list(_sections(text or ""))
        if sections != sorted(sections, key=SECTIONS.index):
            found.append(f"sections stand in the order {', '.join(s for s in SECTIONS if s in sections)}")
        yield from (f"{where}: {fault}" for fault in found)


@pytest.mark.parametrize("file", FILES)
def test_every_export_says_what_it_is(file: str) -> None:
    found = [f"{file}:{fault}" for fault in faults(_source(file))]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("file", [f for f in FILES if ">>>" in _source(f)])
def test_every_example_runs(file: str) -> None:
    name = "headway." + file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:  # of a part that needs an extra; headway's own modules are always there
        if (missing.name or "headway").startswith("headway"):
            raise
        pytest.skip(f"{file} needs {missing.name}, which an extra brings")
    finder = doctest.DocTestFinder(exclude_empty=True)
    tests = [test for test in finder.find(module, name) if test.examples]
    # A compiled kernel is no function to doctest's eyes: its examples are read from the Python function inside.
    for kernel in vars(module).values():
        inner = getattr(kernel, "py_func", None)
        if inner is not None and inner.__module__ == name:
            tests += [test for test in finder.find(inner, inner.__name__, module=module) if test.examples]
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for test in tests:
        runner.run(test, out=report.append)
    assert not runner.failures, "\n" + "".join(report)
    assert tests, "the examples stand where doctest does not find them"


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("def f():\n    return 1", "no docstring"),
        ('def f(a):\n    """F."""', "a: not under Args"),
        ('def f(a):\n    """F.\n\n    Args:\n        a: one.\n        b: two.\n    """', "b: under Args, but no argument"),
        ('def f(wait_s):\n    """F.\n\n    Args:\n        wait_s: how long.\n    """', "_s promises a unit"),
        ('def f(kv_tokens):\n    """F.\n\n    Args:\n        kv_tokens: size [s].\n    """', "_tokens promises a unit"),
        ('def f(hits_per_s):\n    """F.\n\n    Args:\n        hits_per_s: rate [s].\n    """', "_per_s promises a unit"),
        ('def wait_s():\n    """How long."""', "_s promises a unit"),
        ('def f():\n    """F."""\n    raise ValueError("x")', "without saying so under Raises"),
        ('@dataclasses.dataclass\nclass C:\n    """C."""\n    gain: float', "gain: not under Args"),
        ('class C(NamedTuple):\n    """C.\n\n    Args:\n        t_s: time.\n    """\n    t_s: float', "_s promises a unit"),
        ('class C:\n    """C."""\n    def go(self):\n        return 1', "C.go: no docstring"),
        ('def f():\n    """F.\n\n    Raises:\n        E: x.\n\n    Returns:\n        x.\n    """', "the order Returns, Raises"),
    ],
)
def test_a_gap_is_seen(source: str, fault: str) -> None:
    found = list(faults(f'"""A module."""\n{source}'))
    assert len(found) == 1
    assert fault in found[0]


def test_a_module_without_a_docstring_is_seen() -> None:
    assert list(faults("x = 1")) == ["1: the module has no docstring"]


@pytest.mark.parametrize(
    "source",
    [
        'def _f(a):\n    raise ValueError("x")',
        'class C:\n    """C."""\n    def step_time_s(self, batch):  # noqa: ARG002, D102\n        return 1',
        '@app.command()\ndef fit(trace: str):\n    """Fit a plant."""',
        'def f(wait_s, *rest):\n    """F.\n\n    Args:\n        wait_s: in\n            all [s].\n        *rest: x.\n    """',
        'def f():\n    """F."""\n    def inner():\n        raise ValueError("x")\n    return inner',
        'def f(cls):\n    """F.\n\n    Args:\n        cls: a class.\n    """',
    ],
)
def test_what_is_complete_passes(source: str) -> None:
    assert not list(faults(f'"""A module."""\n{source}'))


def test_the_package_under_test_is_the_one_imported() -> None:
    assert sys.modules["headway"] is headway
    assert {"models/plant.py", "controllers/__init__.py", "__init__.py"} <= set(FILES)
