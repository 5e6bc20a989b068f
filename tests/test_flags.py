"""Static flags: which value goes into which flag of which version, what would do nothing, and what a server says afterwards."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.controllers.policy import Policy
from headway.controllers.record import ControllerRecord
from headway.controllers.static import StaticLaw
from headway.engines.export import EXPORTERS
from headway.engines.flags import ENGINES, flags_of
from headway.engines.knob_tables import KNOBS, VERSIONS, knobs
from headway.engines.knobs import known_version, order
from headway.engines.static_values import static_values
from headway.engines.verified import compare, read_back, values_in_config, values_in_log
from headway.models.plant import Batch
from headway.models.signals import Limits
from tests.guarded_loops import PLANTS, laws, record

TRACKER = laws(PLANTS["regimes"])["tracker"]
CERTIFICATE = {"verdict": "certified", "reason": "in the test", "numbers": {}}


def tuned(budget: int = 512, running: int = 32, **changed: Any) -> ControllerRecord:
    """A controller whose tuning found a static setting."""
    tuning = {
        "outcome": "better",
        "certificate": CERTIFICATE,
        "best_static": {"settings": {"token_budget": budget, "running_limit": running}},
    }
    return record(TRACKER, **{"tuning": tuning, **changed})


def as_set(flags: Any) -> dict[str, Any]:
    return {s.knob.name: s.value for s in flags.settings}


def test_every_row_of_the_table_is_whole_and_of_a_known_version() -> None:
    assert len({(k.engine, k.flag) for k in KNOBS}) == len(KNOBS)
    for k in KNOBS:
        assert all((k.flag, k.name, k.unit, k.default, k.acts, k.idle, k.source)), k
        assert k.since in VERSIONS[k.engine], k
        assert k.until is None or k.until in VERSIONS[k.engine], k
    for engine, versions in VERSIONS.items():
        assert list(versions) == sorted(versions, key=order)
        for version in versions:
            carried = {k.carries for k in knobs(engine, version)}
            assert {"token_budget", "running_limit"} <= carried, (engine, version)


def test_the_best_static_setting_is_what_is_exported_and_said() -> None:
    values = static_values(tuned(512, 32))
    assert values[:3] == (512, 32, 0)
    assert "best static setting that tuning found" in values.origin
    own = record(StaticLaw(700.0), policy=Policy(running_limit=20.0, chunk_tokens=300.0))
    assert static_values(own)[:3] == (700, 20, 300)
    assert "itself a static setting" in static_values(own).origin


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("law", ["tracker", "pi", "updown"])
def test_without_a_tuning_the_budget_is_the_operating_point_and_one_token_more_would_be_late(plant: str, law: str) -> None:
    held = record(laws(PLANTS[plant])[law], PLANTS[plant])
    values, setpoint_s = static_values(held), (1 - held.candidate.law.setpoint_margin) * 0.023
    assert "no static setting was tuned" in values.origin
    n, kv = 64.0, 200_000.0
    u = float(values.token_budget - n)
    at = lambda p: float(held.plant.step_time_s(Batch(n, kv, p, p * p / 2, 1.0)))  # noqa: E731
    assert u >= 0
    if u >= 1:
        assert at(u) <= setpoint_s
    if values.token_budget < held.limits.max_tokens:
        assert at(u + 1) > setpoint_s


@pytest.mark.parametrize("version", VERSIONS["vllm"])
def test_vllm_flags_of_every_known_version(version: str) -> None:
    flags = flags_of(tuned(), "vllm", version)
    assert flags.notes == ()
    assert as_set(flags) == {"max_num_batched_tokens": 512, "max_num_seqs": 32}
    assert all(s.knob.there(version) for s in flags.settings)


def test_sglang_and_tensorrt_llm_say_that_prompts_and_decodes_go_together() -> None:
    assert as_set(flags_of(tuned(), "sglang", "0.5.18")) == {
        "chunked_prefill_size": 512,
        "enable_mixed_chunk": True,
        "max_running_requests": 32,
    }
    trtllm = flags_of(tuned(), "trtllm", "1.2.0")
    assert as_set(trtllm) == {"max_num_tokens": 512, "max_batch_size": 32, "enable_chunked_prefill": True}


@pytest.mark.parametrize(
    ("asked", "known", "words"),
    [
        ("0.32.0", "0.32.0", ""),
        ("v0.32.0+cpu", "0.32.0", ""),
        ("0.27.1", "0.25.1", "those of 0.25.1, the nearest older one"),
        ("0.99", "0.32.0", "those of 0.32.0, the nearest older one"),
        (None, "0.32.0", "no engine version was given"),
    ],
)
def test_an_unknown_version_takes_the_nearest_known_older_one_and_says_so(asked: str | None, known: str, words: str) -> None:
    found, said = known_version("vLLM", asked, VERSIONS["vllm"])
    assert found == known
    assert words in said
    assert bool(said) == bool(words)


@pytest.mark.parametrize("asked", ["0.12.0", "new", ""])
def test_a_version_that_is_too_old_or_none_is_refused(asked: str) -> None:
    with pytest.raises(ValueError, match=r"older than every version|numbers with dots") as caught:
        known_version("vLLM", asked, VERSIONS["vllm"])
    assert "\n" not in str(caught.value)


@given(
    st.sampled_from([(e, v) for e, versions in VERSIONS.items() for v in versions]),
    st.integers(1, 8192),
    st.integers(1, 64),
    st.integers(0, 9000),
)
@settings(max_examples=200)
def test_no_flag_is_written_that_the_version_lacks_or_that_its_engine_refuses(
    at: tuple[str, str], budget: int, running: int, chunk: int
) -> None:
    engine, version = at
    held = record(StaticLaw(float(budget)), policy=Policy(running_limit=float(running), chunk_tokens=float(chunk)))
    if budget == 8192 and running == 64 and not 0 < chunk < 8192:
        with pytest.raises(ValueError, match="would do nothing"):
            flags_of(held, engine, version)
        return
    flags = flags_of(held, engine, version)
    found = {s.knob.carries: s.value for s in flags.settings}
    assert all(s.knob.there(version) for s in flags.settings)
    assert 1 <= found["running_limit"] <= found["token_budget"] <= budget
    assert found["running_limit"] <= running
    assert found.get("chunk_tokens", 0) in (0, chunk)
    assert found.get("chunk_tokens", 0) < found["token_budget"]
    if chunk > 0 and "chunk_tokens" not in found:
        assert any("left out" in n for n in flags.notes)


@pytest.mark.parametrize("name", ENGINES)
def test_case_e23_flags_that_would_all_do_nothing_are_refused(name: str, tmp_path: Path) -> None:
    """vllm-project/vllm#49075: an export that sets what is in force anyway must not look like a result."""
    idle = tuned(8192, 64)
    with pytest.raises(
        ValueError, match="would do nothing: 8,192 tokens and 64 requests are the limits that the engine was recorded with"
    ) as caught:
        EXPORTERS[name](idle, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not os.listdir(tmp_path)
    half = EXPORTERS[name](tuned(8192, 32), tmp_path / "out")
    assert any("token budget is the limit that the engine was recorded with" in w for w in half.warnings)


def test_case_e23_a_knob_that_a_version_ignores_is_never_written() -> None:
    """--max-num-partial-prefills is refused or absent in every known version, --long-prefill-token-threshold idle at the budget."""
    for version in VERSIONS["vllm"]:
        held = record(StaticLaw(256.0), policy=Policy(running_limit=8.0, chunk_tokens=256.0))
        flags = flags_of(held, "vllm", version)
        assert {s.knob.flag for s in flags.settings} == {"--max-num-batched-tokens", "--max-num-seqs"}
        assert any("--long-prefill-token-threshold 256 is left out" in n for n in flags.notes)
    acting = flags_of(record(StaticLaw(256.0), policy=Policy(chunk_tokens=255.0, running_limit=8.0)), "vllm", "0.16.0")
    assert as_set(acting)["long_prefill_token_threshold"] == 255
    assert not [k for k in knobs("vllm", "0.30.0") if k.name == "max_num_partial_prefills"]


def test_case_e23_a_chunk_cap_without_a_flag_is_said() -> None:
    held = record(StaticLaw(512.0), policy=Policy(chunk_tokens=128.0))
    for engine in ("sglang", "trtllm"):
        assert any("no flag in this engine" in n for n in flags_of(held, engine).notes)


def test_vllm_would_not_start_with_fewer_tokens_than_requests_and_sglang_not_with_a_broken_page() -> None:
    flags = flags_of(tuned(20, 64), "vllm", "0.32.0")
    assert as_set(flags) == {"max_num_batched_tokens": 20, "max_num_seqs": 20}
    assert "lowered from 64 to the token budget of 20" in flags.notes[-1]
    paged = tuned(500, 32, limits=Limits(kv_tokens=400_000, max_seqs=64, block_tokens=64))
    assert as_set(flags_of(paged, "sglang", "0.5.23"))["chunked_prefill_size"] == 448


@pytest.mark.parametrize("name", ENGINES)
def test_what_is_written_says_all_it_must_and_is_the_same_every_time(name: str, tmp_path: Path) -> None:
    a = EXPORTERS[name](tuned(), tmp_path / "a", version=None)
    b = EXPORTERS[name](tuned(), tmp_path / "b")
    assert [(a.folder / f).read_bytes() for f in a.files] == [(b.folder / f).read_bytes() for f in b.files]
    data, text = json.loads((a.folder / "flags.json").read_text()), (a.folder / "README.md").read_text()
    assert data["content_sha256"] == tuned().to_json()["content_sha256"]
    assert data["flags_of_version"] == VERSIONS[ENGINES[name]][-1]
    typed = (a.folder / "flags.txt").read_text().strip()
    assert typed
    assert typed in text
    for setting in data["settings"]:
        assert setting["unit"]
        assert setting["source"] in text
    assert "Certificate of the controller that they stand for: certified" in text
    assert 'orders\nthe queue ("slack")' in text
    assert ("headway_trtllm.yaml" in a.files) == (name == "trtllm-flags")


STARTS = (
    (
        "INFO 11-29 [api_utils.py:286] non-default args: {'model': 'tiny', 'max_num_batched_tokens': 512, 'max_num_seqs': 32}",
        {"max_num_batched_tokens": 512, "max_num_seqs": 32},
    ),
    ("INFO [scheduler.py:306] Chunked prefill is enabled with max_num_batched_tokens=2048.", {"max_num_batched_tokens": 2048}),
    ("INFO [core.py:134] Initializing a V1 LLM engine (v0.32.0+cpu) with config: model='tiny'", {"version": "0.32.0+cpu"}),
    (
        "max_total_num_tokens=1000, chunked_prefill_size=512, max_prefill_tokens=16384, max_running_requests=32, context_len=4096",
        {"chunked_prefill_size": 512, "max_prefill_tokens": 16384, "max_running_requests": 32},
    ),
    ("server_args=ServerArgs(chunked_prefill_size=None, enable_mixed_chunk=True, max_queued_requests=None)", {"enable_mixed_chunk": True}),
    ("LLM Args: max_batch_size: 32, max_num_tokens: 8,192", {"max_batch_size": 32, "max_num_tokens": 8192}),
    ("nothing of interest", {}),
)
"""Lines of start-up logs, and what they say."""


@pytest.mark.parametrize(("line", "found"), STARTS)
def test_what_engines_say_at_their_start_is_read(line: str, found: dict[str, Any]) -> None:
    assert values_in_log([line]) == found


def test_the_last_word_of_a_log_counts(tmp_path: Path) -> None:
    folder = EXPORTERS["vllm-flags"](tuned(), tmp_path / "out").folder
    log = [
        "non-default args: {'max_num_batched_tokens': 512, 'max_num_seqs': 32}",
        "Chunked prefill is enabled with max_num_batched_tokens=2048.",
    ]
    assert [r.verdict for r in read_back(folder, values_in_log(log))] == ["not in force", "in force"]
    lines = compare(folder, values_in_log(log))
    assert lines[0].startswith("max_num_batched_tokens 512: NOT in force: 2048")
    assert lines[1] == "max_num_seqs 32: in force"
    assert [r.verdict for r in read_back(folder / "flags.json", values_in_log(log[:1]))] == ["in force", "in force"]
    assert [r.verdict for r in read_back(folder, {})] == ["not said", "not said"]


def test_a_switch_that_the_engine_turned_off_again_is_told(tmp_path: Path) -> None:
    folder = EXPORTERS["sglang-flags"](tuned(), tmp_path / "out").folder
    found = values_in_config(
        {"internal_states": [{"chunked_prefill_size": 512}], "enable_mixed_chunk": False, "max_running_requests": 32, "version": "0.5.23"}
    )
    assert found["version"] == "0.5.23"
    assert {r.name: r.verdict for r in read_back(folder, found)} == {
        "chunked_prefill_size": "in force",
        "enable_mixed_chunk": "not in force",
        "max_running_requests": "in force",
    }


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "headway/flags/2"}', '{"schema": "headway/flags/1"}', "[]"])
def test_a_file_that_is_no_export_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "flags.json").write_text(text)
    with pytest.raises(ValueError, match=r"flags\.json") as caught:
        read_back(tmp_path, {})
    assert "\n" not in str(caught.value)


def test_real_configurations_are_read(shared_data: Path) -> None:
    file = shared_data / "steps" / "fpm_vllm0201_b300" / "qwen3-32b_tp1.engine_config.json"
    found = values_in_config(json.loads(file.read_text()))
    assert found["max_num_batched_tokens"] > 1
    assert found["max_num_seqs"] > 1


def vllm_python() -> Path:
    """The interpreter of `scripts/vllm-env`."""
    root = Path(__file__).resolve().parents[1]
    python = Path(os.environ.get("HEADWAY_VLLM") or root / ".venv-vllm") / "bin" / "python"
    if not python.is_file():
        pytest.skip(f"no vLLM at {python.parents[1]}; scripts/vllm-env makes it")
    return python


PARSE = """
import json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.engine.arg_utils import EngineArgs
from vllm.config import SchedulerConfig
import vllm
parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
options = sorted(o for a in parser._actions for o in a.option_strings)
given = EngineArgs.from_cli_args(parser.parse_args(["--model", ".", *sys.argv[1:]]))
made = SchedulerConfig(max_model_len=4096, is_encoder_decoder=False, max_num_batched_tokens=given.max_num_batched_tokens,
                       max_num_seqs=given.max_num_seqs, long_prefill_token_threshold=given.long_prefill_token_threshold)
print("ANSWER" + json.dumps({"version": vllm.__version__, "options": options, "made": {
    n: getattr(made, n) for n in ("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold")}}))
"""


@pytest.mark.slow
def test_a_real_vllm_takes_the_flags_and_has_every_knob_of_the_table(tmp_path: Path) -> None:
    python = vllm_python()
    held = record(StaticLaw(512.0), policy=Policy(running_limit=20.0, chunk_tokens=300.0))
    out = EXPORTERS["vllm-flags"](held, tmp_path / "out", version="0.32.0")
    flags = shlex.split((out.folder / "flags.txt").read_text())
    quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, "-c", PARSE, *flags], capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path, env=quiet)
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.split("ANSWER")[1])
    assert answer["made"] == {"max_num_batched_tokens": 512, "max_num_seqs": 20, "long_prefill_token_threshold": 300}
    known, _ = known_version("vLLM", answer["version"], VERSIONS["vllm"])
    for knob in (k for k in KNOBS if k.engine == "vllm"):
        assert (knob.flag in answer["options"]) == knob.there(known), knob.flag
    assert all(line.endswith("in force") for line in compare(out.folder, values_in_config({"scheduler_config": answer["made"]})))


def test_a_refused_law_is_not_written_as_flags_either(tmp_path: Path) -> None:
    refused = dataclasses.replace(tuned(), tuning={**tuned().tuning, "certificate": {**CERTIFICATE, "verdict": "refused"}})
    with pytest.raises(ValueError, match=r"^refused: in the test"):
        EXPORTERS["vllm-flags"](refused, tmp_path / "out")
    out = EXPORTERS["vllm-flags"](refused, tmp_path / "out", uncertified=True)
    assert "certificate was refused" in out.warnings[0]
    assert "refused, and exported all the same" in (out.folder / "README.md").read_text()
