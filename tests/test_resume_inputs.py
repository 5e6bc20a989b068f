"""A run that is resumed reads what it was begun with, from any folder, alone; what has changed, is gone or is damaged is said in a line."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import headway.whole as whole
from headway.cli import main
from headway.experiments.run import MANIFEST, RunFolder
from headway.experiments.whole_files import ENDING, read_json, sha256_of, write_json
from headway.run_index import runs_in
from headway.whole import Request
from tests.synthetic_steps import composed, durations

ROOT = Path(__file__).resolve().parent.parent
TOML = '[[class]]\nname = "chat"\nshare = 1.0\nttft = "500ms"\nitl = "25ms"\n'
LIMITS = ["--requests", "60", "--kv-tokens", "200k", "--max-tokens", "2048"]
ASKED = ["run", "--trace", "s.csv", "--workload", "reqs.csv,patience=5s", "--target", "t.toml", *LIMITS, "--out", "r"]


def killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files that a run was begun with, and those that it had left when it was killed as it began to tune."""
    place = tmp_path_factory.mktemp("begun")
    batch = composed(800, seed=5)
    pl.DataFrame({"step": np.arange(800), "step_time_s": durations(batch, 0.03, seed=5), **batch._asdict()}).write_csv(place / "s.csv")
    rng = np.random.default_rng(3)
    rows = {"arrival_s": np.cumsum(rng.exponential(0.1, 400)), "prompt_tokens": rng.integers(50, 900, 400)}
    pl.DataFrame({**rows, "output_tokens": rng.integers(10, 90, 400)}).write_csv(place / "reqs.csv")
    (place / "t.toml").write_text(TOML)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(whole, "tune_stage", killed)
        assert main(ASKED) == 130
    assert {p.name for p in (place / "r").iterdir()} == {"manifest.json", "plant.json", "trace.parquet"}
    return {p.relative_to(place).as_posix(): p.read_bytes() for p in place.rglob("*") if p.is_file()}


@pytest.fixture
def begun(made: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a copy of all that, the paths in its manifest too; what would tune is killed again."""
    place = tmp_path / "a"
    for name, content in made.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    text = (place / "r" / MANIFEST).read_text()
    old = os.path.dirname(json.loads(text)["request"]["target"])
    (place / "r" / MANIFEST).write_text(text.replace(old, str(place)))
    monkeypatch.chdir(place)
    monkeypatch.setattr(whole, "tune_stage", killed)
    return place


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command says that changes nothing and ends with bad input."""
    here = {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}
    capsys.readouterr()
    assert main([*arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "fault of Headway" not in said.err
    assert here == {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}
    return said.err.removeprefix("headway: ").strip()


def test_the_manifest_keeps_whole_paths_and_a_hash_of_every_file(begun: Path) -> None:
    known = read_json(begun / "r" / MANIFEST)
    assert known["request"]["workload"] == f"{begun}/reqs.csv,patience=5s"
    assert known["request"]["target"] == f"{begun}/t.toml"
    assert known["inputs"] == {f"{begun}/{name}": sha256_of(begun / name) for name in ("s.csv", "t.toml", "reqs.csv")}


def test_what_has_not_changed_is_resumed_from_any_folder(begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "b")
    for name in ("s.csv", "t.toml", "reqs.csv"):
        (tmp_path / "b" / name).write_text("of somebody else")
    assert main(["run", "--resume", "../a/r"]) == 130, "it goes on until it tunes"


@pytest.mark.parametrize("name", ["s.csv", "reqs.csv", "t.toml"])
def test_a_file_that_has_changed_is_named(name: str, begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = (begun / name).read_text()
    (begun / name).write_text(content.replace("25ms", "40ms") if name == "t.toml" else content[: content.rindex("\n", 0, -1)] + "\n")
    said = refused(capsys, "run", "--resume", "r")
    assert said == f"{begun}/{name} has changed since the run in r was begun; put it back, or begin a new run in another folder"
    (begun / name).write_text(content)
    assert main(["run", "--resume", "r"]) == 130


def test_a_file_that_is_gone_is_named_and_a_trace_is_not_needed_once_it_is_fitted(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (begun / "s.csv").unlink()
    assert main(["run", "--resume", "r"]) == 130
    (begun / "r" / "plant.json").unlink()
    assert refused(capsys, "run", "--resume", "r").startswith(f"{begun}/s.csv is gone since the run in r was begun; put it back, or")


def test_a_target_that_is_gone_is_named(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (begun / "t.toml").unlink()
    assert refused(capsys, "run", "--resume", "r").startswith(f"{begun}/t.toml is gone since the run in r was begun; put it back, or")


def test_a_run_of_an_earlier_version_resumes_and_says_what_is_not_known(
    begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = read_json(begun / "r" / MANIFEST)
    del known["inputs"]
    known["request"].update(workload="reqs.csv,patience=5s", target="t.toml")
    write_json(begun / "r" / MANIFEST, known)
    assert main(["run", "--resume", "r"]) == 130
    folder = RunFolder(Path("r"))
    (said,) = whole.same_inputs(folder, Request.of_folder(folder))
    assert said.startswith(
        "the run was begun by a Headway that kept no hashes of its files: whether they have changed since is not known; "
    )
    assert said.endswith(f"t.toml, reqs.csv are read from {begun}")
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "b")
    said = refused(capsys, "run", "--resume", "../a/r")
    assert said == f"t.toml, the target file of the run, is not there, seen from {tmp_path}/b; resume from where the run was begun"
    (tmp_path / "b" / "t.toml").write_text(TOML)
    assert refused(capsys, "run", "--resume", "../a/r").startswith("reqs.csv, the workload file of the run, is not there, seen from ")


WORKLOADS: dict[str, tuple[str, ...]] = {
    "reqs.csv": ("reqs.csv",),
    "azure:reqs.csv@8/s,patience=2s": ("reqs.csv",),
    "poisson:rate=5/s,lengths=reqs.csv,patience=2s": ("reqs.csv",),
    "poisson:rate=5/s,prompt=600,output=200": (),
    "chunks": ("chunks/chunk-0-dataset.json", "chunks/chunk-0-trace.csv", "chunks/chunk-1-dataset.json", "chunks/chunk-1-trace.csv"),
    "chunks/chunk-1-trace.csv": ("chunks/chunk-1-dataset.json", "chunks/chunk-1-trace.csv"),
}


@pytest.mark.parametrize("text", WORKLOADS)
def test_the_files_of_a_workload_are_found_in_its_recipe(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chunks").mkdir()
    for name in ("reqs.csv", "chunks/notes.txt", *WORKLOADS["chunks"]):
        (tmp_path / name).write_text("x")
    request = Request(traces=("s.csv",), workload=text, target="ttft=1s,itl=25ms").located()
    assert sorted(request.files()) == [str(tmp_path / name) for name in WORKLOADS[text]]
    assert request.located() == request


# one at a time

HOLDER = """
import sys, time
from pathlib import Path
from headway.experiments.run import RunFolder
with RunFolder(Path(sys.argv[1])).alone(resume=True):
    print("held", flush=True)
    time.sleep(120)
"""


def test_a_second_run_is_refused_and_a_killed_one_leaves_the_folder_free(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "text": True, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDER, "r"], **options) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            said = refused(capsys, "run", "--resume", "r")
            assert said == "r: another run writes to this folder now; wait for it, or give a new folder"
            assert refused(capsys, *ASKED) == said
            assert [row.path.name for row in runs_in(begun)] == ["r"], "who only reads it is not kept out"
        finally:
            holder.send_signal(signal.SIGKILL)
    assert {p.name for p in Path("r").iterdir()} == {"manifest.json", "plant.json", "trace.parquet"}
    assert main(["run", "--resume", "r"]) == 130
    assert main(["run", "--resume", "r"]) == 130, "a run that has ended has let go"


def test_where_a_folder_cannot_be_locked_a_hidden_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.flock

    def as_on_nfs(held: int, how: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{held}"):
            raise OSError(9, "Bad file descriptor")
        real(held, how)

    monkeypatch.setattr(fcntl, "flock", as_on_nfs)
    folder = RunFolder(tmp_path / "r")
    with folder.alone(resume=False), pytest.raises(ValueError, match="another run writes to this folder now"), folder.alone(resume=False):
        pass
    assert [p.name for p in folder.path.iterdir()] == [f".lock{ENDING}"]
    with folder.alone(resume=False):
        folder.open({}, resume=False)

    def never(held: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", never)
    with pytest.raises(ValueError, match=r"cannot be written or locked \(No locks available\)"), folder.alone(resume=True):
        pass


def test_what_is_no_folder_is_not_made_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name, why in (("file", "is a file; give a folder"), ("none", "holds no run to resume"), ("file/in", "cannot be written")):
        with pytest.raises(ValueError, match=why), RunFolder(tmp_path / name).alone(resume=name == "none"):
            pass
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


# a damaged manifest


def put(part: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(known: dict[str, Any]) -> None:
        *way, last = part.split(".")
        for name in way:
            known = known[name]
        known[last] = value

    return change


DAMAGE: dict[str, tuple[Any, str]] = {
    "request.traces": (5, "request.traces must be a list of file names, got 5"),
    "request.effort": ({"nope": 1}, "request.effort.nope must be left out: it is none of train_seeds, "),
    "request.effort.sobol": ("x", "request.effort.sobol must be a whole number, got 'x'"),
    "request.target": (None, "request.target must be text, got null"),
    "request.limits": ([1], "request.limits must be values by name, got [1]"),
    "request.limits.kv_tokens": (True, "request.limits.kv_tokens must be a whole number, got True"),
    "request.where": ([1], "request.where must be texts by column, got [1]"),
    "request.where.mode": (1, 'request.where must be texts by column, got {"mode": 1}'),
    "request.seed": ("x", 'request.seed must be a whole number from 0, got "x"'),
    "request.rate_rps": (-1.0, "request.rate_rps must be a number above 0, or null, got -1.0"),
    "request.rows": ([0, "x"], "request.rows must be two whole numbers from 0, "),
    "request.epsilon": (2, "request.epsilon must be a number between 0 and 1, or null, got 2"),
    "request.requests": (0, "request.requests must be a whole number above 0, or null, got 0"),
    "request.live_s": (float("inf"), "request.live_s must be a number above 0, got Infinity"),
    "request.more": (1, "request.more is not known here: it was changed, or "),
    "request": ("x", 'request must be values by name, got "x"'),
    "stages": (["fit"], 'stages must be values by name, got ["fit"]'),
    "stages.fit": ("x", 'stages.fit must be what a finished stage noted, with its sha256 as text, got "x"'),
    "stages.fit.sha256": (5, "stages.fit must be what a finished stage noted, with its sha256 as text, got {"),
    "inputs": ([1], "inputs must be values by name, got [1]"),
    "inputs.x": (1, "inputs.x must be the sha256 of that file, as text, got 1"),
}


@pytest.mark.parametrize("part", DAMAGE)
def test_a_damaged_manifest_is_named_with_the_field(part: str, begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value, expected = DAMAGE[part]
    known = read_json(begun / "r" / MANIFEST)
    put(part, value)(known)
    (begun / "r" / MANIFEST).write_text(json.dumps(known))
    assert refused(capsys, "run", "--resume", "r").startswith(f"r/manifest.json: {expected}")


def test_a_field_that_is_missing_is_named(begun: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = read_json(begun / "r" / MANIFEST)
    del known["request"]["seed"]
    write_json(begun / "r" / MANIFEST, known)
    assert refused(capsys, "run", "--resume", "r") == (
        "r/manifest.json: request.seed is missing: it was changed, or r was begun by another version of Headway; start a new run"
    )
