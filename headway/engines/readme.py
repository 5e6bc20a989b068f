"""What stands beside an exported runtime: how to use it, with this controller's own numbers, and what to beware of."""

from __future__ import annotations

import math

import headway
from headway.controllers.guard import Guard
from headway.controllers.record import ControllerRecord
from headway.controllers.scheduled import at_rest
from headway.engines.certified import said
from headway.engines.golden import GOLDEN_ROWS

HEAD = """# A Headway controller: {law} law, content {content}

{what} Written by headway {version}.
{warnings}
Certificate: {certificate}.

"""

PYTHON = """## Use

```python
from headway_runtime import Runtime

controller = Runtime.from_json("gains.json")
# Before the first step nothing has been measured yet.
token_budget = controller.update(None, 0, 0, False, ready_requests=0)

# Then once per step, before it is composed: what the last step took and carried, and who wants to decode next.
token_budget = controller.update(
    step_time_s=0.0213, prefill_tokens=512, decode_requests=24, binding=True, ready_requests=25{sums}
)

# Prompts as (tokens left, arrival): shed whom triage turns away, serve the rest least key first.
now_s, prompts = 10.5, [(900, 10.2), (120, 10.4)]
served = [p for p in prompts if not controller.turn_away(*p, now_s)]
served.sort(key=lambda p: controller.key(*p, now_s))
print(token_budget, served)
```

"""

C99 = """## Use

```c
#include "headway_law.h" /* compile with -ffp-contract=off and link with -lm */

static headway_controller controller;
headway_reset(&controller);
headway_reading reading = {{.step_time_s = NAN, .step_number = NAN, .clock_s = NAN}}; /* before the first step */
long token_budget = headway_update(&controller, &reading);
```

The fields of `headway_reading` are what the list below calls by the same names; `controller.counts` has the bad
readings by kind. Order and triage of prompts are not in it.

"""

SUMS = """,
    decode_kv_tokens=21600, prefill_pairs=131072, prefill_requests=1, ready_kv_tokens=22500, context_tokens=0,"""

BODY = """- `step_time_s` is start to start of consecutive steps on a monotonic clock [s]; skip idle gaps.
- Call `update` when the last step has ended. An engine that composes one step ahead doubles the delay of the loop:
  check its margins with a delay of 2 first.
- `binding` is true if the last step used its token budget up while prompt work was waiting. Without it the law cannot
  tell a lull from a fast step.
{needs}- `step_number` (one more each step) and `clock_s`, if the engine has them, tell readings that are missing or come twice.
- `token_budget` counts the decoding requests' own tokens. Decodes come first, prompts share the rest. It never exceeds
  the engine's own limit of {max_tokens:,} tokens.
- Besides, at most {running_limit} requests run at once{chunk}.
- A reading that cannot be true, or is not of the one step that ended last, holds the last command; `counts` has them by
  kind ({kinds}). `no_authority` counts late steps that no budget can shorten: act by admission there.
- {watchdog}
- Order is "{order}", triage is "{triage}": `key` and `turn_away` follow them.
{parts}{admission}
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
{check}
```

Compare budgets exactly and states to 1e-12. Times and states are in hexadecimal so that no digit is lost.
"""
KINDS = "missing, negative, empty, sums, stale, skipped, clock, double, not_applied"


def readme(record: ControllerRecord, guard: Guard, content_sha256: str, certificate: dict, warnings: tuple[str, ...], language: str) -> str:
    """How to use what is exported, with this controller's own numbers.

    Args:
        record: the controller.
        guard: its guard.
        content_sha256: its hash.
        certificate: as `certified.certificate_of` gives it.
        warnings: sentences to put on top.
        language: "python" or "c99".

    Returns:
        Markdown.
    """
    (law, policy), limits, hull = at_rest(*record.candidate), record.limits, record.hull
    budget_s, chunk = min(t.budget_s for t in record.targets), math.floor(policy.chunk_tokens)
    python = language == "python"
    what = (
        "`headway_runtime.py` (standard library only) and `gains.json` are all an engine needs."
        if python
        else "`headway_law.h` is all an engine needs; its constants stand at the top."
    )
    text = HEAD + (PYTHON if python else C99) + BODY
    return text.format(
        law=law.law,
        what=what,
        content=content_sha256[:12],
        version=headway.__version__,
        warnings="".join(f"\n> **Warning:** {w}.\n" for w in warnings),
        certificate=said(certificate),
        sums=SUMS if law.predicts else "",
        needs=_needs(record),
        admission=_admission(record, language),
        kinds=KINDS,
        watchdog=_watchdog(guard),
        max_tokens=limits.max_tokens,
        running_limit=min(math.floor(policy.running_limit), limits.max_seqs),
        chunk=f", and one request gets at most {chunk:,} prompt tokens in a step" if chunk > 0 else "",
        order=policy.order,
        triage=policy.triage,
        parts=_followed(record) + _parts(record) if python else "",
        fallback=_fallback(record),
        classes=_classes(record),
        budget_ms=budget_s * 1e3,
        setpoint_ms=(1 - law.setpoint_margin) * budget_s * 1e3,
        n=hull.decode_requests,
        kv=hull.decode_kv_tokens,
        p=hull.prefill_tokens,
        gains="\n".join(f"| {name} | {g.value:.6g} | {g.unit} |" for name, g in law.gains().items()),
        rows=GOLDEN_ROWS,
        check="python headway_runtime.py gains.json golden.csv"
        if python
        else "cc -std=c99 -O2 -ffp-contract=off check.c -o check -lm && ./check golden.csv",
    )


def _needs(record: ControllerRecord) -> str:
    if not record.candidate.law.predicts:
        return ""
    return (
        "- This law predicts steps: it needs `decode_kv_tokens`, `prefill_pairs` (sum of p (context + p / 2) over the chunks) and\n"
        "  `prefill_requests` of the last step, and `ready_kv_tokens` and `context_tokens` of the next. Without them it holds its\n"
        "  command and counts `sums`.\n"
    )


def _admission(record: ControllerRecord, language: str) -> str:
    mode = record.candidate.policy.admission
    if mode == "none":
        return ""
    if language == "c99":
        return f'- Admission is "{mode}", which is not in this header: take it from the Python export.\n'
    return (
        f'- Admission is "{mode}": once a step `controller.admission.step()`, `ended(...)` for every output that ended with it, and for\n'
        "  waiting requests in order `admits(controller.admit_limit_s, running, len(running), context_tokens)` until one is refused,\n"
        "  each followed by `joined(context_tokens)` if it did come in.\n"
    )


def _followed(record: ControllerRecord) -> str:
    """What to tell where gains follow the load."""
    gains = record.candidate.gains
    if gains is None:
        return ""
    return (
        f"- {', '.join(gains.names)} follow the load: before each `update`, and before keys are taken, say\n"
        "  `controller.follow_load(queued_tokens, decoding_requests, kv_share)`, all as the last step left it: prompt tokens still to be\n"
        "  computed of all who wait or run, requests that decode, and the share of the cache blocks in use. What is said here of these\n"
        "  gains is of an idle engine. An `update` without a load keeps the last ones; `unfollowed` counts them.\n"
    )


def _parts(record: ControllerRecord) -> str:
    """When keys change, and what `key` must be told for the parts of the policy that are on."""
    policy = record.candidate.policy
    behind = ', and once a step, for "defer" ranks behind who became infeasible' if policy.triage == "defer" else ""
    lines = (
        "- Keys stand still until `renewals` counts one more, by the prefill rate that estimates are made with: take them anew only then"
        f"{behind}.\n  Say in `waiting_requests` how many wait, and it changes more seldom where they are many.\n"
    )
    if policy.triage == "degrade":
        lines += (
            f"- Once `degrades(...)` is true of a waiting request, both its targets are {float(policy.degrade):g} times its class's: say\n"
            "  `degraded=True` to `key` and `slack_s` from then on. `turn_away` sheds it when it cannot keep those either.\n"
        )
    if any(float(x) != 0 for x in policy.priority_s):
        lines += f"- Classes are put forward by {', '.join(f'{float(x):g}' for x in policy.priority_s)} s of slack: say `class_id`.\n"
    if policy.memory_price_s > 0:
        lines += (
            f"- A cache block of {record.limits.block_tokens} tokens costs {float(policy.memory_price_s):g} s of slack: tell `key` the `blocks` that a\n"
            "  waiting prompt needs in all and the `hit_tokens` of it that the prefix cache holds.\n"
        )
    return lines


def _watchdog(guard: Guard) -> str:
    late, window = f"{guard.late_steps:.0f} late steps with prefill", f"{guard.window_steps:.0f}"
    to = f"the static budget of {guard.fallback_tokens:,.0f} tokens" if guard.fallback_tokens else "the last budget that was on time"
    return f"After {late} in {window} the watchdog reverts to {to}, never above what was in force, until a window is clean."


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
