"""A candidate as the compiled engine takes it, and its gain schedule at work: gains follow the load from step to step."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from headway.controllers.controller import Controller
from headway.controllers.gain_schedule import (
    AGING_RATE,
    CHUNK_TOKENS,
    CODES,
    COUNT,
    KV,
    MARGIN,
    MARGIN_AT,
    QUEUED,
    QUEUED_TOKENS,
    SHARE,
    START_FACTOR,
    STRIDE,
    TABLE,
    WHOLE,
    GainSchedule,
)
from headway.controllers.gain_schedule import RUNNING as RUNNING_KNOTS
from headway.controllers.order import carried_tokens
from headway.controllers.policy import (
    AGING_NEXT,
    BLOCKS,
    BUDGET_S,
    CHUNK,
    HAS_STRIDES,
    RUNNING,
    SETPOINT_S,
    SHARES,
    STRIDES,
    Policy,
    pack_policy,
)
from headway.controllers.tracker import TrackerLaw
from headway.models.compiled import compiled, compiled_inline
from headway.models.plant import Plant
from headway.models.signals import Limits, Target


class Packed(NamedTuple):
    """A candidate as the compiled engine reads it.

    Args:
        policy: shape (POLICY_SIZE,).
        law: shape (LAW_SIZE,).
        schedule: shape (k,); (0,) for none. Where there is one, a run changes policy and law.
    """

    policy: np.ndarray
    law: np.ndarray
    schedule: np.ndarray


def check_gains(law: Controller, policy: Policy, gains: GainSchedule, classes: int) -> None:
    """Refuse a schedule that this law, this policy or these classes cannot follow.

    Args:
        law: of the token budget.
        policy: of order and caps.
        gains: the schedule.
        classes: their number.

    Raises:
        ValueError: a schedule out of its range, a margin where the law has none, or shares that stock order, the classes or the
            other weights leave no meaning.
    """
    gains.check()
    if "margin" in gains.names and "margin" not in law.gains():
        raise ValueError(f"the gain schedule moves the margin, and law {law.law!r} has none; schedule other gains, or take another law")
    shares = [int(name.partition(".")[2]) for name in gains.names if name.startswith("share.")]
    if not shares:
        return
    if policy.order == "fcfs":
        raise ValueError("a schedule of shares needs order 'edf' or 'slack', got 'fcfs'; stock order has no key to go by")
    if max(shares) >= classes:
        raise ValueError(f"the gain schedule has share.{max(shares)}, and there are {classes} classes, numbered from 0")
    if len(shares) < classes and not len(policy.class_shares):
        lacking = min(set(range(classes)) - set(shares))
        raise ValueError(f"the gain schedule lacks share.{lacking}; schedule the shares of all {classes} classes, or give class_shares")
    fixed = sum(float(w) for c, w in enumerate(policy.class_shares) if c not in shares)
    moving = np.sum([v for name, v in zip(gains.names, np.asarray(gains.table, float), strict=True) if name.startswith("share.")], axis=0)
    if not (fixed + moving > 0).all():
        raise ValueError("scheduled shares must not all be 0 at a knot; leave them out for no shares")


def at_rest(law: Any, policy: Policy, gains: GainSchedule | None) -> tuple[Controller, Policy]:
    """Law and policy with the gains of an engine that nobody has come to.

    Args:
        law: of the token budget.
        policy: of order and caps.
        gains: the schedule, checked; None for none.

    Returns:
        (law, policy).
    """
    if gains is None:
        return law, policy
    found = dict(zip(gains.names, map(float, gains.at(0.0, 0.0, 0.0)), strict=True))
    fields: dict[str, Any] = {}
    if "margin" in found:
        law = dataclasses.replace(law, margin=found["margin"])
    if "aging_rate" in found:
        fields["aging_rate"] = found["aging_rate"]
    if "chunk_tokens" in found:
        fields["chunk_tokens"] = float(math.floor(2.0 ** found["chunk_tokens"] * WHOLE))
    shares = {int(name.partition(".")[2]): w for name, w in found.items() if name.startswith("share.")}
    if shares:
        classes = max(len(policy.class_shares), max(shares) + 1)
        old = policy.class_shares if len(policy.class_shares) else (0.0,) * classes
        fields["class_shares"] = tuple(shares.get(c, float(old[c])) for c in range(classes))
    return law, dataclasses.replace(policy, **fields)


def pack_candidate(candidate: Any, targets: tuple[Target, ...], limits: Limits, plant: Plant) -> Packed:
    """Law, policy and gain schedule of a `Candidate`, packed; before the first step the gains are those at rest.

    Args:
        candidate: law, policy and gains.
        targets: of all classes.
        limits: of the engine.
        plant: as `pack_policy` takes it.

    Returns:
        Packed, in arrays of their own.

    Raises:
        ValueError: as `pack_policy` and `check_gains` do.
    """
    law, policy, gains = candidate
    if gains is None:
        return Packed(pack_policy(policy, law, targets, limits, plant), law.pack(), np.zeros(0))
    check_gains(law, policy, gains, len(targets))
    schedule = gains.pack()
    if "margin" in gains.names:
        schedule[MARGIN_AT] = 1 + list(law.gains()).index("margin")
    schedule[START_FACTOR] = math.exp(-float(law.start_mixed)) if isinstance(law, TrackerLaw) else 0.0
    schedule[STRIDE] = policy.stride
    law, policy = at_rest(law, policy, gains)
    return Packed(pack_policy(policy, law, targets, limits, plant), law.pack(), schedule)


def stack_schedules(schedules: list[np.ndarray]) -> np.ndarray:
    """Packed schedules of several candidates in one array.

    Args:
        schedules: one per candidate, shapes (k,).

    Returns:
        Shape (candidates, longest k), filled up with zeros: no schedule where there was none.
    """
    stacked = np.zeros((len(schedules), max(map(len, schedules))))
    for row, schedule in zip(stacked, schedules, strict=True):
        row[: len(schedule)] = schedule
    return stacked


@compiled_inline
def scheduled(schedule):
    """Whether there is a schedule to follow.

    Args:
        schedule: packed, shape (k,).

    Returns:
        True if so.
    """
    return len(schedule) > 0 and schedule[COUNT] > 0.0


@compiled
def between(schedule, at, i, j, k, in_q, in_r, in_kv):
    """One gain between the knots around a load, as `GainSchedule.at` has it.

    Args:
        schedule: packed.
        at: where its table begins.
        i: knot below on the axis of the queue.
        j: on that of the running share.
        k: on that of the KV share.
        in_q: place from there to the next knot, in [0, 1].
        in_r: likewise.
        in_kv: likewise.

    Returns:
        The gain, as the table holds it.
    """
    n, m, o = int(schedule[QUEUED]), int(schedule[RUNNING_KNOTS]), int(schedule[KV])
    found, below = 0.0, 0.0
    for a in range(2):
        q, along_r, first = min(i + a, n - 1), 0.0, 0.0
        for b in range(2):
            cell = at + (q * m + min(j + b, m - 1)) * o
            low = schedule[cell + k]
            along_kv = low + in_kv * (schedule[cell + min(k + 1, o - 1)] - low)
            if b == 0:
                first = along_kv
            else:
                along_r = first + in_r * (along_kv - first)
        if a == 0:
            below = along_r
        else:
            found = below + in_q * (along_r - below)
    return found


@compiled
def set_margin(margin, schedule, policy, law, targets):
    """Put a margin in force: the law's, the setpoint and the strides that follow from it.

    Args:
        margin: share of the budget kept free.
        schedule: packed.
        policy: packed, changed in place.
        law: packed, changed in place.
        targets: shape (classes, 4) [s].
    """
    law[int(schedule[MARGIN_AT])] = margin
    kept = 1.0 - margin
    if schedule[START_FACTOR] > 0.0:
        kept = 1.0 - (1.0 - (1.0 - margin) * schedule[START_FACTOR])
    setpoint_s = kept * policy[BUDGET_S]
    policy[SETPOINT_S], policy[HAS_STRIDES] = setpoint_s, 0.0
    for c in range(targets.shape[0]):
        stride = max(1.0, math.floor(schedule[STRIDE] * targets[c, 1] / setpoint_s + 1e-9))
        policy[STRIDES + c] = stride
        if stride > 1.0:
            policy[HAS_STRIDES] = 1.0


@compiled
def follow_load(e, schedule, policy, law, targets):
    """Put the gains in force that the load calls for which the last step left behind. To be called before a step is composed.

    Args:
        e: the books, before anybody arrives.
        schedule: packed; one that is there.
        policy: packed, changed in place.
        law: packed, changed in place.
        targets: shape (classes, 4): TTFT at the engine, budget, ITL, transport [s].
    """
    n, m, o = schedule[QUEUED], schedule[RUNNING_KNOTS], schedule[KV]
    x = min(math.log2(1.0 + e.queued / QUEUED_TOKENS), n - 1.0)
    y = min(max(e.ready / policy[RUNNING], 0.0), 1.0) * (m - 1.0)
    z = min(max((policy[BLOCKS] - e.free) / policy[BLOCKS], 0.0), 1.0) * (o - 1.0)
    i, j, k = int(min(x, max(n - 2.0, 0.0))), int(min(y, max(m - 2.0, 0.0))), int(min(z, max(o - 2.0, 0.0)))
    in_q, in_r, in_kv, cells = x - i, y - j, z - k, int(n * m * o)
    for g in range(int(schedule[COUNT])):
        value, code = between(schedule, TABLE + g * cells, i, j, k, in_q, in_r, in_kv), int(schedule[CODES + g])
        if code == MARGIN:
            set_margin(value, schedule, policy, law, targets)
        elif code == AGING_RATE:
            policy[AGING_NEXT] = value
        elif code == CHUNK_TOKENS:
            policy[CHUNK] = math.floor(2.0**value * WHOLE)
        else:
            policy[SHARES + code - SHARE] = value
    if e.used_tps > 0.0:
        e.carried = carried_tokens(e, policy)
