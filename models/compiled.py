"""The one way to compile a kernel: numba, cached on disk under a name that changes with every kernel's source.

numba's own cache looks at the file a function stands in and not at the functions it calls from other files, so that
after an edit or an update an old kernel could run under new code. Here the cache folder carries a hash of all kernel
sources: a changed source finds an empty folder. This is the one place under `models/` that looks at files, and only
at the package's own.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import numba

F = TypeVar("F")


def _sources_hash() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    package = Path(__file__).resolve().parent.parent
    for folder in ("models", "controllers"):
        for path in sorted((package / folder).glob("*.py")):  # not those in folders of their own: they hold no kernels
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def cache_folder(name: str) -> str:
    """A folder for compiled code: beside the sources, else in the user's cache, else in the temporary folder.

    Args:
        name: of the folder; it should carry a hash or version of whatever the code depends on.

    Returns:
        Its path, made if need be; empty if none can be written to.
    """
    beside = Path(__file__).resolve().parent / "__pycache__"
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    for place in (beside, Path(cache) / "headway", Path(tempfile.gettempdir()) / f"headway-{os.getuid()}"):
        folder = place / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return str(folder)
    return ""


_FOLDER = cache_folder(f"kernels-{_sources_hash()}")


def _compile(function: Any, **options: Any) -> Any:
    before = numba.config.CACHE_DIR  # pyright: ignore[reportAttributeAccessIssue]  # numba fills its config at run time
    numba.config.CACHE_DIR = _FOLDER  # pyright: ignore[reportAttributeAccessIssue]
    try:
        # a branch at every division to raise on a zero costs a step a twentieth; divisors are checked at the doors
        # a kernel of its own thread holds no lock of Python's, so that threads run several; one whose loops run on all cores
        # keeps it: numba's own pool of threads must not be entered twice
        alone = not options.get("parallel", False)
        return numba.njit(cache=bool(_FOLDER), error_model="numpy", nogil=alone, **options)(function)
    finally:
        numba.config.CACHE_DIR = before  # pyright: ignore[reportAttributeAccessIssue]


def compiled(function: F) -> F:
    """Compile a kernel in numba's nopython mode, cached on disk, without fast math: the same result everywhere.

    Nobody counts who holds an array: an atomic addition at every call took half of a step's time. The kernel only borrows
    arrays, so it may neither make one (numba refuses that) nor return one; `compiled_making` is for those.

    Args:
        function: a function of numbers and arrays that makes and returns no array.

    Returns:
        The compiled function.
    """
    return _compile(function, _nrt=False)


def compiled_making(function: F) -> F:
    """As `compiled`, for a kernel that makes arrays, with numba's reference counts: not for an inner loop.

    Args:
        function: a function of numbers and arrays.

    Returns:
        The compiled function.
    """
    return _compile(function, _nrt=True)  # not left out: it would be taken over from whichever kernel calls


def compiled_parallel(function: F) -> F:
    """As `compiled`, for a kernel whose `numba.prange` loops run on all cores.

    Args:
        function: a function of numbers and arrays.

    Returns:
        The compiled function.
    """
    return _compile(function, _nrt=True, parallel=True)


def compiled_inline(function: F) -> F:
    """As `compiled`, for a small kernel in an inner loop: its body goes into the caller's.

    A state of thirty arrays passed by value costs more than what such a function does.

    Args:
        function: a function of numbers and arrays.

    Returns:
        The compiled function.
    """
    return _compile(function, forceinline=True, _nrt=False)
