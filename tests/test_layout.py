"""The layout of docs/design.md, "Folders and who may import whom", as checks over every source file."""

from __future__ import annotations

import ast
import fnmatch
import functools
import graphlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
if not (ROOT / "headway" / "__init__.py").exists() or (ROOT / "PKG-INFO").exists():
    pytest.skip("a rule of the checkout; these tests run from a copy, or from an unpacked sdist", allow_module_level=True)

LINKED = ("models", "controllers", "identification", "experiments")
FOLDERS = ("headway", *LINKED, "tests", "benchmarks")
LAYERS = {  # folder -> layers whose modules it may import; the doors, tests and benchmarks may import all
    "models": {"models"},
    "controllers": {"models", "controllers"},
    "identification": {"models", "identification"},
    "experiments": {"models", "controllers", "identification", "experiments"},
}
PACKAGES = {  # folder -> installed packages that it may import
    "models": {"numpy", "jax", "numba"},
    "controllers": {"numpy", "jax", "numba"},
    "identification": {"numpy", "scipy", "jax", "polars", "msgspec"},
    "experiments": {"numpy", "scipy", "jax", "numba", "polars", "msgspec", "control", "optax", "osqp", "optuna", "cma", "ray"},
    "headway": {
        "numpy",
        "scipy",
        "jax",
        "numba",
        "polars",
        "msgspec",
        "optax",
        "typer",
        "rich",
        "plotly",
        "dash",
        "flask",
        "werkzeug",
        "aiohttp",
    },
}
OPTIONAL = {"osqp", "optuna", "cma", "ray", "aiohttp"}
"""Extras: imported inside the function that needs them, so that everything else works without."""
ENGINE_PACKAGES = {"vllm", "sglang", "tensorrt_llm", "torch", "transformers"}
PLACES = {  # package -> the only files under the five folders that may import it
    "control": ("experiments/analysis.py",),
    "plotly": ("headway/report/*", "headway/web/*"),
    **dict.fromkeys(("dash", "flask", "werkzeug"), ("headway/web/*",)),
    "aiohttp": ("headway/engines/vllm/*",),
    "typer": ("headway/cli/*",),
    **dict.fromkeys(ENGINE_PACKAGES, ("headway/engines/*",)),
}
STANDARD_LIBRARY_ONLY = ("headway/engines/runtime.py", "headway/engines/runtime_*.py")
"""What ships into a production engine's process, joined into one file: it must not bring anything along."""
EXCEPTIONS = {
    "models/compiled.py": "numba sees a function's own file only; the cache of compiled kernels is keyed by all kernel sources",
}
"""Files under models/ and controllers/ that may look at files, and why."""
WORLD = {"time", "datetime", "random", "secrets", "uuid", "os", "pathlib", "io", "tempfile", "shutil", "glob", "subprocess"}
WORLD |= {"socket", "threading", "multiprocessing", "asyncio", "sys", "logging"}
"""Modules through which a pure layer would see a clock, a file, hidden chance or another process."""
VAGUE = {"util", "utils", "common", "helper", "helpers", "base", "manager", "misc"}
LINES, FUNCTION_LINES = 400, 60


class Import(NamedTuple):
    """One import: the module's full name, where it stands, and whether it runs when its file is imported."""

    module: str
    line: int
    on_import: bool


def _files(*folders: str, suffix: str = ".py") -> list[str]:
    found = []
    for folder in folders:
        for path, below, names in os.walk(ROOT / folder):
            below[:] = sorted(n for n in below if n != "__pycache__" and not n.startswith(".") and not (Path(path) / n).is_symlink())
            found += [(Path(path) / n).relative_to(ROOT).as_posix() for n in sorted(names) if n.endswith(suffix)]
    return found


SOURCES = _files("headway", *LINKED)
ALL = _files(*FOLDERS)


@functools.cache
def _tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"), file)


def _imports(tree: ast.Module) -> Iterator[Import]:
    """Every import; `from a.b import c` counts as `a.b` (and as `a.b.c`, where that is a module of ours)."""
    lazy = {id(n) for f in ast.walk(tree) if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) for n in ast.walk(f)}
    for check in ast.walk(tree):
        if isinstance(check, ast.If) and "TYPE_CHECKING" in ast.unparse(check.test):
            lazy |= {id(n) for statement in check.body for n in ast.walk(statement)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(a.name, node.lineno, id(node) not in lazy) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            yield Import(name, node.lineno, id(node) not in lazy)
            if name.split(".")[0] == "headway":
                for full in (f"{name}.{a.name}" for a in node.names):
                    if _file_of(full):
                        yield Import(full, node.lineno, id(node) not in lazy)


def _file_of(module: str) -> str | None:
    parts = module.split(".")
    if parts[1:2] and parts[1] in LINKED:
        parts = parts[1:]
    for file in ("/".join(parts) + ".py", "/".join(parts) + "/__init__.py"):
        if (ROOT / file).is_file():
            return file
    return None


def _matches(file: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatch(file, pattern) for pattern in patterns)


def layer_faults(file: str, tree: ast.Module) -> Iterator[str]:
    """Imports of Headway's own modules that the folder's place in the order forbids."""
    folder = file.split("/")[0]
    for module, line, _ in _imports(tree):
        top, *below = module.split(".")
        if not top or top in LINKED:
            yield f"{file}:{line}: {module}: absolute imports only, under the name headway"
        elif top in ("tests", "benchmarks") and folder in ("headway", *LINKED):
            yield f"{file}:{line}: {module} is not part of the package"
        elif top == "headway" and folder in LAYERS and not (below and below[0] in LAYERS[folder]):
            yield f"{file}:{line}: {folder}/ may not import {module}"


def package_faults(file: str, tree: ast.Module) -> Iterator[str]:
    """Imports of installed packages where they do not belong."""
    folder, ships = file.split("/")[0], _matches(file, STANDARD_LIBRARY_ONLY)
    for module, line, on_import in _imports(tree):
        top = module.split(".")[0]
        if top in sys.stdlib_module_names or top in ("", "headway", *LINKED):
            if ships and top == "headway" and not _matches(module.replace(".", "/") + ".py", STANDARD_LIBRARY_ONLY):
                yield f"{file}:{line}: {module}: this file ships without it"
            continue
        if ships:
            yield f"{file}:{line}: {module}: this file ships with the standard library only"
        elif top in PLACES and not _matches(file, PLACES[top]):
            yield f"{file}:{line}: {top} belongs in {', '.join(PLACES[top])}"
        elif top not in PACKAGES[folder] | ENGINE_PACKAGES:
            yield f"{file}:{line}: {folder}/ may not import {top}"
        elif on_import and top in OPTIONAL | ENGINE_PACKAGES:
            yield f"{file}:{line}: {top} is optional: import it in the function that needs it"


def purity_faults(file: str, tree: ast.Module) -> Iterator[str]:
    """Under models/ and controllers/: no clock, no file, no hidden random number."""
    if file.split("/")[0] not in ("models", "controllers"):
        return
    if file not in EXCEPTIONS:
        for module, line, _ in _imports(tree):
            if module.split(".")[0] in WORLD:
                yield f"{file}:{line}: {module}: a pure layer has no clock, no file, no process"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and re.match(r"(np|numpy)\.random\.", ast.unparse(node.func)):
            seeded = ast.unparse(node.func).split(".")[-1] in ("default_rng", "SeedSequence", "Generator", "PCG64") and node.args
            if not seeded:
                yield f"{file}:{node.lineno}: {ast.unparse(node.func)}: chance comes from a seed that the caller gives"


READS = re.compile(
    r"open|(\w+\.)*open|.*\.(read_text|read_bytes)|(np|numpy)\.(load|loadtxt|genfromtxt|fromfile|memmap)|(pl|polars)\.(read|scan)_\w+"
)
WRITES = re.compile(
    r".*\.(write_text|write_bytes|mkdir|unlink|touch|rmdir|symlink_to|tofile|sink_\w+|write_(csv|parquet|json|ndjson|ipc|avro|excel|delta))"
    r"|(np|numpy)\.(save|savez|savez_compressed|savetxt)|os\.(remove|rename|replace|mkdir|makedirs|unlink|rmdir|link|symlink)|shutil\.\w+"
    r"|tempfile\.\w+"
)


def _writes(call: ast.Call) -> bool:
    """Whether an `open` may write: a mode that is not a plain read, or one that cannot be seen here."""
    place = 0 if isinstance(call.func, ast.Attribute) and ast.unparse(call.func).split(".")[0] not in ("gzip", "bz2", "lzma", "io") else 1
    modes = [k.value for k in call.keywords if k.arg == "mode"] + call.args[place : place + 1]
    return any(not (isinstance(m, ast.Constant) and str(m.value) in ("r", "rb", "rt")) for m in modes)


def file_faults(file: str, tree: ast.Module) -> Iterator[str]:
    """Files are read in the readers, the run folder and the doors, written in the last two."""
    may_write = file.startswith("headway/") or file in ("experiments/run.py", "experiments/whole_files.py") or file in EXCEPTIONS
    may_read = may_write or file.startswith("identification/readers/")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        is_open = name.split(".")[-1] == "open"
        if not may_read and READS.fullmatch(name):
            yield f"{file}:{node.lineno}: {name}: files are read in identification/readers, experiments/{{run,whole_files}}.py and headway only"
        if not may_write and (WRITES.fullmatch(name) or (is_open and _writes(node))):
            yield f"{file}:{node.lineno}: {name}: files are written in experiments/whole_files.py and headway only"


def shape_faults(file: str, tree: ast.Module) -> Iterator[str]:
    """Sizes and names: one idea a file, and a name that says which."""
    lines = len((ROOT / file).read_text(encoding="utf-8").splitlines()) if (ROOT / file).is_file() else 0
    if lines > LINES:
        yield f"{file}: {lines} lines, the limit is {LINES}: split it by idea"
    for word in VAGUE & {w for part in Path(file).with_suffix("").parts for w in part.lower().split("_")}:
        yield f"{file}: {word!r} says nothing: name the file after the noun in it"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            kernel = any(ast.unparse(d).split(".")[-1].startswith("compiled") for d in node.decorator_list)
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            length = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            if length > FUNCTION_LINES and not kernel:
                yield f"{file}:{node.lineno}: {node.name} has {length} lines, the limit is {FUNCTION_LINES}"


def table_faults(file: str, tree: ast.Module) -> Iterator[str]:
    """An `__init__` re-exports and holds its family's table; a lazy export (`__getattr__`) is a re-export."""
    if not file.endswith("__init__.py"):
        return
    for node in tree.body:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        lazy = isinstance(node, ast.FunctionDef) and node.name in ("__getattr__", "__dir__")
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not (text or lazy or typing_only or isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign))):
            yield f"{file}:{node.lineno}: an __init__ only re-exports and holds the family's table"


RULES = (layer_faults, package_faults, purity_faults, file_faults, shape_faults, table_faults)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_source_file_keeps_the_rule(rule) -> None:
    faults = [fault for file in SOURCES for fault in rule(file, _tree(file))]
    assert not faults, "\n" + "\n".join(faults)


def test_tests_and_benchmarks_keep_the_rules_of_imports_and_shape() -> None:
    rest = [f for f in ALL if f not in SOURCES]
    faults = [fault for file in rest for rule in (layer_faults, shape_faults) for fault in rule(file, _tree(file))]
    assert not faults, "\n" + "\n".join(faults)


def test_no_cycle_among_imports_that_run_on_import() -> None:
    graph = {f: {to for i in _imports(_tree(f)) if i.on_import and (to := _file_of(i.module)) and to != f} for f in SOURCES}
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert set(SOURCES) <= set(order)


def test_the_exceptions_exist() -> None:
    assert all((ROOT / file).is_file() for file in EXCEPTIONS)


@pytest.mark.parametrize("folder", LINKED)
def test_the_link_is_there_and_relative(folder: str) -> None:
    link = ROOT / "headway" / folder
    assert link.is_symlink(), f"cd headway && ln -s ../{folder} {folder}"
    assert link.readlink() == Path("..") / folder


@pytest.mark.parametrize(
    "script",
    [
        "scripts/setup",
        "scripts/demo",
        "scripts/test",
        "scripts/peer-env",
        "scripts/vllm-env",
        "scripts/docs",
        "scripts/newcomer",
        "scripts/vllm-versions",
        "benchmarks/accelerator.sh",
        ".ci/run",
    ],
)
def test_the_script_can_be_run(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)


def test_every_folder_of_code_is_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {str(Path(f).parent) for f in SOURCES}
    packages = {f.replace("/", ".") if f.startswith("headway") else "headway." + f.replace("/", ".") for f in folders}
    assert set(settings["packages"]) == packages
    assert all((ROOT / folder / "__init__.py").is_file() for folder in folders)
    assert settings["package-dir"] == {"headway": "headway", **{f"headway.{d}": d for d in LINKED}}


def test_every_data_file_is_in_the_wheel() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["*"]
    for file in _files("headway", *LINKED, suffix=""):
        home = Path(file).parent
        while not (ROOT / home / "__init__.py").is_file():
            home = home.parent
        inside = Path(file).relative_to(home).as_posix()
        assert inside.endswith(".py") or any(Path(inside).match(p) and inside.count("/") == p.count("/") for p in patterns), file


@pytest.mark.parametrize("arguments", [None, ["--help"]], ids=["import headway", "headway --help"])
def test_the_door_opens_without_jax_or_control(arguments: list[str] | None) -> None:
    call = "import headway" if arguments is None else f"sys.argv = ['headway', *{arguments}]; from headway.cli import main; main()"
    code = (
        f"import sys\ntry:\n    {call}\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print([m for m in ('jax', 'control', 'matplotlib', 'numba', 'plotly') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]", f"loaded on the way: {done.stderr.splitlines()[-1]}"


@pytest.mark.parametrize(
    ("file", "source", "rule"),
    [
        ("models/x.py", "from headway.controllers.pi import PI", layer_faults),
        ("models/x.py", "def f():\n    import headway", layer_faults),
        ("controllers/x.py", "from headway.identification.fit import fit", layer_faults),
        ("identification/x.py", "from headway import controllers", layer_faults),
        ("experiments/x.py", "from headway.report.page import page", layer_faults),
        ("headway/x.py", "from models.plant import Plant", layer_faults),
        ("headway/x.py", "from . import units", layer_faults),
        ("models/x.py", "import scipy.optimize", package_faults),
        ("experiments/x.py", "def f():\n    import control", package_faults),
        ("headway/pipeline.py", "import plotly.graph_objects as go", package_faults),
        ("experiments/bound.py", "import osqp", package_faults),
        ("headway/engines/vllm.py", "import vllm", package_faults),
        ("headway/engines/runtime.py", "import numpy as np", package_faults),
        ("headway/engines/runtime.py", "from headway.models.signals import Target", package_faults),
        ("headway/engines/runtime_laws.py", "import numpy as np", package_faults),
        ("headway/engines/runtime_laws.py", "from headway.engines.export import EXPORTERS", package_faults),
        ("models/x.py", "import time", purity_faults),
        ("controllers/x.py", "import numpy as np\nx = np.random.normal()", purity_faults),
        ("models/x.py", "import numpy as np\nx = np.random.default_rng()", purity_faults),
        ("identification/fit.py", "text = path.read_text()", file_faults),
        ("experiments/sweep.py", "import polars as pl\nf = pl.scan_parquet('x')", file_faults),
        ("identification/readers/x.py", "with open('x', 'w') as f: ...", file_faults),
        ("identification/readers/x.py", "with path.open(mode=m) as f: ...", file_faults),
        ("identification/readers/x.py", "frame.write_parquet('x')", file_faults),
        ("models/step_utils.py", "", shape_faults),
        ("models/x.py", "def f():\n" + "    x = 1\n" * 61, shape_faults),
        ("models/__init__.py", "def f():\n    return 1", table_faults),
    ],
)
def test_a_breach_is_seen(file: str, source: str, rule) -> None:
    assert list(rule(file, ast.parse(source)))


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("controllers/x.py", "import numpy as np\nfrom headway.models.plant import Plant\nrng = np.random.default_rng([seed, 1])"),
        ("identification/readers/x.py", "import polars as pl\nf = pl.read_csv('x')\nwith gzip.open('x', 'rt') as g, open('y') as h: ..."),
        ("experiments/analysis.py", "import control\nfrom headway.controllers.pi import PI"),
        ("headway/engines/vllm.py", "def start():\n    import vllm"),
        ("headway/engines/runtime.py", "import math\nfrom headway.engines.runtime_laws import LAWS"),
        ("models/__init__.py", "from headway.models.plant import Plant\nPLANTS: dict = {}\n'''Words.'''"),
    ],
)
def test_what_is_allowed_passes(file: str, source: str) -> None:
    assert not [fault for rule in RULES for fault in rule(file, ast.parse(source))]
