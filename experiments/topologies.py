"""What another topology of the same engines would do: replicas that prefill and decode, against every split into two pools.

For a load that no policy can help. All topologies meet the same requests and the same noise; settings are chosen on training seeds,
figures are of held-out ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headway.controllers.policy import Policy
from headway.controllers.pools import Pools, noise_of, rows_of, simulate_pools
from headway.controllers.simulator import Candidate, Draw, draw
from headway.controllers.static import StaticLaw
from headway.experiments.baseline import HEAVIER, TIED, Static, bears_most, best_static, static_grid
from headway.experiments.checkpoint import Ledger
from headway.experiments.contest import hull_warnings
from headway.experiments.statistics import Estimate, mean_interval
from headway.experiments.tune import Effort, Problem
from headway.models.goodput import Goodput, Outcome, summarise
from headway.models.workload import Workload

Progress = Callable[[str, float], None]

EFFORT = Effort(train_seeds=4, heldout_seeds=20)
"""Runs are of all replicas together, and only a few settings are chosen from."""

MOST_REPLICAS = 64
"""Replicas that are compared, at most: there are as many splits."""


class Setting(NamedTuple):
    """How the engines of a topology are run.

    Args:
        name: "controller"; "policy", its policy under a static budget; or "static", stock order with nothing else.
        candidate: law and policy of mixed replicas, or of the prefill pool.
        decode: of the decode pool; None where there is none.
        words: what a person would set.
    """

    name: str
    candidate: Candidate
    decode: Candidate | None
    words: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Contender:
    """A topology under a setting, on the held-out seeds.

    Args:
        pools: the topology.
        setting: of its engines.
        trained: attainment on the training seeds, by which it was chosen.
        attainment: on each held-out seed, shape (seeds,).
        goodput: all seeds as one population.
        gain: attainment less that of the mixed replicas, paired over the seeds; 0 for those themselves.
    """

    pools: Pools
    setting: Setting
    trained: float
    attainment: np.ndarray
    goodput: Goodput
    gain: Estimate

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            The figures of `Goodput` with topology, setting and intervals.
        """
        mean = mean_interval(self.attainment)
        return {
            **self.goodput.to_json(),
            "pools": dataclasses.asdict(self.pools),
            "name": self.pools.name,
            "setting": {"name": self.setting.name, **self.setting.words},
            "attainment": mean.value,
            "attainment_ci95": [mean.low, mean.high],
            "gain": self.gain.value,
            "gain_ci95": [self.gain.low, self.gain.high],
        }


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The topologies of so many engines.

    Args:
        replicas: engines in all.
        mixed: replicas that do both, under the setting that did best in training.
        splits: every split, each under the setting that did best in training, by the number of prefill replicas.
        wanted: attainment that was promised, 1 - epsilon.
        warnings: sentences on what lies outside the trace's hull.
    """

    replicas: int
    mixed: Contender
    splits: list[Contender]
    wanted: float
    warnings: list[str]

    @property
    def best(self) -> Contender:
        """The split that did best in training: choosing it on the held-out seeds would flatter it."""
        return max(self.splits, key=lambda c: c.trained)

    @property
    def verdict(self) -> str:
        """What to do: "split", "mixed", or "no difference" where the interval of the gain holds 0."""
        gain = self.best.gain
        return "split" if gain.low > 0 else "mixed" if gain.high < 0 else "no difference"

    def sentence(self) -> str:
        """The verdict with the figures that decide it.

        Returns:
            One sentence, or two.
        """
        split, gain = self.best, self.best.gain
        ends = lambda e: f"[{100 * e.low:.1f}, {100 * e.high:.1f}]"  # noqa: E731
        one, other = mean_interval(split.attainment), mean_interval(self.mixed.attainment)
        told = {"split": "", "mixed": "; mixed is better", "no difference": "; neither is told to be better"}[self.verdict]
        kept = [c.pools.name for c in (self.mixed, *self.splits) if c.attainment.mean() >= self.wanted]
        names = " and ".join([", ".join(kept[:-1]), kept[-1]] if len(kept) > 1 else kept) or "none of them"
        return (
            f"with {self.replicas} replicas, {split.pools.name} attains {100 * one.value:.1f} % {ends(one)} against "
            f"{100 * other.value:.1f} % {ends(other)} mixed: {gain.in_percent()}{told}. "
            f"{100 * self.wanted:.4g} % is attained by {names}"
        )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values.

        Returns:
            Mapping by field name, with the verdict.
        """
        return {
            "replicas": self.replicas,
            "verdict": self.verdict,
            "sentence": self.sentence(),
            "best_split": self.best.pools.name,
            "mixed": self.mixed.to_json(),
            "splits": [c.to_json() for c in self.splits],
            "wanted": self.wanted,
            "warnings": self.warnings,
        }


def compare_topologies(
    problem: Problem,
    replicas: int,
    *,
    transfer_s_per_token: float = 0.0,
    transfer_latency_s: float = 0.0,
    dispatch: str = "round_robin",
    effort: Effort = EFFORT,
    candidate: Candidate | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Hold mixed replicas against every split of as many engines into a prefill pool and a decode pool.

    Each topology runs under a controller and under stock settings, and keeps what did better in training. Mixed replicas: the
    candidate, its policy under a static budget, or the best static setting. Splits: on the prefill pool nothing decodes and there is
    no ITL to hold, so it has the candidate's policy under the static budget that did best; the decode pool has the candidate. Stock:
    the best budget of the prefill pool, then the best running limit of the decode pool.

    Args:
        problem: plant, workload, targets and limits of one engine; the objective is attainment.
        replicas: engines in all, at least 2.
        transfer_s_per_token: time on a prefill replica's link per prompt token [s/token].
        transfer_latency_s: beside that, per request [s].
        dispatch: "round_robin" or "least_loaded".
        effort: seeds, the first of them, and requests per run; the load is that of all replicas together.
        candidate: law and policy; None for the one straight from the fit.
        progress: called with a label and a fraction in [0, 1].

    Returns:
        Comparison.

    Raises:
        ValueError: fewer than two replicas or more than MOST_REPLICAS, a negative transfer, or an unknown dispatch.
    """
    if not 2 <= replicas <= MOST_REPLICAS:
        raise ValueError(f"replicas must be from 2 to {MOST_REPLICAS}, got {replicas}; one engine has nothing to split")
    topologies = [Pools(replicas, 0, transfer_s_per_token, transfer_latency_s, dispatch)]
    topologies += [dataclasses.replace(topologies[0], prefill=p, decode=replicas - p) for p in range(1, replicas)]
    for pools in topologies:
        pools.check()
    train, heldout = _draws(problem, effort, effort.train_seeds, False), _draws(problem, effort, effort.heldout_seeds, True)
    base = candidate or problem.untuned(train)
    found: list[Contender] = []
    largest: list[Outcome] = []
    for k, pools in enumerate(topologies):
        settings = _mixed_settings(problem, pools, base, train) if pools.decode == 0 else _split_settings(problem, pools, base, train)
        trained = [_trained(problem, pools, s, train) for s in settings]
        kept = int(np.argmax(np.round(trained, 12)))
        outcomes = [_run(problem, pools, settings[kept], d) for d in heldout]
        attained = np.array([_attained(o) for o in outcomes])
        gain = mean_interval(attained - found[0].attainment) if found else Estimate(0.0, 0.0, 0.0)
        found.append(Contender(pools, settings[kept], trained[kept], attained, summarise(outcomes, problem.targets), gain))
        largest += outcomes
        if progress:
            progress(f"simulating {pools.name}", (k + 1) / len(topologies))
    wanted = 1.0 - min(t.epsilon for t in problem.targets)
    return Comparison(replicas, found[0], found[1:], wanted, hull_warnings(problem.identified, largest))


def _draws(problem: Problem, effort: Effort, seeds: int, heldout: bool) -> list[Draw]:
    return [draw(problem.source, problem.identified, effort.seed + k, effort.requests, heldout=heldout) for k in range(seeds)]


def _run(problem: Problem, pools: Pools, setting: Setting, drawn: Draw) -> Outcome:
    at = (problem.identified, setting.candidate, drawn, problem.targets, problem.limits, pools)
    return simulate_pools(*at, decode_candidate=setting.decode)


def _attained(outcome: Outcome) -> float:
    return float(outcome.on_time.sum() / max(outcome.owed.sum(), 1e-9))


def _trained(problem: Problem, pools: Pools, setting: Setting, draws: list[Draw]) -> float:
    return float(np.mean([_attained(_run(problem, pools, setting, d)) for d in draws]))


def _best_of(problem: Problem, pools: Pools, settings: list[Setting], draws: list[Draw]) -> Setting:
    """The one that did best in training; of several that tie, the one that bears a heavier load best, then the first."""
    attained = np.array([_trained(problem, pools, s, draws) for s in settings])
    tied = np.flatnonzero(attained >= attained.max() - TIED)
    if len(tied) > 1:
        heavier = [d._replace(workload=dataclasses.replace(d.workload, arrival_s=d.workload.arrival_s / HEAVIER)) for d in draws]
        tied = tied[[int(np.argmax(np.round([_trained(problem, pools, settings[i], heavier) for i in tied], 12)))]]
    return settings[int(tied[0])]


def _budgets(problem: Problem) -> list[float]:
    return sorted({float(s.token_budget) for s in static_grid(problem.limits)})


def _mixed_settings(problem: Problem, pools: Pools, base: Candidate, draws: list[Draw]) -> list[Setting]:
    """The candidate, its policy under the best static budget, and the best stock setting; the grid meets what the first replica gets."""
    budgets = [_under(base.policy, b) for b in _budgets(problem)]
    shares = _of_equal_length([Draw(rows_of(d.workload, _share(d.workload, pools.prefill)), *noise_of(d, 0)) for d in draws])
    plain = dataclasses.replace(problem, objective="attainment", require=(), robust=None)
    stock = best_static(plain, shares, (None,), Ledger()).setting
    ordered = budgets[bears_most(plain, budgets, shares, Ledger())[0]]
    return [
        Setting("controller", base, None, {"law": type(base.law).law}),
        Setting("policy", ordered, None, {"token_budget": float(ordered.law.token_budget)}),  # pyright: ignore[reportAttributeAccessIssue]
        Setting("static", stock.candidate(), None, {"token_budget": stock.token_budget, "running_limit": stock.running_limit}),
    ]


def _share(w: Workload, replicas: int) -> np.ndarray:
    """The requests that one of so many replicas gets in turn; requests that wait for each other's end go together."""
    first = np.arange(len(w))
    if w.after is not None:
        for i in np.flatnonzero(w.after >= 0):
            first[i] = first[w.after[i]]
    return np.flatnonzero(np.unique(first, return_inverse=True)[1] % replicas == 0)


def _of_equal_length(draws: list[Draw]) -> list[Draw]:
    """As many requests of each, the first ones: sessions are not of one length, and `evaluate` takes draws that are."""
    n = min(len(d.workload) for d in draws)
    return [d if len(d.workload) == n else d._replace(workload=rows_of(d.workload, np.arange(n))) for d in draws]


def _split_settings(problem: Problem, pools: Pools, base: Candidate, draws: list[Draw]) -> list[Setting]:
    """The candidate behind its policy under the best prefill budget, and the best stock budget with the best stock running limit."""
    most, full = problem.limits.max_tokens, problem.limits.max_seqs
    decodes = base._replace(policy=dataclasses.replace(base.policy, phases="mixed"))  # pyright: ignore[reportArgumentType]  # by @pytree
    led = [
        Setting("controller", _under(base.policy, b), decodes, {"prefill_budget": b, "law": type(base.law).law}) for b in _budgets(problem)
    ]
    open_end = Static(most, full).candidate()
    stock = [Setting("static", Static(int(b), full).candidate(), open_end, {"prefill_budget": b}) for b in _budgets(problem)]
    first = _best_of(problem, pools, stock, draws)
    limits = sorted({s.running_limit for s in static_grid(problem.limits)}, reverse=True)
    second = [first._replace(decode=Static(most, n).candidate(), words={**first.words, "decode_running_limit": n}) for n in limits]
    return [_best_of(problem, pools, led, draws), _best_of(problem, pools, second, draws)]


def _under(policy: Policy, token_budget: float) -> Candidate:
    """A policy under a budget that never moves."""
    return Candidate(StaticLaw(token_budget), policy)
