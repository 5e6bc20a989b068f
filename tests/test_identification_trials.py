"""Trials of identification: what a hostile user types, edits and records, and what must come of it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from headway.cli import main
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.identification.score import score
from headway.models.identified import IdentifiedPlant
from tests.synthetic_steps import TRUTH, coefficients, composed, durations, noise, traced


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace and its plant."""
    place, batch = tmp_path_factory.mktemp("trials"), composed(800, seed=5)
    frame = pl.DataFrame({"step": np.arange(800), "step_time_s": durations(batch, 0.03, seed=5), **batch._asdict()})
    frame.write_csv(place / "steps.csv")
    assert main(["fit", str(place / "steps.csv"), "--structure", "regimes", "--out", str(place / "plant.json")]) == 0
    return place


def booked(step_time_s: np.ndarray, share: float, direction: str) -> np.ndarray:
    """What a recorder writes that books a share of each step on its neighbour."""
    held = step_time_s.copy()
    if direction == "late":
        held[1:] = (1 - share) * step_time_s[1:] + share * step_time_s[:-1]
    else:
        held[:-1] = (1 - share) * step_time_s[:-1] + share * step_time_s[1:]
    return held


@pytest.mark.parametrize("direction", ["late", "early"])
def test_a_share_booked_on_a_neighbour_is_told_in_both_regimes(direction: str) -> None:
    """A law fitted first takes the mean neighbour into its floor; the share must be told beside that, not after it."""
    batch = composed(2500, seed=1)
    y = booked(TRUTH.step_time_s(batch), 0.2, direction) * np.exp(noise(2500, 0.03, seed=1001))
    found = fit(traced(batch, y), structure="regimes")
    for regime in ("decode", "mixed"):
        assert found.about["lag"][direction][regime] == pytest.approx(0.2, abs=0.015)
    truth = {name: c.value for name, c in TRUTH.coefficients().items()}
    for name in ("decode.floor", "mixed.floor", "mixed.per_prefill_token"):
        assert coefficients(found.plant)[name] == pytest.approx(truth[name], rel=0.06)
    assert found.about["heldout"]["mape_mixed"] < 0.03


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_nothing_is_booked_where_nothing_was(correlation: float) -> None:
    for seed in range(3):
        batch = composed(2000, seed=seed)
        found = fit(traced(batch, durations(batch, 0.03, seed=seed, correlation=correlation)), structure="regimes")
        assert max(share for part in found.about["lag"].values() for share in part.values()) == 0.0


def test_clean_steps_raise_no_alarm_of_their_scatter() -> None:
    """The band is of as few steps as the score: its own error counts, or one clean trace in ten is called scattered."""
    said = 0
    for seed in range(12):
        batch = composed(2000, seed=seed)
        found = fit(traced(batch, durations(batch, 0.03, seed=seed + 1000)), structure="regimes")
        said += sum("scatter more than the plant says" in w for w in found.about["warnings"])
    assert said <= 1


def test_a_bent_plant_is_not_told_what_straight_lines_want() -> None:
    batch = composed(2500, seed=0)
    y = (TRUTH.step_time_s(batch) + np.where(batch.decode_requests + batch.prefill_tokens > 300, 15e-3, 0.0)) * np.exp(noise(2500, 0.03, 7))
    found = fit(traced(batch, y))
    assert found.plant.structure == "curved"
    assert not any("plain least squares" in w for w in found.about["warnings"])


ARGUMENTS = {
    "--block 0": "block_tokens must be at least 1",
    "--seed -1": "--seed",
    "--tp 4": "--llm",
    "--llm qwen3-32b --tp 3": "64 heads",
    "--llm qwen3-32b --device h200 --tp 100000": "64 heads",
    "--where step=5": "got 1 of 1 asked for",
}


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a refused command says."""
    capsys.readouterr()
    assert main(arguments) == 2
    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if "% done" not in line]
    assert said.out == ""
    assert len(lines) == 1
    assert "fault of Headway" not in lines[0]
    return lines[0]


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_a_value_that_cannot_be_is_refused_in_one_line(
    arguments: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused(["fit", str(folder / "steps.csv"), "--out", str(tmp_path / "p.json"), *arguments.split()], capsys)
    assert ARGUMENTS[arguments] in line
    assert not (tmp_path / "p.json").exists()


def test_a_result_is_never_written_over_what_was_read(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, plant = tmp_path / "steps.csv", tmp_path / "plant.json"
    trace.write_bytes((folder / "steps.csv").read_bytes())
    plant.write_bytes((folder / "plant.json").read_bytes())
    (tmp_path / "link.csv").symlink_to(trace)
    before = trace.read_bytes(), plant.read_bytes()
    for arguments in (
        ["fit", str(trace), "--out", str(trace)],
        ["fit", str(trace), "--out", str(tmp_path / "link.csv")],
        ["scale", str(trace), "--tp", "1", "--to", "2", "--out", str(trace)],
        ["record", "--plan", "--from", str(plant), "--out-plan", str(plant)],
        ["record", "--plan", "--trace", str(trace), "--out-plan", str(trace)],
    ):
        assert "name another file" in refused(arguments, capsys)
        assert (trace.read_bytes(), plant.read_bytes()) == before


def test_rows_that_were_all_set_aside_are_counted_with_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = composed(50)
    pl.DataFrame({"step": np.arange(50), "step_time_s": np.zeros(50), **batch._asdict()}).write_csv(tmp_path / "idle.csv")
    line = refused(["fit", str(tmp_path / "idle.csv"), "--out", str(tmp_path / "p.json")], capsys)
    assert "idle.csv" in line
    assert "got 0 of 50 asked for (set aside: 50 idle)" in line


def change(*keys: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    """Set one value of a nested mapping."""

    def put(data: Any) -> None:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return put


EDITS = {
    "lag a list": change("lag", "late", value=[1]),
    "lag text": change("lag", "late", "decode", value="x"),
    "lag above one": change("lag", "late", "decode", value=5.0),
    "training a list": change("training", value=[1]),
    "sources text": change("sources", value="abc"),
    "sources numbers": change("sources", value=[1, 2]),
    "coefficient true": change("coefficients", "decode.floor", "value", value=True),
    "coefficient text": change("coefficients", "decode.floor", "value", value="0.006"),
    "margin of seven": change("margin", "decode", value=7.0),
    "margin of another regime": change("margin", "other", value=0.1),
    "residuals nested": change("residuals", "decode", value=[[0.1, 0.2], [0.3, 0.4]]),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_plant_that_was_edited_wrongly_is_named_in_one_line(
    edit: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = json.loads((folder / "plant.json").read_text())
    EDITS[edit](data)
    (tmp_path / "edited.json").write_text(json.dumps(data))
    assert "edited.json" in refused(["score", str(tmp_path / "edited.json"), str(folder / "steps.csv")], capsys)


def test_a_score_says_what_it_is_of(folder: Path) -> None:
    plant = IdentifiedPlant.from_json(json.loads((folder / "plant.json").read_text()))
    batch = composed(300, seed=9)
    y = durations(batch, 0.03, seed=9)
    assert any("times what the plant says" in w and "seconds" in w for w in score(plant, traced(batch, y * 1e6)).warnings)
    assert not any("times what the plant says" in w for w in score(plant, traced(batch, y)).warnings)
    few = score(plant, traced(composed(5, seed=9), y[:5]))
    assert any(w.startswith("only 5 steps to score") for w in few.warnings)


def test_steps_of_nanoseconds_are_noticed_as_those_of_minutes_are() -> None:
    batch = composed(300, seed=3)
    y = durations(batch, 0.03, seed=3)
    said = [any("in seconds?" in w for w in fit(traced(batch, y * k), structure="affine").about["warnings"]) for k in (1e-3, 1.0, 1e3)]
    assert said == [True, False, True]


def test_a_pipe_is_refused_before_it_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "steps.pipe"
    os.mkfifo(pipe)  # nobody writes: a command that opened it would wait for ever
    assert "save it first" in refused(["fit", str(pipe), "--out", str(tmp_path / "p.json")], capsys)
    assert "save it first" in refused(["transport", str(pipe)], capsys)


def test_a_copy_of_a_file_under_another_name_is_noticed(folder: Path, tmp_path: Path) -> None:
    for name in ("one.csv", "two.csv"):
        (tmp_path / name).write_bytes((folder / "steps.csv").read_bytes())
    said = read_trace([tmp_path / "one.csv", tmp_path / "two.csv"]).warnings
    assert any("two.csv holds the same bytes as" in w for w in said)
    assert not any("same bytes" in w for w in read_trace(tmp_path / "one.csv").warnings)
