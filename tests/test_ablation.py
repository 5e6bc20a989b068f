"""What each part of a controller brings: switched off one at a time, paired, and said."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from headway.controllers.default import default_candidate
from headway.controllers.feedforward import FeedforwardLaw
from headway.controllers.policy import Policy
from headway.controllers.simulator import Candidate, Draw, draw, evaluate
from headway.controllers.static import StaticLaw
from headway.experiments.ablation import KEYED, Ablation, ablation, variants_of
from headway.experiments.baseline import Static
from headway.experiments.statistics import mean_interval
from headway.models.generators import Gamma, Synthetic
from headway.models.identified import IdentifiedPlant
from headway.models.lengths import Geometric, LogNormal
from headway.models.measures import ATTAINMENT, CLEAN
from headway.models.noise import Noise
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from tests.small_problems import known

PLANT = RegimePlant((6e-3, 7e-5, 5e-9, 0.0, 0.0, 0.0), (6.5e-3, 1e-4, 6e-9, 3e-5, 5e-10, 5e-4))
LIMITS = Limits(30_000, 16, max_seqs=64, max_tokens=2048)
TARGETS = (Target(0.8, 0.022),)
STATIC = Static(256, 32)
PARTS = ["triage", "order", "budget law", "admission", "load dependence"]


def problem(rate_rps: float, count: int) -> tuple[IdentifiedPlant, Candidate, list[Draw]]:
    rng = np.random.default_rng(0)
    identified = known(PLANT, LIMITS, Noise(rng.normal(0, 0.05, 500), rng.normal(0, 0.1, 500)))
    source = Synthetic(Gamma(rate_rps, 2.0), (LogNormal(800, 1.0, high=8000),), (Geometric(120),))
    base = default_candidate(identified, TARGETS, LIMITS)
    full = base._replace(policy=dataclasses.replace(base.policy, running_limit=40.0))
    return identified, full, [draw(source, identified, seed, 120, heldout=True) for seed in range(count)]


@pytest.fixture(scope="module")
def overloaded() -> Ablation:
    identified, full, draws = problem(22.0, 8)
    return ablation(identified, full, STATIC, draws, TARGETS, LIMITS)


def test_every_part_is_told_with_what_stood_in_for_it(overloaded: Ablation) -> None:
    assert [w.part for w in overloaded.parts] == PARTS
    assert overloaded.off == ()
    told = overloaded.sentences()
    for worth, line in zip(overloaded.parts, told, strict=False):
        assert line.startswith(f"{worth.part}: ")
        assert worth.instead in line
    assert "8 workloads" in told[-1]
    assert "do not add up" in told[-1]


def test_past_the_knee_triage_is_what_counts(overloaded: Ablation) -> None:
    triage = overloaded.parts[0]
    assert triage.attainment.low > 0.05
    assert triage.without < overloaded.attainment - 0.05


def test_a_worth_is_the_paired_difference_on_the_same_draws() -> None:
    identified, full, draws = problem(11.0, 4)
    found = ablation(identified, full, STATIC, draws, TARGETS, LIMITS)
    for worth, variant in zip(found.parts, variants_of(full, STATIC, LIMITS)[0], strict=True):
        measures = evaluate(identified, [full, variant.candidate], draws, TARGETS, LIMITS)
        assert worth.attainment == mean_interval(measures[0, :, ATTAINMENT] - measures[1, :, ATTAINMENT])
        assert worth.clean == mean_interval(measures[0, :, CLEAN] - measures[1, :, CLEAN])
        assert worth.without == pytest.approx(measures[1, :, ATTAINMENT].mean())
        assert found.attainment == pytest.approx(measures[0, :, ATTAINMENT].mean())


def test_a_variant_differs_in_its_part_alone() -> None:
    _, full, _ = problem(8.0, 0)
    variants = {v.part: v.candidate for v in variants_of(full, STATIC, LIMITS)[0]}
    kept = dataclasses.asdict(full.policy)
    changed = {
        "triage": {"triage"},
        "order": {"order", *KEYED},
        "budget law": set(),
        "admission": {"admission", "running_limit"},
        "load dependence": set(),
    }
    for part, fields in changed.items():
        differs = {name for name, value in dataclasses.asdict(variants[part].policy).items() if value != kept[name]}
        assert differs <= fields, part
        assert variants[part].policy.check() is None
    assert variants["triage"].policy.triage == "none"
    assert variants["order"].policy.order == "fcfs"
    assert variants["budget law"].law == StaticLaw(256.0)
    assert variants["admission"].policy.running_limit == LIMITS.max_seqs
    still = variants["load dependence"].law.gains()
    assert all(still[name].value == 0 for name in ("kb", "eta"))
    assert all(still[name].value == gain.value for name, gain in full.law.gains().items() if name not in ("kb", "eta"))


@pytest.mark.parametrize("triage", ["defer", "degrade"])
def test_a_triage_that_ranks_goes_with_the_order(triage: str) -> None:
    _, full, _ = problem(8.0, 0)
    ranked = full._replace(policy=dataclasses.replace(full.policy, triage=triage))
    order = next(v for v in variants_of(ranked, STATIC, LIMITS)[0] if v.part == "order")
    order.candidate.policy.check()
    assert order.candidate.policy.triage == "none"
    assert order.instead == f"first come, first served, which cannot {triage}"


def test_what_a_controller_does_not_use_is_said_and_not_measured() -> None:
    identified, _, draws = problem(6.0, 2)
    stock = ablation(identified, STATIC.candidate(), STATIC, draws, TARGETS, LIMITS)
    assert [w.part for w in stock.parts] == ["admission"]
    assert stock.sentences()[-1] == "not in use: triage, order, budget law, load dependence"
    plain = Candidate(FeedforwardLaw(PLANT, most_tokens=2048.0), Policy(triage="none", running_limit=64.0))
    assert "load dependence" in variants_of(plain, STATIC, LIMITS)[1] or plain.law.gains().keys() & {"kb", "ki"}


def test_the_rest_can_be_tuned_anew_and_it_is_said() -> None:
    identified, full, draws = problem(11.0, 3)
    asked = []

    def retune(part: str, rest: Candidate) -> Candidate:
        asked.append(part)
        return full if part == "order" else rest

    found = ablation(identified, full, STATIC, draws, TARGETS, LIMITS, retune=retune)
    assert asked == PARTS
    order = found.parts[1]
    assert tuple(order.attainment) == (0.0, 0.0, 0.0)
    assert order.sentence().endswith("no difference that these workloads show")
    assert found.retuned
    assert "tuned anew without it" in found.sentences()[-1]
    assert found.to_json()["parts"][1]["attainment"] == {"value": 0.0, "ci95": [0.0, 0.0]}
