"""The adapter as one file: what goes into a vLLM server, written with its gains, or without any for recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headway.controllers.record import ControllerRecord
from headway.engines.bundle import PARTS, joined_source
from headway.engines.certified import granted
from headway.engines.export import Exported, canonical, gains_json, said_of, write_folder
from headway.engines.golden import check_golden, golden
from headway.engines.vllm.gains_file import without_shares
from headway.engines.vllm.readme import adapter_readme

RUNTIME_PARTS = tuple(part for part in PARTS if part != "runtime_replay")
ADAPTER_PARTS = tuple(
    f"vllm/{name}"
    for name in (
        "settings",
        "excitation",
        "clocks",
        "gains_file",
        "prompt_queue",
        "promises",
        "meter",
        "trace_file",
        "gauges",
        "knobs",
        "loop",
        "prompts_desk",
        "pilot",
        "plug",
    )
)
"""Files of the adapter, each after those that it needs."""
CARRIED = ("class_shares",)
"""Parts of a policy that a runtime alone does not carry out and the adapter's queue does."""


def write_adapter(out: str | Path, record: ControllerRecord | None, *, force: bool = False, uncertified: bool = False) -> Exported:
    """Write headway_vllm.py, its gains beside it, and how to start vLLM with them.

    Args:
        out: folder to make.
        record: the controller; None for an adapter that records and excites only.
        force: write into a folder that holds something; other files in it stay.
        uncertified: write a law whose certificate is refused; what is written says so.

    Returns:
        What was written.

    Raises:
        ValueError: the folder holds something, a number is not finite, the law is refused, or it or a part of the policy has
            no runtime.
        RuntimeError: the runtime does not act as the law does: a fault of Headway's.
    """
    if record is None:
        files = {"headway_vllm.py": adapter_source(None), "README.md": adapter_readme(None, "", {}, ())}
        return write_folder(out, files, (), force)
    certificate = granted(record, uncertified=uncertified)
    gains, warnings = gains_json(record, certificate, carried=CARRIED), said_of(record, certificate)
    text = canonical(gains)
    check_golden(without_shares(gains)[0], golden(record))
    files = {
        "headway_vllm.py": adapter_source(gains),
        "controller.json": text,
        "README.md": adapter_readme(record, gains["content_sha256"], certificate, warnings),
    }
    return write_folder(out, files, warnings, force)


def adapter_source(gains: dict[str, Any] | None) -> str:
    """The adapter's and the runtime's parts in one file, with the gains in it.

    Args:
        gains: content of controller.json; None for none.

    Returns:
        Python source; it needs the standard library, vLLM, and what vLLM itself imports.

    Raises:
        RuntimeError: the place of the gains is not in it: a fault of Headway's.
    """
    source = joined_source(
        (*RUNTIME_PARTS, *ADAPTER_PARTS),
        f"for the controller with content {gains['content_sha256']}" if gains else "for recording, without a controller",
        "Headway beside vLLM's scheduler: `vllm serve MODEL --scheduler-cls headway_vllm.make_scheduler`, with this folder on\n"
        "PYTHONPATH. It needs the standard library, vLLM, and what vLLM itself imports. README.md beside it says the rest.\n",
    )
    if gains is None:
        return source
    place = 'INLINED_GAINS = ""'
    if source.count(place) != 1:
        raise RuntimeError("the adapter has no place for its gains; please report this")
    return source.replace(place, f"INLINED_GAINS = {_literal(json.dumps(gains, sort_keys=True, indent=1, allow_nan=False))}")


def _literal(text: str) -> str:
    """Text as Python writes it: readable where nothing in it could end it early."""
    return repr(text) if "'''" in text or "\\" in text else f"'''{text}'''"
