"""The path of somebody new: walked whole where there is a browser, and each way in which a step can fail."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("dash", reason="the workbench needs dash: pip install 'headway[web]'")
pytest.importorskip("playwright", reason="the path is walked in a browser that playwright drives; the developer's extra brings it")

from benchmarks.browser import chromium

walk = pytest.importorskip("scripts.newcomer_walk", reason="the scripts lie in the checkout; these tests run from a copy")
ROOT = Path(__file__).resolve().parents[1]
STEPS = ["install", "demo", "open", "workbench", "drop a trace", "verdict", "export", "written"]
ADAPTER = "def make_scheduler(*a):\n    return a\n"


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="no Chromium on the path; Debian: apt-get install chromium")
def test_somebody_new_gets_from_a_checkout_to_an_export_for_vllm() -> None:
    done = subprocess.run([ROOT / "scripts" / "newcomer"], capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^ok +[\d.]+ s  ([\w ]+): ", done.stdout, re.MULTILINE) == STEPS


def exported(folder: Path, **texts: str) -> Any:
    """A place whose export has these files."""
    files = {"headway_vllm.py": ADAPTER, "controller.json": "{}", "README.md": f"vllm serve llm {walk.FLAG}"}
    files |= {name.replace("__", "."): text for name, text in texts.items()}
    (folder / "export-vllm").mkdir()
    for name, text in files.items():
        (folder / "export-vllm" / name).write_text(text)
    return walk.Place(folder, None, "", [])


def test_a_whole_export_is_taken(tmp_path: Path) -> None:
    assert walk.written(exported(tmp_path)) == "README.md, controller.json, headway_vllm.py"


@pytest.mark.parametrize(
    ("texts", "fault"),
    [
        ({"headway_vllm__py": "def other(): ..."}, "has no make_scheduler"),
        ({"headway_vllm__py": ADAPTER + "from headway.models import plant"}, "imports headway"),
        ({"headway_vllm__py": ADAPTER + "import headway"}, "imports headway"),
        ({"README__md": "start it"}, "does not say --scheduler-cls"),
    ],
)
def test_an_export_that_a_server_could_not_use_is_no_export(tmp_path: Path, texts: dict[str, str], fault: str) -> None:
    with pytest.raises(walk.Unmet, match=re.escape(fault)):
        walk.written(exported(tmp_path, **texts))


def test_a_missing_file_is_seen(tmp_path: Path) -> None:
    place = exported(tmp_path)
    (tmp_path / "export-vllm" / "README.md").unlink()
    with pytest.raises(walk.Unmet, match=r"holds controller\.json, headway_vllm\.py"):
        walk.written(place)


def test_a_step_that_fails_says_what_was_expected_and_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert walk.walked("look", "a door", lambda: "a green door")

    def missing() -> str:
        raise walk.Unmet("a wall")

    assert not walk.walked("look", "a door", missing)
    good, bad = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"ok +\d+\.\d s  look: a green door", good)
    assert re.fullmatch(r"FAILS +\d+\.\d s  look: expected a door; found: a wall", bad)


def test_a_command_that_fails_is_told_with_its_status_and_last_line(tmp_path: Path) -> None:
    with pytest.raises(walk.Unmet, match=r"ended with status 3: no such trace"):
        walk.called(["sh", "-c", "echo first >&2; echo no such trace >&2; exit 3"], tmp_path, 10)
    assert walk.called(["sh", "-c", "command -v headway"], tmp_path, 10).strip().endswith(f"bin{os.sep}headway")


def test_without_a_browser_nothing_is_begun(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(walk, "chromium", lambda: None)
    assert walk.main([]) == 2
    assert "apt-get install chromium" in capsys.readouterr().err
    monkeypatch.undo()
    if chromium() is not None:
        (tmp_path / "notes.txt").write_text("mine")
        assert walk.main(["--keep", str(tmp_path)]) == 2
        assert (tmp_path / "notes.txt").read_text() == "mine"
