"""Files written whole or not at all, and plain JSON values in them: a kill leaves the old one or the new one."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
import shutil
from pathlib import Path
from typing import Any

ENDING = ".part"
"""How the names of files end that are not whole yet."""


def without_nan(value: Any) -> Any:
    """JSON knows no NaN and no infinity: they become null, as "cannot say".

    Args:
        value: plain values, lists and mappings.

    Returns:
        The same without them.
    """
    if isinstance(value, dict):
        return {k: without_nan(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(v) for v in value]
    if type(value).__module__ == "numpy":
        return without_nan(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that a kill leaves the old one or the new one, never half of it.

    Args:
        path: of the file; its folder is made. A link is followed, the file it names is replaced.
        content: text or bytes.

    Raises:
        ValueError: a folder or a device stands there, or the place cannot be written to; nothing is left behind.
    """
    target = path.resolve()
    if path.name in ("", ".", "..") or (target.exists() and not target.is_file()):
        raise ValueError(f"{path} is not a file that can be written; name a file, such as {path / 'out.json'}")
    beside = place_beside(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        beside.replace(target)
    except OSError as error:
        raise ValueError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        beside.unlink(missing_ok=True) if beside.parent.is_dir() else None


def place_beside(target: Path) -> Path:
    """Where this process may write what will be moved to the target; what dead processes left for it is taken away.

    Args:
        target: file or folder that will be replaced.

    Returns:
        A hidden sibling, named after this machine and process, so that two that write to one target do not meet.

    Example:
        >>> place_beside(Path("run/plant.json")).name.startswith(".plant.json.")
        True
    """
    clear_beside(target)
    return target.with_name(f"{_start(target)}{os.getpid()}{ENDING}")


def clear_beside(target: Path) -> None:
    """Take away what killed processes of this machine left beside a target; what a living one writes stays.

    Args:
        target: file or folder.
    """
    start = _start(target)
    try:
        found = [name for name in os.listdir(target.parent) if name.startswith(start) and name.endswith(ENDING)]
    except OSError:  # no such folder: nothing lies there
        return
    for name in found:
        pid = name[len(start) : -len(ENDING)]
        if pid.isdecimal() and not _alive(int(pid)):
            place = target.with_name(name)
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place, ignore_errors=True)
            else:
                place.unlink(missing_ok=True)


def _start(target: Path) -> str:
    # the machine belongs to the name: on a shared disk, or in a container, the same number is another process
    return f".{target.name}.{platform.node()}."


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def write_json(path: Path, value: Any) -> None:
    """Write plain values as JSON, whole or not at all.

    Args:
        path: of the file.
        value: plain values; NaN and infinity become null.
    """
    text = json.dumps(without_nan(value), indent=1)
    # a list of plain numbers reads, and stores, better on one line; strings are matched first, so that none is touched
    write_whole(
        path,
        re.sub(
            r'"(?:[^"\\]|\\.)*"|\[[\s\d.,eE+\-nul]*\]',
            lambda found: found[0] if found[0][0] == '"' else re.sub(r"\s+", " ", found[0]),
            text,
        )
        + "\n",
    )


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Args:
        path: of the file.

    Returns:
        Its value.

    Raises:
        ValueError: the file is missing, or is no JSON; the message names file and place.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except (IsADirectoryError, PermissionError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read as text ({type(error).__name__})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} line {error.lineno} column {error.colno}: not JSON ({error.msg})") from None


def sha256_of(path: Path) -> str:
    """Hash of a file, or of the names and contents of all files of a folder.

    Args:
        path: file or folder.

    Returns:
        Hexadecimal digits.
    """
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            if path.is_dir():
                digest.update(file.relative_to(path).as_posix().encode() + b"\0")
            with file.open("rb") as content:
                while part := content.read(1 << 20):
                    digest.update(part)
    return digest.hexdigest()
