"""Tables of whole batches: two steps a row, copies and batches that ran in turns set aside, a planner's tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.identification.copies import repeated_rows, scaled_copies
from headway.identification.readers import TraceError, read_trace
from headway.identification.structures.robust import fit_law


def _splitwise(folder: Path, rows: list[dict]) -> Path:
    file = folder / "perf.csv"
    pl.DataFrame(rows).write_csv(file)
    return file


def _batch(
    prompt: int, batch: int, token: int = 100, hardware: str = "card", turns: float = 1.0, out: int = 100, factor: float = 1.0
) -> dict:
    prompt_time, token_time = factor * (20 + 0.1 * prompt * batch + 1e-6 * batch * prompt**2), 10 + 0.37 * batch
    return {
        "model": "llm",
        "hardware": hardware,
        "prompt_size": prompt,
        "batch_size": batch,
        "token_size": token,
        "prompt_time": prompt_time,
        "token_time": token_time,
        "e2e_time": turns * (prompt_time + (out - 1) * token_time),
        "tensor_parallel": 2,
    }


SIZES = [(prompt, batch) for prompt in (128, 256, 512) for batch in (1, 2, 4)]


def test_a_row_is_the_prompts_and_a_decode_step(tmp_path: Path) -> None:
    trace = read_trace(_splitwise(tmp_path, [_batch(256, 4), _batch(512, 1, token=400, out=100)]))
    assert trace.reader == "splitwise"
    assert trace.frame["phase"].to_list() == ["prefill", "decode"] * 2
    assert trace.frame["source"].unique().to_list() == ["perf.csv:llm/card/tp2"]
    batch = trace.batch()
    assert batch.prefill_tokens.tolist() == [1024.0, 0.0, 512.0, 0.0]
    assert batch.prefill_pairs.tolist() == [4 * 256**2 / 2, 0.0, 512**2 / 2, 0.0]
    assert batch.decode_kv_tokens == pytest.approx([0, 4 * (256 + 50), 0, 512 + 50])  # the second asked for 400 and got 100
    assert trace.step_time_s[1] == pytest.approx((10 + 0.37 * 4) / 1e3)
    assert any(w.startswith("1 rows ended before their token_size") for w in trace.warnings)


def test_copies_and_batches_that_ran_in_turns_are_set_aside(tmp_path: Path) -> None:
    rows = [_batch(*size) for size in SIZES] + [_batch(*size, hardware="card-capped", factor=1.3) for size in SIZES]
    trace = read_trace(_splitwise(tmp_path, [*rows, _batch(512, 64, turns=9.0)]))
    assert dict(trace.aside) == {"scaled_copy": 18, "not_one_batch": 2}
    assert trace.frame["hardware"].unique().to_list() == ["card"]
    assert any(
        "9 rows of hardware 'card-capped' are those of 'card' times a constant (prompt_time x1.3, token_time x1)" in w
        for w in trace.warnings
    )
    assert any("batch 64, took 9.0 times the sum" in w for w in trace.warnings)
    with pytest.raises(TraceError, match="at least one row that was measured"):
        read_trace(_splitwise(tmp_path, [_batch(512, 64, turns=9.0)]))
    with pytest.raises(TraceError, match="row 1, column batch_size: expected a number above zero"):
        read_trace(_splitwise(tmp_path, [_batch(512, 0)]))


@given(st.floats(0.2, 5.0), st.integers(0, 2**32 - 1))
def test_a_constant_multiple_is_found_and_a_measurement_is_not(factor: float, seed: int) -> None:
    drawn = np.random.default_rng(seed)
    size = np.arange(1, 11)
    one = drawn.uniform(1, 2, 10) * size
    frame = pl.DataFrame({"card": ["a"] * 10 + ["b"] * 10, "size": [*size, *size], "t": [*one, *(factor * one)], "u": [*size, *size]})
    found = scaled_copies(frame, ["size"], ["t", "u"])
    assert found.rows.sum() == 10
    assert len(set(frame.filter(pl.Series(found.rows))["card"])) == 1
    noisy = frame.with_columns(t=pl.col("t") * drawn.uniform(1.0, 1.001, 20))
    assert not scaled_copies(noisy, ["size"], ["t", "u"]).rows.any()


@pytest.mark.parametrize("first", [1.0, 1.3])
def test_the_copy_is_the_one_with_the_round_factor(first: float) -> None:
    true = np.random.default_rng(1).uniform(1, 2, 10)
    times = [*(first * true), *(1.3 / first * true)]
    frame = pl.DataFrame({"card": ["a"] * 10 + ["b"] * 10, "size": [*range(10)] * 2, "t": times})
    assert set(frame.filter(pl.Series(scaled_copies(frame, ["size"], ["t"]).rows))["card"]) == ({"b"} if first == 1.0 else {"a"})
    with pytest.raises(ValueError, match=r"no columns \['u'\]"):
        scaled_copies(frame, ["size"], ["u"])
    with pytest.raises(ValueError, match="two columns"):
        repeated_rows(frame, ["t"])


def test_a_planner_s_tables(tmp_path: Path) -> None:
    decode = tmp_path / "decode.csv"
    decode.write_text("kv_usage,context_length,itl_ms,thpt_per_gpu,max_kv_tokens\n0.1,1000,10,980,100000\n0.9,1000,20,2000,100000\n")
    trace = read_trace(decode)
    assert trace.batch().decode_requests.tolist() == [10.0]  # the second holds 90, and 2000 / s * 20 ms = 40 decoded
    assert trace.batch().decode_kv_tokens.tolist() == [10000.0]
    assert dict(trace.aside) == {"not_one_batch": 1}
    assert trace.engine == {"kv_tokens": 100000}
    assert any("in 1 rows up to 56 % of the requests waited" in w for w in trace.warnings)
    prefill = tmp_path / "prefill.csv"
    prefill.write_text("prefill_isl,prefill_ttft_ms,prefill_thpt_per_gpu\n100,20,5000\n")
    assert read_trace(prefill).batch().prefill_pairs.tolist() == [5000.0]
    decode.write_text("kv_usage,context_length,itl_ms,thpt_per_gpu,max_kv_tokens\n0.9,0,20,2000,100000\n")
    with pytest.raises(TraceError, match="row 1, column context_length: expected a context above zero"):
        read_trace(decode)


def test_the_published_table_of_batches_without_what_was_not_measured(shared_data: Path) -> None:
    trace = read_trace(shared_data / "steps/splitwise/perf_model.csv")
    assert dict(trace.aside) == {"scaled_copy": 840, "not_one_batch": 30}
    assert len(trace) == 2 * (1260 - 420 - 15)
    assert any("420 rows of hardware 'h100-80gb-pcap'" in w and "prompt_time x1.3, token_time x1" in w for w in trace.warnings)
    for hardware in ("a100-80gb", "h100-80gb"):
        rows = trace.where({"model": "llama2-70b", "hardware": hardware, "tensor_parallel": 2, "phase": "prefill"})
        columns = np.column_stack([np.ones(len(rows)), rows.batch().prefill_tokens, rows.batch().prefill_pairs])
        predicted = columns @ fit_law(columns, rows.step_time_s).coefficients
        assert np.mean(np.abs(predicted / rows.step_time_s - 1)) < 0.06  # with the rows set aside it is 0.7 and 0.6


def test_the_planner_s_rows_whose_requests_waited(shared_data: Path) -> None:
    trace = read_trace(shared_data / "steps/dynamo_planner/dynamo_h200_decode.csv")
    assert (len(trace), dict(trace.aside)) == (38, {"not_one_batch": 3})
    assert any("in 3 rows up to 49 % of the requests waited" in w for w in trace.warnings)
    assert len(read_trace(shared_data / "steps/dynamo_planner/dynamo_h200_prefill.csv")) == 17
