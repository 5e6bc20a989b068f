"""The scheduling policy: whom to serve and in which order. Every part is a number or a choice that can be switched off."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from headway.controllers.controller import Controller
from headway.models.plant import Batch, Plant
from headway.models.pytree import pytree, static
from headway.models.signals import HABITS, Limits, Target
from headway.models.state import MOST_CLASSES
from headway.models.steptime import PACKED

ORDERS = ("fcfs", "edf", "slack")
TRIAGES = ("none", "defer", "reject", "timeout", "degrade")
ADMISSIONS = ("none", "myopic", "lookahead")
PHASES = ("mixed", "prefill_first", "decode_first")
PREEMPTIONS = ("recompute", "swap")

BY_CLASS, EITHER = ("class_shares", "priority_s"), ("tolerance", "estimate")
"""Fields with one number per class, or none; and those with one number, or one per class."""

(
    ORDER,
    TRIAGE,
    SHED_CAP,
    TIMEOUT,
    AGING,
    AGING_NEXT,
    CHUNK,
    RUNNING,
    SETPOINT_S,
    RATE_TPS,
    BLOCK,
    BLOCKS,
    WATERMARK,
    RESERVATION,
    NEXT_STEP,
    MAX_TOKENS,
    MAX_LEN,
    BUDGET_S,
    ADMISSION,
    LOOK_STEPS,
    LOOK_Z,
    PRIOR_TOKENS,
    PRIOR_REQUESTS,
    DEGRADE,
    PHASE,
    PREFILL_EVERY,
    DECODE_EVERY,
    PRICE_S,
    SWAP,
    SWAP_BLOCK_S,
    ASYNC,
    CACHING,
    HAS_SHARES,
    HAS_PRIORITIES,
    HAS_STRIDES,
    SHARES,
) = range(36)
"""Places in a packed policy. At the last begin the shares of the classes; their priorities, strides, tolerances,
estimates, and the packed plant that admission predicts with follow. The aging rate is that of all who have a key; the next one,
which a gain schedule moves, takes its place when all keys are made anew."""

PRIORITIES, STRIDES, TOLERANCES, ESTIMATES, POLICY_PLANT = (SHARES + MOST_CLASSES * k for k in (1, 2, 3, 4, 5))
"""Where priorities [s], strides [steps], tolerances, estimates and the packed plant begin."""

POLICY_SIZE = POLICY_PLANT + PACKED
"""Length of a packed policy."""


@final
@pytree
class Policy:
    """Order, triage and caps of the scheduler.

    Order: "fcfs" is the engine's own; "edf" serves the earliest TTFT deadline first; "slack" the least
    slack = deadline - earliest completion, minus aging_rate times the wait. Ties go by arrival.

    Earliest completion of a prompt with T tokens to go: ceil(T / C) steps of one setpoint each (one more where the
    engine emits a step later), times `estimate`. C is what one step carries: the chunk cap, or the prefill rate lately
    measured times the setpoint, whichever is less.

    Triage decides on purpose what happens to a prompt whose estimated slack is below -tolerance times its TTFT target:
    "none" serves it in its turn, "defer" serves it behind all feasible ones, "reject" sheds it before it costs a token,
    "timeout" sheds whatever has waited `timeout` times its TTFT target at the engine, as a gateway would. Work once begun
    is finished. Every shed request is counted, with all its tokens, against attainment. `shed_cap` bounds their share of each
    class's arrivals: who would exceed it is spared, for good, and served behind all feasible ones.

    Admission holds back who would make decodes late or overfill the cache, see `headway.controllers.admission`: "myopic"
    looks at now, "lookahead" at the growth to come, with the chance that requests end first. The law decides what a step
    may prefill; only admission can undo what the law has no authority over, decodes that are too long by themselves.

    Args:
        order: one of ORDERS.
        triage: one of TRIAGES.
        admission: one of ADMISSIONS; "none" admits up to the running limit and the cache.
        tolerance: negative slack tolerated, as a share of the TTFT target; one number, or one per class.
        estimate: factor on the estimated time to completion; one number, or one per class.
        timeout: share of the TTFT target after which "timeout" sheds.
        aging_rate: seconds of slack that one second of waiting is worth [s/s].
        chunk_tokens: most prompt tokens of one request in a step; 0 is no cap [tokens].
        running_limit: most requests running at once [requests].
        lookahead_steps: horizon of "lookahead" [steps].
        lookahead_z: standard deviations of cache growth that it leaves room for; 0 is the mean.
        prior_output_tokens: median output length assumed until outputs were seen [tokens].
        prior_requests: number of outputs seen that the assumption weighs as much as [requests].
        degrade: "degrade" gives whom it would shed both targets of its class times this, at least 1.
        phases: one of PHASES: whether a step carries decodes and prompts together, or only one of them, which first.
        prefill_every: steps within which a pending prompt progresses; 0 promises nothing [steps].
        decode_every: steps within which a decode progresses; 0 promises nothing [steps].
        stride: share of its own ITL budget up to which a class may be left out of steps, in [0, 1]; 0 steps all in every step.
        class_shares: prompt tokens that each class is due, as weights; () for no shares.
        priority_s: seconds of slack that each class is put forward by; () for none [s].
        memory_price_s: seconds of slack that one cache block is worth: who needs few, or hits the prefix cache, goes first [s].
        preemption: one of PREEMPTIONS: what becomes of the cache of a request that gives way.
        shed_cap: most that triage sheds of a class, as a share of its arrivals so far, in [0, 1]; 1 is no cap.
    """

    order: str = static("slack")  # pyright: ignore[reportAssignmentType]  # a dataclass field, as dataclasses.field is
    triage: str = static("reject")  # pyright: ignore[reportAssignmentType]
    tolerance: Any = 0.0
    estimate: Any = 1.0
    timeout: Any = 1.0
    aging_rate: Any = 0.0
    chunk_tokens: Any = 0.0
    running_limit: Any = 256.0
    admission: str = static("none")  # pyright: ignore[reportAssignmentType]
    lookahead_steps: Any = 1000.0
    lookahead_z: Any = 1.64
    prior_output_tokens: Any = 256.0
    prior_requests: Any = 8.0
    degrade: Any = 2.0
    phases: str = static("mixed")  # pyright: ignore[reportAssignmentType]
    prefill_every: Any = 0.0
    decode_every: Any = 0.0
    stride: Any = 0.0
    class_shares: Any = ()
    priority_s: Any = ()
    memory_price_s: Any = 0.0
    preemption: str = static("recompute")  # pyright: ignore[reportAssignmentType]
    shed_cap: Any = 1.0

    def check(self) -> None:
        """Refuse values outside their range.

        Raises:
            ValueError: names the field, its value and its rule.
        """
        if self.order not in ORDERS:
            raise ValueError(f"order must be one of {ORDERS}, got {self.order!r}")
        if self.triage not in TRIAGES:
            raise ValueError(f"triage must be one of {TRIAGES}, got {self.triage!r}")
        if self.admission not in ADMISSIONS:
            raise ValueError(f"admission must be one of {ADMISSIONS}, got {self.admission!r}")
        if self.phases not in PHASES:
            raise ValueError(f"phases must be one of {PHASES}, got {self.phases!r}")
        if self.preemption not in PREEMPTIONS:
            raise ValueError(f"preemption must be one of {PREEMPTIONS}, got {self.preemption!r}")
        if self.order == "fcfs" and (keyed := self._keyed()):
            raise ValueError(f"{keyed} needs order 'edf' or 'slack', got 'fcfs'; stock order has no key to go by")
        for name, least in (("class_shares", 0.0), ("priority_s", -1e5)):
            weights = getattr(self, name)
            if len(weights) > MOST_CLASSES or any(not least <= float(w) <= 1e5 for w in weights):
                raise ValueError(f"{name} must be at most {MOST_CLASSES} numbers in [{least:g}, 1e5], one per class, got {tuple(weights)}")
        if len(self.class_shares) and not sum(float(w) for w in self.class_shares) > 0:
            raise ValueError(f"class_shares must not all be 0, got {tuple(self.class_shares)}; leave them out for no shares")
        for name, low, high in (
            ("tolerance", -1.0, 10.0),
            ("estimate", 0.0, 100.0),
            ("timeout", 0.0, 100.0),
            ("aging_rate", 0.0, 100.0),
            ("chunk_tokens", 0.0, 1e6),
            ("running_limit", 1.0, 1e6),
            ("lookahead_steps", 0.0, 1e5),
            ("lookahead_z", 0.0, 10.0),
            ("prior_output_tokens", 1.0, 1e6),
            ("prior_requests", 0.1, 1e6),
            ("degrade", 1.0, 100.0),
            ("prefill_every", 0.0, 1e6),
            ("decode_every", 0.0, 1e6),
            ("stride", 0.0, 1.0),
            ("memory_price_s", 0.0, 100.0),
            ("shed_cap", 0.0, 1.0),
        ):
            values = np.atleast_1d(getattr(self, name))
            if len(values) > 1 and name not in EITHER:
                raise ValueError(f"{name} must be one number for all classes, got {tuple(map(float, values))}")
            for value in map(float, values):
                if not low <= value <= high:
                    raise ValueError(f"{name} must be in [{low:g}, {high:g}], got {value:g}")

    def _keyed(self) -> str:
        """A part that needs a key, if one is on."""
        if self.triage in ("defer", "degrade"):
            return f"triage {self.triage!r}"
        if self.phases != "mixed":
            return f"phases {self.phases!r}"
        if float(self.shed_cap) < 1.0:
            return f"shed_cap {float(self.shed_cap):g}"
        on = ("prefill_every", "decode_every", "stride", "memory_price_s", "class_shares", "priority_s")
        return next((name for name in on if np.any(np.asarray(getattr(self, name)) != 0)), "")


def prefill_rate_tps(plant: Plant, setpoint_s: float, max_tokens: int) -> float:
    """Prompt tokens per second of the largest prefill-only step within the setpoint: the policy's rate before it measured one.

    Args:
        plant: the fitted plant.
        setpoint_s: duration allowed [s].
        max_tokens: most tokens in a step [tokens].

    Returns:
        Rate [tokens/s]; the best there is where even one token is too long for the setpoint.
    """
    tokens = np.unique(np.geomspace(1, max_tokens, 400).round())
    zero = np.zeros_like(tokens)
    times = np.asarray(plant.step_time_s(Batch(zero, zero, tokens, tokens**2 / 2, zero + 1)))
    fits = tokens[times <= setpoint_s]
    # where even one token is too long, steps are as long as they are: a rate of next to nothing would have triage shed everybody
    return float(fits[-1] / setpoint_s if len(fits) else np.max(tokens / times))


def check_classes(policy: Policy, classes: int) -> None:
    """Refuse numbers per class for another number of classes than there are.

    Args:
        policy: the policy.
        classes: their number.

    Raises:
        ValueError: names the field.
    """
    for name in (*BY_CLASS, *EITHER):
        found = np.ndim(getattr(policy, name))
        given = len(getattr(policy, name)) if found else 0
        if given != classes and (given or (found and name in EITHER)):
            raise ValueError(f"{name} must have one number per class, got {given} for {classes} classes")


def pack_policy(policy: Policy, law: Controller, targets: tuple[Target, ...], limits: Limits, plant: Plant) -> np.ndarray:
    """Policy, limits and what follows from law and targets, as the compiled scheduler reads them.

    Args:
        policy: the policy.
        law: its margin gives the setpoint.
        targets: of all classes; the tightest budget bounds the step.
        limits: of the engine; caps that exceed them are cut to them.
        plant: for the first estimate of the prefill rate, and for what admission predicts.

    Returns:
        float64 array of shape (POLICY_SIZE,).

    Raises:
        ValueError: more classes than MOST_CLASSES, or numbers per class for another number of classes than there are.
    """
    if len(targets) > MOST_CLASSES:
        raise ValueError(f"the scheduler tells at most {MOST_CLASSES} classes apart, got {len(targets)}; merge some")
    check_classes(policy, len(targets))
    packed = np.zeros(POLICY_SIZE)
    budget_s = min(t.budget_s for t in targets)
    setpoint_s = (1 - law.setpoint_margin) * budget_s
    packed[[ORDER, TRIAGE]] = ORDERS.index(policy.order), TRIAGES.index(policy.triage)
    packed[[SHED_CAP, TIMEOUT]] = policy.shed_cap, policy.timeout
    packed[[AGING, AGING_NEXT]] = policy.aging_rate
    packed[CHUNK] = np.floor(policy.chunk_tokens)
    packed[RUNNING] = min(np.floor(policy.running_limit), limits.max_seqs)
    packed[[SETPOINT_S, BUDGET_S]] = setpoint_s, budget_s
    packed[RATE_TPS] = prefill_rate_tps(plant, setpoint_s, limits.max_tokens)
    packed[[BLOCK, BLOCKS, WATERMARK]] = limits.block_tokens, limits.blocks, limits.watermark
    packed[[RESERVATION, NEXT_STEP]] = HABITS["reservation"].index(limits.reservation), limits.first_token == "next_step"
    packed[[MAX_TOKENS, MAX_LEN]] = limits.max_tokens, limits.max_len
    packed[[ADMISSION, LOOK_STEPS, LOOK_Z]] = ADMISSIONS.index(policy.admission), policy.lookahead_steps, policy.lookahead_z
    packed[[PRIOR_TOKENS, PRIOR_REQUESTS]] = policy.prior_output_tokens, policy.prior_requests
    packed[[DEGRADE, PHASE]] = policy.degrade, PHASES.index(policy.phases)
    packed[[PREFILL_EVERY, DECODE_EVERY]] = np.floor([float(policy.prefill_every), float(policy.decode_every)])
    packed[[PRICE_S, SWAP, SWAP_BLOCK_S]] = policy.memory_price_s, policy.preemption == "swap", limits.swap_block_s
    packed[[ASYNC, CACHING]] = limits.scheduling == "async", limits.prefix_cache == "on"
    for values, place in ((policy.class_shares, SHARES), (policy.priority_s, PRIORITIES)):
        packed[place : place + len(values)] = values
    for values, place in ((policy.tolerance, TOLERANCES), (policy.estimate, ESTIMATES)):
        packed[place : place + len(targets)] = values
    strides = np.maximum(1.0, np.floor(policy.stride * np.array([t.budget_s for t in targets]) / setpoint_s + 1e-9))
    packed[STRIDES : STRIDES + len(targets)] = strides
    packed[HAS_SHARES] = np.any(packed[SHARES:PRIORITIES] > 0)
    packed[HAS_PRIORITIES], packed[HAS_STRIDES] = np.any(packed[PRIORITIES:STRIDES] != 0), np.any(strides > 1)
    packed[POLICY_PLANT:] = plant.pack()
    return packed


def pack_targets(targets: tuple[Target, ...]) -> np.ndarray:
    """Targets as the compiled scheduler reads them.

    Args:
        targets: one per class.

    Returns:
        Per class: TTFT at the engine, step budget, ITL and transport, shape (classes, 4) [s].
    """
    return np.array([[t.first_token_s, t.budget_s, t.itl_s, t.transport_s] for t in targets])
