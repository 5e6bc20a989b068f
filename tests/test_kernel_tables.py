"""Kernel tables composed to steps: what a step is made of, what the tables lack, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.identification.hardware.compose import Curve, checkerboard, compose_s, curve_s, grid_index, missing_collective, on_plane
from headway.identification.hardware.layers import layers_of
from headway.identification.readers import TRACE_READERS, TraceError, read_trace
from headway.identification.readers.columns import Opened, Table
from headway.identification.readers.serving_run import read_serving_run

CHUNKS, CONTEXTS, DECODES, CACHES = (0, 16, 32), (0, 128), (0, 1, 4), (0, 64, 256)
LAYERS = 32


def _attention_us(chunk: int, context: int, decodes: int, cache: int) -> float:
    return 2.0 + 0.01 * decodes * cache + 1e-3 * chunk * (context + chunk / 2)


def _grid() -> list[tuple[int, int, int, int]]:
    prompts = [(c, k) for c in CHUNKS for k in CONTEXTS if c or not k]
    decodes = [(n, k) for n in DECODES for k in CACHES if (n > 0) == (k > 0)]
    return [(*p, *d) for p in prompts for d in decodes if p[0] or d[0]]


def _tables(folder: Path, tp: str = "tp1", model: str = "meta-llama/Llama-3.1-8B", most: int = 64) -> Path:
    """One llm's tables: per layer 10 us + 1 us a token and twice 0.5 us of norm; once 3 us, and 5 us a sequence."""
    here = folder / tp
    here.mkdir(parents=True)
    rows = [f"{','.join(map(str, g))},{_attention_us(*g)}" for g in _grid()]
    (here / "attention.csv").write_text("\n".join(["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", *rows]) + "\n")
    dense = [f"qkv_proj,{n},{10 + n}" for n in (1, most)] + [f"layernorm,{n},0.5" for n in (1, most)]
    dense += [f"embedding,{n},3" for n in (1, most)]
    (here / "dense.csv").write_text("\n".join(["layer,tokens,time_us", *dense]) + "\n")
    (here / "per_sequence.csv").write_text("layer,sequences,time_us\nlm_head,1,5\nlm_head,8,40\n")
    (folder / "meta.yaml").write_text(f"gpu: any\nmodel: {model}\n")
    return here / "attention.csv"


def _step_us(chunk: float, context: float, decodes: float, cache: float) -> float:
    tokens, sequences = chunk + decodes, decodes + (chunk > 0)
    return LAYERS * (_attention_us(chunk, context, decodes, cache) + 10 + tokens + 1.0) + 3 + 5 * sequences  # type: ignore[arg-type]


def test_a_step_is_its_layers_and_what_runs_once(tmp_path: Path) -> None:
    trace = read_trace(_tables(tmp_path))
    grid = np.array(_grid(), float)
    assert trace.reader == "llmservingsim"
    assert trace.clock == "device"
    assert trace.step_time_s == pytest.approx([_step_us(*g) / 1e6 for g in grid], rel=1e-12)
    batch = trace.batch()
    assert batch.decode_kv_tokens == pytest.approx(grid[:, 2] * grid[:, 3])
    assert batch.prefill_pairs == pytest.approx(grid[:, 0] * (grid[:, 1] + grid[:, 0] / 2))
    assert batch.prefill_requests.tolist() == (grid[:, 0] > 0).tolist()
    assert any("32 layers" in w for w in trace.warnings)
    assert not any("collective" in w for w in trace.warnings)


def test_a_folder_stands_for_its_attention_table(tmp_path: Path) -> None:
    file = _tables(tmp_path)
    assert read_trace(file.parent).frame.equals(read_trace(file).frame)
    with pytest.raises(TraceError, match="not a folder"):
        read_trace(tmp_path)


def test_half_the_grid_can_be_chosen(tmp_path: Path) -> None:
    trace = read_trace(_tables(tmp_path))
    colour = trace.frame["checkerboard"].to_numpy()
    index = trace.frame.select("^grid_.*$").to_numpy()
    assert {tuple(row) for row in index} <= {(a, b, c, d) for a in range(3) for b in range(2) for c in range(3) for d in range(3)}
    for i, j in zip(*np.nonzero(np.abs(index[:, None] - index[None]).sum(axis=2) == 1), strict=True):
        assert colour[i] != colour[j]
    assert len(trace.where({"checkerboard": 0})) + len(trace.where({"checkerboard": 1})) == len(trace)


@pytest.mark.parametrize("name", ["dense.csv", "per_sequence.csv"])
def test_a_table_that_is_not_beside_it_is_named(tmp_path: Path, name: str) -> None:
    file = _tables(tmp_path)
    file.with_name(name).unlink()
    with pytest.raises(TraceError, match=f"{name}: expected this table beside attention.csv"):
        read_trace(file)


@pytest.mark.parametrize("name", ["dense.csv", "per_sequence.csv"])
def test_a_table_of_one_part_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TraceError, match=r"attention\.csv of this folder"):
        read_trace(_tables(tmp_path).with_name(name))


def test_a_size_that_comes_twice_is_named(tmp_path: Path) -> None:
    file = _tables(tmp_path)
    with file.with_name("dense.csv").open("a") as stream:
        stream.write("qkv_proj,64,80\n")
    with pytest.raises(TraceError, match=r"dense\.csv: column tokens: expected each number of tokens once, found 'qkv_proj twice at 64'"):
        read_trace(file)


def test_layers_come_from_the_name_or_from_a_configuration(tmp_path: Path) -> None:
    file = _tables(tmp_path, model="someone/new-llm")
    with pytest.raises(TraceError, match=r"put its config\.json \(num_hidden_layers\) beside meta\.yaml; .*found 'someone/new-llm'"):
        read_trace(file)
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 32}')
    assert read_trace(file).step_time_s[0] == pytest.approx(_step_us(*_grid()[0]) / 1e6)
    (tmp_path / "config.json").write_text('{"num_hidden_layers": "many"}')
    with pytest.raises(TraceError, match="num_hidden_layers: expected a whole number above zero, found 'many'"):
        read_trace(file)
    (tmp_path / "config.json").unlink()
    (tmp_path / "meta.yaml").unlink()
    with pytest.raises(TraceError, match="an llm without a name"):
        read_trace(file)


@pytest.mark.parametrize(
    ("name", "layers"), [("Qwen/Qwen3-32B", 64), ("Llama-2-70b-hf", 80), ("nvidia/Llama-3.1-8B-Instruct-FP8", 32), ("x/y", None)]
)
def test_layers_by_name(name: str, layers: int | None) -> None:
    assert layers_of(name) == layers


def test_what_the_tables_lack_is_said(tmp_path: Path) -> None:
    split = read_trace(_tables(tmp_path / "a", tp="tp2")).warnings
    assert any("at TP 2 a step lacks its 64 all-reduces" in w for w in split)
    both = read_trace([tmp_path / "a" / "tp2", _tables(tmp_path / "a", tp="tp1").parent])
    assert len(both.where({"tensor_parallel": 2})) == len(both) / 2
    unknown = read_trace(_tables(tmp_path / "b", tp="tables")).warnings
    assert any("the folder's name gives no TP" in w for w in unknown)


def test_beyond_the_dense_table_time_grows_in_proportion(tmp_path: Path) -> None:
    trace = read_trace(_tables(tmp_path, most=32))
    beyond = trace.frame.filter(pl.col("prefill_tokens") + pl.col("decode_requests") > 32)
    assert any(w.startswith(f"{beyond.height} steps hold up to 36 tokens, beyond the 32 of dense.csv") for w in trace.warnings)
    row = beyond.filter((pl.col("decode_requests") == 4) & (pl.col("grid_kv_prefill") == 0) & (pl.col("grid_kv_decode") == 1))
    dense = (10 + 32) * 36 / 32 + 1.0 * 36 / 32
    assert row["step_time_s"][0] == pytest.approx((LAYERS * (_attention_us(32, 0, 4, 64) + dense) + 3 * 36 / 32 + 25) / 1e6)


def _run(folder: Path, longer: float, tp: int = 1) -> None:
    """Four requests that decode together for 8 s, after 1 s in which their prompts were computed."""
    here = folder / "vllm_run"
    here.mkdir()
    (here / "meta.json").write_text(json.dumps({"engine_kwargs": {"tensor_parallel_size": tp}}))
    request = {"input_toks": 100, "output_toks": 101, "queued_ts": 0.0, "first_token_ts": 1.0, "last_token_ts": 9.0}
    (here / "requests.jsonl").write_text("\n".join(json.dumps(request) for _ in range(4)) + "\n")
    lines = ["t,prompt_throughput,gen_throughput", "1.0,400,4"]
    for t in range(2, 10):
        context = 100 + 101 * (t - 1.5) / 8
        lines.append(f"{t}.0,0,{4 / (longer * _step_us(0, 0, 4, context) / 1e6)}")
    (here / "timeseries.csv").write_text("\n".join(lines) + "\n")


def test_a_run_beside_the_tables_is_held_against_them(tmp_path: Path) -> None:
    file = _tables(tmp_path)
    _run(tmp_path, longer=1.05)
    said = read_trace(file).warnings
    assert any(w == "held against 8 decode-only seconds of vllm_run: measured steps take 1.05 times the composed ones" for w in said)
    assert not any("more than the kernel tables" in w for w in said)
    run = read_serving_run(tmp_path / "vllm_run")
    assert run.tp == 1
    assert run.decode_requests.tolist() == [4.0] * 8
    assert run.tpot_s == pytest.approx([0.08] * 4)


def test_a_run_that_takes_longer_names_what_is_missing(tmp_path: Path) -> None:
    file = _tables(tmp_path, tp="tp2")
    _run(tmp_path, longer=1.5, tp=2)
    said = read_trace(file).warnings
    assert any("(33 %) more than the kernel tables add up to: at TP 2 the all-reduces are not in the tables" in w for w in said)
    _tables(tmp_path, tp="tp1")
    assert not any("vllm_run" in w for w in read_trace(tmp_path / "tp1").warnings)


@pytest.mark.parametrize("name", ["requests.jsonl", "timeseries.csv"])
def test_half_a_run_is_said_and_the_tables_are_read(tmp_path: Path, name: str) -> None:
    file = _tables(tmp_path)
    _run(tmp_path, longer=1.0)
    (tmp_path / "vllm_run" / name).write_text("{\n")
    assert any("was not held against them" in w and name in w for w in read_trace(file).warnings)
    (tmp_path / "vllm_run" / name).unlink()
    trace = read_trace(file)
    assert len(trace) == len(_grid())
    assert any(f"{name}: expected this file of a server's run" in w for w in trace.warnings)
    with pytest.raises(TraceError, match=name):
        read_serving_run(tmp_path / "vllm_run")


def test_missing_collective_takes_steps_of_one_kind_only() -> None:
    assert missing_collective(np.array([0.040, 0.050]), np.array([0.042, 0.052]), 2) is None
    assert "less than" in str(missing_collective(np.array([0.040]), np.array([0.020]), 1))
    assert "no gap between kernels" in str(missing_collective(np.array([0.010]), np.array([0.020]), 1))
    with pytest.raises(ValueError, match="as many composed as measured"):
        missing_collective(np.array([0.01, 0.02]), np.array([0.01]), 2)
    with pytest.raises(ValueError, match="layers must be at least 1"):
        compose_s(np.ones(1), np.ones(1), np.ones(1), layers=0, in_layer=[])
    with pytest.raises(ValueError, match="a full grid of 2 by 2"):
        on_plane(np.array([1, 1, 2]), np.array([1, 2, 1]), np.ones(3), np.ones(1), np.ones(1))


@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=8), st.floats(0.5, 20), st.floats(0.5, 20))
def test_a_kernel_that_grows_never_gets_shorter(steps: list[float], one: float, other: float) -> None:
    curve = Curve(np.arange(1.0, len(steps) + 1), np.cumsum(steps), 2)
    assert curve_s(curve, curve.at) == pytest.approx(2 * curve.time_s)
    low, high = curve_s(curve, np.sort([one, other]))
    assert low <= high * (1 + 1e-12)


@given(st.integers(2, 4), st.integers(2, 4), st.integers(2, 4))
def test_the_two_colours_of_a_grid_are_even(a: int, b: int, c: int) -> None:
    grid = np.array([(i, 10 * j, 7 * k) for i in range(a) for j in range(b) for k in range(c)])
    colour = checkerboard(*(grid_index(axis) for axis in grid.T))
    assert abs(int((colour == 0).sum()) - int((colour == 1).sum())) <= 1


VIDUR = ("emb", "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm")
VIDUR += ("mlp_up_proj", "mlp_act", "mlp_down_proj", "add")


def _vidur(folder: Path, width: int = 4096) -> Path:
    names = [f"time_stats.{name}.median" for name in VIDUR] + ["n_embd", "n_head", "n_kv_head", "n_expanded_embd"]
    rows = [",".join(map(str, [0.5] + [0.1 * tokens / tp] * 9 + [width, 32, 32, 11008, tokens, tp])) for tp in (1, 2) for tokens in (1, 8)]
    file = folder / "mlp.csv"
    file.write_text("\n".join([",".join([*names, "num_tokens", "num_tensor_parallel_workers"]), *rows]) + "\n")
    return file


def test_the_compute_side_is_read_and_what_it_lacks_is_said(tmp_path: Path) -> None:
    file = _vidur(tmp_path)
    trace = read_trace(file)
    assert trace.reader == "vidur"
    assert trace.clock == "device"
    assert trace.step_time_s == pytest.approx([(32 * 0.9 * tokens / tp + 0.5) / 1e3 for tp in (1, 2) for tokens in (1, 8)])
    assert trace.where({"tensor_parallel": 2}).frame["prefill_tokens"].to_list() == [1.0, 8.0]
    assert TRACE_READERS["vidur"].read(Opened(str(file))).missing == ("decode_kv_tokens", "prefill_pairs")
    assert any("no attention" in w for w in trace.warnings)
    assert any("lacks its 64 all-reduces" in w for w in trace.warnings)


def test_an_llm_of_unknown_depth_and_a_table_of_collectives_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="an llm whose layers are known by its shape"):
        read_trace(_vidur(tmp_path, width=4000))
    file = tmp_path / "all_reduce.csv"
    file.write_text(",time_stats.all_reduce.min,time_stats.all_reduce.median,rank,num_workers,size,collective\n0,1,2,0,8,2048,all_reduce\n")
    with pytest.raises(TraceError, match="this is a table of collectives by size"):
        read_trace(file)


# On the real files.

LLMSS = "steps/llmservingsim/RTXPRO6000_{}"


def _read(shared_data: Path, name: str) -> Table:
    file = shared_data / name
    return next(reader.read(Opened(str(file))) for reader in TRACE_READERS.values() if reader.claims(Opened(str(file))))


def test_composed_steps_have_the_time_scale_of_the_real_run(shared_data: Path) -> None:
    table = _read(shared_data, LLMSS.format("Llama-3.1-8B") + "/tp1/attention.csv")
    assert table.frame.height == 19364
    halves = table.frame["checkerboard"].value_counts()["count"].to_list()
    assert abs(halves[0] - halves[1]) < 0.01 * sum(halves)
    said = next(w for w in table.warnings if "decode-only seconds" in w)
    assert 0.95 < float(said.split("take ")[1].split(" ")[0]) < 1.10
    assert not any("more than the kernel tables" in w for w in table.warnings)


def test_a_split_llm_s_run_shows_the_collectives_that_its_tables_lack(shared_data: Path) -> None:
    table = _read(shared_data, LLMSS.format("Qwen3-32B") + "/tp2/attention.csv")
    said = next(w for w in table.warnings if "more than the kernel tables" in w)
    assert "at TP 2 the all-reduces are not in the tables" in said
    assert 10 < float(said.split("take ")[1].split(" ")[0]) < 30


def test_compute_bends_later_the_more_ranks_share_it(shared_data: Path) -> None:
    frame = _read(shared_data, "steps/vidur/h100_Llama-2-70b-hf_mlp.csv").frame
    knees = []
    for tp in (1, 2, 4, 8):
        rows = frame.filter(pl.col("tensor_parallel") == tp)
        flat = rows.filter(pl.col("prefill_tokens") <= 8)["step_time_s"].median()
        slope = rows.filter(pl.col("prefill_tokens") >= 2048).select(pl.col("step_time_s") / pl.col("prefill_tokens")).to_series().median()
        knees.append(float(flat) / float(slope))  # type: ignore[arg-type]
    assert knees == sorted(knees)
    assert 50 < knees[0] < 500
