"""Which of the exported values a running engine has in force: read back from its start-up log or from what it says of itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headway.engines.flags import SCHEMA
from headway.engines.knob_tables import KNOBS

NAMES = tuple(sorted({k.name for k in KNOBS} | {"max_model_len", "block_size", "page_size"}))
"""Names under which engines speak of the flags that Headway knows, and of their other limits."""
SAID = re.compile(rf"\b['\"]?({'|'.join(NAMES)})['\"]?\s*[=:]\s*(True|False|true|false|None|null|-?\d[\d_,]*)")
"""`max_num_seqs=64`, `'max_num_seqs': 64` and the like: a configuration as Python or JSON prints it."""
VERSION = re.compile(r"(?:engine \(v|vLLM API server version |sglang[_ ]version\D{0,4}|TensorRT[- ]LLM version: )v?(\d[\w.+]*)")


class Read(NamedTuple):
    """One exported value, read back.

    Args:
        name: what the engine calls it.
        exported: what was to be set.
        found: what is in force; None where nothing says.
        verdict: "in force", "not in force" or "not said".
    """

    name: str
    exported: Any
    found: Any
    verdict: str


def values_in_log(lines: Iterable[str]) -> dict[str, Any]:
    """The values that a start-up log names; of several the last, as engines resolve them in steps.

    Args:
        lines: of the log.

    Returns:
        By the engine's name, "version" among them where the log says it.
    """
    found: dict[str, Any] = {}
    for line in lines:
        for name, text in SAID.findall(line):
            value = _value(text)
            if value is not None:
                found[name] = value
        if version := VERSION.search(line):
            found.setdefault("version", version[1])
    return found


def values_in_config(config: Any) -> dict[str, Any]:
    """The values in what an engine says of itself, such as vLLM's /server_info?config_format=json or SGLang's /get_server_info.

    Args:
        config: plain JSON values, nested in any way; a text in it is read as a log is.

    Returns:
        By the engine's name, "version" among them where it is said.
    """
    found: dict[str, Any] = {}
    for name, value in _leaves(config):
        if name in NAMES and isinstance(value, (bool, int)):
            found[name] = value
        elif name == "version" and isinstance(value, str):
            found.setdefault("version", value)
        elif isinstance(value, str) and len(value) > len(name):
            found = values_in_log([value]) | found
    return found


def read_back(exported: Path, found: Mapping[str, Any]) -> list[Read]:
    """Exported flags against what is in force.

    Args:
        exported: the folder that `headway export --engine vllm-flags` or its like wrote, or the flags.json in it.
        found: as from `values_in_log` or `values_in_config`.

    Returns:
        One row per flag.

    Raises:
        ValueError: no flags.json, or one that is none.
    """
    file = exported / "flags.json" if exported.is_dir() else exported
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        settings = [(str(s["name"]), s["value"]) for s in data["settings"]] if data.get("schema") == SCHEMA else None
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{file}: expected the flags.json of `headway export --engine vllm-flags`: {error}") from None
    if settings is None:
        raise ValueError(f"{file}: expected schema {SCHEMA!r}, found {data.get('schema')!r}")
    rows = []
    for name, value in settings:
        there = found.get(name)
        verdict = "not said" if there is None else "in force" if there == value and type(there) is type(value) else "not in force"
        rows.append(Read(name, value, there, verdict))
    return rows


def compare(exported: Path, found: Mapping[str, Any]) -> list[str]:
    """Exported flags against what is in force, in words.

    Args:
        exported: as for `read_back`.
        found: as for `read_back`.

    Returns:
        One line per flag; those that are not in force say what is.

    Raises:
        ValueError: as from `read_back`.
    """
    words = {
        "in force": "in force",
        "not in force": "NOT in force: {found}; the engine has another idea, or was started without the flag",
        "not said": "not said: neither the log nor the server names it",
    }
    return [f"{r.name} {_shown(r.exported)}: {words[r.verdict].format(found=_shown(r.found))}" for r in read_back(exported, found)]


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value(text: str) -> bool | int | None:
    if text in ("None", "null"):
        return None
    return text in ("True", "true") if text[0] in "TtFf" else int(text.rstrip(",").replace("_", "").replace(",", ""))


def _leaves(data: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values at the ends of nested mappings and lists."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _leaves(value, str(key).rsplit(".", 1)[-1])  # some write sections into the name
    elif isinstance(data, (list, tuple)):
        for value in data:
            yield from _leaves(value, name)
    else:
        yield name, data
