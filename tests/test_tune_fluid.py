"""The fluid in the search: what it knows, what the gate says of it, and where its slopes are followed."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from headway.controllers.default import default_candidate
from headway.experiments.checkpoint import Ledger
from headway.experiments.descent import Course, descend, exact_slopes
from headway.experiments.problem import Effort, Problem
from headway.experiments.robust import Robust
from headway.experiments.search import search
from headway.experiments.space import Space
from headway.experiments.surrogate import WORTH, Surrogate, asked_for, beyond, margins_of
from headway.models.generators import Gamma, Synthetic
from headway.models.identified import IdentifiedPlant
from headway.models.lengths import Geometric, LogNormal
from headway.models.noise import Noise
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.requirements import parse_requirements
from tests.small_problems import known

PLANT = RegimePlant((6e-3, 7e-5, 5e-9, 0.0, 0.0, 0.0), (6.5e-3, 1e-4, 6e-9, 3e-5, 5e-10, 5e-4))
LIMITS = Limits(400_000, 16, max_seqs=256, max_tokens=2048)
TARGETS = (Target(1.0, 0.022),)
EFFORT = Effort(train_seeds=6, requests=100, sobol=8, starts=1, iterations=2, gradient="fluid")
FREE = ("margin", "chunk_tokens")


def noisy(limits: Limits = LIMITS) -> IdentifiedPlant:
    rng = np.random.default_rng(0)
    return known(PLANT, limits, Noise(rng.normal(0, 0.05, 500), rng.normal(0, 0.1, 500)))


def problem(rate_rps: float = 14.0, limits: Limits = LIMITS, **parts) -> Problem:
    source = Synthetic(Gamma(rate_rps, 2.0), (LogNormal(800, 1.0, high=8000),), (Geometric(120),))
    return Problem(noisy(limits), source, TARGETS, limits, **parts)


def space_of(tried: Problem, names: tuple[str, ...] | None = FREE, **policy) -> Space:
    base = default_candidate(tried.identified, tried.targets, tried.limits)
    return Space(base._replace(policy=dataclasses.replace(base.policy, **policy)), tried.limits, names, tried.targets)


def test_the_fluid_is_asked_where_it_is_worth_its_compilation_or_where_somebody_asks_for_it() -> None:
    space = space_of(problem())
    few, many = Effort(requests=1000), Effort(requests=WORTH)
    assert asked_for(few, space).startswith("exact differences: for 3 numbers and 1,000 requests they cost less than compiling the fluid")
    assert asked_for(many, space) == ""
    assert asked_for(dataclasses.replace(many, gradient="exact"), space) == "exact differences, as asked"
    assert asked_for(dataclasses.replace(few, gradient="fluid"), space) == ""


@pytest.mark.parametrize(
    ("parts", "policy", "names", "said"),
    [
        ({}, {}, FREE, []),
        ({"objective": "requests"}, {}, FREE, ["the objective requests"]),
        ({"require": parse_requirements("shed<=2%")}, {}, FREE, ["requirements"]),
        ({"robust": Robust()}, {}, FREE, ["several plants"]),
        ({}, {"phases": "prefill_first"}, FREE, ["phases prefill_first"]),
        ({}, {"triage": "degrade"}, FREE, ["triage degrade"]),
        ({}, {"stride": 0.5, "memory_price_s": 0.001}, FREE, ["strides"]),
        ({}, {"admission": "lookahead"}, ("lookahead_z",), ["admission lookahead", "lookahead_z"]),
        ({"limits": dataclasses.replace(LIMITS, scheduling="async")}, {}, FREE, ["steps composed ahead"]),
    ],
)
def test_what_the_fluid_does_not_know_is_named(parts, policy, names, said) -> None:
    tried = problem(**parts)
    assert beyond(tried, space_of(tried, names, **policy), tried.draws(EFFORT, heldout=False)) == said


def test_a_search_that_it_does_not_know_goes_by_differences_and_says_why() -> None:
    tried = problem(objective="requests")
    found = search(tried, space_of(tried), tried.draws(EFFORT, heldout=False), EFFORT, Ledger(), lambda label, part: None)
    assert found.slopes == ["exact differences: the fluid does not know the objective requests"]
    assert not found.gates


def test_the_margin_that_a_tracker_finds_follows_its_late_rate() -> None:
    tried = problem()
    space = space_of(tried, ("late_rate",))
    surrogate = Surrogate(tried, space, tried.draws(EFFORT, heldout=False))
    at = lambda rate: float(surrogate.knobs(jnp.asarray(space.point(_with_rate(space, rate)), surrogate.grid.dtype)).margin)  # noqa: E731
    residuals = tried.identified.noise.mixed
    for rate in (0.01, 0.05, 0.2):
        assert at(rate) == pytest.approx(1 - np.exp(-np.quantile(residuals, 1 - rate)), abs=0.01)
    assert at(0.01) > at(0.05) > at(0.2)
    assert (margins_of(problem()) >= 0).all()
    bare = dataclasses.replace(problem(), identified=known(PLANT, LIMITS))
    assert not margins_of(bare).any()


def _with_rate(space: Space, rate: float):
    return space.base._replace(law=dataclasses.replace(space.base.law, late_rate=rate))  # pyright: ignore[reportArgumentType]  # by @pytree


def test_adam_climbs_inside_its_box_and_each_point_comes_with_its_average() -> None:
    top = np.array([3.0, 40.0])
    slopes = lambda point, part: 2 * (top - point)  # noqa: E731
    box = (np.zeros(2), np.array([10.0, 10.0]))
    told: list[float] = []
    passed = list(descend(np.array([9.0, 1.0]), slopes, box, Course(60), 8, np.random.default_rng(0), told.append))
    assert len(passed) == 120
    assert all((p >= box[0]).all() and (p <= box[1]).all() for p in passed)
    assert passed[-2] == pytest.approx([3.0, 10.0], abs=0.3)
    assert told[-1] == 1.0
    assert len(list(descend(np.zeros(2), slopes, box, Course(8, every=4), 8, np.random.default_rng(0)))) == 4


def test_slopes_of_the_simulator_are_differences_over_a_unit_on_the_draws_asked_for() -> None:
    tried = problem()
    space, draws = space_of(tried), tried.draws(EFFORT, heldout=False)
    point, part = space.point(space.base), np.array([0, 3])
    found = exact_slopes(tried, space, draws, Ledger())(point, part)
    ends = [np.clip(point + s * 0.5 * np.eye(len(point))[0], space.low, space.high) for s in (1, -1)]
    values = tried.scores([space.candidate(p) for p in ends], [draws[0], draws[3]])[:, 0]
    assert found[0] == pytest.approx((values[0] - values[1]) / (ends[0][0] - ends[1][0]))


@pytest.mark.slow
def test_the_gate_is_asked_at_the_start_and_its_sentence_is_kept() -> None:
    tried = problem()
    space, draws = space_of(tried, ("margin",)), tried.draws(EFFORT, heldout=False)
    found = search(tried, space, draws, EFFORT, Ledger(), lambda label, part: None)
    assert len(found.gates) == 1
    assert found.slopes == [found.gates[0].said]
    again = search(tried, space, draws, EFFORT, Ledger(), lambda label, part: None)
    assert np.array_equal(again.scores, found.scores)
    surrogate = Surrogate(tried, space, draws)
    values, slopes = surrogate.at(found.points[0], np.arange(2))
    assert values.shape == (2,)
    assert slopes.shape == (2, len(space.free))
    assert ((values >= 0) & (values <= 1)).all()
