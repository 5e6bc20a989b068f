"""No command writes over a file that it reads, however the file was named: in a recipe, beside a trace, in a controller, by a link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.cli.entry import main
from headway.cli.options import not_over_inputs, sources_of, trace_files
from headway.controllers.record import SCHEMA
from headway.engines.export import EXPORTERS, RECORD_FILES, write_folder
from headway.experiments.whole_files import read_json, write_json
from headway.loads import read_controller
from headway.workloads import files_of, located
from tests.small_run import controller_json, plant_json, write_run

TARGET = "ttft=1s,itl=25ms"
REQUESTS = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,100,20\n0.5,100,20\n"
LENGTHS = "input_length,output_length\n100,20\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a plant, a controller tuned on it and on reqs.csv, a target, and a trace with its configuration."""
    monkeypatch.chdir(tmp_path)
    content = controller_json()
    content["workload"]["spec"] = f"{tmp_path / 'reqs.csv'},patience=2s"
    write_json(tmp_path / "controller.json", content)
    write_json(tmp_path / "plant.json", plant_json())
    texts = {
        "reqs.csv": REQUESTS,
        "len.csv": LENGTHS,
        "target.toml": "[[class]]\n",
        "st/noteng.csv": "step\n",
        "st/noteng.v2.csv": "step\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    write_json(tmp_path / "st/noteng.engine_config.json", {"headway": {"kv_tokens": 1000}})
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> str:
    """The one line of a command that exits 2 and leaves every file as it was."""
    before = contents(folder)
    assert main(list(arguments)) == 2
    assert contents(folder) == before
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("command", [["validate", "controller.json"], ["analyse", "controller.json", "other.json"]])
@pytest.mark.parametrize("name", ["plant.json", "reqs.csv", "link.json"])
def test_what_a_controller_was_tuned_on_is_kept(command: list[str], name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "link.json").symlink_to("plant.json")
    (folder / "other.json").write_bytes((folder / "plant.json").read_bytes())
    source = {"reqs.csv": str(folder / "reqs.csv")}.get(name, "plant.json")
    said = f"--out {name} would be written over {source}, which controller.json was tuned on; name another file\n"
    assert refused(capsys, folder, *command, "--out", name) == f"headway: {said}"


@pytest.mark.parametrize(
    ("options", "out"),
    [
        (["--target", "target.toml"], "target.toml"),
        (["--workload", "len.csv"], "len.csv"),
        (["--workload", "sharegpt:len.csv@2/s,patience=2s"], "len.csv"),
        (["--workload", "poisson:rate=5/s,lengths=len.csv"], "len.csv"),
        (["--workload", "poisson:rate=5/s,lengths=len.csv"], "reqs.csv"),
        (["--plant", "st/plant.json"], "st/plant.json"),
        (["--plant", "st/plant.json"], "plant.json"),
    ],
)
def test_what_validation_is_given_is_kept(options: list[str], out: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "st/plant.json").write_bytes((folder / "plant.json").read_bytes())
    assert f"--out {out} would be written over" in refused(capsys, folder, "validate", "controller.json", *options, "--out", out)


@pytest.mark.parametrize(
    ("workload", "out"),
    [
        ("reqs.csv", "reqs.csv"),
        ("reqs.csv,patience=2s", "reqs.csv"),
        ("azure:reqs.csv@2/s,patience=2s", "reqs.csv"),
        ("reqs.csv,patience=2s", "link.csv"),
        ("poisson:rate=5/s,lengths=len.csv", "len.csv"),
        ("poisson:lengths= len.csv ,rate=5/s,patience=2s", "len.csv"),
    ],
)
def test_what_tuning_is_given_is_kept(workload: str, out: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "link.csv").symlink_to("reqs.csv")
    source = "len.csv" if "len.csv" in workload else "reqs.csv"
    said = f"--out {out} would be written over {source}, which this command reads; name another file\n"
    line = refused(capsys, folder, "tune", "plant.json", "--workload", workload, "--target", TARGET, "--out", out)
    assert line == f"headway: {said}"


def test_a_target_file_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", "plant.json", "--workload", "reqs.csv", "--target", "target.toml", "--out", "target.toml"]
    assert "would be written over target.toml, which this command reads" in refused(capsys, folder, *words)


@pytest.mark.parametrize(
    "command",
    [
        ["fit", "st/noteng.csv"],
        ["fit", "st/noteng.v2.csv"],
        ["scale", "st/noteng.csv", "--to", "4"],
        ["record", "--plan", "--trace", "st/noteng.csv"],
    ],
)
@pytest.mark.parametrize("out", ["st/noteng.engine_config.json", "link.json"])
def test_the_configuration_beside_a_trace_is_kept(command: list[str], out: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "link.json").symlink_to("st/noteng.engine_config.json")
    said = f"--out {out} would be written over st/noteng.engine_config.json, which this command reads; name another file\n"
    assert refused(capsys, folder, *command, "--out", out) == f"headway: {said}"


def test_what_is_written_beside_a_recording_is_no_input(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["record", "--design", "st/noteng.engine_config.json", "--out", "st/noteng.parquet"]
    assert "would be written over st/noteng.engine_config.json" in refused(capsys, folder, *words)


def test_tables_that_are_read_together_are_kept(tmp_path: Path) -> None:
    tables = tmp_path / "llm" / "tp1"
    tables.mkdir(parents=True)
    for name in ("attention.csv", "dense.csv", "per_sequence.csv", "meta.yaml"):
        (tables / name).write_text("")
    (tmp_path / "llm/config.json").write_text("{}")
    for given in (tables, tables / "attention.csv"):
        for read in ("attention.csv", "dense.csv", "meta.yaml", "../config.json"):
            with pytest.raises(ValueError, match="would be written over"):
                not_over_inputs("--out", tables / read, trace_files([given]))
        (tables / "plant.json").write_text("{}")
        not_over_inputs("--out", tables / "plant.json", trace_files([given]))


def test_the_files_of_a_workload(folder: Path) -> None:
    clients = folder / "clients"
    clients.mkdir()
    for name in ("chunk-0-trace.csv", "chunk-0-dataset.json", "notes.txt"):
        (clients / name).write_text("")
    both = {clients / "chunk-0-trace.csv", clients / "chunk-0-dataset.json"}
    assert set(files_of("clients")) - {Path("clients")} == {file.relative_to(folder) for file in both}
    assert both <= set(files_of(f"{clients / 'chunk-0-trace.csv'},patience=2s"))
    assert files_of("closed:clients=2,think=1s,prompt=64,output=32") == files_of("") == []
    assert files_of("poisson:rate=5/s,lengths=a(b,c).csv,patience=2s") == [Path("a(b,c).csv")]
    assert files_of("x" * 5000) == []
    assert files_of("sharegpt:" + "x" * 5000) == [Path("x" * 5000)]
    assert located("poisson:lengths=len.csv,rate=5/s") == f"poisson:lengths={folder / 'len.csv'},rate=5/s"


def test_a_result_may_be_written_again(folder: Path) -> None:
    record = read_controller(folder / "controller.json")
    (folder / "validation.json").write_text("{}")
    (folder / "st/plant.json").write_text("{}")
    not_over_inputs("--out", Path("validation.json"), [*sources_of(record, Path("controller.json")), *files_of("reqs.csv,patience=2s")])
    not_over_inputs("--out", Path("st/plant.json"), trace_files([Path("st/noteng.csv"), Path(".")]))


@pytest.mark.parametrize("engine", ["json", "vllm"])
@pytest.mark.parametrize("out", ["d", "link"])
def test_an_export_leaves_its_controller(engine: str, out: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "d").mkdir()
    (folder / "link").symlink_to("d")
    (folder / "controller.json").rename(folder / "d/controller.json")
    line = refused(capsys, folder, "export", "d/controller.json", "--engine", engine, "--out", out, "--force", "--uncertified")
    assert line == (
        f"headway: --out {out}/controller.json would be written over d/controller.json, which this command reads; "
        f"name another folder, such as {out}/{engine}\n"
    )
    assert main(["export", "d/controller.json", "--engine", engine, "--out", f"{out}/{engine}", "--uncertified"]) == 0
    capsys.readouterr()
    again = ["export", f"{out}/{engine}/controller.json", "--engine", engine, "--out", f"{out}/{engine}", "--force", "--uncertified"]
    assert "would be written over" in refused(capsys, folder, *again)
    assert main(["export", "d/controller.json", "--engine", engine, "--out", f"{out}/{engine}", "--force", "--uncertified"]) == 0


def test_an_export_leaves_other_controllers_and_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "d").mkdir()
    (folder / "d/controller.json").write_bytes((folder / "controller.json").read_bytes())
    words = ["export", "controller.json", "--force", "--uncertified", "--out"]
    said = "d/controller.json is a tuned controller, which this export would replace; name another folder, such as d/exported"
    assert said in refused(capsys, folder, *words, "d")
    write_run(folder / "run")
    said = "run is the folder of a run, whose files its manifest.json vouches for; name another folder, such as run/exported"
    assert said in refused(capsys, folder, *words, "run", "--engine", "python")
    assert said in refused(capsys, folder, *words, "run")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "other"}', "\xff"])
def test_what_is_no_controller_of_a_run_may_be_replaced(text: str, tmp_path: Path) -> None:
    for name in ("manifest.json", "controller.json"):
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    write_folder(tmp_path, {"controller.json": "new"}, (), force=True)
    assert (tmp_path / "controller.json").read_text() == "new"
    assert (tmp_path / "manifest.json").read_bytes() == text.encode("latin-1")


@pytest.mark.parametrize("engine", sorted(EXPORTERS))
def test_the_table_names_the_file_that_may_be_exported_again(engine: str, folder: Path) -> None:
    written = EXPORTERS[engine](read_controller(folder / "controller.json"), folder / "out", uncertified=True)
    found = [name for name in written.files if name.endswith(".json") and _schema(written.folder / name) == SCHEMA]
    assert found == ([RECORD_FILES[engine]] if engine in RECORD_FILES else [])


def _schema(file: Path) -> Any:
    content = read_json(file)
    return content.get("schema") if isinstance(content, dict) else None
