"""A controller as start-up flags: static values for the engine's own knobs, those that would do nothing refused or left out."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import headway
from headway.controllers.record import ControllerRecord
from headway.engines.certified import said
from headway.engines.knob_tables import VERSIONS, knobs
from headway.engines.knobs import Knob, known_version
from headway.engines.static_values import StaticValues, static_values

SCHEMA = "headway/flags/1"
ENGINES = {"vllm-flags": "vllm", "sglang-flags": "sglang", "trtllm-flags": "trtllm"}
"""Engines by the name of what is written for them."""
SERVE = {
    "vllm": "vllm serve MODEL {flags}",
    "sglang": "python -m sglang.launch_server --model-path MODEL {flags}",
    "trtllm": "trtllm-serve MODEL {flags} --extra_llm_api_options headway_trtllm.yaml",
}
TITLES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}


class Setting(NamedTuple):
    """One flag with its value.

    Args:
        knob: the flag.
        value: a number, or True for a switch.
    """

    knob: Knob
    value: int | bool

    def typed(self) -> str:
        """As it is typed.

        Returns:
            Flag and value; nothing for what stands in a file.
        """
        if not self.knob.flag.startswith("--"):
            return ""
        return self.knob.flag if self.value is True else f"{self.knob.flag} {self.value}"


class Flags(NamedTuple):
    """What is to be set, and what must be said of it.

    Args:
        engine: a key of `knob_tables.VERSIONS`.
        asked: version that will run; None where nobody said.
        version: known version whose flags these are.
        values: what they hold.
        settings: the flags.
        notes: sentences: mappings, flags left out, the version.
    """

    engine: str
    asked: str | None
    version: str
    values: StaticValues
    settings: tuple[Setting, ...]
    notes: tuple[str, ...]


def flags_of(record: ControllerRecord, engine: str, version: str | None = None) -> Flags:
    """The flags of a controller for a version of an engine.

    Args:
        record: the controller.
        engine: a key of `knob_tables.VERSIONS`.
        version: that will run; None for the newest known.

    Returns:
        The flags.

    Raises:
        ValueError: an unknown engine, a version older than any that is known, or flags that would all do nothing.
    """
    if engine not in VERSIONS:
        raise ValueError(f"no flags are known for engine {engine!r}; there are those of {', '.join(VERSIONS)}")
    known, words = known_version(TITLES[engine], version, VERSIONS[engine])
    values, limits = static_values(record), record.limits
    if (
        values.token_budget >= limits.max_tokens
        and values.running_limit >= limits.max_seqs
        and not 0 < values.chunk_tokens < limits.max_tokens
    ):
        raise ValueError(
            f"these flags would do nothing: {values.token_budget:,} tokens and {values.running_limit:,} requests are the limits that the "
            "engine was recorded with; leave it as it is, or export the controller itself"
        )
    pinned = [
        f"the {what} is the limit that the engine was recorded with: its flag only pins it"
        for what, value, limit in (
            ("token budget", values.token_budget, limits.max_tokens),
            ("running limit", values.running_limit, limits.max_seqs),
        )
        if value >= limit
    ]
    values, fitted = _fitted(engine, values, limits.block_tokens)
    settings, idle = _settings(values, knobs(engine, known))
    return Flags(engine, version, known, values, settings, tuple(n for n in (words, *pinned, *fitted, *idle) if n))


def _fitted(engine: str, values: StaticValues, block_tokens: int) -> tuple[StaticValues, list[str]]:
    """Values that the engine accepts, with what was changed."""
    budget, running, words = values.token_budget, values.running_limit, []
    if engine == "sglang" and block_tokens > 1 and budget > block_tokens and budget % block_tokens:
        budget -= budget % block_tokens
        words.append(
            f"the token budget is rounded down to {budget:,}, a multiple of the page of {block_tokens} tokens: SGLang asks for one"
        )
    if budget < running:
        words.append(
            f"the running limit is lowered from {running:,} to the token budget of {budget:,}: more requests could not decode in one step"
        )
        running = budget
    return values._replace(token_budget=budget, running_limit=running), words


def _settings(values: StaticValues, there: tuple[Knob, ...]) -> tuple[tuple[Setting, ...], list[str]]:
    """Flags that act, and what is said of the others."""
    numbers: dict[str, int | bool] = {
        "token_budget": values.token_budget,
        "running_limit": values.running_limit,
        "chunk_tokens": values.chunk_tokens,
        "mixed": True,
        "chunked": True,
    }
    rows, words = [], []
    for knob in there:
        value = numbers.get(knob.carries)
        if value is None or value == 0:
            continue
        if knob.carries == "chunk_tokens" and value >= values.token_budget:
            words.append(f"{knob.flag} {value} is left out: at or above the token budget it does nothing")
            continue
        rows.append(Setting(knob, value))
    if values.chunk_tokens and not any(k.carries == "chunk_tokens" for k in there):
        words.append(
            f"the cap of {values.chunk_tokens:,} prompt tokens of one request in a step has no flag in this engine and is left out"
        )
    return tuple(rows), words


def flag_files(
    record: ControllerRecord, engine: str, version: str | None, certificate: dict[str, Any]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Content of the folder that `headway export --engine vllm-flags` and its like write.

    Args:
        record: the controller.
        engine: a key of `knob_tables.VERSIONS`.
        version: that will run; None for the newest known.
        certificate: as from `certified.granted`.

    Returns:
        (text by file name, what there is to say).

    Raises:
        ValueError: as from `flags_of`.
    """
    from headway.engines.flags_readme import flags_readme

    flags = flags_of(record, engine, version)
    content = record.to_json()["content_sha256"]
    typed = " ".join(s.typed() for s in flags.settings if s.typed())
    files = {
        "flags.txt": typed + "\n",
        "flags.json": json.dumps(_json(flags, content), sort_keys=True, indent=2) + "\n",
        "README.md": flags_readme(record, flags, SERVE[engine].format(flags=typed), content, said(certificate)),
    }
    if engine == "trtllm":
        files["headway_trtllm.yaml"] = "".join(f"{s.knob.name}: true\n" for s in flags.settings if s.value is True)
    return files, (f"static values only: {flags.values.origin}", *flags.notes)


def _json(flags: Flags, content_sha256: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "written_by": f"headway {headway.__version__}",
        "engine": flags.engine,
        "engine_version": flags.asked,
        "flags_of_version": flags.version,
        "content_sha256": content_sha256,
        "origin": flags.values.origin,
        "settings": [
            {"name": s.knob.name, "flag": s.knob.flag, "value": s.value, "unit": s.knob.unit, "source": s.knob.source}
            for s in flags.settings
        ],
        "notes": list(flags.notes),
    }
