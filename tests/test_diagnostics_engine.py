"""Diagnostics of the recording: does the command reach the batch, was the loop closed, and which clock is it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from headway.identification.diagnostics.actuator import actuator
from headway.identification.diagnostics.clock import aligned, device_only, host_gap, periods, plausible_field, wall_time
from headway.identification.diagnostics.closed_loop import closed_loop
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.identification.trace import Trace


def excited(k: int, seed: int) -> np.ndarray:
    """A budget drawn anew every 6 steps."""
    return np.repeat(np.random.default_rng([seed, 3]).choice([64, 128, 256, 512, 1024.0], k // 6 + 1), 6)[:k]


@pytest.mark.parametrize("delay", [0, 1, 2, 5])
def test_the_delay_of_the_budget_is_found(delay: int) -> None:
    rng, budget = np.random.default_rng(delay), excited(1200, delay)
    acting = np.concatenate([np.full(delay, 64.0), budget[: 1200 - delay]])
    tokens = np.minimum(rng.integers(10, 1500, 1200), acting)
    found, said = actuator(tokens, np.ones(1200), np.full(1200, 0.01), np.zeros(1200, int), token_budget=budget)
    assert found["token_budget"]["delay_steps"] == delay
    assert found["token_budget"]["exceeded"] == 0
    assert found["token_budget"]["binding"] > 0.4
    assert found["running_limit"] is None
    plural = "s" if delay > 1 else ""
    assert [text.split(" (")[0] for text in said] == ([f"the token budget acts {delay} step{plural} later"] if delay else [])


def test_a_budget_that_never_binds_tells_nothing_and_none_is_no_finding() -> None:
    budget, tokens = excited(1200, 1), np.full(1200, 20.0)
    found, said = actuator(tokens, tokens, np.full(1200, 0.01), np.zeros(1200, int), token_budget=budget, running_limit=np.zeros(1200))
    assert found["token_budget"]["delay_steps"] is None
    assert found["running_limit"] is None
    assert len(said) == 1
    assert "bound in 0.0% of the steps" in said[0]
    assert "hardly tells what a smaller budget does" in said[0]


def test_a_budget_that_is_not_obeyed_is_said() -> None:
    rng, budget = np.random.default_rng(1), excited(1200, 2)
    tokens = rng.integers(10, 1500, 1200).astype(float)
    found, said = actuator(tokens, tokens, np.full(1200, 0.01), np.zeros(1200, int), token_budget=budget)
    assert found["token_budget"]["exceeded"] > 0.3
    assert "does not obey" in said[0]


def test_a_drain_is_counted_to_its_end_or_to_where_it_was_cut_short() -> None:
    #          lowered to 4 at 2, lower still at 4, met at 6 | lowered at 8, raised at 10 | lowered at 12, end of stream
    limit = np.array([9, 9, 4, 4, 3, 3, 3, 9, 4, 4, 9, 9, 4, 4, 4.0])
    requests = np.array([8, 8, 7, 6, 6, 5, 3, 8, 8, 7, 7, 7, 7, 6, 5.0])
    found, said = actuator(requests, requests, np.full(15, 0.5), np.zeros(15, int), running_limit=limit)
    row = found["running_limit"]
    assert (row["drains"], row["unfinished"]) == (3, 2)
    assert row["drain_steps"] == 4
    assert row["drain_s"] == pytest.approx(2.0)
    assert row["held_steps"] == 2.5
    assert "stops admission and preempts nothing" in said[0]


def test_feedback_is_found_where_it_is_and_excitation_is_none() -> None:
    alarms = 0
    for seed in range(200):
        rng, budget = np.random.default_rng(seed), excited(600, seed)
        noise = np.convolve(rng.normal(size=620), 0.8 ** np.arange(20))[20:620] * 0.05
        step_time = (0.006 + 1.5e-5 * np.minimum(budget, rng.integers(50, 900, 600))) * np.exp(noise)
        alarms += bool(closed_loop({"token_budget": budget}, step_time, np.zeros(600, int))[1])
    assert alarms <= 2
    rng = np.random.default_rng(200)
    time, law = np.full(2000, 0.012), np.full(2000, 300.0)
    law[:1000] = excited(1000, 1)
    for k in range(2000):
        if k >= 1000:
            law[k] = np.clip(law[k - 1] * (1 + 2 * (0.012 - time[k - 1]) / 0.012), 32, 2048)
        time[k] = (0.006 + 2e-5 * law[k]) * np.exp(0.05 * rng.normal())
    mode = np.repeat(["prbs", "pi"], 1000)
    found, said = closed_loop({"token_budget": law, "chunk_tokens": np.zeros(2000)}, time, np.zeros(2000, int), mode=mode)
    json.dumps(found, allow_nan=False)
    assert found["pi"]["token_budget"]["feedback"]
    assert not found["prbs"]["token_budget"]["feedback"]
    assert "chunk_tokens" not in found["pi"]
    assert len(said) == 1
    assert "--where mode=prbs" in said[0]
    unnamed, said = closed_loop({"token_budget": law}, time, np.zeros(2000, int))
    assert 800 <= unnamed["all"]["token_budget"]["closed_steps"] <= 1000
    assert "record with the command moved at random" in said[0]


def test_case_e10_a_fit_of_periods_holds_the_host_s_gap() -> None:
    rng = np.random.default_rng(10)
    device, gap = np.full(2000, 9.0e-3), rng.normal(4.0e-3, 0.1e-3, 2000)
    period = device + gap
    period[[500, 1999]] = 2.0, np.nan  # an idle gap, and the last step
    found = host_gap(device, period, np.ones(2000, bool))
    assert found is not None
    assert found.median_s == pytest.approx(4.0e-3, abs=0.2e-3)
    assert found.steps == 1998
    wall = wall_time(device, period, np.ones(2000, bool))
    assert wall.known.sum() == 1998
    assert "2 steps have no period" in wall.said[1]
    zeros = np.zeros(1998)
    batch = {"decode_requests": rng.integers(1, 64, 1998), "decode_kv_tokens": rng.integers(100, 9000, 1998)}
    batch |= dict.fromkeys(("prefill_tokens", "prefill_pairs", "prefill_requests"), zeros)
    plant = fit(_trace(wall.step_time_s[wall.known], batch)).plant
    assert float(plant.step_time_s(_trace(zeros + 1.0, batch).batch())[0]) == pytest.approx(13e-3, abs=0.2e-3)


def _trace(step_time_s: np.ndarray, batch: dict[str, np.ndarray]) -> Trace:
    return Trace.of(pl.DataFrame({"step": np.arange(len(step_time_s)), "step_time_s": step_time_s, **batch}))


def test_case_e10_the_device_alone_is_said_to_be_optimistic() -> None:
    (said,) = device_only("device", has_period=False)
    assert "optimistic" in said
    assert "no margin on the wall clock" in said
    assert device_only("device", has_period=True) == []
    assert device_only("wall", has_period=False) == []
    few = wall_time(np.full(30, 0.009), np.full(30, np.nan), np.ones(30, bool))
    assert few.gap is None
    assert not few.known.any()
    assert "leaves out the host's gap" in few.said[0]


def test_periods_end_with_their_stream_and_move_to_their_step() -> None:
    start, stream = np.array([0.0, 1.0, 3.0, 10.0, 11.0]), np.array([0, 0, 0, 1, 1])
    assert periods(start, stream) == pytest.approx([1.0, 2.0, np.nan, 1.0, np.nan], nan_ok=True)
    rng = np.random.default_rng(0)
    step = rng.uniform(0.005, 0.05, 200)
    period = step + 1e-3
    late = np.concatenate([[-1.0], period[:-1]])  # written beside the next step
    zeros = np.zeros(200, int)
    assert aligned(step, late, zeros)[:-1] == pytest.approx(period[:-1])
    assert aligned(step, period, zeros) == pytest.approx(period)


def test_each_kind_of_wrong_field_is_told() -> None:
    rng = np.random.default_rng(1)
    inputs = rng.integers(1, 100, (1000, 1)).astype(float)
    step, gap = 0.005 + 1e-4 * inputs[:, 0], 0.0005
    start, zeros = np.concatenate([[0.0], np.cumsum(step + gap)[:-1]]), np.zeros(1000, int)
    start[700:] += 30.0  # idle
    fields = {
        "without_host_gap": step,
        "start_to_start": step + gap,
        "scheduler_time": rng.uniform(2e-4, 4e-4, 1000),
        "two_loops": step + gap + np.roll(step + gap, 1),
        "overlap": 1.2 * step,
    }
    for verdict, field in fields.items():
        found, said = plausible_field(field, start, zeros, inputs)
        json.dumps(found, allow_nan=False)
        assert found["verdict"] == verdict
        assert len(said) == (verdict != "start_to_start")
    assert plausible_field(step[:5], start[:5], zeros[:5], inputs[:5]) == ({"verdict": "unknown", "steps": 4}, [])


def test_our_own_recording_commands_and_loop(shared_data: Path) -> None:
    trace = read_trace(shared_data / "steps/vllm_cpu/steps.csv")
    batch, frame = trace.batch(), trace.frame
    tokens, requests = batch.decode_requests + batch.prefill_tokens, batch.decode_requests + batch.prefill_requests
    command = {name: frame[name].to_numpy() for name in ("token_budget", "running_limit")}
    found, said = actuator(tokens, requests, trace.step_time_s, trace.stream, **command)
    assert found["token_budget"]["delay_steps"] == 0
    assert found["token_budget"]["exceeded"] == 0
    assert 0.2 < found["token_budget"]["binding"] < 0.4
    assert found["running_limit"]["unfinished"] > found["running_limit"]["drains"] / 2
    assert len(said) == 1
    loop, said = closed_loop(command, trace.step_time_s, trace.stream, mode=frame["mode"].to_numpy())
    assert loop["pi"]["token_budget"]["feedback"]
    assert not any(row["feedback"] for row in loop["prbs"].values())
    assert len(said) == 1
    fixed = trace.where({"mode": "fixed"})
    batch = fixed.batch()
    tokens = batch.decode_requests + batch.prefill_tokens
    budget = fixed.frame["token_budget"].to_numpy()
    _, said = actuator(tokens, tokens, fixed.step_time_s, fixed.stream, token_budget=budget)
    assert said[0].startswith("the token budget never changed and bound in 0.1% of the steps")


def test_two_batches_in_flight_read_twice_the_step(shared_data: Path) -> None:
    file = shared_data / "steps/vllm_cpu/sim_async_steps.csv"
    raw, trace = pl.read_csv(file), read_trace(file)
    inputs = np.stack(trace.batch(), axis=1)
    start = trace.frame["start_s"].to_numpy()
    found, said = plausible_field(raw["exec_ms"].to_numpy() / 1e3, start, trace.stream, inputs)
    assert found["verdict"] == "two_loops"
    assert "hostStepTimeMS" in said[0]
    corrected, said = plausible_field(trace.step_time_s, start, trace.stream, inputs)
    assert corrected["verdict"] == "start_to_start"
    assert not said
    assert plausible_field(raw["sched_us"].to_numpy() / 1e6, start, trace.stream, inputs)[0]["verdict"] == "scheduler_time"
