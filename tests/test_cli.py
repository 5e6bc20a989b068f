"""The commands as a user meets them: JSON names, one line per error, exit statuses, a run that is killed and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from headway.cli import main
from headway.engines import EXPORTERS
from tests.synthetic_steps import TRUTH, composed, durations

LOAD = "poisson:rate=11/s,prompt=lognormal(median=500,sigma=0.9,min=16,max=4000),output=geometric(120)"
TARGET = "ttft=500ms,itl=25ms"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small step table of a known plant."""
    path = tmp_path_factory.mktemp("trace") / "steps.csv"
    batch = composed(1200, seed=3)
    columns = {name: getattr(batch, name) for name in batch._fields}
    frame = pl.DataFrame({"step": np.arange(1200), "step_time_s": durations(batch, 0.04, seed=3), **columns, "mode": ["a", "b"] * 600})
    frame.write_csv(path)
    return path


@pytest.fixture(scope="module")
def plant(trace: Path) -> Path:
    """Its plant."""
    out = trace.with_name("plant.json")
    assert main(["fit", str(trace), "--kv-tokens", "200k", "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def controller(plant: Path) -> Path:
    """A controller tuned on it, quickly."""
    out = plant.with_name("controller.json")
    assert main(["tune", str(plant), "--workload", LOAD, "--target", TARGET, "--requests", "120", "--out", str(out)]) == 0
    return out


def spoken(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> dict[str, Any]:
    """The one JSON object that a command prints with --json."""
    capsys.readouterr()
    assert main([*arguments, "--json"]) == status
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


FIGURES = {
    "requests",
    "attainment",
    "request_attainment",
    "goodput_tps",
    "throughput_tps",
    "ttft_s",
    "itl_s",
    "tpot_s",
    "max_gap_s",
    "shed",
    "preempted",
}
SCORE = {
    "steps",
    "steps_mixed",
    "mape",
    "median_ape",
    "mape_decode",
    "mape_mixed",
    "p90_ape",
    "max_ape",
    "max_ape_all",
    "coverage90",
    "rows",
    "warnings",
}


def test_fit_and_score_speak_the_agreed_names(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "plant.json")
    fitted = spoken(capsys, "fit", str(trace), "--blocks", "even", "--out", out)
    assert {"structure", "coefficients", "rows", "heldout", "margin", "excitation", "warnings"} <= set(fitted)
    assert set(fitted["coefficients"]["mixed.per_prefill_token"]) == {"value", "ci95", "unit"}
    assert set(fitted["rows"]) == {"read", "used", "set_aside"}
    assert set(fitted["heldout"]) >= SCORE
    assert set(fitted["margin"]) == {"decode", "mixed"}
    scored = spoken(capsys, "score", out, str(trace), "--blocks", "odd")
    assert set(scored) >= SCORE
    assert scored["mape"] < 0.06
    assert set(scored["coverage90"]["mixed"]) == {"value", "ci95"}
    truth, found = TRUTH.coefficients()["mixed.per_prefill_token"].value, fitted["coefficients"]["mixed.per_prefill_token"]
    assert found["ci95"][0] <= truth * 1.05
    assert found["ci95"][1] >= truth * 0.95


def test_where_filters_rows_and_a_wrong_column_is_named(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "plant.json")
    half = spoken(capsys, "fit", str(trace), "--where", "mode=a", "--out", out)
    assert half["rows"]["read"] == 600
    assert main(["fit", str(trace), "--where", "colour=a", "--out", str(tmp_path / "none.json")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "colour" in said
    assert not (tmp_path / "none.json").exists()


def test_simulate_speaks_the_agreed_names(plant: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = spoken(capsys, "simulate", str(plant), "--workload", LOAD, "--target", TARGET, "--requests", "150", "--runs", "2")
    assert set(data) >= FIGURES | {"binding", "load"}
    assert set(data["itl_s"]) == {"p50", "p90", "p99", "p999"}
    assert set(data["binding"]) == {"kv", "running", "budget", "none"}
    assert sum(data["binding"].values()) == pytest.approx(1)
    assert data["load"] in {"stable", "unstable", "uncertain"}
    assert 0 <= data["goodput_tps"] <= data["throughput_tps"]
    again = spoken(capsys, "simulate", str(plant), "--workload", LOAD, "--target", TARGET, "--requests", "150", "--runs", "2")
    assert again == data


def test_a_load_outside_the_hull_is_answered_and_marked(plant: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = "poisson:rate=200/s,prompt=50,output=400"
    data = spoken(capsys, "simulate", str(plant), "--workload", many, "--target", "ttft=9s,itl=1s", "--requests", "300", "--runs", "1")
    assert any("extrapolation" in w and "decoding sequences" in w for w in data["warnings"])


def test_tune_speaks_the_agreed_names(controller: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuning = json.loads(controller.read_text())["tuning"]
    assert {"objective", "heldout", "best_static", "gain", "gain_ci95", "bound", "outcome"} <= set(tuning)
    assert {"attainment", "goodput_tps", "ci95"} <= set(tuning["heldout"])
    assert {"settings", "attainment", "goodput_tps"} <= set(tuning["best_static"])
    assert tuning["outcome"] in {"better", "no better"}
    assert (tuning["gain_ci95"][0] > 0) == (tuning["outcome"] == "better")
    assert {"margin", "aging_rate"} <= set(tuning["heldout"]["settings"]) or tuning["outcome"] == "no better"


def test_validate_speaks_the_agreed_names_and_its_exit_status_is_the_verdict(
    controller: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "validation.json"
    status = main(["validate", str(controller), "--runs", "4", "--out", str(out), "--json"])
    data = json.loads(capsys.readouterr().out)
    assert data["outcome"] in {"met", "not met", "invalid"}
    assert status == (0 if data["outcome"] == "met" else 1)
    for side in (data["controller"], data["best_static"], data["predicted"]["controller"], data["predicted"]["best_static"]):
        assert set(side) >= FIGURES
    # a target that nobody can keep is not met
    status = main(["validate", str(controller), "--runs", "2", "--target", "ttft=2ms,itl=7ms", "--out", str(out), "--json"])
    data = json.loads(capsys.readouterr().out)
    assert (status, data["target_reached"]) == (1, False)


def test_analyse_and_export(controller: Path, plant: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = spoken(capsys, "analyse", str(controller), str(plant))
    assert {"operating_points", "gain_margin_db", "phase_margin_deg", "delay_margin_steps", "certified", "reasons"} <= set(data)
    written = spoken(capsys, "export", str(controller), "--engine", "python", "--out", str(tmp_path / "gains"))
    assert (tmp_path / "gains" / "headway_runtime.py").exists()
    assert "headway_runtime.py" in written["files"]
    assert main(["export", str(controller), "--engine", "fpga", "--out", str(tmp_path / "other")]) == 2
    assert capsys.readouterr().err == f"headway: cannot export for 'fpga'; this version knows {', '.join(EXPORTERS)}\n"
    assert not (tmp_path / "other").exists()


ERRORS = {
    "fit nope.csv": "nope.csv",
    "simulate {plant} --workload nope.csv --target ttft=1s,itl=25ms": "nope.csv: expected a file that exists",
    "simulate {plant} --workload poisson:rate=5/s,prompt=600,output=200 --target ttft=1,itl=25ms": "write 1ms or 1s",
    "simulate {plant} --workload poisson:rate=5/s,prompt=600,output=200 --target ttft=1s,itl=25ms --rate 0/s": "rate",
    "tune {controller} --workload x --target y": "",
    "tune {plant} --workload poisson:rate=5/s,prompt=6,output=2 --target ttft=1s,itl=25ms --free marg": "known: margin",
    "tune {plant} --workload poisson:rate=5/s,prompt=6,output=2 --target ttft=1s,itl=25ms --objective speed": "attainment, requests, capacity",
    "validate {plant}": "headway/controller/1",
    "validate {controller} --engine gpu": "this version knows sim, kernels",
    "record --engine sim": "no kernels to record",
    "run --workload x --target y": "run needs --trace, --out",
    "run --resume nope": "holds no run to resume",
    "report nope": "no such run folder",
    "fit {trace} --kv-tokens 200x": "units: k, M",
    "fit {trace} --blocks some": "blocks",
    "fit {trace} --bogus": "No such option",
    "bogus": "No such command",
}


@pytest.mark.parametrize("line", ERRORS)
def test_bad_input_gets_one_line_exit_2_and_nothing_is_written(
    line: str,
    trace: Path,
    plant: Path,
    controller: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main([word.format(trace=trace, plant=plant, controller=controller) for word in line.split()]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("headway: ")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    assert "fault of Headway" not in said.err
    assert ERRORS[line] in said.err
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_killed_goes_on_where_it_stood(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import headway.whole as whole

    out = tmp_path / "run"
    arguments = [
        "run",
        "--trace",
        str(trace),
        "--workload",
        LOAD,
        "--target",
        TARGET,
        "--requests",
        "100",
        "--kv-tokens",
        "200k",
        "--out",
        str(out),
    ]

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(whole, "validate_stage", killed)
        assert main(arguments) == 130
        assert f"`headway run --resume {out}` goes on" in capsys.readouterr().err
        assert main(["run", f"--resume={out}"]) == 130
        assert f"`headway run --resume {out}` goes on" in capsys.readouterr().err
    assert (out / "controller.json").exists()
    assert not (out / "validation.json").exists()
    before = (out / "controller.json").stat().st_mtime_ns
    assert main(arguments) == 2  # the folder holds a run: it is not overwritten
    assert "--resume" in capsys.readouterr().err
    data = spoken(capsys, "run", "--resume", str(out))
    assert (out / "controller.json").stat().st_mtime_ns == before
    assert {"plant", "tuning", "validation", "report", "stages"} <= set(data)
    assert set(data["stages"]) == {"trace", "fit", "tune", "validate", "export", "report"}
    assert (out / "report.html").stat().st_size > 10_000
    assert main(["report", str(out)]) == 0


@pytest.mark.parametrize("line", ["record --out trace.parquet", "record --plan", "demo --out new", "run --trace t --workload w --out new"])
def test_an_interrupt_speaks_of_a_run_only_where_there_is_one(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import headway.cli.app as application

    class Interrupted:
        def main(self, *_: object, **__: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(application.typer.main, "get_command", lambda _: Interrupted())
    assert main(line.split()) == 130
    assert capsys.readouterr().err == "headway: interrupted\n"


def test_a_changed_file_of_a_finished_stage_is_made_anew(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    arguments = [
        "run",
        "--trace",
        str(trace),
        "--workload",
        LOAD,
        "--target",
        TARGET,
        "--requests",
        "60",
        "--kv-tokens",
        "200k",
        "--out",
        str(out),
    ]
    assert main(arguments) == 0
    content = (out / "plant.json").read_text()
    (out / "plant.json").write_text(content[: len(content) // 2])
    assert main(["run", "--resume", str(out)]) == 0
    assert (out / "plant.json").read_text() == content


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("headway ")
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out
    assert listed.index("  fit ") < listed.index("  tune ") < listed.index("  validate ")
