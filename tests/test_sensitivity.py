"""Case E4: every tunable changes something on a probe that gives it the chance, and one that changes nothing is flagged."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from headway.controllers.default import default_candidate
from headway.controllers.simulator import Candidate, Draw, evaluate
from headway.experiments.sensitivity import PROBES, Sensitivity, dead_sentence, sensitivities
from headway.experiments.space import EVERY, Space
from headway.experiments.tune import Effort, Problem, tune
from headway.models.generators import Gamma, Synthetic
from headway.models.lengths import Geometric, LogNormal
from headway.models.measures import MEASURES
from headway.models.noise import Noise
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload
from tests.small_problems import known

PLANT = RegimePlant((6e-3, 7e-5, 5e-9, 0.0, 0.0, 0.0), (6.5e-3, 1e-4, 6e-9, 3e-5, 5e-10, 5e-4))
LIMITS = Limits(30_000, 16, max_seqs=64, max_tokens=2048)
TARGETS = (Target(0.8, 0.022, name="chat"), Target(2.0, 0.1, name="batch"))
IDENTIFIED = known(PLANT, LIMITS, Noise(np.linspace(-0.1, 0.1, 500), np.linspace(-0.2, 0.2, 500)))
OPPOSED = {"prefill_every": "prefill_first", "decode_every": "decode_first"}


def probe(rate_rps: float = 30.0, requests: int = 160) -> list[Draw]:
    """Beyond capacity, in bursts, two classes, prompts long enough to be cut, a cache small enough to fill."""
    rng = np.random.default_rng(4)
    arrival_s = np.cumsum(rng.gamma(0.4, 1 / (0.4 * rate_rps), requests))
    prompt, output = np.minimum(rng.lognormal(6.6, 1.0, requests), 8000).astype(int) + 1, rng.geometric(1 / 120, requests)
    w = Workload(arrival_s, prompt, output, rng.integers(0, 2, requests))
    noise = np.exp(rng.normal(0, 0.08, 4096))
    return [Draw(w, noise, noise)]


def based(**fields: object) -> Candidate:
    base = default_candidate(IDENTIFIED, TARGETS, LIMITS)
    return base._replace(policy=dataclasses.replace(base.policy, **fields))  # pyright: ignore[reportArgumentType]


def found_on(draws: list[Draw], free: tuple[str, ...] | None = (EVERY,), **fields: object) -> list[Sensitivity]:
    base = based(**fields)
    space = Space(base, LIMITS, free, TARGETS)
    return sensitivities(IDENTIFIED, space, base, draws, TARGETS)


@pytest.mark.parametrize(
    ("fields", "quiet"),
    [
        # a decode waits only where the budget holds fewer tokens than there are decodes, which this law sees to
        ({"triage": "reject", "admission": "lookahead", "estimate": 1.0, "memory_price_s": 0.0}, {"decode_every"}),
        # nor does it learn anything of steps in which nobody decodes, and no other has a prompt to give less
        ({"triage": "degrade", "phases": "prefill_first"}, {"late_rate"}),
        # prompts have their steps to themselves there, in which only the largest budget counts
        ({"triage": "timeout", "phases": "decode_first", "estimate": 0.5}, {"late_rate", "margin", "least_tokens"}),
    ],
    ids=["reject", "degrade", "timeout"],
)
def test_case_e4_every_tunable_changes_something_on_a_probe_or_is_flagged(fields: dict, quiet: set[str]) -> None:
    found = found_on(probe(), **fields)
    dead = {s.name for s in found if not s.fired}
    assert dead == quiet
    said = dead_sentence(found)
    assert all(name in said for name in dead)
    assert bool(said) == bool(dead)
    for s in found:
        assert (s.change > 0) == s.fired
        assert len(s.values) == PROBES
        assert s.values == tuple(sorted(s.values)) or s.values[-1] == 0.0, "its loose end is off"


def test_case_e4_on_a_probe_that_cannot_fire_it_a_number_is_flagged() -> None:
    # one request at a time: nobody waits, so nothing that orders or sheds has anything to decide
    alone = Workload(np.arange(12) * 5.0, np.full(12, 100), np.full(12, 5), np.arange(12) % 2)
    found = found_on([Draw(alone, np.ones(8), np.ones(8))])
    dead = {s.name for s in found if not s.fired}
    assert {"aging_rate", "stride", "prefill_every", "share.chat", "priority.batch", "memory_price_s", "running_limit"} <= dead
    assert "most_tokens" not in dead, "prompts of 100 tokens are cut at 16"
    assert dead_sentence(found).startswith("never fired on this workload, so their values mean nothing: ")
    assert "\n" not in dead_sentence(found)


def test_what_is_changed_is_what_the_simulator_measures() -> None:
    draws, base = probe(), based()
    space = Space(base, LIMITS, ("tolerance",), TARGETS)
    found = {s.name: s for s in sensitivities(IDENTIFIED, space, base, draws, TARGETS)}["tolerance"]
    assert found.values == pytest.approx((-0.6, -0.1, 0.4))
    start = space.candidate(space.point(base))
    moved = [start._replace(policy=dataclasses.replace(start.policy, tolerance=v)) for v in found.values]
    rows = evaluate(IDENTIFIED, [start, *moved], draws, TARGETS, LIMITS)[:, 0]
    assert rows.shape == (1 + PROBES, MEASURES)
    top = np.abs(rows[1:] - rows[0]) / np.maximum(np.maximum(np.abs(rows[1:]), np.abs(rows[0])), 1e-300)
    assert found.change == pytest.approx(top.max())


def test_case_e4_tuning_says_which_of_its_numbers_never_fired() -> None:
    light = Synthetic(Gamma(0.5, 2.0), (LogNormal(100, 0.3, high=400),), (Geometric(10),))
    effort = Effort(train_seeds=2, heldout_seeds=2, requests=40, sobol=2, starts=1, iterations=1)
    found = tune(Problem(IDENTIFIED, light, TARGETS[:1], LIMITS), effort, free=("stride", "prefill_every"), policy={"order": "edf"})
    lines = [w for w in found.warnings if "never fired" in w or "cannot act" in w]
    assert "token_budget" not in found.tuned.settings, "no static setting was handed on"
    assert lines[0] == "aging_rate is searched, but cannot act without order=slack"
    assert lines[1].startswith("never fired on this workload")
    assert "stride" in lines[1]
    assert "aging_rate" not in lines[1], "each once"
