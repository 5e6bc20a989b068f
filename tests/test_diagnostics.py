"""Diagnostics of a fit: what is wrong is found and named, what is not wrong is not."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.signal import lfilter

from headway.identification.diagnostics.correlation import autoregression, explained, sampled
from headway.identification.diagnostics.drift import drift, slow_rows
from headway.identification.diagnostics.independence import independence
from headway.identification.diagnostics.outliers import THROTTLE, outliers
from headway.identification.diagnostics.staircase import staircase
from headway.identification.diagnostics.variance import variance
from headway.identification.diagnostics.whiteness import whiteness
from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.identification.rows import FIRST_SHAPE, GAP, KEPT, judge
from headway.identification.trace import Trace
from headway.models.plant import Batch
from tests.synthetic_steps import TRUTH, composed, durations, traced

FPM = "steps/fpm_vllm0201_b300/{}.fpm_detail.csv"


def process(k: int, correlation: float, seed: int, sd: float = 0.03) -> np.ndarray:
    """A first-order process of this standard deviation, from its steady state."""
    drawn = np.random.default_rng([seed, 7]).normal(size=k + 400) * sd * np.sqrt(1 - correlation**2)
    return np.asarray(lfilter([1.0], [1.0, -correlation], drawn))[400:]


def slow_batch(k: int, seed: int) -> Batch:
    """Requests that come and go one by one, as in an engine: inputs that resemble their neighbours."""
    rng = np.random.default_rng([seed, 8])
    decoding = np.abs(np.cumsum(rng.integers(-1, 2, k)) % 128 - 64) + 1.0
    mixed = rng.random(k) < 0.2
    requests, tokens = np.where(mixed, rng.integers(1, 3, k), 0).astype(float), np.where(mixed, rng.integers(16, 1000, k), 0).astype(float)
    return Batch(decoding, decoding * 700, tokens, tokens**2 / 2, requests)


def arguments(batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the plant predicts, which steps are mixed, and one stream."""
    k = len(batch.decode_requests)
    return TRUTH.step_time_s(batch), batch.prefill_tokens > 0, np.zeros(k, int)


def plain(result: tuple[dict, list[str]]) -> tuple[dict, list[str]]:
    """The result, once it is seen to be plain JSON and its sentences whole."""
    json.dumps(result[0], allow_nan=False)
    assert all(isinstance(text, str) and len(text) > 40 and "\n" not in text for text in result[1])
    return result


def test_white_residuals_pass_and_correlated_ones_do_not() -> None:
    alarms = sentences = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        found, said = whiteness(rng.standard_t(4, 400) * 0.02, rng.random(400) < 0.4, np.zeros(400, int))
        alarms += sum(not found[regime]["white"] for regime in found)
        sentences += len(said)
    assert sentences <= alarms <= 8  # 400 tests at half of 1 %: 2 expected
    mixed = np.arange(3000) % 4 == 0
    residual = np.where(mixed, np.random.default_rng(0).normal(size=3000), process(3000, 0.8, 1))
    found, said = plain(whiteness(residual, mixed, np.zeros(3000, int)))
    assert found["mixed"]["white"]
    assert not found["decode"]["white"]
    assert 0.6 < found["decode"]["lag1"] < 0.85
    assert len(said) == 1
    assert said[0].startswith("decode: a step's residual resembles")
    assert f"blocks of {found['decode']['block']} steps)" in said[0]


def test_jitter_of_the_stamps_is_told_from_a_slow_residual() -> None:
    stamp = np.random.default_rng(3).normal(size=2001) * 0.01
    found, said = whiteness(np.diff(stamp), np.zeros(2000, bool), np.zeros(2000, int))
    assert found["mixed"] is None
    assert found["decode"]["lag1"] == pytest.approx(-0.5, abs=0.05)
    assert "stamped early or late" in said[0]


def test_streams_are_tested_apart() -> None:
    """One stream of spikes of alternating sign beside a white one; a pair across the two counts in neither."""
    white, other = np.random.default_rng(1).normal(size=500), process(500, 0.9, 2)
    found, _ = whiteness(np.concatenate([white, other, white[:20]]), np.zeros(1020, bool), np.repeat([0, 1, 2], [500, 500, 20]))
    rows = {row["stream"]: row for row in found["decode"]["streams"]}
    assert rows[0]["p"] > 0.01 > rows[1]["p"]
    assert found["decode"]["streams_not_tested"] == 1


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_an_independent_residual_raises_no_alarm(correlation: float) -> None:
    """Over inputs and residuals that both move slowly, where plain correlations are large by chance."""
    alarms = dict.fromkeys(("input", "beside", "tokens", "variance"), 0)
    for seed in range(15):
        batch, residual = slow_batch(1500, seed), process(1500, correlation, seed)
        predicted, mixed, stream = arguments(batch)
        found, said = independence(residual, predicted, mixed, stream, batch._asdict())
        for case in found.values():
            alarms["input"] += any(row["p"] < 0.01 / 5 for row in case["inputs"].values())
            alarms["beside"] += min(case["step_before"]["p"], case["step_after"]["p"]) < 0.0025
        shape, said2 = staircase(residual, mixed, stream, batch.decode_requests + batch.prefill_tokens)
        scatter, said3 = variance(residual, predicted, mixed, stream, batch._asdict())
        alarms["tokens"] += sum(shape[regime]["p"] < 0.005 for regime in shape)
        alarms["variance"] += sum(min(row["p"] for row in scatter[regime]["against"].values()) < 0.01 / 6 for regime in scatter)
        assert not said3
        assert len(said) + len(said2) <= 1
    assert max(alarms.values()) <= 3, alarms  # 30 tests each at 1 % or less


def test_a_term_that_is_missing_is_named() -> None:
    batch = composed(3000)
    predicted, mixed, stream = arguments(batch)
    missing = 4e-4 * batch.prefill_requests
    residual = np.log(predicted) - np.log(predicted - missing) + process(3000, 0.5, 1, sd=0.01)
    found, said = plain(independence(residual, predicted - missing, mixed, stream, batch._asdict()))
    assert found["mixed"]["inputs"]["prefill_requests"]["lag"] == 0
    assert [text for text in said if text.startswith("mixed: steps with more prefill_requests are longer")]
    assert not [text for text in said if text.startswith("decode")]


@pytest.mark.parametrize(("shift", "word"), [(1, "before"), (-1, "after")])
def test_time_booked_on_a_neighbour_is_found(shift: int, word: str) -> None:
    batch = slow_batch(3000, 1)
    predicted, mixed, stream = arguments(batch)
    booked = np.roll(8e-6 * batch.prefill_tokens, shift)
    residual = np.log1p(booked / predicted) + process(3000, 0.9, 1, sd=0.02)
    found, said = plain(independence(residual, predicted, mixed, stream, batch._asdict()))
    told = [text for text in said if text.startswith("decode")]
    assert len(told) == 1
    assert f"depends on the inputs of the step {word}" in told[0]
    assert f"with prefill in the step {word} it takes +" in told[0]
    assert found["decode"][f"step_{word}"]["share"] > 0.2


def padded(tokens: np.ndarray) -> np.ndarray:
    """Case E30: 8 ms and 20 us for each token of the captured size, four times as long beyond the largest."""
    size = 2.0 ** np.ceil(np.log2(np.maximum(tokens, 1)))
    return np.where(tokens > 256, 4.0, 1.0) * (8e-3 + 2e-5 * np.minimum(size, 256))


def steps_of(tokens: np.ndarray, step_time_s: np.ndarray) -> Trace:
    zeros = np.zeros(len(tokens))
    return traced(Batch(tokens.astype(float), tokens * 500.0, zeros, zeros, zeros), step_time_s)


@pytest.mark.parametrize("most", [256, 300])
def test_case_e30_a_staircase_fails_the_straight_plant_and_is_said(most: int) -> None:
    rng = np.random.default_rng(5)
    tokens = rng.integers(1, most + 1, 4000)
    trace = steps_of(tokens, padded(tokens) * np.exp(process(4000, 0.3, 2, sd=0.01)))
    plant = fit(trace, structure="affine")
    residual = np.log(trace.step_time_s) - np.log(plant.plant.step_time_s(trace.batch()))
    found, said = plain(staircase(residual, np.zeros(4000, bool), trace.stream, tokens))
    assert found["decode"]["p"] < 1e-6
    assert len(said) == 1
    assert "a staircase or" in said[0]
    places = {int(above) for _, above, _ in found["decode"]["jumps"]}
    if most > 256:
        assert places == {257}
        assert "a cliff at 257 tokens" in said[0]
        assert "a running limit of 256 stays below it, but lets requests wait: `headway simulate PLANT --max-seqs 256`" in said[0]
    else:
        assert {65, 129} <= places


def test_a_plant_that_bends_is_told_from_one_that_jumps() -> None:
    rng = np.random.default_rng(6)
    tokens = rng.integers(1, 400, 3000).astype(float)
    residual = 0.2 * (1 - np.exp(-tokens / 60)) - 0.15 + 0.01 * rng.normal(size=3000)
    found, said = staircase(residual, np.zeros(3000, bool), np.zeros(3000, int), tokens)
    assert not found["decode"]["jumps"]
    assert "bends where the plant runs straight" in said[0]
    assert "fit only the range that the engine runs in (--where COLUMN=LOW:HIGH)" in said[0]
    assert "structure" not in said[0]  # nobody said what was tried


def test_scatter_that_grows_with_the_step_is_said_with_its_cost() -> None:
    batch = composed(4000)
    predicted, mixed, stream = arguments(batch)
    residual = np.random.default_rng(2).normal(size=4000) * 0.01 * np.where(mixed, predicted / np.median(predicted[mixed]), 1.0) ** 1.5
    found, said = plain(variance(residual, predicted, mixed, stream, batch._asdict()))
    row = found["mixed"]["against"]["predicted_s"]
    assert row["p"] < 1e-6
    assert row["high"] > 1.5 * row["low"]
    assert 0.02 < row["over"] <= 0.035  # nearly all of the 1 % lie in that third
    assert said[0].startswith("mixed: steps of long predicted time scatter")
    assert f"{row['over']:.1%} exceed a margin made for 1.0%" in said[0]


def test_regimes_that_scatter_apart_need_their_own_margins() -> None:
    mixed = np.arange(2000) % 2 == 0
    residual = np.random.default_rng(4).normal(size=2000) * np.where(mixed, 0.05, 0.01)
    _, said = variance(residual, np.ones(2000), mixed, np.zeros(2000, int), {})
    assert len(said) == 1
    assert "never one for both" in said[0]


def test_a_slowdown_is_found_at_its_step_and_noise_is_not() -> None:
    k, half = 6000, 3000
    stream, step, alarms, found_at, slopes = np.zeros(k, int), 10 + np.arange(k), 0, [], 0
    for seed in range(200):
        residual = process(k, 0.9, seed)
        quiet = drift(residual, stream, step)[0]["streams"][0]
        alarms += bool(quiet["changes"])
        slopes += not quiet["ci95"][0] <= 0 <= quiet["ci95"][1]
        residual[half:] += np.log(1.12)
        slower = drift(residual, stream, step)[0]["streams"][0]["changes"]
        largest = max(slower, key=lambda change: change["size"])
        found_at.append(largest["step"])
        assert largest["size"] == pytest.approx(0.12, abs=0.04)
    assert alarms <= 6  # about 1 % each
    assert slopes <= 22  # 5 %
    assert np.mean(np.abs(np.array(found_at) - half - 10) <= 30) > 0.9
    slowed = process(k, 0.9, 0) + np.where(np.arange(k) < half, 0.0, np.log(1.12))
    _, said = plain(drift(slowed, stream, step))
    assert len(said) == 1
    assert said[0].startswith(f"from step {found_at[0]:,} on the engine is 1")
    assert "--where" in said[0]


def test_a_throttle_is_found_with_both_its_ends() -> None:
    residual = process(6000, 0.9, 3)
    residual[2500:3100] += np.log(1.12)
    found, said = plain(drift(residual, np.zeros(6000, int), np.arange(6000)))
    (run,) = found["streams"][0]["slow"]
    assert abs(run["first"] - 2500) <= 30
    assert abs(run["last"] - 3099) <= 30
    assert "took 1" in said[0]
    assert "throttle" in said[0]
    mask = slow_rows(found, 6000)
    assert mask[2600:3000].all()
    assert mask.sum() == run["last"] - run["first"] + 1


def test_a_slope_is_found_and_streams_are_apart() -> None:
    slope = 0.03 * np.arange(3000) / 1000
    residual = np.concatenate([process(3000, 0.5, 1), process(3000, 0.5, 2) + slope, np.zeros(50)])
    found, said = plain(drift(residual, np.repeat([0, 1, 2], [3000, 3000, 50]), np.arange(6050)))
    first, second = found["streams"]
    assert first["ci95"][0] <= 0 <= first["ci95"][1]
    assert second["ci95"][0] <= 0.03 <= second["ci95"][1]
    assert second["ci95"][0] > 0
    assert found["not_tested"] == 1
    assert all(text.startswith("stream 1: ") for text in said)
    assert said


def test_case_e12_a_cold_start_and_outliers_leave_the_fit_and_are_listed_by_class() -> None:
    rng = np.random.default_rng(12)
    batch = composed(2020)
    clean = durations(batch, sd=0.01)
    dirty = clean.copy()
    dirty[:20] *= rng.uniform(10, 50, 20)
    later = 20 + rng.choice(2000, 20, replace=False)
    dirty[later] *= 5
    trace = traced(batch, dirty)
    wanted, got = (fit(t).plant.coefficients() for t in (traced(batch, clean), trace))
    for name, coefficient in got.items():
        assert coefficient.value == pytest.approx(wanted[name].value, rel=0.02), name
    reason = judge(trace)
    found, said = plain(outliers(reason, trace.step_time_s, trace.frame["step"].to_numpy(), trace.stream))
    # none that is clean; of 40, a shape that few others resemble may keep one
    assert set(np.flatnonzero(reason != KEPT)) <= {*range(20), *later.tolist()}
    assert found[FIRST_SHAPE]["steps"] + found[GAP]["steps"] >= 38
    assert found[FIRST_SHAPE]["steps"] >= 20
    cold = int(np.argmax(dirty))
    assert found[FIRST_SHAPE]["worst"] == {"row": cold, "step": cold, "stream": 0, "step_time_s": dirty[cold]}
    assert sum(row["total_s"] for row in found.values()) == pytest.approx(dirty[reason != KEPT].sum())
    assert len(said) == 2
    assert any("compilation" in text for text in said)


def test_a_throttle_is_listed_but_not_set_aside() -> None:
    reason, time_s, throttled = np.full(100, KEPT, dtype=object), np.full(100, 0.01), np.zeros(100, bool)
    throttled[40:60] = True
    found, said = outliers(reason, time_s, np.arange(100), np.zeros(100, int), throttled=throttled)
    assert found[THROTTLE]["steps"] == 20
    assert found[THROTTLE]["total_s"] == pytest.approx(0.2)
    assert "kept in the fit" in said[0]


def test_the_filter_finds_the_order_and_the_test_what_is_new() -> None:
    stretch = np.zeros(5000, int)
    assert autoregression(process(5000, 0.8, 1), stretch)[0] == pytest.approx(0.8, abs=0.05)
    assert len(autoregression(np.random.default_rng(0).normal(size=5000), stretch)) == 0
    x, y = np.random.default_rng(1).normal(size=(2, 300))
    assert explained(x + y, x[:, None], x[:, None] * 2).p == 1.0
    tested = explained(x + y, x[:, None], y[:, None])
    assert tested.share == pytest.approx(1.0)
    assert tested.coefficients[0] == pytest.approx(1.0)


def test_a_million_steps_are_sampled_in_blocks_and_it_is_said() -> None:
    k = 1_000_000
    batch, residual = slow_batch(k, 0), np.random.default_rng(0).normal(size=k) * 0.02
    predicted, mixed, stream = arguments(batch)
    sample = sampled(stream)
    assert len(sample.rows) == 50_000
    assert len(np.unique(sample.stretch)) == 50
    started = time.process_time()
    _, said = whiteness(residual, mixed, stream)
    independence(residual, predicted, mixed, stream, batch._asdict())
    staircase(residual, mixed, stream, batch.decode_requests)
    variance(residual, predicted, mixed, stream, batch._asdict())
    drift(residual, stream, np.arange(k))
    assert time.process_time() - started < 20
    assert said == ["diagnostics look at 50,000 of 1,000,000 steps, in blocks of 1,000 evenly spread"]


def measured(shared_data: Path, name: str) -> tuple[Trace, np.ndarray, np.ndarray, np.ndarray]:
    """A real trace with its residuals: (trace, kept rows, residual of these, predicted)."""
    trace = read_trace(shared_data / FPM.format(name))
    predicted = np.asarray(fit(trace, structure="regimes").plant.step_time_s(trace.batch()))
    kept = np.flatnonzero(judge(trace) == KEPT)
    return trace, kept, np.log(trace.step_time_s[kept] / predicted[kept]), predicted[kept]


def test_the_wandering_trace_is_said_to_wander(shared_data: Path) -> None:
    trace, kept, residual, _ = measured(shared_data, "qwen3-32b_tp2")
    mixed = trace.batch().prefill_tokens[kept] > 0
    found, said = plain(drift(residual, trace.stream[kept], trace.frame["step"].to_numpy()[kept]))
    assert found["streams"][0]["wanders"][1] > 0.08
    assert said
    assert whiteness(residual, mixed, trace.stream[kept])[0]["decode"]["lag1"] > 0.9


def test_the_measured_cliff_and_the_time_booked_on_a_neighbour_are_found(shared_data: Path) -> None:
    """The graph limit at 512 tokens of the mixture of experts, and the step after each prefill that is 11 % longer."""
    trace, kept, residual, predicted = measured(shared_data, "qwen3.6-35b-a3b_tp4")
    batch = Batch(*(column[kept] for column in trace.batch()))
    mixed, stream = batch.prefill_tokens > 0, trace.stream[kept]
    started = time.process_time()
    shape, said = staircase(residual, mixed, stream, batch.decode_requests + batch.prefill_tokens)
    found, more = independence(residual, predicted, mixed, stream, batch._asdict())
    plain(variance(residual, predicted, mixed, stream, batch._asdict()))
    assert time.process_time() - started < 2
    assert [510.0, 514.0] in [jump[:2] for jump in shape["mixed"]["jumps"]]
    assert any("514" in text for text in said)
    assert found["decode"]["step_before"]["share"] > 0.2
    assert any(text.startswith("decode: the residual depends on the inputs of the step before") for text in more)


@pytest.mark.parametrize("k", [0, 1, 5, 70, 450])
@pytest.mark.parametrize("kind", ["still", "spikes", "streams"])
def test_traces_that_are_short_or_still_are_answered(k: int, kind: str) -> None:
    rng = np.random.default_rng(k)
    residual = {"still": np.full(k, 0.1), "spikes": rng.standard_cauchy(k), "streams": rng.normal(size=k)}[kind]
    stream = np.sort(rng.integers(0, 20, k)) if kind == "streams" else np.zeros(k, int)
    batch = Batch(*(np.zeros((5, k)) if kind == "still" else rng.integers(0, 9, (5, k)).astype(float)))
    mixed, predicted = batch.prefill_tokens > 4, rng.uniform(0.01, 0.02, k)
    plain(whiteness(residual, mixed, stream))
    plain(independence(residual, predicted, mixed, stream, batch._asdict()))
    plain(staircase(residual, mixed, stream, batch.decode_requests))
    plain(variance(residual, predicted, mixed, stream, batch._asdict()))
    found, said = plain(drift(residual, stream, np.arange(k)))
    assert not said
    assert not slow_rows(found, k).any()
