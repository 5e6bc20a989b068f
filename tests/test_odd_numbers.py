"""Numbers that are none, that are too big, or that stand in the wrong place: one line says which, and nothing passes in silence."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.controllers.pi import PILaw
from headway.controllers.policy import Policy
from headway.controllers.record import ControllerRecord
from headway.controllers.simulator import Candidate
from headway.identification.readers import read_trace
from headway.identification.readers.engine_config import tensor_parallel
from headway.identification.readers.errors import TraceError
from headway.loads import read_controller
from headway.models.arrivals import MOST_REQUESTS, Gamma
from headway.models.identified import Hull
from headway.models.regimes import RegimePlant
from headway.models.signals import Limits, Target
from headway.pipeline import static_of
from headway.requirements import parse_requirements
from headway.specs import synthetic
from headway.targets import parse_target
from headway.units import duration_s, rate_rps, tokens, whole

HEADER = "step,step_time_s,decode_requests,decode_kv_tokens,prefill_tokens,prefill_pairs,prefill_requests"
SCHEDULER = "step,t_mono,sched_us,exec_ms,n_prefill_reqs,prefill_tokens,prefill_ctx_tokens,n_decode_reqs,decode_ctx_tokens"


def table(folder: Path, cells: list[tuple[int, int]], name: str = "steps.csv") -> Path:
    """A step table of decodes, (requests, cache tokens read) each."""
    file = folder / name
    rows = [f"{k},0.01,{requests},{read},0,0,0" for k, (requests, read) in enumerate(cells)]
    file.write_text("\n".join([HEADER, *rows]) + "\n")
    return file


def configured(folder: Path, content: Any) -> Path:
    """A trace with an engine's configuration beside it."""
    (folder / "steps.engine_config.json").write_text(json.dumps(content))
    return table(folder, [(4, 400)] * 3)


# --- the engine's configuration ---


@pytest.mark.parametrize(
    ("content", "engine"),
    [
        ({"max_num_seqs": 300, "max_num_batched_tokens": 4096}, {"max_seqs": 300, "max_tokens": 4096}),
        ({"max_model_len": 32768, "block_size": 32, "other": "x"}, {"max_len": 32768, "block_tokens": 32}),
        ({"kv_tokens": 90_000, "max_seqs": 8, "max_num_seqs": 8}, {"kv_tokens": 90_000, "max_seqs": 8}),
        ({"scheduler_config.max_num_seqs": 8, "scheduler_config": None, "max_num_batched_tokens": None}, {"max_seqs": 8}),
    ],
)
def test_names_without_their_section_are_read(tmp_path: Path, content: Any, engine: dict[str, int]) -> None:
    trace = read_trace(configured(tmp_path, content))
    assert trace.engine == engine
    assert not [line for line in trace.warnings if "engine_config" in line]


@pytest.mark.parametrize("value", ["x", -4, 0, 2.5, True, [3]])
def test_a_limit_that_is_no_positive_number_is_refused_under_the_name_it_has(tmp_path: Path, value: Any) -> None:
    file = configured(tmp_path, {"max_num_seqs": value})
    with pytest.raises(TraceError, match=re.escape(f"column max_num_seqs: expected a whole number above zero, found {value!r}")):
        read_trace(file)


def test_two_names_of_a_limit_have_to_agree_and_a_limit_has_a_bound(tmp_path: Path) -> None:
    file = configured(tmp_path, {"max_num_seqs": 8, "headway": {"max_seqs": 9}})
    with pytest.raises(TraceError, match=r"expected one number under all names of a limit, found \[8, 9\]"):
        read_trace(file)
    with pytest.raises(TraceError, match="a whole number of at most 1e"):
        read_trace(configured(tmp_path, {"max_num_seqs": 10**15}))


def test_a_configuration_that_says_nothing_known_is_said(tmp_path: Path) -> None:
    trace = read_trace(configured(tmp_path, {"max_sequences": 300}))
    assert trace.engine == {}
    assert trace.warnings[0].startswith(
        "steps.engine_config.json holds no limit of the engine that Headway knows, so none was taken from it"
    )
    assert "max_num_seqs" in trace.warnings[0]
    file = configured(tmp_path, {"tensor_parallel_size": 2})
    assert tensor_parallel([str(file)]) == [2]
    assert not read_trace(file).warnings


# --- columns exchanged ---


def test_a_table_whose_decodes_read_less_than_a_token_each_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as refused:
        read_trace(table(tmp_path, [(400, 4)] * 5 + [(0, 0)] * 20))
    assert str(refused.value).endswith(
        "expected decode_kv_tokens of at least decode_requests, as a decode reads one cache token or more; "
        "5 of 5 steps hold less: are the two columns exchanged?"
    )
    file = tmp_path / "scheduler.csv"
    file.write_text("\n".join([SCHEDULER, *(f"{k},{k / 10},50,9,0,0,0,300,3" for k in range(5))]) + "\n")
    with pytest.raises(TraceError, match="expected decode_ctx_tokens of at least n_decode_reqs"):
        read_trace(file)


def test_single_rows_of_the_kind_are_set_aside_and_said(tmp_path: Path) -> None:
    trace = read_trace(table(tmp_path, [(4, 400)] * 9 + [(4, 3)]))
    assert len(trace) == 9
    assert trace.aside == {"incomplete": 1}
    assert trace.warnings == ("1 row set aside: less decode_kv_tokens than decode_requests, which no engine reads",)


@pytest.mark.parametrize("cells", [[(4, 0)] * 5, [(4, 4)] * 5, [(0, 0), (0, 7)]], ids=["not recorded", "one token each", "none decodes"])
def test_what_an_engine_may_write_is_read(tmp_path: Path, cells: list[tuple[int, int]]) -> None:
    trace = read_trace(table(tmp_path, cells))
    assert (len(trace), trace.aside, trace.warnings) == (len(cells), {}, ())


def test_no_measured_trace_has_such_rows(shared_data: Path) -> None:
    for name in ("fpm_vllm0201_b300/qwen3-32b_tp1.fpm_detail.csv", "vllm_cpu/steps.csv", "vllm_cpu/sim_async_steps.csv"):
        frame = read_trace(shared_data / "steps" / name).frame
        assert not frame.filter((frame["decode_kv_tokens"] > 0) & (frame["decode_kv_tokens"] < frame["decode_requests"])).height


# --- controller.json ---


def content() -> dict[str, Any]:
    """A controller.json."""
    plant = RegimePlant((0.006, 6e-5, 5e-9, 0.0, 0.0, 0.0), (0.007, 1e-4, 0.0, 2e-5, 5e-10, 5e-4))
    settings = {"token_budget": 2048, "running_limit": 64, "timeout": None}
    record = ControllerRecord(
        Candidate(PILaw(), Policy()),
        (Target(1.0, 0.025),),
        Limits(200_000),
        plant,
        Hull(32.0, 200_000.0, 8192.0, 9e7),
        {"file": "plant.json", "sha256": None},
        {"spec": "poisson:rate=5/s,prompt=600,output=200", "rate_rps": 5.0, "rows": None},
        {"best_static": {"settings": settings}},
    )
    return json.loads(json.dumps(record.to_json()))


def test_the_controller_as_it_was_written_is_read() -> None:
    record = ControllerRecord.from_json(content())
    assert not record.edited
    assert static_of(record) == (2048, 64, None)
    bare = content()
    bare["tuning"]["best_static"] = None
    assert static_of(ControllerRecord.from_json(bare)) == (8192, 256, None)


STATIC = "tuning.best_static.settings"


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("tuning.best_static", 5, "tuning.best_static must be a mapping of names, got 5"),
        (STATIC, [1], "tuning.best_static.settings must be a mapping of names, got [1]"),
        (f"{STATIC}.token_budget", "x", f"{STATIC}.token_budget must be a number, got 'x'"),
        (f"{STATIC}.token_budget", -5, f"{STATIC}.token_budget must be a whole number in [1, 1e+12], got -5"),
        (f"{STATIC}.running_limit", 2.5, f"{STATIC}.running_limit must be a whole number in [1, 1e+06], got 2.5"),
        (f"{STATIC}.timeout", -1, f"{STATIC}.timeout must be in (0, 100] times the TTFT target, got -1"),
        ("workload.rate_rps", "x", "workload.rate_rps must be a number, got 'x'"),
        ("workload.rate_rps", 0, "workload.rate_rps must be above 0, got 0"),
        ("workload.rows", [0, "x"], "workload.rows must be a number, got 'x'"),
        ("workload.rows", 7, "workload.rows must be [first, end] or null, got 7"),
        ("engine.kv_tokens", math.nan, "engine.kv_tokens must be finite, got nan"),
        ("engine.kv_tokens", 200_000.5, "kv_tokens must be a whole number of at most 1e+12, got 200000.5"),
        ("engine.max_tokens", 10**30, "max_tokens must be a whole number of at most 1e+12, got a number of 31 digits"),
        ("engine.max_tokens", 10**400, "engine.max_tokens must be a number below 1e308, got one of 401 digits"),
        ("engine.max_seqs", math.inf, "engine.max_seqs must be finite, got inf"),
        ("engine.max_seqs", True, "engine.max_seqs must be a number, got True"),
        ("hull.decode_requests", -1, "hull.decode_requests must not be negative, got -1"),
        ("policy.running_limit.value", True, "policy.running_limit.value must be a number, got True"),
        ("policy.timeout.value", "1", "policy.timeout.value must be a number, got '1'"),
        ("law.gains.kp.value", "much", "law.gains.kp.value must be a number, got 'much'"),
        ("targets", 5, "controller.json lacks or misstates"),
    ],
)
def test_a_controller_is_checked_in_every_part(tmp_path: Path, place: str, value: Any, message: str) -> None:
    data = copy.deepcopy(content())
    *path, last = place.split(".")
    part = data
    for name in path:
        part = part[name]
    part[last] = value
    file = tmp_path / "controller.json"
    file.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        read_controller(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert "\n" not in str(refused.value)


def test_a_target_in_a_controller_is_checked_as_well() -> None:
    for field, value, message in (("itl_s", "x", "must be a number"), ("itl_s", 1e-300, "itl_s must be from 1 ns to 1e+10 s")):
        data = content()
        data["targets"][0][field] = value
        with pytest.raises(ValueError, match=re.escape(message)):
            ControllerRecord.from_json(data)


# --- numbers as people write them ---


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (duration_s, "1e-300ns", "a duration must be 0 or from 1e-15 to 1e+10 s, got '1e-300ns'; write 25ms or 1.5s"),
        (duration_s, "1e300h", "a duration must be 0 or from 1e-15 to 1e+10 s, got '1e300h'; write 25ms or 1.5s"),
        (rate_rps, "1e300/s", "a rate must be from 1e-12 to 1e+09 a second, got '1e300/s'; write 12/s or 300/min"),
        (rate_rps, "1e-300/s", "a rate must be from 1e-12 to 1e+09 a second, got '1e-300/s'; write 12/s or 300/min"),
        (tokens, "1e30", "a number of tokens must be from 1 to 1e+12, got '1e30'; write 4096 or 200k"),
        (whole, "9" * 999, f"a whole number of at least 1 is expected, got '{'9' * 55}...'; write for example 64"),
        (duration_s, "9" * 999 + "s", f"a duration must be finite and not negative, got '{'9' * 55}...'; write 25ms or 1.5s"),
    ],
)
def test_a_size_beyond_reason_is_refused_where_it_is_read(read: Any, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read(text)


def test_a_target_below_a_nanosecond_is_refused() -> None:
    for text in ("ttft=1s,itl=1e-300ns", "ttft=1s,itl=1e-12s"):
        with pytest.raises(ValueError, match="from 1"):
            parse_target(text)


@pytest.mark.parametrize("cv", ["1e200", "1e-200", "1e4"])
def test_bursts_beyond_what_can_be_drawn_are_refused(cv: str) -> None:
    with pytest.raises(ValueError, match=re.escape("cv of arrivals must be in [0.001, 1000], got")):
        synthetic(f"gamma:rate=5/s,cv={cv},prompt=600,output=200")


def test_the_ends_of_what_is_taken_can_be_drawn() -> None:
    for rate in (1e-12, 1e9):
        for cv in (1e-3, 1e3):
            source = synthetic(f"gamma:rate={rate}/s,cv={cv},prompt=600,output=200")
            assert source.draw(0, 50, heldout=False).arrival_s[0] == 0.0
    with pytest.raises(ValueError, match="rate of arrivals must be in"):
        Gamma(5.0, 2.0).rescaled(1e300)


@pytest.mark.parametrize("kind", ["poisson:rate=5/s", "closed:clients=4,think=1s"])
def test_more_requests_than_memory_holds_are_refused(kind: str) -> None:
    with pytest.raises(
        ValueError, match=f"^a run holds at most {MOST_REQUESTS:,} requests, got 99,999,999,999,999; ask for fewer requests$"
    ):
        synthetic(f"{kind},prompt=600,output=200").draw(0, 99_999_999_999_999, heldout=False)


# --- targets and requirements ---


def test_a_target_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "classes.toml"
    file.write_bytes(b'\xef\xbb\xbf[[class]]\nttft = "1s"\nitl = "25ms"\n')
    assert parse_target(str(file))[0] == (Target(1.0, 0.025),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class.>=95%", "require 'class.>=95%': class. ends without the name of a class; write for example class.chat>=95%"),
        ("tercile.>=95%", "tercile. ends without"),
        ("shed.<=2%", "shed. ends without the name of a class; write for example shed.chat<=2%"),
        (",", f"require ',': nothing is required; leave it out, or write for example {'class.chat>=95%,shed<=2%,ttft_p99<=2s'}"),
        (" , ", "nothing is required"),
    ],
)
def test_a_requirement_that_says_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_requirements(text)
    assert parse_requirements("") == ()


# --- the functions of a notebook ---

API: Any = headway
"""The functions as somebody calls them who has not read their types."""

LOAD, TARGET = "poisson:rate=5/s,prompt=600,output=200", "ttft=1s,itl=25ms"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: API.fit([]), "expected trace files, one by one, got []; write for example headway.fit("),
        (lambda: API.fit(None), "expected trace files, one by one, got None"),
        (lambda: API.fit("a.csv", tp=0), "tp must be a whole number in [1, 10000000], got 0"),
        (lambda: API.fit("a.csv", where=5), "where must be a mapping by column, got 5"),
        (lambda: API.simulate(None, LOAD, TARGET), "expected a plant, or its plant.json, got None"),
        (lambda: API.simulate("p", LOAD, TARGET, runs=0), "runs must be a whole number in [1, 10000000], got 0"),
        (lambda: API.simulate("p", LOAD, TARGET, runs=True), "runs must be a whole number in [1, 10000000], got True"),
        (lambda: API.simulate("p", LOAD, TARGET, requests=20.5), "requests must be a whole number in [1, 10000000], got 20.5"),
        (lambda: API.simulate("p", LOAD, TARGET, seed=-1), "seed must be a whole number in [0, 10000000], got -1"),
        (lambda: API.simulate("p", None, TARGET), "expected a workload, a file or a recipe, got None"),
        (lambda: API.simulate("p", LOAD, 5), "expected a target, text or a TOML file, got 5"),
        (
            lambda: API.tune("p", LOAD, TARGET, free=5),
            'free must be text, as the command line takes it, got 5; write for example free="',
        ),
        (lambda: API.tune("p", LOAD, TARGET, robust=5), "robust must be text"),
        (lambda: API.tune("p", LOAD, TARGET, effort={"speed": 1}), "effort has no 'speed'; known: train_seeds"),
        (lambda: API.tune("p", LOAD, TARGET, effort={"starts": "x"}), "effort starts must be a whole number in [0, 10000000], got 'x'"),
        (lambda: API.tune("p", LOAD, TARGET, effort=5), "effort must be a mapping by field, got 5"),
        (lambda: API.open_controller(7), "expected a controller, or its controller.json, got 7"),
    ],
)
def test_what_a_notebook_cannot_mean_is_refused_in_one_line(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}") as refused:
        call()
    assert "\n" not in str(refused.value)


def test_a_limit_of_another_kind_is_refused() -> None:
    from headway.notebook_options import limits_of

    assert limits_of(max_seqs=8, kv_tokens="2k") == {"max_seqs": 8, "kv_tokens": 2000}
    wrong: list[Any] = [{"max_seqs": "x"}, {"max_seqs": 2.5}, {"block": 0}, {"kv_tokens": "1e30"}, {"kv_tokens": 20.5}]
    for limits in wrong:
        with pytest.raises(ValueError, match="must be"):
            limits_of(**limits)
