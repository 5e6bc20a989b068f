"""What the adapter is told at the start of vLLM: `--additional-config '{"headway": {...}}'`, and three environment variables."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

VLLM_MODES = ("observe", "excite", "shadow", "control")
VLLM_CLOCKS = ("wall", "cpu")


class VllmSettings(NamedTuple):
    """How the adapter runs.

    Args:
        mode: "observe" records, "excite" also draws budgets at random, "shadow" computes commands and sends none, "control" steers.
        gains: file of gains that is watched; "" for controller.json beside the adapter, or the gains inside it.
        trace: file of steps to write, one JSON object a line; "" for none.
        seed: of the excitation.
        tokens: token budgets that the excitation draws from; () for shares of the engine's own limit [tokens].
        running: running limits that it draws from; likewise [requests].
        hold_steps: least and most steps for which a drawn command stands [steps].
        clock: which durations `headway fit` takes from the trace by itself: "wall", or "cpu" for the time of the process that runs the llm.
        metrics_port: port on 127.0.0.1 for the metrics of this process; 0 for none.
    """

    mode: str = "observe"
    gains: str = ""
    trace: str = ""
    seed: int = 0
    tokens: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    hold_steps: tuple[int, int] = (4, 16)
    clock: str = "wall"
    metrics_port: int = 0


def vllm_settings(additional: Any, *, has_gains: bool, environment: Any = os.environ) -> VllmSettings:
    """Read the settings; HEADWAY_MODE, HEADWAY_GAINS and HEADWAY_TRACE go before the command line.

    Args:
        additional: vLLM's additional_config.
        has_gains: the adapter holds gains: without any word of a mode it then controls, else it observes.
        environment: variables by name.

    Returns:
        The settings. The modes that record write steps.jsonl where no trace is named.

    Raises:
        ValueError: an unknown name or a wrong value; the message names it.
    """
    given = dict((additional or {}).get("headway") or {}) if isinstance(additional, dict) else {}
    for name in ("mode", "gains", "trace"):
        given[name] = environment.get(f"HEADWAY_{name.upper()}") or given.get(name)
    excite = dict(given.pop("excite", None) or {})
    names = {k: v for k, v in {**given, **excite}.items() if v is not None}
    if unknown := sorted(set(names) - set(VllmSettings._fields)):
        raise ValueError(f"headway: no setting is named {', '.join(unknown)}; there are {', '.join(VllmSettings._fields)}")
    names.setdefault("mode", "control" if has_gains else "observe")
    if names["mode"] not in VLLM_MODES:
        raise ValueError(f"headway: mode must be one of {', '.join(VLLM_MODES)}, got {names['mode']!r}")
    if names.get("clock", "wall") not in VLLM_CLOCKS:
        raise ValueError(f"headway: clock must be one of {', '.join(VLLM_CLOCKS)}, got {names['clock']!r}")
    for name in ("tokens", "running", "hold_steps"):
        if name in names:
            names[name] = _counts(name, names[name])
    found = VllmSettings(**names)
    if len(found.hold_steps) != 2 or found.hold_steps[0] > found.hold_steps[1]:
        raise ValueError(f"headway: hold_steps must be the least and the most steps, such as [4, 16], got {list(found.hold_steps)}")
    if not found.trace and found.mode in ("observe", "excite"):
        found = found._replace(trace="steps.jsonl")
    return found


def _counts(name: str, values: Any) -> tuple[int, ...]:
    """Whole numbers from one on."""
    rows = values if isinstance(values, (list, tuple)) else [values]
    if not rows or any(isinstance(x, bool) or not isinstance(x, int) or x < 1 for x in rows):
        raise ValueError(f"headway: {name} must be whole numbers of at least 1, got {values!r}")
    return tuple(rows)
