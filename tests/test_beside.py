"""What is looked at beside a result of tuning: what is asked for and nothing else, on held-out seeds, and again after a kill."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headway.beside import parse_looks
from headway.checkpoints import CheckpointFile, Held, checkpoint_of, looks_of
from headway.experiments.ablation import ablation
from headway.experiments.baseline import Static
from headway.experiments.beside import KNEES, LOOKS, USUAL, Beside, Facts, beside, facts_of
from headway.experiments.tune import Tuned, tune
from headway.loads import open_load
from headway.pipeline import tune_stage
from headway.tuning import BESIDE, tuning_json
from tests.test_pareto import EFFORT, LIMITS, TARGETS, small

PROBLEM = small(16.0)
SIDES = ("bound", "ablation", "knees", "pareto", "plant_error", "shift", "fired")


@pytest.fixture(scope="module")
def tuned() -> Tuned:
    return tune(PROBLEM, EFFORT)


def look(tuned: Tuned, *looks: str, **options: Any) -> dict[str, Any]:
    return beside(PROBLEM, EFFORT, tuned, Beside(looks, workers=1), **options)


# what is asked for


@pytest.mark.parametrize(
    ("analyse", "bound", "looks", "full"),
    [
        (None, None, ("bound", "ablation"), False),
        (None, True, ("bound", "ablation"), True),
        ("", False, ("ablation",), False),
        ("pareto, knee", None, ("bound", "ablation", "knee", "pareto"), False),
        ("all", False, tuple(name for name in LOOKS if name != "bound"), False),
    ],
)
def test_looks_are_those_that_are_asked_for(analyse: str | None, bound: bool | None, looks: tuple[str, ...], full: bool) -> None:
    assert parse_looks(analyse, bound) == Beside(looks, full)


def test_an_unknown_look_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=re.escape("--analyse 'knees': unknown name 'knees'; did you mean knee? known: knee, pareto")):
        parse_looks("knees", None)
    with pytest.raises(ValueError, match=re.escape("cannot look at 'stars'; this version knows bound, ablation")):
        Beside(("stars",)).check()


# what is found


def test_every_result_has_its_distance_and_its_ablation_on_held_out_seeds(tuned: Tuned) -> None:
    found = look(tuned, *USUAL)
    assert set(found) == set(SIDES) <= set(BESIDE)
    assert [name for name, value in found.items() if value is not None] == ["bound", "ablation"]
    assert found["bound"]["requests"] == EFFORT.requests
    assert found["bound"]["attained"] <= found["bound"]["attainment"] + 1e-9
    draws = PROBLEM.draws(EFFORT, heldout=True)
    static = Static(**tuned.static.settings)
    again = ablation(PROBLEM.identified, tuned.tuned.candidate, static, draws, TARGETS, LIMITS).to_json()
    assert found["ablation"] == json.loads(json.dumps(again))
    assert found["ablation"]["draws"] == EFFORT.heldout_seeds
    written = tuning_json(tuned, None, [], found)
    assert written["schema"] == "headway/tuning/1"
    assert {name: written[name] for name in SIDES} == found
    json.dumps(found, allow_nan=False)


@pytest.mark.slow
def test_everything_that_can_be_asked_for_is_found_with_its_schema(tuned: Tuned) -> None:
    told: list[tuple[str, float]] = []
    found = look(tuned, *LOOKS, progress=lambda label, share: told.append((label, share)))
    assert {name: found[name]["schema"] for name in SIDES} == {
        "bound": "headway/distance/1",
        "ablation": "headway/ablation/1",
        "knees": "headway/knees/1",
        "pareto": "headway/pareto/1",
        "plant_error": "headway/plant-error/1",
        "shift": "headway/shift/1",
        "fired": "headway/fired/1",
    }
    assert list(found["knees"]["of"]) == list(KNEES)
    assert all(one["sentence"].startswith(KNEES[name]) for name, one in found["knees"]["of"].items())
    json.dumps(found, allow_nan=False)
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert 0 <= shares[0] <= shares[-1] <= 1
    assert {"bound", "ablation", "knees", "both promises", "plants that are off"} <= {label for label, _ in told}


# after a kill


class Killed(BaseException):
    """Nothing that a look could catch."""


def test_what_was_found_before_a_kill_is_not_looked_for_again(tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, wanted = tmp_path / "looks", Beside(("ablation", "parts"), workers=1)
    whole = beside(PROBLEM, EFFORT, tuned, wanted)

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as broken:
        broken.setattr("headway.experiments.beside.fired", killed)
        facts = facts_of(PROBLEM, EFFORT, tuned, wanted, None, CheckpointFile(path))
        with pytest.raises(Killed):
            beside(PROBLEM, EFFORT, tuned, wanted, facts=facts)
    monkeypatch.setattr("headway.experiments.beside.ablation", killed)
    facts = facts_of(PROBLEM, EFFORT, tuned, wanted, None, CheckpointFile(path))
    assert set(facts.known) == {"ablation"}
    assert beside(PROBLEM, EFFORT, tuned, wanted, facts=facts) == json.loads(json.dumps(whole))
    other = facts_of(PROBLEM, EFFORT, tuned, wanted, ("margin",), CheckpointFile(path))
    assert other.known == {}, "what was found of another problem is of no use"
    facts.close()
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": "headway/beside/1", "problem": "k", "facts": 3}'])
def test_a_broken_file_of_facts_is_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "looks"
    path.write_text(text, encoding="utf-8")
    facts = Facts("k", CheckpointFile(path))
    assert facts.known == {}
    assert facts.fact("a", lambda: {"x": float("nan")}) == {"x": None}
    assert Facts("k", CheckpointFile(path)).fact("a", lambda: 1 / 0) == {"x": None}


def test_a_held_checkpoint_stays_until_its_holder_clears_it(tmp_path: Path) -> None:
    out = tmp_path / "controller.json"
    store = CheckpointFile(checkpoint_of(out))
    held = Held(store)
    held.save({"a": 1})
    held.clear()
    assert held.load() == {"a": 1}
    store.clear()
    assert held.load() is None
    assert looks_of(out) != checkpoint_of(out)


def test_a_kill_while_looking_costs_neither_the_search_nor_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "controller.json"
    recipe = "gamma:rate=14/s,cv=2,prompt=lognormal(median=800,sigma=1,max=8000),output=geometric(120)"
    load = open_load(recipe, "ttft=800ms,itl=22ms", rate_rps=None, rows=None, epsilon=None)
    told: dict[str, Any] = {"effort": EFFORT, "curve": False, "wanted": Beside(("ablation", "parts"))}
    stage = lambda: tune_stage(tmp_path / "plant.json", PROBLEM.identified, load, LIMITS, out, **told)[1].tuning  # noqa: E731

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as broken:
        broken.setattr("headway.experiments.beside.fired", killed)
        with pytest.raises(Killed):
            stage()
    assert {p.name for p in tmp_path.iterdir()} == {checkpoint_of(out).name, looks_of(out).name}
    monkeypatch.setattr("headway.experiments.beside.ablation", killed)
    found = stage()
    assert found["resumed"] > 0
    assert found["ablation"]["draws"] == EFFORT.heldout_seeds
    assert found["fired"]["runs"] == EFFORT.heldout_seeds
    assert [p.name for p in tmp_path.iterdir()] == [out.name], "nothing hidden is left"
