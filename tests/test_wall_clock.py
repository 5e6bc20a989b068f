"""Which clock a step table's durations are on, from its columns to the fit, its warnings, and what may be exported."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.identification.rows import IDLE, judge
from headway.identification.trace import COLUMNS, Trace
from headway.loads import read_plant
from headway.pipeline import export_stage, fit_stage
from tests.test_export import record

DEVICE_S, GAP_S, GAP_SD_S = 9.0e-3, 4.0e-3, 0.1e-3


def _batch(k: int, seed: int = 10) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, 1])
    requests = rng.integers(1, 64, k)
    none = np.zeros(k)
    sums = {"decode_requests": requests, "decode_kv_tokens": requests * rng.integers(100, 900, k)}
    return {"step": np.arange(k), **sums, **dict.fromkeys(("prefill_tokens", "prefill_pairs", "prefill_requests"), none)}


def _periods(k: int) -> np.ndarray:
    """Device and host of each step; an idle gap after step 700, and a last step without a next one."""
    period_s = DEVICE_S + np.random.default_rng(10).normal(GAP_S, GAP_SD_S, k)
    period_s[700], period_s[-1] = 2.0, -1.0
    return period_s


def _table(folder: Path, **columns: object) -> Path:
    file = folder / "steps.csv"
    pl.DataFrame(columns).write_csv(file)
    return file


def _fitted_s(trace: Trace) -> float:
    return float(np.median(fit(trace).plant.step_time_s(trace.batch())))


@pytest.mark.parametrize("device", ["device_time_s", "step_time_s"])
@pytest.mark.parametrize("beside", ["its own step", "the next step"])
def test_case_e10_host_gap_missing(device: str, beside: str, tmp_path: Path) -> None:
    period_s = _periods(2000)
    if beside == "the next step":
        period_s = np.concatenate([[-1.0], period_s[:-1]])
    # the gap, not the period, is what is even: that tells which step a period belongs to
    device_s = DEVICE_S * np.random.default_rng(11).uniform(0.99, 1.01, 2000)
    own = period_s[1:] if beside == "the next step" else period_s[:-1]
    own += device_s[:-1] - DEVICE_S
    trace = read_trace(_table(tmp_path, **_batch(2000), **{device: device_s, "period_s": period_s}))
    assert trace.clock == "wall"
    assert trace.aside == {"incomplete": 2}  # before the idle gap, and the last one
    assert _fitted_s(trace) == pytest.approx(DEVICE_S + GAP_S, abs=0.2e-3)
    assert trace.frame["device_time_s"].to_numpy() == pytest.approx(np.delete(device_s, [700, 1999]))
    assert np.median(trace.frame["period_s"].to_numpy() - trace.frame["device_time_s"].to_numpy()) == pytest.approx(GAP_S, abs=0.02e-3)
    plant = fit(trace)
    assert plant.margin["decode"] is not None
    assert any(said.startswith("the host takes 4.0") and "fitted from start to start" in said for said in plant.about["warnings"])
    assert any("2 steps have no period" in said for said in plant.about["warnings"])
    assert not any("optimistic" in said for said in plant.about["warnings"])
    assert plant.about["rows"] == {"read": 2000, "used": 1998, "set_aside": {"incomplete": 2}}


def test_case_e10_device_durations_alone_are_optimistic_and_nothing_is_exported(tmp_path: Path) -> None:
    file = _table(tmp_path, **_batch(2000), device_time_s=np.full(2000, DEVICE_S))
    trace = read_trace(file)
    assert trace.clock == "device"
    assert (trace.step_time_s == DEVICE_S).all()
    fit_stage([file], tmp_path / "plant.json")
    plant = read_plant(tmp_path / "plant.json")
    assert plant.margin == plant.about["margin_ci95"] == {"decode": None, "mixed": None}
    said = [text for text in plant.about["warnings"] if "optimistic" in text]
    assert len(said) == 1
    assert "wall-clock targets" in said[0]
    assert "period_s" in said[0]
    tuned = dataclasses.replace(record(), plant_file={"file": "plant.json", "clock": plant.about["clock"]})
    for engine in ("json", "python"):
        with pytest.raises(ValueError, match=r"durations of the device alone: .* not exported; record start-to-start"):
            export_stage(tuned, engine, tmp_path / engine)
        assert not (tmp_path / engine).exists()


def test_too_few_periods_tell_no_gap_and_the_clock_stays_the_device_s(tmp_path: Path) -> None:
    period_s = np.where(np.arange(2000) < 15, DEVICE_S + GAP_S, np.nan)
    trace = read_trace(_table(tmp_path, **_batch(2000), step_time_s=np.full(2000, DEVICE_S), period_s=period_s))
    assert (len(trace), trace.clock, trace.aside) == (2000, "device", {})
    assert any("only 15 periods of consecutive steps are recorded, fewer than 20" in said for said in trace.warnings)
    assert any("optimistic" in said for said in fit(trace).about["warnings"])
    empty = read_trace(_table(tmp_path, **_batch(2000), step_time_s=np.full(2000, DEVICE_S), period_s=np.full(2000, -1.0)))
    assert (empty.clock, empty.warnings) == ("wall", ())  # a column that nothing filled is none
    both = read_trace(
        _table(tmp_path, **_batch(2000), step_time_s=np.full(2000, 0.013), device_time_s=np.full(2000, DEVICE_S), period_s=period_s)
    )
    assert both.clock == "wall"
    assert (both.step_time_s == 0.013).all()
    assert "too few steps" in both.warnings[0]


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_a_table_on_the_wall_is_read_again_as_it_is(tmp_path_factory: pytest.TempPathFactory, seed: int, late: bool) -> None:
    rng, k = np.random.default_rng(seed), 300
    batch = _batch(k, seed % 1000)
    idle = rng.random(k) < 0.05
    batch["decode_requests"], batch["decode_kv_tokens"] = (np.where(idle, 0, batch[n]) for n in ("decode_requests", "decode_kv_tokens"))
    device_s = np.where(idle, 0.0, rng.uniform(5e-3, 30e-3, k))
    period_s = np.where(idle, 0.5, device_s + rng.normal(3e-3, 1e-4, k))
    period_s = np.where(rng.random(k) < 0.02, -1.0, period_s)
    if late:
        period_s = np.concatenate([[-1.0], period_s[:-1]])
    folder = tmp_path_factory.mktemp("again")
    trace = read_trace(_table(folder, **batch, device_time_s=device_s, period_s=period_s))
    assert trace.clock == "wall"
    assert len(trace) + sum(trace.aside.values()) == k
    assert (judge(trace) == IDLE).sum() == idle.sum()
    ran = trace.frame.filter(pl.col("decode_requests") > 0)
    assert (ran["step_time_s"] == ran["period_s"]).all()
    trace.frame.write_parquet(folder / "again.parquet")
    again = read_trace(folder / "again.parquet")
    assert again.frame.drop("source").equals(trace.frame.drop("source"))
    assert (again.clock, again.aside) == ("wall", {})


def _loops(k: int, seed: int = 3) -> dict[str, np.ndarray]:
    """A busy engine of 10 ms steps and 0.5 ms between them, with what other fields of its recorder read."""
    rng = np.random.default_rng(seed)
    batch = _batch(k, seed)
    step_s = 5e-3 + 1.5e-4 * batch["decode_requests"] * rng.uniform(0.98, 1.02, k)
    loop_s = step_s + 0.5e-3
    start_s = np.concatenate([[0.0], np.cumsum(loop_s)[:-1]])
    two_s = loop_s + np.append(loop_s[1:], loop_s[-1])
    return {**batch, "start_s": start_s, "step_s": step_s, "two_s": two_s, "schedule_s": rng.uniform(2e-4, 4e-4, k)}


FIELDS = {"two_s": "each record spans two loops", "schedule_s": "it is the scheduler's or host's own time, not the step's", "step_s": None}


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_is_not_the_step_s_duration_is_told_by_fit(field: str, tmp_path: Path) -> None:
    table = _loops(1000)
    trace = read_trace(_table(tmp_path, **{name: table[name] for name in (*_batch(1), "start_s")}, step_time_s=table[field]))
    warnings = fit(trace).about["warnings"]
    for words in filter(None, FIELDS.values()):
        assert any(words in said for said in warnings) == (words == FIELDS[field])


def test_starts_that_a_few_rows_lack_do_not_silence_the_check(tmp_path: Path) -> None:
    table = _loops(1000)
    start_s = np.where(np.arange(1000) % 100 == 7, np.nan, table["start_s"])
    trace = read_trace(_table(tmp_path, **{name: table[name] for name in _batch(1)}, step_time_s=table["two_s"], start_s=start_s))
    assert any("spans two loops" in said for said in fit(trace).about["warnings"])


@pytest.mark.parametrize(("field", "unit", "words"), [("exec_ms", 1e3, FIELDS["two_s"]), ("sched_us", 1e6, FIELDS["schedule_s"])])
def test_a_naive_table_of_an_asynchronous_recording_is_told_by_fit(
    field: str, unit: float, words: str, tmp_path: Path, shared_data: Path
) -> None:
    file = shared_data / "steps/vllm_cpu/sim_async_steps.csv"
    read, raw = read_trace(file), pl.read_csv(file)
    naive = read.frame.select(*(name for name in COLUMNS if name not in ("source", "step_time_s")), "start_s")
    trace = read_trace(_table(tmp_path, **naive.to_dict(as_series=False), step_time_s=raw[field].to_numpy() / unit))
    assert trace.reader == "steps"
    assert any(words in said for said in fit(trace).about["warnings"])
    assert not any(words in said for said in fit(read).about["warnings"])
