"""A law across sizes is fitted to runs of one model in one unit: others are refused, and doubtful ones said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.identification.hardware.likeness import ABSURD, DOUBT, likeness
from headway.identification.readers import read_trace
from headway.identification.trace import Trace
from headway.scaling import scale_stage
from tests.synthetic_steps import composed, durations, traced

FPM = "steps/fpm_vllm0201_b300/{}.fpm_detail.csv"


def run(factor: float, seed: int, **columns: object) -> Trace:
    """Steps that take `factor` times what the plant says, each run of a mix of its own."""
    batch = composed(600, seed, mixed=0.2 + 0.1 * seed)
    return traced(batch, factor * durations(batch, 0.04, seed), **columns)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([(1, 2), (2, 8), (1, 8)]), st.floats(0, 1))
def test_what_more_devices_can_do_is_not_remarked(tps: tuple[int, int], shrinks: float) -> None:
    few, many = tps
    ratio = shrinks * few / many + (1 - shrinks)
    assert likeness({few: run(1.0, 1), many: run(ratio, 2)}) == []


@pytest.mark.parametrize(("ratio", "said"), [(0.25, "0.25 times"), (1.7, "1.7 times")])
def test_a_ratio_that_is_hardly_possible_is_said(ratio: float, said: str) -> None:
    texts = likeness({1: run(1.0, 1), 2: run(ratio, 2)})
    assert [text.split()[0] for text in texts] == ["decode", "mixed"]
    assert all(said[:3] in text and "between 0.5 and 1 is possible" in text and "\n" not in text for text in texts)


@pytest.mark.parametrize("ratio", [1000.0, 1e-3, 1.05 * ABSURD, 0.5 / ABSURD / 1.05])
def test_another_unit_is_refused_in_one_line(ratio: float, tmp_path: Path) -> None:
    runs = {1: run(1.0, 1), 2: run(ratio, 2)}
    with pytest.raises(ValueError, match="different models or engines, or in different units") as caught:
        likeness(runs)
    assert "\n" not in str(caught.value)
    files = []
    for tp, trace in runs.items():
        files.append(tmp_path / f"tp{tp}.csv")
        trace.frame.drop("source", "block", strict=False).write_csv(files[-1])
    with pytest.raises(ValueError, match="different units"):
        scale_stage(files, 4, tmp_path / "plant.json", tps=[1, 2])
    assert not (tmp_path / "plant.json").exists()


@pytest.mark.parametrize("column", ["model", "hardware"])
def test_runs_that_name_different_models_are_refused(column: str) -> None:
    with pytest.raises(ValueError, match=rf"column {column} differs between the traces \(tp 1: a; tp 2: b\)"):
        likeness({1: run(1.0, 1, **{column: "a"}), 2: run(0.6, 2, **{column: "b"})})
    assert likeness({1: run(1.0, 1, **{column: "a"}), 2: run(0.6, 2, **{column: "a"})}) == []
    assert likeness({1: run(1.0, 1, **{column: "a"}), 2: run(0.6, 2)}) == []


def test_a_doubt_stands_first_among_the_warnings_of_the_plant(tmp_path: Path) -> None:
    files = []
    for tp, factor in ((1, 1.0), (2, 1.6)):
        files.append(tmp_path / f"tp{tp}.csv")
        run(factor, tp).frame.drop("source", "block", strict=False).write_csv(files[-1])
    plant, _ = scale_stage(files, 4, None, tps=[1, 2])
    assert plant.about["warnings"][0].startswith("decode steps at tp 2 take 1.6")


def test_a_regime_with_few_steps_is_not_compared() -> None:
    batch = composed(400, 3, mixed=0.0)
    alone = traced(batch, np.asarray(durations(batch, 0.0)) * 0.7)
    assert likeness({1: run(1.0, 1), 2: alone}) == []


@pytest.mark.parametrize(
    ("few", "many", "doubtful"),
    [
        ("qwen3-32b_tp1", "qwen3-32b_tp2", False),
        ("qwen3-32b_tp2", "qwen3-32b_tp4", False),
        ("qwen3.6-35b-a3b_tp2", "qwen3.6-35b-a3b_tp4", False),
        ("qwen3-32b_tp1", "qwen3.6-35b-a3b_tp2", True),
        ("qwen3.6-35b-a3b_tp2", "qwen3-32b_tp4", True),
    ],
)
def test_measured_runs_of_one_model_are_told_from_those_of_two(shared_data: Path, few: str, many: str, doubtful: bool) -> None:
    runs = {int(name[-1]): read_trace([shared_data / FPM.format(name)]) for name in (few, many)}
    assert bool(likeness(runs)) == doubtful
    assert DOUBT < ABSURD
