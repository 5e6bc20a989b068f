"""Step traces: what each format holds, how it is told, and how a wrong cell is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from headway.identification.readers import TRACE_READERS, TraceError, read_trace
from headway.identification.rows import IDLE, judge, select, used_rows
from headway.identification.structures.lag import neighbours_of
from headway.identification.trace import BLOCK_ROWS, CLOCKS, COLUMNS, READ_ASIDE, Trace

DATA = Path(__file__).parent / "data" / "traces"
FIXTURES = {
    "fpm_csv": "fpm.csv",
    "fpm_jsonl": "fpm.jsonl",
    "fpm_trace": "fpm_trace.jsonl",
    "fpm_msgpack": "fpm.msgpack",
    "vllm_adapter": "vllm_adapter.jsonl",
    "vllm_adapter_cpu": "vllm_adapter_cpu.jsonl",
    "vllm_stats": "vllm_stats.jsonl",
    "trtllm_stats": "trtllm_stats.jsonl",
    "bench_forward": "bench_forward.json",
    "scheduler": "scheduler.csv",
    "llmservingsim": "llmservingsim/tp1/attention.csv",
    "vidur": "vidur.csv",
    "splitwise": "splitwise.csv",
    "silicon": "silicon.csv",
    "dynamo_decode": "dynamo_decode.csv",
    "dynamo_prefill": "dynamo_prefill.csv",
    "client_stamps": "client_stamps.json",
    "client_aggregates": "client_aggregates.jsonl",
    "steps": "steps.csv",
    "vllm_iterations": "vllm_iterations.log",
    "trtllm_iterations": "trtllm_iterations.log",
    "sglang": "sglang.log",
}
"""A small file of each format, of our own making."""
WITH_SIBLINGS = {"llmservingsim": ("dense.csv", "per_sequence.csv", "../meta.yaml")}
"""Formats of several files: what must lie beside the one that is given."""
BINARY = {"fpm_msgpack": "MessagePack has no lines, and no byte order mark"}
"""Formats that are no text, and why the rules for text do not hold for them."""
ONE_DOCUMENT = dict.fromkeys(("client_stamps", "bench_forward"), "one JSON document: cut off anywhere, nothing of it can be read")
"""Formats of which no row stands for itself."""
STEPS = "step,step_time_s,decode_requests,decode_kv_tokens,prefill_tokens,prefill_pairs,prefill_requests\n"


def _written(tmp_path: Path, text: str | bytes, name: str = "t.txt") -> Path:
    file = tmp_path / name  # no format is told by a name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def _copied(tmp_path: Path, format: str, change: Callable[[bytes], bytes] = bytes) -> Path:
    """The small file of a format, changed, under a name that tells nothing; with all that belongs beside it."""
    here = DATA / FIXTURES[format]
    if format not in WITH_SIBLINGS:
        return _written(tmp_path, change(here.read_bytes()))
    (tmp_path / "tables" / here.parent.name).mkdir(parents=True, exist_ok=True)
    for name in (here.name, *WITH_SIBLINGS[format]):
        (tmp_path / "tables" / here.parent.name / name).write_bytes(change((here.parent / name).read_bytes()))
    return tmp_path / "tables" / here.parent.name / here.name


def _said(file: Path, format: str = "auto") -> str:
    """The error of reading a file, without the folder it lies in: golden text."""
    with pytest.raises(TraceError) as caught:
        read_trace(file, format)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text.replace(str(file), file.name)


def test_every_format_has_a_small_file() -> None:
    assert set(FIXTURES) == set(TRACE_READERS)
    assert {*WITH_SIBLINGS, *BINARY, *ONE_DOCUMENT} < set(FIXTURES)


@pytest.mark.parametrize("format", FIXTURES)
def test_a_format_is_told_by_what_it_holds(format: str, tmp_path: Path) -> None:
    file = _copied(tmp_path, format)
    found, told = read_trace(file), read_trace(file, format)
    assert found.reader == format
    assert found.frame.equals(told.frame)
    assert list(COLUMNS) == found.frame.columns[: len(COLUMNS)]
    assert [found.frame[name].dtype for name in COLUMNS] == list(COLUMNS.values())
    assert found.files == (str(file),)
    assert len(found.sources[0].sha256) == 64


@pytest.mark.parametrize("format", FIXTURES)
def test_what_a_format_lacks_is_named(format: str, tmp_path: Path) -> None:
    trace = read_trace(_copied(tmp_path, format))
    assert set(trace.missing) < set(COLUMNS) - {"step", "source", "step_time_s"}
    assert set(trace.aside) <= set(READ_ASIDE)
    for name in trace.missing:
        estimated = any(f"{name} is estimated" in said for said in trace.warnings)
        assert estimated or (trace.frame[name] == 0).all()
    assert trace.clock in CLOCKS


def test_only_curves_of_concurrency_lack_both_the_cache_and_the_prompts(tmp_path: Path) -> None:
    both = {"decode_kv_tokens", "prefill_tokens"}
    assert {f for f in FIXTURES if both <= set(read_trace(_copied(tmp_path, f)).missing)} == {"silicon", "client_aggregates"}


def test_no_row_of_a_table_is_taken_for_the_step_after_another(tmp_path: Path) -> None:
    tables = {f for f in FIXTURES if not neighbours_of(read_trace(_copied(tmp_path, f))).before.any()}
    assert tables == {"llmservingsim", "vidur", "splitwise", "silicon", "dynamo_decode", "dynamo_prefill", "client_aggregates"}


@pytest.mark.parametrize("format", [f for f in FIXTURES if f not in BINARY])
@pytest.mark.parametrize("ends", ["\r\n", "\n\n", "no final newline", "byte order mark"])
def test_how_lines_end_and_files_begin_changes_nothing(format: str, ends: str, tmp_path: Path) -> None:
    def changed(data: bytes) -> bytes:
        text = data.decode().rstrip("\n")
        return {"no final newline": text, "byte order mark": "\ufeff" + text}.get(ends, text.replace("\n", ends) + ends).encode()

    plain, same = read_trace(_copied(tmp_path, format)), read_trace(_copied(tmp_path, format, changed))
    assert plain.frame.equals(same.frame)
    assert same.aside == plain.aside
    assert same.warnings == plain.warnings


def test_the_metrics_are_the_same_in_text_and_in_messagepack(tmp_path: Path) -> None:
    text, packed = (read_trace(_copied(tmp_path, format)) for format in ("fpm_trace", "fpm_msgpack"))
    assert text.frame.equals(packed.frame)


def test_metrics_are_put_in_order_of_step_within_each_stream() -> None:
    frame = read_trace(DATA / "fpm.csv").frame
    assert frame["step"].to_list() == [11, 12, 13, 14, 11]
    assert frame["source"].to_list() == ["fpm.csv:2643417971761755901/0"] * 4 + ["fpm.csv:2643417971761755901/1"]
    assert frame["step_time_s"].to_list() == [0.040, 10.5 / 1e3, 10.25 / 1e3, 13.25 / 1e3, 0.009]
    # two chunks of 500 tokens, each over 250 in the cache: 2 * 500 * (250 + 500 / 2); one of 100 over none: 100 * 50
    assert frame["prefill_pairs"].to_list() == [500_000, 0, 0, 5_000, 0]
    assert frame["prefill_requests"].to_list() == [2, 0, 0, 1, 0]


def test_the_rows_are_believed_over_the_engine_configuration() -> None:
    trace = read_trace(DATA / "fpm.csv")
    assert trace.engine == {"block_tokens": 16, "max_seqs": 128, "max_len": 40960, "max_tokens": 1000}
    assert "says max_tokens 512, the rows hold up to 1000 tokens in a step" in trace.warnings[0]


def test_an_engine_configuration_may_be_nested_and_is_checked(tmp_path: Path) -> None:
    file = _written(tmp_path, (DATA / "fpm.csv").read_bytes(), "a.b.fpm_detail.csv")
    config = _written(tmp_path, json.dumps({"scheduler_config": {"max_num_seqs": 8}}), "a.b.engine_config.json")
    assert read_trace(file).engine == {"max_seqs": 8}
    config.write_text('{"scheduler_config.max_num_seqs": "many"}')
    with pytest.raises(TraceError, match=r"column scheduler_config\.max_num_seqs: expected a whole number above zero, found 'many'"):
        read_trace(file)
    config.write_text("[]")
    with pytest.raises(TraceError, match="expected the engine's configuration, a JSON object, found 'list'"):
        read_trace(file)


def test_case_e15_idle_heartbeats_are_counted_and_empty_ids_kept() -> None:
    trace = read_trace(DATA / "fpm.jsonl")
    assert trace.frame["source"].unique(maintain_order=True).to_list() == ["fpm.jsonl:w0/0", "fpm.jsonl:unknown/0"]
    assert trace.frame["worker_id"].to_list()[-1] == "unknown"
    reason = judge(trace)
    assert list(reason) == ["", "", IDLE, ""]
    assert used_rows(reason, select(trace, "all", None)) == {"read": 4, "used": 3, "set_aside": {IDLE: 1}}


def test_steps_of_several_workers_under_an_empty_id_are_said(tmp_path: Path) -> None:
    text = (DATA / "fpm.jsonl").read_text().replace('"worker_id": "w0"', '"worker_id": ""')
    trace = read_trace(_written(tmp_path, text))
    assert trace.warnings == ("1 step number comes more than once in stream t.txt:unknown/0 (first: 1); it may mix several workers",)
    assert len(trace) == 4


@pytest.mark.parametrize("format", [f for f in FIXTURES if f not in BINARY and f not in ONE_DOCUMENT])
def test_a_last_line_that_was_cut_off_is_set_aside_and_said(format: str, tmp_path: Path) -> None:
    whole = read_trace(_copied(tmp_path, format))
    file = tmp_path / whole.files[0]
    text = file.read_text().rstrip("\n")
    file.write_text(text[: text.rindex(",") - 1])
    cut = read_trace(file)
    steps_a_row = 2 if format == "splitwise" else 1
    assert len(cut) == len(whole) - steps_a_row
    assert "1 row cut off at the end of a file, set aside as unreadable" in cut.warnings
    before, after = (used_rows(judge(t), select(t, "all", None), t.aside) for t in (whole, cut))
    assert after["read"] == before["read"] - steps_a_row + 1
    assert after["set_aside"]["unreadable"] == 1


def test_a_broken_line_elsewhere_is_an_error(tmp_path: Path) -> None:
    lines = (DATA / "fpm.jsonl").read_text().splitlines()
    file = _written(tmp_path, "\n".join([lines[0], lines[1][:40], lines[2]]) + "\n")
    assert _said(file) == (
        "t.txt: row 2: expected a JSON object (forward pass metrics, one JSON object a line), "
        'found \'{"wall_time": 0.0105, "counter_id": 2, "\''
    )
    assert _said(_written(tmp_path, lines[0] + "\n" + lines[1][:40] + "\n")).startswith("t.txt: row 2: expected a JSON object")


def test_asynchronous_steps_are_timed_from_the_end_of_the_one_before() -> None:
    frame = read_trace(DATA / "scheduler.csv").frame
    assert frame["step_time_s"].to_list() == pytest.approx([0.020, 0.010, 0.010])
    assert frame["token_budget"].to_list() == [2048, 2048, 1024]
    assert frame["running_limit"].to_list() == [64, 64, 32]
    assert frame["mode"].to_list() == ["fixed", "prbs", "prbs"]
    assert frame["prefill_pairs"].to_list() == [300 * (50 + 75), 0, 0]


def test_a_step_that_ends_before_the_one_before_it_is_an_error(tmp_path: Path) -> None:
    text = (DATA / "scheduler.csv").read_text().replace("1000.0,25.000", "1000.0,5.000")
    assert _said(_written(tmp_path, text)) == (
        "t.txt: row 2, column exec_ms: expected a step that ends after the one before it, found '10.000 ms before'"
    )


def test_our_own_table_passes_through_parquet(tmp_path: Path) -> None:
    trace = read_trace(DATA / "steps.csv")
    file = tmp_path / "trace.parquet"
    trace.frame.write_parquet(file)
    again = read_trace(file)
    assert again.reader == "steps"
    assert again.frame.drop("source").equals(trace.frame.drop("source"))
    assert again.frame["token_budget"].dtype == pl.Float64
    file.write_bytes(file.read_bytes()[:-20])
    assert _said(file).startswith("trace.parquet: expected a whole Parquet file, found")


def test_several_files_keep_their_streams_apart(tmp_path: Path) -> None:
    other = _written(tmp_path, (DATA / "steps.csv").read_bytes(), "other.csv")
    trace = read_trace([DATA / "steps.csv", other, DATA / "scheduler.csv"])
    assert trace.reader == "steps+scheduler"
    assert trace.stream.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    (tmp_path / "there").mkdir()
    same_name = _written(tmp_path / "there", (DATA / "steps.csv").read_bytes(), "other.csv")
    assert read_trace([other, same_name]).stream.tolist() == [0] * 3 + [1] * 3
    with pytest.raises(ValueError, match="the same file was given twice"):
        read_trace([other, other])
    with pytest.raises(ValueError, match="at least one file"):
        read_trace([])


GOLDEN = {
    "a number that is none": (STEPS + "1,0.01,1,300,0,0,0\n2,fast,1,301,0,0,0\n",
        "t.txt: row 2, column step_time_s: expected a number that is not negative, found 'fast'"),
    "a negative number": (STEPS + "1,0.01,1,300,0,0,0\n2,0.01,1,-301,0,0,0\n",
        "t.txt: row 2, column decode_kv_tokens: expected a number that is not negative, found '-301'"),
    "no number": (STEPS + "1,0.01,1,300,0,,0\n",
        "t.txt: row 1, column prefill_pairs: expected a number that is not negative, found ''"),
    "not finite": (STEPS + "1,nan,1,300,0,0,0\n",
        "t.txt: row 1, column step_time_s: expected a number that is not negative, found 'nan'"),
    "a missing column": (STEPS.replace("prefill_pairs,", "") + "1,0.01,1,300,0,0\n",
        "t.txt: column prefill_pairs: expected this column in Headway's step table, "
        "found 'step, step_time_s, decode_requests, decode_kv_tokens, prefill_tokens, prefill_requests'"),
    "no step": (STEPS, "t.txt: expected at least one step in Headway's step table, found none"),
    "a row too long": (STEPS + "1,0.01,1,300,0,0,0,9,9\n2,0.01,1,300,0,0,0\n",
        "t.txt: row 1: expected 7 cells, as in the header of Headway's step table, found 9"),
    "an empty file": (" \n", "t.txt: expected a trace of engine steps, found an empty file"),
    "an unknown table": ("a,b\n1,2\n",
        "t.txt: expected a trace of engine steps; a CSV with a, b is of no known format: give the engine's log or table, or write Headway's "
        'step table; docs/commands.md, "A trace", lists what is read'),
    "a table near a known one": ("step,step_time_ms,decode_requests\n1,9,2\n",
        "t.txt: expected a trace of engine steps; a CSV with step, step_time_ms, decode_requests is of no known format: nearest is Headway's "
        "step table (steps), of which it lacks step_time_s (here step_time_ms?), decode_kv_tokens, prefill_tokens and 2 more; "
        'docs/commands.md, "A trace", lists what is read'),
    "keys near known ones": ('{"wall_time": 0.1, "counter": 3, "batch": {}}\n',
        "t.txt: expected a trace of engine steps; a JSON object with wall_time, counter, batch is of no known format: nearest is forward pass "
        "metrics, one JSON object a line (fpm_jsonl), of which it lacks counter_id (here counter?) and scheduled; "
        'docs/commands.md, "A trace", lists what is read'),
    "prose": ("Hello, dear reader of steps\nthere is none here.\n",
        "t.txt: expected a trace of engine steps; text that begins with 'Hello, dear reader of steps' is of no known format: give the engine's "
        "log or table, or write Headway's step table; docs/commands.md, \"A trace\", lists what is read"),
    "a workload": ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n",
        "t.txt: expected a trace of engine steps; this looks like a workload: requests, not steps; give it as the workload"),
    "an engine's log": ("INFO 01-20 10:00:00 metrics.py:345] Avg prompt throughput: 12.0 tokens/s\n",
        "t.txt: expected a trace of engine steps; this looks like vLLM's stats lines; a stats line every 10 s is no step trace: it lacks the "
        "batch and the duration of each step; start vLLM with --enable-logging-iteration-details, or record its forward pass metrics"),
    "another engine's log": ("[2025-02-27 04:46:39 TP0] Decode batch. #running-req: 8\n",
        "t.txt: expected a step in SGLang's decode and prefill lines; of 1 line none can be timed (1 without a duration: time stamps resolve "
        "a second): only a decode line right after another decode line is free of prefills and idle time; record forward pass metrics, or "
        "a longer log of steady decoding"),
    "an engine's configuration": ('{"scheduler_config.max_num_seqs": 128}\n',
        "t.txt: expected a trace of engine steps; this looks like an engine's configuration, which holds no steps; give the trace that lies "
        "beside it: the limits are read from there"),
    "a plant": ('{"schema": "headway/plant/1"}\n',
        "t.txt: expected a trace of engine steps; this looks like a plant that is fitted already, and no trace: headway score and headway "
        "tune take it"),
    "a time series": ("t,prompt_throughput,gen_throughput,running\n1.0,9,1,2\n",
        "t.txt: expected a trace of engine steps; this looks like a time series of a server's throughput, which averages over many steps: it "
        "lacks the batch and the duration of each step; give the kernel tables beside it (the folder of attention.csv), which are held "
        "against it"),
    "one part of a step": ("layer,tokens,time_us\nlayernorm,1,2\n",
        "t.txt: expected LLMServingSim's attention.csv of this folder, or the folder; this table holds one part of a step and is read "
        "with it"),
    "collectives": (",time_stats.all_reduce.median,size,collective\n0,2,2048,all_reduce\n",
        "t.txt: expected a trace of engine steps; this is a table of collectives by size (Vidur's), one part of a step; give mlp.csv"),
    "a period that is no number": (STEPS.replace("\n", ",period_s\n") + "1,0.01,1,300,0,0,0,0.02\n2,0.01,1,301,0,0,0,soon\n",
        "t.txt: row 2, column period_s: expected a number, or nothing where it is not known, found 'soon'"),
    "no duration": (STEPS.replace("step_time_s,", "") + "1,1,300,0,0,0\n",
        "t.txt: column step_time_s: expected this column in Headway's step table, "
        "found 'step, decode_requests, decode_kv_tokens, prefill_tokens, prefill_pairs, prefill_requests'"),
    "a missing key": ('{"wall_time": 0.1, "counter_id": 1, "scheduled": {"num_prefill_requests": 1}}\n',
        "t.txt: row 1, column scheduled.sum_prefill_tokens: expected this key in forward pass metrics, one JSON object a line"),
    "a key of another type": ('{"wall_time": "slow", "counter_id": 1, "scheduled": {}}\n',
        "t.txt: row 1, column wall_time: expected float, found 'str'"),
}  # fmt: skip


@pytest.mark.parametrize("case", GOLDEN)
def test_errors_name_file_row_column_and_what_was_expected(case: str, tmp_path: Path) -> None:
    text, expected = GOLDEN[case]
    assert _said(_written(tmp_path, text)) == expected


def test_errors_of_files_that_cannot_be_opened(tmp_path: Path) -> None:
    assert _said(tmp_path / "gone.csv") == "gone.csv: expected a file, but there is none of this name"
    assert _said(tmp_path).endswith(": expected a file, not a folder")
    with pytest.raises(ValueError, match=f"unknown trace format 'csv'; this version reads auto, {', '.join(TRACE_READERS)}"):
        read_trace(DATA / "steps.csv", "csv")
    assert _said(DATA / "steps.csv", "fpm_csv").startswith("steps.csv: column counter_id: expected this column in a table of forward pass")


def test_a_missing_metric_names_the_format_it_was_told_by(tmp_path: Path) -> None:
    text = (DATA / "fpm.csv").read_text().replace("latency_ms", "latency")
    assert _said(_written(tmp_path, text)).startswith("t.txt: column latency_ms: expected this column in a table of forward pass metrics")
    text = (DATA / "scheduler.csv").read_text().replace("exec_ms", "exec")
    assert _said(_written(tmp_path, text)).startswith("t.txt: column exec_ms: expected this column in a scheduler trace")


def _trace(k: int) -> Trace:
    row = np.arange(k)
    zero, one = np.zeros(k), np.ones(k)
    return Trace.of(
        pl.DataFrame(
            {
                "step": row,
                "source": np.where(row % 2, "b", "a"),
                "step_time_s": one,
                "decode_requests": one,
                "decode_kv_tokens": row,
                "prefill_tokens": zero,
                "prefill_pairs": zero,
                "prefill_requests": zero,
                "half": np.where(row < k // 2, "first", "second"),
                "level": row // 100 / 2,
            }
        )
    )


def test_blocks_are_cut_per_stream_and_before_rows_are_chosen() -> None:
    trace = _trace(4 * BLOCK_ROWS)
    assert trace.frame["block"].to_list() == ([0] * BLOCK_ROWS + [1] * BLOCK_ROWS) * 2
    assert trace.in_blocks("even").sum() == trace.in_blocks("odd").sum() == 2 * BLOCK_ROWS
    chosen = trace.where({"half": "second"})
    assert chosen.in_blocks("odd").all()
    assert (chosen.batch().decode_kv_tokens >= 2 * BLOCK_ROWS).all()


def test_rows_are_chosen_by_value() -> None:
    trace = _trace(400)
    assert trace.matching({"level": "1"}).sum() == trace.matching({"level": 1.0}).sum() == 100
    assert trace.matching(None).all()
    with pytest.raises(ValueError, match=r"no column 'mode' to choose rows by"):
        trace.matching({"mode": "pi"})
    with pytest.raises(ValueError, match=r"no row has half=third; the trace holds \['first', 'second'\]"):
        trace.matching({"half": "third"})
    with pytest.raises(ValueError, match=r"no row has all of half=first, level=1\.5"):
        trace.matching({"half": "first", "level": "1.5"})
    with pytest.raises(ValueError, match="blocks must be one of"):
        trace.in_blocks("none")


def test_a_trace_refuses_what_is_none() -> None:
    frame = _trace(10).frame
    with pytest.raises(ValueError, match="missing: \\['prefill_pairs'\\]"):
        Trace.of(frame.drop("prefill_pairs"))
    with pytest.raises(ValueError, match="at least one step"):
        Trace.of(frame.head(0))
    with pytest.raises(ValueError, match="step_time_s of a trace must be finite and not negative"):
        Trace.of(frame.with_columns(step_time_s=pl.lit(-1.0)))
    assert Trace.of(frame.drop("source")).stream.tolist() == [0] * 10


@pytest.mark.parametrize(("mark", "said"), [(";", "';'"), ("\t", "tabs"), ("|", "'|'")])
def test_another_separator_is_named_in_one_short_line(tmp_path: Path, mark: str, said: str) -> None:
    path = tmp_path / "steps.csv"
    names = ["step", "step_time_s", "decode_requests", "decode_kv_tokens", "prefill_tokens", "prefill_pairs", "prefill_requests"]
    path.write_text("\n".join(mark.join(row) for row in (names, ["0", "0,01", "3", "300", "0", "0", "0"])))
    with pytest.raises(TraceError) as caught:
        read_trace([path])
    assert (
        str(caught.value)
        == f"{path}: expected commas between the cells of a CSV; its first line is separated by {said}: write it with commas"
    )
