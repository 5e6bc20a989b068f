"""Recording and validating on a real vLLM server whose device is a plant, where its environment is there already; and on real kernels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headway.cli import main
from headway.controllers.default import default_candidate
from headway.controllers.record import ControllerRecord
from headway.engines.vllm.environment import environment
from headway.engines.vllm.made_model import make_model
from headway.engines.vllm.recording import record_in_process
from headway.engines.vllm.starting import Start
from headway.experiments.whole_files import write_json
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.noise import Noise
from headway.models.plant import Batch
from headway.models.regimes import AffinePlant
from headway.models.signals import Limits, Target

pytestmark = pytest.mark.slow

PLANT = AffinePlant((0.012, 3e-4, 4e-7, 6e-5, 2e-10, 5e-4))
LIMITS = Limits(kv_tokens=65536, block_tokens=128, max_seqs=32, max_len=2048, max_tokens=1024)
HULL = Hull(decode_requests=32.0, decode_kv_tokens=40_000.0, prefill_tokens=1024.0, prefill_pairs=1e6)
TARGETS = (Target(ttft_s=0.8, itl_s=0.05, transport_s=0.005),)


@pytest.fixture(scope="module")
def place() -> Path:
    """The environment that scripts/vllm-env makes; a test does not make it, that takes 3 GB."""
    try:
        return environment()
    except ValueError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def folder(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a plant with noise, and a controller straight from it."""
    pytest.importorskip("aiohttp", reason="live runs need headway[live]")
    folder = tmp_path_factory.mktemp("live")
    make_model(folder / "llm", "8M")
    rng = np.random.default_rng(0)
    noise = Noise(rng.normal(0, 0.03, 400), rng.normal(0, 0.04, 400))
    identified = IdentifiedPlant(PLANT, noise, HULL, {"decode": 0.1, "mixed": 0.1}, {}, LIMITS, {})
    write_json(folder / "plant.json", identified.to_json())
    workload = {"spec": "poisson:rate=14/s,prompt=lognormal(median=150,sigma=0.8,min=16,max=800),output=geometric(30)", "requests": 200}
    tuning = {"best_static": {"settings": {"token_budget": 256, "running_limit": 16}}}
    about = {"file": "plant.json", "sha256": None}
    record = ControllerRecord(default_candidate(identified, TARGETS, LIMITS), TARGETS, LIMITS, PLANT, HULL, about, workload, tuning)
    write_json(folder / "controller.json", record.to_json())
    return folder


def test_a_recording_on_a_served_vllm_tells_the_plant_of_its_device(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "trace.parquet"
    asked = ["record", "--engine", "vllm-sim", "--device", str(folder / "plant.json"), "--model", str(folder / "llm"), "--steps", "700"]
    assert main([*asked, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] >= 700
    assert found["steps_mixed"] >= 50
    assert found["limits"]["kv_tokens"] == LIMITS.kv_tokens
    assert found["limits"]["max_tokens"] == LIMITS.max_tokens
    assert found["requests"]["finished"] > 20
    trace = read_trace([out])
    assert dict(trace.engine)["max_seqs"] == LIMITS.max_seqs
    frame = trace.frame
    batch = Batch(
        *(
            frame[n].to_numpy().astype(float)
            for n in ("decode_requests", "decode_kv_tokens", "prefill_tokens", "prefill_pairs", "prefill_requests")
        )
    )
    device_s = np.asarray(PLANT.step_time_s(batch))
    off = frame["step_time_s"].to_numpy() / device_s
    # the host's own time between two steps comes on top of the device's, and grows where other programs take the cores
    assert 0.97 < np.quantile(off, 0.25) < 1.25
    # of long steps, in which it hardly counts, the middle one is the device's, whatever else runs
    assert 0.97 < np.median(off[device_s > np.quantile(device_s, 0.9)]) < 1.15
    assert (folder / "trace.vllm" / "record" / "server.log").exists()


def test_a_controller_is_validated_against_stock_on_the_same_arrivals(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "validation.json"
    asked = ["validate", str(folder / "controller.json"), "--engine", "vllm-sim", "--model", str(folder / "llm"), "--out", str(out)]
    status = main([*asked, "--length", "8s", "--runs", "2", "--early", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert status == int(data["outcome"] != "met")
    assert set(data["others"]) == {"early", "default"}
    names = [c["name"] for c in data["gates"]]
    assert {"requests were sent on time", "every token was seen", "prompts met decodes"} <= set(names)
    assert next(c for c in data["gates"] if c["name"] == "every token was seen")["ok"]
    assert data["controller"]["attainment"] == pytest.approx(data["predicted"]["controller"]["attainment"], abs=0.25)
    kept = sorted(p.name for p in (folder / "validation.vllm" / "runs").glob("*.clients.json"))
    assert kept == [f"{k}-{arm}.clients.json" for k in (0, 1) for arm in ("controller", "default", "early", "static")]
    arrivals = [json.loads((folder / "validation.vllm" / "runs" / n).read_text())["headway"]["arrival_s"] for n in kept[:4]]
    assert all(a == arrivals[0] for a in arrivals)
    # every run is kept: the same command starts no server, and comes to the same end
    assert main([*asked, "--length", "8s", "--runs", "2", "--early", "--json", "--vllm-env", str(environment())]) == status
    assert json.loads(capsys.readouterr().out)["controller"]["attainment"] == data["controller"]["attainment"]
    assert main([*asked, "--length", "9s", "--runs", "2"]) == 2
    assert "another trial" in capsys.readouterr().err
    log = folder / "validation.vllm" / "controller" / "server.log"
    assert main(["verify", str(folder / "validation.vllm" / "controller" / "adapter"), "--log", str(log), "--check", "--json"]) == 0
    rows = {r["what"]: r["verdict"] for r in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["gains"] == rows["adapter's mode"] == rows["max_seqs"] == rows["max_tokens"] == "in force"


def test_a_plant_of_real_kernels_from_inside_their_process(place: Path, folder: Path) -> None:
    start = Start.of(folder / "llm", folder / "inside", place=place, limits={"max_seqs": 16, "max_tokens": 512, "max_len": 1024})
    rows, limits = record_in_process(start, steps=300)
    assert len(rows) >= 300
    assert limits["max_seqs"] == 16
    table = rows.table()
    assert (table["worker_cpu_s"] > 0).all()
    assert fit_error(table, limits, folder) < 0.3


def fit_error(table: dict[str, np.ndarray], limits: dict[str, int], folder: Path) -> float:
    """Held-out median error of a fit on the CPU time."""
    import polars as pl

    kept = {k: v for k, v in table.items() if k not in ("period_s", "worker_cpu_s")} | {"step_time_s": table["worker_cpu_s"]}
    pl.DataFrame(kept).write_parquet(folder / "inside.parquet")
    return float(fit(read_trace([folder / "inside.parquet"]), limits=limits).to_json()["heldout"]["median_ape"])
