"""The scheduling policy: whom to serve and in which order. Every part is a number or a choice that can be switched off."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from headway.controllers.controller import Controller
from headway.models.plant import Batch, Plant
from headway.models.pytree import pytree, static
from headway.models.signals import Limits, Target
from headway.models.steptime import PACKED

ORDERS = ("fcfs", "edf", "slack")
TRIAGES = ("none", "defer", "reject", "timeout")
ADMISSIONS = ("none", "myopic", "lookahead")

(
    ORDER,
    TRIAGE,
    TOLERANCE,
    ESTIMATE,
    TIMEOUT,
    AGING,
    CHUNK,
    RUNNING,
    SETPOINT_S,
    RATE_TPS,
    BLOCK,
    BLOCKS,
    WATERMARK,
    RESERVE_FULL,
    NEXT_STEP,
    MAX_TOKENS,
    MAX_LEN,
    BUDGET_S,
    ADMISSION,
    LOOK_STEPS,
    LOOK_Z,
    PRIOR_TOKENS,
    PRIOR_REQUESTS,
    POLICY_PLANT,
) = range(24)
"""Places in a packed policy; the packed plant that admission predicts with begins at the last."""

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
    is finished. Every shed request is counted, with all its tokens, against attainment.

    Admission holds back who would make decodes late or overfill the cache, see `headway.controllers.admission`: "myopic"
    looks at now, "lookahead" at the growth to come, with the chance that requests end first. The law decides what a step
    may prefill; only admission can undo what the law has no authority over, decodes that are too long by themselves.

    Args:
        order: one of ORDERS.
        triage: one of TRIAGES.
        admission: one of ADMISSIONS; "none" admits up to the running limit and the cache.
        tolerance: negative slack tolerated, as a share of the TTFT target.
        estimate: factor on the estimated time to completion.
        timeout: share of the TTFT target after which "timeout" sheds.
        aging_rate: seconds of slack that one second of waiting is worth [s/s].
        chunk_tokens: most prompt tokens of one request in a step; 0 is no cap [tokens].
        running_limit: most requests running at once [requests].
        lookahead_steps: horizon of "lookahead" [steps].
        lookahead_z: standard deviations of cache growth that it leaves room for; 0 is the mean.
        prior_output_tokens: median output length assumed until outputs were seen [tokens].
        prior_requests: number of outputs seen that the assumption weighs as much as [requests].
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
        if self.order == "fcfs" and self.triage == "defer":
            raise ValueError("triage 'defer' needs order 'edf' or 'slack', got 'fcfs'; stock order has no key to defer by")
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
        ):
            value = float(getattr(self, name))
            if not low <= value <= high:
                raise ValueError(f"{name} must be in [{low:g}, {high:g}], got {value:g}")


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
    """
    packed = np.zeros(POLICY_SIZE)
    budget_s = min(t.budget_s for t in targets)
    setpoint_s = (1 - law.setpoint_margin) * budget_s
    packed[[ORDER, TRIAGE]] = ORDERS.index(policy.order), TRIAGES.index(policy.triage)
    packed[[TOLERANCE, ESTIMATE, TIMEOUT, AGING]] = policy.tolerance, policy.estimate, policy.timeout, policy.aging_rate
    packed[CHUNK] = np.floor(policy.chunk_tokens)
    packed[RUNNING] = min(np.floor(policy.running_limit), limits.max_seqs)
    packed[[SETPOINT_S, BUDGET_S]] = setpoint_s, budget_s
    packed[RATE_TPS] = prefill_rate_tps(plant, setpoint_s, limits.max_tokens)
    packed[[BLOCK, BLOCKS, WATERMARK]] = limits.block_tokens, limits.blocks, limits.watermark
    packed[[RESERVE_FULL, NEXT_STEP]] = limits.reservation == "full", limits.first_token == "next_step"
    packed[[MAX_TOKENS, MAX_LEN]] = limits.max_tokens, limits.max_len
    packed[[ADMISSION, LOOK_STEPS, LOOK_Z]] = ADMISSIONS.index(policy.admission), policy.lookahead_steps, policy.lookahead_z
    packed[[PRIOR_TOKENS, PRIOR_REQUESTS]] = policy.prior_output_tokens, policy.prior_requests
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
