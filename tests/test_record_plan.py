"""Planned recordings: what is proposed, what it costs, what it tells when it is run, and the command."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from headway.cli import main
from headway.engines.live import record_stage
from headway.experiments.excite import record_design, record_trace, visits
from headway.experiments.plan import settings_of
from headway.experiments.planning import assumed_plant, plan_recording
from headway.identification.design.sample_size import steps_for_margin
from headway.identification.design.settings import Setting, stay_steps
from headway.identification.fit import fit
from headway.identification.structures.robust import fit_law
from headway.identification.trace import Trace
from headway.models.engine import Engine, PlantEngine, Step, batch_of
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.plant import Batch
from headway.models.regimes import AffinePlant, RegimePlant, terms
from headway.models.signals import Limits
from tests.synthetic_steps import noise

TRUTH = RegimePlant((2e-3, 2e-4, 1.2e-7, 0.0, 0.0, 0.0), (3e-3, 2e-4, 1.2e-7, 3e-5, 1e-8, 1e-4))
LIMITS = Limits(kv_tokens=65536, max_seqs=64, max_len=4096, max_tokens=1024)
SMALL = Limits(kv_tokens=16384, max_seqs=16, max_len=2048, max_tokens=256)


def known(plant: RegimePlant = TRUTH, held: Noise | None = None, limits: Limits = LIMITS) -> IdentifiedPlant:
    """A plant as identification hands it on, without intervals."""
    return IdentifiedPlant(plant, held or Noise.none(), Hull(64, 65536, 1024, 4e6), {"decode": None, "mixed": None}, {}, limits, {})


def test_case_a_trace_whose_inputs_stood_still_gets_a_plan_that_moves_them() -> None:
    """Budget and running limit were held; the next recording must move what they hid."""
    engine = PlantEngine(TRUTH, LIMITS, np.exp(noise(4096, 0.05, 1)), np.exp(noise(4096, 0.05, 2)))
    columns = record_design(engine, [(Setting(1024, 64, 181, 45), 1500)], seed=3)
    trace = Trace.of(pl.DataFrame(columns))
    plant = fit(trace, limits=LIMITS, structure="regimes")
    plan = plan_recording(plant, LIMITS, trace=trace, steps=1500)
    told = {t.name: t for t in plan.numbers}
    for name, t in told.items():
        assert t.after is not None, name
        assert t.staircase is not None, name
        assert t.now is None or t.after < t.now, name
    worst = max(told.values(), key=lambda t: np.inf if t.now is None else t.now / TRUTH.coefficients()[t.name].value)
    assert worst.now is None or worst.after < 0.3 * worst.now  # pyright: ignore[reportOptionalOperand]
    assert any(s.setting.running_limit < 32 for s in plan.settings)
    assert 0 < plan.efficiency["staircase"] < 0.8
    assert 0 < plan.efficiency["grid"] < 1
    # knowing the trace changes the plan: what it told is not asked again
    bare = plan_recording(dataclasses.replace(plant, interval={}), LIMITS, steps=1500)
    assert any("as if its numbers were independent" in text for text in bare.said)
    assert [s.setting for s in bare.settings if s.purpose == "tell"] != [s.setting for s in plan.settings if s.purpose == "tell"]


def fitted(batch: Batch, step_time_s: np.ndarray) -> list[float]:
    """The two laws of these steps, in the order of the plant's numbers."""
    mixed, columns = batch.prefill_tokens > 0, terms(batch)
    decode, prefill = fit_law(columns[~mixed, :3], step_time_s[~mixed]), fit_law(columns[mixed], step_time_s[mixed])
    return [*decode.coefficients.tolist(), *prefill.coefficients.tolist()]


class Sounding(Engine):
    """A plant whose noise goes on over a reset, as a real engine's does."""

    name = "sounding"

    def __init__(self, sd: float, seed: int) -> None:
        self.limits, self.noise, self.k = LIMITS, np.exp(noise(40_000, sd, seed)), 0

    def reset(self) -> None:
        """Nothing is held."""

    def execute(self, step: Step) -> float:
        self.k += 1
        return float(TRUTH.step_time_s(batch_of(step))) * self.noise[self.k]


def test_a_planned_recording_identifies_better_than_the_staircase() -> None:
    plan = plan_recording(None, LIMITS, steps=1500)
    design = [(row.setting, row.steps) for row in plan.settings]
    truth = [c.value for c in TRUTH.coefficients().values()]
    errors: dict[str, list[list[float]]] = {"plan": [], "staircase": []}
    for seed in range(6):
        for name, columns in (
            ("plan", record_design(Sounding(0.06, seed), design, seed=seed)),
            ("staircase", record_trace(Sounding(0.06, seed), steps=1500, seed=seed)),
        ):
            found = fitted(Batch(*(columns[c] for c in Batch._fields)), columns["step_time_s"])
            errors[name].append([math.log(max(c, 1e-2 * v) / v) for c, v in zip(found, truth, strict=True)])
    spread = {name: np.sqrt((np.square(rows)).mean(axis=0)) for name, rows in errors.items()}
    assert np.exp(np.log(spread["plan"] / spread["staircase"]).mean()) < 0.7


def test_the_recording_respects_the_plan_s_shares() -> None:
    plan = plan_recording(known(), LIMITS, steps=2000, seed=4)
    columns = record_design(PlantEngine(TRUTH, LIMITS, np.ones(1), np.ones(1)), [(r.setting, r.steps) for r in plan.settings], seed=4)
    assert len(columns["step"]) == plan.steps == 2000
    seen = dict(zip(*np.unique(columns["workload_segment"], return_counts=True), strict=True))
    wanted: dict[str, int] = {}
    for row in plan.settings:  # a setting may both tell and check
        wanted[":".join(map(str, row.setting))] = wanted.get(":".join(map(str, row.setting)), 0) + row.steps
    assert seen == wanted
    assert (columns["prefill_tokens"] + columns["decode_requests"] <= columns["token_budget"]).all()
    assert (columns["decode_requests"] <= columns["running_limit"]).all()
    assert np.diff(columns["start_s"]) == pytest.approx(columns["step_time_s"][:-1])
    assert columns["start_s"][0] == 0
    assert float((columns["prefill_tokens"] > 0).mean()) == pytest.approx(plan.mixed, abs=0.06)
    assert plan.step_time_s == pytest.approx(float(columns["step_time_s"].mean()), rel=0.15)
    order = [row.setting for row in visits([(r.setting, r.steps) for r in plan.settings], 4)]
    assert order != sorted(order)
    assert max(v.steps for v in visits([(Setting(64, 4, 64, 16), 5000)], 0)) <= 2 * stay_steps(Setting(64, 4, 64, 16))


def test_a_design_beyond_the_engine_is_refused() -> None:
    engine = PlantEngine(TRUTH, SMALL, np.ones(1), np.ones(1))
    with pytest.raises(ValueError, match="token_budget 512, the engine bears 256"):
        record_design(engine, [(Setting(512, 4, 64, 16), 50)])
    with pytest.raises(ValueError, match="at least one setting"):
        record_design(engine, [])


def test_a_tail_that_was_not_measured_is_assumed_and_said() -> None:
    need = steps_for_margin(np.zeros(0), 0.02, 0.01)
    assert need.tail.measured == 0
    assert need.margin == pytest.approx(1 - math.exp(-0.1 * 2.3263), abs=1e-4)
    plan = plan_recording(None, SMALL, steps=400)
    assert any("log-normal" in text for text in plan.said)
    assert any("no plant given" in text for text in plan.said)
    assert plan.step_time_s is None
    assert plan.numbers[0].unit == "floor"
    for width, epsilon, message in ((2.0, 0.01, "margin width"), (0.02, 0.0, "epsilon"), (1e-9, 0.01, "needs more than")):
        with pytest.raises(ValueError, match=message):
            steps_for_margin(np.zeros(0), width, epsilon)


def test_steps_follow_from_the_margin_and_from_the_share_of_steps_with_prefill() -> None:
    held = Noise(noise(4096, 0.03, 1), noise(1000, 0.08, 2))
    plan = plan_recording(known(held=held), LIMITS, margin_width=0.05, epsilon=0.02)
    assert plan.need["mixed"].steps > plan.need["decode"].steps
    assert plan.steps == pytest.approx(plan.steps_needed, rel=0.02)
    assert plan.steps * plan.mixed >= 0.97 * plan.need["mixed"].steps
    assert plan.steps * (1 - plan.mixed) >= 0.97 * plan.need["decode"].steps
    data = plan.to_json()
    assert plan.step_time_s is not None
    assert data["time_s"] == pytest.approx(plan.steps * plan.step_time_s)
    assert data["margin"]["mixed"]["width"] <= 0.05
    again, limits, seed = settings_of(json.loads(json.dumps(data)))
    assert again == [(row.setting, row.steps) for row in plan.settings]
    assert (limits, seed) == (LIMITS, 0)


def test_an_affine_plant_is_planned_for_too() -> None:
    plant = dataclasses.replace(known(), plant=AffinePlant(TRUTH.mixed))
    plan = plan_recording(plant, SMALL, steps=600)
    assert {t.name.split(".")[0] for t in plan.numbers} == {"all"}
    assert all(t.after is not None for t in plan.numbers)


def test_limits_that_leave_nothing_to_move_are_said() -> None:
    one = Limits(4096, max_seqs=1, max_len=512, max_tokens=256)
    plan = plan_recording(None, one, steps=400)
    assert any("no setting tells" in text and "decode.per_decode_request" in text for text in plan.said)
    assert {t.name: t.after for t in plan.numbers}["decode.per_decode_request"] is None
    assert assumed_plant(one).step_time_s(Batch(1.0, 512.0, 0.0, 0.0, 0.0)) < 2


def test_the_command_plans_says_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    columns = record_trace(PlantEngine(TRUTH, SMALL, np.exp(noise(4096, 0.05, 1)), np.exp(noise(4096, 0.05, 2))), steps=800)
    del columns["start_s"]
    pl.DataFrame(columns).write_parquet("steps.parquet")
    limits = ["--kv-tokens", "16384", "--max-seqs", "16", "--max-len", "2048", "--max-tokens", "256"]
    assert main(["fit", "steps.parquet", *limits, "--out", "plant.json"]) == 0
    capsys.readouterr()
    command = ["record", "--plan", "--from", "plant.json", "--trace", "steps.parquet", "--margin-width", "3%", "--epsilon", "2%"]
    assert main(command) == 0
    said = capsys.readouterr().out
    for word in ("settings: budget / limit / prompt / output", "standard errors", "worth ", "margin     within 3.0 % at epsilon 2.0 %"):
        assert word in said
    assert "next       headway record --design plan.json --preset tiny --out planned.parquet" in said
    assert "next       headway fit steps.parquet planned.parquet --out plant.json" in said
    assert main([*command, "--steps", "500", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["steps"] == 500 == json.loads(Path("plan.json").read_text())["steps"]
    assert data["time_s"] > 0
    assert sum(s["steps"] for s in data["settings"]) == 500
    assert settings_of(json.loads(Path("plan.json").read_text()))[1] == SMALL


def test_a_plan_goes_where_out_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for option in ("--out", "--out-plan"):
        assert main(["record", "--plan", "--steps", "200", option, f"{option}.json", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["out"] == f"{option}.json"
    assert {p.name for p in tmp_path.iterdir()} == {"--out.json", "--out-plan.json"}
    assert settings_of(json.loads(Path("--out.json").read_text())) == settings_of(json.loads(Path("--out-plan.json").read_text()))


BAD = {
    "record --plan --margin-width 0": "margin width must be in (0, 1)",
    "record --plan --from nope.json": "nope.json: no such file",
    "record --plan --design plan.json": "give one of them",
    "record --plan --out a.json --out-plan b.json": "give one of them",
    "record --out-plan b.json": "add --plan",
    "record --from plant.json": "add --plan",
    "record --design plan.json": "plan.json: expected schema 'headway/plan/1'",
    "record --plan --preset giant": "unknown preset 'giant'",
    "record --plan --kv-tokens 16 --max-len 8": "no setting fits",
}


@pytest.mark.parametrize("line", BAD)
def test_what_cannot_be_planned_gets_one_line(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text('{"schema": "headway/other/1"}')
    assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert BAD[line] in said


def test_a_damaged_plan_is_refused_by_name() -> None:
    good = plan_recording(None, SMALL, steps=400).to_json()
    for change in ({"settings": []}, {"seed": "x"}, {"engine": {"kv_tokens": 16384, "colour": 1}}, {"settings": [{"token_budget": 16}]}):
        with pytest.raises(ValueError, match=r"plan\.json"):
            settings_of({**good, **change})
    with pytest.raises(ValueError, match="give --engine kernels"):
        record_stage("sim", None, preset="tiny", steps=100, limits={}, seed=0)


@pytest.mark.slow
def test_a_design_runs_on_live_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    limits = ["--kv-tokens", "8192", "--max-seqs", "4", "--max-len", "512", "--max-tokens", "64"]
    assert main(["record", "--plan", "--steps", "200", *limits]) == 0
    capsys.readouterr()
    assert main(["record", "--design", "plan.json", "--out", "planned.parquet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 200
    assert main(["fit", "planned.parquet", "--out", "plant.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]["used"] > 150
