"""The demonstration on its embedded trace, and the live loop on kernels, end to end."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from headway.cli import main
from headway.controllers.simulator import Candidate
from headway.controllers.static import StaticLaw
from headway.experiments.checks import live_gates
from headway.experiments.excite import record_trace
from headway.experiments.validate import validate_on_engine
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.identification.trace import Trace
from headway.models.engine import PlantEngine
from headway.models.generators import Synthetic
from headway.models.identified import IdentifiedPlant
from headway.models.noise import Noise
from headway.models.plant import Batch
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.specs import synthetic

TRUTH = RegimePlant((2e-3, 2e-4, 1.2e-7, 0.0, 0.0, 0.0), (3e-3, 2e-4, 1.2e-7, 3e-5, 1e-8, 1e-4))
LIMITS = Limits(kv_tokens=65536, max_seqs=64, max_len=4096, max_tokens=1024)


def test_the_embedded_trace_is_ours_small_and_identifies_a_plant() -> None:
    with resources.as_file(resources.files("headway").joinpath("assets", "demo_trace.parquet")) as path:
        assert path.stat().st_size < 1_000_000
        trace = read_trace(path)
        plant = fit(trace)
    assert len(trace) >= 2000
    assert plant.about["heldout"]["mape"] < 0.2
    assert plant.about["rows"]["used"] >= 0.99 * plant.about["rows"]["read"]


def test_the_demo_tells_its_result_on_one_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "demo"
    assert main(["demo", "--engine", "sim", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert len(said.splitlines()) <= 24
    for word in ("plant ", "margin", "aging rate", "predicted", "simulated again", "best static", "report "):
        assert word in said
    assert said.splitlines()[-1].endswith("report.html")
    tuning = json.loads((out / "controller.json").read_text())["tuning"]
    assert 0.5 <= tuning["best_static"]["attainment"] <= 0.95
    assert tuning["outcome"] == "better"
    # an earlier demo is replaced, anything else is not
    assert main(["demo", "--engine", "sim", "--out", str(out), "--json"]) == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    assert main(["demo", "--engine", "sim", "--out", str(tmp_path / "mine")]) == 2
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


def test_an_excited_recording_identifies_the_plant_it_was_made_by() -> None:
    noise = np.exp(0.05 * np.random.default_rng(0).standard_normal(4096))
    columns = record_trace(PlantEngine(TRUTH, LIMITS, noise, noise), steps=1500, seed=1)
    assert 0.2 < (columns["prefill_tokens"] > 0).mean() < 0.8
    assert (columns["prefill_tokens"] + columns["decode_requests"] <= columns["token_budget"]).all()
    found = fit(Trace.of(pl.DataFrame(columns)), limits=LIMITS)
    for name, truth in TRUTH.coefficients().items():
        if name.split(".")[1] in ("floor", "per_decode_request", "per_kv_token", "per_prefill_token"):
            assert found.plant.coefficients()[name].value == pytest.approx(truth.value, rel=0.15), name


def identified(plant: RegimePlant) -> IdentifiedPlant:
    """A plant as identification would hand it on, without noise."""
    return fit(Trace.of(pl.DataFrame(record_trace(PlantEngine(plant, LIMITS, np.ones(8), np.ones(8)), steps=600))), limits=LIMITS)


def load(rate: str) -> Synthetic:
    """Short prompts and answers at a rate."""
    return synthetic(f"poisson:rate={rate},prompt=200,output=30")


def test_a_live_engine_that_is_not_the_one_identified_makes_a_validation_invalid() -> None:
    plant, targets = identified(TRUTH), (Target(0.5, 0.02),)
    slow = RegimePlant(tuple(2 * x for x in TRUTH.decode), tuple(2 * x for x in TRUTH.mixed))
    contenders = (Candidate(StaticLaw(256.0), _fcfs()), Candidate(StaticLaw(512.0), _fcfs()))
    outcomes = {}
    for name, engine in (
        ("same", PlantEngine(TRUTH, LIMITS, np.ones(8), np.ones(8))),
        ("slow", PlantEngine(slow, LIMITS, np.ones(8), np.ones(8))),
    ):
        result = validate_on_engine(contenders, plant, engine, load("25/s"), targets, requests=200, cut_s=6.0, runs=2)
        outcomes[name] = {gate.name: gate.ok for gate in result.gates}
        if name == "slow":
            assert result.outcome == "invalid"
    assert outcomes["same"]["the engine is the one that was identified"]
    assert not outcomes["slow"]["the engine is the one that was identified"]


def test_case_e39_starved_experiment_looks_immune() -> None:
    """Prompts that never meet a decode say nothing of their effect: the verdict is "invalid", not "no effect"."""
    plant, targets = identified(TRUTH), (Target(0.5, 0.02),)
    engine = PlantEngine(TRUTH, LIMITS, np.ones(8), np.ones(8))
    alone = (Candidate(StaticLaw(256.0), _fcfs(1.0)), Candidate(StaticLaw(512.0), _fcfs(1.0)))
    result = validate_on_engine(alone, plant, engine, load("2/s"), targets, requests=60, cut_s=20.0, runs=1)
    gates = {gate.name: gate for gate in live_gates(result.controller.measured, result.static.measured, plant)}
    assert gates["prompts met decodes"].value == 0
    assert result.outcome == "invalid"


def _fcfs(running: float = 64.0):  # a policy
    from headway.controllers.policy import Policy

    return Policy(order="fcfs", triage="none", running_limit=running)


def test_the_plant_engine_and_noise_none_agree() -> None:
    engine = PlantEngine(TRUTH, LIMITS, *Noise.none().draw(0, 16))
    columns = record_trace(engine, steps=120)
    expected = TRUTH.step_time_s(Batch(*(columns[n] for n in Batch._fields)))
    assert np.allclose(columns["step_time_s"], expected, rtol=1e-12)


@pytest.mark.slow
def test_live_kernels_are_recorded_fitted_and_validated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["record", "--engine", "kernels", "--steps", "600", "--max-tokens", "256", "--out", "trace.parquet", "--json"]) == 0
    recorded = json.loads(capsys.readouterr().out)
    assert recorded["steps"] == 600
    assert 0 < recorded["step_time_s"]["p50"] < 1
    assert main(["fit", "trace.parquet", "--out", "plant.json", "--json"]) == 0
    fitted = json.loads(capsys.readouterr().out)
    assert fitted["rows"]["read"] == 600
    assert json.loads(Path("plant.json").read_text())["engine"]["max_tokens"] == 256
    p50 = recorded["step_time_s"]["p50"]
    target = f"ttft={60 * p50 * 1e3:.0f}ms,itl={3 * p50 * 1e3:.1f}ms"
    load = "poisson:rate=20/s,prompt=lognormal(median=120,sigma=0.8,min=16,max=800),output=lognormal(median=40,sigma=0.5,min=4,max=120)"
    assert main(["tune", "plant.json", "--workload", load, "--target", target, "--requests", "150"]) == 0
    capsys.readouterr()
    status = main(["validate", "controller.json", "--engine", "kernels", "--runs", "1", "--length", "4s", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert data["engine"].startswith("kernels")
    assert status == (0 if data["outcome"] == "met" else 1)
    assert data["controller"]["requests"] > 10
    assert {gate["name"] for gate in data["gates"]} == {
        "prompts met decodes",
        "the token budget was felt",
        "the engine is the one that was identified",
    }
