"""The long trace of a run folder: what is read of it in a hurry is row for row what the reader of strangers' files makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from headway.identification.readers import TraceError, read_trace
from headway.identification.trace import COLUMNS, Trace
from headway.models.identified import IdentifiedPlant
from headway.report import run_trace
from headway.report.data import steps_of
from headway.report.recorded import MOST_JUDGED, recorded
from headway.report.run_trace import trace_of_run
from tests.small_run import plant_json
from tests.synthetic_steps import composed, durations, traced

ROWS = MOST_JUDGED + 12_345


@pytest.fixture(scope="module")
def frame() -> pl.DataFrame:
    """Two streams of steps, as a run folder holds them."""
    batch = composed(ROWS, seed=4)
    trace = traced(batch, durations(batch, 0.03, seed=4))
    source = np.where(np.arange(ROWS) < ROWS // 3, "b", "a")
    return Trace.of(trace.frame.drop("block").with_columns(source=pl.Series(source))).frame


def written(frame: pl.DataFrame, place: Path) -> Path:
    frame.write_parquet(place / "trace.parquet")
    return place / "trace.parquet"


def hurried(path: Path, monkeypatch: pytest.MonkeyPatch, where: dict[str, Any] | None = None) -> bool:
    """Whether a file is read without the reader of strangers' files."""
    asked = []
    monkeypatch.setattr(run_trace, "read_trace", lambda file: asked.append(file) or read_trace(file))
    trace_of_run(path, where)
    return not asked


def test_it_is_row_for_row_what_the_reader_makes_of_it(frame: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(frame.with_columns(phase=pl.lit("decode")), tmp_path)
    assert hurried(path, monkeypatch)
    ours, theirs = trace_of_run(path), read_trace(path)
    assert ours.frame.select(*COLUMNS).drop("source").equals(theirs.frame.select(*COLUMNS).drop("source"))
    assert np.array_equal(ours.stream, theirs.stream)
    for one, other in zip(recorded(ours), recorded(theirs), strict=True):
        assert np.array_equal(one, other)
    identified = IdentifiedPlant.from_json(plant_json())
    mine, others = (steps_of(trace, identified, recorded(trace)) for trace in (ours, theirs))
    assert mine.rows == others.rows
    assert np.array_equal(mine.predicted_s, others.predicted_s)
    assert mine.total == others.total == ROWS


CHANGED: dict[str, Any] = {
    "a short one": lambda f: f.head(MOST_JUDGED),
    "out of order": lambda f: f.reverse(),
    "streams that take turns": lambda f: f.with_columns(source=pl.Series(np.where(np.arange(ROWS) % 2, "a", "b"))),
    "a source that is not named": lambda f: f.with_columns(source=pl.when(pl.int_range(pl.len()) > 9).then("source")),
    "whole numbers": lambda f: f.with_columns(pl.col("prefill_tokens").cast(pl.Int64)),
    "periods": lambda f: f.with_columns(period_s=pl.col("step_time_s") * 1.1),
    "a device's clock beside it": lambda f: f.with_columns(device_time_s=pl.col("step_time_s") * 0.9),
}


@pytest.mark.parametrize("change", CHANGED)
def test_any_other_file_goes_to_the_reader(frame: pl.DataFrame, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(CHANGED[change](frame), tmp_path)
    assert not hurried(path, monkeypatch)
    assert trace_of_run(path).frame.equals(read_trace(path).frame)


def test_rows_that_were_chosen_need_every_column(frame: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not hurried(written(frame.with_columns(phase=pl.lit("decode")), tmp_path), monkeypatch, {"phase": "decode"})


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e16, None])
@pytest.mark.parametrize("column", ["step_time_s", "prefill_pairs"])
def test_a_wrong_number_is_named_as_ever(frame: pl.DataFrame, column: str, value: float | None, tmp_path: Path) -> None:
    at = ROWS - 17  # a row that no figure shows
    path = written(frame.with_columns(pl.when(pl.int_range(pl.len()) == at).then(pl.lit(value)).otherwise(column).alias(column)), tmp_path)
    with pytest.raises(TraceError, match=f"row {at + 1}, column {column}: expected a number"):
        trace_of_run(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(TraceError, match="a whole Parquet file"):
        trace_of_run(path)
