"""TPOT against concurrency: the law, how well it predicts a point that was left out, and the table of measured curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    assert dict(trace.aside) == {"scaled_copy": 1, "not_a_step": 1}
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
    assert dict(trace.aside) == {"scaled_copy": 222, "not_a_step": 15}
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
