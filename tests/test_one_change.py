"""One change of the engine while it was measured is one finding: a jump, or a steady drift, and not a row of either."""

from __future__ import annotations

import numpy as np
import pytest

from headway.identification.diagnostics.drift import drift, levels
from headway.identification.fit import fit
from tests.synthetic_steps import composed, durations, traced
from tests.test_diagnostics import plain, process


@pytest.mark.parametrize(("total", "correlation"), [(0.1, 0.0), (0.3, 0.0), (-0.1, 0.7)])
def test_a_steady_drift_is_a_slope_and_no_row_of_changes(total: float, correlation: float) -> None:
    k = 8000
    for seed in range(10):
        residual = process(k, correlation, seed, 0.04) + total * np.arange(k) / k
        found, said = plain(drift(residual, np.zeros(k, int), np.arange(k)))
        assert found["streams"][0]["changes"] == []
        assert len(said) == 1
        assert said[0].startswith(f"the engine grew {'slower' if total > 0 else 'faster'} by ")


def test_a_jump_beside_a_slope_is_still_found() -> None:
    k = 8000
    residual = process(k, 0.0, 1, 0.04) + 0.1 * np.arange(k) / k
    residual[5000:] += np.log(1.15)
    found, said = plain(drift(residual, np.zeros(k, int), np.arange(k)))
    large = [change for change in found["streams"][0]["changes"] if abs(change["size"]) > 0.05]
    assert [abs(change["step"] - 5000) <= 30 for change in large] == [True]
    assert len(said) == 1
    assert said[0].startswith(f"from step {large[0]['step']:,} on the engine is 1")


def test_levels_take_out_what_was_said_and_nothing_else() -> None:
    k = 6000
    quiet, mixed, stream = process(k, 0.0, 2, 0.04), np.arange(k) % 4 == 0, np.zeros(k, int)
    assert (levels(drift(quiet, stream, np.arange(k))[0], quiet, stream, mixed) == 0).all()
    for shape in (0.3 * (np.arange(k) >= 3600), 0.3 * np.arange(k) / k):
        moved = quiet + shape
        left = moved - levels(drift(moved, stream, np.arange(k))[0], moved, stream, mixed)
        ends = [np.median(left[:1000]), np.median(left[-1000:])]
        assert abs(ends[1] - ends[0]) < 0.01
        assert left.std() == pytest.approx(quiet.std(), rel=0.05)


@pytest.mark.parametrize("shape", ["jump", "drift"])
def test_one_change_of_the_engine_is_one_finding_of_a_fit(shape: str) -> None:
    """A plant fitted over a jump misses in many ways: what may follow from it is counted in the one sentence that names it."""
    k = 6000
    place = np.arange(k) / k
    batch = composed(k, 1)
    change = 0.3 * (place >= 0.6) if shape == "jump" else 0.3 * place
    found = fit(traced(batch, durations(batch, 0.04, 1) * np.exp(change))).about
    of_steps = [text for text in found["warnings"] if "KV cache" not in text]
    assert len(of_steps) == 1, of_steps
    assert of_steps[0].startswith("from step 3," if shape == "jump" else "the engine grew slower by ")
    if shape == "jump":
        (change,) = (c for c in found["diagnostics"]["drift"]["streams"][0]["changes"] if abs(c["size"]) > 0.05)
        assert change["size"] == pytest.approx(np.exp(0.3) - 1, abs=0.02)
        assert "may follow from it, see the diagnostics of the plant" in of_steps[0]
        assert set(found["diagnostics"]["sentences"]) > {"drift"}
