"""What stands beside exported flags: the line that starts the engine, what each flag does there, and what no flag does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import headway
from headway.controllers.policy import prefill_rate_tps
from headway.controllers.record import ControllerRecord
from headway.engines.knob_tables import knobs

if TYPE_CHECKING:
    from headway.engines.flags import Flags

TEXT = """# Static flags for {title} {version}, from the controller with content {content}

Written by headway {written}. Certificate of the controller that they stand for: {certificate}.

```sh
{line}
```

{origin}.
{notes}
| flag | value | unit | without it | where that stands |
|---|---|---|---|---|
{rows}

## What these flags do not do

A flag is one number for every step. The controller that they stand in for moves its token budget with each step, orders
the queue ("{order}") and decides on prompts that are too late ("{triage}"): none of that is in a flag.
{queue}
## Other flags of this version that touch the same thing

| flag | what it does | when it does nothing | where that stands |
|---|---|---|---|
{others}

## Check after the start

`headway verify` reads from the server's start-up log, or from the server itself, which of the values above are in force:

```sh
headway verify . --log server.log
```
"""


def flags_readme(record: ControllerRecord, flags: Flags, line: str, content_sha256: str, certificate: str) -> str:
    """How to use exported flags.

    Args:
        record: the controller.
        flags: as from `flags.flags_of`.
        line: that starts the engine.
        content_sha256: hash of the controller.
        certificate: in one line.

    Returns:
        Markdown.
    """
    from headway.engines.flags import TITLES

    policy, set_there = record.candidate.policy, {s.knob.flag for s in flags.settings}
    rows = (f"| `{s.knob.flag}` | {str(s.value).lower()} | {s.knob.unit} | {s.knob.default} | {s.knob.source} |" for s in flags.settings)
    others = (f"| `{k.flag}` | {k.acts} | {k.idle} | {k.source} |" for k in knobs(flags.engine, flags.version) if k.flag not in set_there)
    return TEXT.format(
        title=TITLES[flags.engine],
        version=flags.version,
        content=content_sha256[:12],
        written=headway.__version__,
        certificate=certificate,
        line=line,
        origin=flags.values.origin[0].upper() + flags.values.origin[1:],
        notes="".join(f"\n> **Note:** {n}.\n" for n in flags.notes),
        rows="\n".join(rows),
        order=policy.order,
        triage=policy.triage,
        queue=_queue(record, flags),
        others="\n".join(others),
    )


def _queue(record: ControllerRecord, flags: Flags) -> str:
    """The one flag that comes near to shedding, with its value: it is not set, as nothing judged it."""
    if not any(k.name == "max_num_queued_tokens" for k in knobs(flags.engine, flags.version)):
        return ""
    setpoint_s = (1 - record.candidate.law.setpoint_margin) * min(t.budget_s for t in record.targets)
    rate_tps = prefill_rate_tps(record.plant, setpoint_s, record.limits.max_tokens)
    tokens = math.floor(rate_tps * min(t.first_token_s for t in record.targets))
    return (
        "What comes nearest to shedding is `--max-num-queued-tokens`: TTFT target times prefill rate, here "
        f"{tokens:,} tokens, above which new requests get HTTP 503. It is not set: nothing judged it.\n"
    )
