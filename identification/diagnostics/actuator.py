"""Does the command reach the batch? How many steps later, in how many steps it bound, and how long a lower limit drains."""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.identification.diagnostics.correlation import whole

MOST_LAG = 10
"""Longest delay that is looked for [steps]."""
BINDS = 0.98
"""Share of the budget from which on a step counts as held by it: batches are built of whole blocks."""
FEWEST = 20
"""Steps at the budget, around changes of it, below which its delay is not told [steps]."""
RARELY = 0.1
"""Share of steps at the budget below which it is said that the trace tells little."""
EXCEEDED = 0.005
"""Share of steps over the budget from which on it is said."""


def actuator(
    tokens: np.ndarray,
    requests: np.ndarray,
    step_time_s: np.ndarray,
    stream: np.ndarray,
    *,
    token_budget: np.ndarray | None = None,
    running_limit: np.ndarray | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Delay, grip and drain of the commands in force, as far as the trace holds them.

    Args:
        tokens: decode requests plus prefill tokens of every busy step, set aside or not, in time order, shape (k,) [tokens].
        requests: requests in the step, shape (k,) [requests].
        step_time_s: measured durations, shape (k,) [s].
        stream: number of the source of each row, shape (k,), ascending.
        token_budget: in force at the step; zero, negative or NaN where there is none, shape (k,) [tokens]. None: not recorded.
        running_limit: the same of running requests, shape (k,) [requests].

    Returns:
        ({"token_budget": {"changes", "delay_steps", "matched", "binding", "exceeded", "excess_tokens"} or None,
        "running_limit": {"lowered", "drains", "drain_steps", "drain_s", "unfinished", "held_steps", "binding"} or None}; what there is
        to say, one sentence each). delay_steps is None where too few steps met the budget around a change; shares are of
        the steps with a budget.
    """
    result: dict[str, Any] = {"token_budget": None, "running_limit": None}
    said: list[str] = []
    if token_budget is not None:
        result["token_budget"], more = _budget(np.asarray(tokens, float), _in_force(token_budget), stream)
        said += more
    if running_limit is not None:
        result["running_limit"], more = _limit(np.asarray(requests, float), _in_force(running_limit), step_time_s, stream)
        said += more
    return result, said


def _in_force(command: np.ndarray) -> np.ndarray:
    values = np.asarray(command, float)
    return np.where(values > 0, values, np.inf)


def _budget(tokens: np.ndarray, budget: np.ndarray, stream: np.ndarray) -> tuple[dict[str, Any] | None, list[str]]:
    limited = np.isfinite(budget)
    if not limited.any():
        return None, []
    changed = np.concatenate([[False], (budget[1:] != budget[:-1]) & (stream[1:] == stream[:-1])])
    delay, matched = _delay(tokens, budget, stream, changed)
    in_force = budget
    if delay:
        in_force = np.concatenate([np.full(delay, np.inf), budget[:-delay]])
        in_force[~whole(stream, delay)] = np.inf
        limited = np.isfinite(in_force)
    binding = float(((tokens >= BINDS * in_force) & (tokens <= in_force))[limited].mean())
    over = tokens[limited] - in_force[limited]
    found = {
        "changes": int(changed.sum()),
        "delay_steps": delay,
        "matched": matched,
        "binding": binding,
        "exceeded": float((over > 0).mean()),
        "excess_tokens": float(max(over.max(), 0.0)),
    }
    return found, _budget_said(found)


def _delay(tokens: np.ndarray, budget: np.ndarray, stream: np.ndarray, changed: np.ndarray) -> tuple[int | None, int]:
    """The delay at which most steps soon after a change meet the budget, and how many do; None if none stands out."""
    recent = np.convolve(changed, np.ones(MOST_LAG + 1))[: len(changed)] > 0
    at = np.flatnonzero(recent & whole(stream, MOST_LAG))
    if len(at) == 0:
        return None, 0
    held = [(tokens[at] >= BINDS * budget[at - d]) & (tokens[at] <= budget[at - d]) for d in range(MOST_LAG + 1)]
    counts = np.array([int(hit.sum()) for hit in held])
    best = int(np.argmax(counts))
    # where the two budgets differ, chance decides which of two wrong delays a step meets: a clear majority is no chance
    only = [int((held[best] & ~other).sum()) - int((other & ~held[best]).sum()) for d, other in enumerate(held) if d != best]
    apart = [int((held[best] ^ other).sum()) for d, other in enumerate(held) if d != best]
    clear = all(lead > 3 * np.sqrt(max(count, 1)) for lead, count in zip(only, apart, strict=True))
    return (best, int(counts[best])) if counts[best] >= FEWEST and clear else (None, int(counts[best]))


def _budget_said(found: dict[str, Any]) -> list[str]:
    said = []
    if found["delay_steps"]:
        k = found["delay_steps"]
        said.append(
            f"the token budget acts {k} step{'s' if k > 1 else ''} later ({found['matched']:,} steps met it at that delay): tune with this "
            "delay, each step of it costs gain"
        )
    if found["exceeded"] > EXCEEDED:
        said.append(
            f"in {found['exceeded']:.1%} of the steps more tokens ran than the token budget allowed, by up to {found['excess_tokens']:,.0f}: the engine "
            "does not obey it, or it was recorded at another moment than it was applied; check the hook before tuning"
        )
    if found["changes"] == 0 or found["binding"] < RARELY:
        moved = "never changed" if found["changes"] == 0 else f"changed {found['changes']:,} times"
        said.append(
            f"the token budget {moved} and bound in {found['binding']:.1%} of the steps: the trace hardly tells what a smaller budget does; "
            "record with it moved at random below what the load asks for"
        )
    return said


def _limit(requests: np.ndarray, limit: np.ndarray, step_time_s: np.ndarray, stream: np.ndarray) -> tuple[dict[str, Any] | None, list[str]]:
    limited = np.isfinite(limit)
    if not limited.any():
        return None, []
    same = np.concatenate([[False], stream[1:] == stream[:-1]])
    lowered = same & (limit < np.concatenate([[np.inf], limit[:-1]]))
    drained, held = _drains(np.flatnonzero(lowered & (requests > limit)), requests, limit, same)
    clock = np.concatenate([[0.0], np.cumsum(step_time_s)])
    found = {
        "lowered": int(lowered.sum()),
        "drains": len(drained) + len(held),
        "drain_steps": float(np.median([b - a for a, b in drained])) if drained else None,
        "drain_s": float(np.median([clock[b] - clock[a] for a, b in drained])) if drained else None,
        "unfinished": len(held),
        "held_steps": float(np.median(held)) if held else None,
        "binding": float((requests >= limit)[limited].mean()),
    }
    return found, _limit_said(found)


def _limit_said(found: dict[str, Any]) -> list[str]:
    if found["drains"] == 0:
        return []
    drains, late = found["drains"], found["unfinished"]
    took = f"{found['drain_steps']:.0f} steps ({found['drain_s']:.2g} s) at the median" if found["drain_steps"] is not None else ""
    many = f"{late} times of {drains} longer than it stayed low ({found['held_steps']:.0f} steps)" if late else ""
    return [
        f"after the running limit was lowered, requests stayed above it for {' and '.join(filter(None, (took, many)))}: it stops admission and "
        "preempts nothing; steer step time with the token budget"
    ]


def _drains(starts: np.ndarray, requests: np.ndarray, limit: np.ndarray, same: np.ndarray) -> tuple[list[tuple[int, int]], list[int]]:
    """First and past-the-last row of each drain, and for those cut short how many steps the limit had stood."""
    drained, held, free = [], [], 0
    for start in starts.tolist():
        # a limit lowered further while it drains is the same drain
        if start < free:
            continue
        end = start + 1
        while end < len(limit) and same[end] and limit[end] <= limit[start] and requests[end] > limit[start]:
            end += 1
        free = end
        if end < len(limit) and same[end] and requests[end] <= limit[start]:
            drained.append((start, end))
        else:
            held.append(end - start)
    return drained, held
