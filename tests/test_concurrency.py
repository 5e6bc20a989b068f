"""TPOT against concurrency: the law, how well it predicts a point that was left out, and the table of measured curves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.identification.fit import fit
from headway.identification.readers import TraceError, read_trace
from headway.identification.structures.concurrency import fit_concurrency, leave_one_out

COUNTS = np.array([4.0, 8.0, 16.0, 32.0, 64.0, 128.0])


@given(st.floats(1e-3, 0.1), st.floats(0, 1e-2), st.floats(0, 1e-2), st.permutations(range(6)))
def test_a_curve_of_this_form_is_found_in_any_order(floor: float, per_request: float, per_root: float, order: list[int]) -> None:
    count = COUNTS[order]
    time_s = floor + per_request * count + per_root * np.sqrt(count)
    law = fit_concurrency(count, time_s)
    assert law.tpot_s(count) == pytest.approx(time_s, rel=1e-4)
    assert min(law) >= 0
    assert leave_one_out(count, time_s).error.max() < 1e-3


def test_a_point_left_out_is_predicted_without_it() -> None:
    time_s = 0.01 + 2e-4 * COUNTS
    bent = time_s.copy()
    bent[2] *= 1.5
    left = leave_one_out(COUNTS, bent, form="linear")
    assert left.error[2] == pytest.approx(1 / 3, rel=0.02)  # the others are on the line, and say where it should be
    assert left.inside.tolist() == [False, True, True, True, True, False]
    assert leave_one_out(COUNTS[::-1], bent[::-1], form="linear").error == pytest.approx(left.error)


def test_no_coefficient_below_zero_however_the_curve_bends() -> None:
    convex = fit_concurrency(COUNTS, 0.01 + 1e-6 * COUNTS**2)
    falling = fit_concurrency(COUNTS, 0.02 - 1e-5 * COUNTS)
    assert min(*convex, *falling) >= 0
    assert fit_concurrency(COUNTS, 0.01 + 1e-3 * np.sqrt(COUNTS), form="linear").per_root == 0


@pytest.mark.parametrize(
    ("count", "time_s", "form", "message"),
    [
        ([1, 2], [0.1, 0.2], "sqrt", "points at 3 concurrencies at least, got 2"),
        ([1, 2, 4], [0.1, 0.2], "sqrt", "as many concurrencies as times"),
        ([1, 2, 4], [0.1, 0.2, 0.0], "sqrt", "above zero"),
        ([1, 2, np.nan], [0.1, 0.2, 0.3], "sqrt", "above zero"),
        ([1, 2, 4], [0.1, 0.2, 0.3], "cubic", "form must be one of"),
    ],
)
def test_what_is_no_curve_is_refused(count: list[float], time_s: list[float], form: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_concurrency(np.array(count, float), np.array(time_s), form=form)


def test_a_point_that_comes_twice_would_predict_itself() -> None:
    with pytest.raises(ValueError, match="each at its own concurrency"):
        leave_one_out(np.array([4.0, 8.0, 8.0, 16.0]), np.full(4, 0.01))
    with pytest.raises(ValueError, match="4 points at least"):
        leave_one_out(np.array([4.0, 8.0, 16.0]), np.full(3, 0.01))


def _row(name: str, concurrency: int | None, model: str = "a/llm", tpot: float = 10.0, isl: int = 1024) -> dict:
    said = "source_file=x.csv" + (f"; silicon_concurrency={concurrency}" if concurrency else "; job=7")
    about = {"backend": "vllm", "model_path": model, "system": "card", "mode": "agg", "isl": isl, "osl": 512, "tp_size": 2.0}
    return {
        "id": name,
        "silicon_data_source": said,
        **about,
        "batch_size": concurrency,
        "silicon_ttft_ms": 100 + tpot,
        "silicon_tpot_ms": tpot,
    }


def test_the_table_s_rows_are_points_of_curves(tmp_path: Path) -> None:
    file = tmp_path / "silicon.csv"
    rows = [_row(f"c{c}", c, tpot=10.0 + c) for c in (4, 8, 16)] + [_row("long", 4, isl=8192, tpot=33.0)]
    rows += [_row("again", 8, model="b/llm", tpot=18.0), _row("silent", None, tpot=77.0)]
    pl.DataFrame(rows).write_csv(file)
    trace = read_trace(file)
    assert trace.reader == "silicon"
    assert trace.frame["source"].n_unique() == 2
    assert sorted(zip(trace.frame["curve_points"], trace.frame["decode_requests"], strict=True)) == [
        (1, 4.0),
        (3, 4.0),
        (3, 8.0),
        (3, 16.0),
    ]
    first = trace.frame.filter((pl.col("isl") == 1024) & (pl.col("decode_requests") == 8.0))
    assert first["decode_kv_tokens"][0] == 8 * (1024 + 256)
    assert first["step_time_s"][0] == pytest.approx(0.018)
    assert dict(trace.aside) == {"scaled_copy": 1, "incomplete": 1}
    assert any("estimated as concurrency * (isl + osl / 2)" in w for w in trace.warnings)
    pl.DataFrame([_row("silent", None)]).write_csv(file)
    with pytest.raises(TraceError, match="at least one row that says silicon_concurrency"):
        read_trace(file)


@pytest.mark.parametrize(
    ("points", "curves", "everywhere", "between"),
    [
        # twice as many points as coefficients: the ends too are predicted
        (6, 30, 0.022, 0.022),
        # with 4 or 5 an end is extrapolated to, twice as far as any other point, by three coefficients from three or four
        (4, 200, 0.035, 0.022),
    ],
)
def test_the_root_halves_the_error_of_a_straight_line_on_measured_curves(
    shared_data: Path, points: int, curves: int, everywhere: float, between: float
) -> None:
    trace = read_trace(shared_data / "steps/silicon_tpot/silicon_sample_h100_h200.csv")
    assert dict(trace.aside) == {"scaled_copy": 222, "incomplete": 15}
    errors: dict[str, list[tuple[float, float]]] = {"sqrt": [], "linear": []}
    for _, curve in trace.frame.filter(pl.col("curve_points") >= points).group_by("source", maintain_order=True):
        count, time_s = curve["decode_requests"].to_numpy(), curve["step_time_s"].to_numpy()
        if len(np.unique(count)) == len(count):
            for form, found in errors.items():
                left = leave_one_out(count, time_s, form=form)
                found.append((left.error.mean(), left.error[left.inside].mean()))
    root, line = (np.median(errors[form], axis=0) for form in ("sqrt", "linear"))
    print(f"{len(errors['sqrt'])} curves of {points} points or more: sqrt {root}, linear {line} (all points, points between others)")
    assert len(errors["sqrt"]) >= curves
    assert root[0] <= everywhere
    assert root[1] <= between
    assert np.all(root <= 0.55 * line)


def _curves(folder: Path, *floors_ms: float) -> Path:
    """A table of curves of 6 points each, one a deployment."""
    counts = (1, 4, 16, 64, 128, 256)
    rows = [
        _row(f"{tp}-{c}", c, tpot=floor + 0.02 * c + 0.5 * c**0.5) | {"tp_size": float(2**tp)}
        for tp, floor in enumerate(floors_ms)
        for c in counts
    ]
    file = folder / "silicon.csv"
    pl.DataFrame(rows).write_csv(file)
    return file


def test_a_table_of_many_curves_says_to_choose_one(tmp_path: Path) -> None:
    trace = read_trace(_curves(tmp_path, 8.0, 16.0))
    whole = fit(trace)
    assert whole.plant.structure == "concurrency"
    (said,) = [text for text in whole.about["warnings"] if "--where" in text]
    assert said.startswith("the rows are 2 curves of time per token against concurrency (2 of 4 points or more)")
    assert "fit one at a time, as with --where 'curve=1' (6 points)" in said
    one = fit(trace, where={"curve": "1"})
    assert one.plant.structure == "concurrency"
    assert one.plant.step_time_s(trace.where({"curve": 1}).batch()) == pytest.approx(trace.where({"curve": 1}).step_time_s, rel=1e-6)
    assert not any("--where" in text for text in one.about["warnings"])
    assert one.margin == {"decode": None, "mixed": None}
    assert any("6 of 6 rows average 512 steps" in text for text in one.about["warnings"])


def test_averages_of_a_benchmark_are_fitted_against_concurrency(tmp_path: Path) -> None:
    rows = [
        {"backend": "sglang", "random_input_len": 64, "request_rate": r, "duration": 100.0, "completed": 100 * r,
         "total_input_tokens": 6400 * r, "total_output_tokens": 10_000 * r, "mean_e2e_latency_ms": 1000.0 + 100 * r,
         "median_ttft_ms": 78.0, "mean_tpot_ms": 10.0 + r} for r in (1, 2, 4, 8, 16)
    ]  # fmt: skip
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plant = fit(read_trace(tmp_path / "a.jsonl"))
    assert plant.plant.structure == "concurrency"
    assert not any("--where" in text for text in plant.about["warnings"])
    assert any("5 of 5 rows average" in text for text in plant.about["warnings"])
    both = fit(read_trace([tmp_path / "a.jsonl", tmp_path / "b.jsonl"]))
    assert any("as with --where 'source=a.jsonl' (5 points)" in text for text in both.about["warnings"])


def test_a_table_of_several_deployments_says_to_choose_one(tmp_path: Path) -> None:
    rows = [
        {"model": "llm", "hardware": card, "prompt_size": p, "batch_size": b, "token_size": 100, "prompt_time": scale * (20 + 0.1 * p * b),
         "token_time": scale * (10 + 0.37 * b + 1e-4 * p * b), "tensor_parallel": 2} for card, scale in (("card", 1.0), ("other", 0.7))
        for p in (128, 256, 512, 1024) for b in (1, 2, 4, 8)
    ]  # fmt: skip
    drawn = np.random.default_rng(0).uniform(0.99, 1.01, len(rows))
    rows = [row | {"token_time": row["token_time"] * d} for row, d in zip(rows, drawn, strict=True)]
    pl.DataFrame([row | {"e2e_time": row["prompt_time"] + 99 * row["token_time"]} for row in rows]).write_csv(tmp_path / "perf.csv")
    trace = read_trace(tmp_path / "perf.csv")
    (said,) = [text for text in fit(trace).about["warnings"] if "--where" in text]
    assert said.startswith("the rows mix several of hardware (card, other): one law over all of them is not trustworthy")
    assert said.endswith("as with --where 'hardware=card'")
    one = fit(trace, where={"hardware": "card"})
    assert not any("mix several" in text for text in one.about["warnings"])
    assert one.margin == {"decode": None, "mixed": None}
    assert any("no row is the step after another" in text for text in one.about["warnings"])
    assert not any("step before" in text or "wanders" in text for text in one.about["warnings"])


def test_the_measured_table_is_said_to_be_of_many_curves(shared_data: Path) -> None:
    trace = read_trace(shared_data / "steps/silicon_tpot/silicon_sample_h100_h200.csv")
    plant = fit(trace)
    assert plant.plant.structure == "concurrency"
    assert plant.about["warnings"][0].startswith("the rows are 500 curves of time per token against concurrency (239 of 4 points or more)")
    one = fit(trace, where={"curve": 98})
    error = np.abs(one.plant.step_time_s(trace.where({"curve": 98}).batch()) / trace.where({"curve": 98}).step_time_s - 1)
    assert np.median(error) < 0.03
