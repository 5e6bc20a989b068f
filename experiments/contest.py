"""Contenders on held-out workloads: what each made of them, who else did as well, and what the load asked beyond the trace."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from headway.controllers.simulator import Candidate
from headway.experiments.statistics import gain_interval, mean_interval
from headway.models.goodput import FAILED, Goodput, Outcome
from headway.models.identified import IdentifiedPlant
from headway.models.measures import ATTAINMENT, CLEAN, GOODPUT_TPS, ITL_P99_S, SHED
from headway.models.plant import Batch
from headway.models.signals import Target
from headway.models.stability import queue_verdict

CLEANER = 0.01
"""Share of clean requests by which a controller has to be ahead for that to be said."""

STUTTER = 1.2
"""p99 ITL as a multiple of the target from which on it is said."""

TTFTS = 10.0
"""A run that is to feel its own queue lasts this many times the longest TTFT target, and twice as long as one that could not say."""

NEAR = 0.01
"""Among candidates within this of the best attainment, the one with the most clean requests is taken; further apart is worse."""


@dataclasses.dataclass(frozen=True)
class Side:
    """One contender on the held-out workloads.

    Args:
        candidate: law and policy.
        settings: what a person would set.
        measures: shape (seeds, MEASURES).
        goodput: all seeds as one population.
    """

    candidate: Candidate
    settings: dict[str, Any]
    measures: np.ndarray
    goodput: Goodput

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            Settings, attainment, goodput and what lies behind them.
        """
        attainment = mean_interval(self.measures[:, ATTAINMENT])
        return {
            "settings": self.settings,
            "attainment": attainment.value,
            "ci95": [attainment.low, attainment.high],
            "goodput_tps": float(self.measures[:, GOODPUT_TPS].mean()),
            "request_attainment": float(self.measures[:, CLEAN].mean()),
            "shed": float(self.measures[:, SHED].mean()),
            "itl_p99_s": float(self.measures[:, ITL_P99_S].mean()),
            "figures": self.goodput.to_json(),
        }


def rivals(sides: list[Side], measure: int) -> list[str]:
    """What did as well as the tuned controller, or better, on the held-out seeds, and a static choice that did not last.

    Args:
        sides: tuned, static, static with timeout, static in hindsight, untuned.
        measure: which figure is compared.

    Returns:
        One sentence each.
    """
    tuned, static, early, hindsight, default = (s.measures[:, measure] for s in sides)
    clean = [float(s.measures[:, CLEAN].mean()) for s in sides]
    said = []
    for name, values, theirs in (
        ("a static setting with a queue timeout", early, clean[2]),
        ("the controller straight from the fit, untuned,", default, clean[4]),
    ):
        if gain_interval(tuned, values).low <= 0:
            continue
        bought = f"; for that {100 * clean[0]:.0f} % of the requests are clean instead of {100 * theirs:.0f} %"
        said.append(
            f"{name} does better on the held-out seeds: {100 * values.mean():.1f} % against {100 * tuned.mean():.1f} %"
            + (bought if measure != CLEAN and clean[0] > theirs + CLEANER else "")
        )
    if hindsight.mean() > static.mean() + NEAR:
        gain, best_there = gain_interval(hindsight, tuned), sides[3].settings
        said.append(
            f"the static setting chosen in training is not the best of its grid on the held-out seeds: "
            f"{best_there['token_budget']} tokens, {best_there['running_limit']} requests attain {100 * hindsight.mean():.1f} %; "
            f"the gain over that is {gain.in_percent('%')}"
        )
    return said


def stutters(tuned: Side, untuned: Side, targets: tuple[Target, ...]) -> list[str]:
    """Classes whose ITL target the tuned controller breaks, as where a plant is much faster in long steps: tokens on time do not show it.

    Args:
        tuned: on the held-out workloads.
        untuned: on the same.
        targets: one per class.

    Returns:
        One sentence each.
    """
    said = []
    for target in targets:
        ours, theirs = (s.goodput.classes.get(target.name, {}).get("itl_p99_s") for s in (tuned, untuned))
        if ours is None or ours <= STUTTER * target.itl_s:
            continue
        who = f"{target.name}: " if len(targets) > 1 else ""
        text = f"{who}p99 ITL is {1e3 * ours:.3g} ms where {1e3 * target.itl_s:.3g} ms are promised, with {_clean(tuned)}"
        if theirs is not None and theirs <= STUTTER * target.itl_s:
            text += f"; the untuned controller keeps it at {1e3 * theirs:.3g} ms, with {_clean(untuned)}, and attains "
            text += f"{100 * untuned.measures[:, ATTAINMENT].mean():.1f} %; to keep it ask for it: "
            text += f"--require 'itl_p99<={1e3 * target.itl_s:.3g}ms'"
        said.append(text)
    return said


def outgrown(outcomes: list[Outcome], targets: tuple[Target, ...]) -> list[str]:
    """That the controller's queue grows all through its runs: then what it attains is what a run of that length does, and no more.

    Args:
        outcomes: its held-out runs.
        targets: one per class.

    Returns:
        One sentence with the requests that would show it, or none.
    """
    if queue_verdict(outcomes) != "unstable":
        return []
    slowest = max(targets, key=lambda t: t.ttft_s)
    spans_s = [float(o.arrival_s.max() - o.arrival_s.min()) for o in outcomes]
    span_s, many = float(np.median(spans_s)), float(np.median([len(o.arrival_s) for o in outcomes]))
    wanted = many * max(2.0, TTFTS * slowest.ttft_s / max(span_s, 1e-9))
    rounded = int(np.ceil(wanted / 100) * 100)
    return [
        f"the controller's queue grows for as long as its runs of {span_s:.3g} s last, so a longer run attains less: "
        f"--requests {rounded} shows how much"
    ]


def _clean(side: Side) -> str:
    return f"{100 * side.measures[:, CLEAN].mean():.0f} % clean requests"


def hull_warnings(identified: IdentifiedPlant, outcomes: list[Outcome]) -> list[str]:
    """What the load asked of the plant beyond what the trace held, and of the engine beyond what it can bear.

    Args:
        identified: the plant with its hull.
        outcomes: runs.

    Returns:
        One sentence per sum that lies outside.
    """
    largest = np.max([o.largest for o in outcomes], axis=0)
    decodes, kv, prefill, pairs = (float(x) for x in largest)
    never, of = sum(int((o.status == FAILED).sum()) for o in outcomes), sum(len(o.status) for o in outcomes)
    lost = [f"{never:,} of {of:,} requests can never fit: longer than max_len, or than the whole KV cache"] if never else []
    return [*lost, *identified.hull.outside(Batch(decodes, kv, prefill, pairs, 0))]
