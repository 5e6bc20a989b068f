"""What a validation says of its plant: pairs of every step, the alarm with its step and size, and what a corrected plant would do."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from headway.cli.words import drift_lines
from headway.controllers.drift import DriftMonitor
from headway.controllers.paired import pair
from headway.controllers.policy import Policy
from headway.controllers.simulator import LOG_COLUMNS, Candidate
from headway.controllers.static import StaticLaw
from headway.experiments.drift_monitor import monitor_of
from headway.experiments.predictions import paired_predictions
from headway.experiments.validate import validate_on_plant
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.plant import Batch
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.specs import synthetic
from tests.synthetic_steps import TRUTH, composed, noise

LIMITS = Limits(kv_tokens=100_000, max_seqs=64)
HULL = Hull(64, 4e5, 2000.0, 1e8)
STEPS = 4000


def identified(plant: RegimePlant = TRUTH, hull: Hull = HULL) -> IdentifiedPlant:
    residual = noise(2000, 0.04, 9)
    return IdentifiedPlant(plant, Noise(residual, residual), hull, {"decode": 0.1, "mixed": 0.1}, {}, LIMITS, {})


def logged(seed: int, slower: float = 1.0, since: int = 0) -> np.ndarray:
    """A log of composed steps, which take `slower` times as long from one of them on."""
    batch, log = composed(STEPS, seed), np.zeros((STEPS, len(LOG_COLUMNS)))
    log[:, 1] = TRUTH.step_time_s(batch) * np.exp(noise(STEPS, 0.04, seed)) * np.where(np.arange(STEPS) >= since, slower, 1.0)
    log[:, 2:7] = np.column_stack(batch)
    return log


def test_an_engine_as_the_plant_says_raises_no_alarm_and_is_off_by_its_noise() -> None:
    found = paired_predictions([logged(1), logged(2)], identified())
    assert found is not None
    assert (found.runs, found.steps, found.outside, found.alarms) == (2, 2 * STEPS, 0, [])
    assert abs(found.bias) < 0.005
    for regime in ("decode", "mixed"):
        assert found.error[regime] == pytest.approx(0.04 * np.sqrt(2 / np.pi), rel=0.1)  # mean of a folded normal
        assert found.corrected_error[regime] == pytest.approx(found.error[regime], rel=0.1)
    assert found.sentences()[0] == "no drift alarm in 8,000 steps of 2 runs: the engine behaves as its plant says"


@pytest.mark.parametrize("seed", range(4))
def test_a_slowdown_of_12_percent_is_named_with_run_step_and_size(seed: int) -> None:
    found = paired_predictions([logged(seed), logged(seed + 10, 1.12, since=1500)], identified())
    assert found is not None
    assert [(a.run, a.lasting) for a in found.alarms] == [(2, True)]
    alarm = found.alarms[0]
    assert 1500 < alarm.step <= 1600
    assert alarm.steps == STEPS - alarm.step + 1
    assert alarm.size == pytest.approx(0.12, abs=0.01)
    assert all(found.corrected_error[regime] < found.error[regime] for regime in ("decode", "mixed"))
    said = found.sentences()[0]
    assert said.startswith(
        f"drift alarm at step {alarm.step:,} of run 2: steps took {100 * alarm.size:.0f} % longer than the plant says, for "
    )
    assert "to the end" in said


def test_a_faster_engine_many_alarms_and_steps_outside_the_hull_are_said() -> None:
    logs = [logged(seed, 0.8) for seed in range(5)]
    found = paired_predictions(logs, identified(hull=Hull(64, 4e5, 1000.0, 1e8)))
    assert found is not None
    assert len(found.alarms) == 5
    assert all(a.size == pytest.approx(-0.2, abs=0.01) for a in found.alarms)
    assert "20 % less than the plant says" in found.sentences()[0]
    assert "; 2 more (" in found.sentences()[0]
    assert found.outside == sum(int((log[:, 4] > 1000).sum()) for log in logs) > 0
    assert found.sentences()[1].startswith("steps took 20.")


def test_nothing_recorded_says_nothing() -> None:
    empty = np.zeros((0, len(LOG_COLUMNS)))
    assert paired_predictions([], identified()) is paired_predictions([empty], identified()) is None
    assert drift_lines(None) == []
    found = paired_predictions([empty, logged(3)[:, :]], identified())
    assert found is not None
    assert found.runs == 1


def test_a_regime_that_never_ran_has_no_error() -> None:
    log = logged(4)
    found = paired_predictions([log[log[:, 4] == 0]], identified())
    assert found is not None
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["error"]["mixed"] is data["corrected_error"]["mixed"] is None
    assert "mixed" not in data["said"][1]


def test_a_validation_on_a_slower_plant_raises_the_alarm_and_writes_it_down() -> None:
    slow = RegimePlant(tuple(1.12 * x for x in TRUTH.decode), tuple(1.12 * x for x in TRUTH.mixed))
    policy = Policy(order="fcfs", triage="none", running_limit=64.0)
    contenders = (Candidate(StaticLaw(512.0), policy), Candidate(StaticLaw(1024.0), policy))
    own, load = identified(), synthetic("poisson:rate=10/s,prompt=400,output=60")
    found = {}
    for name, truth in (("own", own), ("slow", identified(slow))):
        result = validate_on_plant(contenders, own, truth, load, (Target(0.5, 0.02),), LIMITS, requests=100, runs=2)
        found[name] = json.loads(json.dumps(result.to_json()))["drift"]
    assert found["own"]["alarms"] == []
    assert found["slow"]["alarms"][0]["step"] <= 100
    assert found["slow"]["bias"] == pytest.approx(0.12, abs=0.01)
    assert drift_lines(found["slow"])[0].startswith("plant      drift alarm at step ")


def wandering(seed: int, steps: int) -> np.ndarray:
    """Residuals of an engine on a busy processor: 30 %, more often up than down, most of it slow."""
    rng = np.random.default_rng([seed, 0xA1])
    slow = np.zeros(steps)
    for k in range(1, steps):
        slow[k] = 0.9 * slow[k - 1] + 0.1 * rng.standard_normal()
    return slow + 0.2 * (rng.exponential(1.0, steps) - 1.0)


def noisy() -> IdentifiedPlant:
    return dataclasses.replace(identified(), noise=Noise(wandering(1, 3000), wandering(2, 1500)))


def drawn(plant: IdentifiedPlant, seed: int, slower: float = 1.0, since: int = 0) -> np.ndarray:
    """A log of an engine that is its plant, with the noise that the simulator draws."""
    log = logged(seed)
    decode, mixed = plant.noise.draw(seed, STEPS)
    own = TRUTH.step_time_s(Batch(*(log[:, k] for k in range(2, 7))))
    log[:, 1] = own * np.where(log[:, 4] > 0, mixed, decode) * np.where(np.arange(STEPS) >= since, slower, 1.0)
    return log


def test_a_plant_whose_noise_is_wide_is_in_no_alarm_of_its_own() -> None:
    plant = noisy()
    logs = [drawn(plant, seed) for seed in range(100, 130)]
    usual = [pair(plant.plant, Batch(*(log[:, k] for k in range(2, 7))), log[:, 1]).alarms for log in logs]
    assert sum(map(len, usual)) >= 150, "a monitor that believes in 5 % is, 50 times in 24,000 steps"
    found = paired_predictions(logs, plant)
    assert found is not None
    assert len(found.alarms) <= 4, "120,000 steps, at .3 in 24,000: 1.5 are due"
    quiet = paired_predictions(logs[1:4], plant)
    assert quiet is not None
    said = quiet.sentences()[0]
    assert said.startswith("no drift alarm in 12,000 steps of 3 runs; the noise of this plant hides a lasting change of up to ")
    assert 0.3 < found.hidden < 0.8
    worse = paired_predictions([drawn(plant, 7, 3.0, since=1500)], plant)
    assert worse is not None
    assert [a.step > 1500 for a in worse.alarms][:1] == [True], "what the noise cannot hide is seen"


def test_a_monitor_is_as_patient_as_the_noise_of_its_plant() -> None:
    assert monitor_of(identified()) == DriftMonitor()
    assert monitor_of(dataclasses.replace(identified(), noise=Noise.none())) == DriftMonitor()
    wide = monitor_of(noisy())
    known = np.concatenate([noisy().noise.decode, noisy().noise.mixed])
    assert wide.spread == pytest.approx(1.25 * np.abs(known).mean())
    wide.check()
    residual = noise(3000, 0.02, 5)
    residual[1000:1030] -= 0.18  # one stretch of the trace ran faster: no spread, but the fit's own
    odd = monitor_of(dataclasses.replace(identified(), noise=Noise(residual, residual)))
    assert odd.spread == DriftMonitor().spread
    assert odd.limit > DriftMonitor().limit


@pytest.mark.parametrize("seed", range(4))
def test_an_engine_that_comes_back_is_no_alarm_the_other_way(seed: int) -> None:
    log = logged(seed)
    log[1000:2000, 1] *= 0.7
    plain = pair(TRUTH, Batch(*(log[:, k] for k in range(2, 7))), log[:, 1]).alarms
    assert {direction for _, _, direction in plain} == {-1, 1}, "the CUSUM alone takes the end for a slowdown"
    found = paired_predictions([log], identified())
    assert found is not None
    assert len(found.alarms) == 1
    assert found.alarms[0].size == pytest.approx(-0.3, abs=0.01)
    assert not found.alarms[0].lasting
    said = found.sentences()[0]
    assert "steps took 30 % less than the plant says" in said
    assert f"({found.alarms[0].steps:,} of 4,000 steps of 1 run)" in said
    assert "each ended within its run" in said
    assert " 0 % " not in said


def test_no_difference_is_not_said_as_one() -> None:
    found = paired_predictions([logged(1)], identified())
    assert found is not None
    assert dataclasses.replace(found, bias=-2e-4).sentences()[1].startswith("steps took as long as predicted in the median")
    assert dataclasses.replace(found, bias=-6e-4).sentences()[1].startswith("steps took 0.1 % less than predicted in the median")
