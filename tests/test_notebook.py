"""The notebook's door: the stages as functions, and results that show what the command line and the report show."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import headway
from headway.cli import main
from headway.experiments.whole_files import read_json, sha256_of
from headway.notebook_results import FittedPlant, Told, TunedController
from tests.small_plant import Read
from tests.synthetic_steps import composed, durations, traced

LOAD = "poisson:rate=4/s,prompt=600,output=geometric(60)"
TARGET = "ttft=1s,itl=25ms"
EFFORT = {"train_seeds": 2, "heldout_seeds": 4, "heldout_most": 4, "sobol": 8, "starts": 1, "iterations": 1}
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("notebook") / f"steps of {HOSTILE.replace('/', '')}.csv"
    batch = composed(600)
    traced(batch, durations(batch, 0.02)).frame.write_csv(path)
    return path


@pytest.fixture(scope="module")
def plant(steps: Path) -> FittedPlant:
    return headway.fit(steps, kv_tokens="200k", max_tokens=2048)


@pytest.fixture(scope="module")
def tuned(plant: FittedPlant) -> TunedController:
    return headway.tune(plant, LOAD, target=TARGET, requests=80, effort=EFFORT)


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    """What a command prints, without the line of the file that it wrote."""
    capsys.readouterr()
    assert main([str(word) for word in arguments]) == status
    return "\n".join(line for line in capsys.readouterr().out.splitlines() if not line.startswith("written"))


def test_a_plant_says_what_the_command_says(plant: FittedPlant, steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = printed(capsys, "fit", steps, "--kv-tokens", "200k", "--max-tokens", "2048", "--out", tmp_path / "plant.json")
    assert repr(plant) == str(plant) == said
    assert plant.save(tmp_path / "saved.json").read_bytes() == (tmp_path / "plant.json").read_bytes()
    assert repr(headway.open_plant(tmp_path / "plant.json")) == said


def test_a_simulation_says_what_the_command_says(plant: FittedPlant, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = plant.save(tmp_path / "plant.json")
    options = ("--workload", LOAD, "--target", TARGET, "--rate", "9/s", "--requests", "80", "--runs", "2")
    said = printed(capsys, "simulate", path, *options)
    assert repr(headway.simulate(path, LOAD, TARGET, rate="9/s", requests=80, runs=2)) == said
    assert repr(plant.simulate(LOAD, TARGET, rate=9, requests=80, runs=2)) == said


def test_a_saved_controller_goes_on_at_the_command_line(tuned: TunedController, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tuned.save(tmp_path / "controller.json")
    assert tuned.record.plant_file["sha256"] == sha256_of(tmp_path / "plant.json")
    assert headway.open_controller(path).record.to_json() == tuned.record.to_json()
    verdict = tuned.validate(runs=2)
    status = 0 if verdict.data["outcome"] == "met" else 1
    said = printed(capsys, "validate", path, "--runs", "2", "--out", tmp_path / "validation.json", status=status)
    assert repr(verdict) == said
    assert read_json(tmp_path / "validation.json") == verdict.data
    assert repr(tuned.analyse()) == printed(capsys, "analyse", path, tmp_path / "plant.json")


def test_another_plant_is_not_written_over(tuned: TunedController, plant: FittedPlant, tmp_path: Path) -> None:
    other = {**plant.content, "margin": {"decode": 0.5, "mixed": 0.5}}
    FittedPlant(plant.identified, other).save(tmp_path / "plant.json")
    with pytest.raises(ValueError, match=r"plant\.json is another plant .* plant\.save\("):
        tuned.save(tmp_path / "controller.json")
    assert not (tmp_path / "controller.json").exists()
    plant.save(tmp_path / "plant.json")
    assert tuned.save(tmp_path / "controller.json").exists()


def test_a_controller_on_another_load_and_another_plant(tuned: TunedController, plant: FittedPlant, tmp_path: Path) -> None:
    own = tuned.simulate(requests=80, runs=2)
    crowded = tuned.simulate(rate="40/s", requests=80, runs=2)
    assert own.data["attainment"] > crowded.data["attainment"]
    slower = read_json(plant.save(tmp_path / "slow.json"))
    for coefficient in slower["coefficients"].values():
        coefficient["value"] *= 3 if coefficient["unit"].startswith("s") else 1
    FittedPlant(plant.identified, slower).save(tmp_path / "slow.json")
    same, slow = (tuned.validate(runs=2, plant=p).data["controller"]["itl_s"]["p50"] for p in (None, tmp_path / "slow.json"))
    assert slow > 2 * same


def test_an_export_is_written_and_named(tuned: TunedController, tmp_path: Path) -> None:
    told = tuned.export("python", tmp_path / "gains", uncertified=True)
    assert {path.name for path in (tmp_path / "gains").iterdir()} == set(told.data["files"])
    assert repr(told).startswith(f"written    {tmp_path / 'gains'}: ")


def test_what_is_shown_is_html_with_every_text_escaped(plant: FittedPlant, tuned: TunedController) -> None:
    said = f"a note of {HOSTILE}"
    hostile = FittedPlant(plant.identified, {**plant.content, "warnings": [said]}, plant.trace)
    controller = TunedController(tuned.record, hostile)
    for shown in (hostile, controller, tuned.simulate(requests=80, runs=2), Told({}, (said,)), tuned.analyse(), tuned.validate(runs=2)):
        page = Read(html := shown._repr_html_())
        assert "script" not in page.tags
        assert {tag: html.count(f"<{tag}") for tag in ("div", "table")} == {tag: html.count(f"</{tag}>") for tag in ("div", "table")}
    assert any(said in line for line in Read(hostile._repr_html_()).lines)


def test_the_tables_hold_the_figures(plant: FittedPlant, tuned: TunedController) -> None:
    shown = Read(plant._repr_html_())
    assert any(line.startswith("decode.floor | ") for line in shown.lines)
    own = Read(tuned._repr_html_())
    on_time = tuned.record.tuning["heldout"]["figures"]["attainment"]
    assert any(line.startswith("attainment | ") and f"{100 * on_time:.1f}" in line.replace("100 %", "100.0 %") for line in own.lines)
    assert any(line.startswith("law.margin | ") for line in own.lines)


def test_a_number_stands_for_the_text_of_an_option(steps: Path, plant: FittedPlant) -> None:
    assert headway.fit(steps, kv_tokens=200_000, max_tokens="2048").content == plant.content


def test_what_is_wrong_is_said_as_at_the_command_line(plant: FittedPlant, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="fit needs a trace"):
        headway.fit()
    with pytest.raises(ValueError, match="no such file"):
        headway.tune(tmp_path / "none.json", LOAD, TARGET)
    with pytest.raises(ValueError, match=re.escape("a rate must be above 0")):
        headway.tune(plant, LOAD, TARGET, rate=0)
    with pytest.raises(TypeError, match="kv_token"):
        headway.tune(plant, LOAD, TARGET, kv_token="200k")  # pyright: ignore[reportCallIssue]


def test_the_names_are_there_and_no_others() -> None:
    assert set(headway.__all__) <= set(dir(headway))
    with pytest.raises(AttributeError, match="module 'headway' has no attribute 'tun'"):
        headway.tun  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.slow
def test_five_lines_do_what_three_commands_do(steps: Path, tmp_path: Path) -> None:
    """The five lines of the documentation in a process of their own, against the commands."""
    for name in ("notebook", "commands"):
        (tmp_path / name).mkdir()
        shutil.copy(steps, tmp_path / name / "steps.csv")
        pl.DataFrame({"arrival_s": [0.2 * k for k in range(300)], "prompt_tokens": [600] * 300, "output_tokens": [40] * 300}).write_csv(
            tmp_path / name / "requests.csv"
        )
    five = """import headway
plant = headway.fit("steps.csv")
tuned = headway.tune(plant, "requests.csv", target="ttft=1s,itl=25ms", rate="6/s", requests=60)
tuned.save("controller.json")
print(tuned)"""
    run = lambda where, *words: subprocess.run(words, cwd=tmp_path / where, capture_output=True, text=True, check=True, env=os.environ)  # noqa: E731
    own = run("notebook", sys.executable, "-c", five).stdout
    command = (sys.executable, "-m", "headway")
    run("commands", *command, "fit", "steps.csv")
    options = ("--workload", "requests.csv", "--target", "ttft=1s,itl=25ms", "--rate", "6/s", "--requests", "60")
    said = run("commands", *command, "tune", "plant.json", *options).stdout
    assert own.strip() == "\n".join(line for line in said.splitlines() if not line.startswith("written"))
    mine, theirs = (read_json(tmp_path / name / "controller.json") for name in ("notebook", "commands"))
    for one in (mine, theirs):
        one["workload"]["spec"] = Path(one["workload"]["spec"]).name
    assert mine == theirs
