"""What stands beside the adapter for vLLM: how to start the server with it, and what it does there."""

from __future__ import annotations

import math
from typing import Any

import headway
from headway.controllers.record import ControllerRecord
from headway.controllers.scheduled import at_rest
from headway.engines.certified import said

START = """# Headway beside vLLM's scheduler{title}

Written by headway {version}. `headway_vllm.py` is all that the server needs: it imports the standard library, vLLM, and what vLLM
itself imports.
{warnings}{certificate}
## Start

```sh
PYTHONPATH={folder} vllm serve MODEL{limits} \\
  --scheduler-cls headway_vllm.make_scheduler \\
  --additional-config '{{"headway": {{"mode": "{mode}"}}}}'
```

PYTHONPATH names this folder. The factory takes vLLM's AsyncScheduler or Scheduler as its base, whichever fits how this server
schedules, wraps `schedule` and `update_from_output`, and copies nothing of vLLM.

| mode | what it does |
|---|---|
| `observe` | writes one row a step into `trace`, changes nothing |
| `excite` | also draws token budget and running limit at random, for `headway fit` |
| `shadow` | computes every command and sends none; the trace and the log have what it would have done |
| `control` | steers |

Settings of `"headway"` in `--additional-config`, each with its default: `mode` ({default}), `gains` (a file to watch;
`controller.json` beside the adapter), `trace` (a file; `steps.jsonl` in observe and excite, else none), `seed` (0),
`excite` (`{{"tokens": [...], "running": [...], "hold_steps": [4, 16]}}`), `clock` ("wall" or "cpu": which durations `headway fit`
takes by itself), `metrics_port` (0). HEADWAY_MODE, HEADWAY_GAINS and HEADWAY_TRACE go before them.
"""

CONTROL = """
## What a request may say

`"vllm_xargs": {{"headway_class": "{name}", "headway_ttft_ms": 800, "headway_itl_ms": 50}}` in the body; all of it is optional. Classes:
{classes}. A class without targets here gets those of {default_class}, which is counted and logged.

## What it holds

- Token budget within {max_tokens:,} tokens, at most {running_limit} requests running{chunk}; never above what vLLM was started with. A
  lowered running limit drains: nobody is evicted for it.
{followed}- Order is "{order}", triage is "{triage}". A refused request ends with finish_reason "abort" and no token, before it has cost one.
- `headway_step_time_seconds`, `headway_late_rate`, `headway_shed` and others are gauges of the scheduler's process: set
  PROMETHEUS_MULTIPROC_DIR before the start and vLLM's own /metrics has them, or name a `metrics_port`.

## Other gains, while it serves

Replace `controller.json` by another one (`mv new.json controller.json`; a rename is never seen half written). It is looked at every
half second and taken over between two steps, from the command in force. A file that cannot be used is refused: one line in the log,
`headway_refused_gains` counts it, and the gains in force stay.

## When something is wrong

Any fault of the adapter is logged once, as "headway gives up", and vLLM schedules alone from then on, with the limits it was started
with; `headway_fallback` is 1. To be rid of it for good, start without `--scheduler-cls`{static}.
"""


def adapter_readme(record: ControllerRecord | None, content_sha256: str, certificate: dict[str, Any], warnings: tuple[str, ...]) -> str:
    """How to start vLLM with the adapter.

    Args:
        record: the controller; None for an adapter that records only.
        content_sha256: its hash.
        certificate: as `certified.granted` gives it.
        warnings: sentences to put on top.

    Returns:
        Markdown.
    """
    law = record.candidate.law.law if record else ""
    start = START.format(
        title=f": {law} law, content {content_sha256[:12]}" if record else ", for recording",
        version=headway.__version__,
        warnings="".join(f"\n> **Warning:** {w}.\n" for w in warnings),
        certificate=f"\nCertificate: {said(certificate)}.\n" if record else "",
        folder="DIR",
        limits=f" --max-num-batched-tokens {record.limits.max_tokens} --max-num-seqs {record.limits.max_seqs}" if record else "",
        mode="control" if record else "observe",
        default="`control` with gains, `observe` without",
    )
    return start + (_control(record) if record else "\nThere are no gains in it: shadow and control need a file of them.\n")


def _followed(record: ControllerRecord) -> str:
    """What follows the load."""
    gains = record.candidate.gains
    if gains is None:
        return ""
    return f"- {', '.join(gains.names)} follow the load: queued prompt tokens, decoding requests and KV use; what is said here is of an idle engine.\n"


def _control(record: ControllerRecord) -> str:
    policy, limits, names = at_rest(*record.candidate)[1], record.limits, [t.name for t in record.targets]
    chunk, best = math.floor(policy.chunk_tokens), (record.tuning.get("best_static") or {}).get("settings") or {}
    flags = f"--max-num-batched-tokens {best['token_budget']} --max-num-seqs {best['running_limit']}" if best.get("token_budget") else ""
    return CONTROL.format(
        name=names[0],
        classes=", ".join(f"{k} {t.name} (ttft {t.ttft_s:g} s, itl {t.itl_s * 1e3:g} ms)" for k, t in enumerate(record.targets)),
        default_class="default" if "default" in names else names[0],
        max_tokens=limits.max_tokens,
        running_limit=min(math.floor(policy.running_limit), limits.max_seqs),
        chunk=f", and one request at most {chunk:,} prompt tokens in a step" if chunk > 0 else "",
        followed=_followed(record),
        order=policy.order,
        triage=policy.triage,
        static=f"; the best static setting found beside it is `{flags}`" if flags else "",
    )
