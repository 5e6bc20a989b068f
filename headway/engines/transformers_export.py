"""A controller as a scheduler file for transformers' continuous batching: one module, its gains, how to use it."""

from __future__ import annotations

import json
import math
from typing import Any

import headway
from headway.controllers.record import ControllerRecord
from headway.engines.bundle import PARTS, joined_source
from headway.engines.certified import said

TRANSFORMERS_PARTS = ("vllm/settings", "vllm/excitation", "vllm/trace_file", "transformers_batching")
"""Files that follow the runtime in the module, each after those that it needs."""

README = """# A Headway controller for transformers' continuous batching: {law} law, content {content}

Written by headway {written}. Certificate: {certificate}.
{notes}
```python
import headway_transformers
from transformers import ContinuousBatchingConfig

headway_transformers.register("gains.json", trace="steps.jsonl")
outputs = model.generate_batch(
    inputs, generation_config, continuous_batching_config=ContinuousBatchingConfig(
        scheduler_type="headway", max_batch_tokens={tokens}, max_requests_per_batch={seqs}
    )
)
```

- `headway_transformers.py` (standard library and transformers) and `gains.json` are all that is needed.
- It holds a step to {setpoint_ms:.2f} ms, measured from the start of one step to the start of the next, by the token budget of each step and
  the running limit of {running}; waiting requests come in in order "{order}". The engine's own limits are never exceeded.
- `trace` is a file of steps that `headway fit` reads. `register(mode="excite", trace="steps.jsonl")` draws commands at random, to
  identify a plant; `register(trace="steps.jsonl")` only records.
- A request's class is the part of its name before a slash, `request_id="chat/17"`; {classes}.
- Any fault of it is logged once, and the stock scheduler goes on alone.
- It is plugged into `SCHEDULER_MAPPING`, which transformers does not document: tried with 5.19.0.
"""


def transformers_source(content_sha256: str) -> str:
    """The module: the runtime, and behind it the parts for transformers.

    Args:
        content_sha256: hash of the controller that it is written for.

    Returns:
        Python source.
    """
    return joined_source(
        (*(part for part in PARTS if part != "runtime_replay"), *TRANSFORMERS_PARTS),
        f"for the controller with content {content_sha256}",
        "A tuned controller for transformers' continuous batching: this file and gains.json are all it needs beside transformers.\n\n"
        '`register("gains.json")`, then ContinuousBatchingConfig(scheduler_type="headway").\n',
    )


def transformers_files(
    record: ControllerRecord, version: str | None, certificate: dict[str, Any]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Content of the folder that `headway export --engine transformers` writes.

    Args:
        record: the controller.
        version: not used: one file serves every version that has the plug.
        certificate: as from `certified.granted`.

    Returns:
        (text by file name, what there is to say).

    Raises:
        ValueError: the law, or a part of the policy, has no runtime.
    """
    from headway.engines.export import gains_json

    del version
    gains = gains_json(record, certificate)
    (law, policy, _), content = record.candidate, str(gains["content_sha256"])
    words = []
    if policy.triage != "none":
        words.append(f'triage "{policy.triage}" is not carried out: transformers has no way to refuse a request, the caller has')
    if math.floor(policy.chunk_tokens) > 0:
        words.append(f"the cap of {math.floor(policy.chunk_tokens):,} prompt tokens of one request in a step is not carried out")
    if policy.admission != "none":
        words.append(f'admission "{policy.admission}" is not carried out: requests come in up to the running limit and the cache')
    budget_s = min(t.budget_s for t in record.targets)
    names = [t.name for t in record.targets]
    text = README.format(
        law=law.law,
        content=content[:12],
        written=headway.__version__,
        certificate=said(certificate),
        notes="".join(f"\n> **Note:** {n}.\n" for n in words),
        tokens=record.limits.max_tokens,
        seqs=record.limits.max_seqs,
        setpoint_ms=(1 - law.setpoint_margin) * budget_s * 1e3,
        running=min(math.floor(policy.running_limit), record.limits.max_seqs),
        order=policy.order,
        classes=f"classes are {', '.join(names)}, and any other name is {names[0]}"
        if len(names) > 1
        else f"there is one class, {names[0]}",
    )
    files = {
        "headway_transformers.py": transformers_source(content),
        "gains.json": json.dumps(gains, sort_keys=True, indent=2, allow_nan=False) + "\n",
        "README.md": text,
    }
    return files, tuple(words)
