"""The run folder: files whole or not at all, JSON that any reader takes, a manifest that knows its files, and when a run may go on."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.checkpoints import CheckpointFile
from headway.experiments.run import MANIFEST, STAGES, RunFolder, versions
from headway.experiments.whole_files import ENDING, place_beside, read_json, sha256_of, without_nan, write_json, write_whole

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)
REQUEST = {"trace": "t.parquet", "rate_rps": 13.0, "seed": 0}


def begun(path: Path, **changes: Any) -> RunFolder:
    folder = RunFolder(path)
    folder.open({**REQUEST, **changes}, resume=False)
    return folder


# files


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "er" / "plant.json"
    write_whole(file, "first")
    write_whole(file, b"second")
    assert file.read_bytes() == b"second"
    assert os.listdir(file.parent) == ["plant.json"]


def test_a_kill_while_writing_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "plant.json"
    write_whole(file, "old")
    whole = Path.write_bytes

    def half(self: Path, data: bytes) -> int:
        whole(self, data[: len(data) // 2])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(KeyboardInterrupt):
        write_whole(file, "something new and longer")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["plant.json"]


@pytest.fixture
def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_a_killed_process_left_beside_a_file_is_cleared_and_what_a_living_one_writes_is_not(tmp_path: Path, dead: int) -> None:
    file = tmp_path / "plant.json"
    start = place_beside(file).name.removesuffix(f"{os.getpid()}{ENDING}")
    living = [f"{start}{os.getppid()}{ENDING}", f"{start}1{ENDING}"]
    elsewhere = [f".plant.json.another-machine.{dead}{ENDING}", f".other{start}{dead}{ENDING}", f"{start}x{ENDING}", f"{start}{dead}"]
    left = [f"{start}{dead}{ENDING}", f"{start}{10**30}{ENDING}"]
    for name in (*living, *elsewhere, *left):
        (tmp_path / name).write_text("half", encoding="utf-8")
    write_whole(file, "new")
    assert sorted(os.listdir(tmp_path)) == sorted(["plant.json", *living, *elsewhere])


def test_a_search_that_ends_clears_what_its_killed_forerunner_left(tmp_path: Path, dead: int) -> None:
    file = tmp_path / ".controller.json.checkpoint"
    folder = place_beside(file)
    folder = folder.with_name(folder.name.replace(f".{os.getpid()}.", f".{dead}."))
    folder.mkdir()  # as an export's is
    (folder / "guard.json").write_text("{}", encoding="utf-8")
    CheckpointFile(file).clear()
    assert not os.listdir(tmp_path)
    CheckpointFile(tmp_path / "nowhere" / "c").clear()


def test_a_reader_never_sees_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, seen = tmp_path / "x", []
    write_whole(file, "a" * 1000)
    whole = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda self, data: (whole(self, data), seen.append(file.read_text()))[0])
    write_whole(file, "b" * 2000)
    assert seen == ["a" * 1000]
    assert file.read_text() == "b" * 2000


# JSON


def test_what_json_does_not_know_becomes_null(tmp_path: Path) -> None:
    value = {
        "nan": math.nan,
        "list": [math.inf, -math.inf, 1.5, (np.float64("nan"), np.float32(0.5))],
        "numpy": {"int": np.int64(3), "bool": np.bool_(True), "float": np.float64(2.0)},
        "kept": [None, True, "nan", 7],
    }
    write_json(tmp_path / "x.json", value)
    assert json.loads((tmp_path / "x.json").read_text(), parse_constant=pytest.fail) == {
        "nan": None,
        "list": [None, None, 1.5, [None, 0.5]],
        "numpy": {"int": 3, "bool": True, "float": 2.0},
        "kept": [None, True, "nan", 7],
    }


@given(PLAIN)
def test_plain_values_lose_nothing_in_cleaning(value: Any) -> None:
    assert without_nan(value) == value


@given(st.recursive(st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(), st.lists, max_leaves=30))
def test_lists_of_numbers_stand_on_one_line_and_mean_the_same(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    file = tmp_path_factory.getbasetemp() / "numbers.json"
    write_json(file, {"value": value, "end": "x"})
    assert read_json(file) == {"value": value, "end": "x"}
    assert not re.search(r"\[[^\]\[]*\d[^\]\[]*\n[^\]\[]*\]", file.read_text())


@pytest.mark.parametrize("text", ["windows [1,  2]", "a[  ]"])
def test_a_text_is_written_as_it_is(tmp_path: Path, text: str) -> None:
    write_json(tmp_path / "x.json", {"text": text})
    assert read_json(tmp_path / "x.json") == {"text": text}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "x.json: no such file"),
        ('{"a": 1,\n "b": }', "x.json line 2 column 7: not JSON (Expecting value)"),
        ("", "x.json line 1 column 1: not JSON (Expecting value)"),
        (b"\xff\xfe{}", "x.json: cannot be read as text (UnicodeDecodeError)"),
        ("a folder", "x.json: cannot be read as text (IsADirectoryError)"),
    ],
)
def test_a_file_that_is_no_json_is_named_with_the_place(tmp_path: Path, content: str | bytes | None, message: str) -> None:
    file = tmp_path / "x.json"
    if content == "a folder":
        file.mkdir()
    elif content is not None:
        write_whole(file, content)
    with pytest.raises(ValueError, match="^" + re.escape(f"{tmp_path}/{message}") + "$"):
        read_json(file)


# the manifest


def test_the_hash_is_that_of_the_bytes_and_a_folder_counts_all_its_files(tmp_path: Path) -> None:
    write_whole(tmp_path / "d" / "b.json", "two")
    write_whole(tmp_path / "d" / "a" / "c.json", "one")
    assert sha256_of(tmp_path / "d" / "b.json") == hashlib.sha256(b"two").hexdigest()
    before = sha256_of(tmp_path / "d")
    assert before == hashlib.sha256(b"a/c.json\0oneb.json\0two").hexdigest()
    write_whole(tmp_path / "d" / "a" / "c.json", "One")
    assert sha256_of(tmp_path / "d") != before


def test_a_new_run_says_what_it_was_asked_for_and_with_what(tmp_path: Path) -> None:
    found = begun(tmp_path / "run", rate_rps=math.nan).manifest()
    assert found == {"schema": "headway/run/1", "request": {**REQUEST, "rate_rps": None}, "versions": versions(), "stages": {}}
    assert {"python", "headway", "numpy", "jax", "numba"} <= set(found["versions"])
    assert all(isinstance(v, str) and v for v in found["versions"].values())


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_done_while_its_file_is_the_one_it_wrote(tmp_path: Path, stage: str) -> None:
    folder = begun(tmp_path / "run")
    file = folder.file(stage)
    inside = file / "json" / "controller.json" if stage == "export" else file
    assert not folder.done(stage)
    write_whole(inside, "content")
    assert not folder.done(stage), "a file that no stage has answered for"
    folder.finish(stage, 1.23456, seeds=[0, 1])
    assert folder.done(stage)
    assert folder.manifest()["stages"] == {stage: {"file": STAGES[stage], "sha256": sha256_of(file), "seconds": 1.235, "seeds": [0, 1]}}
    write_whole(inside, "another content")
    assert not folder.done(stage)
    write_whole(inside, "content")
    assert folder.done(stage)
    inside.unlink()
    assert not folder.done(stage)


def test_stages_are_added_and_replaced_one_by_one(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    for stage in ("fit", "tune"):
        write_whole(folder.file(stage), stage)
        folder.finish(stage, 1.0)
    write_whole(folder.file("fit"), "again")
    folder.finish("fit", 2.0)
    assert [folder.done(stage) for stage in STAGES] == [False, True, True, False, False, False]
    assert folder.manifest()["stages"]["fit"]["seconds"] == 2.0
    assert folder.manifest()["request"] == REQUEST


# when a run may begin, and when it may go on


def test_a_run_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    write_whole(folder.file("fit"), "{}")
    folder.finish("fit", 1.0)
    before = (folder.path / MANIFEST).read_bytes()
    again = RunFolder(tmp_path / "run")
    again.open(REQUEST, resume=True)
    assert again.done("fit")
    assert not again.done("tune")
    assert (folder.path / MANIFEST).read_bytes() == before


def test_a_list_and_a_tuple_ask_for_the_same(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", rows=(0, 100))
    folder.open({**REQUEST, "rows": [0, 100]}, resume=True)


def _nothing(path: Path) -> None: ...


def _a_file(path: Path) -> None:
    path.write_text("x")


def _somebody_elses(path: Path) -> None:
    write_whole(path / "thesis.tex", "x")


@pytest.mark.parametrize(
    ("prepare", "resume", "changes", "message"),
    [
        (_a_file, False, {}, "is a file; give a folder"),
        (_a_file, True, {}, "is a file; give a folder"),
        (_somebody_elses, False, {}, "is not empty and holds no run; give a new folder"),
        (_somebody_elses, True, {}, "is not empty and holds no run; give a new folder"),
        (_nothing, True, {}, "holds no run to resume; leave --resume out"),
        (begun, False, {}, "already holds a run; add --resume to go on with it, or give a new folder"),
        (begun, True, {"seed": 1}, "was begun with another seed; give a new folder"),
        (begun, True, {"seed": 1, "rate_rps": math.nan}, "was begun with another rate_rps, seed; give a new folder"),
        (begun, True, {"more": 1}, "was begun with another more; give a new folder"),
    ],
)
def test_a_folder_is_refused(tmp_path: Path, prepare: Any, resume: bool, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "run"
    prepare(path)
    before = sorted((f, f.read_bytes()) for f in path.rglob("*")) if path.is_dir() else None
    with pytest.raises(ValueError, match="^" + re.escape(f"{path} {message}") + "$"):
        RunFolder(path).open({**REQUEST, **changes}, resume=resume)
    assert before == (sorted((f, f.read_bytes()) for f in path.rglob("*")) if path.is_dir() else None), "nothing was written"
    assert path.exists() == (prepare is not _nothing)


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert begun(tmp_path / "run").manifest()["stages"] == {}


def test_a_stage_that_wrote_nothing_is_not_finished(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    with pytest.raises((ValueError, OSError)):
        folder.finish("fit", 1.0)
