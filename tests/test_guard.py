"""The guard: its two forms equal; what each fault of sensor and actuator does; the watchdog; and what no storm may break."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from typing import Any

import numpy as np
import pytest

from headway.controllers import guard as compiled
from headway.controllers.guard import Guard, guard_for, guard_init, guard_step
from headway.controllers.laws import STATE_SIZE
from headway.controllers.pi import PILaw
from headway.controllers.steploop import Disturbance, respond
from headway.controllers.tracker import TrackerLaw
from headway.engines import runtime_guard
from headway.engines.golden import guard_of
from headway.engines.runtime import READINGS, Runtime
from headway.engines.runtime_guard import KINDS, NUMBERS, POWERLESS
from headway.models.plant import Batch
from headway.models.regimes import RegimePlant
from tests.guarded_loops import BUDGET_S, HULL, LIMITS, PAIRS, PLANTS, Loop, broken, gains, laws, readings, record

PLANT = PLANTS["regimes"]
ALL = ("static", "updown", "pi", "balanced", "feedforward", "tracker")


@pytest.mark.parametrize("fallback", [0.0, 300.0], ids=["no fallback", "fallback"])
@pytest.mark.parametrize(("law_name", "plant_name"), PAIRS)
def test_the_runtime_is_the_compiled_guard_and_law_whatever_comes(law_name: str, plant_name: str, fallback: float) -> None:
    plant = PLANTS[plant_name]
    law = laws(plant)[law_name]
    guard = guard_for(law, plant, HULL, BUDGET_S, fallback)
    run = Runtime(gains(law, plant, guard))
    numbers, packed, plant_packed = guard.pack(LIMITS, HULL), law.pack(), plant.pack()
    memory, counts, state = np.zeros(compiled.MEMORY), np.zeros(compiled.COUNTS), np.zeros(STATE_SIZE)
    guard_init(numbers, memory, counts, packed, state, plant_packed, BUDGET_S)
    rows, stamps = broken(readings(plant_name, 4000, 3), 4)
    for row, stamp in zip(rows, stamps, strict=True):
        expected = guard_step(numbers, memory, counts, packed, state, plant_packed, row, stamp, BUDGET_S)
        step_number, clock_s = (None if np.isnan(x) else x for x in stamp)
        assert run.update(*row.tolist(), step_number=step_number, clock_s=clock_s) == expected
        assert np.abs(np.array(run.state) - state[: len(run.state)]).max() <= 1e-12
    assert list(run.counts.values()) == counts[1:].astype(int).tolist()
    assert all(run.counts[kind] for kind in ("missing", "negative", "stale", "skipped", "clock", "double"))
    assert (run.counts["fallback"] > 0) == (law_name != "static")
    assert (run.counts["sums"] > 0) == law.predicts


def test_the_two_forms_have_the_same_numbers() -> None:
    assert {name: value for name, (value, _) in NUMBERS.items()} == dataclasses.asdict(Guard())
    assert compiled.KINDS == KINDS
    for name in ("MISSING", "NEGATIVE", "EMPTY", "SUMS", "STALE", "SKIPPED", "CLOCK", "DOUBLE", "NOT_APPLIED", "TWICE_LOW", "TWICE_HIGH"):
        assert getattr(compiled, name) == getattr(runtime_guard, name)
    assert compiled.FLIPS_TELL == runtime_guard.FLIPS


def test_the_guard_of_a_plant_believes_what_it_was_fitted_on_and_not_another_unit() -> None:
    guard = guard_for(PILaw(), PLANT, HULL, BUDGET_S)
    steps = [float(PLANT.step_time_s(Batch(n, 900.0 * n, p, p * p / 2, float(p > 0)))) for n in (1, 64) for p in (0, 1, 2000)]
    assert all(guard.least_s < y / 2 and y * 2 < guard.most_s for y in steps)
    assert all(not guard.least_s <= y * 1e3 <= guard.most_s for y in steps if y > 0.015), "milliseconds read as seconds"
    assert all(not guard.least_s <= y * 1e-3 <= guard.most_s for y in steps), "seconds read as milliseconds"
    assert guard_for(TrackerLaw(PLANT, late_rate=0.3), PLANT, HULL, BUDGET_S).late_steps == 30
    best = {"best_static": {"settings": {"token_budget": 640, "running_limit": 64}}}
    assert guard_of(record(PILaw(), tuning=best)).fallback_tokens == 640
    guard.check()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"window_steps": 51.0}, "window_steps must be in [1, 50], got 51"),
        ({"late_steps": 51.0}, "late_steps must be in [1, 50], got 51"),
        ({"late_steps": 0.0}, "late_steps must be in [1, 50], got 0"),
        ({"least_s": 61.0}, "least_s must be in [0, most_s), got 61 against 60"),
    ],
)
def test_numbers_that_no_watchdog_works_with_are_refused(changed: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        dataclasses.replace(Guard(), **changed).check()
    if "least_s" not in changed:
        with pytest.raises(ValueError, match=r"must be a number in \[1, 50\]"):
            Runtime(gains(PILaw(), PLANT, dataclasses.replace(Guard(), **changed)))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("outage", [None, math.nan, 0.0, {}, ""], ids=repr)
def test_case_e14_sensor_outage_read_as_zero(name: str, outage: Any, caplog: pytest.LogCaptureFixture) -> None:
    """30 s without a reading, also one that comes as zeros: the command is held and not raised, and goes on without a bump."""
    law = laws(PLANT)[name]
    loop, witness = Loop(law), Loop(law)
    for _ in range(200):
        assert loop.step() == witness.step()
    loop.execute()
    witness.execute()
    held, before = loop.budget, loop.frozen()
    with caplog.at_level(logging.INFO, "headway_runtime"):
        for _ in range(30 * 50):
            budget = loop.run.update(**dict.fromkeys(READINGS, outage))
            assert budget <= held, "an outage raised the cap"
            assert budget == held, "the last safe command is held"
            assert loop.frozen() == before
        assert loop.run.faults == 1500
        assert loop.run.counts["empty" if outage == 0.0 else "missing"] == 1500
        assert loop.ask() == witness.ask()
        assert [loop.step() for _ in range(50)] == [witness.step() for _ in range(50)]
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"]


def test_a_declared_fallback_takes_over_from_a_command_held_for_long() -> None:
    loop = Loop(PILaw(slope_s_per_token=2e-5), dataclasses.replace(Guard(), fallback_tokens=100.0))
    for _ in range(200):
        loop.step()
    held, budgets = loop.budget, [loop.step(step_time_s=None) for _ in range(60)]
    assert held > 100
    assert budgets == [held] * 50 + [100] * 10
    loop.execute()
    assert loop.ask() > 100, "the first good reading ends it"


def recovered_in(asked: np.ndarray, within: float = 0.1) -> int:
    """Steps until the prefill budget stays within 10 % of where it settles."""
    away = np.abs(asked - asked[-1]) > within * asked[-1]
    return int(np.flatnonzero(away)[-1]) + 1 if away.any() else 0


def test_case_e42_wind_up() -> None:
    """Decodes alone are over the budget for 500 steps, then their number halves."""
    n = np.concatenate([np.full(500, 60.0), np.full(1500, 30.0)])
    plant = RegimePlant((2e-3, 4e-4, 0.0, 0.0, 0.0, 0.0), (2e-3, 4e-4, 0.0, 2e-5, 0.0, 0.0))
    load = Disturbance(n, 1000.0 * n, np.full(2000, 1e5), np.ones(2000))
    law = PILaw(margin=0.1, slope_s_per_token=2e-5)
    asked = respond(law, plant, load, BUDGET_S).asked_tokens
    assert (asked[400:500] == 0).all(), "the target is out of reach"
    assert asked[-1] > 200
    assert recovered_in(asked[500:]) <= 20
    wound_up = respond(dataclasses.replace(law, kt=0.0), plant, load, BUDGET_S).asked_tokens
    assert recovered_in(wound_up[500:]) > 200, "without back-calculation the integral has 500 steps to make good"
    for shipped in (law, TrackerLaw(plant), laws(plant)["feedforward"]):
        loop = Loop(shipped, plant=plant)
        found = []
        for requests in n[:1000]:
            loop.n = float(requests)
            found.append(loop.step() - requests)
        # without noise a tracker's quantile sinks for some hundred steps, which has nothing to do with winding up
        assert recovered_in(np.array(found[500:]), within=0.2) <= 20
        assert loop.run.counts[POWERLESS] > 400
        assert loop.run.counts["fallback"] == 0, "no fallback helps where the budget has no authority"


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"step_time_s": math.nan}, "missing"),
        ({"binding": "?"}, "missing"),
        ({"decode_requests": math.inf}, "missing"),
        ({"step_time_s": -0.01}, "negative"),
        ({"prefill_tokens": -1}, "negative"),
        ({"step_time_s": 0.0}, "empty"),
        ({"step_time_s": 25.0}, "clock"),
        ({"step_time_s": 1e-6}, "clock"),
    ],
)
def test_a_bad_reading_holds_the_command_and_freezes_the_law(name: str, changed: dict[str, Any], kind: str) -> None:
    loop = Loop(law := laws(PLANT)[name], guard_for(law, PLANT, HULL, BUDGET_S))
    for _ in range(50):
        loop.step()
    loop.execute()
    held, before = loop.budget, loop.frozen()
    assert loop.ask(**changed) <= held
    assert loop.frozen() == before
    assert loop.run.counts[kind] == loop.run.faults == 1
    assert loop.run.last_fault.startswith(f"{kind}: step_time_s=")


@pytest.mark.parametrize("name", ["feedforward", "tracker"])
@pytest.mark.parametrize("lacking", ["decode_kv_tokens", "prefill_pairs", "prefill_requests", "ready_kv_tokens"])
def test_a_law_that_predicts_says_so_where_it_gets_no_sums(name: str, lacking: str) -> None:
    loop = Loop(laws(PLANT)[name])
    for _ in range(20):
        loop.step()
    loop.execute()
    held, before = loop.budget, loop.frozen()
    for k in range(5):
        assert loop.ask(**{lacking: 0.0}) <= held
        assert loop.run.counts["sums"] == k + 1
    assert loop.frozen() == before
    bare = Runtime(gains(laws(PLANT)[name]))
    assert bare.update(None, 0, 0, False, 3) <= LIMITS.max_tokens
    for _ in range(5):
        bare.update(0.02, 100, 3, True, 3)
    assert bare.counts["sums"] == 5
    assert bare.counts["missing"] == 1, "without the sums of the next step there is no first command to give either"


@pytest.mark.parametrize("name", ["updown", "pi", "balanced", "feedforward", "tracker"])
def test_a_law_without_sums_needs_none(name: str) -> None:
    law = laws(PLANT)[name]
    run = Runtime(gains(law))
    for _ in range(5):
        run.update(0.02, 100, 3, True, 3)
    assert (run.faults == 0) == (not law.predicts)


def test_stamps_tell_readings_that_come_twice_or_not_at_all() -> None:
    loop = Loop(PILaw(slope_s_per_token=2e-5), step_number=100, clock_s=7.0)
    for _ in range(20):
        loop.step()
    for kind, stamps in (
        ("stale", {"step_number": 120}),
        ("stale", {"clock_s": 27.0}),
        ("skipped", {"step_number": 125}),
        ("clock", {"step_number": 3}),
        ("skipped", {"step_number": 125}),
        ("clock", {"clock_s": 1.0, "step_number": 126}),
    ):
        before, counts = loop.frozen(), loop.run.counts
        loop.ask(**{"step_number": None, "clock_s": None, **stamps})
        assert loop.frozen() == before
        assert {k: v - counts[k] for k, v in loop.run.counts.items() if v != counts[k]} == {kind: 1}, stamps
    faults = loop.run.faults
    loop.run.update(0.02, 10, 5, True, 5, step_number=127, clock_s=1.5)
    loop.run.update(0.02, 10, 5, True, 5, step_number="128", clock_s=object())
    assert loop.run.faults == faults, "a stamp that cannot be read tells nothing"


def test_without_stamps_the_same_reading_twice_is_stale_if_its_cache_did_not_grow() -> None:
    loop = Loop(TrackerLaw(PLANT))
    for _ in range(5):
        loop.step()
    loop.execute()
    loop.ask()
    state = list(loop.run.state)
    loop.ask()
    assert loop.run.counts["stale"] == 1
    assert loop.run.state == state
    run = Runtime(gains(PILaw(slope_s_per_token=2e-5)))
    for _ in range(5):
        run.update(0.012, 100, 3, True, 3)
    assert run.faults == 0, "a law that gets no sums cannot tell a repeated reading from a regular engine"


def test_two_loops_in_one_reading_are_found_and_a_slow_engine_is_not_taken_for_it() -> None:
    loop = Loop(law := TrackerLaw(PLANT), guard_for(law, PLANT, HULL, BUDGET_S))
    for k in range(40):
        loop.step(slow=2.0 if k % 2 else 1.0)
    assert 16 <= loop.run.counts["double"] <= 18
    slow = Loop(law)
    for _ in range(40):
        slow.step(slow=2.0)
    assert slow.run.counts["double"] == 0
    changed = Loop(law)
    for k in range(200):
        changed.step(slow=2.0 if k > 100 else 1.0, tokens=0.0 if k % 2 else 100.0)
    assert changed.run.counts["double"] == 0, "an engine that turns slow while decode-only steps and others take turns"
    rng, noisy = np.random.default_rng(0), Loop(law)
    for _ in range(3000):
        noisy.step(slow=float(np.exp(rng.normal(0, 0.12)) * (2.0 if rng.random() < 0.03 else 1.0)))
    assert noisy.run.counts["double"] <= 3


def test_an_engine_that_does_not_obey_teaches_nothing_and_is_flagged() -> None:
    loop = Loop(PILaw(slope_s_per_token=2e-5))
    for _ in range(50):
        loop.step()
    held = loop.budget
    for k in range(30):
        before = loop.frozen()
        assert loop.step(tokens=held + 500.0) <= held
        assert k < 7 or loop.frozen() == before
    assert loop.run.counts["not_applied"] == 23
    loop.step()
    assert loop.run.counts["not_applied"] == 23, "one step within the command ends it"
