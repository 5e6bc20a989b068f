"""Where a search begins beside the untuned controller: settings that were seen to do well somewhere, and the bound's own choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw
from headway.experiments.baseline import Static
from headway.experiments.estimate import estimate
from headway.experiments.problem import Problem
from headway.experiments.shedding import lesson

LATE_RATE = 0.02
"""Late rate of one beginning: a share of late steps that costs less than the prompt tokens which it buys."""

LEAST_TOKENS = 256.0
"""Least prefill budget of one beginning [tokens]."""

CHEAPER = ((0.0, 1.0), (0.3, 2.0))
"""Share of the untuned price of memory, and factor on the estimate, of two beginnings that take less from long prompts."""

RESERVE = 1.15
"""Reserve in step time with which the bound's relaxation chooses whom to serve."""

TAUGHT_BELOW = 0.99
"""Attainment of the best static setting from which on nobody need be shed, and nothing is to be learnt of it."""


def beginnings(base: Candidate, settings: tuple[Static, ...], fixed: Mapping[str, Any]) -> list[Candidate]:
    """Law and policy to begin from, each a step away from the untuned controller.

    A higher late rate; a higher least prefill budget; the fixed budget and running limit of each static setting, under the
    policy's order and triage, and in stock order, where all that is new is that the hopeless are shed at once; memory for nothing, or
    for less; and whoever is hopeless served last instead of shed.

    Args:
        base: the untuned controller.
        settings: the best static ones.
        fixed: what the policy was asked to have, by field: no beginning changes it.

    Returns:
        Candidates; those that the law or the policy does not allow are left out.
    """
    law, policy = base.law, base.policy
    gains, free = law.gains(), lambda **fields: {n: v for n, v in fields.items() if n not in fixed}
    of_law = lambda changes: base._replace(law=dataclasses.replace(law, **changes))  # noqa: E731  # pyright: ignore[reportArgumentType]
    of_policy = lambda one, changes: one._replace(policy=dataclasses.replace(policy, **changes))  # noqa: E731
    found, statics = [], []
    if "late_rate" in gains:
        found.append(of_law({"late_rate": LATE_RATE}))
    if "least_tokens" in gains:
        most = float(gains["most_tokens"].value)
        found.append(of_law({"least_tokens": min(LEAST_TOKENS, most)}))
        for s in settings:
            budget = min(float(s.token_budget), most)
            statics.append((of_law({"least_tokens": budget, "most_tokens": budget}), free(running_limit=float(s.running_limit))))
        found += [of_policy(one, limit) for one, limit in statics]
    if policy.order != "fcfs":
        price_s = float(policy.memory_price_s)
        found += [of_policy(base, free(memory_price_s=share * price_s, estimate=e)) for share, e in CHEAPER]
        if policy.triage == "reject":
            found.append(of_policy(base, free(triage="defer")))
            stock = free(order="fcfs", memory_price_s=0.0, estimate=1.0)
            found += [of_policy(one, stock | limit) for one, limit in statics if _allowed(policy, stock)]
    return [c for c in found if c != base]


def _allowed(policy: Policy, changes: Mapping[str, Any]) -> bool:
    """Whether a policy may be changed so: stock order knows few of the parts that were perhaps asked for."""
    try:
        dataclasses.replace(policy, **changes).check()  # pyright: ignore[reportArgumentType]
    except ValueError:
        return False
    return "order" in changes


def taught(problem: Problem, base: Candidate, attained: float, drawn: Draw, fixed: Mapping[str, Any]) -> list[Candidate]:
    """What the bound's relaxation teaches: the triage that sheds about whom it would not serve.

    Args:
        problem: what is tuned for.
        base: the untuned controller.
        attained: by the best static setting.
        drawn: the training workload that it chooses on.
        fixed: what the policy was asked to have, by field.

    Returns:
        Law and policy of each beginning; none where there is nothing to learn: nobody need be shed, or the policy is to have another
        triage or its own estimate.
    """
    policy = base.policy
    if (
        attained >= TAUGHT_BELOW
        or policy.order == "fcfs"
        or policy.triage not in ("reject", "defer")
        or {"estimate", "tolerance"} & {*fixed}
    ):
        return []
    factors = drawn.decode, drawn.mixed
    choice = estimate(problem.identified, drawn.workload, problem.targets, problem.limits, factors=factors, slower=RESERVE)
    learnt = lesson(problem.identified, drawn.workload, problem.targets, problem.limits, choice)
    policies = [p for p in learnt.policies(policy) if "triage" not in fixed or p.triage == policy.triage]
    return [base._replace(policy=p) for p in policies]
