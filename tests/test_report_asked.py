"""What the files of single stages know of how they were made, and what the report of such a folder says of its trace."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from headway.loads import read_controller
from headway.models.signals import Target
from headway.report.asked import asked_of_tune, target_lines, target_text
from headway.report.commands import commands
from headway.report.data import collect
from headway.report.page import page
from headway.report.panels import Lack
from headway.report.sections import source_section
from headway.requirements import parse_requirements, parse_robust
from headway.targets import parse_target
from tests.small_plant import Read
from tests.small_run import controller_json, plant_json, validation_json, write_run


def option(command: str, name: str) -> str:
    words = shlex.split(command)
    return words[words.index(f"--{name}") + 1]


def by_hand(folder: Path) -> Path:
    write_run(folder)
    for name in ("manifest.json", "trace.parquet"):
        (folder / name).unlink()
    return folder


def test_the_commands_of_single_stages_hold_all_that_their_files_know() -> None:
    plant, controller, check = plant_json(), controller_json(), validation_json()
    plant["training"] |= {"where": {"mode": "real"}, "epsilon": 0.02, "blocks": "even"}
    plant |= {"ladder": [{"name": "one law"}]}
    controller["workload"] = {"spec": "a file.csv", "rate_rps": 14.0, "rows": [0, 500], "requests": 400}
    controller["engine"]["max_seqs"] = 32
    controller["policy"] |= {"triage": "defer", "order": "slack"}
    controller["tuning"] |= {
        "objective": "requests",
        "required": [{"name": "class.chat", "at": "least", "bound": 0.95}, {"name": "ttft_p99", "at": "most", "bound": 2.0}],
        "robust": {"tail": 0.25},
        "knees": {"of": {}},
        "bound": None,
        "effort": {"seed": 3, "gradient": "fluid"},
    }
    made = commands(Path("r"), {}, {"fit": plant, "tune": controller, "validate": check})
    assert made["fit"] == (
        "headway fit logs/steps.csv --where mode=real --blocks even --kv-tokens 100000 --block 16 --max-seqs 64 --max-len 131072 "
        "--max-tokens 8192 --epsilon 0.02 --seed 7 --out r/plant.json"
    )
    assert made["tune"] == (
        "headway tune r/plant.json --workload 'a file.csv' --target ttft=1s,itl=25ms --objective requests --policy triage=defer "
        "--rate 14/s --rows 0:500 --requests 400 --max-seqs 32 --require 'class.chat>=95%,ttft_p99<=2s' --robust cvar:25% "
        "--no-bound --analyse knee --gradient fluid --seed 3 --out r/controller.json"
    )
    assert [(r.label, r.bound) for r in parse_requirements(option(made["tune"], "require"))] == [("class.chat", 0.95), ("ttft_p99", 2.0)]
    assert parse_robust(option(made["tune"], "robust"), 0).tail == 0.25
    assert made["validate"] == "headway validate r/controller.json --engine kernels --runs 3 --out r/validation.json"
    assert "--trace logs/steps.csv --workload 'a file.csv' --target ttft=1s,itl=25ms" in made["run"]
    # more of it asked for later takes the place of what was switched off
    assert "--no-bound" not in Lack("no bound.", "tune", "--bound").command(made)
    # what is known of a plant alone leaves a placeholder for the rest
    alone = commands(Path("r"), {}, {"fit": plant, "tune": None, "validate": None})
    assert alone["tune"] == "headway tune r/plant.json --workload WORKLOAD --target TARGET --out r/controller.json"


@pytest.mark.parametrize("text", ["ttft=1s,itl=25ms", "ttft=1.5s,itl=12.5ms,transport=2ms,epsilon=2.5%,level=request"])
def test_a_target_is_written_as_it_is_read(text: str) -> None:
    targets, _ = parse_target(text)
    fields = [{**vars(t)} for t in targets]
    assert parse_target(target_text({"targets": fields}) or "")[0] == targets
    assert target_lines({"targets": fields}) == []
    assert target_text(None) is None


def test_classes_are_written_as_the_file_that_they_were_read_from(tmp_path: Path) -> None:
    targets = (Target(1.0, 0.03, name="chat", share=0.7), Target(10.0, 0.1, 0.002, 0.05, "batch", 0.3, "request"))
    controller: dict[str, Any] = {"targets": [{**vars(t)} for t in targets]}
    assert target_text(controller) == "target.toml"
    (tmp_path / "target.toml").write_text("\n".join(target_lines(controller)))
    assert parse_target(str(tmp_path / "target.toml"))[0] == targets


def test_of_a_static_setting_that_won_nothing_is_taken_for_asked() -> None:
    controller = {**controller_json(), "law": {"kind": "static"}, "policy": {"order": "fcfs", "triage": "none"}}
    assert asked_of_tune(controller, None)["policy"] == ""


def test_a_folder_of_single_stages_says_once_where_its_trace_lies(tmp_path: Path) -> None:
    found = collect(by_hand(tmp_path / "r"))
    read = Read(page(found))
    text = "\n".join(read.lines).replace("\N{NO-BREAK SPACE}", " ")
    assert text.count("keeps no copy of the trace") == 1
    assert "the plant was fitted to logs/steps.csv. This makes a run of its own that holds them: headway run --trace logs/steps.csv" in text
    assert text.count("Its figures need the trace: see section 1.") == 2
    assert "not there yet" not in text
    sources = "\n".join(Read(source_section(found)).lines)
    assert "headway run" not in sources  # it has not all options of the stages
    assert "TRACE" not in sources
    assert "WORKLOAD" not in sources
    assert read_controller(tmp_path / "r" / "controller.json").workload["spec"] in sources
