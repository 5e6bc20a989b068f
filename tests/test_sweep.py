"""Sweeps: every combination once, the same for any number of workers, going on after a kill, told in a table."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import headway.cli.sweep  # noqa: F401  # puts the command into the app, whatever the app's own list says
from headway.cli import main
from headway.controllers.default import default_candidate
from headway.controllers.simulator import evaluate
from headway.experiments.baseline import best_static
from headway.experiments.checkpoint import Ledger
from headway.experiments.free import free_parameters
from headway.experiments.promises import COLUMNS, NAMES
from headway.experiments.space import Space
from headway.experiments.sweep import Axis, Swept, candidate_at, combinations, key_of, sweep
from headway.experiments.whole_files import write_json
from headway.models.measures import ATTAINMENT, CLEAN, MEASURES
from headway.models.signals import Limits
from headway.sweep_folder import RUNS, SweepFolder
from headway.sweeping import parse_axes
from tests.test_pareto import EFFORT, LIMITS, TARGETS, small

KNOWN = free_parameters(Limits(100_000))


# axes


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("margin=0:0.4:5", [("margin", (0.0, 0.1, 0.2, 0.3, 0.4))]),
        ("margin=0:0.4:9,chunk_tokens=128,512,2048", [("margin", tuple(np.arange(9) / 20)), ("chunk_tokens", (128.0, 512.0, 2048.0))]),
        ("chunk_tokens=128:2048:5", [("chunk_tokens", (128.0, 256.0, 512.0, 1024.0, 2048.0))]),
        (" most_tokens = 1k, 2k , margin = .1 ", [("most_tokens", (1000.0, 2000.0)), ("margin", (0.1,))]),
        ("memory_price_s=0,2ms", [("memory_price_s", (0.0, 0.002))]),
    ],
)
def test_axes_are_read(text: str, axes: list[tuple[str, tuple[float, ...]]]) -> None:
    found = parse_axes(text, KNOWN)
    assert [a.name for a in found] == [name for name, _ in axes]
    for axis, (_, values) in zip(found, axes, strict=True):
        assert axis.values == pytest.approx(values)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "--free is empty: a sweep needs a number with its values"),
        ("0.1,margin=0.2", "expected name=values, found '0.1'"),
        ("margn=0.1", "unknown name 'margn'; did you mean margin? known: margin"),
        ("margin=0.1,margin=0.2", "margin is given twice; give its values together"),
        ("margin=", "margin takes numbers, or low:high:count with low below high and a count of at least 2, got ''"),
        ("margin=0:0.4", "got '0:0.4'; write for example margin=0:0.4:9,chunk_tokens=128,512,2048"),
        ("margin=0:0.4:1", "got '0:0.4:1'"),
        ("margin=0.4:0:5", "got '0.4:0:5'"),
        ("chunk_tokens=0:512:5", "with low below high above 0"),
        ("margin=lots", "got 'lots'"),
    ],
)
def test_what_is_no_axis_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        parse_axes(text, KNOWN)
    assert "\n" not in str(caught.value)


def swept_over(*axes: Axis) -> tuple[Space, list[Axis]]:
    p = small()
    return Space(default_candidate(p.identified, TARGETS, LIMITS), LIMITS, tuple(a.name for a in axes), TARGETS), list(axes)


def test_every_combination_is_there_once_with_the_values_that_were_asked_for() -> None:
    space, axes = swept_over(Axis("margin", (0.0, 0.05, 0.3)), Axis("chunk_tokens", (64.0, 64.2, 0.0)))
    points = combinations(space, axes)
    assert points == [{"margin": m, "chunk_tokens": c} for m in (0.0, 0.05, 0.3) for c in (64.0, 1024.0)], "0 is no cap; 64.2 is 64"
    for at in points:
        candidate = candidate_at(space, at)
        assert candidate.law.gains()["margin"].value == pytest.approx(at["margin"], abs=1e-12)
        assert float(candidate.policy.chunk_tokens) == at["chunk_tokens"]
        assert candidate.policy.tolerance == space.base.policy.tolerance


@pytest.mark.parametrize(
    ("axis", "said"), [(Axis("margin", (0.9,)), "margin must be in [0, 0.6], got 0.9"), (Axis("tolerance", (-2.0,)), "[-0.6, 0.4]")]
)
def test_a_value_outside_its_range_is_refused(axis: Axis, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        combinations(*swept_over(axis))


def test_too_many_combinations_are_refused() -> None:
    values = tuple(np.linspace(0, 0.4, 400))
    with pytest.raises(ValueError, match=r"^a sweep of 160,000 combinations is more than 100,000"):
        combinations(*swept_over(Axis("margin", values), Axis("tolerance", values)))


# the sweep


@pytest.fixture(scope="module")
def swept() -> Swept:
    space, axes = swept_over(Axis("margin", (0.0, 0.2, 0.4)), Axis("tolerance", (-0.3, 0.0)))
    return sweep(small(), EFFORT, space, axes, workers=1, front=True)


def test_runs_are_those_of_the_simulator_and_the_best_are_chosen_in_training(swept: Swept) -> None:
    p = small()
    space, _ = swept_over(Axis("margin", (0.0,)), Axis("tolerance", (0.0,)))
    candidates = [candidate_at(space, at) for at in swept.points]
    train, heldout = (evaluate(p.identified, candidates, p.draws(EFFORT, heldout=h), TARGETS, LIMITS) for h in (False, True))
    assert np.array_equal(swept.runs[..., :MEASURES], train, equal_nan=True)
    order = [swept.points.index(r.at) for r in swept.best]
    assert [r.trained for r in swept.best] == sorted((r.trained for r in swept.best), reverse=True)
    for ranked, i in zip(swept.best, order, strict=True):
        assert ranked.trained == pytest.approx(train[i, :, ATTAINMENT].mean())
        assert ranked.heldout.value == pytest.approx(heldout[i, :, ATTAINMENT].mean())
        assert ranked.figures["request_attainment"] == pytest.approx(heldout[i, :, CLEAN].mean())
        assert ranked.gain.value == pytest.approx(ranked.heldout.value / swept.static_heldout.value - 1)
    assert swept.static == best_static(p, p.draws(EFFORT, heldout=False), (None,), Ledger()).setting, "of ties the one that bears more"
    assert swept.dead == []
    assert swept.front is not None
    assert swept.front.tried["controller"] == len(swept.points)


def test_a_number_that_changes_nothing_is_named() -> None:
    space, axes = swept_over(Axis("margin", (0.0, 0.3)), Axis("running_limit", (31.0, 32.0)))
    light = small(0.3)
    assert sweep(light, EFFORT, space, axes, workers=1).dead == ["running_limit"]


def test_what_is_known_is_not_run_again_and_each_is_kept_once() -> None:
    space, axes = swept_over(Axis("margin", (0.0, 0.2, 0.4)))
    kept: dict[str, np.ndarray] = {}
    whole = sweep(small(), EFFORT, space, axes, workers=1, keep=lambda at, runs: kept.update({key_of(at): runs}))
    assert len(kept) == 3
    again: list[dict] = []
    part = {k: v for k, v in kept.items() if "0.2" not in k}
    found = sweep(small(), EFFORT, space, axes, workers=1, known=part, keep=lambda at, runs: again.append(at))
    assert again == [{"margin": 0.2}]
    assert np.array_equal(found.runs, whole.runs, equal_nan=True)
    assert [r.to_json() for r in found.best] == [r.to_json() for r in whole.best]
    assert found.notes == ["2 of 3 combinations were known already"]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["processes", "ray"])
def test_the_number_of_workers_shows_in_no_result(where: str) -> None:
    if where == "ray":
        pytest.importorskip("ray", reason="the extra scale is not installed: pip install 'headway[scale]'")
    space, axes = swept_over(Axis("margin", (0.0, 0.1, 0.2, 0.3, 0.4)), Axis("tolerance", (-0.3, 0.0)))
    alone, spread = (sweep(small(), EFFORT, space, axes, where=w, workers=n) for w, n in (("processes", 1), (where, 2)))
    assert np.array_equal(alone.runs, spread.runs, equal_nan=True)
    assert json.dumps(alone.to_json()) == json.dumps(spread.to_json())


# the folder


def row(value: float, draws: int = 2) -> np.ndarray:
    return np.full((draws, COLUMNS), value)


def test_a_folder_goes_on_and_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    first = SweepFolder(tmp_path / "s", {"rate": 5.0}, 2)
    first.keep({"margin": 0.1}, row(0.1))
    first.keep({"margin": 0.2}, np.where(np.arange(COLUMNS) == 5, np.nan, row(1 / 3)))
    first.close()
    file = tmp_path / "s" / RUNS
    file.write_text(file.read_text() + '{"at": {"margin": 0.3}, "runs": [[0.1, 0.')
    second = SweepFolder(tmp_path / "s", {"rate": 5.0}, 2)
    assert second.cut == 1
    assert set(second.known) == {'{"margin": 0.1}', '{"margin": 0.2}'}
    assert np.array_equal(second.known['{"margin": 0.2}'], np.where(np.arange(COLUMNS) == 5, np.nan, row(1 / 3)), equal_nan=True)
    second.keep({"margin": 0.3}, row(0.3))
    second.close()
    third = SweepFolder(tmp_path / "s", {"rate": 5.0}, 2)
    assert (third.cut, len(third.known)) == (0, 3)
    third.close()


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    SweepFolder(tmp_path / "s", {"rate": 5.0, "plant": "a"}, 2).close()
    with pytest.raises(ValueError, match=r"s was begun with another rate; give a new folder$"):
        SweepFolder(tmp_path / "s", {"rate": 6.0, "plant": "a"}, 2)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"full is not empty and holds no sweep; give a new folder$"):
        SweepFolder(tmp_path / "full", {}, 2)
    with pytest.raises(ValueError, match=r"notes.txt is a file; give a folder$"):
        SweepFolder(tmp_path / "full" / "notes.txt", {}, 2)
    write_json(tmp_path / "s" / "request.json", {"schema": "headway/other/1"})
    with pytest.raises(ValueError, match=r"request.json: not the request of a sweep; give a new folder$"):
        SweepFolder(tmp_path / "s", {"rate": 5.0, "plant": "a"}, 2)


def test_two_sweeps_do_not_write_to_one_folder(tmp_path: Path) -> None:
    one = SweepFolder(tmp_path / "s", {}, 2)
    with pytest.raises(ValueError, match=r"another sweep writes to this folder now"):
        SweepFolder(tmp_path / "s", {}, 2)
    one.close()
    SweepFolder(tmp_path / "s", {}, 2).close()


# the command


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plant") / "plant.json"
    write_json(path, small().identified.to_json())
    return path


LOAD = [
    "--workload",
    "gamma:rate=14/s,cv=2,prompt=lognormal(median=800,sigma=1,max=8000),output=geometric(120)",
    "--target",
    "ttft=800ms,itl=22ms",
]


def command(plant: Path, out: Path, *more: str) -> list[str]:
    return ["sweep", str(plant), *LOAD, "--requests", "40", "--runs", "2", "--workers", "1", "--out", str(out), *more]


def test_the_command_leaves_tables_and_goes_on(plant: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "s"
    assert main(command(plant, out, "--free", "margin=0:0.4:3,tolerance=-0.3,0", "--json")) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["combinations"] == 6
    single, whole = pl.read_parquet(out / "sweep.parquet"), pl.read_csv(out / "sweep.csv")
    assert (single.height, whole.height) == (12, 6)
    assert single.columns == ["margin", "tolerance", "seed", *NAMES]
    best = data["best"][0]
    mine = whole.filter((pl.col("margin") == best["at"]["margin"]) & (pl.col("tolerance") == best["at"]["tolerance"]))
    assert mine["attainment"].item() == pytest.approx(best["trained"])
    assert best["trained"] == pytest.approx(whole["attainment"].max())
    assert main(command(plant, out, "--free", "margin=0:0.4:3,tolerance=-0.3,0,0.2", "--front")) == 0
    said = capsys.readouterr().out
    assert "note: 6 of 9 combinations were known already" in said
    assert "trade      " in said
    assert re.search(r"static     best of its grid: \d+ tokens, \d+ requests, \d", said)
    assert main(command(plant, out, "--free", "margin=0", "--rate", "5/s")) == 2
    assert re.fullmatch(r"headway: \S+ was begun with another workload; give a new folder\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--free", "margin=0.9"], "margin must be in [0, 0.6], got 0.9"),
        (["--free", "margin"], "expected name=values"),
        (["--free", "timeout=0.5"], "cannot tune timeout: it acts only with triage=timeout"),
        (["--free", "margin=0", "--objective", "capacity"], "a sweep's objective must be one of attainment, requests, got 'capacity'"),
    ],
)
def test_the_command_refuses_in_one_line(
    plant: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert main(command(plant, tmp_path / "s", *more)) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_to_the_same_result(plant: Path, tmp_path: Path) -> None:
    free = ("--free", "margin=0:0.4:12,tolerance=-0.4,-0.2,0,0.2", "--json")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main(command(plant, whole, *free)) == 0
    code = "import sys, headway.cli.sweep; from headway.cli import main; sys.exit(main(sys.argv[1:]))"
    run = [sys.executable, "-c", code, *command(plant, broken, *free)]
    child = subprocess.Popen(run, cwd=Path(__file__).parent.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (broken / RUNS).exists() or len((broken / RUNS).read_bytes().splitlines()) < 5:
        assert child.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    kept = len((broken / RUNS).read_bytes().splitlines())
    assert 5 <= kept < 48
    assert main(command(plant, broken, *free)) == 0
    first, second = (json.loads((folder / "sweep.json").read_text()) for folder in (whole, broken))
    assert any("combinations were known already" in note for note in second["notes"])
    assert {**first, "notes": []} == {**second, "notes": []}
    assert (whole / "sweep.csv").read_bytes() == (broken / "sweep.csv").read_bytes()


@pytest.mark.slow
def test_the_command_on_a_cluster_of_two_processes_loses_one_and_ends_in_the_same_place(plant: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra scale is not installed: pip install 'headway[scale]'")
    from ray.cluster_utils import Cluster

    free = ("--free", "margin=0:0.4:24,tolerance=-0.4:0.2:10", "--requests", "200", "--json")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        second = cluster.add_node(num_cpus=1)
        code = "import sys, headway.cli.sweep; from headway.cli import main; sys.exit(main(sys.argv[1:]))"
        run = [sys.executable, "-c", code, *command(plant, broken, *free, "--address", str(cluster.address))]
        child = subprocess.Popen(run, cwd=Path(__file__).parent.parent, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 120
        while not (broken / RUNS).exists() or len((broken / RUNS).read_bytes().splitlines()) < 20:
            assert child.poll() is None, child.stderr and child.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        kept = len((broken / RUNS).read_bytes().splitlines())
        cluster.remove_node(second, allow_graceful=False)
        _, said = child.communicate(timeout=240)
        assert child.returncode == 0, said
    finally:
        cluster.shutdown()
    assert kept < 240, "a process went while there was work to do"
    assert main(command(plant, whole, *free)) == 0
    first, other = (json.loads((folder / "sweep.json").read_text()) for folder in (whole, broken))
    assert {**first, "notes": []} == {**other, "notes": []}
    assert (whole / "sweep.csv").read_bytes() == (broken / "sweep.csv").read_bytes()
