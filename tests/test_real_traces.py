"""Measured step traces: what of them is kept, and how well a plant fitted to half of each predicts the other half."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.identification.rows import BOOKED, FIRST_SHAPE, GAP, KEPT, judge
from headway.identification.score import score
from headway.identification.trace import Trace

FPM = "steps/fpm_vllm0201_b300/{}.fpm_detail.csv"
DENSE = ("qwen3-32b_tp1", "qwen3-32b_tp2", "qwen3-32b_tp4")
EXPERTS = ("qwen3.6-35b-a3b_tp2", "qwen3.6-35b-a3b_tp4")
ASIDE = {
    "qwen3-32b_tp1": {1104: BOOKED, 1105: BOOKED, 1396: BOOKED, 1397: BOOKED},
    "qwen3-32b_tp2": {1093: GAP},
    "qwen3-32b_tp4": {},
    "qwen3.6-35b-a3b_tp2": {1057: FIRST_SHAPE, 1204: FIRST_SHAPE},
    "qwen3.6-35b-a3b_tp4": {1533: FIRST_SHAPE},
}
"""The rows that are no steps like the others, by their counter."""


@pytest.fixture(scope="module")
def trace_of(shared_data: Path):
    read: dict[str, Trace] = {}

    def of(name: str) -> Trace:
        if name not in read:
            read[name] = read_trace(shared_data / FPM.format(name))
        return read[name]

    return of


@pytest.mark.parametrize("name", [*DENSE, *EXPERTS])
def test_only_rows_that_are_no_steps_are_set_aside(name: str, trace_of) -> None:
    trace = trace_of(name)
    reason = judge(trace)
    aside = {int(trace.frame["step"][int(i)]): reason[i] for i in np.flatnonzero(reason != KEPT)}
    assert aside == ASIDE[name]
    assert np.mean(reason == KEPT) >= 0.995
    assert trace.engine["max_tokens"] == 8192  # the configuration says 2048
    assert trace.engine["block_tokens"] == 16


@pytest.mark.parametrize(
    ("name", "overall", "mixed"),
    [
        ("qwen3-32b_tp1", 0.025, 0.07),
        ("qwen3-32b_tp2", 0.037, 0.035),
        ("qwen3-32b_tp4", 0.017, 0.045),
        ("qwen3.6-35b-a3b_tp2", 0.028, 0.07),
        ("qwen3.6-35b-a3b_tp4", 0.018, 0.06),
    ],
)
def test_half_of_a_trace_predicts_the_other_half(name: str, overall: float, mixed: float, trace_of) -> None:
    trace = trace_of(name)
    found = fit(trace, blocks="even")
    result = score(found, trace, blocks="odd")
    assert result.to_json() == found.about["heldout"]
    assert result.mape is not None
    assert result.mape <= overall
    assert result.mape_mixed is not None
    assert result.mape_mixed <= mixed
    assert result.steps_mixed >= 90
    for regime in ("decode", "mixed"):
        low, high = result.coverage90[regime]["ci95"]
        assert low <= result.coverage90[regime]["value"] <= high
        if regime == "decode":
            assert low <= 0.9 <= high
    assert found.margin["decode"] is not None
    assert found.margin["mixed"] is not None


def test_what_was_too_little_excited_is_said(trace_of) -> None:
    trace = trace_of("qwen3-32b_tp4")
    found = fit(trace, where={"workload_segment": "sweep"})
    assert any("moved together" in w for w in found.about["warnings"])
    result = score(found, trace, where={"workload_segment": "real"})
    assert result.mape is not None
    assert result.mape > 2 * fit(trace).about["heldout"]["mape"]
    assert any(w.startswith("extrapolation") for w in result.warnings)
    assert any("should" in w for w in result.warnings)


def test_our_own_recording_of_a_loaded_machine(shared_data: Path) -> None:
    trace = read_trace(shared_data / "steps/vllm_cpu/steps.csv")
    exec_s = trace.frame["step_time_s"].to_numpy()
    assert len(trace) == 4452
    assert exec_s[:3] == pytest.approx([33.1969e-3, 23.8756e-3, 12.2199e-3], abs=1e-9)  # synchronous: exec_ms itself
    assert "the host takes between steps" in trace.warnings[0]
    found = fit(trace, blocks="even")
    assert found.about["heldout"]["mape"] < 0.23  # the machine was shared: much of this is contention
    assert found.about["rows"]["used"] / found.about["rows"]["read"] > 0.995


def test_an_asynchronous_recording_gives_the_device_s_own_steps(shared_data: Path) -> None:
    trace = read_trace(shared_data / "steps/vllm_cpu/sim_async_steps.csv")
    found = fit(trace, structure="regimes")
    # the simulated device took 10 ms and 60 us per prompt token; exec_ms reads about twice that
    values = {name: c.value for name, c in found.plant.coefficients().items()}
    assert values["decode.floor"] == pytest.approx(0.010, rel=0.02)
    assert values["mixed.per_prefill_token"] == pytest.approx(60e-6, rel=0.02)
