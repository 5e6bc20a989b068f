"""Runs listed, renamed, removed; and what `headway` alone says in folders of every kind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli.run_index import run_lines
from headway.experiments.run import STAGES, RunFolder
from headway.experiments.whole_files import write_json
from headway.next_step import next_step
from headway.run_index import remove_run, rename_run, row_of, runs_in

REQUEST = {"workload": "/data/azure.csv", "rate_rps": 13.0, "target": "ttft=1s,itl=25ms"}


def made(path: Path, stages: int = 0) -> Path:
    """A run whose first stages are done."""
    folder = RunFolder(path)
    folder.open(REQUEST, resume=False)
    for stage in list(STAGES)[:stages]:
        if stage == "export":
            write_json(folder.file(stage) / "json" / "controller.json", {})
        else:
            write_json(folder.file(stage), {"outcome": "met", "controller": {"attainment": 0.97}})
        folder.finish(stage, 1.0)
    return path


def said(folder: Path) -> str:
    return "\n".join(next_step(folder))


def test_runs_are_listed_with_how_far_they_got(tmp_path: Path) -> None:
    made(tmp_path / "runs" / "half", 3)
    made(tmp_path / "runs" / "whole", 6)
    (tmp_path / "runs" / "no run").mkdir()
    rows = {row.path.name: row for row in runs_in(tmp_path)}
    assert set(rows) == {"half", "whole"}
    assert (rows["half"].next_stage, rows["half"].outcome) == ("validate", None)
    assert (rows["whole"].next_stage, rows["whole"].outcome, rows["whole"].attainment) == (None, "met", 0.97)
    text = "\n".join(run_lines(list(rows.values()), tmp_path))
    assert "3 of 6, next validate" in text
    assert "azure.csv at 13/s, ttft=1s,itl=25ms" in text
    assert "97.0 %" in text


def test_a_broken_manifest_is_a_row_with_its_fault(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "manifest.json").write_text("{")
    made(tmp_path / "good")
    rows = {row.path.name: row for row in runs_in(tmp_path)}
    assert "line 1" in (rows["bad"].fault or "")
    assert rows["good"].fault is None
    assert "note: " in "\n".join(run_lines(list(rows.values()), tmp_path))
    assert "cannot be read" in said(tmp_path / "bad")


def test_a_run_is_renamed_where_it_stands_and_never_over_another(tmp_path: Path) -> None:
    made(tmp_path / "a", 2)
    made(tmp_path / "b")
    with pytest.raises(ValueError, match="b is taken"):
        rename_run(tmp_path / "a", "b")
    for name in ("", "..", "x/y"):
        with pytest.raises(ValueError, match="no name for a run"):
            rename_run(tmp_path / "a", name)
    place = rename_run(tmp_path / "a", "friday")
    assert place == tmp_path / "friday"
    assert row_of(place).done == ("trace", "fit")
    assert not (tmp_path / "a").exists()


def test_only_a_run_is_removed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "manifest.json").write_text(json.dumps({"schema": "somebody else's"}))
    with pytest.raises(ValueError, match="nothing was touched"):
        remove_run(precious)
    with pytest.raises(ValueError, match="no run stands there"):
        remove_run(tmp_path)
    (tmp_path / "link").symlink_to(made(tmp_path / "run", 1))
    with pytest.raises(ValueError, match="is a link"):
        remove_run(tmp_path / "link")
    remove_run(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert (precious / "manifest.json").exists()


def test_headway_alone_tells_the_next_step_of_every_kind_of_folder(tmp_path: Path) -> None:
    assert "headway demo" in said(tmp_path)
    write_json(tmp_path / "plant.json", {})
    assert "headway tune plant.json" in said(tmp_path)
    write_json(tmp_path / "controller.json", {})
    assert "headway validate controller.json" in said(tmp_path)
    write_json(tmp_path / "validation.json", {})
    assert "headway export controller.json" in said(tmp_path)

    run = made(tmp_path / "work" / "runs" / "a b", 3)
    assert "--resume ." in said(run)
    assert "goes on at validate" in said(run)
    assert f"headway run --resume '{run}'" in said(tmp_path / "work")
    whole = made(tmp_path / "work" / "runs" / "c", 6)
    assert "finished run: validation met, 97.0 % on time" in said(whole)
    (whole / "export" / "refused.txt").write_text("no")
    assert "headway analyse controller.json plant.json" in said(whole)
    with pytest.raises(ValueError, match="no such folder"):
        next_step(tmp_path / "absent")


def test_a_trace_and_the_requests_beside_it_are_told_apart_by_content(tmp_path: Path) -> None:
    (tmp_path / "requests.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,10,5\n")
    assert said(tmp_path).startswith("here are requests (requests.csv), but no trace")
    header = "step,step_time_s,decode_requests,decode_kv_tokens,prefill_requests,prefill_tokens,prefill_pairs"
    (tmp_path / "my steps.csv").write_text(f"{header}\n0,0.01,1,100,0,0,0\n1,0.01,1,101,0,0,0\n")
    text = said(tmp_path)
    assert text.startswith("here is a trace of engine steps: my steps.csv")
    assert "headway fit 'my steps.csv'" in text
    assert "--workload requests.csv" in text


def test_the_commands_say_the_same(tmp_path: Path) -> None:
    made(tmp_path / "runs" / "x", 6)

    def headway(*words: str, answer: str = "") -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "headway", *words], cwd=tmp_path, input=answer, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    assert headway()[1].startswith("here is the run runs/x\n")
    assert json.loads(headway("runs", "--json")[1])["runs"][0]["outcome"] == "met"
    assert headway("runs", "rename", "x", "y")[1] == "renamed    runs/x to runs/y\n"
    assert headway("runs", "remove", "y", answer="n\n")[1].endswith("kept       nothing was removed\n")
    assert headway("runs", "remove", "x") == (2, "headway: x: no run of that name in .; `headway runs` lists those that are there\n")
    assert headway("runs", "remove", "y", "--yes") == (0, "removed    runs/y\n")
    assert headway("runs")[1].startswith("no run in .;")
