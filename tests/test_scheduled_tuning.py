"""Tuning with gains that follow the load: what is kept, whose figures are written down, what is said, and what a kill costs."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway import tuning
from headway.checkpoints import checkpoint_of, training_of
from headway.cli import tuned as words
from headway.controllers.gain_schedule import GainSchedule
from headway.controllers.simulator import Candidate, evaluate
from headway.experiments import gain_training
from headway.experiments.beside import Beside
from headway.experiments.descent import Course
from headway.experiments.gain_training import BETTER, NO_BETTER, Scheduled
from headway.experiments.sensitivity import NEVER_FIRED, sensitivities
from headway.experiments.space import Space, followed
from headway.experiments.statistics import Estimate, gain_interval
from headway.experiments.tune import Tuned, rejudged, tune
from headway.loads import open_load
from headway.models.measures import ATTAINMENT
from headway.models.signals import Target
from headway.pipeline import tune_stage
from tests.small_run import tuning_json
from tests.test_tune import EFFORT, LIMITS, TARGETS, problem
from tests.test_tune_resume import Killed

QUICK = dataclasses.replace(EFFORT, sobol=2, iterations=1, gradient="exact")


@pytest.fixture(scope="module")
def tuned() -> Tuned:
    return tune(problem(12.0), QUICK)


def scheduled(candidate: Candidate, *names: str) -> Candidate:
    values = {"margin": 0.1, "aging_rate": 1.5, "chunk_tokens": 8.0}
    return candidate._replace(gains=GainSchedule.constant(names, [values[name] for name in names]))


def result(candidate: Candidate, verdict: str = BETTER, **fields: Any) -> Scheduled:
    gain = Estimate(0.004, 0.001, 0.007) if verdict == BETTER else Estimate(0.001, -0.002, 0.004)
    found = Scheduled(
        candidate if verdict == BETTER else candidate._replace(gains=None),
        candidate._replace(gains=None),
        candidate,
        candidate.gains.names if candidate.gains else (),
        "queued",
        (0.97, 0.98),
        (0.971, 0.971 + gain.value),
        gain,
        verdict,
        "exact differences in random directions, as asked",
        None,
        "6 held-out seeds, as asked",
        136,
        "a load",
    )
    return dataclasses.replace(found, **fields)


# whose figures are written down


def test_all_figures_are_those_of_the_controller_that_is_kept(tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = scheduled(tuned.tuned.candidate, "margin", "aging_rate")
    monkeypatch.setattr(tuning, "train_schedule", lambda *_, **__: result(ours))
    kept, beside = tuning.with_schedule(tuned, "queued", free=None)
    draws = tuned.problem.draws(QUICK, heldout=True)
    measures = evaluate(tuned.problem.identified, [ours], draws, TARGETS, LIMITS)[0]
    assert kept.tuned.candidate == ours
    np.testing.assert_array_equal(kept.tuned.measures, measures)
    assert not np.array_equal(measures, tuned.tuned.measures)
    np.testing.assert_array_equal(kept.static.measures, tuned.static.measures)
    assert kept.gain == gain_interval(tuned.static.measures[:, ATTAINMENT], measures[:, ATTAINMENT])
    assert (kept.tried, kept.slopes, kept.resumed) == (tuned.tried, tuned.slopes, tuned.resumed)
    assert beside["schedule"]["verdict"] == BETTER
    settings = tuned.tuned.settings
    assert {"margin", "aging_rate"} <= settings.keys()
    assert kept.tuned.settings == {name: value for name, value in settings.items() if name not in ("margin", "aging_rate")}


def test_a_schedule_that_is_no_better_changes_nothing(tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tuning.with_schedule(tuned, None, free=None) == (tuned, {})
    ours = scheduled(tuned.tuned.candidate, "margin")
    monkeypatch.setattr(tuning, "train_schedule", lambda *_, **__: result(ours, NO_BETTER))
    kept, beside = tuning.with_schedule(tuned, "queued", free=None)
    assert kept is tuned
    assert beside["schedule"]["verdict"] == NO_BETTER


# numbers that a schedule stands in the place of


def test_a_number_that_follows_the_load_is_neither_free_nor_dead(tuned: Tuned) -> None:
    tried = tuned.problem
    ours, draws = scheduled(tuned.tuned.candidate, "margin", "aging_rate"), tried.draws(QUICK, heldout=False)[:2]
    assert followed(ours, TARGETS) == ("margin", "aging_rate")
    assert followed(tuned.tuned.candidate, TARGETS) == ()
    plain, space = Space(tuned.tuned.candidate, LIMITS, None, TARGETS), Space(ours, LIMITS, None, TARGETS)
    names = [f.name for f in plain.free]
    assert {"margin", "aging_rate"} <= {*names}
    assert [f.name for f in space.free] == [name for name in names if name not in ("margin", "aging_rate")]
    # as free numbers they would be called dead, as no value of them is ever read
    over = copy.copy(plain)
    over.base = ours
    wrong = {s.name: s.fired for s in sensitivities(tried.identified, over, ours, draws, TARGETS)}
    assert (wrong["margin"], wrong["aging_rate"]) == (False, False)
    assert "margin" not in {s.name for s in sensitivities(tried.identified, space, ours, draws, TARGETS)}
    with pytest.raises(
        ValueError, match=r"^cannot tune margin: it follows the load in this controller, as a table of numbers; leave it out$"
    ):
        Space(ours, LIMITS, ("margin", "running_limit"), TARGETS)


def test_shares_that_follow_the_load_are_told_by_the_names_of_their_classes(tuned: Tuned) -> None:
    targets = (Target(1.0, 0.022, name="chat"), Target(5.0, 0.022, name="doc"))
    base = tuned.default.candidate
    base = base._replace(policy=dataclasses.replace(base.policy, class_shares=(3.0, 1.0)))
    ours = base._replace(gains=GainSchedule.constant(("share.1",), [0.5]))
    assert followed(ours, targets) == ("share.doc",)
    names = {f.name for f in Space(ours, LIMITS, ("all",), targets).free}
    assert "share.chat" in names
    assert "share.doc" not in names


def test_what_was_said_of_dead_constants_is_not_said_of_tables(tuned: Tuned) -> None:
    dead = f"{NEVER_FIRED}, so its value means nothing: aging_rate"
    before = dataclasses.replace(tuned, notes=["infeasible: so it is", dead])
    after = rejudged(before, scheduled(tuned.tuned.candidate, "aging_rate"))
    assert "infeasible: so it is" in after.notes
    assert not any("aging_rate" in note for note in after.notes)
    assert "infeasible: so it is" in after.warnings
    assert dead not in after.warnings
    # numbers that were named may be among those that follow now
    assert rejudged(tuned, scheduled(tuned.tuned.candidate, "aging_rate"), ("aging_rate", "running_limit")).tuned.settings


# what is said


def said(**fields: Any) -> list[str]:
    data = {**tuning_json(), "schedule": {"tried": 136, "resumed": 0, "slopes": "exact differences, as asked", **fields}}
    lines = words.schedule_lines(data)
    assert max(map(len, lines), default=0) <= words.WIDTH
    return [" ".join(" ".join(lines).split()), *words.search_lines(data)]


FIGURES = {
    "kind": "queued",
    "names": ["margin", "aging_rate", "chunk_tokens"],
    "train_constant": 0.97,
    "train_schedule": 0.98,
    "constant": 0.971,
    "schedule": 0.975,
    "gain": 0.004,
    "gain_ci95": [0.001, 0.007],
    "verdict": BETTER,
}


def test_it_is_said_whether_a_schedule_is_kept_and_why() -> None:
    assert words.BETTER == BETTER
    assert words.schedule_lines(tuning_json()) == []
    assert said(**FIGURES) == [
        "schedule margin, aging_rate and chunk_tokens follow the queue: 97.5 % of the tokens on time, 97.1 % with the best constants, "
        "+0.4 points [+0.1, +0.7], held out exact differences, as asked"
    ]
    other = {**FIGURES, "names": ["margin"], "kind": "network"}
    assert said(**other)[0].startswith("schedule margin follows queue, decodes and cache: 97.5 %")
    worse = {**FIGURES, "verdict": NO_BETTER, "schedule": 0.97, "gain": -0.001, "gain_ci95": [-0.002, None]}
    assert "not kept (margin, aging_rate and chunk_tokens over the queue): 97.0 % of" in said(**worse)[0]
    assert "-0.1 points [-0.2, ?], held out" in said(**worse)[0]
    none = {**FIGURES, "verdict": NO_BETTER, "train_schedule": 0.97, "gain": 0.0, "gain_ci95": [0.0, 0.0]}
    assert "none of 136 schedules did better in training than the best constants" in said(**none)[0]
    nothing = {**none, "names": [], "slopes": "no gain of this candidate can follow the load"}
    assert said(**nothing) == ["schedule no gain of this candidate can follow the load"]
    assert said(**FIGURES, resumed=12)[1] == "resumed    12 answers of an interrupted training of the schedule were taken over"


def test_a_capacity_is_said_in_requests_per_second() -> None:
    data = {**tuning_json(), "objective": "capacity"}
    found = {**FIGURES, "constant": 9.81, "schedule": 10.2, "gain": 0.39, "gain_ci95": [0.1, 0.7], "tried": 9, "slopes": "s"}
    text = " ".join(" ".join(words.schedule_lines({**data, "schedule": found})).split())
    assert "10.2 requests/s carried, 9.81 with the best constants, +0.39 [+0.1, +0.7], held out" in text


# after a kill


def test_a_kill_in_training_costs_neither_the_search_nor_what_was_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gain_training, "ROUGH", Course(3, 0.3, 2, 1))
    recipe = "gamma:rate=14/s,cv=2,prompt=lognormal(median=800,sigma=1,max=8000),output=geometric(120)"
    load = open_load(recipe, "ttft=800ms,itl=22ms", rate_rps=None, rows=None, epsilon=None)
    tried, told = problem(14.0), {"effort": QUICK, "curve": False, "wanted": Beside(()), "schedule": "queued"}
    calls: list[str] = []

    def killed(label: str, _part: float) -> None:
        calls.append(label)
        if calls.count("schedule") == 2:
            raise Killed

    def stage(out: Path, **more: Any) -> dict[str, Any]:
        return tune_stage(tmp_path / "plant.json", tried.identified, load, LIMITS, out, **told, **more)[1].to_json()

    whole = stage(tmp_path / "whole.json")
    out = tmp_path / "controller.json"
    with pytest.raises(Killed):
        stage(out, progress=killed)
    assert {p.name for p in tmp_path.iterdir()} == {"whole.json", checkpoint_of(out).name, training_of(out).name}
    found = stage(out)
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["controller.json", "whole.json"], "nothing hidden is left"
    assert found["tuning"]["resumed"] > 0
    assert found["tuning"]["schedule"]["resumed"] > 0
    for record in (whole, found):
        record["tuning"]["resumed"] = record["tuning"]["schedule"]["resumed"] = 0
    assert found == whole
