"""Large traces: rows held against a part of them, files read in pieces, whole blocks taken; small here, the bounds set low."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

import headway.identification.neighbours as neighbours
import headway.identification.readers.opened as opened
import headway.identification.readers.steps as steps
import headway.identification.readers.traces as traces
import headway.identification.rows as rows
import headway.identification.structures.intervals as intervals
from headway.identification.fit import fit
from headway.identification.neighbours import Neighbours, spread
from headway.identification.readers import TraceError, read_trace
from headway.identification.readers.thinning import LARGEST, take
from headway.identification.rows import BOOKED, FIRST_SHAPE, GAP, KEPT, judge
from headway.identification.structures.intervals import coefficient_interval
from headway.identification.structures.robust import condition, equations, fit_law, nonnegative, plain
from headway.identification.trace import BLOCK_ROWS, Trace
from headway.models.plant import Batch
from tests.synthetic_steps import coefficients, composed, durations, noise, traced

STEPS = "step,step_time_s,decode_requests,decode_kv_tokens,prefill_tokens,prefill_pairs,prefill_requests"


def _frame(k: int, seed: int = 0, sd: float = 0.05) -> pl.DataFrame:
    batch = composed(k, seed)
    return pl.DataFrame({"step": np.arange(k), "step_time_s": durations(batch, sd, seed, 0.5), **batch._asdict()})


def _few_references(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    for module in (rows, neighbours):
        monkeypatch.setattr(module, "MOST_REFERENCES", most)
        monkeypatch.setattr(module, "FEWEST_REFERENCES", 500)


# Rows that are held against a part of the trace.


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_same_rows_are_set_aside_by_a_part_of_the_trace_as_by_all_of_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    k = 20_000
    batch, rng = composed(k, seed), np.random.default_rng(seed)
    time = durations(batch, 0.05, seed, 0.5)
    time[:20] *= 30
    odd = rng.choice(np.arange(100, k - 100, 5), 60, replace=False)
    time[odd[:40]] *= 12
    time[odd[40:] + 1] += time[odd[40:]] - 1e-5
    time[odd[40:]] = 1e-5
    whole = judge(traced(batch, time))
    _few_references(monkeypatch, 3_000)
    part = judge(traced(batch, time))
    assert (part[:20] == FIRST_SHAPE).all()
    assert set(part[odd[:40]]) <= {GAP, FIRST_SHAPE}
    assert (whole != part).sum() <= 8  # pairs at the edge of what two such steps may take
    assert ((whole != KEPT) & (part != KEPT)).sum() >= 20 + 40 + 0.8 * (whole == BOOKED).sum()


def test_a_row_is_cleared_only_if_it_would_have_stayed(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = composed(12_000, 3, mixed=0.0)
    log_time = np.log(durations(batch, 0.05, 3)) + np.where(np.random.default_rng(3).random(12_000) < 0.02, np.log(6), 0.0)
    near = Neighbours(log_time, np.stack(batch, axis=1), most=2_000)
    suspects = near.suspects()
    assert 0.01 < suspects.mean() < 0.5
    upper, lower = near.bounds(np.arange(12_000))
    aside = (log_time > upper + near.factor) | (log_time < lower - near.factor)
    assert aside.sum() > 100
    assert not (aside & ~suspects).any()


def test_shapes_that_no_reference_has_are_held_against_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    k = 12_000
    away = (np.arange(k) >= 5_020) & (np.arange(k) < 5_080)
    batch = composed(k, 4, mixed=0.0)._replace(decode_requests=np.where(away, 900.0, 8.0), decode_kv_tokens=np.where(away, 4e6, 9e3))
    time = durations(batch, 0.02, 4)
    time[5_050] *= 10
    _few_references(monkeypatch, 1_000)
    assert not away[spread(k, 1_000)].any()
    reason = judge(traced(batch, time))
    assert reason[5_050] in (GAP, FIRST_SHAPE)
    assert (reason != KEPT).sum() == 1


def test_small_traces_are_held_against_all_rows() -> None:
    near = Neighbours(np.log(durations(composed(3_000), 0.05)), np.stack(composed(3_000), axis=1))
    assert near.suspects().all()
    assert len(near.references) == 3_000


@given(n=st.integers(1, 5_000), most=st.integers(1, 3_000), block=st.integers(1, 300))
def test_a_spread_is_whole_blocks_in_order(n: int, most: int, block: int) -> None:
    taken = spread(n, most, block)
    assert (np.diff(taken) > 0).all()
    assert taken[0] == 0 or n > most
    assert len(taken) <= max(most, block)
    assert taken[-1] == n - 1 or most < 2 * block
    assert len(taken) == n or len(taken) == max(most // block, 1) * block


# Laws from sums over the rows.


@given(seed=st.integers(0, 2**32 - 1), alike=st.sampled_from([1.0, 1e-2, 1e-4, 1e-6]))
@settings(max_examples=40)
def test_least_squares_by_sums_are_those_by_rows(seed: int, alike: float) -> None:
    rng = np.random.default_rng(seed)
    rows_ = rng.random((300, 4)) * [1.0, 50.0, 1e5, 1e8]
    rows_[:, 3] = 1e3 * rows_[:, 2] * (1 + alike * rng.random(300))  # nearly the same column: Gram's matrix would not do
    right = rows_ @ np.array([1.0, 0.02, 0.0, 1e-8]) + 0.1 * rng.normal(size=300)
    size = np.sqrt((rows_**2).sum(axis=0))
    wanted = nnls(rows_ / size, right)[0]
    assert nonnegative(rows_, right) * size == pytest.approx(wanted, rel=1e-9 / alike, abs=1e-9 / alike * np.abs(wanted).max())


def test_a_law_solves_its_own_equations_row_by_row() -> None:
    batch = composed(40_000, 5)
    law = fit_law(np.column_stack([np.ones(40_000), *batch]), durations(batch, 0.1, 5))
    terms, right = equations(law)
    size = np.sqrt((terms**2).sum(axis=0))
    assert law.coefficients == pytest.approx(nnls(terms / size, right)[0] / size, rel=1e-5)
    assert plain(law) == pytest.approx(np.linalg.lstsq(terms / size, right, rcond=None)[0] / size, rel=1e-9)
    values = np.linalg.svd(terms / size, compute_uv=False)
    assert condition(law) == pytest.approx(values[0] / values[-1], rel=1e-9)


def test_intervals_do_not_depend_on_the_pieces_they_are_summed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = composed(2_000, 6)
    law = fit_law(np.column_stack([np.ones(2_000), *batch]), durations(batch, 0.1, 6, 0.8))
    whole = coefficient_interval(law, np.random.default_rng(0))
    monkeypatch.setattr(intervals, "PIECE", 97)
    assert np.array_equal(coefficient_interval(law, np.random.default_rng(0)), whole)
    assert (whole[:, 0] <= law.coefficients).all()
    assert (law.coefficients <= whole[:, 1]).all()


# What is taken of a trace that is larger than memory.


@given(
    k=st.integers(1, 6_000),
    streams=st.integers(1, 4),
    most=st.sampled_from([400, 1_000, 3_000, 10_000]),
    cuts=st.lists(st.integers(1, 6_000), max_size=6),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_what_is_taken_is_whole_blocks_and_the_largest_sums(k: int, streams: int, most: int, cuts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    frame = _frame(k, seed).with_columns(source=pl.Series([f"engine {i}" for i in rng.integers(0, streams, k)]), row=pl.int_range(k))
    edges = [0, *sorted({c for c in cuts if c < k}), k]
    taken = take((frame[a:b] for a, b in itertools.pairwise(edges)), most)
    assert taken.frame.height + taken.aside.get("dropped_to_fit", 0) == k
    if k <= most:
        assert taken.frame.equals(frame)
        assert (taken.aside, taken.said) == ({}, ())
        return
    assert taken.frame.height <= most + len(LARGEST) * BLOCK_ROWS
    assert len(taken.said) == 1
    for name, sums in LARGEST.items():
        assert taken.frame.select(sums).max().item() == frame.select(sums).max().item(), name
    number = pl.int_range(pl.len()).over("source") // BLOCK_ROWS
    blocks = frame.with_columns(block=number).group_by("source", "block").agg(pl.col("row"))
    kept = set(taken.frame["row"].to_list())
    for held in blocks["row"].to_list():
        assert kept.issuperset(held) or kept.isdisjoint(held)


def test_a_trace_of_many_short_streams_is_taken_in_part_as_well() -> None:
    frame = _frame(6_000).with_columns(source=pl.Series([f"s{i // 3}" for i in range(6_000)]))
    assert 100 <= take([frame], 1_000).frame.height <= 1_000 + len(LARGEST) * 3


def test_text_that_is_not_taken_is_not_held() -> None:
    frame = _frame(4_000).with_columns(source=pl.lit("an engine with a long name"), note=pl.int_range(4_000).cast(pl.String))
    frame = frame.with_columns(note=pl.lit("a note on the step, ") + pl.col("note"))
    taken = take([frame], 1_000).frame
    assert taken.estimated_size() < 0.4 * frame.estimated_size()
    assert taken["note"].to_list() == frame.filter(pl.col("step").is_in(taken["step"].implode()))["note"].to_list()


# Files in pieces.


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "PIECE", 5_000)
    monkeypatch.setattr(steps, "PIECE_ROWS", 150)


def _fpm(frame: pl.DataFrame) -> pl.DataFrame:
    """The same steps as forward pass metrics of two ranks, chunks without context."""
    tokens = pl.col("prefill_tokens").cast(pl.Int64)
    return frame.select(
        pl.col("step").alias("counter_id"),
        pl.lit("7927590660159844889").alias("worker_id"),
        (pl.col("step") // 3 % 2).alias("dp_rank"),
        tokens.alias("sum_prefill_tokens"),
        pl.col("prefill_requests").cast(pl.Int64).alias("num_prefill_requests"),
        pl.lit(0).alias("sum_prefill_kv_tokens"),
        pl.col("decode_requests").cast(pl.Int64).alias("num_decode_requests"),
        pl.col("decode_kv_tokens").cast(pl.Int64).alias("sum_decode_kv_tokens"),
        (1e3 * pl.col("step_time_s")).round(6).alias("latency_ms"),
    )


def _write(frame: pl.DataFrame, form: str, file: Path) -> Path:
    if form == "parquet":
        frame.write_parquet(file)
    elif form == "steps":
        frame.write_csv(file)
    elif form == "gzip":
        file.write_bytes(gzip.compress(frame.write_csv().encode()))
    elif form == "fpm":
        _fpm(frame).write_csv(file)
    else:
        lines = []
        for row in _fpm(frame).iter_rows(named=True):
            head = {"wall_time": row.pop("latency_ms") / 1e3} | {name: row.pop(name) for name in ("counter_id", "worker_id", "dp_rank")}
            lines.append(json.dumps(head | {"scheduled": row}))
        file.write_text("\n".join(lines) + "\n")
    return file


FORMS = ("parquet", "steps", "gzip", "fpm", "jsonl")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("small_pieces")
def test_pieces_of_a_file_are_the_file(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _write(_frame(2_000), form, tmp_path / "trace")
    seen: list[tuple[str, float]] = []
    found = read_trace(file, progress=lambda label, share: seen.append((label, share)))
    monkeypatch.undo()
    assert found.frame.equals(read_trace(file).frame)
    assert found.aside == {}
    assert {label for label, _ in seen} == {"reading"}
    shares = [share for _, share in seen]
    assert len(shares) > 5
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("small_pieces")
def test_a_part_of_a_trace_gives_the_plant_of_all_of_it(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = _write(_frame(12_000, seed=7), form, tmp_path / "trace")
    whole = fit(read_trace(file), structure="regimes")
    monkeypatch.setattr(traces, "MOST_ROWS", 4_000)
    trace = read_trace(file)
    part = fit(trace, structure="regimes")
    assert 2_000 <= len(trace) <= 4_000 + len(LARGEST) * BLOCK_ROWS
    assert trace.aside["dropped_to_fit"] == 12_000 - len(trace)
    assert any("rows were taken to fit into memory" in said for said in part.about["warnings"])
    assert part.about["rows"]["read"] == 12_000
    assert part.about["rows"]["set_aside"]["dropped_to_fit"] == 12_000 - len(trace)
    assert part.hull == whole.hull
    assert part.limits == whole.limits
    for name, value in coefficients(whole.plant).items():
        low, high = part.interval[name]
        own = whole.interval[name]
        assert low <= own[1], name
        assert own[0] <= high, name
        assert low < high
        assert value > 0


@pytest.mark.usefixtures("small_pieces")
def test_the_rows_that_fit_are_shared_among_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [_write(_frame(k, seed=k), "steps", tmp_path / f"{k}.csv") for k in (1_000, 6_000)]
    monkeypatch.setattr(traces, "MOST_ROWS", 4_000)
    trace = read_trace(files)
    assert len(trace) <= 4_000 + 2 * len(LARGEST) * BLOCK_ROWS
    assert np.unique(trace.stream).tolist() == [0, 1]
    assert trace.aside["dropped_to_fit"] == 7_000 - len(trace)


def test_a_format_that_is_read_whole_is_thinned_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    k = 3_000
    names = ["step", "t_mono", "sched_us", "exec_ms", "n_prefill_reqs", "prefill_tokens", "prefill_ctx_tokens", "n_decode_reqs"]
    table = pl.DataFrame({name: np.zeros(k) for name in [*names, "decode_ctx_tokens"]})
    table = table.with_columns(step=pl.int_range(k), t_mono=pl.int_range(k) * 0.02, exec_ms=pl.lit(10.0), n_decode_reqs=pl.lit(4))
    table.write_csv(tmp_path / "scheduler.csv")
    monkeypatch.setattr(traces, "MOST_ROWS", 1_000)
    trace = read_trace(tmp_path / "scheduler.csv")
    assert trace.reader == "scheduler"
    assert trace.aside["dropped_to_fit"] == k - len(trace) > 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.usefixtures("small_pieces")
def test_a_wrong_cell_far_inside_is_named_by_its_row(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MOST_ROWS", 400)  # the row may well be one that is not taken
    frame = _frame(2_000).with_columns(decode_kv_tokens=pl.when(pl.col("step") == 1_776).then(-5.0).otherwise(pl.col("decode_kv_tokens")))
    column = "sum_decode_kv_tokens" if form in ("fpm", "jsonl") else "decode_kv_tokens"
    with pytest.raises(TraceError, match=rf"row 1777, column {column}: expected a number that is not negative, found '?-5"):
        read_trace(_write(frame, form, tmp_path / "trace"))


@pytest.mark.usefixtures("small_pieces")
def test_a_row_too_long_and_a_broken_line_far_inside_are_named_by_their_row(tmp_path: Path) -> None:
    lines = _write(_frame(1_000), "steps", tmp_path / "steps.csv").read_text().splitlines()
    lines[800] += ",9"
    (tmp_path / "steps.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(TraceError, match="row 800: expected 7 cells, as in the header of Headway's step table, found 8"):
        read_trace(tmp_path / "steps.csv")
    lines = _write(_frame(1_000), "jsonl", tmp_path / "fpm.jsonl").read_text().splitlines()
    lines[700] = lines[700][:30]
    (tmp_path / "fpm.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(TraceError, match="row 701: expected a JSON object"):
        read_trace(tmp_path / "fpm.jsonl")
    lines[700] = lines[701].replace('"wall_time": ', '"wall_time": "slow", "x": ')
    (tmp_path / "fpm.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(TraceError, match="row 701, column wall_time: expected float, found 'str'"):
        read_trace(tmp_path / "fpm.jsonl")


@pytest.mark.parametrize("form", ["steps", "gzip", "fpm", "jsonl"])
@pytest.mark.parametrize("keep", [3, 14])
@pytest.mark.usefixtures("small_pieces")
def test_a_last_row_that_was_cut_off_is_set_aside_after_many_pieces(form: str, keep: int, tmp_path: Path) -> None:
    text = _write(_frame(1_000), form.replace("gzip", "steps"), tmp_path / "trace").read_bytes()
    text = text[: text.rindex(b"\n", 0, len(text) - 1) + 1 + keep]  # some bytes of the last row
    (tmp_path / "trace").write_bytes(gzip.compress(text) if form == "gzip" else text)
    trace = read_trace(tmp_path / "trace")
    assert len(trace) == 999
    assert trace.aside == {"unreadable": 1}


@pytest.mark.usefixtures("small_pieces")
def test_marks_quotes_and_blank_lines_survive_the_pieces(tmp_path: Path) -> None:
    frame = _frame(600)
    rows_ = [f'{line},"first, and\nsecond line {i}"' for i, line in enumerate(frame.write_csv(include_header=False).splitlines())]
    text = "\ufeff" + STEPS + ",note\r\n" + "\r\n\r\n".join(rows_) + "\r\n"
    (tmp_path / "t.csv").write_bytes(text.encode())
    trace = read_trace(tmp_path / "t.csv")
    assert len(trace) == 600
    assert trace.frame["note"].to_list() == [f"first, and\nsecond line {i}" for i in range(600)]
    assert trace.frame["step_time_s"].to_list() == frame["step_time_s"].to_list()


@pytest.mark.usefixtures("small_pieces")
def test_a_packed_file_that_breaks_off_is_refused(tmp_path: Path) -> None:
    file = _write(_frame(4_000), "gzip", tmp_path / "t.csv.gz")
    file.write_bytes(file.read_bytes()[:-3_000])
    with pytest.raises(TraceError, match="expected a whole gzip file"):
        read_trace(file)


def test_a_lasting_slowdown_of_a_large_trace_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    k = np.arange(20_000)
    n = np.round(30 + 20 * np.sin(k / 900))
    batch = Batch(n, np.round(n * (1500 + 400 * np.sin(k / 377))), *(np.zeros(20_000),) * 3)
    time = durations(batch) * np.exp(noise(20_000, 0.03)) * np.where(k < 10_000, 1.0, 2.5)
    _few_references(monkeypatch, 4_000)
    assert (judge(traced(batch, time)) == KEPT).mean() > 0.995


def test_an_empty_trace_is_refused_in_every_form(tmp_path: Path) -> None:
    for form in ("parquet", "steps", "fpm"):
        with pytest.raises(TraceError, match=r"expected at least one step in .*, found none"):
            read_trace(_write(_frame(1).head(0), form, tmp_path / f"empty.{form}"))
    with pytest.raises(ValueError, match="at least one step"):
        Trace.of(_frame(1).head(0))
