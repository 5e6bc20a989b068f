"""A controller as C99: with the system's compiler, and 20,000 steps against Python, bit for bit."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import pytest

from headway.controllers.record import ControllerRecord
from headway.engines.export import export_c99
from headway.engines.golden import GOLDEN_COLUMNS, GOLDEN_ROWS, golden
from tests.guarded_loops import PLANTS, laws, record


@pytest.mark.parametrize("law", ["static", "updown", "pi", "balanced", "feedforward", "tracker"])
def test_the_header_compiles_without_a_warning_and_replays_20_000_steps(law: str, tmp_path: Path) -> None:
    replay_c99(record(laws(PLANTS["regimes"])[law]), tmp_path)


@pytest.mark.parametrize("name", ["curved", "roofline", "concurrency", "affine"])
@pytest.mark.parametrize("law_name", ["tracker in quanta", "feedforward", "pi in quanta"])
def test_and_so_on_every_structure(name: str, law_name: str, tmp_path: Path) -> None:
    replay_c99(record(laws(PLANTS[name])[law_name], PLANTS[name]), tmp_path)


def replay_c99(written: ControllerRecord, folder: Path) -> None:
    """Compile what was exported, and replay 20,000 steps of which budgets and states must be equal, bit for bit."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler: neither cc nor gcc nor clang is on the path")
    out = export_c99(written, folder / "out")
    assert set(out.files) == {"headway_law.h", "check.c", "golden.csv", "README.md"}
    strict = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-O2", "-ffp-contract=off"]
    done = subprocess.run(
        [compiler, *strict, "check.c", "-o", "check", "-lm"], cwd=out.folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    steps = golden(written, 20_000, 7)
    (out.folder / "long.csv").write_text("\n".join(",".join(row) for row in (GOLDEN_COLUMNS, *steps)) + "\n")
    for name, rows in (("golden.csv", GOLDEN_ROWS), ("long.csv", 20_000)):
        done = subprocess.run(["./check", name, "exact"], cwd=out.folder, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (0, f"{rows} rows agree\n")
    changed = [(*row[:10], str(int(row[10]) + (k == 300)), *row[11:]) for k, row in enumerate(steps[:400])]
    (out.folder / "long.csv").write_text("\n".join(",".join(row) for row in (GOLDEN_COLUMNS, *changed)) + "\n")
    done = subprocess.run(["./check", "long.csv"], cwd=out.folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("row 300: token budget")
    bit = next((k for k, row in enumerate(steps) if float.fromhex(row[11]) > 0.0), None)
    if bit is None:
        return  # a static law keeps no state
    near = (*steps[bit][:11], math.nextafter(float.fromhex(steps[bit][11]), math.inf).hex(), *steps[bit][12:])
    (out.folder / "long.csv").write_text("\n".join(",".join(row) for row in (GOLDEN_COLUMNS, *steps[:bit], near)) + "\n")
    for words, code in ((["exact"], 1), ([], 0)):
        done = subprocess.run(["./check", "long.csv", *words], cwd=out.folder, capture_output=True, timeout=60, check=False)
        assert done.returncode == code
