"""What is exported: it acts as the law does, in a process that has nothing but the folder; and what is refused."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.controllers.pi import PILaw
from headway.controllers.policy import Policy
from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import Candidate
from headway.controllers.static import StaticLaw
from headway.controllers.updown import UpDownLaw
from headway.engines import EXPORTERS, export
from headway.engines.export import GOLDEN_COLUMNS, GOLDEN_ROWS, export_json, export_python, golden
from headway.engines.runtime import Runtime
from headway.models.identified import Hull
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target

PLANT = RegimePlant((0.006, 6e-5, 5e-9, 0.0, 0.0, 0.0), (0.007, 1e-4, 0.0, 2e-5, 5e-10, 5e-4))
LAWS = (StaticLaw(2048.0), UpDownLaw(), PILaw(slope_s_per_token=2e-5))
TUNED = {"outcome": "better", "gain": 0.1}


def record(law: Any = LAWS[2], policy: Policy = Policy(), tuning: dict[str, Any] = TUNED) -> ControllerRecord:  # noqa: B008
    return ControllerRecord(
        Candidate(law, policy),
        (Target(1.0, 0.025, name="chat"), Target(10.0, 0.05, name="batch")),
        Limits(kv_tokens=200_000, max_seqs=64),
        PLANT,
        Hull(32.0, 200_000.0, 8192.0, 9e7),
        {"file": "plant.json", "sha256": "0"},
        {"spec": "poisson:rate=5"},
        tuning,
    )


def isolated(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A bare interpreter: no site-packages, no current folder, no environment."""
    return subprocess.run([sys.executable, "-I", "-S", *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_the_table_holds_what_issue_and_command_name() -> None:
    assert set(EXPORTERS) == {"json", "python"}
    assert EXPORTERS is export.EXPORTERS


def test_json_is_canonical_and_reads_back(tmp_path: Path) -> None:
    out = export_json(record(), tmp_path / "a" / "out")
    assert out.files == ("controller.json",)
    text = (out.folder / "controller.json").read_text()
    data = json.loads(text)
    assert text == json.dumps(data, sort_keys=True, indent=2) + "\n"
    assert data == json.loads(json.dumps(record().to_json()))
    assert ControllerRecord.from_json(data).to_json() == record().to_json()


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.law)
def test_the_python_export_replays_its_golden_steps_in_a_bare_interpreter(law, tmp_path: Path) -> None:
    out = export_python(record(law), tmp_path / "out")
    assert set(out.files) == {"headway_runtime.py", "gains.json", "golden.csv", "README.md"} == set(os.listdir(out.folder))
    assert isolated(out.folder, "-c", "import headway").returncode != 0
    done = isolated(out.folder, "headway_runtime.py", "gains.json", "golden.csv")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{GOLDEN_ROWS} rows agree\n", "")


def test_a_changed_gain_or_law_does_not_pass_the_golden_steps(tmp_path: Path) -> None:
    folder = export_python(record(), tmp_path / "out").folder
    gains = json.loads((folder / "gains.json").read_text())
    gains["law"]["gains"]["ki"]["value"] = 0.16
    (folder / "gains.json").write_text(json.dumps(gains))
    done = isolated(folder, "headway_runtime.py", "gains.json", "golden.csv")
    assert done.returncode == 1
    assert re.match(r"row \d+: (token budget|state) .*expected", done.stdout)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.law)
def test_the_example_in_the_readme_runs_in_a_bare_interpreter(law, tmp_path: Path) -> None:
    folder = export_python(record(law), tmp_path / "out").folder
    text = (folder / "README.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    done = isolated(folder, "-c", f"import sys; sys.path.insert(0, '.')\n{example}")
    assert done.returncode == 0, done.stderr
    budget = int(done.stdout.split()[0])
    assert 25 <= budget <= 8192
    assert "(120, 10.4)" in done.stdout
    assert "Warning" not in text


def test_the_runtime_says_where_it_comes_from(tmp_path: Path) -> None:
    folder = export_python(record(), tmp_path / "out").folder
    first = (folder / "headway_runtime.py").read_text().splitlines()[0]
    gains = json.loads((folder / "gains.json").read_text())
    assert headway.__version__ in first
    assert gains["content_sha256"] == record().to_json()["content_sha256"]
    assert gains["content_sha256"] in first
    run = Runtime.from_json(folder / "gains.json")
    assert run.rate_tps == gains["prefill_rate_tps"]["value"]
    assert run.content == gains["content_sha256"]


def test_the_golden_steps_visit_what_a_law_must_handle() -> None:
    rows = [dict(zip(GOLDEN_COLUMNS, row, strict=True)) for row in golden(record())]
    assert len(rows) == GOLDEN_ROWS
    times = [float.fromhex(row["step_time_s"]) for row in rows]
    assert math.isnan(times[0])
    late = sum(t > 0.025 for t in times[1:])
    assert 20 < late < 400
    assert {row["binding"] for row in rows} == {"0", "1"}
    assert any(row["ready_requests"] == "0" for row in rows)
    assert any(int(row["token_budget"]) == int(row["ready_requests"]) > 0 for row in rows), "the budget never fell to the decodes alone"
    assert len({row["state_0"] for row in rows}) > 200
    assert rows == [dict(zip(GOLDEN_COLUMNS, row, strict=True)) for row in golden(record())]


def test_an_export_is_the_same_every_time(tmp_path: Path) -> None:
    a, b = (export_python(record(), tmp_path / name).folder for name in "ab")
    for name in os.listdir(a):
        assert (a / name).read_bytes() == (b / name).read_bytes()


def test_the_csv_has_500_rows(tmp_path: Path) -> None:
    folder = export_python(record(), tmp_path / "out").folder
    with (folder / "golden.csv").open(newline="") as file:
        assert sum(1 for _ in csv.DictReader(file)) == 500


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tuning": {"outcome": "no better"}}, "no better than the best static setting"),
        ({"tuning": {}}, "was not tuned"),
        ({"policy": Policy(triage="none")}, "triage is off"),
    ],
)
def test_what_a_user_must_know_is_returned_and_on_top_of_the_readme(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    out = export_python(record(**changed), tmp_path / "out")
    assert len(out.warnings) == 1
    assert words in out.warnings[0]
    assert words in (out.folder / "README.md").read_text().split("## Use")[0]
    assert export_json(record(**changed), tmp_path / "json").warnings == out.warnings


@pytest.mark.parametrize("name", ["json", "python"])
def test_a_folder_that_holds_something_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty; name a new folder") as caught:
        EXPORTERS[name](record(), tmp_path)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["notes.txt"]
    out = EXPORTERS[name](record(), tmp_path, force=True)
    assert set(os.listdir(tmp_path)) == {"notes.txt", *out.files}
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not [p for p in os.listdir(tmp_path.parent) if p.startswith(f".{tmp_path.name}.")]
    with pytest.raises(ValueError, match="is a file; name a folder"):
        EXPORTERS[name](record(), tmp_path / "notes.txt")


def test_an_empty_folder_is_filled_and_readable(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export_json(record(), tmp_path / "out")
    fresh = export_json(record(), tmp_path / "fresh").folder
    assert fresh.stat().st_mode & 0o777 == (tmp_path / "out").stat().st_mode & 0o777
    assert (tmp_path / "out" / "controller.json").read_bytes() == (fresh / "controller.json").read_bytes()


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(export.os, "replace", full)
    with pytest.raises(OSError, match="no space"):
        export_python(record(), tmp_path / "out")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["json", "python"])
def test_case_e13_an_unstable_loop_is_not_exported(name: str, tmp_path: Path) -> None:
    law = dataclasses.replace(LAWS[2], kp=1.0, ki=1.5)
    with pytest.raises(ValueError, match=r"refused: unstable at .* kp 1 and ki 1\.5 must come down") as caught:
        EXPORTERS[name](record(law), tmp_path / "out", force=True)
    assert "\n" not in str(caught.value)
    assert not os.listdir(tmp_path)


def test_a_number_that_is_not_finite_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not finite"):
        export_json(record(tuning={"outcome": "better", "gain": math.nan}), tmp_path / "out")
    assert not os.listdir(tmp_path)


def test_a_runtime_that_does_not_act_as_the_law_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(export.runtime.MOVES, "pi", lambda *_: None)
    with pytest.raises(RuntimeError, match="golden row"):
        export_python(record(), tmp_path / "out")
    assert not os.listdir(tmp_path)


def test_a_law_without_a_runtime_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export.runtime, "LAWS", {"static": (), "pi": ()})
    with pytest.raises(ValueError, match="law 'updown' has no runtime; export it as json"):
        export_python(record(LAWS[1]), tmp_path / "out")


def test_the_package_alone_does_not_load_jax() -> None:
    code = "import sys, headway.engines, headway.engines.runtime; sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    root = Path(headway.__file__).resolve().parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60, check=False).returncode == 0


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'IMPORTERS'"):
        _ = headway.engines.IMPORTERS  # pyright: ignore[reportAttributeAccessIssue]
