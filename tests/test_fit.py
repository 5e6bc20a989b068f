"""From made steps back to the plant that made them: coefficients, intervals, margins, noise, held-out errors, warnings."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.identification.fit import FEWEST, fit
from headway.identification.limits import limits_of
from headway.identification.rows import FIRST_SHAPE, GAP, IDLE
from headway.identification.score import Score, score
from headway.identification.structures.crossval import folds, out_of_fold
from headway.identification.structures.intervals import (
    MOST_RESIDUALS,
    block_length,
    coefficient_draws,
    coefficient_interval,
    kept_residuals,
    margin,
    share_interval,
)
from headway.identification.structures.robust import fit_law
from headway.identification.structures.terms import Structure
from headway.identification.trace import Source, Trace
from headway.models.identified import IdentifiedPlant
from headway.models.plant import Batch
from headway.models.regimes import AffinePlant
from headway.models.signals import Limits
from tests.synthetic_steps import TRUTH, coefficients, composed, durations, noise, traced


def _made(k: int = 3000, sd: float = 0.03, seed: int = 0, correlation: float = 0.0, mixed: float = 0.25, **others: object) -> Trace:
    batch = composed(k, seed, mixed)
    return traced(batch, durations(batch, sd, seed, correlation), **others)


def _off(found: IdentifiedPlant, wanted: dict[str, float]) -> float:
    return max(abs(value / wanted[name] - 1) for name, value in coefficients(found.plant).items())


def test_steps_without_noise_give_the_plant_back() -> None:
    found = fit(_made(sd=0.0))
    assert _off(found, coefficients(TRUTH)) < 1e-6
    assert found.about["heldout"]["max_ape"] < 1e-6
    assert found.margin == pytest.approx({"decode": 0.0, "mixed": 0.0}, abs=1e-6)


def test_the_plant_s_structure_is_chosen_on_all_rows_and_the_scored_one_on_half() -> None:
    """Prompts long enough to pass a graph limit come in odd blocks alone, as regions of a sorted table do."""
    batch, odd = composed(3000), np.arange(3000) // 200 % 2 == 1
    tokens = np.where(odd, batch.prefill_tokens, np.minimum(batch.prefill_tokens, 900.0))
    batch = batch._replace(prefill_tokens=tokens)
    time = (TRUTH.step_time_s(batch) + 0.015 * (batch.decode_requests + tokens > 1024) * (tokens > 0)) * np.exp(noise(3000, 0.02))
    trace = traced(batch, time)
    whole, half = fit(trace), fit(trace, blocks="even")
    assert coefficients(whole.plant)["shape.mixed_limit_tokens"] == pytest.approx(1024, rel=0.02)
    assert coefficients(half.plant).get("shape.mixed_limit_tokens", 0.0) == 0
    for score_of in ("mape", "mape_mixed", "max_ape"):  # nothing of the odd blocks is in what was scored on them
        assert whole.about["heldout"][score_of] == half.about["heldout"][score_of]
    (said,) = [text for text in whole.about["warnings"] if "other terms act" in text]
    assert "the plant's on all rows" in said
    assert not any("other terms act" in text for text in half.about["warnings"])
    assert np.mean(np.abs(whole.plant.step_time_s(batch) / time - 1)) < 0.02 < whole.about["heldout"]["mape"]


def test_one_law_for_all_steps() -> None:
    batch = composed(1500)
    plant = AffinePlant((5e-3, 6e-5, 4e-9, 2e-5, 6e-10, 3e-4))
    found = fit(traced(batch, plant.step_time_s(batch)), structure="affine")
    assert _off(found, coefficients(plant)) < 1e-6
    assert set(found.interval) == set(coefficients(plant))


@given(seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-3, 1.0, 1e3]))
@settings(max_examples=20)
def test_the_unit_of_time_does_not_matter(seed: int, scale: float) -> None:
    batch = composed(400, seed)
    columns = np.column_stack([np.ones(400), *batch])
    time = durations(batch, 0.1, seed)
    assert fit_law(columns, scale * time).coefficients == pytest.approx(scale * fit_law(columns, time).coefficients, rel=1e-3, abs=1e-12)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_no_coefficient_is_negative_even_where_more_work_took_less_time(seed: int) -> None:
    batch = composed(400, seed)
    time = 0.05 / (1 + batch.decode_requests) * np.exp(noise(400, 0.1, seed))
    found = fit(traced(batch, time))
    assert min(coefficients(found.plant).values()) >= 0
    assert any("plain least squares wants" in w and "per_decode_request" in w for w in found.about["warnings"])
    assert any(row["negative"].get("per_decode_request", 0.0) < 0 for row in found.about["excitation"].values())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_case_e12_cold_start_poisons_the_fit(seed: int) -> None:
    batch = composed(2000, seed)
    clean = durations(batch, sd=0.01, seed=seed)
    rng = np.random.default_rng(seed)
    poisoned = clean.copy()
    poisoned[:20] *= rng.uniform(10, 50, 20)
    poisoned[rng.choice(np.arange(20, 2000), 20, replace=False)] *= 5
    found = fit(traced(batch, poisoned))
    assert _off(found, coefficients(fit(traced(batch, clean)).plant)) < 0.02
    aside = found.about["rows"]["set_aside"]
    assert 20 <= aside[FIRST_SHAPE] <= 22  # an outlier may fall on the first step of its shape
    assert 38 <= aside[FIRST_SHAPE] + aside[GAP] <= 40


def test_outliers_that_no_rule_catches_hardly_move_the_law() -> None:
    batch = composed(2000)
    clean = durations(batch, sd=0.02)
    bent = np.where(np.random.default_rng(0).random(2000) < 0.03, 2.5, 1.0) * clean  # below what the rules call many times
    columns = np.column_stack([np.ones(2000), *batch])
    mixed = batch.prefill_tokens > 0
    a, b = (fit_law(columns[mixed], time[mixed]).coefficients for time in (clean, bent))
    assert columns[mixed] @ b == pytest.approx(columns[mixed] @ a, rel=0.01)


def test_case_e15_idle_heartbeats_do_not_enter_the_fit() -> None:
    batch = composed(1200)
    time = durations(batch, sd=0.02)
    idle = np.arange(1200) % 3 == 0
    resting = Batch(*(np.where(idle, 0.0, column) for column in batch))
    found = fit(traced(resting, np.where(idle, 0.0, time)))
    assert found.about["rows"] == {"read": 1200, "used": 800, "set_aside": {IDLE: 400}}
    assert found.about["heldout"]["mape"] < 0.02
    busy = fit(Trace.of(traced(batch, time).frame.filter(pl.Series(~idle))))
    assert coefficients(found.plant) == coefficients(busy.plant)


def test_case_e32_in_sample_error_sold_as_accuracy() -> None:
    batch = composed(4000)
    time = 0.02 * np.exp(noise(4000, 1.0))  # nothing but noise
    trace = dataclasses.replace(traced(batch, time), sources=(Source("noise", "a" * 64, "made"),))
    found = fit(trace)
    heldout = found.about["heldout"]
    assert heldout["mape"] == pytest.approx(1.0, abs=0.25)
    assert heldout["max_ape"] > 5
    assert heldout["p90_ape"] > heldout["mape"]
    assert any("the terms explain nothing" in w for w in found.about["warnings"])
    assert score(found, trace).warnings[0].endswith("this is an in-sample error; score other blocks, or see heldout")
    half = fit(trace, blocks="even")
    assert "in-sample" not in " ".join(score(half, trace, blocks="odd").warnings)
    assert "in-sample" in " ".join(score(half, trace, blocks="even").warnings)


def test_the_held_out_error_is_of_steps_not_fitted_to() -> None:
    trace = _made()
    half, whole = fit(trace, blocks="even"), fit(trace)
    assert half.about["heldout"] == score(half, trace, blocks="odd").to_json()
    assert whole.about["heldout"] == half.about["heldout"]
    assert coefficients(whole.plant) != coefficients(half.plant)
    assert whole.about["heldout"]["steps"] == trace.in_blocks("odd").sum()
    other = fit(trace, blocks="odd")
    assert other.about["heldout"] == score(other, trace, blocks="even").to_json() | {"warnings": other.about["heldout"]["warnings"]}


def test_a_short_trace_has_no_held_out_error_and_says_so() -> None:
    found = fit(_made(150))
    assert found.about["heldout"] is None
    assert any(w.startswith("no held-out error") for w in found.about["warnings"])
    with pytest.raises(ValueError, match=f"at least {FEWEST} used rows, got 10"):
        fit(_made(10))
    with pytest.raises(ValueError, match="at least 20 used rows, got 0"):
        fit(_made(150), blocks="odd")


def test_intervals_hold_the_truth_though_residuals_are_correlated() -> None:
    truth, hits = coefficients(TRUTH), []
    for seed in range(12):
        interval = fit(_made(2000, 0.05, seed, correlation=0.8)).interval
        hits += [low <= truth[name] <= high for name, (low, high) in interval.items()]
    assert len(hits) == 12 * len(truth)
    assert np.mean(hits) > 0.85


def test_coefficients_of_a_law_lean_against_each_other_as_those_of_other_traces_do() -> None:
    told, fitted = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        terms = np.column_stack([np.ones(300), rng.integers(20, 60, 300)])
        law = fit_law(terms, terms @ [6e-3, 7e-5] * np.exp(rng.normal(0, 0.05, 300)))
        fitted.append(law.coefficients)
        told.append(np.corrcoef(coefficient_draws(law, rng).T)[0, 1])
    assert np.mean(told) < -0.8, "a higher floor, a lower slope"
    assert np.mean(told) == pytest.approx(np.corrcoef(np.array(fitted).T)[0, 1], abs=0.05)


def test_a_fit_says_how_its_coefficients_go_together() -> None:
    found = fit(_made(600, 0.05), structure="regimes")
    for group in found.about["correlation"]:
        matrix = np.array(group["matrix"])
        assert matrix.shape == (len(group["names"]),) * 2
        assert matrix == pytest.approx(matrix.T)
        assert np.diag(matrix) == pytest.approx(1.0)
        assert len({name.partition(".")[0] for name in group["names"]}) == 1, "regimes were fitted to different steps"
        assert set(group["names"]) <= set(found.interval)


def test_a_block_grows_with_the_correlation() -> None:
    lengths = [block_length(noise(4000, 0.05, 1, correlation)) for correlation in (0.0, 0.5, 0.9)]
    assert lengths == sorted(lengths)
    assert lengths[0] < 10
    assert lengths[2] > 50
    assert block_length(np.zeros(0)) == block_length(np.zeros(3)) == 1


def test_too_few_rows_have_no_interval() -> None:
    law = fit_law(np.ones((FEWEST - 1, 1)), np.full(FEWEST - 1, 0.01))
    assert np.isnan(coefficient_interval(law, np.random.default_rng(0))).all()
    assert share_interval(np.ones(19, bool), np.zeros(19), np.random.default_rng(0)) is None


@given(n=st.integers(1, 400), epsilon=st.sampled_from([0.5, 0.1, 0.05, 0.01, 0.003]))
def test_the_margin_is_the_conformal_order_statistic(n: int, epsilon: float) -> None:
    residual = np.random.default_rng(n).normal(size=n)
    found = margin(residual, epsilon)
    if n < 1 / epsilon:
        assert found is None
    else:
        assert found is not None
        q = -math.log(1 - found)
        assert (residual <= q + 1e-9).sum() == math.ceil((1 - epsilon) * (n + 1) - 1e-9)
    assert margin(np.zeros(0), epsilon) is None


def test_margins_and_noise_are_those_of_the_kept_steps() -> None:
    trace = _made(2000, 0.05)
    found = fit(trace, epsilon=0.05)
    mixed = trace.batch().prefill_tokens > 0
    everything = np.ones(len(trace), bool)
    residual = out_of_fold(Structure("regimes"), trace.batch(), trace.step_time_s, everything, folds(everything, mixed))
    assert found.plant.structure == "regimes"
    assert found.noise.decode == pytest.approx(residual[~mixed])
    assert found.noise.mixed == pytest.approx(residual[mixed])
    assert found.margin == pytest.approx({"decode": margin(residual[~mixed], 0.05), "mixed": margin(residual[mixed], 0.05)})
    short = fit(_made(420), epsilon=0.005)
    assert short.margin["mixed"] is None
    assert "mixed: too few steps for a margin at epsilon 0.005, which needs 200" in short.about["warnings"]
    covered = score(found, trace).coverage90
    assert covered["decode"]["value"] == pytest.approx(0.9, abs=0.01)
    assert covered["mixed"]["ci95"][0] < 0.9 < covered["mixed"]["ci95"][1]


def test_many_residuals_are_kept_as_whole_blocks() -> None:
    residual = np.arange(20_000.0)
    kept = kept_residuals(residual)
    assert MOST_RESIDUALS - 50 < len(kept) <= MOST_RESIDUALS
    assert (np.diff(kept.reshape(-1, 50), axis=1) == 1).all()
    assert (np.diff(kept) > 0).all()
    assert kept[0] == 0
    assert kept[-1] == residual[-1]
    assert kept_residuals(residual[:MOST_RESIDUALS]) is not residual
    assert len(kept_residuals(residual[:MOST_RESIDUALS])) == MOST_RESIDUALS


def test_a_regime_of_few_rows_takes_the_law_of_all_and_it_is_said() -> None:
    batch = composed(1000, mixed=0.01)
    assert 0 < (batch.prefill_tokens > 0).sum() < FEWEST
    found = fit(traced(batch, durations(batch)))
    assert any(w.startswith("mixed: only ") and "is a guess" in w for w in found.about["warnings"])
    assert found.margin["mixed"] is None
    prefill = Batch(8.0, 8000.0, 1000.0, 1e6, 1.0)
    assert float(found.plant.step_time_s(prefill)) == pytest.approx(float(TRUTH.step_time_s(prefill)), rel=0.2)
    none = fit(_made(1000, mixed=0.0))
    assert "mixed: prefill_tokens was never above zero, so mixed.per_prefill_token cannot be told from this trace" in none.about["warnings"]
    assert none.about["heldout"]["mape_mixed"] is None
    assert none.about["heldout"]["coverage90"]["mixed"] == {"value": None, "ci95": None}
    only_mixed = fit(_made(1000, mixed=1.0))
    assert only_mixed.about["heldout"]["mape_decode"] is None


def test_what_did_not_move_or_moved_together_is_named() -> None:
    batch = composed(2000)
    together = batch._replace(decode_kv_tokens=1000 * batch.decode_requests + np.random.default_rng(0).integers(0, 500, 2000))
    said = fit(traced(together, durations(together, 0.02))).about["warnings"]
    pair = [w for w in said if w.startswith("decode: decode_requests and decode_kv_tokens moved together (VIF ")]
    assert len(pair) == 1
    assert "is not trustworthy" in pair[0]
    still = batch._replace(decode_requests=np.full(2000, 32.0))
    found = fit(traced(still, durations(still, 0.02)))
    # what stood still is the floor's, so that the plant does not grow with it elsewhere
    assert coefficients(found.plant)["decode.per_decode_request"] == 0
    assert coefficients(found.plant)["decode.floor"] == pytest.approx(6e-3 + 32 * 7e-5, rel=0.02)
    assert "decode.per_decode_request" not in found.interval
    message = "decode: decode_requests stayed at 32, so decode.per_decode_request cannot be told from this trace"
    assert message in found.about["warnings"]
    terms = found.about["excitation"]["decode"]["terms"]
    assert not terms["decode_requests"]["moved"]
    assert terms["decode_kv_tokens"]["moved"]
    well = fit(_made(sd=0.02)).about
    assert not [w for w in well["warnings"] if "VIF" in w or "told from" in w]
    assert well["excitation"]["decode"]["condition"] < 20


def test_the_rows_can_be_chosen() -> None:
    batch = composed(1600)
    fast = np.arange(1600) % 800 < 400
    time = np.where(fast, 1.0, 2.0) * durations(batch, 0.01)
    trace = traced(batch, time, mode=np.where(fast, "fast", "slow"))
    found = fit(trace, where={"mode": "slow"})
    assert coefficients(found.plant)["decode.floor"] == pytest.approx(2 * coefficients(TRUTH)["decode.floor"], rel=0.02)
    assert found.about["rows"]["read"] == 800
    assert found.about["training"]["where"] == {"mode": "slow"}
    assert found.about["heldout"]["steps"] == 400
    assert score(found, trace, where={"mode": "fast"}).mape == pytest.approx(1.0, abs=0.05)


def test_a_score_says_where_the_plant_extrapolates() -> None:
    batch = composed(2000)
    trace = traced(batch, durations(batch, 0.02), wide=np.where(batch.decode_requests > 32, "yes", "no"))
    found = fit(trace, where={"wide": "no"})
    assert found.hull.decode_requests == 32
    wide = score(found, trace, where={"wide": "yes"})
    assert any(w.startswith("extrapolation: steps of up to 63 decoding sequences, the trace held 32") for w in wide.warnings)
    assert not [w for w in score(found, trace, where={"wide": "no"}).warnings if "extrapolation" in w]


def test_a_score_has_exactly_these_names() -> None:
    trace = _made(800)
    result = score(fit(trace), trace)
    assert list(result.to_json()) == [f.name for f in dataclasses.fields(Score)] == [
        "steps", "steps_mixed", "mape", "median_ape", "mape_decode", "mape_mixed", "p90_ape", "max_ape", "max_ape_all",
        "coverage90", "shift", "rows", "warnings",
    ]  # fmt: skip
    nothing = score(fit(trace), traced(Batch(*(np.zeros(5),) * 5), np.zeros(5)))
    assert nothing.steps == 0
    assert nothing.mape is nothing.max_ape_all is None
    assert nothing.warnings == ["no step is left to score"]


def test_the_largest_error_of_all_counts_the_rows_set_aside() -> None:
    batch = composed(1000)
    time = durations(batch, 0.02)
    time[300] *= 20
    result = score(fit(_made()), traced(batch, time))
    assert result.rows["set_aside"] == {GAP: 1}
    assert result.max_ape is not None
    assert result.max_ape < 0.2
    assert result.max_ape_all == pytest.approx(0.95, abs=0.01)


def test_the_plant_passes_through_json_and_twice_is_the_same() -> None:
    trace = _made(1000)
    found, again = fit(trace, seed=3), fit(trace, seed=3)
    text = json.dumps(found.to_json(), allow_nan=False)
    assert text == json.dumps(again.to_json(), allow_nan=False)
    back = IdentifiedPlant.from_json(json.loads(text))
    assert coefficients(back.plant) == coefficients(found.plant)
    assert back.about == found.about
    told = {"rows", "ladder", "lag", "heldout", "margin_ci95", "correlation", "excitation", "binding", "implied", "diagnostics", "clock"}
    assert set(found.about) == {*told, "warnings", "sources", "training"}


def test_progress_is_told_and_wrong_arguments_are_named() -> None:
    seen: list[tuple[str, float]] = []
    fit(_made(500), progress=lambda label, share: seen.append((label, share)))
    shares = [share for _, share in seen]
    assert shares == sorted(shares)
    assert seen[-1] == ("done", 1.0)
    with pytest.raises(ValueError, match=r"unknown plant structure 'spline'; this version knows"):
        fit(_made(500), structure="spline")
    with pytest.raises(ValueError, match=r"epsilon must be in \(0, 1\), got 1; write 0\.01 for 1 %"):
        fit(_made(500), epsilon=1.0)


def test_limits_come_from_the_command_line_the_configuration_and_the_rows() -> None:
    trace = _made(500)
    bare, said = limits_of(trace, None)
    batch = trace.batch()
    assert 0 <= bare.kv_tokens - (batch.decode_kv_tokens + batch.prefill_tokens + batch.decode_requests).max() < 16
    assert said[0].startswith("the size of the KV cache is not in the trace")
    known = dataclasses.replace(trace, engine={"block_tokens": 32, "max_seqs": 8})
    found, said = limits_of(known, {"kv_tokens": 500_000})
    assert (found.kv_tokens, found.block_tokens, found.max_seqs) == (500_000, 32, int(batch.decode_requests.max()))
    assert said == []
    assert limits_of(known, {"kv_tokens": 500_000, "max_seqs": 8})[1] == [f"max_seqs was given as 8, but the trace shows {found.max_seqs}"]
    given = Limits(kv_tokens=4096, max_seqs=2)
    assert limits_of(known, given) == (given, [])
    with pytest.raises(ValueError, match="unknown engine limits"):
        limits_of(trace, {"kv": 1})
    with pytest.raises(ValueError, match="max_seqs must be at least 1"):
        limits_of(trace, Limits(kv_tokens=4096, max_seqs=0))
