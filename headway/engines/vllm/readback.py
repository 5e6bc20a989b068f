"""Whether a running vLLM is as it was exported: its limits, its flags, the adapter's mode and gains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from headway.engines.verified import read_back as flags_read_back
from headway.engines.verified import values_in_config, values_in_log
from headway.engines.vllm.service import Service, read_back
from headway.experiments.whole_files import read_json

STARTED = re.compile(r"headway: mode (\w+), (?:law (\w+), content (\w+)|no gains)")
"""What the adapter says when it starts."""
LIMITS = ("max_seqs", "max_tokens", "max_len", "block_tokens", "kv_tokens")


def verify_exported(exported: Path, *, url: str | None = None, log: Path | None = None) -> dict[str, Any]:
    """Compare an export with what a server says of itself.

    Args:
        exported: folder of an export, or the controller.json or flags.json in it.
        url: address of the server; None to read the log alone.
        log: what it printed at its start; None to ask the server alone.

    Returns:
        {"rows": [{"what", "exported", "found", "verdict"}], "notes", "version"}; the verdict is "in force", "not in force" or
        "not said".

    Raises:
        ValueError: neither address nor log, no such export, or a server that does not answer.
    """
    if url is None and log is None:
        raise ValueError("nothing to read back from: give the server's address with --url, its log with --log, or both")
    text = "" if log is None else _text_of(log)
    flags, gains = (_beside(exported, name) for name in ("flags.json", "controller.json"))
    if flags is None and gains is None:
        raise ValueError(f"{exported} holds neither flags.json nor controller.json; name the folder of `headway export`")
    service = None if url is None else Service(url)
    rows, notes = [], []
    version: str | None = None
    if flags is not None:
        config = _config(service) if service is not None else {}
        found = values_in_log(text.splitlines()) | values_in_config(config)
        rows += [_row(f"--{r.name.replace('_', '-')}", r.exported, r.found, r.verdict) for r in flags_read_back(flags, found)]
        version = found.get("version")
    if gains is not None:
        more, said, version = _steered(read_json(gains), service, text, log)
        rows, notes = rows + more, notes + said
    return {"rows": rows, "notes": notes, "version": version}


def _steered(record: Any, service: Service | None, text: str, log: Path | None) -> tuple[list[dict[str, Any]], list[str], str | None]:
    """Rows for an adapter with gains."""
    try:
        engine, content = record["engine"], str(record["content_sha256"])
    except (KeyError, TypeError):
        raise ValueError("controller.json names no engine or no content hash; write it anew with `headway export`") from None
    found: dict[str, Any] = {}
    version, notes = None, []
    if service is not None:
        back = read_back(service, log)
        found, version = dict(back.limits), back.version
    elif text:
        found = {name: value for name, value in _limits_in(text).items() if value is not None}
    rows = [_row(name, engine[name], found.get(name), _verdict(name, engine[name], found.get(name))) for name in LIMITS if name in engine]
    started = STARTED.findall(text)
    mode, _, gains = started[-1] if started else (None, None, None)
    rows.append(
        _row("adapter's mode", "control", mode, "not said" if mode is None else "in force" if mode == "control" else "not in force")
    )
    same = "not said" if not gains else "in force" if content.startswith(gains) else "not in force"
    rows.append(_row("gains", content[:12], gains or None, same))
    if not started:
        notes.append("mode and gains stand in the server's log alone; give it with --log")
    elif "takes over" in text or "reload" in text.lower():
        notes.append("gains were exchanged after the start: the log says which; those above are the first")
    return rows, notes, version


def _verdict(name: str, exported: int, found: int | None) -> str:
    """A cache as large or larger holds what the controller was tuned for; every other limit must be the same."""
    if found is None:
        return "not said"
    return "in force" if found == exported or (name == "kv_tokens" and found >= exported) else "not in force"


def _limits_in(text: str) -> dict[str, Any]:
    values = values_in_log(text.splitlines())
    names = {"max_seqs": "max_num_seqs", "max_tokens": "max_num_batched_tokens", "max_len": "max_model_len", "block_tokens": "block_size"}
    return {ours: values.get(theirs) for ours, theirs in names.items()}


def _row(what: str, exported: Any, found: Any, verdict: str) -> dict[str, Any]:
    return {"what": what, "exported": exported, "found": found, "verdict": verdict}


def _beside(exported: Path, name: str) -> Path | None:
    file = exported / name if exported.is_dir() else exported
    return file if file.name == name and file.is_file() else None


def _text_of(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ValueError(f"--log {log}: cannot be read ({error.strerror or error})") from None


def _config(service: Service) -> Any:
    """What the server says of its configuration; only a server in developer mode does."""
    import json

    try:
        return json.loads(service.get("/server_info?config_format=json"))
    except ValueError:
        return {}
