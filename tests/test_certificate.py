"""Verdicts with the number that decides: enough margin, no cycle, the right sign, and a command that holds still under noise."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from headway.cli import main
from headway.controllers import BalancedLaw, FeedforwardLaw, PILaw, StaticLaw, TrackerLaw, UpDownLaw
from headway.controllers.controller import Controller, Gain
from headway.controllers.policy import Policy
from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import LOG_COLUMNS, Candidate, Draw, simulate
from headway.controllers.steploop import Disturbance, respond
from headway.experiments.certificate import certify
from headway.experiments.loops import integrator_limit
from headway.experiments.points import Place, operating_points, places, sectors, slope_ends, with_gain
from headway.experiments.signs import Sign, loop_sign
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Measurement, Target
from headway.models.workload import Workload
from tests.test_quantum import staircase

BUDGET_S = 0.025
PLANT = RegimePlant((0.006, 6e-5, 5e-9, 0.0, 0.0, 0.0), (0.007, 1e-4, 0.0, 2e-5, 5e-10, 5e-4))
HULL = Hull(decode_requests=32.0, decode_kv_tokens=200_000.0, prefill_tokens=8192.0, prefill_pairs=9e7)
LIMITS = Limits(kv_tokens=200_000)
TUNED = {
    "pi": PILaw(slope_s_per_token=2.7e-5),
    "feedforward": FeedforwardLaw(PLANT),
    "tracker": TrackerLaw(PLANT),
}
tuned = pytest.mark.parametrize("law", TUNED.values(), ids=list(TUNED))


def certificate(law: Controller, **options: Any):
    return certify(law, PLANT, HULL, LIMITS, BUDGET_S, **options)


@tuned
def test_the_default_gains_are_certified_at_both_delays(law: Controller) -> None:
    found = certificate(law)
    assert found.verdict == "certified", found.reason
    assert set(found.by_delay) == {1, 2}
    for row in found.by_delay.values():
        assert row["numbers"]["gain_margin_db"] >= 6
        assert row["numbers"]["phase_margin_deg"] >= 45
        assert row["numbers"]["cycle_tokens"] <= row["numbers"]["cycle_allowed_tokens"]
        assert row["numbers"]["loop_sign"] == -1
    json.dumps(found.to_json(), allow_nan=False)
    # the number that decides is in the sentence
    numbers = found.numbers
    told = (f"{numbers['gain_margin_db']:.1f} dB", f"{numbers['phase_margin_deg']:.1f} degrees", f"{numbers['cycle_tokens']:,.0f} tokens")
    assert any(text in found.reason for text in told)


@tuned
@pytest.mark.parametrize("delay", [1, 2])
def test_case_e13_limit_cycle(law: Controller, delay: int) -> None:
    """Constant load, noise of +-10 %, 2,000 steps, ten draws: with the quantum that the certificate calls for the command
    stays within one quantum and moves at most once in 50 steps."""
    quantum = 16.0 * math.ceil(certificate(law, delay=delay).numbers["still_quantum_tokens"] / 16)
    assert quantum <= 128
    quiet = dataclasses.replace(law, quantum_tokens=quantum)  # pyright: ignore[reportArgumentType]
    assert certificate(quiet, delay=delay).verdict == "certified"
    for seed in range(10):
        factor = 1 + np.random.default_rng(seed).uniform(-0.1, 0.1, 2300)
        load = Disturbance(np.full(2300, 16.0), np.full(2300, 1e5), np.full(2300, 1e6), factor)
        command = respond(quiet, PLANT, load, BUDGET_S, delay=delay).asked_tokens[300:]
        assert np.ptp(command) <= quantum, seed
        assert np.count_nonzero(np.diff(command)) <= 2000 / 50, seed
        loose = respond(law, PLANT, load, BUDGET_S, delay=delay).asked_tokens[300:]
        assert np.count_nonzero(np.diff(loose)) > 1000, "without a quantum it follows the noise"


def test_case_e13_limit_cycle_at_ten_times_the_gain() -> None:
    """Feedback alone is declared unstable; laws that predict are refused by the first number that they miss."""
    found = certificate(dataclasses.replace(TUNED["pi"], kp=1.0, ki=1.5))  # pyright: ignore[reportArgumentType]
    assert found.verdict == "refused"
    assert found.reason.startswith("unstable: gain margin -")
    assert found.numbers["cycle_tokens"] > 1000
    quick = certificate(TrackerLaw(PLANT, kb=0.5, eta=0.1))
    assert quick.verdict == "refused"
    assert "limit cycle of" in quick.reason
    wide = {"mixed.per_prefill_token": (1.7e-5, 2.4e-5)}
    observer = certificate(FeedforwardLaw(PLANT, ki=1.0), interval=wide)
    assert observer.verdict == "refused"
    assert "gain margin" in observer.reason


def test_a_loop_that_rings_is_refused_for_its_phase() -> None:
    """A quantile as quick as the bias, on a plant half as steep as the law's own: gain enough, and no phase."""
    steeper = RegimePlant(PLANT.decode, (*PLANT.mixed[:3], 2 * PLANT.mixed[3], 2 * PLANT.mixed[4], PLANT.mixed[5]))
    law = TrackerLaw(steeper, kb=0.8, eta=0.5, start_mixed=0.11, late_rate=0.3)
    found = certify(law, PLANT, Hull(32.0, 200_000.0, 256.0, 256.0**2 / 2), LIMITS, BUDGET_S, delay=1)
    assert found.verdict == "refused"
    assert found.numbers["gain_margin_db"] > 6
    assert found.numbers["phase_margin_deg"] < 45
    assert found.reason.startswith(f"phase margin {found.numbers['phase_margin_deg']:.1f} degrees at ")


def test_the_interval_of_the_slope_counts() -> None:
    law = dataclasses.replace(TUNED["pi"], kp=0.3, ki=0.25)  # pyright: ignore[reportArgumentType]
    assert certificate(law).verdict == "certified"
    unsure = certificate(law, interval={"mixed.per_prefill_token": (1e-5, 3e-5), "mixed.floor": (0.001, 0.02)})
    assert unsure.verdict == "refused"
    points = operating_points(PLANT, HULL, LIMITS, 8192.0)
    low, high = slope_ends(PLANT, points[1], {"mixed.per_prefill_token": (1e-5, 3e-5), "mixed.per_prefill_pair": (4e-10, 9e-10)})
    reach = points[1].context_tokens + points[1].prefill_tokens
    assert high - points[1].slope_s_per_token == pytest.approx(math.hypot(1e-5, 4e-10 * reach), rel=1e-6)
    assert points[1].slope_s_per_token - low == pytest.approx(math.hypot(1e-5, 1e-10 * reach), rel=1e-6)


def test_the_longer_delay_decides() -> None:
    gain = 0.55 * integrator_limit(2)
    law = PILaw(kp=0.0, ki=gain, slope_s_per_token=2.7e-5)
    found = certificate(law)
    assert found.by_delay[1]["verdict"] == "certified"
    assert found.by_delay[2]["verdict"] == found.verdict == "refused"
    assert found.numbers["delay_steps"] == 2
    assert "with a delay of 2 steps" in found.reason
    with pytest.raises(ValueError, match="delay must be at least 1 step, got 0"):
        certificate(law, delay=0)


@pytest.mark.parametrize("law", [StaticLaw(512.0), UpDownLaw(), UpDownLaw(margin=0.0), BalancedLaw()])
def test_laws_without_a_linear_loop_are_measured(law: Controller) -> None:
    found = certificate(law)
    assert found.verdict == "measured"
    for row in found.by_delay.values():
        assert 0 <= row["numbers"]["noise_late_rate"] <= 1
    if isinstance(law, BalancedLaw):
        assert found.numbers["balance_late_rate"] == pytest.approx(0.01, abs=0.002)
        assert found.numbers["noise_late_rate"] == pytest.approx(0.01, abs=0.01)


def test_the_residuals_of_the_plant_are_its_noise() -> None:
    rows = np.random.default_rng(1).normal(0, 0.2, 3000)
    calm, wild = (certificate(UpDownLaw(), noise=noise).numbers["noise_late_rate"] for noise in (None, Noise(np.zeros(0), rows)))
    assert wild > calm + 0.01
    assert "of the plant's own residuals" in certificate(UpDownLaw(), noise=Noise(np.zeros(0), rows)).reason


# --- Jumps --------------------------------------------------------------------------------------------------------------

STEPPED_HULL = Hull(64.0, 100_000.0, 1024.0, 1e6)


def test_the_slopes_on_each_side_of_a_jump_are_a_sector() -> None:
    below, above = sectors(staircase(), Place(32.0, 0.0), 1024.0)
    assert (below.first_tokens, below.last_tokens, above.first_tokens) == (1.0, 224.0, 225.0)
    assert below.jump_s == pytest.approx(3 * (8e-3 + 2e-5 * 256) + 8e-5 - 2e-5, abs=1e-4)
    assert 0 < below.low_s_per_token <= 2e-5 <= below.high_s_per_token < 6e-5
    assert (above.low_s_per_token, above.high_s_per_token) == pytest.approx((8e-5, 8e-5))
    assert above.jump_s == 0
    assert len(sectors(PLANT, Place(32.0, 0.0), 1024.0)) == 1


def test_a_setpoint_inside_a_jump_is_not_for_feedback_alone() -> None:
    law, plant = PILaw(slope_s_per_token=2.8e-5), staircase()
    found = certify(law, plant, STEPPED_HULL, LIMITS, BUDGET_S)
    assert found.verdict == "refused"
    assert "inside a jump of the plant" in found.reason
    assert found.numbers["cycle_tokens"] > 100
    assert certify(law, plant, STEPPED_HULL, LIMITS, 0.011).verdict == "certified", "below the jump it is a loop like any other"
    for other in (FeedforwardLaw(plant), TrackerLaw(plant)):
        fenced = certify(other, plant, STEPPED_HULL, LIMITS, BUDGET_S)
        assert fenced.verdict == "certified", fenced.reason
        assert fenced.numbers["cycle_tokens"] == 0


def test_a_factor_on_the_gain_is_one_on_the_slope_and_on_nothing_else() -> None:
    for plant in (PLANT, staircase()):
        points = operating_points(plant, STEPPED_HULL, LIMITS, 1024.0)
        steeper = with_gain(plant, 1.2, points)
        again = operating_points(steeper, STEPPED_HULL, LIMITS, 1024.0)
        assert [p.slope_s_per_token for p in again] == pytest.approx([1.2 * p.slope_s_per_token for p in points])
        assert steeper.coefficients()["mixed.floor"] == plant.coefficients()["mixed.floor"]


def test_no_room_anywhere_is_said() -> None:
    slow = RegimePlant(PLANT.decode, (0.03, *PLANT.mixed[1:]))
    found = certify(PILaw(slope_s_per_token=2.7e-5), slow, HULL, LIMITS, BUDGET_S)
    assert found.verdict == "refused"
    assert found.reason.startswith("no place of the hull has room for one prompt token")


# --- The sign of the loop -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Backwards(Controller):
    """Asks for more the longer the step took."""

    law: ClassVar[str] = "backwards"
    code: ClassVar[int] = 0

    def init(self) -> Any:
        return np.zeros(1)

    def update(self, state: Any, signals: Measurement, budget_s: float) -> tuple[Any, Any]:
        return state, 256.0 * signals.step_time_s / budget_s + signals.ready_requests

    def gains(self) -> dict[str, Gain]:
        return {}

    def resume(self, state: Any, prefill_tokens: Any) -> Any:
        return state


@pytest.mark.parametrize("law", [*TUNED.values(), UpDownLaw(), BalancedLaw(), StaticLaw(512.0)])
def test_every_law_answers_a_late_step_with_less(law: Controller) -> None:
    sign = loop_sign(law, PLANT, places(HULL)[0], BUDGET_S, 256.0)
    assert sign.right
    assert sign.plant > 0
    assert sign.law < 0 or isinstance(law, StaticLaw)


def test_case_e44_a_loop_that_makes_it_worse_is_refused() -> None:
    found = certificate(Backwards())
    assert found.verdict == "refused"
    assert found.reason.startswith("wrong sign: after a late step it asks for +")


QUEUED = Workload(np.linspace(0.0, 1.0, 80), np.full(80, 200), np.full(80, 60), np.zeros(80, int))
"""80 requests in a second, more than can run at once: ITL is fine, TTFT is breached by the queue."""
PROMISE = (Target(ttft_s=0.5, itl_s=BUDGET_S),)


def served(law: Controller, limit: float):
    known = IdentifiedPlant(PLANT, Noise.none(), HULL, {}, {}, LIMITS, {})
    candidate = Candidate(law, Policy(order="fcfs", triage="none", running_limit=limit, chunk_tokens=8192.0))
    return simulate(known, candidate, Draw(QUEUED, np.ones(1), np.ones(1)), PROMISE, LIMITS, record_steps=20_000)


@tuned
def test_case_e44_queue_wait_does_not_cut_concurrency(law: Controller) -> None:
    """TTFT is breached by waiting alone: the law keeps the budget that the step time allows, and every seat is taken."""
    run = served(law, 16.0)
    log = dict(zip(LOG_COLUMNS, run.log.T, strict=True))
    assert np.mean(run.ttft_s > PROMISE[0].ttft_s) > 0.5
    assert np.mean(log["step_time_s"] > BUDGET_S) < 0.02
    queued = log["waiting"] > 0
    assert queued.sum() > 100
    assert (log["running"][queued] >= 15).mean() > 0.9, "nobody is held back while somebody waits"
    prefill = log["token_budget"] - log["decode_requests"]
    most, few = prefill[log["waiting"] > 40], prefill[(log["waiting"] > 0) & (log["waiting"] < 20)]
    assert most.mean() > 0.8 * few.mean(), "a longer queue is no reason for a smaller budget"


def test_case_e44_cutting_concurrency_for_the_wait_lengthens_it() -> None:
    """The mirror: latency as a whole, waits included, fed back to the running limit. Its sign is wrong, and it shows."""
    law, limit, waits, limits = TUNED["pi"], 16.0, [], []
    for _ in range(6):
        run = served(law, limit)
        waits.append(float(np.mean(run.ttft_s)))
        limits.append(limit)
        limit = max(1.0, math.floor(limit * 0.85)) if waits[-1] > PROMISE[0].ttft_s else limit + 1
    assert limits == sorted(limits, reverse=True)
    assert waits == sorted(waits), "each cut lengthens the queue that it answers"
    assert waits[-1] > 1.5 * waits[0]
    sign = Sign(plant=(waits[-1] - waits[0]) / (limits[-1] - limits[0]), law=(limits[-1] - limits[0]) / (waits[-1] - waits[0]))
    assert not sign.right


# --- The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A plant and a controller as files."""
    known = IdentifiedPlant(
        PLANT, Noise.none(), HULL, {"decode": None, "mixed": None}, {"mixed.per_prefill_token": (1.9e-5, 2.1e-5)}, LIMITS, {}
    )
    plant, controller = tmp_path / "plant.json", tmp_path / "controller.json"
    plant.write_text(json.dumps(known.to_json()))
    write(controller, TUNED["pi"])
    return controller, plant


def write(path: Path, law: Controller) -> None:
    record = ControllerRecord(Candidate(law, Policy()), PROMISE, LIMITS, PLANT, HULL, {}, {"spec": "x", "rate_rps": 1.0}, {})
    path.write_text(json.dumps(record.to_json()))


def test_analyse_names_the_number_that_decides(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    controller, plant = map(str, files)
    assert main(["analyse", controller, plant, "--check"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("loop       certified, law pi, for a delay of 1 and of 2 steps\ndecides    ")
    assert "it must be" in out.splitlines()[1]
    assert "would hold it still" in out
    for law in (dataclasses.replace(TUNED["pi"], kp=1.0, ki=1.5), UpDownLaw(), TUNED["tracker"]):  # pyright: ignore[reportArgumentType]
        write(files[0], law)
        refused = isinstance(law, PILaw)
        assert main(["analyse", controller, plant, "--check", "--delay", "1"]) == (1 if refused else 0)
        assert ("decides    unstable: " in capsys.readouterr().out) == refused
        assert main(["analyse", controller, plant, "--json", "--delay", "2"]) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["verdict"] == {"pi": "refused", "updown": "measured", "tracker": "certified"}[law.law]
        assert list(data["certificate"]["by_delay"]) == ["2"]
        assert {"operating_points", "gain_margin_db", "phase_margin_deg", "delay_margin_steps", "certified", "reasons"} <= set(data)
