"""The distance to the bound: nobody exceeds it, what is no bound is called so, and a target out of reach is named with what would do."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from headway.controllers.default import default_candidate
from headway.controllers.simulator import evaluate
from headway.experiments.baseline import Static
from headway.experiments.bound import upper_bound
from headway.experiments.distance import Depth, Distance, distance
from headway.experiments.estimate import estimate
from headway.experiments.feasibility import Verdict
from headway.experiments.problem import Problem
from headway.models.measures import ATTAINMENT, CLEAN
from headway.models.signals import Target
from tests.test_pareto import EFFORT, LIMITS, TARGETS, small

DEPTH = Depth(2, 40, False)


def look(problem: Problem, depth: Depth = DEPTH) -> Distance:
    base = default_candidate(problem.identified, problem.targets, LIMITS)
    return distance(problem, EFFORT, base, Static(512, 32).candidate(), depth)


@pytest.fixture(scope="module")
def found() -> Distance:
    return look(small(20.0))


def test_it_is_of_the_first_requests_of_the_first_windows_and_paired(found: Distance) -> None:
    p = small(20.0)
    draws = [d._replace(workload=d.workload.window(0, 40)) for d in p.draws(EFFORT, heldout=True)[:2]]
    base = default_candidate(p.identified, TARGETS, LIMITS)
    measures = evaluate(p.identified, [base], draws, TARGETS, LIMITS)[0]
    bounds = [upper_bound(p.identified, d.workload, TARGETS, LIMITS, factors=(d.decode, d.mixed)) for d in draws]
    guesses = [estimate(p.identified, d.workload, TARGETS, LIMITS, factors=(d.decode, d.mixed)) for d in draws]
    assert found.depth == DEPTH
    assert found.attained == pytest.approx(measures[:, ATTAINMENT].mean())
    assert found.clean[0] == pytest.approx(measures[:, CLEAN].mean())
    assert found.bound == pytest.approx(np.mean([b.attainment for b in bounds]))
    assert found.clean[1] == pytest.approx(np.mean([b.request_attainment for b in bounds]))
    assert found.estimate == pytest.approx(np.mean([g.attainment for g in guesses]))
    assert found.share.value == pytest.approx(found.attained / found.bound)
    assert found.share.low <= found.share.value <= found.share.high


def test_nobody_exceeds_the_bound_and_told_whom_to_shed_is_no_worse(found: Distance) -> None:
    assert found.attained <= found.bound + 1e-9
    assert found.clean[0] <= found.clean[1] + 1e-9
    assert found.attained - 1e-12 <= found.shed <= found.bound + 1e-9
    assert 0 < found.attained < 1, "a load at which there is something to lose"


def test_each_figure_is_called_what_it_is(found: Distance) -> None:
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["schema"] == "headway/distance/1"
    assert (data["attainment"], data["attained"], data["windows"], data["requests"]) == (found.bound, found.attained, 2, 40)
    said = data["sentence"]
    assert f"{100 * found.share.value:.1f} % of the bound" in said
    assert said.index("(proved)") < said.index("(not proved)") < said.index("(a run)")
    again = look(small(20.0)).to_json()
    assert data == again, "no clock decides what is looked at"


def test_fewer_seeds_than_wanted_are_all_there_are() -> None:
    assert look(small(20.0), Depth(50, 30, False)).depth == Depth(EFFORT.heldout_seeds, 30, False)


def test_a_target_out_of_reach_is_named_with_the_smallest_changes() -> None:
    # a gap shorter than the quickest step: no policy keeps it
    hopeless = dataclasses.replace(small(20.0), targets=(Target(0.8, 0.003),))
    unasked = look(hopeless)
    assert unasked.ruled_out
    assert unasked.verdict is None
    assert unasked.to_json()["changes"] is None
    asked = look(hopeless, Depth(1, 30, True))
    assert asked.verdict is not None
    assert asked.verdict.ruled_out
    assert asked.verdict.promise == pytest.approx(0.99)
    assert any(text.startswith("with an ITL target of ") for text in asked.verdict.changes)
    assert asked.to_json()["verdict"].startswith("no policy can attain 99 %: at most ")


def test_a_verdict_in_sentences() -> None:
    fine = Verdict(0.99, 1.0, (), ("a",))
    assert not fine.ruled_out
    assert fine.sentences() == ("99 % is not ruled out: no policy can attain more than 100.0 %",)
    bad = Verdict(0.99, 0.4, ("at 3 requests/s", "with 2 replicas"), ("a", "b"))
    assert bad.sentences() == (
        "no policy can attain 99 %: at most 40.0 %; it is not ruled out at 3 requests/s, or with 2 replicas",
        "a",
        "b",
    )
    assert bad._replace(changes=()).sentences()[0].endswith("; no single change by a factor of 8 helps")
