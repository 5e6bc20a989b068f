"""Steps recovered from clients' stamps against the steps of a small engine whose true durations are known."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pytest

from headway.identification.clients.requests import DERIVED, RequestStamps
from headway.identification.clients.stamps import steps_from_stamps
from headway.identification.readers import read_trace
from headway.identification.readers.requests_table import read_requests


class Served(NamedTuple):
    """What a small engine did, and what its clients saw of it."""

    stamps: RequestStamps
    emitted_s: np.ndarray
    step_time_s: np.ndarray
    decode: np.ndarray
    kv: np.ndarray
    prefill: np.ndarray


def serve(requests: int, rate: float, jitter_s: float, seed: int, budget: int = 10**9, transport_s: float = 0.003) -> Served:
    """Continuous batching: prompts in chunks of what the budget leaves, one token per decoding request and step."""
    rng = np.random.default_rng(seed)
    sent = np.cumsum(rng.exponential(1 / rate, requests))
    inputs, outputs = rng.integers(20, 1500, requests), rng.integers(1, 120, requests)
    left, done = inputs.copy(), np.zeros(requests, int)
    tokens: list[list[float]] = [[] for _ in range(requests)]
    now, rows = 0.0, []
    while (done < outputs).any():
        here = np.flatnonzero((sent + transport_s <= now) & (done < outputs))
        if not len(here):
            now = float(np.min(sent[done < outputs])) + transport_s
            continue
        decode = here[left[here] == 0]
        room, chunks = budget - len(decode), {}
        for i in here[left[here] > 0]:
            chunks[i] = min(room, left[i])
            room -= chunks[i]
        prefill = sum(chunks.values())
        kv = int(np.sum(inputs[decode] + done[decode]))
        step = (0.006 + 1e-4 * len(decode) + 2e-7 * kv + 3e-5 * prefill) * np.exp(0.03 * rng.standard_normal())
        now += step
        finished = []
        for i, chunk in chunks.items():
            left[i] -= chunk
            if left[i] == 0 and chunk > 0:
                finished.append(i)
        for i in [*decode, *finished]:
            tokens[i].append(now)
            done[i] += 1
        if len(decode) or finished:
            rows.append((now, step, len(decode), kv, int(sum(inputs[i] for i in finished))))
    frame = []
    for i in range(requests):
        at = np.maximum.accumulate(np.asarray(tokens[i]) + transport_s + rng.exponential(jitter_s, len(tokens[i])))
        about = {"request_id": str(i), "status": "ok", "sent_s": sent[i], "first_token_s": at[0], "last_token_s": at[-1]}
        size = {"input_tokens": int(inputs[i]), "output_tokens": int(outputs[i]), "chunks": len(at)}
        frame.append({**about, **size, "stamps": "token", "token_s": at.tolist()})
    return Served(RequestStamps.of(pl.DataFrame(frame), clock="monotonic"), *np.asarray(rows).T)


def truth_of(served: Served, frame: pl.DataFrame) -> np.ndarray:
    """Number of the true step that each recovered one ends with: the last emitted before it was seen."""
    ended = frame["start_s"].to_numpy() + frame["step_time_s"].to_numpy()
    return np.searchsorted(served.emitted_s, ended - 0.003 + 1e-9, "right") - 1


@pytest.mark.parametrize("budget", [10**9, 512], ids=["whole prompts", "prompts in chunks"])
@pytest.mark.parametrize("rate", [3.0, 15.0])
def test_steps_come_back_where_the_way_varies_by_little_of_a_step(rate: float, budget: int) -> None:
    served = serve(120, rate, jitter_s=2e-4, seed=1, budget=budget)
    found = steps_from_stamps(served.stamps)
    k = truth_of(served, found.frame)
    error = found.frame["step_time_s"].to_numpy() / served.step_time_s[k] - 1
    assert len(set(k)) == len(k)
    assert len(k) + found.aside["averaged_over_idle"] + found.aside["merged_at_client"] == len(served.emitted_s) - 1
    assert np.median(np.abs(error)) < 0.02  # 0.2 ms of 6.5 ms, and the earliest of several arrivals counts
    assert abs(np.mean(error)) < 0.002
    assert np.array_equal(found.frame["decode_requests"].to_numpy(), served.decode[k])
    assert np.array_equal(found.frame["decode_kv_tokens"].to_numpy(), served.kv[k])
    assert np.array_equal(found.frame["prefill_tokens"].to_numpy(), served.prefill[k])


def test_a_perfect_way_gives_the_steps_themselves() -> None:
    served = serve(60, 8.0, jitter_s=0.0, seed=4)
    found = steps_from_stamps(served.stamps)
    k = truth_of(served, found.frame)
    assert np.allclose(found.frame["step_time_s"].to_numpy(), served.step_time_s[k], rtol=1e-9)
    assert np.max(found.spread_s) == 0.0
    assert np.max(np.abs(found.gap_jitter_s)) == 0.0


def test_gap_jitter_is_the_variation_of_the_way() -> None:
    served = serve(120, 20.0, jitter_s=3e-4, seed=2)
    jitter = steps_from_stamps(served.stamps).gap_jitter_s
    # the difference of two exponential delays has the delay's mean as its mean size; the earliest arrival takes some of it off
    assert 2e-4 < np.mean(np.abs(jitter)) < 3.5e-4
    assert abs(np.mean(jitter)) < 2e-5


def test_a_way_that_varies_as_much_as_a_step_takes_is_refused_or_said() -> None:
    with pytest.raises(ValueError, match="two tokens or more"):
        steps_from_stamps(serve(120, 15.0, jitter_s=4e-3, seed=1).stamps)
    blurred = steps_from_stamps(serve(120, 8.0, jitter_s=1.5e-3, seed=1).stamps)
    assert any("blurred" in text for text in blurred.warnings)


def test_a_client_that_stalls_costs_the_intervals_beside_and_no_more() -> None:
    served = serve(60, 8.0, jitter_s=1e-5, seed=5)
    frame = served.stamps.frame
    at = served.emitted_s[len(served.emitted_s) // 2] + 0.003
    tokens = [[max(t, at + 0.015) if at <= t < at + 0.015 else t for t in row] for row in frame["token_s"].to_list()]
    stalled = RequestStamps.of(frame.drop(*DERIVED).with_columns(token_s=pl.Series(tokens)), clock="monotonic")
    found = steps_from_stamps(stalled)
    assert 1 <= found.aside["merged_at_client"] <= 3
    k = truth_of(served, found.frame)
    error = np.abs(found.frame["step_time_s"].to_numpy() / served.step_time_s[k] - 1)
    assert np.max(error) < 0.05


def _stamped(rows: list[dict], clock: str = "monotonic") -> RequestStamps:
    return RequestStamps.of(pl.DataFrame(rows), clock=clock)


def test_bundled_chunks_tell_no_steps() -> None:
    row = {"status": "ok", "sent_s": 0.0, "first_token_s": 0.1, "last_token_s": 0.18, "output_tokens": 8, "stamps": "chunk"}
    stamps = _stamped([{"request_id": str(i), **row, "token_s": [0.1, 0.14, 0.18]} for i in range(3)])
    with pytest.raises(ValueError, match="3 of 3 requests have chunks"):
        steps_from_stamps(stamps)


def test_without_a_common_clock_or_stamps_of_tokens_no_step_is_told() -> None:
    row = {"request_id": "a", "status": "ok", "sent_s": 0.0, "first_token_s": 0.1, "last_token_s": 0.2, "output_tokens": 3}
    with pytest.raises(ValueError, match="share no clock"):
        steps_from_stamps(_stamped([{**row, "stamps": "token", "token_s": [0.1, 0.15, 0.2]}], "per_request"))
    with pytest.raises(ValueError, match="only of the first and the last"):
        steps_from_stamps(_stamped([row]))


def test_an_idle_engine_makes_no_step() -> None:
    rows = []
    for i, start in enumerate((0.0, 5.0)):
        at = [start + 0.1 + 0.01 * j for j in range(4)]
        rows.append({"request_id": str(i), "status": "ok", "sent_s": start, "first_token_s": at[0], "last_token_s": at[-1]})
        rows[-1] |= {"input_tokens": 50, "output_tokens": 4, "stamps": "token", "token_s": at}
    found = steps_from_stamps(_stamped(rows))
    assert found.aside["averaged_over_idle"] == 1
    assert np.allclose(found.frame["step_time_s"].to_numpy(), 0.01)
    assert found.frame["decode_kv_tokens"].to_list() == [51.0, 52.0, 53.0] * 2


def test_a_bundled_request_counts_as_running() -> None:
    single = [0.1 + 0.01 * j for j in range(9)]
    rows = [
        {"request_id": "a", "status": "ok", "sent_s": 0.0, "input_tokens": 10, "output_tokens": 9, "stamps": "token", "token_s": single}
    ]
    rows.append({**rows[0], "request_id": "b", "input_tokens": 20, "stamps": "chunk", "token_s": [0.1, 0.14, 0.18]})
    for row in rows:
        row |= {"first_token_s": row["token_s"][0], "last_token_s": row["token_s"][-1]}
    found = steps_from_stamps(_stamped(rows))
    assert found.frame["decode_requests"].to_list() == [2.0] * 8
    assert found.frame["decode_kv_tokens"].to_list() == [10 + j + 20 + j for j in range(1, 9)]
    assert any("1 of 2 requests have bundled chunks" in text for text in found.warnings)


def test_measured_stamps_of_a_vllm_server(shared_data: Path) -> None:
    file = shared_data / "client" / "vllm_bench" / "bench_serve_result.json"
    found = steps_from_stamps(read_requests(file))
    assert 550 <= found.frame.height <= 680
    # in our own recording of such a server a step of at most four requests, none in prefill, took 10 ms (median)
    decode = found.frame.filter(pl.col("prefill_requests") == 0)["step_time_s"]
    assert 0.006 < float(np.median(decode.to_numpy())) < 0.012
    assert float(np.median(found.spread_s)) < 2e-4
    trace = read_trace(file)
    assert trace.reader == "client_stamps"
    assert trace.aside == {reason: rows for reason, rows in found.aside.items() if rows}
    assert len(trace) == found.frame.height


def test_measured_stamps_of_aiperf(shared_data: Path) -> None:
    found = steps_from_stamps(read_requests(shared_data / "client" / "aiperf" / "profile_export.jsonl"))
    assert found.frame.height > 260
    assert found.frame["decode_requests"].max() == 89
    assert 0.020 < float(np.median(found.frame["step_time_s"].to_numpy())) < 0.025


def test_the_law_of_the_engine_comes_back_from_stamps() -> None:
    served = serve(300, 10.0, jitter_s=2e-4, seed=3)
    frame = steps_from_stamps(served.stamps).frame
    time = frame["step_time_s"].to_numpy()
    terms = frame.select(pl.lit(1.0), "decode_requests", "decode_kv_tokens", "prefill_tokens").to_numpy()
    law = np.linalg.lstsq(terms / time[:, None], np.ones(len(time)), rcond=None)[0]
    assert law == pytest.approx([0.006, 1e-4, 2e-7, 3e-5], rel=0.05)
