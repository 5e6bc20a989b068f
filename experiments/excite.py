"""Recording a trace that can be identified: a random staircase of the inputs, or a planned one, under a full queue."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from headway.controllers.loop import drive
from headway.controllers.policy import RUNNING, Policy
from headway.controllers.simulator import LOG_COLUMNS, Candidate
from headway.controllers.static import StaticLaw
from headway.identification.design.settings import LONGEST_OUTPUT, PROMPT_SPREAD, Setting, stay_steps
from headway.models.engine import Engine
from headway.models.goodput import Outcome
from headway.models.regimes import AffinePlant
from headway.models.signals import Limits, Target
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

    outcome = _driven(engine, workload, stair)
    return _table([outcome], np.array(commands[: len(outcome.log)]))


def _driven(engine: Engine, workload: Workload, command: Callable[[np.ndarray, np.ndarray], bool]) -> Outcome:
    """Serve a workload with no promise to keep, as the commands say."""
    limits = engine.limits
    start = Candidate(StaticLaw(float(limits.max_tokens)), Policy(order="slack", triage="none", running_limit=float(limits.max_seqs)))
    target = (Target(ttft_s=1e6, itl_s=1e3),)
    return drive(engine, start, workload, target, AffinePlant((1e-3, 0.0, 0.0, 1e-6, 0.0, 0.0)), command=command)


def _table(outcomes: list[Outcome], used: np.ndarray) -> dict[str, np.ndarray]:
    """The step table of runs that follow each other: one count of steps, one clock."""
    rows = np.concatenate([outcome.log for outcome in outcomes])
    log = {name: rows[:, k] for k, name in enumerate(LOG_COLUMNS)}
    ends = np.cumsum(log["step_time_s"])
    table = {"step": np.arange(len(rows), dtype=np.int64), **{name: log[name] for name in COLUMNS[1:]}}
    return {**table, "token_budget": used[:, 0], "running_limit": used[:, 1], "start_s": ends - log["step_time_s"]}


class Visit(NamedTuple):
    """A setting held for some steps.

    Args:
        setting: held.
        steps: how many [steps].
    """

    setting: Setting
    steps: int


def visits(settings: Sequence[tuple[Setting, int]], seed: int) -> list[Visit]:
    """Cut the steps of each setting into stays, in random order: drift of the machine then falls on all settings alike.

    A stay lasts about `stay_steps`: shorter ones would be all way there, longer ones would leave drift to one setting.

    Args:
        settings: each with its steps [steps].
        seed: of the order.

    Returns:
        Visits; their steps add up to those given.
    """
    found = []
    for setting, steps in settings:
        count = max(round(steps / stay_steps(setting)), 1) if steps > 0 else 0
        edges = [round(steps * k / count) for k in range(count + 1)] if count else [0]
        found += [Visit(setting, b - a) for a, b in itertools.pairwise(edges)]
    return [found[k] for k in np.random.default_rng([seed, 0xD0E5]).permutation(len(found)).tolist()]


def setting_workload(setting: Setting, steps: int, limits: Limits, rng: np.random.Generator) -> Workload:
    """Requests of one setting, all waiting from the start, enough for a stay.

    The first of them, as many as run at once, bring the context that a running request has on average: the stay then
    begins where it would have led.

    Args:
        setting: held.
        steps: of the stay [steps].
        limits: of the engine.
        rng: where the randomness comes from.

    Returns:
        Workload with every arrival at 0.
    """
    mean = setting.output_tokens - 1
    most = min(setting.running_limit / mean, setting.token_budget / (setting.prompt_tokens * (1 - PROMPT_SPREAD))) * steps
    requests = setting.running_limit + math.ceil(most + 6 * math.sqrt(most)) + 10
    prompt = setting.prompt_tokens * (1 + PROMPT_SPREAD * rng.uniform(-1, 1, requests))
    age = np.minimum(rng.geometric(1 / mean, requests), LONGEST_OUTPUT * mean)
    prompt[: setting.running_limit] += age[: setting.running_limit]
    output = 1 + np.minimum(rng.geometric(1 / mean, requests), LONGEST_OUTPUT * mean)
    prompt = np.clip(np.rint(prompt), 1, max(limits.max_len - LONGEST_OUTPUT * mean - 1, 1)).astype(np.int64)
    return Workload(np.zeros(requests), prompt, output.astype(np.int64), np.zeros(requests, np.int64), "planned excitation")


def record_design(
    engine: Engine, settings: Sequence[tuple[Setting, int]], *, seed: int = 0, progress: Callable[[float], None] | None = None
) -> dict[str, np.ndarray]:
    """Hold an engine at planned settings, one after the other, and note every step.

    Every stay begins on an empty engine: requests left over from another setting would hide what this one asks for.

    Args:
        engine: any; it is reset before every stay.
        settings: each with its steps [steps].
        seed: of order and lengths.
        progress: called with the share done.

    Returns:
        Columns as of `record_trace`, and workload_segment, which names the setting; shape (steps,).

    Raises:
        ValueError: no steps, or a setting beyond the engine's limits.
    """
    limits, total = engine.limits, sum(steps for _, steps in settings)
    if total < 1:
        raise ValueError("a design needs at least one setting with at least one step")
    for setting, _ in settings:
        setting.check()
        for name, most in (("token_budget", limits.max_tokens), ("running_limit", limits.max_seqs), ("prompt_tokens", limits.max_len)):
            if getattr(setting, name) > most:
                raise ValueError(
                    f"a setting of the design has {name} {getattr(setting, name):,}, the engine bears {most:,}; plan for its limits"
                )
    outcomes: list[Outcome] = []
    used: list[tuple[float, float]] = []
    names: list[str] = []
    rng = np.random.default_rng([seed, 0xD0E6])
    for setting, steps in visits(settings, seed):
        left = [steps]

        def held(law: np.ndarray, policy: np.ndarray, setting: Setting = setting, left: list[int] = left) -> bool:
            law[1], policy[RUNNING] = float(setting.token_budget), float(setting.running_limit)
            left[0] -= 1
            return left[0] >= 0

        outcome = _driven(engine, setting_workload(setting, steps, limits, rng), held)
        if len(outcome.log):
            outcomes.append(outcome)
            used += [(float(setting.token_budget), float(setting.running_limit))] * len(outcome.log)
            names += [":".join(str(x) for x in setting)] * len(outcome.log)
        if progress is not None:
            progress(len(used) / total)
    return {**_table(outcomes, np.array(used)), "workload_segment": np.array(names)}
