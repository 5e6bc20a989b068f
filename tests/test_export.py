"""What is exported: it acts as the law does, in a process that has nothing but the folder; and what is refused."""

from __future__ import annotations

import csv
import dataclasses
import json
import logging
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.controllers.balanced import BalancedLaw
from headway.controllers.feedforward import FeedforwardLaw
from headway.controllers.pi import PILaw
from headway.controllers.policy import Policy
from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import Candidate
from headway.controllers.static import StaticLaw
from headway.controllers.tracker import TrackerLaw
from headway.controllers.updown import UpDownLaw
from headway.engines import EXPORTERS, export
from headway.engines.bundle import PARTS, runtime_source
from headway.engines.export import export_json, export_python
from headway.engines.golden import GOLDEN_COLUMNS, GOLDEN_ROWS, golden
from headway.engines.runtime import Runtime
from headway.engines.runtime_drift import DRIFT_NUMBERS
from headway.models.identified import Hull
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target

PLANT = RegimePlant((0.006, 6e-5, 5e-9, 0.0, 0.0, 0.0), (0.007, 1e-4, 0.0, 2e-5, 5e-10, 5e-4))
LAWS = (StaticLaw(2048.0), UpDownLaw(), PILaw(slope_s_per_token=2e-5), BalancedLaw(), FeedforwardLaw(PLANT), TrackerLaw(PLANT))
CERTIFIED = {"verdict": "certified", "reason": "phase margin 80 degrees", "numbers": {"phase_margin_deg": 80.0}}
REFUSED = {"verdict": "refused", "reason": "limit cycle of 90 tokens", "numbers": {"cycle_tokens": 90.0}}
TUNED = {"outcome": "better", "gain": 0.1, "certificate": CERTIFIED}


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
    assert set(EXPORTERS) == {
        "json",
        "python",
        "c99",
        "vllm",
        "vllm-flags",
        "sglang-flags",
        "trtllm-flags",
        "vllm-ascend",
        "sglang",
        "transformers",
    }
    assert EXPORTERS is export.EXPORTERS


def test_json_is_canonical_and_reads_back(tmp_path: Path) -> None:
    out = export_json(record(), tmp_path / "a" / "out")
    assert out.files == ("controller.json",)
    text = (out.folder / "controller.json").read_text()
    data = json.loads(text)
    assert text == json.dumps(data, sort_keys=True, indent=2) + "\n"
    assert data == {**json.loads(json.dumps(record().to_json())), "certificate": CERTIFIED}
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
    assert "bad reading" not in done.stderr
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
    late = sum(t > 0.025 for t in times)
    assert 20 < late < 400
    assert {row["binding"] for row in rows} == {"0", "1"}
    assert any(row["ready_requests"] == "0" for row in rows)
    assert any(int(row["token_budget"]) == int(row["ready_requests"]) > 0 for row in rows), "the budget never fell to the decodes alone"
    assert sum(math.isnan(t) for t in times) > 10, "the sensor never failed"
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


def test_the_golden_steps_call_the_watchdog(tmp_path: Path) -> None:
    folder = export_python(record(LAWS[5]), tmp_path / "out").folder
    run = Runtime.from_json(folder / "gains.json")
    with (folder / "golden.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            run.update(float.fromhex(row["step_time_s"]), *(float(row[name]) for name in GOLDEN_COLUMNS[1:10]))
    assert run.counts["fallback"] > 0
    assert run.counts["missing"] > 10


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tuning": {**TUNED, "outcome": "no better"}}, "no better than the best static setting"),
        ({"tuning": {"certificate": CERTIFIED}}, "was not tuned"),
        ({"policy": Policy(triage="none")}, "triage is off"),
    ],
)
def test_what_a_user_must_know_is_returned_and_on_top_of_the_readme(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    out = export_python(record(**changed), tmp_path / "out")
    assert len(out.warnings) == 1
    assert words in out.warnings[0]
    assert words in (out.folder / "README.md").read_text().split("## Use")[0]
    assert export_json(record(**changed), tmp_path / "json").warnings == out.warnings


@pytest.mark.parametrize("name", ["json", "python", "c99"])
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


@pytest.mark.parametrize("name", ["json", "python", "c99"])
def test_case_e13_an_unstable_loop_is_not_exported(name: str, tmp_path: Path) -> None:
    law = dataclasses.replace(LAWS[2], kp=1.0, ki=1.5)
    with pytest.raises(ValueError, match=r"refused: unstable at .* kp 1 and ki 1\.5 must come down") as caught:
        EXPORTERS[name](record(law), tmp_path / "out", force=True)
    assert "\n" not in str(caught.value)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["json", "python", "c99"])
def test_a_refused_certificate_stops_the_export_unless_told_so_and_then_stands_in_it(name: str, tmp_path: Path, caplog) -> None:
    refused = record(LAWS[5], tuning={**TUNED, "certificate": REFUSED})
    with pytest.raises(ValueError, match=r"^refused: limit cycle of 90 tokens; --uncertified writes it all the same") as caught:
        EXPORTERS[name](refused, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not os.listdir(tmp_path)
    out = EXPORTERS[name](refused, tmp_path / "out", uncertified=True)
    assert "certificate was refused (limit cycle of 90 tokens)" in out.warnings[0]
    if name == "c99":
        assert "certificate: refused, and exported all the same: limit cycle" in (out.folder / "headway_law.h").read_text()
    else:
        file = out.folder / ("controller.json" if name == "json" else "gains.json")
        assert json.loads(file.read_text())["certificate"] == {**REFUSED, "uncertified": True}
        with caplog.at_level(logging.WARNING, "headway_runtime"):
            Runtime.from_json(file)
        assert "exported without a certificate: limit cycle of 90 tokens" in caplog.text
    if name != "json":
        assert "Certificate: refused, and exported all the same" in (out.folder / "README.md").read_text()


def test_a_certificate_that_nobody_has_is_made_and_one_of_a_file_changed_by_hand_is_not_believed(tmp_path: Path) -> None:
    made = json.loads((export_json(record(LAWS[5], tuning={}), tmp_path / "a").folder / "controller.json").read_text())["certificate"]
    assert made["verdict"] in ("certified", "refused", "measured")
    assert len(made["reason"]) > 10
    assert made["numbers"]
    edited = dataclasses.replace(record(LAWS[0], tuning={**TUNED, "certificate": REFUSED}), edited=True)
    out = export_json(edited, tmp_path / "b")
    assert json.loads((out.folder / "controller.json").read_text())["certificate"]["verdict"] == "measured"


def test_every_part_of_the_runtime_is_in_the_bundle_once() -> None:
    folder = Path(export.__file__).parent
    assert sorted(PARTS) == sorted(path.stem for path in folder.glob("runtime*.py"))
    source = runtime_source("0")
    compile(source, "headway_runtime.py", "exec")
    assert "from headway" not in source
    assert source.count("from __future__") == 1


def test_two_parts_that_name_one_thing_are_not_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.engines.bundle.PARTS", (*PARTS, "golden"))
    monkeypatch.setattr("headway.engines.bundle._names", lambda _: ["same"])
    with pytest.raises(RuntimeError, match="both name something same"):
        runtime_source("0")


def test_a_number_that_is_not_finite_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not finite"):
        export_json(record(tuning={**TUNED, "gain": math.nan}), tmp_path / "out")
    assert not os.listdir(tmp_path)


WIDE = Policy(
    triage="degrade",
    degrade=3.0,
    admission="lookahead",
    lookahead_z=1.0,
    priority_s=(0.5, -2.0),
    memory_price_s=0.002,
    aging_rate=0.5,
)
"""Every part that a runtime carries."""
WHOLE = dataclasses.replace(
    WIDE, phases="decode_first", prefill_every=6.0, stride=0.5, class_shares=(3.0, 1.0), preemption="swap", decode_every=2.0
)
"""Every part that there is."""


def test_what_every_part_is_set_to_is_written_and_reads_back_equal(tmp_path: Path) -> None:
    limits = Limits(kv_tokens=200_000, max_seqs=64, reservation="full", scheduling="async", prefix_cache="off", swap_block_s=3e-4)
    held = dataclasses.replace(record(policy=WHOLE), limits=limits)
    folder = export_json(held, tmp_path / "json").folder
    back = ControllerRecord.from_json(json.loads((folder / "controller.json").read_text()))
    assert (back.candidate, back.limits, back.targets, back.edited) == (held.candidate, limits, held.targets, False)
    python = export_python(record(policy=WIDE), tmp_path / "python").folder
    gains = json.loads((python / "gains.json").read_text())
    assert ControllerRecord.from_json(gains).candidate == record(policy=WIDE).candidate
    run = Runtime.from_json(python / "gains.json")
    assert (run.triage, run.degrade, run.priority_s, run.memory_price_s) == ("degrade", 3.0, (0.5, -2.0), 0.002)


def test_the_readme_says_what_the_parts_ask_of_the_engine_and_the_export_still_replays(tmp_path: Path) -> None:
    folder = export_python(record(policy=WIDE), tmp_path / "out").folder
    text = (folder / "README.md").read_text()
    for words in ("Once `degrades(...)` is true", "3 times its class's", "put forward by 0.5, -2 s", "`blocks`", "`hit_tokens`"):
        assert words in text
    assert "`hit_tokens`" not in (export_python(record(), tmp_path / "plain").folder / "README.md").read_text()
    assert isolated(folder, "headway_runtime.py", "gains.json", "golden.csv").stdout == f"{GOLDEN_ROWS} rows agree\n"
    asked = (
        "import headway_runtime as h; r = h.Runtime.from_json('gains.json'); print(r.degrades(9, 0.0, 99.0), r.key(9, 0.0, 1.0, blocks=4))"
    )
    done = isolated(folder, "-c", f"import sys; sys.path.insert(0, '.'); {asked}")
    assert done.stdout.startswith("True "), done.stderr


@pytest.mark.parametrize("name", ["python", "c99"])
@pytest.mark.parametrize("part", ["phases", "preemption", "prefill_every", "decode_every", "stride", "class_shares"])
def test_case_e23_a_part_that_would_do_nothing_beside_the_engine_is_not_exported(part: str, name: str, tmp_path: Path) -> None:
    policy = dataclasses.replace(Policy(), **{part: getattr(WHOLE, part)})  # pyright: ignore[reportArgumentType]  # by @pytree
    with pytest.raises(ValueError, match=rf"^policy part {part} .* is for the engine's own scheduler, .*export it as json$") as caught:
        EXPORTERS[name](record(policy=policy), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not os.listdir(tmp_path)
    assert export_json(record(policy=policy), tmp_path / "json").files == ("controller.json",)


def test_a_runtime_that_does_not_act_as_the_law_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(export.runtime_laws.MOVES, "pi", lambda *_: None)
    with pytest.raises(RuntimeError, match="golden row"):
        export_python(record(), tmp_path / "out")
    assert not os.listdir(tmp_path)


def test_a_law_without_a_runtime_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export.runtime_laws, "LAWS", {"static": (), "pi": ()})
    with pytest.raises(ValueError, match="law 'updown' has no runtime; export it as json"):
        export_python(record(LAWS[1]), tmp_path / "out")


def test_the_package_alone_does_not_load_jax() -> None:
    code = "import sys, headway.engines, headway.engines.runtime; sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    root = Path(headway.__file__).resolve().parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60, check=False).returncode == 0


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'IMPORTERS'"):
        _ = headway.engines.IMPORTERS  # pyright: ignore[reportAttributeAccessIssue]


def test_the_drift_monitor_is_exported_as_patient_as_the_noise_of_the_plant_wants_it(tmp_path: Path) -> None:
    noisy = {"slowdown": 0.12, "memory": 0.95, "gain": 0.2, "reference": 0.3, "limit": 18.7, "spread": 0.34}
    for name, tuning, wanted in (("noisy", {**TUNED, "drift_monitor": noisy}, noisy), ("usual", TUNED, DRIFT_NUMBERS)):
        written = json.loads((export_python(record(LAWS[0], tuning=tuning), tmp_path / name).folder / "gains.json").read_text())
        assert {k: v["value"] for k, v in written["drift"].items()} == wanted


@pytest.mark.parametrize("bad", [5, {"limit": "x"}, {"limit": -1.0}, {"patience": 2.0}, {"spread": True}], ids=str)
def test_a_drift_monitor_that_is_none_is_refused_in_one_line(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(ValueError, match=r"^controller\.json: tuning\.drift_monitor\..*must be a number above 0, got .*; tune anew$"):
        export_python(record(LAWS[0], tuning={**TUNED, "drift_monitor": bad}), tmp_path / "out")
