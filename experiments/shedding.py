"""Whom to shed, by the estimate's own choice: what that attains beforehand, and the rule that an online policy can take from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.experiments.estimate import Estimate, estimate
from headway.models.identified import IdentifiedPlant
from headway.models.measures import CLEAN, ON_TIME, OWED
from headway.models.plant import Batch
from headway.models.signals import Limits, Target
from headway.models.workload import Workload

SLOWER = (1.0, 1.15, 1.3)
"""Reserves in step time with which the estimate chooses; the best is reported."""
KEEP = 0.5
"""Share of a request that must be served for it to be kept."""
WAIT = 0.3
"""Wait, as a share of the TTFT target, at which a prompt of the threshold's length is to be shed."""
SPREAD = (1.0, 0.6, 1.6)
"""Factors on the suggested estimate for starting points, the suggested first."""
HALVINGS = 40
"""Bisections of the tokens that a step carries."""


class Shed(NamedTuple):
    """The best that any of some policies attains if those who are to be shed never come; they owe all their tokens all the same.

    Args:
        attainment: tokens on time / tokens owed, the shed ones' included, in [0, 1].
        request_attainment: most clean requests that any of the policies reaches on the same choice, as a share of all, in [0, 1].
        candidate: place of the policy that attains it.
        kept: who was served, shape (n,), bool.
        choice: of whom to serve.
        slower: reserve that it was chosen with.
    """

    attainment: float
    request_attainment: float
    candidate: int
    kept: np.ndarray
    choice: Estimate
    slower: float


class Lesson(NamedTuple):
    """The estimate's choice as a rule that knows prompts only.

    Args:
        prompt_tokens: longest prompt that it keeps, per class; infinite where it sheds nobody [tokens].
        agreement: share of the counted requests that the rule treats as the choice does, in [0, 1].
        estimates: factor on the estimated time to completion, per class, with which triage sheds such prompts after a wait of WAIT
            times the TTFT target.
        said: one sentence.
    """

    prompt_tokens: tuple[float, ...]
    agreement: float
    estimates: tuple[float, ...]
    said: str

    def policies(self, policy: Policy) -> list[Policy]:
        """Starting points for a search: a policy with the lesson's triage.

        Args:
            policy: whose other parts they take.

        Returns:
            Policies that reject, the suggested estimate first, then the same that defer: who sheds nobody needs the order alone.
        """
        scaled = [tuple(max(1.0, factor * e) if e > 1 else e for e in self.estimates) for factor in SPREAD]
        one = [e[0] if len(e) == 1 else e for e in scaled]
        some = one if any(e > 1 for e in self.estimates) else one[:1]
        return [dataclasses.replace(policy, triage=triage, tolerance=0.0, estimate=e) for triage in ("reject", "defer") for e in some]


def part_of(workload: Workload, rows: np.ndarray) -> Workload:
    """Some requests of a workload alone.

    Args:
        workload: requests.
        rows: which, ascending, shape (k,); whoever is waited for must be among them if those who wait are.

    Returns:
        Workload of k requests.
    """
    names = ("arrival_s", "prompt_tokens", "output_tokens", "class_id", "patience_s", "cancel_s", "think_s")
    taken = {name: None if (at := getattr(workload, name)) is None else at[rows] for name in names}
    if workload.after is not None:
        place = np.full(len(workload) + 1, -1)
        place[rows] = np.arange(len(rows))
        taken["after"] = place[workload.after[rows]]
    return dataclasses.replace(workload, **taken, prefix=None if workload.prefix is None else workload.prefix.rows(rows))


def clairvoyant_shedding(
    identified: IdentifiedPlant,
    candidates: Sequence[Candidate],
    drawn: Draw,
    targets: tuple[Target, ...],
    limits: Limits,
    *,
    slower: tuple[float, ...] = SLOWER,
    choices: Sequence[Estimate] | None = None,
    bin_s: float | None = None,
) -> Shed:
    """Run policies on the requests that the estimate serves: a value that was reached, by knowing the workload beforehand.

    Args:
        identified: the plant with its residuals.
        candidates: law and policy each.
        drawn: workload and noise.
        targets: one per class.
        limits: of the engine.
        slower: reserves in step time to choose with.
        choices: the estimate with each of these reserves, where they are known already.
        bin_s: as in `headway.experiments.estimate.estimate` [s].

    Returns:
        Shed. Nobody is shed in one of the choices, so it is never below the best candidate.
    """
    workload, n = drawn.workload, len(drawn.workload)
    waited_for = np.zeros(n, bool)
    if workload.after is not None:
        waited_for[workload.after[workload.after >= 0]] = True
    choices = choices or [estimate(identified, workload, targets, limits, factors=drawn[1:], slower=s, bin_s=bin_s) for s in slower]
    plans = [(np.ones(n, bool), choices[0], slower[0])]
    plans += [(waited_for | ~(c.served < KEEP), c, s) for c, s in zip(choices, slower, strict=True)]
    found = []
    for kept, choice, reserve in plans:
        if not kept.any() or (found and kept.all()):
            continue
        part = drawn._replace(workload=part_of(workload, np.flatnonzero(kept)))
        measures = evaluate(identified, list(candidates), [part], targets, limits)[:, 0]
        attained = measures[:, ON_TIME] / np.maximum(measures[:, OWED] + workload.output_tokens[~kept].sum(), 1e-12)
        first = int(np.argmax(attained))
        clean = float(measures[:, CLEAN].max() * kept.mean())
        found.append(Shed(float(attained[first]), clean, first, kept, choice, reserve))
    return max(found, key=lambda shed: shed.attainment)


def lesson(
    identified: IdentifiedPlant, workload: Workload, targets: tuple[Target, ...], limits: Limits, choice: Estimate, *, margin: float = 0.1
) -> Lesson:
    """The longest prompt to keep that agrees best with a choice, and the triage that sheds longer ones.

    e = TTFT (1 - w) rate / T, so that a prompt of T tokens is given up after a wait of w TTFT

    Args:
        identified: the plant.
        workload: requests.
        targets: one per class.
        limits: of the engine.
        choice: of the estimate, best with some reserve.
        margin: that steps keep below the ITL budget.

    Returns:
        Lesson. What it leaves out: the output's length, which no policy knows on arrival; the choice itself goes by both.
    """
    counted, served = np.isfinite(choice.served), choice.served >= KEEP
    rate_tps = _rate_tps(identified, workload, targets, limits, choice, margin)
    thresholds, estimates, right = [], [], 0
    for c, target in enumerate(targets):
        mine = counted & (workload.class_id == c)
        longest, agreed = _longest_kept(workload.prompt_tokens[mine], served[mine])
        right += agreed
        thresholds.append(longest)
        sure = target.first_token_s * (1 - WAIT) * rate_tps / longest if math.isfinite(longest) else 1.0
        estimates.append(float(np.clip(sure, 1.0, 50.0)))
    agreement = right / max(int(counted.sum()), 1)
    rule = ", ".join(f"{t.name}: " * (len(targets) > 1) + f"{n:.0f}" for t, n in zip(targets, thresholds, strict=True) if math.isfinite(n))
    said = (
        f"prompts above {rule} tokens are not worth their time at this load ({100 * agreement:.0f} % agree)"
        if rule
        else "nobody need be shed"
    )
    return Lesson(tuple(thresholds), float(agreement), tuple(estimates), said)


def _longest_kept(prompt_tokens: np.ndarray, served: np.ndarray) -> tuple[float, int]:
    """(the threshold on prompts that errs least, infinite if none is better than to keep all; how many it treats right)."""
    order = np.argsort(prompt_tokens, kind="stable")
    right = np.concatenate([[0], np.cumsum(served[order])]) + np.concatenate([np.cumsum(~served[order][::-1])[::-1], [0]])
    lengths = prompt_tokens[order]
    cut = np.flatnonzero(np.concatenate([[True], lengths[1:] != lengths[:-1], [True]])) if len(lengths) else np.zeros(1, int)
    best = cut[::-1][int(np.argmax(right[cut][::-1]))]
    longest = math.inf if best == len(lengths) else float(lengths[max(best - 1, 0)])
    return longest, int(right[best])


def _rate_tps(
    identified: IdentifiedPlant, workload: Workload, targets: tuple[Target, ...], limits: Limits, choice: Estimate, margin: float
) -> float:
    """Prompt tokens per second in steps that keep the strictest budget beside the streams that the choice holds."""
    setpoint_s = (1 - margin) * min(t.budget_s for t in targets)
    streams, prompt = choice.streams, float(np.mean(workload.prompt_tokens))
    context = prompt + float(np.mean(workload.output_tokens)) / 2
    step_s = lambda u: float(identified.plant.step_time_s(Batch(streams, streams * context, u, u * prompt / 2, u / prompt)))  # noqa: E731
    low, high = 1.0, float(limits.max_tokens)
    if step_s(high) <= setpoint_s:
        return high / setpoint_s
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if step_s(middle) <= setpoint_s else (low, middle)
    return low / setpoint_s
