"""Kernels that only borrow arrays return none: nobody counts who holds them."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import numba
import numpy as np
import pytest

import headway.controllers
import headway.models
from headway.models.compiled import compiled

BORROWING = {"compiled", "compiled_inline"}


def _kernels(source: str) -> list[ast.FunctionDef]:
    found = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
    return [n for n in found if any(isinstance(d, ast.Name) and d.id in BORROWING for d in n.decorator_list)]


def _arrays_returned(kernel: ast.FunctionDef) -> list[str]:
    """Names that are returned and also indexed in the kernel, or are a slice: arrays."""
    indexed = {n.value.id for n in ast.walk(kernel) if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name)}
    sliced = {
        target.id
        for n in ast.walk(kernel)
        if isinstance(n, ast.Assign) and any(isinstance(part, ast.Slice) for part in ast.walk(n.value))
        for target in n.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for n in ast.walk(kernel):
        if isinstance(n, ast.Return) and n.value is not None:
            parts = n.value.elts if isinstance(n.value, ast.Tuple) else [n.value]
            found += [part.id for part in parts if isinstance(part, ast.Name) and part.id in indexed | sliced]
            found += [ast.unparse(part) for part in parts if any(isinstance(p, ast.Slice) for p in ast.walk(part))]
    return found


FILES = sorted(p for m in (headway.controllers, headway.models) for p in Path(inspect.getfile(m)).parent.glob("*.py"))


@pytest.mark.parametrize("path", [p for p in FILES if _kernels(p.read_text(encoding="utf-8"))], ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_borrowing_kernel_returns_no_array(path: Path) -> None:
    found = [(kernel.name, _arrays_returned(kernel)) for kernel in _kernels(path.read_text(encoding="utf-8"))]
    assert not [(name, names) for name, names in found if names]


def test_the_rule_sees_an_array() -> None:
    source = "@compiled\ndef f(x, n):\n    y = x[1:]\n    if n:\n        return n, x\n    return y\n"
    assert sorted(_arrays_returned(_kernels(source)[0])) == ["x", "y"]


def test_numba_refuses_an_array_that_a_borrowing_kernel_makes() -> None:
    def making(n: int) -> float:
        return np.zeros(n)[0]

    with pytest.raises(numba.TypingError, match="zeros"):
        compiled(making)(3)
