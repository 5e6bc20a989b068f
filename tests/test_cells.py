"""The table of gains: its traffic, what it says of a contender, and that a run that was killed goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cell_capacity import beside_rows
from benchmarks.cell_figures import TERCILES, bars, cell_rows, terciles
from benchmarks.cell_loads import BEGIN_RPS, LEVELS, LOADS, PIECE, SPAN_S, Pieces, TwoDays, requests_of, source_of, targets_of
from benchmarks.cell_shelf import Shelf
from benchmarks.cells import CACHES, CROSS, FULL, QUICK, beside, chosen, main
from headway.controllers.simulator import Draw, simulate
from headway.experiments.baseline import Static
from headway.models.noise import Noise
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.models.workload import Workload
from tests.small_problems import known

PLANT = RegimePlant((6e-3, 7e-5, 5e-9, 0.0, 0.0, 0.0), (6.5e-3, 1e-4, 6e-9, 3e-5, 5e-10, 5e-4))


def recorded(n: int = 3000) -> Workload:
    """Traffic whose prompts tell their own row."""
    arrival_s = np.cumsum(np.random.default_rng(0).exponential(0.3, n))
    return Workload(arrival_s - arrival_s[0], np.arange(1, n + 1), np.full(n, 7), np.zeros(n, np.int64))


# traffic


def test_a_window_joins_pieces_of_its_own_part_alone() -> None:
    source = Pieces(recorded(), 5.0)
    for heldout, low, high in ((False, 1, 2000), (True, 2001, 3000)):
        for seed in range(20):
            drawn = source.draw(seed, 650, heldout=heldout)
            rows = drawn.prompt_tokens
            assert len(rows) == 650
            assert low <= rows.min()
            assert rows.max() <= high
            inside = np.diff(rows)[np.arange(1, 650) % PIECE != 0]
            assert (inside == 1).all()
            assert drawn.rate_rps == pytest.approx(5.0)
            drawn.check()


def test_pieces_keep_the_gaps_that_were_recorded() -> None:
    whole = recorded()
    drawn = Pieces(whole, whole.rate_rps).draw(3, PIECE, heldout=False)
    first = int(drawn.prompt_tokens[0]) - 1
    theirs = np.diff(whole.arrival_s[first : first + PIECE])
    ours = np.diff(drawn.arrival_s)
    assert ours / ours.sum() == pytest.approx(theirs / theirs.sum())


def test_two_seeds_are_two_windows_and_one_seed_is_one() -> None:
    source = Pieces(recorded(), 5.0)
    first, again, other = (source.draw(seed, 400, heldout=True).prompt_tokens for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_two_days_have_their_rate_their_step_and_their_night() -> None:
    arrivals = TwoDays(50.0)
    arrivals.check()
    arrival_s = arrivals.arrive(np.random.default_rng(1), 12_000).arrival_s
    assert len(arrival_s) / arrival_s[-1] == pytest.approx(50.0, rel=0.03)
    of_day = (arrival_s % (SPAN_S / 2)) / (SPAN_S / 2)
    count = np.histogram(of_day, 16, (0, 1))[0] / len(of_day) * 16
    mean = 0.75 * 0.8 + 0.25 * 1.6
    assert count[12:].mean() == pytest.approx(1.6 / mean, rel=0.05)
    assert count[:12].max() == pytest.approx(1.3 / mean, rel=0.1)
    assert count[:12].min() == pytest.approx(0.3 / mean, rel=0.25)
    assert TwoDays(50.0).rescaled(10.0).rate_rps == 10.0
    with pytest.raises(ValueError, match=r"^a rate and a length above 0, got 0 and 120$"):
        TwoDays(0.0).check()


@pytest.mark.parametrize("load", ["two classes", "azure", "mooncake", "bursty", "diurnal", "sharegpt"])
def test_every_load_spans_two_minutes_at_its_rate(load: str, shared_data: Path) -> None:
    for rate in (2.0, 9.0):
        n = requests_of(load, rate)
        spans = [source_of(load, rate).draw(seed, n, heldout=True).arrival_s[-1] for seed in range(6)]
        assert np.mean(spans) >= SPAN_S
        assert {len(targets_of("tp4", load))} == {2 if load == "two classes" else 1}
    assert load in BEGIN_RPS
    del shared_data


# the cross


def test_what_runs_by_itself_and_what_a_pattern_names() -> None:
    assert len(CROSS) == 120 == len({c.name for c in CROSS})
    assert len(chosen(None)) == 84
    assert {c.load for c in chosen(None) if c.kv_tokens == CACHES[1]} == {"azure", "two classes"}
    assert [c.name for c in chosen("tp4 azure 200k 85")] == ["tp4 azure 200k 85"]
    assert len(chosen("* 60k *")) == 3 * len(LOADS) * len(LEVELS)
    assert FULL.heldout >= 20


def test_a_killed_run_goes_on_and_another_size_or_source_is_measured_anew(tmp_path: Path) -> None:
    calls = []

    def measure() -> dict[str, Any]:
        calls.append(1)
        return {"value": 3}

    first = Shelf(tmp_path, FULL).get("a cell 85", measure)
    assert Shelf(tmp_path, FULL).get("a cell 85", measure) == first
    assert len(calls) == 1
    assert Shelf(tmp_path, QUICK).kept("a cell 85") is None
    assert Shelf(tmp_path, QUICK).kept("a cell 85", any_source=True) == first
    (tmp_path / "a_cell_85.json").write_text('{"value": 3, "sou')
    assert Shelf(tmp_path, FULL).get("a cell 85", measure)["value"] == 3
    assert len(calls) == 2
    assert Shelf(tmp_path, QUICK, stale=True).get("a cell 85", measure)["value"] == 3
    assert len(calls) == 2, "taken as it is"


def test_rows_beside_the_cells_are_chosen_by_name_and_printed_from_what_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    shelf = Shelf(tmp_path, FULL)
    row = {"what": "mooncake (1/s)", "fallback": 0.8, "ours": 0.9, "gain": [0.1, 0.05, 0.15], "named": []}
    shelf.get("unprepared", lambda: {"found": [row]})
    assert [r.what for r in beside(shelf, "unprepared", only_kept=True)] == [
        "tuned on azure, met unprepared: mooncake (1/s) (0.900 against 0.800 of its fallback)"
    ]
    worse = [{**row, "ours": 0.5, "gain": [-0.375, -0.5, -0.3], "named": named} for named in ([], ["longer prompts"])]
    silent, warned = beside_rows([], [], worse)
    assert (silent.holds, warned.holds) == (False, True), "below its fallback, unless the report says on which"
    assert warned.measured == "-37.5 %; --analyse shift warns of longer prompts"
    assert beside(shelf, "capacity *", only_kept=True) == []
    assert main(["--out", str(tmp_path), "--cells", "unprepared", "--table"]) == 0
    assert "mooncake" in capsys.readouterr().out


# figures


def test_terciles_are_of_the_requests_and_lose_none() -> None:
    identified = known(PLANT, Limits(30_000, max_seqs=64, max_tokens=2048), Noise.none())
    rng, targets = np.random.default_rng(2), (Target(0.5, 0.02),)
    n, one = 240, np.ones(1000)
    outcomes = [
        simulate(
            identified,
            Static(2048, 64).candidate(),
            Draw(
                Workload(np.sort(rng.uniform(0, 12, n)), rng.integers(1, 4000, n), rng.integers(1, 60, n), np.zeros(n, np.int64)), one, one
            ),
            targets,
            identified.limits,
        )
        for _ in range(2)
    ]
    found = terciles(outcomes)
    assert found.shape == (2, len(TERCILES))
    edges = np.quantile(np.concatenate([o.prompt_tokens for o in outcomes]), [1 / 3, 2 / 3])
    for row, o in zip(found, outcomes, strict=True):
        parts = [o.prompt_tokens <= edges[0], (o.prompt_tokens > edges[0]) & (o.prompt_tokens <= edges[1]), o.prompt_tokens > edges[1]]
        assert row == pytest.approx([o.on_time[p].sum() / o.owed[p].sum() for p in parts])


def cell(ours: float = 0.97, static: float = 0.85, timeout: float = 0.88, **other: Any) -> dict[str, Any]:
    def side(value: float) -> dict[str, Any]:
        windows = [value - 0.01, value, value + 0.01] * 4
        third = dict.fromkeys(TERCILES, value)
        figures = {"attainment": value, "clean": value, "itl_p99_s": 0.024, "max_gap_s": None, "ttft_p99_s": None, "shed": 0.02}
        return {**figures, "classes": {"default": value}, "terciles": third, "windows": windows, "run_s": 130.0}

    values = {"static": static, "timeout": timeout, "stock": 0.8, "untuned": 0.9, "ours": ours}
    found = {
        "name": "tp4 azure 200k 85",
        "rate_rps": 15.0,
        "requests": 1801,
        "run_s": 130.0,
        "itl_s": 0.025,
        "sides": {name: side(value) for name, value in values.items()},
        "gains": {"static": [0.14, 0.12, 0.16], "timeout": [0.1, 0.08, 0.12]},
        "losers": {"long prompts": [0.1, 0.05, 0.15]},
        "bound": {"bound": 0.98, "windows": 6},
    }
    return found | other


def short(cells: list[dict[str, Any]]) -> list[str]:
    return [row.what for row in bars(cells) if row.holds is False]


def test_bars_hold_where_they_should_and_name_the_cell_where_not() -> None:
    assert short([cell()]) == []
    assert [w for w in short([cell(), cell(ours=0.86)]) if "better of static" in w] == [
        "gain over the better of static and static + timeout, least (tp4 azure 200k 85)"
    ]
    assert any("gap closed there, least" in w for w in short([cell(ours=0.86)]))
    lost = {"long prompts": [-0.04, -0.06, -0.02], "short prompts": [-0.001, -0.01, 0.01]}
    found = list(bars([cell(losers=lost)]))
    assert [r.measured for r in found if r.what == "below its static value"] == ["tp4 azure 200k 85: long prompts -4.0 points"]
    assert not any("gap closed there" in w for w in short([cell(static=0.95, timeout=0.96, ours=0.96)]))
    assert list(bars([])) == []


def test_a_cell_prints_every_side_its_gains_and_its_bound() -> None:
    rows = list(cell_rows(cell()))
    assert [r.what.rpartition(": ")[2] for r in rows] == [
        "static",
        "timeout",
        "stock",
        "untuned",
        "ours",
        "gain",
        "bound on 6 windows, 1 on the others",
    ]
    assert "p99 TTFT not told" in rows[0].measured
    assert rows[-1].measured == "0.980; 86 % of the gap from 0.850 closed", "half of twelve windows: the mean bound is 0.99"
