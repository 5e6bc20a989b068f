"""Files that were damaged or edited, and places that cannot be written to: one line that names them, and nothing lost."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from headway.cli import main
from headway.controllers.simulator import evaluate
from headway.experiments.tune import Effort, Problem, tune
from headway.experiments.whole_files import write_whole
from headway.models.goodput import FAILED
from headway.models.identified import Hull, IdentifiedPlant
from headway.models.measures import ATTAINMENT
from headway.models.noise import Noise
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.specs import synthetic
from tests.synthetic_steps import composed, durations

LOAD = "poisson:rate=8/s,prompt=300,output=40"
TARGET = "ttft=500ms,itl=25ms"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace, its plant, and a controller tuned on it."""
    place = tmp_path_factory.mktemp("files")
    batch = composed(800, seed=5)
    frame = pl.DataFrame({"step": np.arange(800), "step_time_s": durations(batch, 0.03, seed=5), **batch._asdict()})
    frame.write_csv(place / "steps.csv")
    assert main(["fit", str(place / "steps.csv"), "--kv-tokens", "100k", "--out", str(place / "plant.json")]) == 0
    assert (
        main(
            [
                "tune",
                str(place / "plant.json"),
                "--workload",
                LOAD,
                "--target",
                TARGET,
                "--requests",
                "60",
                "--out",
                str(place / "controller.json"),
            ]
        )
        == 0
    )
    return place


def put(*keys: Any, value: Any) -> Callable[[dict], None]:
    """Set one value of a nested mapping."""

    def change(data: Any) -> None:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return change


CONTROLLER = {
    "gains null": put("law", "gains", value=None),
    "coefficients a list": put("plant", "coefficients", value=[]),
    "kv_tokens text": put("engine", "kv_tokens", value="50k"),
    "block_tokens null": put("engine", "block_tokens", value=None),
    "itl text": put("targets", 0, "itl_s", value="25ms"),
    "workload empty": put("workload", value={}),
    "tuning null": put("tuning", value=None),
    "hull null": put("hull", value=None),
    "law unknown": put("law", "kind", value="pid"),
    "margin 25": put("law", "gains", "margin", "value", value=25),
}
PLANT = {
    "structure a list": put("structure", value=[]),
    "hull NaN": put("hull", "prefill_tokens", value=float("nan")),
    "unit ms": put("coefficients", "decode.floor", "unit", value="ms"),
    "coefficient negative": put("coefficients", "decode.floor", "value", value=-1.0),
    "residuals text": put("residuals", "decode", value=["x"]),
}


@pytest.mark.parametrize(("file", "change"), [("controller.json", c) for c in CONTROLLER] + [("plant.json", c) for c in PLANT])
def test_a_damaged_file_is_named_in_one_line(
    file: str, change: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads((folder / file).read_text())
    {**CONTROLLER, **PLANT}[change](data)
    (tmp_path / file).write_text(json.dumps(data))
    other = "plant.json" if file == "controller.json" else "controller.json"
    (tmp_path / other).write_text((folder / other).read_text())
    capsys.readouterr()
    assert (
        main(
            [
                "simulate",
                str(tmp_path / "plant.json"),
                "--controller",
                str(tmp_path / "controller.json"),
                "--workload",
                LOAD,
                "--target",
                TARGET,
            ]
        )
        == 2
    )
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert file in said.err
    assert "fault of Headway" not in said.err


def test_a_controller_that_was_edited_is_used_and_said_to_be(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads((folder / "controller.json").read_text())
    edited = copy.deepcopy(data)
    edited["engine"]["max_seqs"] = data["engine"]["max_seqs"] - 1
    (tmp_path / "controller.json").write_text(json.dumps(edited))
    (tmp_path / "plant.json").write_text((folder / "plant.json").read_text())
    capsys.readouterr()
    main(["validate", str(tmp_path / "controller.json"), "--runs", "2", "--out", str(tmp_path / "v.json")])
    assert "changed by hand" in capsys.readouterr().out
    main(["validate", str(folder / "controller.json"), "--runs", "2", "--out", str(tmp_path / "v.json")])
    assert "changed by hand" not in capsys.readouterr().out


def test_a_manifest_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content in ("[]", '{"request": 5}', '{"request":'):
        (tmp_path / "manifest.json").write_text(content)
        assert main(["run", "--resume", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "manifest.json" in said
        assert "fault of Headway" not in said


def test_what_is_no_plain_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for place in (Path("/dev/null"), tmp_path / "folder", Path(), tmp_path / "folder" / ".."):
        with pytest.raises(ValueError, match="is not a file that can be written"):
            write_whole(place, "text")
    assert Path("/dev/null").is_char_device()
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    write_whole(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"


def test_a_full_disk_leaves_nothing_behind_and_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> None:
        with self.open("wb") as file:
            file.write(data[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ValueError, match=r"out\.json: cannot be written \(No space left on device\)"):
        write_whole(tmp_path / "out.json", "content")
    assert list(tmp_path.iterdir()) == []


TRACES = {
    "two columns of one name": ("step,step_time_s,step_time_s", "one column step_time_s"),
    "a step between two": ("9.5", "whole number"),
    "a number beyond reason": ("1e300", "at most 1e+15"),
}


@pytest.mark.parametrize("fault", TRACES)
def test_a_trace_that_cannot_be_meant_is_refused(fault: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (folder / "steps.csv").read_text().splitlines()
    cells, wanted = TRACES[fault]
    if fault.startswith("two"):
        lines = [f"{lines[0]},step_time_s", *(f"{line},1" for line in lines[1:])]
    elif fault.startswith("a step"):
        lines[5] = ",".join([cells, *lines[5].split(",")[1:]])
    else:
        lines[5] = ",".join([*lines[5].split(",")[:-1], cells])
    (tmp_path / "steps.csv").write_text("\n".join(lines) + "\n")
    capsys.readouterr()
    assert main(["fit", str(tmp_path / "steps.csv"), "--out", str(tmp_path / "p.json")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert wanted in said
    assert not (tmp_path / "p.json").exists()


def test_a_trace_in_milliseconds_is_noticed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pl.read_csv(folder / "steps.csv").with_columns(pl.col("step_time_s") * 1000)
    frame.write_csv(tmp_path / "steps.csv")
    assert main(["fit", str(tmp_path / "steps.csv"), "--out", str(tmp_path / "p.json")]) == 0
    assert "in seconds?" in capsys.readouterr().out


def test_a_load_that_can_never_fit_says_why(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", str(folder / "plant.json"), "--workload", "poisson:rate=5/s,prompt=200000,output=4", "--target", TARGET]
    assert main([*arguments, "--requests", "40", "--runs", "1"]) == 0
    assert "40 of 40 requests can never fit" in capsys.readouterr().out
    assert FAILED == 7


def test_a_static_setting_at_its_very_edge_is_no_baseline() -> None:
    """Below the knee many settings tie in training: the one that bears more is compared with, not the first in the list."""
    plant = RegimePlant((4e-3, 1e-4, 1e-8, 0.0, 0.0, 0.0), (5e-3, 1e-4, 1e-8, 2e-5, 0.0, 0.0))
    limits = Limits(kv_tokens=50_000, max_seqs=64, max_len=4096, max_tokens=512)
    identified = IdentifiedPlant(plant, Noise.none(), Hull(64, 1e5, 512, 1e6), {"decode": 0.05, "mixed": 0.1}, {}, limits, {})
    targets, source = (Target(1.0, 0.025, 0.002),), synthetic("poisson:rate=20/s,prompt=600,output=50")
    effort = Effort(train_seeds=4, heldout_seeds=8, requests=100, sobol=8, starts=1, iterations=1)
    problem = Problem(identified, source, targets, limits)
    found = tune(problem, effort)
    stock = evaluate(identified, [found.hindsight.candidate], problem.draws(effort, heldout=True), targets, limits)[0, :, ATTAINMENT].mean()
    assert found.static.measures[:, ATTAINMENT].mean() >= stock - 0.005
