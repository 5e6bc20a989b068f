"""What curves of other deployments tell of one: its kin at its ends, and never the point that was left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.identification.fit import fit
from headway.identification.readers import read_trace
from headway.identification.structures.concurrency import fit_concurrency, leave_one_out
from headway.identification.structures.families import FEWEST_CURVES, Curve, CurveFamily, curves_of

COUNTS = np.array([4.0, 8.0, 16.0, 32.0, 64.0, 128.0])
JUMPS = {"one": np.array([1, 1, 1, 1, 1, 1.3]), "other": np.array([0.8, 1, 1, 1, 1, 1])}
"""What curves of a family share, and no law of three coefficients holds."""


def _made(k: int = 40, seed: int = 0, scatter: float = 0.003) -> CurveFamily:
    """Curves of two families, of different floors and slopes, each named by its number."""
    rng, curves = np.random.default_rng(seed), {}
    for i in range(k):
        family = "one" if i % 2 else "other"
        floor, slope, root = rng.uniform(5e-3, 3e-2), rng.uniform(5e-5, 5e-4), rng.uniform(0, 1e-3)
        time_s = (floor + slope * COUNTS + root * np.sqrt(COUNTS)) * JUMPS[family] * np.exp(scatter * rng.normal(size=6))
        curves[str(i)] = Curve(COUNTS, time_s, (family,), np.log([2.0 ** (i % 4), 1024.0, 512.0]))
    return CurveFamily(curves)


def _told(family: CurveFamily, name: str, out: int) -> float:
    """What is told of the one point left out."""
    curve, others = family.curves[name], np.arange(6) != out
    told = family.told(name, curve.concurrency[others], curve.tpot_s[others])
    assert told.concurrency.tolist() == [COUNTS[out]]
    assert told.curves[0] == len(family.curves) - 1
    return float(told.tpot_s[0])


@pytest.mark.parametrize(("name", "out"), [("1", 5), ("2", 0)])
def test_kin_tell_what_no_law_of_the_curve_alone_can(name: str, out: int) -> None:
    family = _made()
    curve, others = family.curves[name], np.arange(6) != out
    alone = fit_concurrency(COUNTS[others], curve.tpot_s[others]).tpot_s(COUNTS[out : out + 1])[0]
    assert abs(alone / curve.tpot_s[out] - 1) > 0.1
    assert _told(family, name, out) == pytest.approx(curve.tpot_s[out], rel=0.04)
    left, without = (leave_one_out(COUNTS, curve.tpot_s, family=f, name=name).error for f in (family, None))
    assert left[out] < without[out]  # the law bends toward it as far as three coefficients can


@pytest.mark.parametrize("out", range(6))
def test_neither_the_point_left_out_nor_a_copy_of_the_curve_tells(out: int) -> None:
    family = _made()
    before, curve = _told(family, "3", out), family.curves["3"]
    bent = curve.tpot_s.copy()
    bent[out] *= 3.0
    changed = {**family.curves, "3": curve._replace(tpot_s=bent)}
    assert _told(CurveFamily(changed), "3", out) == before
    copies = {**changed, "again": curve._replace(tpot_s=bent * 1.004)}  # once more, to within what a repetition differs by
    others = np.arange(6) != out
    assert CurveFamily(copies).told("3", COUNTS[others], curve.tpot_s[others]).tpot_s[0] == before


def test_a_curve_that_broke_down_tells_little_of_others() -> None:
    family = _made()
    before, broken = _told(family, "1", 5), family.curves["7"]
    time_s = broken.tpot_s.copy()
    time_s[5] *= 3.0
    after = _told(CurveFamily({**family.curves, "7": broken._replace(tpot_s=time_s)}), "1", 5)
    assert after == pytest.approx(before, rel=0.02)


@given(scale=st.sampled_from([1e-3, 1e3]), out=st.integers(0, 5), order=st.permutations(range(5)))
@settings(max_examples=15)
def test_neither_the_unit_of_time_nor_the_order_matters(scale: float, out: int, order: list[int]) -> None:
    family = _made(20)
    scaled = CurveFamily({name: c._replace(tpot_s=scale * c.tpot_s) for name, c in family.curves.items()})
    others = np.flatnonzero(np.arange(6) != out)[order]
    told = scaled.told("1", COUNTS[others], scaled.curves["1"].tpot_s[others])
    assert told.tpot_s[0] == pytest.approx(scale * _told(family, "1", out), rel=1e-9)


def test_only_the_nearest_beyond_an_end_is_told_and_every_gap() -> None:
    family = _made()
    at = np.array([2, 4, 5])
    assert family.told("1", COUNTS[at], family.curves["1"].tpot_s[at]).concurrency.tolist() == [8.0, 32.0]


def test_too_few_curves_or_points_tell_nothing() -> None:
    few = _made(FEWEST_CURVES)  # one of them is the curve itself
    assert len(few.told("1", COUNTS[:5], few.curves["1"].tpot_s[:5]).tpot_s) == 0
    many = _made(FEWEST_CURVES + 1)
    assert many.told("1", COUNTS[:5], many.curves["1"].tpot_s[:5]).curves.tolist() == [FEWEST_CURVES]
    assert len(many.told("1", COUNTS[:2], many.curves["1"].tpot_s[:2]).tpot_s) == 0
    with pytest.raises(ValueError, match="no curve 'x' among 16"):
        many.told("x", COUNTS[:5], many.curves["1"].tpot_s[:5])


def test_a_workload_that_was_not_recorded_is_alike_to_no_other() -> None:
    family = _made()
    silent = {name: c._replace(workload=np.full(3, np.nan)) for name, c in family.curves.items()}
    assert np.isfinite(_told(CurveFamily({**family.curves, "1": silent["1"]}), "1", 5))
    assert _told(CurveFamily(silent), "1", 5) == pytest.approx(family.curves["1"].tpot_s[5], rel=0.05)  # all silent: kin by family alone


def _row(curve: int, name: str, count: float, tpot_s: float) -> dict[str, object]:
    return {
        "id": f"{curve}-{count:g}",
        "silicon_data_source": f"source_file=x.csv; silicon_concurrency={count:g}",
        "backend": "vllm",
        "model_path": name,
        "system": "card",
        "mode": "agg",
        "isl": 1024 + curve,
        "osl": 512,
        "tp_size": 2.0,
        "silicon_ttft_ms": 100.0 + 1e3 * tpot_s,
        "silicon_tpot_ms": 1e3 * tpot_s,
    }


def _table(folder: Path, cut: str) -> Path:
    """The curves as a table; one without its last point."""
    rows = []
    for name, c in _made().curves.items():
        points = zip(c.concurrency[: 5 if name == cut else 6], c.tpot_s, strict=False)
        rows += [_row(int(name), c.family[0], count, tpot_s) for count, tpot_s in points]
    file = folder / "silicon.csv"
    pl.DataFrame(rows).write_csv(file)
    return file


def test_a_fit_to_one_curve_of_a_table_hears_the_others_and_says_so(tmp_path: Path) -> None:
    trace, truth = read_trace(_table(tmp_path, "1")), _made().curves["1"]
    (curve,) = trace.frame.filter(pl.col("isl") == 1025)["curve"].unique().to_list()
    told, alone = fit(trace, where={"curve": curve}), fit(trace.where({"curve": curve}))
    (said,) = [text for text in told.about["warnings"] if "were not measured on this curve" in text]
    assert "points at concurrency 128 were not" in said
    assert "at least 39 other curves" in said
    assert not any("were not measured on this curve" in text for text in alone.about["warnings"])
    assert told.hull.decode_requests == alone.hull.decode_requests == 64
    assert len(told.noise.decode) == len(alone.noise.decode) == 5  # residuals are of what was measured
    at_end = trace.batch()._replace(decode_requests=np.full(trace.frame.height, 128.0))
    errors = [abs(float(p.plant.step_time_s(at_end)[0]) / truth.tpot_s[5] - 1) for p in (told, alone)]
    assert errors[0] < errors[1]


def test_a_concurrency_that_comes_twice_is_no_curve() -> None:
    frame = pl.DataFrame({"curve": [1, 1, 2, 2], "decode_requests": [4.0, 8.0, 4.0, 4.0], "step_time_s": [0.1, 0.2, 0.1, 0.1]})
    assert list(curves_of(frame).curves) == ["1"]


def test_measured_curves_are_told_better_by_each_other(shared_data: Path) -> None:
    frame = read_trace(shared_data / "steps/silicon_tpot/silicon_sample_h100_h200.csv").frame
    family = curves_of(frame)
    curves = {name: c for name, c in family.curves.items() if len(c.concurrency) >= 4}
    assert len(curves) == 231
    some = dict(list(curves.items())[::3])
    told, alone = (
        [leave_one_out(c.concurrency, c.tpot_s, family=by, name=name).error.mean() for name, c in some.items()] for by in (family, None)
    )
    print(f"{len(some)} of {len(curves)} curves: told {np.median(told):.2%}, alone {np.median(alone):.2%}")
    assert np.median(told) < 0.85 * np.median(alone)
