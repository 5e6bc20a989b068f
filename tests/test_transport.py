"""A client's clock against an engine's, and the split of requests' time, on stamps whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings

from headway.cli import main
from headway.identification.clients.clocks import fit_clock
from headway.identification.clients.pairs import pair_requests
from headway.identification.clients.requests import GIVEN, RequestStamps
from headway.identification.clients.transport import PARTS, transport
from headway.identification.readers.requests_table import read_requests

GUIDELLM = "client/guidellm/codellama34b_h100_chunk64.guidellm-results.notext.json"
OTEL = "client/otel/codellama34b_h100_chunk64.vllm_traces.json"


def both_sides(
    requests: int,
    *,
    offset_s: float = 0.0,
    drift_ppm: float = 0.0,
    there_s: float = 0.001,
    back_s: float = 0.001,
    over_s: float = 600.0,
    seed: int = 0,
) -> tuple[RequestStamps, RequestStamps, dict[str, np.ndarray]]:
    """Requests as a client and an engine stamp them: least delays each way, exponential ones of 0.5 ms on top."""
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.uniform(0, over_s, requests)) + 50_000.0
    way = {name: least + rng.exponential(5e-4, requests) for name, least in (("there", there_s), ("first", back_s), ("last", back_s))}
    queue, prefill = rng.exponential(0.05, requests), rng.uniform(0.02, 0.2, requests)
    tokens = rng.integers(2, 200, requests)
    decode = 0.01 * (tokens - 1)
    client = lambda engine: engine + offset_s + drift_ppm * 1e-6 * (engine - arrival[0])  # noqa: E731
    first = arrival + queue + prefill
    names = [f"cmpl-{k:05d}" for k in range(requests)]
    size = {"status": ["ok"] * requests, "input_tokens": rng.integers(10, 4000, requests), "output_tokens": tokens}
    ours = {"sent_s": client(arrival - way["there"]), "first_token_s": client(first + way["first"])}
    ours |= {"request_id": names, "last_token_s": client(first + decode + way["last"]), **size}
    theirs = {"engine_arrival_s": arrival, "engine_first_token_s": first, "engine_last_token_s": first + decode}
    theirs |= {"request_id": [f"{name}-0" for name in names], "queue_s": queue, "prefill_s": prefill, "decode_s": decode, **size}
    truth = {**way, "queue": queue, "prefill": prefill, "decode": decode}
    return RequestStamps.of(pl.DataFrame(ours)), RequestStamps.of(pl.DataFrame(theirs)), truth


def changed(stamps: RequestStamps, **columns: Any) -> RequestStamps:
    frame = stamps.frame.select(list(GIVEN))
    return RequestStamps.of(frame.with_columns(**{name: pl.Series(values) for name, values in columns.items()}), clock=stamps.clock)


@pytest.mark.parametrize("seed", range(5))
def test_case_e40_clock_skew(seed: int) -> None:
    client, engine, truth = both_sides(300, offset_s=0.035, drift_ppm=50.0, seed=seed)
    # three requests whose engine stamps are wrong by more than their way takes
    late = client.frame["first_token_s"].to_numpy().copy()
    late[[20, 150, 290]] -= 0.015
    found = transport(changed(client, first_token_s=late), engine, itl_s=0.025, ttft_s=1.0)
    assert found.clock is not None
    assert abs(found.clock.offset_s - 0.035) < 0.002
    assert abs(found.clock.drift_ppm - 50.0) < 5.0
    assert found.clock.low_s <= found.clock.offset_s <= found.clock.high_s
    assert found.clock.assumption == "symmetric"
    assert {one.request_id for one in found.rejected} == {"cmpl-00020", "cmpl-00150", "cmpl-00290"}
    assert all(one.value_s < 0 and one.what == "response path of the first token" for one in found.rejected)
    assert found.rows == {"client": 300, "engine": 300, "matched": 300, "used": 297}
    assert found.frame.select(pl.exclude("request_id", "output_tokens", "drawn_s").min()).min_horizontal().item() >= -1e-6
    assert [part.name for part in found.split] == list(PARTS)
    assert sum(part.share_e2e for part in found.split) == pytest.approx(1.0)
    split = {part.name: part for part in found.split}
    assert split["queue"].p50_s == pytest.approx(np.median(truth["queue"]), rel=0.1)
    assert split["response path"].p50_s == pytest.approx(np.median(truth["last"]), abs=0.001)
    assert split["host"].p99_s < 1e-6
    assert found.budget_s == pytest.approx(0.025 - found.itl_transport_s)


def test_what_ttft_and_itl_lose_does_not_hang_on_the_clocks() -> None:
    client, engine, truth = both_sides(400, offset_s=0.035, drift_ppm=0.0, there_s=0.009, back_s=0.001)
    views = [transport(client, engine, assume=how) for how in ("symmetric", "no_least_delay")]
    both = truth["there"] + truth["first"]
    drawn = truth["last"] - truth["first"]
    for found in views:
        assert found.ttft_transport_s == pytest.approx(np.quantile(both, 0.99), abs=2e-4)
        assert found.itl_transport_s == pytest.approx(np.quantile(np.concatenate([drawn, -drawn]), 0.99), abs=2e-4)
    # the two assumptions differ by the 4 ms that no stamp can tell: a way there that is 8 ms longer looks like a clock ahead
    offsets = [found.clock.offset_s for found in views if found.clock is not None]
    assert abs(offsets[0] - offsets[1]) > 0.004
    assert all(f.clock is not None and f.clock.low_s <= 0.035 <= f.clock.high_s for f in views)


def test_a_known_round_trip_decides_where_symmetry_would_be_wrong() -> None:
    client, engine, _ = both_sides(400, offset_s=0.035, there_s=0.009, back_s=0.001)
    told = transport(client, engine, rtt_s=0.002).clock
    guessed = transport(client, engine).clock
    assert told is not None
    assert guessed is not None
    assert abs(told.offset_s - 0.035) < 2e-4
    assert abs(guessed.offset_s - 0.031) < 5e-4
    assert (told.assumption, guessed.assumption) == ("round_trip", "symmetric")


def test_one_clock_is_taken_for_one() -> None:
    client, engine, truth = both_sides(200, there_s=0.007, back_s=0.001)
    found = transport(client, engine)
    assert found.clock is not None
    assert (found.clock.assumption, found.clock.offset_s, found.clock.drift_ppm) == ("same_clock", 0.0, 0.0)
    assert found.response_s["p50"] == pytest.approx(np.median(truth["last"]))


@settings(max_examples=40)
@given(
    offset=st.floats(-1e4, 1e4),
    there=st.floats(0, 0.05),
    back=st.floats(0, 0.05),
    seed=st.integers(0, 1000),
)
def test_the_bounds_hold_whatever_the_delays(offset: float, there: float, back: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    at = np.sort(rng.uniform(0, 10, 12))  # too few stretches of time for a drift: none is taken off
    sent = (at, offset - there - rng.exponential(0.01, 12))
    received = (at, offset + back + rng.exponential(0.01, 12))
    found = fit_clock(sent, received)
    assert found.rejected == 0
    assert found.low_s - 1e-9 <= offset <= found.high_s + 1e-9
    assert found.low_s <= found.offset_s <= found.high_s
    assert np.isnan(found.drift_ci95_ppm[0])


def test_one_way_bounds_on_one_side_only() -> None:
    at = np.linspace(0, 100, 50)
    found = fit_clock((np.zeros(0), np.zeros(0)), (at, np.full(50, 0.5)))
    assert (found.offset_s, found.high_s, found.assumption) == (0.5, 0.5, "no_least_delay")
    assert found.low_s == -np.inf
    assert fit_clock((at, np.full(50, 0.5)), (np.zeros(0), np.zeros(0)), rtt_s=0.2).offset_s == pytest.approx(0.6)
    with pytest.raises(ValueError, match="nothing can be symmetric"):
        fit_clock((at, np.full(50, 0.5)), (np.zeros(0), np.zeros(0)), assume="symmetric")
    with pytest.raises(ValueError, match="give rtt_s"):
        fit_clock((at, np.full(50, 0.5)), (at, np.full(50, 0.6)), assume="round_trip")


def test_stamps_of_other_requests_are_refused() -> None:
    rng = np.random.default_rng(0)
    at = np.linspace(0, 100, 50)
    with pytest.raises(ValueError, match="not of the same requests"):
        fit_clock((at, rng.uniform(-1, 1, 50)), (at, rng.uniform(-1, 1, 50)))
    with pytest.raises(ValueError, match="no clock can be told"):
        fit_clock((np.zeros(0), np.zeros(0)), (np.zeros(0), np.zeros(0)))
    with pytest.raises(ValueError, match="assume must be"):
        fit_clock((at, at), (at, at), assume="hope")


def test_a_short_run_tells_no_drift_and_corrects_for_none() -> None:
    client, engine, _ = both_sides(100, offset_s=0.035, over_s=0.5)
    clock = transport(client, engine).clock
    assert clock is not None
    assert clock.drift_ppm == 0.0
    assert clock.drift_ci95_ppm[1] - clock.drift_ci95_ppm[0] >= 100.0


@pytest.mark.parametrize("named", [True, False], ids=["by name", "by lengths"])
def test_requests_are_found_again(named: bool) -> None:
    client, engine, _ = both_sides(200, offset_s=12_345.0, drift_ppm=20.0, seed=3)
    ours, theirs = client.frame, engine.frame.sample(fraction=0.8, shuffle=True, seed=1)
    found = pair_requests(ours if named else ours.with_columns(request_id=pl.lit("")), theirs)
    expected = [name + "-0" for name in ours["request_id"].gather(found.client).to_list()]
    assert expected == theirs["request_id"].gather(found.engine).to_list()
    assert len(found.client) == 160
    assert found.by == ("request id without the engine's own prefix and number" if named else "lengths and order")


def test_requests_of_equal_lengths_are_found_by_their_order() -> None:
    client, engine, _ = both_sides(100, offset_s=7.0, seed=3)
    alike = {"input_tokens": [64] * 100, "output_tokens": [32] * 100, "request_id": [""] * 100}
    found = pair_requests(changed(client, **alike).frame, changed(engine, **alike).frame)
    assert np.array_equal(found.client, found.engine)
    assert len(found.client) == 100
    with pytest.raises(ValueError, match="share no request"):
        pair_requests(changed(client, **alike).frame, changed(engine, **{**alike, "output_tokens": [33] * 100}).frame)


def test_files_in_the_wrong_place_are_told() -> None:
    client, engine, _ = both_sides(30)
    with pytest.raises(ValueError, match="give the client's file first"):
        transport(engine, client)
    with pytest.raises(ValueError, match="no engine's stamps"):
        transport(client, client)
    with pytest.raises(ValueError, match="quantile must be"):
        transport(client, engine, quantile=99)
    with pytest.raises(ValueError, match="no engine can keep it"):
        transport(client, engine, itl_s=1e-4)


def test_without_an_engine_only_the_variation_is_known() -> None:
    client, _, _ = both_sides(30)
    found = transport(client, itl_s=0.025)
    assert found.clock is None
    assert found.budget_s is None
    assert np.isnan(found.itl_transport_s)
    assert any("how long the way takes is unknown" in text for text in found.warnings)


def test_measured_client_and_engine_of_one_machine(shared_data: Path) -> None:
    found = transport(read_requests(shared_data / GUIDELLM), read_requests(shared_data / OTEL), itl_s=0.030, ttft_s=3.0)
    assert found.clock is not None
    assert found.rows == {"client": 200, "engine": 200, "matched": 200, "used": 200}
    assert found.rejected == ()
    assert found.clock.assumption == "same_clock"  # the report's target is the loopback address
    assert found.clock.low_s == pytest.approx(-0.0057, abs=2e-4)
    assert found.clock.high_s == pytest.approx(0.0009, abs=2e-4)
    assert abs(found.clock.drift_ci95_ppm[1]) < 1.0
    assert found.response_s["p50"] == pytest.approx(0.0011, abs=2e-4)
    shares = {part.name: part.share_e2e for part in found.split}
    assert shares["queue"] == pytest.approx(0.673, abs=0.002)
    assert shares["request path"] + shares["response path"] < 0.005
    assert found.budget_s == pytest.approx(0.02825, abs=2e-4)
    assert found.first_token_s == pytest.approx(2.957, abs=2e-3)


def test_measured_requests_are_found_by_lengths_as_by_name(shared_data: Path) -> None:
    client, engine = read_requests(shared_data / GUIDELLM).frame, read_requests(shared_data / OTEL).frame
    named, blind = pair_requests(client, engine), pair_requests(client.with_columns(request_id=pl.lit("")), engine)
    assert set(zip(named.client, named.engine, strict=True)) == set(zip(blind.client, blind.engine, strict=True))


@pytest.mark.parametrize("run", ["RTXPRO6000_Llama-3.1-8B", "RTXPRO6000_Qwen3-32B"])
def test_measured_requests_that_carry_both_clocks(run: str, shared_data: Path) -> None:
    found = transport(read_requests(shared_data / "steps/llmservingsim" / run / "vllm_run/requests.jsonl"))
    assert found.clock is not None
    assert found.clock.assumption == "no_least_delay"
    assert found.clock.drift_ppm == 0.0  # thirty seconds of arrivals tell none
    assert found.rows["used"] == 300
    assert np.isnan(found.ttft_transport_s)
    assert found.request_s["p99"] < 0.5


def _written(tmp_path: Path) -> tuple[str, str]:
    """A client's and an engine's file of forty requests, in the formats of GuideLLM and OpenTelemetry."""
    client, engine, _ = both_sides(40, offset_s=0.035, there_s=0.002, back_s=0.002, over_s=120.0)
    rows = []
    for row in client.frame.iter_rows(named=True):
        timings = {
            "request_start": row["sent_s"],
            "first_token_iteration": row["first_token_s"],
            "last_token_iteration": row["last_token_s"],
        }
        size = {"prompt_tokens": row["input_tokens"], "output_tokens": row["output_tokens"]}
        rows.append({"response_id": row["request_id"], "info": {"timings": timings}, **size, "time_per_output_token_ms": 10.0})
    report = {"metadata": {"version": 1, "guidellm_version": "0"}, "benchmarks": [{"requests": {"successful": rows}}]}
    spans = []
    for row in engine.frame.iter_rows(named=True):
        start = row["engine_arrival_s"]
        times = {"time_to_first_token": row["engine_first_token_s"] - start, "e2e": row["engine_last_token_s"] - start}
        times |= {"time_in_queue": row["queue_s"], "time_in_model_prefill": row["prefill_s"], "time_in_model_decode": row["decode_s"]}
        about = [{"key": f"gen_ai.latency.{name}", "value": {"doubleValue": value}} for name, value in times.items()]
        about.append({"key": "gen_ai.request.id", "value": {"stringValue": row["request_id"]}})
        spans.append({"startTimeUnixNano": str(round(start * 1e9)), "attributes": about})
    files = (tmp_path / "client.json", tmp_path / "spans.json")
    files[0].write_text(json.dumps(report))
    files[1].write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
    return str(files[0]), str(files[1])


def test_the_command_shows_where_the_time_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client, engine = _written(tmp_path)
    assert main(["transport", client, engine, "--itl", "25ms", "--ttft", "1s"]) == 0
    text = capsys.readouterr().out
    for part in (
        "40 ok, 0 cancelled, 0 failed",
        "(E2E - TTFT) / (n - 1)",
        "E2E / n",
        "clocks ",
        "drift",
        *PARTS,
        "budget ",
        "as a target: ttft=",
    ):
        assert part in text
    assert main(["transport", client, engine, "--itl", "25ms", "--ttft", "1s", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["clock"]["offset_s"] == pytest.approx(0.035, abs=0.002)
    assert data["budget_s"] == pytest.approx(0.025 - data["itl_transport_s"])
    assert data["first_token_s"] == pytest.approx(1.0 - data["ttft_transport_s"])
    assert data["tpot_s"]["formula"].startswith("(E2E - TTFT) / (n - 1)")
    assert len(data["split"]) == len(PARTS)


def test_the_target_it_names_holds_both_promises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from headway.targets import parse_target

    client, engine = _written(tmp_path)
    assert main(["transport", client, engine, "--itl", "25ms", "--ttft", "1s"]) == 0
    text = capsys.readouterr().out
    named = next(line.split(": ", 1)[1] for line in text.splitlines() if "as a target" in line)
    (target,), _ = parse_target(named)
    assert main(["transport", client, engine, "--itl", "25ms", "--ttft", "1s", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert target.budget_s == pytest.approx(data["budget_s"], abs=1e-5)
    assert target.first_token_s == pytest.approx(data["first_token_s"], abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("nope.json", "there is none of this name"),
        ("{client} {engine} --clock sun", "--clock must be one of auto, same, symmetric"),
        ("{client} {engine} --itl 25", "25"),
        ("{engine}", "give the client's file first"),
        ("{client} {client}", "no engine's stamps"),
    ],
)
def test_what_goes_wrong_is_one_line(arguments: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client, engine = _written(tmp_path)
    assert main(["transport", *arguments.format(client=client, engine=engine).split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert says in err
