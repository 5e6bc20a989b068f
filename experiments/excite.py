"""Recording a trace that can be identified: a random staircase of token budget and running limit under a full queue."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headway.controllers.loop import drive
from headway.controllers.policy import RUNNING, Policy
from headway.controllers.simulator import LOG_COLUMNS, Candidate
from headway.controllers.static import StaticLaw
from headway.models.engine import Engine
from headway.models.regimes import AffinePlant
from headway.models.signals import Target
from headway.models.workload import Workload

HOLD_STEPS = (8, 40)
"""A stair lasts this many steps: short enough for hundreds of stairs, long enough for the running set to follow."""

DRAIN_SHARE = 0.3
"""Share of the stairs on which nobody is admitted, so that decode-only steps are seen at every number of sequences."""

COHORT = (8, 48)
"""Consecutive requests whose prompts are of one scale: without them context would grow with the number of sequences alone."""

COLUMNS = ("step", "step_time_s", "decode_requests", "decode_kv_tokens", "prefill_tokens", "prefill_pairs", "prefill_requests")


def excitation_workload(seed: int, requests: int, max_len: int, max_tokens: int) -> Workload:
    """Requests of all lengths, all waiting from the start, so that the staircase alone decides what runs.

    Args:
        seed: of the lengths.
        requests: how many.
        max_len: longest prompt and output [tokens].
        max_tokens: most tokens of a step [tokens].

    Returns:
        Workload with every arrival at 0.
    """
    rng = np.random.default_rng([seed, 0xE8C1])
    longest = max(min(max_len // 4, max_tokens), 2)
    shortest = min(16, longest)
    sizes = rng.integers(*COHORT, requests)
    scale = np.repeat(np.exp(rng.uniform(np.log(shortest), np.log(longest), requests)), sizes)[:requests]
    prompt = np.clip(scale * np.exp(rng.normal(0, 0.3, requests)), shortest, longest).astype(np.int64)
    most = max(min(max_len // 8, 200), 8)
    output = np.exp(rng.uniform(np.log(max(most // 8, 4)), np.log(most), requests)).astype(np.int64)
    return Workload(np.zeros(requests), prompt, output, np.zeros(requests, np.int64), f"excitation, seed {seed}")


def record_trace(engine: Engine, *, steps: int, seed: int = 0, progress: Callable[[float], None] | None = None) -> dict[str, np.ndarray]:
    """Excite an engine and note every step.

    The budget is drawn log-uniformly, the limit more often low than high; both are held for a random number of steps. On
    some stairs nobody is admitted and the running set drains. Data taken in closed loop would not do: there the budget
    follows the step time, and the fit cannot tell the two apart.

    Args:
        engine: any.
        steps: wanted [steps].
        seed: of staircase and lengths.
        progress: called with the share done.

    Returns:
        Columns of Headway's step table, each of shape (steps,): those of COLUMNS, token_budget, running_limit, start_s.
    """
    limits, rng = engine.limits, np.random.default_rng([seed, 0x57A1])
    requests = max(200, steps)
    workload = excitation_workload(seed, requests, limits.max_len, limits.max_tokens)
    commands: list[tuple[float, float]] = []
    held = [0, 0.0, 0.0]

    def stair(law: np.ndarray, policy: np.ndarray) -> bool:
        if held[0] <= 0:
            held[0] = int(rng.integers(*HOLD_STEPS))
            held[1] = float(np.floor(np.exp(rng.uniform(np.log(min(16, limits.max_tokens)), np.log(limits.max_tokens + 1)))))
            held[2] = 1.0 if rng.random() < DRAIN_SHARE else float(np.ceil(limits.max_seqs * rng.random() ** 1.5))
        held[0] -= 1
        law[1], policy[RUNNING] = held[1], held[2]
        commands.append((held[1], held[2]))
        if progress is not None:
            progress(len(commands) / steps)
        return len(commands) <= steps

    start = Candidate(StaticLaw(float(limits.max_tokens)), Policy(order="slack", triage="none", running_limit=float(limits.max_seqs)))
    target = (Target(ttft_s=1e6, itl_s=1e3),)
    outcome = drive(engine, start, workload, target, AffinePlant((1e-3, 0.0, 0.0, 1e-6, 0.0, 0.0)), command=stair)
    log = {name: outcome.log[:, k] for k, name in enumerate(LOG_COLUMNS)}
    used = np.array(commands[: len(outcome.log)])
    table = {"step": np.arange(len(outcome.log), dtype=np.int64), **{name: log[name] for name in COLUMNS[1:]}}
    return {**table, "token_budget": used[:, 0], "running_limit": used[:, 1], "start_s": log["end_s"] - log["step_time_s"]}
