"""The cost table of vllm-ascend's dynamic batch, computed from a plant and its setpoint.

That scheduler reads `vllm_ascend/core/profile_table.csv` at its start. Of each (ctx_len, d_num) it keeps the largest
chunk_size whose cost is within `SLO_limits_for_dynamic_batch`, and at each step looks up the mean context and the number
of the decodes, each rounded up to a key of the table. The answer is the token budget of the whole step, the decodes' own
tokens included.

Source: vllm-project/vllm-ascend, vllm_ascend/core/scheduler_dynamic_batch.py (class BudgetRefiner), and
docs.vllm.ai/projects/ascend, user guide, dynamic batch (v0.13.0 to v0.23.0).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import headway
from headway.controllers.inverse import largest_prefill
from headway.controllers.record import ControllerRecord
from headway.engines.certified import said
from headway.models.plant import Batch

COLUMNS = ("chunk_size", "p_len", "d_num", "ctx_len", "cost")
"""Columns of the table; its reader uses all of them but p_len, the prompt tokens among the chunk."""
SCALES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0)
"""Limits that the table answers exactly, as shares of the one that it is written for."""
CONTEXTS, DECODES = 48, 96
"""Keys aimed at where they are evenly spaced: a table of the size of the one that vllm-ascend gives out."""
FIRST, GROWTH, SLOTS = 64, 1.12, 128
"""Contexts: the first key [tokens], how much the next one is larger, and the hash table of a set of 19 to 76 whole numbers."""

README = """# Cost table for vllm-ascend's dynamic batch, from the controller with content {content}

Written by headway {written}. Certificate of the controller that it stands for: {certificate}.

```sh
cp profile_table.csv "$(python -c 'import os, vllm_ascend; print(os.path.dirname(vllm_ascend.__file__))')/core/profile_table.csv"
vllm serve MODEL --max-num-seqs {seqs} --max-num-batched-tokens {tokens} --additional-config '{{"SLO_limits_for_dynamic_batch": {slo}}}'
```

- `cost` is the predicted duration of a step [ms] times budget over setpoint ({budget_ms:.2f} / {setpoint_ms:.2f}): the margin that the
  controller was tuned with is in it. The limit is a whole number of milliseconds, so the budget of {budget_ms:.2f} ms is rounded down.
- `chunk_size` is the token budget of the step, decodes included, as the scheduler uses it; `p_len` is what is left of it for prompts.
- Where even a step of decodes alone is too long, the table has one row of cost 0 with {least} prompt tokens beside the decodes
  ({floors} of {cells} combinations). Without it the scheduler would take its full budget there: a key that it does not find is no limit to it.
- Keys: {d} numbers of decodes up to {seqs}, {c} contexts up to {longest:,} tokens. They are chosen so that the scheduler, which walks
  through them in the order in which Python's `set` keeps them, meets them in ascending order; other keys would be rounded to any larger one.
- It is a table of the plant: nothing in it reacts to what a step really took. The scheduler derives from vLLM's synchronous one,
  serves first come first served, and is documented for Atlas A2 (910 B3) only. It was not run here: there is no such device.
"""


class Table(NamedTuple):
    """The table and what must be said of it.

    Args:
        rows: chunk_size, p_len, d_num, ctx_len [tokens, tokens, requests, tokens] and cost [ms].
        slo_ms: value of SLO_limits_for_dynamic_batch [ms].
        floors: combinations in which decodes alone are too long.
        decodes: keys [requests].
        contexts: keys [tokens].
    """

    rows: tuple[tuple[int, int, int, int, float], ...]
    slo_ms: int
    floors: int
    decodes: tuple[int, ...]
    contexts: tuple[int, ...]


def keys_in_order(most: int, count: int) -> tuple[int, ...]:
    """Evenly spaced keys, the last at or above a limit, that a Python set of them yields in ascending order.

    A set keeps whole numbers by their remainder of the size of its hash table: some spacings come out in order, others do
    not. Spacings are tried, the nearest to the one aimed at first; 1, 2, 3, ... always is in order.

    Args:
        most: the last key is no smaller.
        count: keys aimed at.

    Returns:
        Ascending.

    Example:
        >>> keys = keys_in_order(8192, 32)
        >>> list(set(keys)) == list(keys), keys[0], keys[-1] >= 8192
        (True, 257, True)
    """
    aimed = max(1, math.ceil(most / count))
    for stride in (*range(aimed, 2 * aimed), *range(aimed - 1, 1, -1)):
        keys = tuple(range(stride, most + stride, stride))
        if tuple(set(keys)) == keys:
            return keys
    return tuple(range(1, most + 1))


def contexts_in_order(most: int) -> tuple[int, ...]:
    """Contexts, dense where they are short, that a Python set of them yields in ascending order.

    Each next one has the next remainder of the size of the set's hash table, and is larger by a share.

    Args:
        most: the last key is no smaller [tokens].

    Returns:
        Ascending [tokens].

    Example:
        >>> contexts_in_order(8192)[:4], list(set(contexts_in_order(8192))) == list(contexts_in_order(8192))
        ((64, 193, 322, 451), True)
    """
    keys = [FIRST]
    while keys[-1] < most:
        least, slot = math.ceil(GROWTH * keys[-1]), (keys[-1] + 1) % SLOTS
        keys.append(least + (slot - least) % SLOTS)
    return tuple(keys) if list(set(keys)) == keys else keys_in_order(most, CONTEXTS)


def profile_table(record: ControllerRecord) -> Table:
    """For every context and number of decodes that can occur, the largest chunks that end in time.

    max u:  F(n, n c, u, u^2 / 2, 1) <= scale L setpoint / budget,    chunk_size = n + u

    Args:
        record: the controller.

    Returns:
        The table; at its own limit every cell has the exact answer, and so at the limits of SCALES times it.

    Raises:
        ValueError: a budget below the millisecond that the scheduler counts in.
    """
    limits, packed = record.limits, record.plant.pack()
    budget_s = min(t.budget_s for t in record.targets)
    share = 1 - record.candidate.law.setpoint_margin
    slo_ms = math.floor(budget_s * 1e3 + 1e-9)
    if slo_ms < 1:
        raise ValueError(f"vllm-ascend counts in whole milliseconds, and the budget is {budget_s * 1e3:.3f} ms; use another export")
    decodes, contexts = keys_in_order(limits.max_seqs, DECODES), contexts_in_order(min(limits.max_len, limits.kv_tokens))
    rows, floors = [], 0
    for shorter, c in zip((0, *contexts), contexts, strict=False):
        for fewer, n in zip((0, *decodes), decodes, strict=False):
            # the least that is rounded up to it is more than the cache holds: the scheduler never asks for it
            if shorter * (fewer + 1) > limits.kv_tokens:
                continue
            room = float(max(limits.max_tokens - n, 0))
            found = {int(largest_prefill(packed, float(n), float(n * c), 0.0, x * slo_ms * 1e-3 * share, room)) for x in SCALES}
            for u in sorted(found - {0}):
                cost = float(record.plant.step_time_s(Batch(float(n), float(n * c), float(u), u * u / 2.0, 1.0))) * 1e3 / share
                rows.append((n + u, u, n, c, math.floor(cost * 1e4) / 1e4))
            if not largest_prefill(packed, float(n), float(n * c), 0.0, slo_ms * 1e-3 * share, room):
                floors += 1
                least = max(min(limits.block_tokens, limits.max_tokens - n), 0)
                rows.append((max(n + least, 1), least, n, c, 0.0))
    return Table(tuple(rows), slo_ms, floors, decodes, contexts)


def profile_files(record: ControllerRecord, version: str | None, certificate: dict[str, Any]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Content of the folder that `headway export --engine vllm-ascend` writes.

    Args:
        record: the controller.
        version: not used: every documented version reads the same table.
        certificate: as from `certified.granted`.

    Returns:
        (text by file name, what there is to say).

    Raises:
        ValueError: as from `profile_table`.
    """
    del version
    table, limits, law = profile_table(record), record.limits, record.candidate.law
    budget_s = min(t.budget_s for t in record.targets)
    lines = [",".join(COLUMNS), *(f"{size},{p},{n},{c},{cost:.4f}" for size, p, n, c, cost in table.rows)]
    cells = len({row[2:4] for row in table.rows})
    text = README.format(
        content=record.to_json()["content_sha256"][:12],
        written=headway.__version__,
        certificate=said(certificate),
        seqs=limits.max_seqs,
        tokens=limits.max_tokens,
        slo=table.slo_ms,
        budget_ms=budget_s * 1e3,
        setpoint_ms=(1 - law.setpoint_margin) * budget_s * 1e3,
        least=limits.block_tokens,
        floors=table.floors,
        cells=cells,
        d=len(table.decodes),
        c=len(table.contexts),
        longest=table.contexts[-1],
    )
    words = [f"a table of the plant, without feedback: start the engine with SLO_limits_for_dynamic_batch {table.slo_ms}"]
    if table.floors:
        words.append(
            f"in {table.floors} of {cells} combinations decodes alone are longer than that: {limits.block_tokens} prompt tokens go on beside them"
        )
    return {"profile_table.csv": "\n".join(lines) + "\n", "README.md": text}, tuple(words)
