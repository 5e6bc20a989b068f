"""From a tuned controller to a folder that an engine's process can use: plain JSON, or one Python file with its proof."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import headway
from headway.controllers.laws import STATE_SIZE, law_init, law_step
from headway.controllers.pi import PILaw
from headway.controllers.policy import prefill_rate_tps
from headway.controllers.record import ControllerRecord
from headway.engines import runtime
from headway.experiments.margins import instability
from headway.models.plant import Batch

GOLDEN_ROWS = 500
GOLDEN_SEED = 500
GOLDEN_COLUMNS = (*runtime.READINGS, "token_budget", "state_0", "state_1")

README = """# A Headway controller: {law} law, content {content}

`headway_runtime.py` (standard library only) and `gains.json` are all an engine needs. Written by headway {version}.
{warnings}
## Use

```python
from headway_runtime import Runtime

controller = Runtime.from_json("gains.json")
# Before the first step nothing has been measured yet.
token_budget = controller.update(None, 0, 0, False, ready_requests=0)

# Then once per step, before it is composed: what the last step took and carried, and who wants to decode next.
token_budget = controller.update(
    step_time_s=0.0213, prefill_tokens=512, decode_requests=24, binding=True, ready_requests=25
)

# Prompts as (tokens left, arrival): shed whom triage turns away, serve the rest least key first.
now_s, prompts = 10.5, [(900, 10.2), (120, 10.4)]
served = [p for p in prompts if not controller.turn_away(*p, now_s)]
served.sort(key=lambda p: controller.key(*p, now_s))
print(token_budget, served)
```

- `step_time_s` is start to start of consecutive steps on a monotonic clock [s]; skip idle gaps.
- Call `update` when the last step has ended. An engine that composes one step ahead doubles the delay of the loop:
  check its margins with a delay of 2 first.
- `binding` is true if the last step used its token budget up while prompt work was waiting. Without it the law cannot
  tell a lull from a fast step.
- `token_budget` counts the decoding requests' own tokens. Decodes come first, prompts share the rest. It never exceeds
  the engine's own limit of {max_tokens:,} tokens.
- Besides, at most {running_limit} requests run at once{chunk}.
- A reading that cannot be true (missing, NaN, negative, zero time) holds the last command; `faults` counts them,
  `last_fault` shows the last. Watch it.
- Order is "{order}", triage is "{triage}": `key` and `turn_away` follow them.

{fallback}{classes}
## What it holds

A step of {budget_ms:.2f} ms keeps the tightest target; the setpoint is {setpoint_ms:.2f} ms. The plant behind it was fitted on steps of up
to {n:,.0f} decoding requests, {kv:,.0f} KV tokens and {p:,.0f} prefill tokens: beyond them it is an extrapolation.

| gain | value | unit |
|---|---|---|
{gains}

## Check

`golden.csv` holds {rows} steps and the budgets that the law gives; a port to another language replays it as its test.

```sh
python headway_runtime.py gains.json golden.csv
```

Compare budgets exactly and states to 1e-12. Times and states are in hexadecimal so that no digit is lost.
"""
"""What stands beside an exported runtime."""


class Exported(NamedTuple):
    """What was written.

    Args:
        folder: where.
        files: their names.
        warnings: sentences for whoever is about to use it.
    """

    folder: Path
    files: tuple[str, ...]
    warnings: tuple[str, ...]


def export_json(record: ControllerRecord, out: str | Path, *, force: bool = False) -> Exported:
    """Write controller.json in canonical form: sorted keys, two spaces, one hash for one behaviour.

    Args:
        record: the controller.
        out: folder to make.
        force: write into a folder that holds something; other files in it stay.

    Returns:
        What was written.

    Raises:
        ValueError: the folder holds something, a number is not finite, or the loop is unstable.
    """
    _refuse_unstable(record)
    return _write(out, {"controller.json": _canonical(record.to_json())}, warnings_of(record), force)


def export_python(record: ControllerRecord, out: str | Path, *, force: bool = False) -> Exported:
    """Write a runtime of one file without dependencies, its gains, recorded steps to check it by, and how to use it.

    Args:
        record: the controller.
        out: folder to make.
        force: write into a folder that holds something; other files in it stay.

    Returns:
        What was written.

    Raises:
        ValueError: the folder holds something, a number is not finite, the loop is unstable, or the law has no runtime.
        RuntimeError: the runtime does not act as the law does: a fault of Headway's.
    """
    _refuse_unstable(record)
    law = record.candidate.law
    if law.law not in runtime.LAWS:
        raise ValueError(f"law {law.law!r} has no runtime; export it as json, or choose one of {', '.join(runtime.LAWS)}")
    gains = record.to_json()
    budget_s = min(t.budget_s for t in record.targets)
    rate_tps = prefill_rate_tps(record.plant, (1 - law.setpoint_margin) * budget_s, record.limits.max_tokens)
    gains["prefill_rate_tps"] = {"value": rate_tps, "unit": "tokens/s"}
    rows = golden(record)
    _check(gains, rows)
    warnings = warnings_of(record)
    files = {
        "headway_runtime.py": _runtime_source(gains["content_sha256"]),
        "gains.json": _canonical(gains),
        "golden.csv": "\n".join(",".join(row) for row in (GOLDEN_COLUMNS, *rows)) + "\n",
        "README.md": readme(record, gains["content_sha256"], warnings),
    }
    return _write(out, files, warnings, force)


EXPORTERS: dict[str, Callable[..., Exported]] = {"json": export_json, "python": export_python}
"""Exporters by the name of what they write for."""


def readme(record: ControllerRecord, content_sha256: str, warnings: tuple[str, ...]) -> str:
    """How to use the runtime, with this controller's own numbers.

    Args:
        record: the controller.
        content_sha256: its hash.
        warnings: sentences to put on top.

    Returns:
        Markdown.
    """
    (law, policy), limits, hull = record.candidate, record.limits, record.hull
    budget_s = min(t.budget_s for t in record.targets)
    chunk = math.floor(policy.chunk_tokens)
    return README.format(
        law=law.law,
        content=content_sha256[:12],
        version=headway.__version__,
        warnings="".join(f"\n> **Warning:** {w}.\n" for w in warnings),
        max_tokens=limits.max_tokens,
        running_limit=min(math.floor(policy.running_limit), limits.max_seqs),
        chunk=f", and one request gets at most {chunk:,} prompt tokens in a step" if chunk > 0 else "",
        order=policy.order,
        triage=policy.triage,
        fallback=_fallback(record),
        classes=_classes(record),
        budget_ms=budget_s * 1e3,
        setpoint_ms=(1 - law.setpoint_margin) * budget_s * 1e3,
        n=hull.decode_requests,
        kv=hull.decode_kv_tokens,
        p=hull.prefill_tokens,
        gains="\n".join(f"| {name} | {g.value:.6g} | {g.unit} |" for name, g in law.gains().items()),
        rows=GOLDEN_ROWS,
    )


def _fallback(record: ControllerRecord) -> str:
    best = (record.tuning.get("best_static") or {}).get("settings") or {}
    if not best.get("token_budget"):
        return ""
    flags = f"--max-num-batched-tokens {best['token_budget']} --max-num-seqs {best['running_limit']}"
    return f"\nWithout it, the best static setting found beside it is, in vLLM's flags: `{flags}`.\n"


def _classes(record: ControllerRecord) -> str:
    if len(record.targets) < 2:
        return ""
    rows = ", ".join(f"{k} {t.name} (ttft {t.ttft_s:g} s, itl {t.itl_s * 1e3:g} ms)" for k, t in enumerate(record.targets))
    return f"\nClasses are told by number, `class_id=` of `key` and `turn_away`: {rows}.\n"


def warnings_of(record: ControllerRecord) -> tuple[str, ...]:
    """What whoever is about to use a controller must know.

    Args:
        record: the controller.

    Returns:
        Sentences; none for one that was tuned, is better, sheds on purpose and keeps its promise.
    """
    rows, outcome = [], record.tuning.get("outcome")
    if outcome == "no better":
        rows.append("tuning found this controller no better than the best static setting: expect no gain from it")
    elif outcome != "better":
        rows.append("this controller was not tuned: nothing says that it beats a static setting")
    if record.candidate.policy.triage == "none":
        rows.append("triage is off: under overload every prompt is served late, where turning some away would keep the rest on time")
    if record.edited:
        rows.append("controller.json was changed by hand since it was tuned: its content hash does not fit")
    attained = (record.tuning.get("heldout") or {}).get("attainment")
    promised = 1 - min(t.epsilon for t in record.targets)
    if attained is not None and attained < promised:
        rows.append(
            f"at the load it was tuned for {100 * attained:.1f} % of the tokens owed were on time, {100 * promised:.4g} % were promised"
        )
    return tuple(rows)


def golden(record: ControllerRecord) -> list[tuple[str, ...]]:
    """Steps of a made-up engine under the law's reference form: load that wanders over the hull, lulls, spikes and slow spells.

    Args:
        record: the controller.

    Returns:
        One row per step in the order of GOLDEN_COLUMNS: step time and state in hexadecimal, the rest in decimal.
    """
    rng, law, hull = np.random.default_rng(GOLDEN_SEED), record.candidate.law, record.hull
    packed, state, budget_s = law.pack(), np.zeros(STATE_SIZE), min(t.budget_s for t in record.targets)
    law_init(packed, state)
    most = max(2, min(int(hull.decode_requests), record.limits.max_seqs))
    last, n, rows = (np.nan, 0, 0, 0), 1, []
    for k in range(GOLDEN_ROWS):
        n = 0 if k % 97 == 96 else int(np.clip(max(n, 1) + rng.integers(-3, 4), 1, most))
        raw = law_step(packed, state, np.array([*last, n], float), budget_s)
        budget = int(min(np.floor(raw), record.limits.max_tokens))
        rows.append((float(last[0]).hex(), *map(str, (*last[1:], n, budget)), *(float(x).hex() for x in state[:2])))
        waiting = rng.random() < 0.8
        prefill = max(0, budget - n) if waiting else int(rng.integers(0, max(1, budget - n) + 1) * (rng.random() < 0.5))
        kv = hull.decode_kv_tokens * n / most
        y = float(record.plant.step_time_s(Batch(n, kv, prefill, prefill**2 / 2, float(prefill > 0))))
        slow = 5.0 if 200 <= k % 250 < 225 else 1.0
        last = (y * slow * float(np.exp(rng.normal(0, 0.1))) + 1e-9, prefill, min(n, budget), int(waiting))
    return rows


def _check(gains: dict[str, Any], rows: list[tuple[str, ...]]) -> None:
    """Read back what will be written, and replay it."""
    shipped = runtime.Runtime.from_json(json.loads(_canonical(gains)))
    for k, row in enumerate(rows):
        budget = shipped.update(float.fromhex(row[0]), *map(float, row[1:5]))
        if budget != int(row[5]):
            raise RuntimeError(f"the runtime answers {budget} in golden row {k}, the law {row[5]}; please report this controller.json")


def _refuse_unstable(record: ControllerRecord) -> None:
    law = record.candidate.law
    fault = instability(law, record.plant, record.hull, record.limits) if isinstance(law, PILaw) else None
    if fault:
        raise ValueError(f"refused: {fault}")


def _canonical(data: dict[str, Any]) -> str:
    try:
        return json.dumps(data, sort_keys=True, indent=2, allow_nan=False) + "\n"
    except ValueError:
        raise ValueError("controller.json would hold a number that is not finite; tune anew") from None


def _runtime_source(content_sha256: str) -> str:
    source = Path(runtime.__file__).read_text(encoding="utf-8")
    return f"# Written by headway {headway.__version__} for the controller with content {content_sha256}; do not edit.\n{source}"


def _write(out: str | Path, files: dict[str, str], warnings: tuple[str, ...], force: bool) -> Exported:
    """All files or none: they are written beside the folder first and moved into place whole."""
    folder = Path(out).resolve()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{out} is a file; name a folder to make")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise ValueError(f"{out} is not empty; name a new folder, or write into it with --force")
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = folder.parent / f".{folder.name}.{os.getpid()}"
    staging.mkdir()
    try:
        for name, text in files.items():
            (staging / name).write_text(text, encoding="utf-8", newline="\n")
        if folder.exists():
            for name in files:
                os.replace(staging / name, folder / name)
        else:
            os.replace(staging, folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Exported(folder, tuple(files), warnings)
