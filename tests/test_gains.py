"""Gains set by hand at the command line: what is understood, what is refused, and what the written controller says of itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli.entry import main
from headway.controllers.pi import PILaw
from headway.experiments.whole_files import read_json
from headway.gains import gains_text, parse_gains, rounded
from headway.loads import read_controller
from tests.small_run import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "r"
    write_run(folder)
    return folder


def test_gains_are_read_as_they_are_written() -> None:
    gains = {"margin": rounded(0.1234567), "ki": rounded(1e-3 / 7)}
    assert parse_gains(gains_text(gains), PILaw()) == gains
    assert parse_gains(" margin = 20% , ki=.1 ", PILaw()) == {"margin": 0.2, "ki": 0.1}
    assert parse_gains("", PILaw()) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("margin", "must be name=value by comma, got 'margin'; write for example margin=20%,ki=0.1"),
        ("marign=0.1", "law pi has no 'marign'; did you mean margin?"),
        ("margin=.1,margin=.2", "names 'margin' twice"),
        ("ki=fast", "ki must be a number, got 'fast'"),
        ("ki=11", r"ki must be in \[0, 10\], got 11"),
        ("ki=nan", r"ki must be in \[0, 10\], got nan"),
    ],
)
def test_what_is_no_gain_is_refused_in_a_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        parse_gains(text, PILaw())
    assert "\n" not in str(error.value)


def test_analyse_looks_at_the_law_with_other_gains_and_writes_it(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files, out = [str(run / "controller.json"), str(run / "plant.json")], tmp_path / "moved.json"
    found = []
    for options in ([], ["--gains", "ki=0.3,kp=0.2"], ["--gains", "ki=0.3,kp=0.2", "--policy", "chunk_tokens=256", "--out", str(out)]):
        assert main(["analyse", *files, *options, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    plain, moved, written = found
    assert moved == written
    assert moved["gain_margin_db"] < plain["gain_margin_db"]
    record = read_controller(out)
    assert not record.edited
    assert (record.candidate.law.ki, record.candidate.policy.chunk_tokens) == (0.3, 256.0)  # pyright: ignore[reportAttributeAccessIssue]
    assert record.tuning["certificate"]["verdict"] == moved["verdict"]
    assert "set by hand after tuning: ki=0.3, kp=0.2, chunk_tokens=256" in record.tuning["warnings"][-1]
    assert read_json(run / "controller.json")["law"]["gains"]["ki"]["value"] == 0.15
    assert main(["analyse", *files, "--out", files[0]]) == 2
    assert "would be written over" in capsys.readouterr().err
