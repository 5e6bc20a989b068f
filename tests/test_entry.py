"""How the process ends: an interrupt in one line and status 130, whenever it comes; with nobody left to read as if somebody were."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import headway
from headway.cli.entry import main

ROOT = Path(headway.__file__).resolve().parents[1]
INTERRUPTS = """
import os, signal, sys, time

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
            print("went on")

sys.meta_path.insert(0, Interrupting())
from headway.cli import main
sys.exit(main())
"""
"""A process that gets the interrupt just when a module begins to load."""


@pytest.mark.parametrize("module", ["typer", "headway.cli.decide", "numpy", "jax"])
def test_an_interrupt_while_something_loads_is_one_line(module: str, tmp_path: Path) -> None:
    words = ["score", str(tmp_path / "plant.json"), str(tmp_path / "trace.csv")]
    (tmp_path / "plant.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTS.format(module=module), *words], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "headway: interrupted\n")


def test_the_door_leaves_the_handler_of_its_caller_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("headway ")
    assert signal.getsignal(signal.SIGINT) is before


def test_the_door_is_light() -> None:
    code = "import sys, headway.cli; sys.exit(any(name in sys.modules for name in ('typer', 'numpy', 'headway.cli.app')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0


RUNS = [sys.executable, "-c", "import sys; from headway.cli import main; sys.exit(main())", "runs", "--in"]


def test_who_stops_reading_does_not_change_the_status(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run([*RUNS, str(tmp_path)], cwd=ROOT, stdout=writes, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writes)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_output_is_nobodys_fault(tmp_path: Path) -> None:
    done = subprocess.run(["sh", "-c", '"$0" "$@" >&-', *RUNS, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_sign_that_the_terminal_cannot_show_is_a_question_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    (tmp_path / "µ").mkdir()
    assert main(["runs", "--in", str(tmp_path / "µ")]) == 0
    assert raw.getvalue().decode("ascii").startswith("no run in ")
    assert "/?" in raw.getvalue().decode("ascii")
